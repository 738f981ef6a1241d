//! Tests of fabrics without NICs. The tests inject packets and check the outcomes.

use super::routes::{Request, Routes};
use super::topology::{End, Topology};
use super::*;
use crate::env::NetPort;
use crate::nic::{Body, NetworkRegs, VeloMessage};
use proptest::prelude::*;
use std::collections::BTreeMap;
use wire::ids::NodeId;

pub(super) fn packet(src: u16, dst: Dest, tag: u8) -> Packet {
    let m = VeloMessage {
        src_node: src,
        src_vpid: 0,
        protection: 0,
        dst_vpid: 0,
        mtt: 0,
        tag,
        interrupt: false,
        len: 8,
        data: [tag; 120],
    };
    Packet {
        src: NodeId(src),
        dst,
        port: NetPort::Velo,
        tc: 0,
        bytes: 8,
        body: Body::Velo(Box::new(m)),
    }
}

/// Returns a fabric with all ports enabled and the tables that the set-up step would write.
pub(super) fn fabric(
    t: &Topology,
    cfg: NetConfig,
    ids: &[u16],
    groups: &BTreeMap<u8, Vec<usize>>,
    to_sender: bool,
) -> Network {
    let mut net = Network::new(t, cfg);
    let routes = Routes::compute(
        t,
        &Request {
            ids,
            dead: &[],
            groups,
            to_sender,
        },
    )
    .unwrap();
    for (nic, &id) in ids.iter().enumerate() {
        let tables = routes.tables(nic);
        {
            let mut regs = net.regs(nic);
            for port in 0..XBAR_PORTS {
                let base = 0x40_0000 + 0x4000 * port as u32;
                let write = |regs: &mut NodeRegs, at: u32, t: &BTreeMap<u16, u64>| {
                    for (&i, &w) in t {
                        assert!(regs.write(base + at + 8 * u32::from(i), w));
                    }
                };
                write(&mut regs, 0x400, &tables.grt);
                write(&mut regs, 0x2000, &tables.lrt);
                write(&mut regs, 0x200, &tables.mcast[port]);
            }
            for n in 0..4 {
                regs.write(0x9418 + 0x80 * n, 1);
            }
        }
        net.set_identity(nic, nic as u32, id);
    }
    net.start(&mut Tracer::off());
    drain(&mut net, 0);
    net
}

pub(super) fn simple(text: &str, cfg: NetConfig) -> Network {
    let t = Topology::parse(text).unwrap();
    let ids: Vec<u16> = (0..t.nodes as u16).collect();
    fabric(&t, cfg, &ids, &BTreeMap::new(), false)
}

/// List of deliveries as (NIC, tag), or of events as (NIC, number).
pub(super) type List = Vec<(usize, u8)>;

/// Runs until no packet can advance at time `now`. Returns the deliveries and the events.
pub(super) fn drain(net: &mut Network, now: u64) -> (List, List) {
    let (mut got, mut events) = (Vec::new(), Vec::new());
    for _ in 0..1_000_000 {
        net.run(now, 1000, &mut Tracer::off());
        match net.outcome(&mut Tracer::off()) {
            Some(Outcome::Deliver(nic, p, _)) => match p.body {
                Body::Velo(m) => got.push((nic, m.tag)),
                other => unreachable!("only VELO is sent, not {other:?}"),
            },
            Some(Outcome::Event(nic, te)) => events.push((nic, te)),
            None if net.busy() => {}
            None => return (got, events),
        }
    }
    panic!("the fabric still moves packets after a million outcomes");
}

pub(super) fn send(net: &mut Network, from: usize, dst: Dest, tag: u8) {
    net.inject(from, packet(from as u16, dst, tag), &mut Tracer::off());
}

pub(super) fn assert_idle(net: &Network) {
    for nic in 0..net.nodes.len() {
        assert_eq!(
            net.node_stats(nic).1,
            0,
            "bytes of NIC {nic} are still accounted"
        );
    }
}

