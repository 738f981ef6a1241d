// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of the count of a user's address tables, compared with a model that recounts the tables
//! after each step.

use proptest::prelude::*;
use protocol::nic::nla::NlaRange;
use protocol::nic::table_use::{pages_in_table, tables_of, TableUse, SPAN};
use std::collections::BTreeSet;

const TABLES: u64 = 12;

fn range() -> impl Strategy<Value = NlaRange> {
    // Generate short and long ranges, and ranges that begin or end at the boundary of a table.
    let first = prop_oneof![
        0..TABLES * SPAN,
        (0..TABLES, 0u64..3).prop_map(|(t, n)| (t * SPAN + n).saturating_sub(1)),
    ];
    let pages = prop_oneof![1u64..4, SPAN - 2..SPAN + 3, 1..3 * SPAN];
    (first, pages).prop_map(|(first, pages)| NlaRange {
        first,
        pages: pages.min(TABLES * SPAN - first).max(1),
    })
}

fn touched(ranges: &[NlaRange]) -> u64 {
    let all = ranges.iter().flat_map(|r| tables_of(*r));
    all.collect::<BTreeSet<_>>().len() as u64
}

proptest! {
    #[test]
    fn shares_add_up(range in range()) {
        let parts: Vec<_> = tables_of(range).map(|i| pages_in_table(range, i)).collect();
        prop_assert!(parts.iter().all(|n| (1..=SPAN).contains(n)));
        prop_assert_eq!(parts.iter().sum::<u64>(), range.pages);
    }

    #[test]
    fn counts_what_is_there(
        ops in proptest::collection::vec((range(), any::<usize>(), any::<bool>()), 1..60),
        spare in 0u32..6,
    ) {
        let mut tables = TableUse::new(vec![0; TABLES as usize]);
        let mut live: Vec<NlaRange> = Vec::new();
        for (range, n, give) in ops {
            if give && !live.is_empty() {
                let range = live.swap_remove(n % live.len());
                tables.remove(range);
            } else {
                let mut with = live.clone();
                with.push(range);
                let pages: u64 = with.iter().map(|r| r.pages).sum();
                let may = touched(&with) <= u64::from(spare) + pages / SPAN * 2;
                prop_assert_eq!(tables.may_add(range, spare), may);
                tables.add(range);
                live = with;
            }
            prop_assert_eq!(tables.tables(), touched(&live));
            prop_assert_eq!(tables.windows().count() as u64, touched(&live));
            prop_assert_eq!(tables.pages(), live.iter().map(|r| r.pages).sum::<u64>());
        }
    }
}

/// A user that repeatedly fills a GiB and keeps only one page of it reaches the limit. A user that
/// keeps all pages does not reach the limit.
#[test]
fn sparse_memory_is_bounded_and_dense_memory_is_not() {
    const SPARE: u32 = 3;
    let page = |table: u64| NlaRange {
        first: table * SPAN + 5,
        pages: 1,
    };
    let mut sparse = TableUse::new(vec![0; TABLES as usize]);
    let had = (0..TABLES).take_while(|t| {
        let may = sparse.may_add(page(*t), SPARE);
        if may {
            sparse.add(page(*t));
        }
        may
    });
    assert_eq!(had.count(), SPARE as usize);
    // Ranges in tables that the user already has are still permitted.
    assert!(sparse.may_add(
        NlaRange {
            first: 9,
            pages: 100
        },
        SPARE
    ));
    let mut dense = TableUse::new(vec![0; TABLES as usize]);
    for table in 0..TABLES {
        let range = NlaRange {
            first: table * SPAN,
            pages: SPAN,
        };
        assert!(dense.may_add(range, SPARE));
        dense.add(range);
    }
}
