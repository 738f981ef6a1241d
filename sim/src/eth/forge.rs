//! Messages of hostile nodes.

use super::{Event, Rig, BUSY, MS};
use crate::eth::setup::{LIMITS, MAX_FRAME};
use crate::port::{Port, FREE};
use anyhow::Result;
use extoll_emulator::control::Forged;
use rand::Rng;
use std::ops::RangeInclusive;

impl Rig {
    /// Plans the actions of a hostile node.
    pub(super) fn hostility(&mut self, node: usize, bursts: &[u64]) {
        (self.hostile[node], self.healthy[node]) = (true, false);
        let count = self.nodes.len();
        let victim = |rig: &mut Self| (node + rig.rng.random_range(1..count)) % count;
        for _ in 0..self.rng.random_range(1..80) {
            // Most of the messages are forged while frames are in flight.
            let at = match self.rng.random_bool(0.8) {
                true => {
                    bursts[self.rng.random_range(0..bursts.len())]
                        + self.rng.random_range(0..25 * MS)
                }
                false => self.rng.random_range(0..BUSY),
            };
            let to = victim(self);
            self.at(at, Event::Forge(node, to));
        }
        // Often more announcements than a table can hold.
        if self.rng.random_bool(0.5) {
            let (to, at) = (victim(self), self.rng.random_range(0..BUSY));
            self.flood(node, to, at);
        }
        // Sometimes the node reports frames as dropped.
        if self.rng.random_bool(0.3) {
            for burst in bursts {
                for _ in 0..20 {
                    let (to, later) = (victim(self), self.rng.random_range(0..50 * MS));
                    self.at(burst + later, Event::Deny(node, to));
                }
            }
        }
        // Answers often arrive shortly before or after the time-out.
        if self.rng.random_bool(0.6) {
            let at = self.rng.random_range(0..BUSY / 2);
            self.withhold(node, at, 50..=115);
        }
    }

    /// Three nodes attack one, while one more node behaves.
    pub(super) fn siege(&mut self, bursts: &[u64]) {
        let victim = self.rng.random_range(0..5);
        let at = self.rng.random_range(0..BUSY / 2);
        let crowd = self.rng.random_bool(0.5);
        // Delays of answers in hundredths of the time-out: short delays, or delays near the
        // time-out.
        let parts = if crowd { 5..=28 } else { 90..=115 };
        for i in 1..=3 {
            let node = (victim + i) % 5;
            self.hostility(node, bursts);
            if crowd {
                self.crowd(node, victim, at);
            }
            for _ in 0..3 {
                let at = at + self.rng.random_range(0..LIMITS.timeout);
                self.flood(node, victim, at);
            }
            // The node answers some GETs first, so that it counts as well-behaved.
            let later = self.rng.random_range(1..20 * MS);
            self.withhold(node, at + later, parts.clone());
        }
    }

    /// Announces far more frames than are fetched in that time, long enough to block other
    /// nodes.
    fn crowd(&mut self, node: usize, to: usize, at: u64) {
        let time = 2 * LIMITS.timeout;
        for _ in 0..self.rng.random_range(300..900) {
            let later = self.rng.random_range(0..time);
            self.at(at + later, Event::Crowd(node, to));
        }
    }

    /// Lets `node` announce memory that can be fetched.
    pub(super) fn announce(&mut self, node: usize, to: usize) -> Result<()> {
        let len = self.rng.random_range(14..=u64::from(MAX_FRAME));
        self.inject(to, &message(node, 1, &[FREE, len]))
    }

    /// Announces a frame in the name of an absent node.
    pub(super) fn announce_as(&mut self, source: u16, to: usize) -> Result<()> {
        let len = self.rng.random_range(14..=u64::from(MAX_FRAME));
        self.inject(to, &message(source.into(), 1, &[FREE, len]))
    }

    /// Lets `node` announce a frame that is shorter than a header.
    pub(super) fn runt(&mut self, node: usize, to: usize) -> Result<()> {
        let len = self.rng.random_range(1..14);
        self.inject(to, &message(node, 1, &[FREE, len]))
    }

    /// Lets `node` send a message that does not belong to a frame.
    pub(super) fn chatter(&mut self, node: usize, to: usize) -> Result<()> {
        self.inject(to, &message(node, 3, &[u64::MAX; 8]))
    }

    /// Lets `node` report all frames that `to` has announced to it as dropped.
    pub(super) fn deny(&mut self, node: usize, to: usize) -> Result<()> {
        let announced = self.announced.iter();
        let addresses: Vec<u64> = announced
            .filter(|((at, _), a)| *at == to && self.frames[a.id as usize].to == node)
            .map(|((_, address), _)| *address)
            .collect();
        for address in addresses {
            self.inject(to, &message(node, 2, &[address]))?;
        }
        Ok(())
    }

