//! The machine alone: both sides, step by step and at random.

mod heap;

use heap::Heap;
use proptest::prelude::*;
use protocol::rendezvous::{
    Admitted, AnnouncePort, Announced, Buffer, Ended, FetchEvent, FetchPort, FetchState, Fetched,
    Fetches, FlightEvent, FlightState, Limits, Refusal, Sender, Shared, Unsent, Waiting,
};
use protocol::{Refused, Time};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use wire::ext_eth::{last_size, match_key, Announcement, Completion, Side};
use wire::ids::NodeId;

#[derive(Debug, PartialEq, Eq)]
struct At(u64);

impl Buffer for At {
    fn address(&self) -> u64 {
        self.0
    }
}

const LIMITS: Limits = Limits {
    stall: 10,
    timeout: 100,
    keep: 1000,
    patience: 20,
    flight: 16,
    stalled_peer: 2,
    fetches: 8,
    source: 6,
    lossy_source: 2,
    waiting: 12,
    slow_waiting: 4,
};
const LEN: u32 = 1000;
/// The port is never behind.
const NOW: Time = Time(u64::MAX);

/// A port that does what it is told.
#[derive(Default)]
struct Port {
    answer: Option<Refused>,
    sent: Vec<u64>,
    buffers: VecDeque<u64>,
    /// Longer ones there are none.
    largest: Option<u32>,
    /// Lengths that buffers were asked for.
    asked: Vec<u32>,
}

impl AnnouncePort for Port {
    fn announce(&mut self, _: NodeId, a: &Announcement) -> Result<(), Refused> {
        self.sent.push(a.address);
        self.answer.map_or(Ok(()), Err)
    }
}

impl FetchPort for Port {
    type Buffer = At;

    fn reserve(&mut self) -> Result<(), Refused> {
        Ok(())
    }

    fn buffer(&mut self, len: u32) -> Option<At> {
        self.asked.push(len);
        if len > self.largest.unwrap_or(u32::MAX) {
            return None;
        }
        self.buffers.pop_front().map(At)
    }

    fn get(&mut self, _: NodeId, a: &Announcement, _: u32, _: u64) -> Result<(), Refused> {
        self.sent.push(a.address);
        self.answer.map_or(Ok(()), Err)
    }
}

struct Locked(RefCell<Fetches<Heap, At>>);

impl Shared<Fetches<Heap, At>> for Locked {
    fn with<R>(&self, f: impl FnOnce(&mut Fetches<Heap, At>) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

fn sender() -> Sender<Heap, At> {
    Sender::new(16, 8).unwrap()
}

fn receiver() -> (Waiting<Heap>, Locked) {
    let fetches = Fetches::new(8, 24).unwrap();
    (Waiting::new(16).unwrap(), Locked(RefCell::new(fetches)))
}

fn done(side: Side, address: u64, peer: u16, error: u8) -> Completion {
    Completion {
        side,
        key: match_key(address, LEN),
        last: last_size(LEN),
        peer: NodeId(peer),
        error,
    }
}

fn announce(s: &mut Sender<Heap, At>, at: u64, node: u16, address: u64) {
    let result = s.announce(
        &Time(at),
        &mut Port::default(),
        NodeId(node),
        At(address),
        LEN,
    );
    assert_eq!(result, Ok(()));
}

fn age(s: &mut Sender<Heap, At>, at: u64) -> (u64, usize, Vec<u64>) {
    let (mut stalled, mut freed) = (0, Vec::new());
    let count = |_: &mut At| {
        stalled += 1;
        true
    };
    let (lost, all) = s.age(&Time(at), &LIMITS, NOW, count, |b| freed.push(b.0));
    assert!(all);
    s.check().unwrap();
    (lost.map_or(0, |l| l.1), stalled, freed)
}

#[test]
fn a_frame_that_is_fetched_late_keeps_its_memory_until_then() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    assert_eq!(age(&mut s, 9), (0, 0, vec![]));
    assert_eq!(age(&mut s, 10), (0, 1, vec![]));
    assert_eq!(age(&mut s, 100), (1, 0, vec![]));
    assert_eq!((s.active(), s.given_up()), (0, 1));
    assert_eq!(age(&mut s, 1099), (0, 0, vec![]));
    let late = s.notified(&done(Side::Sent, 4096, 1, 0));
    assert!(matches!(late, Ended::Late(At(4096))), "{late:?}");
    assert!(s.is_empty());
    announce(&mut s, 2000, 1, 4096);
    age(&mut s, 2100);
    assert_eq!(age(&mut s, 3099).2, vec![] as Vec<u64>);
    assert_eq!(age(&mut s, 3100).2, vec![4096]);
    assert_eq!(
        s.counts().made(FlightState::GivenUp, FlightEvent::Expire),
        1
    );
}

#[test]
fn a_clock_that_was_read_before_the_announcement_ages_nothing() {
    let mut s = sender();
    announce(&mut s, 5, 1, 4096);
    assert_eq!(age(&mut s, 4), (0, 0, vec![]));
    assert_eq!((s.active(), s.given_up()), (1, 0));
}

#[test]
fn only_the_peer_ends_a_frame() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    let other = done(Side::Sent, 4096, 2, 0);
    assert!(matches!(s.notified(&other), Ended::Unmatched));
    assert!(!dropped(&mut s, 0, 2, 4096));
    age(&mut s, 100);
    assert_eq!(s.given_up(), 1);
    assert!(
        matches!(s.notified(&other), Ended::Unmatched),
        "in quarantine"
    );
    // Nor does a drop message: its fetch may be under way.
    assert!(!dropped(&mut s, 100, 1, 4096));
    assert_eq!(s.given_up(), 1);
}

