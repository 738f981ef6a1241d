//! Faults and their effects.

use super::{Fate, Rig};
use crate::eth::setup::LIMITS;
use anyhow::Result;
use extoll_emulator::nic::{Faults, LoseWrite, LossyRing};
use rand::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The cable loses all packets.
    Cable(usize),
    Freeze(usize),
    PowerOff(usize),
    Restart(usize),
    /// The node is switched off and on again, and loses all state.
    Reboot(usize),
    Slow(usize),
    /// The poll functions do not run.
    Stuck(usize),
    NoMemory(usize),
    LoseMessages(usize),
    LoseNotifications(usize),
    RetryEvery(usize),
    /// Packets within GETs are lost, but not the last ones.
    Holes(usize),
}

impl Fault {
    /// Returns the affected nodes. Their frames need not arrive.
    pub(super) fn victims(self, ends: &[[usize; 2]]) -> Vec<usize> {
        match self {
            Self::Cable(c) => ends[c].to_vec(),
            Self::Freeze(n)
            | Self::PowerOff(n)
            | Self::Restart(n)
            | Self::Reboot(n)
            | Self::Slow(n)
            | Self::Stuck(n)
            | Self::NoMemory(n)
            | Self::LoseMessages(n)
            | Self::LoseNotifications(n)
            | Self::RetryEvery(n)
            | Self::Holes(n) => vec![n],
        }
    }
}

impl Rig {
    /// Returns the nodes at both ends of each cable.
    pub(super) fn cable_ends(&self) -> Vec<[usize; 2]> {
        let network = self.fabric.world.network();
        (0..self.fabric.cables())
            .map(|c| network.cable_ends(c).map(|end| end.nic))
            .collect()
    }

    /// Marks nodes as faulty. Frames in flight from or to them need not arrive any more.
    pub(super) fn fall_ill(&mut self, fault: Fault) {
        let victims = fault.victims(&self.cable_ends());
        for victim in &victims {
            self.ill[*victim] += 1;
        }
        for frame in &mut self.frames {
            let open = !matches!(frame.fate, Fate::Delivered | Fate::Dropped);
            if open && (victims.contains(&frame.from) || victims.contains(&frame.to)) {
                frame.demanded = false;
            }
        }
    }

    pub(super) fn begin(&mut self, fault: Fault) -> Result<()> {
        let lose = |ring, count| Faults {
            lose_writes: vec![LoseWrite {
                ring,
                vpid: None,
                slot: None,
                count,
            }],
            ..Faults::default()
        };
        match fault {
            Fault::Cable(c) => self.fabric.link(c, false),
            Fault::Freeze(n) => self.fabric.world.set_frozen(n, true),
            Fault::PowerOff(n) => {
                self.fabric.world.set_power(n, false);
                self.down(n);
            }
            Fault::Restart(n) => self.down(n),
            Fault::Reboot(n) => {
                self.fabric.world.set_power(n, false);
                self.nodes[n].forget(&mut self.fabric)?;
                self.forgotten[n] = u64::MAX;
                self.announced.retain(|(node, _), _| *node != n);
                self.gets.retain(|(node, _), _| *node != n);
            }
            Fault::Stuck(n) => self.stuck[n] = true,
            Fault::Slow(n) => self.pace[n] *= 1000,
            Fault::NoMemory(n) => self.nodes[n].short_of_memory = true,
            Fault::LoseMessages(n) => {
                let count = self.rng.random_range(1..4);
                self.set_faults(n, lose(LossyRing::Velo, count));
            }
            Fault::LoseNotifications(n) => {
                let count = self.rng.random_range(1..4);
                self.set_faults(n, lose(LossyRing::Rma, count));
            }
            Fault::RetryEvery(n) => {
                let every = Some(self.rng.random_range(2..12));
                let faults = Faults {
                    wcbuf_retry_every: every,
                    ..Faults::default()
                };
                self.set_faults(n, faults);
            }
            Fault::Holes(n) => {
                let faults = Faults {
                    lose_inner_every: Some(self.rng.random_range(1..8)),
                    ..Faults::default()
                };
                self.set_faults(n, faults);
            }
        }
        Ok(())
    }

    /// Closes the port of a node.
    fn down(&mut self, node: usize) {
        self.nodes[node].down(&mut self.fabric);
        for ((n, _), a) in &mut self.announced {
            a.flushed |= *n == node;
        }
        for ((n, _), got) in &mut self.gets {
            got.flushed |= *n == node;
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
            Fault::PowerOff(n) | Fault::Restart(n) | Fault::Reboot(n) => {
                if let Fault::Reboot(_) = fault {
                    self.forgotten[n] = self.fabric.now() + LIMITS.timeout + LIMITS.quarantine;
                }
                if !self.fabric.world.is_on(n) {
                    self.fabric.world.set_power(n, true);
                    let now = self.fabric.now();
                    self.fabric.advance(now)?;
                    self.fabric.boot(n)?;
                    // Its earlier faults have ended.
                    self.set_faults(n, Faults::default());
                }
                if !self.nodes[n].is_up() {
                    self.nodes[n].up(&mut self.fabric)?;
                    self.masked[n] = false;
                    self.timer_at[n] = None;
                    self.wake(n, 0, self.pace[n]);
                }
            }
            Fault::Stuck(n) => {
                self.stuck[n] = false;
                self.wake(n, 0, self.pace[n]);
                self.wake(n, 1, self.pace[n]);
            }
            Fault::Slow(n) => self.pace[n] /= 1000,
            Fault::NoMemory(n) => self.nodes[n].short_of_memory = false,
            Fault::LoseMessages(n)
            | Fault::LoseNotifications(n)
            | Fault::RetryEvery(n)
            | Fault::Holes(n) => {
                self.set_faults(n, Faults::default());
            }
        }
        Ok(())
    }
}
