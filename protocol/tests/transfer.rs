//! Transfers: the rules one by one.

mod heap;
mod rma;

use heap::Heap;
use protocol::transfer::{
    Capacity, Done, Event, Failure, Fragment, Limits, Lock, Move, Queue, Quiet, Refusal, Tell,
    Terms, Ticket, Transfers,
};
use protocol::Time;
use rma::*;
use wire::ids::NodeId;
use wire::rma::{LockTarget, Operation};
use wire::transfer::{Direction, Fault, FaultCause, FaultUnit};

type Table = Transfers<Heap, u32>;

const CAPACITY: Capacity = Capacity {
    transfers: 16,
    fragments: 40,
    commands: 24,
};
const GET: Move = Move {
    direction: Direction::Get,
    tell: Tell::Nothing,
    confirm: false,
};
const PUT: Move = Move {
    direction: Direction::Put,
    ..GET
};
const CONFIRMED: Move = Move {
    confirm: true,
    ..PUT
};

fn table() -> Table {
    Transfers::new(&CAPACITY, &LIMITS).unwrap()
}

fn list(parts: &[(u64, u64)]) -> Vec<Fragment> {
    let fragment = |&(address, len)| Fragment { address, len };
    parts.iter().map(fragment).collect()
}

fn submit(
    t: &mut Table,
    terms: &Terms,
    what: Move,
    local: &[(u64, u64)],
    remote: &[(u64, u64)],
) -> Result<Ticket, Refusal> {
    let (l, r) = (list(local), list(remote));
    let token = t.counters().submitted as u32;
    let taken = t.submit(terms, what, l.iter().copied(), r.iter().copied(), token);
    t.check().unwrap();
    taken.map_err(|(why, _)| why)
}

fn get(t: &mut Table, node: u16, local: u64, len: u64) -> Ticket {
    let remote = [(0x10_0000, len)];
    submit(t, &terms(node, 100), GET, &[(local, len)], &remote).unwrap()
}

fn post(t: &mut Table, nic: &mut Nic, now: u64) -> Vec<Sent> {
    t.post(nic, Time(now), 1000);
    t.check().unwrap();
    std::mem::take(&mut nic.posted)
}

fn take(t: &mut Table, sent: &Sent, error: u8) -> bool {
    let taken = t.take(&answer(sent, error).unwrap());
    t.check().unwrap();
    taken
}

fn event(t: &mut Table) -> Option<Event<u32>> {
    let event = t.next_event(Queue::Direct)?;
    if event.quiet.is_none() {
        t.told(event.ticket);
    }
    t.check().unwrap();
    Some(event)
}

/// The next event is both.
fn ends(t: &mut Table, ticket: Ticket, outcome: Result<Done, Failure>) {
    let e = event(t).expect("no event");
    assert_eq!(
        (e.ticket, e.outcome, e.quiet),
        (ticket, Some(outcome), Some(Quiet::Settled))
    );
}

fn bytes(bytes: u64) -> Result<Done, Failure> {
    Ok(Done { bytes, word: 0 })
}

#[test]
fn fragments_are_cut_where_either_list_is() {
    let (mut t, mut nic) = (table(), nic());
    let local = [(0x1000, 100), (0x3000, 1), (0x5000, 2999)];
    // The second and third continue each other.
    let remote = [(0x8000, 50), (0x9000, 60), (0x903C, 2990)];
    let id = submit(&mut t, &terms(1, 100), PUT, &local, &remote).unwrap();
    let mut all = Vec::new();
    loop {
        let sent = post(&mut t, &mut nic, 0);
        if sent.is_empty() {
            break;
        }
        for s in &sent {
            let Operation::Put {
                local, remote, len, ..
            } = s.descriptor.op
            else {
                panic!("{s:?}");
            };
            all.push((local, remote, len));
            assert!(take(&mut t, s, 0));
        }
    }
    assert_eq!(
        all,
        [
            (0x1000, 0x8000, 50),
            (0x1032, 0x9000, 50),
            (0x3000, 0x9032, 1),
            (0x5000, 0x9033, 1024),
            (0x5400, 0x9433, 1024),
            (0x5800, 0x9833, 951),
        ]
    );
    ends(&mut t, id, bytes(3100));
    assert!(t.is_empty());
}

