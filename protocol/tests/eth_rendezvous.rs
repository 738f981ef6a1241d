//! Tests of the rendezvous' sender and receiver, step by step and with random operations.

mod eth_parts;
mod heap;

use eth_parts::*;
use heap::Heap;
use proptest::prelude::*;
use protocol::eth::rendezvous::{
    shortest_quarantine_ms, Admitted, Announced, AnnouncementError, Ended, FetchEvent, FetchState,
    Fetched, FlightEvent, FlightState, Sender, Shared, Unsent, Waiting,
};
use protocol::{Time, TransportError};
use std::collections::HashMap;
use wire::eth::{Announcement, Completion, Side};
use wire::ids::NodeId;

#[test]
fn a_frame_that_is_fetched_late_keeps_its_memory_until_then() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    assert_eq!(age(&mut s, 9), (0, 0, vec![]));
    assert_eq!(age(&mut s, 10), (0, 1, vec![]));
    assert_eq!(age(&mut s, 100), (1, 0, vec![]));
    assert_eq!((s.active(), s.given_up()), (0, 1));
    assert_eq!(age(&mut s, 1099), (0, 0, vec![]));
    let late = s.notified(&Time(0), &LIMITS, &done(Side::Sent, 4096, 1, 0));
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
    assert!(matches!(
        s.notified(&Time(0), &LIMITS, &other),
        Ended::Unmatched
    ));
    assert!(!dropped(&mut s, 0, 2, 4096));
    age(&mut s, 100);
    assert_eq!(s.given_up(), 1);
    assert!(
        matches!(s.notified(&Time(0), &LIMITS, &other), Ended::Unmatched),
        "in quarantine"
    );
    // A report that the frame was dropped does not release its memory either, because a GET may be
    // in flight.
    assert!(!dropped(&mut s, 100, 1, 4096));
    assert_eq!(s.given_up(), 1);
}

#[test]
fn a_frame_that_its_peer_dropped_stays_for_a_fetch_under_way() {
    let mut s: Sender<Heap, At> = Sender::new(16, 32).unwrap();
    announce(&mut s, 0, 1, 4096);
    announce(&mut s, 0, 1, 8192);
    assert!(dropped(&mut s, 5, 1, 4096));
    assert_eq!((s.active(), s.given_up()), (1, 1));
    age(&mut s, 10);
    assert!(dropped(&mut s, 10, 1, 8192));
    assert_eq!((s.active(), s.given_up(), s.in_flight()), (0, 2, 0));
    assert_eq!(age(&mut s, 1004).2, vec![] as Vec<u64>);
    assert_eq!(age(&mut s, 1009).2, vec![4096]);
    let late = s.notified(&Time(0), &LIMITS, &done(Side::Sent, 8192, 1, 0));
    assert!(matches!(late, Ended::Late(At(8192))), "{late:?}");
    assert!(s.is_empty());
    for state in [FlightState::Announced, FlightState::Stalled] {
        assert_eq!(s.counts().made(state, FlightEvent::Dropped), 1);
    }
    // Frames beyond the peer's maximum in the quarantine are kept too, and are given up at their
    // time-out.
    for i in 1..=9 {
        announce(&mut s, 2000, 1, 4096 * i);
    }
    for i in 1..=9 {
        assert!(dropped(&mut s, 2000, 1, 4096 * i));
    }
    assert_eq!((s.active(), s.given_up(), s.in_flight()), (3, 6, 0));
    assert_eq!(age(&mut s, 2100).0, 3);
    assert_eq!((s.active(), s.given_up()), (0, 9));
    assert_eq!(age(&mut s, 3000).2.len(), 6);
}

