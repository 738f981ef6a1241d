//! Tests of transfers that end early, of their late commands, and of later transfers.

mod heap;
mod rma;

use protocol::transfer::{
    Failure, Limits, Lock, Queue, Quiet, SubmitError, Terms, Ticket, Transfers,
};
use protocol::Time;
use rma::table::*;
use rma::*;
use wire::ids::NodeId;
use wire::rma::{LockTarget, Operation};

/// Ends a GET of `len` bytes before it is answered. Returns its posted commands.
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
    // An error is an answer too.
    assert!(deliver(&mut t, &sent[0], 4));
    assert!(event(&mut t).is_none());
    assert!(deliver(&mut t, &sent[1], 0));
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
    assert!(!deliver(&mut t, &sent[0], 0));
    assert_eq!(t.counters().forgotten, 1);
}

#[test]
fn what_could_be_mistaken_for_something_late_asks_first() {
    let (mut t, mut nic) = (table(), nic());
    let (old, _lost) = late(&mut t, &mut nic, 0x1000, 1000);
    // Transfers at other addresses, of another kind or with another peer are posted at once.
    let others = [
        submit(&mut t, &terms(1, 900), GET, &[(0x13E8, 8)], &[(0, 8)]).unwrap(),
        submit(&mut t, &terms(1, 900), PUT, &[(0x1000, 8)], &[(0, 8)]).unwrap(),
        submit(&mut t, &terms(2, 900), GET, &[(0x1000, 8)], &[(0, 8)]).unwrap(),
    ];
    let sent = post(&mut t, &mut nic, 200);
    assert_eq!(sent.len(), 3);
    for s in &sent {
        assert!(deliver(&mut t, s, 0));
    }
    // The command of peer 2 was posted second.
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
    assert!(deliver(&mut t, &fence[0], 0));
    let e = event(&mut t).unwrap();
    assert_eq!((e.ticket, e.quiet), (old, Some(Quiet::Settled)));
    assert_eq!(t.counters().passed, 1);
    let sent = post(&mut t, &mut nic, 200);
    assert!(matches!(sent[0].descriptor.op, Operation::Get { .. }));
    assert!(deliver(&mut t, &sent[0], 0));
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
            assert!(deliver(&mut t, s, 0));
        }
        for s in post(&mut t, &mut nic, now) {
            assert!(deliver(&mut t, &s, 0));
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
    // The first transfers have the same range, the same last fragment, or the same range in another
    // class. The last transfer does not overlap with another transfer.
    let ids = [
        put(0, 0x1000, 992),
        put(0, 0x1000, 992),
        put(0, 0x11F0, 496),
        put(1, 0x1000, 992),
        put(0, 0x13E0, 1),
    ];
    let sent = post(&mut t, &mut nic, 0);
    assert_eq!(sent.len(), 2);
    assert!(deliver(&mut t, &sent[1], 0));
    ends(&mut t, ids[4], bytes(1));
    assert!(deliver(&mut t, &sent[0], 0));
    ends(&mut t, ids[0], bytes(992));
    for (id, len) in [(ids[1], 992), (ids[2], 496), (ids[3], 992)] {
        let sent = post(&mut t, &mut nic, 0);
        assert_eq!(sent.len(), 1);
        assert!(deliver(&mut t, &sent[0], 0));
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
        assert!(deliver(&mut t, s, 0));
    }
    // The owner is still receiving the first report.
    assert!(event(&mut t).is_none());
    assert!(t.report_done(e.ticket));
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
    assert!(deliver(&mut t, mine, 0));
    ends(&mut t, other, bytes(64));
    // The window of the lost peer is full of late commands, so the next command is a fence.
    let fence = post(&mut t, &mut nic, 8);
    assert_eq!(fence.len(), 1);
    assert!(matches!(fence[0].descriptor.op, Operation::Lock { .. }));
    assert!(deliver(&mut t, &fence[0], 0));
    let sent = post(&mut t, &mut nic, 8);
    assert!(deliver(&mut t, &sent[0], 0));
    while let Some(e) = event(&mut t) {
        if e.ticket == later {
            assert_eq!(e.outcome, Some(bytes(64)));
        } else {
            assert_eq!(e.quiet, Some(Quiet::Settled));
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
    // Closing the port drops late commands too.
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
fn a_silent_node_leaves_room_for_others_however_many_vpids_it_has() {
    let (mut t, mut nic) = (table(), nic());
    let mut refused = 0;
    // The node uses all resources that its limits permit, and does not answer.
    for i in 0..64u64 {
        let terms = Terms {
            vpid: vpid(1 + i as u16),
            ..terms(1, 100)
        };
        let parts: Vec<_> = (0..i % 5 + 1)
            .map(|n| ((i << 32) + n * 0x1000, 1))
            .collect();
        let remote = [(0, parts.len() as u64)];
        match submit(&mut t, &terms, GET, &parts, &remote) {
            Ok(_) => {}
            Err(cause) => {
                assert_eq!(cause, SubmitError::Peer);
                refused += 1;
            }
        }
        // Transfers with and without fragments use entries.
        if i == 16 {
            let lock = Lock {
                at: LockTarget::Completer,
                number: 1,
                compare: 0,
                add: 0,
            };
            let _ = t.submit_lock(&terms, lock, 0);
        }
    }
    assert!(refused > 40, "{refused}");
    // Another node can still use its full share.
    let parts: Vec<_> = (0..29).map(|n| (n * 0x1000, 1)).collect();
    let few = &parts[..4];
    for _ in 0..3 {
        let id = submit(&mut t, &terms(2, 100), GET, few, &[(0, 4)]).unwrap();
        let mut sent = post(&mut t, &mut nic, 0);
        while !sent.is_empty() {
            for s in sent.iter().filter(|s| s.descriptor.node == NodeId(2)) {
                assert!(deliver(&mut t, s, 0));
            }
            sent = post(&mut t, &mut nic, 0);
        }
        ends(&mut t, id, bytes(4));
    }
    // All resources are returned.
    t.close(Quiet::Closed, Time(0), usize::MAX);
    while event(&mut t).is_some() {}
    assert!(t.is_empty());
    submit(&mut t, &terms(3, 100), GET, &parts, &[(0, 29)]).unwrap();
}

#[test]
fn silent_peers_keep_no_more_than_their_share() {
    let limits = Limits {
        absorb: 10_000,
        ..LIMITS
    };
    let mut t: Table = Transfers::new(&CAPACITY, &limits).unwrap();
    let mut nic = nic();
    // The same peer never answers. The numbers of its late commands and transfers are limited.
    for round in 0..50 {
        let now = round * 100;
        for i in 0..8 {
            let local = [((round * 8 + i) << 16, 64)];
            let _ = submit(&mut t, &terms(1, now + 100), GET, &local, &[(0, 64)]);
        }
        post(&mut t, &mut nic, now);
        let id = submit(&mut t, &terms(2, now + 100), GET, &[(0, 8)], &[(0, 8)]).unwrap();
        let sent = post(&mut t, &mut nic, now);
        assert!(deliver(&mut t, &sent[0], 0), "round {round}");
        t.expire(Time(now + 100), 100);
        let mut well = false;
        while let Some(e) = event(&mut t) {
            well |= e.ticket == id && e.outcome == Some(bytes(8));
        }
        assert!(well, "round {round}");
        assert!(t.in_flight() <= 4 + 16);
    }
}