fn dropped(s: &mut Sender<Heap, At>, at: u64, node: u16, address: u64) -> bool {
    let found = s.dropped(&Time(at), NodeId(node), address, |_| {});
    s.check().unwrap();
    found
}

#[test]
fn a_frame_that_its_peer_dropped_stays_for_a_fetch_under_way() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    announce(&mut s, 0, 1, 8192);
    assert!(dropped(&mut s, 5, 1, 4096));
    assert_eq!((s.active(), s.given_up()), (1, 1));
    age(&mut s, 10);
    assert!(dropped(&mut s, 10, 1, 8192));
    assert_eq!((s.active(), s.given_up(), s.moving()), (0, 2, 0));
    assert_eq!(age(&mut s, 1004).2, vec![] as Vec<u64>);
    assert_eq!(age(&mut s, 1009).2, vec![4096]);
    let late = s.notified(&done(Side::Sent, 8192, 1, 0));
    assert!(matches!(late, Ended::Late(At(8192))), "{late:?}");
    assert!(s.is_empty());
    for state in [FlightState::Announced, FlightState::Stalled] {
        assert_eq!(s.counts().made(state, FlightEvent::Dropped), 1);
    }
    // Without room in the quarantine it is not forgotten either.
    for i in 1..=9 {
        announce(&mut s, 2000, 1, 4096 * i);
    }
    for i in 1..=9 {
        assert!(dropped(&mut s, 2000, 1, 4096 * i));
    }
    assert_eq!((s.active(), s.given_up(), s.moving()), (1, 8, 0));
    assert_eq!(age(&mut s, 3000).2.len(), 8);
}

#[test]
fn what_the_port_may_still_send_keeps_its_memory() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    age(&mut s, 100);
    let (mut w, f) = receiver();
    push(&mut w, 100, 1, 1, false);
    pump(&mut w, &f, 100, &mut plenty());
    for (settled, freed) in [(0, 0), (100, 0), (101, 1)] {
        let mut n = 0;
        s.age(&Time(5000), &LIMITS, Time(settled), |_| true, |_| n += 1);
        assert_eq!(n, freed, "{settled}");
        n = 0;
        let fetches = &f.0;
        fetches
            .borrow_mut()
            .age(&Time(5000), &LIMITS, Time(settled), |_| n += 1);
        assert_eq!(n, freed, "{settled}");
    }
}

