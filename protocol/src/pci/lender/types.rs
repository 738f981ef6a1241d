// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What a lender has in its table, and what it wants to be done.

use crate::pci::config::{Filter, Layout};
use crate::Time;
use wire::ids::NodeId;
use wire::pci::{Device, Incarnation, LeaseId, Message, Numbers, Reason, Register, Status};

crate::flow! {
    /// The life of a device that is offered.
    states DeviceLife {
        /// Anybody may borrow it.
        Free,
        /// Its intervals are being opened for a borrower.
        Granting,
        /// Somebody has it.
        Lent,
        /// He is to give it back.
        Recalling,
        /// Its intervals are being closed, then it is reset.
        Fencing,
        /// It does not work.
        Broken,
    }
    /// What happens to it.
    events DeviceEvent {
        /// Somebody wants it.
        Borrow,
        /// Its intervals are open.
        Opened,
        /// They could not be opened.
        Failed,
        /// It does not work.
        Spoilt,
        /// The administrator wants it back.
        Recall,
        /// The lease is over.
        End,
        /// It has been reset.
        Cleared,
        /// The administrator says that it works again.
        Repaired,
    }
    transitions {
        Free + Borrow => Granting;
        Granting + Opened => Lent;
        Granting + Failed => Free;
        Granting + Spoilt => Broken;
        Lent + Recall => Recalling;
        Lent + End => Fencing;
        Recalling + End => Fencing;
        Fencing + Cleared => Free;
        Fencing + Spoilt => Broken;
        Broken + Repaired => Free;
    }
}

/// Why intervals were not opened; what was opened on the way is closed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The borrower is told why: [`Reason::NoInterval`], [`Reason::NoRoom`], [`Reason::NotAllowed`].
    Refuse(Reason),
    /// The function could not be reset: nobody gets it any more.
    Broken,
}

/// Intervals that were opened for a borrower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Their numbers.
    pub numbers: Numbers,
    /// Bus address in the NIC's window from where the device reaches DMA memory.
    pub dma: u64,
    /// The same for interrupts: a page.
    pub interrupts: u64,
}

/// An access to a configuration register that is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Which device.
    pub handle: u32,
    /// Which lease it is for.
    pub lease: LeaseId,
    /// Its number there.
    pub number: u32,
    /// Which register.
    pub register: Register,
    /// To be written: this value, with those bits of what is there that `keep` has. `None`: to be read.
    pub write: Option<Write>,
}

/// What is to be written to a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Bits that are written.
    pub value: u32,
    /// Bits that keep what they have. If there are some, the register is read before.
    pub keep: u32,
}

impl Write {
    /// What to write if this was read. Nothing is to be read if no bits are kept.
    #[must_use]
    pub const fn over(self, old: u32) -> u32 {
        self.value & !self.keep | old & self.keep
    }
}

/// What may sleep. Of a device there is one at a time, which ends with the call that is named. They
/// may be done one after the other for all devices: what ends leases is asked for first, the rest
/// device by device in turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reset the function, open the intervals of a lease, then call [`Lender::opened`](super::Lender::opened). The function may
    /// not master the bus yet.
    Open(Open),
    /// Take the intervals of a lease away, then call [`Lender::closed`](super::Lender::closed): forbid the function to master the
    /// bus and wait until its transactions are over, then close targets and windows. Nobody else gets
    /// the targets' numbers before [`Work::Release`], in this node; they lead nowhere. Windows'
    /// numbers are free.
    Close(u32, Numbers),
    /// Reset the function, restore what its registers had before it was offered, then call
    /// [`Lender::reset`](super::Lender::reset). It may not master the bus then, unless it still has a lease: a borrower has
    /// asked, and restores what it needs.
    Reset(u32),
    /// The numbers of these targets may be used again, as a set.
    Release(u64),
    /// A device that was withdrawn has no lease any more, and is forgotten.
    Gone(u32),
}

/// Intervals to be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Which device.
    pub handle: u32,
    /// Who wants it.
    pub borrower: NodeId,
    /// Numbers that targets of BARs may have, as a set: a different one for each.
    pub bars: u64,
    /// Numbers that the windows for DMA memory and interrupts may have, as a set.
    pub links: u64,
    /// Bytes of DMA memory.
    pub dma: u64,
}

/// What is to be done in any context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A message is to be sent.
    Send(NodeId, Message),
    /// A register is to be accessed, then [`Lender::configured`](super::Lender::configured) to be called, always.
    Config(Config),
}

/// Why a lease is over; counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Returned,
    Expired,
    Reclaimed,
    Down,
    Broken,
}

/// What is being done with a device that may sleep: one thing at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// To be handed out, or handed out.
    Open(bool),
    Close(bool),
    Reset(bool),
}

/// What is to be told to a borrower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Say {
    pub(super) grant: bool,
    pub(super) done: bool,
    pub(super) alive: Option<u32>,
    /// Is the lease still there?
    pub(super) question: bool,
    pub(super) revoke: bool,
}

/// The last access of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Access {
    #[default]
    None,
    /// To be made: see [`Config`].
    Wanted(Register, Option<Write>),
    /// It has been handed out.
    Made,
    /// It is over.
    Over(Status, u32),
}

/// A lease.
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) bars: u64,
    pub(super) links: u64,
    pub(super) dma: u64,
    pub(super) opened: Option<Opened>,
    pub(super) heard: Time,
    /// When he is asked next whether he has it, if he is silent.
    pub(super) question: Time,
    /// Until when it is to be given back, and when that is said next.
    pub(super) grace: Time,
    pub(super) again: Time,
    pub(super) interval: u64,
    /// Number of the last access.
    pub(super) number: u32,
    pub(super) access: Access,
    pub(super) filter: Filter,
    /// Before this no reset begins that the borrower asks for.
    pub(super) rested: Time,
    /// One that he has asked for waits for that.
    pub(super) waits: bool,
    pub(super) say: Say,
    /// It is not wanted any more, although it is being opened.
    pub(super) doomed: Option<Ended>,
    /// The borrower has said that it reaches nothing any more.
    pub(super) confirmed: bool,
    /// He wants to be told when nothing leads to him any more: what he calls the lease.
    pub(super) owed: Option<LeaseId>,
    /// Its intervals are closed.
    pub(super) closed: bool,
}

/// A device.
pub(super) struct Entry {
    pub(super) offer: Device,
    pub(super) layout: Layout,
    pub(super) life: DeviceLife,
    pub(super) lease: Option<Lease>,
    pub(super) doing: Doing,
    /// A reset that the borrower has asked for; otherwise one between leases.
    pub(super) reset_wanted: bool,
    pub(super) withdrawn: bool,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Leases.
    pub leases: u64,
    /// Of these, given back by the borrower.
    pub returned: u64,
    /// Of these, over because nothing was heard.
    pub expired: u64,
    /// Of these, taken back.
    pub reclaimed: u64,
    /// Of these, over because the borrower was said to be down.
    pub down: u64,
    /// Of these, over because the device broke.
    pub broken: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Accesses that were made.
    pub accesses: u64,
    /// Accesses that were denied.
    pub denied: u64,
    /// Resets that borrowers have asked for.
    pub resets: u64,
    /// Requests that came again.
    pub again: u64,
    /// Messages of no lease, or of another life, and those that came too late.
    pub odd: u64,
    /// Calls that did not fit.
    pub misused: u64,
}
