//! Random delays and reordering of events, as far as the hardware reference leaves the chip free
//! (G28, G35).
//!
//! Unlike a chip, the NIC model performs all actions at once and in a fixed order. Each NIC
//! therefore has two queues that separate it from its environment: [`Injection`] towards the
//! network and [`Posted`] towards the host. They release packets and writes later and in another
//! order, unless the reference guarantees an order.
//!
//! Both queues use [`Lanes`]: entries that share a lane stay in order; all other entries are
//! ordered randomly. `docs/emulator.md` lists the orders that are kept.
//!
//! All random numbers derive from one seed. Each queue has a separate generator, so a run with a
//! manual clock is reproducible.

mod inject;
mod posted;

pub(crate) use inject::Injection;
pub(crate) use posted::{Posted, TimedHost};

pub use extoll_emulator_api::timing::{Push, TimingConfig, TimingModel, TimingStats};

use crate::lane::{Lane, LANES};
use crate::network::Network;
use crate::seed::{self, Purpose};
use crate::trace::Tracer;
use rand::rngs::SmallRng;
use rand::Rng;
use std::collections::BTreeMap;

/// Generator of random delays.
struct Draw {
    rng: SmallRng,
    stretch_every: u32,
    stretch: u32,
}

impl Draw {
    fn new(cfg: &TimingConfig, seed: u64, nic: usize, purpose: Purpose) -> Self {
        Self {
            rng: seed::rng(seed, nic, purpose),
            stretch_every: cfg.stretch_every,
            stretch: cfg.stretch,
        }
    }

    fn reseed(&mut self, seed: u64, nic: usize, purpose: Purpose) {
        self.rng = seed::rng(seed, nic, purpose);
    }

    /// Returns true in one of `every` calls on average.
    fn one_in(&mut self, every: u32) -> bool {
        every > 0 && self.rng.random_range(0..every) == 0
    }

    /// Returns a random delay in ns, usually of up to `most`.
    fn delay(&mut self, most: u64) -> u64 {
        let delay = self.rng.random_range(0..=most);
        if self.one_in(self.stretch_every) {
            delay.saturating_mul(self.stretch.into())
        } else {
            delay
        }
    }
}

/// Lanes of entries that stay in order, with the due time of the last entry of each lane.
struct Lanes<K> {
    last: BTreeMap<K, u64>,
}

