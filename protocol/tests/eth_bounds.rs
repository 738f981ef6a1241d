//! Tests of the limits for each peer, which leave resources to other peers.

mod eth_parts;
mod heap;

use eth_parts::*;
use heap::Heap;
use protocol::eth::rendezvous::{
    Admitted, Announced, AnnouncementError, Ended, Fetched, Fetches, FlightEvent, FlightState,
    Limits, Sender, Shared, Waiting,
};
use protocol::{Time, TransportError};
use std::cell::RefCell;
use std::collections::VecDeque;
use wire::eth::{Announcement, Side};
use wire::ids::NodeId;

/// Limits of the same size as in the driver.
const LARGE: Limits = Limits {
    fetches: 256,
    source: 192,
    lossy_source: 48,
    waiting: 512,
    slow_waiting: 64,
    ..LIMITS
};

#[test]
fn silent_sources_do_not_take_all_places() {
    let limits = LARGE;
    for (answers, nodes) in [(false, 40), (true, 15)] {
        let f = Locked(RefCell::new(Fetches::new(256, 256).unwrap()));
        let mut w: Waiting<Heap> = Waiting::new(1024).unwrap();
        let mut port = Port {
            buffers: (1..10_000).map(|i| i << 20).collect(),
            ..Port::default()
        };
        let announced = |node, address| Announced {
            node: NodeId(node),
            announcement: Announcement {
                address,
                len: LEN.into(),
            },
            len: LEN,
            discard: false,
            ticket: None,
        };
        let pump = |w: &mut Waiting<Heap>, port: &mut Port, at| {
            w.pump(&f, &Time(at), port, &limits, |_, _| {});
            f.0.borrow_mut().check().unwrap();
            w.check(&limits).unwrap();
        };
        let end = |at, local, node| {
            let ended = f.with(|f| f.notified(&Time(at), &done(Side::Received, local, node, 0)));
            assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
        };
        for (now, node) in (0..).step_by(40).zip(1..=nodes) {
            w.age_bound().emptied(Time(now));
            let first = port.buffers[0];
            for i in 0..w.room().min(500) {
                assert_eq!(
                    w.push(&Time(now), announced(node, i as u64), &limits),
                    Ok(())
                );
            }
            pump(&mut w, &mut port, now);
            if answers {
                end(now, first, node);
                pump(&mut w, &mut port, now);
            }
            // A little later, another source is served at once.
            let now = now + 30;
            f.0.borrow_mut().age(&Time(now), &limits, NOW, drop);
            pump(&mut w, &mut port, now);
            assert!(w.room() > 0, "{node}, {answers}");
            let (local, before) = (port.buffers[0], port.sent.len());
            assert_eq!(w.push(&Time(now), announced(99, 77), &limits), Ok(()));
            pump(&mut w, &mut port, now);
            assert_eq!(port.sent[before..], [77], "{node}, {answers}");
            end(now, local, 99);
        }
        assert!(f.0.borrow().lost() > 200);
    }
}

#[test]
fn one_source_does_not_fill_the_table() {
    let (mut w, f) = receiver();
    let a = Announced {
        node: NodeId(1),
        announcement: Announcement { address: 1, len: 5 },
        len: 5,
        discard: true,
        ticket: None,
    };
    for _ in 0..LIMITS.slow_waiting {
        assert_eq!(w.push(&Time(0), a, &LIMITS), Ok(()));
    }
    assert_eq!(
        w.push(&Time(0), a, &LIMITS),
        Err(AnnouncementError::Waiting(4))
    );
    let b = Announced {
        discard: false,
        ticket: None,
        len: LEN,
        ..a
    };
    for _ in LIMITS.slow_waiting..LIMITS.waiting {
        assert_eq!(w.push(&Time(0), b, &LIMITS), Ok(()));
    }
    assert_eq!(
        w.push(&Time(0), b, &LIMITS),
        Err(AnnouncementError::Waiting(12))
    );
    assert_eq!(w.room(), 4);
    w.check(&LIMITS).unwrap();
    assert_eq!(w.flush(&f), 12);
    w.check(&LIMITS).unwrap();
}

#[test]
fn what_waits_for_a_source_that_answers_nothing_is_bounded() {
    let (mut w, f) = receiver();
    let mut port = plenty();
    for i in 1..=12 {
        push(&mut w, 0, 1, i, false);
    }
    assert_eq!(pump(&mut w, &f, 0, &mut port), vec![]);
    assert_eq!(w.len(), 10);
    assert_eq!(pump(&mut w, &f, 19, &mut port), vec![]);
    let refused = pump(&mut w, &f, 20, &mut port);
    assert_eq!(refused.len(), 6);
    assert_eq!(w.len(), LIMITS.slow_waiting);
}

