// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Paths from one accelerator's device to the BARs of another accelerator's device, without a host
//! in between (TH §4.6.2.3).
//!
//! | Addresses of the accelerator's bus | Lead to |
//! |---|---|
//! | from [`PEERS`] on, by [`Slot`] | the other device's BARs, one after the other |
//!
//! Each slot has separate HTAX intervals, which cover only the BARs. Accesses to other addresses
//! therefore have no effect, and each slot can be closed separately.

use super::plan::{htax_setting, smfu_setting, PlanError, Setting};
use wire::htax::control;
use wire::ids::NodeId;
use wire::pci::{Bar, BARS};
use wire::regs::{htax, smfu};
use wire::smfu::UNMAPPED_BASE;

/// First bus address of the slots for other devices. It is a 32-bit address, above DMA memory and
/// below the device's own BARs.
pub const PEERS: u64 = 0x4000_0000;
/// Size of a slot in bytes.
const SLOT_BYTES: u64 = 0x2000_0000;
/// HTAX intervals of each slot for stores and for loads. They lead to units that a NIC without a
/// host does not need (HW §5).
const INTERVALS: [(u32, u32); Slot::ALL.len()] = [(0, 1), (2, 5)];

/// Slot for another device. A device may access two other devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// First slot.
    First,
    /// Second slot.
    Second,
}

impl Slot {
    /// All slots.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    const fn intervals(self) -> (u32, u32) {
        match self {
            Self::First => INTERVALS[0],
            Self::Second => INTERVALS[1],
        }
    }

    /// Returns the bus address of the slot's first byte.
    #[must_use]
    pub const fn base(self) -> u64 {
        match self {
            Self::First => PEERS,
            Self::Second => PEERS + SLOT_BYTES,
        }
    }
}

/// BAR of the other device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerBar {
    /// Number of the interval at both NICs.
    pub number: u8,
    /// Address at which the device accesses the BAR, on the device's own bus.
    pub at: u64,
    /// Size in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Address of the BAR on the other device's bus.
    target_addr: u64,
}

/// Path from a device to another device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    slot: Slot,
    to: NodeId,
    peer_bars: [Option<PeerBar>; BARS],
}

impl Peer {
    /// Plans the path to the device at node `to`. `target_addr` returns the address of each BAR on
    /// the other device's bus. `free` is the set of interval numbers that are unused at the NICs of
    /// both devices (see [`wire::accel::INTERVALS`]).
    ///
    /// # Errors
    ///
    /// See [`PlanError`].
    pub fn new(
        slot: Slot,
        to: NodeId,
        bars: &[Option<Bar>; BARS],
        target_addr: impl Fn(usize) -> Option<u64>,
        free: u64,
    ) -> Result<Self, PlanError> {
        // Interval 0 leads to the register file, and interval 63 is never used.
        let mut free = free & !(1 | (1 << 63));
        let (mut next, end) = (slot.base(), slot.base() + SLOT_BYTES);
        let mut peer_bars = [None; BARS];
        for (i, (peer_bar, bar)) in peer_bars.iter_mut().zip(bars).enumerate() {
            let (Some(bar), Some(target_addr)) = (bar, target_addr(i)) else {
                continue;
            };
            let bytes = bar.window();
            let behind = next.checked_add(bytes).filter(|n| *n <= end);
            *peer_bar = Some(PeerBar {
                number: super::plan::pop_highest(&mut free).ok_or(PlanError::NoInterval)?,
                at: next,
                bytes,
                target_addr,
            });
            next = behind.ok_or(PlanError::NoRoom(i))?;
        }
        Ok(Self {
            slot,
            to,
            peer_bars,
        })
    }

