//! Faults of a run.

use super::judge::SHORTEST_RESTART;
use super::{Event, Rig, BUSY, COMMANDS_HELD, HELD, LIMITS, LONGEST, MS};
use anyhow::Result;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use rand::Rng;

/// Messages posted for a node before it went down are no longer in flight when it is back.
const _: () =
    assert!(SHORTEST_RESTART >= 2 * (LIMITS.fresh + LIMITS.hold) && LIMITS.hold > LONGEST);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The cable loses all packets.
    Cable(usize),
    Freeze(usize),
    PowerOff(usize),
    /// The module is unloaded and loaded again.
    Restart(usize),
    LoseMessages(usize),
    LoseNotifications(usize),
    RetryEvery(usize),
    Repeat(usize),
    /// Messages of negotiations are repeated late.
    Echo(usize),
    /// No slot for GETs is free.
    RefuseGets(usize),
    /// Few slots for GETs exist.
    FewPlaces(usize),
    /// The ports hold messages and commands.
    Hold(usize),
    /// Packets within most GETs are lost, but not the last ones.
    Holes(usize),
    /// Packets within few GETs are lost.
    FewHoles(usize),
}

impl Rig {
    pub(super) fn add_fault(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        let cable = self.rng.random_range(0..self.fabric.cables());
        let fault = match self.rng.random_range(0..16) {
            0 => Fault::Cable(cable),
            1 => Fault::Freeze(node),
            2 => Fault::PowerOff(node),
            3 => Fault::Restart(node),
            4 => Fault::LoseMessages(node),
            5 => Fault::LoseNotifications(node),
            6 => Fault::RetryEvery(node),
            7 => Fault::Repeat(node),
            8 => Fault::Holes(node),
            9 | 10 => Fault::FewHoles(node),
            11 | 12 => Fault::Hold(node),
            13 => Fault::Echo(node),
            14 => Fault::FewPlaces(node),
            _ => Fault::RefuseGets(node),
        };
        // Two faults of these kinds at the same time would last longer than each of them.
        if !self.faults.is_empty() && self.faults.iter().any(|(other, _)| !other.mixes(fault)) {
            return;
        }
        let at = self.rng.random_range(0..BUSY);
        let span = match fault {
            Fault::RefuseGets(_) | Fault::FewHoles(_) | Fault::FewPlaces(_) | Fault::Echo(_) => {
                MS..3_000 * MS
            }
            Fault::Hold(_) if self.rng.random_bool(0.5) => HELD - 200 * MS..HELD,
            Fault::PowerOff(_) | Fault::Restart(_) => SHORTEST_RESTART..2_000 * MS,
            _ => MS..[10 * MS, 200 * MS, LONGEST][self.rng.random_range(0..3)],
        };
        let end = at + self.rng.random_range(span);
        self.note(fault, at, end);
        let (before, count) = match fault {
            // Connections start shortly before the fault, so that the port holds their messages.
            Fault::Hold(_) => (-40, 10),
            Fault::FewPlaces(_) => (0, 8),
            _ => return self.restart_again(fault, at, end),
        };
        for _ in 0..count {
            let later = (before + self.rng.random_range(0..40)) * MS as i64;
            self.at(at.saturating_add_signed(later), Event::Connect);
        }
    }

    fn restart_again(&mut self, fault: Fault, at: u64, end: u64) {
        // Another node may have a GET to this node in flight when this node returns.
        let (Fault::PowerOff(node) | Fault::Restart(node)) = fault else {
            return;
        };
        if self.rng.random_bool(0.7) {
            let other = Fault::RefuseGets((node + 1) % self.nodes.len());
            let at = at.saturating_sub(self.rng.random_range(0..100 * MS));
            let end = end + self.rng.random_range(0..40 * MS) - 10 * MS;
            self.note(other, at, end);
        }
    }

    fn note(&mut self, fault: Fault, at: u64, end: u64) {
        self.at(at, Event::Fault(self.faults.len()));
        self.faults.push((fault, end));
    }

    /// Returns true unless the node is hostile or is restarted after `now`.
    pub(super) fn is_reliable(&self, node: usize, now: u64) -> bool {
        let restarts = |(fault, end): &(Fault, u64)| {
            let restart = matches!(fault, Fault::PowerOff(n) | Fault::Restart(n) if *n == node);
            restart && *end > now
        };
        self.hostile != Some(node) && !self.faults.iter().any(restarts)
    }

    fn crash(&mut self, node: usize) -> Result<()> {
        let generation = self.rng.random();
        self.nodes[node].crash(&mut self.fabric, generation)?;
        self.crash_tcp(node);
        Ok(())
    }

