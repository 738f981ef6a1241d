// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Waiting with a deadline, by polling and by sleeping.

use crate::error::{Error, Result};
use crate::raw::BlockedSignals;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum sleep without an expected interrupt, and first sleep with an expected interrupt.
pub(crate) const SLICE: Duration = Duration::from_millis(1);
/// Lost-interrupt guard: maximum sleep with an expected interrupt. A sleep takes as long as the
/// call has already waited, up to this time, because a sender may omit the interrupt flag.
pub(crate) const GUARD: Duration = Duration::from_secs(1);
/// Default time of polling before the first sleep.
const SPIN: Duration = Duration::from_micros(50);
/// Interval between register reads while no entry arrives. The driver's own ports check for dropped
/// packets at the same interval.
pub(crate) const SETTLE: Duration = Duration::from_millis(4);
/// First pause after the descriptor was readable because of an event for another call. The pause
/// doubles up to [`SLICE`].
const IN_VAIN: Duration = Duration::from_micros(25);

thread_local! {
    /// Event descriptor that wakes this thread from a long sleep. `None` if no descriptor is free.
    /// Long sleeps are then divided into short ones.
    static WAKER: Option<Arc<OwnedFd>> =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new);
}

/// State of a port's device file. The removal of a NIC revokes the mappings, and an access to them
/// would kill the process by SIGBUS. After the removal, the port therefore does not access its
/// mappings.
#[derive(Default)]
pub(crate) struct Link {
    gone: AtomicBool,
    woken: AtomicU64,
    /// Number of calls of [`Link::wake`].
    changes: AtomicU64,
    /// Number of threads in a long sleep. `wakers` contains their event descriptors.
    asleep: AtomicUsize,
    wakers: Mutex<Vec<Arc<OwnedFd>>>,
}

/// Reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Time,
    /// The descriptor is readable.
    Device,
    /// Another thread of the port called [`Link::wake`].
    Thread,
}

/// Thread in a long sleep, which [`Link::wake`] wakes.
struct Sleeper<'a> {
    link: &'a Link,
    waker: Arc<OwnedFd>,
}

impl<'a> Sleeper<'a> {
    fn new(link: &'a Link) -> Option<Self> {
        let waker = WAKER.try_with(Clone::clone).ok().flatten()?;
        link.wakers().push(waker.clone());
        link.asleep.fetch_add(1, Ordering::SeqCst);
        Some(Self { link, waker })
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.link.asleep.fetch_sub(1, Ordering::SeqCst);
        let mut wakers = self.link.wakers();
        if let Some(at) = wakers
            .iter()
            .position(|waker| Arc::ptr_eq(waker, &self.waker))
        {
            wakers.swap_remove(at);
        }
        // Clears the event for the next sleep. The read fails if there was no event.
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
    }
}

impl Link {
    /// Fails if the NIC is known to be removed.
    pub fn check(&self) -> Result<()> {
        match self.is_gone() {
            true => Err(Error::Gone),
            false => Ok(()),
        }
    }