#[test]
fn what_is_no_transfer_is_refused() {
    let mut t = table();
    let ok = [(0x1000, 8)];
    for (local, remote) in [
        (&[][..], &[][..]),
        (&ok[..], &[(0, 7)][..]),
        (&[(0x1000, 0), (0x2000, 8)][..], &ok[..]),
        (&[(u64::MAX, 2)][..], &[(0, 2)][..]),
        (&[(0, u64::MAX), (0, 2)][..], &[(0, 1)][..]),
    ] {
        let r = submit(&mut t, &terms(1, 9), GET, local, remote);
        assert_eq!(r, Err(Refusal::Invalid));
    }
    assert_eq!(t.counters().refused_invalid, 5);
    // The highest address there is.
    submit(&mut t, &terms(1, 9), GET, &[(u64::MAX, 1)], &[(0, 1)]).unwrap();
    let lock = Lock {
        at: LockTarget::Completer,
        number: 1 << 24,
        compare: 0,
        add: 0,
    };
    let r = t.submit_lock(&terms(1, 9), lock, 0);
    assert_eq!(r.unwrap_err().0, Refusal::Invalid);
}

#[test]
fn tables_are_bounded_and_give_their_places_back() {
    let mut t = table();
    for i in 0..8 {
        get(&mut t, 1, 0x1000 * i, 64);
    }
    let at = |t: &mut Table, node, n: u64| {
        let parts: Vec<_> = (0..n).map(|i| (i * 0x1000, 1)).collect();
        submit(t, &terms(node, 9), GET, &parts, &[(0, n)])
    };
    assert_eq!(at(&mut t, 1, 1), Err(Refusal::Peer));
    assert_eq!(at(&mut t, 2, 24), Err(Refusal::Fragments));
    for node in 2..10 {
        at(&mut t, node, 1).unwrap();
    }
    assert_eq!(at(&mut t, 20, 1), Err(Refusal::Transfers));
    let c = *t.counters();
    assert_eq!(
        (c.refused_peer, c.refused_fragments, c.refused_transfers),
        (1, 1, 1)
    );
    t.close(Quiet::Closed, Time(0), usize::MAX);
    // The outcome of what was never posted is all there is to tell.
    for _ in 0..16 {
        let e = event(&mut t).unwrap();
        assert_eq!(e.outcome, Some(Err(Failure::Down)));
        assert_eq!(e.quiet, Some(Quiet::Settled));
    }
    assert!(event(&mut t).is_none() && t.is_empty());
    at(&mut t, 20, 15).unwrap();
}

#[test]
fn peers_take_turns_and_their_windows_are_bounded() {
    let (mut t, mut nic) = (table(), nic());
    get(&mut t, 1, 0x10_0000, 100 * 1024);
    get(&mut t, 1, 0x20_0000, 100 * 1024);
    get(&mut t, 2, 0x30_0000, 2048);
    let sent = post(&mut t, &mut nic, 0);
    let order: Vec<_> = sent
        .iter()
        .map(|s| match s.descriptor.op {
            Operation::Get { local, .. } => (s.descriptor.node.0, local >> 20),
            _ => panic!("{s:?}"),
        })
        .collect();
    assert_eq!(order, [(1, 1), (2, 3), (1, 2), (2, 3), (1, 1), (1, 2)]);
    // One answered, one posted.
    assert!(take(&mut t, &sent[0], 0));
    assert_eq!(post(&mut t, &mut nic, 0).len(), 1);
    // Without room the turn stays where it was.
    nic.room = 0;
    for s in &sent[1..4] {
        take(&mut t, s, 0);
    }
    assert_eq!(post(&mut t, &mut nic, 0).len(), 0);
    nic.room = 1;
    assert_eq!(post(&mut t, &mut nic, 0).len(), 1);
    // In small steps.
    take(&mut t, &sent[4], 0);
    nic.room = usize::MAX;
    let p = t.post(&mut nic, Time(0), 1);
    assert_eq!((p.commands, p.more), (1, true));
}

