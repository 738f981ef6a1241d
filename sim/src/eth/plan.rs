//! Traffic and faults of a run, drawn from its seed.

use super::fault::Fault;
use super::{Event, Rig, BUSY, CALM, LONGEST_FAULT, LONGEST_HOLD, MS, SETTLE, US};
use crate::eth::setup::LIMITS;
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use rand::Rng;

impl Rig {
    pub(super) fn set_up(&mut self, siege: bool) -> Result<()> {
        let count = self.nodes.len();
        let slowest = [0, 0, 10 * US, 50 * US, 5 * MS][self.rng.random_range(0..5)];
        for cable in 0..self.fabric.cables() {
            let damaged = self.rng.random_bool(0.3);
            let knobs = LinkKnobs {
                jitter_ns: 0,
                latency_ns: self.rng.random_range(0..=slowest),
                bytes_per_second: 0,
                corrupt_rate: if damaged { 0.1 } else { 0.0 },
                loss_rate: if damaged { 0.1 } else { 0.0 },
            };
            self.fabric.knobs(cable, knobs);
        }
        for node in 0..count {
            let pace = [20 * US, 100 * US, 1000 * US][self.rng.random_range(0..3)];
            self.start(node, pace)?;
        }
        let mut bursts = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let (node, at) = (
                self.rng.random_range(0..count),
                self.rng.random_range(0..BUSY),
            );
            bursts.push(at);
            for _ in 0..self.rng.random_range(1..=40) {
                let later = self.rng.random_range(0..20 * MS);
                self.at(at + later, Event::Submit(node));
            }
        }
        if siege {
            self.siege(&bursts);
        } else if self.rng.random_bool(0.4) {
            let node = self.rng.random_range(0..count);
            self.hostility(node, &bursts);
        } else if self.rng.random_bool(0.15) {
            self.blackout();
        }
        let ends = self.cable_ends();
        for _ in 0..self.rng.random_range(0..=3) {
            let node = self.rng.random_range(0..count);
            let fault = match self.rng.random_range(0..12) {
                0 => Fault::Cable(self.rng.random_range(0..ends.len())),
                1 => Fault::Freeze(node),
                2 => Fault::PowerOff(node),
                3 => Fault::Restart(node),
                4 => Fault::Slow(node),
                5 => Fault::NoMemory(node),
                6 => Fault::LoseMessages(node),
                7 => Fault::LoseNotifications(node),
                8 => Fault::Stuck(node),
                9 => Fault::Reboot(node),
                10 => Fault::Holes(node),
                _ => Fault::RetryEvery(node),
            };
            if self.faults.iter().any(|(other, _)| *other == fault) {
                continue;
            }
            for victim in fault.victims(&ends) {
                self.healthy[victim] = false;
            }
            let at = self.rng.random_range(0..BUSY);
            let longest = [10 * MS, 500 * MS, LONGEST_FAULT][self.rng.random_range(0..3)];
            let longest = match fault {
                Fault::Freeze(_) => longest.min(LONGEST_HOLD),
                _ => longest,
            };
            let shortest = match fault {
                // When the reboot ends, no packet to earlier uses of the memory is in flight.
                Fault::Reboot(_) => 100 * MS,
                _ => 1,
            };
            let end = at + self.rng.random_range(1..longest).max(shortest);
            self.at(at, Event::Fault(self.faults.len()));
            self.faults.push((fault, end));
        }
        self.summary.faults = self.faults.len() as u64;
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let at = CALM + self.rng.random_range(0..200 * MS);
                self.at(at, Event::Send(from, to));
            }
        }
        // Traffic soon after each fault.
        for (fault, end) in self.faults.clone() {
            for victim in fault.victims(&ends) {
                let other = (victim + self.rng.random_range(1..count)) % count;
                let at = end + SETTLE + self.rng.random_range(1..500 * MS);
                self.at(at, Event::Send(victim, other));
                self.at(at, Event::Send(other, victim));
            }
        }
        Ok(())
    }

    /// Stalls all nodes but two, one of which has frames for all others.
    fn blackout(&mut self) {
        let count = self.nodes.len();
        let (node, at) = (
            self.rng.random_range(0..count),
            self.rng.random_range(0..BUSY),
        );
        let alive = (node + 1) % count;
        for other in (0..count).filter(|n| ![node, alive].contains(n)) {
            self.healthy[other] = false;
            let end = at + self.rng.random_range(LIMITS.timeout..LONGEST_FAULT);
            self.at(at, Event::Fault(self.faults.len()));
            self.faults.push((Fault::Stuck(other), end));
        }
        for _ in 0..150 {
            let later = self.rng.random_range(MS..1_500 * MS);
            self.at(at + later, Event::Submit(node));
        }
    }
}