fn shapes() -> impl Strategy<Value = Topology> {
    let dims = |max| {
        prop::collection::vec(1usize..=max, 1..=3)
            .prop_map(|d: Vec<usize>| d.iter().map(usize::to_string).collect::<Vec<_>>().join("x"))
    };
    prop_oneof![
        dims(5).prop_map(|d| format!("torus:{d}")),
        dims(5).prop_map(|d| format!("mesh:{d}")),
        (1usize..40).prop_map(|n| format!("ring:{n}")),
        (1usize..=8).prop_map(|n| format!("full:{n}")),
        (1usize..=8).prop_map(|n| format!("star:{n}")),
    ]
    .prop_map(|s| Topology::parse(&s).unwrap())
}

/// Generates a random connected graph with up to seven links per NIC.
fn graphs() -> impl Strategy<Value = Topology> {
    (
        2usize..20,
        prop::collection::vec((any::<usize>(), any::<usize>()), 0..30),
    )
        .prop_map(|(n, extra)| {
            let mut used = vec![0u8; n];
            let mut cables = Vec::new();
            let mut connect = |a: usize, b: usize, cables: &mut Vec<(String, String)>| {
                if a != b && used[a] < 7 && used[b] < 7 {
                    cables.push((format!("{a}:{}", used[a]), format!("{b}:{}", used[b])));
                    used[a] += 1;
                    used[b] += 1;
                }
            };
            for i in 1..n {
                connect(i - 1, i, &mut cables);
            }
            for (a, b) in extra {
                connect(a % n, b % n, &mut cables);
            }
            Topology::from_file(&topology::TopologyFile { nodes: n, cables }).unwrap()
        })
}