#[test]
fn commands_in_flight_are_bounded_for_all_together() {
    let (mut t, mut nic) = (table(), nic());
    for node in 0..8 {
        get(&mut t, node, 0x1_0000, 8192);
    }
    let sent = post(&mut t, &mut nic, 0);
    assert_eq!(sent.len(), 24);
    assert!(take(&mut t, &sent[3], 0));
    assert_eq!(post(&mut t, &mut nic, 0).len(), 1);
}

#[test]
fn a_confirmed_put_ends_with_its_lock() {
    let (mut t, mut nic) = (table(), nic());
    let id = submit(&mut t, &terms(1, 9), CONFIRMED, &[(0, 2000)], &[(0, 2000)]).unwrap();
    let sent = post(&mut t, &mut nic, 0);
    assert_eq!(sent.len(), 3);
    assert!(matches!(
        sent[2].descriptor.op,
        Operation::Lock { add: 0, .. }
    ));
    // In another order: units of different nodes report.
    assert!(take(&mut t, &sent[2], 0) && take(&mut t, &sent[0], 0));
    assert!(event(&mut t).is_none());
    assert!(take(&mut t, &sent[1], 0));
    ends(&mut t, id, bytes(2000));
    // It is no answer to anything else.
    assert!(!take(&mut t, &sent[2], 0));
    assert_eq!(t.counters().unclaimed, 1);
}

#[test]
fn the_peer_is_told_as_asked() {
    let tell = |tell, direction| {
        let (mut t, mut nic) = (table(), nic());
        let what = Move {
            direction,
            tell,
            confirm: false,
        };
        let id = submit(&mut t, &terms(1, 9), what, &[(0, 3000)], &[(0, 3000)]).unwrap();
        let mut told = Vec::new();
        loop {
            let sent = post(&mut t, &mut nic, 0);
            for s in &sent {
                let n = s.descriptor.notify;
                let value = match s.descriptor.op {
                    Operation::NotificationPut { class, value } => Some((class, value)),
                    _ => None,
                };
                told.push((n.responder, n.completer, value));
                if let Some(n) = answer(s, 0) {
                    assert!(t.take(&n));
                }
            }
            // The last one waits for the others.
            told.push((false, false, None));
            if sent.is_empty() {
                break;
            }
        }
        ends(&mut t, id, bytes(3000));
        told
    };
    let none = (false, false, None);
    let gets = (false, true, None);
    let (told, sent) = ((true, true, None), (false, true, None));
    use Direction::{Get, Put};
    assert_eq!(tell(Tell::Nothing, Get), [gets, gets, gets, none, none]);
    assert_eq!(tell(Tell::Nothing, Put), [none; 5]);
    assert_eq!(tell(Tell::Each, Get), [told, told, told, none, none]);
    assert_eq!(tell(Tell::Each, Put), [sent, sent, sent, none, none]);
    assert_eq!(tell(Tell::Last, Get), [gets, gets, none, told, none, none]);
    assert_eq!(tell(Tell::Last, Put), [none, none, none, sent, none, none]);
    let value = Tell::Value {
        class: 3,
        value: 99,
    };
    let last = (false, true, Some((3, 99)));
    assert_eq!(tell(value, Put), [none, none, none, none, last, none, none]);
}

