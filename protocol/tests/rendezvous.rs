//! The machine alone: both sides, step by step and at random.

use proptest::prelude::*;
use protocol::rendezvous::{
    Admitted, AnnouncePort, Buffer, Ended, FetchEvent, FetchPort, FetchState, Fetched, Fetches,
    FlightEvent, FlightState, Limits, Refusal, Sender, Shared, Unsent, Waiting,
};
use protocol::{flow::Flow, Memory, Refused, Slots, Time};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use wire::ext_eth::{match_key, Announcement, Completion, Side};
use wire::ids::NodeId;

struct Heap;

impl Memory for Heap {
    type Array<T> = Vec<T>;
    type Error = std::convert::Infallible;

    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>, Self::Error> {
        Ok((0..len).map(make).collect())
    }
}

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
    flight: 8,
    stalled_peer: 2,
    fetches: 8,
    source: 6,
    lossy_source: 2,
};
const LEN: u32 = 1000;

/// A port that does what it is told.
#[derive(Default)]
struct Port {
    answer: Option<Refused>,
    sent: Vec<u64>,
    buffers: VecDeque<u64>,
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

    fn buffer(&mut self, _: u32) -> Option<At> {
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
    Sender::new(8, 8).unwrap()
}

fn receiver() -> (Waiting<Heap>, Locked) {
    let fetches = Fetches::new(8, 8).unwrap();
    (Waiting::new(16).unwrap(), Locked(RefCell::new(fetches)))
}

fn done(side: Side, address: u64, peer: u16, error: u8) -> Completion {
    Completion {
        side,
        key: match_key(address, LEN),
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
    let lost = s.age(&Time(at), &LIMITS, |_| stalled += 1, |b| freed.push(b.0));
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
    assert!(matches!(s.dropped(NodeId(2), 4096), Ended::Unmatched));
    age(&mut s, 100);
    assert_eq!(s.given_up(), 1);
    assert!(
        matches!(s.notified(&other), Ended::Unmatched),
        "in quarantine"
    );
    // Nor does a drop message: its fetch may be under way.
    assert!(matches!(s.dropped(NodeId(1), 4096), Ended::Unmatched));
    assert_eq!(s.given_up(), 1);
}

#[test]
fn a_peer_that_stands_still_gets_few_until_it_fetches_again() {
    let mut s = sender();
    for i in 0..6 {
        announce(&mut s, 0, 1, 4096 * (i + 1));
    }
    // Never the last quarter.
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::Later);
    assert_eq!(s.admit(NodeId(2), &LIMITS), Admitted::Yes { prompt: true });
    age(&mut s, 10);
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::No(6));
    age(&mut s, 100);
    assert_eq!(s.active(), 0);
    // What it let time out is not forgotten.
    for i in 10..12 {
        assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::Yes { prompt: false });
        announce(&mut s, 100, 1, 4096 * i);
    }
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::No(2));
    s.notified(&done(Side::Sent, 4096 * 10, 1, 0));
    assert_eq!(s.admit(NodeId(1), &LIMITS), Admitted::Yes { prompt: true });
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
    assert!(w.push(&Time(at), NodeId(node), a, LEN, discard));
}

fn pump(w: &mut Waiting<Heap>, f: &Locked, at: u64, port: &mut Port) -> Vec<(u16, Refusal)> {
    let mut refused = Vec::new();
    w.pump(f, &Time(at), port, &LIMITS, |node, _, why| {
        refused.push((node.0, why));
    });
    f.0.borrow_mut().check().unwrap();
    refused
}

#[test]
fn a_source_at_its_bound_does_not_hold_up_others() {
    let (mut w, f) = receiver();
    for i in 1..=7 {
        push(&mut w, 0, 1, i, false);
    }
    push(&mut w, 0, 2, 100, false);
    let mut port = Port {
        buffers: (1..20).map(|i| i << 20).collect(),
        ..Port::default()
    };
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!(port.sent, [1, 2, 3, 4, 5, 6, 100]);
    assert_eq!(w.len(), 1);
    // It answers nothing: what waits of it is refused.
    f.0.borrow_mut().age(&Time(100), &LIMITS, drop);
    assert_eq!(
        pump(&mut w, &f, 100, &mut port),
        vec![(1, Refusal::Source(6))]
    );
    assert!(w.is_empty());
}

