// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! How long and in which manner to wait.

use crate::error::{Error, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Longest sleep in one go: what comes without an interrupt is seen after this time at the latest.
const SLICE: Duration = Duration::from_millis(1);
/// How long to look before the first sleep when the caller did not say.
const SPIN: Duration = Duration::from_micros(50);
/// Pause between looks at a register while nothing comes: as long as the driver's own ports wait before they look for packets
/// that the NIC dropped.
const SETTLE: Duration = Duration::from_millis(4);

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

    /// Looks until `look` finds something; from time to time, and once before the time is over, it is told to look at registers
    /// as well. `arm` asks for an interrupt before a sleep on `fd`; it is told whether that is certainly necessary.
    pub(crate) fn until<T>(
        &self,
        fd: BorrowedFd<'_>,
        mut look: impl FnMut(bool) -> Result<Option<T>>,
        mut arm: impl FnMut(bool),
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
        for n in 0u32.. {
            let idle = n % 64 == 63;
            let over = idle && self.is_over();
            if let Some(found) = look(over || idle && due())? {
                return Ok(found);
            }
            if over {
                return Err(Error::Timeout);
            }
            if idle {
                std::thread::yield_now();
            }
            if (idle || n == 0) && self.spin.is_some_and(|time| start.elapsed() >= time) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut woken = true;
        loop {
            arm(woken);
            let left = self.left();
            let over = left == Some(Duration::ZERO);
            // What came before the interrupt was asked for may not raise one.
            if let Some(found) = look(over || due())? {
                return Ok(found);
            }
            if over {
                return Err(Error::Timeout);
            }
            let time = left.map_or(SLICE, |left| left.min(SLICE));
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: time.subsec_nanos().into(),
            };
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            woken = match poll(&mut fds, Some(&time)) {
                Ok(n) => n > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(e) => return Err(Error::os("cannot wait for the device", e.into())),
            };
            if fds[0]
                .revents()
                .intersects(PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP)
            {
                // The last look: what had arrived before still counts.
                return look(true)?.ok_or(Error::Gone);
            }
            if woken {
                // Before the interrupt is asked for again, which the next wait may do as well.
                if let Some(found) = look(false)? {
                    return Ok(found);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn finds_what_comes_without_an_interrupt() {
        let (a, _b) = UnixStream::pair().unwrap();
        let mut looks = 0;
        let wait = Wait::for_at_most(Duration::from_secs(20)).sleeping();
        let found = wait.until(
            a.as_fd(),
            |_| {
                looks += 1;
                Ok((looks == 4).then_some(looks))
            },
            |_| {},
        );
        assert_eq!(found.unwrap(), 4);
    }

    #[test]
    fn registers_are_looked_at_rarely_and_before_the_time_is_over() {
        let (a, _b) = UnixStream::pair().unwrap();
        let wait = |ms| Wait::for_at_most(Duration::from_millis(ms));
        for (wait, most) in [
            (wait(1).polling(), 1),
            (wait(1).sleeping(), 1),
            (wait(42).polling(), 11),
            (wait(42).sleeping(), 11),
        ] {
            let (mut looks, mut registers) = (0, 0);
            let result = wait.until(
                a.as_fd(),
                |settle| {
                    looks += 1;
                    registers += i32::from(settle);
                    Ok(None::<()>)
                },
                |_| {},
            );
            assert!(matches!(result, Err(Error::Timeout)));
            assert!((1..=most).contains(&registers), "{registers} of {looks}");
        }
    }

    #[test]
    fn an_interrupt_is_certainly_asked_for_at_first_and_after_each() {
        use std::io::Write;
        let (a, mut b) = UnixStream::pair().unwrap();
        let mut armed = Vec::new();
        let mut looks = 0;
        let wait = Wait::for_at_most(Duration::from_secs(20)).sleeping();
        let found = wait.until(
            a.as_fd(),
            |_| {
                looks += 1;
                if looks == 4 {
                    b.write_all(&[1]).unwrap();
                }
                Ok((looks == 6).then_some(()))
            },
            |necessary| armed.push(necessary),
        );
        found.unwrap();
        assert_eq!(armed, [true, false, false, true]);
    }

    #[test]
    fn the_time_ends_both_ways_of_waiting() {
        let (a, _b) = UnixStream::pair().unwrap();
        for wait in [
            Wait::for_at_most(Duration::from_millis(20)),
            Wait::for_at_most(Duration::from_millis(20)).polling(),
        ] {
            let result = wait.until(a.as_fd(), |_| Ok(None::<()>), |_| {});
            assert!(matches!(result, Err(Error::Timeout)));
            assert!(wait.is_over());
        }
    }

    #[test]
    fn a_device_that_hangs_up_ends_the_wait() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        let result = Wait::forever().until(a.as_fd(), |_| Ok(None::<()>), |_| {});
        assert!(matches!(result, Err(Error::Gone)));
    }
}
