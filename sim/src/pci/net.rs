//! Messages and accesses in flight.

use super::{Event, Rig, LONGEST, MS, US};
use rand::rngs::SmallRng;
use rand::Rng;
use std::collections::HashMap;
use wire::pci::{LeaseId, Message};

/// A message as words.
#[derive(Debug, Clone)]
pub(super) struct RawMessage {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) tag: u8,
    pub(super) words: Vec<u64>,
}

/// An access through a window, on its path to the target node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Number of the interval at the target node.
    pub(super) number: usize,
    pub(super) lease: LeaseId,
    /// True if the access is DMA of a device.
    pub(super) dma: bool,
    /// Time at which the window was created.
    pub(super) since: u64,
}

/// The network.
pub(super) struct Net {
    /// Maximum latency in ns of most messages.
    usual: u64,
    /// Maximum latency in ns of slow messages.
    slow: u64,
    loss: f64,
    repeats: f64,
    /// True if messages between two nodes arrive in order.
    ordered: bool,
    last: HashMap<(usize, usize), u64>,
    pub(super) cut: Vec<Vec<u32>>,
    pub(super) messages: HashMap<u64, RawMessage>,
    pub(super) packets: HashMap<u64, Packet>,
}

impl Net {
    pub(super) fn new(rng: &mut SmallRng, count: usize) -> Self {
        Self {
            usual: [20 * US, MS, 8 * MS][rng.random_range(0..3)],
            slow: [MS, 15 * MS, LONGEST][rng.random_range(0..3)],
            loss: [0.0, 0.05, 0.3][rng.random_range(0..3)],
            repeats: [0.0, 0.1][rng.random_range(0..2)],
            ordered: rng.random_bool(0.5),
            last: HashMap::new(),
            // The last index is that of the forger.
            cut: vec![vec![0; count + 1]; count + 1],
            messages: HashMap::new(),
            packets: HashMap::new(),
        }
    }

    fn latency(&self, rng: &mut SmallRng) -> u64 {
        let most = if rng.random_bool(0.1) {
            self.slow.max(self.usual)
        } else {
            self.usual
        };
        rng.random_range(US..=most)
    }
}

impl Rig {
    pub(super) fn post(&mut self, from: usize, to: usize, message: &Message) {
        let words = message.words();
        let raw = RawMessage {
            from,
            to,
            tag: message.kind().tag(),
            words: words.as_slice().to_vec(),
        };
        self.log(|| format!("{from} -> {to}: {:?}", message.body));
        self.summary.messages += 1;
        // In the end no message is lost, because leases must succeed.
        let calm = self.now >= super::CALM;
        let lost = self.net.cut[from][to] > 0 || !calm && self.rng.random_bool(self.net.loss);
        if lost {
            self.summary.lost_messages += 1;
            return;
        }
        let twice = self.rng.random_bool(self.net.repeats);
        for _ in 0..1 + u32::from(twice) {
            let mut at = self.now + self.net.latency(&mut self.rng);
            let last = self.net.last.entry((from, to)).or_default();
            if self.net.ordered {
                // Slow messages delay later ones, up to the maximum delay.
                at = at.max(*last + 1).min(self.now + LONGEST).max(*last);
                *last = at;
            }
            let number = self.name();
            self.net.messages.insert(number, raw.clone());
            self.at(at, Event::Message(number));
        }
    }

    pub(super) fn access(&mut self, packet: Packet) {
        self.summary.packets += 1;
        if self.net.cut[packet.from][packet.to] > 0 {
            return;
        }
        let at = self.now + self.net.latency(&mut self.rng);
        let number = self.name();
        self.net.packets.insert(number, packet);
        self.at(at, Event::Packet(number));
    }
}
