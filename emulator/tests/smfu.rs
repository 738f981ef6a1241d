//! Tests of the shared memory window over sockets: slow loads, unreachable nodes, and accelerator
//! nodes.

mod common;

use common::{cmd, message, words, Emu, Guest, BAR0, BAR2, NO_REPLY};
use extoll_emulator::endpoint::{regs as dev, MEMORY_OFFSET};
use serde_json::json;
use std::time::{Duration, Instant};
use wire::ids::NodeId;
use wire::regs::pcie::{self as p, BackdoorControl, BackdoorInfo};
use wire::regs::{htax, np, smfu as r};
use wire::tlp::{words as backdoor, Bdf, CfgType, Kind, Tlp};

/// Address of the memory that each node exports.
const EXPORT: u64 = 0x80_0000;
const WINDOW: u64 = 0x0200_0000;

/// Sets up HTAX and SMFU as in HW §3.1 and §3.6. Window offset 32 MiB + n MiB leads to NIC n, and
/// window offset 0 to the registers of NIC 1.
fn init(g: &mut Guest, nodes: u32) {
    let windows = htax_windows();
    for (i, value) in windows {
        g.w(i, value);
    }
    g.w(r::T_START_ADDR_DEFAULT.0.into(), EXPORT);
    g.w(r::O_START_ADDR.0.into(), BAR2);
    g.w(r::TRAFFIC_CLASS.0.into(), r::TRAFFIC_CLASS_INIT);
    g.w(np::general(np::SMFU).0.into(), np::GENERAL_INIT);
    g.w(r::STATUS_CONTROL.0.into(), 1);
    interval(g, 0, BAR2, 0x200_0000, 1);
    for n in 0..nodes {
        interval(
            g,
            n + 1,
            BAR2 + WINDOW + u64::from(n) * 0x10_0000,
            0x10_0000,
            n as u16,
        );
    }
    g.barrier();
}

fn htax_windows() -> Vec<(u64, u64)> {
    let set = wire::htax::Windows::standard(
        wire::ids::BusAddr(BAR0),
        wire::ids::BusAddr(BAR2),
        256 << 20,
    );
    let mut list = Vec::new();
    for (i, x) in set.intervals().unwrap() {
        list.push((htax::intvl_upper(i).0.into(), x.upper.raw()));
        list.push((htax::intvl_lower(i).0.into(), x.lower.raw()));
        list.push((htax::intvl_control(i).0.into(), x.control.raw()));
    }
    list.push((htax::GENERAL.0.into(), htax::GENERAL_INIT));
    list
}

fn interval(g: &mut Guest, k: u32, start: u64, size: u64, node: u16) {
    g.w(r::interval_startaddr(k).0.into(), start);
    g.w(r::interval_endaddr(k).0.into(), start + size);
    g.w(
        r::interval_control(k).0.into(),
        r::IntervalControl::to_node(NodeId(node)).raw(),
    );
}

/// Returns the offset in BAR 2 that leads to byte `at` of the memory that `node` exports.
fn of(node: u64, at: u64) -> u64 {
    WINDOW + (node << 20) + at
}

/// Starts a pair of NICs whose loads do not time out on a busy machine. The default timeout of half
/// a second of real time would be too short.
fn patient() -> Emu {
    let config = "[nic]\nsmfu-timeout-ns = 5000000000";
    Emu::with_config(&["--topology", "pair"], Some(config))
}

fn guests(emu: &Emu, n: u32) -> Vec<Guest> {
    let list = (0..n).map(|i| {
        let mut g = emu.guest(i as usize);
        init(&mut g, n);
        g
    });
    list.collect()
}

/// Sends a load without waiting for the answer.
fn ask(g: &mut Guest, id: u16, offset: u64, len: u32) {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(words(&[2, len]));
    let m = message(id, cmd::REGION_READ, 0, &body);
    g.vfio.send_bytes(&m);
}

fn answer(g: &mut Guest, id: u16) -> Vec<u8> {
    let reply = g.vfio.recv().unwrap();
    assert_eq!((reply.id, reply.error), (id, 0));
    reply.body[16..].to_vec()
}

fn chip(emu: &Emu, nic: usize, path: &str) -> u64 {
    emu.counters().nics[nic].chip(path).unwrap()
}

