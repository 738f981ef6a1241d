//! Test of the table of fixed size.

mod heap;

use heap::Heap;
use proptest::prelude::*;
use protocol::Slots;
use std::collections::HashSet;

proptest! {
    /// The table is a map that keeps the order of insertion.
    #[test]
    fn slots_are_an_ordered_map(ops in prop::collection::vec((0u64..48, any::<bool>()), 0..400)) {
        let mut s: Slots<Heap, u64> = Slots::new(24).unwrap();
        let mut order: Vec<u64> = Vec::new();
        for (key, pop) in ops {
            // Equal low bits produce hash chains.
            let key = key << 40;
            match order.iter().position(|k| *k == key) {
                Some(i) => {
                    order.remove(i);
                    prop_assert_eq!(s.remove(key), Some(key));
                }
                None if order.len() == 24 => prop_assert_eq!(s.insert(key, 1), Err(1)),
                None => {
                    order.push(key);
                    prop_assert_eq!(s.insert(key, key), Ok(()));
                    prop_assert_eq!(s.insert(key, key), Err(key));
                }
            }
            if pop && !order.is_empty() {
                let oldest = order.remove(0);
                prop_assert_eq!(s.pop_oldest(), Some((oldest, oldest)));
            }
            let mut seen = Vec::new();
            s.for_each_mut(|k, _| {
                seen.push(k);
                true
            });
            prop_assert_eq!(&seen, &order);
            for pair in order.windows(2) {
                prop_assert_eq!(s.younger(pair[0]), Some(pair[1]));
            }
            let unique: HashSet<_> = seen.iter().collect();
            prop_assert_eq!((s.len(), s.room()), (unique.len(), 24 - order.len()));
        }
    }
}
