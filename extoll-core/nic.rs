// SPDX-License-Identifier: GPL-2.0-only

//! One NIC: what its ports and the modules above hold on to.
//!
//! A [`Nic`] may outlive the binding of its device (somebody still holds a reference), but its register mappings do
//! not: shutdown revokes them and waits for all users, later accesses fail with `Down`.

use crate::{
    atu::{self, Atu},
    context::Lost,
    events::{Changes, Events},
    links::{Link, Links, LINKS},
    quarantine::{self, Quarantine},
    residue::{self, Spoiled},
    rma::Locks,
    rra::Rra,
    smfu::Smfu,
    snq::Snq,
    stats::Reason,
    user,
    vpid::Table,
};
use core::ops::Deref;
use kernel::{
    impl_has_delayed_work, impl_has_work, new_delayed_work, new_mutex, new_work,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
    workqueue::{DelayedWork, Work, WorkItem},
};
use kernel_ext::{ratelimit::RateLimit, reset::ResetClient, uevent, work};
use wire::{
    ids::{NodeId, Unit, Vpid},
    nla::size_code,
    regs::info,
    snq::TriggerEvent,
};

pub use crate::context::{Context, NetworkState, Status};

/// Facts fixed at load time.
#[derive(Clone, Copy)]
pub struct Params {
    /// 64-byte instead of 128-byte VELO slots.
    pub slots_64: bool,
    /// Global address tables of 2 MiB that the ATU may have at most, 0…1024.
    pub atu_gats: u32,
    /// Largest hardware pages of the ATU in KiB, one of those of [`wire::nla::SIZE_CODES`].
    pub atu_page_kib: u32,
    /// Address tables that memory of one unprivileged user may lie in without filling them, 1…1024.
    pub tables_per_user: u32,
    /// Memory exported by the SMFU in KiB.
    pub smfu_target_kib: u32,
    /// Memory in quarantine in KiB above which no RMA port is enabled.
    pub quarantine_kib: u32,
    /// Time in which a reason gets few log lines, in milliseconds.
    pub log_interval_ms: u32,
    /// The three words of the SNQ interrupt packet (HW §6.2).
    pub snq_irq: [u64; 3],
    /// Mark fences for an emulator that asks for it.
    pub mark_fences: bool,
    /// What processes may do.
    pub user: user::Settings,
}

/// Receives changes of [`Status`].
pub trait StatusClient: Send + Sync {
    /// Called in process context with the subscriber list locked: may sleep, must not subscribe or unsubscribe.
    fn changed(&self, status: Status);

    /// Link `number` (0…6) went up or down, or its neighbour said who it is. Context as [`StatusClient::changed`].
    fn link(&self, _number: u8, _link: Link) {}
}

/// A subscription, ended by drop: when that returns, the client is not called any more. Drop sleeps and must not be
/// called with a lock held that [`StatusClient::changed`] takes.
pub struct Subscription {
    nic: Arc<Nic>,
    key: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.nic.subscribers.lock();
        let old = subscribers
            .list
            .iter()
            .position(|(key, _)| *key == self.key)
            .and_then(|i| subscribers.list.remove(i).ok());
        drop(subscribers);
        drop(old);
    }
}

struct Subscribers {
    list: KVec<(u64, Arc<dyn StatusClient>)>,
    next: u64,
    last: Option<Status>,
}

impl Deref for Nic {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.ctx
    }
}

/// Has a loss of the device reported. Refers to the NIC until its shutdown.
struct Report(Arc<Nic>);

impl Lost for Report {
    fn lost(&self) {
        self.0.schedule_status();
    }
}

impl ResetClient for Nic {
    fn lost(this: &Arc<Self>) {
        this.ctx.lose_by_reset();
        this.publish_status();
    }
}

/// One NIC.
#[pin_data]
pub struct Nic {
    ctx: Arc<Context>,
    pub(crate) params: Params,
    /// Of log lines about the status.
    status_limit: RateLimit,
    #[pin]
    pub(crate) velo: Table,
    #[pin]
    pub(crate) rma: Table,
    #[pin]
    pub(crate) locks: Locks,
    #[pin]
    pub(crate) quarantine: Quarantine,
    /// VPIDs that are closed and kept from others.
    #[pin]
    pub(crate) spoiled: Mutex<KVec<Spoiled>>,
    atu: Arc<Atu>,
    #[pin]
    pub(crate) snq: Snq,
    #[pin]
    pub(crate) rra: Rra,
    #[pin]
    pub(crate) smfu: Smfu,
    pub(crate) events: Events,
    #[pin]
    pub(crate) links: Links,
    #[pin]
    subscribers: Mutex<Subscribers>,
    #[pin]
    status_work: Work<Nic, 0>,
    #[pin]
    drain: DelayedWork<Nic, 1>,
    #[pin]
    events_work: Work<Nic, 3>,
    #[pin]
    recovery: DelayedWork<Nic, 2>,
    #[pin]
    watch: DelayedWork<Nic, 4>,
    #[pin]
    unmask: DelayedWork<Nic, 5>,
    #[pin]
    quarantine_work: DelayedWork<Nic, 6>,
    #[pin]
    residue_work: DelayedWork<Nic, 7>,
}