#[test]
fn another_get_of_the_same_peer_does_not_end_a_frame() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    let other = Completion {
        last: 0,
        ..done(Side::Sent, 4096, 1, 0)
    };
    assert!(matches!(s.notified(&other), Ended::Unmatched));
    let (mut w, f) = receiver();
    push(&mut w, 0, 1, 1, false);
    let mut port = Port {
        buffers: [1 << 20].into(),
        ..Port::default()
    };
    pump(&mut w, &f, 0, &mut port);
    let other = Completion {
        last: 0,
        ..done(Side::Received, 1 << 20, 1, 0)
    };
    let ended = f.with(|f| f.notified(&Time(0), &other));
    assert!(matches!(ended, Fetched::Unmatched), "{ended:?}");
    assert_eq!(f.0.borrow().len(), 1);
}

#[test]
fn a_peer_that_stands_still_gets_few_until_it_fetches_again() {
    let mut s = sender();
    for i in 0..12 {
        let admitted = s.admit(NodeId(1), &LIMITS);
        if i < 8 {
            assert_eq!(admitted, Admitted::Yes { prompt: true }, "{i}");
        }
        announce(&mut s, 0, 1, 4096 * (i + 1));
    }
    // Never the last quarter.
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::Later);
    assert_eq!(s.admit(NodeId(2), &LIMITS), Admitted::Yes { prompt: true });
    age(&mut s, 10);
    assert_eq!(s.moving(), 0);
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::No(12));
    for i in 4..12 {
        s.notified(&done(Side::Sent, 4096 * (i + 1), 1, 0));
    }
    age(&mut s, 100);
    assert_eq!((s.active(), s.given_up()), (0, 4));
    // What it let time out is not forgotten.
    for i in 20..22 {
        assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::Yes { prompt: false });
        announce(&mut s, 100, 1, 4096 * i);
    }
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::No(2));
    s.notified(&done(Side::Sent, 4096 * 20, 1, 0));
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::Yes { prompt: true });
}

#[test]
fn few_in_flight_leave_a_dead_peer_fewer_still() {
    for flight in 4..=32 {
        let mut s: Sender<Heap, At> = Sender::new(64, 64).unwrap();
        let limits = Limits {
            flight,
            stalled_peer: 16,
            ..LIMITS
        };
        // Each dead peer gets as much as it can, again and again.
        for (now, peer) in (0..2000).step_by(11).zip((1..5).cycle()) {
            s.age(&Time(now), &limits, NOW, |_| true, drop);
            while let Admitted::Yes { .. } = s.admit(NodeId(peer), &limits) {
                let address = 4096
                    * (1 + s.counts().made(FlightState::Announced, FlightEvent::Stall)
                        + s.moving() as u64);
                announce(&mut s, now, peer, address);
            }
            s.age(&Time(now + 10), &limits, NOW, |_| true, drop);
            let admitted = s.admit(NodeId(9), &limits);
            assert_eq!(admitted, Admitted::Yes { prompt: true }, "{flight}, {now}");
        }
    }
}

#[test]
fn what_can_not_be_sent_comes_back() {
    let mut s = sender();
    for refused in [Refused::Later, Refused::Never] {
        let mut port = Port {
            answer: Some(refused),
            ..Port::default()
        };
        let result = s.announce(&Time(0), &mut port, NodeId(1), At(4096), LEN);
        assert_eq!(result, Err((At(4096), Unsent::Refused(refused))));
        assert!(s.is_empty());
    }
    announce(&mut s, 0, 1, 4096);
    let twice = s.announce(&Time(0), &mut Port::default(), NodeId(2), At(4096), LEN);
    assert_eq!(twice, Err((At(4096), Unsent::Table)));
    assert_eq!(s.active(), 1);
    s.check().unwrap();
}

fn push(w: &mut Waiting<Heap>, at: u64, node: u16, address: u64, discard: bool) {
    let a = Announcement {
        address,
        len: LEN.into(),
    };
    let announced = Announced {
        node: NodeId(node),
        announcement: a,
        len: LEN,
        discard,
    };
    w.horizon().emptied(Time(at));
    assert_eq!(w.push(&Time(at), announced, &LIMITS), Ok(()));
    w.check(&LIMITS).unwrap();
}

