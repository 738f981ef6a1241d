//! Tests of single rules of the LND protocol about sessions.

mod lnd_net;

use lnd_net::{fetch, fetching, offer, pair, settle, End, LIMITS};
use protocol::lnd::{Cause, Event, LnetAction, Outcome, PeerState, SubmitError};
use protocol::Time;
use wire::ids::NodeId;
use wire::lnd::{
    Answer, Hello, Incarnation, Key, Message, Note, NoteKind, Notes, RequestId, Verdict, Welcome,
};

#[test]
fn a_peer_that_does_not_answer_is_not_tried_for_a_while() {
    let mut end = End::new(1, 5);
    assert!(end.submit(2, 1, 10, false, 10_000, 0));
    let (mut now, mut hellos) = (0, 0);
    while !end.outcomes.contains_key(&1) {
        now += 1;
        while end.lnd.expire(Time(now), 10) {}
        hellos += end.pump(100, now).len();
        end.simple();
    }
    assert_eq!(now, LIMITS.give_up);
    assert!((4..10).contains(&hellos), "{hellos}");
    assert_eq!(end.outcomes[&1], Outcome::NotDelivered(Cause::Unreachable));
    // A message is refused now, and accepted after `dead`.
    assert!(!end.submit(2, 2, 10, false, 10_000, now));
    assert!(end.submit(2, 3, 10, false, 10_000, now + LIMITS.dead));
    // A peer that greets counts as alive.
    let mut end = End::new(1, 5);
    let mut peer = End::new(2, 6);
    assert!(end.submit(2, 1, 10, false, 10_000, 0));
    while end.lnd.expire(Time(LIMITS.give_up), 10) {}
    end.simple();
    assert!(peer.submit(1, 9, 10, false, 10_000, LIMITS.give_up));
    for m in peer.pump(100, LIMITS.give_up) {
        end.deliver(&m, LIMITS.give_up, LIMITS.give_up);
    }
    assert!(end.submit(2, 4, 10, false, 10_000, LIMITS.give_up + 1));
}

#[test]
fn a_restarted_peer_is_noticed() {
    let (mut ends, ticket) = fetching();
    // The sender is restarted with other keys, and sends at once.
    ends[0] = End::new(1, 99);
    assert!(ends[0].submit(2, 8, 10, false, 1000, 1));
    let events = settle(&mut ends, 1);
    assert!(events.contains(&(2, Event::Received(ticket, false))));
    assert!(events.iter().any(|e| matches!(e, (2, Event::Offer(..)))));
    // The receiver is restarted, and the sender's unanswered request is lost.
    let (mut ends, _) = fetching();
    ends[1] = End::new(2, 99);
    while ends[0].lnd.expire(Time(10), 10) {}
    settle(&mut ends, 10);
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::PeerLost));
    assert_eq!(ends[0].addresses.len(), 1);
}

#[test]
fn both_may_greet_at_once() {
    let mut ends = pair();
    assert!(ends[0].submit(2, 2, 10, false, 1000, 0));
    assert!(ends[1].submit(1, 3, 10, false, 1000, 0));
    let crossing: Vec<_> = (0..2).flat_map(|i| ends[i].pump(100, 0)).collect();
    assert_eq!(crossing.len(), 2);
    for m in crossing {
        ends[usize::from(m.to) - 1].deliver(&m, 0, 0);
    }
    let events = settle(&mut ends, 0);
    let offers = events.iter().filter(|e| matches!(e.1, Event::Offer(..)));
    assert_eq!(offers.count(), 2);
    for end in &ends {
        assert_eq!(end.lnd.counters().sessions, 1);
        assert_eq!(end.lnd.counters().lost, 0);
    }
}

#[test]
fn an_old_hello_changes_nothing() {
    let mut ends = pair();
    assert!(ends[0].submit(2, 2, 10, false, 1000, 0));
    let first = ends[0].pump(100, 0);
    assert!(matches!(first[0].message, Message::Hello(_)));
    // The message arrives now, and once more after node 1 was restarted.
    ends[1].deliver(&first[0], 0, 0);
    ends[0] = End::new(1, 77);
    assert!(ends[0].submit(2, 4, 5000, true, 1000, 1));
    let ticket = offer(&settle(&mut ends, 1));
    ends[1].deliver(&first[0], 2, 2);
    assert_eq!(ends[1].accept(ticket, 2).1, LnetAction::Fetch);
    let events = settle(&mut ends, 2);
    assert_eq!(fetch(&events), Some(ticket));
    ends[1].lnd.fetched(ticket, Ok(()), Time(3));
    settle(&mut ends, 3);
    assert_eq!(ends[0].outcomes[&4], Outcome::Delivered);
}

