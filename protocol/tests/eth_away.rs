//! Tests with peers that are unreachable for some time. They check the number of frames that such a
//! peer gets until it fetches again, and afterwards.

mod eth_parts;
mod heap;

use eth_parts::*;
use heap::Heap;
use protocol::eth::rendezvous::{Admitted, Ended, Limits, Sender, Unsent};
use protocol::{Time, TransportError};
use wire::eth::Side;
use wire::ids::NodeId;

/// Announces frames to node 1 as long as they are admitted at `now`, up to 300. Returns their
/// number. The queue must never wait for a peer with stalled frames.
fn announce_all(s: &mut Sender<Heap, At>, now: u64, limits: &Limits, next: &mut u64) -> usize {
    (0..300)
        .take_while(|_| match s.admit(&Time(now), NodeId(1), limits) {
            Admitted::Yes { .. } => {
                announce(s, now, 1, 4096 * *next);
                *next += 1;
                true
            }
            Admitted::Later => {
                assert!(
                    s.active() == s.in_flight(),
                    "{now}: the queue waits for a stalled peer"
                );
                false
            }
            Admitted::No(_) => false,
        })
        .count()
}

fn grow_old(s: &mut Sender<Heap, At>, now: u64, limits: &Limits) {
    s.age(&Time(now), limits, NOW, |_| true, drop);
    s.check().unwrap();
}

fn fetch(s: &mut Sender<Heap, At>, now: u64, limits: &Limits, i: u64) {
    let ended = s.notified(&Time(now), limits, &done(Side::Sent, 4096 * i, 1, 0));
    assert!(matches!(ended, Ended::Fetched(_)), "{now}: {ended:?}");
    s.check().unwrap();
}

/// Tries to announce frames on every tick from `from` on, until a frame is admitted. Returns the
/// time of this tick.
fn next_try(s: &mut Sender<Heap, At>, from: u64, limits: &Limits, next: &mut u64) -> u64 {
    (from..from + 100)
        .find(|now| {
            grow_old(s, *now, limits);
            announce_all(s, *now, limits, next) > 0
        })
        .expect("no frame shows that the peer is back")
}

/// Announces all admitted frames on every tick, and fetches them. Returns the minimum number of
/// admitted frames per tick.
fn flow(
    s: &mut Sender<Heap, At>,
    time: core::ops::Range<u64>,
    limits: &Limits,
    next: &mut u64,
) -> usize {
    let least = s.active();
    time.map(|now| {
        grow_old(s, now, limits);
        let first = *next;
        let got = announce_all(s, now, limits, next);
        for i in first..*next {
            fetch(s, now, limits, i);
        }
        assert_eq!(s.active(), least, "{now}");
        got
    })
    .min()
    .unwrap_or(0)
}

#[test]
fn a_peer_that_was_away_for_a_moment_shows_that_it_is_back() {
    for lost in [2, 6, 11, 17, 40, 127, 192] {
        let (mut s, limits) = large_sender();
        let limits = Limits {
            timeout: 300,
            ..limits
        };
        let mut next = 1;
        for _ in 0..lost {
            announce(&mut s, 0, 1, 4096 * next);
            next += 1;
        }
        // The frames stall. A fetch of a frame that was announced before the stall is no proof that
        // the peer is back.
        grow_old(&mut s, 10, &limits);
        fetch(&mut s, 10, &limits, 1);
        let old = lost - 1;
        let few = old.max(16);
        // While unreachable, the peer gets the same number of frames as any stalled peer, and then
        // one frame at a time with growing intervals.
        for now in 10..40 {
            grow_old(&mut s, now, &limits);
            announce_all(&mut s, now, &limits, &mut next);
            assert!(s.active() <= few + 2, "{lost} {now}: {}", s.active());
        }
        assert!(s.active() >= few, "{lost}: {}", s.active());
        // The first frame announced after the peer is back is fetched, and then every frame that it
        // gets.
        let back = next_try(&mut s, 40, &limits, &mut next);
        assert!(back <= 40 + 40, "{lost}: {back}");
        fetch(&mut s, back, &limits, next - 1);
        let least = s.active();
        assert!(least <= few + 3, "{lost}: {least}");
        let got = flow(&mut s, back..back + 20, &limits, &mut next);
        assert_eq!(got, 16, "{lost}");
        // The peer is unreachable once more. Frames announced in this phase stall too, but their
        // number is limited as before. The sender detects again that the peer is back, although the
        // peer gets fewer frames.
        let away = back + 20;
        for now in away..away + 40 {
            grow_old(&mut s, now, &limits);
            announce_all(&mut s, now, &limits, &mut next);
            assert!(s.active() <= least + 16 + 2, "{lost} {now}: {}", s.active());
        }
        let back = next_try(&mut s, away + 40, &limits, &mut next);
        assert!(back <= away + 40 + 75, "{lost}: {back}");
        fetch(&mut s, back, &limits, next - 1);
        assert!(
            flow(&mut s, back..back + 20, &limits, &mut next) >= 1,
            "{lost}"
        );
        assert_eq!(s.given_up(), 0);
    }
}

