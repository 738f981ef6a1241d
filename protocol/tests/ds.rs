//! Tests of a stream connection: messages, loss, ends, and protocol violations of the peer.

mod ds_two;

use ds_two::*;
use protocol::ds::*;
use protocol::Time;
use wire::ds::{Ack, ConnId, Ended, Head, Message, Seq};

#[test]
fn a_small_piece_is_one_message() {
    let mut t = Two::new();
    t.write(0, b"ping");
    assert_eq!(t.sides[0].out.messages.len(), 1);
    let message = t.carry(0, false).unwrap();
    assert!(matches!(message, Message::VeloLast { len: 4, .. }));
    assert!(t.sides[1].stream.ready().readable);
    assert_eq!(t.read(1, 100), b"ping");
    // The answer acknowledges the message, so no further message is sent.
    t.write(1, b"pong");
    t.settle();
    assert_eq!(t.read(0, 100), b"pong");
    assert_eq!(t.sides[1].stream.counters().control, 0);
    t.wait(LIMITS.ask * 10);
    // Only the unacknowledged answer causes a question to the peer.
    t.settle();
    let asked: u64 = (0..2).map(|i| t.sides[i].stream.counters().asked).sum();
    assert_eq!(asked, 1);
    assert_eq!(t.sides[1].stream.sending().unacknowledged(), 0);
    assert_eq!(t.sides[1].stream.deadline(&LIMITS), None);
}

#[test]
fn bursts_are_cut_into_full_messages_and_a_last_one() {
    for len in 1..LIMITS.threshold as usize {
        let mut t = Two::new();
        t.write(0, &data(len));
        let kinds: Vec<bool> = t.sides[0]
            .out
            .messages
            .iter()
            .map(|(m, _)| matches!(m, Message::VeloLast { .. }))
            .collect();
        let last = kinds.iter().position(|last| *last);
        assert_eq!(last, Some(kinds.len() - 1), "of {len} bytes");
        assert!(kinds.len() <= len.div_ceil(104), "{len} bytes");
        t.settle();
        assert_eq!(t.read(1, 10_000), data(len));
    }
}

#[test]
fn what_is_lost_in_the_middle_is_sent_once_more_at_once() {
    let mut t = Two::new();
    t.write(0, b"one");
    t.write(0, b"two");
    t.write(0, b"three");
    t.carry(0, true);
    t.carry(0, false);
    // The receiver reports the gap once.
    assert_eq!(t.sides[1].out.messages.len(), 1);
    t.carry(0, false);
    assert_eq!(t.sides[1].out.messages.len(), 1);
    t.settle();
    assert_eq!(t.read(1, 100), b"onetwothree");
    let c = t.sides[0].stream.counters();
    assert_eq!((c.rewinds, c.asked), (1, 0));
}

#[test]
fn what_is_lost_at_the_end_is_found_by_asking() {
    let mut t = Two::new();
    t.write(0, b"lost");
    t.carry(0, true);
    t.wait(LIMITS.ask - 1);
    assert!(t.sides[0].out.messages.is_empty());
    t.wait(1);
    t.settle();
    assert_eq!(t.read(1, 100), b"lost");
    // A lost announcement is found in the same way.
    t.write(0, &data(600));
    t.carry(0, true);
    t.wait_for(0);
    t.settle();
    assert_eq!(t.read(1, 1_000), data(600));
}

#[test]
fn questions_become_rarer_and_a_silent_peer_is_given_up() {
    let mut t = Two::new();
    t.write(0, b"hello?");
    t.carry(0, true);
    let mut times = Vec::new();
    while t.sides[0].stream.end().is_none() {
        t.wait_for(0);
        if t.carry(0, true).is_some() {
            times.push(t.now);
        }
        assert!(t.now < 5_000);
    }
    let pauses: Vec<u64> = times.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(pauses.starts_with(&[40, 80, 160, 160]), "{pauses:?}");
    assert_eq!(t.sides[0].stream.end(), Some(End::TimedOut));
    let late = t.now - times[0];
    assert_eq!(late, LIMITS.give_up);
    let ready = t.sides[0].stream.ready();
    assert!(ready.failed && ready.readable && ready.writable);
}

