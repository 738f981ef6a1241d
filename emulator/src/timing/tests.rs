use super::*;
use crate::config::{ConfigFile, Fabric, Overrides};
use crate::vfio_user::DmaMapRequest;
use crate::world::{Clock, World};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

const BAR0: u64 = 0x1000_0000;
const MEMORY: u64 = 1 << 20;
/// Address of the SNQ ring in the memory of each host.
const RING: u64 = 0x10000;
const MAILBOX: u64 = 0x20000;
const NOTIFICATIONS: u64 = 0x30000;
const SOURCE: u64 = 0x40000;
const TARGET: u64 = 0x50000;
const VPID: u64 = 3;
const US: u64 = 1_000;

mod drivers;
mod units;

/// A pair of NICs. The test takes the part of their hosts.
struct Rig {
    world: World,
    time: Rc<Cell<u64>>,
    irq: OwnedFd,
}

impl Rig {
    fn new(seed: u64, timing: &str) -> Self {
        let text = format!("topology = \"pair\"\n[timing]\n{timing}");
        let file: ConfigFile = toml::from_str(&text).unwrap();
        let overrides = Overrides {
            seed: Some(seed),
            ..Overrides::default()
        };
        let fabric = Fabric::build(file, &overrides, std::path::Path::new("/d")).unwrap();
        let time = Rc::new(Cell::new(0));
        let clock = Clock::Manual(Rc::clone(&time));
        let mut world = World::new(&fabric, clock, Tracer::off()).unwrap();
        let irq = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        for nic in 0..2 {
            let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, MEMORY).unwrap();
            let map = DmaMapRequest {
                iova: 0,
                size: MEMORY,
                offset: 0,
                writable: true,
            };
            let machine = &mut world.slots[nic].machine;
            machine.memory.map(map, Some(fd)).unwrap();
            // Enables MSI. The capability is found by its ID.
            let mut at = [0; 1];
            machine.config.read(0x34, &mut at);
            loop {
                let mut head = [0; 2];
                machine.config.read(at[0].into(), &mut head);
                if head[0] == 5 {
                    machine.config.write(u64::from(at[0]) + 2, &[1, 0]);
                    break;
                }
                at = [head[1]];
            }
            machine.set_msi(0, vec![Some(irq.try_clone().unwrap())]);
        }
        let mut rig = Self { world, time, irq };
        (0..2).for_each(|nic| rig.ready(nic));
        rig
    }

    /// Initializes a chip after a reset, as firmware and driver do.
    fn ready(&mut self, nic: usize) {
        self.world.slots[nic].machine.config.write(4, &[6, 0]);
        self.world.with_nic(nic, |n, _| {
            n.set_bus_master(true);
            n.set_bar_address(0, BAR0);
        });
        self.program(nic);
    }

    /// Writes registers as a driver does (HW §3, §6, §7, §9.7, §10.9).
    fn program(&mut self, nic: usize) {
        for (i, unit, control) in [(1u32, 0x200_0000, 0x4209), (2, 0x400_0000, 0x440B)] {
            let (base, at) = (BAR0 + unit, 0x9200 + 24 * i);
            self.world.poke(nic, at, (base + 0x200_0000) >> 12);
            self.world.poke(nic, at + 8, (base >> 12) - 1);
            self.world.poke(nic, at + 16, control);
        }
        self.world.poke(nic, 0x9290, 0x8088);
        for port in 0..4 {
            self.world.poke(nic, 0x9418 + 0x80 * port, 0xff);
        }
        self.open(nic, VPID, 0);
        self.world.poke(nic, 0x120_1808, 1 << 9);
        for vpid in 0..8 {
            self.world.poke(nic, 0x120_1000 + 8 * vpid, 1 << 17);
            let source = ((nic as u64) << 16) | (u64::from(vpid) << 32);
            self.world.poke(nic, 0x120_0800 + 8 * vpid, source);
            self.world.poke(nic, 0x160_0800 + 8 * vpid, 0xF523);
        }
        self.world.poke(nic, 0x160_0080, 0x84_0200);
        // The SNQ programs of TE 23 and TE 25 read the vector of their unit and write an entry (HW
        // §6.6).
        self.world.poke(nic, 0x10020, RING >> 10);
        self.world.poke(nic, 0x10028, 255);
        self.world.poke(nic, 0x10038, 255);
        for (te, vector) in [(23, 0x120_0020), (25, 0x160_0020)] {
            let read = 3 | (0xff << 4) | (3 << 19) | ((vector / 8) << 22) | (1 << 48) | (4 << 49);
            self.world.poke(nic, 0x10800 + 8 * te, read);
        }
        self.world.poke(nic, 0x10000, (1 << 23) | (1 << 25));
        self.world.poke(nic, 0x10048, 0xFD23_0000_0040_002D);
        self.world.poke(nic, 0x10050, 0x0300_0100_0000);
        self.world.poke(nic, 0x10070, 0x20_1201);
        self.world.poke(nic, 0x10068, 1);
        self.world.poke(nic, 0x10040, 0x1_0001);
    }

    /// Sets up the queues of a VPID, with 32 slots each.
    fn open(&mut self, nic: usize, vpid: u64, page: u64) {
        let v = vpid as u32;
        for (queues, slot, base) in [(0xC0_0000, 3, MAILBOX), (0xE0_0000, 0, NOTIFICATIONS)] {
            self.world.poke(nic, queues, 1);
            self.world.poke(nic, queues + 0x800 + 8 * v, 31);
            let segment = slot | (31 << 2) | (((base >> 12) + page) << 18) | (1 << 58);
            self.world.poke(nic, queues + 0x1800 + 8 * v, segment);
            self.world
                .poke(nic, queues + 0x10_0000 + 0x1000 * v, 1 << 32);
        }
    }

    /// Sets up queues for VPIDs 4 and 5 of NIC 1.
    fn more_queues(&mut self) {
        (1..3).for_each(|k| self.open(1, VPID + k, k));
    }

    /// Maps all memory to equal NLAs for VPID 3. The GAT is at address 0.
    fn translate(&mut self) {
        for nic in 0..2 {
            for page in 0..MEMORY >> 12 {
                self.put(nic, 8 * page, (page << 12) | (VPID << 2) | 3);
            }
            self.world.poke(nic, 0xC000, 1);
            self.world.poke(nic, 0xE000, 1 << 31);
        }
    }

    /// Performs a transfer like [`Rig::rma`], with NLAs instead of physical addresses.
    fn rma_te(&mut self, command: u64, notify: u64, len: u64, addresses: [u64; 2]) {
        self.rma(command, 16, notify, len, addresses);
    }

    /// Sends a message of 8 bytes from NIC 0 to a VPID of NIC 1.
    fn velo_to(&mut self, vpid: u64, interrupt: bool, text: u64) {
        let descriptor = 1 | (vpid << 16) | (u64::from(interrupt) << 34) | (8 << 48);
        self.store(0, 0x200_0000 | (VPID << 12), &[descriptor, text]);
    }

    fn store(&mut self, nic: usize, at: u64, words: &[u64]) {
        for (i, w) in words.iter().enumerate() {
            self.world.with_nic(nic, |n, env| {
                n.mmio_write(0, at + 8 * i as u64, &w.to_le_bytes(), env);
            });
        }
        self.world.settle();
    }

    /// Sends a message of 8 bytes from NIC 0 to VPID 3 of NIC 1.
    fn velo(&mut self, from: u64, tc: u64, interrupt: bool, text: u64) {
        let page = 0x200_0000 | (tc << 20) | (from << 12);
        let descriptor = 1 | (VPID << 16) | (u64::from(interrupt) << 34) | (8 << 48);
        self.store(0, page, &[descriptor, text]);
    }

    /// Sends a message of 8 bytes from NIC 0 to all nodes.
    fn velo_to_all(&mut self, from: u64, tc: u64, text: u64) {
        let page = 0x200_0000 | (tc << 20) | (from << 12);
        let descriptor = 63 | (1 << 31) | (VPID << 16) | (8 << 48);
        self.store(0, page, &[descriptor, text]);
    }

    /// Performs a PUT (command 2) or a GET (command 0) of `len` bytes from NIC 0 by physical
    /// addresses. `notify` selects the notifications (HW §10.2).
    fn rma(&mut self, command: u64, tc: u64, notify: u64, len: u64, addresses: [u64; 2]) {
        let page = 0x400_0000 | (tc << 20) | (VPID << 12);
        let word =
            3 | (command << 2) | (VPID << 8) | (1 << 16) | (notify << 32) | ((len - 1) << 40);
        self.store(0, page, &[word, addresses[0], addresses[1]]);
    }

    /// Returns the word that the CPU of a host sees in its memory. The NIC does not access the
    /// memory.
    fn see(&self, nic: usize, at: u64) -> u64 {
        let mut raw = [0; 8];
        assert!(self.world.slots[nic].machine.memory.read(at, &mut raw));
        u64::from_le_bytes(raw)
    }

    fn put(&self, nic: usize, at: u64, value: u64) {
        let memory = &self.world.slots[nic].machine.memory;
        assert!(memory.write(at, &value.to_le_bytes()));
    }

    /// Returns the payload of slot `k` of the mailbox, or `None` if the slot is empty.
    fn message(&self, nic: usize, k: u64) -> Option<u64> {
        let slot = MAILBOX + 128 * k;
        (self.see(nic, slot + 120) != 0).then(|| self.see(nic, slot + 112))
    }

    /// Runs one event of the timing model. Returns `false` if no event is pending.
    fn step(&mut self) -> bool {
        let Some(at) = self.world.next_deadline() else {
            return false;
        };
        self.time.set(at.max(self.time.get()));
        self.world.tick();
        true
    }

    fn until(&mut self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            assert!(self.step(), "never");
        }
    }

    /// Returns the number of interrupts since the last call.
    fn interrupts(&self) -> u64 {
        let mut raw = [0; 8];
        match rustix::io::read(&self.irq, &mut raw) {
            Ok(_) => u64::from_ne_bytes(raw),
            Err(_) => 0,
        }
    }
}

