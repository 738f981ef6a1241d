// SPDX-License-Identifier: GPL-2.0-only

//! Consumer of the notification queue: interrupt handler, dispatcher, recovery of lost entries, and
//! drain of outport 10.
//!
//! Entries are consumed and dispatched with the queue's spinlock held, in the hard interrupt or in
//! work items.

use super::{
    work::{DRAIN, RECOVER, UNMASK},
    EventPolicy, Snq, State, ENTRY_WORDS,
};
use crate::{dma::DmaWords, events::Report, hw::Hw, quirks, stats::Reason, vpid::Delivered, xbar};
use kernel::sync::Arc;
use kernel_ext::{barrier, net::BhDisabled, pci::IrqHandler, trace};
use protocol::nic::snq::{DrainStep, Empty, ErrorChange, Poll, DRAIN_ROUNDS, MASKED_MS};
use wire::{
    ids::{Unit, Vpid},
    regs::snq::{self, QueueIndex},
    snq::{Entry, Header, TriggerEvent, TOURMALET},
};

/// Maximum number of entries processed per interrupt. Remaining entries raise the next interrupt at
/// once.
const BUDGET: u32 = 256;

/// Reads an entry of the ring and its header, even if the entry is not valid.
fn entry(memory: &Option<DmaWords>, index: u16) -> Option<(Header, Entry)> {
    let memory = memory.as_ref()?;
    let first = usize::from(index) * ENTRY_WORDS;
    let mut words = [0; ENTRY_WORDS];
    // The header shows whether the entry has arrived, so it is read before the other words.
    words[ENTRY_WORDS - 1] = memory.read(first + ENTRY_WORDS - 1);
    barrier::dma_rmb();
    for (i, word) in words.iter_mut().take(ENTRY_WORDS - 1).enumerate() {
        *word = memory.read(first + i);
    }
    let entry = Entry::from_words(words);
    Some((entry.header, entry))
}

/// Handler of MSI vector 0.
pub(crate) struct Interrupt(pub(crate) Arc<Snq>);

impl IrqHandler for Interrupt {
    fn handle(&self) {
        self.0.interrupt();
    }
}

impl Snq {
    /// Handles an interrupt of MSI vector 0.
    fn interrupt(self: &Arc<Self>) {
        let ctx = &self.ctx;
        let Some(hw) = ctx.alive_access() else { return };
        ctx.stats().interrupt();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.running {
            return;
        }
        let mut handled = self.take_entries(&hw, state);
        if handled == 0 {
            // The interrupt is spurious, or the NIC was removed. The answer to the register read
            // arrives after all earlier writes of the NIC. A late entry has therefore arrived after
            // the read.
            let wp = hw.rf.read(snq::QUEUE_WPLT);
            if ctx.check_removed(&hw, wp) {
                return;
            }
            handled = self.take_entries(&hw, state);
            let wp = QueueIndex(wp).index();
            if handled == 0 && state.consumer.on_empty(wp) == Empty::Missing {
                // The entry is missing. The interrupt is not re-armed, because it would be raised
                // again at once.
                self.schedule::<RECOVER>(quirks::SNQ_HOLE_MS);
                return;
            }
        }
        if handled == BUDGET {
            ctx.note(Reason::InterruptBudget, 0);
        }
        Self::acknowledge(&hw, state);
        let ring = *state.consumer.ring();
        trace::interrupt(ctx.id(), handled, ring.rplt());
        drop(guard);
        self.deliver_message(&hw, handled == 0, ring.next());
    }

    /// Processes up to [`BUDGET`] entries and returns their number.
    fn take_entries(self: &Arc<Self>, hw: &Hw, state: &mut State) -> u32 {
        let (memory, policy) = (&state.memory, &mut state.policy);
        state.consumer.consume(
            BUDGET,
            |index| entry(memory, index),
            |entry| self.dispatch(hw, policy, &entry),
        )
    }

