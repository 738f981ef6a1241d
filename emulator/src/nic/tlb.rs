//! Translation cache of the ATU (G17).

use super::{AtuTlb, NicConfig};
use lru::LruCache;
use wire::atu::{GatEntry, GAT_ENTRIES};

/// Address range of an entry: a page of 4 KiB << `size`, numbered from NLA 0 in units of that size.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Tag {
    size: u8,
    page: u32,
}

/// Cached translations, each as its GATe. An entry is removed only by a flush or reset, or as the
/// least recently used one when the cache is full.
pub(super) struct Tlb {
    mode: AtuTlb,
    limit: usize,
    entries: LruCache<Tag, GatEntry>,
    /// Set of the size codes in use, one bit each.
    sizes: u32,
}

impl Tlb {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            mode: cfg.atu_tlb,
            limit: cfg.atu_tlb_entries.get() as usize,
            // `LruCache::new` would allocate memory for the limit.
            entries: LruCache::unbounded(),
            sizes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn sizes(&self) -> impl Iterator<Item = u8> {
        let sizes = self.sizes;
        (0..32).filter(move |size| sizes & (1 << size) != 0)
    }

    /// Returns the entry of a 4 KiB page; `page` is its NLA divided by 4096.
    pub(super) fn get(&mut self, page: u32) -> Option<GatEntry> {
        self.sizes().find_map(|size| {
            let page = page >> size;
            self.entries.get(&Tag { size, page }).copied()
        })
    }

    /// Caches the entry of a 4 KiB page.
    pub(super) fn put(&mut self, page: u32, entry: GatEntry) {
        let size = match self.mode {
            AtuTlb::Off => return,
            AtuTlb::On => 0,
            AtuTlb::WholePages => entry.size(),
        };
        self.sizes |= 1 << size;
        let page = page >> size;
        self.entries.put(Tag { size, page }, entry);
        if self.entries.len() > self.limit {
            self.entries.pop_lru();
        }
    }

    /// Removes the translations of `count` entries of a GAT, at least one, and returns their
    /// number. The range does not extend into the next GAT.
    pub(super) fn flush(&mut self, gat: u16, entry: u32, count: u32) -> usize {
        let before = self.len();
        let base = u32::from(gat) * GAT_ENTRIES;
        let last = entry.saturating_add(count - 1).min(GAT_ENTRIES - 1);
        for size in self.sizes() {
            for page in (base + entry) >> size..=(base + last) >> size {
                self.entries.pop(&Tag { size, page });
            }
        }
        before - self.len()
    }

    /// Removes all translations of a VPID and returns their number.
    pub(super) fn flush_vpid(&mut self, vpid: u16) -> usize {
        let of_vpid = |(tag, e): (&Tag, &GatEntry)| (e.vpid() == vpid).then_some(*tag);
        let gone: Vec<Tag> = self.entries.iter().filter_map(of_vpid).collect();
        for tag in &gone {
            self.entries.pop(tag);
        }
        gone.len()
    }
}
