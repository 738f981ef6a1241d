//! Tests of accesses to other devices of a host, over sockets: DMA messages to the client, and the
//! processing of its answers.

mod common;

use common::{answer, cmd, message, words, Bus, Emu, Guest, Vfio, BAR0, BAR2, DEADLINE, ENODEV};
use common::{NO_REPLY, RAM};
use extoll_emulator::nic::Te;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::ids::NodeId;
use wire::regs::{htax, np, smfu as r};

/// Bus address of the device of each host.
const DEVICE: u64 = 0x40_0000_0000;
const BYTES: usize = 0x4000;
const WINDOW: u64 = 0x0200_0000;

/// Sets up HTAX and SMFU as in HW §3.1 and §3.6. Window offset 32 MiB + n MiB leads to the device
/// of NIC n's host.
fn init(g: &mut Guest, nodes: u32) {
    let bases = (wire::ids::BusAddr(BAR0), wire::ids::BusAddr(BAR2));
    let set = wire::htax::Windows::standard(bases.0, bases.1, 256 << 20);
    for (i, x) in set.intervals().unwrap() {
        g.w(htax::intvl_upper(i).0.into(), x.upper.raw());
        g.w(htax::intvl_lower(i).0.into(), x.lower.raw());
        g.w(htax::intvl_control(i).0.into(), x.control.raw());
    }
    g.w(htax::GENERAL.0.into(), htax::GENERAL_INIT);
    g.w(r::O_START_ADDR.0.into(), BAR2);
    g.w(r::TRAFFIC_CLASS.0.into(), r::TRAFFIC_CLASS_INIT);
    g.w(np::general(np::SMFU).0.into(), np::GENERAL_INIT);
    g.w(r::STATUS_CONTROL.0.into(), 1);
    for n in 0..nodes {
        let (k, start) = (n + 1, BAR2 + WINDOW + u64::from(n) * 0x10_0000);
        g.w(r::interval_startaddr(k).0.into(), start);
        g.w(r::interval_endaddr(k).0.into(), start + 0x10_0000);
        let to = r::IntervalControl::to_node(NodeId(n as u16)).raw();
        g.w(r::interval_control(k).0.into(), to);
        g.w(r::vpid_t_start_addr(k).0.into(), DEVICE);
    }
    g.barrier();
}

/// Returns the offset in BAR 2 that leads to a register of the device of a node.
fn of(node: u64, at: u64) -> u64 {
    WINDOW + (node << 20) + at
}

/// Starts an emulator whose NICs wait for answers of devices longer than an answer takes on a busy
/// machine.
fn patient(args: &[&str]) -> Emu {
    Emu::with_config(args, Some("[nic]\nsmfu-timeout-ns = 5000000000"))
}

fn guests(emu: &Emu, n: u32) -> Vec<Guest> {
    let list = (0..n).map(|i| {
        let mut g = emu.guest(i as usize);
        init(&mut g, n);
        g.vfio.bus.devices.insert(DEVICE, vec![0; BYTES]);
        g
    });
    list.collect()
}

/// Sends a load without waiting for the answer.
fn ask(g: &mut Guest, id: u16, offset: u64, len: u32) {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(words(&[2, len]));
    g.vfio.send_bytes(&message(id, cmd::REGION_READ, 0, &body));
}

fn got(g: &mut Guest, id: u16) -> Vec<u8> {
    let reply = g.vfio.recv().unwrap();
    assert_eq!((reply.id, reply.error), (id, 0));
    reply.body[16..].to_vec()
}

fn chip(emu: &Emu, nic: usize, path: &str) -> u64 {
    emu.counters().nics[nic].chip(path).unwrap()
}