const UNKIND: &str = "model = \"unkind\"
commit-delay-ns = 50000
read-delay-ns = 100000
atu-delay-ns = 50000
event-delay-ns = 50000
queue-limit = [16, 128]";

/// A message may arrive before an earlier PUT. HW §10.8: "No ordering between different TCs or
/// between VELO and RMA is stated" (G28).
#[test]
fn a_message_says_nothing_about_a_put_before_it() {
    let there_first = |seed, timing| {
        let mut rig = Rig::new(seed, timing);
        rig.put(0, SOURCE, 0x77);
        rig.rma(2, 0, 0, 8, [SOURCE, TARGET]);
        rig.velo(VPID, 0, false, 1);
        rig.until(|r| r.message(1, 0).is_some());
        let there = rig.see(1, TARGET) == 0x77;
        rig.until(|r| r.see(1, TARGET) == 0x77);
        while rig.step() {}
        (there, rig.world.timing_stats(1).writes_delayed > 0)
    };
    let unkind: Vec<_> = (0..64).map(|seed| there_first(seed, UNKIND)).collect();
    let late = unkind.iter().filter(|(there, _)| !there).count();
    assert!((8..=56).contains(&late), "{late} of 64 puts were late");
    assert!(unkind.iter().all(|(_, delayed)| *delayed));
    for seed in 0..8 {
        assert_eq!(there_first(seed, "model = \"ideal\""), (true, false));
    }
}

