// SPDX-License-Identifier: GPL-2.0-only

//! Data path of a NIC: its ports, rings, connections and timer. Created and dropped with the
//! binding of the NIC's auxiliary device `extoll.af_extl`.
//!
//! Contexts: stream messages and completed GETs are processed in softirqs, directly after the
//! interrupts that report them. Work items run connections that are due, and process negotiation
//! messages, which may sleep. Socket operations send messages themselves if the ports can accept
//! them. Because softirqs take the locks, all spin locks here disable softirqs or interrupts.
//!
//! Lock order: the mutex `reading`; `ports`; the lock of a connection; one of `table`, `link`,
//! `timer`, `due` and the queues of waiters, never two of these; the locks of engine and sender.

mod begin;
mod busy;
mod conn;
mod count;
mod lend;
mod link;
mod peers;
mod port_events;
mod rings;
mod run;
mod serve;
mod share;
mod table;
mod waiters;

pub(crate) use conn::{Conn, Decision, Inner};
pub(crate) use lend::whole_pages;
pub(crate) use rings::{copy, Rings, Size};

use crate::{all, conf};
use count::Count;
use extoll_core::{
    child::{patiently, Handle},
    memory::KernelMemory,
    rma::{
        self,
        transfer::{Engine, Setup},
    },
    velo::{self, Mailbox},
};
use kernel::{
    device, impl_has_delayed_work, impl_has_work, new_delayed_work, new_mutex, new_spinlock_irq,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, AtomicFlag, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
    time::{msecs_to_jiffies, Instant, Monotonic},
    workqueue::{DelayedWork, Work, WorkItem},
};
use kernel_ext::{new_bh_lock, security, work, BhLock};
use link::Link;
use port_events::PortEvents;
use protocol::{
    base::{age_bound::AgeBound, deadlines::Deadlines},
    ds::{Failures, Host, Limits, OpenLimits, Program, SilentNodes},
    Time,
};
use rings::{RingPool, Unused};
use serve::Pending;
use share::Users;
use table::Table;
use waiters::Waiters;
use wire::{
    ds::{Tuple, SERVICE},
    ids::NodeId,
};

/// Receiving side of the ports.
struct Ports {
    mailbox: Mailbox,
    /// Runs the GETs; notifications are processed in softirqs.
    engine: Engine,
    /// Set while a work item processes a negotiation message; other contexts leave the messages
    /// behind it in the mailbox.
    busy: bool,
    /// Bounds the age of the messages in the mailbox.
    age_bound: AgeBound,
    /// Time at which the messages in the mailbox were last counted.
    counted: Time,
}

/// A bound NIC with its ports, rings, connections and timer.
#[pin_data]
pub(crate) struct Nic {
    id: u32,
    device: ARef<device::Device>,
    epoch: Instant<Monotonic>,
    opening: OpenLimits,
    limits: Limits,
    /// Held by the work item that reads the mailbox.
    #[pin]
    reading: Mutex<()>,
    #[pin]
    ports: BhLock<Option<Ports>>,
    #[pin]
    link: BhLock<Option<Arc<Link>>>,
    #[pin]
    rings: Mutex<Option<(Handle, RingPool)>>,
    #[pin]
    table: BhLock<Table>,
    #[pin]
    waiting: BhLock<Pending>,
    #[pin]
    silent: BhLock<SilentNodes<KernelMemory>>,
    /// Server programs that accepted their connections too late.
    #[pin]
    late: BhLock<Failures<KernelMemory, Program>>,
    /// Neighbours whose address could not be resolved.
    #[pin]
    unresolved: BhLock<Failures<KernelMemory, Host>>,
    /// Numbers of rings per user.
    users_of_rings: Arc<Users>,
    /// Numbers of slots of the connection table per user.
    users_of_slots: Arc<Users>,
    /// Earliest time at which each slot's connection must run.
    #[pin]
    due: BhLock<Deadlines<KernelMemory>>,
    /// Expiry of the timer; `None` if it is not set.
    #[pin]
    timer: SpinLockIrq<Option<Time>>,
    closing: AtomicFlag,
    /// Number of threads that poll the mailbox busily. The mailbox is not armed while such threads
    /// exist.
    pollers: Atomic<u32>,
    /// Connections that wait until the ports can send more messages.
    #[pin]
    blocked: Waiters,
    /// Connections that wait for a free GET slot.
    #[pin]
    get_waiters: Waiters,
    /// Connections that used up their budget and must be run again.
    #[pin]
    again: Waiters,
    /// Set when the ports can send messages again.
    send_room: AtomicFlag,
    /// Set when GET slots are free while connections wait for slots.
    slots_free: AtomicFlag,
    /// Set when the NIC is lost. Cleared when the work item has ended all connections.
    dead: AtomicFlag,
    counts: [Atomic<u64>; Count::NAMES.len()],
    #[pin]
    poll: Work<Nic, 0>,
    #[pin]
    tick: DelayedWork<Nic, 1>,
}

