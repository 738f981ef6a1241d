// SPDX-License-Identifier: GPL-2.0-only

//! Tasklets: what an interrupt has done behind it, in a softirq of the same CPU.

use crate::bindings;
use core::ops::Deref;
use kernel::{container_of, prelude::*, types::Opaque};

/// What a tasklet does.
pub trait Soft: Send + Sync + 'static {
    /// In a softirq, on one CPU at a time, with interrupts enabled: does not sleep, and leaves others
    /// their turn: what has more to do schedules the tasklet again, unless it is about to be dropped.
    /// Must not drop the last reference to the tasklet itself, whose end waits for this.
    fn run(tasklet: &Tasklet<Self>)
    where
        Self: Sized;
}

/// A value with a tasklet, at one place: `Arc<Tasklet<T>>`, say. The drop waits until the tasklet has
/// run that was scheduled, and then drops the value: it sleeps, in process context, without a lock that
/// [`Soft::run`] takes.
///
/// A work item of a queue for softirqs would do the same for several times as many instructions, which
/// counts where each message of a peer has one.
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
/// `raw` was set up, with a function that calls `T::run` with the value that it is in.
#[pin_data(PinnedDrop)]
pub struct Tasklet<T: Soft> {
    #[pin]
    raw: Opaque<bindings::tasklet_struct>,
    #[pin]
    value: T,
}

// SAFETY: a tasklet may be scheduled and dropped on any CPU.
unsafe impl<T: Soft> Send for Tasklet<T> {}
// SAFETY: as above; scheduling is one atomic bit.
unsafe impl<T: Soft> Sync for Tasklet<T> {}

impl<T: Soft> Tasklet<T> {
    /// A value with a tasklet that is not scheduled.
    pub fn new<E>(value: impl PinInit<T, E>) -> impl PinInit<Self, E>
    where
        E: From<core::convert::Infallible>,
    {
        try_pin_init!(Self {
            raw <- Opaque::ffi_init(|slot| {
                // SAFETY: memory for a tasklet, which stays where it is; the function fits.
                unsafe { bindings::tasklet_setup(slot, Some(run::<T>)) }
            }),
            value <- value,
        }? E)
    }

    /// Has it run once from now on, on this CPU, as soon as softirqs may; behind a hard interrupt that
    /// is at once. Any context but that of a non-maskable interrupt; in process context with bottom
    /// halves off, or it waits for a thread.
    #[inline]
    pub fn schedule(&self) {
        // SAFETY: set up by the invariants; the drop waits for what is scheduled.
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
/// To be called by the tasklet of a [`Tasklet`] only.
unsafe extern "C" fn run<T: Soft>(tasklet: *mut bindings::tasklet_struct) {
    // SAFETY: by the requirements: the drop waits for this, before the value goes. `Opaque` is
    // transparent.
    let tasklet = unsafe { &*container_of!(Opaque::cast_from(tasklet), Tasklet<T>, raw) };
    T::run(tasklet);
}

#[pinned_drop]
impl<T: Soft> PinnedDrop for Tasklet<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: set up by the invariants. Nobody else can schedule it now; if it does so itself while
        // this waits, it has run once more, or never will, when this returns.
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

    /// Counts how often it ran, and schedules itself while `again` is positive.
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