#[test]
fn both_directions_end_in_order() {
    for first in [0, 1] {
        let mut t = Two::new();
        t.write(0, b"request");
        t.sides[first].stream.shut();
        t.pump(first);
        assert_eq!(t.sides[first].stream.state(), StreamState::FinWait1);
        t.settle();
        assert_eq!(t.sides[first].stream.state(), StreamState::FinWait2);
        assert_eq!(t.sides[1 - first].stream.state(), StreamState::CloseWait);
        assert!(t.sides[1 - first].stream.receiving().is_finished());
        // The other direction can still transfer data.
        t.write(1 - first, b"reply");
        t.settle();
        t.sides[1 - first].stream.shut();
        t.pump(1 - first);
        t.settle();
        for s in &t.sides {
            assert_eq!(s.stream.end(), Some(End::Finished));
            assert_eq!(s.stream.send_ring_free(&LIMITS), RingFree::Now);
        }
    }
}

#[test]
fn both_may_end_at_once() {
    let mut t = Two::new();
    for i in 0..2 {
        t.sides[i].stream.shut();
        t.pump(i);
    }
    t.carry(0, false);
    assert_eq!(t.sides[1].stream.state(), StreamState::Closing);
    t.settle();
    for s in &t.sides {
        assert_eq!(s.stream.end(), Some(End::Finished));
    }
}

#[test]
fn who_has_acknowledged_the_last_message_answers_for_a_while() {
    let mut t = Two::new();
    t.sides[0].stream.shut();
    t.pump(0);
    t.settle();
    t.sides[1].stream.shut();
    t.pump(1);
    t.carry(1, false);
    assert_eq!(t.sides[0].stream.end(), Some(End::Finished));
    // The acknowledgement is lost.
    assert!(t.carry(0, true).is_some());
    assert!(!t.sides[0].stream.can_drop(Time(t.now), &LIMITS));
    t.wait_for(1);
    t.settle();
    assert_eq!(t.sides[1].stream.end(), Some(End::Finished));
    assert!(!t.sides[0].stream.can_drop(Time(LIMITS.linger - 1), &LIMITS));
    assert!(t.sides[0].stream.can_drop(Time(LIMITS.linger), &LIMITS));
    assert_eq!(
        t.sides[0].stream.deadline(&LIMITS),
        Some(Time(LIMITS.linger))
    );
}

#[test]
fn closing_with_unread_data_or_data_after_it_resets() {
    let mut t = Two::new();
    t.write(0, b"unread");
    t.settle();
    t.sides[1].stream.close(Time(t.now));
    t.pump(1);
    t.settle();
    assert_eq!(t.sides[0].stream.end(), Some(End::Peer(Ended::Reset)));

    let mut t = Two::new();
    t.sides[1].stream.close(Time(t.now));
    t.pump(1);
    t.settle();
    assert!(t.sides[0].stream.can_send());
    t.write(0, b"late");
    t.settle();
    assert_eq!(t.sides[1].stream.end(), Some(End::Orphaned));
    assert_eq!(t.sides[0].stream.end(), Some(End::Peer(Ended::Reset)));
}

#[test]
fn data_for_a_program_that_has_ended_both_directions_reset() {
    for (shut, receive_shut) in [(true, true), (true, false), (false, true)] {
        let mut t = Two::new();
        t.write(0, b"early");
        t.settle();
        if shut {
            t.sides[1].stream.shut();
        }
        if receive_shut {
            t.sides[1].stream.shut_receive();
        }
        t.pump(1);
        t.settle();
        assert_eq!(t.sides[1].stream.end(), None);
        t.write(0, b"late");
        t.settle();
        let both = shut && receive_shut;
        assert_eq!(t.sides[1].stream.end(), both.then_some(End::Unwanted));
        let end = both.then_some(End::Peer(Ended::Reset));
        assert_eq!(t.sides[0].stream.end(), end);
        // Only data from before the end can be read.
        let read = t.sides[1].stream.receiving().available();
        assert_eq!(read, if both { 5 } else { 9 });
    }
}