/// Returns the distance in hops from `from` to every NIC; `None` if a NIC can't be reached.
fn distances(t: &Topology, from: usize) -> Vec<Option<u32>> {
    let n = t.neighbours();
    let mut dist = vec![None; t.nodes];
    let mut queue = VecDeque::from([from]);
    dist[from] = Some(0);
    while let Some(i) = queue.pop_front() {
        for end in n[i].iter().flatten() {
            if dist[end.nic].is_none() {
                dist[end.nic] = dist[i].map(|d: u32| d + 1);
                queue.push_back(end.nic);
            }
        }
    }
    dist
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The tables connect every pair of NICs by a shortest path. Every packet is delivered exactly
    /// once, and its credit returns exactly once.
    #[test]
    fn every_pair_is_reached_on_a_shortest_path(t in prop_oneof![shapes(), graphs()]) {
        let ids: Vec<u16> = (0..t.nodes as u16).map(|i| i * 3 + 1).collect();
        let mut net = fabric(&t, NetConfig::default(), &ids, &BTreeMap::new(), false);
        for from in 0..t.nodes {
            let dist = distances(&t, from);
            for to in 0..t.nodes {
                let before: u64 = net.links().iter().map(|l| l.forward.packets + l.backward.packets).sum();
                send(&mut net, from, Dest::Node(NodeId(ids[to])), 7);
                prop_assert_eq!(drain(&mut net, 0), (vec![(to, 7)], vec![]));
                let after: u64 = net.links().iter().map(|l| l.forward.packets + l.backward.packets).sum();
                prop_assert_eq!(Some((after - before) as u32), dist[to]);
            }
        }
        assert_idle(&net);
    }

    /// Nodes whose IDs are in several segments are reached through the global tables.
    #[test]
    fn segments_are_routed_by_the_global_tables(n in 2usize..12, per in 1usize..5) {
        let t = Topology::parse(&format!("ring:{n}")).unwrap();
        // Neighbouring NICs share a segment, so that every segment is connected.
        let ids: Vec<u16> = (0..n).map(|i| (((i / per) as u16) << 10) | (i % per) as u16).collect();
        let mut net = fabric(&t, NetConfig::default(), &ids, &BTreeMap::new(), false);
        for from in 0..n {
            for (to, &id) in ids.iter().enumerate() {
                send(&mut net, from, Dest::Node(NodeId(id)), 1);
                prop_assert_eq!(drain(&mut net, 0).0, vec![(to, 1)]);
            }
        }
    }

    /// A broadcast reaches each other node exactly once. A multicast to a group reaches exactly the
    /// members, from any sender.
    #[test]
    fn multicast_reaches_each_member_once(t in prop_oneof![shapes(), graphs()], members: u64, to_sender: bool) {
        let ids: Vec<u16> = (0..t.nodes as u16).collect();
        let members: Vec<usize> = (0..t.nodes).filter(|i| (members >> (i % 64)) & 1 != 0).collect();
        let groups = BTreeMap::from([(5, members.clone())]);
        let mut net = fabric(&t, NetConfig::default(), &ids, &groups, to_sender);
        for from in 0..t.nodes {
            for (group, all) in [(63, (0..t.nodes).collect::<Vec<_>>()), (5, members.clone())] {
                send(&mut net, from, Dest::Group(group), 9);
                let (mut got, events) = drain(&mut net, 0);
                got.sort_unstable();
                let want: Vec<_> = all.into_iter().filter(|&i| to_sender || i != from).map(|i| (i, 9)).collect();
                prop_assert_eq!(got, want);
                prop_assert_eq!(events, vec![]);
            }
        }
        assert_idle(&net);
    }

    /// Packets between two nodes stay in order under all link faults except loss on a link that is
    /// down.
    #[test]
    fn damage_and_flaps_keep_packets_whole_and_in_order(
        seed: u64, latency in 0u64..3000, bps in prop_oneof![Just(0u64), 1_000u64..1_000_000_000], corrupt in 0.0f64..0.5, loss in 0.0f64..0.4,
    ) {
        let link = LinkKnobs { latency_ns: latency, jitter_ns: 0, bytes_per_second: bps, corrupt_rate: corrupt, loss_rate: loss };
        let mut net = simple("ring:5", NetConfig { link, seed, ..NetConfig::default() });
        let c = net.cable_at(End { nic: 1, port: 0 }).unwrap();
        let mut got = Vec::new();
        let mut now = 0;
        for tag in 0..100u8 {
            send(&mut net, 0, Dest::Node(NodeId(2)), tag);
            if tag == 30 {
                net.start_flap(c, Flap { down_ns: 500, up_ns: 100, left: 3 }, None, &mut Tracer::off());
            }
            got.extend(drain(&mut net, now).0);
            now += 37;
        }
        while let Some(at) = net.next_deadline() {
            now = now.max(at);
            got.extend(drain(&mut net, now).0);
        }
        prop_assert_eq!(got, (0..100).map(|t| (2, t)).collect::<Vec<_>>());
        assert_idle(&net);
        let links = net.links();
        prop_assert!(links.iter().all(|l| l.forward.dropped_down + l.backward.dropped_down == 0));
    }

    /// With arbitrary table words, every packet is delivered or dropped, and its credit returns.
    #[test]
    fn arbitrary_tables_are_survived(
        words in prop::collection::vec((0u32..11, 0u32..3, 0u32..64, prop_oneof![any::<u64>(), 0u64..0x7ff]), 0..200),
        sends in prop::collection::vec((0usize..4, any::<u8>(), any::<bool>()), 1..40),
    ) {
        let mut net = simple("full:4", NetConfig::default());
        for (n, (port, table, index, word)) in words.into_iter().enumerate() {
            let at = 0x40_0000 + 0x4000 * port + [0x200, 0x400, 0x2000][table as usize] + 8 * index;
            net.regs(n % 4).write(at, word);
        }
        for (from, to, group) in sends {
            let dst = if group { Dest::Group(to) } else { Dest::Node(NodeId((u16::from(to) << 8) | u16::from(to % 5))) };
            send(&mut net, from, dst, 0);
            drain(&mut net, 0);
        }
        assert_idle(&net);
    }
}

