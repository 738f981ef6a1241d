//! Tests of loads and stores between devices of hosts. The test takes the part of the clients.

use super::*;
use crate::config::{ConfigFile, Fabric, Overrides};
use crate::device::NicDevice;
use crate::trace::Tracer;
use crate::vfio_user::{Answer, Device};
use crate::world::Clock;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::ids::{BusAddr, NodeId};
use wire::regs::{htax, np, smfu as r};

const BAR0: u64 = 0x38_0000_0000;
const BAR2: u64 = 0x38_1000_0000;
/// Bus address of the device of each host. Interval n + 1 of a NIC leads to the device of NIC n.
const DEVICE: u64 = 0x40_0000_0000;
const PART: u64 = 0x10_0000;
const WINDOW: u64 = 0x200_0000;

struct Hosts {
    world: World,
    time: Rc<Cell<u64>>,
    /// Address of the pending load of each NIC.
    waiting: BTreeMap<usize, u64>,
    /// DMA messages that each host has received, but not processed.
    asked: Vec<Vec<Request>>,
    /// Registers of the device of each host.
    devices: Vec<BTreeMap<u64, u64>>,
}

impl Hosts {
    fn new(config: &str, n: usize) -> Self {
        let file: ConfigFile = toml::from_str(config).unwrap();
        let fabric =
            Fabric::build(file, &Overrides::default(), std::path::Path::new("/d")).unwrap();
        let time = Rc::new(Cell::new(0));
        let world = World::new(&fabric, Clock::Manual(Rc::clone(&time)), Tracer::off()).unwrap();
        let mut hosts = Self {
            world,
            time,
            waiting: BTreeMap::new(),
            asked: vec![Vec::new(); n],
            devices: vec![BTreeMap::new(); n],
        };
        for nic in 0..n {
            hosts.boot(nic, n);
        }
        hosts
    }

