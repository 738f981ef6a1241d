// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What leads from one accelerator's device to the BARs of another one's, past all hosts (TH §4.6.2.3).
//!
//! | Addresses of the accelerator's bus | Lead to |
//! |---|---|
//! | from [`PEERS`] on, by [`Slot`] | the other device's BARs, one behind the other |
//!
//! Each slot has HTAX intervals of its own, so that what is in none of the BARs leads nowhere, and what
//! leads to one of the two others can be closed alone.

use super::plan::{mapped, way, PlanError, Setting};
use wire::htax::control;
use wire::ids::NodeId;
use wire::pci::{Bar, BARS};
use wire::regs::{htax, smfu};
use wire::smfu::NOWHERE;

/// Where the device finds others: addresses of 32 bits, above DMA memory and below the device's own
/// BARs.
pub const PEERS: u64 = 0x4000_0000;
/// Bytes of a slot.
const ROOM: u64 = 0x2000_0000;
/// HTAX intervals of the slots, of stores and of loads: those that lead to units which a NIC without
/// a host does not need (HW §5).
const INTERVALS: [(u32, u32); Slot::ALL.len()] = [(0, 1), (2, 5)];

/// Which of the devices that a device may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// The first one.
    First,
    /// The other one.
    Second,
}

impl Slot {
    /// All.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    const fn intervals(self) -> (u32, u32) {
        match self {
            Self::First => INTERVALS[0],
            Self::Second => INTERVALS[1],
        }
    }

    /// Bus address of its first byte.
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
    /// Number of the intervals at both NICs.
    pub number: u8,
    /// Where it is on the bus of the device that reaches it.
    pub at: u64,
    /// Whole pages.
    pub bytes: u64,
    /// Where it is on its own bus.
    home: u64,
}

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    slot: Slot,
    to: NodeId,
    parts: [Option<Part>; BARS],
}

impl Peer {
    /// Ways to the BARs of the device at node `to`, which are at these addresses of its bus. `free`:
    /// numbers of intervals that the device's NIC uses for nothing, nor does that of the other device,
    /// see [`wire::accel::NUMBERS`].
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
        // 0 leads to registers, 63 is nobody's.
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

    /// Its slot.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// Node of the other device.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.to
    }

    /// Where a BAR is found.
    #[must_use]
    pub fn part(&self, bar: usize) -> Option<&Part> {
        self.parts.get(bar)?.as_ref()
    }

    /// Numbers of intervals.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        let all = self.parts.iter().flatten();
        all.fold(0, |set, part| set | (1 << part.number))
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.bytes).sum()
    }

    /// Targets of the other device's NIC: to be opened first.
    #[must_use]
    pub const fn targets(&self) -> PeerSettings<'_> {
        self.settings(Kind::Targets)
    }

    /// The same, closed: last.
    #[must_use]
    pub const fn no_targets(&self) -> PeerSettings<'_> {
        self.settings(Kind::NoTargets)
    }

    /// Registers of the device's NIC that lead there, in this order.
    #[must_use]
    pub const fn ways(&self) -> PeerSettings<'_> {
        self.settings(Kind::Ways)
    }

    /// Registers of the device's NIC that lead there no more, in this order.
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

    /// The register of a place in a list, if there is one.
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
            (Kind::NoTargets, i) => target(i, Some(NOWHERE.0)),
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

/// In [`Kind::Ways`]: where the registers of the on-chip network begin.
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

/// Registers that are to be written in order.
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
