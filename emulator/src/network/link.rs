//! Cables of the fabric. Each has a queue per direction, knobs, faults and statistics.
//!
//! The link layer repairs damage by retransmission, so a damaged packet arrives late, but whole and
//! in order. Only a link that is down loses packets.

use super::Flit;
use extoll_emulator_api::link::{DownPolicy, LinkKnobs, LinkStats};
use extoll_emulator_api::topology::End;
use rand::rngs::SmallRng;
use rand::Rng;
use std::collections::VecDeque;

/// State of a link that goes down and up repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flap {
    /// Duration of each down phase in ns.
    pub down_ns: u64,
    /// Duration of each up phase in ns.
    pub up_ns: u64,
    /// Number of down phases that remain.
    pub left: u32,
}

/// State of one direction of a cable.
#[derive(Default)]
pub(super) struct Direction {
    /// Packets in flight with their arrival times, in order.
    pub queue: VecDeque<(u64, Flit)>,
    pub busy_until: u64,
    pub stats: LinkStats,
}

/// Number of failed transmissions of a packet, by cause.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    pub corrupted: u32,
    pub lost: u32,
}

/// A cable between two link ports.
pub(super) struct Cable {
    pub ends: [End; 2],
    /// True while the cable is plugged in. Fault commands change this.
    pub up: bool,
    /// True while the cable is plugged in, both NICs have power, and both link ports are enabled.
    pub live: bool,
    pub policy: DownPolicy,
    pub knobs: LinkKnobs,
    /// Knobs that the configuration contained at the start.
    pub usual: LinkKnobs,
    pub flap: Option<Flap>,
    pub dirs: [Direction; 2],
}

impl Cable {
    pub fn new(a: End, b: End, policy: DownPolicy, knobs: LinkKnobs) -> Self {
        Self {
            ends: [a, b],
            up: true,
            live: false,
            policy,
            knobs,
            usual: knobs,
            flap: None,
            dirs: Default::default(),
        }
    }

    /// Returns a random additional delay of a packet in ns.
    pub fn jitter(&self, rng: &mut SmallRng) -> u64 {
        match self.knobs.jitter_ns {
            0 => 0,
            most => rng.random_range(0..=most),
        }
    }

    /// Returns a random number of failed transmissions of a packet.
    pub fn damage(&self, rng: &mut SmallRng) -> Damage {
        let k = &self.knobs;
        let mut d = Damage::default();
        if k.corrupt_rate + k.loss_rate > 0.0 {
            loop {
                let r: f64 = rng.random();
                if r < k.corrupt_rate {
                    d.corrupted += 1;
                } else if r < k.corrupt_rate + k.loss_rate {
                    d.lost += 1;
                } else {
                    break;
                }
            }
        }
        d
    }

    /// Returns the arrival time of a packet of `bytes` bytes that is sent now, suffers the given
    /// damage and is delayed by `late` ns. The packet never arrives before the previous packet.
    pub fn schedule(
        &mut self,
        side: usize,
        bytes: u64,
        now: u64,
        damage: &Damage,
        late: u64,
    ) -> u64 {
        let k = self.knobs;
        let dir = &mut self.dirs[side];
        let send = match k.bytes_per_second {
            0 => 0,
            bps => (u128::from(bytes) * 1_000_000_000 / u128::from(bps))
                .min(u128::from(u64::MAX / 4)) as u64,
        };
        // A damaged packet costs a round trip; a lost packet costs a timeout of two round trips.
        let again = u64::from(damage.corrupted) * (send + 2 * k.latency_ns)
            + u64::from(damage.lost) * (send + 4 * k.latency_ns);
        dir.busy_until = dir
            .busy_until
            .max(now)
            .saturating_add(send)
            .saturating_add(again);
        let last = dir.queue.back().map_or(0, |(at, _)| *at);
        dir.busy_until
            .saturating_add(k.latency_ns)
            .saturating_add(late)
            .max(last)
    }
}
