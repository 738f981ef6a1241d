// SPDX-License-Identifier: GPL-2.0-only

//! Requests for registers of other nodes: operation, time-out and result. [`Deadline`] sleeps or
//! spins, as the caller permits. No locks.

use crate::smfu::AccessError;
use kernel::{
    prelude::*,
    time::{
        delay::{fsleep, udelay},
        Delta, Instant, Monotonic,
    },
};
use wire::ids::{NodeId, RegOffset};

/// Time-out of the vendor's driver in microseconds, used by [`read`](super::Rra::read) and
/// [`write`](super::Rra::write) (HW §13).
pub const DEFAULT_TIMEOUT_US: u32 = 1000;
/// Maximum time-out in microseconds.
pub const MAX_TIMEOUT_US: u32 = 10_000_000;
/// Maximum time-out in microseconds for a caller that must not sleep.
pub const MAX_SPIN_US: u32 = 100_000;
/// Path to a register of another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// RMA, with immediate PUTs and GETs.
    Rma,
    /// Stores and loads in interval 0 of the SMFU window.
    Smfu,
    /// No path to other nodes. Only registers of this node are accessible.
    Local,
}

/// How a caller waits for answers over RMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Sleeps up to this time in microseconds, 1…[`MAX_TIMEOUT_US`]. Process context.
    Sleep(u32),
    /// Spins up to this time in microseconds, 1…[`MAX_SPIN_US`]. Any context except NMI.
    Spin(u32),
}

/// Reason why an access failed. Each failure is counted. Errors of the network or of a node are
/// also logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RraError {
    /// The node ID is reserved (0xFFFE or 0xFFFF, HW §4.2), or another node was named with
    /// [`Method::Local`].
    BadNode,
    /// The offset is not a multiple of 8, or outside of the register file.
    BadOffset,
    /// No answer arrived in time.
    TimedOut,
    /// The NIC reported an error for the request. The bits are those of the notification (HW
    /// §10.4).
    Failed(u8),
    /// Too many requests are outstanding. The error is also returned while the port is disabled
    /// (up to a minute), because late answers to an earlier binding of the driver could reach
    /// memory.
    Busy,
    /// The device was removed or unbound.
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

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads the register.
    Read,
    /// Writes this value to the register.
    Write(u64),
}

/// Request of a batch ([`batch`](super::Rra::batch)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Node whose register is accessed.
    pub node: NodeId,
    /// Offset of the register.
    pub offset: RegOffset,
    /// Operation on the register.
    pub operation: Operation,
    /// Result: the value that was read or written. The initial value is ignored.
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

    /// Makes a read request.
    pub const fn read(node: NodeId, offset: RegOffset) -> Self {
        Self::new(node, offset, Operation::Read)
    }

    /// Makes a write request.
    pub const fn write(node: NodeId, offset: RegOffset, value: u64) -> Self {
        Self::new(node, offset, Operation::Write(value))
    }
}

/// Deadline of a batch of requests.
pub(crate) struct Deadline {
    start: Instant<Monotonic>,
    limit: Delta,
    /// Next pause in microseconds of a caller that sleeps; `None` for a caller that spins. It
    /// grows, so that quick answers are detected early and long waits take little CPU time.
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

    /// Returns the remaining time, in the caller's way of waiting; `None` if no time remains.
    pub(crate) fn left(&self) -> Option<Wait> {
        let us = (self.limit.as_nanos() - self.start.elapsed().as_nanos()) / 1000;
        let us = u32::try_from(us).ok().filter(|us| *us != 0)?;
        Some(match self.pause {
            Some(_) => Wait::Sleep(us),
            None => Wait::Spin(us),
        })
    }

    /// Extends the deadline to at least `us` microseconds from now.
    pub(crate) fn extend(&mut self, us: u32) {
        let enough = |(Wait::Sleep(left) | Wait::Spin(left))| left >= us;
        if !self.left().is_some_and(enough) {
            self.start = Instant::now();
            self.limit = Delta::from_micros(us.into());
        }
    }

    /// Pauses: sleeps if the caller permits it, otherwise spins for 1 µs.
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
