// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Receiving: the queue of a port (HW §7), the same for VELO mailboxes and RMA notifications.

use crate::error::{Error, Result};
use crate::raw::{Mapping, PAGE};
use crate::wait::{Armed, Link};
use crate::Backend;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::bq::Rp;

/// Most slots freed before the NIC hears of it.
const LAZY: u32 = 256;
/// An interrupt is asked for again after this time, should the last one have been lost or taken by another descriptor of the port.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Pause between two looks at a slot that stays empty; the driver's own ports have the same.
pub(crate) const HOLE: Duration = Duration::from_millis(100);

/// The first slot without content, and when it was looked at, or since when nothing was found.
struct Gap {
    slot: Option<u32>,
    since: Instant,
    /// Slots by which the NIC's write pointer was ahead of it then.
    ahead: u32,
}

/// A ring of slots whose last quadword is a status word, 0 = free. Page 0 of the mapping is the read pointer register.
pub(crate) struct Ring {
    map: Mapping,
    slot: usize,
    slots: u32,
    rp: u32,
    uncommitted: u32,
    /// Slots freed since the driver was asked for an interrupt: whether it stored the pointer then is not known.
    since_arm: u32,
    link: Arc<Link>,
    /// Slot and time of the last request for an interrupt, and what came of it.
    armed: Option<(u32, Instant, Armed)>,
    /// Slots behind `rp` that were freed out of order.
    freed: BTreeSet<u32>,
    gap: Option<Gap>,
    pub commits: u64,
    pub skipped: u64,
}

impl Ring {
    /// The ring in a mapping of one page and `bytes` bytes of slots of `slot` bytes.
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

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Fails when the NIC is known to be gone. All slots look empty then.
    pub fn check(&self) -> Result<()> {
        self.link.check()
    }

    /// Index of the slot to read next.
    #[cfg(test)]
    pub fn rp(&self) -> u32 {
        self.rp
    }

    fn offset(&self, slot: u32) -> usize {
        PAGE + slot as usize * self.slot
    }

    /// The slot `ahead` slots after the next one.
    pub fn slot(&self, ahead: u32) -> u32 {
        self.behind(self.rp, ahead)
    }

    /// The slot `n` slots after another one.
    fn behind(&self, slot: u32, n: u32) -> u32 {
        ((u64::from(slot) + u64::from(n)) % u64::from(self.slots)) as u32
    }

    /// Status word of a slot; what the NIC wrote before it is visible afterwards.
    pub fn status(&self, slot: u32) -> u64 {
        if self.link.is_gone() {
            return 0;
        }
        self.map.load(self.offset(slot) + self.slot - 8)
    }

    /// Quadword of a slot at byte offset `at`.
    pub fn word(&self, slot: u32, at: usize) -> u64 {
        self.map.load(self.offset(slot) + at)
    }

    /// Copies bytes of a slot.
    pub fn read(&self, slot: u32, at: usize, to: &mut [u8]) -> Result<()> {
        self.map.read((self.offset(slot) + at) as u64, to)
    }

    /// Address of a slot, for bindings that hand out pointers into the queue.
    pub fn address(&self, slot: u32) -> *mut u8 {
        self.map.address(self.offset(slot))
    }

    /// The slot that starts at this address.
    pub fn slot_at(&self, address: *const u8) -> Option<u32> {
        let offset = (address as usize).checked_sub(self.map.address(PAGE) as usize)?;
        let slot = u32::try_from(offset / self.slot).ok()?;
        (offset % self.slot == 0 && slot < self.slots).then_some(slot)
    }

