// SPDX-License-Identifier: GPL-2.0-only

//! Decoding of trigger events (HW §6.5). Finds the register fields that changed, counts these
//! changes, and logs errors at a limited rate.
//!
//! The notification program records registers with each event. Each field of a recorded register is
//! a sub-cause. Its count increases with each report in which the field differs from the last
//! report. For ECC events the program records no ECC register (HW §6.5), so the work item reads all
//! registers with ECC flags.
//!
//! Events are handled in the hard interrupt, with the notification queue locked. The work item does
//! everything that may sleep: reading the first values, the ECC flags and the links.

mod registers;

use crate::{context::Context, hw::Hw, links::Links, smfu::Smfu, stats::Reason};
use core::fmt;
use kernel::{
    impl_has_work, new_mutex, new_work,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Full, Relaxed},
        Arc, Mutex,
    },
    workqueue::{Work, WorkItem},
};
use kernel_ext::{ratelimit::Suppressed, work};
use registers::{Changes, Registers, Word};
use wire::{
    ids::RegOffset,
    snq::{TriggerEvent, TriggerMask},
};

/// Events that occur in normal operation. They are counted, but not as errors.
const NORMAL: TriggerMask = TriggerMask(0)
    .with(TriggerEvent::PcieCoreLinkStatus)
    .with(TriggerEvent::PcieBridgeRegfileInfo)
    .with(TriggerEvent::TimerInterrupt)
    .with(TriggerEvent::GpioIrq)
    .with(TriggerEvent::BarrierReleased)
    .with(TriggerEvent::LinkPort)
    .with(TriggerEvent::LinkMacStatus);

/// Events that the driver enables: those of the vendor's driver (HW §6.5), links, inports and
/// correctable ECC errors.
const ENABLED: TriggerMask = TriggerMask::DEFAULT
    .with(TriggerEvent::EccError)
    .with(TriggerEvent::XbarInport)
    .with(TriggerEvent::LinkPort)
    .with(TriggerEvent::LinkMacStatus);

/// Number of data words in an entry that is not the last part of its report (HW §6.3).
const FULL_PART: usize = 7;
/// Report of a trigger event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    /// The event that is reported.
    pub(crate) event: TriggerEvent,
    /// Number of this part of the report, from 0. An entry contains at most seven words.
    pub(crate) part: u8,
    /// Registers that the notification program recorded.
    pub(crate) registers: &'a [RegOffset],
    /// Values of `registers`.
    pub(crate) words: &'a [u64],
}

impl Report<'_> {
    fn values(&self) -> impl Iterator<Item = (RegOffset, u64)> + '_ {
        let words = self.words.iter().copied();
        self.registers.iter().copied().zip(words)
    }
}

/// State of the event reports of one NIC.
#[pin_data]
pub(crate) struct Events {
    ctx: Arc<Context>,
    links: Arc<Links>,
    smfu: Arc<Smfu>,
    registers: Registers,
    /// Held while the first values are read.
    #[pin]
    first_read: Mutex<()>,
    /// Set if the work item must read the ECC flags.
    ecc: AtomicFlag,
    /// Set if only the events of the vendor's driver are enabled.
    vendor: bool,
    #[pin]
    work: Work<Events>,
}

impl_has_work! {
    impl HasWork<Events> for Events { self.work }
}

impl WorkItem for Events {
    type Pointer = Arc<Events>;

    fn run(this: Arc<Events>) {
        this.poll();
    }
}

