//! Tests of the rules in docs/pci-protocol.md, one rule per test, with a lender and up to two
//! borrowers. The test delivers messages and executes work.

mod pci_world;

use pci_world::{borrower, device, layout, lender, register, World, LENDER, LIMITS, SOME};
use proptest::prelude::*;
use protocol::pci::lender::Work as LenderWork;
use protocol::pci::{
    borrower::Work, AccessError, ConfigAccess, EndReason, LeaseState, Limits, OfferState,
    OpenError, Poll, Reach, VECTORS,
};
use protocol::Time;
use wire::ids::NodeId;
use wire::pci::Role;
use wire::pci::{Body, Borrow, DeviceState, Incarnation, LeaseId, Message, Reason, Status};

#[test]
fn a_device_is_lent_and_given_back() {
    let mut w = World::new(1);
    let handle = w.borrow(0);
    w.deliver_all();
    let [LenderWork::Open(open)] = w.lender_work[..] else {
        panic!("{:?}", w.lender_work);
    };
    assert_eq!((open.bars, open.links, open.dma), (SOME, SOME, 1 << 20));
    assert_eq!(
        (open.borrower, w.state()),
        (NodeId(1), OfferState::Granting)
    );
    w.all();
    assert_eq!(w.state(), OfferState::Lent);
    let described = w.lender.devices().next().expect("a device").0;
    assert_eq!(described.state, DeviceState::Lent(NodeId(1)));
    // The lease remains up while both ends are alive.
    w.pass(20_000);
    assert_eq!(w.state(), OfferState::Lent);
    assert!(w.work.is_empty() && w.lender_work.is_empty());
    let now = w.time();
    w.borrowers[0].give_back(now, handle);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    assert_eq!(w.borrowers[0].state(handle), None);
    // Numbers remain fenced until no access can be in flight.
    assert_eq!(w.lender.fences().numbers(), 0b10);
    assert_eq!(w.borrowers[0].fences().numbers(), 0b110);
    w.pass(20_049);
    assert!(w.lender_work.is_empty() && w.work.is_empty());
    w.pass(20_050);
    assert_eq!(w.lender_work, [LenderWork::Release(0b10)]);
    assert_eq!(w.work, [(0, Work::Release(0b110))]);
    assert!(w.lender.fences().is_empty() && w.borrowers[0].fences().is_empty());
    // The next lease has another generation.
    let described = w.lender.devices().next().expect("a device").0;
    assert_eq!(
        (described.generation, described.state),
        (2, DeviceState::Free)
    );
}

#[test]
fn requests_that_come_again_are_answered_the_same() {
    let mut w = World::new(1);
    w.borrow(0);
    w.deliver_all();
    let request = w.sent[0].2;
    // Repeat the request while the lease is being opened, and afterwards.
    w.send(1, LENDER, request);
    w.all();
    w.send(1, LENDER, request);
    w.all();
    let mut grants: Vec<_> = w
        .sent
        .iter()
        .filter(|s| matches!(s.2.body, Body::Grant(_)))
        .collect();
    assert_eq!(grants.len(), 2);
    grants.dedup();
    assert_eq!(grants.len(), 1);
    assert_eq!(w.lender.counters().leases, 1);
}

#[test]
fn what_is_refused_is_refused_for_its_reason() {
    let mut w = World::new(2);
    let good = w.terms();
    let reason = |w: &mut World, terms: Borrow| {
        let now = w.time();
        let handle = w.borrowers[1].borrow(now, LENDER, &terms, Time(100_000));
        handle.expect("room");
        w.all();
        w.sent.iter().rev().find_map(|s| match s.2.body {
            Body::Refuse(reason, lease) if lease.key() == 0 => Some(reason),
            _ => None,
        })
    };
    let odd = [
        (Borrow { handle: 1, ..good }, Reason::Unknown),
        (
            Borrow {
                generation: 9,
                ..good
            },
            Reason::Generation,
        ),
        (
            Borrow {
                lender: Incarnation(5),
                ..good
            },
            Reason::Generation,
        ),
        (Borrow { windows: 0, ..good }, Reason::NoInterval),
        (Borrow { targets: 2, ..good }, Reason::NoInterval),
    ];
    for (terms, wanted) in odd {
        assert_eq!(reason(&mut w, terms), Some(wanted), "{terms:?}");
    }
    w.up(0);
    assert_eq!(reason(&mut w, good), Some(Reason::Lent));
    // One borrower may have two devices, but not three.
    for (wanted, place) in [(None, 1), (Some(Reason::TooMany), 2)] {
        let handle = w.lender.offer(&device(), &layout()).expect("room");
        let terms = Borrow {
            handle,
            ..w.terms()
        };
        let terms = Borrow {
            generation: 1,
            ..terms
        };
        w.sent.clear();
        let now = w.time();
        w.borrowers[0].borrow(now, LENDER, &terms, Time(100_000));
        w.all();
        let refused = w.sent.iter().find_map(|s| match s.2.body {
            Body::Refuse(reason, _) => Some(reason),
            _ => None,
        });
        assert_eq!(refused, wanted, "device {place}");
    }
    assert_eq!(w.borrowers[1].counters().refused, 6);
}

