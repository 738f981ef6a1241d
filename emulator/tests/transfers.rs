//! Tests of large RMA transfers through a complete model without sockets: two NICs, the network
//! between them, and guest memory.

use extoll_emulator::config::{ConfigFile, Fabric, Overrides};
use extoll_emulator::device::NicDevice;
use extoll_emulator::trace::Tracer;
use extoll_emulator::vfio_user::proto::region;
use extoll_emulator::vfio_user::{Device, DmaMapRequest};
use extoll_emulator::world::{Clock, World};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use wire::ids::{BusAddr, NodeId, Vpid};
use wire::regs::{htax, np, rma as regs};
use wire::rma::{Descriptor, Modifiers, NotifySpec, Operation};

const BAR0: u64 = 0x38_0000_0000;
const BAR2: u64 = 0x39_0000_0000;
const RAM: u64 = 64 << 20;
/// Start address of the data of transfers at both ends.
const AT: u64 = 0x100_0003;
const VPID: u8 = 6;

/// Two NICs with memory, on which RMA VPID 6 is open.
struct Pair {
    world: World,
    ram: [File; 2],
    time: Rc<Cell<u64>>,
}

impl Pair {
    fn new(config: &str) -> Self {
        let file: ConfigFile =
            toml::from_str(&format!("topology = \"pair\"\n{config}")).expect("configuration");
        let dir = std::path::Path::new("/d");
        let fabric = Fabric::build(file, &Overrides::default(), dir).expect("fabric");
        let time = Rc::new(Cell::new(0));
        let clock = Clock::Manual(Rc::clone(&time));
        let world = World::new(&fabric, clock, Tracer::off()).expect("world");
        let ram = [0, 1].map(|_| {
            let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
            let fd = fd.expect("memfd");
            ftruncate(&fd, RAM).expect("size");
            File::from(fd)
        });
        let mut pair = Self { world, ram, time };
        for nic in 0..2 {
            pair.start(nic);
        }
        pair
    }

    /// Sets up a NIC as firmware and driver do.
    fn start(&mut self, nic: usize) {
        let fd = self.ram[nic].try_clone().expect("fd").into();
        let map = DmaMapRequest {
            iova: 0,
            size: RAM,
            offset: 0,
            writable: true,
        };
        let mut device = NicDevice {
            world: &mut self.world,
            nic,
        };
        device.dma_map(map, Some(fd)).expect("map");
        for (at, value) in [(0x10, BAR0), (0x18, BAR2)] {
            let raw = value.to_le_bytes();
            device.region_write(region::CONFIG, at, &raw).expect("BAR");
        }
        device
            .region_write(region::CONFIG, 4, &[6, 0])
            .expect("command");
        let windows = wire::htax::Windows::standard(BusAddr(BAR0), BusAddr(BAR2), 256 << 20);
        for (i, x) in windows.intervals().expect("intervals") {
            self.reg(nic, htax::intvl_upper(i).0, x.upper.raw());
            self.reg(nic, htax::intvl_lower(i).0, x.lower.raw());
            self.reg(nic, htax::intvl_control(i).0, x.control.raw());
        }
        self.reg(nic, htax::GENERAL.0, htax::GENERAL_INIT);
        for n in [np::RMA_COMPLETER, np::RMA_RESPONDER] {
            self.reg(nic, np::general(n).0, np::GENERAL_INIT);
        }
        self.reg(
            nic,
            regs::vpid_table(Vpid::from(VPID)).0,
            regs::VPID_ENABLED,
        );
    }

    fn reg(&mut self, nic: usize, at: u32, value: u64) {
        self.store(nic, at.into(), &value.to_le_bytes());
    }

    fn store(&mut self, nic: usize, at: u64, data: &[u8]) {
        let world = &mut self.world;
        NicDevice { world, nic }
            .region_write(region::BAR0, at, data)
            .expect("store");
    }

    /// Posts a command to NIC 0. The NIC executes it as far as one event allows.
    fn post(&mut self, op: Operation) {
        self.post_at(0, op);
    }

    fn post_at(&mut self, nic: usize, op: Operation) {
        let d = Descriptor {
            node: NodeId(1 - nic as u16),
            vpid: Vpid::from(VPID),
            notify: NotifySpec::from_bits(0),
            modifiers: Modifiers::NONE,
            op,
        };
        let page = 0x0400_0000 + u64::from(VPID) * 4096;
        for (k, word) in (0..).zip(d.encode().expect("descriptor")) {
            self.store(nic, page + 8 * k, &word.to_le_bytes());
        }
    }

