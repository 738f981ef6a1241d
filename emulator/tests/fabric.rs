//! Tests of whole fabrics over their sockets: guests, messages, faults, set-up, trace and control.

mod common;

use common::{cmd, words, Emu, Guest, SLOTS, VPID};
use extoll_emulator::control::LinkSelect;
use extoll_emulator::trace::{By, Event, Record};
use extoll_emulator::world::Power;
use serde_json::json;

fn pair(emu: &Emu) -> (Guest, Guest) {
    let mut guests = (emu.guest(0), emu.guest(1));
    guests.0.init();
    guests.1.init();
    guests
}

fn chip(emu: &Emu, nic: usize, path: &str) -> u64 {
    emu.counters().nics[nic].chip(path).unwrap()
}

#[test]
fn a_message_arrives_with_its_interrupt() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, mut b) = pair(&emu);
    let text = b"from node 0 to node 1, 42 bytes long, yes.";
    a.send(1, false, true, text);
    assert_eq!(b.wait_msi(), 1);
    assert_eq!(b.receive(), Some((0, text.to_vec())));
    let entry = b.snq_entry(0);
    assert_eq!(
        (entry[6], entry[7] >> 63, (entry[7] >> 48) & 0xfff),
        (1 << (VPID - 192), 1, 23),
        "vector word 3, flip, pc"
    );
    // A VPID raises only one interrupt until software arms it again (HW §6.5).
    a.send(1, false, true, b"second");
    assert_eq!(b.msi_count(), 0);
    assert_eq!(b.receive(), Some((0, b"second".to_vec())));
    b.w(0x10038, 0);
    b.w(0x10040, 0x10002);
    b.publish(true);
    assert_eq!(
        b.wait_msi(),
        1,
        "the missed interrupt comes at the retrigger"
    );
    let c = emu.counters();
    assert_eq!(
        (
            c.nics[0].chip("velo.sent").unwrap(),
            c.nics[1].chip("velo.received").unwrap(),
            c.nics[1].host.msi_sent
        ),
        (2, 2, 2)
    );
    assert_eq!(
        (c.links[0].forward.packets, c.links[0].backward.packets),
        (2, 0)
    );
    assert!(
        c.nics[0].chip("mmio_writes").unwrap() > 0 && c.nics[1].chip("dma_writes").unwrap() > 0
    );
    assert_eq!(
        c.nics[0].host.msi_lost + c.nics[1].host.dma_outside_memory,
        0
    );
}

#[test]
fn loop_back_goes_through_the_crossbar() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, _b) = pair(&emu);
    a.send(0, false, false, b"me");
    assert_eq!(a.receive(), Some((0, b"me".to_vec())));
    assert_eq!(
        (a.r(0x42C000 + 0x40 * 7), a.r(0x460000)),
        (1, 0),
        "outport 7, no link"
    );
}

#[test]
fn broadcast_reaches_all_others_once() {
    for (config, own) in [
        (None, false),
        (Some("[setup]\nmulticast-to-sender = true"), true),
    ] {
        let emu = Emu::with_config(&["--topology", "torus:2x2"], config);
        let mut guests: Vec<Guest> = (0..4).map(|i| emu.guest(i)).collect();
        guests.iter_mut().for_each(Guest::init);
        guests[2].send(63, true, false, b"to all");
        for (i, g) in guests.iter_mut().enumerate() {
            let want = (own || i != 2).then(|| (2, b"to all".to_vec()));
            assert_eq!((g.receive(), g.receive()), (want, None), "node {i}");
        }
    }
}

