// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Receiving: queue of a port (HW §7). VELO mailboxes and RMA notification queues use this code.

use crate::error::{Error, Result};
use crate::raw::{Mapping, PAGE};
use crate::wait::{Armed, Link};
use crate::Backend;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::bq::Rp;

/// Maximum number of slots that are freed before the new read pointer is written.
const LAZY: u32 = 256;
/// Time after which an interrupt is requested again. The interrupt may have been lost, or another
/// descriptor of the port may have consumed it.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Interval between checks of a slot that stays empty. The driver's own ports use the same
/// interval.
pub(crate) const HOLE: Duration = Duration::from_millis(100);

/// First slot without content, with the time of its last check.
struct Gap {
    slot: Option<u32>,
    since: Instant,
    /// Number of slots by which the NIC's write pointer was ahead of the slot at that time.
    ahead: u32,
}

/// Ring of slots. The last quadword of a slot is a status word, which is 0 in a free slot. Page 0
/// of the mapping is the register of the read pointer.
pub(crate) struct Ring {
    map: Mapping,
    slot: usize,
    slots: u32,
    rp: u32,
    uncommitted: u32,
    /// Number of slots freed since the last request for an interrupt. The driver may have written
    /// the read pointer to the NIC in that request.
    since_arm: u32,
    link: Arc<Link>,
    /// Last request for an interrupt: slot, time and result.
    armed: Option<(u32, Instant, Armed)>,
    /// Slots after `rp` that were freed out of order.
    freed: BTreeSet<u32>,
    gap: Option<Gap>,
    pub commits: u64,
    pub skipped: u64,
}

impl Ring {
    /// Creates the ring for a mapping. It consists of one page, and of `bytes` bytes with slots of
    /// `slot` bytes each.
    pub fn new(map: Mapping, slot: usize, bytes: usize, link: Arc<Link>) -> Result<Self> {
        let slots = u32::try_from(bytes / slot).unwrap_or(0);
        if slots < 4 || map.len() < PAGE + bytes {
            return Err(Error::Driver(format!("a queue of {bytes} bytes")));
        }
        Ok(Self {
            map,
            slot,
            slots,
            rp: 0,
            uncommitted: 0,
            since_arm: u32::MAX,
            link,
            armed: None,
            freed: BTreeSet::new(),
            gap: None,
            commits: 0,
            skipped: 0,
        })
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Fails if the NIC is known to be removed, because all slots then look empty.
    pub fn check(&self) -> Result<()> {
        self.link.check()
    }

    /// Returns the index of the next slot to read.
    #[cfg(test)]
    pub fn rp(&self) -> u32 {
        self.rp
    }

    fn offset(&self, slot: u32) -> usize {
        PAGE + slot as usize * self.slot
    }

    /// Returns the index of the slot that is `ahead` slots after the next slot to read.
    pub fn slot(&self, ahead: u32) -> u32 {
        self.behind(self.rp, ahead)
    }

    /// Returns the index of the slot that is `n` slots after `slot`.
    fn behind(&self, slot: u32, n: u32) -> u32 {
        ((u64::from(slot) + u64::from(n)) % u64::from(self.slots)) as u32
    }

    /// Returns the status word of a slot. Data that the NIC wrote before the status word is visible
    /// afterwards.
    pub fn status(&self, slot: u32) -> u64 {
        if self.link.is_gone() {
            return 0;
        }
        self.map.load(self.offset(slot) + self.slot - 8)
    }

    /// Returns the quadword at byte offset `at` of a slot.
    pub fn word(&self, slot: u32, at: usize) -> u64 {
        self.map.load(self.offset(slot) + at)
    }

    /// Copies bytes of a slot, from byte offset `at` on.
    pub fn read(&self, slot: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.map.read((self.offset(slot) + at) as u64, to)
    }

    /// Returns the address of a slot, for language bindings that return pointers into the queue.
    pub fn address(&self, slot: u32) -> *mut u8 {
        self.map.address(self.offset(slot))
    }

    /// Returns the slot that starts at this address.
    pub fn slot_at(&self, address: *const u8) -> Option<u32> {
        let offset = (address as usize).checked_sub(self.map.address(PAGE) as usize)?;
        let slot = u32::try_from(offset / self.slot).ok()?;
        (offset % self.slot == 0 && slot < self.slots).then_some(slot)
    }

    /// Returns the slots that have content and were not freed, in order of arrival.
    pub fn filled(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots)
            .map(|ahead| self.slot(ahead))
            .take_while(|slot| self.status(*slot) != 0 || self.freed.contains(slot))
            .filter(|slot| !self.freed.contains(slot))
    }

