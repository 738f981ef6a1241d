//! Tests of a stream connection: announcements, GETs, rings, and full ports.

mod ds_two;

use ds_two::*;
use protocol::ds::*;
use protocol::transfer::{Failure, Quiet};
use protocol::Time;
use wire::ds::{Ack, ConnId, Ended, Head, Message};
use wire::rma::{Fault, FaultCause, FaultUnit};

#[test]
fn a_long_piece_is_announced_and_fetched() {
    let mut t = Two::new();
    let all = data(2_500);
    assert_eq!(t.write(0, &all), 2_500);
    let sent = t.carry(0, false);
    assert!(matches!(
        sent,
        Some(Message::RmaInfo {
            len: 2_500,
            push: true,
            ..
        })
    ));
    let gets = &t.sides[1].out.gets;
    let parts: Vec<u32> = gets.iter().map(|g| g.0.from.len).collect();
    assert_eq!(parts, [1_000, 1_000, 500]);
    // The second GET is finished first, so no byte is readable before the first GET is finished.
    let first = t.sides[1].out.gets.pop_front().unwrap();
    t.fetch(1, Ok(()));
    assert!(!t.sides[1].stream.ready().readable);
    t.sides[1].out.gets.push_front(first);
    t.fetch(1, Ok(()));
    assert_eq!(t.read(1, 10_000), all[..2_000]);
    t.settle();
    assert_eq!(t.read(1, 10_000), all[2_000..]);
    let c = t.sides[1].stream.counters();
    assert_eq!((c.gets, c.rma_received, c.velo_received), (3, 2_500, 0));
}

#[test]
fn what_comes_behind_an_announcement_is_taken_and_waits() {
    let mut t = Two::new();
    t.write(0, &data(600));
    t.write(0, b"small");
    t.carry(0, false);
    t.carry(0, false);
    assert!(!t.sides[1].stream.ready().readable);
    assert!(!t.sides[1].stream.receiving().is_pushed());
    // The end of the stream waits too.
    t.sides[0].stream.shut();
    t.pump(0);
    t.carry(0, false);
    assert!(!t.sides[1].stream.ready().peer_finished);
    assert_eq!(t.sides[1].stream.state(), StreamState::Established);
    t.fetch(1, Ok(()));
    assert!(t.sides[1].stream.receiving().is_pushed());
    assert_eq!(t.sides[1].stream.state(), StreamState::CloseWait);
    assert_eq!(t.read(1, 1_000), [data(600), b"small".to_vec()].concat());
    // Data and end are acknowledged only after the GET has finished.
    t.settle();
    assert_eq!(t.sides[0].stream.state(), StreamState::FinWait2);
}

#[test]
fn announcements_that_are_not_fetched_yet_become_one() {
    let mut t = Two::new();
    t.sides[1].out.get_room = 1;
    for _ in 0..4 {
        t.write(0, &data(600));
        t.carry(0, false);
    }
    t.sides[1].out.get_room = 100;
    t.fetch(1, Ok(()));
    t.now += LIMITS.ask;
    t.pump(1);
    let gets = &t.sides[1].out.gets;
    let parts: Vec<u32> = gets.iter().map(|g| g.0.from.len).collect();
    assert_eq!(parts, [1_000, 800]);
    t.settle();
    assert_eq!(t.read(1, 10_000), data(600).repeat(4));
}

/// Announces chunks of 600 bytes. Returns the sizes of the GETs in flight.
fn announce(t: &mut Two, pieces: usize) -> Vec<u32> {
    for _ in 0..pieces {
        t.write(0, &data(600));
        t.carry(0, false);
    }
    in_flight(t)
}

fn in_flight(t: &Two) -> Vec<u32> {
    let gets = t.sides[1].out.gets.iter();
    gets.map(|g| g.0.from.len).collect()
}

#[test]
fn a_short_piece_waits_while_two_gets_are_in_flight() {
    let mut t = Two::new();
    assert_eq!(announce(&mut t, 3), [600, 600]);
    // The next announcement is merged with the last range.
    assert_eq!(announce(&mut t, 1), [600, 600, 1_000, 200]);
    t.settle();
    assert_eq!(t.read(1, 10_000), data(600).repeat(4));
    t.settle();
    // The last range is fetched after any GET has ended, with success or not.
    assert_eq!(announce(&mut t, 3), [600, 600]);
    t.fetch(1, Ok(()));
    assert_eq!(in_flight(&t), [600, 600]);
    t.settle();
    assert_eq!(t.read(1, 10_000), data(600).repeat(3));
    t.settle();
    assert_eq!(announce(&mut t, 3), [600, 600]);
    t.fetch(1, Err(Failure::TimedOut));
    for _ in 0..10 {
        t.wait(LIMITS.ask);
        t.settle();
    }
    assert_eq!(t.read(1, 10_000), data(600).repeat(3));
}

