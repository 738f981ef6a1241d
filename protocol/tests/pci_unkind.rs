//! Tests of device lending with peers that violate the protocol, have other limits or use another
//! version. Other nodes must not be affected.

mod pci_world;

use pci_world::{borrower, device, layout, lender, register, World, LENDER, LIMITS};
use protocol::pci::lender::Work as LenderWork;
use protocol::pci::{
    borrower::{self, Work},
    AccessError, ConfigAccess, EndReason, Handle, LeaseState, Limits, OfferState, Poll,
};
use protocol::Time;
use wire::ids::NodeId;
use wire::pci::{
    Body, Borrow, Kind, LeaseId, Message, ParseError, Reason, Register, Status, LONGEST_LEASE_MS,
};

/// Returns the lease of the first device.
fn lease(w: &World) -> LeaseId {
    let mut devices = w.lender.devices();
    devices.next().and_then(|d| d.1).expect("a lease")
}

/// Sends a message of the borrower about a lease, with a number.
fn send(w: &mut World, number: u32, body: Body) {
    let sender = w.borrowers[0].incarnation();
    let message = Message {
        number,
        sender,
        body,
    };
    w.send(1, LENDER, message);
}

/// Returns the status of the last answer to an access.
fn answer(w: &World, wanted: u32) -> Option<Status> {
    w.sent.iter().rev().find_map(|s| match s.2.body {
        Body::Done(_, status, _) if s.2.number == wanted => Some(status),
        _ => None,
    })
}

/// MSI registers of the devices in this test, with the values that a borrower writes to enable MSI.
const LOW: (u16, u8, u32) = (0x44, 4, 0xfe00_0000);
const HIGH: (u16, u8, u32) = (0x48, 4, 0);
const ENABLE: (u16, u8, u32) = (0x42, 2, 1);

fn write(w: &mut World, number: u32, (offset, size, value): (u16, u8, u32)) {
    let body = Body::Write(lease(w), register(offset, size), value);
    send(w, number, body);
}

/// A borrower that does not wait for its accesses cannot enable MSI with an address that was never
/// written.
#[test]
fn an_access_that_waits_is_not_given_up_for_another_one() {
    let mut w = World::new(1);
    w.up(0);
    // The lender reads all three messages at once.
    write(&mut w, 1, LOW);
    write(&mut w, 2, HIGH);
    w.all();
    let executed: Vec<_> = w.executed.iter().map(|c| c.register.offset()).collect();
    assert_eq!(executed, [LOW.0]);
    assert_eq!(answer(&w, 1), Some(Status::Done));
    write(&mut w, 3, ENABLE);
    w.all();
    assert_eq!(answer(&w, 3), Some(Status::Denied));
    // If the borrower waits for each access, MSI is enabled.
    write(&mut w, 4, HIGH);
    w.all();
    write(&mut w, 5, ENABLE);
    w.all();
    assert_eq!(answer(&w, 5), Some(Status::Done));
    let executed: Vec<_> = w.executed.iter().map(|c| c.register.offset()).collect();
    assert_eq!(executed, [LOW.0, HIGH.0, ENABLE.0]);
}

/// A failed write of one half of MSI's address does not count.
#[test]
fn a_write_that_fails_does_not_count() {
    let mut w = World::new(1);
    w.up(0);
    for (number, what, works) in [(1, LOW, false), (2, HIGH, true)] {
        write(&mut w, number, what);
        w.deliver_all();
        let config = w.configs.pop().expect("an access");
        let value = if works { Ok(0) } else { Err(()) };
        w.lender.configured(&config, value);
        w.deliver_all();
    }
    assert_eq!(answer(&w, 1), Some(Status::Failed));
    write(&mut w, 3, ENABLE);
    w.all();
    assert_eq!(answer(&w, 3), Some(Status::Denied));
}

#[test]
fn the_pin_stays_disabled_when_one_byte_of_command_is_written() {
    let mut w = World::new(1);
    w.up(0);
    write(&mut w, 1, (4, 1, 6));
    w.deliver_all();
    let config = w.configs[0];
    assert_eq!(config.register, Register::new(4, 2).expect("command"));
    // The other bits of the second byte are kept.
    assert_eq!(config.write.map(|w| w.merged(0x0100)), Some(0x0506));
    w.all();
    assert_eq!(answer(&w, 1), Some(Status::Done));
}

