// SPDX-License-Identifier: GPL-2.0-only

//! Buffer queues (HW §7): VELO mailboxes and RMA notification queues, of the kernel and of
//! processes.
//!
//! Ownership: the NIC writes slots from its write pointer on. It stops one slot before the read
//! pointer that software last wrote to `rp`. A slot belongs to software if its status word (last
//! word) is not zero. Software reads the slot, zeroes the status word, advances, and updates the
//! NIC's read pointer from time to time. Only the consumer of a [`Queue`] advances.
//!
//! There are no locks. Allocation and draining may sleep. Other functions work in any context.

use crate::{context::Context, dma::DmaWords, hw::Hw, quirks, time::patience};
use kernel::{
    device::{self, Bound},
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Instant, Monotonic},
};
use kernel_ext::{barrier, sched};
use protocol::nic::ring_consumer;
use wire::{
    bq::{
        DcqBase, General, Rp, SegmentDesc, SegmentWord, SlotCode, Ub, WritePointers, MAX_SEGMENTS,
        MAX_SEGMENT_SLOTS,
    },
    ids::{BusAddr, Unit, Vpid},
    regs::BqRegs,
};

/// Size of a segment of a kernel port's queue in bytes.
const SEGMENT_BYTES: u64 = 256 * 1024;
/// Maximum size of a queue in bytes.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of slots that a message occupies.
const MESSAGE_SLOTS: u32 = 3;
/// Number of slots that are freed between two reschedules.
const RESCHED_SLOTS: u32 = 4096;

/// Writes 0 to the six registers of a VPID, in the order of HW §3.2.
pub(crate) fn clear(hw: &Hw, unit: Unit, vpid: Vpid) {
    let regs = BqRegs(unit);
    for reg in [
        regs.ub(vpid),
        regs.dcq_base_dcq_ub(vpid),
        regs.c_base_size_valid(vpid),
        regs.n_base_size_valid(vpid),
        regs.wp_lwp_dcq_rp(vpid),
        regs.rp(vpid),
    ] {
        hw.rf.write(reg, 0);
    }
}

/// Returns the NIC's write pointer, i.e. the slot of the VPID's queue that the NIC writes next;
/// `None` if the device was removed. Reads a register. Any context.
pub(crate) fn write_pointer(ctx: &Context, unit: Unit, vpid: Vpid) -> Option<u32> {
    let hw = ctx.alive_access()?;
    let raw = hw.rf.read(BqRegs(unit).wp_lwp_dcq_rp(vpid));
    (!ctx.check_removed(&hw, raw)).then(|| WritePointers(raw).lwp())
}

/// Sets up the queue engines as `extoll_bq` does in its probe (HW §3.2).
pub(crate) fn init(ctx: &Context) -> Result {
    for unit in [Unit::Velo, Unit::Rma] {
        for vpid in Vpid::all() {
            clear(&*ctx.access().ok_or(ENODEV)?, unit, vpid);
        }
    }
    let hw = ctx.access().ok_or(ENODEV)?;
    for unit in [Unit::Velo, Unit::Rma] {
        hw.rf.update(BqRegs(unit).general(), |v| {
            General(v).with_enable(true).raw()
        });
    }
    Ok(())
}

/// Stops both queue engines.
pub(crate) fn stop(ctx: &Context) {
    let Some(hw) = ctx.alive_access() else { return };
    for unit in [Unit::Velo, Unit::Rma] {
        hw.rf.update(BqRegs(unit).general(), |v| {
            General(v).with_enable(false).raw()
        });
    }
}

/// Layout of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    slot: SlotCode,
    segments: u32,
    /// Number of slots per segment.
    per_segment: u32,
}

impl Layout {
    /// Returns the layout of a queue of `bytes` bytes in segments of `segment` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the size is not a whole number of segments or pages, there are more than 512
    /// segments or more than 65,536 slots per segment, or the size exceeds 64 MiB.
    pub(crate) fn new(slot: SlotCode, bytes: u64, segment: u64) -> Result<Self> {
        let segment = segment.min(bytes);
        let count = bytes.checked_div(segment).ok_or(EINVAL)?;
        let slots = segment >> slot.bytes().trailing_zeros();
        if bytes > MAX_BYTES
            || bytes.checked_rem(segment) != Some(0)
            || segment % BusAddr::PAGE_SIZE != 0
            || count > u64::from(MAX_SEGMENTS)
            || slots > u64::from(MAX_SEGMENT_SLOTS)
        {
            return Err(EINVAL);
        }
        Ok(Self {
            slot,
            segments: count as u32,
            per_segment: slots as u32,
        })
    }

    /// Returns the layout of a kernel port's queue.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless `bytes` is a power of two of 512 KiB…64 MiB. The minimum corresponds to two
    /// segments (G10).
    pub(crate) fn of_kernel(slot: SlotCode, bytes: u32) -> Result<Self> {
        let bytes = u64::from(bytes);
        if !bytes.is_power_of_two() || bytes < quirks::MIN_SEGMENTS * SEGMENT_BYTES {
            return Err(EINVAL);
        }
        Self::new(slot, bytes, SEGMENT_BYTES)
    }