    /// Returns whether the NIC is known to be removed.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Records that the NIC was removed, and returns the error.
    pub fn lost(&self) -> Error {
        self.gone.store(true, Ordering::Relaxed);
        Error::Gone
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Arc<OwnedFd>>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that sleep on the port, because a condition of their sleep has changed.
    /// The slot that they wait for may have changed, or the port may have unconfirmed packets now.
    pub fn wake(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) == 0 {
            return;
        }
        for waker in self.wakers().iter() {
            // The write fails if the counter is full, but then the thread wakes anyway.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Checks through the descriptor whether the NIC was removed. Does not wait.
    pub fn look(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.check()?;
        match self.pause(&BlockedSignals::new(), fd, Duration::ZERO) {
            // This call does not wait, and only calls that wait end because of a signal.
            Err(Error::Interrupted) => Ok(()),
            other => other,
        }
    }

    /// Sleeps for `time`, even if the descriptor is readable. Fails if a signal arrives or the NIC
    /// was removed.
    fn pause(&self, held: &BlockedSignals, fd: BorrowedFd<'_>, time: Duration) -> Result<()> {
        self.poll(held, [(fd, 0)], time).map(drop)
    }

    /// Sleeps until the descriptor is readable. A sleep longer than [`SETTLE`] also ends when
    /// another thread calls [`Link::wake`]. `seen` is the value of `changes` when the caller
    /// decided to sleep.
    fn sleep(
        &self,
        held: &BlockedSignals,
        fd: BorrowedFd<'_>,
        time: Duration,
        seen: u64,
    ) -> Result<Woken> {
        let ready = |[device, waker]: [libc::c_short; 2]| match (device, waker) {
            (0, 0) => Woken::Time,
            (0, _) => Woken::Thread,
            _ => Woken::Device,
        };
        let sleeper = match time > SETTLE {
            true => Sleeper::new(self),
            false => None,
        };
        let Some(sleeper) = sleeper else {
            let [device] = self.poll(held, [(fd, libc::POLLIN)], time.min(SETTLE))?;
            return Ok(ready([device, 0]));
        };
        if self.changes.load(Ordering::SeqCst) != seen {
            return Ok(Woken::Thread);
        }
        let fds = [(fd, libc::POLLIN), (sleeper.waker.as_fd(), libc::POLLIN)];
        self.poll(held, fds, time).map(ready)
    }

    /// Returns the events of the descriptors. The first descriptor belongs to the device file.
    fn poll<const N: usize>(
        &self,
        held: &BlockedSignals,
        fds: [(BorrowedFd<'_>, libc::c_short); N],
        time: Duration,
    ) -> Result<[libc::c_short; N]> {
        let ready = match held.poll(fds, time) {
            Ok(ready) => ready,
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => return Err(Error::Interrupted),
            Err(e) => return Err(Error::os("cannot wait for the device", e)),
        };
        let dead = libc::POLLNVAL | libc::POLLERR | libc::POLLHUP;
        match ready.first().is_some_and(|device| device & dead != 0) {
            true => Err(self.lost()),
            false => Ok(ready),
        }
    }

    /// Returns the number of sleeps that ended because the descriptor became readable.
    pub fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }
}

/// Pauses of a call that waits for an event without an interrupt: a credit for a packet, or the
/// NIC's confirmation.
pub(crate) struct Pauses {
    wait: Wait,
    began: Instant,
    held: Option<BlockedSignals>,
}

impl Pauses {
    pub fn new(wait: Wait) -> Self {
        Self {
            wait,
            began: Instant::now(),
            held: None,
        }
    }

    /// Yields the CPU at first. Later, sleeps as long as the call has already waited, up to a
    /// millisecond. Fails if the deadline has passed, a signal arrives or the NIC was removed.
    pub fn pause(&mut self, link: &Link, fd: BorrowedFd<'_>) -> Result<()> {
        link.check()?;
        let left = self.wait.left();
        if left == Some(Duration::ZERO) {
            return Err(Error::Timeout);
        }
        let waited = self.began.elapsed();
        let time = match self.wait.spin {
            Some(spin) if waited > spin => waited.min(SLICE).min(left.unwrap_or(SLICE)),
            _ => Duration::ZERO,
        };
        if time.is_zero() {
            std::thread::yield_now();
        }
        let held = self.held.get_or_insert_with(BlockedSignals::new);
        link.pause(held, fd, time)
    }
}

/// State of a queue after a request for an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// The queue may contain entries. The caller must check it.
    Look,
    /// The queue is empty, and the next entry makes the descriptor readable.
    Empty,
}

/// Converts a time to milliseconds for poll(2), rounded up. Returns −1 for `None`, which means no
/// limit.
pub fn poll_milliseconds(time: Option<Duration>) -> i32 {
    let up = |t: Duration| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    time.map_or(-1, up)
}

/// Deadline of a call, and the time for which the call polls before it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    deadline: Option<Instant>,
    spin: Option<Duration>,
}

impl Wait {
    /// Waits for at most `time`. The call polls for a short time, then sleeps until an interrupt.
    ///
    /// In all modes, a signal handler that runs while a call waits ends the call with
    /// [`Error::Interrupted`], as in poll(2).
    pub fn for_at_most(time: Duration) -> Self {
        // A time that exceeds the range of the clock means no limit.
        Self {
            deadline: Instant::now().checked_add(time),
            spin: Some(SPIN),
        }
    }

    /// Waits without a limit.
    pub fn forever() -> Self {
        Self {
            deadline: None,
            spin: Some(SPIN),
        }
    }

    /// Makes the call poll without sleeping. Polling has the lowest latency and needs no
    /// interrupts, but keeps a CPU busy. The call yields the CPU from time to time.
    #[must_use]
    pub fn polling(self) -> Self {
        Self { spin: None, ..self }
    }

    /// Makes the call sleep at once if it finds nothing.
    #[must_use]
    pub fn sleeping(self) -> Self {
        self.spinning(Duration::ZERO)
    }

