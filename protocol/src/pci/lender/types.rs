// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table entries of a lender, and the operations that it requests from its driver.

use crate::pci::config::{Filter, Layout};
use crate::Time;
use wire::ids::NodeId;
use wire::pci::{Device, Incarnation, LeaseId, Message, Numbers, Reason, Register, Status};

crate::flow! {
    /// States of an offered device.
    states OfferState {
        /// The device is available to any borrower.
        Free,
        /// The driver opens the device's intervals for a borrower.
        Granting,
        /// A borrower uses the device.
        Lent,
        /// A borrower uses the device, and has been asked to return it.
        Recalling,
        /// The lease has ended. The driver closes the intervals, then resets the function.
        Fencing,
        /// The function could not be reset.
        Broken,
    }
    /// Events of an offered device.
    events DeviceEvent {
        /// A borrower requests the device.
        Borrow,
        /// The intervals are open.
        Opened,
        /// The intervals could not be opened.
        Failed,
        /// The function could not be reset.
        Broke,
        /// The administrator reclaims the device with a grace period.
        Recall,
        /// The lease ends.
        End,
        /// The intervals are closed and the function is reset.
        Cleared,
        /// The administrator states that the device works again.
        Repaired,
    }
    transitions {
        Free + Borrow => Granting;
        Granting + Opened => Lent;
        Granting + Failed => Free;
        Granting + Broke => Broken;
        Lent + Recall => Recalling;
        Lent + End => Fencing;
        Recalling + End => Fencing;
        Fencing + Cleared => Free;
        Fencing + Broke => Broken;
        Broken + Repaired => Free;
    }
}

/// Error of [`Work::Open`]. The driver has closed any interval that it opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The request is refused for this reason: [`Reason::NoInterval`], [`Reason::NoRoom`] or
    /// [`Reason::NotAllowed`].
    Refuse(Reason),
    /// The function could not be reset. The device is not lent again until it is repaired.
    Broken,
}

/// Intervals that were opened for a borrower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Numbers of the intervals.
    pub numbers: Numbers,
    /// Bus address of the window through which the device reaches DMA memory.
    pub dma: u64,
    /// Bus address of the window through which the device sends interrupts. The window is one page.
    pub interrupts: u64,
}

/// Access to a configuration register that the driver executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Handle of the device.
    pub handle: u32,
    /// Lease to which the access belongs.
    pub lease: LeaseId,
    /// Number of the access within the lease.
    pub number: u32,
    /// Register that is accessed.
    pub register: Register,
    /// Value to be written; `None` for a read.
    pub write: Option<Write>,
}

/// Value for a write that may keep some bits of the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// New value of the bits that are not kept.
    pub value: u32,
    /// Bits that keep their value. If any bit is set, the driver reads the register first.
    pub keep: u32,
}

impl Write {
    /// Returns the value to be written, where `old` is the register's previous value. `old` is not
    /// used if `keep` is 0.
    #[must_use]
    pub const fn merged(self, old: u32) -> u32 {
        self.value & !self.keep | old & self.keep
    }
}

/// Operation of the driver that may sleep. A device has one operation at a time. The operation ends
/// when the driver makes the call that the variant's documentation names. The driver may execute
/// the operations of all devices one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Reset the function, leave bus mastering disabled, open the intervals of a lease, then call
    /// [`Lender::opened`](super::Lender::opened).
    Open(Open),
    /// Close the intervals of a lease: disable bus mastering, wait until the function has no
    /// transactions pending, close targets and windows, then call
    /// [`Lender::closed`](super::Lender::closed). The numbers of the targets must not be used again
    /// in this node until [`Work::Release`]. The numbers of the windows are free.
    Close(u32, Numbers),
    /// Reset the function, restore the registers that it had when it was offered, then call
    /// [`Lender::reset`](super::Lender::reset). Leave bus mastering disabled unless the device is
    /// lent. For a lent device, the borrower has requested the reset and restores the registers
    /// that it needs.
    Reset(u32),
    /// Release the target numbers in this set.
    Release(u64),
    /// Drop all data about a withdrawn device, which has no lease any more.
    Gone(u32),
}