/// The quarantine covers the longest lease of any node, not only of this node.
#[test]
fn quarantine_covers_the_leases_of_others() {
    let own = Limits {
        timeout_ms: 100,
        longest_ms: LONGEST_LEASE_MS,
        in_flight_max: 50,
        ..LIMITS
    };
    let own = own.with_quarantine(700);
    let (lender, borrower) = (lender(&own, 3), borrower(&own, 4));
    for begins in [lender.begins(), borrower.begins()] {
        assert_eq!(begins, Time(u64::from(LONGEST_LEASE_MS) + 700 + 50));
    }
}

/// No node agrees to a longer lease than other nodes wait for.
#[test]
fn no_lease_is_longer_than_nodes_wait_for() {
    let short = |longest_ms, timeout_ms| Limits {
        longest_ms,
        timeout_ms,
        ..LIMITS
    };
    // The borrower refuses the grant.
    let mut w = World::new(1);
    w.borrowers[0] = borrower(&short(999, 500), 44);
    let handle = w.borrow(0);
    w.deliver_all();
    let LenderWork::Open(open) = w.lender_work[0] else {
        panic!("{:?}", w.lender_work);
    };
    w.lender_work.clear();
    let opened = w.opened(&open);
    w.lender.opened(Time(0), w.device, Ok(opened));
    w.deliver_all();
    assert_eq!(w.work, [(0, Work::Closed(handle, EndReason::Wrong))]);
    w.all();
    assert_eq!(w.state(), OfferState::Free);
    // The lender limits its time-out.
    let mut w = World::new(1);
    w.lender = lender(&short(600, 5000), 45);
    w.device = w.lender.offer(&device(), &layout()).expect("room");
    w.up(0);
    let grants = w.sent.iter().filter_map(|s| match s.2.body {
        Body::Grant(grant) => Some(grant.timeout_ms),
        _ => None,
    });
    assert_eq!(grants.collect::<Vec<_>>(), [600]);
}

/// Offers a further device.
fn offer(w: &mut World) -> u32 {
    w.lender.offer(&device(), &layout()).expect("room")
}

fn borrow_this(w: &mut World, i: usize, device: u32) -> Handle {
    let described = w.lender.devices().find(|d| d.0.handle == device);
    let terms = Borrow {
        handle: device,
        generation: described.expect("a device").0.generation,
        ..w.terms()
    };
    let (now, until) = (w.time(), Time(w.now + 3000));
    let handle = w.borrowers[i].borrow(now, LENDER, &terms, until);
    handle.expect("room")
}

/// Executes up to `most` operations, one at a time as drivers do. Returns the operations.
fn one_by_one(w: &mut World, most: usize) -> Vec<LenderWork> {
    let mut done = Vec::new();
    while done.len() < most {
        let now = w.time();
        let Some(work) = w.lender.work() else {
            break;
        };
        done.push(work);
        match work {
            LenderWork::Open(open) => {
                let opened = w.opened(&open);
                w.lender.opened(now, open.handle, Ok(opened));
            }
            LenderWork::Close(handle, _) => w.lender.closed(now, handle),
            LenderWork::Reset(handle) => w.lender.reset(now, handle, true),
            LenderWork::Release(_) | LenderWork::Gone(_) => {}
        }
    }
    done
}

/// The lender ends leases before it begins long operations.
#[test]
fn leases_end_before_anything_else_is_begun() {
    let mut w = World::new(2);
    let other = offer(&mut w);
    let third = offer(&mut w);
    w.up(0);
    borrow_this(&mut w, 1, third);
    w.all();
    // A reset and an opening are pending when the lease of the last device ends.
    let id = lease(&w);
    send(&mut w, 1, Body::Reset(id));
    let now = w.time();
    let terms = Borrow {
        handle: other,
        generation: 1,
        ..w.terms()
    };
    let sender = w.borrowers[1].incarnation();
    let body = Body::Borrow(terms);
    let wanted = Message {
        number: 77,
        sender,
        body,
    };
    w.send(2, LENDER, wanted);
    w.lender.reclaim(now, third, 0);
    let work = one_by_one(&mut w, 2);
    assert!(
        matches!(work[0], LenderWork::Close(handle, _) if handle == third),
        "{work:?}"
    );
}