#[test]
fn the_first_error_counts_and_the_others_are_awaited() {
    let (mut t, mut nic) = (table(), nic());
    let id = get(&mut t, 1, 0x1000, 10_000);
    let sent = post(&mut t, &mut nic, 0);
    assert!(take(&mut t, &sent[1], 2));
    assert!(post(&mut t, &mut nic, 0).is_empty() && event(&mut t).is_none());
    assert!(take(&mut t, &sent[0], 0) && take(&mut t, &sent[2], 4));
    assert!(event(&mut t).is_none());
    assert!(take(&mut t, &sent[3], 0));
    let fault = Fault {
        unit: FaultUnit::Responder,
        cause: FaultCause::Memory,
    };
    ends(&mut t, id, Err(Failure::Fault(fault)));
    // A time-out does not hide an error that is known.
    let id = get(&mut t, 1, 0x1000, 2048);
    let sent = post(&mut t, &mut nic, 0);
    assert!(take(&mut t, &sent[1], 2));
    t.expire(Time(100), 9);
    let e = event(&mut t).unwrap();
    assert_eq!(e.outcome, Some(Err(Failure::Fault(fault))));
    assert_eq!((e.ticket, e.quiet), (id, None));
}

/// Ends a GET of `len` bytes before it is answered; returns what was posted.
fn late(t: &mut Table, nic: &mut Nic, local: u64, len: u64) -> (Ticket, Vec<Sent>) {
    let id = get(t, 1, local, len);
    let sent = post(t, nic, 0);
    assert!(!t.expire(Time(100), 9));
    let e = event(t).unwrap();
    assert_eq!(e.outcome, Some(Err(Failure::TimedOut)));
    assert_eq!((e.ticket, e.quiet), (id, None));
    (id, sent)
}

#[test]
fn late_answers_are_absorbed_and_end_it() {
    let (mut t, mut nic) = (table(), nic());
    let (id, sent) = late(&mut t, &mut nic, 0x1000, 2048);
    assert_eq!(t.next_deadline(), Some(Time(1100)));
    // An error is an answer.
    assert!(take(&mut t, &sent[0], 4));
    assert!(event(&mut t).is_none());
    assert!(take(&mut t, &sent[1], 0));
    let e = event(&mut t).unwrap();
    assert_eq!(
        (e.ticket, e.outcome, e.quiet),
        (id, None, Some(Quiet::Settled))
    );
    assert!(t.is_empty() && t.next_deadline().is_none());
}

#[test]
fn what_nobody_answers_is_forgotten_in_time() {
    let (mut t, mut nic) = (table(), nic());
    let (id, sent) = late(&mut t, &mut nic, 0x1000, 64);
    assert!(!t.expire(Time(1099), 9) && event(&mut t).is_none());
    t.expire(Time(1100), 9);
    let e = event(&mut t).unwrap();
    assert_eq!((e.ticket, e.quiet), (id, Some(Quiet::Unanswered)));
    assert!(!take(&mut t, &sent[0], 0));
    assert_eq!(t.counters().forgotten, 1);
}

#[test]
fn what_could_be_mistaken_for_something_late_asks_first() {
    let (mut t, mut nic) = (table(), nic());
    let (old, _lost) = late(&mut t, &mut nic, 0x1000, 1000);
    // Elsewhere, other kind, other peer: nothing in the way.
    let others = [
        submit(&mut t, &terms(1, 900), GET, &[(0x13E8, 8)], &[(0, 8)]).unwrap(),
        submit(&mut t, &terms(1, 900), PUT, &[(0x1000, 8)], &[(0, 8)]).unwrap(),
        submit(&mut t, &terms(2, 900), GET, &[(0x1000, 8)], &[(0, 8)]).unwrap(),
    ];
    let sent = post(&mut t, &mut nic, 200);
    assert_eq!(sent.len(), 3);
    for s in &sent {
        assert!(take(&mut t, s, 0));
    }
    // Peer 2 came in between.
    for id in [others[0], others[2], others[1]] {
        ends(&mut t, id, bytes(8));
    }
    let new = submit(&mut t, &terms(1, 900), GET, &[(0x13E7, 8)], &[(0, 8)]).unwrap();
    let fence = post(&mut t, &mut nic, 200);
    assert_eq!(fence.len(), 1);
    let Operation::Lock { at, add: 0, .. } = fence[0].descriptor.op else {
        panic!("{fence:?}");
    };
    assert_eq!(at, LockTarget::Responder);
    assert!(take(&mut t, &fence[0], 0));
    let e = event(&mut t).unwrap();
    assert_eq!((e.ticket, e.quiet), (old, Some(Quiet::Settled)));
    assert_eq!(t.counters().passed, 1);
    let sent = post(&mut t, &mut nic, 200);
    assert!(matches!(sent[0].descriptor.op, Operation::Get { .. }));
    assert!(take(&mut t, &sent[0], 0));
    ends(&mut t, new, bytes(8));
}