fn pump(w: &mut Waiting<Heap>, f: &Locked, at: u64, port: &mut Port) -> Vec<(u16, Refusal)> {
    let mut refused = Vec::new();
    w.pump(f, &Time(at), port, &LIMITS, |node, _, why| {
        refused.push((node.0, why));
    });
    f.0.borrow_mut().check().unwrap();
    w.check(&LIMITS).unwrap();
    refused
}

/// Has `node` answer something, so that it is known.
fn acquaint(f: &Locked, node: u16) {
    let (mut w, mut port) = (Waiting::new(1).unwrap(), Port::default());
    let address = (1 << 40) | (u64::from(node) << 32);
    port.buffers.push_back(address);
    push(&mut w, 0, node, 1, false);
    pump(&mut w, f, 0, &mut port);
    // One stays open: what nothing is owed by is forgotten.
    port.buffers.push_back(address + 0x1_0000);
    push(&mut w, 0, node, 1, false);
    pump(&mut w, f, 0, &mut port);
    let ended = f.with(|f| f.notified(&Time(0), &done(Side::Received, address, node, 0)));
    assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
}

fn plenty() -> Port {
    Port {
        buffers: (1..100).map(|i| i << 20).collect(),
        ..Port::default()
    }
}

#[test]
fn a_source_at_its_bound_does_not_hold_up_others() {
    let (mut w, f) = receiver();
    acquaint(&f, 1);
    for i in 1..=5 {
        push(&mut w, 0, 1, i, false);
    }
    push(&mut w, 0, 2, 100, false);
    push(&mut w, 50, 1, 6, false);
    let mut port = plenty();
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!(port.sent, [1, 2, 3, 4, 5, 100]);
    assert_eq!(w.len(), 1);
    // It answers nothing: it gets one more, to show whether it does again, and nothing else while that is open.
    f.0.borrow_mut().age(&Time(100), &LIMITS, NOW, drop);
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    push(&mut w, 105, 1, 7, false);
    assert_eq!(pump(&mut w, &f, 105, &mut port), vec![]);
    assert_eq!(
        (port.sent.as_slice(), w.len()),
        (&[1, 2, 3, 4, 5, 100, 6][..], 1)
    );
    assert_eq!(
        pump(&mut w, &f, 110, &mut port),
        vec![(1, Refusal::Source(7))]
    );
    assert!(w.is_empty());
}

#[test]
fn a_source_that_answers_again_gets_more_than_one() {
    let (mut w, f) = receiver();
    let mut port = plenty();
    for i in 1..=2 {
        push(&mut w, 0, 1, i, false);
    }
    pump(&mut w, &f, 0, &mut port);
    f.0.borrow_mut().age(&Time(100), &LIMITS, NOW, drop);
    assert_eq!(f.0.borrow().lost(), 2);
    port.sent.clear();
    for i in 3..=6 {
        push(&mut w, 100, 1, i, false);
    }
    // The others wait for what becomes of the first one.
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3][..], 3));
    let ended = f.with(|f| f.notified(&Time(101), &done(Side::Received, 3 << 20, 1, 0)));
    assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
    pump(&mut w, &f, 101, &mut port);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3, 4, 5][..], 1));
}

#[test]
fn what_nothing_is_known_of_gets_few() {
    let (mut w, f) = receiver();
    let mut port = plenty();
    for i in 1..=4 {
        push(&mut w, 0, 1, i, false);
    }
    pump(&mut w, &f, 0, &mut port);
    assert_eq!((port.sent.as_slice(), w.len()), (&[1, 2][..], 2));
    f.with(|f| f.notified(&Time(0), &done(Side::Received, 1 << 20, 1, 0)));
    pump(&mut w, &f, 0, &mut port);
    assert_eq!((port.sent.as_slice(), w.len()), (&[1, 2, 3, 4][..], 0));
}

