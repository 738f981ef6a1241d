//! Whether memory of a node grows with what is done again and again.

use super::node::{value, Node};
use crate::cluster::finds_leaks;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;

/// Makes the kernel give back what it only keeps at hand, before memory in use is measured: page cache, objects that are free but in a
/// list of a processor, free pages in such lists. KASAN of a debug kernel keeps freed objects too, until their cache is shrunk.
pub const SETTLE: &str = "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; \
     for c in /sys/kernel/slab/*/shrink; do echo 1 >$c; done 2>/dev/null; echo 1 >/proc/sys/vm/compact_memory";

/// Freed in batches, when enough of them have come together.
const LAZY: &[&str] = &["vmap_area"];
/// Parts after which nothing may be left that looks like a leak. What commands leave in lists comes and goes: what grew by chance in some
/// parts shrinks in others, while a leak grows on.
const PARTS: usize = 6;
/// Objects of a slab by which it may grow however little is done; as many as fill two of its slabs, which processors keep as if they were in
/// use, but not more than the latter.
const OBJECTS: (u64, u64) = (8, 40);
/// Of three in four cycles: the rest may be hidden by what shrank meanwhile.
const ENOUGH: (u64, u64) = (3, 4);
/// KiB of a page, one of which in each cycle is a leak.
const PAGE_KIB: u64 = 4;

/// Growth that [`Usage::not_grown`] lets pass: objects per slab, KiB.
const ONCE: (u64, u64) = (1000, 4096);