    pub(super) fn inject(&mut self, to: usize, forged: &Forged) -> Result<()> {
        self.say(|| format!("node {to} gets {forged:?}"));
        if self.fabric.world.is_on(to) {
            self.fabric.world.forge(to, forged)?;
        }
        Ok(())
    }

    fn flood(&mut self, node: usize, to: usize, at: u64) {
        let time = [MS, 100 * MS, LIMITS.timeout][self.rng.random_range(0..3)];
        for _ in 0..self.rng.random_range(60..400) {
            let later = self.rng.random_range(0..time);
            self.at(at + later, Event::Forge(node, to));
        }
    }

    /// Delays answers by the given hundredths of the time-out.
    pub(super) fn withhold(&mut self, node: usize, mut at: u64, parts: RangeInclusive<u64>) {
        while at < BUSY {
            let part = self.rng.random_range(parts.clone());
            let time = LIMITS.timeout / 100 * part;
            self.at(at, Event::Withhold(node, true));
            self.at(at + time, Event::Withhold(node, false));
            at += time + self.rng.random_range(1..100 * MS);
        }
    }

    /// Marks messages from `source` to `to` as forged. Frames in that direction, and GETs answered
    /// by them, need not arrive.
    fn disclaim(&mut self, source: usize, to: usize) {
        self.forged[source][to] = true;
        for frame in &mut self.frames {
            if (frame.from, frame.to) == (source, to) {
                frame.demanded = false;
            }
        }
    }

    /// Sends a forged or repeated message from `node`.
    pub(super) fn forge(&mut self, node: usize, to: usize) -> Result<()> {
        let count = self.nodes.len();
        // Most messages are sent in the node's own name.
        let source = match self.rng.random_bool(0.1) {
            true => (to + self.rng.random_range(1..count)) % count,
            false => node,
        };
        if source != node {
            self.disclaim(source, to);
        }
        // The addresses are mostly those of current transfers.
        let mut known: Vec<u64> = self.announced.keys().map(|(_, address)| *address).collect();
        known.sort_unstable();
        let address = match known.len() {
            n if n > 0 && self.rng.random_bool(0.8) => known[self.rng.random_range(0..n)],
            _ => self.rng.random(),
        };
        let len = match self.rng.random_range(0..3) {
            0 => self.rng.random_range(0..14),
            1 => self.rng.random_range(14..=u64::from(MAX_FRAME)),
            _ => self.rng.random(),
        };
        let forged = match self.rng.random_range(0..8) {
            0..=4 => message(source, 1, &[address, len]),
            5 => {
                if source != node {
                    // The sender believes that its frames to this node were dropped.
                    self.disclaim(to, source);
                }
                message(source, 2, &[address])
            }
            kind => {
                // A forged notification of a transfer with this node, with the key of an announced
                // frame.
                let kind = if kind == 6 {
                    if source != node {
                        // The sender believes that its frames were fetched, and reuses their
                        // memory.
                        self.disclaim(to, source);
                    }
                    wire::rma::NotificationType::Responder
                } else {
                    wire::rma::NotificationType::Completer
                };
                let frame = self.announced.iter().find(|((_, a), _)| *a == address);
                let len = frame.map_or(100, |(_, f)| self.frames[f.id as usize].len);
                // Another node can't forge the notification of a GET, but a peer's NIC may be
                // broken.
                let (command, size) = match self.rng.random_bool(0.5) {
                    true => (wire::rma::Command::BytePut, 0),
                    false => (wire::rma::Command::ByteGet, wire::eth::last_size(len)),
                };
                let notification = wire::rma::Notification {
                    word0: wire::eth::match_key(address, len),
                    size_field: size,
                    vpid: wire::eth::VPID,
                    node: Port::node_id(source),
                    kind,
                    command,
                    mode: wire::rma::Mode::from_bits(2),
                    error: u8::from(self.rng.random_bool(0.2)),
                };
                Forged::Slot {
                    unit: extoll_emulator::nic::QueueUnit::Rma,
                    vpid: 254,
                    words: notification.encode(),
                }
            }
        };
        self.inject(to, &forged)
    }
}

/// Returns a message of `source` with the words of `payload`.
fn message(source: usize, mtt: u8, payload: &[u64]) -> Forged {
    Forged::Velo {
        src_node: source as u16,
        src_vpid: 254,
        protection: 0,
        vpid: 254,
        mtt,
        tag: 0,
        data: payload
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .map(|b| format!("{b:02x}"))
            .collect::<Vec<_>>()
            .concat(),
    }
}