/// A port that repeats commands which the NIC has dropped sends announcements late. The time-out of
/// the peer begins when the port sends the announcement. Frames that the port never sends are given
/// up in the end.
#[test]
fn what_the_port_holds_back_is_not_held_against_the_peer() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    let mut stalled = 0;
    for now in 1..=60 {
        let posted_before = if now < 30 { 0 } else { now };
        let count = |_: &mut At| {
            stalled += 1;
            true
        };
        s.age(&Time(now), &LIMITS, Time(posted_before), count, drop);
        s.check().unwrap();
        assert_eq!(stalled, u32::from(now >= 39), "{now}");
        let prompt = Admitted::Yes { prompt: now < 33 };
        let is = s.admit(&Time(now), NodeId(1), &LIMITS);
        assert_eq!(is, prompt, "{now}");
    }
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    for now in 0..=100 {
        assert_eq!(s.given_up(), 0, "{now}");
        s.age(&Time(now), &LIMITS, Time(0), |_| true, drop);
        s.check().unwrap();
    }
    assert_eq!((s.active(), s.given_up()), (0, 1));
}

/// A port that sends a GET late does not shorten the time of the GET's source.
#[test]
fn what_the_port_holds_back_is_not_held_against_the_source() {
    let (mut w, f) = receiver();
    acquaint(&f, 1);
    push(&mut w, 0, 1, 1, false);
    pump(&mut w, &f, 0, &mut plenty());
    for now in 1..=60 {
        let posted_before = if now < 30 { 0 } else { now };
        let mut f = f.0.borrow_mut();
        f.age(&Time(now), &LIMITS, Time(posted_before), drop);
        f.check().unwrap();
        assert_eq!(f.is_stalled(NodeId(1)), now >= 39, "{now}");
    }
}

#[test]
fn what_the_port_may_still_send_keeps_its_memory() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    age(&mut s, 100);
    let (mut w, f) = receiver();
    push(&mut w, 100, 1, 1, false);
    pump(&mut w, &f, 100, &mut plenty());
    for (posted_before, freed) in [(0, 0), (100, 0), (101, 1)] {
        let mut n = 0;
        s.age(
            &Time(5000),
            &LIMITS,
            Time(posted_before),
            |_| true,
            |_| n += 1,
        );
        assert_eq!(n, freed, "{posted_before}");
        n = 0;
        let fetches = &f.0;
        fetches
            .borrow_mut()
            .age(&Time(5000), &LIMITS, Time(posted_before), |_| n += 1);
        assert_eq!(n, freed, "{posted_before}");
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
    assert!(matches!(
        s.notified(&Time(0), &LIMITS, &other),
        Ended::Unmatched
    ));
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
fn what_can_not_be_sent_comes_back() {
    let mut s = sender();
    for refused in [TransportError::Later, TransportError::Never] {
        let mut port = Port {
            answer: Some(refused),
            ..Port::default()
        };
        let result = s.announce(&Time(0), &mut port, NodeId(1), At(4096), LEN, 0);
        assert_eq!(result, Err((At(4096), Unsent::Refused(refused))));
        assert!(s.is_empty());
    }
    announce(&mut s, 0, 1, 4096);
    let twice = s.announce(&Time(0), &mut Port::default(), NodeId(2), At(4096), LEN, 0);
    assert_eq!(twice, Err((At(4096), Unsent::Table)));
    assert_eq!(s.active(), 1);
    s.check().unwrap();
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
    // The source does not answer. It gets one more GET, which shows if it answers again, and no
    // further GET while this GET is open.
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
        vec![(1, AnnouncementError::Source(7))]
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
    // The other announcements wait for the result of the first GET.
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3][..], 3));
    let ended = f.with(|f| f.notified(&Time(101), &done(Side::Received, 3 << 20, 1, 0)));
    assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
    pump(&mut w, &f, 101, &mut port);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3, 4, 5][..], 1));
}

/// Returns a receiver after two short link failures, at 0 and 40. Source 1 has answered neither the
/// GETs of these times nor one earlier GET.
fn after_two_losses() -> (Waiting<Heap>, Locked, Port) {
    let (mut w, f) = receiver();
    let mut port = plenty();
    acquaint(&f, 1);
    for (at, i) in [(0, 1), (40, 2)] {
        push(&mut w, at, 1, i, false);
        assert_eq!(pump(&mut w, &f, at, &mut port), vec![]);
    }
    (w, f, port)
}