#[test]
fn several_hops_are_traced() {
    let emu = Emu::start(&["--topology", "torus:2x2x2"]);
    let trace = emu.path("trace");
    let (mut a, mut b) = (emu.guest(0), emu.guest(7));
    emu.ctl(json!({"cmd": "trace-start", "path": trace}));
    a.init();
    b.init();
    a.send(7, false, true, b"three hops");
    assert_eq!(b.wait_msi(), 1);
    let records = emu.ctl(json!({"cmd": "trace-flush"})).as_u64().unwrap();
    let text = std::fs::read_to_string(&trace).unwrap();
    let list: Vec<Record> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(list.len() as u64, records);
    let hops: Vec<(usize, u8, u8)> = list
        .iter()
        .filter_map(|r| match r.event {
            Event::Hop {
                inport, outport, ..
            } => Some((r.nic, inport, outport)),
            _ => None,
        })
        .collect();
    // The route is in dimension order: x, y, z. Each hop enters at the port of the cable. At both
    // ends of the route, the port is n0.
    assert_eq!(hops, [(0, 7, 0), (1, 0, 1), (3, 1, 2), (7, 2, 7)]);
    // The trace contains the guest's stores in order, mixed with other accesses.
    let stores: Vec<u32> = list
        .iter()
        .filter_map(|r| match r.event {
            Event::RegWrite {
                by: By::Host,
                offset,
                ..
            } if r.nic == 0 => Some(offset),
            _ => None,
        })
        .collect();
    assert_eq!(stores[..4], [0x9200, 0x9208, 0x9210, 0x9218]);
    assert!(list
        .iter()
        .any(|r| r.nic == 7 && r.event == Event::Msi { vector: 0 }));
    assert!(list.iter().any(|r| r.nic == 7
        && matches!(
            r.event,
            Event::Dma {
                write: true,
                len: 64,
                ..
            }
        )));
    // The program that prints traces must print register names.
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_extoll-emu"))
        .args([
            "trace",
            "print",
            trace.to_str().unwrap(),
            "--nic",
            "0",
            "--kind",
            "reg-write",
            "--host-only",
        ])
        .output()
        .unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.contains("htax_bridge_rf") && !out.contains("packet"),
        "{out}"
    );
    emu.ctl(json!({"cmd": "trace-stop"}));
    assert!(!emu.status().tracing);
}

#[test]
fn set_up_writes_what_management_would() {
    let config = "[setup]\nnode-ids = [10, 20]";
    let emu = Emu::with_config(&["--topology", "pair"], Some(config));
    let s = emu.status();
    assert_eq!(
        s.nics
            .iter()
            .map(|n| (n.node_id, n.network_state))
            .collect::<Vec<_>>(),
        [(10, 1), (20, 1)]
    );
    let (mut a, mut b) = pair(&emu);
    assert_eq!((a.r(0x8008) >> 24) & 0xffff, 10);
    let ids = a.r(0x460018);
    assert_eq!(
        ((ids >> 26) & 0xffff, (ids >> 2) & 0xff_ffff),
        (20, 0xE0_0001),
        "the neighbour's identity"
    );
    a.send(20, false, false, b"x");
    assert_eq!(b.receive(), Some((10, b"x".to_vec())));
    // The node ID is changed while the fabric runs. TE 28 must notify the driver.
    let events = chip(&emu, 1, "events.28");
    b.w(0x10000, 1 << 28);
    b.barrier();
    emu.ctl(json!({"cmd": "node-id", "nic": 1, "id": 33}));
    assert_eq!(
        (
            (b.r(0x8008) >> 24) & 0xffff,
            b.r(0x8050),
            (a.r(0x460018) >> 26) & 0xffff
        ),
        (33, 1, 33)
    );
    assert_eq!(
        chip(&emu, 1, "events.28"),
        events + 2,
        "stopped and started"
    );
    a.send(33, false, false, b"y");
    assert_eq!(b.receive(), Some((10, b"y".to_vec())));
    a.send(20, false, false, b"nobody");
    assert_eq!(emu.counters().nics[0].network.illegal_routing, 1);
    assert_eq!(a.r(0x400000 + 7 * 0x4000) & 4, 4);
    let refused = emu
        .control()
        .call(&serde_json::from_value(json!({"cmd": "node-id", "nic": 1, "id": 10})).unwrap());
    assert!(refused
        .unwrap_err()
        .to_string()
        .contains("both have node ID 10"));
    assert_eq!((b.r(0x8008) >> 24) & 0xffff, 33, "nothing changed");
    emu.ctl(json!({"cmd": "network-state", "state": 2}));
    assert_eq!((a.r(0x8050), b.r(0x8050)), (2, 2));
}