#[test]
fn loads_and_stores_over_several_hops() {
    let emu = Emu::start(&["--topology", "torus:2x2x2"]);
    let mut g = guests(&emu, 8);
    for len in 1..=8u32 {
        let data: Vec<u8> = (0..len as u8).map(|i| i ^ 0x5A).collect();
        g[0].vfio.post(2, of(7, u64::from(len) * 9), &data);
        assert_eq!(g[0].vfio.read(2, of(7, u64::from(len) * 9), len), data);
        let mut seen = vec![0; len as usize];
        assert!(g[7].ram.read(EXPORT + u64::from(len) * 9, &mut seen));
        assert_eq!(seen, data);
    }
    // One message contains several stores.
    let mut body = 16u64.to_le_bytes().to_vec();
    for i in 0..16u64 {
        body.extend(of(7, 0x1000 + 8 * i).to_le_bytes());
        body.extend(words(&[2, 8]));
        body.extend((i + 1).to_le_bytes());
    }
    let m = message(0, cmd::REGION_WRITE_MULTI, NO_REPLY, &body);
    g[0].vfio.send_bytes(&m);
    for i in 0..16u64 {
        assert_eq!(g[0].vfio.read64(2, of(7, 0x1000 + 8 * i)), i + 1);
    }
    // All nodes access the memory of their next node in parallel.
    for i in 0..8u64 {
        let to = (i + 1) % 8;
        g[i as usize].vfio.post(2, of(to, 64), &[i as u8; 8]);
        assert_eq!(g[i as usize].vfio.read(2, of(to, 64), 8), [i as u8; 8]);
    }
    assert_eq!(emu.log(), "");
}

