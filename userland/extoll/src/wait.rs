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

    /// Looks until `look` finds something. `arm` asks for an interrupt before a sleep on `fd`; `slept` is told of each sleep.
    pub(crate) fn until<T>(
        &self,
        fd: BorrowedFd<'_>,
        mut look: impl FnMut(bool) -> Result<Option<T>>,
        mut arm: impl FnMut(),
    ) -> Result<T> {
        let start = Instant::now();
        for n in 0u32.. {
            let idle = n % 64 == 63;
            if let Some(found) = look(idle)? {
                return Ok(found);
            }
            if idle {
                if self.is_over() {
                    return Err(Error::Timeout);
                }
                std::thread::yield_now();
            }
            if (idle || n == 0) && self.spin.is_some_and(|time| start.elapsed() >= time) {
                break;
            }
            std::hint::spin_loop();
        }
        loop {
            arm();
            // What came before the interrupt was asked for may not raise one.
            if let Some(found) = look(true)? {
                return Ok(found);
            }
            let time = match self.left() {
                Some(Duration::ZERO) => return Err(Error::Timeout),
                Some(left) => left.min(SLICE),
                None => SLICE,
            };
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: time.subsec_nanos().into(),
            };
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            match poll(&mut fds, Some(&time)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::os("cannot wait for the device", e.into())),
            }
            if fds[0]
                .revents()
                .intersects(PollFlags::NVAL | PollFlags::ERR | PollFlags::HUP)
            {
                // The last look: what had arrived before still counts.
                return look(true)?.ok_or(Error::Gone);
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
            || {},
        );
        assert_eq!(found.unwrap(), 4);
    }

    #[test]
    fn the_time_ends_both_ways_of_waiting() {
        let (a, _b) = UnixStream::pair().unwrap();
        for wait in [
            Wait::for_at_most(Duration::from_millis(20)),
            Wait::for_at_most(Duration::from_millis(20)).polling(),
        ] {
            let result = wait.until(a.as_fd(), |_| Ok(None::<()>), || {});
            assert!(matches!(result, Err(Error::Timeout)));
            assert!(wait.is_over());
        }
    }

    #[test]
    fn a_device_that_hangs_up_ends_the_wait() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        let result = Wait::forever().until(a.as_fd(), |_| Ok(None::<()>), || {});
        assert!(matches!(result, Err(Error::Gone)));
    }
}
