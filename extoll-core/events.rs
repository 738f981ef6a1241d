// SPDX-License-Identifier: GPL-2.0-only

//! What trigger events report (HW §6.5): which field of which register moved, counted, and logged
//! at a limited rate.
//!
//! The notification program records registers with each event. Every field of every recorded
//! register is a sub-cause: a report in which the field differs from the last report counts for it.
//! For ECC events the program records no ECC register (HW §6.5), so all registers with ECC flags
//! are read instead.

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

/// Events for [`Events::handle`] that report normal things: counted, but no errors.
const NORMAL: TriggerMask = TriggerMask(0)
    .with(TriggerEvent::PcieCoreLinkStatus)
    .with(TriggerEvent::PcieBridgeRegfileInfo)
    .with(TriggerEvent::TimerInterrupt)
    .with(TriggerEvent::GpioIrq)
    .with(TriggerEvent::BarrierReleased)
    .with(TriggerEvent::LinkPort)
    .with(TriggerEvent::LinkMacStatus);

/// The driver's events: the vendor's (HW §6.5), and links, inports and correctable ECC errors.
const ENABLED: TriggerMask = TriggerMask::DEFAULT
    .with(TriggerEvent::EccError)
    .with(TriggerEvent::XbarInport)
    .with(TriggerEvent::LinkPort)
    .with(TriggerEvent::LinkMacStatus);

/// Words of an entry that has another part after it (HW §6.3).
const FULL_PART: usize = 7;
/// What a trigger event reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    /// The event.
    pub(crate) event: TriggerEvent,
    /// Number of this part of the report, from 0: an entry holds seven words.
    pub(crate) part: u8,
    /// Registers that the notification program recorded.
    pub(crate) registers: &'a [RegOffset],
    /// Their values.
    pub(crate) words: &'a [u64],
}

impl Report<'_> {
    fn values(&self) -> impl Iterator<Item = (RegOffset, u64)> + '_ {
        let words = self.words.iter().copied();
        self.registers.iter().copied().zip(words)
    }
}

/// State of a NIC's event reports.
#[pin_data]
pub(crate) struct Events {
    ctx: Arc<Context>,
    links: Arc<Links>,
    smfu: Arc<Smfu>,
    registers: Registers,
    /// Taken to read the first values.
    #[pin]
    beginning: Mutex<()>,
    /// ECC flags are to be looked at.
    ecc: AtomicFlag,
    /// Only the events of the vendor's driver are enabled.
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
        this.look();
    }
}

impl Events {
    /// `vendor`: only the events of the vendor's driver are enabled. May sleep.
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
                beginning <- new_mutex!((), "extoll_events_beginning"),
                ecc: AtomicFlag::new(false),
                vendor,
                work <- new_work!("extoll_events"),
            }),
            GFP_KERNEL,
        )
    }

    /// Handles all that the dispatcher does not itself: decodes, counts, logs, and starts what has
    /// to be done in process context. Hard interrupt, with the notification queue locked.
    pub(crate) fn handle(self: &Arc<Self>, hw: &Hw, report: &Report<'_>) {
        let changes = self.registers.compare(report.event, report.values());
        match report.event {
            TriggerEvent::SmfuTimeout => {
                self.smfu.take_timeout(hw);
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
        // Of a report in parts those without change say nothing.
        let full = report.words.len() == FULL_PART;
        let silent = changes.total == 0 && (report.part > 0 || full);
        if NORMAL.contains(report.event) {
            let number = report.event.number();
            self.ctx.note(Reason::NormalEvent, number.into());
        } else if !silent {
            self.log(report.event, report.part, &changes);
        }
    }

    /// As [`Events::handle`] for events whose words the dispatcher judged itself: only counts.
    pub(crate) fn count(&self, report: &Report<'_>) {
        self.registers.compare(report.event, report.values());
    }

    /// What a report of an error changed, logged. Any context.
    pub(crate) fn error(&self, report: &Report<'_>) {
        let changes = self.registers.compare(report.event, report.values());
        self.log(report.event, report.part, &changes);
    }

    /// The events that the driver wants.
    pub(crate) fn wanted(&self) -> TriggerMask {
        match self.vendor {
            true => TriggerMask::DEFAULT,
            false => ENABLED,
        }
    }

    /// Which events are enabled: links that none tells of are looked at from time to time. Any
    /// context.
    pub(crate) fn allowed(&self, mask: TriggerMask) {
        let told = [TriggerEvent::LinkPort, TriggerEvent::LinkMacStatus];
        let told = told.iter().all(|event| mask.contains(*event));
        self.links.poll(!told);
    }

    /// Schedules a look at the links, and at what events asked for. Any context.
    pub(crate) fn look_at_links(self: &Arc<Self>) {
        self.schedule();
    }

    /// As [`Context::error`] for an event that reports an error, with what it changed.
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

    /// Schedules a look at what events asked for. Any context.
    fn schedule(self: &Arc<Self>) {
        let _ = work::enqueue(self.clone());
    }

    /// Registers' values as they are, but of those that are read for `wanted`.
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

    /// Notes how things are, once: from then on changes can be told. Process context.
    pub(crate) fn begin(&self) {
        let _beginning = self.beginning.lock();
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

    /// Looks at what events asked for. Process context.
    fn look(&self) {
        self.begin();
        if self.ecc.xchg(false, Full) {
            let flags = self.read_all(|w| w.event == TriggerEvent::EccFatal);
            let changes = self.registers.compare(TriggerEvent::EccFatal, flags);
            self.log(TriggerEvent::EccFatal, 0, &changes);
        }
        self.links.refresh();
    }

    /// Writes the sub-causes of an event that occurred.
    pub(crate) fn show(&self, event: TriggerEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registers.show(event, f)
    }

    /// The device is retired and no event is handled: nothing runs by itself any more. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        work::cancel_sync::<Self, 0>(self);
    }
}
