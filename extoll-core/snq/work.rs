// SPDX-License-Identifier: GPL-2.0-only

//! Work items of the notification queue, and their cancellation. They run in process context and
//! may sleep.

use super::Snq;
use crate::quirks;
use kernel::{
    impl_has_delayed_work, impl_has_work,
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::{RawDelayedWorkItem, WorkItem},
};
use kernel_ext::{reset, work};
use protocol::nic::snq::EventMask;

/// Work item that drains outport 10.
pub(super) const DRAIN: u64 = 0;
/// Work item that recovers from lost entries.
pub(super) const RECOVER: u64 = 1;
/// Work item that polls for lost interrupts.
pub(super) const WATCH: u64 = 2;
/// Work item that unmasks events after storms.
pub(super) const UNMASK: u64 = 3;
/// Work item that reads the initial values of the registers that events record.
pub(super) const BEGIN: u64 = 4;
/// Work item that delivers deferred interrupts of other nodes.
pub(super) const MESSAGES: u64 = 5;
/// Work item that requests a reset, because the NIC has lost its registers.
pub(super) const LOST_REGISTERS: u64 = 6;

impl_has_delayed_work! {
    impl HasDelayedWork<Snq, DRAIN> for Snq { self.drain }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Snq, RECOVER> for Snq { self.recovery }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Snq, WATCH> for Snq { self.watch }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Snq, UNMASK> for Snq { self.unmask }
}

impl_has_work! {
    impl HasWork<Snq, BEGIN> for Snq { self.begin }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Snq, MESSAGES> for Snq { self.messages_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Snq, LOST_REGISTERS> for Snq { self.lost_registers }
}

impl WorkItem<DRAIN> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        if let Some(again) = this.drain() {
            this.schedule::<DRAIN>(again);
        }
    }
}

impl WorkItem<RECOVER> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.recover();
    }
}

impl WorkItem<WATCH> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.watch();
        if this.has_lost_registers() {
            let _ = work::enqueue_waiting::<_, LOST_REGISTERS>(this.clone(), 0);
        }
        if this.ctx.is_alive() {
            this.schedule::<WATCH>(quirks::SNQ_WATCH_MS);
        }
    }
}

impl WorkItem<UNMASK> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.write_mask(EventMask::end_storms);
        // Events of links may have been missed while they were masked.
        this.to.events.queue_link_poll();
    }
}

impl WorkItem<BEGIN> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.to.events.read_first();
        this.allow(this.to.events.wanted());
        // Links may have changed after their initial values were read.
        this.to.events.queue_link_poll();
    }
}

impl WorkItem<MESSAGES> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.deliver_late_messages();
    }
}

impl WorkItem<LOST_REGISTERS> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        reset::registers_lost(this.ctx.device());
    }
}

impl Snq {
    /// Queues a work item with a delay of `delay_ms`. Any context.
    pub(super) fn schedule<const ID: u64>(self: &Arc<Self>, delay_ms: u32)
    where
        Arc<Self>: RawDelayedWorkItem<ID, EnqueueOutput = Result<(), Arc<Self>>>,
    {
        let _ = work::enqueue_delayed::<_, ID>(self.clone(), msecs_to_jiffies(delay_ms));
    }

    /// Starts two work items. One reads the initial values of the registers that events record, and
    /// then enables the driver's events. The other polls periodically for lost interrupts. Any
    /// context.
    pub(crate) fn start_work(self: &Arc<Self>) {
        let _ = work::enqueue::<_, BEGIN>(self.clone());
        self.schedule::<WATCH>(quirks::SNQ_WATCH_MS);
    }

    /// Cancels all work items and waits for them. The device is retired and the interrupt handler
    /// was removed. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        // Each work item is cancelled after those that queue it.
        work::cancel_sync::<Self, BEGIN>(self);
        work::cancel_delayed_sync::<Self, WATCH>(self);
        work::cancel_delayed_sync::<Self, LOST_REGISTERS>(self);
        work::cancel_delayed_sync::<Self, RECOVER>(self);
        work::cancel_delayed_sync::<Self, UNMASK>(self);
        work::cancel_delayed_sync::<Self, DRAIN>(self);
        work::cancel_delayed_sync::<Self, MESSAGES>(self);
    }
}
