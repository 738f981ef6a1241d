// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the slot allocator, compared with a list of the owners of slots.

use proptest::prelude::*;
use protocol::mem::runs::{words, Align, Run, Slot, SlotAllocator};

type Kept = SlotAllocator<u32, Vec<Slot<u32>>, Vec<u64>>;

fn runs(slots: usize) -> Kept {
    SlotAllocator::new(vec![Slot::FREE; slots], vec![0; words(slots)]).unwrap()
}

fn even() -> Align {
    Align {
        modulus: 2,
        remainder: 0,
    }
}

#[test]
fn memory_has_to_fit() {
    let made = |slots: usize, bits: usize| {
        SlotAllocator::<u32, _, _>::new(vec![Slot::FREE; slots], vec![0u64; bits]).is_some()
    };
    assert!(made(1, 1) && made(64, 1) && made(65, 2));
    assert!(!made(0, 0) && !made(64, 2) && !made(65, 1));
}

#[test]
fn lowest_first_and_none_beyond_the_end() {
    let mut r = runs(70);
    assert_eq!(r.allocate(69, Align::ANY, 1), Some(0));
    assert_eq!(r.allocate(2, Align::ANY, 2), None);
    assert_eq!(r.allocate(1, Align::ANY, 2), Some(69));
    assert_eq!(r.allocate(1, Align::ANY, 3), None);
    assert_eq!((r.used(), r.max_used(), r.runs()), (70, 70, 2));
}

#[test]
fn alignment_is_kept() {
    let mut r = runs(128);
    assert_eq!(r.allocate(1, even(), 1), Some(0));
    assert_eq!(r.allocate(1, even(), 2), Some(2));
    let odd = Align {
        modulus: 2,
        remainder: 1,
    };
    assert_eq!(r.allocate(3, odd, 3), Some(3));
    // Slot 1 is free and satisfies the alignment.
    assert_eq!(r.allocate(1, odd, 4), Some(1));
    let far = Align {
        modulus: 64,
        remainder: 60,
    };
    assert_eq!(r.allocate(8, far, 5), Some(60));
    let none = Align {
        modulus: 3,
        remainder: 0,
    };
    assert_eq!(r.allocate(1, none, 6), None);
    let beyond = Align {
        modulus: 1 << 30,
        remainder: 1 << 29,
    };
    assert_eq!(r.allocate(1, beyond, 6), None);
    assert_eq!(r.allocate(0, Align::ANY, 6), None);
    assert_eq!(r.allocate(usize::MAX, Align::ANY, 6), None);
}

#[test]
fn closed_runs_are_neither_found_nor_given_out() {
    let mut r = runs(4);
    assert_eq!(r.allocate(4, Align::ANY, 7), Some(0));
    let run = Run {
        first: 0,
        slots: 4,
        owner: 7,
    };
    assert_eq!(r.find(3), Some(run));
    assert!(!r.free(0), "it is not closed");
    assert_eq!(r.close(2), Some(run));
    assert_eq!((r.find(0), r.close(2)), (None, None));
    assert_eq!(r.allocate(1, Align::ANY, 8), None);
    assert!(!r.free(1), "not the first");
    assert!(r.free(0));
    assert!(!r.free(0), "twice");
    assert_eq!((r.used(), r.max_used(), r.runs()), (0, 4, 0));
    assert_eq!(r.allocate(1, Align::ANY, 8), Some(0));
    assert_eq!(
        (r.find(1), r.find(4), r.find(usize::MAX)),
        (None, None, None)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, u32, usize),
    Close(usize),
    Free(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1usize..20, 0u32..4, 0usize..16).prop_map(|(n, m, r)| Step::Take(n, m, r)),
        1 => (1usize..200, 0u32..8, any::<usize>()).prop_map(|(n, m, r)| Step::Take(n, m, r)),
        2 => (0usize..220).prop_map(Step::Close),
        2 => (0usize..220).prop_map(Step::Free),
    ];
    proptest::collection::vec(step, 1..200)
}

/// Run in the model.
#[derive(Clone, Copy)]
struct Known {
    first: usize,
    slots: usize,
    owner: u32,
    closed: bool,
}

proptest! {
    #[test]
    fn as_a_list_has_it(len in 1usize..200, steps in steps()) {
        let mut r = runs(len);
        let mut known: Vec<Known> = Vec::new();
        let mut most = 0;
        for (owner, step) in (0u32..).zip(steps) {
            let is_free = |known: &[Known], s: usize| {
                !known.iter().any(|k| (k.first..k.first + k.slots).contains(&s))
            };
            match step {
                Step::Take(slots, modulus, remainder) => {
                    let align = Align { modulus: 1 << modulus, remainder };
                    let fits = |at: &usize| {
                        at % align.modulus == remainder % align.modulus
                            && at + slots <= len
                            && (*at..at + slots).all(|s| is_free(&known, s))
                    };
                    let lowest = (0..len).find(fits);
                    prop_assert_eq!(r.allocate(slots, align, owner), lowest);
                    if let Some(first) = lowest {
                        known.push(Known { first, slots, owner, closed: false });
                    }
                }
                Step::Close(slot) => {
                    let open = known
                        .iter_mut()
                        .find(|k| !k.closed && (k.first..k.first + k.slots).contains(&slot));
                    let run = open.map(|k| {
                        k.closed = true;
                        Run { first: k.first, slots: k.slots, owner: k.owner }
                    });
                    prop_assert_eq!(r.close(slot), run);
                }
                Step::Free(first) => {
                    let at = known.iter().position(|k| k.closed && k.first == first);
                    prop_assert_eq!(r.free(first), at.is_some());
                    if let Some(at) = at {
                        known.remove(at);
                    }
                }
            }
            let used: usize = known.iter().map(|k| k.slots).sum();
            most = most.max(used);
            prop_assert_eq!((r.used(), r.max_used(), r.runs()), (used, most, known.len()));
            for s in 0..len {
                let mut open = known.iter().filter(|k| !k.closed);
                let k = open.find(|k| (k.first..k.first + k.slots).contains(&s));
                let run = k.map(|k| Run { first: k.first, slots: k.slots, owner: k.owner });
                prop_assert_eq!(r.find(s), run);
            }
        }
    }
}