    fn slots(&self) -> u32 {
        self.segments * self.per_segment
    }

    fn segment_words(&self) -> usize {
        (self.per_segment * self.slot.bytes() / 8) as usize
    }
}

/// Memory of a segment. It is exclusive, or shared with mappings of a process.
pub(crate) trait SegmentMemory {
    fn words(&self) -> &DmaWords;
}

impl SegmentMemory for DmaWords {
    fn words(&self) -> &DmaWords {
        self
    }
}

impl SegmentMemory for Arc<DmaWords> {
    fn words(&self) -> &DmaWords {
        self
    }
}

/// Reference to a slot of a queue.
pub(crate) struct Slot<'a> {
    memory: &'a DmaWords,
    first: usize,
    words: usize,
}

impl Slot<'_> {
    /// Returns word `index`.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.memory.read(self.first + index)
    }

    /// Returns the status word, i.e. the last word; 0 while the NIC owns the slot.
    #[inline]
    pub(crate) fn status(&self) -> u64 {
        self.word(self.words - 1)
    }

    /// Frees the slot by zeroing its status word.
    #[inline]
    pub(crate) fn free(&self) {
        self.memory.write(self.first + self.words - 1, 0);
    }
}

/// Memory of one queue, and the unit and VPID that it belongs to.
pub(crate) struct Queue<M = DmaWords> {
    unit: Unit,
    vpid: Vpid,
    layout: Layout,
    segments: KVec<M>,
    dcq: DmaWords,
    slots: u32,
    /// Binary logarithm of the number of slots per segment; `None` if that number is not a power of
    /// two.
    shift: Option<u32>,
}

impl Queue<DmaWords> {
    /// Allocates a queue of zeroed memory. May sleep.
    pub(crate) fn new(
        dev: &device::Device<Bound>,
        unit: Unit,
        vpid: Vpid,
        layout: Layout,
    ) -> Result<Self> {
        let dcq = DmaWords::new(dev, BusAddr::PAGE_SIZE as usize / 8)?;
        Self::of(unit, vpid, layout, dcq, |words| DmaWords::new(dev, words))
    }
}

impl Queue<Arc<DmaWords>> {
    /// Allocates a queue like [`Queue::new`], charged to the memory control group of the calling
    /// process. Processes can map the segments.
    pub(crate) fn accounted(
        dev: &device::Device<Bound>,
        unit: Unit,
        vpid: Vpid,
        layout: Layout,
    ) -> Result<Self> {
        let dcq = DmaWords::accounted(dev, BusAddr::PAGE_SIZE as usize / 8)?;
        Self::of(unit, vpid, layout, dcq, |words| {
            let memory = DmaWords::accounted(dev, words)?;
            Ok(Arc::new(memory, GFP_KERNEL_ACCOUNT)?)
        })
    }
}

impl<M: SegmentMemory> Queue<M> {
    fn of(
        unit: Unit,
        vpid: Vpid,
        layout: Layout,
        dcq: DmaWords,
        allocate: impl Fn(usize) -> Result<M>,
    ) -> Result<Self> {
        let mut segments = KVec::with_capacity(layout.segments as usize, GFP_KERNEL)?;
        for k in 0..layout.segments {
            let memory = allocate(layout.segment_words())?;
            let desc = SegmentDesc {
                slot: layout.slot,
                slots: layout.per_segment,
                base: memory.words().address(),
            };
            dcq.write(k as usize, desc.encode().map_err(|_| ERANGE)?.raw());
            segments.push(memory, GFP_KERNEL)?;
        }
        let count = layout.per_segment;
        Ok(Self {
            unit,
            vpid,
            layout,
            segments,
            dcq,
            slots: layout.slots(),
            shift: count.is_power_of_two().then(|| count.trailing_zeros()),
        })
    }

    /// Returns the number of slots.
    #[inline]
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the memory of the segments, in the order of their slots.
    pub(crate) fn segments(&self) -> &[M] {
        &self.segments
    }

    /// Writes the registers in the creation order of HW §7. If `arm` is set, arms the VPID's
    /// interrupt. A single segment is its own successor (HW §7 for VELO; G10). The VPID must be
    /// disabled.
    ///
    /// # Errors
    ///
    /// `ERANGE`: the registers cannot hold the number of segments or an address.
    pub(crate) fn install(&self, hw: &Hw, arm: bool) -> Result {
        let Self { unit, vpid, .. } = *self;
        let segments = self.layout.segments;
        let page = self.dcq.address();
        let base = DcqBase { segments, page }.encode().map_err(|_| ERANGE)?;
        let segment = |k: u32| {
            let k = if k < segments { k } else { 0 };
            SegmentWord(self.dcq.read(k as usize))
                .with_valid(true)
                .raw()
        };
        let regs = BqRegs(unit);
        let first = Rp(0)
            .with_lrp(ring_consumer::initial(self.slots))
            .with_irq_retrigger(arm);
        for (reg, value) in [
            (
                regs.ub(vpid),
                Ub(0).with_slots_minus_1(self.slots - 1).raw(),
            ),
            (regs.dcq_base_dcq_ub(vpid), base.raw()),
            (
                regs.wp_lwp_dcq_rp(vpid),
                WritePointers::initial(segments).raw(),
            ),
            (regs.rp(vpid), first.raw()),
            (regs.c_base_size_valid(vpid), segment(0)),
            (regs.n_base_size_valid(vpid), segment(1)),
        ] {
            hw.rf.write(reg, value);
        }
        Ok(())
    }

