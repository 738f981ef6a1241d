//! Faults of a run.

use super::{Event, Rig, Transfer, BUSY, LONGEST_HOLD, MS};
use anyhow::Result;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use rand::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The cable loses all packets.
    Cable(usize),
    Freeze(usize),
    PowerOff(usize),
    /// The port is closed and opened again.
    Restart(usize),
    LoseNotifications(usize),
    RetryEvery(usize),
}

impl Rig {
    pub(super) fn add_fault(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        let cable = self.rng.random_range(0..self.fabric.cables());
        let fault = match self.rng.random_range(0..6) {
            0 => Fault::Cable(cable),
            1 => Fault::Freeze(node),
            2 => Fault::PowerOff(node),
            3 => Fault::Restart(node),
            4 => Fault::LoseNotifications(node),
            _ => Fault::RetryEvery(node),
        };
        if self.faults.iter().any(|(other, ..)| *other == fault) {
            return;
        }
        for victim in self.victims(fault) {
            self.healthy[victim] = false;
        }
        let at = self.rng.random_range(0..BUSY);
        let longest = [10 * MS, 300 * MS, LONGEST_HOLD][self.rng.random_range(0..3)];
        let end = at + self.rng.random_range(MS..longest);
        self.at(at, Event::Fault(self.faults.len()));
        self.faults.push((fault, at, end.min(BUSY + LONGEST_HOLD)));
    }

    /// Returns the affected nodes. Their transfers need not succeed.
    pub(super) fn victims(&self, fault: Fault) -> Vec<usize> {
        match fault {
            Fault::Cable(c) => {
                let ends = self.fabric.world.network().cable_ends(c);
                ends.iter().map(|end| end.nic).collect()
            }
            Fault::Freeze(n)
            | Fault::PowerOff(n)
            | Fault::Restart(n)
            | Fault::LoseNotifications(n)
            | Fault::RetryEvery(n) => vec![n],
        }
    }

    /// Returns true if the network has lost no packet between the nodes of a transfer since its
    /// submission. A lock operation then proves that the peer has executed all earlier commands.
    pub(super) fn is_lossless(&self, t: &Transfer) -> bool {
        !self.faults.iter().any(|(fault, at, end)| {
            let loses = matches!(
                fault,
                Fault::Cable(_) | Fault::PowerOff(_) | Fault::Restart(_)
            );
            let during = *at <= self.fabric.now() && *end >= t.since;
            let victims = self.victims(*fault);
            loses && during && (victims.contains(&t.node) || victims.contains(&t.peer))
        })
    }

    pub(super) fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Cable(c) => self.fabric.link(c, false),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, true),
            Fault::PowerOff(n) => {
                self.fabric.world.set_power(n, false);
                self.nodes[n].down(&mut self.fabric);
            }
            Fault::Restart(n) => self.nodes[n].down(&mut self.fabric),
            Fault::LoseNotifications(n) => {
                let count = self.rng.random_range(1..6);
                let lose_writes = vec![LoseWrite {
                    ring: LossyRing::Rma,
                    vpid: None,
                    slot: None,
                    count,
                }];
                self.set_faults(
                    n,
                    Faults {
                        lose_writes,
                        ..Faults::default()
                    },
                );
            }
            Fault::RetryEvery(n) => {
                let wcbuf_retry_every = Some(self.rng.random_range(2..12));
                self.set_faults(
                    n,
                    Faults {
                        wcbuf_retry_every,
                        ..Faults::default()
                    },
                );
            }
        }
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
            Fault::LoseNotifications(n) | Fault::RetryEvery(n) => {
                self.set_faults(n, Faults::default());
            }
        }
        Ok(())
    }
}