#[test]
fn one_lost_answer_costs_one_transfer_even_if_the_fence_is_lost() {
    let (mut t, mut nic) = (table(), nic());
    let lock = Lock {
        at: LockTarget::Completer,
        number: 2,
        compare: 5,
        add: 1,
    };
    let mut now = 0;
    let mut timeouts = 0;
    for lose in [1, 1, 1, 0, 0] {
        t.submit_lock(&terms(1, now + 100), lock, 0).unwrap();
        for s in post(&mut t, &mut nic, now).iter().skip(lose) {
            assert!(take(&mut t, s, 0));
        }
        for s in post(&mut t, &mut nic, now) {
            assert!(take(&mut t, &s, 0));
        }
        now += 100;
        t.expire(Time(now), 9);
        while let Some(e) = event(&mut t) {
            if let Some(outcome) = e.outcome {
                timeouts += usize::from(outcome == Err(Failure::TimedOut));
                if let Ok(done) = outcome {
                    assert_eq!(done.word >> 32, 77);
                }
            }
        }
    }
    assert_eq!(timeouts, 3);
    assert_eq!(t.counters().fences, 3);
}

#[test]
fn what_meets_in_local_memory_goes_one_after_the_other() {
    let (mut t, mut nic) = (table(), nic());
    let mut put = |class, local, len| {
        let terms = Terms {
            class,
            ..terms(1, 99)
        };
        submit(&mut t, &terms, PUT, &[(local, len)], &[(0, len)]).unwrap()
    };
    // The same; the same last fragment; in another class. The last one is in nobody's way.
    let ids = [
        put(0, 0x1000, 992),
        put(0, 0x1000, 992),
        put(0, 0x11F0, 496),
        put(1, 0x1000, 992),
        put(0, 0x13E0, 1),
    ];
    let sent = post(&mut t, &mut nic, 0);
    assert_eq!(sent.len(), 2);
    assert!(take(&mut t, &sent[1], 0));
    ends(&mut t, ids[4], bytes(1));
    assert!(take(&mut t, &sent[0], 0));
    ends(&mut t, ids[0], bytes(992));
    for (id, len) in [(ids[1], 992), (ids[2], 496), (ids[3], 992)] {
        let sent = post(&mut t, &mut nic, 0);
        assert_eq!(sent.len(), 1);
        assert!(take(&mut t, &sent[0], 0));
        ends(&mut t, id, bytes(len));
    }
}

#[test]
fn cancelled_before_and_after_it_was_posted() {
    let (mut t, mut nic) = (table(), nic());
    let id = get(&mut t, 1, 0x1000, 64);
    assert!(t.cancel(id, Time(0)));
    assert!(!t.cancel(id, Time(0)));
    ends(&mut t, id, Err(Failure::Cancelled));
    assert!(!t.cancel(id, Time(0)));
    let id = get(&mut t, 1, 0x1000, 4096);
    let sent = post(&mut t, &mut nic, 5);
    assert!(t.cancel(id, Time(5)));
    t.check().unwrap();
    let e = t.next_event(Queue::Direct).unwrap();
    assert_eq!((e.outcome, e.quiet), (Some(Err(Failure::Cancelled)), None));
    for s in &sent {
        assert!(take(&mut t, s, 0));
    }
    // Its owner is still being told of the first.
    assert!(event(&mut t).is_none());
    assert!(t.told(e.ticket));
    assert_eq!(event(&mut t).unwrap().quiet, Some(Quiet::Settled));
    assert!(t.is_empty());
}

