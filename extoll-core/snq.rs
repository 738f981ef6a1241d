// SPDX-License-Identifier: GPL-2.0-only

//! System notification queue: interrupts and events (HW §6).
//!
//! Events make the NIC write entries into a ring in host memory and send an MSI. The handler takes entries while their
//! flip bit is as expected, tells the NIC how far it came and re-arms; only the handler advances.

use crate::{
    dma::DmaWords, events, hw::Hw, intake::HOLE_MS, nic::Nic, stats::Reason, vpid::Delivered, xbar,
};
use kernel::{
    device::{self, Bound},
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
    time::{Instant, Monotonic},
};
use kernel_ext::{barrier, net::BhDisabled, pci::IrqHandler, trace};
use wire::{
    ids::{RegOffset, Unit, Vpid},
    regs::{
        rma::{self, ErrorCounters},
        snq::{self, Execute, QueueBalt, QueueIndex, ENTRIES, HTAX_INIT, QUEUE_ALIGN},
        velo::{self, Counter1},
    },
    snq::{Entry, Ring, TriggerEvent, TriggerMask, PROGRAM_WORDS, TOURMALET},
};

/// Words per ring entry.
const ENTRY_WORDS: usize = 8;
/// Entries that one interrupt may handle; the rest raises the next one at once.
const BUDGET: u32 = 256;
/// Occurrences of one event per second that are taken for a storm.
const STORM: u32 = 2000;
/// How long a storming event stays masked.
const MASKED_MS: u32 = 1000;
/// Pause between looks for entries that no interrupt tells of. One may get lost, and it is armed again by its handler only.
pub(crate) const WATCH_MS: u32 = 1000;
/// Rounds in a row without credits in use that end the drain (HW §15.3).
const DRAIN_ROUNDS: u32 = 255;
/// Pause between drain attempts.
const DRAIN_PAUSE_MS: u32 = 10;
/// Attempts before the drain is given up for a while.
const DRAIN_ATTEMPTS: u32 = 100;
/// Pause after a drain that was given up.
const DRAIN_RETRY_MS: u32 = 10_000;

struct State {
    /// The entries; `None` once the driver is unbound.
    memory: Option<DmaWords>,
    ring: Ring,
    running: bool,
    /// Events that the driver wants.
    allowed: TriggerMask,
    /// Events masked because of a storm.
    storming: TriggerMask,
    counts: [u32; 32],
    window: Instant<Monotonic>,
    /// Attempts made by a running drain.
    drain: Option<u32>,
    /// The next entry is not there although the write pointer passed it; where the pointer was when that was noticed.
    missing: Option<u16>,
    /// Entries were seen waiting since the interrupt was armed.
    waiting: bool,
    /// Error counters as last reported.
    errors: Errors,
}

impl State {
    /// The entry to be handled next, valid or not.
    fn next_entry(&self) -> Option<Entry> {
        let memory = self.memory.as_ref()?;
        let first = usize::from(self.ring.next()) * ENTRY_WORDS;
        let mut words = [0; ENTRY_WORDS];
        // The header decides whether the entry is there: read it before the rest.
        words[ENTRY_WORDS - 1] = memory.read(first + ENTRY_WORDS - 1);
        barrier::dma_rmb();
        for (i, word) in words.iter_mut().take(ENTRY_WORDS - 1).enumerate() {
            *word = memory.read(first + i);
        }
        Some(Entry::from_words(words))
    }

    /// Makes a lost entry one that was handled.
    fn fill_next(&self) {
        if let Some(memory) = &self.memory {
            let first = usize::from(self.ring.next()) * ENTRY_WORDS;
            memory.write(first + ENTRY_WORDS - 1, self.ring.filler().raw());
        }
    }

    fn mask(&self) -> TriggerMask {
        let mask = if self.drain.is_some() {
            self.allowed.without(TriggerEvent::XbarOutport)
        } else {
            self.allowed
        };
        TriggerMask(mask.raw() & !self.storming.raw())
    }

