// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Receiving: the queue of a port (HW §7), the same for VELO mailboxes and RMA notifications.

use crate::error::{Error, Result};
use crate::raw::{Mapping, PAGE};
use crate::Backend;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wire::bq::Rp;

/// Most slots freed before the NIC hears of it.
const LAZY: u32 = 256;
/// An interrupt is asked for again after this time, should the last one have been lost or taken by another descriptor of the port.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A ring of slots whose last quadword is a status word, 0 = free. Page 0 of the mapping is the read pointer register.
pub(crate) struct Ring {
    map: Mapping,
    slot: usize,
    slots: u32,
    rp: u32,
    uncommitted: u32,
    /// Slot and time of the last request for an interrupt.
    armed: Option<(u32, Instant)>,
    /// Slots behind `rp` that were freed out of order.
    freed: BTreeSet<u32>,
    pub commits: u64,
}

impl Ring {
    /// The ring in a mapping of one page and `bytes` bytes of slots of `slot` bytes.
    pub fn new(map: Mapping, slot: usize, bytes: usize) -> Result<Self> {
        let slots = u32::try_from(bytes / slot).unwrap_or(0);
        if slots < 2 || map.len() < PAGE + bytes {
            return Err(Error::Driver(format!("a queue of {bytes} bytes")));
        }
        Ok(Self {
            map,
            slot,
            slots,
            rp: 0,
            uncommitted: 0,
            armed: None,
            freed: BTreeSet::new(),
            commits: 0,
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
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
        ((u64::from(self.rp) + u64::from(ahead)) % u64::from(self.slots)) as u32
    }

    /// Status word of a slot; what the NIC wrote before it is visible afterwards.
    pub fn status(&self, slot: u32) -> u64 {
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
            .take_while(|slot| self.status(*slot) != 0)
            .filter(|slot| !self.freed.contains(slot))
    }

    /// Frees the next `n` slots.
    pub fn advance(&mut self, n: u32) {
        for _ in 0..n {
            self.map.store(self.offset(self.rp) + self.slot - 8, 0);
            self.rp = self.slot(1);
            self.uncommitted += 1;
        }
        if self.uncommitted >= LAZY.min(self.slots / 4) {
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
        while self.freed.remove(&self.rp) {
            self.advance(1);
        }
        true
    }

    /// [`Ring::arm`], unless that was done for the same slot lately.
    pub fn arm_once(&mut self, backend: &dyn Backend) {
        if !matches!(self.armed, Some((rp, since)) if rp == self.rp && since.elapsed() < ASK_AGAIN)
        {
            self.arm(backend);
        }
    }

    /// Frees what was read and asks for an interrupt with the next marked entry.
    pub fn arm(&mut self, backend: &dyn Backend) {
        self.armed = Some((self.rp, Instant::now()));
        match backend.arm(self.rp) {
            Ok(_) => {
                self.uncommitted = 0;
                self.commits += 1;
            }
            // A driver without this call takes the same by register. Other failures: the NIC is gone, which the next look
            // finds out.
            Err(_) => self.commit(true),
        }
    }

    /// Tells the NIC what is free; `rearm` also asks for an interrupt with the next marked entry.
    fn commit(&mut self, rearm: bool) {
        let rp = Rp(0).with_lrp(self.rp).with_irq_retrigger(rearm);
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
        Ring::new(map, 16, slots * 16).unwrap()
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
            assert_eq!(r.map.load(0), 0x1_0000_0000 | u64::from(5000 % slots));
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
        assert!(Ring::new(map, 16, 0).is_err());
        let map = Mapping::anonymous(PAGE, None).unwrap();
        assert!(Ring::new(map, 16, PAGE).is_err());
    }
}
