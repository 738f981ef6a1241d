//! Tests of finite buffers, back-pressure, arbitration and deadlocks in the network.

use super::routes::{Request, Routes};
use super::tests::{assert_idle, drain, packet, send, simple};
use super::topology::Topology;
use super::*;
use crate::env::NetPort;
use crate::nic::{Body, NetworkRegs, Part, RmaKind, RmaMessage};
use proptest::prelude::*;
use rand::SeedableRng;
use std::collections::BTreeMap;
use wire::ids::NodeId;
use wire::rma::{Command, Mode, NotifySpec};

/// Number of bytes that a packet of these tests occupies in a buffer.
const SIZE: u64 = 72;

fn tiny(packets: u64) -> NetConfig {
    NetConfig {
        input_buffer_bytes: packets * SIZE,
        np_buffer_bytes: packets * SIZE,
        ..NetConfig::default()
    }
}

fn rma(src: u16, dst: u16, bytes: u32, response: bool) -> Packet {
    let kind = match response {
        true => RmaKind::GetResponse {
            write_addr: 0,
            part: Part::WHOLE,
            data: Ok(Vec::new()),
        },
        false => RmaKind::Put {
            addr: 0,
            part: Part::WHOLE,
            data: Ok(Vec::new()),
        },
    };
    let message = RmaMessage {
        origin_vpid: 0,
        peer_vpid: 0,
        protection: 0,
        command: Command::BytePut,
        notify: NotifySpec::default(),
        mode: Mode::default(),
        kind,
    };
    Packet {
        src: NodeId(src),
        dst: Dest::Node(NodeId(dst)),
        port: NetPort::RmaCompleter,
        tc: 1,
        bytes,
        body: Body::Rma(Box::new(message)),
    }
}

/// Sends packets to another NIC until the lane is full, and lets all packets advance in between.
/// Returns the number of packets.
fn fill(net: &mut Network, from: usize, to: u16) -> u8 {
    let mut tag = 0;
    while net.tx_open(from) & Lane::velo(0).bit() != 0 {
        send(net, from, Dest::Node(NodeId(to)), tag);
        drain(net, 0);
        tag += 1;
        assert!(tag < 200, "the lane never becomes full");
    }
    tag
}

/// A receiver that accepts no packets blocks the network hop by hop back to the sender (HW §9.6).
/// After it accepts packets again, all packets arrive in order.
#[test]
fn blocked_traffic_backs_up_to_its_sender() {
    let mut net = simple("mesh:4", tiny(4));
    net.set_takes(3, 0);
    // Four packets are at the port of NIC 3, four at each of three links, and four at the sender's
    // inport.
    assert_eq!(fill(&mut net, 0, 3), 4 * 5);
    assert_eq!(net.node_stats(0).1, 20 * SIZE);
    assert_eq!(net.node_stats(3).2, 4 * SIZE);
    assert!(!net.busy());
    // A later packet on the blocked path waits at its sender's port, too. Other paths and channels
    // are not blocked.
    send(&mut net, 1, Dest::Node(NodeId(3)), 99);
    send(&mut net, 2, Dest::Node(NodeId(0)), 50);
    let multicast = Dest::Group(63);
    send(&mut net, 3, multicast, 51);
    let (mut got, _) = drain(&mut net, 0);
    got.sort_unstable();
    assert_eq!(got, [(0, 50), (0, 51), (1, 51), (2, 51)]);
    net.set_takes(3, Lane::EVERY);
    let (got, _) = drain(&mut net, 0);
    let of_0: Vec<u8> = got.iter().map(|g| g.1).filter(|&t| t != 99).collect();
    assert_eq!(of_0, (0..20).collect::<Vec<_>>());
    assert_eq!(got.len(), 21);
    assert_idle(&net);
}

/// The sender's credit returns when the receiver has stored the packet, not when the packet has
/// arrived.
#[test]
fn credit_returns_with_the_receipt() {
    let mut net = simple("pair", NetConfig::default());
    let t = &mut Tracer::off();
    send(&mut net, 0, Dest::Node(NodeId(1)), 1);
    net.run(0, 100, t);
    let Some(Outcome::Deliver(1, _, receipt)) = net.outcome(t) else {
        panic!("no packet arrived");
    };
    assert_eq!(net.node_stats(0).1, SIZE);
    drop(receipt);
    assert_idle(&net);
}

