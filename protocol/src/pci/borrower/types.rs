// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What a borrower has in its table, and what it wants to be done.

use crate::Time;
use wire::ids::NodeId;
use wire::pci::{Body, Borrow, Device, Grant, Incarnation, LeaseId, Reason, Register, Status};

crate::flow! {
    /// The life of a lease at the borrower.
    states LeaseState {
        /// The lender is asked for it.
        Asking,
        /// It is granted, and its intervals are being opened.
        Opening,
        /// It is there.
        Up,
        /// Its intervals are being closed.
        Closing,
        /// It is not there any more, or never was.
        Over,
    }
    /// What happens to it.
    events LeaseEvent {
        /// The lender grants it.
        Granted,
        /// Its intervals are open.
        Opened,
        /// It ends.
        Ended,
        /// Its intervals are closed.
        Closed,
    }
    transitions {
        Asking + Granted => Opening;
        Asking + Ended => Over;
        Opening + Opened => Up;
        Opening + Closed => Over;
        Up + Ended => Closing;
        Closing + Closed => Over;
    }
}

/// Names a lease of a [`Borrower`](super::Borrower), also before the lender has granted it, and
/// after it is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub(super) u32);

impl Handle {
    /// What the borrower drew: the first half of the lease's name ([`LeaseId::nonce`]).
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Why a lease is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The lender has refused it.
    Refused(Reason),
    /// The lender did not answer in time.
    NoAnswer,
    /// What the lender has granted was not asked for.
    Wrong,
    /// The intervals could not be opened here.
    NotOpened,
    /// It was given back.
    GivenBack,
    /// The lender has taken the device.
    Revoked,
    /// The lender does not know it: it has been restarted.
    Unknown,
    /// Nothing was heard of the lender.
    Lost,
    /// The lender says that it is there, and answers no accesses: see
    /// [`UNANSWERED_MOST`](super::UNANSWERED_MOST).
    Stuck,
}

/// What may sleep. Of a lease there is one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Open the intervals of a lease, then call [`Borrower::opened`](super::Borrower::opened): targets for DMA memory and
    /// interrupts, then windows to the BARs. All have the numbers that the grant says.
    Open(Handle, Grant),
    /// The lender wants the device back within so many ms: remove it in order, then call
    /// [`Borrower::give_back`](super::Borrower::give_back).
    Recall(Handle, u32),
    /// The lease is over: remove the device, take its intervals away, then call [`Borrower::closed`](super::Borrower::closed). The
    /// windows are to go first and soon; unless it was given back the device is lost, and what
    /// accesses it gets all ones. Nobody else gets the targets' numbers before [`Work::Release`],
    /// in this node; they lead nowhere. Windows' numbers are free.
    Close(Handle, Why),
    /// The lease is over, and nothing of it is left here; the handle means nothing any more.
    Over(Handle, Why),
    /// The numbers of these targets may be used again, as a set.
    Release(u64),
}

/// An access to a register of a lent function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// It is read.
    Read(Register),
    /// It is written.
    Write(Register, u32),
    /// The function is reset. The access is over when that has begun: until it is done reads give all
    /// ones.
    Reset,
}

/// How far an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// It is not over; at this time something changes.
    Pending(Time),
    /// It is over: what became of it; of a read the value, all ones unless it was done.
    Over(Status, u32),
    /// Nobody has answered in time: it may have been made.
    TimedOut,
    /// The lease is over; it may have been made.
    Lost,
}

/// Why an access was not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is one already.
    Busy,
    /// The lease is not up.
    Lost,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Leases that were up.
    pub leases: u64,
    /// Of these, lost because nothing was heard.
    pub lost: u64,
    /// Of these, lost because the lender answered no accesses.
    pub stuck: u64,
    /// Of these, taken by the lender, or not known to it any more.
    pub revoked: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that nobody has answered.
    pub no_answer: u64,
    /// Accesses that were begun.
    pub accesses: u64,
    /// Accesses that nobody has answered in time.
    pub timed_out: u64,
    /// Accesses that the lender has denied.
    pub denied: u64,
    /// Requests that were made again.
    pub again: u64,
    /// Messages of no lease, or of another life, and those that came too late.
    pub odd: u64,
    /// Grants of what was not asked for.
    pub wrong: u64,
    /// Calls that did not fit.
    pub misused: u64,
}

/// An access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) number: u32,
    pub(super) begin: Time,
    /// It has been asked for again.
    pub(super) again: bool,
    pub(super) ask: Ask,
    pub(super) next: Time,
    pub(super) until: Time,
    pub(super) over: Option<(Status, u32)>,
}

/// What is being done with a lease that may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// To be handed out, or handed out.
    Open(bool),
    Close(bool),
}

/// A lease.
pub(super) struct Entry {
    pub(super) handle: Handle,
    pub(super) lender: NodeId,
    pub(super) terms: Borrow,
    pub(super) state: LeaseState,
    /// Its key is 0 until it is granted.
    pub(super) id: LeaseId,
    pub(super) grant: Option<Grant>,
    pub(super) until: Time,
    /// When the lender is asked next, for the lease or whether it goes on.
    pub(super) next: Time,
    pub(super) interval: u64,
    pub(super) asked: bool,
    /// The last question whether it goes on, and when that was.
    pub(super) question: (u32, Time),
    /// The lender has answered a question of this time.
    pub(super) sure: Time,
    pub(super) number: u32,
    pub(super) access: Option<Access>,
    /// Accesses in a row that the lender has not answered although it was there.
    pub(super) unanswered: u32,
    pub(super) doing: Doing,
    /// Until when the lender waits for it.
    pub(super) recall: Option<u32>,
    pub(super) recalled: bool,
    pub(super) say_alive: Option<u32>,
    pub(super) why: Option<Why>,
    /// The lender has said that nothing leads here any more.
    pub(super) confirmed: bool,
}

/// A question about a lender's devices.
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
        self.over.is_none() && self.next <= now && now < self.until
    }

    pub(super) fn body(&self, id: LeaseId) -> Body {
        match self.ask {
            Ask::Read(register) => Body::Read(id, register),
            Ask::Write(register, value) => Body::Write(id, register, value & register.ones()),
            Ask::Reset => Body::Reset(id),
        }
    }

    /// The value of a read.
    pub(super) fn value(&self, status: Status, value: u32) -> u32 {
        match (self.ask, status) {
            (Ask::Read(register), Status::Done) => value & register.ones(),
            (Ask::Read(register), _) => register.ones(),
            _ => 0,
        }
    }
}
