//! Tests of limits of the LND protocol: a peer leaves resources to other peers, and tables do not
//! stay full.

mod lnd_net;

use lnd_net::{fetching, offer, pair, settle, End, InFlight, CAPACITY, LIMITS};
use protocol::lnd::{max_concurrent, Capacity, Cause, Event, Outcome, PeerState, Ticket};
use protocol::Time;
use std::collections::HashMap;
use wire::ids::NodeId;
use wire::lnd::{
    Answer, Hello, Incarnation, Key, Message, Note, NoteKind, Notes, Verdict, VERSION,
};

/// Returns the messages that are offered to a node's LNet.
fn offers(events: &[(u16, Event<u32>)], node: u16) -> Vec<Ticket> {
    let all = events.iter().filter_map(|e| match e {
        (n, Event::Offer(ticket, _)) if *n == node => Some(*ticket),
        _ => None,
    });
    all.collect()
}

fn expire(end: &mut End, now: u64) {
    while end.lnd.expire(Time(now), 10) {}
}

fn hello(key: u32) -> Message {
    Message::Hello(Hello {
        version: VERSION,
        slots: CAPACITY.slots,
        key: Key(key),
        incarnation: Incarnation(key.into()),
    })
}

/// Returns the key of the last `WELCOME` that accepts a session.
fn session_key(messages: &[InFlight]) -> Option<Key> {
    messages.iter().rev().find_map(|m| match m.message {
        Message::Welcome(w) if w.answer == Answer::Yes => Some(w.own.key),
        _ => None,
    })
}

/// Returns the number of requests and fragments.
fn parts(messages: &[InFlight]) -> usize {
    let part = |m: &&InFlight| matches!(m.message, Message::Request(_) | Message::Fragment(_));
    messages.iter().filter(part).count()
}

#[test]
fn parts_of_a_request_interrupt_the_receiver_now_and_then_and_at_the_end() {
    let mut ends = pair();
    for (token, len) in [(0, 0), (1, 100), (2, 4096), (3, 7000)] {
        assert!(ends[0].submit(2, token, len, false, 10_000, 0));
        if token == 0 {
            // The first message begins the session.
            let ticket = offer(&settle(&mut ends, 0));
            ends[1].accept(ticket, 0);
            settle(&mut ends, 0);
            continue;
        }
        let messages = ends[0].pump(100, 0);
        assert_eq!(parts(&messages), messages.len());
        let loud = |(_, m): &(usize, &InFlight)| !m.quiet;
        let loud: Vec<_> = (1..).zip(&messages).filter(loud).map(|(i, _)| i).collect();
        let mut want: Vec<_> = (1..messages.len()).filter(|i| i % 16 == 0).collect();
        want.push(messages.len());
        assert_eq!(loud, want, "{len} bytes");
        for m in &messages {
            ends[1].deliver(m, 0, 0);
        }
        let ticket = offer(&settle(&mut ends, 0));
        ends[1].accept(ticket, 0);
        // All other messages interrupt the receiver.
        let notes = ends[1].pump(100, 0);
        assert!(!notes.is_empty() && notes.iter().all(|m| !m.quiet));
        for m in &notes {
            ends[0].deliver(m, 0, 0);
        }
        settle(&mut ends, 0);
    }
}

fn notes(key: Key, all: &[Note]) -> Message {
    let mut notes = Notes::NONE;
    for note in all {
        assert!(notes.push(*note));
    }
    Message::Notes(key, notes)
}

