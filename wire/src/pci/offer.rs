// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Description of a device by its lender (docs/pci-protocol.md, Messages).

use super::lease::NamedWord;
use super::message::{Reject, Rejected};
use crate::ids::NodeId;
use crate::smfu::PAGE;

/// Maximum number of BARs of a function.
pub const BARS: usize = 6;

/// Memory BAR. BARs of I/O ports and expansion ROMs are not lent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bar {
    /// Binary logarithm of the size in bytes, 4…[`Bar::LOG2_MAX`].
    pub log2: u8,
    /// True for a 64-bit BAR, which occupies two BAR registers.
    pub is_64bit: bool,
    /// True if reads have no side effects.
    pub prefetchable: bool,
}

impl Bar {
    /// Maximum binary logarithm of a BAR's size in bytes.
    pub const LOG2_MAX: u8 = 47;

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << (self.log2 & 63)
    }

    /// Returns the size in bytes of the window that leads to the BAR, rounded up to whole pages.
    #[must_use]
    pub const fn window(self) -> u64 {
        let bytes = self.bytes();
        if bytes < PAGE {
            PAGE
        } else {
            bytes
        }
    }

    const fn code(bar: Option<Self>) -> u8 {
        match bar {
            Some(bar) => {
                (bar.log2 & 63) | ((bar.is_64bit as u8) << 6) | ((bar.prefetchable as u8) << 7)
            }
            None => 0,
        }
    }

    fn from_code(code: u8) -> Result<Option<Self>, Rejected> {
        if code == 0 {
            return Ok(None);
        }
        let bar = Self {
            log2: code & 63,
            is_64bit: code & 64 != 0,
            prefetchable: code & 128 != 0,
        };
        let max = if bar.is_64bit { Self::LOG2_MAX } else { 31 };
        if !(4..=max).contains(&bar.log2) {
            return Err(Rejected::new(Reject::Field, code.into()));
        }
        Ok(Some(bar))
    }
}

bits! {
    /// Vendor and device IDs of a device.
    pub struct VendorWord {
        /// Vendor ID.
        vendor / with_vendor: u16 [15:0];
        /// Device ID.
        device / with_device: u16 [31:16];
        /// Subsystem vendor ID.
        subsystem_vendor / with_subsystem_vendor: u16 [47:32];
        /// Subsystem ID.
        subsystem / with_subsystem: u16 [63:48];
    }
}

bits! {
    /// Class of a device, and the bus, device and function numbers of its location.
    pub struct ClassWord {
        /// Class code.
        class / with_class: u32 [23:0];
        /// Revision.
        revision / with_revision: u8 [31:24];
        /// Bus number.
        bus / with_bus: u8 [39:32];
        /// Device and function number.
        devfn / with_devfn: u8 [47:40];
    }
}

bits! {
    /// PCI domain of a device, and its index in the lender's list.
    pub struct DomainWord {
        /// Number of the PCI domain.
        domain / with_domain: u32 [31:0];
        /// Index of the device in the lender's list.
        index / with_index: u16 [47:32];
        /// Number of devices in the list.
        count / with_count: u16 [63:48];
    }
}

bits! {
    /// Codes of the BARs, one byte each, and node of the borrower.
    pub struct BarsWord {
        /// Codes of the BARs.
        bars / with_bars: u64 [47:0];
        /// Node that has leased the device; 0 if it is not leased.
        node / with_node: u16 [63:48];
    }
}

/// Identity of a device, as its configuration registers describe it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// Revision ID.
    pub revision: u8,
}

/// PCI address of a device in its lender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Location {
    /// Number of the PCI domain.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number \[7:3\] and function number \[2:0\].
    pub devfn: u8,
}

/// Availability of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DeviceState {
    /// The device can be borrowed.
    #[default]
    Free,
    /// This node has leased the device.
    Lent(NodeId),
    /// The last lease has ended, but the device is not yet ready for the next one.
    Fencing,
    /// The device has failed.
    Broken,
}

impl DeviceState {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Lent(_) => 1,
            Self::Fencing => 2,
            Self::Broken => 3,
        }
    }

    const fn node(self) -> u16 {
        match self {
            Self::Lent(node) => node.0,
            _ => 0,
        }
    }
}