#[test]
fn without_automatic_set_up_nothing_is_configured() {
    let emu = Emu::with_config(&["--topology", "pair"], Some("[setup]\nauto = false"));
    let (mut a, mut b) = pair(&emu);
    assert_eq!((a.r(0x8050), (a.r(0x8008) >> 24) & 0xffff), (0, 0));
    a.send(1, false, false, b"x");
    assert_eq!(emu.counters().nics[0].network.illegal_routing, 1);
    emu.ctl(json!({"cmd": "setup"}));
    assert_eq!((b.r(0x8050), (b.r(0x8008) >> 24) & 0xffff), (1, 1));
    a.send(1, false, false, b"x");
    assert!(b.receive().is_some());
}

#[test]
fn resets_clear_the_chip_and_set_up_comes_again() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, mut b) = pair(&emu);
    for kind in ["system", "system", "function", "d3"] {
        b.w(0x8058, 7);
        match kind {
            "system" => drop(b.vfio.ok(cmd::DEVICE_RESET, &[])),
            "function" => b.vfio.config(0x78, &[0x10, 0xa8]),
            _ => {
                b.vfio.config(0x44, &[3]);
                b.vfio.config(0x44, &[0]);
            }
        }
        assert_eq!(
            (
                b.r(0x8058),
                b.r(0x8050),
                (b.r(0x8008) >> 24) & 0xffff,
                b.r(0x1201808)
            ),
            (0, 1, 1, 0),
            "{kind}"
        );
        assert_eq!(b.vfio.read(7, 4, 2), [0, 0], "bus mastering is off");
        a.send(1, false, false, b"into the void");
        assert_eq!(b.receive(), None);
    }
    let h = emu.counters().nics[1].host.clone();
    assert_eq!((h.device_resets, h.function_resets), (2, 2));
    // The driver initialises the NIC again.
    b.vfio.config(0x10, &common::BAR0.to_le_bytes());
    b.vfio.config(4, &[6, 4]);
    b.vfio.config(0x52, &[1, 0]);
    b.init();
    a.send(1, false, true, b"back");
    assert_eq!(b.wait_msi(), 1);
    assert_eq!(b.receive(), Some((0, b"back".to_vec())));
}

#[test]
fn power_off_looks_like_removal_and_power_on_like_a_new_card() {
    let emu = Emu::start(&["--topology", "ring:3"]);
    let (mut a, mut b) = pair(&emu);
    emu.control().set_power(1, false).unwrap();
    assert_eq!(
        (b.r(0x8008), b.vfio.read(7, 0, 4)),
        (u64::MAX, vec![0xff; 4])
    );
    b.w(0x8058, 7);
    b.vfio.config(4, &[6, 4]);
    assert_eq!(a.r(0x460008) & 2, 0, "the neighbour sees the link down");
    a.send(1, false, true, b"lost");
    let s = emu.status();
    assert_eq!(
        (s.nics[1].power, s.links.iter().filter(|l| l.live).count()),
        (Power::Off, 1)
    );
    assert_eq!(emu.counters().nics[0].network.link_down, 1);
    drop(b.vfio.ok(cmd::DEVICE_RESET, &[]));
    assert_eq!(b.r(0x8008), u64::MAX, "a reset does not bring power back");
    emu.control().set_power(1, true).unwrap();
    assert_eq!((b.r(0x8058), b.r(0x8050), a.r(0x460008) & 2), (0, 1, 2));
    // The client's memory and eventfd still exist. Its driver initialises the NIC again.
    b.vfio.config(0x10, &common::BAR0.to_le_bytes());
    b.vfio.config(4, &[6, 4]);
    b.vfio.config(0x52, &[1, 0]);
    b.init();
    a.send(1, false, true, b"found");
    assert_eq!(b.wait_msi(), 1);
    assert_eq!(b.receive(), Some((0, b"found".to_vec())));
}