    /// Slots that hold something and were not freed, in order of arrival.
    pub fn filled(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots)
            .map(|ahead| self.slot(ahead))
            .take_while(|slot| self.status(*slot) != 0 || self.freed.contains(slot))
            .filter(|slot| !self.freed.contains(slot))
    }

    /// The first slot that is empty.
    pub fn first_empty(&self) -> Option<u32> {
        (0..self.slots)
            .map(|ahead| self.slot(ahead))
            .find(|slot| self.status(*slot) == 0 && !self.freed.contains(slot))
    }

    /// Number of empty slots from `slot` on, at most `limit`.
    pub fn run_of_empty(&self, slot: u32, limit: u32) -> u32 {
        (0..limit)
            .take_while(|n| self.status(self.behind(slot, *n)) == 0)
            .count() as u32
    }

    /// A slot, and the number of slots from it on whose content had to be there by now: the NIC's write pointer, which `wp` asks for, was
    /// ahead of it at two looks, [`HOLE`] apart, and nothing was freed between them. DMA writes are posted, and one that got lost
    /// leaves its slot empty for ever. `first` finds the first slot whose content is not there. To be called while the queue is looked at
    /// in vain; before the first look is due no memory is touched.
    pub fn overdue(
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
        // First of all, as it fails when the NIC is gone.
        let wp = match wp() {
            Ok(wp) => wp,
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Err(self.link.lost()),
            // A driver that does not tell: nothing is known.
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

    /// Slots by which the NIC's write pointer is ahead of a slot.
    fn ahead(&self, slot: u32, wp: u64) -> u32 {
        match u32::try_from(wp) {
            Ok(wp) if wp < self.slots => (wp + self.slots - slot) % self.slots,
            _ => 0,
        }
    }

    /// True when a look found the NIC's write pointer ahead of an empty slot: another look has to follow.
    pub fn is_suspect(&self) -> bool {
        self.gap.as_ref().is_some_and(|gap| gap.ahead != 0)
    }

    /// Gives up `n` empty slots from `slot` on.
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
        // Other threads sleep until something comes to a slot that is free from now on.
        if self.armed.take().is_some() {
            self.link.wake();
        }
        for _ in 0..n {
            self.map.store(self.offset(self.rp) + self.slot - 8, 0);
            self.rp = self.slot(1);
            self.uncommitted += 1;
            self.since_arm = self.since_arm.saturating_add(1);
        }
        // The driver leaves one slot where this leaves two: the pointer would be the same, or that before.
        if self.uncommitted >= LAZY.min(self.slots / 4).max(2) && self.since_arm >= 2 {
            self.commit(false);
        }
    }

    /// Frees a slot that need not be the next one; false if it holds nothing.
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

    /// Frees what was read and asks for an interrupt with the next marked entry; unless `necessary`, not if that was done for the same
    /// slot lately.
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
            // Something came, before or behind what the driver stored.
            Ok(true) => Armed::Look,
            Ok(false) => {
                self.uncommitted = 0;
                self.commits += 1;
                Armed::Empty
            }
            // A driver without this call takes the same by register.
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

    /// Tells the NIC what is free; `rearm` also asks for an interrupt with the next marked entry.
    ///
    /// A store of the pointer that the NIC has already may undo that it found the queue full meanwhile (G10), and all that is in it is
    /// overwritten then. So what only frees leaves one slot to the store that arms, which moves the pointer that way. One more always stays
    /// unused, so that equal pointers tell a full queue from an empty one.
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

    /// Otherwise a NIC whose full queue is a flag that stores clear (G10) overwrites what it filled the queue with between the two.
    #[test]
    fn arming_moves_the_pointer_that_the_nic_has() {
        for slots in [4u32, 8, 256] {
            let mut r = ring(slots as usize);
            // As it is set up.
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

    /// A driver that has the pointer stored by `arm`, or finds something before that or behind it.
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

    /// Whatever the driver did when it was asked for an interrupt, and whenever that was: no pointer is stored twice, or goes back, and
    /// slots are freed all the same.
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
            // Slots that the NIC was told of, all in all.
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
                        // What the driver finds at once is there to be seen.
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

    /// Looks until a hole is found; how long it is, and how many looks at the pointer that took.
    fn looks(r: &mut Ring, slot: u32, wp: u64) -> (u32, u32) {
        let mut looks = 0;
        // Four times what is needed. Pauses are counted, because a machine that stands still makes them longer.
        for _ in 0..80 {
            let wp = || {
                looks += 1;
                Ok(wp)
            };
            match r.overdue(Ring::first_empty, wp).unwrap() {
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
        // The NIC wrote slots 0…4, and the second and third write got lost.
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
        // The next one is empty because nothing came.
        r.advance(2);
        assert_eq!(looks(&mut r, 5, 5).0, 0);
        assert!(!r.is_suspect());
        // Nor does a pointer that is not in the queue mean anything.
        assert_eq!(looks(&mut r, 5, 1 << 40).0, 0);
    }

    #[test]
    fn what_comes_late_is_no_hole() {
        let mut r = ring(256);
        fill(&r, 1, 9);
        assert_eq!(r.overdue(Ring::first_empty, || Ok(2)).unwrap(), None);
        std::thread::sleep(HOLE);
        assert_eq!(r.overdue(Ring::first_empty, || Ok(2)).unwrap(), None);
        assert!(r.is_suspect());
        fill(&r, 0, 9);
        r.advance(2);
        assert!(!r.is_suspect());
        let early = || panic!("too early");
        assert_eq!(r.overdue(Ring::first_empty, early).unwrap(), None);
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
            assert!(r.overdue(touched, ask).is_ok());
            std::thread::sleep(HOLE);
            assert_eq!(r.overdue(touched, ask).is_err(), gone);
        }
    }
}