#[test]
fn a_closed_connection_does_not_wait_for_ever() {
    let mut t = Two::new();
    t.sides[0].stream.close(Time(0));
    t.pump(0);
    t.settle();
    assert_eq!(t.sides[0].stream.state(), StreamState::FinWait2);
    assert_eq!(
        t.sides[0].stream.deadline(&LIMITS),
        Some(Time(LIMITS.orphan))
    );
    t.wait(LIMITS.orphan - 1);
    assert_eq!(t.sides[0].stream.end(), None);
    t.wait(1);
    assert_eq!(t.sides[0].stream.end(), Some(End::OrphanTimeout));
    // The peer has acknowledged all data, and is notified only when it sends a message.
    t.settle();
    assert_eq!(t.sides[1].stream.end(), None);
    // An end with unacknowledged data notifies its peer at once.
    let mut t = Two::new();
    t.write(0, b"unheard");
    t.sides[0].out.messages.clear();
    t.sides[0].stream.close(Time(0));
    t.pump(0);
    let mut last = None;
    while t.sides[0].stream.end().is_none() {
        t.wait_for(0);
        while let Some((m, _)) = t.sides[0].out.messages.pop_front() {
            last = Some(m);
        }
    }
    assert_eq!(t.sides[0].stream.end(), Some(End::TimedOut));
    assert!(matches!(last, Some(Message::Shutdown { .. })));
}

#[test]
fn who_repeats_himself_is_not_answered_each_time() {
    let mut t = Two::new();
    for piece in data(400).chunks(20) {
        t.write(0, piece);
    }
    let sent = t.sides[0].out.messages.len();
    t.sides[0].out.messages.clear();
    let again = Message::RmaAvail {
        head: Head {
            conn: ConnId::new(0, 5),
            seq: FIRST[1],
            marks: 0,
        },
        ack: Ack {
            ack: FIRST[0],
            edge: FIRST[0].plus(RING),
        },
        ask: false,
        again: true,
        own: ConnId::new(1, 5),
    };
    for _ in 0..1_000 {
        t.deliver(0, &again, &[]);
    }
    assert!(t.sides[0].out.messages.len() <= sent);
    assert_eq!(t.sides[0].stream.counters().rewinds, 1);
    t.now += LIMITS.ask / 2;
    t.deliver(0, &again, &[]);
    assert_eq!(t.sides[0].stream.counters().rewinds, 2);
}

#[test]
fn an_end_that_stays_open_for_long_needs_no_timer() {
    let mut t = Two::new();
    for i in 0..2 {
        t.sides[i].stream.shut();
        t.pump(i);
    }
    t.settle();
    // The program keeps the socket open.
    t.wait(LIMITS.linger);
    t.wait(1_000);
    assert_eq!(t.sides[0].stream.deadline(&LIMITS), None);
}

#[test]
fn who_has_missed_an_abort_is_told_when_he_speaks() {
    let mut t = Two::new();
    t.write(0, &data(400));
    t.settle();
    t.sides[0].stream.abort(Time(t.now));
    t.pump(0);
    assert!(t.carry(0, true).is_some());
    // The peer's program has read data, and the peer announces the free bytes of its ring.
    let avail = Message::RmaAvail {
        head: Head {
            conn: ConnId::new(0, 5),
            seq: FIRST[1],
            marks: 0,
        },
        ack: Ack {
            ack: FIRST[0].plus(400),
            edge: FIRST[0].plus(400 + RING),
        },
        ask: false,
        again: false,
        own: ConnId::new(1, 5),
    };
    t.deliver(0, &avail, &[]);
    t.settle();
    assert_eq!(t.sides[1].stream.end(), Some(End::Peer(Ended::Reset)));
}

#[test]
fn who_is_not_known_is_told_so_when_he_asks() {
    let mut t = Two::new();
    t.write(0, b"anybody?");
    let sent = t.carry(0, true).unwrap();
    assert_eq!(unknown(&sent), None);
    t.wait_for(0);
    let asked = t.carry(0, true).unwrap();
    let answer = unknown(&asked).expect("no answer");
    t.deliver(0, &answer, &[]);
    assert_eq!(t.sides[0].stream.end(), Some(End::Peer(Ended::Unknown)));
    // The end that received `SHUTDOWN` sends no answer.
    assert!(t.sides[0].out.messages.is_empty());
}