/// Stores arrive with the sizes and in the order in which the host made them. A load arrives behind
/// them.
#[test]
fn stores_arrive_as_they_were_made() {
    let emu = patient(&["--topology", "pair"]);
    let mut g = guests(&emu, 2);
    let mut want = Vec::new();
    for len in 1..=8u64 {
        for at in [0x100, 0x203, 0x30E] {
            let data: Vec<u8> = (0..len).map(|i| (len * 16 + i) as u8).collect();
            g[0].vfio.post(2, of(1, at), &data);
            want.push((DEVICE + at, Ok(data)));
        }
    }
    // One message contains many stores of all sizes.
    let mut body = 200u64.to_le_bytes().to_vec();
    for i in 0..200u64 {
        let len = 1 + i % 8;
        body.extend(of(1, 0x1000 + 8 * i).to_le_bytes());
        body.extend(words(&[2, len as u32]));
        body.extend((0x0807_0605_0403_0201u64 + i).to_le_bytes());
        let bytes = (0x0807_0605_0403_0201u64 + i).to_le_bytes();
        want.push((DEVICE + 0x1000 + 8 * i, Ok(bytes[..len as usize].to_vec())));
    }
    let m = message(0, cmd::REGION_WRITE_MULTI, NO_REPLY, &body);
    g[0].vfio.send_bytes(&m);
    ask(&mut g[0], 9, of(1, 0x1000), 3);
    want.push((DEVICE + 0x1000, Err(3)));
    for _ in &want {
        let m = g[1].vfio.recv_dma();
        let answer = g[1].vfio.bus.answer(&m);
        g[1].vfio.send_bytes(&answer);
    }
    assert_eq!(got(&mut g[0], 9), [1, 0, 0]);
    assert_eq!(g[1].vfio.bus.log, want);
    // A long store arrives in chunks that end at page boundaries, because the network carries it in
    // these chunks.
    let long: Vec<u8> = (0..9000).map(|i| i as u8).collect();
    g[0].vfio.post(2, of(1, 0x800), &long);
    ask(&mut g[0], 10, of(1, 0x800), 9000);
    while g[1].vfio.bus.devices[&DEVICE][0x800..][..9000] != long {
        let m = g[1].vfio.recv_dma();
        let answer = g[1].vfio.bus.answer(&m);
        g[1].vfio.send_bytes(&answer);
    }
    for _ in 0..3 {
        let m = g[1].vfio.recv_dma();
        let answer = g[1].vfio.bus.answer(&m);
        g[1].vfio.send_bytes(&answer);
    }
    assert_eq!(got(&mut g[0], 10), long);
    let host = emu.counters().nics[1].host.clone();
    assert_eq!(host.peer_stores, 224 + 3);
    assert_eq!((host.dma_outside_memory, host.protocol_errors), (0, 0));
}

/// While a load waits for its device, everything else continues: the host of the device, messages,
/// and a third node.
#[test]
fn a_load_that_takes_its_time_takes_nobody_elses() {
    let emu = patient(&["--topology", "ring:3"]);
    let mut g = guests(&emu, 3);
    g[1].vfio.bus.devices.get_mut(&DEVICE).unwrap()[0x40..0x48].fill(7);
    ask(&mut g[0], 1, of(1, 0x40), 8);
    let m = g[1].vfio.recv_dma();
    assert_eq!(
        (m.command, &m.body[8..]),
        (cmd::DMA_READ, &8u64.to_le_bytes()[..])
    );
    // The host of the device uses its NIC, and its stores do not wait for DMA messages.
    g[1].barrier();
    g[1].vfio.post(2, of(2, 8), &[3; 8]);
    g[2].barrier();
    g[2].barrier();
    assert_eq!(g[2].vfio.bus.devices[&DEVICE][8..16], [3; 8]);
    ask(&mut g[2], 2, of(1, 0x48), 8);
    let second = g[1].vfio.recv_dma();
    // The answers arrive in reverse order. Each completes its own load.
    for m in [&second, &m] {
        let answer = g[1].vfio.bus.answer(m);
        g[1].vfio.send_bytes(&answer);
    }
    assert_eq!(got(&mut g[2], 2), [0; 8]);
    assert_eq!(got(&mut g[0], 1), [7; 8]);
}

