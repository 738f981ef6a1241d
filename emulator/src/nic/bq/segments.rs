//! Segments of buffer queues: the descriptor page that lists the segments of a queue, and the
//! registers that follow the write pointer through the list (HW §7, G10).

use crate::env::Env;
use crate::nic::Nic;
use wire::bq::{DcqBase, DcqBaseWord, SegmentWord, WritePointers};
use wire::ids::Unit;

/// Segments of a queue, according to its descriptor page.
pub(super) struct Layout {
    /// Base address, first slot and end slot of each segment.
    pub(super) segments: Vec<(u64, u32, u32)>,
    /// Words of the descriptor page. Each segment has one word.
    words: Vec<u64>,
    /// Index of the segment that the last lookup returned.
    pub(super) current: usize,
}

impl Layout {
    /// Returns the index of the segment that contains slot `index`.
    fn segment(&self, index: u32) -> Option<usize> {
        let inside = |s: &(u64, u32, u32)| (s.1..s.2).contains(&index);
        if self.segments.get(self.current).is_some_and(inside) {
            return Some(self.current);
        }
        let k = self.segments.partition_point(|s| s.2 <= index);
        (k < self.segments.len()).then_some(k)
    }

    /// Returns the address of slot `index` in the current segment.
    fn slot(&self, index: u32, size: u32) -> Option<u64> {
        let &(base, first, _) = self.segments.get(self.current)?;
        base.checked_add(u64::from(index.checked_sub(first)?) * u64::from(size))
    }

    /// Returns the index of the segment that is `by` positions after segment `k`, cyclically.
    fn after(&self, k: usize, by: usize) -> usize {
        (k + by) % self.words.len().max(1)
    }

    /// Returns the values of `c_base_size_valid`, `n_base_size_valid` and `dcq_rp` while the chip
    /// writes to segment `k` (HW §7).
    fn registers(&self, k: usize) -> (u64, u64, u16) {
        let word = |k: usize| {
            let word = self.words.get(k).copied().unwrap_or(0);
            SegmentWord(word).with_valid(true).raw()
        };
        let next = self.after(k, 1);
        (word(k), word(next), self.after(k, 2) as u16)
    }
}

impl Nic {
    /// Stores the addresses of the next slots to write in `at`.
    pub(super) fn slot_addresses(
        &mut self,
        unit: Unit,
        vpid: u8,
        at: &mut [u64],
        env: &mut Env<'_>,
    ) -> Result<(), String> {
        if self.queue(unit, vpid).layout.is_none() {
            let layout = self.load_layout(unit, vpid, env)?;
            self.check_segments(unit, vpid, &layout, env);
            self.queue(unit, vpid).layout = Some(Box::new(layout));
        }
        let size = self.slot_code(unit).bytes();
        let q = self.queue(unit, vpid);
        let (lwp, total) = (u64::from(q.lwp), q.slots());
        for (i, at) in at.iter_mut().enumerate() {
            let index = ((lwp + i as u64) % total) as u32;
            let missing = || format!("segments end before slot {index}");
            let layout = self.queue(unit, vpid).layout.as_ref();
            let layout = layout.ok_or_else(missing)?;
            let segment = layout.segment(index).ok_or_else(missing)?;
            if segment != layout.current {
                self.enter_segment(unit, vpid, segment, env)?;
            }
            let layout = self.queue(unit, vpid).layout.as_ref();
            let slot = layout.and_then(|l| l.slot(index, size));
            *at = slot.ok_or_else(missing)?;
        }
        Ok(())
    }

    /// Checks that the registers of a new queue match its descriptor page. The chip starts from the
    /// registers and fetches later descriptors one by one. The chip's behaviour on a mismatch is
    /// unknown.
    fn check_segments(&mut self, unit: Unit, vpid: u8, layout: &Layout, env: &mut Env<'_>) {
        let q = self.queue(unit, vpid);
        let k = layout.segment(q.lwp).unwrap_or(0);
        let have = (q.current, q.next, WritePointers(q.wp_dcq_rp).dcq_rp());
        let want = layout.registers(k);
        // Software that moves the write pointer of a new queue may leave the other registers at the
        // first segment.
        if have != want && have != layout.registers(0) {
            self.bad_setup(env, || {
                format!("{unit} queue of VPID {vpid}: current segment, next segment and dcq_rp are {have:x?}; the descriptor page requires {want:x?}")
            });
        }
    }

    /// Makes segment `k` the current segment, and fetches the descriptor of the segment after it.
    fn enter_segment(
        &mut self,
        unit: Unit,
        vpid: u8,
        k: usize,
        env: &mut Env<'_>,
    ) -> Result<(), String> {
        let q = self.queue(unit, vpid);
        let page = DcqBase::decode(DcqBaseWord(q.dcq)).map_err(|e| e.to_string())?;
        let Some(layout) = q.layout.as_mut() else {
            return Ok(());
        };
        layout.current = k;
        let next = layout.after(k, 1);
        let known = layout.words.get(next).copied();
        let (c, n, dcq_rp) = layout.registers(k);
        let pointers = WritePointers(q.wp_dcq_rp).with_dcq_rp(dcq_rp);
        (q.current, q.next, q.wp_dcq_rp) = (c, n, pointers.raw());
        if page.segments > 1 {
            let at = page.page.0 + 8 * next as u64;
            let mut word = [0; 8];
            self.dma_read(at, &mut word, env)
                .map_err(|f| format!("descriptor at {:#x} can't be read", f.addr))?;
            if known != Some(u64::from_le_bytes(word)) {
                self.bad_setup(env, || {
                    format!(
                        "{unit} queue of VPID {vpid}: the descriptor of segment {next} has changed"
                    )
                });
                let mut layout = self.load_layout(unit, vpid, env)?;
                layout.current = k;
                let q = self.queue(unit, vpid);
                (q.current, q.next, _) = layout.registers(k);
                q.layout = Some(Box::new(layout));
            }
        }
        Ok(())
    }

    /// Reads the list of segments. A single segment is described in the register; several segments
    /// are described in the page in host memory (G10).
    fn load_layout(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>) -> Result<Layout, String> {
        let q = self.queue(unit, vpid);
        let dcq = DcqBase::decode(DcqBaseWord(q.dcq)).map_err(|e| e.to_string())?;
        let mut words = vec![q.current];
        if dcq.segments > 1 {
            let mut page = vec![0; dcq.segments as usize * 8];
            self.dma_read(dcq.page.0, &mut page, env)
                .map_err(|f| format!("descriptor page {:#x} can't be read", f.addr))?;
            let qw = |c: &[u8]| c.try_into().map(u64::from_le_bytes).unwrap_or(0);
            words = page.chunks_exact(8).map(qw).collect();
        }
        let want = self.slot_code(unit);
        let mut segments = Vec::with_capacity(words.len());
        let mut first = 0u32;
        for &word in &words {
            let segment = SegmentWord(word).segment();
            if segment.slot != want {
                return Err(format!(
                    "segment has {:?} slots, the unit uses {want:?}",
                    segment.slot
                ));
            }
            let end = first.checked_add(segment.slots).ok_or("too many slots")?;
            segments.push((segment.base.0, first, end));
            first = end;
        }
        Ok(Layout {
            segments,
            words,
            current: 0,
        })
    }
}
