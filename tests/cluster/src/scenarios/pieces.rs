//! Memory in unaligned fragments, and handles that are dropped in atomic context. `extoll_bench`
//! tests `kernel_ext::mem` and `kernel_ext::work` with them.

use super::memory::{begin, end, expect, offer};
use super::node::node;
use super::on_pair;
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::Result;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("raw::memory_in_pieces", pieces),
        on_pair("raw::handles", handles),
    ]
}

/// Memory of unaligned fragments can be registered and transferred.
fn pieces(lab: &Lab) -> Result<()> {
    begin(lab)?;
    // The fragments of these kernel pages together hold the pattern.
    let there = offer(lab, "buffer", 8192, "rw", 2)?;
    let r = lab.raw(0, &format!("pieces {} seed=9", there.words))?;
    for (key, want) in [
        ("result", "ok"),
        ("pages", "3"),
        ("fragments", "2"),
        ("fragment0", "0 100 8092"),
        ("fragment1", "2 7 100"),
    ] {
        expect(&r, key, want)?;
    }
    expect(&lab.raw(1, "offered seed=9")?, "mismatch", "none")?;
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// Regions whose handles are dropped in atomic context are released.
fn handles(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let tables = node(lab, 0).atu("tables")?;
    for n in [1, 40u64] {
        let r = lab.raw(0, &format!("handles count={n}"))?;
        expect(&r, "alive", &n.to_string())?;
        lab.until("regions have ended", PATIENCE, |lab| {
            Ok(node(lab, 0).atu("regions")? == 0)
        })?;
    }
    lab.until("tables are released", PATIENCE, |lab| {
        Ok(node(lab, 0).atu("tables")? <= tables.max(1))
    })?;
    end(lab)
}
