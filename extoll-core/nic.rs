// SPDX-License-Identifier: GPL-2.0-only

//! One NIC: its units, put together.
//!
//! A [`Nic`] may outlive the binding of its device (somebody still holds a reference), but its register
//! mappings do not: shutdown revokes them and waits for all users, later accesses fail with `Down`.

use crate::{
    atu::Atu,
    backdoor::Backdoors,
    dma::DmaWords,
    events::{EventClient, Events},
    links::{Link, Links, LINKS},
    monitor::{Monitor, Units},
    quarantine::{self, Quarantine},
    residue::{self, Spoiled},
    rma::Locks,
    rra::Rra,
    smfu::Smfu,
    snq::{EventSubscription, Handlers, MessageClient, MessageSubscription, Snq},
    stats::Reason,
    vpid::Table,
};
use core::ops::Deref;
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex,
    prelude::*,
    sync::{atomic::Atomic, Arc, Mutex},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::work;
use wire::{
    ids::{Unit, Vpid},
    snq::TriggerEvent,
};

pub use crate::{
    context::{Context, NetworkState, Status},
    monitor::{StatusClient, Subscription},
    params::Params,
};

impl Deref for Nic {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.ctx
    }
}

/// What a change of the status concerns.
struct Tables {
    ctx: Arc<Context>,
    smfu: Arc<Smfu>,
    velo: Arc<Table>,
    rma: Arc<Table>,
}

impl Units for Tables {
    fn node_changed(&self) {
        self.velo.for_each(|port| {
            if let Some(hw) = self.ctx.alive_access() {
                crate::velo::stamp(&hw, port.vpid);
            }
        });
    }

    fn down(&self) {
        self.smfu.revoke_windows();
        self.velo.down();
        self.rma.down();
    }
}

/// One NIC.
#[pin_data]
pub struct Nic {
    ctx: Arc<Context>,
    pub(crate) params: Params,
    monitor: Arc<Monitor>,
    links: Arc<Links>,
    smfu: Arc<Smfu>,
    events: Arc<Events>,
    snq: Arc<Snq>,
    rra: Arc<Rra>,
    backdoors: Arc<Backdoors>,
    /// Handles of modules above.
    handles: Atomic<u64>,
    pub(crate) velo: Arc<Table>,
    pub(crate) rma: Arc<Table>,
    #[pin]
    pub(crate) locks: Locks,
    #[pin]
    pub(crate) quarantine: Quarantine,
    /// VPIDs that are closed and kept from others.
    #[pin]
    pub(crate) spoiled: Mutex<KVec<Spoiled>>,
    #[pin]
    pub(crate) atu: Atu,
    #[pin]
    quarantine_work: DelayedWork<Nic, 6>,
    #[pin]
    residue_work: DelayedWork<Nic, 7>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 6> for Nic { self.quarantine_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 7> for Nic { self.residue_work }
}

impl WorkItem<6> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        if let Some(again) = quarantine::look(&this) {
            this.schedule_quarantine(again);
        }
    }
}

impl WorkItem<7> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        if let Some(again) = residue::look(&this) {
            this.schedule_residue(again);
        }
    }
}

impl Nic {
    /// `ring` is from [`crate::snq::allocate`]. May sleep.
    pub(crate) fn new(
        ctx: Arc<Context>,
        ring: DmaWords,
        params: Params,
        window_bytes: u64,
    ) -> Result<Arc<Self>> {
        let velo = Arc::pin_init(Table::new(), GFP_KERNEL)?;
        let rma = Arc::pin_init(Table::new(), GFP_KERNEL)?;
        let smfu = Smfu::new(ctx.clone(), window_bytes, params.smfu_target_kib)?;
        let tables = Tables {
            ctx: ctx.clone(),
            smfu: smfu.clone(),
            velo: velo.clone(),
            rma: rma.clone(),
        };
        let tables = Arc::new(tables, GFP_KERNEL)?;
        let monitor = Monitor::new(ctx.clone(), tables, params.log_interval_ms)?;
        let links = Links::new(ctx.clone(), monitor.clone())?;
        let vendor = params.vendor_events;
        let events = Events::new(ctx.clone(), links.clone(), smfu.clone(), vendor)?;
        let handlers = Handlers {
            events: events.clone(),
            smfu: smfu.clone(),
            monitor: monitor.clone(),
            velo: velo.clone(),
            rma: rma.clone(),
        };
        let most = params.message_interrupts;
        let snq = Snq::new(ctx.clone(), ring, handlers, params.snq_irq, most)?;
        let rra = Rra::new(ctx.clone(), smfu.clone())?;
        let backdoors = Backdoors::new(ctx.clone(), rra.clone())?;
        let vpids = 2 * usize::from(Vpid::COUNT);
        let spoiled = KVec::with_capacity(vpids, GFP_KERNEL)?;
        Arc::pin_init(
            try_pin_init!(Self {
                ctx,
                params,
                monitor,
                links,
                smfu,
                events,
                snq,
                rra,
                backdoors,
                handles: Atomic::new(0),
                velo,
                rma,
                locks <- Locks::new(),
                quarantine <- Quarantine::new(),
                spoiled <- new_mutex!(spoiled, "extoll_spoiled"),
                atu <- Atu::new(),
                quarantine_work <- new_delayed_work!("extoll_quarantine"),
                residue_work <- new_delayed_work!("extoll_residue"),
            }),
            GFP_KERNEL,
        )
    }

