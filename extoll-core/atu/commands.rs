// SPDX-License-Identifier: GPL-2.0-only

//! Flush, fence and notification commands (HW §11.3, G17).
//!
//! Notifications are numbered. Each is written to a word of its own, and the NIC executes commands in order, so one that
//! has arrived answers for all commands before it, also for notifications that got lost or are late. That is why a word
//! is used again only when its own notification or a later one was seen.

use crate::{dma::DmaWords, hw::Hw, nic::Nic};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::SpinLock,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::barrier;
use wire::{
    atu::{Command, GAT_ENTRIES, MAX_FLUSH},
    ids::BusAddr,
    nla::Range,
    regs::atu,
};

/// Words for notifications; half of them, as each comes with a fence that writes, too.
const WORDS: usize = 512;
const SLOTS: u64 = WORDS as u64 / 2;
/// How long the NIC may take to answer, in milliseconds.
pub(crate) const DEADLINE_MS: i64 = 1000;
/// First and longest pause between looks at a word, in microseconds.
const PAUSE_US: (i64, i64) = (10, 2000);

/// Number of a notification.
#[derive(Clone, Copy)]
pub(super) struct Ticket(u64);

struct Inner {
    words: Option<DmaWords>,
    /// Last number asked for, and last number that is known to be answered.
    asked: u64,
    seen: u64,
}

/// The command interface.
#[pin_data]
pub(crate) struct Commands {
    #[pin]
    inner: SpinLock<Inner>,
}

fn slot(number: u64) -> usize {
    (number % SLOTS) as usize
}

impl Inner {
    /// Looks for answers.
    fn look(&mut self) {
        let Some(words) = &self.words else { return };
        let newest = (self.seen + 1..=self.asked)
            .rev()
            .find(|n| words.read(slot(*n)) != 0);
        if let Some(n) = newest {
            self.seen = n;
        }
    }

    fn ask(&mut self, hw: &Hw) -> Option<Ticket> {
        self.look();
        if self.asked - self.seen >= SLOTS {
            return None;
        }
        let number = self.asked + 1;
        let words = self.words.as_ref()?;
        words.write(slot(number), 0);
        // The word is clear before the NIC may set it.
        barrier::wmb();
        let address = |word: usize| BusAddr(words.address().0 + 8 * word as u64);
        // A build of the chip may lack the fence (HW §11.3): only the notification is waited for.
        for command in [
            Command::Fence(address(slot(number) + SLOTS as usize)),
            Command::Notify(address(slot(number))),
        ] {
            hw.rf
                .write(atu::CMD_INTERFACE, command.encode().ok()?.raw());
        }
        self.asked = number;
        Some(Ticket(number))
    }
}

impl Commands {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_spinlock!(
                Inner { words: None, asked: 0, seen: 0 },
                "extoll_atu_commands"
            ),
        })
    }

    pub(super) fn open(&self, nic: &Nic) -> Result {
        let words = nic.with_bound(|dev| DmaWords::new(dev, WORDS))??;
        let end = words.address().0 + 8 * WORDS as u64;
        // Commands hold 48 address bits.
        if end > 1 << 48 {
            return Err(EIO);
        }
        self.inner.lock().words = Some(words);
        Ok(())
    }

    pub(super) fn close(&self) {
        let words = self.inner.lock().words.take();
        drop(words);
    }

    /// Makes the NIC forget the translations of pages whose entries were zeroed. Any context.
    pub(super) fn flush(nic: &Nic, range: Range) {
        let Some(hw) = nic.alive_access() else { return };
        // The zeros are visible before the NIC may read the entries again.
        barrier::wmb();
        let (mut page, end) = (range.first, range.end());
        while page < end {
            let entry = (page % u64::from(GAT_ENTRIES)) as u32;
            let count = (end - page)
                .min(u64::from(MAX_FLUSH))
                .min(u64::from(GAT_ENTRIES - entry));
            let command = Command::FlushPages {
                gat: (page / u64::from(GAT_ENTRIES)) as u16,
                entry,
                count: count as u32,
            };
            if let Ok(word) = command.encode() {
                hw.rf.write(atu::CMD_INTERFACE, word.raw());
            }
            page += count;
        }
    }

    /// Waits until the NIC has executed all commands given so far. True also for a NIC that is gone. May sleep, at most
    /// about [`DEADLINE_MS`].
    pub(super) fn settle(&self, nic: &Nic) -> bool {
        let begin: Instant<Monotonic> = Instant::now();
        let (mut pause, longest) = PAUSE_US;
        let mut ticket = None;
        loop {
            let Some(hw) = nic.alive_access() else {
                return true;
            };
            let answered = {
                let mut inner = self.inner.lock();
                if inner.words.is_none() {
                    // The unit was never set up.
                    return true;
                }
                if ticket.is_none() {
                    ticket = inner.ask(&hw);
                }
                inner.look();
                ticket.is_some_and(|Ticket(n)| n <= inner.seen)
            };
            drop(hw);
            if answered {
                // What the NIC wrote before, e.g. data, is visible.
                barrier::dma_rmb();
                return true;
            }
            if begin.elapsed().as_millis() >= DEADLINE_MS {
                return false;
            }
            fsleep(Delta::from_micros(pause));
            pause = (pause * 2).min(longest);
        }
    }

    /// Notifications asked for and seen.
    pub(super) fn show(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.asked, inner.seen)
    }
}