impl_has_work! {
    impl HasWork<Nic, 0> for Nic { self.poll }
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 1> for Nic { self.tick }
}

impl WorkItem<0> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.run();
    }
}

impl WorkItem<1> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.tick();
    }
}

/// Maximum number of late server programs that are remembered.
const PROGRAMS: u16 = 1024;
/// Maximum number of unresolved neighbours that are remembered.
const HOSTS: u16 = 256;

/// Time in ns after which unused rings are freed.
const IDLE: u64 = 2_000_000_000;

/// A bound NIC. The drop ends the data path and may sleep.
pub(crate) struct Bound {
    nic: Arc<Nic>,
    _flush: work::FlushOnDrop,
}

impl Bound {
    /// Opens the ports and starts the data path. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of opening the ports, or `ENOMEM`.
    pub(crate) fn new(handle: Handle) -> Result<Self> {
        let flush = work::FlushOnDrop;
        let nic = Nic::new(handle)?;
        let bound = Self { nic, _flush: flush };
        all().ok_or(ENODEV)?.add(&bound.nic)?;
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(all) = all() {
            all.remove(&self.nic);
        }
        self.nic.close();
    }
}

impl Nic {
    fn new(handle: Handle) -> Result<Arc<Self>> {
        // Negotiations and streams share one mailbox. VPIDs other than this one belong to
        // processes.
        let (sender, mailbox) = patiently(|| {
            let bytes = velo::DEFAULT_MAILBOX_BYTES;
            handle.velo().open(Some(SERVICE), bytes)
        })?;
        let (requester, notifications) =
            patiently(|| handle.rma().open(Some(SERVICE), rma::DEFAULT_QUEUE_BYTES))?;
        let rma = requester.vpid();
        let engine = Engine::with(
            requester,
            notifications,
            Setup {
                soft: true,
                ..Setup::default()
            },
        )?;
        let link = Link {
            sender: sender.clone(),
            gets: engine.submitter(),
            rma,
        };
        let most = conf::connections();
        let rings = RingPool::new(rma, conf::rings());
        let ports = Ports {
            mailbox,
            engine,
            busy: false,
            age_bound: AgeBound::default(),
            counted: Time::default(),
        };
        let (table, link) = (Table::new(4 * most)?, Arc::new(link, GFP_KERNEL)?);
        let (pending, silent) = (serve::pending()?, SilentNodes::new(256)?);
        let late = Failures::new(PROGRAMS, security::random())?;
        let unresolved = Failures::new(HOSTS, security::random())?;
        let user = conf::user_connections();
        let users_of_rings = Users::new(most, user)?;
        let users_of_slots = Users::new(4 * most, 4 * user)?;
        let due = Deadlines::new(4 * most)?;
        let waiters = || Waiters::new(4 * most);
        let (blocked, get_waiters, again) = (waiters()?, waiters()?, waiters()?);
        let (id, device) = (handle.id(), handle.device().into());
        let nic = Arc::pin_init(
            pin_init!(Self {
                id,
                device,
                epoch: Instant::now(),
                opening: conf::opening(),
                limits: conf::limits(),
                reading <- new_mutex!((), "extl_reading"),
                ports <- new_bh_lock!(Some(ports), "extl_ports"),
                link <- new_bh_lock!(Some(link), "extl_link"),
                rings <- new_mutex!(Some((handle, rings)), "extl_rings"),
                table <- new_bh_lock!(table, "extl_table"),
                waiting <- new_bh_lock!(pending, "extl_waiting"),
                silent <- new_bh_lock!(silent, "extl_silent"),
                late <- new_bh_lock!(late, "extl_late"),
                unresolved <- new_bh_lock!(unresolved, "extl_unresolved"),
                users_of_rings,
                users_of_slots,
                due <- new_bh_lock!(due, "extl_due"),
                timer <- new_spinlock_irq!(None, "extl_timer"),
                closing: AtomicFlag::new(false),
                pollers: Atomic::new(0),
                blocked <- blocked,
                get_waiters <- get_waiters,
                again <- again,
                send_room: AtomicFlag::new(false),
                slots_free: AtomicFlag::new(false),
                dead: AtomicFlag::new(false),
                counts: [const { Atomic::new(0) }; Count::NAMES.len()],
                poll <- new_work!("extl_poll"),
                tick <- new_delayed_work!("extl_tick"),
            }),
            GFP_KERNEL,
        )?;
        sender.attach(Arc::new(PortEvents::new(&nic)?, GFP_KERNEL)?);
        // Processes earlier messages and arms the mailbox.
        nic.wake();
        Ok(nic)
    }

    /// Returns the NIC's PCI device.
    pub(crate) fn device(&self) -> &device::Device {
        &self.device
    }

