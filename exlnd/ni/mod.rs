// SPDX-License-Identifier: GPL-2.0-only

//! An LNet interface: the state machine of `protocol::lnd`, its threads and its tables.
//!
//! Threads: one thread ([`Driver`]) processes messages, timeouts and the end of registrations. It
//! never calls LNet, so it makes progress whatever LNet waits for. Two threads on each CPT
//! ([`Worker`]) call LNet: one passes incoming messages, the other finalizes messages and reports
//! peers.
//!
//! Lock order: `binding`, `threads`, `ports`, `core`, one of `outs` and `ins`, `sinks`, then the
//! locks of queues, of registration slots and `kept`. All are mutexes except those of queues and
//! slots. LNet is called without any lock.

mod bind;
mod count;
mod drive;
mod events;
mod fetch;
mod kept;
mod memory;
mod ports;
mod receive;
mod send;
mod tasks;

use crate::{
    conf,
    fault::{self, Point},
    ffi::{
        lnet::{address, NiRef},
        thread::{Run, Thread},
    },
    registry,
    ring::Ring,
};
use count::Counters;
use drive::Driver;
use extoll_core::{child::Handle, memory::KernelMemory};
use fetch::Sinks;
use kept::EagerCopies;
use kernel::{
    fmt, new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag, Full, Relaxed},
        Arc, Mutex,
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::{mem::PageList, security};
use memory::{RegionSlots, Side, Signals};
use ports::{ports, Link, PortEvents, Ports, Watch};
use protocol::{
    lnd::{max_concurrent, Capacity, Lnd},
    Time,
};
use receive::In;
use send::Outs;
use tasks::{Kind, Queue, Worker};
use wire::{ids::NodeId, lnd::VPID};

/// Size in bytes of the buffer for the payload of one incoming message.
const BUFFER: usize = 8192;
/// Maximum time in ms for which the stop of an interface waits for messages in progress.
const PATIENCE_MS: i64 = 10_000;

/// State machine of an interface. It names an outgoing message by its index in [`Outs`].
type Machine = Lnd<KernelMemory, u32>;

/// State protected by the lock of the state machine.
struct Core {
    machine: KBox<Option<Machine>>,
    /// Ports for sending messages and GETs; `None` without a NIC.
    link: Option<Arc<Link>>,
    /// Registration slots; kept until all registrations have ended.
    slots: Option<Arc<RegionSlots>>,
    /// Time at which the interface's thread runs next unless an event wakes it earlier.
    armed: Time,
    /// Slots whose revocation was not confirmed in time. The thread polls them until it is
    /// confirmed.
    late: Ring<u32>,
}

impl Core {
    fn machine(&self) -> Option<&Machine> {
        (*self.machine).as_ref()
    }

    fn machine_mut(&mut self) -> Option<&mut Machine> {
        (*self.machine).as_mut()
    }
}

/// An LNet interface.
#[pin_data]
pub(crate) struct Ni {
    /// Number of the interface, which is that of its NIC.
    number: u32,
    raw: NiRef,
    node: NodeId,
    /// Maximum payload in bytes that is sent in messages.
    immediate: u32,
    /// Number of registration slots in each direction, i.e. maximum number of concurrent payload
    /// GETs.
    slots: usize,
    epoch: Instant<Monotonic>,
    /// True after the interface has ended. The holder of the lock may change the interface's NIC.
    #[pin]
    binding: Mutex<bool>,
    #[pin]
    /// Threads of the interface.
    threads: Mutex<KVec<KBox<dyn Ends>>>,
    #[pin]
    ports: Mutex<Option<Ports>>,
    #[pin]
    core: Mutex<Core>,
    #[pin]
    outs: Mutex<Outs>,
    #[pin]
    ins: Mutex<KVVec<In>>,
    #[pin]
    sinks: Mutex<Sinks>,
    #[pin]
    kept: Mutex<EagerCopies>,
    /// Buffers for the payload of incoming messages; [`BUFFER`] bytes for each message.
    buffers: PageList,
    signals: Arc<Signals>,
    /// CPTs with the task queues of their threads, by [`Kind`].
    queues: KVec<(i32, [Arc<Queue>; 2])>,
    /// Set when the interface is being stopped.
    ended: AtomicFlag,
    /// Set while the interface has no NIC.
    without_nic: AtomicFlag,
    /// Set when incoming messages may be passed to LNet, i.e. when the start can no longer fail.
    reading: AtomicFlag,
    /// Set if the last report to LNet, sent or queued, says that the interface is unusable.
    fatal: AtomicFlag,
    /// Set while a report on the interface's usability is queued.
    fatal_due: AtomicFlag,
    /// Set when the state of the network may have changed.
    changed: Arc<AtomicFlag>,
    /// Set when the NIC was lost; cleared when the thread has handled the loss.
    lost: Arc<AtomicFlag>,
    /// Time of the last incoming message.
    busy: Atomic<u64>,
    counters: Counters,
}