    /// Counts an occurrence; true if the event has to be masked.
    fn storm(&mut self, event: TriggerEvent) -> bool {
        if matches!(
            event,
            TriggerEvent::VeloNotification | TriggerEvent::RmaNotification
        ) {
            return false; // Masked per VPID by hardware.
        }
        if self.window.elapsed().as_millis() >= 1000 {
            self.window = Instant::now();
            self.counts = [0; 32];
        }
        let Some(count) = self.counts.get_mut(usize::from(event.number())) else {
            return false;
        };
        *count += 1;
        *count > STORM
    }
}

/// The ring and its state.
#[pin_data]
pub(crate) struct Snq {
    #[pin]
    state: SpinLockIrq<State>,
}

impl Snq {
    pub(crate) fn new(dev: &device::Device<Bound>) -> Result<impl PinInit<Self, Error>> {
        let memory = DmaWords::new(dev, usize::from(ENTRIES) * ENTRY_WORDS)?;
        if memory.address().0 % QUEUE_ALIGN != 0 {
            return Err(ERANGE);
        }
        let state = State {
            memory: Some(memory),
            ring: Ring::new(ENTRIES, 0).ok_or(EINVAL)?,
            running: false,
            allowed: TriggerMask::DEFAULT,
            storming: TriggerMask(0),
            counts: [0; 32],
            window: Instant::now(),
            drain: None,
            missing: None,
            waiting: false,
            errors: Errors::default(),
        };
        Ok(try_pin_init!(Self {
            state <- new_spinlock_irq!(state, "extoll_snq"),
        }))
    }

    /// HW §3.1 step 6: ring, pointers, program, enabled events.
    pub(crate) fn setup(&self, hw: &Hw) -> Result {
        hw.rf.write(snq::EXECUTE, 0);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let memory = state.memory.as_ref().ok_or(ENODEV)?;
        hw.rf
            .write(snq::QUEUE_MSLT, QueueIndex(0).with_index(ENTRIES - 1).raw());
        let address = QueueBalt(0).with_address_div_1024(memory.address().0 / QUEUE_ALIGN);
        hw.rf.write(snq::QUEUE_BALT, address.raw());
        let wp = QueueIndex(hw.rf.read(snq::QUEUE_WPLT)).index();
        let ring = Ring::new(ENTRIES, wp).ok_or(EINVAL)?;
        for i in 0..ENTRIES {
            let first = usize::from(i) * ENTRY_WORDS;
            for word in first..first + ENTRY_WORDS - 1 {
                memory.write(word, 0);
            }
            memory.write(first + ENTRY_WORDS - 1, ring.blank(i).raw());
        }
        hw.rf
            .write(snq::QUEUE_RPLT, QueueIndex(0).with_index(ring.rplt()).raw());
        hw.rf.write(snq::IRQ_WATERMARK, ring.watermark().raw());
        for (pc, word) in (0..PROGRAM_WORDS as u32).zip(TOURMALET.words()) {
            hw.rf.write(snq::program_ram(pc), *word);
        }
        state.ring = ring;
        hw.rf.write(snq::TRIGGER_ENABLE, state.mask().raw());
        Ok(())
    }

    /// HW §3.1 step 7: interrupt packet and start. The interrupt handler must be installed.
    pub(crate) fn start(&self, hw: &Hw, irq: [u64; 3]) {
        let [irq_0, irq_1, irq_2] = irq;
        self.state.lock().running = true;
        hw.rf.write(snq::IRQ_0, irq_0);
        hw.rf.write(snq::IRQ_1, irq_1);
        hw.rf.write(snq::IRQ_2, irq_2);
        hw.rf.write(snq::HTAX, HTAX_INIT);
        hw.rf
            .write(snq::EXECUTE, Execute(0).with_enable(true).raw());
    }

    /// No event is reported any more. The memory stays in use until a register was read afterwards.
    pub(crate) fn stop(&self, nic: &Nic) {
        self.state.lock().running = false;
        if let Some(hw) = nic.alive_access() {
            hw.rf.write(snq::TRIGGER_ENABLE, 0);
            hw.rf.write(snq::EXECUTE, 0);
            hw.rf.read(snq::QUEUE_WPLT);
        }
    }