#[test]
fn counters_follow_a_packet() {
    let mut net = simple("ring:4", NetConfig::default());
    // The packet needs two hops upwards from NIC 0 to NIC 2. It leaves by link 0 (plus) and arrives
    // by link 1 (minus).
    send(&mut net, 0, Dest::Node(NodeId(2)), 1);
    drain(&mut net, 0);
    let read = |nic: usize, at: u32| NetworkRegs::read(&mut *net.regs(nic), at).unwrap();
    let inp = |i: u32| 0x40_0000 + 0x4000 * i;
    let outp = |i: u32| 0x42_C000 + 0x40 * i;
    let lp = |i: u32| 0x46_0000 + 0x80 * i;
    assert_eq!(
        (
            read(0, inp(7) + 8),
            read(0, inp(7) + 0x10),
            read(0, outp(0))
        ),
        (1, 1, 1)
    );
    assert_eq!(
        (read(0, lp(0)), read(1, lp(1))),
        (1 << 32, 1),
        "sent in the high half, received in the low one"
    );
    assert_eq!(
        (read(1, inp(1) + 8), read(1, outp(0)), read(2, outp(7))),
        (1, 1, 1)
    );
    assert_eq!(
        (read(0, 0x9400), read(2, 0x9408)),
        ((1 << 32) | 1, (1 << 32) | 1)
    );
    assert_eq!(net.node_stats(1).0.transit, 1);
}

#[test]
fn unknown_nodes_are_illegal_routing() {
    let mut net = simple("pair", NetConfig::default());
    send(&mut net, 0, Dest::Node(NodeId(99)), 1);
    assert_eq!(drain(&mut net, 0), (vec![], vec![(0, TE_XBAR_INPORT)]));
    let routing = net.register(0, 0x40_0000 + 7 * 0x4000).unwrap();
    assert_eq!(routing & 4, 4, "illegal_routing of inport 7 (G21)");
    net.regs(0).write(0x40_0000 + 7 * 0x4000, 0);
    assert_eq!(
        net.register(0, 0x40_0000 + 7 * 0x4000),
        Some(0),
        "software clears it"
    );
    assert_eq!(net.node_stats(0).0.illegal_routing, 1);
}

#[test]
fn routing_loops_end_at_the_hop_limit() {
    let mut net = simple("pair", NetConfig::default());
    let word = wire::route::RouteEntry::Port(wire::route::OutPort::new(0).unwrap())
        .encode()
        .raw();
    for nic in 0..2 {
        for port in 0..11 {
            net.regs(nic)
                .write(0x40_2000 + 0x4000 * port + 8 * 50, word);
        }
    }
    send(&mut net, 0, Dest::Node(NodeId(50)), 1);
    let (got, events) = drain(&mut net, 0);
    assert_eq!((got.len(), events.len()), (0, 1));
    let drops: u64 = (0..2).map(|n| net.node_stats(n).0.hop_limit).sum();
    assert_eq!(drops, 1);
    let flags: u64 = (0..2)
        .map(|n| net.register(n, 0x40_0000).unwrap() & 8)
        .sum();
    assert_eq!(flags, 8, "pos_dead");
}