#[test]
fn messages_of_another_stream_change_nothing() {
    let mut t = Two::new();
    let far = |by: u32| Head {
        conn: ConnId::new(1, 5),
        seq: Seq(FIRST[0].0.wrapping_add(by)),
        marks: 0,
    };
    let ack = Ack {
        ack: FIRST[1],
        edge: FIRST[1].plus(RING),
    };
    for by in [1 << 25, 1 << 31, u32::MAX - (1 << 20)] {
        let head = far(by);
        for message in [
            Message::Shutdown {
                head,
                ack,
                how: Ended::Reset,
            },
            Message::VeloLast { head, ack, len: 4 },
        ] {
            t.deliver(1, &message, b"evil");
        }
    }
    assert_eq!(t.sides[1].stream.counters().foreign, 6);
    assert_eq!(t.sides[1].stream.end(), None);
    assert!(t.sides[1].out.messages.is_empty());
}

#[test]
fn who_breaks_the_rules_is_cut_off() {
    let head = Head {
        conn: ConnId::new(1, 5),
        seq: FIRST[0],
        marks: 0,
    };
    let fair = Ack {
        ack: FIRST[1],
        edge: FIRST[1].plus(RING),
    };
    let finish = |head| Message::Shutdown {
        head,
        ack: fair,
        how: Ended::Finished,
    };
    let info = |ack, len| Message::RmaInfo {
        head,
        ack,
        len,
        push: true,
    };
    let behind = |by| Message::VeloLast {
        head: Head {
            seq: head.seq.plus(by),
            ..head
        },
        ack: fair,
        len: 1,
    };
    let never_sent = Ack {
        ack: FIRST[1].plus(1),
        ..fair
    };
    let too_much = Ack {
        edge: FIRST[1].plus(RING + 1),
        ..fair
    };
    let shrunk = Ack {
        edge: Seq(FIRST[1].0.wrapping_sub(1)),
        ..fair
    };
    let cases = [
        (vec![info(never_sent, 1)], Violation::Ack),
        (vec![info(too_much, 1)], Violation::Edge),
        (vec![info(shrunk, 1)], Violation::Edge),
        (vec![info(fair, RING + 1)], Violation::Room),
        (vec![info(fair, RING), behind(RING)], Violation::Room),
        (vec![finish(head), info(fair, 2)], Violation::BehindEnd),
    ];
    for (messages, broken) in cases {
        let mut t = Two::new();
        for message in messages {
            t.deliver(1, &message, b"x");
        }
        assert_eq!(t.sides[1].stream.end(), Some(End::Broken(broken)));
        // The violation is reported to the peer, which ends its connection when it receives the
        // report.
        let answer = t.sides[1].out.messages.back().map(|m| m.0);
        let violation = matches!(
            answer,
            Some(Message::Shutdown {
                how: Ended::Violation,
                ..
            })
        );
        assert!(violation, "{answer:?}");
        t.settle();
        assert!(t.sides[0].stream.ready().failed);
    }
}

#[test]
fn corked_data_waits_for_company_but_not_for_long() {
    let mut t = Two::new();
    let s = &mut t.sides[0];
    s.out.ring[..4].copy_from_slice(b"head");
    s.stream.commit(4, true, Time(0));
    t.pump(0);
    assert!(t.sides[0].out.messages.is_empty());
    t.write(0, b"tail");
    assert_eq!(t.sides[0].out.messages.len(), 1);
    t.settle();
    assert_eq!(t.read(1, 100), b"headtail");
    // Further small data do not extend the delay.
    t.sides[0].stream.commit(4, true, Time(0));
    t.wait(LIMITS.cork - 1);
    t.sides[0].stream.commit(4, true, Time(t.now));
    t.pump(0);
    assert!(t.sides[0].out.messages.is_empty());
    t.wait_for(0);
    assert_eq!((t.now, t.sides[0].out.messages.len()), (LIMITS.cork, 1));
    // A push ends the delay.
    t.sides[0].stream.commit(4, true, Time(t.now));
    t.pump(0);
    assert_eq!(t.sides[0].out.messages.len(), 1);
    t.sides[0].stream.push();
    t.pump(0);
    assert_eq!(t.sides[0].out.messages.len(), 2);
}