#[test]
fn other_versions_are_told() {
    let mut end = End::new(1, 5);
    let hello = Hello {
        version: 2,
        slots: 1,
        key: Key(5),
        incarnation: Incarnation(6),
    };
    assert_eq!(
        end.lnd
            .receive_message(NodeId(9), &Message::Hello(hello), Time(0), Time(0)),
        None
    );
    let messages = end.pump(10, 0);
    match messages[0].message {
        Message::Welcome(w) => {
            assert_eq!(
                (w.answer, w.key, w.own.version),
                (Answer::Version, Key(5), 1)
            );
        }
        _ => panic!("{messages:?}"),
    }
    // An end that is declined gives up, regardless of the reason. Only the answer to its own
    // greeting counts.
    for answer in [Answer::Version, Answer::Full, Answer::Closing] {
        let mut end = End::new(1, 5);
        assert!(end.submit(2, 2, 10, false, 1000, 0));
        let messages = end.pump(10, 0);
        let Message::Hello(hello) = messages[0].message else {
            panic!("{messages:?}");
        };
        let welcome = |key: Key, incarnation| {
            Message::Welcome(Welcome {
                answer,
                own: Hello {
                    version: 2,
                    slots: 1,
                    key: Key(0),
                    incarnation: Incarnation(3),
                },
                key,
                incarnation,
            })
        };
        let other = Incarnation(hello.incarnation.0 ^ 1);
        for (node, message) in [
            (3, welcome(hello.key, hello.incarnation)),
            (2, welcome(Key(hello.key.0 ^ 1), hello.incarnation)),
            (2, welcome(hello.key, other)),
        ] {
            end.lnd
                .receive_message(NodeId(node), &message, Time(1), Time(1));
            end.simple();
            assert_eq!(end.peer_state(NodeId(2)), Some(PeerState::Greeting));
            assert!(end.outcomes.is_empty());
        }
        let declined = welcome(hello.key, hello.incarnation);
        end.lnd
            .receive_message(NodeId(2), &declined, Time(1), Time(1));
        end.simple();
        assert_eq!(end.peer_state(NodeId(2)), Some(PeerState::Down));
        assert_eq!(end.outcomes[&2], Outcome::NotDelivered(Cause::Unwelcome));
        assert!(!end.submit(2, 4, 10, false, 1000, LIMITS.dead));
        assert!(end.submit(2, 6, 10, false, 2000, 1 + LIMITS.dead));
        let messages = end.pump(10, 1 + LIMITS.dead);
        assert!(matches!(messages[0].message, Message::Hello(_)));
    }
    // An interface that is being closed declines.
    let mut ends = pair();
    assert!(ends[0].submit(2, 2, 10, false, 1000, 0));
    ends[1].lnd.close(Time(0));
    settle(&mut ends, 0);
    assert_eq!(
        ends[0].outcomes[&2],
        Outcome::NotDelivered(Cause::Unwelcome)
    );
}

/// Returns two ends, the slot of a request that waits for its answer, and both session keys.
fn waiting() -> ([End; 2], RequestId, Key, Key) {
    let mut ends = pair();
    // Both ends have sent a message, so the keys are known.
    assert!(ends[0].submit(2, 2, 10, false, 1000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    ends[1].accept(ticket, 0);
    settle(&mut ends, 0);
    assert!(ends[0].submit(2, 7, 5000, true, 1000, 0));
    let messages = ends[0].pump(10, 0);
    let Message::Request(request) = messages[0].message else {
        panic!("{messages:?}");
    };
    let own = ends[0].key.expect("no session exists");
    (ends, request.id, own, request.key)
}

#[test]
fn notes_of_others_change_nothing() {
    let done = |key: Key, id: RequestId| {
        let mut notes = Notes::NONE;
        let kind = NoteKind::Answer(Verdict::Done);
        notes.push(Note { kind, id });
        Message::Notes(key, notes)
    };
    let (_, id, key, theirs) = waiting();
    assert_ne!(key, theirs);
    // One field is wrong at a time: node, key, slot or number.
    let slot = |slot| RequestId { slot, ..id };
    let seq = |seq| RequestId { seq, ..id };
    let cases = [
        (3, done(key, id)),
        (1, done(key, id)),
        (2, done(Key(key.0 ^ 1), id)),
        (2, done(theirs, id)),
        (2, done(Key(0), id)),
        (2, done(key, slot(id.slot ^ 1))),
        (2, done(key, slot(255))),
        (2, done(key, seq(id.seq.wrapping_add(1)))),
        (2, done(key, seq(id.seq.wrapping_sub(1)))),
        // `STALE` must contain the key of the other end.
        (2, Message::Stale(key)),
        (3, Message::Stale(theirs)),
    ];
    for (node, message) in cases {
        let (mut ends, ..) = waiting();
        ends[0]
            .lnd
            .receive_message(NodeId(node), &message, Time(1), Time(1));
        ends[0].simple();
        assert!(!ends[0].outcomes.contains_key(&7), "{node} {message:?}");
        assert_eq!(ends[0].peer_state(NodeId(2)), Some(PeerState::Up));
    }
    // All fields are correct.
    let (mut ends, ..) = waiting();
    ends[0]
        .lnd
        .receive_message(NodeId(2), &done(key, id), Time(1), Time(1));
    ends[0].simple();
    assert_eq!(ends[0].outcomes[&7], Outcome::Delivered);
    let (mut ends, ..) = waiting();
    let stale = Message::Stale(theirs);
    ends[0]
        .lnd
        .receive_message(NodeId(2), &stale, Time(1), Time(1));
    ends[0].simple();
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::PeerLost));
}

