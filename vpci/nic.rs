// SPDX-License-Identifier: GPL-2.0-only

//! State of a NIC: its port, the lender's and the borrower's state machine, and the contexts that
//! run them.
//!
//! Contexts: messages are processed in a softirq, or by a configuration access that waits for its
//! answer, perhaps with interrupts off. Five work items perform the actions that may sleep:
//!
//! * 0: devices that this node lends;
//! * 1: devices that this node borrows. Work item 0 does not handle them, because their drivers
//!   wait for other nodes, which may wait for this one;
//! * 2: actions that must not wait for drivers and resets;
//! * 3: checks of accelerators;
//! * 4: the end of leases whose devices work item 3 has found to be lost.
//!
//! Locks: `machines`, `mailbox`, `sender`, `offered`, `interrupts` and `alarm` disable interrupts,
//! because configuration accesses use them in any context. `machines` may be acquired with
//! `mailbox` or `offered` held. The other spin locks are never held together. Mutexes are acquired
//! before spin locks, and `accelerating` before the other mutexes.

use crate::{
    accel::Cleanup,
    conf,
    counts::Counts,
    interrupt_relay::{BorrowedInterrupts, InterruptRelay},
    lease::Lease,
    lend::Lending,
    registry,
};
use extoll_core::{
    child::{patiently, Handle},
    memory::KernelMemory,
    smfu::{ClosedTarget, Smfu},
    snq::MessageSubscription,
    velo::{self, Mailbox, Sender},
    vpid::Client,
};
use kernel::{
    impl_has_delayed_work, new_delayed_work, new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
    workqueue::{DelayedWork, WorkItem},
};
use kernel_ext::{
    leased::LeasedDevice,
    security,
    tasklet::{Soft, Tasklet},
    timer::{Expire, Timed},
    work,
};
use protocol::{
    pci::{lender, Borrower, Config, Lender, OfferState},
    Time,
};
use wire::{
    ids::NodeId,
    pci::{Message, VPID},
};

/// Maximum time in ms that a NIC waits for the ends of leases when it is unbound.
const PATIENCE_MS: i64 = 3_000;

/// State machines of both roles.
pub(crate) struct Machines {
    pub(crate) lender: Lender<KernelMemory>,
    pub(crate) borrower: Borrower<KernelMemory>,
}

/// Action that is possible in any context.
pub(crate) enum Step {
    Send(NodeId, Message),
    Config(Config),
}

impl Machines {
    #[inline(never)] // Keeps the function's stack frame out of its caller's frame.
    fn new() -> Result<KBox<Self>> {
        let (limits, max) = (conf::limits(), conf::leases());
        let lender = Lender::new(Time(0), max, &limits, security::random())?;
        let borrower = Borrower::new(Time(0), max, &limits, security::random())?;
        Ok(KBox::new(Self { lender, borrower }, GFP_KERNEL)?)
    }

    pub(crate) fn step(&mut self, now: Time) -> Option<Step> {
        match self.lender.step(now) {
            Some(lender::Step::Send(node, message)) => return Some(Step::Send(node, message)),
            Some(lender::Step::Config(config)) => return Some(Step::Config(config)),
            None => {}
        }
        let (node, message) = self.borrower.step(now)?;
        Some(Step::Send(node, message))
    }