/// Blocked requests do not block responses, because responses have a separate channel (HW §12).
/// Units have separate ports.
#[test]
fn responses_pass_requests_that_wait() {
    let mut net = simple("mesh:3", tiny(2));
    let t = &mut Tracer::off();
    net.set_takes(2, Lane::EVERY & !Lane::RMA_REQUESTS);
    for _ in 0..8 {
        net.inject(0, rma(0, 2, 8, false), t);
    }
    net.run(0, 1000, t);
    assert!(net.outcome(t).is_none());
    net.inject(0, rma(0, 2, 8, true), t);
    net.run(0, 1000, t);
    let Some(Outcome::Deliver(2, p, _)) = net.outcome(t) else {
        panic!("the response waits behind requests");
    };
    assert_eq!(Lane::of(&p), Lane::RMA_RESPONSES);
    assert_eq!(net.node_stats(0).1, 8 * SIZE);
    net.set_takes(2, Lane::EVERY);
    let mut n = 0;
    while net.busy() {
        net.run(0, 1000, t);
        n += usize::from(net.outcome(t).is_some());
    }
    assert_eq!(n, 8);
    assert_idle(&net);
}

/// Packets of any size wait for a frozen NIC and none is dropped, even if the buffers are very
/// small.
#[test]
fn nothing_is_too_large_for_a_frozen_nic() {
    let mut net = simple("mesh:3", tiny(4));
    let t = &mut Tracer::off();
    net.set_frozen(2, true);
    for _ in 0..3 {
        net.inject(0, rma(0, 2, 8 << 20, false), t);
    }
    net.run(0, 1000, t);
    assert!(net.outcome(t).is_none() && !net.busy());
    assert_eq!(
        (net.node_stats(2).0.drops(), net.tx_room(2)),
        (0, [0; LANES])
    );
    net.set_frozen(2, false);
    let mut n = 0;
    while net.busy() {
        net.run(0, 1000, t);
        n += usize::from(net.outcome(t).is_some());
    }
    assert_eq!(n, 3);
    assert_idle(&net);
}

/// An arbiter serves all inputs that compete for an output in turn.
#[test]
fn arbiters_serve_all_inputs_alike() {
    for seed in 0..20 {
        let cfg = NetConfig { seed, ..tiny(2) };
        let mut net = simple("star:6", cfg);
        net.set_takes(1, 0);
        let t = &mut Tracer::off();
        for tag in 2..6u8 {
            for _ in 0..40 {
                send(&mut net, tag.into(), Dest::Node(NodeId(1)), tag);
            }
        }
        drain(&mut net, 0);
        let mut seen = [0u32; 6];
        net.set_takes(1, Lane::EVERY);
        for _ in 0..80 {
            net.run(0, 10_000, t);
            if let Some(Outcome::Deliver(1, p, _)) = net.outcome(t) {
                seen[usize::from(p.src.0)] += 1;
            }
        }
        let (least, most) = (seen[2..].iter().min(), seen[2..].iter().max());
        assert!(most <= least.map(|n| n + 4).as_ref(), "{seed}: {seen:?}");
        drain(&mut net, 0);
        assert_idle(&net);
    }
}

/// Makes each NIC of a ring send enough packets to the second next NIC to fill all buffers. Returns
/// the number of packets.
fn round_and_round(net: &mut Network, n: usize) -> usize {
    for nic in 0..n {
        for tag in 0..40 {
            send(net, nic, Dest::Node(NodeId(((nic + 2) % n) as u16)), tag);
        }
    }
    drain(net, 0).0.len()
}