#[test]
fn a_peer_that_fetches_some_of_what_stands_still_gets_no_more_for_that() {
    let (mut s, limits) = large_sender();
    let mut next = 1;
    for _ in 0..20 {
        announce(&mut s, 0, 1, 4096 * next);
        next += 1;
    }
    // The peer repeatedly fetches the last frame that was announced to it.
    for now in 10..90 {
        grow_old(&mut s, now, &limits);
        announce_all(&mut s, now, &limits, &mut next);
        assert!(s.active() <= 20 + 17, "{now}: {}", s.active());
        let newest = next - 1;
        let _ = s.notified(&Time(now), &limits, &done(Side::Sent, 4096 * newest, 1, 0));
        s.check().unwrap();
    }
}

#[test]
fn a_dead_peer_gets_few_of_those_that_show_that_it_is_back() {
    let (mut s, limits) = large_sender();
    let mut next = 1;
    for _ in 0..40 {
        announce(&mut s, 0, 1, 4096 * next);
        next += 1;
    }
    for now in 10..1000 {
        grow_old(&mut s, now, &limits);
        announce_all(&mut s, now, &limits, &mut next);
        let most = if now < 100 { 40 + 4 } else { 16 + 4 };
        assert!(s.active() <= most, "{now}: {}", s.active());
    }
}

#[test]
fn a_peer_that_was_away_for_a_moment_and_then_for_long_shows_that_it_is_back() {
    let (mut s, limits) = large_sender();
    let mut next = 1;
    for _ in 0..20 {
        announce(&mut s, 0, 1, 4096 * next);
        next += 1;
    }
    let back = next_try(&mut s, 10, &limits, &mut next);
    fetch(&mut s, back, &limits, next - 1);
    // Further frames are lost before the first lost frames are given up.
    for now in back..500 {
        grow_old(&mut s, now, &limits);
        announce_all(&mut s, now, &limits, &mut next);
    }
    let back = next_try(&mut s, 500, &limits, &mut next);
    fetch(&mut s, back, &limits, next - 1);
    assert_eq!(flow(&mut s, back..back + 5, &limits, &mut next), 16);
}

#[test]
fn late_fetches_of_what_was_given_up_get_a_peer_no_more() {
    let (mut s, limits) = large_sender();
    // These times keep the peer below its maximum number of frames in quarantine.
    let limits = Limits {
        timeout: 600,
        quarantine: 1200,
        ..limits
    };
    let (mut next, mut most) = (1, 0);
    for _ in 0..20 {
        announce(&mut s, 0, 1, 4096 * next);
        next += 1;
    }
    // Frames in flight or in quarantine, with the time of their announcement.
    let mut there: Vec<(u64, u64)> = Vec::new();
    for now in 10..4000 {
        grow_old(&mut s, now, &limits);
        let first = next;
        announce_all(&mut s, now, &limits, &mut next);
        there.extend((first..next).map(|i| (i, now)));
        if now > 700 {
            most = most.max(s.active());
        }
        there.retain(|(_, at)| now - at < limits.timeout + limits.quarantine);
        // At intervals the peer fetches the newest frame that was given up.
        let newest = there.iter().rposition(|(_, at)| now - at > limits.timeout);
        if let Some(k) = newest.filter(|_| now % 10 == 0) {
            let (i, _) = there.remove(k);
            let c = done(Side::Sent, 4096 * i, 1, 0);
            let ended = s.notified(&Time(now), &limits, &c);
            assert!(matches!(ended, Ended::Late(_)), "{now}: {ended:?}");
        }
    }
    assert!(most <= 16 + 16 + 4, "{most}");
}