#[test]
fn dma_stays_inside_guest_memory() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, mut b) = pair(&emu);
    // The mailbox of b moves to an address without memory, and then to a segment that crosses the
    // end of the address space.
    for base in [0x7000_0000u64, u64::MAX >> 12 << 12] {
        b.w(
            0xC0_1800 + 8 * VPID,
            3 | ((SLOTS - 1) << 2) | (((base >> 12) & 0xff_ffff_ffff) << 18) | (1 << 58),
        );
        b.barrier();
        a.send(1, false, false, b"x");
    }
    // No device on the bus of b has the address. The client of b reports that.
    b.barrier();
    b.barrier();
    let h = emu.counters().nics[1].host.clone();
    assert!(h.dma_outside_memory >= 2, "{h:?}");
    assert_eq!(
        emu.counters().nics[1].chip("dma_faults").unwrap(),
        h.dma_outside_memory
    );
    assert!(emu.log().contains("outside guest memory"), "{}", emu.log());
    // While bus mastering is off, the NIC writes nothing and sends no interrupt (G34).
    b.init();
    b.vfio.config(4, &[2, 4]);
    a.send(1, false, true, b"x");
    assert_eq!((b.receive(), b.msi_count()), (None, 0));
    b.vfio.config(4, &[6, 4]);
    // The pointers advanced while bus mastering was off, so the driver initialises the NIC again.
    b.init();
    // While MSI is disabled in the configuration space, the interrupt is lost (G26), but the
    // message is not.
    b.vfio.config(0x52, &[0, 0]);
    b.publish(true);
    let lost = emu.counters().nics[1].host.msi_lost;
    a.send(1, false, true, b"quiet");
    assert_eq!(b.msi_count(), 0);
    assert!(emu.counters().nics[1].host.msi_lost > lost);
}

#[test]
fn memory_that_is_unmapped_is_out_of_reach_at_once() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, mut b) = pair(&emu);
    let mut unmap = words(&[24, 2]);
    unmap.extend([0u8; 16]);
    b.vfio.ok(cmd::DMA_UNMAP, &unmap);
    a.send(1, false, false, b"x");
    assert_eq!(b.receive(), None);
    // The client of b reports that no device has the address.
    b.barrier();
    b.barrier();
    assert!(emu.counters().nics[1].host.dma_outside_memory > 0);
}

#[test]
fn corruption_is_repaired_and_counted() {
    let emu = Emu::start(&["--topology", "pair", "--seed", "7"]);
    let (mut a, mut b) = pair(&emu);
    emu.ctl(json!({"cmd": "knobs", "link": "all", "corrupt_rate": 0.4, "loss_rate": 0.1}));
    for i in 0..200u64 {
        a.send(1, false, false, &i.to_le_bytes());
        assert_eq!(b.receive(), Some((0, i.to_le_bytes().to_vec())));
        if i % 16 == 0 {
            b.publish(false);
        }
    }
    let (tx, rx) = (a.r(0x460010), b.r(0x460010));
    assert!((tx >> 14) & 0x3fff > 0 && tx >> 56 > 0 && rx & 0x3fff > 0);
    let l = &emu.counters().links[0];
    assert_eq!(
        (rx & 0x3fff, (tx >> 14) & 0x3fff),
        (l.forward.corrupted, l.forward.corrupted + l.forward.lost)
    );
    let bad = emu.control().call(
        &serde_json::from_value(json!({"cmd": "knobs", "link": "all", "corrupt_rate": 0.99}))
            .unwrap(),
    );
    assert!(bad.unwrap_err().to_string().contains("corrupt_rate"));
}