#[test]
fn a_short_piece_that_cannot_grow_does_not_wait() {
    // The bytes of a message follow the range.
    let mut t = Two::new();
    assert_eq!(announce(&mut t, 3), [600, 600]);
    t.write(0, b"small");
    t.carry(0, false);
    assert_eq!(in_flight(&t), [600, 600, 600]);
    // The end of the stream follows the range.
    let mut t = Two::new();
    assert_eq!(announce(&mut t, 3), [600, 600]);
    t.sides[0].stream.shut();
    t.pump(0);
    t.carry(0, false);
    assert_eq!(in_flight(&t), [600, 600, 600]);
    // A source follows the range.
    let mut t = Two::new();
    assert_eq!(announce(&mut t, 3), [600, 600]);
    t.lend(0, &data(900));
    t.carry(0, false);
    assert_eq!(in_flight(&t)[..3], [600, 600, 600]);
}

#[test]
fn more_announcements_than_there_are_places_for_are_asked_for_again() {
    let mut t = Two::new();
    t.sides[1].out.get_room = 0;
    t.sides[0].limits.threshold = 30;
    let mut all = Vec::new();
    // The short data between the announcements prevent merging.
    for piece in [data(40), data(3)].iter().cycle().take(3 * MAX_RANGES) {
        assert_eq!(t.write(0, piece), piece.len());
        all.extend(piece);
        while t.carry(0, false).is_some() {}
    }
    assert!(t.sides[1].stream.counters().gaps > 0);
    t.sides[1].out.get_room = 100;
    let mut got = Vec::new();
    for _ in 0..100 {
        t.wait(LIMITS.ask);
        t.settle();
        got.extend(t.read(1, 10_000));
    }
    assert_eq!(got, all);
}

#[test]
fn a_full_ring_is_filled_and_waits_for_room() {
    let mut t = Two::new();
    let all = data(9_000);
    let mut written = t.write(0, &all);
    assert_eq!(written, RING as usize);
    t.settle();
    // The last quarter is acknowledged only after a question.
    t.wait_for(0);
    t.settle();
    // The send ring is free again, because the receiver has all bytes. The receive ring is full.
    written += t.write(0, &all[written..]);
    assert!(t.sides[0].out.messages.is_empty());
    assert!(t.sides[0].stream.deadline(&LIMITS).is_some());
    assert_eq!(t.sides[0].stream.sending().unsent(), RING);
    assert!(!t.sides[0].stream.ready().writable);
    // A small number of free bytes is announced only after a question, and is used by a message.
    let mut got = t.read(1, 300);
    assert!(t.sides[1].out.messages.is_empty());
    t.wait_for(0);
    t.settle();
    assert_eq!(t.sides[0].stream.counters().velo_bytes, 300);
    while got.len() < all.len() {
        got.extend(t.read(1, 700));
        written += t.write(0, &all[written..]);
        t.settle();
    }
    assert_eq!(got, all);
    assert!(t.sides[0].stream.ready().writable);
}

#[test]
fn a_failed_get_is_made_anew_once_the_peer_was_heard_of() {
    let mut t = Two::new();
    t.write(0, &data(600));
    t.carry(0, false);
    t.now = 30;
    t.fetch(1, Err(Failure::TimedOut));
    // The receiver asks for a sign of life first.
    assert!(t.sides[1].out.gets.is_empty());
    assert!(matches!(
        t.carry(1, false),
        Some(Message::RmaAvail { ask: true, .. })
    ));
    t.now += 1;
    t.carry(0, false);
    let (get, _, deadline) = t.sides[1].out.gets[0];
    assert_eq!((get.failed, deadline), (1, Time(t.now + 2 * LIMITS.get)));
    // After many failures, the deadline is limited by `hold`.
    for _ in 0..2 {
        t.fetch(1, Err(Failure::TimedOut));
        t.wait(LIMITS.ask);
        while t.carry(1, false).is_some() || t.carry(0, false).is_some() {}
    }
    let (get, post_by, deadline) = t.sides[1].out.gets[0];
    assert_eq!(get.failed, 3);
    assert_eq!(post_by, Time(t.now + 2 * LIMITS.fresh));
    assert_eq!(deadline, Time(post_by.0 + LIMITS.hold));
    t.settle();
    assert_eq!(t.read(1, 1_000), data(600));
}