/// Fetches a frame of source 1, which answers.
fn fetch_at_once(w: &mut Waiting<Heap>, f: &Locked, at: u64, port: &mut Port) {
    port.buffers = [at << 20].into();
    push(w, at, 1, at, false);
    assert_eq!(pump(w, f, at, port), vec![], "at {at}");
    assert_eq!(port.sent.last(), Some(&at), "at {at}");
    let ended = f.with(|f| f.notified(&Time(at), &done(Side::Received, at << 20, 1, 0)));
    assert!(matches!(ended, Fetched::Frame(..)), "at {at}: {ended:?}");
    f.0.borrow_mut().check().unwrap();
}

#[test]
fn losses_that_are_found_late_are_not_held_against_a_source_that_answers() {
    let (mut w, f, mut port) = after_two_losses();
    for at in 60_u64..160 {
        f.0.borrow_mut().age(&Time(at), &LIMITS, NOW, drop);
        fetch_at_once(&mut w, &f, at, &mut port);
    }
    // The lost GETs are the GETs of the two link failures, and one earlier GET.
    assert_eq!(f.0.borrow().lost(), 3);
}

#[test]
fn a_silent_source_shows_that_it_is_back_though_it_owes_old_answers() {
    let (mut w, f, mut port) = after_two_losses();
    f.0.borrow_mut().age(&Time(100), &LIMITS, NOW, drop);
    assert_eq!((f.0.borrow().lost(), f.0.borrow().len()), (2, 3));
    port.sent.clear();
    for i in 3..=5 {
        push(&mut w, 100, 1, i, false);
    }
    // One GET is posted. The other announcements wait for its result for a short time.
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3][..], 2));
    assert_eq!(
        pump(&mut w, &f, 110, &mut port),
        vec![(1, AnnouncementError::Source(4)); 2]
    );
    // The old GET is lost too. No second GET is posted while the first GET is open.
    f.0.borrow_mut().age(&Time(140), &LIMITS, NOW, drop);
    push(&mut w, 140, 1, 6, false);
    assert_eq!(
        pump(&mut w, &f, 140, &mut port),
        vec![(1, AnnouncementError::Source(4))]
    );
    let ended = f.with(|f| f.notified(&Time(141), &done(Side::Received, 3 << 20, 1, 0)));
    assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
    push(&mut w, 141, 1, 7, false);
    assert_eq!(pump(&mut w, &f, 141, &mut port), vec![]);
    assert_eq!(port.sent, [3, 7]);
}