    /// Frees the ring, which the NIC does not reach any more. The interrupt handler is gone. May sleep.
    pub(crate) fn free(&self) {
        let memory = self.state.lock().memory.take();
        drop(memory);
    }

    /// Sets which events are enabled; storms and the drain mask some of them for a while. Any context.
    pub(crate) fn allow(&self, nic: &Nic, mask: TriggerMask) {
        let Some(hw) = nic.alive_access() else { return };
        let mut state = self.state.lock();
        state.allowed = mask;
        if state.running {
            hw.rf.write(snq::TRIGGER_ENABLE, state.mask().raw());
        }
    }

    /// Last consumed entry, events enabled, whether a drain runs; for debugfs.
    pub(crate) fn show(&self) -> (u16, u64, bool) {
        let state = self.state.lock();
        (state.ring.rplt(), state.mask().raw(), state.drain.is_some())
    }
}

/// Handler of MSI vector 0.
pub(crate) struct Interrupt(pub(crate) Arc<Nic>);

impl IrqHandler for Interrupt {
    fn handle(&self) {
        let nic = &self.0;
        let Some(hw) = nic.alive_access() else { return };
        nic.stats().interrupt();
        let mut guard = nic.snq.state.lock();
        let state = &mut *guard;
        if !state.running {
            return;
        }
        let mut handled = take_entries(nic, &hw, state);
        if handled == 0 {
            // Nobody's interrupt? Ask whether somebody is still there at all. The answer comes behind all that the NIC
            // wrote before, so an entry that was late is there now.
            let wp = hw.rf.read(snq::QUEUE_WPLT);
            if nic.is_gone(&hw, wp) {
                return;
            }
            handled = take_entries(nic, &hw, state);
            let written = QueueIndex(wp).index();
            if handled == 0 && written != state.ring.next() {
                // Lost. Not re-armed, or it would interrupt again at once.
                state.missing = Some(written);
                nic.schedule_recovery(HOLE_MS);
                return;
            }
        }
        match handled {
            0 => nic.note(Reason::SpuriousInterrupt, u64::from(state.ring.next())),
            BUDGET => nic.note(Reason::InterruptBudget, 0),
            _ => {}
        }
        acknowledge(&hw, state);
        trace::interrupt(nic.id(), handled, state.ring.rplt());
    }
}

/// Handles the entries that are there, at most [`BUDGET`]; returns their number.
fn take_entries(nic: &Arc<Nic>, hw: &Hw, state: &mut State) -> u32 {
    let mut handled = 0;
    while handled < BUDGET {
        let Some(entry) = state.next_entry().filter(|e| state.ring.is_valid(e.header)) else {
            break;
        };
        dispatch(nic, hw, state, &entry);
        state.ring.consume();
        handled += 1;
    }
    if handled != 0 {
        state.missing = None;
    }
    handled
}

/// Tells the NIC how far the handler came, and arms the interrupt.
fn acknowledge(hw: &Hw, state: &mut State) {
    state.waiting = false;
    hw.rf.write(
        snq::QUEUE_RPLT,
        QueueIndex(0).with_index(state.ring.rplt()).raw(),
    );
    hw.rf
        .write(snq::IRQ_WATERMARK, state.ring.watermark().raw());
}

/// Takes entries that have been waiting since the last look: their interrupt got lost, and there will be none before it is armed.
pub(crate) fn watch(nic: &Arc<Nic>) {
    // What clients schedule runs when bottom halves are on again.
    let _bh = BhDisabled::new();
    let Some(hw) = nic.alive_access() else { return };
    let mut guard = nic.snq.state.lock();
    let state = &mut *guard;
    if !state.running || state.missing.is_some() {
        return;
    }
    let wp = hw.rf.read(snq::QUEUE_WPLT);
    if nic.is_gone(&hw, wp) {
        return;
    }
    let written = QueueIndex(wp).index();
    if written == state.ring.next() {
        return;
    }
    if !core::mem::replace(&mut state.waiting, true) {
        return;
    }
    nic.error(Reason::LostInterrupt, u64::from(state.ring.next()));
    if take_entries(nic, &hw, state) == 0 {
        state.missing = Some(written);
        nic.schedule_recovery(HOLE_MS);
        return;
    }
    acknowledge(&hw, state);
}