#[test]
fn what_is_refused_or_never_comes_is_not_tried_for_ever() {
    let fault = Fault {
        unit: FaultUnit::Responder,
        cause: FaultCause::Translation,
    };
    for (why, tries) in [
        (Failure::Fault(fault), u32::from(LIMITS.tries)),
        (Failure::TimedOut, 1_000),
    ] {
        let mut t = Two::new();
        t.write(0, &data(600));
        t.carry(0, false);
        let mut tried = 0;
        while t.sides[1].stream.end().is_none() {
            t.now += 10;
            for i in 0..2 {
                t.pump(i);
            }
            while t.carry(0, false).is_some() || t.carry(1, false).is_some() {}
            if !t.sides[1].out.gets.is_empty() {
                t.fetch(1, Err(why));
                tried += 1;
            }
        }
        assert_eq!(t.sides[1].stream.end(), Some(End::FetchFailed));
        assert!(tried <= tries, "{tried}");
        assert!(t.now <= LIMITS.give_up + 50, "{}", t.now);
        t.settle();
        assert_eq!(t.sides[0].stream.end(), Some(End::Peer(Ended::Reset)));
    }
}

#[test]
fn nothing_is_fetched_from_a_peer_that_may_be_another_one() {
    let mut t = Two::new();
    t.write(0, &data(600));
    let (sent, _) = t.sides[0].out.messages.pop_front().unwrap();
    // The message is read at the time `now`, and was sent after time 100.
    t.now = 100 + LIMITS.fresh + 1;
    let now = Time(t.now);
    t.sides[1].stream.receive(&sent, Time(100), &LIMITS, now);
    t.pump(1);
    assert!(t.sides[1].out.gets.is_empty());
    t.carry(1, false);
    t.carry(0, false);
    let (_, post_by, deadline) = t.sides[1].out.gets[0];
    assert_eq!(post_by, Time(t.now + 2 * LIMITS.fresh));
    assert_eq!(deadline, Time(t.now + LIMITS.get));
    // The age of a message that was read in time counts from the time at which it was sent.
    let mut t = Two::new();
    t.write(0, &data(600));
    let (sent, _) = t.sides[0].out.messages.pop_front().unwrap();
    t.now = 100 + LIMITS.fresh;
    let now = Time(t.now);
    t.sides[1].stream.receive(&sent, Time(100), &LIMITS, now);
    t.pump(1);
    assert_eq!(t.sides[1].out.gets[0].1, Time(100 + 2 * LIMITS.fresh));
}

#[test]
fn a_refused_get_stops_nothing_else() {
    let mut t = Two::new();
    t.sides[1].out.get_room = 0;
    t.write(0, &data(600));
    t.carry(0, false);
    t.write(1, b"other way");
    t.settle();
    assert_eq!(t.read(0, 100), b"other way");
    // The GET is posted again after a short time.
    t.sides[1].out.get_room = 1;
    t.wait_for(1);
    t.settle();
    assert_eq!(t.read(1, 1_000), data(600));
}

#[test]
fn while_the_port_refuses_gets_the_peer_loses_no_time() {
    let mut t = Two::new();
    t.write(0, &data(600));
    t.carry(0, false);
    t.now = LIMITS.get;
    t.fetch(1, Err(Failure::TimedOut));
    t.sides[1].out.get_room = 0;
    let step = |t: &mut Two| {
        t.wait(LIMITS.ask);
        while t.carry(1, false).is_some() || t.carry(0, false).is_some() {}
    };
    while t.now < 3 * LIMITS.give_up {
        step(&mut t);
    }
    assert_eq!(t.sides[1].stream.end(), None);
    // Later failures count only against the time that remains after the refusals.
    t.sides[1].out.get_room = 1;
    let since = t.now;
    while t.sides[1].stream.end().is_none() {
        step(&mut t);
        if !t.sides[1].out.gets.is_empty() {
            t.fetch(1, Err(Failure::TimedOut));
        }
    }
    assert_eq!(t.sides[1].stream.end(), Some(End::FetchFailed));
    let elapsed = t.now - since;
    let all = LIMITS.give_up;
    assert!(
        elapsed <= all + LIMITS.ask && elapsed >= all - 3 * LIMITS.ask,
        "{elapsed}"
    );
}