#[test]
fn few_in_flight_leave_a_dead_peer_fewer_still() {
    for flight in 4..=32 {
        let mut s: Sender<Heap, At> = Sender::new(64, 64).unwrap();
        let limits = Limits {
            flight,
            stalled_peer: 16,
            ..LIMITS
        };
        // Frames are announced repeatedly to each dead peer, as long as they are admitted.
        for (now, peer) in (0..2000).step_by(11).zip((1..5).cycle()) {
            s.age(&Time(now), &limits, NOW, |_| true, drop);
            while let Admitted::Yes { .. } = s.admit(&Time(0), NodeId(peer), &limits) {
                let address = 4096
                    * (1 + s.counts().made(FlightState::Announced, FlightEvent::Stall)
                        + s.in_flight() as u64);
                announce(&mut s, now, peer, address);
            }
            s.age(&Time(now + 10), &limits, NOW, |_| true, drop);
            let admitted = s.admit(&Time(0), NodeId(9), &limits);
            assert_eq!(admitted, Admitted::Yes { prompt: true }, "{flight}, {now}");
        }
    }
}

#[test]
fn a_peer_that_stands_still_gets_few_until_it_fetches_again() {
    let mut s: Sender<Heap, At> = Sender::new(16, 64).unwrap();
    for i in 0..12 {
        let admitted = s.admit(&Time(0), NodeId(1), &LIMITS);
        if i < 8 {
            assert_eq!(admitted, Admitted::Yes { prompt: true }, "{i}");
        }
        announce(&mut s, 0, 1, 4096 * (i + 1));
    }
    // The last quarter of the slots remains free.
    assert_eq!(s.admit(&Time(0), NodeId(1), &LIMITS), Admitted::Later);
    assert_eq!(
        s.admit(&Time(0), NodeId(2), &LIMITS),
        Admitted::Yes { prompt: true }
    );
    age(&mut s, 10);
    assert_eq!(s.in_flight(), 0);
    assert_eq!(s.admit(&Time(0), NodeId(1), &LIMITS), Admitted::No(12));
    for i in 4..12 {
        s.notified(&Time(0), &LIMITS, &done(Side::Sent, 4096 * (i + 1), 1, 0));
    }
    age(&mut s, 100);
    assert_eq!((s.active(), s.given_up()), (0, 4));
    // Frames that the peer let time out still count.
    for i in 20..22 {
        assert_eq!(
            s.admit(&Time(0), NodeId(1), &LIMITS),
            Admitted::Yes { prompt: false }
        );
        announce(&mut s, 100, 1, 4096 * i);
    }
    assert_eq!(s.admit(&Time(0), NodeId(1), &LIMITS), Admitted::No(2));
    s.notified(&Time(0), &LIMITS, &done(Side::Sent, 4096 * 20, 1, 0));
    // The peer fetches again, but is lagging.
    let at = |now| s.admit(&Time(now), NodeId(1), &LIMITS);
    assert_eq!(at(0), Admitted::Yes { prompt: false });
    assert_eq!(at(200), Admitted::Yes { prompt: true });
}

/// Receiver whose mailbox is filled by other nodes.
struct Crowd {
    limits: Limits,
    waiting: Waiting<Heap>,
    fetches: Locked,
    port: Port,
    /// Unread messages, each with the time of sending and the source.
    mailbox: VecDeque<(u64, u16)>,
    /// GETs in flight, each with the time of the answer, the local address and the source.
    gets: VecDeque<(u64, u64, u16)>,
    /// Sources whose announcements were refused.
    refused: Vec<u16>,
}

