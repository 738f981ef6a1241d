// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Paths from one accelerator's device to the BARs of another accelerator's device, without a host
//! in between (TH §4.6.2.3).
//!
//! | Addresses of the accelerator's bus | Lead to |
//! |---|---|
//! | from [`PEERS`] on, by [`Slot`] | the other device's BARs, one after the other |
//!
//! Each slot has its own HTAX intervals. Addresses outside of the BARs therefore reach nothing, and
//! each slot can be closed alone.

use super::plan::{mapped, way, PlanError, Setting};
use wire::htax::control;
use wire::ids::NodeId;
use wire::pci::{Bar, BARS};
use wire::regs::{htax, smfu};
use wire::smfu::UNMAPPED_BASE;

/// First bus address of other devices: a 32-bit address, above DMA memory and below the device's
/// own BARs.
pub const PEERS: u64 = 0x4000_0000;
/// Size of a slot in bytes.
const ROOM: u64 = 0x2000_0000;
/// HTAX intervals of each slot for stores and for loads. They lead to units that a NIC without a
/// host does not need (HW §5).
const INTERVALS: [(u32, u32); Slot::ALL.len()] = [(0, 1), (2, 5)];

/// Slot of another device. A device may reach two others.
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
            Self::Second => PEERS + ROOM,
        }
    }
}

/// A BAR of the other device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Number of the interval at both NICs.
    pub number: u8,
    /// Address on the bus of the device that reaches the BAR.
    pub at: u64,
    /// Size in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Address on the BAR's own bus.
    home: u64,
}

/// Path to one other device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    slot: Slot,
    to: NodeId,
    parts: [Option<Part>; BARS],
}

impl Peer {
    /// Plans the path to the device at node `to`. `home` returns the address of each BAR on its own
    /// bus. `free` is the set of interval numbers that are unused at the NICs of both devices, see
    /// [`wire::accel::NUMBERS`].
    ///
    /// # Errors
    ///
    /// See [`PlanError`].
    pub fn new(
        slot: Slot,
        to: NodeId,
        bars: &[Option<Bar>; BARS],
        home: impl Fn(usize) -> Option<u64>,
        free: u64,
    ) -> Result<Self, PlanError> {
        // Interval 0 leads to the register file; 63 is never used.
        let mut free = free & !(1 | (1 << 63));
        let (mut next, end) = (slot.base(), slot.base() + ROOM);
        let mut parts = [None; BARS];
        for (i, (part, bar)) in parts.iter_mut().zip(bars).enumerate() {
            let (Some(bar), Some(home)) = (bar, home(i)) else {
                continue;
            };
            let bytes = bar.window();
            let behind = next.checked_add(bytes).filter(|n| *n <= end);
            *part = Some(Part {
                number: super::plan::take(&mut free).ok_or(PlanError::NoInterval)?,
                at: next,
                bytes,
                home,
            });
            next = behind.ok_or(PlanError::NoRoom(i))?;
        }
        Ok(Self { slot, to, parts })
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

    /// Returns interval and addresses of a BAR of the other device.
    #[must_use]
    pub fn part(&self, bar: usize) -> Option<&Part> {
        self.parts.get(bar)?.as_ref()
    }

    /// Returns the set of interval numbers.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        let all = self.parts.iter().flatten();
        all.fold(0, |set, part| set | (1 << part.number))
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.bytes).sum()
    }

    /// Returns the settings that open the targets at the other device's NIC. They come first when a
    /// path is opened.
    #[must_use]
    pub const fn targets(&self) -> PeerSettings<'_> {
        self.settings(Kind::Targets)
    }

    /// Returns the settings that close the targets at the other device's NIC. They come last when a
    /// path is closed.
    #[must_use]
    pub const fn no_targets(&self) -> PeerSettings<'_> {
        self.settings(Kind::NoTargets)
    }

    /// Returns the settings that open the windows at the device's NIC, in order.
    #[must_use]
    pub const fn ways(&self) -> PeerSettings<'_> {
        self.settings(Kind::Ways)
    }

    /// Returns the settings that close the windows at the device's NIC, in order.
    #[must_use]
    pub const fn no_ways(&self) -> PeerSettings<'_> {
        self.settings(Kind::NoWays)
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
        let part = |i: usize| self.parts.get(i)?.as_ref();
        let (posted, nonposted) = self.slot.intervals();
        let target = |i: usize, to: Option<u64>| {
            let part = part(i)?;
            let at = smfu::vpid_t_start_addr(part.number.into());
            Some(Setting::new(at, to.unwrap_or(part.home)))
        };
        let unmapped = |i| Some(Setting::new(htax::intvl_control(i), 0));
        let mapped = |which: usize, i, control| {
            let start = self.slot.base();
            Some(mapped(which as u32, i, start, self.bytes(), control))
        };
        match (kind, step) {
            (Kind::Targets, i) => target(i, None),
            (Kind::NoTargets, i) => target(i, Some(UNMAPPED_BASE.0)),
            (Kind::Ways, 0..MAPS) => {
                let p = part(step / 3)?;
                let which = (step % 3) as u32;
                Some(way(which, p.number, p.at, p.bytes, self.to))
            }
            (Kind::Ways, i) if i < MAPS + 3 => mapped(i - MAPS, posted, control::SMFU_POSTED),
            (Kind::Ways, i) => mapped(i - MAPS - 3, nonposted, control::SMFU_NONPOSTED),
            (Kind::NoWays, 0) => unmapped(posted),
            (Kind::NoWays, 1) => unmapped(nonposted),
            (Kind::NoWays, i) => {
                let p = part(i - 2)?;
                Some(Setting::new(smfu::interval_control(p.number.into()), 0))
            }
        }
    }
}

/// Step of [`Kind::Ways`] at which the registers of the on-chip network begin.
const MAPS: usize = 3 * BARS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Targets,
    NoTargets,
    Ways,
    NoWays,
}

impl Kind {
    const fn steps(self) -> usize {
        match self {
            Self::Targets | Self::NoTargets => BARS,
            Self::Ways => MAPS + 6,
            Self::NoWays => 2 + BARS,
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
