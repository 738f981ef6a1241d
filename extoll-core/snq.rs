// SPDX-License-Identifier: GPL-2.0-only

//! System notification queue: interrupts and events (HW §6).
//!
//! Events make the NIC write entries into a ring in host memory and send an MSI. The handler takes
//! entries while their flip bit is as expected, tells the NIC how far it came and re-arms; only the
//! handler advances. What is taken, skipped, masked and drained is decided by [`wire::snq`]
//! ([`Intake`], [`Enabled`]); this file has the registers, the memory and the time.

mod handler;
mod messages;
mod work;

use crate::{
    context::Context, dma::DmaWords, events::Events, hw::Hw, monitor::Monitor, smfu::Smfu,
    vpid::Table,
};
use kernel::{
    device::{self, Bound},
    new_delayed_work, new_work,
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
    time::{Instant, Monotonic},
    workqueue::{DelayedWork, Work},
};
use messages::Messages;
use wire::{
    ids::Unit,
    regs::snq::{self, Execute, QueueBalt, QueueIndex, ENTRIES, HTAX_INIT, QUEUE_ALIGN},
    snq::{Enabled, ErrorReports, Intake, TriggerMask, PROGRAM_WORDS, TOURMALET},
};
use work::{BEGIN, DRAIN, FORGOTTEN, MESSAGES, RECOVER, UNMASK, WATCH};

pub(crate) use handler::Interrupt;
pub use messages::{MessageClient, MessageSubscription};

/// Words per ring entry.
const ENTRY_WORDS: usize = 8;
/// What decides about entries that were taken.
struct Judge {
    enabled: Enabled,
    errors: ErrorReports,
}

struct State {
    /// The entries; `None` once the driver is unbound.
    memory: Option<DmaWords>,
    intake: Intake,
    running: bool,
    /// The register with the address of the ring was seen to hold it.
    reads_back: bool,
    judge: Judge,
}

/// Memory for a ring. To be allocated below 4 GiB: no source has higher addresses in use for this
/// queue. May sleep.
///
/// # Errors
///
/// `ENOMEM`; `ERANGE` if it is not aligned as the hardware wants it.
pub(crate) fn allocate(dev: &device::Device<Bound>) -> Result<DmaWords> {
    let memory = DmaWords::new(dev, usize::from(ENTRIES) * ENTRY_WORDS)?;
    if memory.address().0 % QUEUE_ALIGN != 0 {
        return Err(ERANGE);
    }
    Ok(memory)
}

/// What the queue's entries are for.
pub(crate) struct Handlers {
    pub(crate) events: Arc<Events>,
    pub(crate) smfu: Arc<Smfu>,
    pub(crate) monitor: Arc<Monitor>,
    /// VPIDs of VELO and RMA.
    pub(crate) tables: [Arc<Table>; 2],
}

impl Handlers {
    fn table(&self, unit: Unit) -> &Table {
        let [velo, rma] = &self.tables;
        match unit {
            Unit::Velo => velo,
            Unit::Rma => rma,
        }
    }
}

/// Interrupt packet of the queue: two header words and the payload (HW §6.2).
const INTERRUPT_PACKET: [u64; 3] = [0xFD23_0000_0040_002D, 0x0300_0100_0000, 0];

/// The notification queue of a NIC.
#[pin_data]
pub(crate) struct Snq {
    ctx: Arc<Context>,
    to: Handlers,
    /// Times are counted from here.
    epoch: Instant<Monotonic>,
    #[pin]
    state: SpinLockIrq<State>,
    #[pin]
    messages: Messages,
    #[pin]
    drain: DelayedWork<Snq, DRAIN>,
    #[pin]
    recovery: DelayedWork<Snq, RECOVER>,
    #[pin]
    watch: DelayedWork<Snq, WATCH>,
    #[pin]
    unmask: DelayedWork<Snq, UNMASK>,
    #[pin]
    forgotten: DelayedWork<Snq, FORGOTTEN>,
    #[pin]
    begin: Work<Snq, BEGIN>,
    #[pin]
    messages_work: DelayedWork<Snq, MESSAGES>,
}

