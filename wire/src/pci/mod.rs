// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! PCIe devices lent to other nodes (EXT-PCI): what lender and borrower tell each other
//! (docs/pci-protocol.md).
//!
//! Everything here travels as VELO messages of at most 64 bytes, whose user tag is the [`Kind`].
//! Accesses to the device's memory, its DMA and its interrupts are no messages: they go through
//! intervals of the shared memory unit (HW §12), whose numbers are agreed upon here.
//! Nothing here allocates or copies.

mod lease;
mod message;
mod offer;

pub use lease::{Borrow, Grant, Incarnation, LeaseId, Numbers, Register};
pub use message::{Body, Message, ParseError, Reject, Rejected, Role, Words};
pub use offer::{Bar, Device, DeviceState, Identity, Location, BARS};

use crate::ids::Vpid;

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Where messages go and come from, of VELO, on every node.
pub const VPID: Vpid = Vpid::PCI;
/// Traffic class of all messages.
pub const TRAFFIC_CLASS: u8 = 2;
/// Longest time-out of a lease, in ms: whoever has lost all knowledge of leases has to wait for so
/// long, and some, before the other ends have lost theirs.
pub const LONGEST_LEASE_MS: u32 = 10_000;

/// What a message is: its user tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Which devices are there?
    List,
    /// One of them.
    Device,
    /// A device is wanted.
    Borrow,
    /// It is lent.
    Grant,
    /// Something asked for is not done.
    Refuse,
    /// Read a configuration register.
    Read,
    /// Write a configuration register.
    Write,
    /// What became of a read, a write or a reset.
    Done,
    /// Reset the function.
    Reset,
    /// The borrower reaches nothing any more by a lease, and does not want it.
    Return,
    /// Nothing leads from the lender to the borrower any more by a lease.
    Returned,
    /// The lender wants the device back, or has taken it.
    Revoke,
    /// The borrower reaches nothing any more by a lease.
    Revoked,
    /// The lease goes on; or: does it?
    Alive,
}

impl Kind {
    /// All of them.
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

    /// The user tag.
    #[must_use]
    pub const fn tag(self) -> u8 {
        0x40 + self as u8
    }

    /// The kind with this user tag.
    #[must_use]
    pub fn from_tag(tag: u8) -> Option<Self> {
        let index = tag.checked_sub(0x40)?;
        Self::ALL.get(usize::from(index)).copied()
    }
}

/// Why something asked for is not done: the number in [`Kind::Refuse`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// There is no such device.
    Unknown,
    /// It is lent, or between two leases.
    Lent,
    /// The device, or the lender, is not what it was when it was described.
    Generation,
    /// No intervals are free at both ends.
    NoInterval,
    /// The lender has no room for the windows.
    NoRoom,
    /// This node may not have it.
    NotAllowed,
    /// Another version of the protocol, which is in the message.
    Version,
    /// This node has as many devices as it may.
    TooMany,
    /// The lender has no such lease.
    Lease,
    /// The lender has begun only now, and does not lend yet: to be asked again.
    NotYet,
    /// The device does not work.
    Broken,
}

impl Reason {
    /// All of them.
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

    /// The number in a message, from 1 on.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// What a number says.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code.checked_sub(1)?)).copied()
    }
}

/// What became of a read, a write or a reset: the number in [`Kind::Done`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Done; a reset: begun.
    Done,
    /// The borrower may not access this register, or not in this way. Nothing was done.
    Denied,
    /// The function is being reset. Nothing was done.
    Resetting,
    /// The device does not answer.
    Failed,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Done, Self::Denied, Self::Resetting, Self::Failed];

    /// The number in a message.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// What a number says.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}
