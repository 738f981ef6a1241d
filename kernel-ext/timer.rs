// SPDX-License-Identifier: GPL-2.0-only

//! Timers that run in softirqs.

use crate::bindings;
use core::ops::Deref;
use kernel::{container_of, prelude::*, time::Delta, types::Opaque};

/// Function of a timer.
pub trait Expire: Send + Sync + 'static {
    /// Called when the timer expires, in a softirq, with interrupts enabled. Must not sleep. May
    /// arm the timer again. Must not drop the last reference to the timer, because the drop waits
    /// for this call.
    fn expired(timer: &Timed<Self>)
    where
        Self: Sized;
}

/// Value with a timer, which must not move in memory (for example `Arc<Timed<T>>`). The drop
/// cancels the timer, waits until it does not run, then drops the value. Process context or a
/// softirq, without a lock that [`Expire::expired`] takes.
///
/// # Examples
///
/// ```
/// # use kernel::{prelude::*, sync::{atomic::{Atomic, Relaxed}, Arc}, time::Delta};
/// # use kernel_ext::timer::{Expire, Timed};
/// struct Beat(Atomic<i32>);
///
/// impl Expire for Beat {
///     fn expired(timer: &Timed<Self>) {
///         timer.0.fetch_add(1, Relaxed);
///         timer.arm(Delta::from_millis(100));
///     }
/// }
///
/// fn begin() -> Result<Arc<Timed<Beat>>> {
///     let beat = Ok::<_, Error>(Beat(Atomic::new(0)));
///     let beat = Arc::pin_init(Timed::<Beat>::new(beat), GFP_KERNEL)?;
///     beat.arm(Delta::from_millis(100));
///     Ok(beat)
/// }
/// ```
///
/// # Invariants
///
/// `timer` was initialised with a function that calls `T::expired` for the `Timed` that contains
/// it.
#[pin_data(PinnedDrop)]
pub struct Timed<T: Expire> {
    #[pin]
    timer: Opaque<bindings::hrtimer>,
    #[pin]
    value: T,
}

// SAFETY: a timer may be started, cancelled and dropped on any CPU, and `T` is `Send`.
unsafe impl<T: Expire> Send for Timed<T> {}
// SAFETY: the timer has its own lock, and `T` is `Sync`.
unsafe impl<T: Expire> Sync for Timed<T> {}

/// Mode of all timers: times relative to now, expiry in a softirq.
const MODE: bindings::hrtimer_mode = bindings::hrtimer_mode_HRTIMER_MODE_REL_SOFT;

impl<T: Expire> Timed<T> {
    /// Returns a value with a timer that is not armed.
    pub fn new<E>(value: impl PinInit<T, E>) -> impl PinInit<Self, E>
    where
        E: From<core::convert::Infallible>,
    {
        try_pin_init!(Self {
            timer <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is memory for a timer that does not move; `run::<T>` expects the
                // timer of a `Timed<T>`.
                unsafe {
                    let clock = bindings::CLOCK_MONOTONIC as bindings::clockid_t;
                    bindings::hrtimer_setup(slot, Some(run::<T>), clock, MODE);
                }
            }),
            value <- value,
        }? E)
    }

    /// Arms the timer to expire once, `after` from now; replaces an earlier time. Any context
    /// except a non-maskable interrupt.
    pub fn arm(&self, after: Delta) {
        // SAFETY: by the type invariant the timer is initialised.
        unsafe {
            bindings::hrtimer_start_range_ns(self.timer.get(), after.as_nanos().max(0), 0, MODE)
        }
    }

    /// Cancels the timer, and waits until its function does not run. Returns whether the timer was
    /// armed. The timer stays usable. Process context or a softirq. Must not be called in
    /// [`Expire::expired`], or with a lock held that `expired` takes.
    pub fn disarm_sync(&self) -> bool {
        // SAFETY: by the type invariant the timer is initialised.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) > 0 }
    }
}

