//! Tests of single rules of the LND protocol.

mod lnd_net;

use lnd_net::{fetch, fetching, lost, offer, pair, settle, LIMITS};
use protocol::lnd::{Cause, Event, GetFailure, LnetAction, Outcome, PeerState};
use protocol::Time;
use wire::ids::NodeId;

#[test]
fn short_payload_comes_with_the_request() {
    for len in [0, 1, 8, 9, 32, 33, 144, 145, 4096, 7064] {
        for token in [2, 3] {
            let mut ends = pair();
            assert!(ends[0].submit(2, token, len, false, 100, 0));
            let events = settle(&mut ends, 0);
            let ticket = offer(&events);
            // The request is not answered before LNet has accepted the message.
            assert_eq!(ends[0].outcomes.get(&token), None);
            let (name, action, data) = ends[1].accept(ticket, 0);
            assert_eq!((name, action == LnetAction::Copy), (token, len > 0));
            assert_eq!(data.as_ref(), Some(&ends[0].payloads[&token]));
            settle(&mut ends, 0);
            assert_eq!(ends[0].outcomes[&token], Outcome::Delivered);
            assert!(ends.iter().all(|e| e.lnd.is_closed()));
        }
    }
}

#[test]
fn long_payload_is_fetched_and_its_address_released_once() {
    let (mut ends, ticket) = fetching();
    assert_eq!(ends[0].outcomes.get(&7), None);
    ends[1].lnd.fetched(ticket, Ok(()), Time(1));
    let events = settle(&mut ends, 1);
    assert!(events.contains(&(2, Event::Received(ticket, true))));
    assert_eq!(ends[0].outcomes[&7], Outcome::Delivered);
    assert!(ends[0].addresses.is_empty());
    assert!(ends.iter().all(|e| e.lnd.is_closed()));
}

#[test]
fn what_lnet_does_not_want_is_answered() {
    // A message that LNet drops counts as delivered. A message that LNet refuses counts as not
    // delivered.
    for (taken, expected) in [
        (true, Outcome::Delivered),
        (false, Outcome::NotDelivered(Cause::Refused)),
    ] {
        for remote in [false, true] {
            let mut ends = pair();
            assert!(ends[0].submit(2, 7, 50, remote, 1000, 0));
            let ticket = offer(&settle(&mut ends, 0));
            if taken {
                assert_eq!(ends[1].lnd.receive(ticket, 0, Time(0)), LnetAction::Done);
            }
            ends[1].lnd.parsed(ticket, taken);
            assert_eq!(settle(&mut ends, 0), []);
            assert_eq!(ends[0].outcomes[&7], expected);
            assert!(ends.iter().all(|e| e.lnd.is_closed()));
        }
    }
}

#[test]
fn a_get_that_failed_is_made_anew_when_the_peer_was_alive_since() {
    let (mut ends, ticket) = fetching();
    ends[1].lnd.fetched(ticket, lost(), Time(5));
    // The peer must give a sign of life first.
    ends[1].collect();
    assert!(ends[1].events.is_empty());
    let events = settle(&mut ends, 6);
    assert_eq!(fetch(&events), Some(ticket));
    // The GET fails until the maximum number of attempts is reached.
    for i in 1..LIMITS.tries {
        ends[1]
            .lnd
            .fetched(ticket, Err(GetFailure::Fault), Time(6 + u64::from(i)));
        let events = settle(&mut ends, 7 + u64::from(i));
        assert_eq!(fetch(&events).is_some(), i + 1 < LIMITS.tries);
        if i + 1 == LIMITS.tries {
            assert!(events.contains(&(2, Event::Received(ticket, false))));
        }
    }
    assert_eq!(ends[0].outcomes[&7], Outcome::Failed);
    assert!(ends.iter().all(|e| e.lnd.is_closed()));
}