#[test]
fn what_is_taken_has_bounds() {
    let mut end = End::new(1, 5);
    assert!(!end.submit(2, 1, 7090, false, 100, 0));
    assert!(!end.submit(2, 1, 0, true, 100, 0));
    let taken = (0..20).filter(|i| end.submit(2, *i, 1, false, 100, 0));
    assert_eq!(taken.count(), lnd_net::CAPACITY.sends);
    let message = protocol::lnd::OutgoingMessage {
        form: wire::lnd::Form::Nid4,
        header: [0; 12],
        len: 0,
        source: None,
    };
    let full = end.lnd.submit(NodeId(2), &message, Time(1), 50, Time(0));
    assert_eq!(full, Err((SubmitError::Full, 50)));
    // New peers replace idle peers.
    let mut end = End::new(1, 5);
    for node in 2..6 {
        assert!(end.submit(node, u32::from(node), 1, false, 100, 0));
    }
    assert!(!end.submit(6, 6, 1, false, 100, 0));
    while end.lnd.expire(Time(100), 10) {}
    end.simple();
    while end.lnd.expire(Time(LIMITS.give_up), 10) {}
    end.pump(100, LIMITS.give_up);
    end.simple();
    assert!(end.submit(6, 6, 1, false, 1000, LIMITS.give_up));
}

#[test]
fn the_end_of_an_interface_ends_everything() {
    let (mut ends, ticket) = fetching();
    assert!(ends[1].submit(1, 9, 10, false, 1000, 0));
    ends[1].lnd.close(Time(1));
    assert!(!ends[1].submit(1, 10, 10, false, 1000, 1));
    let rest = ends[1].simple();
    assert_eq!(rest, [Event::Received(ticket, false)]);
    assert_eq!(ends[1].outcomes[&9], Outcome::NotDelivered(Cause::Closing));
    assert!(ends[1].lnd.is_closed());
    // The other end is notified.
    settle(&mut ends, 2);
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::PeerLost));
    // If the notification is lost, the other end receives it after a question.
    let (mut ends, _) = fetching();
    ends[1].lnd.close(Time(1));
    let messages = ends[1].pump(10, 1);
    assert!(matches!(messages[..], [ref m] if matches!(m.message, Message::Stale(_))));
    settle(&mut ends, 2);
    assert!(ends[0].outcomes.is_empty());
    while ends[0].lnd.expire(Time(10), 10) {}
    settle(&mut ends, 10);
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::PeerLost));
}

#[test]
fn what_lnet_keeps_needs_no_port() {
    // LNet of node 2 keeps two messages: one with payload in the buffer, and one with payload to
    // fetch.
    let mut ends = pair();
    assert!(ends[1].lnd.is_idle());
    let mut kept = Vec::new();
    for (token, remote) in [(1, false), (3, true)] {
        assert!(ends[0].submit(2, token, 300, remote, 10_000, 0));
        assert!(!ends[0].lnd.is_idle());
        kept.push(offer(&settle(&mut ends, 0)));
        ends[1].lnd.parsed(kept[kept.len() - 1], true);
    }
    ends[1].lnd.down_all(Time(1));
    ends[1].pump_dead(1);
    assert_eq!(ends[1].simple(), []);
    assert!(ends[1].lnd.is_idle() && !ends[1].lnd.is_closed());
    // Both messages are still valid when LNet requests their payload, but the second payload is
    // lost.
    assert_eq!(ends[1].lnd.receive(kept[0], 300, Time(2)), LnetAction::Copy);
    ends[1].lnd.copied(kept[0]);
    assert_eq!(ends[1].lnd.receive(kept[1], 300, Time(2)), LnetAction::Lost);
    ends[1].lnd.check().unwrap();
    assert!(ends[1].lnd.is_closed());
    // A message whose payload is being fetched needs the port.
    let (mut ends, ticket) = fetching();
    ends[1].lnd.down_all(Time(1));
    ends[1].collect();
    assert!(!ends[1].lnd.is_idle());
    ends[1].lnd.check().unwrap();
    assert_eq!(ends[1].simple(), [Event::Received(ticket, false)]);
    assert!(ends[1].lnd.is_idle());
    ends[1].lnd.check().unwrap();
}
