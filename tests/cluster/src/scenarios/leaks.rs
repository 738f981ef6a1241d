//! Whether memory of a node grows with what is done again and again.

use super::node::{value, Node};
use crate::cluster::finds_leaks;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;

/// Makes the kernel give back what it only keeps at hand, before memory in use is measured: page cache, objects that are free but in a
/// list of a processor, free pages in such lists. KASAN of a debug kernel keeps freed objects too, until their cache is shrunk.
pub const SETTLE: &str = "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; \
     for c in /sys/kernel/slab/*/shrink; do echo 1 >$c; done 2>/dev/null; echo 1 >/proc/sys/vm/compact_memory";

/// Freed in batches, when enough of them have come together.
const LAZY: &[&str] = &["vmap_area"];
/// Objects of a slab by which it may grow in a part whatever happens in it. What commands leave in lists comes and goes, so it does
/// not grow by this much in both parts.
const OBJECTS: u64 = 32;
/// The same of pages, in KiB.
const KIB: u64 = 1536;
/// Pages of less than one per cycle are not looked for.
const KIB_PER_CYCLE: u64 = 2;

/// Growth that [`Usage::not_grown`] lets pass: objects per slab, KiB.
const ONCE: (u64, u64) = (1000, 4096);

/// What is in use on a node.
#[derive(Debug, Clone)]
pub struct Usage {
    /// Objects by slab, without those that the kernel frees when it wants memory.
    slabs: BTreeMap<String, u64>,
    /// KiB in pages that no statistics of the kernel account for: those that drivers took.
    pages: u64,
    /// Open ports, each of which holds a VPID.
    ports: u64,
    /// Pages pinned for long since the boot, less those given back.
    pinned: u64,
}

impl Usage {
    /// What is in use now.
    pub fn of(node: Node<'_>) -> Result<Self> {
        let text = node.ok(&format!(
            "{SETTLE}; grep -l 1 /sys/kernel/slab/*/reclaim_account | awk -F/ '{{print \"reclaimed\", $5}}'; \
             awk 'NR > 2 {{print \"slab\", $1, $2}}' /proc/slabinfo; cat /proc/meminfo; grep nr_foll_pin /proc/vmstat; \
             echo ports $(cat /sys/kernel/debug/extoll-*/ports 2>/dev/null | grep -c ' vpid ')"
        ))?;
        Self::parse(&text).with_context(|| text.clone())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut slabs = BTreeMap::new();
        for line in text.lines().filter_map(|l| l.strip_prefix("slab ")) {
            let (name, count) = line.split_once(' ').context("no count")?;
            slabs.insert(name.to_owned(), count.parse()?);
        }
        ensure!(!slabs.is_empty(), "no slabs");
        for name in text.lines().filter_map(|l| l.strip_prefix("reclaimed ")) {
            slabs.remove(name);
        }
        slabs.retain(|name, _| !LAZY.contains(&name.as_str()));
        let get = |name: &str| value(text, name).with_context(|| format!("no {name}"));
        let mut pages = get("MemTotal")?;
        for known in [
            "MemFree",
            "Buffers",
            "Cached",
            "SwapCached",
            "AnonPages",
            "Slab",
            "PageTables",
            "KernelStack",
            "Percpu",
        ] {
            pages = pages.saturating_sub(get(known)?);
        }
        let pinned = get("nr_foll_pin_acquired")?.wrapping_sub(get("nr_foll_pin_released")?);
        Ok(Self {
            slabs,
            pages,
            ports: get("ports")?,
            pinned,
        })
    }

    /// Objects by which a slab grew until `after`.
    fn grown(&self, after: &Self, slab: &str) -> u64 {
        let count = |usage: &Self| usage.slabs.get(slab).copied().unwrap_or(0);
        count(after).saturating_sub(count(self))
    }

