// SPDX-License-Identifier: GPL-2.0-only

//! Monitor of a NIC's status (node ID, network state, liveness). Notifies subscribers of changes of
//! the status and of links.
//!
//! Trigger events and the removal of the device queue a work item ([`Monitor::schedule`]). The work
//! item reads the status in process context, and notifies subscribers if the status has changed. A
//! mutex protects the list of subscribers and is held while they are called.

use crate::{
    context::{Context, LossListener, Status},
    stats::Reason,
};
use kernel::{
    impl_has_work, new_mutex, new_work,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
    workqueue::{Work, WorkItem},
};
use kernel_ext::{
    ratelimit::{RateLimit, Suppressed},
    uevent, work,
};
use wire::{
    ids::NodeId,
    regs::{info, lp},
};

/// Number of links.
pub const LINKS: usize = lp::PORTS as usize;

/// Neighbour at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// GUID of the neighbour's NIC.
    pub guid: u32,
    /// Node ID of the neighbour's NIC.
    pub node: NodeId,
    /// Number of the link at the neighbour's NIC.
    pub port: u8,
}

/// State of a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Link {
    /// True if software has enabled the training of the link.
    pub enabled: bool,
    /// True if the link carries packets.
    pub up: bool,
    /// Neighbour at the other end; `None` until it has sent its identity.
    pub neighbour: Option<Neighbour>,
}

/// Client that is called when [`Status`] or a link changes.
pub trait StatusClient: Send + Sync {
    /// Reports a new status. Process context, with the list of subscribers locked. May sleep, but
    /// must neither subscribe nor unsubscribe.
    fn changed(&self, status: Status);

    /// Reports that link `number` (0…6) went up or down, or that its neighbour sent its identity.
    /// Runs in the same context as [`StatusClient::changed`].
    fn link(&self, _number: u8, _link: Link) {}
}

/// Units of the NIC that are notified of changes before the subscribers. Process context; may
/// sleep.
pub(crate) trait Units: Send + Sync {
    /// Reports a new node ID.
    fn node_changed(&self);

    /// Reports that the device was removed.
    fn down(&self);
}

/// Subscription of a [`StatusClient`]. When its drop returns, the client is not called any more.
/// The drop sleeps and must not be called with a lock held that [`StatusClient::changed`] acquires.
pub struct Subscription {
    monitor: Arc<Monitor>,
    key: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.monitor.subscribers.lock();
        let old = subscribers
            .list
            .iter()
            .position(|(key, _)| *key == self.key)
            .and_then(|i| subscribers.list.remove(i).ok());
        drop(subscribers);
        drop(old);
    }
}

struct StatusSubscribers {
    list: KVec<(u64, Arc<dyn StatusClient>)>,
    next: u64,
    last: Option<Status>,
}

/// Monitor of a NIC; see the documentation of the module.
#[pin_data]
pub(crate) struct Monitor {
    ctx: Arc<Context>,
    units: Arc<dyn Units>,
    /// Rate limit of log lines about the status.
    limit: RateLimit,
    #[pin]
    subscribers: Mutex<StatusSubscribers>,
    #[pin]
    work: Work<Monitor>,
}

impl_has_work! {
    impl HasWork<Monitor> for Monitor { self.work }
}

impl WorkItem for Monitor {
    type Pointer = Arc<Monitor>;

    fn run(this: Arc<Monitor>) {
        this.read();
        this.publish();
    }
}

/// Listener that queues the monitor's work item. Holds a reference to the monitor until
/// [`Monitor::end`].
struct LossReporter(Arc<Monitor>);

impl LossListener for LossReporter {
    fn device_lost(&self) {
        self.0.schedule();
    }
}