    pub(crate) fn next(&self) -> Option<Time> {
        match (self.lender.next(), self.borrower.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Resources that are released when the NIC is unbound. Fields are dropped in declaration order.
struct Open {
    _messages: MessageSubscription,
    handle: Handle,
}

/// Timer of the state machines.
#[derive(Default)]
pub(crate) struct Alarm {
    /// Expiry of the timer; `None` if it is not set.
    pub(crate) due: Option<Time>,
    /// Timer that expires at `due`; `None` while the port is closed.
    pub(crate) timer: Option<Arc<Timed<TimerEvents>>>,
}

/// A bound NIC.
#[pin_data]
pub(crate) struct Nic {
    epoch: Instant<Monotonic>,
    #[pin]
    pub(crate) machines: SpinLockIrq<KBox<Machines>>,
    #[pin]
    pub(crate) mailbox: SpinLockIrq<Option<Mailbox>>,
    #[pin]
    pub(crate) sender: SpinLockIrq<Option<Sender>>,
    #[pin]
    open: Mutex<Option<Open>>,
    /// Devices that this NIC offers, by the lender's handle.
    #[pin]
    pub(crate) offered: SpinLockIrq<KVec<(u32, Arc<LeasedDevice>)>>,
    #[pin]
    pub(crate) lending: Mutex<Lending>,
    #[pin]
    pub(crate) leases: Mutex<KVec<Arc<Lease>>>,
    /// Held while a thread borrows, lists, enrols, reclaims or returns a device behind a NIC
    /// without a host.
    #[pin]
    pub(crate) accelerating: Mutex<()>,
    /// Leases of accelerators that could not be cleaned up yet.
    #[pin]
    pub(crate) cleanups: Mutex<KVec<Cleanup>>,
    /// Targets of ended leases whose numbers must not be reused yet.
    #[pin]
    pub(crate) closed_targets: Mutex<KVec<ClosedTarget>>,
    /// Interrupts of borrowed devices.
    #[pin]
    pub(crate) interrupts: SpinLockIrq<KVec<BorrowedInterrupts>>,
    /// Target numbers that may have been open before this module was loaded; reserved until the NIC
    /// may lend and borrow.
    #[pin]
    earlier_targets: Mutex<KVec<ClosedTarget>>,
    /// Held while a thread asks a node for its devices.
    #[pin]
    pub(crate) asking: Mutex<()>,
    #[pin]
    pub(crate) alarm: SpinLockIrq<Alarm>,
    /// Set when the NIC is being unbound.
    closing: AtomicFlag,
    pub(crate) counts: Counts,
    #[pin]
    lent_work: DelayedWork<Nic, 0>,
    #[pin]
    borrowed_work: DelayedWork<Nic, 1>,
    #[pin]
    cut_work: DelayedWork<Nic, 2>,
    #[pin]
    watch_work: DelayedWork<Nic, 3>,
    #[pin]
    clean_up_work: DelayedWork<Nic, 4>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Nic, 0> for Nic { self.lent_work }
    impl HasDelayedWork<Nic, 1> for Nic { self.borrowed_work }
    impl HasDelayedWork<Nic, 2> for Nic { self.cut_work }
    impl HasDelayedWork<Nic, 3> for Nic { self.watch_work }
    impl HasDelayedWork<Nic, 4> for Nic { self.clean_up_work }
}

impl WorkItem<0> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.lend();
    }
}

impl WorkItem<1> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.borrow();
    }
}

impl WorkItem<2> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.call_held_off();
        this.cut();
    }
}

impl WorkItem<3> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.watch();
    }
}

impl WorkItem<4> for Nic {
    type Pointer = Arc<Nic>;

    fn run(this: Arc<Nic>) {
        this.clean_up();
    }
}

/// Softirq that processes messages after an interrupt.
struct Reader(Arc<Nic>);

impl Soft for Reader {
    fn run(tasklet: &Tasklet<Self>) {
        if tasklet.0.read() {
            tasklet.schedule();
        }
        tasklet.0.pump();
    }
}

/// Receives the port's events, in hard interrupt or process context.
struct PortEvents(Arc<Tasklet<Reader>>);

impl Client for PortEvents {
    fn interrupt(&self) {
        self.0.schedule();
    }

    fn writable(&self) {}

    fn down(&self) {
        self.0.schedule();
    }
}

/// Timer callback of the state machines.
pub(crate) struct TimerEvents(Arc<Nic>);

impl Expire for TimerEvents {
    fn expired(timer: &Timed<Self>) {
        let nic = &timer.0;
        nic.alarm.lock().due = None;
        let now = nic.now();
        {
            let mut machines = nic.machines.lock();
            machines.lender.time(now);
            machines.borrower.time(now);
        }
        nic.pump();
        nic.wake();
    }
}

/// A bound NIC. The drop ends all leases and may sleep.
pub(crate) struct Bound(Arc<Nic>);

impl Bound {
    /// Opens the port and starts lending and borrowing. May sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of opening the port, or `ENOMEM`.
    pub(crate) fn new(handle: Handle) -> Result<Self> {
        // On an error, dropping `bound` undoes the steps that were done.
        let bound = Self(Nic::new(&handle)?);
        bound.0.begin(handle)?;
        registry::add_nic(&bound.0)?;
        Ok(bound)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        registry::remove_nic(&self.0);
        self.0.close();
        registry::offer_by_others(&self.0);
    }
}

