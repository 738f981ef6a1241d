//! Tests of the detection of a stuck port.

mod heap;

use heap::Heap;
use protocol::eth::stuck::{Proof, Suspects};
use protocol::Time;
use wire::ids::NodeId;

const PROOF: Proof = Proof {
    silence: 30,
    gap: 12,
};
const NEVER: Time = Time(0);

fn suspects(capacity: u16) -> Suspects<Heap> {
    Suspects::new(capacity).unwrap()
}

/// Reports that transfers with `node` were given up at `at`. No notification has ever arrived.
fn give_up(s: &mut Suspects<Heap>, node: u16, at: u64) {
    s.unanswered(NodeId(node), Time(at), NEVER, &PROOF);
}

fn message(s: &mut Suspects<Heap>, node: u16, at: u64) -> bool {
    s.message(NodeId(node), Time(at), &PROOF)
}

/// Reports messages of `node` at these times.
fn alive(s: &mut Suspects<Heap>, node: u16, times: impl Iterator<Item = u64>) {
    for at in times {
        assert!(!message(s, node, at), "at {at}");
    }
}

#[test]
fn a_peer_that_lives_and_answers_nothing_shows_it() {
    let mut s = suspects(4);
    give_up(&mut s, 1, 100);
    alive(&mut s, 1, (105..=138).step_by(11));
    give_up(&mut s, 1, 137);
    assert!(!message(&mut s, 1, 138), "may have been sent before");
    give_up(&mut s, 1, 138);
    assert!(message(&mut s, 1, 139));
}

/// The detection works for any time-out and any pause between transfers.
#[test]
fn times_between_transfers_do_not_matter() {
    for (silence, pause) in [(30, 30), (30, 500), (6000, 6000), (6000, 20_000)] {
        let proof = Proof { silence, gap: 12 };
        let mut s = suspects(4);
        let mut found = false;
        for now in 10_000..100_000 {
            if now % pause == 0 {
                s.unanswered(NodeId(1), Time(now), NEVER, &proof);
            }
            found |= now % 10 == 0 && s.message(NodeId(1), Time(now), &proof);
        }
        assert!(found, "{silence} {pause}");
    }
}

/// A peer that was unreachable during its transfers, and has none afterwards, is no evidence.
#[test]
fn a_peer_that_is_not_asked_shows_nothing() {
    let mut s = suspects(4);
    for away in (100..1000).step_by(100) {
        give_up(&mut s, 1, away);
        alive(&mut s, 1, away + 1..away + 60);
        // This transfer began when the peer had just become unreachable.
        give_up(&mut s, 1, away + 80);
    }
}

/// A peer that is unreachable repeatedly, each time for a part of the time-out, is no evidence.
#[test]
fn a_peer_that_comes_and_goes_shows_nothing() {
    let mut s = suspects(4);
    for now in 100..2000 {
        give_up(&mut s, 1, now);
        if now % 40 < 20 {
            assert!(!message(&mut s, 1, now), "at {now}");
        }
    }
}

#[test]
fn a_notification_shows_the_opposite() {
    let mut s = suspects(4);
    s.unanswered(NodeId(1), Time(100), Time(71), &PROOF);
    assert!(s.is_empty(), "a notification arrived 29 ticks ago");
    s.unanswered(NodeId(1), Time(100), Time(70), &PROOF);
    alive(&mut s, 1, 101..140);
    give_up(&mut s, 1, 140);
    s.clear();
    assert!(!message(&mut s, 1, 141));
}

/// A stuck port is detected regardless of the number of dead peers and the times at which they
/// died.
#[test]
fn dead_peers_hide_nothing() {
    for dead in [1, 3, 4, 64] {
        let mut s = suspects(4);
        for now in (100..400).step_by(5) {
            give_up(&mut s, 100 + (now % dead) as u16, now);
        }
        // The port becomes stuck, and a live peer sends all the time.
        let mut found = None;
        for now in 400..500 {
            give_up(&mut s, 100 + (now % dead) as u16, now);
            if now % 30 == 10 {
                give_up(&mut s, 7, now);
            }
            if message(&mut s, 7, now) && found.is_none() {
                found = Some(now);
            }
        }
        let found = found.unwrap_or_else(|| panic!("not found with {dead} dead peers"));
        assert!(found <= 460, "found at {found} with {dead} dead peers");
        assert!(s.len() <= 4);
    }
}

/// A dead peer sends no messages, and is no evidence.
#[test]
fn a_dead_peer_shows_nothing() {
    let mut s = suspects(4);
    for now in 100..300 {
        give_up(&mut s, 1, now);
        assert!(!message(&mut s, 2, now));
    }
}