/// Two PUTs of one VPID in different traffic classes may pass each other (HW §10.8).
#[test]
fn traffic_classes_pass_each_other() {
    let mut second_first = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, UNKIND);
        rig.put(0, SOURCE, 5);
        rig.rma(2, 0, 0, 8, [SOURCE, TARGET]);
        rig.rma(2, 2, 0, 8, [SOURCE, TARGET + 8]);
        rig.until(|r| r.see(1, TARGET) != 0 || r.see(1, TARGET + 8) != 0);
        second_first += u32::from(rig.see(1, TARGET) == 0);
        rig.until(|r| r.see(1, TARGET) != 0 && r.see(1, TARGET + 8) != 0);
    }
    assert!((4..=56).contains(&second_first), "{second_first} of 64");
}

/// Data arrives before its notification (HW §17, §10.8). Requests of one VPID and class, PUTs and
/// GETs, stay in order (HW §10.8, G12).
#[test]
fn what_is_promised_about_transfers_holds() {
    let pushes = ["", "\npush = \"bridge\""];
    for (seed, push) in (0..200).zip(pushes.into_iter().cycle()) {
        let mut rig = Rig::new(seed, &format!("{UNKIND}{push}"));
        for k in 0..4 {
            rig.put(0, SOURCE + 8 * k, 100 + k);
        }
        // The PUTs have completer notifications. The GET reads the data of the last PUT.
        for k in 0..4 {
            rig.rma(2, 0, 4, 8, [SOURCE + 8 * k, TARGET + 8 * k]);
        }
        rig.rma(0, 0, 4, 8, [TARGET + 24, TARGET]);
        let mut seen = 0;
        loop {
            for k in 0..4 {
                let notified = rig.see(1, NOTIFICATIONS + 16 * k + 8) != 0;
                let data = rig.see(1, TARGET + 8 * k) == 100 + k;
                assert!(
                    !notified || data,
                    "seed {seed}: notification {k} preceded its data"
                );
                assert!(!data || k == 0 || rig.see(1, TARGET + 8 * (k - 1)) != 0);
                seen |= u64::from(notified) << k;
            }
            let got = rig.see(0, NOTIFICATIONS + 8) != 0;
            assert!(
                !got || rig.see(0, TARGET) == 103,
                "seed {seed}: the get overtook the put"
            );
            seen |= u64::from(got) << 4;
            if !rig.step() {
                break;
            }
        }
        assert_eq!(seen, 0x1f);
    }
}