/// What is in use on a node.
#[derive(Debug, Clone)]
pub struct Usage {
    /// Objects by cache, without those that the kernel frees when it wants memory; how many one slab has.
    slabs: BTreeMap<String, (u64, u64)>,
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
             awk 'NR > 2 {{print \"slab\", $1, $2, $5}}' /proc/slabinfo; cat /proc/meminfo; grep nr_foll_pin /proc/vmstat; \
             awk '$1 == \"count:\" {{n += $2}} END {{print \"ProcessorsFree:\", n * {PAGE_KIB}}}' /proc/zoneinfo; \
             echo ports $(cat /sys/kernel/debug/extoll-*/ports 2>/dev/null | grep -c ' vpid ')"
        ))?;
        Self::parse(&text).with_context(|| text.clone())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut slabs = BTreeMap::new();
        for line in text.lines().filter_map(|l| l.strip_prefix("slab ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, count, in_slab] = words[..] else {
                bail!("not a cache: {line}")
            };
            slabs.insert(name.to_owned(), (count.parse()?, in_slab.parse()?));
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
            // Free pages that a processor keeps for itself: several MiB, now here and now there.
            "ProcessorsFree",
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
        after.objects(slab).saturating_sub(self.objects(slab))
    }

    fn objects(&self, slab: &str) -> u64 {
        self.slabs.get(slab).map_or(0, |(count, _)| *count)
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

/// Runs `part`, which does something `cycles` times, twice, and again for as long as something looks as if it grew by an object or a page
/// per cycle; fails if that still is so in the end. Do everything once before, so that caches are filled. A kernel that finds leaks itself
/// keeps account of all memory in memory; there only ports and pinned pages are looked at.
pub fn watch(node: Node<'_>, cycles: u32, mut part: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut seen = vec![Usage::of(node)?];
    if finds_leaks() {
        part(cycles)?;
        return Usage::of(node).and_then(|after| seen[0].ports_are_closed(&after));
    }
    loop {
        part(cycles)?;
        seen.push(Usage::of(node)?);
        if let [.., before, after] = &seen[..] {
            before.ports_are_closed(after)?;
        }
        let parts = seen.len() - 1;
        let suspects = growth(&seen, cycles.into());
        if parts >= 2 && suspects.is_empty() {
            return Ok(());
        }
        if parts >= 2 {
            println!("        {parts} parts of {cycles} cycles: {suspects:?}");
        }
        ensure!(
            parts < PARTS,
            "memory grows, by cycles of {cycles}: {suspects:?}"
        );
    }
}

/// What grew from each of these to the next as a leak in each cycle does, with the steps: the largest one, which may be that of a cache,
/// apart.
fn growth(seen: &[Usage], cycles: u64) -> Vec<String> {
    let steps = |count: &dyn Fn(&Usage) -> u64| -> (Vec<i64>, bool) {
        let counts: Vec<i64> = seen.iter().map(|u| count(u) as i64).collect();
        let steps: Vec<i64> = counts.windows(2).map(|w| w[1] - w[0]).collect();
        // In the end: never again as low as it was in the first half. Slabs that processors keep come and go, a leak stays.
        let (first, last) = counts[1..].split_at((counts.len() - 1) / 2);
        let stays = steps.len() < PARTS || last.iter().min() > first.iter().max();
        (steps, stays)
    };
    let leaks = |steps: &[i64], unit: u64, least: u64| {
        let rest = steps.iter().sum::<i64>() - steps.iter().max().copied().unwrap_or(0);
        let all = cycles * steps.len().saturating_sub(1) as u64 * unit;
        rest >= (all * ENOUGH.0).div_ceil(ENOUGH.1).max(least) as i64
    };
    let mut found = vec![];
    let slabs = seen.last().map(|u| &u.slabs);
    for (slab, (_, in_slab)) in slabs.into_iter().flatten() {
        let (steps, stays) = steps(&|u| u.objects(slab));
        // A few parts may be too short for the least number to mean anything.
        let least = match steps.len() {
            PARTS.. => (2 * in_slab).clamp(OBJECTS.0, OBJECTS.1),
            _ => 1,
        };
        if stays && leaks(&steps, 1, least) {
            found.push(format!("{slab} {steps:?}"));
        }
    }
    let (pages, stays) = steps(&|u| u.pages);
    if stays && leaks(&pages, PAGE_KIB, PAGE_KIB) {
        found.push(format!("KiB in pages {pages:?}"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read() -> Result<()> {
        let text = "reclaimed dentry\nslab dentry 5 21\nslab kmalloc-64 7 64\nMemTotal: 1000 kB\nMemFree: 90 kB\nProcessorsFree: 10\nBuffers: 1 kB\n\
            Cached: 2 kB\nSwapCached: 0 kB\nAnonPages: 3 kB\nSlab: 4 kB\nPageTables: 5 kB\nKernelStack: 6 kB\nPercpu: 7 kB\n\
            nr_foll_pin_acquired 9\nnr_foll_pin_released 9\nports 2\n";
        let usage = Usage::parse(text)?;
        assert_eq!(usage.slabs.len(), 1);
        assert_eq!(
            (usage.slabs["kmalloc-64"], usage.pages, usage.pinned),
            ((7, 64), 872, 0)
        );
        assert!(Usage::parse("MemTotal: 1 kB").is_err());
        Ok(())
    }

    /// What looks like a leak in parts of 8 cycles, from the numbers of objects and KiB.
    fn leaks(seen: &[(u64, u64)]) -> usize {
        let usage = |(objects, pages): &(u64, u64)| Usage {
            slabs: BTreeMap::from([("kmalloc-64".into(), (*objects, 64))]),
            pages: *pages,
            ports: 2,
            pinned: 0,
        };
        growth(&seen.iter().map(usage).collect::<Vec<_>>(), 8).len()
    }

    #[test]
    fn one_object_or_page_per_cycle_is_a_leak() {
        let parts = |objects: u64, kib: u64| -> Vec<(u64, u64)> {
            (0..=PARTS as u64)
                .map(|n| (100 + n * objects, 5000 + n * kib))
                .collect()
        };
        for n in 2..=PARTS {
            assert_eq!(leaks(&parts(8, 0)[..=n]), 1, "an object");
            assert_eq!(leaks(&parts(0, 32)[..=n]), 1, "a page");
        }
        assert_eq!(leaks(&parts(3, 12)), 0);
        // Hidden for once by what shrank meanwhile.
        let mut seen = parts(10, 32);
        seen[3] = (seen[3].0 - 8, seen[3].1 - 30);
        assert_eq!(leaks(&seen), 2);
    }

    #[test]
    fn caches_and_chance_are_no_leaks() {
        assert_eq!(leaks(&[(10, 500), (90, 9000), (90, 9000)]), 0);
        assert_eq!(leaks(&[(10, 500), (10, 500), (90, 9000)]), 0);
        let ups_and_downs = [0, 90, 160, 20, 130, 60, 100];
        assert_eq!(leaks(&ups_and_downs.map(|n| (10 + n, 500 + 10 * n))), 0);
        // Looks like one until the third part.
        assert!(leaks(&[(10, 500), (60, 500), (110, 500)]) > 0);
        assert_eq!(leaks(&[(10, 500), (60, 500), (110, 500), (70, 500)]), 0);
        // As processors keep the objects of a slab and give them back.
        let kept = [0, 16, 33, 27, 43, 23, 35];
        assert_eq!(leaks(&kept.map(|n| (100 + n, 500))), 0);
        let two_slabs = [0, 64, 128, 64, 64, 64, 128];
        assert_eq!(leaks(&two_slabs.map(|n| (100 + n, 500))), 0);
    }
}