impl<K> Default for Lanes<K> {
    fn default() -> Self {
        Self {
            last: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Copy> Lanes<K> {
    /// Number of lanes above which lanes without pending entries are removed.
    const KEPT: usize = 256;

    /// Returns the due time of the last entry of a lane.
    fn last(&self, lane: K) -> u64 {
        self.last.get(&lane).copied().unwrap_or(0)
    }

    /// Returns the due time of a new entry in `lanes`, not earlier than `after`. If a lane has
    /// pending entries, the new entry usually follows the last of them at once. A burst is
    /// therefore delayed as a whole, not packet by packet.
    fn place(
        &mut self,
        now: u64,
        most: u64,
        after: u64,
        lanes: impl Iterator<Item = K> + Clone,
        draw: &mut Draw,
    ) -> u64 {
        let behind = lanes
            .clone()
            .map(|l| self.last(l))
            .fold(after, std::cmp::max);
        let at = if behind > now && !draw.one_in(4) {
            behind
        } else {
            behind.max(now.saturating_add(draw.delay(most)))
        };
        if self.last.len() > Self::KEPT {
            self.last.retain(|_, last| *last > now);
        }
        self.last.extend(lanes.map(|l| (l, at)));
        at
    }
}

/// Both queues of a NIC.
pub(crate) struct NicTiming {
    pub(crate) injection: Injection,
    pub(crate) posted: Posted,
    pub(crate) stats: TimingStats,
}

impl NicTiming {
    /// Returns empty queues, or `None` if the model has no delays.
    pub(crate) fn new(cfg: &TimingConfig, seed: u64, nic: usize) -> Option<Self> {
        (cfg.model == TimingModel::Unkind).then(|| Self {
            injection: Injection::new(cfg, seed, nic),
            posted: Posted::new(cfg, seed, nic),
            stats: TimingStats::default(),
        })
    }

    /// Returns the time at which the next entry is due.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.injection
            .next_deadline()
            .into_iter()
            .chain(self.posted.next_deadline())
            .min()
    }

    /// Drops all entries in flight.
    pub(crate) fn clear(&mut self) {
        self.injection.clear();
        self.posted.clear();
    }

    /// Restarts the random number generators from `seed`.
    pub(crate) fn reseed(&mut self, seed: u64, nic: usize) {
        self.injection.reseed(seed, nic);
        self.posted.reseed(seed, nic);
    }
}

/// Gives every link without a configured latency a random latency and jitter. `drawn` contains the
/// latencies that an earlier call has drawn. A link that still has its drawn latency gets a new
/// latency.
pub(crate) fn stretch_links(
    cfg: &TimingConfig,
    seed: u64,
    network: &mut Network,
    drawn: &mut Vec<u64>,
) {
    if cfg.model != TimingModel::Unkind {
        return;
    }
    let mut rng = seed::rng(seed, 0, Purpose::Links);
    let [low, high] = cfg.link_latency_ns;
    drawn.resize(network.cable_count(), 0);
    for (cable, before) in drawn.iter_mut().enumerate() {
        let latency = rng.random_range(low..=high);
        let mut knobs = network.knobs(cable);
        let untouched = match *before {
            0 => knobs.latency_ns == 0 && knobs.jitter_ns == 0,
            ns => knobs.latency_ns == ns && knobs.jitter_ns == cfg.link_jitter_ns,
        };
        if untouched {
            (knobs.latency_ns, knobs.jitter_ns) = (latency, cfg.link_jitter_ns);
            *before = latency;
            network.set_knobs(cable, knobs);
        }
    }
}

impl crate::world::World {
    /// Releases the entries that are due.
    pub(crate) fn run_timing(&mut self, now: u64) {
        for i in 0..self.slots.len() {
            let slot = &mut self.slots[i];
            let Some(t) = &mut slot.timing else {
                continue;
            };
            slot.machine.now_ns = now;
            t.posted.run(now, &mut slot.machine, &mut t.stats);
            while let Some(packet) = t.injection.pop_due(now, &mut t.stats) {
                self.network.inject(i, packet, &mut self.tracer);
            }
        }
    }

    /// Makes the pending DMA writes of a NIC visible before a read by its host completes, because
    /// PCIe completions push posted writes.
    pub(crate) fn push_posted(&mut self, nic: usize) {
        let now = self.now();
        let slot = &mut self.slots[nic];
        if let Some(t) = &mut slot.timing {
            slot.machine.now_ns = now;
            t.posted.push(now, &mut slot.machine, &mut t.stats);
        }
        slot.machine.now_ns = now;
        slot.machine.push();
    }

    /// Passes a packet of a NIC to the network, at once or later.
    pub(crate) fn send_packet(&mut self, nic: usize, packet: crate::env::Packet, now: u64) {
        match &mut self.slots[nic].timing {
            Some(t) => t.injection.add(now, packet, &mut t.stats),
            None => self.network.inject(nic, packet, &mut self.tracer),
        }
    }

    /// Returns the number of payload bytes that a NIC may send now.
    pub(crate) fn tx_credit(&self, nic: usize) -> u64 {
        let waiting = self.slots[nic].timing.as_ref();
        let waiting = waiting.map_or(0, |t| t.injection.bytes());
        self.network.tx_credit(nic).saturating_sub(waiting)
    }

    /// Returns the number of free bytes of each lane of a NIC.
    pub(crate) fn tx_room(&self, nic: usize) -> [u64; LANES] {
        let mut room = self.network.tx_room(nic);
        if let Some(t) = &self.slots[nic].timing {
            for (room, waiting) in room.iter_mut().zip(t.injection.waiting()) {
                *room = room.saturating_sub(*waiting);
            }
        }
        room
    }

    /// Returns the set of lanes into which a NIC may send now.
    pub(crate) fn tx_open(&self, nic: usize) -> u16 {
        let open = self.network.tx_open(nic);
        if self.slots[nic].timing.is_none() || open == 0 {
            return open;
        }
        let (credit, room) = (self.tx_credit(nic) > 0, self.tx_room(nic));
        let may = |l: &Lane| (credit || !l.is_request()) && room[l.index()] > 0;
        let lanes = Lane::all().filter(may);
        open & lanes.fold(0, |set, l| set | l.bit())
    }

    /// Returns the time at which the timing model has its next work.
    pub(crate) fn timing_deadline(&self) -> Option<u64> {
        let queues = self.slots.iter().filter_map(|s| s.timing.as_ref());
        queues.filter_map(NicTiming::next_deadline).min()
    }

    /// Returns statistics of the delays and reordering of a NIC.
    pub fn timing_stats(&self, nic: usize) -> TimingStats {
        let queues = self.slots[nic].timing.as_ref();
        queues.map_or_else(TimingStats::default, |t| t.stats.clone())
    }

    /// Restarts all random number generators from `seed`, as at the start. Buffer sizes stay.
    pub fn reseed(&mut self, seed: u64) {
        let (timing, mut drawn) = (self.timing.clone(), std::mem::take(&mut self.drawn_latency));
        self.change_network(|net, _: &mut Tracer| {
            net.reseed(seed);
            stretch_links(&timing, seed, net, &mut drawn);
        });
        self.drawn_latency = drawn;
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if let Some(t) = &mut slot.timing {
                t.reseed(seed, i);
            }
            let chip = seed::derive(seed, i, Purpose::Chip);
            slot.spec.nic.seed = chip;
            slot.nic.reseed(chip);
        }
    }
}

#[cfg(test)]
mod tests;
