//! Faults of a run.

use super::{Event, Rig, BUSY, KEPT, LONGEST, MS, SHORTEST_RESTART};
use anyhow::Result;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use rand::Rng;

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
    /// No slot for GETs is free.
    RefuseGets(usize),
    /// The port holds many messages for a long time.
    Keep(usize),
    /// Packets within GETs are lost, but not the last ones.
    Holes(usize),
    /// The interface is closed, and opened again after its end.
    Close(usize),
}

impl Rig {
    pub(super) fn add_fault(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        let cable = self.rng.random_range(0..self.fabric.cables());
        let fault = match self.rng.random_range(0..14) {
            0 => Fault::Cable(cable),
            1 => Fault::Freeze(node),
            2 => Fault::PowerOff(node),
            3 => Fault::Restart(node),
            4 => Fault::LoseMessages(node),
            5 => Fault::LoseNotifications(node),
            6 => Fault::RetryEvery(node),
            7 => Fault::Repeat(node),
            8 => Fault::Holes(node),
            9 | 10 => Fault::Keep(node),
            11 | 12 => Fault::Close(node),
            _ => Fault::RefuseGets(node),
        };
        // Two faults of these kinds at the same time would last longer than each of them.
        if self.faults.iter().any(|(other, _)| !other.mixes(fault)) {
            return;
        }
        let at = self.rng.random_range(0..BUSY);
        let span = match fault {
            Fault::RefuseGets(_) | Fault::Holes(_) | Fault::Repeat(_) | Fault::Close(_) => {
                MS..2_000 * MS
            }
            Fault::PowerOff(_) | Fault::Restart(_) => SHORTEST_RESTART..2_000 * MS,
            _ => MS..[10 * MS, 200 * MS, LONGEST][self.rng.random_range(0..3)],
        };
        let end = at + self.rng.random_range(span);
        for victim in self.victims(fault) {
            self.healthy[victim] = false;
        }
        self.at(at, Event::Fault(self.faults.len()));
        self.faults.push((fault, end));
        // Letters are in flight at its start and end.
        for time in [at, end] {
            for _ in 0..self.rng.random_range(0..10) {
                let from = self.rng.random_range(0..self.nodes.len());
                let when = (time + self.rng.random_range(0..8 * MS)).saturating_sub(4 * MS);
                self.at(when, Event::Send(from));
            }
        }
        // Another node may have a GET to this node in flight when this node returns.
        let restarts = matches!(fault, Fault::PowerOff(_) | Fault::Restart(_));
        if restarts && self.rng.random_bool(0.7) {
            let other = Fault::RefuseGets((node + 1) % self.nodes.len());
            let from = at.saturating_sub(self.rng.random_range(0..100 * MS));
            let until = end + self.rng.random_range(0..40 * MS) - 10 * MS;
            for victim in self.victims(other) {
                self.healthy[victim] = false;
            }
            self.at(from, Event::Fault(self.faults.len()));
            self.faults.push((other, until));
        }
    }

    /// Returns the affected nodes. Their letters need not be delivered.
    fn victims(&self, fault: Fault) -> Vec<usize> {
        match fault {
            Fault::Cable(c) => {
                let ends = self.fabric.world.network().cable_ends(c);
                ends.iter().map(|end| end.nic).collect()
            }
            Fault::Freeze(n)
            | Fault::PowerOff(n)
            | Fault::Restart(n)
            | Fault::LoseMessages(n)
            | Fault::LoseNotifications(n)
            | Fault::RetryEvery(n)
            | Fault::Repeat(n)
            | Fault::RefuseGets(n)
            | Fault::Keep(n)
            | Fault::Holes(n)
            | Fault::Close(n) => vec![n],
        }
    }

    fn crash(&mut self, node: usize) -> Result<()> {
        let seed = self.rng.random();
        self.collect(node)?;
        self.nodes[node].crash(&mut self.fabric, seed)?;
        for letter in &mut self.letters {
            let involved = letter.from == node || letter.to == node;
            if involved && (letter.outcome.is_none() || !letter.released || letter.got.is_none()) {
                letter.excused = true;
            }
        }
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
                self.set_faults(
                    n,
                    Faults {
                        wcbuf_retry_every,
                        ..Faults::default()
                    },
                );
            }
            Fault::Holes(n) => {
                let lose_inner_every = Some(self.rng.random_range(4..30));
                self.set_faults(
                    n,
                    Faults {
                        lose_inner_every,
                        ..Faults::default()
                    },
                );
            }
            Fault::RefuseGets(n) => self.nodes[n].refuses_gets = true,
            Fault::Close(n) => self.nodes[n].close(&self.fabric),
            Fault::Repeat(n) => {
                self.nodes[n].held.repeat_every = Some(self.rng.random_range(1..6));
                self.nodes[n].held.longest = [US_50, KEPT][self.rng.random_range(0..2)];
            }
            Fault::Keep(n) => {
                let held = &mut self.nodes[n].held;
                (held.likely, held.longest) = (0.3, KEPT);
            }
        }
        Ok(())
    }

    fn lose(&mut self, node: usize, ring: LossyRing) {
        let count = self.rng.random_range(1..20);
        let lose_writes = vec![LoseWrite {
            ring,
            vpid: None,
            slot: None,
            count,
        }];
        self.set_faults(
            node,
            Faults {
                lose_writes,
                ..Faults::default()
            },
        );
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
            Fault::Repeat(n) => self.nodes[n].held.repeat_every = None,
            Fault::Keep(n) => self.nodes[n].held.likely = 0.0,
            Fault::RefuseGets(n) => self.nodes[n].refuses_gets = false,
            Fault::Close(n) => {
                let seed = self.rng.random();
                self.nodes[n].reopen = Some(seed);
            }
            Fault::LoseMessages(n)
            | Fault::LoseNotifications(n)
            | Fault::RetryEvery(n)
            | Fault::Holes(n) => self.set_faults(n, Faults::default()),
        }
        Ok(())
    }
}

const US_50: u64 = MS / 20;

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
                    | Self::Holes(_)
                    | Self::Close(_)
            )
        };
        self != other && !(stops(self) && stops(other))
    }
}