    /// Makes the call poll for this time before it sleeps.
    #[must_use]
    pub fn spinning(self, time: Duration) -> Self {
        Self {
            spin: Some(time),
            ..self
        }
    }

    /// Returns the remaining time; `None` means no limit.
    pub fn left(&self) -> Option<Duration> {
        self.deadline
            .map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Calls `look` until it returns a result. `idle` reads registers. It is called at intervals,
    /// and once before the deadline. `arm` requests an interrupt before a sleep on `fd`. Its
    /// argument is true if the request must not be omitted. `limit` returns the maximum sleep
    /// before `idle` must run again; `None` means no limit.
    ///
    /// While the descriptor reports all new entries, the call accesses no memory between two
    /// sleeps. If the NIC is unbound during such a wait, the call returns an error instead of
    /// raising SIGBUS.
    pub(crate) fn until<T>(
        &self,
        link: &Link,
        fd: BorrowedFd<'_>,
        mut look: impl FnMut() -> Result<Option<T>>,
        mut idle: impl FnMut() -> Result<()>,
        mut arm: impl FnMut(bool) -> Result<Armed>,
        limit: impl Fn() -> Option<Duration>,
    ) -> Result<T> {
        let start = Instant::now();
        let mut settled = start;
        let mut due = || {
            let now = Instant::now();
            let due = now.duration_since(settled) >= SETTLE;
            if due {
                settled = now;
            }
            due
        };
        link.check()?;
        // Signals are not blocked at first, because blocking them takes system calls. Most calls
        // find an entry at once.
        let mut held = None;
        for n in 0u32.. {
            let round = n % 64 == 63;
            let over = round && self.is_over();
            if let Some(found) = look()? {
                return Ok(found);
            }
            let due = round && due();
            if over || due {
                idle()?;
            }
            if over {
                return Err(Error::Timeout);
            }
            if round {
                let held = held.get_or_insert_with(BlockedSignals::new);
                if due {
                    link.pause(held, fd, Duration::ZERO)?;
                }
                std::thread::yield_now();
            }
            if (round || n == 0) && self.spin.is_some_and(|time| start.elapsed() >= time) {
                break;
            }
            std::hint::spin_loop();
        }
        let held = held.unwrap_or_else(BlockedSignals::new);
        let asleep = Instant::now();
        let (mut necessary, mut changed) = (true, false);
        // Number of consecutive sleeps that ended because of the descriptor, but after which the
        // call found nothing.
        let mut in_vain = 0u32;
        loop {
            let seen = link.changes.load(Ordering::SeqCst);
            let armed = arm(necessary)?;
            let left = self.left();
            let over = left == Some(Duration::ZERO);
            // Entries that arrived before the request may not raise an interrupt.
            if over || armed == Armed::Look {
                if let Some(found) = look()? {
                    return Ok(found);
                }
            }
            if due() || over || changed {
                idle()?;
            }
            if over {
                return Err(Error::Timeout);
            }
            let time = match armed {
                Armed::Look => SLICE,
                Armed::Empty => asleep.elapsed().clamp(SLICE, GUARD),
            };
            let time = [left, limit()]
                .into_iter()
                .flatten()
                .fold(time, Duration::min);
            if in_vain > 1 {
                let pause = IN_VAIN.saturating_mul(1 << in_vain.min(8));
                link.pause(&held, fd, pause.min(SLICE).min(time))?;
            }
            let woken = link.sleep(&held, fd, time, seen)?;
            changed = woken == Woken::Thread;
            necessary = woken == Woken::Device;
            if !necessary {
                in_vain = 0;
                continue;
            }
            // The queue is checked before the next request for an interrupt, because the call may
            // not need another sleep.
            if let Some(found) = look()? {
                link.woken.fetch_add(1, Ordering::Relaxed);
                return Ok(found);
            }
            in_vain = in_vain.saturating_add(1);
            if in_vain == 1 {
                link.woken.fetch_add(1, Ordering::Relaxed);
            } else {
                // The sleep ended for another reason than an interrupt.
                necessary = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::signals;
    use std::cell::Cell;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn until<T>(
        wait: Wait,
        fd: &UnixStream,
        look: impl FnMut() -> Result<Option<T>>,
        idle: impl FnMut() -> Result<()>,
        arm: impl FnMut(bool) -> Result<Armed>,
    ) -> Result<T> {
        wait.until(&Link::default(), fd.as_fd(), look, idle, arm, || None)
    }

    fn ms(ms: u64) -> Wait {
        Wait::for_at_most(Duration::from_millis(ms))
    }

    #[test]
    fn finds_what_comes_without_an_interrupt() {
        let (a, _b) = UnixStream::pair().unwrap();
        let mut looks = 0;
        let found = until(
            ms(20_000).sleeping(),
            &a,
            || {
                looks += 1;
                Ok((looks == 4).then_some(looks))
            },
            || Ok(()),
            |_| Ok(Armed::Look),
        );
        assert_eq!(found.unwrap(), 4);
    }

    #[test]
    fn registers_are_looked_at_rarely_and_before_the_time_is_over() {
        let (a, _b) = UnixStream::pair().unwrap();
        let times = [1, 42];
        for (time, sleeps) in times.map(|t| [(t, false), (t, true)]).concat() {
            let start = Instant::now();
            let wait = match sleeps {
                true => ms(time).sleeping(),
                false => ms(time).polling(),
            };
            let (mut looks, mut registers) = (0, 0);
            let result = until(
                wait,
                &a,
                || {
                    looks += 1;
                    Ok(None::<()>)
                },
                || {
                    registers += 1;
                    Ok(())
                },
                |_| Ok(Armed::Look),
            );
            assert!(matches!(result, Err(Error::Timeout)));
            // The maximum is one read per [`SETTLE`] of the elapsed time, plus one at the end. The
            // elapsed time may exceed the requested time on a busy machine.
            let most = start.elapsed().as_millis() / SETTLE.as_millis() + 1;
            assert!((1..=most).contains(&registers), "{registers} of {looks}");
        }
    }

    #[test]
    fn an_interrupt_is_certainly_asked_for_at_first_and_after_each() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let mut armed = Vec::new();
        let mut looks = 0;
        let found = until(
            ms(20_000).sleeping(),
            &a,
            || {
                looks += 1;
                if looks == 4 {
                    b.write_all(&[1]).unwrap();
                }
                Ok((looks == 6).then_some(()))
            },
            || Ok(()),
            |necessary| {
                armed.push(necessary);
                Ok(Armed::Look)
            },
        );
        found.unwrap();
        assert_eq!(armed, [true, false, false, true]);
    }

    #[test]
    fn the_time_ends_both_ways_of_waiting() {
        let (a, _b) = UnixStream::pair().unwrap();
        for wait in [ms(20), ms(20).polling()] {
            let result = until(wait, &a, || Ok(None::<()>), || Ok(()), |_| Ok(Armed::Empty));
            assert!(matches!(result, Err(Error::Timeout)));
            assert!(wait.is_over());
        }
    }

    #[test]
    fn an_empty_queue_is_not_touched_between_sleeps() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let (looks, idles) = (Cell::new(0), Cell::new(0));
        let link = Link::default();
        let found = ms(20_000).sleeping().until(
            &link,
            a.as_fd(),
            || {
                looks.set(looks.get() + 1);
                Ok((looks.get() == 2).then_some(()))
            },
            || {
                idles.set(idles.get() + 1);
                if idles.get() == 5 {
                    assert_eq!(looks.get(), 1);
                    b.write_all(&[1]).unwrap();
                }
                Ok(())
            },
            |_| Ok(Armed::Empty),
            || None,
        );
        found.unwrap();
        assert_eq!((looks.get(), link.woken()), (2, 1));
    }

    #[test]
    fn a_device_that_hangs_up_ends_the_wait_without_another_look() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut looks, mut b) = (0, Some(b));
        let link = Link::default();
        let result = Wait::forever().sleeping().until(
            &link,
            a.as_fd(),
            || {
                looks += 1;
                assert!(b.is_some(), "a look at a revoked mapping");
                if looks == 3 {
                    b = None;
                }
                Ok(None::<()>)
            },
            || Ok(()),
            |_| Ok(Armed::Look),
            || None,
        );
        assert!(matches!(result, Err(Error::Gone)));
        assert!(link.is_gone() && matches!(link.look(a.as_fd()), Err(Error::Gone)));
    }

