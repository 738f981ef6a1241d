//! Tests of the pauses between restarts of ports, and between attempts to open ports.

use protocol::eth::restart::{Pauses, Restarts};
use protocol::Time;

const PAUSES: Pauses = Pauses {
    restart: 30,
    longest_restart: 3600,
    retry: 1,
    longest_retry: 30,
};

#[test]
fn a_peer_that_makes_ports_look_stuck_has_them_reopened_ever_more_rarely() {
    let mut restarts = Restarts::new();
    let at: Vec<u64> = (0..24 * 3600)
        .filter(|now| restarts.begin(Time(*now), &PAUSES))
        .collect();
    assert_eq!(at[..5], [0, 30, 90, 210, 450]);
    assert!(at.len() < 35, "{at:?}");
    let pauses: Vec<u64> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(pauses.last(), Some(&3600));
    // After a long time without restarts, the next restart begins at once, and another restart a
    // short time later.
    let late = 24 * 3600 + 2 * 3600;
    for (now, begins) in [(late, true), (late + 29, false), (late + 30, true)] {
        assert_eq!(restarts.begin(Time(now), &PAUSES), begins, "{now}");
    }
}

#[test]
fn opening_is_tried_until_it_succeeds() {
    let mut restarts = Restarts::new();
    assert!(!restarts.is_failing());
    let pauses: Vec<u64> = (0..100).map(|_| restarts.failed(&PAUSES)).collect();
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(pauses.last(), Some(&30));
    assert!(restarts.is_failing());
    restarts.succeeded();
    assert!(!restarts.is_failing());
    assert_eq!(restarts.failed(&PAUSES), 1);
}