    fn device(&mut self, nic: usize) -> NicDevice<'_> {
        NicDevice {
            world: &mut self.world,
            nic,
        }
    }

    fn boot(&mut self, nic: usize, n: usize) {
        self.world.connected(nic);
        self.device(nic).negotiated();
        for (at, value) in [(0x10, BAR0), (0x18, BAR2)] {
            let value = value.to_le_bytes();
            self.device(nic).region_write(7, at, &value).unwrap();
        }
        self.device(nic).region_write(7, 4, &[6, 4]).unwrap();
        let set = wire::htax::Windows::standard(BusAddr(BAR0), BusAddr(BAR2), 256 << 20);
        for (i, x) in set.intervals().unwrap() {
            self.world.poke(nic, htax::intvl_upper(i).0, x.upper.raw());
            self.world.poke(nic, htax::intvl_lower(i).0, x.lower.raw());
            self.world
                .poke(nic, htax::intvl_control(i).0, x.control.raw());
        }
        let mut poke = |at: wire::ids::RegOffset, value| self.world.poke(nic, at.0, value);
        poke(htax::GENERAL, htax::GENERAL_INIT);
        poke(r::O_START_ADDR, BAR2);
        poke(r::TRAFFIC_CLASS, r::TRAFFIC_CLASS_INIT);
        poke(np::general(np::SMFU), np::GENERAL_INIT);
        poke(r::STATUS_CONTROL, 1);
        for to in 0..n {
            let (k, start) = (to as u32 + 1, BAR2 + WINDOW + to as u64 * PART);
            poke(r::interval_startaddr(k), start);
            poke(r::interval_endaddr(k), start + PART);
            let control = r::IntervalControl::to_node(NodeId(to as u16));
            poke(r::interval_control(k), control.raw());
            poke(r::vpid_t_start_addr(k), DEVICE);
        }
    }

    /// Begins a load by the CPU of a host from a register of another host's device. Returns the
    /// value if it is available at once.
    fn load(&mut self, nic: usize, to: usize, at: u64) -> Option<u64> {
        let mut data = [0; 8];
        let offset = WINDOW + to as u64 * PART + at;
        match self.device(nic).region_read(2, offset, &mut data).unwrap() {
            Answer::Now => Some(u64::from_le_bytes(data)),
            Answer::Later => {
                self.waiting.insert(nic, at);
                None
            }
        }
    }

    fn finish(&mut self, nic: usize) -> Option<u64> {
        let mut data = [0; 8];
        self.device(nic).finish_read(&mut data).then(|| {
            self.waiting.remove(&nic);
            u64::from_le_bytes(data)
        })
    }

    fn store(&mut self, nic: usize, to: usize, at: u64, value: u64) {
        let offset = WINDOW + to as u64 * PART + at;
        let data = value.to_le_bytes();
        self.device(nic).region_write(2, offset, &data).unwrap();
    }

    /// Receives the DMA messages of a host.
    fn fetch(&mut self, nic: usize) {
        while let Some(r) = self.device(nic).next_request() {
            self.asked[nic].push(r);
        }
    }

    /// Answers the first DMA message of a host. Returns `false` if there is no message, or if the
    /// host waits for a load.
    fn serve(&mut self, nic: usize) -> bool {
        self.fetch(nic);
        if self.waiting.contains_key(&nic) || self.asked[nic].is_empty() {
            return false;
        }
        let m = self.asked[nic].remove(0);
        let at = m.addr.wrapping_sub(DEVICE);
        let known = &mut self.devices[nic];
        let result = match &m.data {
            _ if at >= PART => Err(19),
            Some(data) => {
                let value = u64::from_le_bytes(data[..].try_into().unwrap());
                known.insert(at, value);
                Ok(Vec::new())
            }
            None => Ok(known.get(&at).unwrap_or(&0).to_le_bytes().to_vec()),
        };
        let answer = Answered {
            id: m.id,
            store: m.data.is_some(),
            about: Some((m.addr, m.len as u64)),
            result,
        };
        self.device(nic).answered(answer);
        true
    }

    fn later(&mut self, ns: u64) {
        self.time.set(self.time.get() + ns);
        self.world.tick();
    }

    fn deadlocks(&self) -> u64 {
        let n = self.asked.len();
        let of = |i| self.world.host_stats(i).peer_deadlocks;
        (0..n).map(of).sum()
    }
}

const ONES: u64 = u64::MAX;

#[test]
fn loads_wait_for_the_device_and_see_the_stores_before() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    h.store(0, 1, 0x20, 77);
    assert_eq!(h.load(0, 1, 0x20), None);
    assert_eq!(h.finish(0), None);
    // Other accesses do not wait for the device: the other host can load from its own NIC, and node
    // 0 is reachable.
    assert_eq!(h.world.peek(1, 0x8050), 1);
    assert!(h.serve(1), "the store");
    assert_eq!(h.finish(0), None);
    assert!(h.serve(1), "the load");
    assert_eq!(h.finish(0), Some(77));
    let s = h.world.host_stats(1);
    assert_eq!(
        (s.peer_loads, s.peer_stores, s.dma_outside_memory),
        (1, 1, 0)
    );
    let c = h.world.chip_counters(1);
    assert_eq!((c.dma_reads, c.dma_writes, c.dma_faults), (1, 1, 0));
}

#[test]
fn what_no_device_has_gives_all_ones_and_is_counted() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    h.world.poke(1, r::vpid_t_start_addr(2).0, 0x70_0000_0000);
    h.store(0, 1, 0, 1);
    assert_eq!(h.load(0, 1, 0), None);
    assert!(h.serve(1) && h.serve(1));
    assert_eq!(h.finish(0), Some(ONES));
    assert_eq!(h.world.host_stats(1).dma_outside_memory, 2);
    let c = h.world.chip_counters(1);
    assert_eq!((c.dma_faults, c.drops.dma), (2, 1));
    assert_eq!(h.world.chip_counters(0).smfu.refused, 1);
    assert_eq!(h.world.chip_counters(0).smfu.timeouts, 0);
}

