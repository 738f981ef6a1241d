//! Benchmark of the packet rate of the fabric: `cargo bench -p extoll-emulator`.

use extoll_emulator::config::{ConfigFile, Fabric, Overrides};
use extoll_emulator::env::{Dest, NetPort, Packet};
use extoll_emulator::network::routes::{Request, Routes};
use extoll_emulator::network::topology::Topology;
use extoll_emulator::network::{Network, Outcome, XBAR_PORTS};
use extoll_emulator::nic::{Body, NetworkRegs, Part, RmaKind, RmaMessage};
use extoll_emulator::trace::Tracer;
use std::collections::BTreeMap;
use std::time::Instant;
use wire::ids::NodeId;
use wire::rma::{Command, Mode, NotifySpec};

/// Number of packets per run.
const PACKETS: u64 = 2_000_000;
/// Number of packets that are in flight at a time.
const BATCH: u64 = 16;

fn network(topology: &str) -> Network {
    let file: ConfigFile = toml::from_str(&format!("topology = {topology:?}")).expect("config");
    let fabric =
        Fabric::build(file, &Overrides::default(), std::path::Path::new("/d")).expect("fabric");
    let t = Topology::parse(topology).expect("topology");
    let mut net = Network::new(&t, fabric.network);
    let ids: Vec<u16> = (0..t.nodes as u16).collect();
    let groups = BTreeMap::new();
    let request = Request {
        ids: &ids,
        dead: &[],
        groups: &groups,
        to_sender: false,
    };
    let routes = Routes::compute(&t, &request).expect("routes");
    for nic in 0..t.nodes {
        let tables = routes.tables(nic);
        let mut regs = net.shared_regs(nic);
        for port in 0..XBAR_PORTS {
            let base = 0x40_0000 + 0x4000 * port as u32;
            for (&i, &w) in &tables.grt {
                regs.write(base + 0x400 + 8 * u32::from(i), w);
            }
            for (&i, &w) in &tables.lrt {
                regs.write(base + 0x2000 + 8 * u32::from(i), w);
            }
        }
        for n in 0..4 {
            regs.write(0x9418 + 0x80 * n, 1);
        }
    }
    net.start(&mut Tracer::off());
    net
}

fn packet(src: u16, dst: u16) -> Packet {
    let message = RmaMessage {
        origin_vpid: 1,
        peer_vpid: 1,
        protection: 0,
        command: Command::BytePut,
        notify: NotifySpec::default(),
        mode: Mode::default(),
        kind: RmaKind::Put {
            addr: 0,
            part: Part::WHOLE,
            data: Ok(vec![0; 496]),
        },
    };
    Packet {
        src: NodeId(src),
        dst: Dest::Node(NodeId(dst)),
        port: NetPort::RmaCompleter,
        tc: 1,
        bytes: 496,
        body: Body::Rma(Box::new(message)),
    }
}

fn run(topology: &str, from: usize, to: usize) {
    let mut net = network(topology);
    let trace = &mut Tracer::off();
    let start = Instant::now();
    let mut delivered = 0u64;
    for _ in 0..PACKETS / BATCH {
        for _ in 0..BATCH {
            net.inject(from, packet(from as u16, to as u16), trace);
        }
        loop {
            net.run(0, 4096, trace);
            match net.outcome(trace) {
                Some(Outcome::Deliver(..)) => delivered += 1,
                Some(Outcome::Event(..)) => {}
                None if net.busy() => {}
                None => break,
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(delivered, PACKETS, "packets got lost");
    println!(
        "{topology} {from}->{to}: {:.0} packets/s",
        PACKETS as f64 / seconds
    );
}

fn main() {
    run("pair", 0, 1);
    run("torus:4x4", 0, 10);
}