#[test]
fn a_link_that_is_down_drops_or_holds() {
    let mut net = simple(
        "pair",
        NetConfig {
            link_buffer_bytes: 10 * 72,
            ..NetConfig::default()
        },
    );
    let t = &mut Tracer::off();
    net.set_link(0, false, None, t);
    assert_eq!(drain(&mut net, 0).1.len(), 4, "TE 17 and 20 on both sides");
    assert_eq!(
        net.register(0, 0x46_0008).unwrap() & 3,
        1,
        "enabled, not ready"
    );
    send(&mut net, 0, Dest::Node(NodeId(1)), 1);
    assert_eq!(drain(&mut net, 0).0, []);
    assert_eq!(net.links()[0].forward.dropped_down, 1);
    net.set_link(0, false, Some(DownPolicy::Hold), t);
    for tag in 0..15 {
        send(&mut net, 0, Dest::Node(NodeId(1)), tag);
    }
    assert_eq!(drain(&mut net, 0).0, []);
    net.set_link(0, true, None, t);
    assert_eq!(
        drain(&mut net, 0).0,
        (0..10).map(|t| (1, t)).collect::<Vec<_>>()
    );
    assert_eq!(net.links()[0].forward.dropped_full, 5);
    assert_idle(&net);
}

#[test]
fn neighbours_discover_each_other() {
    let mut net = simple("pair", NetConfig::default());
    let ids = net.register(0, 0x46_0018).unwrap();
    assert_eq!(
        ((ids >> 2) & 0xff_ffff, (ids >> 26) & 0xffff, ids >> 42),
        (1, 1, 0)
    );
    assert_eq!(net.register(0, 0x46_0020).unwrap() & 3, 3);
    // The script of HW §15.4 clears the flags and sets the threshold.
    net.regs(0).write(0x46_0020, 0x0180_0000_0000_0003);
    assert_eq!(net.register(0, 0x46_0020), Some(0x0180_0000_0000_0000));
    // The neighbour gets a new node ID. This side receives the ID only when the neighbour sends it.
    net.set_identity(1, 1, 77);
    assert_eq!((net.register(0, 0x46_0018).unwrap() >> 26) & 0xffff, 1);
    net.regs(1).write(0x46_0018, 2);
    net.after_access(1, &mut Tracer::off());
    assert_eq!((net.register(0, 0x46_0018).unwrap() >> 26) & 0xffff, 77);
    assert_eq!(net.register(0, 0x46_0020).unwrap() & 3, 2);
}

#[test]
fn software_can_disable_a_link() {
    let mut net = simple("pair", NetConfig::default());
    net.regs(1).write(0x46_0008, 0);
    net.after_access(1, &mut Tracer::off());
    assert_eq!(net.register(0, 0x46_0008).unwrap() & 2, 0);
    send(&mut net, 0, Dest::Node(NodeId(1)), 1);
    assert_eq!(drain(&mut net, 0).0, []);
    net.regs(1).write(0x46_0008, 1);
    net.after_access(1, &mut Tracer::off());
    send(&mut net, 0, Dest::Node(NodeId(1)), 2);
    assert_eq!(drain(&mut net, 0).0, [(1, 2)]);
}

#[test]
fn a_frozen_nic_takes_nothing_and_gives_nothing() {
    let cfg = NetConfig {
        np_buffer_bytes: 10 * 72,
        ..NetConfig::default()
    };
    let mut net = simple("ring:3", cfg);
    net.set_frozen(1, true);
    assert_eq!((net.tx_room(1), net.tx_open(1)), ([0; LANES], 0));
    for tag in 0..15 {
        send(&mut net, 0, Dest::Node(NodeId(1)), tag);
    }
    assert_eq!(drain(&mut net, 0).0, []);
    // Packets that do not fit into the port wait in the fabric. They are not lost.
    assert_eq!((net.node_stats(1).2, net.node_stats(0).1), (720, 15 * 72));
    assert_eq!(
        net.register(1, 0x9418).unwrap() & 0x700,
        0x400,
        "not empty, full"
    );
    net.set_frozen(1, false);
    assert_eq!(
        drain(&mut net, 0).0,
        (0..15).map(|t| (1, t)).collect::<Vec<_>>()
    );
    assert_eq!(net.register(1, 0x9418).unwrap() & 0x700, 0x100, "empty");
    assert_idle(&net);
}