#[test]
fn a_host_that_does_not_answer_costs_a_time_out() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    assert_eq!(h.load(0, 1, 0), None);
    h.fetch(1);
    h.later(499_000_000);
    assert_eq!(h.finish(0), None);
    h.later(2_000_000);
    assert_eq!(h.finish(0), Some(ONES));
    let c = h.world.chip_counters(0);
    assert_eq!((c.smfu.timeouts, c.events[12]), (1, 1));
    // The answer arrives late and is ignored.
    assert!(h.serve(1));
    assert_eq!(h.world.chip_counters(0).smfu.late, 1);
    // The emulator stops waiting for a host that never answers. Further accesses to that host fail
    // at once.
    assert_eq!(h.load(0, 1, 0), None);
    h.fetch(1);
    h.later(crate::peer::TIMEOUT_NS);
    assert_eq!(h.finish(0), Some(ONES));
    assert_eq!(h.world.host_stats(1).peer_unanswered, 1);
    assert_eq!(h.load(0, 1, 0), Some(ONES));
    assert_eq!(h.world.host_stats(1).peer_unanswered, 2);
    assert!(h.world.next_deadline().is_none_or(|at| at > h.world.now()));
    assert!(h.serve(1), "late");
    h.devices[1].insert(0, 5);
    assert_eq!(h.load(0, 1, 0), None);
    assert!(h.serve(1));
    assert_eq!(h.finish(0), Some(5));
}

#[test]
fn a_host_that_goes_takes_its_answers_along() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    assert_eq!(h.load(0, 1, 0), None);
    h.store(0, 1, 8, 1);
    h.fetch(1);
    h.store(0, 1, 16, 1);
    h.world.disconnected(1);
    assert_eq!(h.finish(0), Some(ONES));
    assert_eq!(h.world.host_stats(1).peer_unanswered, 3);
    // A NIC without power answers no access.
    h.boot(1, 2);
    h.asked[1].clear();
    assert_eq!(h.load(0, 1, 0), None);
    h.fetch(1);
    h.world.set_power(1, false);
    h.later(500_000_000);
    assert_eq!(h.finish(0), Some(ONES));
    assert!(h.serve(1), "an answer to a NIC without power");
}

#[test]
fn a_host_does_not_wait_for_itself() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    assert_eq!(h.load(0, 0, 0), Some(ONES), "its own device by its own NIC");
    assert_eq!(h.deadlocks(), 1);
    h.store(0, 0, 8, 9);
    assert!(h.serve(0));
    assert_eq!(h.devices[0][&8], 9, "stores arrive");
    // Both hosts wait for each other. The second load returns all ones, and the first load returns
    // its data.
    assert_eq!(h.load(0, 1, 0x10), None);
    h.devices[1].insert(0x10, 4);
    assert_eq!(h.load(1, 0, 0x10), Some(ONES));
    assert!(h.serve(1));
    assert_eq!((h.finish(0), h.deadlocks()), (Some(4), 2));
    // A load that has timed out closes no cycle.
    assert_eq!(h.load(0, 1, 0x10), None);
    h.fetch(1);
    h.later(500_000_000);
    assert_eq!(h.finish(0), Some(ONES));
    assert_eq!(h.load(1, 0, 0), None);
    assert!(h.serve(0));
    assert_eq!((h.finish(1), h.deadlocks()), (Some(0), 2));
}

/// Two NICs of one host have one client, which waits for both.
#[test]
fn a_circle_may_lead_over_another_nic() {
    let mut h = Hosts::new("topology = \"ring:4\"\nnics-per-node = 2", 4);
    assert_eq!(h.load(0, 1, 0), Some(ONES), "the other NIC of this host");
    assert_eq!(h.load(0, 2, 0), None);
    assert_eq!(h.load(3, 1, 0), Some(ONES));
    h.waiting.remove(&3);
    assert!(h.serve(2));
    assert_eq!(h.finish(0), Some(0));
}