#[test]
fn links_and_flaps() {
    let emu = Emu::start(&["--topology", "ring:4"]);
    let (mut a, mut b) = pair(&emu);
    let mut ctl = emu.control();
    ctl.set_link(LinkSelect::Between(0, 1), false).unwrap();
    a.send(1, false, false, b"lost");
    assert_eq!((b.receive(), a.r(0x460008) & 3), (None, 1));
    // The set-up step routes around the cable, by the longer path.
    emu.ctl(json!({"cmd": "setup", "avoid_dead": true}));
    a.send(1, false, false, b"around");
    assert_eq!(b.receive(), Some((0, b"around".to_vec())));
    assert_eq!(emu.counters().nics[2].network.transit, 1);
    ctl.set_link(LinkSelect::All, true).unwrap();
    emu.ctl(json!({"cmd": "setup"}));
    a.send(1, false, false, b"direct");
    assert_eq!(b.receive(), Some((0, b"direct".to_vec())));
    assert_eq!(emu.counters().nics[2].network.transit, 1);
    // A flap holds packets and loses no packet.
    emu.ctl(
        json!({"cmd": "flap", "link": {"between": [0, 1]}, "down_ms": 20, "up_ms": 1, "count": 3}),
    );
    for i in 0..40u8 {
        a.send(1, false, false, &[i]);
    }
    emu.wait_for("the flap ends", |s| {
        s.links
            .iter()
            .all(|l| l.live && !l.flapping && l.forward.queued_bytes == 0)
    });
    let got: Vec<u8> = std::iter::from_fn(|| b.receive())
        .map(|(_, d)| d[0])
        .collect();
    assert_eq!(got, (0..40).collect::<Vec<_>>());
    for bad in [
        json!({"cmd": "link", "link": {"end": "9:0"}, "up": false}),
        json!({"cmd": "power", "nic": 4, "on": true}),
    ] {
        assert!(ctl.call(&serde_json::from_value(bad).unwrap()).is_err());
    }
}

#[test]
fn latency_and_bandwidth_delay_but_keep_order() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, mut b) = pair(&emu);
    emu.ctl(json!({"cmd": "knobs", "link": "all", "latency_ns": 10_000_000_000u64}));
    for i in 0..20u8 {
        a.send(1, false, true, &[i]);
    }
    assert_eq!(b.receive(), None, "in flight for ten seconds");
    assert_eq!(emu.counters().nics[0].in_flight_bytes, 20 * 65);
    emu.ctl(json!({"cmd": "link", "link": "all", "up": false, "policy": "hold"}));
    emu.ctl(
        json!({"cmd": "knobs", "link": "all", "latency_ns": 1000, "bytes_per_second": 1_000_000}),
    );
    emu.ctl(json!({"cmd": "link", "link": "all", "up": true}));
    assert_eq!(b.wait_msi(), 1);
    emu.wait_for("all have arrived", |s| s.links[0].forward.queued_bytes == 0);
    let got: Vec<u8> = std::iter::from_fn(|| b.receive())
        .map(|(_, d)| d[0])
        .collect();
    assert_eq!(got, (0..20).collect::<Vec<_>>());
}

#[test]
fn a_frozen_node_gets_everything_when_it_thaws() {
    let emu = Emu::start(&["--topology", "ring:3"]);
    let (mut a, mut b) = pair(&emu);
    emu.control().set_frozen(1, true).unwrap();
    for i in 0..10u8 {
        a.send(1, false, true, &[i]);
        b.send(0, false, false, &[i]);
    }
    assert_eq!((b.receive(), a.receive(), b.msi_count()), (None, None, 0));
    assert_eq!(b.r(0x8050), 1, "its registers still work");
    assert_eq!(emu.counters().nics[1].waiting_bytes, 10 * 65);
    emu.control().set_frozen(1, false).unwrap();
    assert_eq!(b.wait_msi(), 1);
    let drain = |g: &mut Guest| {
        std::iter::from_fn(|| g.receive())
            .map(|(_, d)| d[0])
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (drain(&mut b), drain(&mut a)),
        ((0..10).collect(), (0..10).collect())
    );
}

#[test]
fn queues_can_be_made_full() {
    let emu = Emu::start(&["--topology", "pair"]);
    let (mut a, mut b) = pair(&emu);
    emu.ctl(json!({"cmd": "faults", "nic": 1, "faults": {"queue-full": [{"unit": "velo", "vpid": VPID}]}}));
    for i in 0..5u8 {
        a.send(1, false, true, &[i]);
    }
    assert_eq!((b.receive(), chip(&emu, 1, "velo.holding")), (None, 5));
    assert_eq!(emu.status().nics[1].faults.queue_full.len(), 1);
    emu.ctl(json!({"cmd": "faults", "nic": 1, "faults": {}}));
    assert_eq!(b.wait_msi(), 1);
    let got: Vec<u8> = std::iter::from_fn(|| b.receive())
        .map(|(_, d)| d[0])
        .collect();
    assert_eq!(got, (0..5).collect::<Vec<_>>());
}