#[test]
fn credit_bounds_what_is_under_way() {
    let link = LinkKnobs {
        latency_ns: 1000,
        ..LinkKnobs::default()
    };
    let mut net = simple(
        "pair",
        NetConfig {
            link,
            tx_credit_bytes: 720,
            ..NetConfig::default()
        },
    );
    let mut sent = 0;
    while net.tx_credit(0) > 0 {
        send(&mut net, 0, Dest::Node(NodeId(1)), sent);
        sent += 1;
    }
    assert_eq!(sent, 10);
    drain(&mut net, 0);
    assert_eq!(drain(&mut net, 999).0, []);
    assert_eq!(drain(&mut net, 1000).0.len(), 10);
    assert_eq!(net.tx_credit(0), 720);
}

#[test]
fn power_off_takes_the_links_down_and_loses_what_was_queued() {
    let link = LinkKnobs {
        latency_ns: 1000,
        ..LinkKnobs::default()
    };
    let mut net = simple(
        "ring:3",
        NetConfig {
            link,
            ..NetConfig::default()
        },
    );
    let t = &mut Tracer::off();
    send(&mut net, 0, Dest::Node(NodeId(1)), 1);
    send(&mut net, 1, Dest::Node(NodeId(0)), 2);
    drain(&mut net, 0);
    net.set_power(1, false, t);
    assert_eq!(drain(&mut net, 5000).0, []);
    assert_idle(&net);
    send(&mut net, 0, Dest::Node(NodeId(1)), 3);
    send(&mut net, 0, Dest::Node(NodeId(2)), 4);
    drain(&mut net, 5000);
    assert_eq!(
        drain(&mut net, 6000).0,
        [(2, 4)],
        "the other links of the ring still work"
    );
    net.set_power(1, true, t);
    send(&mut net, 0, Dest::Node(NodeId(1)), 5);
    drain(&mut net, 6000);
    assert_eq!(drain(&mut net, 7000).0, [(1, 5)]);
}

#[test]
fn ports_that_are_not_enabled_take_nothing() {
    let mut net = simple("pair", NetConfig::default());
    net.regs(1).write(0x9418, 0);
    send(&mut net, 0, Dest::Node(NodeId(1)), 1);
    assert_eq!(drain(&mut net, 0).0, []);
    send(&mut net, 1, Dest::Node(NodeId(0)), 1);
    assert_eq!(drain(&mut net, 0).0, []);
    assert_eq!(net.node_stats(1).0.port_disabled, 2);
    assert_idle(&net);
}

#[test]
fn damage_moves_the_counters_of_both_sides() {
    let link = LinkKnobs {
        corrupt_rate: 0.5,
        loss_rate: 0.2,
        ..LinkKnobs::default()
    };
    let mut net = simple(
        "pair",
        NetConfig {
            link,
            ..NetConfig::default()
        },
    );
    for tag in 0..200 {
        send(&mut net, 0, Dest::Node(NodeId(1)), tag);
    }
    assert_eq!(drain(&mut net, 0).0.len(), 200);
    let stats = net.links()[0].forward.clone();
    assert!(stats.corrupted > 0 && stats.lost > 0);
    let tx = net.register(0, 0x46_0010).unwrap();
    let rx = net.register(1, 0x46_0010).unwrap();
    assert_eq!(
        ((tx >> 14) & 0x3fff, (tx >> 28) & 0x3fff, tx >> 56),
        (
            stats.corrupted + stats.lost,
            stats.corrupted,
            stats.lost & 0xff
        )
    );
    assert_eq!(rx & 0x3fff, stats.corrupted);
    assert_eq!(
        (net.register(1, 0x46_0008).unwrap() >> 8) & 1,
        1,
        "packet_crc_error"
    );
}