    /// Writes the read pointer and arms the interrupt.
    fn acknowledge(hw: &Hw, state: &mut State) {
        state.consumer.armed();
        let ring = state.consumer.ring();
        let consumed = QueueIndex(0).with_index(ring.rplt());
        hw.rf.write(snq::QUEUE_RPLT, consumed.raw());
        hw.rf.write(snq::IRQ_WATERMARK, ring.watermark().raw());
    }

    /// Processes entries that have waited since the last poll, because their interrupt was lost.
    /// Without this poll no further interrupt would arrive, because only the interrupt handler
    /// re-arms it.
    pub(super) fn watch(self: &Arc<Self>) {
        // Softirqs that clients raise run when bottom halves are enabled again.
        let _bh = BhDisabled::new();
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.running || state.consumer.is_missing() {
            return;
        }
        let wp = hw.rf.read(snq::QUEUE_WPLT);
        if self.ctx.check_removed(&hw, wp) {
            return;
        }
        let wp = QueueIndex(wp).index();
        if state.consumer.poll(wp) != Poll::Overdue {
            return;
        }
        let first = state.consumer.ring().next();
        self.ctx.error(Reason::LostInterrupt, u64::from(first));
        if self.take_entries(&hw, state) == 0 && state.consumer.on_empty(wp) == Empty::Missing {
            self.schedule::<RECOVER>(quirks::SNQ_HOLE_MS);
            return;
        }
        Self::acknowledge(&hw, state);
    }

    /// Returns whether the NIC lost its registers unexpectedly. The register with the ring address
    /// is zero after a reset, and only [`Snq::setup`] writes it. Such a NIC answers, but does not
    /// work. The check requires that the register has returned the written address before.
    pub(super) fn has_lost_registers(&self) -> bool {
        let Some(hw) = self.ctx.alive_access() else {
            return false;
        };
        let mut guard = self.state.lock();
        let Some(memory) = guard.memory.as_ref().filter(|_| guard.running) else {
            return false;
        };
        let written = Self::ring_base(memory).raw();
        let value = hw.rf.read(snq::QUEUE_BALT);
        guard.reads_back |= value == written;
        let lost = guard.reads_back && value != written && !self.ctx.check_removed(&hw, value);
        drop(guard);
        if lost {
            self.ctx.error(Reason::RegistersLost, value);
        }
        lost
    }

    fn begin_drain(self: &Arc<Self>, hw: &Hw, policy: &mut EventPolicy) {
        if policy.enabled.begin_drain() {
            hw.rf
                .write(snq::TRIGGER_ENABLE, policy.enabled.mask().raw());
            self.schedule::<DRAIN>(0);
        }
    }