#[test]
fn no_answer_an_error_and_nonsense() {
    let emu = Emu::start(&["--topology", "pair"]);
    let mut g = guests(&emu, 2);
    // The client never answers, and the SMFU times out.
    let start = Instant::now();
    ask(&mut g[0], 1, of(1, 0), 8);
    let never = g[1].vfio.recv_dma();
    assert_eq!(got(&mut g[0], 1), [0xFF; 8]);
    assert!(start.elapsed() >= Duration::from_millis(490));
    assert_eq!(chip(&emu, 0, "smfu.timeouts"), 1);
    let te = emu.counters().nics[0].chip.clone();
    assert_eq!(te["events"][Te::SmfuTimeout as usize], 1);
    // The timeout is 10 s from now on, because the following answers must arrive in time, even on a
    // busy machine.
    g[0].w(r::TIMEOUT_CONTROL.0.into(), 10_000_000 | (1 << 32));
    g[0].barrier();
    // This answer arrives after the timeout.
    let late = g[1].vfio.bus.answer(&never);
    g[1].vfio.send_bytes(&late);
    g[1].barrier();
    // The device has no such register.
    ask(&mut g[0], 2, of(1, BYTES as u64), 8);
    let m = g[1].vfio.recv_dma();
    let error = g[1].vfio.bus.answer(&m);
    assert_eq!(error[12], ENODEV as u8);
    g[1].vfio.send_bytes(&error);
    assert_eq!(got(&mut g[0], 2), [0xFF; 8]);
    assert_eq!(emu.counters().nics[1].host.dma_outside_memory, 1);
    // A load whose answer is too short, too long, for another address or without a body returns all
    // ones. The next load works.
    let mut id = 2;
    for n in 0..4 {
        id += 1;
        ask(&mut g[0], id, of(1, 0), 8);
        let m = g[1].vfio.recv_dma();
        let mut body = m.body.clone();
        match n {
            0 => body.extend([1; 7]),
            1 => body.extend([1; 900]),
            2 => {
                body[0] ^= 1;
                body.extend([1; 8]);
            }
            _ => body.clear(),
        }
        g[1].vfio.send_bytes(&answer(m.id, m.command, 1, 0, &body));
        assert_eq!(got(&mut g[0], id), [0xFF; 8], "{n}");
    }
    // Unexpected answers and answers of another type are ignored. The right answer completes the
    // load.
    ask(&mut g[0], 99, of(1, 0), 8);
    let m = g[1].vfio.recv_dma();
    let right = g[1].vfio.bus.answer(&m);
    for (id, command) in [
        (m.id.wrapping_add(7), cmd::DMA_READ),
        (m.id, cmd::DMA_WRITE),
    ] {
        g[1].vfio.send_bytes(&answer(id, command, 1, 0, &m.body));
    }
    g[1].vfio.send_bytes(&right);
    assert_eq!(got(&mut g[0], 99), [0; 8]);
    assert_eq!(emu.counters().nics[1].host.protocol_errors, 6);
    assert_eq!(chip(&emu, 0, "smfu.timeouts"), 1);
}

#[test]
fn a_client_goes_with_what_it_was_asked() {
    let emu = patient(&["--topology", "pair"]);
    let mut g = guests(&emu, 2);
    g[0].vfio.post(2, of(1, 8), &[1; 8]);
    ask(&mut g[0], 1, of(1, 0), 8);
    g[1].vfio.recv_dma();
    drop(g.pop());
    assert_eq!(got(&mut g[0], 1), [0xFF; 8]);
    assert_eq!(chip(&emu, 0, "smfu.timeouts"), 0);
    assert_eq!(emu.counters().nics[1].host.peer_unanswered, 2);
    // Without a client, the load ends at once with all ones.
    ask(&mut g[0], 2, of(1, 0), 8);
    assert_eq!(got(&mut g[0], 2), [0xFF; 8]);
    // The next client receives the next DMA message.
    let mut next = emu.guest(1);
    init(&mut next, 2);
    next.vfio.bus.devices.insert(DEVICE, vec![5; BYTES]);
    ask(&mut g[0], 3, of(1, 0), 8);
    let m = next.vfio.recv_dma();
    let answer = next.vfio.bus.answer(&m);
    next.vfio.send_bytes(&answer);
    assert_eq!(got(&mut g[0], 3), [5; 8]);
}

/// A client may disconnect while its own load waits for the device of another host.
#[test]
fn who_asks_may_go_meanwhile() {
    let emu = patient(&["--topology", "pair"]);
    let mut g = guests(&emu, 2);
    ask(&mut g[0], 1, of(1, 0), 8);
    let m = g[1].vfio.recv_dma();
    drop(g.remove(0));
    emu.wait_for("the client has disconnected", |s| !s.nics[0].connected);
    let answer = g[0].vfio.bus.answer(&m);
    g[0].vfio.send_bytes(&answer);
    g[0].barrier();
    assert_eq!(emu.counters().nics[1].host.protocol_errors, 0);
}

