// SPDX-License-Identifier: GPL-2.0-only

//! Connections that wait for something of the ports, first come, first served.

use super::Kernel;
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use kernel_ext::{new_bh_lock, BhLock};
use protocol::ds::Line;

/// A queue of connections by their places. Who looks what a place has finds another connection
/// there, or none, if the one that waited is gone.
#[pin_data]
pub(super) struct Waiters {
    #[pin]
    line: BhLock<Line<Kernel>>,
    /// How often there was something.
    news: Atomic<u64>,
}

impl Waiters {
    /// For so many places. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(places: usize) -> Result<impl PinInit<Self>> {
        let line = Line::new(places)?;
        Ok(pin_init!(Self {
            line <- new_bh_lock!(line, "extl_line"),
            news: Atomic::new(0),
        }))
    }

    /// To be kept by who is about to try, for [`Waiters::wait`]. Any context.
    pub(super) fn seen(&self) -> u64 {
        self.news.load(Relaxed)
    }

    /// A connection was refused, and waits. Whether there was something since `seen`: whoever tells of
    /// it may have found nobody who waits. Process context or softirq.
    pub(super) fn wait(&self, place: u32, seen: u64) -> bool {
        let mut line = self.line.lock();
        line.push(place);
        // With the lock, which [`Waiters::next`] takes after `news`: one of the two sees the other.
        self.news.load(Relaxed) != seen
    }

    /// There is something: who has said so has to look for those who wait afterwards. Any context.
    pub(super) fn tell(&self) {
        self.news.fetch_add(1, Relaxed);
    }

    /// Who waits for longest, and does not any more. Process context.
    pub(super) fn next(&self) -> Option<u32> {
        self.line.lock().pop()
    }

    /// The one behind `at` others, which still waits. Process context; nobody but the caller takes
    /// any.
    pub(super) fn get(&self, at: usize) -> Option<u32> {
        self.line.lock().get(at)
    }

    /// It does not wait any more. Process context, as for [`Waiters::get`].
    pub(super) fn remove(&self, at: usize) {
        self.line.lock().remove(at);
    }

    /// How many others than this one wait. Process context or softirq.
    pub(super) fn others(&self, place: u32) -> usize {
        self.line.lock().others(place)
    }

    /// How many wait. Process context or softirq.
    pub(super) fn len(&self) -> usize {
        self.line.lock().len()
    }
}