/// Intervals to be opened for a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Handle of the device.
    pub handle: u32,
    /// Node of the borrower.
    pub borrower: NodeId,
    /// Set of numbers for the BARs' targets. Each target must get a different number.
    pub bars: u64,
    /// Set of numbers for the windows to DMA memory and interrupts.
    pub links: u64,
    /// Size of DMA memory in bytes.
    pub dma: u64,
}

/// Operation for any context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send a message.
    Send(NodeId, Message),
    /// Access a register, then call [`Lender::configured`](super::Lender::configured), on errors
    /// too.
    Config(Config),
}

/// Reason for the end of a lease, for the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Returned,
    Expired,
    Reclaimed,
    Down,
    Broken,
}

/// State of a device's operation: scheduled, or given to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum WorkState {
    #[default]
    Idle,
    OpenScheduled,
    Opening,
    Closing,
    ResetScheduled,
    Resetting,
}

/// Pending messages to a borrower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingMessages {
    pub(super) grant: bool,
    pub(super) done: bool,
    pub(super) alive: Option<u32>,
    /// A question to the borrower that asks if it still has the lease.
    pub(super) question: bool,
    pub(super) revoke: bool,
}

/// State of the last configuration access of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Access {
    #[default]
    None,
    /// The access is scheduled; see [`Config`].
    Scheduled(Register, Option<Write>),
    /// The access was given to the driver.
    Issued,
    /// The access is finished, with status and value.
    Finished(Status, u32),
}

/// Lease of a device, from the accepted `BORROW` until its intervals are closed and the function is
/// reset.
pub(super) struct Lease {
    pub(super) id: LeaseId,
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    pub(super) bars: u64,
    pub(super) links: u64,
    pub(super) dma: u64,
    pub(super) opened: Option<Opened>,
    pub(super) last_message: Time,
    /// Time of the next question to the borrower about the lease. Each message of the borrower
    /// postpones the question.
    pub(super) question: Time,
    /// End of the grace period of a recall.
    pub(super) grace: Time,
    /// Time at which `REVOKE` is repeated.
    pub(super) again: Time,
    pub(super) interval: u64,
    /// Number of the last access.
    pub(super) number: u32,
    pub(super) access: Access,
    pub(super) filter: Filter,
    /// Earliest time of the next reset that the borrower may request.
    pub(super) reset_not_before: Time,
    /// True if a reset that the borrower has requested waits for `reset_not_before`.
    pub(super) reset_delayed: bool,
    pub(super) pending: PendingMessages,
    /// Reason for which the lease ends as soon as its intervals are open.
    pub(super) end_after_open: Option<Ended>,
    /// True if the borrower has confirmed that its windows are closed.
    pub(super) confirmed: bool,
    /// ID of the lease in the `RETURNED` that is sent when the intervals are closed; `None` if the
    /// borrower has not sent `RETURN`.
    pub(super) returned_name: Option<LeaseId>,
    /// True if the intervals are closed.
    pub(super) closed: bool,
}

/// Offered device.
pub(super) struct Entry {
    pub(super) offer: Device,
    pub(super) layout: Layout,
    pub(super) state: OfferState,
    pub(super) lease: Option<Lease>,
    pub(super) operation: WorkState,
    /// True if the borrower has requested a reset that was not handed to the driver yet.
    pub(super) reset_wanted: bool,
    pub(super) withdrawn: bool,
}

/// Statistics of a lender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Leases that were granted.
    pub leases: u64,
    /// Leases that the borrower returned.
    pub returned: u64,
    /// Leases that ended because the borrower sent no message during the time-out.
    pub expired: u64,
    /// Leases that the lender reclaimed.
    pub reclaimed: u64,
    /// Leases that ended because the borrower was reported as down.
    pub down: u64,
    /// Leases that ended because the device broke.
    pub broken: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Accesses that were executed.
    pub accesses: u64,
    /// Accesses that were denied.
    pub denied: u64,
    /// Resets that borrowers requested.
    pub resets: u64,
    /// Repeated requests.
    pub again: u64,
    /// Messages that belong to no lease or to another incarnation, or are late.
    pub odd: u64,
    /// Calls of the driver that do not match an operation of the lender.
    pub misused: u64,
}
