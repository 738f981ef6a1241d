// SPDX-License-Identifier: GPL-2.0-only

//! Tasklets: work that an interrupt handler defers to a softirq of the same CPU.

use crate::bindings;
use core::ops::Deref;
use kernel::{container_of, prelude::*, types::Opaque};

/// Function of a tasklet.
pub trait Soft: Send + Sync + 'static {
    /// Called in a softirq, on one CPU at a time, with interrupts enabled. Must not sleep. To let
    /// other softirqs run, it limits its work and schedules the tasklet again for the remainder,
    /// unless the tasklet is about to be dropped. Must not drop the last reference to the tasklet,
    /// because the drop waits for this call.
    fn run(tasklet: &Tasklet<Self>)
    where
        Self: Sized;
}

/// Value with a tasklet, which must not move in memory (for example `Arc<Tasklet<T>>`). The drop
/// waits until a scheduled tasklet has run, then drops the value. The drop sleeps, so it needs
/// process context without a lock that [`Soft::run`] takes.
///
/// A bottom-half workqueue would do the same with several times as many instructions, which matters
/// because each message of a peer schedules a tasklet.
///
/// # Examples
///
/// ```
/// use kernel::{prelude::*, sync::{atomic::{Atomic, Relaxed}, Arc}};
/// use kernel_ext::tasklet::{Soft, Tasklet};
///
/// struct Runs(Atomic<i32>);
///
/// impl Soft for Runs {
///     fn run(tasklet: &Tasklet<Self>) {
///         tasklet.0.fetch_add(1, Relaxed);
///     }
/// }
///
/// fn begin() -> Result<Arc<Tasklet<Runs>>> {
///     let runs = Ok::<_, Error>(Runs(Atomic::new(0)));
///     let tasklet = Arc::pin_init(Tasklet::<Runs>::new(runs), GFP_KERNEL)?;
///     tasklet.schedule();
///     Ok(tasklet)
/// }
/// ```
///
/// # Invariants
///
/// `raw` was initialised with a function that calls `T::run` for the `Tasklet` that contains it.
#[pin_data(PinnedDrop)]
pub struct Tasklet<T: Soft> {
    #[pin]
    raw: Opaque<bindings::tasklet_struct>,
    #[pin]
    value: T,
}

// SAFETY: a tasklet may be scheduled and dropped on any CPU, and `T` is `Send`.
unsafe impl<T: Soft> Send for Tasklet<T> {}
// SAFETY: scheduling sets one atomic bit, and `T` is `Sync`.
unsafe impl<T: Soft> Sync for Tasklet<T> {}

impl<T: Soft> Tasklet<T> {
    /// Returns a value with a tasklet that is not scheduled.
    pub fn new<E>(value: impl PinInit<T, E>) -> impl PinInit<Self, E>
    where
        E: From<core::convert::Infallible>,
    {
        try_pin_init!(Self {
            raw <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is memory for a tasklet that does not move; `run::<T>` expects the
                // tasklet of a `Tasklet<T>`.
                unsafe { bindings::tasklet_setup(slot, Some(run::<T>)) }
            }),
            value <- value,
        }? E)
    }

    /// Schedules one run on this CPU, as soon as softirqs may run; after a call in a hard
    /// interrupt, the run directly follows that interrupt. Any context except a non-maskable
    /// interrupt. In process context the caller should disable bottom halves; otherwise the run
    /// waits for the thread `ksoftirqd`.
    #[inline]
    pub fn schedule(&self) {
        // SAFETY: the tasklet was initialised by the type invariant; the drop waits for a scheduled
        // run.
        unsafe { bindings::extoll_tasklet_schedule(self.raw.get()) }
    }
}

impl<T: Soft> Deref for Tasklet<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// # Safety
///
/// Only the tasklet of a [`Tasklet`] may call this function.
unsafe extern "C" fn run<T: Soft>(tasklet: *mut bindings::tasklet_struct) {
    // SAFETY: by the function's requirements the pointer is the field `raw` of a `Tasklet<T>`, and
    // `Opaque` is transparent. The object is alive, because its drop waits for this call.
    let tasklet = unsafe { &*container_of!(Opaque::cast_from(tasklet), Tasklet<T>, raw) };
    T::run(tasklet);
}

#[pinned_drop]
impl<T: Soft> PinnedDrop for Tasklet<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: initialised by the type invariant. No other reference exists, so only `T::run`
        // itself can still schedule the tasklet. When `tasklet_kill` returns, that run has finished
        // or will never begin.
        unsafe { bindings::tasklet_kill(self.raw.get()) }
    }
}

#[kunit_tests(kernel_ext_tasklet)]
mod tests {
    use super::*;
    use crate::net::BhDisabled;
    use kernel::sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    };

    /// Counts its runs, and schedules itself while `again` is positive.
    struct Count {
        ran: Arc<Atomic<i32>>,
        again: Atomic<i32>,
    }

    impl Soft for Count {
        fn run(tasklet: &Tasklet<Self>) {
            tasklet.ran.fetch_add(1, Relaxed);
            if tasklet.again.fetch_sub(1, Relaxed) > 0 {
                tasklet.schedule();
            }
        }
    }

    fn count(again: i32) -> Result<(Arc<Tasklet<Count>>, Arc<Atomic<i32>>)> {
        let ran = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let value = Count {
            ran: ran.clone(),
            again: Atomic::new(again),
        };
        let tasklet = Arc::pin_init(Tasklet::new(Ok::<_, Error>(value)), GFP_KERNEL)?;
        Ok((tasklet, ran))
    }

    #[test]
    fn it_runs_once_however_often_it_is_scheduled() -> Result {
        let (tasklet, ran) = count(0)?;
        {
            let _bh = BhDisabled::new();
            tasklet.schedule();
            tasklet.schedule();
            assert_eq!(ran.load(Relaxed), 0);
        }
        drop(tasklet);
        assert_eq!(ran.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn the_drop_waits_for_what_is_scheduled() -> Result {
        let (tasklet, ran) = count(5)?;
        {
            let _bh = BhDisabled::new();
            tasklet.schedule();
        }
        drop(tasklet);
        assert!((1..=6).contains(&ran.load(Relaxed)));
        Ok(())
    }
}