#[test]
fn a_load_over_a_slow_link_takes_its_time_and_nobody_elses() {
    let emu = patient();
    let mut g = guests(&emu, 2);
    assert!(g[1].ram.write(EXPORT, &[1, 2, 3, 4, 5, 6, 7, 8]));
    emu.ctl(json!({"cmd": "knobs", "link": "all", "latency_ns": 30_000_000}));
    let start = Instant::now();
    ask(&mut g[0], 1, of(1, 0), 8);
    // A store and another load follow the load on one connection.
    g[0].vfio.post(2, of(1, 0), &[9; 8]);
    ask(&mut g[0], 2, of(1, 0), 8);
    assert_eq!(
        (g[1].r(0x8008) >> 24) & 0xFFFF,
        1,
        "the other node is not blocked"
    );
    let before = emu.status().event_loop.wakeups;
    assert_eq!(answer(&mut g[0], 1), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(answer(&mut g[0], 2), [9; 8]);
    assert!(
        start.elapsed() >= Duration::from_millis(120),
        "two round trips"
    );
    let woken = emu.status().event_loop.wakeups - before;
    assert!(woken < 100, "{woken} wake-ups while the load waits");
    assert_eq!(chip(&emu, 0, "smfu.timeouts"), 0);
}

#[test]
fn two_nodes_load_from_each_other() {
    let emu = patient();
    let mut g = guests(&emu, 2);
    emu.ctl(json!({"cmd": "knobs", "link": "all", "latency_ns": 5_000_000}));
    for node in [0, 1] {
        assert!(g[node].ram.write(EXPORT, &[node as u8 + 1; 8]));
    }
    ask(&mut g[0], 1, of(1, 0), 8);
    ask(&mut g[1], 1, of(0, 0), 8);
    assert_eq!(answer(&mut g[1], 1), [1; 8]);
    assert_eq!(answer(&mut g[0], 1), [2; 8]);
}

#[test]
fn nobody_waits_for_ever() {
    let emu = Emu::start(&["--topology", "ring:3"]);
    let mut g = guests(&emu, 3);
    let ones = [0xFF; 8];
    // The target node is unknown, so the load returns all ones at once.
    interval(&mut g[0], 1, BAR2 + WINDOW, 0x10_0000, 500);
    assert_eq!(g[0].vfio.read(2, of(0, 0), 8), ones);
    assert_eq!(chip(&emu, 0, "drops.smfu_no_interval"), 1);
    // The timeout for the other cases is 20 ms.
    g[0].w(r::TIMEOUT_CONTROL.0.into(), 20_000 | (1 << 32));
    // The load must time out in each case: power off, cable unplugged, NIC frozen, unit off, port
    // off.
    let dead = |on: bool, g: &mut Vec<Guest>, emu: &Emu, how: u32| {
        match how {
            0 => drop(emu.ctl(json!({"cmd": "power", "nic": 1, "on": on}))),
            1 => drop(emu.ctl(json!({"cmd": "link", "link": {"between": [0, 1]}, "up": on}))),
            2 => drop(emu.ctl(json!({"cmd": "freeze", "nic": 1, "on": !on}))),
            3 => g[1].w(r::STATUS_CONTROL.0.into(), on.into()),
            _ => g[1].w(np::general(np::SMFU).0.into(), u64::from(on)),
        }
        g[1].barrier();
    };
    for how in 1..5 {
        dead(false, &mut g, &emu, how);
        let start = Instant::now();
        assert_eq!(g[0].vfio.read(2, of(1, 0), 8), ones, "{how}");
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(chip(&emu, 0, "smfu.timeouts"), u64::from(how));
        assert_eq!(g[0].r(r::TIMEOUT_CONTROL.0.into()) >> 32, 1);
        g[0].w(r::TIMEOUT_CONTROL.0.into(), 20_000 | (1 << 32));
        assert_eq!(g[0].r(r::TIMEOUT_CONTROL.0.into()), 20_000);
        dead(true, &mut g, &emu, how);
        g[0].vfio.post(2, of(1, 8), &[how as u8; 8]);
        assert_eq!(
            g[0].vfio.read(2, of(1, 8), 8),
            [how as u8; 8],
            "{how}: back"
        );
    }
    assert_eq!(chip(&emu, 0, "events.12"), 5);
    dead(false, &mut g, &emu, 0);
    assert_eq!(g[0].vfio.read(2, of(1, 0), 8), ones);
    // The frozen node answered when it was thawed, after the load had timed out.
    assert_eq!(chip(&emu, 0, "smfu.late"), 1);
    assert_eq!(chip(&emu, 0, "smfu.outstanding"), 0);
}

#[test]
fn who_asks_may_go_away_meanwhile() {
    let emu = Emu::start(&["--topology", "pair"]);
    let mut g = guests(&emu, 2);
    emu.ctl(json!({"cmd": "knobs", "link": "all", "latency_ns": 50_000_000}));
    g[0].w(r::TIMEOUT_CONTROL.0.into(), 10_000_000);
    g[0].barrier();
    // The NIC is powered off while the load waits.
    ask(&mut g[0], 1, of(1, 0), 8);
    emu.wait_for("the request is in flight", |_| {
        chip(&emu, 0, "smfu.outstanding") == 1
    });
    emu.ctl(json!({"cmd": "power", "nic": 0, "on": false}));
    assert_eq!(answer(&mut g[0], 1), [0xFF; 8]);
    emu.ctl(json!({"cmd": "power", "nic": 0, "on": true}));
    // The NIC is reset, or its model panics, while the load waits.
    for how in ["reset", "panic"] {
        let nodes = 2;
        g[0].vfio.config(0x10, &BAR0.to_le_bytes());
        g[0].vfio.config(0x18, &BAR2.to_le_bytes());
        g[0].vfio.config(4, &[6, 4]);
        init(&mut g[0], nodes);
        g[0].w(r::TIMEOUT_CONTROL.0.into(), 10_000_000);
        g[0].barrier();
        ask(&mut g[0], 2, of(1, 0), 8);
        emu.wait_for("the request is in flight", |_| {
            chip(&emu, 0, "smfu.outstanding") == 1
        });
        emu.ctl(json!({"cmd": how, "nic": 0}));
        if how == "panic" {
            emu.ctl(json!({"cmd": "peek", "nic": 0, "offset": 0x8008}));
        }
        assert_eq!(answer(&mut g[0], 2), [0xFF; 8], "{how}");
    }
    // The client disconnects while the load waits. The next client must find a working NIC.
    drop(g);
    emu.wait_for("all clients have disconnected", |s| {
        s.nics.iter().all(|n| !n.connected)
    });
    let mut g = guests(&emu, 2);
    ask(&mut g[0], 3, of(1, 0), 8);
    drop(g);
    emu.wait_for("all clients have disconnected", |s| {
        s.nics.iter().all(|n| !n.connected)
    });
    emu.ctl(json!({"cmd": "knobs", "link": "all", "latency_ns": 0}));
    let mut g = guests(&emu, 2);
    g[0].vfio.post(2, of(1, 0), &[5; 8]);
    assert_eq!(g[0].vfio.read(2, of(1, 0), 8), [5; 8]);
}

#[test]
fn a_slow_network_holds_stores_back_and_loses_none() {
    let config = "[network]\ninput-buffer-bytes = 2048\nlink = { bytes-per-second = 2000000 }\n[nic]\ntx-queue-limit = 16\nsmfu-timeout-ns = 5000000000";
    let emu = Emu::with_config(&["--topology", "pair"], Some(config));
    let mut g = guests(&emu, 2);
    let n = 4000u64;
    for i in 0..n {
        g[0].vfio.post(2, of(1, 8 * i), &(i + 1).to_le_bytes());
    }
    // The load must stay behind all stores.
    assert_eq!(g[0].vfio.read64(2, of(1, 8 * (n - 1))), n);
    let mut all = vec![0; 8 * n as usize];
    assert!(g[1].ram.read(EXPORT, &mut all));
    assert!((0..n).all(|i| all[8 * i as usize..][..8] == (i + 1).to_le_bytes()));
    assert!(
        chip(&emu, 0, "smfu.stalls") > 0,
        "the stores must exceed the link's rate"
    );
    assert_eq!(chip(&emu, 0, "drops.smfu_congested"), 0);
}

/// Sends a packet through the backdoor of NIC 1. Returns the payload of the completion.
fn config(g: &mut Guest, register: u16, write: Option<u32>) -> Option<u32> {
    let (from, to) = ((Bdf(0), 0), Bdf::new(1, 0, 0));
    let kind = Kind::config(write.is_some(), CfgType::Type0, from, to, register, 0xF);
    let data = write.map_or(Vec::new(), |value| value.to_le_bytes().to_vec());
    let packed = backdoor::pack(&Tlp::from(kind), &data).unwrap();
    let w = |g: &mut Guest, at: wire::ids::RegOffset, value: u64| {
        g.vfio.post(2, at.0.into(), &value.to_le_bytes());
    };
    for (k, word) in (0..).zip(packed.as_slice()) {
        w(g, p::htoc_to_pcie_backdoor_data(k), *word);
    }
    let control = BackdoorControl(0)
        .with_payload_qw_length(packed.payload_qws())
        .with_send(true);
    w(g, p::HTOC_TO_PCIE_BACKDOOR_CONTROL, control.raw());
    let info = BackdoorInfo(g.vfio.read64(2, p::PCIE_TO_HTOC_BACKDOOR_INFO.0.into()));
    assert!(info.valid());
    let words: Vec<u64> = (0..info.qw_count())
        .map(|_| g.vfio.read64(2, p::PCIE_TO_HTOC_BACKDOOR_DATA.0.into()))
        .collect();
    words.get(2).map(|w| *w as u32)
}

#[test]
fn a_device_is_borrowed_over_the_fabric() {
    // NIC 1 has no host. The latency of the link makes the work take many events.
    let config_file = "[network]\nlink = { latency-ns = 200000 }\n[accelerator]\nvectors = 1";
    let emu = Emu::with_config(&["--nodes", "1", "--accelerators", "1"], Some(config_file));
    let status = emu.status();
    assert_eq!(
        status
            .nics
            .iter()
            .map(|n| n.accelerator)
            .collect::<Vec<_>>(),
        [false, true]
    );
    assert!(emu.path("nic0.sock").exists() && !emu.path("nic1.sock").exists());
    let mut g = emu.guest(0);
    init(&mut g, 2);
    // The set-up step has enabled the ports. The borrower must switch on the remote SMFU. On
    // hardware it uses remote register access; here the test uses the control socket.
    emu.ctl(json!({"cmd": "poke", "nic": 1, "offset": r::STATUS_CONTROL.0, "value": 1}));
    let w = |g: &mut Guest, at: wire::ids::RegOffset, value: u64| {
        g.vfio.post(2, at.0.into(), &value.to_le_bytes());
    };
    w(&mut g, p::PCIE_TO_HTOC_CFG, 2);
    assert_eq!(config(&mut g, 0, None), Some(0x7E57_1CAD));
    let (bar, home, home_msi) = (0xE000_0000u64, 0x10_0000_0000u64, 0x20_0000_0000u64);
    w(&mut g, r::vpid_t_start_addr(2), bar);
    for (k, start, size) in [(3, home, 1u64 << 20), (4, home_msi, 4096)] {
        w(&mut g, r::interval_startaddr(k), start);
        w(&mut g, r::interval_endaddr(k), start + size);
        w(
            &mut g,
            r::interval_control(k),
            r::IntervalControl::to_node(NodeId(0)).raw(),
        );
        w(&mut g, htax::intvl_upper(k), (start + size) >> 12);
        w(&mut g, htax::intvl_lower(k), (start >> 12) - 1);
        w(&mut g, htax::intvl_control(k), 1 | (0x100 << 5) | (3 << 14));
    }
    w(&mut g, htax::GENERAL, htax::GENERAL_INIT);
    g.w(r::vpid_t_start_addr(3).0.into(), 0x100_0000);
    g.w(r::vpid_t_start_addr(4).0.into(), 0xFD_0000_0000);
    for (at, value) in [(0x10, bar as u32), (0x14, 0), (0x54, home_msi as u32)] {
        config(&mut g, at, Some(value));
    }
    config(&mut g, 0x58, Some((home_msi >> 32) as u32));
    config(&mut g, 0x50, Some(1 << 16));
    config(&mut g, 0x04, Some(6));
    let d = |at: u64| of(1, at);
    let id = g.vfio.read(2, d(dev::ID), 4);
    assert_eq!(id, dev::ID_VALUE.to_le_bytes());
    // Data goes from host memory to the device and back, each time with an interrupt.
    let data: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
    assert!(g.ram.write(0x100_0000, &data));
    let reg = |g: &mut Guest, at: u64, value: u32| g.vfio.post(2, d(at), &value.to_le_bytes());
    reg(&mut g, dev::INT_ENABLE, u32::MAX);
    for (bus, control) in [
        (home, dev::DMA_START),
        (home + 0x8000, dev::DMA_START | dev::DMA_TO_BUS),
    ] {
        reg(&mut g, dev::DMA_BUS, bus as u32);
        reg(&mut g, dev::DMA_BUS + 4, (bus >> 32) as u32);
        reg(&mut g, dev::DMA_MEMORY, 0x100);
        reg(&mut g, dev::DMA_LEN, 5000);
        reg(&mut g, dev::DMA_CONTROL, control);
        assert_eq!(g.wait_msi(), 1);
        assert_eq!(g.vfio.read(2, d(dev::DMA_STATUS), 4), [2, 0, 0, 0]);
        assert_eq!(g.vfio.read(2, d(MEMORY_OFFSET + 0x100), 5000), data);
    }
    let mut back = vec![0; 5000];
    assert!(g.ram.read(0x100_8000, &mut back));
    assert_eq!(back, data);
    // The lender's NIC is removed while the device is busy. It comes back in its initial state.
    reg(&mut g, dev::DMA_CONTROL, dev::DMA_START);
    emu.ctl(json!({"cmd": "power", "nic": 1, "on": false}));
    assert_eq!(g.vfio.read(2, d(dev::ID), 4), [0xFF; 4]);
    emu.ctl(json!({"cmd": "power", "nic": 1, "on": true}));
    emu.ctl(json!({"cmd": "poke", "nic": 1, "offset": r::STATUS_CONTROL.0, "value": 1}));
    w(&mut g, p::PCIE_TO_HTOC_CFG, 2);
    assert_eq!(config(&mut g, 4, None), Some(0x0010_0000));
}

#[test]
fn the_lender_loses_its_borrower() {
    let emu = Emu::start(&["--nodes", "1", "--accelerators", "1"]);
    let mut g = emu.guest(0);
    init(&mut g, 2);
    drop(g);
    emu.wait_for("gone", |s| !s.nics[0].connected);
    let status = emu.status();
    assert!(!status.nics[1].connected && status.nics[1].socket.is_empty());
}