impl Nic {
    #[inline(never)] // Keeps the function's stack frame out of its caller's frame.
    fn new(handle: &Handle) -> Result<Arc<Self>> {
        let (sender, mailbox) = patiently(|| {
            let bytes = velo::DEFAULT_MAILBOX_BYTES;
            handle.velo().open(Some(VPID), bytes)
        })?;
        let machines = Machines::new()?;
        let nic = Arc::pin_init(
            pin_init!(Self {
                epoch: Instant::now(),
                machines <- new_spinlock_irq!(machines, "vpci_machines"),
                mailbox <- new_spinlock_irq!(Some(mailbox), "vpci_mailbox"),
                sender <- new_spinlock_irq!(Some(sender), "vpci_sender"),
                open <- new_mutex!(None, "vpci_open"),
                offered <- new_spinlock_irq!(KVec::new(), "vpci_offered"),
                lending <- new_mutex!(Lending::default(), "vpci_lending"),
                leases <- new_mutex!(KVec::new(), "vpci_leases"),
                accelerating <- new_mutex!((), "vpci_accelerating"),
                cleanups <- new_mutex!(KVec::new(), "vpci_owed"),
                closed_targets <- new_mutex!(KVec::new(), "vpci_shut"),
                interrupts <- new_spinlock_irq!(KVec::new(), "vpci_interrupts"),
                earlier_targets <- new_mutex!(KVec::new(), "vpci_early"),
                asking <- new_mutex!((), "vpci_asking"),
                alarm <- new_spinlock_irq!(Alarm::default(), "vpci_alarm"),
                closing: AtomicFlag::new(false),
                counts: Counts::new(),
                lent_work <- new_delayed_work!("vpci_lent"),
                borrowed_work <- new_delayed_work!("vpci_borrowed"),
                cut_work <- new_delayed_work!("vpci_cut"),
                watch_work <- new_delayed_work!("vpci_watch"),
                clean_up_work <- new_delayed_work!("vpci_settle"),
            }),
            GFP_KERNEL,
        )?;
        Ok(nic)
    }

    /// Starts timer, interrupts and message processing. May sleep.
    #[inline(never)] // Keeps the function's stack frame out of its caller's frame.
    fn begin(self: &Arc<Self>, handle: Handle) -> Result {
        let nic = self;
        *nic.earlier_targets.lock() = handle.smfu().hold_free_targets()?;
        let timer = Timed::<TimerEvents>::new(Ok::<_, Error>(TimerEvents(nic.clone())));
        let timer = Arc::pin_init(timer, GFP_KERNEL)?;
        let relay = Arc::new(InterruptRelay(nic.clone()), GFP_KERNEL)?;
        let reader = Tasklet::new(Ok::<_, Error>(Reader(nic.clone())));
        let events = Arc::new(PortEvents(Arc::pin_init(reader, GFP_KERNEL)?), GFP_KERNEL)?;
        let open = Open {
            _messages: handle.subscribe_messages(relay, 0)?,
            handle,
        };
        *nic.open.lock() = Some(open);
        nic.alarm.lock().timer = Some(timer);
        nic.run_at(nic.begins());
        let sender = nic.sender.lock().clone();
        if let Some(sender) = sender {
            sender.attach(events);
        }
        // Processes earlier messages and arms the mailbox.
        nic.read();
        nic.pump();
        Ok(())
    }

    /// Returns the time at which the quarantine ends and this NIC may lend and borrow.
    fn begins(&self) -> Time {
        let machines = self.machines.lock();
        machines.lender.begins().max(machines.borrower.begins())
    }

    /// Releases the reserved target numbers of an earlier module instance once the quarantine has
    /// ended. Returns whether the quarantine has ended. May sleep.
    pub(crate) fn release_earlier_targets(&self) -> bool {
        let begins = self.begins();
        if self.now() < begins {
            self.run_at(begins);
            return false;
        }
        // The numbers are released with the lock held, so that a second caller finds no number
        // still reserved.
        *self.earlier_targets.lock() = KVec::new();
        true
    }