/// Messages of one VPID stay in order, even if they have several classes and if multicasts are
/// among them (HW §9.1, TH §5.4.1.2). Messages of other VPIDs may pass.
#[test]
fn messages_of_one_vpid_stay_in_order() {
    let mut mixed = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, UNKIND);
        for k in 0..8 {
            match k % 3 {
                2 => rig.velo_to_all(VPID, k % 4, 0x100 + k),
                _ => rig.velo(VPID, k % 4, false, 0x100 + k),
            }
            rig.velo(VPID + 1, (k + 1) % 4, false, 0x200 + k);
        }
        while rig.step() {}
        let all: Vec<u64> = (0..16).map(|k| rig.message(1, k).unwrap()).collect();
        for source in [0x100, 0x200] {
            let own: Vec<u64> = all
                .iter()
                .copied()
                .filter(|m| m & 0x300 == source)
                .collect();
            let sent: Vec<u64> = (0..8).map(|k| source + k).collect();
            assert_eq!(own, sent, "seed {seed}");
        }
        let as_sent: Vec<u64> = (0..8).flat_map(|k| [0x100 + k, 0x200 + k]).collect();
        mixed += u32::from(all != as_sent);
    }
    assert!(mixed > 32, "{mixed} of 64");
}

/// An SNQ entry arrives before its interrupt, and a message before the entry that reports it (HW
/// §17, §6.4). A spurious interrupt is legal (G6).
#[test]
fn an_interrupt_finds_its_entry_and_the_entry_its_message() {
    for seed in 0..200 {
        let mut rig = Rig::new(seed, "model = \"unkind\"\nspurious-every = 0");
        rig.velo(VPID, 0, true, 9);
        loop {
            let entry = rig.see(1, RING + 56) >> 63 != 0;
            assert!(!entry || rig.message(1, 0) == Some(9), "seed {seed}");
            if rig.interrupts() > 0 {
                assert!(entry, "seed {seed}: interrupt before its entry");
                break;
            }
            assert!(rig.step(), "seed {seed}: the interrupt is lost");
        }
    }
    let mut early = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, "model = \"unkind\"\nspurious-every = 1");
        rig.velo(VPID, 0, true, 9);
        rig.until(|r| r.see(1, RING + 56) >> 63 != 0 || r.world.timing_stats(1).msi_spurious > 0);
        early += u32::from(rig.see(1, RING + 56) >> 63 == 0);
        while rig.step() {}
        assert_eq!((rig.interrupts(), rig.message(1, 0)), (2, Some(9)));
    }
    assert!(early > 16, "{early} of 64");
}

/// Interrupts may be merged and late. An interrupt always follows the last message (G6, G7).
#[test]
fn software_that_sleeps_on_interrupts_sees_every_message() {
    let mut merged = 0;
    for seed in 0..100 {
        let mut rig = Rig::new(seed, UNKIND);
        let (mut read, mut entries, mut sent) = (0, 0u64, 0);
        loop {
            // Bursts are sent, so that messages arrive while software is busy.
            if sent < 12 && seed % 3 == sent % 3 {
                rig.velo(VPID, 0, true, sent);
                sent += 1;
            }
            if rig.interrupts() > 0 {
                while rig.see(1, RING + 64 * entries + 56) >> 63 != 0 {
                    entries += 1;
                }
                while let Some(text) = rig.message(1, read) {
                    assert_eq!(text, read);
                    read += 1;
                }
                // Software returns the entries and arms, then reads the queue, in the order of HW
                // §6.4 and §9.5.
                rig.store(1, 0x10038, &[(entries + 255) & 255]);
                rig.store(1, 0x10040, &[0x1_0000 | (entries + 1)]);
                rig.store(1, 0xD0_0000 + 0x1000 * VPID, &[(1 << 32) | read]);
            }
            if !rig.step() {
                if sent == 12 {
                    break;
                }
                rig.velo(VPID, 0, true, sent);
                sent += 1;
            }
        }
        assert_eq!((read, rig.interrupts()), (12, 0), "seed {seed}");
        merged += rig.world.timing_stats(1).msi_merged;
    }
    // After a spurious interrupt, software arms again. The interrupt of the entry still follows.
    assert!(merged > 16, "{merged}");
}