    /// Skips lost entries and does the work that they may have requested: calls all clients to
    /// poll, reads the status and drains the outport. Error events need no replacement, because
    /// their counters are cumulative.
    pub(super) fn recover(self: &Arc<Self>) {
        // Softirqs that clients raise run when bottom halves are enabled again.
        let _bh = BhDisabled::new();
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            if !state.running {
                return;
            }
            let (memory, policy) = (&state.memory, &mut state.policy);
            let done = state.consumer.recover(
                |index| entry(memory, index),
                |entry| self.dispatch(&hw, policy, &entry),
                |index, header| {
                    if let Some(memory) = memory {
                        let first = usize::from(index) * ENTRY_WORDS;
                        memory.write(first + ENTRY_WORDS - 1, header.raw());
                    }
                },
            );
            let Some(skipped) = done else {
                return; // The entry has arrived late.
            };
            if skipped.lost != 0 {
                self.ctx.error(
                    Reason::LostSystemNotification,
                    u64::from(skipped.first) | u64::from(skipped.lost) << 32,
                );
                self.begin_drain(&hw, &mut state.policy);
            }
            Self::acknowledge(&hw, state);
        }
        drop(hw);
        for table in &self.to.tables {
            table.interrupt_all();
        }
        self.to.monitor.schedule();
    }

    fn dispatch(self: &Arc<Self>, hw: &Hw, policy: &mut EventPolicy, entry: &Entry) {
        let (ctx, events) = (&self.ctx, &self.to.events);
        let Some(emission) = TOURMALET.emission(entry.header.pc()) else {
            let pc = u64::from(entry.header.pc());
            ctx.error(Reason::UnknownNotification, pc);
            return;
        };
        let event = emission.event;
        let number = event.number();
        let report = Report {
            event,
            part: emission.part,
            registers: emission.registers,
            words: entry.words(emission.registers.len()),
        };
        let word = report.words.iter().copied().find(|w| *w != 0).unwrap_or(0);
        trace::event(ctx.id(), number.into(), emission.part.into(), word);
        ctx.stats().event(number);
        if policy.enabled.count(event, self.now_ms()) {
            ctx.error(Reason::EventStorm, number.into());
            hw.rf
                .write(snq::TRIGGER_ENABLE, policy.enabled.mask().raw());
            self.schedule::<UNMASK>(MASKED_MS);
        }
        match event {
            TriggerEvent::VeloNotification => self.deliver(Unit::Velo, report.words),
            TriggerEvent::RmaNotification => self.deliver(Unit::Rma, report.words),
            TriggerEvent::NwState | TriggerEvent::BarrierGlobalInterrupt => {
                events.count(&report);
                self.to.monitor.schedule();
            }
            TriggerEvent::XbarOutport => {
                events.count(&report);
                self.begin_drain(hw, policy);
            }
            TriggerEvent::VeloError | TriggerEvent::RmaError => {
                match policy.errors.compare(report.registers, report.words) {
                    ErrorChange::Error => events.error(&report),
                    moved => {
                        events.count(&report);
                        if moved == ErrorChange::ClosedPort {
                            ctx.note(Reason::ClosedPort, number.into());
                        }
                    }
                }
            }
            _ => events.handle(hw, &report),
        }
    }

    /// Calls the clients of all VPIDs in a vector of four words; bit j of word i is VPID 64·i + j.
    fn deliver(&self, unit: Unit, vector: &[u64]) {
        for (i, word) in (0u16..4).zip(vector) {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros() as u16;
                rest &= rest - 1;
                let Some(vpid) = Vpid::new(64 * i + bit) else {
                    continue;
                };
                if self.to.table(unit).interrupt(vpid) == Delivered::NoClient {
                    self.ctx.note(
                        Reason::UnclaimedInterrupt,
                        u64::from(vpid.get()) | (unit as u64) << 32,
                    );
                }
            }
        }
    }

    /// Runs one pass of the drain. Returns the pause in milliseconds before the next pass; `None`
    /// after the last one. Process context.
    pub(super) fn drain(&self) -> Option<u32> {
        {
            let state = self.state.lock();
            if !state.running || !state.policy.enabled.is_draining() {
                return None;
            }
        }
        let mut clean = 0;
        for _ in 0..DRAIN_ROUNDS {
            let hw = self.ctx.alive_access()?;
            match xbar::drain_round(&hw) {
                Some(true) => clean += 1,
                Some(false) => {}
                None => {
                    self.ctx.check_removed(&hw, u64::MAX);
                }
            }
        }
        let hw = self.ctx.alive_access()?;
        let mut state = self.state.lock();
        if !state.running {
            return None;
        }
        let enabled = &mut state.policy.enabled;
        match enabled.drained(clean) {
            DrainStep::Done => {
                hw.rf.write(snq::TRIGGER_ENABLE, enabled.mask().raw());
                None
            }
            DrainStep::Again(pause) => Some(pause),
            DrainStep::GaveUp(pause) => {
                drop(state);
                self.ctx.error(Reason::DrainIncomplete, 0);
                Some(pause)
            }
        }
    }
}