/// A borrower that requests resets without end does not delay other borrowers.
#[test]
fn resets_without_end_do_not_keep_others_from_their_devices() {
    let mut w = World::new(2);
    let other = offer(&mut w);
    w.up(0);
    let id = lease(&w);
    // The borrower requests the next reset as soon as a reset is complete.
    let (mut number, mut resets) = (0, Vec::new());
    let mut flood = |w: &mut World, resets: &mut Vec<u64>| {
        for _ in 0..4 {
            number += 1;
            send(w, number, Body::Reset(id));
        }
        let done = match w.lender.work() {
            None => return None,
            Some(work) => work,
        };
        let now = w.time();
        if let LenderWork::Reset(handle) = done {
            resets.push(w.now);
            w.lender.reset(now, handle, true);
        }
        Some(done)
    };
    assert_eq!(
        flood(&mut w, &mut resets),
        Some(LenderWork::Reset(w.device))
    );
    // At the same time, the borrower requests the next reset. This reset must wait for other
    // devices and for the reset pause.
    assert_eq!(flood(&mut w, &mut resets), None);
    let sender = w.borrowers[1].incarnation();
    let terms = Borrow {
        handle: other,
        generation: 1,
        ..w.terms()
    };
    let wanted = Message {
        number: 77,
        sender,
        body: Body::Borrow(terms),
    };
    w.send(2, LENDER, wanted);
    let work = flood(&mut w, &mut resets);
    assert!(
        matches!(work, Some(LenderWork::Open(open)) if open.handle == other),
        "{work:?}"
    );
    // Accesses during this time are answered with *resetting*, after which a regular borrower
    // waits.
    number_of(&mut w, 9000, Body::Read(id, register(0, 4)));
    assert_eq!(answer(&w, 9000), Some(Status::Resetting));
    // The lender executes one reset per pause.
    for t in 1..=1000 {
        w.now = t;
        let now = w.time();
        if w.lender.next().is_some_and(|at| at <= now) {
            w.lender.time(now);
        }
        number_of(&mut w, 9000 + t as u32, Body::Reset(id));
        if let Some(LenderWork::Reset(handle)) = w.lender.work() {
            resets.push(t);
            w.lender.reset(now, handle, true);
        }
    }
    assert_eq!(resets, [0, 300, 600, 900]);
}

fn number_of(w: &mut World, number: u32, body: Body) {
    send(w, number, body);
    // Only send messages, because the test executes the work.
    while let Some(step) = w.lender.step(w.time()) {
        if let protocol::pci::lender::Step::Send(to, message) = step {
            w.sent.push((0, to.0, message));
        }
    }
}

/// Resets of several devices are executed in round-robin order.
#[test]
fn devices_take_turns() {
    let mut w = World::new(2);
    let handles = [w.device, offer(&mut w), offer(&mut w)];
    w.up(0);
    borrow_this(&mut w, 0, handles[1]);
    borrow_this(&mut w, 1, handles[2]);
    w.all();
    let leases: Vec<_> = w.lender.devices().filter_map(|d| d.1).collect();
    assert_eq!(leases.len(), 3);
    let mut done = Vec::new();
    for round in 1..=2 {
        for (i, id) in leases.iter().enumerate() {
            let from = if i == 2 { 2 } else { 1 };
            let sender = w.borrowers[from - 1].incarnation();
            let message = Message {
                number: round,
                sender,
                body: Body::Reset(*id),
            };
            w.send(from as u16, LENDER, message);
        }
        // Two of three resets are executed, then the next resets are requested.
        w.now += 300;
        let now = w.time();
        w.lender.time(now);
        let count = if round == 1 { 2 } else { 4 };
        for work in one_by_one(&mut w, count) {
            let LenderWork::Reset(handle) = work else {
                panic!("{work:?}");
            };
            done.push(handles.iter().position(|h| *h == handle).expect("one"));
        }
    }
    assert_eq!(done[..3], [0, 1, 2], "{done:?}");
}

/// A lender that answers questions about the lease, but does not answer accesses, loses the lease.
#[test]
fn a_lender_that_makes_no_accesses_loses_the_lease() {
    let mut w = World::new(1);
    let handle = w.up(0);
    let request = ConfigAccess::Read(register(0, 4));
    let mut begun = 0;
    loop {
        let now = w.time();
        let (number, ..) = match w.borrowers[0].access(now, handle, request) {
            Ok(asked) => asked,
            Err(refused) => {
                assert_eq!(refused, AccessError::Lost);
                break;
            }
        };
        begun += 1;
        assert!(begun <= 12, "never ends");
        // Drop the accesses that the lender requests.
        w.pass(w.now + 200);
        w.configs.clear();
        let now = w.time();
        assert_eq!(w.borrowers[0].poll(now, handle, number), Poll::TimedOut);
    }
    assert!(begun >= borrower::UNANSWERED_MAX, "{begun}");
    w.deliver_all();
    assert_eq!(w.work, [(0, Work::Close(handle, EndReason::Stuck))]);
    assert_eq!(w.borrowers[0].counters().stuck, 1);
    assert_eq!(w.borrowers[0].counters().lost, 0);
}