    #[test]
    fn times_are_those_of_poll() {
        assert_eq!(poll_milliseconds(None), -1);
        assert_eq!(poll_milliseconds(Some(Duration::from_micros(3001))), 4);
        assert_eq!(poll_milliseconds(Some(Duration::MAX)), i32::MAX);
    }

    #[test]
    fn what_only_others_wait_for_does_not_keep_a_processor_busy() {
        let (a, mut b) = UnixStream::pair().unwrap();
        b.write_all(&[1]).unwrap();
        let (mut looks, mut asked) = (0, 0);
        let start = Instant::now();
        let result = until(
            ms(50).sleeping(),
            &a,
            || {
                looks += 1;
                Ok(None::<()>)
            },
            || Ok(()),
            |necessary| {
                asked += u32::from(necessary);
                Ok(Armed::Look)
            },
        );
        assert!(matches!(result, Err(Error::Timeout)));
        // The maximum is two polls per millisecond, plus those during the first, shorter pauses.
        let most = 2 * start.elapsed().as_millis() as u32 + 20;
        assert!(looks < most && asked <= 3, "{looks} looks, {asked} asked");
    }

    /// A single signal during the call, but outside of the sleeps, must also end the call.
    #[test]
    fn a_signal_between_two_sleeps_is_not_missed() {
        let (a, _b) = UnixStream::pair().unwrap();
        let forever = Wait::forever;
        for (wait, armed, in_arm, call) in [
            (forever(), Armed::Empty, true, 1),
            (forever(), Armed::Look, false, 100),
            (forever().sleeping(), Armed::Empty, true, 3),
            (forever().sleeping(), Armed::Look, false, 3),
            (forever().spinning(Duration::MAX), Armed::Empty, false, 100),
            (forever().polling(), Armed::Empty, false, 100),
        ] {
            let before = signals::handled();
            let calls = Cell::new(0);
            let count = |counted: bool| {
                calls.set(calls.get() + u32::from(counted));
                if counted && calls.get() == call {
                    signals::raise();
                    assert_eq!(signals::handled(), before, "it is held");
                }
            };
            let look = || {
                count(!in_arm);
                Ok(None::<()>)
            };
            let arm = |_| {
                count(in_arm);
                Ok(armed)
            };
            let result = until(wait, &a, look, || Ok(()), arm);
            assert!(matches!(result, Err(Error::Interrupted)), "{wait:?}");
            assert_eq!(signals::handled(), before + 1);
        }
    }

