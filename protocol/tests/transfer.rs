//! Tests of single rules of transfers.

mod heap;
mod rma;

use protocol::transfer::{Failure, Lock, Notify, Quiet, SubmitError, TransferKind};
use protocol::Time;
use rma::table::*;
use rma::*;
use wire::rma::{Direction, Fault, FaultCause, FaultUnit, LockTarget, Operation};

#[test]
fn fragments_are_cut_where_either_list_is() {
    let (mut t, mut nic) = (table(), nic());
    let local = [(0x1000, 100), (0x3000, 1), (0x5000, 2999)];
    // The second and third fragment are adjacent.
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
            assert!(deliver(&mut t, s, 0));
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
        assert_eq!(r, Err(SubmitError::Invalid));
    }
    assert_eq!(t.counters().refused_invalid, 5);
    // The highest possible address is valid.
    submit(&mut t, &terms(1, 9), GET, &[(u64::MAX, 1)], &[(0, 1)]).unwrap();
    let lock = Lock {
        at: LockTarget::Completer,
        number: 1 << 24,
        compare: 0,
        add: 0,
    };
    let r = t.submit_lock(&terms(1, 9), lock, 0);
    assert_eq!(r.unwrap_err().0, SubmitError::Invalid);
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
    assert_eq!(at(&mut t, 1, 1), Err(SubmitError::Peer));
    assert_eq!(at(&mut t, 2, 24), Err(SubmitError::Fragments));
    for node in 2..10 {
        at(&mut t, node, 1).unwrap();
    }
    assert_eq!(at(&mut t, 20, 1), Err(SubmitError::Transfers));
    let c = *t.counters();
    assert_eq!(
        (c.refused_peer, c.refused_fragments, c.refused_transfers),
        (1, 1, 1)
    );
    t.close(Quiet::Closed, Time(0), usize::MAX);
    // The outcome is the only report for transfers without posted commands.
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
    // After one answer, one command can be posted.
    assert!(deliver(&mut t, &sent[0], 0));
    assert_eq!(post(&mut t, &mut nic, 0).len(), 1);
    // If the port is full, the same peer continues later.
    nic.room = 0;
    for s in &sent[1..4] {
        deliver(&mut t, s, 0);
    }
    assert_eq!(post(&mut t, &mut nic, 0).len(), 0);
    nic.room = 1;
    assert_eq!(post(&mut t, &mut nic, 0).len(), 1);
    // The peers are served in small steps.
    deliver(&mut t, &sent[4], 0);
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
    assert!(deliver(&mut t, &sent[3], 0));
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
    // The answers arrive in another order, because units of different nodes send them.
    assert!(deliver(&mut t, &sent[2], 0) && deliver(&mut t, &sent[0], 0));
    assert!(event(&mut t).is_none());
    assert!(deliver(&mut t, &sent[1], 0));
    ends(&mut t, id, bytes(2000));
    // A second answer of the same kind belongs to no command.
    assert!(!deliver(&mut t, &sent[2], 0));
    assert_eq!(t.counters().unclaimed, 1);
}

#[test]
fn the_peer_is_told_as_asked() {
    let notify = |notify, direction| {
        let (mut t, mut nic) = (table(), nic());
        let kind = TransferKind {
            direction,
            notify,
            confirm: false,
        };
        let id = submit(&mut t, &terms(1, 9), kind, &[(0, 3000)], &[(0, 3000)]).unwrap();
        let mut notified = Vec::new();
        loop {
            let sent = post(&mut t, &mut nic, 0);
            for s in &sent {
                let n = s.descriptor.notify;
                let value = match s.descriptor.op {
                    Operation::NotificationPut { class, value } => Some((class, value)),
                    _ => None,
                };
                notified.push((n.responder, n.completer, value));
                if let Some(n) = answer(s, 0) {
                    assert!(t.process_notification(&n));
                }
            }
            // The notification is posted after all other commands are answered.
            notified.push((false, false, None));
            if sent.is_empty() {
                break;
            }
        }
        ends(&mut t, id, bytes(3000));
        notified
    };
    let none = (false, false, None);
    let gets = (false, true, None);
    let (notified, sent) = ((true, true, None), (false, true, None));
    use Direction::{Get, Put};
    assert_eq!(notify(Notify::Nothing, Get), [gets, gets, gets, none, none]);
    assert_eq!(notify(Notify::Nothing, Put), [none; 5]);
    assert_eq!(
        notify(Notify::Each, Get),
        [notified, notified, notified, none, none]
    );
    assert_eq!(notify(Notify::Each, Put), [sent, sent, sent, none, none]);
    assert_eq!(
        notify(Notify::Last, Get),
        [gets, gets, none, notified, none, none]
    );
    assert_eq!(
        notify(Notify::Last, Put),
        [none, none, none, sent, none, none]
    );
    let value = Notify::Value {
        class: 3,
        value: 99,
    };
    let last = (false, true, Some((3, 99)));
    assert_eq!(
        notify(value, Put),
        [none, none, none, none, last, none, none]
    );
}

#[test]
fn the_first_error_counts_and_the_others_are_awaited() {
    let (mut t, mut nic) = (table(), nic());
    let id = get(&mut t, 1, 0x1000, 10_000);
    let sent = post(&mut t, &mut nic, 0);
    assert!(deliver(&mut t, &sent[1], 2));
    assert!(post(&mut t, &mut nic, 0).is_empty() && event(&mut t).is_none());
    assert!(deliver(&mut t, &sent[0], 0) && deliver(&mut t, &sent[2], 4));
    assert!(event(&mut t).is_none());
    assert!(deliver(&mut t, &sent[3], 0));
    let fault = Fault {
        unit: FaultUnit::Responder,
        cause: FaultCause::Memory,
    };
    ends(&mut t, id, Err(Failure::Fault(fault)));
    // A time-out does not replace a known error.
    let id = get(&mut t, 1, 0x1000, 2048);
    let sent = post(&mut t, &mut nic, 0);
    assert!(deliver(&mut t, &sent[1], 2));
    t.expire(Time(100), 9);
    let e = event(&mut t).unwrap();
    assert_eq!(e.outcome, Some(Err(Failure::Fault(fault))));
    assert_eq!((e.ticket, e.quiet), (id, None));
}
