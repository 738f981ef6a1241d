// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the NLA allocator, compared with a model that marks every page. They also compare page
//! sizes with the translation of their entries.

use proptest::prelude::*;
use protocol::nic::nla::{
    cut, size_code, NlaRange, Placement, Space, SpaceError, Store, SIZE_CODES,
};
use std::collections::BTreeSet;
use wire::{
    atu::MAX_SIZE_CODE,
    ids::{BusAddr, Nla, Vpid},
};

#[derive(Default)]
struct List(Vec<NlaRange>, usize);

impl Store for List {
    fn ranges(&self) -> &[NlaRange] {
        &self.0
    }
    fn ranges_mut(&mut self) -> &mut [NlaRange] {
        &mut self.0
    }
    fn reserve(&mut self, total: usize) -> bool {
        self.1 = self.1.max(total);
        true
    }
    fn insert(&mut self, at: usize, range: NlaRange) {
        assert!(self.0.len() < self.1, "more ranges than reserved");
        self.0.insert(at, range);
    }
    fn remove(&mut self, at: usize) {
        self.0.remove(at);
    }
}

const FIRST: u64 = 3;
const PAGES: u64 = 200;

fn space() -> Space<List> {
    let bounds = NlaRange {
        first: FIRST,
        pages: PAGES,
    };
    Space::new(List::default(), bounds).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        pages: u64,
        align: u64,
        phase: u64,
        window: NlaRange,
    },
    Give(usize),
}

/// Generates the whole space in two of three cases, and any range otherwise.
fn window() -> impl Strategy<Value = NlaRange> {
    let all = NlaRange {
        first: FIRST,
        pages: PAGES,
    };
    prop_oneof![
        2 => Just(all),
        1 => (0..FIRST + PAGES, 0..PAGES).prop_map(|(first, pages)| NlaRange { first, pages }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u64..40, 0u32..6, any::<u64>(), window()).prop_map(
            |(pages, shift, phase, window)| Step::Take { pages, align: 1 << shift, phase, window }
        ),
        2 => any::<usize>().prop_map(Step::Give),
    ]
}