#[test]
fn a_panic_kills_one_nic_until_its_reset() {
    let emu = Emu::start(&["--topology", "ring:3"]);
    let (mut a, mut b) = pair(&emu);
    emu.ctl(json!({"cmd": "panic", "nic": 1}));
    assert_eq!(b.r(0x8008), u64::MAX);
    assert_eq!(emu.status().nics[1].power, Power::Dead);
    assert_eq!(emu.counters().nics[1].host.panics, 1);
    assert!(emu.log().contains("injected by command"));
    a.send(2, false, false, b"others go on");
    assert_eq!(
        emu.counters().nics[2].network.port_disabled,
        1,
        "the packet reached NIC 2"
    );
    drop(b.vfio.ok(cmd::DEVICE_RESET, &[]));
    assert_eq!((b.r(0x8050), emu.status().nics[1].power), (1, Power::On));
    b.vfio.config(0x10, &common::BAR0.to_le_bytes());
    b.vfio.config(4, &[6, 4]);
    b.init();
    a.send(1, false, false, b"alive");
    assert_eq!(b.receive(), Some((0, b"alive".to_vec())));
    // A panic during the delivery of a packet kills the receiver, but not the sender.
    emu.ctl(json!({"cmd": "panic", "nic": 1}));
    a.send(1, false, false, b"bomb");
    assert_eq!((emu.status().nics[1].power, a.r(0x8050)), (Power::Dead, 1));
    // A new client revives the NIC, too.
    drop(b);
    assert_eq!(emu.client(1).read64(0, 0x8050), 1);
}

#[test]
fn identity_for_negative_tests() {
    let config = "[override-nic.0]\npci = { revision = 0x42 }\n[override-nic.1]\npci = { msi = false, bar0-size = 0x4000000 }";
    let emu = Emu::with_config(&["--topology", "pair"], Some(config));
    let mut a = emu.client(0);
    assert_eq!(a.read(7, 8, 1), [0x42]);
    let mut b = emu.client(1);
    assert_eq!(b.read(7, 0x41, 1), [0x70], "PM is followed by PCIe");
    assert_eq!(
        b.ok(cmd::DEVICE_GET_IRQ_INFO, &words(&[16, 0, 1, 0])),
        words(&[16, 0, 1, 0])
    );
    let info = b.ok(
        cmd::DEVICE_GET_REGION_INFO,
        &words(&[32, 0, 0, 0, 0, 0, 0, 0]),
    );
    assert_eq!(
        u64::from_le_bytes(info[16..24].try_into().unwrap()),
        0x400_0000
    );
    drop((a, b));
    emu.ctl(json!({"cmd": "pci", "nic": 0, "fields": {"revision": 0x40, "device": 0x10}}));
    assert_eq!(emu.client(0).read(7, 0, 4), [0xad, 0x1c, 0x10, 0x00]);
    let mut ctl = emu.control();
    for fields in [
        json!({"colour": 1}),
        json!({"bar0-size": 5}),
        json!({"msi-vectors": 3}),
    ] {
        let bad = ctl.call(
            &serde_json::from_value(json!({"cmd": "pci", "nic": 0, "fields": fields})).unwrap(),
        );
        assert!(bad.is_err(), "{fields}");
    }
}

#[test]
fn idle_means_blocked() {
    let emu = Emu::start(&["--topology", "torus:2x2x2"]);
    let (mut a, mut b) = pair(&emu);
    a.send(1, false, true, b"x");
    assert_eq!(b.wait_msi(), 1);
    emu.wait_for_idle();
}

