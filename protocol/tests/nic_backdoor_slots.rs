// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the backdoor registry, compared with a model that stores all late answers.

use proptest::prelude::*;
use protocol::nic::backdoor_slots::{BackdoorSlots, Claim};
use protocol::Time;
use std::collections::HashMap;
use wire::ids::NodeId;

const LATE: u64 = 60;

/// Nodes that never answer leave late answers in every slot. Another node can still claim a
/// backdoor after the waiting time. A caller that claims a replaced backdoor again must empty its
/// FIFO first.
#[test]
fn silent_nodes_do_not_keep_the_others_out() {
    let mut slots = BackdoorSlots::<64>::new(LATE);
    for n in 0..64 {
        assert_eq!(slots.claim(NodeId(n), Time(n.into())), Claim::Clean);
        // A backdoor has one owner at a time.
        assert_eq!(slots.claim(NodeId(n), Time(n.into())), Claim::No);
        slots.release(NodeId(n), true, Time(n.into()));
    }
    let other = NodeId(1000);
    assert_eq!(slots.claim(other, Time(LATE - 1)), Claim::No);
    assert_eq!(slots.claim(other, Time(LATE)), Claim::Clean);
    slots.release(other, false, Time(LATE));
    // The slot of node 0 was replaced, and the slot of node 1 still exists.
    for n in [0, 1] {
        assert_eq!(slots.claim(NodeId(n), Time(LATE + 1)), Claim::Dirty);
        slots.release(NodeId(n), false, Time(LATE + 1));
    }
    // After the replacement, every node without a slot counts as dirty.
    assert_eq!(slots.claim(other, Time(LATE + 1)), Claim::Dirty);
}

#[test]
fn what_is_used_is_not_taken_away() {
    let mut slots = BackdoorSlots::<2>::new(LATE);
    for n in 0..2 {
        assert_eq!(slots.claim(NodeId(n), Time(0)), Claim::Clean);
    }
    assert_eq!(slots.claim(NodeId(2), Time(1000)), Claim::No);
    slots.release(NodeId(1), false, Time(1000));
    assert_eq!(slots.claim(NodeId(2), Time(1000)), Claim::Clean);
    // A release by a node without a slot has no effect.
    slots.release(NodeId(7), true, Time(1000));
    assert_eq!(slots.claim(NodeId(3), Time(1000)), Claim::No);
}

proptest! {
    /// No two callers own the same backdoor, and no caller gets a backdoor for which an answer may
    /// still arrive. `Claim::Dirty` is returned whenever a late answer may be in the FIFO.
    #[test]
    fn no_answer_is_taken_for_that_of_another(
        steps in prop::collection::vec((0u16..9, 0u64..40, any::<bool>()), 1..400),
    ) {
        let mut slots = BackdoorSlots::<4>::new(LATE);
        let (mut now, mut busy) = (0, Vec::new());
        let mut left: HashMap<u16, u64> = HashMap::new();
        for (n, passed, dirty) in steps {
            now += passed;
            if let Some(at) = busy.iter().position(|b| *b == n) {
                prop_assert_eq!(slots.claim(NodeId(n), Time(now)), Claim::No);
                busy.remove(at);
                slots.release(NodeId(n), dirty, Time(now));
                if dirty {
                    left.insert(n, now);
                }
                continue;
            }
            let over = left.get(&n).is_none_or(|since| now - since >= LATE);
            match slots.claim(NodeId(n), Time(now)) {
                // A claim fails if all four slots are in use or in their waiting time.
                Claim::No => prop_assert!(
                    !over || busy.len() + left.values().filter(|s| now - **s < LATE).count() >= 4
                ),
                claim => {
                    prop_assert!(over);
                    prop_assert!(claim == Claim::Dirty || !left.contains_key(&n));
                    left.remove(&n);
                    busy.push(n);
                }
            }
        }
    }
}
