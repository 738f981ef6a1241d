//! Cables: a queue per direction, knobs, faults, statistics. The link layer repairs damage by sending again, so a packet
//! arrives late but whole and in order; only a link that is down loses packets.

use super::topology::End;
use super::Flit;
use rand::rngs::SmallRng;
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Largest sum of the damage rates; above it a link would hardly get anything through.
pub const MAX_DAMAGE: f64 = 0.95;

/// What happens to packets on a link that is down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownPolicy {
    /// Lost: the cable was pulled.
    #[default]
    Drop,
    /// Kept in the retransmission buffer until the link is up again, or the buffer is full.
    Hold,
}

/// Adjustable properties of a cable, the same in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkKnobs {
    /// Delay in ns; 0: packets arrive at once.
    pub latency_ns: u64,
    /// Each packet takes up to so many ns more, but never overtakes the one ahead of it.
    pub jitter_ns: u64,
    /// Payload bytes per second; 0: no limit.
    pub bytes_per_second: u64,
    /// Probability that a transmission arrives damaged (negative acknowledge, sent again).
    pub corrupt_rate: f64,
    /// Probability that a transmission or its acknowledge vanishes (time-out, sent again).
    pub loss_rate: f64,
}

impl LinkKnobs {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), String> {
        let rates = [self.corrupt_rate, self.loss_rate];
        if rates.iter().any(|r| !(0.0..=1.0).contains(r)) || rates.iter().sum::<f64>() > MAX_DAMAGE
        {
            return Err(format!("corrupt_rate and loss_rate must be probabilities with a sum of at most {MAX_DAMAGE}"));
        }
        if self.latency_ns.max(self.jitter_ns) > 10_000_000_000 {
            return Err("latency_ns and jitter_ns must be at most 10 s".into());
        }
        Ok(())
    }
}

/// Statistics of one direction of a cable. All but `queued_bytes` count up from the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Packets that arrived.
    pub packets: u64,
    /// Payload bytes that arrived.
    pub bytes: u64,
    /// Transmissions that arrived damaged.
    pub corrupted: u64,
    /// Transmissions that vanished.
    pub lost: u64,
    /// Packets lost because the link was down.
    pub dropped_down: u64,
    /// Packets lost because the buffer of a link that was down was full.
    pub dropped_full: u64,
    /// Bytes under way or held now.
    pub queued_bytes: u64,
}

/// A link that goes down and up by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flap {
    /// Time down, ns.
    pub down_ns: u64,
    /// Time up, ns.
    pub up_ns: u64,
    /// Downs still to come.
    pub left: u32,
}

/// One direction.
#[derive(Default)]
pub(super) struct Direction {
    /// Arrival time and packet, in order.
    pub queue: VecDeque<(u64, Flit)>,
    pub busy_until: u64,
    pub stats: LinkStats,
}

/// What the transmissions of one packet came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    pub corrupted: u32,
    pub lost: u32,
}

/// A cable between two link ports.
pub(super) struct Cable {
    pub ends: [End; 2],
    /// Plugged in (fault commands change this).
    pub up: bool,
    /// Up, both NICs powered, both ports enabled.
    pub live: bool,
    pub policy: DownPolicy,
    pub knobs: LinkKnobs,
    /// The knobs that it started with.
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

    /// Draws how much longer than usual a packet takes.
    pub fn jitter(&self, rng: &mut SmallRng) -> u64 {
        match self.knobs.jitter_ns {
            0 => 0,
            most => rng.random_range(0..=most),
        }
    }

    /// Draws how often a packet has to be sent again.
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

    /// Arrival time of a packet of `bytes` that is sent now, had the given damage on the way and takes `late` ns longer. Never
    /// before that of the packet ahead of it.
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
        // A damaged packet costs a round trip, a lost one a time-out of two round trips.
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
