// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table entries of a borrower, and the operations that it requests from its driver.

use crate::Time;
use wire::ids::NodeId;
use wire::pci::{Body, Borrow, Device, Grant, Incarnation, LeaseId, Reason, Register, Status};

crate::flow! {
    /// States of a lease at the borrower.
    states LeaseState {
        /// The lease is requested from the lender.
        Asking,
        /// The lease is granted, and the driver opens its intervals.
        Opening,
        /// The lease is in use.
        Up,
        /// The lease has ended, and the driver closes its intervals.
        Closing,
        /// The lease is closed, or was never granted.
        Closed,
    }
    /// Events of a lease at the borrower.
    events LeaseEvent {
        /// The lender grants the lease.
        Granted,
        /// The intervals are open.
        Opened,
        /// The lease ends.
        Ended,
        /// The intervals are closed, or could not be opened.
        Closed,
    }
    transitions {
        Asking + Granted => Opening;
        Asking + Ended => Closed;
        Opening + Opened => Up;
        Opening + Closed => Closed;
        Up + Ended => Closing;
        Closing + Closed => Closed;
    }
}

/// Handle of a lease of a [`Borrower`](super::Borrower), valid from the request until
/// [`Work::Closed`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub(super) u32);

impl Handle {
    /// Returns the half of the lease's ID that the borrower has chosen ([`LeaseId::nonce`]).
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Reason for the end of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// The lender refused the request.
    Refused(Reason),
    /// The lender did not answer the request in time.
    NoAnswer,
    /// The grant did not match the request.
    Wrong,
    /// The intervals could not be opened at this end.
    NotOpened,
    /// The user gave the device back.
    GivenBack,
    /// The lender revoked the lease.
    Revoked,
    /// The lender does not know the lease, for example after a restart.
    Unknown,
    /// The lender did not answer any question during the time-out.
    Lost,
    /// The lender answered questions, but did not answer accesses (see
    /// [`UNANSWERED_MAX`](super::UNANSWERED_MAX)).
    Stuck,
}

/// Operation of the driver that may sleep. A lease has one operation at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Open the intervals of a lease, with the numbers in the grant. Open the targets for DMA
    /// memory and interrupts first, and then the windows to the BARs. Then call
    /// [`Borrower::opened`](super::Borrower::opened).
    Open(Handle, Grant),
    /// The lender reclaims the device within this number of milliseconds. Unbind the drivers and
    /// remove the device, then call [`Borrower::give_back`](super::Borrower::give_back).
    Recall(Handle, u32),
    /// The lease has ended. Close its windows immediately, then remove the device, close the
    /// targets, and call [`Borrower::closed`](super::Borrower::closed). Unless the user gave the
    /// device back, the device is lost, and its drivers read all ones. The numbers of the targets
    /// must not be used again in this node until [`Work::Release`]. The numbers of the windows are
    /// free.
    Close(Handle, EndReason),
    /// The lease is closed at this end. Its handle becomes invalid.
    Closed(Handle, EndReason),
    /// Release the target numbers in this set.
    Release(u64),
}

/// Access to a register of a borrowed function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigAccess {
    /// Read a register.
    Read(Register),
    /// Write a register.
    Write(Register, u32),
    /// Reset the function. The access finishes when the reset begins. Reads return all ones until
    /// the reset is complete.
    Reset,
}

/// Progress of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// The access is not finished. The caller must poll again at this time.
    Pending(Time),
    /// The access is finished, with status and value. The value of a read is all ones unless the
    /// status is [`Status::Done`].
    Finished(Status, u32),
    /// The lender did not answer in time. The access may have been executed.
    TimedOut,
    /// The lease has ended. The access may have been executed.
    Lost,
}

/// Reason for which an access was not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// Another access of the lease is in progress.
    Busy,
    /// The lease is not up.
    Lost,
}

/// Statistics of a borrower.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Leases that were up.
    pub leases: u64,
    /// Leases lost because the lender did not answer any question during the time-out.
    pub lost: u64,
    /// Leases lost because the lender did not answer accesses.
    pub stuck: u64,
    /// Leases that the lender revoked or did not know any more.
    pub revoked: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests without answer.
    pub no_answer: u64,
    /// Accesses that were begun.
    pub accesses: u64,
    /// Accesses that were not answered in time.
    pub timed_out: u64,
    /// Accesses that the lender denied.
    pub denied: u64,
    /// Repeated requests.
    pub again: u64,
    /// Messages that belong to no lease or to another incarnation, or are late.
    pub odd: u64,
    /// Grants that did not match the request.
    pub wrong: u64,
    /// Calls of the driver that do not match an operation of the borrower.
    pub misused: u64,
}

/// Access to a configuration register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) number: u32,
    pub(super) begin: Time,
    /// True if the request was repeated.
    pub(super) again: bool,
    pub(super) request: ConfigAccess,
    pub(super) next: Time,
    pub(super) until: Time,
    pub(super) result: Option<(Status, u32)>,
}

/// State of a lease's operation: scheduled, or given to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum WorkState {
    #[default]
    Idle,
    OpenScheduled,
    Opening,
    CloseScheduled,
    Closing,
}

/// Lease of the borrower.
pub(super) struct Entry {
    pub(super) handle: Handle,
    pub(super) lender: NodeId,
    pub(super) terms: Borrow,
    pub(super) state: LeaseState,
    /// ID of the lease. The lender's half is 0 until the lease is granted.
    pub(super) id: LeaseId,
    pub(super) grant: Option<Grant>,
    pub(super) until: Time,
    /// Time of the next `BORROW` or `ALIVE`.
    pub(super) next: Time,
    pub(super) interval: u64,
    pub(super) asked: bool,
    /// Number of the last `ALIVE` question, and the time at which it was sent.
    pub(super) question: (u32, Time),
    /// Time at which the latest answered question was sent.
    pub(super) confirmed_at: Time,
    pub(super) number: u32,
    pub(super) access: Option<Access>,
    /// Number of consecutive accesses without answer while the lender answered questions.
    pub(super) unanswered: u32,
    pub(super) operation: WorkState,
    /// Grace period of a recall in ms, until [`Work::Recall`] is handed to the driver.
    pub(super) recall: Option<u32>,
    pub(super) recalled: bool,
    pub(super) alive_answer: Option<u32>,
    pub(super) why: Option<EndReason>,
    /// True if the lender has confirmed that its windows are closed.
    pub(super) confirmed: bool,
}

/// Question about a lender's list of devices.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) number: u32,
    pub(super) node: NodeId,
    pub(super) index: u16,
    pub(super) next: Time,
    pub(super) until: Time,
    pub(super) answer: Option<Result<(Incarnation, Device), Reason>>,
}

impl Access {
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.result.is_none() && self.next <= now && now < self.until
    }

    pub(super) fn body(&self, id: LeaseId) -> Body {
        match self.request {
            ConfigAccess::Read(register) => Body::Read(id, register),
            ConfigAccess::Write(register, value) => {
                Body::Write(id, register, value & register.ones())
            }
            ConfigAccess::Reset => Body::Reset(id),
        }
    }

    /// Returns the value of an access. The result is `value` for a successful read, all ones for a
    /// failed read, and 0 for a write or reset.
    pub(super) fn value(&self, status: Status, value: u32) -> u32 {
        match (self.request, status) {
            (ConfigAccess::Read(register), Status::Done) => value & register.ones(),
            (ConfigAccess::Read(register), _) => register.ones(),
            _ => 0,
        }
    }
}
