//! Whether the own port is stuck.

mod heap;

use heap::Heap;
use protocol::stuck::{Proof, Suspects};
use protocol::Time;
use wire::ids::NodeId;

const PROOF: Proof = Proof {
    silence: 30,
    fresh: 50,
    heard: 10,
};
const NEVER: Time = Time(0);

fn suspects(capacity: u16) -> Suspects<Heap> {
    Suspects::new(capacity).unwrap()
}

/// Given up at `at`, whatever came before.
fn give_up(s: &mut Suspects<Heap>, node: u16, at: u64) {
    s.unanswered(NodeId(node), Time(at), NEVER, &PROOF);
}

fn heard(s: &mut Suspects<Heap>, node: u16, at: u64) -> bool {
    s.heard(NodeId(node), Time(at), &PROOF)
}

#[test]
fn a_peer_that_lives_and_answers_nothing_shows_it() {
    let mut s = suspects(4);
    give_up(&mut s, 1, 100);
    assert!(!heard(&mut s, 1, 105));
    give_up(&mut s, 1, 134);
    assert!(!heard(&mut s, 1, 134), "may have been on its way before");
    give_up(&mut s, 1, 135);
    assert!(heard(&mut s, 1, 135));
}

/// It was away while something was asked of it, and afterwards nothing is.
#[test]
fn a_peer_that_is_not_asked_shows_nothing() {
    let mut s = suspects(4);
    for away in (100..1000).step_by(100) {
        give_up(&mut s, 1, away);
        for now in away + 1..away + 50 {
            assert!(!heard(&mut s, 1, now), "restarted at {now}");
        }
    }
}

#[test]
fn a_notification_shows_the_opposite() {
    let mut s = suspects(4);
    s.unanswered(NodeId(1), Time(100), Time(71), &PROOF);
    assert!(s.is_empty(), "one came less than 30 ago");
    s.unanswered(NodeId(1), Time(100), Time(70), &PROOF);
    assert!(!heard(&mut s, 1, 105));
    s.clear();
    assert!(!heard(&mut s, 1, 120));
}

#[test]
fn what_is_long_ago_shows_nothing() {
    let mut s = suspects(4);
    give_up(&mut s, 1, 100);
    assert!(!heard(&mut s, 1, 105));
    // It was away, and is back.
    assert!(!heard(&mut s, 1, 150));
    assert!(s.is_empty());
    // What is given up meanwhile goes on showing it.
    give_up(&mut s, 1, 200);
    assert!(!heard(&mut s, 1, 245));
    give_up(&mut s, 1, 249);
    give_up(&mut s, 1, 275);
    assert!(heard(&mut s, 1, 275));
}

/// Dead peers, however many there are and whenever they died, don't hide it.
#[test]
fn dead_peers_hide_nothing() {
    for dead in [1, 3, 4, 64] {
        let mut s = suspects(4);
        for now in (100..400).step_by(5) {
            give_up(&mut s, 100 + (now % dead) as u16, now);
        }
        // The port gets stuck, and a peer that lives speaks all the time.
        let mut found = None;
        for now in 400..500 {
            give_up(&mut s, 100 + (now % dead) as u16, now);
            if now % 30 == 10 {
                give_up(&mut s, 7, now);
            }
            if heard(&mut s, 7, now) && found.is_none() {
                found = Some(now);
            }
        }
        let found = found.unwrap_or_else(|| panic!("not found with {dead} dead peers"));
        assert!(found <= 430, "found at {found} with {dead} dead peers");
        assert!(s.len() <= 4);
    }
}

/// A dead one is never heard of.
#[test]
fn a_dead_peer_shows_nothing() {
    let mut s = suspects(4);
    for now in 100..300 {
        give_up(&mut s, 1, now);
        assert!(!heard(&mut s, 2, now));
    }
}