#[test]
fn what_the_driver_refuses_is_told() {
    for (error, wanted, state) in [
        (
            OpenError::Refuse(Reason::NotAllowed),
            Reason::NotAllowed,
            OfferState::Free,
        ),
        (OpenError::Broken, Reason::Broken, OfferState::Broken),
    ] {
        let mut w = World::new(1);
        let handle = w.borrow(0);
        w.deliver_all();
        w.lender_work.clear();
        w.lender.opened(Time(0), w.device, Err(error));
        w.deliver_all();
        assert_eq!(
            w.work,
            [(0, Work::Closed(handle, EndReason::Refused(wanted)))]
        );
        assert_eq!(w.state(), state);
        assert_eq!(w.lender.repair(w.device), state == OfferState::Broken);
        assert_eq!(w.state(), OfferState::Free);
    }
}

/// Fences are necessary because a silent borrower may still have its window.
#[test]
fn numbers_of_a_silent_borrower_are_not_given_to_others() {
    let mut w = World::new(2);
    let first = w.up(0);
    w.unreachable = Some(1);
    w.pass(999);
    assert_eq!(w.state(), OfferState::Lent);
    // The borrower loses the lease before the lender does.
    w.pass(1000);
    assert_eq!(w.borrowers[0].state(first), Some(LeaseState::Closing));
    w.pass(1200);
    assert_eq!(w.state(), OfferState::Fencing);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    // The number is still fenced a long time afterwards, and the next lease gets another number.
    w.pass(60_000);
    w.all();
    assert_eq!(w.lender.fences().numbers(), 0b10);
    let open: Vec<_> = w.lender.fences().open().map(|f| (f.0, f.2)).collect();
    assert_eq!(open, [(NodeId(1), 0b10)]);
    w.borrow(1);
    w.deliver_all();
    let [LenderWork::Open(open)] = w.lender_work[..] else {
        panic!("{:?}", w.lender_work);
    };
    assert_eq!(open.bars, SOME & !0b10);
    w.all();
    // When the borrower is reachable again, it is asked and confirms.
    w.unreachable = None;
    w.pass(61_000);
    assert!(w.count(|b| matches!(b, Body::Revoke(_, 0))) > 3);
    assert_eq!(w.lender.fences().numbers(), 0);
    assert!(w.lender_work.contains(&LenderWork::Release(0b10)));
}

#[test]
fn a_node_that_is_known_to_be_down_is_not_waited_for() {
    let mut w = World::new(1);
    w.up(0);
    w.unreachable = Some(1);
    w.pass(1500);
    w.all();
    assert_eq!(w.lender.fences().numbers(), 0b10);
    let now = w.time();
    w.lender.node_down(now, NodeId(1));
    w.pass(1550);
    assert_eq!(w.lender_work, [LenderWork::Release(0b10)]);
}

/// A confirmation counts for one lease only, not for other leases of the same node.
#[test]
fn each_lease_is_confirmed_by_its_own_name() {
    let mut w = World::new(1);
    let mut names = Vec::new();
    for _ in 0..2 {
        w.up(0);
        names.push(
            w.lender
                .devices()
                .next()
                .and_then(|d| d.1)
                .expect("a lease"),
        );
        let now = w.time();
        w.lender.reclaim(now, w.device, 0);
        w.unreachable = Some(1);
        w.all();
        // The restarted borrower has not confirmed, so the lender will ask it.
        w.unreachable = None;
        w.borrowers[0] = borrower(&LIMITS, 900 + names.len() as u64);
    }
    let mut open: Vec<_> = w.lender.fences().open().map(|f| f.1).collect();
    assert_eq!(open, names);
    let message = Message {
        number: 0,
        sender: Incarnation(1),
        body: Body::Revoked(names[1]),
    };
    w.lender.receive(w.time(), NodeId(1), &message);
    open = w.lender.fences().open().map(|f| f.1).collect();
    assert_eq!(open, names[..1]);
}