impl_has_work! {
    impl HasWork<Nic, 0> for Nic { self.status_work }
}

impl_has_work! {
    impl HasWork<Nic, 3> for Nic { self.events_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 1> for Nic { self.drain }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 4> for Nic { self.watch }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 5> for Nic { self.unmask }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 2> for Nic { self.recovery }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 6> for Nic { self.quarantine_work }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 7> for Nic { self.residue_work }
}

impl WorkItem<0> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.read_status();
        this.publish_status();
    }
}

impl WorkItem<1> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        if let Some(again) = crate::snq::drain(&this) {
            this.schedule_drain(again);
        }
    }
}

impl WorkItem<2> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        crate::snq::recover(&this);
    }
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

impl WorkItem<3> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        crate::events::work(&this);
    }
}

impl WorkItem<4> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        crate::snq::watch(&this);
        crate::links::watch(&this);
        if this.is_alive() {
            this.schedule_watch();
        }
    }
}

impl WorkItem<5> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        crate::snq::unmask(&this);
    }
}

impl Nic {
    pub(crate) fn new(
        ctx: Arc<Context>,
        params: Params,
        smfu_bytes: u64,
        snq: impl PinInit<Snq, Error>,
    ) -> Result<Arc<Self>> {
        let events = Events::new()?;
        let vpids = 2 * usize::from(Vpid::COUNT);
        let spoiled = KVec::with_capacity(vpids, GFP_KERNEL)?;
        let settings = atu::Settings {
            gats: params.atu_gats,
            largest: size_code(params.atu_page_kib.into()).ok_or(EINVAL)?,
            spare_tables: params.tables_per_user,
        };
        let atu = Atu::new(ctx.clone(), settings)?;
        Arc::pin_init(
            try_pin_init!(Self {
                ctx,
                params,
                status_limit: RateLimit::new(params.log_interval_ms),
                velo <- Table::new(),
                rma <- Table::new(),
                locks <- Locks::new(),
                quarantine <- Quarantine::new(),
                spoiled <- new_mutex!(spoiled, "extoll_spoiled"),
                atu,
                snq <- snq,
                rra <- Rra::new(),
                smfu <- Smfu::new(smfu_bytes),
                events,
                links <- Links::new(),
                subscribers <- new_mutex!(
                    Subscribers { list: KVec::new(), next: 0, last: None },
                    "extoll_subscribers"
                ),
                status_work <- new_work!("extoll_status"),
                drain <- new_delayed_work!("extoll_drain"),
                events_work <- new_work!("extoll_events"),
                recovery <- new_delayed_work!("extoll_recovery"),
                watch <- new_delayed_work!("extoll_watch"),
                unmask <- new_delayed_work!("extoll_unmask"),
                quarantine_work <- new_delayed_work!("extoll_quarantine"),
                residue_work <- new_delayed_work!("extoll_residue"),
            }),
            GFP_KERNEL,
        )
    }

    /// From now on until the shutdown a loss of the device is reported. May sleep.
    pub(crate) fn listen(self: &Arc<Self>) -> Result {
        let report = Arc::new(Report(self.clone()), GFP_KERNEL)?;
        self.set_listener(Some(report));
        Ok(())
    }

    /// Address translation: registration of memory. Any context.
    pub fn atu(&self) -> &Arc<Atu> {
        &self.atu
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

    /// Whether other nodes can be reached at all: the network runs and a link is up, as last seen. No register access; any context.
    pub fn is_connected(&self) -> bool {
        self.status().is_up() && self.links.any_up()
    }

    /// Subscribes to changes of the status and of links; read [`Nic::status`] and [`Nic::links`] afterwards. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn subscribe(nic: &Arc<Self>, client: Arc<dyn StatusClient>) -> Result<Subscription> {
        let mut subscribers = nic.subscribers.lock();
        let key = subscribers.next;
        subscribers.list.push((key, client), GFP_KERNEL)?;
        subscribers.next += 1;
        Ok(Subscription {
            nic: nic.clone(),
            key,
        })
    }

    pub(crate) fn table(&self, unit: Unit) -> &Table {
        match unit {
            Unit::Velo => &self.velo,
            Unit::Rma => &self.rma,
        }
    }

    /// As [`Nic::error`] for an event that reports an error, with what it changed.
    pub(crate) fn event_error(&self, event: TriggerEvent, part: u8, changes: &Changes<'_>) {
        self.note(Reason::ErrorEvent, u64::from(event.number()));
        if let Some(missed) = self.log_allowance(Reason::ErrorEvent) {
            let name = event.name();
            dev_warn!(
                self.device(),
                "event {}, part {part}: {}, {missed} suppressed\n",
                name,
                changes
            );
        }
    }

