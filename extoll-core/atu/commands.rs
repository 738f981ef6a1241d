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
    ids::{BusAddr, Vpid},
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

/// Number of a notification. When it or a later one was seen, all commands given before it was asked for are executed.
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
        // A word is used again when a notification behind the last one for it was seen: that one may have been asked for twice (below), and
        // the second answer must not pass for that to the next.
        let full = self.asked - self.seen >= SLOTS - 1;
        let words = self.words.as_ref()?;
        // All of them may be lost. The last one is asked for again, which answers for those before, but for nobody new: it may be late only.
        let number = if full { self.asked } else { self.asked + 1 };
        if !full {
            words.write(slot(number), 0);
            // The word is clear before the NIC may set it.
            barrier::wmb();
        }
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
        (!full).then_some(Ticket(number))
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

    /// Makes the NIC forget all translations. Any context.
    pub(super) fn flush_all(hw: &Hw) {
        for vpid in Vpid::all() {
            if let Ok(word) = Command::FlushVpid(vpid).encode() {
                hw.rf.write(atu::CMD_INTERFACE, word.raw());
            }
        }
    }

    /// Asks for a notification without waiting for it; `None` if too many are not answered. Any context.
    pub(super) fn ask(&self, nic: &Nic) -> Option<Ticket> {
        let hw = nic.alive_access()?;
        self.inner.lock().ask(&hw)
    }

    /// Whether a notification has come. True also for a NIC that is gone, and has lost its access to memory then. May sleep, but does not wait.
    pub(super) fn is_answered(&self, nic: &Nic, Ticket(number): Ticket) -> bool {
        if !nic.is_alive() {
            nic.isolate();
            return true;
        }
        let mut inner = self.inner.lock();
        inner.look();
        let answered = number <= inner.seen;
        barrier::dma_rmb();
        answered
    }

    /// As [`Commands::wait`] without the number.
    pub(super) fn settle(&self, nic: &Nic) -> bool {
        self.wait(nic).is_ok()
    }

    /// Waits until the NIC has executed all commands given so far. True also for a NIC that is gone, and has lost its access to memory then.
    /// May sleep, at most about [`DEADLINE_MS`].
    ///
    /// # Errors
    ///
    /// What to look for later, if it could be asked for.
    pub(super) fn wait(&self, nic: &Nic) -> Result<(), Option<Ticket>> {
        let begin: Instant<Monotonic> = Instant::now();
        let (mut pause, longest) = PAUSE_US;
        let mut ticket = None;
        loop {
            let Some(hw) = nic.alive_access() else {
                nic.isolate();
                return Ok(());
            };
            let answered = {
                let mut inner = self.inner.lock();
                if inner.words.is_none() {
                    // The unit was never set up.
                    return Ok(());
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
                return Ok(());
            }
            if begin.elapsed().as_millis() >= DEADLINE_MS {
                return Err(ticket);
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