/// While `GRANT` may still arrive, the borrower does not answer a question about the lease.
#[test]
fn a_question_that_comes_before_the_grant_is_not_answered() {
    let mut w = World::new(1);
    let handle = w.borrow(0);
    w.deliver_all();
    let before = w.sent.len();
    let question = Message {
        number: 0,
        sender: w.lender.incarnation(),
        body: Body::Alive {
            lease: LeaseId::new(handle.number(), 5),
            to: Role::Borrower,
            answer: false,
        },
    };
    w.borrowers[0].receive(Time(0), LENDER, &question);
    w.deliver_all();
    assert_eq!(w.sent.len(), before);
    assert_eq!(w.borrowers[0].state(handle), Some(LeaseState::Asking));
    // If `REVOKE` arrives before `GRANT`, the borrower does not accept the grant any more.
    let revoke = Message {
        body: Body::Revoke(LeaseId::new(handle.number(), 5), 0),
        ..question
    };
    w.borrowers[0].receive(Time(0), LENDER, &revoke);
    w.deliver_all();
    assert_eq!(w.work, [(0, Work::Closed(handle, EndReason::Revoked))]);
    w.work.clear();
    w.all();
    assert_eq!(w.borrowers[0].counters().leases, 0);
    assert_eq!(w.state(), OfferState::Free);
}

/// A message of another incarnation may be older than the lease, so the lender asks the borrower
/// first.
#[test]
fn another_life_of_a_borrower_is_asked_and_not_believed() {
    let mut w = World::new(1);
    let handle = w.up(0);
    let old = Message {
        number: 1,
        sender: Incarnation(0xdead),
        body: Body::List(0),
    };
    w.send(1, LENDER, old);
    w.pass(150);
    assert_eq!(w.borrowers[0].state(handle), Some(LeaseState::Up));
    assert_eq!(w.state(), OfferState::Lent);
    // The borrower was restarted.
    w.borrowers[0] = borrower(&LIMITS, 555);
    let now = w.time();
    w.borrowers[0].list(now, LENDER, 0, Time(5000));
    w.deliver_all();
    w.pass(300);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    assert_eq!(w.lender.counters().returned, 1);
}

#[test]
fn whoever_begins_waits_for_what_he_does_not_know() {
    let limits = Limits {
        quarantine: 2000,
        ..LIMITS
    };
    let mut w = World::new(2);
    w.lender = lender(&limits, 8);
    w.device = w.lender.offer(&device(), &layout()).expect("room");
    w.borrowers[1] = borrower(&limits, 9);
    let first = w.borrow(0);
    w.all();
    assert_eq!(w.borrowers[0].state(first), Some(LeaseState::Asking));
    assert!(w.count(|b| matches!(b, Body::Refuse(Reason::NotYet, _))) > 0);
    let before = w.sent.len();
    let terms = w.terms();
    let hasty = w.borrowers[1].borrow(Time(0), LENDER, &terms, Time(1900));
    w.deliver_all();
    assert_eq!(w.sent.len(), before, "a borrower asks before its time");
    w.pass(2900);
    w.all();
    assert_eq!(w.borrowers[0].state(first), Some(LeaseState::Up));
    assert_eq!(hasty.and_then(|h| w.borrowers[1].state(h)), None);
    assert!(w.sent.iter().all(|s| s.0 != 2));
}

#[test]
fn a_lender_that_has_forgotten_says_so() {
    let mut w = World::new(1);
    let handle = w.up(0);
    w.lender = lender(&LIMITS, 77);
    w.pass(250);
    assert_eq!(w.work, [(0, Work::Close(handle, EndReason::Unknown))]);
}