fn begin_drain(nic: &Arc<Nic>, hw: &Hw, state: &mut State) {
    if state.drain.is_none() {
        state.drain = Some(0);
        hw.rf.write(snq::TRIGGER_ENABLE, state.mask().raw());
        nic.schedule_drain(0);
    }
}

/// Skips entries that got lost on their way, then does what they may have asked for: all clients poll, the status is read
/// and the outport drained. The counters that error events report are cumulative, the next one tells.
pub(crate) fn recover(nic: &Arc<Nic>) {
    // What clients schedule runs when bottom halves are on again.
    let _bh = BhDisabled::new();
    let Some(hw) = nic.alive_access() else { return };
    {
        let mut guard = nic.snq.state.lock();
        let state = &mut *guard;
        let Some(written) = state.missing.take().filter(|_| state.running) else {
            return; // It came after all.
        };
        let first = state.ring.next();
        let mut lost = 0u32;
        for _ in 0..ENTRIES {
            if state.ring.next() == written {
                break;
            }
            match state.next_entry() {
                Some(entry) if state.ring.is_valid(entry.header) => {
                    dispatch(nic, &hw, state, &entry);
                }
                _ => {
                    state.fill_next();
                    lost += 1;
                }
            }
            state.ring.consume();
        }
        if lost != 0 {
            nic.error(
                Reason::LostSystemNotification,
                u64::from(first) | u64::from(lost) << 32,
            );
            begin_drain(nic, &hw, state);
        }
        acknowledge(&hw, state);
    }
    drop(hw);
    nic.table(Unit::Velo).interrupt_all();
    nic.table(Unit::Rma).interrupt_all();
    nic.schedule_status();
}

fn dispatch(nic: &Arc<Nic>, hw: &Hw, state: &mut State, entry: &Entry) {
    let Some(emission) = TOURMALET.emission(entry.header.pc()) else {
        nic.error(Reason::UnknownNotification, u64::from(entry.header.pc()));
        return;
    };
    let event = emission.event;
    let number = event.number();
    let words = entry.words(emission.registers.len());
    let word = words.iter().copied().find(|w| *w != 0).unwrap_or(0);
    trace::event(nic.id(), number.into(), emission.part.into(), word);
    nic.stats().event(number);
    if state.storm(event) && !state.storming.contains(event) {
        nic.error(Reason::EventStorm, number.into());
        state.storming = state.storming.with(event);
        hw.rf.write(snq::TRIGGER_ENABLE, state.mask().raw());
        nic.schedule_unmask(MASKED_MS);
    }
    let registers = emission.registers;
    match event {
        TriggerEvent::VeloNotification => deliver(nic, Unit::Velo, words),
        TriggerEvent::RmaNotification => deliver(nic, Unit::Rma, words),
        TriggerEvent::NwState | TriggerEvent::BarrierGlobalInterrupt => {
            events::count(nic, event, registers, words);
            nic.schedule_status();
        }
        TriggerEvent::XbarOutport => {
            events::count(nic, event, registers, words);
            begin_drain(nic, hw, state);
        }
        TriggerEvent::VeloError | TriggerEvent::RmaError => {
            match state.errors.take(registers, words) {
                Change::Error => events::error(nic, event, emission.part, registers, words),
                change => {
                    events::count(nic, event, registers, words);
                    if change == Change::ClosedPort {
                        nic.note(Reason::ClosedPort, number.into());
                    }
                }
            }
        }
        _ => events::handle(nic, hw, event, emission.part, registers, words),
    }
}

/// What the error counters in a report of VELO or RMA tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Nothing,
    /// Only messages for VPIDs that are not open: a peer that started before, or outlived, its partner here.
    ClosedPort,
    Error,
}

/// Error counters of VELO and RMA with their last reported values and the bits that count messages for closed VPIDs.
struct Errors([(RegOffset, u64, u64); 10]);