    /// Returns slot `index`; `None` if it is not less than [`Queue::slots`].
    #[inline]
    pub(crate) fn slot(&self, index: u32) -> Option<Slot<'_>> {
        let (segment, within) = match self.shift {
            Some(shift) => (index >> shift, index & ((1 << shift) - 1)),
            None => {
                let per = self.layout.per_segment;
                (index.checked_div(per)?, index.checked_rem(per)?)
            }
        };
        let words = self.layout.slot.bytes() as usize / 8;
        Some(Slot {
            memory: self.segments.get(segment as usize)?.words(),
            first: within as usize * words,
            words,
        })
    }

    /// Returns the status word of a slot; 0 if the slot is outside of the queue.
    #[inline]
    pub(crate) fn status(&self, index: u32) -> u64 {
        self.slot(index).map_or(0, |slot| slot.status())
    }

    /// Frees a slot by zeroing its status word.
    #[inline]
    pub(crate) fn free(&self, index: u32) {
        if let Some(slot) = self.slot(index) {
            slot.free();
        }
    }

    /// Returns the slot `by` slots after `index`; both must be less than [`Queue::slots`].
    #[inline]
    pub(crate) fn next(&self, index: u32, by: u32) -> u32 {
        let next = index + by;
        if next >= self.slots {
            next - self.slots
        } else {
            next
        }
    }

    /// Returns the number of slots from `from` up to `to`; both must be less than [`Queue::slots`].
    #[inline]
    pub(crate) fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from {
            to - from
        } else {
            to + self.slots - from
        }
    }

    /// Writes the read pointer to the NIC, as an index into the whole queue instead of a segment
    /// (G10). If `arm` is set, unmasks the VPID's interrupt. Only for queues that never become
    /// full; see [`protocol::nic::ring_consumer`].
    pub(crate) fn commit(&self, hw: &Hw, slot: u32, arm: bool) {
        hw.rf.write(
            BqRegs(self.unit).rp(self.vpid),
            Rp(0).with_lrp(slot).with_irq_retrigger(arm).raw(),
        );
    }

    /// Returns whether packets may be waiting for free slots when the write pointer is `lwp`. A
    /// message occupies up to three slots.
    fn is_full(&self, hw: &Hw, lwp: u32) -> bool {
        let lrp = Rp(hw.rf.read(BqRegs(self.unit).rp(self.vpid))).lrp();
        if lwp >= self.slots || lrp >= self.slots {
            return false;
        }
        // If the pointers are equal, the queue is full. It may also be empty, if it belongs to a
        // process that leaves no slot unused (G10).
        match self.distance(lwp, lrp) {
            0 => (0..self.slots).any(|slot| self.status(slot) != 0),
            free => free <= MESSAGE_SLOTS,
        }
    }

    /// Frees slots until no more waiting packets enter the queue, because waiting packets could
    /// block queues of other VPIDs. The packets are lost, because the queue has no consumer any
    /// more. The number of rounds is limited, because a peer may send faster than the queue is
    /// drained. Freeing the slots takes at most 100 ms, and the pauses take less than 2 ms. May
    /// sleep.
    ///
    /// The vendor's driver drains queues of processes after it has disabled the VPID (HW §9.7). It
    /// is unknown whether a NIC still admits waiting packets after that (G10), so callers also
    /// drain before disabling.
    pub(crate) fn drain(&self, ctx: &Context) {
        let reg = BqRegs(self.unit).rp(self.vpid);
        let began: Instant<Monotonic> = Instant::now();
        for _ in 0..quirks::QUEUE_DRAIN_ROUNDS {
            if began.elapsed().as_millis() >= patience(quirks::QUEUE_DRAIN_MS).into() {
                return;
            }
            let Some(lwp) = write_pointer(ctx, self.unit, self.vpid) else {
                return;
            };
            if !ctx.alive_access().is_some_and(|hw| self.is_full(&hw, lwp)) {
                return;
            }
            for slot in 0..self.slots {
                self.free(slot);
                if slot % RESCHED_SLOTS == 0 {
                    sched::cond_resched();
                }
            }
            barrier::wmb();
            // First store a pointer that means an empty queue by both possible rules for a full
            // queue (G10). If no packet arrives, store the vendor's value, for a NIC that considers
            // equal pointers a full queue. Finally store the first pointer again.
            for lrp in [lwp, self.next(lwp, 1), lwp] {
                if let Some(hw) = ctx.alive_access() {
                    hw.rf.write(reg, Rp(0).with_lrp(lrp).raw());
                }
                fsleep(quirks::QUEUE_DRAIN_PAUSE);
                if write_pointer(ctx, self.unit, self.vpid) != Some(lwp) {
                    break;
                }
            }
        }
    }
}