impl<T: Expire> Deref for Timed<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// # Safety
///
/// Only the timer of a [`Timed`] may call this function.
unsafe extern "C" fn run<T: Expire>(timer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
    // SAFETY: by the function's requirements the pointer is the field `timer` of a `Timed<T>`, and
    // `Opaque` is transparent. The object is alive, because its drop waits for this call.
    let timed = unsafe { &*container_of!(Opaque::cast_from(timer), Timed<T>, timer) };
    T::expired(timed);
    bindings::hrtimer_restart::HRTIMER_NORESTART
}

#[pinned_drop]
impl<T: Expire> PinnedDrop for Timed<T> {
    fn drop(self: Pin<&mut Self>) {
        // No other reference exists, so only the running callback can still arm the timer. The call
        // also cancels a timer that was armed in this way.
        self.disarm_sync();
    }
}

#[kunit_tests(kernel_ext_timer)]
mod tests {
    use super::*;
    use kernel::{
        sync::{
            atomic::{Atomic, Relaxed},
            Arc,
        },
        time::delay::fsleep,
    };

    /// Counts its runs, and arms itself again while `again` is positive.
    struct Count {
        ran: Arc<Atomic<i32>>,
        again: Atomic<i32>,
    }

    impl Expire for Count {
        fn expired(timer: &Timed<Self>) {
            timer.ran.fetch_add(1, Relaxed);
            if timer.again.fetch_sub(1, Relaxed) > 0 {
                timer.arm(Delta::from_millis(1));
            }
        }
    }

    fn count(again: i32) -> Result<(Arc<Timed<Count>>, Arc<Atomic<i32>>)> {
        let ran = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let value = Count {
            ran: ran.clone(),
            again: Atomic::new(again),
        };
        let timed = Arc::pin_init(Timed::new(Ok::<_, Error>(value)), GFP_KERNEL)?;
        Ok((timed, ran))
    }

    fn wait_for(ran: &Atomic<i32>, times: i32) {
        for _ in 0..1000 {
            if ran.load(Relaxed) >= times {
                break;
            }
            fsleep(Delta::from_millis(2));
        }
        fsleep(Delta::from_millis(20));
    }

    #[test]
    fn it_runs_once_or_as_often_as_it_is_armed() -> Result {
        let (timed, ran) = count(0)?;
        timed.arm(Delta::from_millis(1));
        wait_for(&ran, 1);
        assert_eq!(ran.load(Relaxed), 1);
        assert!(!timed.disarm_sync());
        let (timed, ran) = count(4)?;
        timed.arm(Delta::from_nanos(-5));
        wait_for(&ran, 5);
        assert_eq!(ran.load(Relaxed), 5);
        drop(timed);
        Ok(())
    }

    #[test]
    fn the_last_time_counts() -> Result {
        let (timed, ran) = count(0)?;
        timed.arm(Delta::from_secs(3600));
        timed.arm(Delta::from_millis(1));
        wait_for(&ran, 1);
        assert_eq!(ran.load(Relaxed), 1);
        timed.arm(Delta::from_secs(1));
        timed.arm(Delta::from_secs(3600));
        fsleep(Delta::from_millis(1200));
        assert_eq!(ran.load(Relaxed), 1);
        assert!(timed.disarm_sync());
        assert!(!timed.disarm_sync());
        Ok(())
    }

    #[test]
    fn the_drop_ends_it() -> Result {
        // One timer is armed for later; the other timer arms itself again without end.
        let (late, never) = count(0)?;
        late.arm(Delta::from_millis(10));
        drop(late);
        let (busy, ran) = count(i32::MAX)?;
        busy.arm(Delta::from_nanos(0));
        wait_for(&ran, 3);
        drop(busy);
        let times = ran.load(Relaxed);
        fsleep(Delta::from_millis(30));
        assert!(times >= 3);
        assert_eq!((ran.load(Relaxed), never.load(Relaxed)), (times, 0));
        Ok(())
    }
}