impl Snq {
    /// `memory` is from [`allocate`]. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        memory: DmaWords,
        to: Handlers,
        messages_per_second: u32,
    ) -> Result<Arc<Self>> {
        let state = State {
            memory: Some(memory),
            intake: Intake::new(ENTRIES, 0).ok_or(EINVAL)?,
            running: false,
            reads_back: false,
            judge: Judge {
                enabled: Enabled::new(TriggerMask::DEFAULT),
                errors: ErrorReports::new(),
            },
        };
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                to,
                epoch: Instant::now(),
                state <- new_spinlock_irq!(state, "extoll_snq"),
                messages <- Messages::new(messages_per_second),
                drain <- new_delayed_work!("extoll_drain"),
                recovery <- new_delayed_work!("extoll_recovery"),
                watch <- new_delayed_work!("extoll_watch"),
                unmask <- new_delayed_work!("extoll_unmask"),
                forgotten <- new_delayed_work!("extoll_forgotten"),
                begin <- new_work!("extoll_begin"),
                messages_work <- new_delayed_work!("extoll_messages"),
            }),
            GFP_KERNEL,
        )
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis().max(0) as u64
    }

    /// HW §3.1 step 6: ring, pointers, program, enabled events.
    pub(crate) fn setup(&self, hw: &Hw) -> Result {
        hw.rf.write(snq::EXECUTE, 0);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let memory = state.memory.as_ref().ok_or(ENODEV)?;
        let last = QueueIndex(0).with_index(ENTRIES - 1);
        hw.rf.write(snq::QUEUE_MSLT, last.raw());
        hw.rf.write(snq::QUEUE_BALT, Self::ring_base(memory).raw());
        let wp = QueueIndex(hw.rf.read(snq::QUEUE_WPLT)).index();
        let intake = Intake::new(ENTRIES, wp).ok_or(EINVAL)?;
        let ring = intake.ring();
        for i in 0..ENTRIES {
            let first = usize::from(i) * ENTRY_WORDS;
            for word in first..first + ENTRY_WORDS - 1 {
                memory.write(word, 0);
            }
            memory.write(first + ENTRY_WORDS - 1, ring.blank(i).raw());
        }
        let consumed = QueueIndex(0).with_index(ring.rplt());
        hw.rf.write(snq::QUEUE_RPLT, consumed.raw());
        hw.rf.write(snq::IRQ_WATERMARK, ring.watermark().raw());
        for (pc, word) in (0..PROGRAM_WORDS as u32).zip(TOURMALET.words()) {
            hw.rf.write(snq::program_ram(pc), *word);
        }
        state.intake = intake;
        hw.rf
            .write(snq::TRIGGER_ENABLE, state.judge.enabled.mask().raw());
        Ok(())
    }

    /// What the register holds that says where the ring is.
    fn ring_base(memory: &DmaWords) -> QueueBalt {
        QueueBalt(0).with_address_div_1024(memory.address().0 / QUEUE_ALIGN)
    }

    /// HW §3.1 step 7: interrupt packet and start. The interrupt handler must be installed.
    pub(crate) fn start(&self, hw: &Hw) {
        let [irq_0, irq_1, irq_2] = INTERRUPT_PACKET;
        self.state.lock().running = true;
        hw.rf.write(snq::IRQ_0, irq_0);
        hw.rf.write(snq::IRQ_1, irq_1);
        hw.rf.write(snq::IRQ_2, irq_2);
        hw.rf.write(snq::HTAX, HTAX_INIT);
        hw.rf
            .write(snq::EXECUTE, Execute(0).with_enable(true).raw());
    }

    /// No event is reported any more. The memory stays in use until a register was read afterwards.
    pub(crate) fn stop(&self) {
        self.state.lock().running = false;
        if let Some(hw) = self.ctx.alive_access() {
            hw.rf.write(snq::TRIGGER_ENABLE, 0);
            hw.rf.write(snq::EXECUTE, 0);
            hw.rf.read(snq::QUEUE_WPLT);
        }
    }

    /// Frees the ring, which the NIC does not reach any more. The interrupt handler is gone. May
    /// sleep.
    pub(crate) fn free(&self) {
        let memory = self.state.lock().memory.take();
        drop(memory);
    }

    /// Changes which events are enabled, and writes that if `change` says so.
    fn write_mask(&self, change: impl FnOnce(&mut Enabled) -> bool) {
        let hw = self.ctx.alive_access();
        let mut state = self.state.lock();
        let enabled = &mut state.judge.enabled;
        if !change(enabled) {
            return;
        }
        let mask = enabled.mask();
        if let Some(hw) = hw.filter(|_| state.running) {
            hw.rf.write(snq::TRIGGER_ENABLE, mask.raw());
        }
    }

    /// Sets which events are enabled; storms and the drain mask some of them for a while. Any context.
    pub(crate) fn allow(&self, mask: TriggerMask) {
        self.to.events.allowed(mask);
        self.write_mask(|enabled| {
            enabled.allow(mask);
            true
        });
    }

    /// Last consumed entry, events enabled, whether a drain runs; for debugfs.
    pub(crate) fn show(&self) -> (u16, u64, bool) {
        let state = self.state.lock();
        let enabled = &state.judge.enabled;
        let rplt = state.intake.ring().rplt();
        (rplt, enabled.mask().raw(), enabled.is_draining())
    }
}