    /// Returns the number of slots between the next slot to read and the first empty slot.
    pub fn first_empty(&self) -> Option<u32> {
        (0..self.slots)
            .map(|ahead| self.slot(ahead))
            .find(|slot| self.status(*slot) == 0 && !self.freed.contains(slot))
    }

    /// Returns the number of consecutive empty slots from `slot` on, up to `limit`.
    pub fn run_of_empty(&self, slot: u32, limit: u32) -> u32 {
        (0..limit)
            .take_while(|n| self.status(self.behind(slot, *n)) == 0)
            .count() as u32
    }

    /// Finds slots whose content should have arrived. Returns the first of these slots and their
    /// number. DMA writes are posted, so that a lost write leaves its slot empty.
    ///
    /// A slot is lost if the NIC's write pointer was ahead of it in two checks at an interval of
    /// [`HOLE`], and no slot was freed between the checks. `wp` reads the write pointer, and
    /// `first` returns the first slot without content. The caller calls this function while it
    /// finds nothing in the queue. The function accesses no memory before the first check is due.
    pub fn lost_slots(
        &mut self,
        first: impl FnOnce(&Self) -> Option<u32>,
        wp: impl FnOnce() -> io::Result<u64>,
    ) -> Result<Option<(u32, u32)>> {
        self.link.check()?;
        let now = Instant::now();
        let gap = self.gap.get_or_insert(Gap {
            slot: None,
            since: now,
            ahead: 0,
        });
        if now.duration_since(gap.since) < HOLE {
            return Ok(None);
        }
        gap.since = now;
        let before = (gap.slot, gap.ahead);
        // The write pointer is read first, because this read fails if the NIC was removed.
        let wp = match wp() {
            Ok(wp) => wp,
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Err(self.link.lost()),
            // Lost writes cannot be detected with drivers that do not provide the write pointer.
            Err(_) => return Ok(None),
        };
        let slot = first(self);
        let ahead = slot.map_or(0, |slot| self.ahead(slot, wp));
        self.gap = Some(Gap {
            slot,
            since: now,
            ahead,
        });
        Ok(match (slot, before) {
            (Some(slot), (Some(then), n)) if slot == then && n.min(ahead) > 0 => {
                Some((slot, n.min(ahead)))
            }
            _ => None,
        })
    }

    /// Returns the number of slots by which the NIC's write pointer is ahead of a slot.
    fn ahead(&self, slot: u32, wp: u64) -> u32 {
        match u32::try_from(wp) {
            Ok(wp) if wp < self.slots => (wp + self.slots - slot) % self.slots,
            _ => 0,
        }
    }

    /// Returns whether the NIC's write pointer was ahead of an empty slot in the last check.
    /// Another check must follow.
    pub fn is_suspect(&self) -> bool {
        self.gap.as_ref().is_some_and(|gap| gap.ahead != 0)
    }

    /// Skips `n` empty slots, starting at `slot`.
    pub fn skip(&mut self, slot: u32, n: u32) {
        self.skipped += u64::from(n);
        for i in 0..n {
            self.freed.insert(self.behind(slot, i));
        }
        self.free_behind();
    }

    fn free_behind(&mut self) {
        while self.freed.remove(&self.rp) {
            self.advance(1);
        }
    }

    /// Frees the next `n` slots.
    pub fn advance(&mut self, n: u32) {
        self.gap = None;
        if self.link.is_gone() {
            return;
        }
        // Wakes other threads that wait for an entry in a slot that this call frees.
        if self.armed.take().is_some() {
            self.link.wake();
        }
        for _ in 0..n {
            self.map.store(self.offset(self.rp) + self.slot - 8, 0);
            self.rp = self.slot(1);
            self.uncommitted += 1;
            self.since_arm = self.since_arm.saturating_add(1);
        }
        // The driver keeps one slot unused, and this function two. With fewer freed slots, the new
        // pointer could be equal to the driver's or before it.
        if self.uncommitted >= LAZY.min(self.slots / 4).max(2) && self.since_arm >= 2 {
            self.commit(false);
        }
    }