#[test]
fn a_get_is_only_posted_for_a_peer_that_was_alive_a_short_time_ago() {
    let mut ends = pair();
    assert!(ends[0].submit(2, 7, 5000, true, 1000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    // LNet decides late.
    let now = LIMITS.fresh;
    ends[1].accept(ticket, now);
    ends[1].collect();
    assert!(ends[1].events.is_empty());
    let events = settle(&mut ends, now);
    match events[..] {
        [(2, Event::Fetch { post_by, until, .. })] => {
            assert_eq!(post_by, Time(now + 2 * LIMITS.fresh));
            assert_eq!(until, Time(now + LIMITS.get));
        }
        _ => panic!("{events:?}"),
    }
    // A result after the deadline counts as a failure, even if the GET was successful.
    ends[1]
        .lnd
        .fetched(ticket, Ok(()), Time(now + LIMITS.get + 1));
    let events = settle(&mut ends, now + LIMITS.get + 2);
    assert_eq!(fetch(&events), Some(ticket));
}

#[test]
fn memory_is_revoked_at_the_deadline_and_the_address_rests() {
    let (mut ends, ticket) = fetching();
    while ends[0].lnd.expire(Time(1000), 10) {}
    ends[0].simple();
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::TimedOut));
    assert_eq!((ends[0].exposed.len(), ends[0].addresses.len()), (0, 1));
    // The peer receives the cancellation, and ends its GETs.
    let events = settle(&mut ends, 1000);
    assert!(events.contains(&(2, Event::Received(ticket, false))));
    assert!(ends[0].addresses.is_empty());
    assert!(ends.iter().all(|e| e.lnd.is_closed()));
}

#[test]
fn the_address_rests_for_long_if_the_peer_is_gone() {
    let (mut ends, _) = fetching();
    let mut now = 0;
    while !ends[0].outcomes.contains_key(&7) {
        now += 1;
        while ends[0].lnd.expire(Time(now), 10) {}
        // The peer does not answer.
        ends[0].pump(100, now);
        ends[0].simple();
    }
    assert_eq!(ends[0].outcomes[&7], Outcome::Unknown(Cause::PeerLost));
    assert!((LIMITS.give_up..LIMITS.give_up + 20).contains(&now));
    assert_eq!(ends[0].peer_state(NodeId(2)), Some(PeerState::Down));
    let end = now + LIMITS.memory();
    assert_eq!(ends[0].lnd.next_deadline().map(|t| t.0 <= end), Some(true));
    while ends[0].lnd.expire(Time(end - 1), 10) {}
    ends[0].simple();
    assert_eq!(ends[0].addresses.len(), 1);
    while ends[0].lnd.expire(Time(end), 10) {}
    ends[0].simple();
    assert!(ends[0].addresses.is_empty() && ends[0].lnd.is_closed());
}

#[test]
fn lost_requests_come_again_and_lnet_sees_them_once() {
    // One message of the exchange is lost, or arrives twice.
    for (lose, twice) in (0..12).flat_map(|i| [(i, 99), (99, i)]) {
        let mut ends = pair();
        assert!(ends[0].submit(2, 4, 300, false, 10_000, 0));
        let (mut count, mut offers) = (0, 0);
        for now in 0..400 {
            for i in 0..2 {
                while ends[i].lnd.expire(Time(now), 10) {}
                for m in ends[i].pump(100, now) {
                    let times = match count {
                        n if n == lose => 0,
                        n if n == twice => 2,
                        _ => 1,
                    };
                    count += 1;
                    for _ in 0..times {
                        ends[1 - i].deliver(&m, now, now);
                    }
                }
                for event in ends[i].simple() {
                    if let Event::Offer(ticket, _) = event {
                        offers += 1;
                        let (.., data) = ends[i].accept(ticket, now);
                        assert_eq!(data.as_ref(), Some(&ends[0].payloads[&4]));
                    }
                }
                ends[i].lnd.check().unwrap();
            }
        }
        assert_eq!(offers, 1, "{lose} {twice}");
        assert_eq!(ends[0].outcomes[&4], Outcome::Delivered);
        assert!(ends.iter().all(|e| e.lnd.is_closed()), "{lose} {twice}");
    }
}

#[test]
fn a_busy_peer_gets_it_later() {
    let mut ends = pair();
    // LNet keeps messages in all slots of the sender.
    let mut kept = Vec::new();
    for i in 0..6 {
        ends[0].submit(2, i, 5, false, 10_000, 0);
    }
    for now in 0..200 {
        for event in settle(&mut ends, now) {
            if let (2, Event::Offer(ticket, _)) = event {
                ends[1].lnd.parsed(ticket, true);
                kept.push(ticket);
            }
        }
        for end in &mut ends {
            while end.lnd.expire(Time(now), 10) {}
        }
    }
    assert_eq!((kept.len(), ends[0].outcomes.len()), (6, 6));
    assert!(ends[0].submit(2, 100, 5, false, 500, 200));
    settle(&mut ends, 200);
    assert_eq!(ends[0].lnd.counters().peer_busy, 1);
    assert_eq!(ends[0].outcomes.get(&100), None);
    // LNet requests the payload of one of these messages now.
    assert_eq!(ends[1].lnd.receive(kept[0], 5, Time(201)), LnetAction::Copy);
    ends[1].lnd.copied(kept[0]);
    let now = 200 + LIMITS.busy;
    while ends[0].lnd.expire(Time(now), 10) {}
    let ticket = offer(&settle(&mut ends, now));
    ends[1].lnd.parsed(ticket, true);
    settle(&mut ends, now);
    assert_eq!(ends[0].outcomes[&100], Outcome::Delivered);
}