#[test]
fn what_lnet_keeps_does_not_keep_out_what_it_waits_for() {
    let mut ends = pair();
    let mut names = HashMap::new();
    for i in 0..100 {
        assert!(ends[0].submit(2, i, 300, false, 10_000, 0));
        let ticket = offer(&settle(&mut ends, 0));
        let (_, header, len, inline) = ends[1].lnd.offered(ticket).unwrap();
        assert_eq!((header[0], len, inline), (i.into(), 300, true));
        names.insert(i, ends[1].buffers[&ticket.index()][..300].to_vec());
        assert!(ends[1].lnd.kept(ticket));
        // LNet reports its decision later.
        ends[1].lnd.parsed(ticket, true);
        settle(&mut ends, 0);
        assert_eq!(ends[0].outcomes[&i], Outcome::Delivered);
        assert!(ends.iter().all(|e| e.lnd.is_closed()));
        assert_eq!(names[&i], ends[0].payloads[&i]);
    }
    // A message whose payload must be fetched cannot be kept as a copy.
    assert!(ends[0].submit(2, 200, 300, true, 10_000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    assert!(!ends[1].lnd.kept(ticket));
    assert_eq!(ends[1].accept(ticket, 0).0, 200);
}

#[test]
fn a_peer_whose_messages_lnet_keeps_leaves_places_to_others() {
    let mut ends = [End::new(1, 11), End::new(2, 22), End::new(3, 33)];
    for i in 0..16 {
        assert!(ends[0].submit(2, i, 5, false, 10_000, 0));
    }
    let mut kept = 0;
    for now in 0..200 {
        for ticket in offers(&settle(&mut ends, now), 2) {
            ends[1].lnd.parsed(ticket, true);
            kept += 1;
        }
        expire(&mut ends[0], now);
    }
    assert_eq!(kept, CAPACITY.receives / 2);
    assert!(ends[2].submit(2, 100, 5, false, 10_000, 200));
    assert_eq!(offers(&settle(&mut ends, 200), 2).len(), 1);
}

#[test]
fn a_peer_that_ends_sessions_again_and_again_takes_no_more_places_than_its_own() {
    let mut end = End::new(1, 5);
    let mut now = 0;
    let mut token = 0;
    for key in 1..100 {
        now += 1;
        expire(&mut end, now);
        for _ in 0..4 {
            token += 1;
            end.submit(2, token, 500, true, now + 100_000, now);
        }
        let _ = end
            .lnd
            .receive_message(NodeId(2), &hello(key), Time(now), Time(now));
        let messages = end.pump(100, now);
        if let Some(own) = session_key(&messages) {
            let _ = end
                .lnd
                .receive_message(NodeId(2), &notes(own, &[]), Time(now), Time(now));
        }
        end.pump(100, now);
        end.simple();
        end.lnd.check().unwrap();
        // The maximum is twice the number of slots for messages in `Resting`, plus one message per
        // slot.
        let most = 3 * usize::from(CAPACITY.slots);
        assert!(end.lnd.sends() <= most, "{key}: {}", end.lnd.sends());
        assert!(end.submit(3, 1000 + key, 5, false, now + 1, now), "{key}");
    }
    let unknown = Outcome::Unknown(Cause::PeerLost);
    let lost = end.outcomes.values().filter(|o| **o == unknown).count();
    assert!(lost >= 2 * usize::from(CAPACITY.slots), "{lost}");
    // The messages are finished after [`Limits::memory`].
    now += LIMITS.memory();
    expire(&mut end, now);
    end.pump(100, now);
    end.simple();
    assert!(end.submit(2, 5000, 500, true, now + 1000, now));
}

/// Answers a request with `BUSY` the given number of times. Returns the time and the number of
/// parts of each attempt.
fn busy(times: usize) -> Vec<(u64, usize)> {
    let mut ends = pair();
    assert!(ends[0].submit(2, 2, 10, false, 100_000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    ends[1].accept(ticket, 0);
    settle(&mut ends, 0);
    assert!(ends[0].submit(2, 4, 1000, false, 100_000, 0));
    let mut messages = Vec::new();
    for now in 0..20_000 {
        expire(&mut ends[0], now);
        let all = ends[0].pump(100, now);
        let request = all.iter().find_map(|m| match m.message {
            Message::Request(r) => Some((r.key, r.id)),
            _ => None,
        });
        if let Some((_, id)) = request {
            messages.push((now, parts(&all)));
            if messages.len() > times {
                for m in &all {
                    ends[1].deliver(m, now, now);
                }
                let ticket = offer(&settle(&mut ends, now));
                assert_eq!(
                    ends[1].accept(ticket, now).2.as_ref(),
                    Some(&ends[0].payloads[&4])
                );
                settle(&mut ends, now);
                assert_eq!(ends[0].outcomes[&4], Outcome::Delivered);
                return messages;
            }
            // The peer answers that it has not accepted the request.
            let kind = NoteKind::Answer(Verdict::Busy);
            let own = ends[0].key.expect("no session exists");
            let note = notes(own, &[Note { kind, id }]);
            let _ = ends[0]
                .lnd
                .receive_message(NodeId(2), &note, Time(now), Time(now));
            ends[0].pump(100, now);
            // The request has used its number nevertheless.
            let cancel = NoteKind::Cancel;
            let theirs = request.unwrap().0;
            let note = notes(theirs, &[Note { kind: cancel, id }]);
            let _ = ends[1]
                .lnd
                .receive_message(NodeId(1), &note, Time(now), Time(now));
            ends[1].pump(100, now);
        }
    }
    panic!("{messages:?}");
}

#[test]
fn a_busy_peer_is_waited_for_longer_each_time_and_then_gets_the_first_part_alone() {
    let messages = busy(7);
    let waits: Vec<u64> = messages.windows(2).map(|w| w[1].0 - w[0].0).collect();
    let b = LIMITS.busy;
    assert_eq!(waits, [b, 2 * b, 4 * b, 8 * b, 16 * b, 16 * b, 16 * b]);
    assert!(messages[0].1 > 5);
    assert!(
        messages[1..].iter().all(|(_, parts)| *parts == 1),
        "{messages:?}"
    );
}

#[test]
fn what_is_said_to_be_missing_is_sent_once_for_each_question() {
    let mut ends = pair();
    assert!(ends[0].submit(2, 2, 10, false, 100_000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    ends[1].accept(ticket, 0);
    settle(&mut ends, 0);
    assert!(ends[0].submit(2, 4, 1000, false, 100_000, 1));
    let all = ends[0].pump(100, 1);
    let Message::Request(request) = all[0].message else {
        panic!("{all:?}");
    };
    let missing = Note {
        kind: NoteKind::Missing,
        id: request.id,
    };
    let own = ends[0].key.expect("no session exists");
    let mut sent = 0;
    let mut asked = 0;
    for now in 2..202 {
        expire(&mut ends[0], now);
        let _ = ends[0].lnd.receive_message(
            NodeId(2),
            &notes(own, &[missing; 14]),
            Time(now),
            Time(now),
        );
        let messages = ends[0].pump(1000, now);
        sent += parts(&messages);
        asked += messages.len() - parts(&messages);
    }
    let each = all.len();
    assert!((3..10).contains(&asked), "{asked}");
    assert_eq!(sent, asked * each);
}

#[test]
fn who_is_forgotten_is_told() {
    let mut ends: Vec<End> = (1..8).map(|n| End::new(n, u64::from(n) * 77)).collect();
    // More nodes than peer entries send a message to node 1, one after the other.
    for (now, node) in (2..8u16).enumerate() {
        let (now, token) = (now as u64, u32::from(node));
        assert!(ends[usize::from(node) - 1].submit(1, token, 5, false, 10_000, now));
        let events = settle(&mut ends, now);
        let ticket = offer(&events);
        ends[0].accept(ticket, now);
        settle(&mut ends, now);
        assert_eq!(
            ends[usize::from(node) - 1].outcomes[&token],
            Outcome::Delivered
        );
    }
    assert_eq!(ends[0].peer_state(NodeId(2)), None);
    // The peer that was silent for the longest time was removed, and was notified.
    assert_eq!(ends[1].peer_state(NodeId(1)), Some(PeerState::New));
    assert_eq!(ends[6].peer_state(NodeId(1)), Some(PeerState::Up));
    assert!(ends[1].submit(1, 50, 5, false, 10_000, 10));
    let ticket = offer(&settle(&mut ends, 10));
    ends[0].accept(ticket, 10);
    settle(&mut ends, 10);
    assert_eq!(ends[1].outcomes[&50], Outcome::Delivered);
}

#[test]
fn a_node_that_says_much_gets_one_answer_at_a_time() {
    let mut end = End::new(1, 5);
    for key in 1..100 {
        let _ = end
            .lnd
            .receive_message(NodeId(9), &notes(Key(key), &[]), Time(0), Time(0));
    }
    // Other nodes have entries too.
    for node in 20..27 {
        let _ = end
            .lnd
            .receive_message(NodeId(node), &notes(Key(5), &[]), Time(0), Time(0));
    }
    assert!(end.submit(2, 1, 5, false, 100, 0));
    let mut out = Vec::new();
    // The first messages include the one to node 2, although eight answers are pending.
    assert!(end_pump(&mut end, &mut out, 4));
    assert!(out.iter().any(|m| m.to == 2), "{out:?}");
    while end_pump(&mut end, &mut out, 4) {}
    let to = |node: u16| out.iter().filter(|m| m.to == node).count();
    assert_eq!(to(9), 1);
    assert!((20..27).all(|node| to(node) == 1));
}

/// Sends about `most` messages. Returns true if more messages are pending.
fn end_pump(end: &mut End, messages: &mut Vec<InFlight>, most: usize) -> bool {
    let (more, out) = end.pump_some(most, 0);
    messages.extend(out);
    more
}

#[test]
fn a_dead_port_ends_everything_whatever_was_to_be_said() {
    let (mut ends, ticket) = fetching();
    let _ = ends[0]
        .lnd
        .receive_message(NodeId(9), &notes(Key(5), &[]), Time(0), Time(0));
    ends[0].pump_dead(1);
    ends[0].simple();
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::Down));
    let _ = ends[1]
        .lnd
        .receive_message(NodeId(9), &notes(Key(5), &[]), Time(0), Time(0));
    ends[1].pump_dead(1);
    assert_eq!(ends[1].simple(), [Event::Received(ticket, false)]);
}

#[test]
fn who_has_greeted_long_ago_is_not_alive() {
    let mut end = End::new(1, 5);
    let _ = end
        .lnd
        .receive_message(NodeId(2), &hello(77), Time(0), Time(0));
    end.pump(100, 0);
    assert!(end.submit(2, 1, 10, false, 10_000, 0));
    let mut now = 0;
    while !end.outcomes.contains_key(&1) {
        now += 1;
        expire(&mut end, now);
        end.pump(100, now);
        end.simple();
    }
    assert_eq!(now, LIMITS.give_up);
    assert!(!end.submit(2, 2, 10, false, 10_000, now));
    // A peer whose greeting is recent counts as alive.
    let mut end = End::new(1, 5);
    assert!(end.submit(2, 1, 10, false, 10_000, 0));
    let last = LIMITS.give_up - 1;
    let _ = end
        .lnd
        .receive_message(NodeId(2), &hello(77), Time(last), Time(last));
    expire(&mut end, LIMITS.give_up);
    end.simple();
    assert_eq!(end.outcomes[&1], Outcome::NotDelivered(Cause::Unreachable));
    assert!(end.submit(2, 2, 10, false, 10_000, LIMITS.give_up));
}

#[test]
fn what_waits_for_a_busy_peer_ends_with_it() {
    let mut ends = pair();
    assert!(ends[0].submit(2, 2, 10, false, 10_000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    ends[1].accept(ticket, 0);
    settle(&mut ends, 0);
    // The peer does not answer one message, and answers `BUSY` to another message. The second
    // message then waits longer than the time after which a silent peer is down.
    assert!(ends[0].submit(2, 4, 10, false, 10_000, 0));
    ends[0].pump(100, 0);
    assert!(ends[0].submit(2, 6, 10, false, 10_000, 0));
    let (mut now, mut busy) = (0, 0);
    while ends[0].peer_state(NodeId(2)) == Some(PeerState::Up) {
        for m in ends[0].pump(100, now) {
            if let (Message::Request(r), true) = (m.message, busy < 5) {
                busy += 1;
                let kind = NoteKind::Answer(Verdict::Busy);
                let own = ends[0].key.expect("no session exists");
                let note = notes(own, &[Note { kind, id: r.id }]);
                let _ = ends[0]
                    .lnd
                    .receive_message(NodeId(2), &note, Time(now), Time(now));
            }
        }
        now += 1;
        expire(&mut ends[0], now);
        ends[0].simple();
    }
    assert_eq!(busy, 5);
    let cause = Cause::PeerLost;
    assert_eq!(ends[0].outcomes.get(&4), Some(&Outcome::Unknown(cause)));
    assert_eq!(
        ends[0].outcomes.get(&6),
        Some(&Outcome::NotDelivered(cause))
    );
    assert!(ends[0].lnd.is_closed());
}

#[test]
fn places_count_on_when_their_numbers_wrap() {
    let one = Capacity {
        slots: 1,
        ..CAPACITY
    };
    let mut ends = [End::with(1, 11, &one), End::with(2, 22, &one)];
    for i in 0..65_536 + 10 {
        let (token, now) = (i, u64::from(i));
        assert!(ends[0].submit(2, token, 3, false, now + 1000, now));
        let ticket = offer(&settle(&mut ends, now));
        ends[1].accept(ticket, now);
        settle(&mut ends, now);
        assert_eq!(ends[0].outcomes.remove(&token), Some(Outcome::Delivered));
        ends[0].payloads.remove(&token);
    }
    for end in &ends {
        let c = end.lnd.counters();
        assert_eq!((c.sessions, c.lost + c.odd + c.strays), (1, 0));
    }
}

#[test]
fn a_peer_that_brings_nothing_leaves_gets_to_others() {
    let mut ends = [End::new(1, 11), End::new(2, 22), End::new(3, 33)];
    // The payload of the first sender never arrives.
    for i in 0..4 {
        assert!(ends[0].submit(2, i, 900, true, 10_000, 0));
    }
    let mut posted = Vec::new();
    let fetches = |events: &[(u16, Event<u32>)]| -> Vec<Ticket> {
        let all = events.iter().filter_map(|(_, e)| match e {
            Event::Fetch { ticket, .. } => Some(*ticket),
            _ => None,
        });
        all.collect()
    };
    for ticket in offers(&settle(&mut ends, 0), 2) {
        ends[1].accept(ticket, 0);
        posted.extend(fetches(&settle(&mut ends, 0)));
    }
    let most = CAPACITY.fetches as usize;
    assert_eq!(posted.len(), most);
    // Messages that wait for a sign of life count too.
    for ticket in posted.drain(..) {
        ends[1].lnd.fetched(ticket, lnd_net::lost(), Time(1));
    }
    for now in 2..15 {
        expire(&mut ends[1], now);
        posted.extend(fetches(&settle(&mut ends, now)));
    }
    assert_eq!(posted.len(), most);
    // Another peer is not affected.
    assert!(ends[2].submit(2, 100, 900, true, 10_000, 15));
    let ticket = offers(&settle(&mut ends, 15), 2)[0];
    ends[1].accept(ticket, 15);
    assert_eq!(fetches(&settle(&mut ends, 15)).len(), 1);
    // The end of one message starts the GET of the next message, without further events.
    ends[1].lnd.fetched(posted[0], Ok(()), Time(16));
    assert!(fetches(&settle(&mut ends, 16)).is_empty());
    assert!(ends[1].lnd.next_deadline().is_some_and(|t| t <= Time(16)));
    expire(&mut ends[1], 16);
    let next = fetches(&settle(&mut ends, 16));
    assert!(next.len() == 1 && !posted.contains(&next[0]));
}

#[test]
fn credits_are_divided_among_cpts_as_lnet_does() {
    assert_eq!(max_concurrent(256, 8, 1), 256);
    assert_eq!(max_concurrent(256, 8, 2), 256);
    assert_eq!(max_concurrent(256, 8, 8), 512);
    assert_eq!(max_concurrent(256, 64, 8), 2048);
    assert_eq!(max_concurrent(32, 8, 4), 128);
    assert_eq!(max_concurrent(100, 8, 0), 100);
}

#[test]
fn a_message_has_its_place_until_lnet_knows_its_end() {
    let (mut ends, ticket) = fetching();
    ends[1].lnd.down_all(Time(1));
    ends[1].collect();
    assert_eq!(
        ends[1].events.pop_front(),
        Some(Event::RevokeTarget(ticket))
    );
    ends[1].lnd.get_target_revoked(ticket);
    assert_eq!(
        ends[1].lnd.next_event(),
        Some(Event::Received(ticket, false))
    );
    assert_eq!(ends[1].lnd.next_event(), None);
    assert!(ends[1].lnd.is_idle() && !ends[1].lnd.is_closed());
    assert_eq!(ends[1].lnd.receives(), 1);
    ends[1].lnd.check().unwrap();
    ends[1].lnd.finished(ticket);
    ends[1].lnd.finished(ticket);
    assert!(ends[1].lnd.is_closed());
    ends[1].lnd.check().unwrap();
}