/// Interrupts of a device behind another NIC have no watermark. If two of them are in flight, they
/// may be merged into one (G26).
#[test]
fn interrupts_of_a_device_merge() {
    let mut merged = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, "model = \"unkind\"\nspurious-every = 0");
        for k in 0..6 {
            rig.put(0, SOURCE, k + 1);
            rig.rma(2, 0, 0, 8, [SOURCE, TARGET]);
            rig.rma(2, 0, 0, 8, [SOURCE, 0xFD_0000_0000]);
        }
        let mut last = 0;
        while rig.step() {
            if rig.interrupts() > 0 {
                last = rig.see(1, TARGET);
            }
        }
        assert_eq!(last, 6, "seed {seed}: no interrupt after the last data");
        merged += rig.world.timing_stats(1).msi_merged;
    }
    assert!(merged > 16, "{merged}");
}

/// Completions push posted writes (PCIe). After a register read, software finds the writes that the
/// register reports.
#[test]
fn a_register_read_comes_after_the_writes_before_it() {
    let mut pushed = 0;
    for seed in 0..64 {
        let mut rig = Rig::new(seed, UNKIND);
        rig.velo(VPID, 0, false, 4);
        loop {
            let mut raw = [0; 8];
            let register = 0xC0_2800 + 8 * VPID;
            assert!(rig.world.load(1, 0, register, &mut raw));
            let written = u64::from_le_bytes(raw) >> 32;
            assert_eq!(rig.message(1, 0).is_some(), written == 1, "seed {seed}");
            if written == 1 {
                break;
            }
            assert!(rig.step());
        }
        pushed += rig.world.timing_stats(1).pushes;
    }
    assert!(pushed > 16, "{pushed}");
}

/// Writes in flight are lost when the chip is reset or loses power.
#[test]
fn what_is_under_way_is_lost_with_the_power() {
    let mut rig = Rig::new(1, UNKIND);
    rig.velo(VPID, 0, false, 4);
    rig.until(|r| r.world.chip_counters(1).velo.received == 1);
    assert_eq!(rig.message(1, 0), None);
    rig.world.set_power(1, false);
    while rig.step() {}
    assert_eq!(rig.message(1, 0), None);
}

/// Returns the times of the events under some traffic, the order of the messages, and the
/// statistics.
fn history(rig: &mut Rig) -> (Vec<u64>, Vec<u64>, TimingStats) {
    let mut seen = Vec::new();
    for k in 0..20 {
        rig.put(0, SOURCE, k);
        rig.rma(2, k % 4, 4, 8, [SOURCE, TARGET + 8 * k]);
        rig.velo(VPID + k % 3, k % 4, true, k);
        for _ in 0..3 {
            rig.step();
            seen.push(rig.time.get());
        }
    }
    while rig.step() {
        seen.push(rig.time.get());
    }
    assert_eq!(rig.world.next_deadline(), None, "no event is pending");
    let order = (0..20).map(|k| rig.message(1, k).unwrap()).collect();
    (seen, order, rig.world.timing_stats(0))
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| history(&mut Rig::new(seed, UNKIND));
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

/// Each link gets a different latency and jitter. Configured values stay (G35).
#[test]
fn links_have_latencies_of_their_own() {
    let rig = Rig::new(3, UNKIND);
    let knobs = rig.world.network().knobs(0);
    assert!((5 * US..=50 * US).contains(&knobs.latency_ns), "{knobs:?}");
    assert_eq!(knobs.jitter_ns, 10 * US);
    let text = "[timing]\nmodel = \"unkind\"\n[network]\nlink = { latency-ns = 7 }";
    let file: ConfigFile = toml::from_str(text).unwrap();
    let fabric = Fabric::build(file, &Overrides::default(), std::path::Path::new("/d")).unwrap();
    let mut world = World::new(&fabric, Clock::real(), Tracer::off()).unwrap();
    world.reseed(5);
    assert_eq!(world.network().knobs(0).latency_ns, 7);
    for bad in [
        "link-latency-ns = [9, 8]",
        "dma-delay-ns = 100000000\nstretch = 20",
    ] {
        let file: ConfigFile = toml::from_str(&format!("[timing]\n{bad}")).unwrap();
        let built = Fabric::build(file, &Overrides::default(), std::path::Path::new("/d"));
        assert!(built.is_err(), "{bad}");
    }
}