/// Tables that use only one virtual channel lead packets into a cycle of waits, which is reported
/// once. With the tables of the set-up step, all packets arrive.
#[test]
fn a_circle_of_waits_is_named() {
    let mut net = simple("ring:4", tiny(2));
    assert_eq!(round_and_round(&mut net, 4), 160);
    let wait = net.config().deadlock_check_ns;
    drain(&mut net, wait);
    assert_eq!((net.deadlocks().len(), net.next_deadline()), (0, None));

    for nic in 0..4 {
        for at in (0..11).flat_map(|p| (0..4).map(move |id| 0x40_2000 + 0x4000 * p + 8 * id)) {
            let word = net.register(nic, at).unwrap() & !(1 << 8);
            net.regs(nic).write(at, word);
        }
    }
    let got = round_and_round(&mut net, 4);
    assert!(got < 160, "no deadlock");
    assert!(net.deadlocks().is_empty(), "too early");
    let due = net.next_deadline().unwrap();
    assert_eq!(due, 2 * wait);
    let (_, events) = drain(&mut net, due);
    let text = net.deadlocks().join("\n");
    assert_eq!(net.deadlocks().len(), 1, "{text}");
    for nic in 0..4 {
        assert!(text.contains(&format!("{nic}:1 tc0.0")), "{text}");
        assert_eq!(net.node_stats(nic).0.deadlocks, 1);
        let pos_dead = net.register(nic, 0x40_4000).unwrap() & 8;
        assert_eq!(pos_dead, 8, "pos_dead of inport 1");
        assert!(events.contains(&(nic, 13)));
    }
    // The deadlock must not be reported again.
    for i in 1..20 {
        drain(&mut net, due * (i + 1));
    }
    assert_eq!(net.deadlocks().len(), 1);
    // Switching NIC 0 off discards the packets stuck there, and the other packets advance.
    net.set_power(0, false, &mut Tracer::off());
    drain(&mut net, due * 30);
    assert_idle(&net);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With the routes of the set-up step, all packets of random traffic with broadcasts arrive.
    /// Buffers hold one to three packets, and receivers pause.
    #[test]
    fn shipped_routes_do_not_lock_up(
        shape in prop_oneof![Just("ring:4"), Just("ring:7"), Just("torus:4x4"), Just("torus:5x3"), Just("torus:4x2x3"), Just("mesh:3x3"), Just("full:5"), Just("star:6")],
        packets in 1u64..4,
        latency_ns in prop_oneof![Just(0u64), Just(700)],
        seed: u64,
    ) {
        let link = LinkKnobs { latency_ns, ..LinkKnobs::default() };
        let mut net = simple(shape, NetConfig { link, seed, ..tiny(packets) });
        let n = net.nodes.len();
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut want, mut got, mut now) = (0, 0, 0);
        for round in 0..60 {
            for nic in 0..n {
                net.set_takes(nic, if rng.random_bool(0.5) { Lane::EVERY } else { 0 });
                for _ in 0..rng.random_range(0..6) {
                    if net.tx_open(nic) & Lane::MULTICASTS.bit() != 0 && rng.random_bool(0.05) {
                        send(&mut net, nic, Dest::Group(63), 0);
                        want += n - 1;
                    }
                    if net.tx_open(nic) & Lane::velo(0).bit() != 0 {
                        send(&mut net, nic, Dest::Node(NodeId(rng.random_range(0..n) as u16)), 0);
                        want += 1;
                    }
                }
            }
            got += drain(&mut net, now).0.len();
            now += 300 * (round % 3);
        }
        for nic in 0..n {
            net.set_takes(nic, Lane::EVERY);
        }
        got += drain(&mut net, now).0.len();
        while let Some(at) = net.next_deadline() {
            now = now.max(at);
            got += drain(&mut net, now).0.len();
            prop_assert!(net.deadlocks().is_empty(), "{}", net.deadlocks().join("\n"));
        }
        prop_assert_eq!(got, want);
        assert_idle(&net);
    }
}

/// NIC, link and virtual channel that a packet uses next.
type Hop = (usize, u8, u8);

