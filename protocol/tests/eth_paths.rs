//! Tests of announced frames in flight by flow, and of peers that fetch late.

mod eth_parts;
mod heap;

use eth_parts::{age, announce, done, dropped, sender, At, Port, LEN, LIMITS, NOW};
use heap::Heap;
use proptest::prelude::*;
use protocol::eth::rendezvous::{Admitted, Ended, Limits, Sender, Unsent};
use protocol::{Time, TransportError};
use wire::eth::Side;
use wire::ids::NodeId;

/// Announces a frame of a flow.
fn announce_flow(s: &mut Sender<Heap, At>, node: u16, flow: u32, address: u64) {
    let (now, mut port) = (Time(0), Port::default());
    let result = s.announce(&now, &mut port, NodeId(node), At(address), LEN, flow);
    assert_eq!(result, Ok(()));
    s.check().unwrap();
}

fn fetched(s: &mut Sender<Heap, At>, at: u64, node: u16, address: u64) {
    let ended = s.notified(&Time(at), &LIMITS, &done(Side::Sent, address, node, 0));
    assert!(matches!(ended, Ended::Fetched(_)), "{ended:?}");
    s.check().unwrap();
}

#[test]
fn a_flow_moves_until_its_last_frame_is_fetched() {
    let mut s = sender();
    assert!(!s.flow_in_flight(NodeId(1), 5));
    announce_flow(&mut s, 1, 5, 4096);
    announce_flow(&mut s, 1, 5, 8192);
    assert!(s.flow_in_flight(NodeId(1), 5));
    assert!(!s.flow_in_flight(NodeId(1), 6), "another flow");
    assert!(!s.flow_in_flight(NodeId(2), 5), "another peer");
    fetched(&mut s, 1, 1, 8192);
    assert!(s.flow_in_flight(NodeId(1), 5));
    fetched(&mut s, 1, 1, 4096);
    assert!(!s.flow_in_flight(NodeId(1), 5));
}

/// Stalled frames and frames that were given up do not count as in flight.
#[test]
fn what_is_stalled_or_given_up_does_not_move() {
    let mut s = sender();
    announce_flow(&mut s, 1, 5, 4096);
    age(&mut s, 9);
    assert!(s.flow_in_flight(NodeId(1), 5));
    age(&mut s, 10);
    assert!(!s.flow_in_flight(NodeId(1), 5));
    fetched(&mut s, 11, 1, 4096);
    announce_flow(&mut s, 1, 5, 8192);
    assert!(dropped(&mut s, 0, 1, 8192));
    assert!(!s.flow_in_flight(NodeId(1), 5));
    // A frame that the port refused is not in flight.
    let mut port = Port {
        answer: Some(TransportError::Later),
        ..Port::default()
    };
    let result = s.announce(&Time(0), &mut port, NodeId(1), At(12288), LEN, 5);
    assert_eq!(
        result,
        Err((At(12288), Unsent::Refused(TransportError::Later)))
    );
    assert!(!s.flow_in_flight(NodeId(1), 5));
    announce_flow(&mut s, 1, 5, 16384);
    while s.flush_one().is_some() {}
    assert!(!s.flow_in_flight(NodeId(1), 5));
    s.check().unwrap();
}

/// Only a few flows share a counter.
#[test]
fn flows_are_told_apart() {
    let mut s = sender();
    announce_flow(&mut s, 1, 77, 4096);
    let alike = (0..10_000)
        .filter(|f| s.flow_in_flight(NodeId(1), *f))
        .count();
    assert!((1..200).contains(&alike), "{alike}");
}

proptest! {
    /// A flow is in flight exactly while one of its frames is announced, and neither fetched nor
    /// stalled.
    #[test]
    fn as_a_plain_list(steps in proptest::collection::vec((0..3u8, 0..4u32, 0..12u64), 0..80)) {
        let mut s = sender();
        let mut list: Vec<(u32, u64)> = Vec::new();
        for (what, flow, place) in steps {
            let address = 4096 * (place + 1);
            match what {
                0 if list.iter().all(|(_, a)| *a != address) => {
                    announce_flow(&mut s, 1, flow, address);
                    list.push((flow, address));
                }
                1 if list.iter().any(|(_, a)| *a == address) => {
                    fetched(&mut s, 0, 1, address);
                    list.retain(|(_, a)| *a != address);
                }
                _ => {}
            }
            for flow in 0..4 {
                let moves = list.iter().any(|(f, _)| *f == flow);
                prop_assert_eq!(s.flow_in_flight(NodeId(1), flow), moves);
            }
        }
    }
}

fn large() -> (Sender<Heap, At>, Limits) {
    let limits = Limits {
        flight: 256,
        stalled_peer: 16,
        ..LIMITS
    };
    (Sender::new(512, 512).unwrap(), limits)
}

