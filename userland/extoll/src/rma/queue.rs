// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notification queue of a port (HW §10.4).

use super::jobs::Jobs;
use crate::backend::rma::GET_NOTIQ_WP;
use crate::error::{Error, Result};
use crate::raw::Mapping;
use crate::ring::Ring;
use crate::wait::Link;
use crate::Backend;
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::rma::Notification;

/// Result of a search for a notification by address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Address of the notification.
    At(*mut u8),
    /// Number of notifications in the queue. The search accepted none of them.
    Others(usize),
}

pub(crate) struct Queue {
    /// Ring of the queue; `None` after a failed change of the size.
    ring: Option<Ring>,
    /// Slots whose addresses the program has received.
    returned: BTreeSet<u32>,
    pub jobs: Jobs,
    pub received: u64,
    pub sleeps: u64,
    /// Number of read pointer updates in rings that were replaced.
    commits: u64,
    skipped: u64,
}

fn words(ring: &Ring, slot: u32) -> [u64; 2] {
    // The status is read first, because word 0 is valid only after word 1 is set.
    let word1 = ring.status(slot);
    [ring.word(slot, 0), word1]
}

/// Size of a slot in bytes.
const SLOT: usize = 16;

/// Creates the ring for a mapping.
pub(super) fn ring(map: Mapping, bytes: usize, link: &Arc<Link>) -> Result<Ring> {
    Ring::new(map, SLOT, bytes, link.clone())
}

/// Returns the last slot of a ring of `bytes` bytes.
pub(super) fn last(bytes: usize) -> u64 {
    (bytes / SLOT).saturating_sub(1) as u64
}

impl Queue {
    pub fn new(ring: Ring) -> Self {
        Self {
            ring: Some(ring),
            returned: BTreeSet::new(),
            jobs: Jobs::default(),
            received: 0,
            sleeps: 0,
            commits: 0,
            skipped: 0,
        }
    }

    /// Replaces the ring. Addresses that the program has received become invalid.
    pub fn replace(&mut self, ring: Option<Ring>) {
        (self.commits, self.skipped) = (self.commits(), self.skipped());
        self.returned.clear();
        self.ring = ring;
    }

    pub fn ring(&mut self) -> Result<&mut Ring> {
        self.ring.as_mut().ok_or(Error::NoQueue)
    }

    /// Returns the number of slots of the ring.
    pub fn slots(&self) -> u32 {
        self.ring.as_ref().map_or(0, Ring::slots)
    }

    /// Returns the number of updates of the read pointer.
    pub fn commits(&self) -> u64 {
        self.commits + self.ring.as_ref().map_or(0, |ring| ring.commits)
    }

    /// Returns the number of skipped slots.
    pub fn skipped(&self) -> u64 {
        self.skipped + self.ring.as_ref().map_or(0, |ring| ring.skipped)
    }

    /// Returns whether a slot stays empty, so that the queue must be checked again soon.
    pub fn is_suspect(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::is_suspect)
    }

    /// Skips notifications whose write to the queue was lost.
    pub fn skip_lost(&mut self, backend: &dyn Backend) -> Result<()> {
        // A port without a queue cannot lose notifications.
        let Some(ring) = self.ring.as_mut() else {
            return Ok(());
        };
        let wp = || backend.get(GET_NOTIQ_WP);
        let Some((slot, overdue)) = ring.lost_slots(Ring::first_empty, wp)? else {
            return Ok(());
        };
        match ring.run_of_empty(slot, overdue) {
            0 => Ok(()),
            lost => {
                ring.skip(slot, lost);
                Err(Error::Skipped(lost))
            }
        }
    }

    /// Moves notifications of the port's own calls from the queue to their jobs.
    pub fn dispatch(&mut self) -> Result<()> {
        let ring = self.ring.as_mut().ok_or(Error::NoQueue)?;
        ring.check()?;
        if self.jobs.is_empty() {
            return Ok(());
        }
        let (jobs, returned) = (&mut self.jobs, &self.returned);
        let is_theirs = |slot: &u32| match Notification::decode(words(ring, *slot)) {
            Ok(Some(n)) => !returned.contains(slot) && jobs.take(&n),
            _ => false,
        };
        let theirs: Vec<u32> = ring.filled().filter(is_theirs).collect();
        for slot in theirs {
            ring.free(slot);
            self.received += 1;
        }
        self.jobs.expire();
        Ok(())
    }

    /// Removes and returns the oldest notification that `wanted` accepts. If a malformed
    /// notification precedes it, removes the malformed notification and returns an error.
    pub fn take(&mut self, wanted: impl Fn(&Notification) -> bool) -> Result<Option<Notification>> {
        self.dispatch()?;
        let returned = &self.returned;
        let ring = self.ring.as_mut().ok_or(Error::NoQueue)?;
        let mut found = None;
        for slot in ring.filled().filter(|slot| !returned.contains(slot)) {
            match Notification::decode(words(ring, slot)) {
                Ok(Some(n)) if wanted(&n) => found = Some((slot, Ok(n))),
                Ok(_) => continue,
                Err(e) => found = Some((slot, Err(Error::Notification(e)))),
            }
            break;
        }
        let Some((slot, result)) = found else {
            return Ok(None);
        };
        ring.free(slot);
        self.received += 1;
        result.map(Some)
    }

    /// Returns the address of the oldest notification that `wanted` accepts. No other call returns
    /// the notification until it is freed.
    pub fn lend(&mut self, wanted: impl Fn([u64; 2]) -> bool) -> Result<Found> {
        self.dispatch()?;
        let returned = &mut self.returned;
        let ring = self.ring.as_ref().ok_or(Error::NoQueue)?;
        let mut others = 0;
        for slot in ring.filled().filter(|slot| !returned.contains(slot)) {
            if wanted(words(ring, slot)) {
                returned.insert(slot);
                return Ok(Found::At(ring.address(slot)));
            }
            others += 1;
        }
        Ok(Found::Others(others))
    }

    /// Frees a notification that [`Queue::lend`] returned. Returns false for other addresses.
    pub fn free(&mut self, address: *const u8) -> bool {
        let Some(ring) = self.ring.as_mut() else {
            return false;
        };
        // If the NIC was removed, no slot needs to be freed.
        let freed = ring.slot_at(address).is_some_and(|slot| {
            self.returned.remove(&slot) && (ring.free(slot) || ring.check().is_err())
        });
        self.received += u64::from(freed);
        freed
    }
}