#[test]
fn the_seed_decides_the_damage() {
    let run = |seed| {
        let link = LinkKnobs {
            corrupt_rate: 0.3,
            ..LinkKnobs::default()
        };
        let mut net = simple(
            "pair",
            NetConfig {
                link,
                seed,
                ..NetConfig::default()
            },
        );
        for tag in 0..100 {
            send(&mut net, 0, Dest::Node(NodeId(1)), tag);
        }
        drain(&mut net, 0);
        net.links()[0].forward.corrupted
    };
    assert_eq!(run(3), run(3));
    assert!((0..20).any(|s| run(s) != run(3)));
}

#[test]
fn global_interrupts_reach_every_node() {
    let mut net = simple("ring:3", NetConfig::default());
    net.regs(1).write(0x45_1000, 1);
    net.after_access(1, &mut Tracer::off());
    assert_eq!(
        drain(&mut net, 0).1,
        (0..3).map(|n| (n, TE_GLOBAL_INTERRUPT)).collect::<Vec<_>>()
    );
    assert_eq!(net.register(2, 0x45_1000), Some(2));
    assert_eq!(net.register(2, 0x45_0000), Some(0));
}

#[test]
fn routes_go_around_dead_cables() {
    let t = Topology::parse("ring:5").unwrap();
    let ids: Vec<u16> = (0..5).collect();
    let dead = [t.cables[0]];
    let groups = BTreeMap::new();
    let routes = Routes::compute(
        &t,
        &Request {
            ids: &ids,
            dead: &dead,
            groups: &groups,
            to_sender: false,
        },
    )
    .unwrap();
    assert_eq!(routes.first_link(0, 1), Some(1), "the long way round");
    let all = [t.cables[0], t.cables[4]];
    let routes = Routes::compute(
        &t,
        &Request {
            ids: &ids,
            dead: &all,
            groups: &groups,
            to_sender: false,
        },
    )
    .unwrap();
    assert_eq!(routes.first_link(0, 1), None);
}

#[test]
fn bad_node_ids_are_refused() {
    let t = Topology::parse("pair").unwrap();
    let groups = BTreeMap::new();
    let bad = |ids: &[u16]| {
        Routes::compute(
            &t,
            &Request {
                ids,
                dead: &[],
                groups: &groups,
                to_sender: false,
            },
        )
        .map(|_| ())
        .unwrap_err()
        .to_string()
    };
    assert!(bad(&[0]).contains("1 node IDs"));
    assert!(bad(&[5, 5]).contains("both"));
    assert!(bad(&[0, 0xFFFE]).contains("reserved"));
}

const NOBODY: [usize; 0] = [];

/// Processes all pending outcomes. Returns the NICs at which event 15 (barrier released) was
/// raised.
fn released(net: &mut Network) -> Vec<usize> {
    let mut nics: Vec<usize> = std::iter::from_fn(|| net.outcome(&mut Tracer::off()))
        .filter_map(|o| match o {
            Outcome::Event(nic, 15) => Some(nic),
            _ => None,
        })
        .collect();
    nics.sort_unstable();
    nics
}

/// Configures barrier unit `k` of a NIC: enabled, with links to children and parents, and with the
/// number of arrivals of the host.
fn barrier_unit(net: &mut Network, nic: usize, k: u32, children: u64, parents: u64, hosts: u64) {
    let config = 1 | (children << 1) | (parents << 8) | (hosts << 15);
    net.regs(nic).write(0x45_4000 + 8 * k, config);
    net.after_access(nic, &mut Tracer::off());
}

fn arrive(net: &mut Network, nic: usize, k: u32) -> Vec<usize> {
    net.regs(nic).write(0x44_0000 + 0x1000 * k, 1);
    net.after_access(nic, &mut Tracer::off());
    released(net)
}

