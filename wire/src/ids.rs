// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Newtypes for numbers and addresses that are easily confused.

use core::fmt;

/// Extoll node ID, 16 bits (HW §4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct NodeId(pub u16);

impl NodeId {
    /// First of the two node IDs that user APIs use as wildcards. No node may have these IDs (HW
    /// §4.2).
    pub const FIRST_RESERVED: NodeId = NodeId(0xFFFE);

    /// Returns whether the ID is one of the wildcards 0xFFFE and 0xFFFF.
    #[inline]
    pub const fn is_reserved(self) -> bool {
        self.0 >= Self::FIRST_RESERVED.0
    }

    /// Returns the index into the global routing table, 0…63 (HW §15.2).
    #[inline]
    pub const fn segment(self) -> u8 {
        (self.0 >> 10) as u8
    }

    /// Returns the index into the local routing table, 0…1023 (HW §15.2).
    #[inline]
    pub const fn local(self) -> u16 {
        self.0 & 0x3FF
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Virtual process ID, 0…255. VELO and RMA have separate VPIDs (HW §4.2).
///
/// Some formats reserve ten bits for a VPID, but the hardware has only 256 VPIDs. The type
/// therefore cannot hold a value above 255. Each value is a valid index into every table with an
/// entry per VPID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Vpid(u16);

impl Vpid {
    /// Number of VPIDs per unit.
    pub const COUNT: u16 = 256;
    /// First VPID that is not available to users (HW §4.2).
    pub const USER_END: Vpid = Vpid(251);
    /// VPID of Lustre networking, which is never allocated to users (HW §4.2).
    pub const LND: Vpid = Vpid(251);
    /// RMA VPID for remote register access. In VELO the same number is [`Vpid::PCI`].
    pub const RRA: Vpid = Vpid(252);
    /// VELO VPID for control messages of Device Lending (docs/pci-protocol.md). In RMA the same
    /// number is [`Vpid::RRA`].
    pub const PCI: Vpid = Vpid(252);
    /// VPID of direct sockets.
    pub const DS: Vpid = Vpid(253);
    /// VPID of the network driver.
    pub const NET: Vpid = Vpid(254);
    /// VPID of the management software.
    pub const MGMT: Vpid = Vpid(255);

    /// Returns the VPID with number `value`; `None` above 255.
    #[inline]
    pub const fn new(value: u16) -> Option<Self> {
        if value < Self::COUNT {
            Some(Self(value))
        } else {
            None
        }
    }

    /// Returns the VPID in the low eight bits of `value`. The hardware ignores the upper bits of
    /// wider fields.
    #[inline]
    pub const fn from_low_bits(value: u64) -> Self {
        Self((value & 0xFF) as u16)
    }

    /// Returns the number of the VPID, 0…255.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the number of the VPID as a table index, 0…255.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Iterates over all 256 VPIDs in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = Vpid> + Clone {
        (0..Self::COUNT).map(Vpid)
    }
}

impl From<u8> for Vpid {
    fn from(value: u8) -> Self {
        Self(value as u16)
    }
}

impl fmt::Display for Vpid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Network logical address, which the ATU translates (HW §11.1). [`crate::atu::NlaParts`] has its
/// fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Nla(pub u64);

impl fmt::Display for Nla {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nla:{:#x}", self.0)
    }
}

/// Physical address that the CPU uses to map memory. Behind a host bridge that translates
/// addresses, it differs from the [`BusAddr`] of the same byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct CpuAddr(pub u64);

impl fmt::Display for CpuAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Address that the NIC uses on the bus: a DMA address of 52 bits (HW §2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct BusAddr(pub u64);

impl BusAddr {
    /// Size of a page in bytes, in all page-aligned address fields.
    pub const PAGE_SIZE: u64 = 4096;
    /// Limit of the addresses that page-address fields `[51:12]` can hold.
    pub const END: u64 = 1 << 52;

    /// Addresses that the bridge turns into interrupts. Memory never has these addresses (HW §6.2).
    pub const INTERRUPTS: core::ops::Range<u64> = crate::quirks::INTERRUPT_ADDRESSES;

    /// Returns whether one of the `bytes` bytes from this address on is in [`BusAddr::INTERRUPTS`].
    #[inline]
    pub const fn meets_interrupts(self, bytes: u64) -> bool {
        self.0 < Self::INTERRUPTS.end && Self::INTERRUPTS.start < self.0.saturating_add(bytes)
    }

    /// Returns whether the address is page aligned and fits into a `[51:12]` page-address field.
    #[inline]
    pub const fn is_page(self) -> bool {
        self.0 % Self::PAGE_SIZE == 0 && self.0 < Self::END
    }
}

impl fmt::Display for BusAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Byte offset of a register in the register file (HW §1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct RegOffset(pub u32);

impl RegOffset {
    /// Size of the register file window in bytes (HW §1.2).
    pub const WINDOW: u32 = 0x0200_0000;
    /// Offset that array accessors return if an index is out of range. It is outside of the
    /// register file, so that accessors that check [`RegOffset::is_valid`] reject it.
    pub const INVALID: RegOffset = RegOffset(u32::MAX);

    /// Returns whether the offset is a multiple of 8 inside of the register file.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 < Self::WINDOW && self.0 % 8 == 0
    }

    /// Returns the byte offset.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RegOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RF+{:#x}", self.0)
    }
}

/// Unit that has requester pages, write-combining buffers and queues: VELO or RMA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// VELO: small two-sided messages (HW §9).
    Velo,
    /// RMA: put, get, notification and lock commands (HW §10).
    Rma,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Velo => "velo",
            Unit::Rma => "rma",
        })
    }
}