/// An access that begins in memory and ends outside memory goes to the client.
#[test]
fn memory_that_straddles_its_end_is_no_memory() {
    let emu = patient(&["--topology", "pair"]);
    let mut g = guests(&emu, 2);
    let at = RAM - 4;
    g[0].w(r::vpid_t_start_addr(1).0.into(), 0);
    g[1].w(r::vpid_t_start_addr(2).0.into(), at);
    g[1].barrier();
    g[0].vfio.post(2, of(1, 0), &[1; 8]);
    let m = g[1].vfio.recv_dma();
    assert_eq!(m.body[..8], at.to_le_bytes());
    let error = g[1].vfio.bus.answer(&m);
    g[1].vfio.send_bytes(&error);
    g[1].barrier();
    assert_eq!(emu.counters().nics[1].host.dma_outside_memory, 1);
    assert_eq!(chip(&emu, 1, "drops.dma"), 1);
}

/// A client that behaves like QEMU: while its guest waits for a load, it answers no DMA message.
struct Qemu {
    out: Arc<Mutex<UnixStream>>,
    replies: Receiver<common::Reply>,
    /// Locked while the client works for the guest.
    lock: Arc<Mutex<Bus>>,
    stream: UnixStream,
    threads: Vec<JoinHandle<()>>,
    id: u16,
}

impl Qemu {
    fn new(g: Guest) -> Self {
        let stream = g.vfio.stream.try_clone().unwrap();
        stream.set_read_timeout(None).unwrap();
        let out = Arc::new(Mutex::new(stream.try_clone().unwrap()));
        let (to_replies, replies) = channel();
        let (to_loop, asked) = channel::<common::Reply>();
        let mut bus = Bus::default();
        bus.devices = g.vfio.bus.devices;
        let lock = Arc::new(Mutex::new(bus));
        let mut reader = Vfio::over(stream.try_clone().unwrap());
        let mut threads = vec![std::thread::spawn(move || {
            while let Some((m, flags)) = reader.recv_any() {
                let to = if flags & 0xf == 1 {
                    &to_replies
                } else {
                    &to_loop
                };
                if to.send(m).is_err() {
                    return;
                }
            }
        })];
        let (writer, bus) = (Arc::clone(&out), Arc::clone(&lock));
        threads.push(std::thread::spawn(move || {
            while let Ok(m) = asked.recv() {
                let mut bus = bus.lock().unwrap();
                let answer = bus.answer(&m);
                let done = writer.lock().unwrap().write_all(&answer);
                if done.is_err() {
                    return;
                }
            }
        }));
        Self {
            out,
            replies,
            lock,
            stream,
            threads,
            id: 0,
        }
    }

    fn post(&mut self, offset: u64, data: &[u8]) {
        let body = common::access(2, offset, data);
        let m = message(0, cmd::REGION_WRITE, NO_REPLY, &body);
        self.out.lock().unwrap().write_all(&m).unwrap();
    }

    fn load(&mut self, region: u32, offset: u64) -> u64 {
        let held = self.lock.lock().unwrap();
        self.id = self.id.wrapping_add(1);
        let mut body = offset.to_le_bytes().to_vec();
        body.extend(words(&[region, 8]));
        let m = message(self.id, cmd::REGION_READ, 0, &body);
        self.out.lock().unwrap().write_all(&m).unwrap();
        let reply = match self.replies.recv_timeout(DEADLINE) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Timeout) => panic!("a load timed out"),
            Err(e) => panic!("{e}"),
        };
        drop(held);
        assert_eq!((reply.id, reply.error), (self.id, 0));
        u64::from_le_bytes(reply.body[16..24].try_into().unwrap())
    }

    fn end(self) -> Bus {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        for t in self.threads {
            t.join().unwrap();
        }
        let bus = std::mem::take(&mut *self.lock.lock().unwrap());
        bus
    }
}

