//! Transfers with a time limit for posting.

mod heap;
mod rma;

use protocol::transfer::{Failure, Quiet, Terms};
use protocol::Time;
use rma::table::*;
use rma::*;

/// Returns the parameters of a GET whose commands must be posted before time 20.
fn soon() -> Terms {
    Terms {
        post_by: Some(Time(20)),
        ..terms(1, 100)
    }
}

fn get_soon(t: &mut Table, len: u64) -> protocol::transfer::Ticket {
    submit(t, &soon(), GET, &[(0x1000, len)], &[(0x10_0000, len)]).unwrap()
}

#[test]
fn what_was_not_posted_in_time_is_not_posted() {
    // If `expire` was not called in time, `post` checks the limit.
    for expire in [false, true] {
        let (mut t, mut nic) = (table(), nic());
        nic.room = 0;
        let id = get_soon(&mut t, 100);
        assert!(post(&mut t, &mut nic, 5).is_empty());
        assert_eq!(t.next_deadline(), Some(Time(20)));
        nic.room = 10;
        if expire {
            t.expire(Time(20), 10);
        }
        assert!(post(&mut t, &mut nic, 20).is_empty());
        ends(&mut t, id, Err(Failure::TimedOut));
        assert!(t.is_empty());
    }
}

#[test]
fn what_was_posted_in_part_is_late() {
    let (mut t, mut nic) = (table(), nic());
    nic.room = 1;
    let id = get_soon(&mut t, 2000);
    let sent = post(&mut t, &mut nic, 5);
    assert_eq!(sent.len(), 1);
    nic.room = 10;
    assert!(post(&mut t, &mut nic, 20).is_empty());
    let e = event(&mut t).unwrap();
    assert_eq!(
        (e.ticket, e.outcome, e.quiet),
        (id, Some(Err(Failure::TimedOut)), None)
    );
    assert!(deliver(&mut t, &sent[0], 0));
    let e = event(&mut t).unwrap();
    assert_eq!((e.outcome, e.quiet), (None, Some(Quiet::Settled)));
}

#[test]
fn what_was_posted_in_time_has_all_its_time() {
    let (mut t, mut nic) = (table(), nic());
    let id = get_soon(&mut t, 2000);
    let sent = post(&mut t, &mut nic, 19);
    assert_eq!(sent.len(), 2);
    assert_eq!(t.next_deadline(), Some(Time(100)));
    t.expire(Time(99), 10);
    assert!(event(&mut t).is_none());
    for s in &sent {
        assert!(deliver(&mut t, s, 0));
    }
    ends(&mut t, id, bytes(2000));
}