impl Monitor {
    /// Makes a monitor. `log_interval_ms` is the interval in ms for which log lines about the
    /// status are limited. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        units: Arc<dyn Units>,
        log_interval_ms: u32,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                units,
                limit: RateLimit::new(log_interval_ms),
                subscribers <- new_mutex!(
                    StatusSubscribers { list: KVec::new(), next: 0, last: None },
                    "extoll_subscribers"
                ),
                work <- new_work!("extoll_status"),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes the loss of the device queue the work item, until [`Monitor::end`]. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn listen(self: &Arc<Self>) -> Result {
        let report = Arc::new(LossReporter(self.clone()), GFP_KERNEL)?;
        self.ctx.set_listener(Some(report));
        Ok(())
    }

    /// See [`crate::nic::Nic::subscribe`].
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        client: Arc<dyn StatusClient>,
    ) -> Result<Subscription> {
        let mut subscribers = self.subscribers.lock();
        let key = subscribers.next;
        // Memory is reserved first, so that the client is not dropped with the list locked if
        // memory is short.
        subscribers.list.reserve(1, GFP_KERNEL)?;
        subscribers.list.push((key, client), GFP_KERNEL)?;
        subscribers.next += 1;
        Ok(Subscription {
            monitor: self.clone(),
            key,
        })
    }

    /// Queues the work item, which reads the status and notifies the subscribers. Any context.
    pub(crate) fn schedule(self: &Arc<Self>) {
        // The work item may be queued already. It reads the current state when it runs.
        let _ = work::enqueue(self.clone());
    }

    /// Reads node ID and network state.
    fn read(&self) {
        let ctx = &self.ctx;
        let Some(hw) = ctx.alive_access() else {
            return;
        };
        let network = hw.rf.read(info::NW_STATE);
        let node = hw.rf.read(info::NODE);
        if ctx.check_removed(&hw, network) || ctx.check_removed(&hw, node) {
            return;
        }
        ctx.set_network(network);
        let node = NodeId(info::Node(node).id());
        if ctx.set_node(node) != node {
            drop(hw);
            self.units.node_changed();
        }
    }

    /// Notifies subscribers of the state of a link. Process context.
    pub(crate) fn publish_link(&self, number: u8, link: Link) {
        for (_, client) in self.subscribers.lock().list.iter() {
            client.link(number, link);
        }
    }

    /// Notifies units and subscribers of the status that was read last, if it has changed. Process
    /// context; may sleep.
    pub(crate) fn publish(&self) {
        let ctx = &self.ctx;
        // A dead NIC is isolated before subscribers are notified and free memory that it can
        // access.
        ctx.isolate();
        ctx.log_loss();
        let mut subscribers = self.subscribers.lock();
        let status = ctx.status();
        if subscribers.last == Some(status) {
            return;
        }
        let was_alive = subscribers.last.is_none_or(|s| s.alive);
        subscribers.last = Some(status);
        ctx.stats().change();
        let Status {
            node,
            network,
            alive,
        } = status;
        let again = self.limit.allow();
        if let Some(missed) = again.or((was_alive && !alive).then_some(0)) {
            dev_info!(
                ctx.device(),
                "node {}, network {:?}, alive {}{}\n",
                node.0,
                network,
                alive,
                Suppressed(missed)
            );
        }
        if was_alive && !alive {
            self.units.down();
        }
        for (_, client) in subscribers.list.iter() {
            client.changed(status);
        }
        drop(subscribers);
        if self.tell_user_space(status).is_err() {
            ctx.error(Reason::LostUevent, u64::MAX);
        }
    }

    fn tell_user_space(&self, status: Status) -> Result {
        let network = CString::try_from_fmt(fmt!("EXTOLL_NETWORK={:?}", status.network))?;
        let node = CString::try_from_fmt(fmt!("EXTOLL_NODE={}", status.node.0))?;
        let alive = CString::try_from_fmt(fmt!("EXTOLL_ALIVE={}", u8::from(status.alive)))?;
        uevent::changed(self.ctx.device(), &[&network, &node, &alive])
    }

    /// Stops the monitor. The caller prevents concurrent calls of [`Monitor::schedule`]. May sleep.
    pub(crate) fn end(self: &Arc<Self>) {
        self.ctx.set_listener(None);
        work::cancel_sync::<Self, 0>(self);
        self.ctx.log_loss();
    }
}