#[test]
fn what_a_source_owed_when_it_became_silent_is_not_held_against_it_afterwards() {
    let (mut w, f) = receiver();
    let mut port = plenty();
    acquaint(&f, 1);
    // More GETs than a source with losses may have in flight.
    for i in 1..=4 {
        push(&mut w, 40, 1, i, false);
    }
    assert_eq!(pump(&mut w, &f, 40, &mut port), vec![]);
    assert_eq!((port.sent.len(), w.len()), (4, 0));
    // The source answers again, and an earlier GET is found lost.
    for at in 100_u64..140 {
        f.0.borrow_mut().age(&Time(at), &LIMITS, NOW, drop);
        fetch_at_once(&mut w, &f, at, &mut port);
    }
    assert_eq!(f.0.borrow().lost(), 1);
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
    // Further announcements of this source are refused.
    assert_eq!(
        pump(&mut w, &f, 10, &mut port),
        vec![(1, AnnouncementError::Source(1))]
    );
    // The scratch buffer is lost with its GET. The next announcement gets a new scratch buffer.
    assert!(!f.0.borrow().needs_scratch());
    f.0.borrow_mut().age(&Time(100), &LIMITS, NOW, drop);
    assert!(f.0.borrow().needs_scratch());
    f.with(|f| f.set_scratch(Some(At(1 << 31))));
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[1, 3, 4][..], 0));
    // The first scratch buffer remains in quarantine, and its source gets no other scratch buffer.
    push(&mut w, 100, 1, 5, true);
    assert_eq!(
        pump(&mut w, &f, 101, &mut port),
        vec![(1, AnnouncementError::Source(1))]
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
    // The sender has given the frame up, and may reuse the memory soon.
    assert_eq!(pump(&mut w, &f, 100, &mut port), vec![]);
    let ended = f.with(|f| f.notified(&Time(100), &done(Side::Received, 1 << 30, 1, 0)));
    assert!(matches!(ended, Fetched::Discarded(None)), "{ended:?}");
    assert_eq!(port.buffers.len(), 1);
    // The sender may have reused the memory, so its present contents must not be fetched.
    push(&mut w, 1000, 1, 2, false);
    assert_eq!(
        pump(&mut w, &f, 1200, &mut port),
        vec![(1, AnnouncementError::Stale)]
    );
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
        ticket: None,
    };
    // The message is read now, but the mailbox was last known to be empty long ago.
    w.age_bound().emptied(Time(300));
    assert_eq!(w.push(&Time(1000), announced, &LIMITS), Ok(()));
    let mut port = plenty();
    assert_eq!(
        pump(&mut w, &f, 1000, &mut port),
        vec![(1, AnnouncementError::Stale)]
    );
    // The mailbox is never empty, but messages that were in it at 980 have been read.
    w.age_bound().mark(Time(980), 3);
    w.age_bound().read(2);
    assert_eq!(w.age_bound().since(), Time(300));
    w.age_bound().read(1);
    assert_eq!(w.age_bound().since(), Time(980));
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
            ticket: None,
        };
        assert_eq!(w.push(&Time(0), announced, &LIMITS), Ok(()));
    }
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!((port.sent.as_slice(), w.len()), (&[3][..], 3));
    // The receiver does not request unavailable memory repeatedly.
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
        answer: Some(TransportError::Later),
        buffers: [1 << 20, 1 << 21].into(),
        ..Port::default()
    };
    pump(&mut w, &f, 0, &mut port);
    assert_eq!((w.len(), f.0.borrow().len()), (1, 0));
    port.answer = Some(TransportError::Never);
    assert_eq!(
        pump(&mut w, &f, 0, &mut port),
        vec![(1, AnnouncementError::Port)]
    );
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
    /// Each buffer is returned exactly once, and not too early.
    #[test]
    fn the_sender_gives_each_buffer_back_once(ops in prop::collection::vec(op(), 0..300)) {
        let mut s = sender();
        let mut now = 0u64;
        // By address: the node, and the time before which the buffer must not be returned.
        let mut out: HashMap<u64, (u16, u64)> = HashMap::new();
        for op in ops {
            match op {
                Op::Announce(n, a) => {
                    let a = (a + 1) << 12;
                    let admitted = s.admit(&Time(0), NodeId(n), &LIMITS);
                    if out.contains_key(&a) || !matches!(admitted, Admitted::Yes { .. }) {
                        continue;
                    }
                    announce(&mut s, now, n, a);
                    out.insert(a, (n, now + LIMITS.timeout + LIMITS.quarantine));
                }
                Op::Notify(n, a, e) => {
                    let a = (a + 1) << 12;
                    let right = out.get(&a).is_some_and(|o| o.0 == n);
                    let b = match s.notified(&Time(0), &LIMITS, &done(Side::Sent, a, n, e)) {
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
                    // The frame is kept for the same time as a frame that is given up now.
                    if let (true, Some(o)) = (found, out.get_mut(&a)) {
                        o.1 = now + LIMITS.quarantine;
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
            prop_assert!(s.in_flight() <= LIMITS.flight);
            s.check().unwrap();
        }
    }
}

#[test]
fn memory_is_kept_for_longer_than_peers_fetch_from_it() {
    for timeout in [200, 3_000, 600_000] {
        // Peers fetch frames of up to twice their time-out. The sender gives a frame up after one
        // time-out, and keeps its memory for the quarantine after that.
        assert!(timeout + shortest_quarantine_ms(timeout) >= 2 * timeout + 5_000);
    }
}