    /// Returns whether the NIC is being unbound.
    fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Returns the time in nanoseconds since the data path was created.
    pub(super) fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos().max(0) as u64)
    }

    /// Queues the work item. Any context.
    fn wake(self: &Arc<Self>) {
        if !self.closing.load(Relaxed) {
            // A failure means that the work item is already queued.
            let _ = work::enqueue::<_, 0>(self.clone());
        }
    }

    /// Queues a connection for another run after the work item has read the mailbox. Process
    /// context or softirq.
    pub(super) fn run_again(self: &Arc<Self>, conn: &Conn) {
        self.again.wait(conn.name.index(), 0);
        self.wake();
    }

    /// Makes the work item assign GET slots to waiting connections. Process context or softirq.
    pub(super) fn slots_again(self: &Arc<Self>) {
        self.slots_free.store(true, Relaxed);
        self.wake();
    }

    /// Notifies waiting connections after a GET has released its slot.
    pub(super) fn slot_freed(self: &Arc<Self>) {
        self.get_waiters.notify();
        if self.get_waiters.len() > 0 {
            self.slots_again();
        }
    }

    /// Ensures that the timer expires at `at` or earlier. Any context.
    pub(super) fn want(self: &Arc<Self>, at: Time) {
        let mut timer = self.timer.lock();
        if self.closing.load(Relaxed) || timer.is_some_and(|set| set <= at) {
            return;
        }
        *timer = Some(at);
        let ms = at.since(self.now()).div_ceil(1_000_000).min(3_600_000);
        let _ = work::cancel_delayed::<_, 1>(self);
        let _ = work::enqueue_delayed::<_, 1>(self.clone(), msecs_to_jiffies(ms as u32));
    }

    /// Drops the request of a client whose connection was accepted as a TCP connection. Returns
    /// whether such a request existed.
    pub(crate) fn withdraw(&self, peer: NodeId, tuple: &Tuple) -> bool {
        let now = self.now();
        let mut waiting = self.waiting.lock();
        waiting.accept(peer, tuple, &self.opening, now).is_some()
    }

    /// Removes a finished connection from the table.
    pub(super) fn forget(self: &Arc<Self>, conn: &Arc<Conn>) {
        let mut table = self.table.lock();
        let found = table.get(conn.name).is_some_and(|c| Arc::ptr_eq(c, conn));
        let last = found.then(|| table.free(conn.name));
        let idle = table.used() == 0;
        drop(table);
        if idle {
            self.want(self.now().after(IDLE));
        }
        // The last reference is dropped without the lock.
        drop(last);
    }

    /// Frees unused rings when no connection has existed for some time. Does not wait for the lock
    /// of the rings, because its holder may be waiting for memory.
    fn free_rings(self: &Arc<Self>) {
        let now = self.now();
        let unused = match self.rings.try_lock() {
            Some(mut rings) => {
                let pool = Option::as_mut(&mut *rings);
                pool.map_or(Unused::Nothing, |(_, pool)| pool.unused(now, IDLE))
            }
            None => Unused::Until(now.after(IDLE)),
        };
        match unused {
            Unused::Nothing => {}
            Unused::Until(at) => self.want(at),
            // The chunks are dropped without the lock.
            Unused::Free(chunks) => drop(chunks),
        }
    }

    /// Returns the connection in a slot.
    fn at(&self, index: usize) -> Option<Arc<Conn>> {
        self.table.lock().at(index).cloned()
    }

    /// Ends all connections and closes the ports. May sleep.
    fn close(self: &Arc<Self>) {
        let capacity = self.table.lock().capacity();
        // Set while the ports are still open, so that peers can be notified.
        self.closing.store(true, Relaxed);
        for conn in (0..capacity).filter_map(|i| self.at(i)) {
            conn.abort_for_unbind();
        }
        let link = self.link.lock().take();
        if let Some(link) = link {
            link.sender.detach();
        }
        work::cancel_sync::<Nic, 0>(self);
        {
            // `want` checks `closing` with this lock held, so it sets no timer after this point.
            drop(self.timer.lock());
        }
        work::cancel_delayed_sync::<Nic, 1>(self);
        for conn in (0..capacity).filter_map(|i| self.at(i)) {
            conn.nic_lost();
        }
        let ports = self.ports.lock().take();
        if let Some(Ports {
            mailbox, engine, ..
        }) = ports
        {
            // Completes the GETs that are still pending.
            drop(engine);
            mailbox.close();
        }
        for index in 0..capacity {
            let mut table = self.table.lock();
            let name = table.at(index).map(|conn| conn.name);
            let conn = name.and_then(|name| table.free(name));
            drop(table);
            drop(conn);
        }
        let rings = self.rings.lock().take();
        if let Some((handle, rings)) = rings {
            if rings.revoke(&handle).is_err() {
                dev_warn!(
                    handle.device(),
                    "af_extl: NIC did not confirm release of the rings; their memory is kept\n"
                );
            }
        }
    }
}