/// A peer that fetches frames just before they stall may delay frames to another peer in the same
/// queue for `lag` at a time, but not all of the time.
#[test]
fn a_peer_that_fetches_late_does_not_hold_the_queue() {
    let (mut s, limits) = large();
    let mut next = 1;
    let (mut blocked, mut other) = (0, 0);
    let mut open: Vec<(u64, u64)> = Vec::new();
    const TIME: u64 = 5_000;
    for now in 0..TIME {
        // The peer fetches frames after 9 ticks. They would stall after 10 ticks.
        while let Some((at, address)) = open.first().copied().filter(|(at, _)| now >= at + 9) {
            let ended = s.notified(&Time(now), &limits, &done(Side::Sent, address, 1, 0));
            assert!(matches!(ended, Ended::Fetched(_)), "{ended:?} of {at}");
            open.remove(0);
        }
        s.age(&Time(now), &limits, NOW, |_| true, drop);
        assert_eq!(s.active(), s.in_flight(), "nothing stalls");
        // The network stack alternately has more frames for this peer than the peer fetches, and
        // one frame for the other peer.
        let mut stopped = false;
        for _ in 0..100 {
            s.sends(&Time(now), NodeId(1));
            match s.admit(&Time(now), NodeId(1), &limits) {
                Admitted::Yes { .. } => {
                    announce(&mut s, now, 1, 4096 * next);
                    open.push((now, 4096 * next));
                    next += 1;
                }
                Admitted::Later => {
                    stopped = true;
                    break;
                }
                Admitted::No(_) => {}
            }
        }
        if stopped {
            blocked += 1;
            continue;
        }
        s.sends(&Time(now), NodeId(2));
        assert!(matches!(
            s.admit(&Time(now), NodeId(2), &limits),
            Admitted::Yes { prompt: true }
        ));
        announce(&mut s, now, 2, 4096 * next);
        let ended = s.notified(&Time(now), &limits, &done(Side::Sent, 4096 * next, 2, 0));
        assert!(matches!(ended, Ended::Fetched(_)), "{ended:?}");
        next += 1;
        other += 1;
    }
    assert!(blocked <= TIME / 10, "stopped for {blocked} of {TIME}");
    assert!(other >= TIME * 9 / 10, "{other} frames for the other peer");
}

/// Many lagging peers together occupy half of the frames in flight.
#[test]
fn many_that_fetch_late_leave_half() {
    let (mut s, limits) = large();
    let mut next = 1;
    let mut announce_all = |s: &mut Sender<Heap, At>, now: u64| {
        for node in 1..=60 {
            s.sends(&Time(now), NodeId(node));
            for _ in 0..100 {
                let Admitted::Yes { .. } = s.admit(&Time(now), NodeId(node), &limits) else {
                    break;
                };
                announce(s, now, node, 4096 * next);
                next += 1;
            }
        }
    };
    // Each peer fetches one frame late.
    for node in 1..=60 {
        announce(&mut s, 0, node, u64::from(node) << 32);
        let c = done(Side::Sent, u64::from(node) << 32, node, 0);
        s.notified(&Time(5), &limits, &c);
    }
    s.sends(&Time(6), NodeId(99));
    announce_all(&mut s, 6);
    assert!(s.in_flight() <= 192, "{}", s.in_flight());
    assert_eq!(
        s.admit(&Time(6), NodeId(99), &limits),
        Admitted::Yes { prompt: true }
    );
    // After some time without late frames they are normal peers.
    assert!(matches!(
        s.admit(&Time(106), NodeId(60), &limits),
        Admitted::Yes { prompt: true } | Admitted::Later
    ));
}

/// Frames are dropped only if necessary. They are not dropped if only a few frames are in flight,
/// or if all frames are for one peer.
#[test]
fn the_queue_waits_for_late_peers() {
    for (flight, other, share) in [(4, 2, 3), (256, 1, 192)] {
        let (s, limits) = large();
        waits(s, &Limits { flight, ..limits }, other, share);
    }
}

fn waits(mut s: Sender<Heap, At>, limits: &Limits, other: u16, share: u64) {
    for round in 0..20 {
        let now = round * 9;
        let mut n = 0;
        loop {
            s.sends(&Time(now), NodeId(other));
            s.sends(&Time(now), NodeId(1));
            match s.admit(&Time(now), NodeId(1), limits) {
                Admitted::Yes { .. } => announce(&mut s, now, 1, 4096 * (n + 1)),
                Admitted::Later => break,
                Admitted::No(open) => panic!("refused with {open} open"),
            }
            n += 1;
        }
        assert_eq!(n, share);
        for i in 0..n {
            let c = done(Side::Sent, 4096 * (i + 1), 1, 0);
            s.notified(&Time(now + 9), limits, &c);
        }
    }
}