/// A memory write is not visible before the earlier stores to the device have ended.
#[test]
fn an_interrupt_comes_after_the_store_before_it() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    // Interval 1 at node 1, which is otherwise unused, leads to the interrupt range.
    h.world.poke(1, r::vpid_t_start_addr(1).0, 0xFD_0000_0000);
    let to_one = r::IntervalControl::to_node(NodeId(1)).raw();
    h.world.poke(0, r::interval_control(1).0, to_one);
    h.store(0, 1, 0, 3);
    h.store(0, 0, 0, 1);
    assert_eq!(
        h.world.chip_counters(1).interrupts,
        1,
        "the chip has sent it"
    );
    assert_eq!(h.world.host_stats(1).msi_lost, 0);
    assert!(h.serve(1));
    // The client has no eventfds, so the interrupt is only counted as lost.
    assert_eq!(h.world.host_stats(1).msi_lost, 1);
}

/// Stores are limited to the rate at which devices accept them. Each store arrives.
#[test]
fn a_slow_device_stops_those_who_store_to_it() {
    let mut h = Hosts::new("topology = \"pair\"", 2);
    let mut n = 0;
    while !h.world.stalled(0) {
        n += 1;
        h.store(0, 1, 8 * (n % 1000), n);
        assert!(n < 100_000, "the stores are never stopped");
    }
    assert!(n > 1000);
    assert!(!h.world.stalled(1));
    // Stores that were in flight when the host was stopped are still accepted.
    for _ in 0..200 {
        n += 1;
        h.store(0, 1, 8 * (n % 1000), n);
    }
    let mut served = 0;
    while h.serve(1) {
        served += 1;
    }
    assert_eq!(served, n);
    assert!(!h.world.stalled(0));
    assert_eq!(h.world.chip_counters(0).drops.smfu_congested, 0);
}

/// Random loads and stores among four hosts all end, in both timing models.
#[test]
fn crossing_loads_never_hang() {
    for seed in 0..24u64 {
        let timing = if seed % 2 == 0 { "ideal" } else { "unkind" };
        let config = format!(
            "topology = \"full:4\"\n[timing]\nmodel = \"{timing}\"\n[network]\nseed = {seed}"
        );
        let mut h = Hosts::new(&config, 4);
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut done, mut ones) = (0, 0);
        for step in 0..4000u64 {
            let nic = rng.random_range(0..4);
            let to = rng.random_range(0..4);
            let mut got = None;
            match rng.random_range(0..4) {
                0 if !h.waiting.contains_key(&nic) => got = h.load(nic, to, 8 * (step % 4)),
                1 if !h.waiting.contains_key(&nic) => h.store(nic, to, 8 * (step % 4), step),
                2 => drop(h.serve(nic)),
                _ => h.later(rng.random_range(0..20_000)),
            }
            for nic in 0..4 {
                if h.waiting.contains_key(&nic) {
                    let end = h.finish(nic);
                    done += u64::from(end.is_some());
                    ones += u64::from(end == Some(ONES));
                }
            }
            done += u64::from(got.is_some());
            ones += u64::from(got == Some(ONES));
        }
        // If there are no new accesses, all pending accesses end before a timeout.
        let end = h.time.get() + 400_000_000;
        while h.time.get() < end && !h.waiting.is_empty() {
            for nic in 0..4 {
                while h.serve(nic) {}
                if h.waiting.contains_key(&nic) {
                    ones += u64::from(h.finish(nic) == Some(ONES));
                }
            }
            h.later(100_000);
        }
        assert!(h.waiting.is_empty(), "seed {seed}: {:?}", h.waiting);
        let timeouts: u64 = (0..4).map(|i| h.world.chip_counters(i).smfu.timeouts).sum();
        assert_eq!(timeouts, 0, "seed {seed}");
        assert_eq!(ones, h.deadlocks(), "seed {seed}: all ones, and a circle");
        assert!(done > 100 && ones > 0, "seed {seed}: {done} loads");
        for i in 0..4 {
            while h.serve(i) {}
            let s = h.world.host_stats(i);
            let wrong = s.dma_outside_memory + s.peer_unanswered + s.peer_refused;
            assert_eq!((wrong, s.protocol_errors), (0, 0));
        }
    }
}