    /// Frees a slot out of order. Returns false if the slot has no content.
    pub fn free(&mut self, slot: u32) -> bool {
        if slot >= self.slots || self.status(slot) == 0 {
            return false;
        }
        if slot == self.rp {
            self.advance(1);
        } else if !self.freed.insert(slot) {
            return false;
        }
        self.free_behind();
        true
    }

    /// Frees the slots that were read, and requests an interrupt with the next entry that has the
    /// interrupt flag. A recent request for the same slot is only repeated if `necessary` is true.
    pub fn arm(&mut self, backend: &dyn Backend, necessary: bool) -> Result<Armed> {
        self.link.check()?;
        if let (false, Some((rp, since, armed))) = (necessary, self.armed) {
            if rp == self.rp && since.elapsed() < ASK_AGAIN {
                return Ok(armed);
            }
        }
        if self.status(self.rp) != 0 {
            return Ok(Armed::Look);
        }
        let asked = backend.arm(self.rp);
        self.since_arm = 0;
        let armed = match asked {
            // An entry has arrived. The driver may or may not have written the read pointer.
            Ok(true) => Armed::Look,
            Ok(false) => {
                self.uncommitted = 0;
                self.commits += 1;
                Armed::Empty
            }
            // If the driver lacks this ioctl, a store to the read pointer register requests the
            // interrupt.
            Err(e) if e.raw_os_error() == Some(libc::ENOTTY) => {
                self.commit(true);
                Armed::Look
            }
            Err(e) => {
                return Err(match Error::os("cannot ask for an interrupt", e) {
                    Error::Gone => self.link.lost(),
                    other => other,
                })
            }
        };
        self.armed = Some((self.rp, Instant::now(), armed));
        Ok(armed)
    }

    /// Writes the read pointer to the NIC. `rearm` also requests an interrupt with the next entry
    /// that has the interrupt flag.
    ///
    /// The NIC may keep a flag for a full queue, and a store of an unchanged pointer may clear it
    /// (G10). The NIC would then overwrite entries in the queue. A store that only frees slots
    /// therefore keeps one slot back. The store that requests an interrupt frees this slot, so that
    /// it always changes the pointer. One more slot stays unused. Equal pointers therefore always
    /// mean an empty queue.
    fn commit(&mut self, rearm: bool) {
        let lrp = match rearm {
            true => self.slot(self.slots - 1),
            false => self.slot(self.slots - 2),
        };
        let rp = Rp(0).with_lrp(lrp).with_irq_retrigger(rearm);
        self.map.store(0, rp.raw());
        self.uncommitted = 0;
        self.commits += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(slots: usize) -> Ring {
        let map = Mapping::anonymous(PAGE + slots * 16, None).unwrap();
        Ring::new(map, 16, slots * 16, Arc::default()).unwrap()
    }

    fn fill(ring: &Ring, slot: u32, value: u64) {
        ring.map.store(ring.offset(slot), value);
        ring.map.store(ring.offset(slot) + 8, value);
    }

    #[test]
    fn slots_wrap_and_the_read_pointer_follows_lazily() {
        for (slots, lazy) in [(256u32, 64), (4096, LAZY)] {
            let mut r = ring(slots as usize);
            for i in 0..5000u32 {
                fill(&r, i % slots, 1);
                assert_eq!(r.filled().count(), 1);
                r.advance(1);
                assert_eq!(r.rp(), (i + 1) % slots);
            }
            assert_eq!(r.commits, u64::from(5000 / lazy));
            r.commit(true);
            assert_eq!(r.map.load(0), 0x1_0000_0000 | u64::from(4999 % slots));
        }
    }

    /// Tests the rule for NICs whose flag for a full queue is cleared by a store (G10). After a
    /// store of an unchanged pointer, such a NIC would overwrite entries.
    #[test]
    fn arming_moves_the_pointer_that_the_nic_has() {
        for slots in [4u32, 8, 256] {
            let mut r = ring(slots as usize);
            // Initial value of the read pointer.
            let mut before = slots - 1;
            for i in 1..=1000u32 {
                fill(&r, (i - 1) % slots, 1);
                let commits = r.commits;
                r.advance(1);
                let mut stored = Rp(r.map.load(0)).lrp();
                if r.commits != commits {
                    assert_ne!(stored, before, "after {i}");
                    before = stored;
                }
                if i % 7 == 0 {
                    r.commit(true);
                    stored = Rp(r.map.load(0)).lrp();
                    assert_ne!(stored, before, "armed after {i}");
                    // One slot stays unused.
                    assert_eq!(stored, (i - 1) % slots);
                    before = stored;
                }
            }
            assert!(r.commits > 140);
        }
    }

    /// Fake driver whose `arm` writes the pointer and finds an entry before or after that.
    struct Driver {
        stores: bool,
        finds: bool,
        stored: std::sync::Mutex<Option<u32>>,
    }

    impl Backend for Driver {
        fn get(&self, _: u32) -> io::Result<u64> {
            unreachable!()
        }
        fn set(&self, _: u32, _: u64) -> io::Result<()> {
            unreachable!()
        }
        fn register(&self, _: &mut crate::backend::RegionArg) -> io::Result<()> {
            unreachable!()
        }
        fn unregister(&self, _: &mut crate::backend::RegionArg) -> io::Result<()> {
            unreachable!()
        }
        fn arm(&self, slot: u32) -> io::Result<bool> {
            if self.stores {
                *self.stored.lock().unwrap() = Some((slot + 63) % 64);
            }
            Ok(self.finds)
        }
        fn info(&self) -> io::Result<Option<crate::backend::PortInfo>> {
            unreachable!()
        }
        fn map(&self, _: u64, _: usize) -> io::Result<Mapping> {
            unreachable!()
        }
        fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
            unreachable!()
        }
    }