#[test]
fn a_scratch_buffer_that_is_lost_does_not_hold_up_others() {
    let (mut w, f) = receiver();
    f.with(|f| f.set_scratch(Some(At(1 << 30))));
    push(&mut w, 0, 1, 1, true);
    push(&mut w, 0, 1, 2, true);
    push(&mut w, 0, 2, 3, false);
    let mut port = Port {
        buffers: [1 << 20].into(),
        ..Port::default()
    };
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[1, 3][..], 1));
    f.0.borrow_mut().age(&Time(100), &LIMITS, drop);
    assert_eq!(
        pump(&mut w, &f, 100, &mut port),
        vec![(1, Refusal::Source(0))]
    );
    // The buffer comes back with the quarantine.
    f.0.borrow_mut().age(&Time(1100), &LIMITS, drop);
    assert_eq!(f.with(|f| f.set_scratch(None)), Some(At(1 << 30)));
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
    let ended = f.with(|f| f.notified(&done(Side::Received, 1 << 30, 1, 0)));
    assert!(matches!(ended, Fetched::Discarded), "{ended:?}");
    assert_eq!(port.buffers.len(), 1);
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
    let lost = f.0.borrow_mut().age(&Time(100), &LIMITS, drop);
    assert_eq!(lost, Some((NodeId(1), 1)));
    let other = f.with(|f| f.notified(&done(Side::Received, 1 << 20, 2, 0)));
    assert!(matches!(other, Fetched::Unmatched), "{other:?}");
    let late = f.with(|f| f.notified(&done(Side::Received, 1 << 20, 1, 0)));
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

#[test]
fn ended_is_the_end() {
    for e in FlightState::EVENTS {
        assert_eq!(FlightState::Ended.next(*e), None, "{e}");
    }
    for e in FetchState::EVENTS {
        assert_eq!(FetchState::Ended.next(*e), None, "{e}");
    }
    assert_eq!(FlightState::GivenUp.to_string(), "GivenUp");
    assert_eq!(FetchEvent::PostScratch.to_string(), "PostScratch");
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
        // Address to node and time of the announcement.
        let mut out: HashMap<u64, (u16, u64)> = HashMap::new();
        for op in ops {
            match op {
                Op::Announce(n, a) => {
                    let a = (a + 1) << 12;
                    if out.contains_key(&a) || !matches!(s.admit(NodeId(n), &LIMITS), Admitted::Yes { .. }) {
                        continue;
                    }
                    announce(&mut s, now, n, a);
                    out.insert(a, (n, now));
                }
                Op::Notify(n, a, e) => {
                    let a = (a + 1) << 12;
                    let right = out.get(&a).is_some_and(|o| o.0 == n);
                    let b = match s.notified(&done(Side::Sent, a, n, e)) {
                        Ended::Fetched(b) | Ended::Failed(b, _) | Ended::Late(b) => Some(b.0),
                        Ended::Dropped(_) => unreachable!(),
                        Ended::Unmatched => None,
                    };
                    prop_assert_eq!(b, right.then_some(a));
                    if right {
                        out.remove(&a);
                    }
                }
                Op::Drop(n, a) => {
                    let a = (a + 1) << 12;
                    if let Ended::Dropped(b) = s.dropped(NodeId(n), a) {
                        prop_assert_eq!(out.remove(&b.0).map(|o| o.0), Some(n));
                    }
                }
                Op::Wait(t) => {
                    now += t;
                    for a in age(&mut s, now).2 {
                        let (_, at) = out.remove(&a).expect("is out");
                        prop_assert!(now - at >= LIMITS.timeout + LIMITS.keep);
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
            prop_assert!(s.active() <= LIMITS.flight);
            s.check().unwrap();
        }
    }

    /// The table of bounded size is a map that remembers the order.
    #[test]
    fn slots_are_an_ordered_map(ops in prop::collection::vec((0u64..48, any::<bool>()), 0..400)) {
        let mut s: Slots<Heap, u64> = Slots::new(24).unwrap();
        let mut order: Vec<u64> = Vec::new();
        for (key, pop) in ops {
            // Same low bits, to have chains.
            let key = key << 40;
            match order.iter().position(|k| *k == key) {
                Some(i) => {
                    order.remove(i);
                    prop_assert_eq!(s.remove(key), Some(key));
                }
                None if order.len() == 24 => prop_assert_eq!(s.insert(key, 1), Err(1)),
                None => {
                    order.push(key);
                    prop_assert_eq!(s.insert(key, key), Ok(()));
                    prop_assert_eq!(s.insert(key, key), Err(key));
                }
            }
            if pop && !order.is_empty() {
                let oldest = order.remove(0);
                prop_assert_eq!(s.pop_oldest(), Some((oldest, oldest)));
            }
            let mut seen = Vec::new();
            s.for_each_mut(|k, _| {
                seen.push(k);
                true
            });
            prop_assert_eq!(&seen, &order);
            for pair in order.windows(2) {
                prop_assert_eq!(s.younger(pair[0]), Some(pair[1]));
            }
            let unique: HashSet<_> = seen.iter().collect();
            prop_assert_eq!((s.len(), s.room()), (unique.len(), 24 - order.len()));
        }
    }
}
