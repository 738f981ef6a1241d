// SPDX-License-Identifier: GPL-2.0-only

//! System notification queue (SNQ): interrupts and events (HW §6).
//!
//! For each event the NIC writes an entry to a ring in host memory and raises an MSI. The interrupt
//! handler consumes entries while their flip bit has the expected value, updates the read pointer
//! and re-arms the interrupt. [`wire::snq`] ([`SnqConsumer`], [`EventMask`]) decides which entries
//! to consume or skip and which events to mask. This file contains registers, memory and time.
//!
//! A spinlock that disables interrupts protects the state. The interrupt handler and two work items
//! (for lost entries and lost interrupts) consume entries. Clients of ports and events are called
//! with the lock held.

mod handler;
mod messages;
mod work;

use crate::{
    context::Context, dma::DmaWords, events::Events, hw::Hw, monitor::Monitor, quirks, smfu::Smfu,
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
use protocol::nic::snq::{ErrorReports, EventMask, SnqConsumer};
use wire::{
    ids::Unit,
    regs::snq::{self, Execute, QueueBalt, QueueIndex, ENTRIES, HTAX_INIT, QUEUE_ALIGN},
    snq::{TriggerMask, PROGRAM_WORDS, TOURMALET},
};
use work::{BEGIN, DRAIN, LOST_REGISTERS, MESSAGES, RECOVER, UNMASK, WATCH};

pub(crate) use handler::Interrupt;
pub use messages::{MessageClient, MessageSubscription};

/// Number of words per ring entry.
const ENTRY_WORDS: usize = 8;
/// State on which the handling of consumed entries depends.
struct EventPolicy {
    enabled: EventMask,
    errors: ErrorReports,
}

struct State {
    /// Memory of the ring; `None` after the driver was unbound.
    memory: Option<DmaWords>,
    consumer: SnqConsumer,
    running: bool,
    /// Set after the register with the ring address has returned the written value.
    reads_back: bool,
    policy: EventPolicy,
}

/// Allocates memory for a ring. It is below 4 GiB, because no source describes higher addresses for
/// this queue. May sleep.
///
/// # Errors
///
/// `ENOMEM`; `ERANGE` if the memory is not aligned as the hardware requires.
pub(crate) fn allocate(dev: &device::Device<Bound>) -> Result<DmaWords> {
    let memory = DmaWords::new(dev, usize::from(ENTRIES) * ENTRY_WORDS)?;
    if memory.address().0 % QUEUE_ALIGN != 0 {
        return Err(ERANGE);
    }
    Ok(memory)
}

/// Objects that process the queue's entries.
pub(crate) struct Handlers {
    pub(crate) events: Arc<Events>,
    pub(crate) smfu: Arc<Smfu>,
    pub(crate) monitor: Arc<Monitor>,
    /// VPID tables of VELO and RMA.
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

/// The notification queue of a NIC.
#[pin_data]
pub(crate) struct Snq {
    ctx: Arc<Context>,
    to: Handlers,
    /// Origin of all times.
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
    lost_registers: DelayedWork<Snq, LOST_REGISTERS>,
    #[pin]
    begin: Work<Snq, BEGIN>,
    #[pin]
    messages_work: DelayedWork<Snq, MESSAGES>,
}

impl Snq {
    /// Makes the queue. `memory` is from [`allocate`]. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        memory: DmaWords,
        to: Handlers,
        messages_per_second: u32,
    ) -> Result<Arc<Self>> {
        let state = State {
            memory: Some(memory),
            consumer: SnqConsumer::new(ENTRIES, 0).ok_or(EINVAL)?,
            running: false,
            reads_back: false,
            policy: EventPolicy {
                enabled: EventMask::new(TriggerMask::DEFAULT),
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
                lost_registers <- new_delayed_work!("extoll_forgotten"),
                begin <- new_work!("extoll_begin"),
                messages_work <- new_delayed_work!("extoll_messages"),
            }),
            GFP_KERNEL,
        )
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis().max(0) as u64
    }

    /// Sets up the ring, its pointers, the notification program and the enabled events (step 6 of
    /// HW §3.1).
    pub(crate) fn setup(&self, hw: &Hw) -> Result {
        hw.rf.write(snq::EXECUTE, 0);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let memory = state.memory.as_ref().ok_or(ENODEV)?;
        let last = QueueIndex(0).with_index(ENTRIES - 1);
        hw.rf.write(snq::QUEUE_MSLT, last.raw());
        hw.rf.write(snq::QUEUE_BALT, Self::ring_base(memory).raw());
        let wp = QueueIndex(hw.rf.read(snq::QUEUE_WPLT)).index();
        let consumer = SnqConsumer::new(ENTRIES, wp).ok_or(EINVAL)?;
        let ring = consumer.ring();
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
        state.consumer = consumer;
        hw.rf
            .write(snq::TRIGGER_ENABLE, state.policy.enabled.mask().raw());
        Ok(())
    }

    /// Returns the value of the register that holds the address of the ring.
    fn ring_base(memory: &DmaWords) -> QueueBalt {
        QueueBalt(0).with_address_div_1024(memory.address().0 / QUEUE_ALIGN)
    }

    /// Sets the interrupt packet and starts the queue (step 7 of HW §3.1). The interrupt handler
    /// must be installed.
    pub(crate) fn start(&self, hw: &Hw) {
        let [irq_0, irq_1, irq_2] = quirks::INTERRUPT_PACKET;
        self.state.lock().running = true;
        hw.rf.write(snq::IRQ_0, irq_0);
        hw.rf.write(snq::IRQ_1, irq_1);
        hw.rf.write(snq::IRQ_2, irq_2);
        hw.rf.write(snq::HTAX, HTAX_INIT);
        hw.rf
            .write(snq::EXECUTE, Execute(0).with_enable(true).raw());
    }

    /// Disables all events. After the final register read the NIC does not use the memory any more.
    pub(crate) fn stop(&self) {
        self.state.lock().running = false;
        if let Some(hw) = self.ctx.alive_access() {
            hw.rf.write(snq::TRIGGER_ENABLE, 0);
            hw.rf.write(snq::EXECUTE, 0);
            hw.rf.read(snq::QUEUE_WPLT);
        }
    }

    /// Frees the ring. The caller has ended the NIC's access to it and removed the interrupt
    /// handler. May sleep.
    pub(crate) fn free(&self) {
        let memory = self.state.lock().memory.take();
        drop(memory);
    }

    /// Changes the set of enabled events. Writes the set to the NIC if `change` returns true.
    fn write_mask(&self, change: impl FnOnce(&mut EventMask) -> bool) {
        let hw = self.ctx.alive_access();
        let mut state = self.state.lock();
        let enabled = &mut state.policy.enabled;
        if !change(enabled) {
            return;
        }
        let mask = enabled.mask();
        if let Some(hw) = hw.filter(|_| state.running) {
            hw.rf.write(snq::TRIGGER_ENABLE, mask.raw());
        }
    }

    /// Sets which events are enabled. Some of them may be masked for a while by a storm or by the
    /// drain. Any context.
    pub(crate) fn allow(&self, mask: TriggerMask) {
        self.to.events.allowed(mask);
        self.write_mask(|enabled| {
            enabled.allow(mask);
            true
        });
    }

    /// Returns the index of the last consumed entry, the enabled events, and whether a drain runs.
    pub(crate) fn show(&self) -> (u16, u64, bool) {
        let state = self.state.lock();
        let enabled = &state.policy.enabled;
        let rplt = state.consumer.ring().rplt();
        (rplt, enabled.mask().raw(), enabled.is_draining())
    }
}