    /// The pointer must increase with each store, and slots must be freed. This must hold for all
    /// results of the driver's `arm` and for all intervals between its calls.
    #[test]
    fn what_the_driver_may_have_stored_is_not_stored_again() {
        for (stores, finds, every) in [
            (true, false, 15),
            (true, true, 15),
            (false, true, 15),
            (false, true, 1),
            (true, true, 16),
            (true, true, 1),
        ] {
            let mut r = ring(64);
            let driver = Driver {
                stores,
                finds,
                stored: Default::default(),
            };
            // Total number of slots that were freed for the NIC.
            let mut free = 63u32;
            let mut told = |i: u32, pointer: u32| {
                let gained = (pointer + 64 - free % 64) % 64;
                assert!((1..=i + 63 - free).contains(&gained), "{i}: {pointer}");
                free += gained;
                free
            };
            let mut known = 63;
            for i in 1..=1000u32 {
                fill(&r, (i - 1) % 64, 1);
                let commits = r.commits;
                r.advance(1);
                if r.commits != commits {
                    known = told(i, Rp(r.map.load(0)).lrp());
                }
                if i % every == 0 {
                    if finds && !stores {
                        // The fake driver reports an entry, so the ring must contain an entry.
                        fill(&r, i % 64, 1);
                    }
                    r.arm(&driver, true).unwrap();
                    if let Some(pointer) = driver.stored.lock().unwrap().take() {
                        known = told(i, pointer);
                    }
                }
                assert!(i + 63 - known < 40, "{i}: only {known} were freed");
            }
        }
    }