#[test]
fn a_lost_peer_ends_at_once_and_others_go_on() {
    let (mut t, mut nic) = (table(), nic());
    let mut ids = Vec::new();
    for i in 0..6 {
        ids.push(get(&mut t, 1, i << 16, 2048));
    }
    let other = get(&mut t, 2, 0x1000, 64);
    let sent = post(&mut t, &mut nic, 0);
    let mark = t.mark();
    let later = get(&mut t, 1, 9 << 16, 64);
    assert!(t.abort(NodeId(1), mark, Time(7), 4));
    assert!(!t.abort(NodeId(1), mark, Time(7), 4));
    t.check().unwrap();
    let mut seen = Vec::new();
    while let Some(e) = event(&mut t) {
        assert_eq!(e.outcome, Some(Err(Failure::PeerLost)));
        seen.push(e.ticket);
    }
    seen.sort_by_key(|s| ids.iter().position(|i| i == s));
    assert_eq!(seen, ids);
    let mine = sent.iter().find(|s| s.descriptor.node.0 == 2).unwrap();
    assert!(take(&mut t, mine, 0));
    ends(&mut t, other, bytes(64));
    // The window of the lost one is full of late commands: the next asks whether they are over.
    let fence = post(&mut t, &mut nic, 8);
    assert_eq!(fence.len(), 1);
    assert!(matches!(fence[0].descriptor.op, Operation::Lock { .. }));
    assert!(take(&mut t, &fence[0], 0));
    let sent = post(&mut t, &mut nic, 8);
    assert!(take(&mut t, &sent[0], 0));
    while let Some(e) = event(&mut t) {
        match e.ticket == later {
            true => assert_eq!(e.outcome, Some(bytes(64))),
            false => assert_eq!(e.quiet, Some(Quiet::Settled)),
        }
    }
    assert!(t.is_empty());
}

#[test]
fn a_dead_port_ends_all_that_is_posted() {
    let (mut t, mut nic) = (table(), nic());
    let id = get(&mut t, 1, 0x1000, 64);
    nic.dead = true;
    t.post(&mut nic, Time(0), 10);
    ends(&mut t, id, Err(Failure::Down));
    // Closing forgets what is late, too.
    let mut nic = rma::nic();
    late(&mut t, &mut nic, 0x9000, 64);
    get(&mut t, 1, 0x1000, 64);
    post(&mut t, &mut nic, 0);
    while t.close(Quiet::Closed, Time(0), 1) {}
    t.check().unwrap();
    let mut quiet = 0;
    while let Some(e) = event(&mut t) {
        quiet += usize::from(e.quiet == Some(Quiet::Closed));
    }
    assert_eq!(quiet, 2);
    assert!(t.is_empty() && t.in_flight() == 0);
}

#[test]
fn silent_peers_keep_no_more_than_their_share() {
    let limits = Limits {
        absorb: 10_000,
        ..LIMITS
    };
    let mut t: Table = Transfers::new(&CAPACITY, &limits).unwrap();
    let mut nic = nic();
    // The same silent peer over and over: its late commands are bounded, the places of its
    // transfers too.
    for round in 0..50 {
        let now = round * 100;
        for i in 0..8 {
            let local = [((round * 8 + i) << 16, 64)];
            let _ = submit(&mut t, &terms(1, now + 100), GET, &local, &[(0, 64)]);
        }
        post(&mut t, &mut nic, now);
        let id = submit(&mut t, &terms(2, now + 100), GET, &[(0, 8)], &[(0, 8)]).unwrap();
        let sent = post(&mut t, &mut nic, now);
        assert!(take(&mut t, &sent[0], 0), "round {round}");
        t.expire(Time(now + 100), 100);
        let mut well = false;
        while let Some(e) = event(&mut t) {
            well |= e.ticket == id && e.outcome == Some(bytes(8));
        }
        assert!(well, "round {round}");
        assert!(t.in_flight() <= 4 + 16);
    }
}