#[test]
fn the_send_ring_of_a_lost_connection_rests() {
    let mut t = Two::new();
    t.now = 40;
    t.sides[0].stream.abort(Time(t.now));
    // The port may keep its messages for any time.
    t.wait(5 * LIMITS.hold);
    let stream = &mut t.sides[0].stream;
    assert_eq!(stream.send_ring_free(&LIMITS), RingFree::Uncommitted);
    stream.committed(Time(t.now));
    let free_at = Time(t.now + 2 * (LIMITS.fresh + LIMITS.hold));
    assert_eq!(stream.send_ring_free(&LIMITS), RingFree::At(free_at));
    // A second call has no effect.
    stream.committed(Time(t.now + 1));
    assert_eq!(stream.send_ring_free(&LIMITS), RingFree::At(free_at));
    t.sides[1].stream.committed(Time(t.now));
    assert_eq!(t.sides[1].stream.send_ring_free(&LIMITS), RingFree::No);
    // After an abort, the send ring is free at once if the peer has acknowledged all bytes.
    let mut t = Two::new();
    t.sides[0].stream.shut();
    t.pump(0);
    t.settle();
    t.sides[0].stream.abort(Time(t.now));
    assert_eq!(t.sides[0].stream.send_ring_free(&LIMITS), RingFree::Now);
}

#[test]
fn no_more_is_fetched_than_the_ring_of_the_peer_has() {
    const SHORT: u32 = 1024;
    let geometry = Geometry {
        send_isn: FIRST[1],
        receive_isn: FIRST[0],
        send_ring: RING,
        receive_ring: RING,
        peer_ring: RING,
        peer_send: SHORT,
        sources: true,
    };
    let announce = |stream: &mut Stream, at: u32, len| {
        let head = Head {
            conn: ConnId::new(1, 5),
            seq: FIRST[0].plus(at),
            marks: 0,
        };
        let ack = Ack {
            ack: FIRST[1],
            edge: FIRST[1].plus(RING),
        };
        let push = true;
        let info = Message::RmaInfo {
            head,
            ack,
            len,
            push,
        };
        stream.receive(&info, Time(0), &LIMITS, Time(0));
    };
    let new = || Stream::new(ConnId::new(1, 5), ConnId::new(0, 5), &geometry, Time(0));
    let broken = Some(End::Broken(Violation::Ring));
    let mut stream = new();
    announce(&mut stream, 0, SHORT + 1);
    assert_eq!(stream.end(), broken);
    // Announced bytes count until their acknowledgement was sent.
    let mut stream = new();
    announce(&mut stream, 0, SHORT - 1);
    announce(&mut stream, SHORT - 1, 1);
    assert_eq!(stream.end(), None);
    announce(&mut stream, SHORT, 1);
    assert_eq!(stream.end(), broken);
    // Acknowledged bytes do not count.
    let mut stream = new();
    let mut out = Out {
        room: 10,
        get_room: 10,
        ..Out::default()
    };
    announce(&mut stream, 0, SHORT);
    while stream.pump(&mut out, &LIMITS, Time(0), 3) == Ok(true) {}
    for (get, ..) in out.gets.drain(..) {
        assert!(get.from.at + get.from.len <= SHORT);
        stream.get_ended(get.id, Some(Ok(())), Some(Quiet::Settled), &LIMITS, Time(0));
    }
    while stream.pump(&mut out, &LIMITS, Time(0), 3) == Ok(true) {}
    assert_eq!(out.messages.len(), 1);
    announce(&mut stream, SHORT, SHORT);
    assert_eq!(stream.end(), None);
}