#[test]
fn each_time_that_a_peer_was_away_it_shows_that_it_is_back() {
    let (mut s, limits) = large_sender();
    let (mut first, mut next, mut now) = (1, 1, 0);
    for round in 0..3 {
        announce(&mut s, now, 1, 4096 * next);
        next += 1;
        // The peer loses the maximum number of frames of an unreachable peer.
        for now in now + 10..now + 20 {
            grow_old(&mut s, now, &limits);
            announce_all(&mut s, now, &limits, &mut next);
        }
        assert!(s.active() >= 16);
        let back = next_try(&mut s, now + 20, &limits, &mut next);
        fetch(&mut s, back, &limits, next - 1);
        let end = next;
        let got = flow(&mut s, back..back + 5, &limits, &mut next);
        assert_eq!(got, 16, "{round}");
        // The peer fetches late, but always has frames in flight.
        announce(&mut s, back + 5, 1, 4096 * next);
        for i in first..end - 1 {
            fetch(&mut s, back + 5, &limits, i);
        }
        assert_eq!((s.active(), s.given_up()), (1, 0));
        first = next;
        next += 1;
        now = back + 6;
    }
}

#[test]
fn what_shows_that_dead_peers_are_back_does_not_stop_the_queue() {
    let (mut s, limits) = large_sender();
    let limits = Limits {
        flight: 16,
        ..limits
    };
    let mut next = 1;
    for peer in 2..34 {
        announce(&mut s, 0, peer, 4096 * next);
        next += 1;
    }
    let mut tried = 0;
    for now in 10..400 {
        grow_old(&mut s, now, &limits);
        for peer in 2..34 {
            if let Admitted::Yes { .. } = s.admit(&Time(now), NodeId(peer), &limits) {
                announce(&mut s, now, peer, 4096 * next);
                next += 1;
                tried += 1;
            }
            let other = s.admit(&Time(now), NodeId(1), &limits);
            assert!(matches!(other, Admitted::Yes { .. }), "{now}: {other:?}");
        }
    }
    assert!(tried > 64, "{tried}");
}

#[test]
fn what_was_not_sent_shows_nothing() {
    let (mut s, limits) = large_sender();
    for i in 1..18 {
        announce(&mut s, 0, 1, 4096 * i);
    }
    grow_old(&mut s, 10, &limits);
    for _ in 0..3 {
        let yes = s.admit(&Time(10), NodeId(1), &limits);
        assert!(matches!(yes, Admitted::Yes { .. }), "{yes:?}");
        let mut full = Port {
            answer: Some(TransportError::Later),
            ..Port::default()
        };
        let refused = s.announce(&Time(10), &mut full, NodeId(1), At(4096 * 18), 1, 0);
        assert!(matches!(
            refused,
            Err((_, Unsent::Refused(TransportError::Later)))
        ));
        s.check().unwrap();
    }
}

#[test]
fn the_queue_does_not_wait_for_a_dead_peer_that_has_much_in_flight() {
    // Other peers occupy a large part of the quarantine, so the limit of each peer is low. This
    // peer has more frames in flight than its limit.
    let (mut s, limits) = large_sender();
    let mut next = 1;
    for peer in 2..17 {
        for _ in 0..16 {
            announce(&mut s, 0, peer, 4096 * next);
            next += 1;
        }
    }
    grow_old(&mut s, 100, &limits);
    // The peer has more frames in flight than it may have now.
    for _ in 0..195 {
        announce(&mut s, 100, 1, 4096 * next);
        next += 1;
    }
    for now in 110..200 {
        grow_old(&mut s, now, &limits);
        announce_all(&mut s, now, &limits, &mut next);
    }
    assert!(s.given_up() >= 240);
}