#[test]
fn silent_sources_do_not_take_all_places() {
    // As large as those of a driver.
    let limits = Limits {
        fetches: 256,
        source: 192,
        lossy_source: 48,
        waiting: 512,
        slow_waiting: 64,
        ..LIMITS
    };
    for (answers, nodes) in [(false, 40), (true, 15)] {
        let f = Locked(RefCell::new(Fetches::new(256, 256).unwrap()));
        let mut w: Waiting<Heap> = Waiting::new(1024).unwrap();
        let mut port = Port {
            buffers: (1..10_000).map(|i| i << 20).collect(),
            ..Port::default()
        };
        let announced = |node, address| Announced {
            node: NodeId(node),
            announcement: Announcement {
                address,
                len: LEN.into(),
            },
            len: LEN,
            discard: false,
        };
        let pump = |w: &mut Waiting<Heap>, port: &mut Port, at| {
            w.pump(&f, &Time(at), port, &limits, |_, _, _| {});
            f.0.borrow_mut().check().unwrap();
            w.check(&limits).unwrap();
        };
        let end = |at, local, node| {
            let ended = f.with(|f| f.notified(&Time(at), &done(Side::Received, local, node, 0)));
            assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
        };
        for (now, node) in (0..).step_by(40).zip(1..=nodes) {
            w.horizon().emptied(Time(now));
            let first = port.buffers[0];
            for i in 0..w.room().min(500) {
                assert_eq!(
                    w.push(&Time(now), announced(node, i as u64), &limits),
                    Ok(())
                );
            }
            pump(&mut w, &mut port, now);
            if answers {
                end(now, first, node);
                pump(&mut w, &mut port, now);
            }
            // Before long somebody else is served at once.
            let now = now + 30;
            f.0.borrow_mut().age(&Time(now), &limits, NOW, drop);
            pump(&mut w, &mut port, now);
            assert!(w.room() > 0, "{node}, {answers}");
            let (local, before) = (port.buffers[0], port.sent.len());
            assert_eq!(w.push(&Time(now), announced(99, 77), &limits), Ok(()));
            pump(&mut w, &mut port, now);
            assert_eq!(port.sent[before..], [77], "{node}, {answers}");
            end(now, local, 99);
        }
        assert!(f.0.borrow().lost() > 200);
    }
}

#[test]
fn one_source_does_not_fill_the_table() {
    let (mut w, f) = receiver();
    let a = Announced {
        node: NodeId(1),
        announcement: Announcement { address: 1, len: 5 },
        len: 5,
        discard: true,
    };
    for _ in 0..LIMITS.slow_waiting {
        assert_eq!(w.push(&Time(0), a, &LIMITS), Ok(()));
    }
    assert_eq!(w.push(&Time(0), a, &LIMITS), Err(Refusal::Waiting(4)));
    let b = Announced {
        discard: false,
        len: LEN,
        ..a
    };
    for _ in LIMITS.slow_waiting..LIMITS.waiting {
        assert_eq!(w.push(&Time(0), b, &LIMITS), Ok(()));
    }
    assert_eq!(w.push(&Time(0), b, &LIMITS), Err(Refusal::Waiting(12)));
    assert_eq!(w.room(), 4);
    w.check(&LIMITS).unwrap();
    assert_eq!(w.flush(&f), 12);
    w.check(&LIMITS).unwrap();
}

#[test]
fn what_waits_for_a_source_that_answers_nothing_is_bounded() {
    let (mut w, f) = receiver();
    let mut port = plenty();
    for i in 1..=12 {
        push(&mut w, 0, 1, i, false);
    }
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!(w.len(), 10);
    assert_eq!(pump(&mut w, &f, 19, &mut port), vec![]);
    let refused = pump(&mut w, &f, 20, &mut port);
    assert_eq!(refused.len(), 6);
    assert_eq!(w.len(), LIMITS.slow_waiting);
}