    /// Runs work passes of the event loop until all work is done. Returns the number of work
    /// passes.
    fn run(&mut self) -> usize {
        let mut turns = 0;
        while self.world.busy() {
            self.world.tick();
            turns += 1;
        }
        turns
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(next).collect()
}

/// Transfers data in both directions at full size. Prints the throughput and does not check it,
/// because the test machine may be busy.
#[test]
fn throughput() {
    const ROUNDS: u32 = 16;
    let mut p = Pair::new("");
    for (op, name) in [(2, "put"), (0, "get")] {
        let data = pattern(op, LEN as usize);
        let (from, to) = if op == 2 { (0, 1) } else { (1, 0) };
        p.ram[from].write_all_at(&data, AT).expect("data");
        let start = std::time::Instant::now();
        for _ in 0..ROUNDS {
            p.post(match op {
                2 => Operation::Put {
                    qw: false,
                    len: LEN,
                    local: AT,
                    remote: AT,
                },
                _ => Operation::Get {
                    qw: false,
                    len: LEN,
                    local: AT,
                    remote: AT,
                },
            });
            p.run();
        }
        let seconds = start.elapsed().as_secs_f64();
        let mut got = vec![0; LEN as usize];
        p.ram[to].read_exact_at(&mut got, AT).expect("data");
        assert!(got == data, "{name}");
        let rate = f64::from(LEN) * f64::from(ROUNDS) / seconds / 1e6;
        println!("{name}: {rate:.0} MB/s");
        let bytes = u64::from(LEN) * u64::from(ROUNDS);
        let c = p.world.chip_counters(to);
        let sum = if op == 2 {
            c.dma_bytes_written
        } else {
            c.rma.get_bytes
        };
        assert_eq!(sum, bytes, "{name}");
    }
    assert_eq!(p.time.get(), 0, "no time went by");
}

const LEN: u32 = 8 << 20;

fn put(len: u32) -> Operation {
    Operation::Put {
        qw: false,
        len,
        local: AT,
        remote: AT,
    }
}

/// A store that starts a large transfer returns before the transfer has finished. A small transfer
/// in the other direction also finishes before the large transfer.
#[test]
fn a_large_transfer_keeps_nobody_waiting() {
    let mut p = Pair::new("");
    p.post_at(0, put(LEN));
    let packets = |p: &Pair, nic| p.world.chip_counters(nic).packets_sent;
    let all = u64::from(LEN.div_ceil(496));
    assert!(packets(&p, 0) < all / 4, "{} packets", packets(&p, 0));
    assert!(p.world.busy());
    p.post_at(1, put(1000));
    let mut turns = 0;
    while p.world.chip_counters(0).dma_bytes_written < 1000 {
        p.world.tick();
        turns += 1;
    }
    assert!(packets(&p, 0) < all / 2 && turns <= 2, "{turns} turns");
    assert!(p.run() > 4, "the remainder needs more work passes");
    assert_eq!(packets(&p, 0), all);
    assert_eq!(p.world.chip_counters(1).dma_bytes_written, u64::from(LEN));
}

/// The packets of large transfers in both directions alternate.
#[test]
fn both_directions_share_the_fabric() {
    let mut p = Pair::new("");
    p.post_at(0, put(LEN));
    p.post_at(1, put(LEN));
    let mut ahead = 0;
    while p.world.busy() {
        p.world.tick();
        let sent = [0, 1].map(|nic| p.world.chip_counters(nic).packets_sent);
        if sent[0] < u64::from(LEN.div_ceil(496)) {
            ahead = sent[0].saturating_sub(sent[1]).max(ahead);
        }
    }
    // Only NIC 0 had transfers during the work passes of its store.
    assert!(ahead < 6000, "{ahead} packets ahead");
    for nic in 0..2 {
        let c = p.world.chip_counters(nic);
        assert_eq!(c.dma_bytes_written, u64::from(LEN), "NIC {nic}");
    }
}

/// One side loses its power, its cable or its client during a transfer. The transfer never
/// completes, but the next transfer works.
#[test]
fn transfers_that_lose_an_end() {
    for case in 0..4 {
        let mut p = Pair::new("");
        let data = pattern(case, LEN as usize);
        p.ram[0].write_all_at(&data, AT).expect("data");
        p.post_at(0, put(LEN));
        match case {
            0 => p.world.set_power(1, false),
            1 => p.world.set_power(0, false),
            2 => p.world.change_network(|net, trace| {
                net.set_link(0, false, None, trace);
            }),
            _ => p.world.disconnected(0),
        }
        p.run();
        let mut got = vec![0; LEN as usize];
        p.ram[1].read_exact_at(&mut got, AT).expect("data");
        let there = got.iter().zip(&data).take_while(|(a, b)| a == b).count();
        assert!(
            there > 100_000 && there < LEN as usize,
            "case {case}: {there}"
        );
        assert!(got[there..].iter().all(|b| *b == 0), "case {case}");
        match case {
            0 => p.world.set_power(1, true),
            1 => p.world.set_power(0, true),
            2 => p.world.change_network(|net, trace| {
                net.set_link(0, true, None, trace);
            }),
            _ => {}
        }
        let again = match case {
            0 => 1..2,
            1 | 3 => 0..1,
            _ => 0..0,
        };
        for nic in again {
            p.start(nic);
        }
        p.post_at(0, put(LEN));
        p.run();
        p.ram[1].read_exact_at(&mut got, AT).expect("data");
        assert!(got == data, "case {case}");
    }
}