#[test]
fn a_device_is_taken_back() {
    // The device is reclaimed without a grace period.
    let mut w = World::new(1);
    let handle = w.up(0);
    assert!(w.lender.reclaim(Time(0), w.device, 0));
    w.deliver_all();
    assert!(matches!(w.lender_work[..], [LenderWork::Close(..)]));
    assert_eq!(
        w.count(|b| matches!(b, Body::Revoke(..))),
        0,
        "before it is closed"
    );
    w.lender_work.clear();
    w.lender.closed(Time(0), w.device);
    w.deliver_all();
    assert_eq!(w.work, [(0, Work::Close(handle, EndReason::Revoked))]);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    // The borrower returns the device within the grace period.
    let handle = w.up(0);
    assert!(w.lender.reclaim(Time(0), w.device, 500));
    w.deliver_all();
    assert_eq!(w.state(), OfferState::Recalling);
    assert_eq!(w.work, [(0, Work::Recall(handle, 500))]);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    assert_eq!(w.lender.counters().returned, 1);
    // The borrower does not return the device.
    w.up(0);
    assert!(w.lender.reclaim(Time(0), w.device, 500));
    w.deliver_all();
    w.work.clear();
    w.pass(499);
    assert_eq!(w.state(), OfferState::Recalling);
    w.pass(500);
    assert_eq!(w.state(), OfferState::Fencing);
    assert!(!w.lender.reclaim(Time(500), 12345, 0));
}

#[test]
fn a_device_that_is_withdrawn_goes_when_nobody_has_it() {
    let mut w = World::new(1);
    w.up(0);
    w.lender.withdraw(Time(0), w.device);
    w.deliver_all();
    assert!(matches!(w.lender_work[..], [LenderWork::Close(..)]));
    w.lender_work.clear();
    w.lender.closed(Time(0), w.device);
    w.deliver_all();
    w.lender_work.clear();
    w.lender.reset(Time(0), w.device, true);
    w.deliver_all();
    assert_eq!(w.lender_work, [LenderWork::Gone(w.device)]);
    assert_eq!(w.lender.state(w.device), None);
}

/// A request that is given up before `GRANT` arrives leaves no lease and no fence.
#[test]
fn a_request_that_is_given_up_leaves_nothing() {
    let mut w = World::new(1);
    let handle = w.borrow(0);
    w.deliver_all();
    let now = w.time();
    w.borrowers[0].give_back(now, handle);
    w.deliver_all();
    assert!(w.count(|b| matches!(b, Body::Return(l) if l.key() == 0)) > 0);
    assert_eq!(w.work, [(0, Work::Closed(handle, EndReason::GivenBack))]);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    w.pass(200);
    assert!(w.lender.fences().is_empty() && w.borrowers[0].fences().is_empty());
    // The lender does not answer at all.
    w.unreachable = Some(0);
    let handle = w.borrow(0);
    w.work.clear();
    w.pass(3500);
    assert_eq!(w.work, [(0, Work::Closed(handle, EndReason::NoAnswer))]);
    assert_eq!(w.borrowers[0].counters().no_answer, 1);
    w.pass(10_000);
    assert!(w.borrowers[0].fences().is_empty());
}

#[test]
fn a_grant_of_what_was_not_asked_for_is_given_back() {
    let mut w = World::new(1);
    let handle = w.borrow(0);
    w.deliver_all();
    let LenderWork::Open(open) = w.lender_work[0] else {
        panic!("{:?}", w.lender_work);
    };
    let mut opened = w.opened(&open);
    opened.numbers.dma = 20;
    w.lender_work.clear();
    w.lender.opened(Time(0), w.device, Ok(opened));
    w.deliver_all();
    assert_eq!(w.work, [(0, Work::Closed(handle, EndReason::Wrong))]);
    assert_eq!(w.borrowers[0].counters().wrong, 1);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
}

#[test]
fn a_write_is_made_once_however_often_it_comes() {
    let mut w = World::new(1);
    let handle = w.up(0);
    let request = ConfigAccess::Write(register(0x50, 4), 0x1234);
    let (number, to, message) = w.borrowers[0].access(Time(0), handle, request).expect("up");
    assert_eq!(
        w.borrowers[0].access(Time(0), handle, request).err(),
        Some(AccessError::Busy)
    );
    for _ in 0..3 {
        w.send(1, to, message);
        w.deliver_all();
    }
    assert_eq!(w.configs.len(), 1);
    let poll = w.borrowers[0].poll(Time(0), handle, number);
    assert_eq!(poll, Poll::Pending(Time(20)));
    w.all();
    w.send(1, to, message);
    w.all();
    assert_eq!(w.executed.len(), 1);
    let poll = w.borrowers[0].poll(Time(0), handle, number);
    assert_eq!(poll, Poll::Finished(Status::Done, 0));
    assert_eq!(w.borrowers[0].poll(Time(0), handle, number), Poll::Lost);
    // A late access arrives after the next access.
    let request = ConfigAccess::Read(register(0x50, 2));
    let (next, to, read) = w.borrowers[0].access(Time(0), handle, request).expect("up");
    w.send(1, to, read);
    w.all();
    w.send(1, to, message);
    w.all();
    assert_eq!(w.executed.len(), 2);
    let poll = w.borrowers[0].poll(Time(0), handle, next);
    assert_eq!(poll, Poll::Finished(Status::Done, 0x5a5a));
}