#[test]
fn a_scratch_buffer_that_is_not_answered_does_not_hold_up_others() {
    let (mut w, f) = receiver();
    f.with(|f| f.set_scratch(Some(At(1 << 30))));
    push(&mut w, 0, 1, 1, true);
    push(&mut w, 0, 1, 2, true);
    push(&mut w, 0, 2, 3, false);
    push(&mut w, 0, 3, 4, true);
    let mut port = Port {
        buffers: [1 << 20].into(),
        ..Port::default()
    };
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[1, 3][..], 2));
    // What its source has wait behind it does not wait.
    assert_eq!(
        pump(&mut w, &f, 10, &mut port),
        vec![(1, Refusal::Source(1))]
    );
    // Lost with its fetch; what waits for another one gets it.
    assert!(!f.0.borrow().needs_scratch());
    f.0.borrow_mut().age(&Time(100), &LIMITS, NOW, drop);
    assert!(f.0.borrow().needs_scratch());
    f.with(|f| f.set_scratch(Some(At(1 << 31))));
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[1, 3, 4][..], 0));
    // The first one is kept as any other, and its source gets no other one.
    push(&mut w, 100, 1, 5, true);
    assert_eq!(
        pump(&mut w, &f, 101, &mut port),
        vec![(1, Refusal::Source(1))]
    );
    let mut freed = Vec::new();
    f.0.borrow_mut()
        .age(&Time(1100), &LIMITS, NOW, |b| freed.push(b.0));
    assert!(freed.contains(&(1 << 30)), "{freed:?}");
}

#[test]
fn what_waited_too_long_is_not_delivered() {
    let (mut w, f) = receiver();
    f.with(|f| f.set_scratch(Some(At(1 << 30))));
    push(&mut w, 0, 1, 1, false);
    let mut port = Port {
        buffers: [1 << 20].into(),
        ..Port::default()
    };
    // Its sender has given it up, and may use the memory for something else before long.
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    let ended = f.with(|f| f.notified(&Time(100), &done(Side::Received, 1 << 30, 1, 0)));
    assert!(matches!(ended, Fetched::Discarded), "{ended:?}");
    assert_eq!(port.buffers.len(), 1);
    // It may have done so: what it sends now is nobody's business.
    push(&mut w, 1000, 1, 2, false);
    assert_eq!(pump(&mut w, &f, 1200, &mut port), vec![(1, Refusal::Stale)]);
    assert_eq!(port.sent, [1]);
}

#[test]
fn the_age_of_what_lay_in_the_mailbox_counts() {
    let (mut w, f) = receiver();
    let announced = Announced {
        node: NodeId(1),
        announcement: Announcement {
            address: 1,
            len: LEN.into(),
        },
        len: LEN,
        discard: false,
    };
    // Read just now, but the mailbox was last seen empty long ago.
    w.horizon().emptied(Time(300));
    assert_eq!(w.push(&Time(1000), announced, &LIMITS), Ok(()));
    let mut port = plenty();
    assert_eq!(pump(&mut w, &f, 1000, &mut port), vec![(1, Refusal::Stale)]);
    // The mailbox is never empty, but what was in it at 980 has been read.
    w.horizon().mark(Time(980), 3);
    w.horizon().took(2);
    assert_eq!(w.horizon().since(), Time(300));
    w.horizon().took(1);
    assert_eq!(w.horizon().since(), Time(980));
    assert_eq!(w.push(&Time(1000), announced, &LIMITS), Ok(()));
    assert_eq!(pump(&mut w, &f, 1000, &mut port), vec![]);
    assert_eq!(port.sent, [1]);
}

#[test]
fn no_memory_for_long_frames_does_not_hold_up_short_ones() {
    let (mut w, f) = receiver();
    let mut port = plenty();
    port.largest = Some(100);
    for (i, len) in [(1, 5000), (2, 6000), (3, 60), (4, 5000)] {
        let announced = Announced {
            node: NodeId(i as u16),
            announcement: Announcement {
                address: i,
                len: len.into(),
            },
            len,
            discard: false,
        };
        assert_eq!(w.push(&Time(0), announced, &LIMITS), Ok(()));
    }
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3][..], 3));
    // Nor is memory asked for again and again that is not there.
    assert_eq!(port.asked, [5000, 60]);
}

#[test]
fn a_lost_fetch_keeps_its_buffer_and_delivers_nothing() {
    let (mut w, f) = receiver();
    push(&mut w, 0, 1, 1, false);
    let mut port = Port {
        buffers: [1 << 20].into(),
        ..Port::default()
    };
    pump(&mut w, &f, 0, &mut port);
    let lost = f.0.borrow_mut().age(&Time(100), &LIMITS, NOW, drop);
    assert_eq!(lost, Some((NodeId(1), 1)));
    let other = f.with(|f| f.notified(&Time(0), &done(Side::Received, 1 << 20, 2, 0)));
    assert!(matches!(other, Fetched::Unmatched), "{other:?}");
    let late = f.with(|f| f.notified(&Time(0), &done(Side::Received, 1 << 20, 1, 0)));
    assert!(matches!(late, Fetched::Late(Some(At(_)))), "{late:?}");
    assert!(f.0.borrow().is_empty());
}

