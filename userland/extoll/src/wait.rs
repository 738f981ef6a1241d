// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! How long and in which manner to wait.

use crate::error::{Error, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest sleep in one go: what comes without an interrupt is seen after this time at the latest.
const SLICE: Duration = Duration::from_millis(1);
/// How long to look before the first sleep when the caller did not say.
const SPIN: Duration = Duration::from_micros(50);
/// Pause between looks at a register while nothing comes: as long as the driver's own ports wait before they look for packets
/// that the NIC dropped.
pub(crate) const SETTLE: Duration = Duration::from_millis(4);
/// First pause when the descriptor is ready because of something that nobody here waits for; it doubles up to [`SLICE`].
const IN_VAIN: Duration = Duration::from_micros(25);

/// What a port knows of its device file. Once the NIC is gone its mappings are not touched any more: they are revoked, and
/// an access would end the process with SIGBUS.
#[derive(Default)]
pub(crate) struct Link {
    gone: AtomicBool,
    woken: AtomicU64,
}

impl Link {
    /// Fails when the NIC is known to be gone.
    pub fn check(&self) -> Result<()> {
        match self.is_gone() {
            true => Err(Error::Gone),
            false => Ok(()),
        }
    }

    /// True when the NIC is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// The NIC is gone.
    pub fn lost(&self) -> Error {
        self.gone.store(true, Ordering::Relaxed);
        Error::Gone
    }

    /// Asks the descriptor whether the NIC is gone.
    pub fn look(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.check()?;
        self.sleep(fd, Duration::ZERO).map(drop)
    }

    /// Waits until the descriptor is readable; false if it isn't in time.
    fn sleep(&self, fd: BorrowedFd<'_>, time: Duration) -> Result<bool> {
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: time.min(SLICE).subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let woken = match poll(&mut fds, Some(&time)) {
            Ok(n) => n > 0,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(e) => return Err(Error::os("cannot wait for the device", e.into())),
        };
        let dead = PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP;
        match fds[0].revents().intersects(dead) {
            true => Err(self.lost()),
            false => Ok(woken),
        }
    }

    /// Sleeps that ended because the descriptor became readable.
    pub fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }
}

/// What is known of a queue after an interrupt was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// It has to be looked at.
    Look,
    /// There is nothing, and the descriptor becomes readable with whatever comes next.
    Empty,
}

/// A time as poll(2) takes it: in milliseconds, rounded up; -1 for ever (`None`).
pub fn poll_milliseconds(time: Option<Duration>) -> i32 {
    let up = |t: Duration| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    time.map_or(-1, up)
}

/// A deadline, and whether to burn processor time until then.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    deadline: Option<Instant>,
    spin: Option<Duration>,
}

impl Wait {
    /// At most this long from now; looks a little, then sleeps until an interrupt.
    pub fn for_at_most(time: Duration) -> Self {
        // A time beyond what the clock can count is for ever.
        Self {
            deadline: Instant::now().checked_add(time),
            spin: Some(SPIN),
        }
    }

    /// Until it happens.
    pub fn forever() -> Self {
        Self {
            deadline: None,
            spin: Some(SPIN),
        }
    }

    /// Never sleep: lowest latency, needs no interrupt, keeps a processor busy (it is offered to others from time to time).
    #[must_use]
    pub fn polling(self) -> Self {
        Self { spin: None, ..self }
    }

    /// Sleep at once if there is nothing.
    #[must_use]
    pub fn sleeping(self) -> Self {
        self.spinning(Duration::ZERO)
    }

    /// Sleep after looking for this long.
    #[must_use]
    pub fn spinning(self, time: Duration) -> Self {
        Self {
            spin: Some(time),
            ..self
        }
    }

    /// Time that is left; `None` = unlimited.
    pub fn left(&self) -> Option<Duration> {
        self.deadline
            .map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// True when the time is over.
    pub fn is_over(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Looks until `look` finds something. `idle` looks at registers, from time to time and once before the time is over. `arm` asks
    /// for an interrupt before a sleep on `fd`; it is told whether that is certainly necessary.
    ///
    /// While the descriptor tells of whatever comes, memory is not touched between two sleeps: a NIC that is unbound meanwhile
    /// ends the wait with an error instead of SIGBUS.
    pub(crate) fn until<T>(
        &self,
        link: &Link,
        fd: BorrowedFd<'_>,
        mut look: impl FnMut() -> Result<Option<T>>,
        mut idle: impl FnMut() -> Result<()>,
        mut arm: impl FnMut(bool) -> Result<Armed>,
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
        for n in 0u32.. {
            let round = n % 64 == 63;
            let over = round && self.is_over();
            if let Some(found) = look()? {
                return Ok(found);
            }
            if over || round && due() {
                idle()?;
            }
            if over {
                return Err(Error::Timeout);
            }
            if round {
                std::thread::yield_now();
            }
            if (round || n == 0) && self.spin.is_some_and(|time| start.elapsed() >= time) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut necessary = true;
        // How often in a row the descriptor was readable and yet there was nothing to be found.
        let mut in_vain = 0u32;
        loop {
            let armed = arm(necessary)?;
            let left = self.left();
            let over = left == Some(Duration::ZERO);
            // What came before the interrupt was asked for may not raise one.
            if over || armed == Armed::Look {
                if let Some(found) = look()? {
                    return Ok(found);
                }
            }
            if over || due() {
                idle()?;
            }
            if over {
                return Err(Error::Timeout);
            }
            let time = left.map_or(SLICE, |left| left.min(SLICE));
            if in_vain > 1 {
                let pause = IN_VAIN.saturating_mul(1 << in_vain.min(8));
                std::thread::sleep(pause.min(time));
            }
            necessary = link.sleep(fd, time)?;
            if !necessary {
                in_vain = 0;
                continue;
            }
            // Before the interrupt is asked for again, which the next wait may do as well.
            if let Some(found) = look()? {
                link.woken.fetch_add(1, Ordering::Relaxed);
                return Ok(found);
            }
            in_vain = in_vain.saturating_add(1);
            if in_vain == 1 {
                link.woken.fetch_add(1, Ordering::Relaxed);
            } else {
                // It was not an interrupt that ended this sleep.
                necessary = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        wait.until(&Link::default(), fd.as_fd(), look, idle, arm)
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
            // Once per [`SETTLE`] of the time that passed, which is more than asked for on a busy machine, and at the end.
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
        // Two per millisecond, and those before the pauses are as long.
        let most = 2 * start.elapsed().as_millis() as u32 + 20;
        assert!(looks < most && asked <= 3, "{looks} looks, {asked} asked");
    }
}
