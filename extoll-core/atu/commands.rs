// SPDX-License-Identifier: GPL-2.0-only

//! Flush, fence and notification commands of the ATU (HW §11.3, G17).
//!
//! The NIC answers a notification command by writing a word to host memory. [`Tickets`] decides
//! when such a command is issued, which word it names and which commands are answered. This file
//! contains the words and writes the command register. Commands can be issued in any context, under
//! a spinlock that disables interrupts. Functions that wait for the NIC poll and may sleep.

use crate::{context::Context, dma::DmaWords, hw::Hw};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        new_spinlock_irq, SpinLockIrq,
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::barrier;
use protocol::nic::{
    nla::NlaRange,
    tickets::{Ask, Ticket, Tickets},
    translation::{Answer, Flush},
};
use wire::{
    atu::{Command, GAT_ENTRIES, MAX_FLUSH},
    ids::{BusAddr, Vpid},
    regs::atu,
};

/// Maximum number of flush commands between two waits in [`Commands::flush_slowly`]. They flush one
/// table, i.e. 1 GiB of memory.
const FLUSHES: u32 = GAT_ENTRIES / MAX_FLUSH;
/// Number of notification words. Each has a second word for the fence command that precedes the
/// notification, because a fence writes a word as well.
const SLOTS: u32 = 256;
const WORDS: usize = 2 * SLOTS as usize;
/// Time limit for an answer of the NIC, in milliseconds.
const DEADLINE_MS: i64 = 1000;
/// Initial and maximum pause between two polls of a word, in microseconds.
const PAUSE_US: (i64, i64) = (10, 2000);

struct Inner {
    words: Option<DmaWords>,
    tickets: Tickets,
}

/// Command interface of the unit.
#[pin_data]
pub(super) struct Commands {
    #[pin]
    inner: SpinLockIrq<Inner>,
    /// Number of flushes issued so far.
    flushes: Atomic<u64>,
}

fn post(hw: &Hw, command: Command) {
    if let Ok(word) = command.encode() {
        hw.rf.write(atu::CMD_INTERFACE, word.raw());
    }
}

impl Inner {
    /// Polls the words of outstanding notifications.
    fn poll(&mut self) {
        if let Some(words) = &self.words {
            self.tickets.check(|word| words.read(word) != 0);
        }
    }

    fn request(&mut self, hw: &Hw) -> Option<Ticket> {
        self.poll();
        let words = self.words.as_ref()?;
        let (ticket, word) = match self.tickets.ask() {
            Ask::New(ticket, word) => {
                words.write(word, 0);
                // The word must be clear before the NIC can set it.
                barrier::wmb();
                (Some(ticket), word)
            }
            Ask::Again(word) => (None, word),
        };
        let address = |word: usize| BusAddr(words.address().0 + 8 * word as u64);
        // Only the notification is awaited, because some chip versions may lack the fence (HW
        // §11.3).
        post(hw, Command::Fence(address(word + SLOTS as usize)));
        post(hw, Command::Notify(address(word)));
        ticket
    }

    fn is_answered(&self, ticket: Option<Ticket>) -> bool {
        ticket.is_some_and(|ticket| self.tickets.is_answered(ticket))
    }
}

/// Snapshot of the answered notifications. `None` counts all tickets as answered, because a removed
/// NIC cannot access memory.
pub(super) struct Answered(Option<Tickets>);

impl Answered {
    /// Returns whether the snapshot shows `ticket` as answered. `None` as ticket means that no
    /// notification could be requested.
    pub(super) fn answers(&self, ticket: Option<Ticket>) -> bool {
        match (&self.0, ticket) {
            (None, _) => true,
            (Some(tickets), Some(ticket)) => tickets.is_answered(ticket),
            (Some(_), None) => false,
        }
    }
}

impl Commands {
    pub(super) fn new() -> impl PinInit<Self> {
        let inner = Inner {
            words: None,
            tickets: Tickets::new(SLOTS),
        };
        pin_init!(Self {
            inner <- new_spinlock_irq!(inner, "extoll_atu_commands"),
            flushes: Atomic::new(0),
        })
    }

    /// Allocates the words. May sleep.
    pub(super) fn open(&self, ctx: &Context) -> Result {
        let words = ctx.with_bound(|dev| DmaWords::new(dev, WORDS))??;
        let end = words.address().0 + 8 * WORDS as u64;
        // Commands contain 48 address bits.
        if end > 1 << 48 {
            return Err(EIO);
        }
        self.inner.lock().words = Some(words);
        Ok(())
    }

    /// Frees the words. May sleep.
    pub(super) fn close(&self) {
        let words = self.inner.lock().words.take();
        drop(words);
    }

    /// Issues flush commands for pages whose entries were zeroed. Any context. The duration is
    /// proportional to the number of pages.
    pub(super) fn flush(&self, ctx: &Context, range: NlaRange) -> Flush {
        self.command(ctx, range)
    }