impl Default for Errors {
    fn default() -> Self {
        const NONE: u64 = 0;
        Self([
            (velo::COUNTER_1, Counter1(0).with_disabled_mbox(!0).raw(), 0),
            (rma::REQUESTER_ERROR_CNT_0, NONE, 0),
            (rma::REQUESTER_ERROR_CNT_1, NONE, 0),
            (rma::RESPONDER_ERROR_CNT_0, VPID_3, 0),
            (rma::RESPONDER_ERROR_CNT_1, NONE, 0),
            (rma::RESPONDER_ERROR_CNT_2, NONE, 0),
            (rma::COMPLETER_ERROR_CNT_0, NONE, 0),
            (rma::COMPLETER_ERROR_CNT_1, NONE, 0),
            (rma::COMPLETER_ERROR_CNT_2, VPID_0, 0),
            (rma::COMPLETER_ERROR_CNT_3, NONE, 0),
        ])
    }
}

/// Fourth counter of an RMA counter register: responder's `vpid`.
const VPID_3: u64 = ErrorCounters(0).with_count_3(!0).with_ovflw_3(true).raw();
/// First counter: completer's `vpid`.
const VPID_0: u64 = ErrorCounters(0).with_count_0(!0).with_ovflw_0(true).raw();

impl Errors {
    /// Compares a report with the last one and remembers it.
    fn take(&mut self, registers: &[RegOffset], words: &[u64]) -> Change {
        let mut worst = Change::Nothing;
        for (reg, word) in registers.iter().zip(words) {
            let Some((_, closed, last)) = self.0.iter_mut().find(|(r, _, _)| r == reg) else {
                continue; // No error counter.
            };
            let changed = *word ^ *last;
            *last = *word;
            worst = worst.max(match changed {
                0 => Change::Nothing,
                c if c & !*closed == 0 => Change::ClosedPort,
                _ => Change::Error,
            });
        }
        worst
    }
}

/// Calls the clients of all VPIDs in a vector of four words: bit j of word i is VPID 64·i + j.
fn deliver(nic: &Arc<Nic>, unit: Unit, vector: &[u64]) {
    for (i, word) in (0u16..4).zip(vector) {
        let mut rest = *word;
        while rest != 0 {
            let bit = rest.trailing_zeros() as u16;
            rest &= rest - 1;
            let Some(vpid) = Vpid::new(64 * i + bit) else {
                continue;
            };
            if nic.table(unit).interrupt(vpid) == Delivered::NoClient {
                nic.note(
                    Reason::UnclaimedInterrupt,
                    u64::from(vpid.get()) | (unit as u64) << 32,
                );
            }
        }
    }
}

/// Unmasks events after a storm.
pub(crate) fn unmask(nic: &Arc<Nic>) {
    let Some(hw) = nic.alive_access() else { return };
    let mut state = nic.snq.state.lock();
    if state.running && state.storming.raw() != 0 {
        state.storming = TriggerMask(0);
        hw.rf.write(snq::TRIGGER_ENABLE, state.mask().raw());
    }
}

/// Runs the drain. Returns the pause in milliseconds until it wants to run again.
pub(crate) fn drain(nic: &Arc<Nic>) -> Option<u32> {
    let attempts = {
        let state = nic.snq.state.lock();
        state.drain.filter(|_| state.running)?
    };
    let mut clean = 0;
    for _ in 0..DRAIN_ROUNDS {
        let hw = nic.alive_access()?;
        match xbar::drain_round(&hw) {
            Some(true) => clean += 1,
            Some(false) => {}
            None => {
                nic.is_gone(&hw, u64::MAX);
            }
        }
    }
    let hw = nic.alive_access()?;
    let mut state = nic.snq.state.lock();
    if !state.running {
        return None;
    }
    if clean == DRAIN_ROUNDS {
        state.drain = None;
        hw.rf.write(snq::TRIGGER_ENABLE, state.mask().raw());
        None
    } else if attempts + 1 < DRAIN_ATTEMPTS {
        state.drain = Some(attempts + 1);
        Some(DRAIN_PAUSE_MS)
    } else {
        state.drain = Some(0);
        drop(state);
        nic.error(Reason::DrainIncomplete, 0);
        Some(DRAIN_RETRY_MS)
    }
}