    /// Returns the slot.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the node of the other device.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.to
    }

    /// Returns the interval and the addresses of a BAR of the other device.
    #[must_use]
    pub fn bar(&self, bar: usize) -> Option<&PeerBar> {
        self.peer_bars.get(bar)?.as_ref()
    }

    /// Returns the set of interval numbers.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        let all = self.peer_bars.iter().flatten();
        all.fold(0, |set, bar| set | (1 << bar.number))
    }

    fn bytes(&self) -> u64 {
        self.peer_bars.iter().flatten().map(|bar| bar.bytes).sum()
    }

    /// Returns the settings that open the targets at the other device's NIC. The driver writes them
    /// first when it opens a path.
    #[must_use]
    pub const fn open_targets(&self) -> PeerSettings<'_> {
        self.settings(Kind::OpenTargets)
    }

    /// Returns the settings that close the targets at the other device's NIC. The driver writes
    /// them last when it closes a path.
    #[must_use]
    pub const fn close_targets(&self) -> PeerSettings<'_> {
        self.settings(Kind::CloseTargets)
    }

    /// Returns the settings that open the windows at the device's NIC, in order.
    #[must_use]
    pub const fn open_windows(&self) -> PeerSettings<'_> {
        self.settings(Kind::OpenWindows)
    }

    /// Returns the settings that close the windows at the device's NIC, in order.
    #[must_use]
    pub const fn close_windows(&self) -> PeerSettings<'_> {
        self.settings(Kind::CloseWindows)
    }

    const fn settings(&self, kind: Kind) -> PeerSettings<'_> {
        PeerSettings {
            peer: self,
            kind,
            next: 0,
        }
    }

    /// Returns the setting of one step, if the step writes a register.
    fn setting(&self, kind: Kind, step: usize) -> Option<Setting> {
        let bar = |i: usize| self.peer_bars.get(i)?.as_ref();
        let (posted, nonposted) = self.slot.intervals();
        let target = |i: usize, to: Option<u64>| {
            let bar = bar(i)?;
            let at = smfu::vpid_t_start_addr(bar.number.into());
            Some(Setting::new(at, to.unwrap_or(bar.target_addr)))
        };
        let unmapped = |i| Some(Setting::new(htax::intvl_control(i), 0));
        let mapping = |which: usize, i, control| {
            let start = self.slot.base();
            Some(htax_setting(which as u32, i, start, self.bytes(), control))
        };
        match (kind, step) {
            (Kind::OpenTargets, i) => target(i, None),
            (Kind::CloseTargets, i) => target(i, Some(UNMAPPED_BASE.0)),
            (Kind::OpenWindows, 0..MAPS) => {
                let p = bar(step / 3)?;
                let which = (step % 3) as u32;
                Some(smfu_setting(which, p.number, p.at, p.bytes, self.to))
            }
            (Kind::OpenWindows, i) if i < MAPS + 3 => {
                mapping(i - MAPS, posted, control::SMFU_POSTED)
            }
            (Kind::OpenWindows, i) => mapping(i - MAPS - 3, nonposted, control::SMFU_NONPOSTED),
            (Kind::CloseWindows, 0) => unmapped(posted),
            (Kind::CloseWindows, 1) => unmapped(nonposted),
            (Kind::CloseWindows, i) => {
                let p = bar(i - 2)?;
                Some(Setting::new(smfu::interval_control(p.number.into()), 0))
            }
        }
    }
}

/// Step of [`Kind::OpenWindows`] at which the registers of the on-chip network begin.
const MAPS: usize = 3 * BARS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    OpenTargets,
    CloseTargets,
    OpenWindows,
    CloseWindows,
}

impl Kind {
    const fn steps(self) -> usize {
        match self {
            Self::OpenTargets | Self::CloseTargets => BARS,
            Self::OpenWindows => MAPS + 6,
            Self::CloseWindows => 2 + BARS,
        }
    }
}

/// Registers to be written in order.
#[derive(Clone, Debug)]
pub struct PeerSettings<'a> {
    peer: &'a Peer,
    kind: Kind,
    next: usize,
}

impl Iterator for PeerSettings<'_> {
    type Item = Setting;

    fn next(&mut self) -> Option<Setting> {
        while self.next < self.kind.steps() {
            let step = self.next;
            self.next += 1;
            if let Some(setting) = self.peer.setting(self.kind, step) {
                return Some(setting);
            }
        }
        None
    }
}