#[test]
fn what_is_committed_after_the_end_is_said_not_to_be_sent() {
    let mut t = Two::new();
    t.write(0, b"first");
    let s = &mut t.sides[0].stream;
    assert!(!s.sending().end_acknowledged());
    s.shut();
    assert!(!s.commit(4, false, Time(0)));
    assert_eq!(s.sending().unacknowledged(), 5);
    t.pump(0);
    t.settle();
    assert_eq!(t.read(1, 100), b"first");
    // The peer has acknowledged all data and the end, although it has not ended its own direction.
    assert!(t.sides[0].stream.sending().end_acknowledged());
    assert_eq!(t.sides[0].stream.end(), None);
}

#[test]
fn a_program_may_give_its_peer_less_time() {
    let mut t = Two::new();
    t.sides[0].stream.set_give_up(Some(250));
    t.write(0, b"hello?");
    while t.sides[0].stream.end().is_none() {
        t.wait_for(0);
        while t.carry(0, true).is_some() {}
    }
    assert_eq!(t.now, LIMITS.ask + 250);
    // Even a limit of 0 leaves time for the driver to read the answer.
    let mut t = Two::new();
    t.sides[0].stream.set_give_up(Some(0));
    t.write(0, b"hello?");
    t.carry(0, false);
    t.wait_for(0);
    t.settle();
    assert_eq!(t.sides[0].stream.end(), None);
}

#[test]
fn an_idle_peer_is_asked_if_wanted() {
    let mut t = Two::new();
    t.sides[0].stream.set_keepalive(Some((400, 30, 3)));
    assert_eq!(t.sides[0].stream.deadline(&LIMITS), Some(Time(400)));
    t.wait(400);
    assert_eq!(t.sides[0].out.messages.len(), 1);
    t.settle();
    // The peer has answered the probe.
    assert_eq!(t.sides[0].stream.deadline(&LIMITS), Some(Time(800)));
    t.now = 800;
    while t.sides[0].stream.end().is_none() {
        t.pump(0);
        while t.carry(0, true).is_some() {}
        assert!(t.now < 2_000);
        t.now += 1;
    }
    assert_eq!(t.sides[0].stream.end(), Some(End::TimedOut));
    assert!((890..=900).contains(&t.now), "{}", t.now);
}

#[test]
fn what_comes_twice_is_acknowledged_once_more() {
    let mut t = Two::new();
    t.write(0, b"twice");
    t.sides[0].stream.shut();
    t.pump(0);
    let sent: Vec<_> = t.sides[0].out.messages.drain(..).collect();
    for (message, bytes) in &sent {
        t.deliver(1, message, bytes);
    }
    t.sides[1].out.messages.clear();
    // The acknowledgement was lost, so data and end are sent again.
    for (message, bytes) in &sent {
        t.deliver(1, message, bytes);
        let answer = t.sides[1].out.messages.pop_front().map(|m| m.0);
        assert!(
            matches!(answer, Some(Message::RmaAvail { .. })),
            "{answer:?}"
        );
    }
    assert_eq!(t.read(1, 100), b"twice");
}

#[test]
fn readers_are_woken_for_what_was_sent_together() {
    let mut t = Two::new();
    t.write(0, &data(150));
    t.carry(0, false);
    // Data are readable, but the reader is not woken, because the remainder of the send operation
    // follows at once.
    let r = t.sides[1].stream.receiving();
    assert!(r.readable().len > 0 && !r.is_pushed());
    t.carry(0, false);
    assert!(t.sides[1].stream.receiving().is_pushed());
    t.read(1, 150);
    assert!(!t.sides[1].stream.receiving().is_pushed());
}