/// Settings that LNet requests for an interface.
pub(crate) struct Asked {
    /// Maximum payload in bytes that is sent in messages.
    pub(crate) immediate: u32,
    /// Maximum number of concurrent messages.
    pub(crate) credits: u32,
    /// Maximum number of concurrent messages to one peer.
    pub(crate) peer_credits: u32,
}

/// A thread that runs any function; dropping it ends the thread.
trait Ends: Send + Sync {}

impl<T: Run> Ends for Thread<T> {}

/// Allocates the state machine, which is too large for the stack.
#[inline(never)]
fn machine(capacity: &Capacity) -> Result<KBox<Option<Machine>>> {
    let mut state = KBox::new(None, GFP_KERNEL)?;
    fill(&mut state, capacity)?;
    Ok(state)
}

#[inline(never)]
fn fill(state: &mut Option<Machine>, capacity: &Capacity) -> Result {
    *state = Some(Lnd::new(capacity, &conf::limits(), security::random())?);
    Ok(())
}

/// Returns the number of the NIC in an interface name.
fn number_of(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(b"ex")?;
    let text = core::str::from_utf8(digits).ok()?;
    // Leading zeros are invalid: "ex01" would be a second name of the NIC that "ex1" names.
    let plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| plain)
}

impl Ni {
    /// Starts an interface, which is named after its NIC: `ex0`. It processes no message before
    /// [`Self::begin_to_read`]. Process context, sleeps.
    ///
    /// # Errors
    ///
    /// `ENODEV`: there is no such NIC. `EINVAL`: `immediate` is out of range. `EBUSY`: the NIC has
    /// an interface, or its ports are in use. `ENOMEM` and errors of opening the ports.
    pub(crate) fn start(raw: NiRef, name: &[u8], asked: &Asked) -> Result<Arc<Self>> {
        let number = number_of(name).ok_or(ENODEV)?;
        let immediate = asked.immediate;
        if !conf::IMMEDIATE.contains(&immediate.into()) {
            pr_err!(
                "ex{}: immediate is {}, but must be {} to {}\n",
                number,
                immediate,
                conf::IMMEDIATE.start(),
                conf::IMMEDIATE.end()
            );
            return Err(EINVAL);
        }
        let claim = registry::claim(number)?;
        let ni = Self::new(raw, number, asked, claim.handle());
        let ni = ni.inspect_err(|e| pr_err!("ex{}: cannot start: {:?}\n", number, e))?;
        let started = registry::assign(claim, &ni).and_then(|()| ni.start_threads());
        if let Err(e) = started {
            pr_err!("ex{}: cannot start: {:?}\n", number, e);
            ni.end();
            return Err(e);
        }
        Ok(ni)
    }

    /// Begins to process incoming messages and to pass them to LNet. LNet holds back messages of
    /// unknown peers until it has started the interface.
    pub(crate) fn begin_to_read(&self) {
        self.reading.store(true, Relaxed);
        self.signals.doorbell.notify();
    }

    fn new(raw: NiRef, number: u32, asked: &Asked, handle: Handle) -> Result<Arc<Self>> {
        let node = handle.node();
        raw.set_device(handle.device(), address(node))?;
        let cpts = raw.cpts().count() as u32;
        let slots = conf::slots(max_concurrent(asked.credits, asked.peer_credits, cpts));
        let capacity = conf::capacity(slots);
        let signals = Signals::new(2 * slots)?;
        let changed = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let watch = Watch(signals.clone(), changed.clone());
        let (ports, link) = ports(handle, watch, slots)?;
        let link = Arc::new(link, GFP_KERNEL)?;
        let sender = link.sender.clone();
        let memory = RegionSlots::new(&ports.handle, VPID, &signals, slots)?;
        let machine = machine(&capacity)?;
        let mut queues = KVec::new();
        for cpt in raw.cpts() {
            let endings = capacity.sends + capacity.receives + slots + events::REPORTS + 1;
            let pair = [Queue::new(capacity.receives)?, Queue::new(endings)?];
            queues.push((cpt, pair), GFP_KERNEL)?;
        }
        let buffers = VVec::from_elem(0u8, capacity.receives * BUFFER, GFP_KERNEL)?;
        let buffers = PageList::from_buffer(buffers)?;
        let outs = Outs::new(capacity.sends, slots)?;
        let ins = In::table(capacity.receives)?;
        let kept = EagerCopies::new(capacity.receives.min(0x8000) as u16)?;
        let sinks = Sinks::new(2 * slots)?;
        let core = Core {
            machine,
            link: Some(link),
            slots: Some(memory),
            armed: Time(u64::MAX),
            late: Ring::new(2 * slots)?,
        };
        let lost = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let port_events = Arc::new(PortEvents(signals.clone(), lost.clone()), GFP_KERNEL)?;
        let ni = Arc::pin_init(
            pin_init!(Self {
                number,
                raw,
                node,
                immediate: asked.immediate,
                slots,
                epoch: Instant::now(),
                binding <- new_mutex!(false, "exlnd_binding"),
                threads <- new_mutex!(KVec::new(), "exlnd_threads"),
                ports <- new_mutex!(Some(ports), "exlnd_ports"),
                core <- new_mutex!(core, "exlnd_core"),
                outs <- new_mutex!(outs, "exlnd_outs"),
                ins <- new_mutex!(ins, "exlnd_ins"),
                sinks <- new_mutex!(sinks, "exlnd_sinks"),
                kept <- new_mutex!(kept, "exlnd_kept"),
                buffers,
                signals,
                queues,
                ended: AtomicFlag::new(false),
                without_nic: AtomicFlag::new(false),
                reading: AtomicFlag::new(false),
                fatal: AtomicFlag::new(false),
                fatal_due: AtomicFlag::new(false),
                changed,
                lost,
                busy: Atomic::new(0),
                counters: Counters::new(),
            }),
            GFP_KERNEL,
        )?;
        sender.attach(port_events);
        Ok(ni)
    }