#[test]
fn an_access_ends_in_time() {
    let mut w = World::new(1);
    let handle = w.up(0);
    w.unreachable = Some(0);
    let request = ConfigAccess::Read(register(0, 4));
    let (number, _, message) = w.borrowers[0].access(Time(0), handle, request).expect("up");
    // The request is repeated.
    w.pass(199);
    assert_eq!(w.sent.iter().filter(|s| s.2 == message).count(), 9);
    let poll = w.borrowers[0].poll(Time(199), handle, number);
    assert_eq!(poll, Poll::Pending(Time(200)));
    let poll = w.borrowers[0].poll(Time(200), handle, number);
    assert_eq!(poll, Poll::TimedOut);
    assert_eq!(w.borrowers[0].counters().timed_out, 1);
    // An access is lost at the end of the lease.
    let (number, ..) = w.borrowers[0]
        .access(Time(900), handle, request)
        .expect("up");
    w.pass(1001);
    assert_eq!(w.borrowers[0].poll(Time(1001), handle, number), Poll::Lost);
    let refused = w.borrowers[0].access(Time(1001), handle, request).err();
    assert_eq!(refused, Some(AccessError::Lost));
}

#[test]
fn what_a_borrower_may_not_is_denied() {
    let mut w = World::new(1);
    let handle = w.up(0);
    for (request, ones) in [
        (ConfigAccess::Write(register(0x10, 4), 0), 0),
        (ConfigAccess::Write(register(0x44, 4), 0xfe00_1000), 0),
        (ConfigAccess::Read(register(0x10, 4)), u32::MAX),
    ] {
        let (number, to, message) = w.borrowers[0].access(Time(0), handle, request).expect("up");
        w.send(1, to, message);
        w.all();
        let poll = w.borrowers[0].poll(Time(0), handle, number);
        assert_eq!(poll, Poll::Finished(Status::Denied, ones), "{request:?}");
    }
    assert!(w.executed.is_empty());
    assert_eq!(w.lender.counters().denied, 3);
    assert_eq!(w.borrowers[0].counters().denied, 3);
}

#[test]
fn while_a_function_is_reset_its_registers_are_not_accessed() {
    let mut w = World::new(1);
    let handle = w.up(0);
    let access = |w: &mut World, request| {
        let (number, to, message) = w.borrowers[0].access(Time(0), handle, request).expect("up");
        w.send(1, to, message);
        w.deliver_all();
        let configs = std::mem::take(&mut w.configs);
        for config in configs {
            w.lender.configured(&config, Ok(1));
        }
        w.deliver_all();
        w.borrowers[0].poll(Time(0), handle, number)
    };
    assert_eq!(
        access(&mut w, ConfigAccess::Reset),
        Poll::Finished(Status::Done, 0)
    );
    assert_eq!(w.lender_work, [LenderWork::Reset(w.device)]);
    let read = ConfigAccess::Read(register(4, 2));
    assert_eq!(
        access(&mut w, read),
        Poll::Finished(Status::Resetting, 0xffff)
    );
    // The end of the lease waits for the reset in progress, and another reset follows.
    w.lender_work.clear();
    w.lender.reclaim(Time(0), w.device, 0);
    w.deliver_all();
    assert!(w.lender_work.is_empty());
    w.lender.reset(Time(0), w.device, true);
    w.deliver_all();
    assert!(matches!(w.lender_work[..], [LenderWork::Close(..)]));
    w.lender_work.clear();
    w.lender.closed(Time(0), w.device);
    w.deliver_all();
    assert_eq!(w.lender_work, [LenderWork::Reset(w.device)]);
    w.lender.reset(Time(0), w.device, false);
    assert_eq!(w.state(), OfferState::Broken);
}

/// Intervals are closed only after an access in progress has finished.
#[test]
fn a_lease_does_not_end_in_the_middle_of_an_access() {
    let mut w = World::new(1);
    let handle = w.up(0);
    let request = ConfigAccess::Write(register(4, 2), 6);
    let (_, to, message) = w.borrowers[0].access(Time(0), handle, request).expect("up");
    w.send(1, to, message);
    w.deliver_all();
    w.lender.reclaim(Time(0), w.device, 0);
    w.deliver_all();
    assert!(w.lender_work.is_empty());
    let config = w.configs[0];
    assert_eq!(config.write.map(|w| w.merged(0x143)), Some(0x407));
    w.lender.configured(&config, Ok(0));
    w.deliver_all();
    assert!(matches!(w.lender_work[..], [LenderWork::Close(..)]));
}

