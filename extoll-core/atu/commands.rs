// SPDX-License-Identifier: GPL-2.0-only

//! Flush, fence and notification commands (HW §11.3, G17).
//!
//! Which notifications are asked for, which words they get, and which of them are answered is
//! decided by [`Tickets`]; here are the words and the register.

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
use protocol::{
    tickets::{Ask, Ticket, Tickets},
    translation::{Answer, Flush},
};
use wire::{
    atu::{Command, GAT_ENTRIES, MAX_FLUSH},
    ids::{BusAddr, Vpid},
    nla::Range,
    regs::atu,
};

/// Flushes that are commanded without asking whether the NIC keeps up: as many as a table has, 1 GiB
/// of memory.
const FLUSHES: u32 = GAT_ENTRIES / MAX_FLUSH;
/// Words for notifications, each with one for the fence that comes with it, which writes, too.
const SLOTS: u32 = 256;
const WORDS: usize = 2 * SLOTS as usize;
/// How long the NIC may take to answer, in milliseconds.
const DEADLINE_MS: i64 = 1000;
/// First and longest pause between looks at a word, in microseconds.
const PAUSE_US: (i64, i64) = (10, 2000);

struct Inner {
    words: Option<DmaWords>,
    tickets: Tickets,
}

/// The command interface.
#[pin_data]
pub(super) struct Commands {
    #[pin]
    inner: SpinLockIrq<Inner>,
    /// Flushes that were commanded.
    flushes: Atomic<u64>,
}

fn post(hw: &Hw, command: Command) {
    if let Ok(word) = command.encode() {
        hw.rf.write(atu::CMD_INTERFACE, word.raw());
    }
}

impl Inner {
    /// Looks for answers.
    fn look(&mut self) {
        if let Some(words) = &self.words {
            self.tickets.look(|word| words.read(word) != 0);
        }
    }

    fn ask(&mut self, hw: &Hw) -> Option<Ticket> {
        self.look();
        let words = self.words.as_ref()?;
        let (ticket, word) = match self.tickets.ask() {
            Ask::New(ticket, word) => {
                words.write(word, 0);
                // The word is clear before the NIC may set it.
                barrier::wmb();
                (Some(ticket), word)
            }
            Ask::Again(word) => (None, word),
        };
        let address = |word: usize| BusAddr(words.address().0 + 8 * word as u64);
        // A build of the chip may lack the fence (HW §11.3): only the notification is waited for.
        post(hw, Command::Fence(address(word + SLOTS as usize)));
        post(hw, Command::Notify(address(word)));
        ticket
    }

    fn is_answered(&self, ticket: Option<Ticket>) -> bool {
        ticket.is_some_and(|ticket| self.tickets.is_answered(ticket))
    }
}

/// Which notifications had come at some time; `None` for all, of a NIC that is gone, and has lost
/// its access to memory.
pub(super) struct Seen(Option<Tickets>);

impl Seen {
    /// Whether it answers a ticket; without one nothing was asked.
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

    /// May sleep.
    pub(super) fn open(&self, ctx: &Context) -> Result {
        let words = ctx.with_bound(|dev| DmaWords::new(dev, WORDS))??;
        let end = words.address().0 + 8 * WORDS as u64;
        // Commands hold 48 address bits.
        if end > 1 << 48 {
            return Err(EIO);
        }
        self.inner.lock().words = Some(words);
        Ok(())
    }

    /// May sleep.
    pub(super) fn close(&self) {
        let words = self.inner.lock().words.take();
        drop(words);
    }

    /// Makes the NIC forget the translations of pages whose entries were zeroed. Any context; takes
    /// as long as it takes for all pages.
    pub(super) fn flush(&self, ctx: &Context, range: Range) -> Flush {
        self.command(ctx, range)
    }

    /// As [`Commands::flush`], but now and then waits until the NIC has executed what it was given,
    /// so that others get through to it. May sleep, a second at most if it does not answer.
    pub(super) fn flush_slowly(&self, ctx: &Context, range: Range) -> Flush {
        let most = u64::from(FLUSHES) * u64::from(MAX_FLUSH);
        let (mut first, mut answers) = (range.first, true);
        while answers && range.end() - first > most {
            self.command(ctx, Range { first, pages: most });
            first += most;
            answers = self.wait(ctx).result.is_ok();
        }
        let pages = range.end() - first;
        self.command(ctx, Range { first, pages })
    }

    fn command(&self, ctx: &Context, range: Range) -> Flush {
        // The zeros are visible before the NIC may read the entries again.
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
        // Who sees that it is counted asks behind it.
        barrier::wmb();
        Flush(self.flushes.fetch_add(1, Full) + 1)
    }

    /// Makes the NIC forget all translations. Any context.
    pub(super) fn flush_all(hw: &Hw) {
        for vpid in Vpid::all() {
            post(hw, Command::FlushVpid(vpid));
        }
    }

    /// Asks for a notification without waiting for it; `None` if too many are not answered, or the
    /// NIC is gone. Any context.
    pub(super) fn ask(&self, ctx: &Context) -> Option<Ticket> {
        let hw = ctx.alive_access()?;
        self.inner.lock().ask(&hw)
    }

    /// Which notifications have come. May sleep, but does not wait for the NIC.
    pub(super) fn seen(&self, ctx: &Context) -> Seen {
        if !ctx.is_alive() {
            ctx.isolate();
            return Seen(None);
        }
        let tickets = {
            let mut inner = self.inner.lock();
            inner.look();
            inner.tickets.clone()
        };
        barrier::dma_rmb();
        Seen(Some(tickets))
    }

    /// Waits until the NIC has executed all commands given so far, and what it had begun to write
    /// has arrived: what it has forgotten can be given back. Once for many that end, as this takes
    /// some milliseconds. Otherwise as [`Commands::wait`].
    pub(super) fn settle(&self, ctx: &Context) -> Answer {
        let answer = self.wait(ctx);
        if answer.result.is_ok() {
            ctx.let_writes_arrive();
        }
        answer
    }

    /// Waits until the NIC has executed all commands given so far: it reads no tables any more that
    /// it has forgotten. Answered also by a NIC that is gone, and has lost its access to memory
    /// then. May sleep, at most about [`DEADLINE_MS`].
    pub(super) fn wait(&self, ctx: &Context) -> Answer {
        // With full order, as it is added to.
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
                    ticket = inner.ask(&hw);
                }
                inner.look();
                inner.is_answered(ticket)
            };
            drop(hw);
            if answered {
                // What the NIC wrote before, e.g. data, is visible.
                barrier::dma_rmb();
                return Ok(());
            }
            if begin.elapsed().as_millis() >= DEADLINE_MS {
                notice_gone(ctx);
                return Err(ticket);
            }
            fsleep(Delta::from_micros(pause));
            pause = (pause * 2).min(longest);
        }
    }

    /// Notifications asked for and seen. Any context.
    pub(super) fn show(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.tickets.asked(), inner.tickets.answered())
    }
}

/// The NIC did not answer: notices if it is gone.
fn notice_gone(ctx: &Context) {
    if let Some(hw) = ctx.alive_access() {
        ctx.is_gone(&hw, hw.rf.read(atu::CONTROL));
    }
}