#[test]
fn a_refused_get_waits_again() {
    let (mut w, f) = receiver();
    push(&mut w, 0, 1, 1, false);
    let mut port = Port {
        answer: Some(Refused::Later),
        buffers: [1 << 20, 1 << 21].into(),
        ..Port::default()
    };
    pump(&mut w, &f, 0, &mut port);
    assert_eq!((w.len(), f.0.borrow().len()), (1, 0));
    port.answer = Some(Refused::Never);
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![(1, Refusal::Port)]);
    assert!(w.is_empty() && f.0.borrow().is_empty());
    let made = |s, e| f.0.borrow().counts().made(s, e);
    assert_eq!(made(FetchState::Fetching, FetchEvent::NotPosted), 2);
    assert_eq!(made(FetchState::Waiting, FetchEvent::Refuse), 1);
}

#[derive(Debug, Clone)]
enum Op {
    Announce(u16, u64),
    Notify(u16, u64, u8),
    Drop(u16, u64),
    Wait(u64),
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u16..3, 0u64..24).prop_map(|(n, a)| Op::Announce(n, a)),
        3 => (0u16..3, 0u64..24, 0u8..2).prop_map(|(n, a, e)| Op::Notify(n, a, e)),
        1 => (0u16..3, 0u64..24).prop_map(|(n, a)| Op::Drop(n, a)),
        2 => (0u64..60).prop_map(Op::Wait),
        1 => (0u64..1500).prop_map(Op::Wait),
        1 => Just(Op::Flush),
    ]
}

proptest! {
    /// No buffer is given back twice, too early, or never.
    #[test]
    fn the_sender_gives_each_buffer_back_once(ops in prop::collection::vec(op(), 0..300)) {
        let mut s = sender();
        let mut now = 0u64;
        // Address to node, and until when it is kept at least.
        let mut out: HashMap<u64, (u16, u64)> = HashMap::new();
        for op in ops {
            match op {
                Op::Announce(n, a) => {
                    let a = (a + 1) << 12;
                    if out.contains_key(&a) || !matches!(s.admit(NodeId(n), &LIMITS), Admitted::Yes { .. }) {
                        continue;
                    }
                    announce(&mut s, now, n, a);
                    out.insert(a, (n, now + LIMITS.timeout + LIMITS.keep));
                }
                Op::Notify(n, a, e) => {
                    let a = (a + 1) << 12;
                    let right = out.get(&a).is_some_and(|o| o.0 == n);
                    let b = match s.notified(&done(Side::Sent, a, n, e)) {
                        Ended::Fetched(b) | Ended::Failed(b, _) | Ended::Late(b) => Some(b.0),
                        Ended::Unmatched => None,
                    };
                    prop_assert_eq!(b, right.then_some(a));
                    if right {
                        out.remove(&a);
                    }
                }
                Op::Drop(n, a) => {
                    let a = (a + 1) << 12;
                    let right = out.get(&a).is_some_and(|o| o.0 == n);
                    let found = s.dropped(&Time(now), NodeId(n), a, |_| {});
                    prop_assert!(right || !found);
                    // It is kept as long as one that is given up now.
                    if let (true, Some(o)) = (found, out.get_mut(&a)) {
                        o.1 = now + LIMITS.keep;
                    }
                }
                Op::Wait(t) => {
                    now += t;
                    for a in age(&mut s, now).2 {
                        let (_, until) = out.remove(&a).expect("is out");
                        prop_assert!(now >= until);
                    }
                }
                Op::Flush => {
                    while let Some((_, b)) = s.flush_one() {
                        prop_assert!(out.remove(&b.0).is_some());
                    }
                    prop_assert!(out.is_empty());
                }
            }
            prop_assert_eq!(out.len(), s.active() + s.given_up());
            prop_assert!(s.moving() <= LIMITS.flight);
            s.check().unwrap();
        }
    }
}