impl Events {
    /// Allocates the state. With `vendor`, only the events of the vendor's driver are enabled. May
    /// sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        links: Arc<Links>,
        smfu: Arc<Smfu>,
        vendor: bool,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                ctx,
                links,
                smfu,
                registers: Registers::new()?,
                first_read <- new_mutex!((), "extoll_events_beginning"),
                ecc: AtomicFlag::new(false),
                vendor,
                work <- new_work!("extoll_events"),
            }),
            GFP_KERNEL,
        )
    }

    /// Handles the events that the dispatcher does not handle itself: decodes, counts and logs
    /// them, and queues the work item. Hard interrupt, with the notification queue locked.
    pub(crate) fn handle(self: &Arc<Self>, hw: &Hw, report: &Report<'_>) {
        let changes = self.registers.compare(report.event, report.values());
        match report.event {
            TriggerEvent::SmfuTimeout => {
                self.smfu.check_timeout(hw);
                return;
            }
            TriggerEvent::EccError | TriggerEvent::EccFatal => {
                self.ecc.store(true, Relaxed);
                self.schedule();
            }
            TriggerEvent::LinkPort
            | TriggerEvent::LinkMacStatus
            | TriggerEvent::LinkMacLaneError
            | TriggerEvent::LinkMacRetrainError => self.schedule(),
            _ => {}
        }
        // In a report of several parts, parts without a change are not logged.
        let full = report.words.len() == FULL_PART;
        let silent = changes.total == 0 && (report.part > 0 || full);
        if NORMAL.contains(report.event) {
            let number = report.event.number();
            self.ctx.note(Reason::NormalEvent, number.into());
        } else if !silent {
            self.log(report.event, report.part, &changes);
        }
    }

    /// Counts the changes of an event whose words the dispatcher has already evaluated.
    pub(crate) fn count(&self, report: &Report<'_>) {
        self.registers.compare(report.event, report.values());
    }

    /// Counts and logs the changes of an error report. Any context.
    pub(crate) fn error(&self, report: &Report<'_>) {
        let changes = self.registers.compare(report.event, report.values());
        self.log(report.event, report.part, &changes);
    }

    /// Returns the events that the driver enables.
    pub(crate) fn wanted(&self) -> TriggerMask {
        if self.vendor {
            TriggerMask::DEFAULT
        } else {
            ENABLED
        }
    }

    /// Stops polling the links if `mask` contains all of their events, otherwise starts it. Any
    /// context.
    pub(crate) fn allowed(&self, mask: TriggerMask) {
        let notified = [TriggerEvent::LinkPort, TriggerEvent::LinkMacStatus];
        let notified = notified.iter().all(|event| mask.contains(*event));
        self.links.poll(!notified);
    }

    /// Queues the work item, which polls the links. Any context.
    pub(crate) fn queue_link_poll(self: &Arc<Self>) {
        self.schedule();
    }

    /// Counts, traces and logs an error event like [`Context::error`], with the changed fields.
    fn log(&self, event: TriggerEvent, part: u8, changes: &Changes<'_>) {
        let ctx = &self.ctx;
        ctx.note(Reason::ErrorEvent, u64::from(event.number()));
        if let Some(missed) = ctx.log_allowance(Reason::ErrorEvent) {
            let name = event.name();
            dev_warn!(
                ctx.device(),
                "event {}, part {part}: {}{}\n",
                name,
                changes,
                Suppressed(missed)
            );
        }
    }

    /// Queues the work item. Any context.
    fn schedule(self: &Arc<Self>) {
        let _ = work::enqueue(self.clone());
    }

    /// Reads the registers that `wanted` selects.
    fn read_all<'a>(
        &'a self,
        wanted: impl Fn(&Word) -> bool + 'a,
    ) -> impl Iterator<Item = (RegOffset, u64)> + 'a {
        let words = self.registers.words.iter().filter(move |w| wanted(w));
        words.filter_map(|w| {
            let value = self.ctx.alive_access()?.rf.read(w.offset);
            (value != u64::MAX).then_some((w.offset, value))
        })
    }

    /// Reads the initial values of all registers, with which later reports are compared. Further
    /// calls do nothing. Process context.
    pub(crate) fn read_first(&self) {
        let _first_read = self.first_read.lock();
        if self.registers.begun.load(Relaxed) {
            return;
        }
        for event in TriggerEvent::ALL {
            let values = self.read_all(move |w| w.event == event);
            self.registers.compare(event, values);
        }
        self.links.refresh();
        self.registers.begun.store(true, Relaxed);
    }

    /// Runs the work item: reads ECC flags if requested, and polls the links. Process context.
    fn poll(&self) {
        self.read_first();
        if self.ecc.xchg(false, Full) {
            let flags = self.read_all(|w| w.event == TriggerEvent::EccFatal);
            let changes = self.registers.compare(TriggerEvent::EccFatal, flags);
            self.log(TriggerEvent::EccFatal, 0, &changes);
        }
        self.links.refresh();
    }

    /// Writes the sub-causes of an event whose count is not 0 to debugfs.
    pub(crate) fn show(&self, event: TriggerEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registers.show(event, f)
    }

    /// Cancels the work item and waits for it. The device is retired, so no further event is
    /// handled. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        work::cancel_sync::<Self, 0>(self);
    }
}
