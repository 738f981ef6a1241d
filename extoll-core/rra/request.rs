// SPDX-License-Identifier: GPL-2.0-only

//! Requests for registers of other nodes: what is asked, how long for, and how it ends.

use crate::smfu::AccessError;
use kernel::{
    prelude::*,
    time::{
        delay::{fsleep, udelay},
        Delta, Instant, Monotonic,
    },
};
use wire::ids::{NodeId, RegOffset};

/// Time-out in microseconds that the vendor's driver has, and that [`read`](super::Rra::read) and
/// [`write`](super::Rra::write) use (HW §13).
pub const DEFAULT_TIMEOUT_US: u32 = 1000;
/// Longest time-out in microseconds.
pub const MAX_TIMEOUT_US: u32 = 10_000_000;
/// Longest time-out in microseconds of a caller that must not sleep.
pub const MAX_SPIN_US: u32 = 100_000;
/// How a register of another node is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Immediate put and get.
    Rma,
    /// Store and load in interval 0 of the SMFU window.
    Smfu,
    /// Not at all: registers of this node only.
    Local,
}

/// How to wait for answers over RMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Asleep, so many microseconds at most, 1…[`MAX_TIMEOUT_US`]. Process context.
    Sleep(u32),
    /// Busy, so many microseconds at most, 1…[`MAX_SPIN_US`]. Any context but non-maskable
    /// interrupts.
    Spin(u32),
}

/// Why an access failed. Each is counted; what the network or a node did wrong is logged too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RraError {
    /// Node IDs 0xFFFE and 0xFFFF are no nodes (HW §4.2), and [`Method::Local`] knows only the own
    /// one.
    BadNode,
    /// Not a multiple of 8, or outside the register file.
    BadOffset,
    /// No answer in time.
    TimedOut,
    /// The NIC reported an error for the request; bits as in the notification (HW §10.4).
    Failed(u8),
    /// Too many requests wait for answers that do not come; or such answers may still reach memory
    /// of an earlier binding of the driver, so that the port stays closed to them for up to a
    /// minute.
    Busy,
    /// The device is gone or unbound.
    Down,
    /// The port could not be opened. `EAGAIN`: it is not open yet, and the caller must not sleep.
    Open(Error),
}

impl From<RraError> for Error {
    fn from(e: RraError) -> Error {
        match e {
            RraError::BadNode | RraError::BadOffset => EINVAL,
            RraError::TimedOut => ETIMEDOUT,
            RraError::Failed(_) => EIO,
            RraError::Busy => EBUSY,
            RraError::Down => ENODEV,
            RraError::Open(e) => e,
        }
    }
}

impl From<AccessError> for RraError {
    fn from(e: AccessError) -> RraError {
        match e {
            AccessError::Outside => RraError::BadOffset,
            AccessError::TimedOut => RraError::TimedOut,
            AccessError::Down => RraError::Down,
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads the register.
    Read,
    /// Writes this value to it.
    Write(u64),
}

/// A request of a batch ([`batch`](super::Rra::batch)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Whose register.
    pub node: NodeId,
    /// Which one.
    pub offset: RegOffset,
    /// What is done with it.
    pub operation: Operation,
    /// How it ended: the value read or written. Nobody looks at what it is before.
    pub result: Result<u64, RraError>,
}

impl Request {
    const fn new(node: NodeId, offset: RegOffset, operation: Operation) -> Self {
        Self {
            node,
            offset,
            operation,
            result: Err(RraError::TimedOut),
        }
    }

    /// A read.
    pub const fn read(node: NodeId, offset: RegOffset) -> Self {
        Self::new(node, offset, Operation::Read)
    }

    /// A write.
    pub const fn write(node: NodeId, offset: RegOffset, value: u64) -> Self {
        Self::new(node, offset, Operation::Write(value))
    }
}

/// When requests are given up.
pub(crate) struct Deadline {
    start: Instant<Monotonic>,
    limit: Delta,
    /// The next pause in microseconds of a caller that sleeps: short answers cost little time, long
    /// waits little processor.
    pub(super) pause: Option<i64>,
}

impl Deadline {
    pub(crate) fn new(wait: Wait) -> Self {
        let (us, pause) = match wait {
            Wait::Sleep(us) => (us.clamp(1, MAX_TIMEOUT_US), Some(2)),
            Wait::Spin(us) => (us.clamp(1, MAX_SPIN_US), None),
        };
        Self {
            start: Instant::now(),
            limit: Delta::from_micros(us.into()),
            pause,
        }
    }

    pub(crate) fn passed(&self) -> bool {
        self.start.elapsed().as_nanos() >= self.limit.as_nanos()
    }

    /// What is left of the time.
    pub(crate) fn left(&self) -> Option<Wait> {
        let us = (self.limit.as_nanos() - self.start.elapsed().as_nanos()) / 1000;
        let us = u32::try_from(us).ok().filter(|us| *us != 0)?;
        Some(match self.pause {
            Some(_) => Wait::Sleep(us),
            None => Wait::Spin(us),
        })
    }

    /// At least so many microseconds are left from now on.
    pub(crate) fn extend(&mut self, us: u32) {
        let enough = |(Wait::Sleep(left) | Wait::Spin(left))| left >= us;
        if !self.left().is_some_and(enough) {
            self.start = Instant::now();
            self.limit = Delta::from_micros(us.into());
        }
    }

    /// Lets time go by, asleep if that is allowed.
    pub(crate) fn pause(&mut self) {
        match &mut self.pause {
            Some(us) => {
                fsleep(Delta::from_micros(*us));
                *us = (*us * 2).min(200);
            }
            None => udelay(Delta::from_micros(1)),
        }
    }
}