    #[test]
    fn slots_may_be_freed_in_any_order() {
        let mut r = ring(256);
        for slot in 0..4 {
            fill(&r, slot, 9);
        }
        assert!(r.free(2));
        assert!(!r.free(2));
        assert_eq!(r.filled().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(r.rp(), 0);
        assert!(r.free(0));
        assert_eq!(r.rp(), 1);
        assert!(r.free(1));
        assert_eq!(r.rp(), 3);
        assert!(!r.free(7));
        assert!(!r.free(9999));
        assert_eq!(r.filled().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn addresses_are_those_of_slots() {
        let r = ring(256);
        assert_eq!(r.slot_at(r.address(5)), Some(5));
        assert_eq!(r.slot_at(r.address(5).wrapping_add(8)), None);
        assert_eq!(r.slot_at(std::ptr::null()), None);
        assert_eq!(r.slot_at(r.address(5).wrapping_add(1 << 20)), None);
    }

    #[test]
    fn a_queue_without_slots_is_refused() {
        let map = Mapping::anonymous(2 * PAGE, None).unwrap();
        assert!(Ring::new(map, 16, 0, Arc::default()).is_err());
        let map = Mapping::anonymous(PAGE, None).unwrap();
        assert!(Ring::new(map, 16, PAGE, Arc::default()).is_err());
    }

    #[test]
    fn nothing_is_touched_of_a_nic_that_is_gone() {
        let mut r = ring(256);
        fill(&r, 0, 1);
        r.link.lost();
        assert_eq!(r.filled().count(), 0);
        assert!(!r.free(0));
        r.advance(1);
        assert!(matches!(r.check(), Err(Error::Gone)));
        assert_eq!(r.map.load(r.offset(0)), 1);
    }

    /// Checks until a lost slot is found. Returns the number of lost slots, and the number of reads
    /// of the write pointer.
    fn looks(r: &mut Ring, slot: u32, wp: u64) -> (u32, u32) {
        let mut looks = 0;
        // The limit is four times the required number of pauses. It is not a time, because a
        // machine may stall.
        for _ in 0..80 {
            let wp = || {
                looks += 1;
                Ok(wp)
            };
            match r.lost_slots(Ring::first_empty, wp).unwrap() {
                None => std::thread::sleep(HOLE / 20),
                Some((at, n)) => {
                    assert_eq!(at, slot);
                    return (n, looks);
                }
            }
        }
        (0, looks)
    }

    #[test]
    fn a_slot_that_the_pointer_passed_at_two_looks_is_a_hole() {
        let mut r = ring(256);
        // The NIC wrote slots 0 to 4. The second and third writes were lost.
        for slot in [0, 3, 4] {
            fill(&r, slot, 9);
        }
        assert_eq!(looks(&mut r, 1, 5), (4, 2));
        let n = r.run_of_empty(1, 4);
        r.skip(1, n);
        assert_eq!((n, r.skipped, r.rp()), (2, 2, 0));
        assert_eq!(r.filled().collect::<Vec<_>>(), [0, 3, 4]);
        assert!(r.free(0));
        assert_eq!(r.rp(), 3);
        // The next slot is empty because no entry arrived.
        r.advance(2);
        assert_eq!(looks(&mut r, 5, 5).0, 0);
        assert!(!r.is_suspect());
        // A pointer outside of the queue is ignored.
        assert_eq!(looks(&mut r, 5, 1 << 40).0, 0);
    }

    #[test]
    fn what_comes_late_is_no_hole() {
        let mut r = ring(256);
        fill(&r, 1, 9);
        assert_eq!(r.lost_slots(Ring::first_empty, || Ok(2)).unwrap(), None);
        std::thread::sleep(HOLE);
        assert_eq!(r.lost_slots(Ring::first_empty, || Ok(2)).unwrap(), None);
        assert!(r.is_suspect());
        fill(&r, 0, 9);
        r.advance(2);
        assert!(!r.is_suspect());
        let early = || panic!("too early");
        assert_eq!(r.lost_slots(Ring::first_empty, early).unwrap(), None);
    }

    #[test]
    fn a_full_queue_is_told_from_an_empty_one() {
        let mut r = ring(256);
        assert_eq!(r.ahead(0, 0), 0);
        for slot in 1..255 {
            fill(&r, slot, 9);
        }
        assert_eq!(r.ahead(0, 255), 255);
        r.skip(0, 1);
        assert_eq!(r.rp(), 1);
    }

    #[test]
    fn a_pointer_that_cannot_be_asked_for_tells_whether_the_nic_is_gone() {
        let mut r = ring(256);
        let touched = |_: &Ring| panic!("the queue was looked at");
        for (code, gone) in [(libc::ENOTTY, false), (libc::ENODEV, true)] {
            let ask = || Err(io::Error::from_raw_os_error(code));
            assert!(r.lost_slots(touched, ask).is_ok());
            std::thread::sleep(HOLE);
            assert_eq!(r.lost_slots(touched, ask).is_err(), gone);
        }
    }
}