/// Contents of [`Kind::Device`](super::Kind::Device). The number of the message is the number of
/// the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Device {
    /// Name of the device, which is valid for this incarnation of the lender.
    pub handle: u32,
    /// Number of leases of the device so far.
    pub generation: u32,
    /// Identity of the device.
    pub identity: Identity,
    /// Location of the device.
    pub location: Location,
    /// Index of the device in the lender's list, from 0.
    pub index: u16,
    /// Number of devices in the lender's list.
    pub count: u16,
    /// Memory BARs, indexed by their number. The entry after a 64-bit BAR is empty.
    pub bars: [Option<Bar>; BARS],
    /// Availability of the device.
    pub state: DeviceState,
}

impl Device {
    /// Returns whether at least one BAR exists and the entry after each 64-bit BAR is empty.
    #[must_use]
    pub fn has_valid_bars(&self) -> bool {
        let behind = self.bars.iter().skip(1).chain([&None]);
        let mut halves = self.bars.iter().zip(behind);
        let last = self.bars.last().copied().flatten();
        self.bars.iter().any(Option::is_some)
            && last.is_none_or(|bar| !bar.is_64bit)
            && halves.all(|(bar, next)| !bar.is_some_and(|b| b.is_64bit) || next.is_none())
    }

    pub(super) fn words(&self) -> [u64; 5] {
        let named = NamedWord(0)
            .with_handle(self.handle)
            .with_generation(self.generation);
        let vendor = VendorWord(0)
            .with_vendor(self.identity.vendor)
            .with_device(self.identity.device)
            .with_subsystem_vendor(self.identity.subsystem_vendor)
            .with_subsystem(self.identity.subsystem);
        let class = ClassWord(0)
            .with_class(self.identity.class)
            .with_revision(self.identity.revision)
            .with_bus(self.location.bus)
            .with_devfn(self.location.devfn);
        let domain = DomainWord(0)
            .with_domain(self.location.domain)
            .with_index(self.index)
            .with_count(self.count);
        let codes = self.bars.iter().rev().map(|bar| Bar::code(*bar));
        let bars = codes.fold(0, |bars, code| (bars << 8) | u64::from(code));
        let bars = BarsWord(0).with_bars(bars).with_node(self.state.node());
        [
            named.raw(),
            vendor.raw(),
            class.raw(),
            domain.raw(),
            bars.raw(),
        ]
    }

    pub(super) fn parse(code: u8, word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let (named, vendor) = (NamedWord(word(2)), VendorWord(word(3)));
        let (class, domain, last) = (ClassWord(word(4)), DomainWord(word(5)), BarsWord(word(6)));
        let state = match code {
            0 => DeviceState::Free,
            1 => DeviceState::Lent(NodeId(last.node())),
            2 => DeviceState::Fencing,
            3 => DeviceState::Broken,
            _ => return Err(Rejected::new(Reject::Field, code.into())),
        };
        if class.raw() & !ClassWord::KNOWN != 0 {
            return Err(Rejected::new(Reject::Field, class.raw()));
        }
        if state.node() != last.node() || domain.index() >= domain.count() {
            return Err(Rejected::new(Reject::Field, last.node().into()));
        }
        let mut bars = [None; BARS];
        for (bar, code) in bars.iter_mut().zip(last.bars().to_le_bytes()) {
            *bar = Bar::from_code(code)?;
        }
        let device = Self {
            handle: named.handle(),
            generation: named.generation(),
            identity: Identity {
                vendor: vendor.vendor(),
                device: vendor.device(),
                subsystem_vendor: vendor.subsystem_vendor(),
                subsystem: vendor.subsystem(),
                class: class.class(),
                revision: class.revision(),
            },
            location: Location {
                domain: domain.domain(),
                bus: class.bus(),
                devfn: class.devfn(),
            },
            index: domain.index(),
            count: domain.count(),
            bars,
            state,
        };
        if !device.has_valid_bars() {
            return Err(Rejected::new(Reject::Field, last.raw()));
        }
        Ok(device)
    }
}