/// All random loads in both directions end. A load that returns no data returns all ones because of
/// a deadlock.
#[test]
fn crossing_loads_never_hang() {
    for (seed, timing) in [(1u64, "ideal"), (2, "unkind"), (3, "unkind")] {
        let seed_word = seed.to_string();
        let args = [
            "--topology",
            "ring:3",
            "--timing",
            timing,
            "--seed",
            &seed_word,
        ];
        let emu = patient(&args);
        let clients: Vec<Qemu> = guests(&emu, 3).into_iter().map(Qemu::new).collect();
        let run = |me: u64, mut q: Qemu| {
            let mut rng = SmallRng::seed_from_u64(seed * 10 + me);
            let (mut data, mut ones) = (0, 0);
            for i in 0..400u64 {
                let to = rng.random_range(0..3);
                let at = of(to, 0x100 * (me + 1));
                // A load returns the value that this host has stored before, or all ones.
                q.post(at, &(i + 1).to_le_bytes());
                match q.load(2, at) {
                    u64::MAX => ones += 1,
                    value => {
                        assert_eq!(value, i + 1);
                        data += 1;
                    }
                }
            }
            (q, data, ones)
        };
        let start = Instant::now();
        let ends: Vec<(Qemu, u64, u64)> = std::thread::scope(|s| {
            let all: Vec<_> = (0..)
                .zip(clients)
                .map(|(me, q)| s.spawn(move || run(me, q)))
                .collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let counters = emu.counters();
        let sum = |f: fn(&extoll_emulator::machine::HostStats) -> u64| -> u64 {
            counters.nics.iter().map(|n| f(&n.host)).sum()
        };
        let (data, ones) = ends
            .iter()
            .fold((0, 0), |(d, o), (_, data, ones)| (d + data, o + ones));
        let timeouts: u64 = (0..3).map(|n| chip(&emu, n, "smfu.timeouts")).sum();
        assert_eq!(timeouts, 0, "{timing}: {:?}", start.elapsed());
        assert_eq!(ones, sum(|h| h.peer_deadlocks), "{timing}");
        assert!(
            data > 0 && ones > 0,
            "{timing}: {data} data, {ones} all ones"
        );
        assert_eq!(sum(|h| h.protocol_errors + h.dma_outside_memory), 0);
        for (q, ..) in ends {
            q.end();
        }
    }
}

/// Two hosts store to each other's device, beyond the limit of stores in flight. The hosts receive
/// answers even while their stores are blocked, and each store arrives.
#[test]
fn floods_in_both_directions_lose_nothing() {
    let emu = Emu::start(&["--topology", "pair"]);
    let clients: Vec<Qemu> = guests(&emu, 2).into_iter().map(Qemu::new).collect();
    const STORES: u64 = 40_000;
    let run = |me: u64, mut q: Qemu| {
        for i in 0..STORES {
            q.post(of(1 - me, 8 * (i % 512)), &(i + 1).to_le_bytes());
        }
        // This load follows all stores of this host to its NIC.
        q.load(0, 0x8000);
        q
    };
    let ends: Vec<Qemu> = std::thread::scope(|s| {
        let all: Vec<_> = (0..)
            .zip(clients)
            .map(|(me, q)| s.spawn(move || run(me, q)))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let end = Instant::now() + DEADLINE;
    let done = |emu: &Emu| {
        let c = emu.counters();
        c.nics.iter().map(|n| n.host.peer_stores).sum::<u64>()
    };
    while done(&emu) < 2 * STORES {
        assert!(Instant::now() < end, "{} stores are done", done(&emu));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(
        (0..2).any(|n| chip(&emu, n, "smfu.stalls") > 0),
        "no store was stalled"
    );
    for n in 0..2 {
        assert_eq!(chip(&emu, n, "drops.smfu_congested"), 0);
    }
    for q in ends {
        let log = q.end().log;
        let stores = log.iter().map(|(_, data)| data.clone().unwrap());
        assert!(stores.eq((1..=STORES).map(|i| i.to_le_bytes().to_vec())));
    }
    // The emulator must still answer control requests.
    assert_eq!(
        emu.ctl(json!({"cmd": "peek", "nic": 0, "offset": 0x8050})),
        json!(1)
    );
}