    fn ports_are_closed(&self, after: &Self) -> Result<()> {
        ensure!(
            after.ports == self.ports,
            "{} ports are open instead of {}",
            after.ports,
            self.ports
        );
        ensure!(
            after.pinned == self.pinned,
            "pages are pinned: {} -> {}",
            self.pinned,
            after.pinned
        );
        Ok(())
    }

    /// Fails if more is in use after something was done, more than a thousand times; `held` KiB are known to be kept for a while.
    pub fn not_grown(&self, after: &Self, held: u64) -> Result<()> {
        self.ports_are_closed(after)?;
        if finds_leaks() {
            return Ok(());
        }
        for slab in after.slabs.keys() {
            let n = self.grown(after, slab);
            ensure!(n < ONCE.0, "{n} more objects of {slab}");
        }
        let kib = after.pages.saturating_sub(self.pages);
        ensure!(
            kib < ONCE.1 + held,
            "{kib} KiB more in pages, {held} of them held"
        );
        Ok(())
    }
}

/// Runs `part`, which does something `cycles` times, twice, and fails if memory grows with it: what leaks in each cycle grows in each
/// part, caches don't. Do everything once before, so that caches are filled. A kernel that finds leaks itself keeps account of all
/// memory in memory; there only ports and pinned pages are looked at.
pub fn watch(node: Node<'_>, cycles: u32, mut part: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut seen = vec![Usage::of(node)?];
    if finds_leaks() {
        part(cycles)?;
        return Usage::of(node).and_then(|after| seen[0].ports_are_closed(&after));
    }
    for _ in 0..2 {
        part(cycles)?;
        seen.push(Usage::of(node)?);
    }
    growth(&seen, cycles.into())
}

/// Fails if something grew between each two of these.
fn growth(seen: &[Usage], cycles: u64) -> Result<()> {
    let parts = || seen.iter().zip(seen.iter().skip(1));
    for (before, after) in parts() {
        before.ports_are_closed(after)?;
    }
    let last = seen.last().context("nothing was measured")?;
    for slab in last.slabs.keys() {
        let least = parts().map(|(b, a)| b.grown(a, slab)).min().unwrap_or(0);
        ensure!(
            least <= OBJECTS + cycles,
            "{slab} grows: by {least} objects or more in {cycles} cycles"
        );
    }
    let pages = parts().map(|(b, a)| a.pages.saturating_sub(b.pages));
    let least = pages.min().unwrap_or(0);
    ensure!(
        least <= KIB + KIB_PER_CYCLE * cycles,
        "memory grows: by {least} KiB or more in {cycles} cycles"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read() -> Result<()> {
        let text = "reclaimed dentry\nslab dentry 5\nslab kmalloc-64 7\nMemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 1 kB\n\
            Cached: 2 kB\nSwapCached: 0 kB\nAnonPages: 3 kB\nSlab: 4 kB\nPageTables: 5 kB\nKernelStack: 6 kB\nPercpu: 7 kB\n\
            nr_foll_pin_acquired 9\nnr_foll_pin_released 9\nports 2\n";
        let usage = Usage::parse(text)?;
        assert_eq!(usage.slabs.len(), 1);
        assert_eq!(
            (usage.slabs["kmalloc-64"], usage.pages, usage.pinned),
            (7, 872, 0)
        );
        assert!(Usage::parse("MemTotal: 1 kB").is_err());
        Ok(())
    }

    #[test]
    fn what_grows_in_both_parts_leaks() {
        let is_fine = |seen: [(u64, u64); 3]| {
            let seen = seen.map(|(objects, pages)| Usage {
                slabs: BTreeMap::from([("kmalloc-64".into(), objects)]),
                pages,
                ports: 2,
                pinned: 0,
            });
            growth(&seen, 8).is_ok()
        };
        assert!(is_fine([(10, 500), (90, 9000), (90, 9000)]));
        assert!(is_fine([(10, 500), (10, 500), (90, 9000)]));
        assert!(!is_fine([(10, 500), (60, 500), (110, 500)]));
        assert!(!is_fine([(10, 500), (10, 2100), (10, 3700)]));
    }
}