    #[test]
    fn a_signal_ends_waiting_for_room() {
        let (a, _b) = UnixStream::pair().unwrap();
        let link = Link::default();
        for wait in [Wait::forever(), Wait::forever().polling()] {
            let before = signals::handled();
            let mut pauses = Pauses::new(wait);
            pauses.pause(&link, a.as_fd()).unwrap();
            signals::raise();
            assert_eq!(signals::handled(), before, "it is held");
            let end = pauses.pause(&link, a.as_fd());
            assert!(matches!(end, Err(Error::Interrupted)));
            assert_eq!(signals::handled(), before + 1);
        }
    }

    #[test]
    fn a_promised_interrupt_is_waited_for_without_polling() {
        let (a, _b) = UnixStream::pair().unwrap();
        let sleeps = Cell::new(0);
        let wait = ms(3000).sleeping();
        let arm = |_| {
            sleeps.set(sleeps.get() + 1);
            Ok(Armed::Empty)
        };
        let result = until(wait, &a, || Ok(None::<()>), || Ok(()), arm);
        assert!(matches!(result, Err(Error::Timeout)));
        // The sleeps take 1, 1, 2, 4 … 512 ms, and then 1 s each.
        assert!((5..20).contains(&sleeps.get()), "{} sleeps", sleeps.get());
    }

    #[test]
    fn another_thread_ends_a_long_sleep() {
        let (a, _b) = UnixStream::pair().unwrap();
        let (link, done) = (Link::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while link.asleep.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                done.store(true, Ordering::SeqCst);
                link.wake();
            });
            let started = Cell::new(None);
            let wait = Wait::forever().sleeping();
            let found = wait.until(
                &link,
                a.as_fd(),
                || Ok(done.load(Ordering::SeqCst).then_some(())),
                || Ok(()),
                |_| match done.load(Ordering::SeqCst) {
                    true => Ok(Armed::Look),
                    false => {
                        started.set(Some(Instant::now()));
                        Ok(Armed::Empty)
                    }
                },
                || None,
            );
            found.unwrap();
        });
        assert_eq!(link.asleep.load(Ordering::SeqCst), 0);
        assert!(link.wakers().is_empty());
        // A change before the start of a sleep must also end the sleep.
        let held = BlockedSignals::new();
        let seen = link.changes.load(Ordering::SeqCst);
        link.wake();
        let woken = link.sleep(&held, a.as_fd(), GUARD, seen);
        assert_eq!(woken.unwrap(), Woken::Thread);
    }
}