#[test]
fn devices_are_listed() {
    let mut w = World::new(1);
    let number = w.borrowers[0].list(Time(0), LENDER, 0, Time(500));
    assert_eq!(w.borrowers[0].listed(Time(0), number), None);
    w.deliver_all();
    let answer = w.borrowers[0].listed(Time(0), number);
    let Some(Ok((lender, device))) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((lender, device.handle), (w.lender.incarnation(), w.device));
    assert_eq!((device.index, device.count), (0, 1));
    let number = w.borrowers[0].list(Time(0), LENDER, 1, Time(500));
    w.deliver_all();
    let answer = w.borrowers[0].listed(Time(0), number);
    assert_eq!(answer, Some(Err(Some(Reason::Unknown))));
    w.unreachable = Some(0);
    let number = w.borrowers[0].list(Time(0), LENDER, 0, Time(500));
    w.pass(499);
    assert_eq!(w.borrowers[0].listed(Time(499), number), None);
    assert_eq!(w.borrowers[0].listed(Time(500), number), Some(Err(None)));
}

/// Messages of a node about leases of other nodes have no effect.
#[test]
fn others_can_not_end_a_lease() {
    let mut w = World::new(2);
    let handle = w.up(0);
    let lease = w
        .lender
        .devices()
        .next()
        .and_then(|d| d.1)
        .expect("a lease");
    for body in [
        Body::Return(lease),
        Body::Revoked(lease),
        Body::Reset(lease),
        Body::Write(lease, register(4, 2), 6),
    ] {
        let number = u32::from(!matches!(body, Body::Return(_) | Body::Revoked(_)));
        let sender = Incarnation(1);
        w.send(
            2,
            LENDER,
            Message {
                number,
                sender,
                body,
            },
        );
        w.all();
    }
    for body in [Body::Revoke(lease, 0), Body::Refuse(Reason::Lease, lease)] {
        let sender = Incarnation(1);
        let message = Message {
            number: 0,
            sender,
            body,
        };
        w.borrowers[0].receive(Time(0), NodeId(2), &message);
        w.all();
    }
    assert_eq!(w.borrowers[0].state(handle), Some(LeaseState::Up));
    assert_eq!(w.state(), OfferState::Lent);
    assert!(w.executed.is_empty());
}

#[test]
fn calls_that_do_not_fit_are_counted() {
    let mut w = World::new(1);
    w.lender.closed(Time(0), w.device);
    w.lender.reset(Time(0), w.device, true);
    w.lender.opened(Time(0), 1, Err(OpenError::Broken));
    assert_eq!(w.lender.counters().misused, 3);
    let handle = w.up(0);
    w.borrowers[0].closed(Time(0), handle);
    w.borrowers[0].opened(Time(0), handle, false);
    assert_eq!(w.borrowers[0].counters().misused, 2);
    assert_eq!(w.borrowers[0].state(handle), Some(LeaseState::Up));
}

#[test]
fn vectors_have_an_address() {
    let reach = Reach::new(0xfe00_0000, 4096).expect("a window");
    assert_eq!(reach.message(5), Some((0xfe00_0000, 5)));
    assert_eq!(reach.message(VECTORS), None);
    assert_eq!(Reach::new(u64::MAX, 2), None);
    assert_eq!(Reach::new(1, 0), None);
}

proptest! {
    #[test]
    fn addresses_and_offsets_are_each_others(
        base in any::<u64>(),
        bytes in 1_u64..1 << 40,
        offset in any::<u64>(),
        len in 0_u64..1 << 40,
    ) {
        let Some(reach) = Reach::new(base, bytes) else {
            return Ok(());
        };
        for offset in [offset, offset % bytes, bytes] {
            match reach.address(offset, len) {
                Some(address) => {
                    prop_assert!(offset + len <= bytes);
                    prop_assert_eq!(reach.offset(address, len), Some(offset));
                }
                None => prop_assert!(offset.checked_add(len).is_none_or(|end| end > bytes)),
            }
        }
        prop_assert_eq!(reach.offset(base.wrapping_sub(1), 0), None);
    }
}
