// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notifications of a port (HW §10.4).

use crate::error::{Error, Result};
use crate::raw::Mapping;
use crate::ring::Ring;
use wire::rma::Notification;

pub(crate) struct Queue {
    pub ring: Ring,
    pub received: u64,
    pub sleeps: u64,
}

impl Queue {
    pub fn new(map: Mapping, bytes: usize) -> Result<Self> {
        Ok(Self {
            ring: Ring::new(map, 16, bytes)?,
            received: 0,
            sleeps: 0,
        })
    }

    fn words(&self, slot: u32) -> [u64; 2] {
        // The status first: word 0 is valid once word 1 is there.
        let word1 = self.ring.status(slot);
        [self.ring.word(slot, 0), word1]
    }

    /// Takes the oldest notification that is wanted. A malformed one is taken and reported.
    pub fn take(&mut self, wanted: impl Fn(&Notification) -> bool) -> Result<Option<Notification>> {
        let mut found = None;
        for slot in self.ring.filled() {
            match Notification::decode(self.words(slot)) {
                Ok(Some(n)) if wanted(&n) => found = Some((slot, Ok(n))),
                Ok(_) => continue,
                Err(e) => found = Some((slot, Err(Error::Notification(e)))),
            }
            break;
        }
        let Some((slot, result)) = found else {
            return Ok(None);
        };
        self.ring.free(slot);
        self.received += 1;
        result.map(Some)
    }

    /// Address of the oldest wanted notification, or how many there are of which none is wanted.
    pub fn peek(&self, wanted: impl Fn([u64; 2]) -> bool) -> std::result::Result<*mut u8, usize> {
        let mut others = 0;
        for slot in self.ring.filled() {
            if wanted(self.words(slot)) {
                return Ok(self.ring.address(slot));
            }
            others += 1;
        }
        Err(others)
    }

    pub fn free(&mut self, address: *const u8) -> bool {
        let freed = self
            .ring
            .slot_at(address)
            .is_some_and(|slot| self.ring.free(slot));
        self.received += u64::from(freed);
        freed
    }
}