    /// Shared memory of other nodes, and what of this one is shared.
    pub fn smfu(&self) -> &Arc<Smfu> {
        &self.smfu
    }

    /// Registers of any node.
    pub fn rra(&self) -> &Arc<Rra> {
        &self.rra
    }

    /// The PCIe backdoors of other nodes.
    pub fn backdoors(&self) -> &Arc<Backdoors> {
        &self.backdoors
    }

    pub(crate) fn handles(&self) -> &Atomic<u64> {
        &self.handles
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    pub(crate) fn monitor(&self) -> &Arc<Monitor> {
        &self.monitor
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    pub(crate) fn snq(&self) -> &Arc<Snq> {
        &self.snq
    }

    pub(crate) fn link_state(&self) -> &Arc<Links> {
        &self.links
    }

    /// Bytes per VELO slot: 128 or 64.
    pub fn velo_slot_bytes(&self) -> usize {
        if self.params.slots_64 {
            64
        } else {
            128
        }
    }

    /// The links as last seen. No register access; any context.
    pub fn links(&self) -> [Link; LINKS] {
        self.links.get()
    }

    /// Whether other nodes can be reached at all: the network runs and a link is up, as last seen. No
    /// register access; any context.
    pub fn is_connected(&self) -> bool {
        self.status().is_up() && self.links.any_up()
    }

    /// Subscribes to changes of the status and of links; read [`Context::status`] and [`Nic::links`]
    /// afterwards. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn subscribe(&self, client: Arc<dyn StatusClient>) -> Result<Subscription> {
        self.monitor.subscribe(client)
    }

    /// Has `client` hear of a trigger event, in addition to what the driver does itself, until the
    /// subscription is dropped. An event that is not enabled otherwise is enabled meanwhile. May sleep.
    ///
    /// ```no_run
    /// # use extoll_core::{events::{EventClient, Report}, nic::Nic, snq::EventSubscription};
    /// # use kernel::{prelude::*, sync::Arc};
    /// # use wire::snq::TriggerEvent;
    /// struct Packets;
    ///
    /// impl EventClient for Packets {
    ///     fn event(&self, report: &Report<'_>) {
    ///         // Interrupts are disabled: note it, and have a work item look.
    /// #       let _ = report;
    ///     }
    /// }
    ///
    /// fn listen(nic: &Nic) -> Result<EventSubscription> {
    ///     let client = Arc::new(Packets, GFP_KERNEL)?;
    ///     nic.subscribe_event(TriggerEvent::PcieBridgeRegfileInfo, client)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL` for events 23 and 25, which are the ports'; `EBUSY` for the 65th subscription; `ENOMEM`.
    pub fn subscribe_event(
        &self,
        event: TriggerEvent,
        client: Arc<dyn EventClient>,
    ) -> Result<EventSubscription> {
        self.snq.subscribe_event(event, client)
    }

    /// Has `client` hear of interrupts that other nodes cause ([`MessageClient`]), at most `per_second`
    /// times a second (0: any number), until the subscription is dropped. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` for the 65th subscription; `ENOMEM`.
    pub fn subscribe_messages(
        &self,
        client: Arc<dyn MessageClient>,
        per_second: u32,
    ) -> Result<MessageSubscription> {
        self.snq.subscribe_messages(client, per_second)
    }

    pub(crate) fn table(&self, unit: Unit) -> &Table {
        match unit {
            Unit::Velo => &self.velo,
            Unit::Rma => &self.rma,
        }
    }

    /// Schedules a look at the quarantine in `delay_ms`. Any context.
    pub(crate) fn schedule_quarantine(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        let _ = work::enqueue_delayed::<_, 6>(self.clone(), delay);
    }

    /// Schedules a look at the VPIDs that are withheld in `delay_ms`. Any context.
    pub(crate) fn schedule_residue(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        let _ = work::enqueue_delayed::<_, 7>(self.clone(), delay);
    }

    /// Whether a bus address belongs to memory in [`quarantine`]: what came for it is a late answer. Any
    /// context.
    pub fn is_quarantined(&self, address: u64) -> bool {
        self.quarantine.covers(address)
    }

    /// Stops everything that runs by itself, then gives up the hardware. Called once at unbind, after
    /// children and interrupt handler are gone.
    pub(crate) fn shutdown(self: &Arc<Self>) {
        work::cancel_delayed_sync::<Nic, 7>(self);
        residue::end(self);
        let left = self.velo.open() + self.rma.open();
        if left != 0 {
            self.error(Reason::PortLeft, left as u64);
        }
        // No device is found missing any more.
        self.ctx.retire();
        // Each after those that schedule it.
        self.snq.end();
        self.events.end();
        self.links.end();
        work::cancel_delayed_sync::<Nic, 6>(self);
        quarantine::end(self);
        self.monitor.end();
        self.velo.down();
        self.rma.down();
        self.smfu.unmap_all();
        self.ctx.give_up();
    }
}
