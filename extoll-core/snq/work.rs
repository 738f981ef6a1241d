// SPDX-License-Identifier: GPL-2.0-only

//! What the notification queue does in process context: work items, and that they end.

use super::Snq;
use kernel::{
    impl_has_delayed_work, impl_has_work,
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::{RawDelayedWorkItem, WorkItem},
};
use kernel_ext::{reset, work};
use wire::snq::Enabled;

/// Pause between looks for entries that no interrupt tells of, in milliseconds. One may get lost,
/// and it is armed again by its handler only.
const WATCH_MS: u32 = 1000;

/// The drain of outport 10.
pub(super) const DRAIN: u64 = 0;
/// Recovery of lost entries.
pub(super) const RECOVER: u64 = 1;
/// Looks for lost interrupts.
pub(super) const WATCH: u64 = 2;
/// The end of storms.
pub(super) const UNMASK: u64 = 3;
/// The first look at the registers of events.
pub(super) const BEGIN: u64 = 4;
/// Interrupts by writes of other nodes that were held back.
pub(super) const MESSAGES: u64 = 5;
/// The NIC has lost its registers.
pub(super) const FORGOTTEN: u64 = 6;

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
    impl HasDelayedWork<Snq, FORGOTTEN> for Snq { self.forgotten }
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
        if this.has_forgotten() {
            let _ = work::enqueue_waiting::<_, FORGOTTEN>(this.clone(), 0);
        }
        if this.ctx.is_alive() {
            this.schedule::<WATCH>(WATCH_MS);
        }
    }
}

impl WorkItem<UNMASK> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.write_mask(Enabled::calm);
        // What happened to links while their events were masked.
        this.to.events.look_at_links();
    }
}

impl WorkItem<BEGIN> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.to.events.begin();
        this.allow(this.to.events.wanted());
        // What happened to links since the first look.
        this.to.events.look_at_links();
    }
}

impl WorkItem<MESSAGES> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        this.deliver_late_messages();
    }
}

impl WorkItem<FORGOTTEN> for Snq {
    type Pointer = Arc<Snq>;

    fn run(this: Arc<Snq>) {
        reset::forgotten(this.ctx.device());
    }
}

impl Snq {
    /// Schedules a work item in `delay_ms`. Any context.
    pub(super) fn schedule<const ID: u64>(self: &Arc<Self>, delay_ms: u32)
    where
        Arc<Self>: RawDelayedWorkItem<ID, EnqueueOutput = Result<(), Arc<Self>>>,
    {
        let _ = work::enqueue_delayed::<_, ID>(self.clone(), msecs_to_jiffies(delay_ms));
    }

    /// What runs beside the interrupt handler: once the first look at the events' registers, after
    /// which the driver's events are enabled, and from time to time one for lost interrupts. Any
    /// context.
    pub(crate) fn attend(self: &Arc<Self>) {
        let _ = work::enqueue::<_, BEGIN>(self.clone());
        self.schedule::<WATCH>(WATCH_MS);
    }

    /// The device is retired and the interrupt handler is gone: nothing runs by itself any more.
    /// May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        // Each after those that schedule it.
        work::cancel_sync::<Self, BEGIN>(self);
        work::cancel_delayed_sync::<Self, WATCH>(self);
        work::cancel_delayed_sync::<Self, FORGOTTEN>(self);
        work::cancel_delayed_sync::<Self, RECOVER>(self);
        work::cancel_delayed_sync::<Self, UNMASK>(self);
        work::cancel_delayed_sync::<Self, DRAIN>(self);
        work::cancel_delayed_sync::<Self, MESSAGES>(self);
    }
}