    fn start_threads(self: &Arc<Self>) -> Result {
        let mut threads = self.threads.lock();
        // The threads are stopped in this order.
        for kind in [Kind::Arrivals, Kind::Endings] {
            for (i, (cpt, queues)) in self.queues.iter().enumerate() {
                let queue = queues.get(kind as usize).ok_or(EINVAL)?;
                let worker = Worker::new(self.clone(), queue.clone())?;
                let named = (self.number, i as u32);
                let thread = Thread::start(worker, Some(*cpt), kind.name(), named)?;
                threads.push(KBox::new(thread, GFP_KERNEL)?, GFP_KERNEL)?;
            }
        }
        let driver = Arc::new(Driver(self.clone()), GFP_KERNEL)?;
        let thread = Thread::start(driver, None, c"run", (self.number, 0))?;
        threads.push(KBox::new(thread, GFP_KERNEL)?, GFP_KERNEL)?;
        if fault::hit(Point::Start) {
            return Err(ENOMEM);
        }
        Ok(())
    }

    /// Returns the time in nanoseconds since the start of the interface.
    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos().max(0) as u64)
    }

    /// Returns whether all messages have ended and the state machine is closed.
    fn has_ended(&self) -> bool {
        let core = self.core.lock();
        core.machine().is_none_or(|machine| machine.is_closed())
    }

    /// Returns whether the NIC is not needed for any message.
    fn is_idle(&self) -> bool {
        let core = self.core.lock();
        core.machine().is_none_or(|machine| machine.is_idle())
    }

    /// Waits up to `ms` milliseconds until `done` returns true. Returns false after a timeout.
    fn wait(&self, ms: i64, done: impl Fn() -> bool) -> bool {
        let begun: Instant<Monotonic> = Instant::now();
        while !done() {
            if begun.elapsed().as_millis() >= ms {
                return false;
            }
            self.signals.doorbell.notify();
            fsleep(Delta::from_millis(5));
        }
        true
    }

    /// Stops the interface, for which LNet has no outgoing messages. Sleeps, usually for
    /// milliseconds. If lost peers may still know addresses of memory, it sleeps for some seconds.
    pub(crate) fn end(self: &Arc<Self>) {
        self.change(|machine, now| machine.close(now));
        self.ended.xchg(true, Full);
        if !self.wait(PATIENCE_MS, || self.has_ended()) {
            pr_warn!("ex{}: some messages have not ended in time\n", self.number);
        }
        // The threads are joined without the lock `threads`, because a thread may wait for locks
        // whose holders wait for `threads`.
        let threads = core::mem::replace(&mut *self.threads.lock(), KVec::new());
        for thread in threads {
            drop(thread);
        }
        // Unbinding of the NIC waits for this lock, and then finds the interface stopped.
        let mut binding = self.binding.lock();
        let link = self.core.lock().link.take();
        self.close(link);
        *binding = true;
        drop(binding);
        registry::release(self);
    }

    /// Writes the interface's statistics for debugfs.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ex{} node {}", self.number, self.node.0)?;
        self.counters.show(f)?;
        let core = self.core.lock();
        if let Some(link) = &core.link {
            writeln!(f, "gets {:?}", link.gets.counters())?;
        }
        if let Some(slots) = &core.slots {
            let [sources, sinks] = [Side::Source, Side::Sink].map(|side| slots.left(side));
            writeln!(f, "places_left {sources} {sinks}")?;
        }
        if let Some(machine) = core.machine() {
            writeln!(
                f,
                "sends {} receives {} kept {}",
                machine.sends(),
                machine.receives(),
                self.kept.lock().len()
            )?;
            writeln!(f, "{:?}", machine.counters())?;
            for (node, state) in machine.peers() {
                writeln!(f, "peer {} {state}", node.0)?;
            }
            let (peers, sends, receives) = machine.flows();
            write!(f, "{peers}{sends}{receives}")?;
        }
        Ok(())
    }
}