impl Crowd {
    fn new() -> Self {
        let limits = Limits {
            patience: 50,
            timeout: 300,
            ..LARGE
        };
        Self {
            limits,
            waiting: Waiting::new(1024).unwrap(),
            fetches: Locked(RefCell::new(Fetches::new(256, 256).unwrap())),
            port: Port {
                buffers: (1..1_000_000).map(|i| i << 20).collect(),
                ..Port::default()
            },
            mailbox: VecDeque::new(),
            gets: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    /// Posts GETs, which are answered after `hold` ticks.
    fn pump(&mut self, now: u64, hold: u64) {
        let (first, before) = (self.port.buffers[0], self.port.sent.len());
        let refused = &mut self.refused;
        self.waiting.pump(
            &self.fetches,
            &Time(now),
            &mut self.port,
            &self.limits,
            |a, _| refused.push(a.node.0),
        );
        let sent = match self.port.answer {
            None => &self.port.sent[before..],
            Some(_) => &[],
        };
        for (i, node) in sent.iter().enumerate() {
            let local = first + ((i as u64) << 20);
            self.gets.push_back((now + hold, local, *node as u16));
        }
        self.fetches.0.borrow_mut().check().unwrap();
        self.waiting.check(&self.limits).unwrap();
    }

    /// Performs one tick: processes answers and housekeeping, and runs the poll function while
    /// announcements can be accepted. Returns the age of the oldest message that was in the
    /// mailbox.
    fn tick(&mut self, now: u64, hold: u64) -> u64 {
        while self.gets.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, local, node)) = self.gets.pop_front() else {
                break;
            };
            let c = done(Side::Received, local, node, 0);
            let ended = self.fetches.with(|f| f.notified(&Time(now), &c));
            assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
        }
        self.fetches
            .0
            .borrow_mut()
            .age(&Time(now), &self.limits, NOW, drop);
        let oldest = self.mailbox.front().map_or(0, |(at, _)| now - at);
        self.pump(now, hold);
        loop {
            if self.waiting.room() == 0 {
                self.pump(now, hold);
            }
            let n = self.waiting.room().min(self.mailbox.len());
            for (_, node) in self.mailbox.drain(..n) {
                let a = Announced {
                    node: NodeId(node),
                    // The address identifies the source.
                    announcement: Announcement {
                        address: node.into(),
                        len: LEN.into(),
                    },
                    len: LEN,
                    discard: false,
                    ticket: None,
                };
                if self.waiting.push(&Time(now), a, &self.limits).is_err() {
                    self.refused.push(node);
                }
            }
            self.waiting.age_bound().read(n);
            if n == 0 {
                break;
            }
        }
        if now % 2 == 0 {
            let backlog = self.mailbox.len();
            self.waiting.age_bound().count(Time(now), backlog);
        }
        self.pump(now, hold);
        oldest
    }
}

#[test]
fn sources_that_announce_more_than_they_answer_do_not_hold_up_others() {
    // Answers take long but arrive within `patience`, or they are only slightly late.
    for (hold, longest) in [(40, 15), (8, 65)] {
        let mut crowd = Crowd::new();
        for now in 0..2000 {
            for _ in 0..40 {
                crowd.mailbox.extend([(now, 1), (now, 2)]);
            }
            // This source sends little, and answers in time.
            if now % 50 == 0 {
                crowd.mailbox.push_back((now, 3));
            }
            let oldest = crowd.tick(now, hold);
            assert!(oldest <= longest, "{now}: {oldest}, {hold}");
        }
        assert!(!crowd.refused.contains(&3), "{hold}");
        assert!(crowd.refused.len() > 1000, "{hold}");
        let fetched = crowd.port.sent.iter().filter(|node| **node == 3);
        assert!(fetched.count() > 30, "{hold}");
    }
}

#[test]
fn a_table_that_is_full_for_a_short_time_costs_nobody_a_frame() {
    let mut crowd = Crowd::new();
    let mut paused = 0;
    for now in 0..1000 {
        // At intervals many sources announce at the same time.
        if now % 100 == 0 {
            for node in 1..=16 {
                crowd.mailbox.extend([(now, node); 192]);
            }
        }
        crowd.tick(now, 2);
        paused += usize::from(!crowd.mailbox.is_empty());
    }
    assert!(paused > 50, "{paused}");
    assert_eq!(crowd.refused, []);
    assert_eq!(crowd.port.sent.len(), 10 * 16 * 192);
}

#[test]
fn room_is_made_at_the_expense_of_who_has_most() {
    // With 1,024 sources, each has one announcement.
    for sources in [2, 3, 600, 1024] {
        let mut crowd = Crowd::new();
        for node in (1..=sources).cycle().take(1024) {
            crowd.mailbox.push_back((0, node));
        }
        crowd.mailbox.push_back((0, 2000));
        // No GET can be posted.
        crowd.port.answer = Some(TransportError::Later);
        for now in 0..50 {
            crowd.tick(now, 1);
            assert_eq!((crowd.waiting.room(), crowd.refused.len()), (0, 0));
        }
        crowd.tick(50, 1);
        assert!(crowd.mailbox.is_empty(), "{sources}");
        let part = 1024 / (usize::from(sources) + 1);
        let all = crowd.refused.len();
        // One or two more announcements than necessary may be refused, because the receiver did not
        // know that enough slots were free.
        assert!((1..=part + 2).contains(&all), "{sources}: {all}, {part}");
    }
}

fn admitted(s: &Sender<Heap, At>, node: u16, limits: &Limits) -> bool {
    matches!(
        s.admit(&Time(0), NodeId(node), limits),
        Admitted::Yes { .. }
    )
}