    pub(super) fn begin(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Cable(c) => self.fabric.link(c, false),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, true),
            Fault::PowerOff(n) => {
                self.fabric.world.set_power(n, false);
                self.crash(n)?;
            }
            Fault::Restart(n) => self.crash(n)?,
            Fault::LoseMessages(n) => self.lose(n, LossyRing::Velo),
            Fault::LoseNotifications(n) => self.lose(n, LossyRing::Rma),
            Fault::RetryEvery(n) => {
                let wcbuf_retry_every = Some(self.rng.random_range(3..20));
                let faults = Faults {
                    wcbuf_retry_every,
                    ..Faults::default()
                };
                self.set_faults(n, faults);
            }
            Fault::Holes(n) | Fault::FewHoles(n) => {
                let every = match fault {
                    Fault::Holes(_) => 1..8,
                    // More than the packets of a GET, so that the next GET succeeds.
                    _ => 12..24,
                };
                let faults = Faults {
                    lose_inner_every: Some(self.rng.random_range(every)),
                    ..Faults::default()
                };
                self.set_faults(n, faults);
            }
            Fault::RefuseGets(n) => self.nodes[n].refuses_gets = true,
            Fault::FewPlaces(n) => {
                self.nodes[n].slots.few = Some([1, 1, 1, 2][self.rng.random_range(0..4)]);
            }
            Fault::Echo(n) => {
                self.echoes = true;
                self.nodes[n].setup.echo = Some(LONGEST);
            }
            Fault::Hold(n) => {
                let until = self.fabric.now() + self.rng.random_range(MS..COMMANDS_HELD);
                let held = &mut self.nodes[n].held;
                (held.holds, held.commands_until) = (true, until);
                self.leave_soon(n);
            }
            Fault::Repeat(n) => {
                self.nodes[n].repeat_every = Some(self.rng.random_range(1..6));
            }
        }
        Ok(())
    }

    /// Makes most programs with young connections close their ends soon.
    fn leave_soon(&mut self, node: usize) {
        let now = self.fabric.now();
        for pair in 0..self.pairs.len() {
            for side in 0..2 {
                let s = &self.pairs[pair].sides[side];
                let young = s.begun && !s.left && now < s.since + 1_500 * MS;
                if s.node != node || !young || !self.rng.random_bool(0.7) {
                    continue;
                }
                let later = self.rng.random_range(0..200 * MS);
                self.at(now + later, Event::Leave(pair, side));
                self.summary.demanded -= u64::from(self.pairs[pair].demanded);
                self.pairs[pair].demanded = false;
                for side in 0..2 {
                    self.ask_now_and_then(pair, side);
                }
            }
        }
    }

    fn lose(&mut self, node: usize, ring: LossyRing) {
        let count = self.rng.random_range(1..20);
        let lose_writes = vec![LoseWrite {
            ring,
            vpid: None,
            slot: None,
            count,
        }];
        let faults = Faults {
            lose_writes,
            ..Faults::default()
        };
        self.set_faults(node, faults);
    }

    /// Sets the faults of a NIC. A NIC without power has none.
    fn set_faults(&mut self, nic: usize, faults: Faults) {
        if self.fabric.world.is_on(nic) {
            let set = self.fabric.world.set_faults(nic, faults);
            debug_assert!(set.is_ok());
        }
    }

    pub(super) fn end(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Cable(c) => self.fabric.link(c, true),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, false),
            Fault::PowerOff(n) | Fault::Restart(n) => {
                if !self.fabric.world.is_on(n) {
                    self.fabric.world.set_power(n, true);
                    let now = self.fabric.now();
                    self.fabric.advance(now)?;
                    self.fabric.boot(n)?;
                    self.set_faults(n, Faults::default());
                }
                if !self.nodes[n].is_up() {
                    self.nodes[n].up(&mut self.fabric)?;
                }
            }
            Fault::Repeat(n) => self.nodes[n].repeat_every = None,
            Fault::RefuseGets(n) => self.nodes[n].refuses_gets = false,
            Fault::FewPlaces(n) => self.nodes[n].slots.few = None,
            Fault::Echo(n) => self.nodes[n].setup.echo = None,
            Fault::Hold(n) => self.nodes[n].held.holds = false,
            Fault::LoseMessages(n)
            | Fault::LoseNotifications(n)
            | Fault::RetryEvery(n)
            | Fault::Holes(n)
            | Fault::FewHoles(n) => {
                self.set_faults(n, Faults::default());
            }
        }
        Ok(())
    }
}

impl Fault {
    /// Returns true if both faults may occur in one run. Two faults that each stop a node for some
    /// time may not.
    fn mixes(self, other: Self) -> bool {
        let stops = |f: Self| {
            !matches!(
                f,
                Self::LoseMessages(_)
                    | Self::LoseNotifications(_)
                    | Self::Repeat(_)
                    | Self::RefuseGets(_)
                    | Self::FewPlaces(_)
                    | Self::Echo(_)
                    | Self::FewHoles(_)
            )
        };
        // The driver skips each hole in the mailbox only after a while. Skipping the holes of two
        // faults would take too long.
        let holes = matches!(self, Self::LoseMessages(_)) && self == other;
        !(holes || stops(self) && stops(other))
    }
}