#[test]
fn cancelled_before_lnet_saw_it_is_certain() {
    let mut ends = pair();
    // Begins a session, and then sends a request of which a part is lost.
    assert!(ends[0].submit(2, 2, 10, false, 1000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    ends[1].accept(ticket, 0);
    settle(&mut ends, 0);
    assert!(ends[0].submit(2, 4, 300, false, 5, 1));
    let messages = ends[0].pump(100, 1);
    ends[1].deliver(&messages[0], 1, 1);
    while ends[0].lnd.expire(Time(5), 10) {}
    // The owner is notified before the peer answers.
    ends[0].simple();
    assert_eq!(ends[0].outcomes[&4], Outcome::Unknown(Cause::TimedOut));
    settle(&mut ends, 5);
    assert!(ends.iter().all(|e| e.lnd.is_closed()));
    // The late request is ignored.
    for m in &messages {
        ends[1].deliver(m, 6, 6);
    }
    assert_eq!(settle(&mut ends, 6), []);
    // If revocation of the memory takes time, the answer still reaches the owner.
    assert!(ends[0].submit(2, 6, 300, true, 20, 10));
    let messages = ends[0].pump(100, 10);
    assert_eq!(messages.len(), 1);
    while ends[0].lnd.expire(Time(20), 10) {}
    ends[0].collect();
    let Some(Event::Revoke(ticket, 6)) = ends[0].events.pop_front() else {
        panic!("not revoked");
    };
    for m in ends[0].pump(100, 20) {
        ends[1].deliver(&m, 20, 20);
    }
    for m in ends[1].pump(100, 20) {
        ends[0].deliver(&m, 20, 20);
    }
    ends[0].exposed.clear();
    ends[0].lnd.revoked(ticket);
    ends[0].simple();
    assert_eq!(
        ends[0].outcomes[&6],
        Outcome::NotDelivered(Cause::Cancelled)
    );
}

#[test]
fn a_cancelled_message_is_not_given_to_lnet_and_one_that_lnet_has_is_said_to_have_failed() {
    // Progress of LNet, its decision, and the final outcome.
    for (offered, taken, expected) in [
        (false, true, Outcome::NotDelivered(Cause::Cancelled)),
        (true, false, Outcome::NotDelivered(Cause::Refused)),
        (true, true, Outcome::Failed),
    ] {
        let mut ends = pair();
        assert!(ends[0].submit(2, 6, 10, false, 1000, 0));
        let ticket = offer(&settle(&mut ends, 0));
        ends[1].accept(ticket, 0);
        settle(&mut ends, 0);
        assert!(ends[0].submit(2, 7, 5000, true, 10, 1));
        for m in ends[0].pump(10, 1) {
            ends[1].deliver(&m, 1, 1);
        }
        if offered {
            ends[1].collect();
        }
        // The revocation takes time.
        while ends[0].lnd.expire(Time(10), 10) {}
        ends[0].collect();
        let Some(Event::Revoke(revoked, 7)) = ends[0].events.pop_front() else {
            panic!("no revocation is requested");
        };
        let carry = |ends: &mut [lnd_net::End; 2]| {
            for (from, to) in [(0, 1), (1, 0)] {
                for m in ends[from].pump(10, 10) {
                    ends[to].deliver(&m, 10, 10);
                }
            }
        };
        carry(&mut ends);
        if offered {
            let Some(Event::Offer(ticket, _)) = ends[1].events.pop_front() else {
                panic!("no message is offered");
            };
            ends[1].lnd.parsed(ticket, taken);
            carry(&mut ends);
            if taken {
                assert_eq!(
                    ends[1].lnd.receive(ticket, 5000, Time(10)),
                    LnetAction::Lost
                );
            }
        }
        ends[1].collect();
        assert!(ends[1].events.is_empty());
        ends[0].exposed.clear();
        ends[0].lnd.revoked(revoked);
        ends[0].simple();
        assert_eq!(ends[0].outcomes[&7], expected);
        assert!(ends.iter().all(|e| e.lnd.is_closed()));
    }
}