/// A lender that is unreachable for some time keeps the lease, however many accesses time out.
#[test]
fn a_lender_that_is_out_of_reach_is_not_stuck() {
    let mut w = World::new(1);
    let handle = w.up(0);
    let request = ConfigAccess::Read(register(0, 4));
    w.unreachable = Some(0);
    const { assert!(16 >= 2 * borrower::UNANSWERED_MAX) };
    for _ in 0..16 {
        let now = w.time();
        let (number, ..) = w.borrowers[0].access(now, handle, request).expect("up");
        // In total, this is shorter than the time-out of the lease.
        w.now += 50;
        let now = w.time();
        w.borrowers[0].time(now);
        w.deliver_all();
        // Poll with a later time, so that the access times out early.
        let poll = w.borrowers[0].poll(Time(w.now + 200), handle, number);
        assert_eq!(poll, Poll::TimedOut);
    }
    assert_eq!(w.borrowers[0].state(handle), Some(LeaseState::Up));
    w.unreachable = None;
    // An answered access ends the series.
    w.pass(w.now + 150);
    let now = w.time();
    let (number, to, message) = w.borrowers[0].access(now, handle, request).expect("up");
    w.send(1, to, message);
    w.all();
    let now = w.time();
    let poll = w.borrowers[0].poll(now, handle, number);
    assert!(matches!(poll, Poll::Finished(Status::Done, _)), "{poll:?}");
}

#[test]
fn more_memory_than_a_lender_has_room_for_is_refused() {
    for (dma, up) in [(64 << 20, true), ((64 << 20) + 4096, false)] {
        let mut w = World::new(1);
        let terms = Borrow { dma, ..w.terms() };
        let handle = w.borrowers[0].borrow(Time(0), LENDER, &terms, Time(3000));
        let handle = handle.expect("room");
        w.all();
        let refused = w.count(|b| matches!(b, Body::Refuse(Reason::NoRoom, _)));
        assert_eq!(refused, usize::from(!up));
        let state = w.borrowers[0].state(handle);
        assert_eq!(state, up.then_some(LeaseState::Up));
    }
}

/// Returns the parse result of a message in a later protocol version.
fn of_version_2(message: &Message) -> ParseError {
    let words = message.words();
    let word = |i: usize| match i {
        0 => words.as_slice()[0] + 1,
        i => words.as_slice()[i],
    };
    Message::parse(message.kind().tag(), words.bytes(), word).expect_err("another version")
}

/// Requests of another version are refused with the reason *version*, and a refusal of another
/// version is understood.
#[test]
fn other_versions_are_told() {
    // A lender of this version receives requests of another version.
    let mut w = World::new(1);
    for (kind, lease) in [
        (Kind::List, LeaseId::NONE),
        (Kind::Borrow, LeaseId::new(9, 0)),
    ] {
        w.lender.receive_other_version(NodeId(1), kind, 9);
        w.deliver_all();
        let refused = w.sent.last().expect("an answer").2;
        assert_eq!(
            (refused.number, refused.body),
            (9, Body::Refuse(Reason::Version, lease))
        );
    }
    // A borrower has asked a lender of another version.
    for refusals_are_read in [true, false] {
        let mut w = World::new(1);
        let number = w.borrowers[0].list(Time(0), LENDER, 0, Time(500));
        w.lender
            .receive_other_version(NodeId(1), Kind::List, number);
        let Some(protocol::pci::lender::Step::Send(_, message)) = w.lender.step(Time(0)) else {
            panic!("no answer");
        };
        if refusals_are_read {
            w.borrowers[0].receive(Time(0), LENDER, &message);
        } else {
            let ParseError::Version { kind, number, .. } = of_version_2(&message) else {
                panic!("{message:?}");
            };
            assert_eq!(kind, Kind::Refuse);
            // The same answer from another node has no effect.
            w.borrowers[0].receive_other_version(Time(0), NodeId(5), number);
            assert_eq!(w.borrowers[0].listed(Time(0), number), None);
            w.borrowers[0].receive_other_version(Time(0), LENDER, number);
        }
        let answer = w.borrowers[0].listed(Time(0), number);
        assert_eq!(answer, Some(Err(Some(Reason::Version))));
    }
    let mut w = World::new(1);
    let handle = w.borrow(0);
    w.borrowers[0].receive_other_version(Time(0), LENDER, handle.number());
    w.deliver_all();
    let why = EndReason::Refused(Reason::Version);
    assert_eq!(w.work, [(0, Work::Closed(handle, why))]);
    // A lease that is up does not end.
    let mut w = World::new(1);
    let handle = w.up(0);
    w.borrowers[0].receive_other_version(Time(0), LENDER, handle.number());
    assert_eq!(w.borrowers[0].state(handle), Some(LeaseState::Up));
}
