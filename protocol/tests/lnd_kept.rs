//! Tests of copies of messages that LNet keeps. Copies are found by the ID of the message, and one
//! peer cannot use the whole table.

mod lnd_net;

use lnd_net::{offer, pair, settle, Heap};
use protocol::lnd::{EagerCopies, LnetAction};
use protocol::Time;
use wire::ids::NodeId;

fn table(size: u16) -> EagerCopies<Heap, u64> {
    match EagerCopies::new(size) {
        Ok(kept) => kept,
        Err(e) => match e {},
    }
}

#[test]
fn a_message_that_has_the_place_of_one_that_is_kept_is_another_one() {
    let mut ends = pair();
    let mut kept = table(8);
    assert!(ends[0].submit(2, 1, 10, false, 10_000, 0));
    let first = offer(&settle(&mut ends, 0));
    let number = first.number();
    assert_eq!(number as u32, first.index());
    assert_eq!(kept.insert(number, NodeId(1), 1), Ok(()));
    assert!(ends[1].lnd.kept(first));
    // The next request uses the same table entry. LNet drops the first message by its old ID.
    assert!(ends[0].submit(2, 3, 10, false, 10_000, 0));
    let second = offer(&settle(&mut ends, 0));
    assert_eq!(second.index(), first.index());
    assert_ne!(second.number(), number);
    assert_eq!(kept.remove(second.number()), None);
    assert_eq!(kept.remove(number), Some(1));
    assert_eq!(kept.remove(number), None);
    assert!(kept.is_empty());
    assert_eq!(ends[1].lnd.receive(second, 10, Time(0)), LnetAction::Copy);
}

#[test]
fn peers_whose_messages_are_kept_leave_room_to_others() {
    let mut kept = table(1024);
    let mut number = 0;
    let mut counts = Vec::new();
    for node in 0..8 {
        let mut count = 0;
        while count < 1024 {
            number += 1;
            if kept.insert(number, NodeId(node), number).is_err() {
                break;
            }
            count += 1;
        }
        counts.push(count);
    }
    // The first nodes get a quarter of the table each, and each later node gets half of the free
    // entries.
    assert_eq!(counts, [256, 256, 256, 128, 64, 32, 16, 8]);
    assert_eq!(kept.len(), counts.iter().sum::<usize>());
    // After a copy is removed, its node can insert another copy, but a node with more copies
    // cannot.
    let last = number - 1;
    assert_eq!(kept.remove(last), Some(last));
    assert_eq!(kept.insert(5000, NodeId(0), 5), Err(5));
    assert_eq!(kept.insert(5000, NodeId(7), 5), Ok(()));
    assert_eq!(kept.insert(5001, NodeId(7), 6), Err(6));
    assert_eq!(kept.insert(5001, NodeId(8), 6), Ok(()));
    // In a small table, one node gets half of the entries.
    let mut few = table(16);
    let taken = (0..20).filter(|i| few.insert(*i, NodeId(1), *i).is_ok());
    assert_eq!(taken.count(), 8);
    // All inserted copies are found.
    for i in 0..20 {
        assert_eq!(few.remove(i).is_some(), i < 8);
    }
    assert!(few.is_empty());
    // A node without copies has no entry.
    for i in 0..100 {
        assert_eq!(few.insert(i, NodeId(i as u16), i), Ok(()));
        assert_eq!(few.remove(i), Some(i));
    }
}