#[test]
fn a_get_that_took_too_long_has_brought_nothing() {
    let mut t = Two::new();
    t.write(0, &data(600));
    t.carry(0, false);
    let deadline = t.sides[1].out.gets[0].2;
    t.now = deadline.0 + 1;
    t.fetch(1, Ok(()));
    assert_eq!(t.sides[1].stream.receiving().readable().len, 0);
    // The GET is posted again.
    t.wait(LIMITS.ask);
    t.settle();
    assert_eq!(t.read(1, 1_000), data(600));
    // A result at the deadline is in time.
    let mut t = Two::new();
    t.write(0, &data(600));
    t.carry(0, false);
    t.now = t.sides[1].out.gets[0].2 .0;
    t.fetch(1, Ok(()));
    assert_eq!(t.read(1, 1_000), data(600));
}

#[test]
fn the_receive_ring_is_written_to_until_the_last_get_is_over() {
    let mut t = Two::new();
    t.write(0, &data(600));
    t.carry(0, false);
    t.sides[1].stream.abort(Time(t.now));
    t.pump(1);
    assert!(!t.sides[1].stream.is_quiet());
    // The outcome is reported before the quiet state.
    let (get, ..) = t.sides[1].out.gets.pop_front().unwrap();
    let failed = Some(Err(Failure::TimedOut));
    let s = &mut t.sides[1].stream;
    s.get_ended(get.id, failed, None, &LIMITS, Time(10));
    assert!(!s.is_quiet() && !s.can_drop(Time(10), &LIMITS));
    s.get_ended(get.id, None, Some(Quiet::Unanswered), &LIMITS, Time(20));
    assert!(s.is_quiet() && s.can_drop(Time(20), &LIMITS));
}

#[test]
fn a_port_that_is_gone_leaves_nothing_to_wait_for() {
    let mut t = Two::new();
    t.sides[0].stream.shut();
    t.pump(0);
    t.settle();
    t.sides[1].stream.shut();
    t.pump(1);
    // The port cannot send the last acknowledgement.
    t.sides[0].out.room = 0;
    t.carry(1, false);
    t.sides[0].stream.down(Time(t.now));
    t.pump(0);
    assert!(t.sides[0].stream.can_drop(Time(t.now), &LIMITS));
    assert_eq!(t.sides[0].stream.deadline(&LIMITS), None);
}

#[test]
fn a_port_without_room_is_tried_again() {
    let mut t = Two::new();
    let all = data(3_000);
    t.sides[0].out.room = 0;
    t.write(0, &all);
    assert!(t.sides[0].out.messages.is_empty());
    // The stream has no deadline while the port is full.
    assert_eq!(t.sides[0].stream.deadline(&LIMITS), None);
    for _ in 0..100 {
        for room in [1, 0] {
            t.sides[0].out.room = room;
            t.pump(0);
        }
        t.settle();
    }
    assert_eq!(t.read(1, 10_000), all);
}

#[test]
fn closing_before_all_was_fetched_resets_too() {
    let mut t = Two::new();
    t.write(0, &data(600));
    t.carry(0, false);
    assert!(!t.sides[1].stream.ready().readable);
    t.sides[1].stream.close(Time(t.now));
    t.pump(1);
    t.settle();
    assert_eq!(t.sides[0].stream.end(), Some(End::Peer(Ended::Reset)));
}

#[test]
fn a_program_without_patience_for_its_peer_has_some_for_gets() {
    let mut t = Two::new();
    t.sides[1].stream.set_give_up(Some(LIMITS.give_up / 4));
    t.write(0, &data(600));
    t.carry(0, false);
    t.now = LIMITS.get;
    t.fetch(1, Err(Failure::TimedOut));
    // The peer answers all questions, and all GETs fail.
    while t.now < LIMITS.give_up * 3 / 4 {
        t.wait(LIMITS.ask);
        while t.carry(1, false).is_some() || t.carry(0, false).is_some() {}
        assert_eq!(t.sides[1].stream.end(), None, "at {}", t.now);
    }
    t.wait(LIMITS.give_up / 2);
    assert_eq!(t.sides[1].stream.end(), Some(End::FetchFailed));
}

#[test]
fn a_program_that_gives_its_peer_time_gives_gets_time() {
    let mut t = Two::new();
    t.sides[1].stream.set_give_up(Some(5_000));
    t.write(0, &data(600));
    t.carry(0, false);
    t.fetch(1, Err(Failure::TimedOut));
    t.sides[1].out.messages.clear();
    while t.now < 4_900 {
        t.wait_for(1);
        t.sides[1].out.messages.clear();
        assert_eq!(t.sides[1].stream.end(), None, "at {}", t.now);
    }
}