/// The channels of a torus can't wait for each other in a cycle, for any traffic. The test follows
/// all routes link by link.
#[test]
fn channels_of_a_torus_have_an_order() {
    for shape in ["ring:3", "ring:4", "ring:8", "torus:4x4", "torus:5x3x3"] {
        let t = Topology::parse(shape).unwrap();
        let ids: Vec<u16> = (0..t.nodes as u16).collect();
        let request = Request {
            ids: &ids,
            dead: &[],
            groups: &BTreeMap::new(),
            to_sender: false,
        };
        let routes = Routes::compute(&t, &request).unwrap();
        let tables: Vec<_> = (0..t.nodes).map(|i| routes.tables(i)).collect();
        let far = t.neighbours();
        // For each channel, the channels that packets use next.
        let mut next: BTreeMap<Hop, Vec<Hop>> = BTreeMap::new();
        for from in 0..t.nodes {
            for to in (0..t.nodes).filter(|&to| to != from) {
                let (mut at, mut last) = (from, None);
                while at != to {
                    let word = wire::route::RouteWord(tables[at].lrt[&(to as u16)]);
                    let hop = (at, word.outport(), word.dvc());
                    if let Some(last) = last.replace(hop) {
                        next.entry(last).or_default().push(hop);
                    }
                    next.entry(hop).or_default();
                    at = far[at][usize::from(hop.1)].unwrap().nic;
                }
            }
        }
        // Repeatedly removes channels that wait for no other channel. All channels must be removed
        // in the end.
        while !next.is_empty() {
            let free: Vec<_> = next
                .iter()
                .filter(|(_, n)| n.is_empty())
                .map(|(c, _)| *c)
                .collect();
            assert!(
                !free.is_empty(),
                "{shape}: a circle among {:?}",
                next.keys()
            );
            for c in &free {
                next.remove(c);
            }
            for list in next.values_mut() {
                list.retain(|c| !free.contains(c));
            }
        }
    }
}

/// Packets without a route can end in outport 10 and stay visible there until software sets the
/// outport's credits again (G21, HW §15.3).
#[test]
fn illegal_routing_can_end_in_an_outport() {
    let cfg = NetConfig {
        illegal_routing: IllegalRouting::Outport,
        ..NetConfig::default()
    };
    let mut net = simple("pair", cfg);
    for tag in 0..2 {
        send(&mut net, 0, Dest::Node(NodeId(9)), tag);
    }
    assert_eq!(drain(&mut net, 0), (vec![], vec![(0, 14), (0, 14)]));
    assert_eq!(net.node_stats(0).0.illegal_routing, 2);
    let outport_10 = 0x42_C000 + 0x40 * 10;
    let value = |net: &Network, at: u32| net.register(0, outport_10 + at).unwrap();
    assert_eq!(
        (value(&net, 0), value(&net, 8), value(&net, 0x10)),
        (2, 2, 2)
    );
    assert_eq!(
        net.register(0, 0x40_0000 + 0x4000 * 7).unwrap() & 4,
        0,
        "not the inport"
    );
    // Repeats the loop of HW §15.3 that drains the outport.
    for class in 0..10 {
        net.regs(0).write(outport_10 + 0x18, class << 6);
    }
    net.regs(0).write(outport_10 + 0x20, 0x28_3000_8000);
    assert_eq!((value(&net, 8), value(&net, 0x10)), (0, 0));
    assert_idle(&net);
}

#[test]
fn credits_of_a_link_that_loses_packets_come_back() {
    let link = LinkKnobs {
        latency_ns: 1000,
        ..LinkKnobs::default()
    };
    let mut net = simple("mesh:3", NetConfig { link, ..tiny(2) });
    let t = &mut Tracer::off();
    for tag in 0..6 {
        send(&mut net, 0, Dest::Node(NodeId(2)), tag);
    }
    drain(&mut net, 0);
    // Two packets were on the first cable when it was unplugged.
    net.set_link(0, false, Some(DownPolicy::Drop), t);
    drain(&mut net, 0);
    net.set_link(0, true, None, t);
    assert_idle(&net);
    let p = |tag| packet(0, Dest::Node(NodeId(2)), tag);
    for tag in 10..16 {
        net.inject(0, p(tag), t);
    }
    let mut got = Vec::new();
    for now in (0..20_000).step_by(1000) {
        got.extend(drain(&mut net, now).0);
    }
    assert_eq!(got, (10..16).map(|t| (2, t)).collect::<Vec<_>>());
    assert_idle(&net);
}