    /// Issues flush commands like [`Commands::flush`], but waits for the NIC after each 1 GiB, so
    /// that commands of other callers are not delayed for long. May sleep, up to a second if the
    /// NIC does not answer.
    pub(super) fn flush_slowly(&self, ctx: &Context, range: NlaRange) -> Flush {
        let most = u64::from(FLUSHES) * u64::from(MAX_FLUSH);
        let (mut first, mut answers) = (range.first, true);
        while answers && range.end() - first > most {
            self.command(ctx, NlaRange { first, pages: most });
            first += most;
            answers = self.wait(ctx).result.is_ok();
        }
        let pages = range.end() - first;
        self.command(ctx, NlaRange { first, pages })
    }

    fn command(&self, ctx: &Context, range: NlaRange) -> Flush {
        // The zeros must be visible before the NIC can read the entries again.
        barrier::wmb();
        if let Some(hw) = ctx.alive_access() {
            let (mut page, end) = (range.first, range.end());
            while page < end {
                let entry = (page % u64::from(GAT_ENTRIES)) as u32;
                let count = (end - page)
                    .min(u64::from(MAX_FLUSH))
                    .min(u64::from(GAT_ENTRIES - entry));
                let flush = Command::FlushPages {
                    gat: (page / u64::from(GAT_ENTRIES)) as u16,
                    entry,
                    count: count as u32,
                };
                post(&hw, flush);
                page += count;
            }
        }
        // The commands must precede the count, because readers of the count issue a notification
        // command that covers them.
        barrier::wmb();
        Flush(self.flushes.fetch_add(1, Full) + 1)
    }

    /// Issues flush commands for all translations of all VPIDs. Any context.
    pub(super) fn flush_all(hw: &Hw) {
        for vpid in Vpid::all() {
            post(hw, Command::FlushVpid(vpid));
        }
    }

    /// Requests a notification without waiting for it. Returns `None` if all words are outstanding
    /// or the NIC was removed. Any context.
    pub(super) fn request(&self, ctx: &Context) -> Option<Ticket> {
        let hw = ctx.alive_access()?;
        self.inner.lock().request(&hw)
    }

    /// Returns a snapshot of the answered notifications. May sleep, but does not wait for the NIC.
    pub(super) fn answered(&self, ctx: &Context) -> Answered {
        if !ctx.is_alive() {
            ctx.isolate();
            return Answered(None);
        }
        let tickets = {
            let mut inner = self.inner.lock();
            inner.poll();
            inner.tickets.clone()
        };
        barrier::dma_rmb();
        Answered(Some(tickets))
    }

    /// Waits until the NIC has executed all commands issued so far and until its earlier writes
    /// have reached memory. Memory whose translations were flushed can then be freed. A call takes
    /// some milliseconds, so callers end many regions with one call. Conditions as for
    /// [`Commands::wait`].
    pub(super) fn wait_and_drain(&self, ctx: &Context) -> Answer {
        let answer = self.wait(ctx);
        if answer.result.is_ok() {
            ctx.wait_for_writes();
        }
        answer
    }

    /// Waits until the NIC has executed all commands issued so far. It then no longer reads tables
    /// whose translations were flushed. A removed NIC is cut off from memory instead, which counts
    /// as success. May sleep, up to about [`DEADLINE_MS`].
    pub(super) fn wait(&self, ctx: &Context) -> Answer {
        // The read has full ordering and pairs with the increment.
        let upto = Flush(self.flushes.fetch_add(0, Full));
        let result = self.wait_for_one(ctx);
        Answer { upto, result }
    }

    fn wait_for_one(&self, ctx: &Context) -> Result<(), Option<Ticket>> {
        let begin: Instant<Monotonic> = Instant::now();
        let (mut pause, longest) = PAUSE_US;
        let mut ticket = None;
        loop {
            let Some(hw) = ctx.alive_access() else {
                ctx.isolate();
                return Ok(());
            };
            let answered = {
                let mut inner = self.inner.lock();
                if inner.words.is_none() {
                    // The unit was never set up.
                    return Ok(());
                }
                if ticket.is_none() {
                    ticket = inner.request(&hw);
                }
                inner.poll();
                inner.is_answered(ticket)
            };
            drop(hw);
            if answered {
                // After this barrier, data that the NIC wrote before its answer are visible.
                barrier::dma_rmb();
                return Ok(());
            }
            if begin.elapsed().as_millis() >= DEADLINE_MS {
                check_removed(ctx);
                return Err(ticket);
            }
            fsleep(Delta::from_micros(pause));
            pause = (pause * 2).min(longest);
        }
    }

    /// Returns the numbers of notifications requested and received. Any context.
    pub(super) fn show(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.tickets.asked(), inner.tickets.answered())
    }
}

/// Checks whether the NIC was removed, because it did not answer in time.
fn check_removed(ctx: &Context) {
    if let Some(hw) = ctx.alive_access() {
        ctx.check_removed(&hw, hw.rf.read(atu::CONTROL));
    }
}