proptest! {
    #[test]
    fn never_overlaps_never_leaks(steps in proptest::collection::vec(step(), 1..200)) {
        let mut space = space();
        let mut used = BTreeSet::new();
        let mut live: Vec<NlaRange> = Vec::new();
        for step in steps {
            match step {
                Step::Take { pages, align, phase, window } => match space
                    .allocate_in(window, pages, align, phase)
                {
                    Ok(first) => {
                        prop_assert_eq!(first % align, phase % align);
                        prop_assert!(window.first <= first && first + pages <= window.end());
                        for page in first..first + pages {
                            prop_assert!((FIRST..FIRST + PAGES).contains(&page));
                            prop_assert!(used.insert(page), "page {} twice", page);
                        }
                        live.push(NlaRange { first, pages });
                    }
                    Err(e) => {
                        prop_assert_eq!(e, SpaceError::Full);
                        // The allocation must fail only if no suitable free range exists.
                        let fits = |first: u64| {
                            first % align == phase % align
                                && first >= window.first
                                && first + pages <= window.end().min(FIRST + PAGES)
                                && (first..first + pages).all(|p| !used.contains(&p))
                        };
                        prop_assert!(!(FIRST..FIRST + PAGES).any(fits));
                    }
                },
                Step::Give(n) if !live.is_empty() => {
                    let range = live.swap_remove(n % live.len());
                    for page in range.first..range.end() {
                        used.remove(&page);
                    }
                    prop_assert!(space.free(range));
                    prop_assert!(!space.free(range), "freed twice");
                }
                Step::Give(_) => {}
            }
            prop_assert_eq!(space.allocated(), live.len());
        }
        for range in live {
            prop_assert!(space.free(range));
        }
        // Adjacent free ranges were merged, and no page is lost.
        let all = NlaRange { first: FIRST, pages: PAGES };
        prop_assert_eq!(space.allocate_in(all, PAGES, 1, 0), Ok(FIRST));
    }

    #[test]
    fn pieces_translate_to_where_they_came_from(
        first in 0u64..(1 << 20),
        page in 0u64..(1 << 30),
        pages in 1u64..2000,
        aligned in any::<bool>(),
        largest in proptest::sample::select(&SIZE_CODES[..]),
    ) {
        let vpid = Vpid::new(7).unwrap();
        // In half of the cases, NLA and bus address are congruent, so that large pages occur.
        let first = if aligned { (first & !511) | (page & 511) } else { first };
        let addr = BusAddr(page * 4096);
        let mut at = first;
        for nlp in cut(first, addr, pages, largest) {
            prop_assert_eq!(nlp.first, at);
            prop_assert!(SIZE_CODES.contains(&nlp.code) && nlp.code <= largest);
            let entry = nlp.entry(vpid, true, false).unwrap();
            for p in at..at + (1 << nlp.code) {
                let nla = Nla(p * 4096 + 5);
                let to = entry.translate(nla, vpid, false).unwrap();
                prop_assert_eq!(to.0, (page + (p - first)) * 4096 + 5);
                prop_assert!(entry.translate(nla, vpid, true).is_err());
            }
            at += 1 << nlp.code;
        }
        prop_assert_eq!(at, first + pages);
    }

    #[test]
    fn placement_lets_the_largest_page_be_used(
        runs in proptest::collection::vec((0u64..(1 << 20), 1u64..1500), 1..6),
        gap in 0u64..1000,
        limit in proptest::sample::select(&SIZE_CODES[..]),
    ) {
        let runs: Vec<_> = runs.into_iter().map(|(p, n)| (BusAddr(p * 4096), n)).collect();
        let mut placement = Placement::new(limit);
        for (addr, pages) in &runs {
            placement.add(*addr, *pages);
        }
        prop_assert_eq!(placement.pages(), runs.iter().map(|(_, n)| n).sum::<u64>());
        let (align, phase) = placement.alignment();
        prop_assert!(align <= 1 << limit);
        prop_assert!(phase < align);
        let first = gap * align + phase;
        let mut at = first;
        let mut largest = 0;
        for (addr, pages) in runs {
            let sizes = cut(at, addr, pages, limit).map(|n| 1u64 << n.code);
            largest = sizes.max().unwrap().max(largest);
            at += pages;
        }
        prop_assert!(largest >= align);
    }
}

#[test]
fn every_page_size_is_found() {
    for (pages, code) in [(1, 0), (2, 1), (16, 4), (512, 9), (1 << 18, 18)] {
        let addr = BusAddr(4096 << 18);
        let wish = |largest| {
            let mut placement = Placement::new(largest);
            placement.add(addr, pages);
            placement.alignment()
        };
        assert_eq!(wish(MAX_SIZE_CODE), (1 << code, 0));
        let all: Vec<_> = cut(1 << 18, addr, pages, MAX_SIZE_CODE).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].code, code);
        assert_eq!(size_code(4 << code), Some(code));
        // Large pages are used only if they are allowed.
        assert_eq!(wish(0), (1, 0));
        assert!(cut(1 << 18, addr, pages, 0).all(|nlp| nlp.code == 0));
    }
}

#[test]
fn refuses_nonsense() {
    for kib in [0, 1, 5, 16, 1 << 19, u64::MAX] {
        assert_eq!(size_code(kib), None);
    }
    let mut space = space();
    assert_eq!(space.allocate(0, 1, 0), Err(SpaceError::Invalid));
    assert_eq!(space.allocate(1, 3, 0), Err(SpaceError::Invalid));
    assert_eq!(space.allocate(PAGES + 1, 1, 0), Err(SpaceError::Full));
    let first = space.allocate(4, 1, 0).unwrap();
    for range in [
        NlaRange { first, pages: 0 },
        NlaRange { first: 0, pages: 4 },
        NlaRange { first, pages: 5 },
        NlaRange {
            first: FIRST + PAGES - 1,
            pages: 2,
        },
    ] {
        assert!(!space.free(range), "{range:?}");
    }
    assert!(space.free(NlaRange { first, pages: 4 }));
}