#[test]
fn a_barrier_waits_for_all_hosts_of_its_tree() {
    // The NICs are in a row: 0 – 1 – 2 – 3. NIC 1 is the root, and NIC 3 is a child of NIC 2. Link
    // 0 goes upwards, link 1 downwards.
    let mut net = simple("mesh:4", NetConfig::default());
    let set = |net: &Network, nic| net.register(nic, 0x44_5000).unwrap();
    barrier_unit(&mut net, 1, 5, 0b11, 0, 2);
    barrier_unit(&mut net, 0, 5, 0, 0b01, 1);
    barrier_unit(&mut net, 2, 5, 0b01, 0b10, 0);
    barrier_unit(&mut net, 3, 5, 0, 0b10, 1);
    assert_eq!(
        released(&mut net),
        NOBODY,
        "configuration alone releases no node"
    );
    for round in 0..3u64 {
        assert_eq!(arrive(&mut net, 1, 5), NOBODY);
        assert_eq!(arrive(&mut net, 3, 5), NOBODY);
        assert_eq!(set(&net, 3) & 1, 1, "reached");
        assert_eq!(arrive(&mut net, 0, 5), NOBODY);
        // A second arrival counts only if two arrivals are expected.
        assert_eq!(arrive(&mut net, 0, 5), NOBODY);
        assert_eq!(arrive(&mut net, 1, 5), [0, 1, 2, 3]);
        // Releases set flag 0 and flag 1 alternately. `released_active` selects the flag for the
        // next release.
        let want = if round % 2 == 0 { 0b1010 } else { 0b0100 };
        assert_eq!(
            (0..4).map(|nic| set(&net, nic)).collect::<Vec<_>>(),
            [want; 4]
        );
    }
    // Other barrier units are unaffected. Flags of received signals stay set until software clears
    // them.
    assert_eq!(net.register(1, 0x44_4000), Some(0));
    let received = 1u64 << (34 + 5);
    assert_eq!(net.register(1, 0x46_0020).unwrap() & received, received);
    net.regs(1).write(0x46_0020, received);
    assert_eq!(net.register(1, 0x46_0020).unwrap() & received, 0);
    // A reset clears the arrivals of the host.
    arrive(&mut net, 3, 5);
    net.regs(3).write(0x45_4028, 1 << 19);
    net.after_access(3, &mut Tracer::off());
    assert_eq!((net.register(3, 0x45_4028), set(&net, 3)), (Some(0), 0));
}

#[test]
fn a_barrier_over_a_dead_link_never_releases() {
    let mut net = simple("pair", NetConfig::default());
    barrier_unit(&mut net, 0, 0, 1, 0, 1);
    barrier_unit(&mut net, 1, 0, 0, 1, 1);
    net.set_link(0, false, None, &mut Tracer::off());
    assert_eq!(arrive(&mut net, 0, 0), NOBODY);
    assert_eq!(arrive(&mut net, 1, 0), NOBODY);
    net.set_link(0, true, None, &mut Tracer::off());
    assert_eq!(released(&mut net), NOBODY, "the signal is lost");
    // After a reset, both barrier units can start again.
    barrier_unit(&mut net, 0, 0, 1 | (1 << 18), 0, 1);
    net.regs(1).write(0x45_4000, 1 << 19);
    barrier_unit(&mut net, 1, 0, 0, 1, 1);
    arrive(&mut net, 1, 0);
    assert_eq!(arrive(&mut net, 0, 0), [0, 1]);
}

#[test]
fn barrier_trees_with_mistakes_end() {
    // The mistakes are cycles, parents that are also children, and units that wait for no arrival.
    let mut net = simple("ring:3", NetConfig::default());
    for nic in 0..3 {
        barrier_unit(&mut net, nic, 0, 0b11, 0b11, 1);
        barrier_unit(&mut net, nic, 1, 0b11, 0, 1);
        barrier_unit(&mut net, nic, 2, 0, 0, 0);
        barrier_unit(&mut net, nic, 3, 0x7F, 0x7F, 0);
    }
    for k in 0..4 {
        for nic in 0..3 {
            arrive(&mut net, nic, k);
        }
    }
}