#[test]
fn control_requests_are_checked() {
    use std::io::{BufRead, BufReader, Write};
    let emu = Emu::start(&["--topology", "single"]);
    let mut s = std::os::unix::net::UnixStream::connect(emu.path("control.sock")).unwrap();
    s.write_all(b"nonsense\n\n{\"cmd\":\"fly\"}\n{\"cmd\":\"peek\",\"nic\":0,\"offset\":4}\n{\"cmd\":\"peek\",\"nic\":0,\"offset\":32848,\"x\":1}\n{\"cmd\":\"faults\",\"nic\":0,\"faults\":{\"frozen\":true}}\n{\"cmd\":\"peek\",\"nic\":0,\"offset\":32848}\n").unwrap();
    let mut lines = BufReader::new(s.try_clone().unwrap()).lines();
    for word in [
        "not understood",
        "unknown variant",
        "not the offset",
        "unknown field",
        "unknown field `frozen`",
    ] {
        let l = lines.next().unwrap().unwrap();
        assert!(l.starts_with("{\"error\":") && l.contains(word), "{l}");
    }
    assert_eq!(lines.next().unwrap().unwrap(), "{\"ok\":1}");
    // The connection is closed when a line exceeds the maximum length. Otherwise, the emulator
    // would collect bytes without end.
    let flood = vec![b'x'; 1 << 16];
    let refused = (0..64).any(|_| s.write_all(&flood).is_err());
    let closed = matches!(lines.next(), None | Some(Err(_)));
    assert!(refused || closed);
    assert_eq!(emu.status().nics.len(), 1);
    // Poke and peek have the side effects that accesses of a guest have.
    let mut ctl = emu.control();
    ctl.poke(0, 0x8058, 5).unwrap();
    assert_eq!(
        (
            ctl.peek(0, 0x8058).unwrap(),
            emu.client(0).read64(0, 0x8058)
        ),
        (5, 5)
    );
}

#[test]
fn it_ends_cleanly_and_can_start_again_in_the_same_place() {
    for how in ["term", "control"] {
        let mut emu = Emu::start(&["--topology", "pair"]);
        emu.ctl(json!({"cmd": "trace-start", "path": emu.path("trace")}));
        let mut c = emu.client(0);
        c.post(0, 0x8058, &[1; 8]);
        c.read64(0, 0x8058);
        if how == "term" {
            let pid = rustix::process::Pid::from_child(&emu.child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        } else {
            emu.control().shutdown().unwrap();
        }
        assert!(emu.child.wait().unwrap().success(), "{how}");
        assert!(!emu.path("nic0.sock").exists() && !emu.path("control.sock").exists());
        let trace = std::fs::read_to_string(emu.path("trace")).unwrap();
        assert!(
            trace.ends_with("}\n") && trace.contains("\"offset\":32856"),
            "{how}"
        );
    }
    // A killed emulator leaves its sockets behind, and the next emulator replaces them. An emulator
    // that still runs is not disturbed.
    let mut emu = Emu::start(&["--topology", "single"]);
    let again = |emu: &Emu| {
        std::process::Command::new(env!("CARGO_BIN_EXE_extoll-emu"))
            .args(["run", "--topology", "torus:9x", "--dir"])
            .arg(emu.dir.path())
            .output()
            .unwrap()
    };
    assert!(String::from_utf8_lossy(&again(&emu).stderr).contains("sizes like 4x2x2"));
    let other = std::process::Command::new(env!("CARGO_BIN_EXE_extoll-emu"))
        .args(["run", "--topology", "single", "--dir"])
        .arg(emu.dir.path())
        .output()
        .unwrap();
    assert!(
        !other.status.success()
            && String::from_utf8_lossy(&other.stderr).contains("another emulator")
    );
    assert_eq!(emu.status().nics.len(), 1);
    emu.child.kill().unwrap();
    emu.child.wait().unwrap();
    assert!(emu.path("nic0.sock").exists());
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_extoll-emu"))
        .args(["run", "--topology", "single", "--dir"])
        .arg(emu.dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert!(line.starts_with("extoll-emu ready"), "{line}");
    emu.control().shutdown().unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn hundreds_of_nics() {
    let emu = Emu::start(&["--topology", "torus:8x8x4", "--nics-per-node", "2"]);
    let s = emu.status();
    assert_eq!((s.nics.len(), s.nics[5].host, s.links.len()), (256, 2, 768));
    assert!(s
        .nics
        .iter()
        .enumerate()
        .all(|(i, n)| usize::from(n.node_id) == i && n.network_state == 1));
    let (mut a, mut b) = (emu.guest(0), emu.guest(255));
    a.init();
    b.init();
    a.send(255, false, true, b"corner to corner");
    assert_eq!(b.wait_msi(), 1);
    assert_eq!(b.receive(), Some((0, b"corner to corner".to_vec())));
}
