// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Device Lending over Extoll (EXT-PCI): formats of the messages between lender and borrower of a
//! PCIe device (docs/pci-protocol.md).
//!
//! Messages are VELO messages of up to 64 bytes, whose user tag is the [`Kind`]. Accesses to the
//! device's memory, its DMA and its interrupts are not messages. They use intervals of the shared
//! memory unit (HW §12). The messages negotiate the numbers of these intervals. This module neither
//! allocates nor copies memory.

mod lease;
mod message;
mod offer;

pub use lease::{Borrow, Grant, Incarnation, LeaseId, Numbers, Register};
pub use message::{Body, Message, ParseError, Reject, Rejected, Role, Words};
pub use offer::{Bar, Device, DeviceState, Identity, Location, BARS};

use crate::ids::Vpid;

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// VELO VPID that sends and receives the messages on every node.
pub const VPID: Vpid = Vpid::PCI;
/// Traffic class of all messages.
pub const TRAFFIC_CLASS: u8 = 2;
/// Maximum timeout of a lease in ms. An end that has lost its state must wait longer than this
/// time, until the other ends have given up their leases.
pub const LONGEST_LEASE_MS: u32 = 10_000;

/// Kind of a message. Its code is the user tag of the VELO message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Request for a description of one device in the lender's list.
    List,
    /// Description of a device.
    Device,
    /// Request to borrow a device.
    Borrow,
    /// Acceptance of a request to borrow a device.
    Grant,
    /// Rejection of a request.
    Refuse,
    /// Request to read a configuration register.
    Read,
    /// Request to write a configuration register.
    Write,
    /// Result of a read, write or reset.
    Done,
    /// Request to reset the function.
    Reset,
    /// Notice of the borrower that it has closed all its accesses under a lease and returns the
    /// device.
    Return,
    /// Notice of the lender that no access under a lease can reach the borrower.
    Returned,
    /// Notice of the lender that it wants the device back or has taken it.
    Revoke,
    /// Notice of the borrower that it has closed all its accesses under a revoked lease.
    Revoked,
    /// Question whether a lease is still valid, or the answer that it is.
    Alive,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::List,
        Self::Device,
        Self::Borrow,
        Self::Grant,
        Self::Refuse,
        Self::Read,
        Self::Write,
        Self::Done,
        Self::Reset,
        Self::Return,
        Self::Returned,
        Self::Revoke,
        Self::Revoked,
        Self::Alive,
    ];

    /// Returns the user tag.
    #[must_use]
    pub const fn tag(self) -> u8 {
        0x40 + self as u8
    }

    /// Returns the kind with this user tag.
    #[must_use]
    pub fn from_tag(tag: u8) -> Option<Self> {
        let index = tag.checked_sub(0x40)?;
        Self::ALL.get(usize::from(index)).copied()
    }
}

/// Reason of a rejection, with its code in [`Kind::Refuse`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The lender has no such device.
    Unknown,
    /// The device is leased, or has not yet been reset after its last lease.
    Lent,
    /// The device or the lender has changed since the lender described the device.
    Generation,
    /// No interval number is free at both ends.
    NoInterval,
    /// The lender has no free memory window for the lease.
    NoRoom,
    /// The requesting node is not permitted to borrow the device.
    NotAllowed,
    /// The lender supports another version of the protocol. The message contains this version.
    Version,
    /// The requesting node has borrowed the maximum number of devices.
    TooMany,
    /// The lender has no such lease.
    Lease,
    /// The lender has just started and does not lend devices yet. The borrower should ask again.
    NotYet,
    /// The device has failed.
    Broken,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Lent,
        Self::Generation,
        Self::NoInterval,
        Self::NoRoom,
        Self::NotAllowed,
        Self::Version,
        Self::TooMany,
        Self::Lease,
        Self::NotYet,
        Self::Broken,
    ];

    /// Returns the code in a message, at least 1.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the reason with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code.checked_sub(1)?)).copied()
    }
}

/// Result of a read, a write or a reset, with its code in [`Kind::Done`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// The access is complete, or the reset has begun.
    Done,
    /// The borrower is not permitted to access this register in this way. No access was made.
    Denied,
    /// The function is in reset. No access was made.
    Resetting,
    /// The device does not answer.
    Failed,
}

impl Status {
    /// All results.
    pub const ALL: [Self; 4] = [Self::Done, Self::Denied, Self::Resetting, Self::Failed];

    /// Returns the code in a message.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the result with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}