    /// Reads node ID and network state; a new node ID is stamped on all open VELO ports.
    fn read_status(self: &Arc<Self>) {
        let Some(hw) = self.alive_access() else {
            return;
        };
        let network = hw.rf.read(info::NW_STATE);
        let node = hw.rf.read(info::NODE);
        if self.is_gone(&hw, network) || self.is_gone(&hw, node) {
            return;
        }
        self.set_network(network);
        let node = NodeId(info::Node(node).id());
        if self.set_node(node) != node {
            drop(hw);
            self.velo.for_each(|port| {
                if let Some(hw) = self.alive_access() {
                    crate::velo::stamp(&hw, port.vpid);
                }
            });
        }
    }

    /// Schedules the report of the status to the subscribers. Any context.
    pub(crate) fn schedule_status(self: &Arc<Self>) {
        // Already queued is fine: the work reads the latest state.
        let _ = work::enqueue::<_, 0>(self.clone());
    }

    /// Schedules a look at events and links. Any context.
    pub(crate) fn schedule_events(self: &Arc<Self>) {
        let _ = work::enqueue::<_, 3>(self.clone());
    }

    /// Tells subscribers about a link.
    pub(crate) fn publish_link(&self, number: u8, link: Link) {
        for (_, client) in self.subscribers.lock().list.iter() {
            client.link(number, link);
        }
    }

    /// Starts the periodic check of the system notification queue. Any context.
    pub(crate) fn schedule_watch(self: &Arc<Self>) {
        let delay = kernel::time::msecs_to_jiffies(crate::snq::WATCH_MS);
        let _ = work::enqueue_delayed::<_, 4>(self.clone(), delay);
    }

    /// Schedules the re-enabling of storming events in `delay_ms`. Any context.
    pub(crate) fn schedule_unmask(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        let _ = work::enqueue_delayed::<_, 5>(self.clone(), delay);
    }

    /// Schedules the draining of the outport in `delay_ms`. Any context.
    pub(crate) fn schedule_drain(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        let _ = work::enqueue_delayed::<_, 1>(self.clone(), delay);
    }

    /// Schedules the recovery of the system notification queue in `delay_ms`. Any context.
    pub(crate) fn schedule_recovery(self: &Arc<Self>, delay_ms: u32) {
        let delay = kernel::time::msecs_to_jiffies(delay_ms);
        let _ = work::enqueue_delayed::<_, 2>(self.clone(), delay);
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

    /// Whether a bus address belongs to memory in [`quarantine`]: what came for it is a late answer. Any context.
    pub fn is_quarantined(&self, address: u64) -> bool {
        self.quarantine.covers(address)
    }

    fn publish_status(&self) {
        // Before anybody hears of it and frees what the NIC knows.
        self.isolate();
        let mut subscribers = self.subscribers.lock();
        let status = self.status();
        if subscribers.last == Some(status) {
            return;
        }
        let was_alive = subscribers.last.is_none_or(|s| s.alive);
        subscribers.last = Some(status);
        self.stats().change();
        let Status {
            node,
            network,
            alive,
        } = status;
        let again = self.status_limit.allow();
        if let Some(missed) = again.or((was_alive && !alive).then_some(0)) {
            dev_info!(
                self.device(),
                "node {}, network {:?}, alive {}, {} suppressed\n",
                node.0,
                network,
                alive,
                missed
            );
        }
        if was_alive && !alive {
            self.velo.down();
            self.rma.down();
        }
        for (_, client) in subscribers.list.iter() {
            client.changed(status);
        }
        drop(subscribers);
        if self.tell_user_space(status).is_err() {
            self.error(Reason::LostUevent, u64::MAX);
        }
    }

    fn tell_user_space(&self, status: Status) -> Result {
        let network = CString::try_from_fmt(fmt!("EXTOLL_NETWORK={:?}", status.network))?;
        let node = CString::try_from_fmt(fmt!("EXTOLL_NODE={}", status.node.0))?;
        let alive = CString::try_from_fmt(fmt!("EXTOLL_ALIVE={}", u8::from(status.alive)))?;
        uevent::changed(self.device(), &[&network, &node, &alive])
    }

    /// Stops everything that runs by itself, then gives up the hardware. Called once at unbind, after children and
    /// interrupt handler are gone.
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
        work::cancel_delayed_sync::<Nic, 4>(self);
        work::cancel_delayed_sync::<Nic, 2>(self);
        work::cancel_delayed_sync::<Nic, 5>(self);
        work::cancel_delayed_sync::<Nic, 1>(self);
        work::cancel_sync::<Nic, 3>(self);
        work::cancel_delayed_sync::<Nic, 6>(self);
        quarantine::end(self);
        work::cancel_sync::<Nic, 0>(self);
        self.velo.down();
        self.rma.down();
        self.smfu.unmap_all();
        self.ctx.set_listener(None);
        self.ctx.give_up();
    }
}
