// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Notifications of a port (HW §10.4).

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

/// What a look for a notification by address found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Its address.
    At(*mut u8),
    /// So many, of which none is wanted.
    Others(usize),
}

pub(crate) struct Queue {
    /// `None` after a failed change of its size.
    ring: Option<Ring>,
    /// Slots whose address was given out.
    lent: BTreeSet<u32>,
    pub jobs: Jobs,
    pub received: u64,
    pub sleeps: u64,
    /// Of rings that are gone.
    commits: u64,
    skipped: u64,
}

fn words(ring: &Ring, slot: u32) -> [u64; 2] {
    // The status first: word 0 is valid once word 1 is there.
    let word1 = ring.status(slot);
    [ring.word(slot, 0), word1]
}

/// Bytes of a slot.
const SLOT: usize = 16;

/// The ring in a mapping.
pub(super) fn ring(map: Mapping, bytes: usize, link: &Arc<Link>) -> Result<Ring> {
    Ring::new(map, SLOT, bytes, link.clone())
}

/// The last slot of a ring of so many bytes.
pub(super) fn last(bytes: usize) -> u64 {
    (bytes / SLOT).saturating_sub(1) as u64
}

impl Queue {
    pub fn new(ring: Ring) -> Self {
        Self {
            ring: Some(ring),
            lent: BTreeSet::new(),
            jobs: Jobs::default(),
            received: 0,
            sleeps: 0,
            commits: 0,
            skipped: 0,
        }
    }

    /// Another ring, or none. Addresses that were given out mean nothing any more.
    pub fn replace(&mut self, ring: Option<Ring>) {
        (self.commits, self.skipped) = (self.commits(), self.skipped());
        self.lent.clear();
        self.ring = ring;
    }

    pub fn ring(&mut self) -> Result<&mut Ring> {
        self.ring.as_mut().ok_or(Error::NoQueue)
    }

    /// Slots of the ring.
    pub fn slots(&self) -> u32 {
        self.ring.as_ref().map_or(0, Ring::slots)
    }

    /// Read pointers written.
    pub fn commits(&self) -> u64 {
        self.commits + self.ring.as_ref().map_or(0, |ring| ring.commits)
    }

    /// Slots given up.
    pub fn skipped(&self) -> u64 {
        self.skipped + self.ring.as_ref().map_or(0, |ring| ring.skipped)
    }

    /// The queue has to be looked at again soon, for slots that stay empty.
    pub fn is_suspect(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::is_suspect)
    }

    /// Gives up what got lost on its way into the queue.
    pub fn skip_lost(&mut self, backend: &dyn Backend) -> Result<()> {
        // Without a queue nothing can get lost in it.
        let Some(ring) = self.ring.as_mut() else {
            return Ok(());
        };
        let wp = || backend.get(GET_NOTIQ_WP);
        let Some((slot, overdue)) = ring.overdue(Ring::first_empty, wp)? else {
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

    /// Gives what the port's own calls wait for, or gave up, to them.
    pub fn sort(&mut self) -> Result<()> {
        let ring = self.ring.as_mut().ok_or(Error::NoQueue)?;
        ring.check()?;
        if self.jobs.is_empty() {
            return Ok(());
        }
        let (jobs, lent) = (&mut self.jobs, &self.lent);
        let is_theirs = |slot: &u32| match Notification::decode(words(ring, *slot)) {
            Ok(Some(n)) => !lent.contains(slot) && jobs.take(&n),
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

    /// Takes the oldest notification that is wanted. A malformed one is taken and reported.
    pub fn take(&mut self, wanted: impl Fn(&Notification) -> bool) -> Result<Option<Notification>> {
        self.sort()?;
        let lent = &self.lent;
        let ring = self.ring.as_mut().ok_or(Error::NoQueue)?;
        let mut found = None;
        for slot in ring.filled().filter(|slot| !lent.contains(slot)) {
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

    /// Lends the oldest wanted notification, which nobody else gets until it is freed.
    pub fn lend(&mut self, wanted: impl Fn([u64; 2]) -> bool) -> Result<Found> {
        self.sort()?;
        let lent = &mut self.lent;
        let ring = self.ring.as_ref().ok_or(Error::NoQueue)?;
        let mut others = 0;
        for slot in ring.filled().filter(|slot| !lent.contains(slot)) {
            if wanted(words(ring, slot)) {
                lent.insert(slot);
                return Ok(Found::At(ring.address(slot)));
            }
            others += 1;
        }
        Ok(Found::Others(others))
    }

    /// Frees a notification that was lent; false for any other address.
    pub fn free(&mut self, address: *const u8) -> bool {
        let Some(ring) = self.ring.as_mut() else {
            return false;
        };
        // Of a NIC that is gone nothing has to be freed any more.
        let freed = ring.slot_at(address).is_some_and(|slot| {
            self.lent.remove(&slot) && (ring.free(slot) || ring.check().is_err())
        });
        self.received += u64::from(freed);
        freed
    }
}