    /// Returns the time in nanoseconds since the NIC was bound.
    pub(crate) fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos().max(0) as u64)
    }

    /// Returns the time `ms` milliseconds from now.
    pub(crate) fn after(&self, ms: u64) -> Time {
        Time(self.now().0.saturating_add(ms * 1_000_000))
    }

    /// Calls `f` with the state machines locked. The caller calls [`Self::pump`] afterwards. Any
    /// context; `f` must not sleep.
    pub(crate) fn with_machines<R>(&self, f: impl FnOnce(&mut Machines, Time) -> R) -> R {
        let mut machines = self.machines.lock();
        let now = self.now();
        f(&mut machines, now)
    }

    /// Returns the NIC's shared-memory unit. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the NIC is being unbound.
    pub(crate) fn smfu(&self) -> Result<Arc<Smfu>> {
        let open = self.open.lock();
        Ok(open.as_ref().ok_or(ENODEV)?.handle.smfu().clone())
    }

    /// Returns a handle of the NIC. The caller must drop the handle soon. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the NIC is being unbound.
    pub(crate) fn handle(&self) -> Result<Handle> {
        let open = self.open.lock();
        Ok(open.as_ref().ok_or(ENODEV)?.handle.clone())
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Registers a device under the lender's handle. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn offer(&self, name: u32, device: &Arc<LeasedDevice>) -> Result {
        let mut list = KVec::with_capacity(usize::from(conf::leases()) + 1, GFP_KERNEL)?;
        let old = {
            let mut offered = self.offered.lock();
            for entry in offered.iter() {
                list.push_within_capacity(entry.clone())
                    .map_err(|_| ENOMEM)?;
            }
            list.push_within_capacity((name, device.clone()))
                .map_err(|_| ENOMEM)?;
            core::mem::replace(&mut *offered, list)
        };
        drop(old);
        Ok(())
    }

    /// Returns the device that is registered under handle `name`. Any context.
    pub(crate) fn offered(&self, name: u32) -> Option<Arc<LeasedDevice>> {
        let offered = self.offered.lock();
        let found = offered.iter().find(|(n, _)| *n == name);
        found.map(|(_, device)| device.clone())
    }

    /// Removes the device that is registered under handle `name`. May sleep.
    pub(crate) fn forget(&self, name: u32) {
        let old = {
            let mut offered = self.offered.lock();
            let at = offered.iter().position(|(n, _)| *n == name);
            at.and_then(|at| offered.remove(at).ok())
        };
        drop(old);
    }

    /// Removes all registered devices. May sleep.
    pub(crate) fn forget_all(&self) {
        let old = core::mem::take(&mut *self.offered.lock());
        drop(old);
    }

    /// Ends all leases, then closes the port. May sleep.
    fn close(self: &Arc<Self>) {
        self.closing.store(true, Relaxed);
        self.end_accelerators();
        self.with_machines(|machines, now| machines.lender.close(now));
        for lease in self.leases.lock().iter() {
            lease.give_up();
        }
        self.pump();
        self.wake();
        let start: Instant<Monotonic> = Instant::now();
        while !self.is_idle() && start.elapsed().as_millis() < PATIENCE_MS {
            fsleep(Delta::from_millis(5));
        }
        let sender = self.sender.lock().take();
        let mailbox = self.mailbox.lock().take();
        if let Some(sender) = &sender {
            sender.detach();
        }
        if let Some(mailbox) = mailbox {
            mailbox.close();
        }
        if let Some(sender) = sender {
            sender.close();
        }
        let timer = self.alarm.lock().timer.take();
        if let Some(timer) = timer {
            timer.disarm_sync();
        }
        work::cancel_delayed_sync::<_, 0>(self);
        work::cancel_delayed_sync::<_, 1>(self);
        work::cancel_delayed_sync::<_, 2>(self);
        work::cancel_delayed_sync::<_, 3>(self);
        work::cancel_delayed_sync::<_, 4>(self);
        self.last_cleanup();
        for target in core::mem::take(&mut *self.earlier_targets.lock()) {
            target.hold_off(conf::quarantine());
        }
        // Ends leases whose end other nodes have not confirmed.
        self.end_lending();
        self.end_leases();
        let open = self.open.lock().take();
        drop(open);
    }

    /// Returns whether no device is lent or borrowed and no other node may still have access
    /// through an ended lease. May sleep.
    fn is_idle(&self) -> bool {
        let leases = self.leases.lock().is_empty();
        let idle = leases && self.lending.lock().is_empty();
        idle && self.with_machines(|machines, _| {
            let (lender, borrower) = (&machines.lender, &machines.borrower);
            let busy = |state| !matches!(state, OfferState::Free | OfferState::Broken);
            let mut devices = lender.devices();
            !devices.any(|(d, _)| lender.state(d.handle).is_some_and(busy))
                && lender.fences().is_empty()
                && borrower.leases().next().is_none()
                && borrower.fences().is_empty()
        })
    }
}