#[test]
fn peers_that_say_that_they_dropped_everything_do_not_fill_the_quarantine() {
    // Repeat the test with two such peers.
    for (peers, most) in [(1, 200), (2, 350)] {
        let (mut s, limits) = large_sender();
        let mut next = 1;
        for now in 0..3000 {
            s.age(&Time(now), &limits, NOW, |_| true, drop);
            for _ in 0..8 {
                let node = 1 + next as u16 % peers;
                if !admitted(&s, node, &limits) {
                    next += 1;
                    continue;
                }
                announce(&mut s, now, node, 4096 * next);
                assert!(dropped(&mut s, now, node, 4096 * next));
                next += 1;
            }
            assert!(s.given_up() <= most, "{now}: {}", s.given_up());
        }
        // Frames to other peers are given up in time.
        announce(&mut s, 3000, 9, 4096 * next);
        let (lost, _) = s.age(&Time(3100), &limits, NOW, |_| true, drop);
        assert_eq!(lost.map(|(node, _)| node), Some(NodeId(9)));
    }
}

#[test]
fn a_peer_that_drops_some_frames_gets_the_others() {
    let (mut s, limits) = large_sender();
    let mut next = 1;
    // The receiver has no memory at all for some time, and later lacks memory at intervals.
    for now in 0..4000 {
        s.age(&Time(now), &limits, NOW, |_| true, drop);
        for i in 0..8 {
            let short = now < 10 || now % 40 == 0 && i == 0;
            assert!(admitted(&s, 1, &limits), "{now}");
            announce(&mut s, now, 1, 4096 * next);
            if short {
                assert!(dropped(&mut s, now, 1, 4096 * next));
            } else {
                let c = done(Side::Sent, 4096 * next, 1, 0);
                assert!(matches!(
                    s.notified(&Time(0), &LIMITS, &c),
                    Ended::Fetched(_)
                ));
            }
            next += 1;
        }
    }
}

#[test]
fn a_drop_message_of_a_peer_that_nothing_was_announced_to_is_for_nothing() {
    let mut s = sender();
    announce(&mut s, 0, 1, 4096);
    announce(&mut s, 0, 2, 8192);
    assert!(!dropped(&mut s, 0, 3, 4096));
    assert!(!dropped(&mut s, 0, 2, 4096));
    assert_eq!((s.active(), s.given_up()), (2, 0));
    assert!(dropped(&mut s, 0, 2, 8192));
}

/// Sources that answer late, but before the time-out, leave slots for other sources.
#[test]
fn no_two_sources_take_all_places() {
    let limits = Limits {
        fetches: 256,
        source: 192,
        lossy_source: 48,
        waiting: 512,
        ..LIMITS
    };
    let fetches = Fetches::new(256, 256).unwrap();
    let f = Locked(RefCell::new(fetches));
    for node in 1..=4 {
        acquaint(&f, node);
    }
    let mut port = plenty();
    port.buffers = (1..1000).map(|i| i << 20).collect();
    let mut w: Waiting<Heap> = Waiting::new(2048).unwrap();
    let mut taken = Vec::new();
    for node in 1..=4 {
        let before = f.0.borrow().len();
        for i in 0..300 {
            let announcement = Announcement {
                address: i,
                len: LEN.into(),
            };
            let announced = Announced {
                node: NodeId(node),
                announcement,
                len: LEN,
                discard: false,
                ticket: None,
            };
            assert_eq!(w.push(&Time(0), announced, &limits), Ok(()));
        }
        w.pump(&f, &Time(0), &mut port, &limits, |_, _| ());
        taken.push(f.0.borrow().len() - before);
    }
    // Each source already had one open GET.
    assert_eq!(taken[0], 189, "{taken:?}");
    assert!(taken.iter().all(|n| *n > 0), "{taken:?}");
}

#[test]
fn peers_that_die_one_after_the_other_stop_nobody() {
    let (mut s, limits) = large_sender();
    let mut next = 1;
    // No node fetches a frame, and no slot becomes free in the meantime.
    for (now, node) in (0..).step_by(11).zip(1..=160) {
        s.age(
            &Time(now),
            &Limits {
                timeout: 1 << 30,
                ..limits
            },
            NOW,
            |_| true,
            drop,
        );
        while admitted(&s, node, &limits) {
            announce(&mut s, now, node, 4096 * next);
            next += 1;
        }
        s.age(
            &Time(now + 10),
            &Limits {
                timeout: 1 << 30,
                ..limits
            },
            NOW,
            |_| true,
            drop,
        );
        let other = s.admit(&Time(now + 10), NodeId(9000), &limits);
        assert_ne!(
            other,
            Admitted::Later,
            "the queue waits behind {node} dead peers"
        );
        if node <= 100 {
            assert_eq!(other, Admitted::Yes { prompt: true }, "{node}");
        }
    }
    assert_eq!(s.admit(&Time(0), NodeId(9000), &limits), Admitted::No(0));
}
