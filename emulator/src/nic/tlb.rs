//! Translation cache of the ATU (G17).

use super::{AtuTlb, NicConfig};
use lru::LruCache;
use wire::atu::{GatEntry, GAT_ENTRIES};

/// Address range of a cached translation: a page of 4 KiB << `size`. `page` counts pages of this
/// size from NLA 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Tag {
    size: u8,
    page: u32,
}

/// Cached translations, each with its GATe. A flush or a reset removes entries. When the cache is
/// full, a new entry replaces the least recently used entry.
pub(super) struct Tlb {
    mode: AtuTlb,
    limit: usize,
    entries: LruCache<Tag, GatEntry>,
    /// Set of the size codes of the entries, one bit per size code.
    sizes: u32,
}

impl Tlb {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            mode: cfg.atu_tlb,
            limit: cfg.atu_tlb_entries.get() as usize,
            // `LruCache::new` would allocate memory for the whole capacity.
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

    /// Returns the GATe for a 4 KiB page. `page` is the NLA of the page divided by 4096.
    pub(super) fn get(&mut self, page: u32) -> Option<GatEntry> {
        self.sizes().find_map(|size| {
            let page = page >> size;
            self.entries.get(&Tag { size, page }).copied()
        })
    }

    /// Caches the GATe for a 4 KiB page.
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

    /// Removes the translations of `count` entries of a GAT, at least of one entry. Returns the
    /// number of removed translations. The range does not extend into the next GAT.
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

    /// Removes all translations of a VPID. Returns the number of removed translations.
    pub(super) fn flush_vpid(&mut self, vpid: u16) -> usize {
        let of_vpid = |(tag, e): (&Tag, &GatEntry)| (e.vpid() == vpid).then_some(*tag);
        let gone: Vec<Tag> = self.entries.iter().filter_map(of_vpid).collect();
        for tag in &gone {
            self.entries.pop(tag);
        }
        gone.len()
    }
}
