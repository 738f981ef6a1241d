// SPDX-License-Identifier: GPL-2.0-only

//! A network interface of LNet's: the machine of `protocol::lnd`, what drives it, and what it is
//! told.
//!
//! One thread reads messages, looks after time, and after memory that is registered. It never calls
//! LNet, so that nothing that LNet waits for keeps it from reading. Those that do are two on each
//! CPT: one gives LNet what has come in, the other tells it what has ended.
//!
//! Locks, in the order in which they are taken: `binding`, `life`, `ports`, `core`, one of `outs`
//! and `ins`, then `sinks`, then those of queues, of places and of what is kept. LNet is called
//! without any.

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
use extoll_core::{child::Handle, machine::Kernel};
use fetch::Sinks;
use kept::Kept;
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
use memory::{Places, Side, Signals};
use ports::{ports, Ear, Link, Ports, Watch};
use protocol::{
    lnd::{at_a_time, Capacity, Lnd},
    Time,
};
use receive::In;
use send::Outs;
use tasks::{Kind, Queue, Worker};
use wire::{ids::NodeId, lnd::VPID};

/// Bytes of a buffer for payload that comes in messages.
const BUFFER: usize = 8192;
/// How long the end of an interface waits for what goes on.
const PATIENCE_MS: i64 = 10_000;

/// The machine. A message that goes out is named by its place in [`Outs`].
type Machine = Lnd<Kernel, u32>;

/// What is behind the lock of the machine.
struct Core {
    machine: KBox<Option<Machine>>,
    link: Option<Arc<Link>>,
    /// Where memory is registered: until all of that has ended.
    places: Option<Arc<Places>>,
    /// When the thread looks again.
    armed: Time,
    /// A revocation was not confirmed in time, so that it has to be looked after.
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

/// See the module's documentation.
#[pin_data]
pub(crate) struct Ni {
    /// Its number: that of its NIC.
    number: u32,
    raw: NiRef,
    node: NodeId,
    immediate: u32,
    /// Messages whose payload can be fetched at a time, and as many that can have it fetched.
    places: usize,
    epoch: Instant<Monotonic>,
    /// Whether it has ended; who holds it changes which NIC it has.
    #[pin]
    binding: Mutex<bool>,
    #[pin]
    life: Mutex<KVec<KBox<dyn Ends>>>,
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
    kept: Mutex<Kept>,
    /// Payload that has come in messages: [`BUFFER`] bytes for each message that may be here.
    buffers: PageList,
    signals: Arc<Signals>,
    /// By CPT, then [`Kind`].
    queues: KVec<(i32, [Arc<Queue>; 2])>,
    /// It has ended, or is about to.
    ended: AtomicFlag,
    /// Its NIC is gone.
    orphan: AtomicFlag,
    /// LNet may be given messages: from when nothing can fail any more that its start waits for.
    reading: AtomicFlag,
    /// LNet was told that the interface is of no use.
    fatal: AtomicFlag,
    /// LNet is about to be told whether it is.
    fatal_due: AtomicFlag,
    /// The network may have changed.
    changed: Arc<AtomicFlag>,
    /// The NIC is lost, and nobody has looked after that.
    lost: Arc<AtomicFlag>,
    /// When a message came last.
    busy: Atomic<u64>,
    counters: Counters,
}

/// What LNet wants of an interface.
pub(crate) struct Asked {
    /// Longest payload that is sent in messages.
    pub(crate) immediate: u32,
    /// Messages at a time; of these, to one peer.
    pub(crate) credits: u32,
    pub(crate) peer_credits: u32,
}

/// A thread of any kind.
trait Ends: Send + Sync {}

impl<T: Run> Ends for Thread<T> {}

/// The machine, which is too large for a stack.
#[inline(never)]
fn machine(capacity: &Capacity) -> Result<KBox<Option<Machine>>> {
    let mut place = KBox::new(None, GFP_KERNEL)?;
    fill(&mut place, capacity)?;
    Ok(place)
}

#[inline(never)]
fn fill(place: &mut Option<Machine>, capacity: &Capacity) -> Result {
    *place = Some(Lnd::new(capacity, &conf::limits(), security::random())?);
    Ok(())
}

/// Number of the NIC that an interface is named after.
fn number_of(name: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(b"ex")?;
    let text = core::str::from_utf8(digits).ok()?;
    // "ex01" would be another name for the same NIC.
    let plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| plain)
}

impl Ni {
    /// Begins an interface, which is named after its NIC: `ex0`. It reads nothing before
    /// [`Self::begin_to_read`]. Process context, sleeps.
    ///
    /// # Errors
    ///
    /// `ENODEV`: there is no such NIC. `EINVAL`: no message has room for `immediate`. `EBUSY`: it
    /// has an interface, or something else has its ports. Those of the ports, `ENOMEM`.
    pub(crate) fn start(raw: NiRef, name: &[u8], asked: &Asked) -> Result<Arc<Self>> {
        let number = number_of(name).ok_or(ENODEV)?;
        let immediate = asked.immediate;
        if !conf::IMMEDIATE.contains(&immediate.into()) {
            pr_err!(
                "ex{}: immediate {}: {} to {}\n",
                number,
                immediate,
                conf::IMMEDIATE.start(),
                conf::IMMEDIATE.end()
            );
            return Err(EINVAL);
        }
        let claim = registry::claim(number)?;
        let ni = Self::new(raw, number, asked, claim.handle());
        let ni = ni.inspect_err(|e| pr_err!("ex{}: {:?}\n", number, e))?;
        let begun = registry::begun(claim, &ni).and_then(|()| ni.start_threads());
        if let Err(e) = begun {
            pr_err!("ex{}: {:?}\n", number, e);
            ni.end();
            return Err(e);
        }
        Ok(ni)
    }

    /// Begins to read what comes in, of which LNet is told. A message of an unknown peer waits
    /// there until LNet has started this interface.
    pub(crate) fn begin_to_read(&self) {
        self.reading.store(true, Relaxed);
        self.signals.bell.ring();
    }

    fn new(raw: NiRef, number: u32, asked: &Asked, handle: Handle) -> Result<Arc<Self>> {
        let node = handle.node();
        raw.place(handle.device(), address(node))?;
        let cpts = raw.cpts().count() as u32;
        let places = conf::places(at_a_time(asked.credits, asked.peer_credits, cpts));
        let capacity = conf::capacity(places);
        let signals = Signals::new(2 * places)?;
        let changed = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let watch = Watch(signals.clone(), changed.clone());
        let (ports, link) = ports(handle, watch, places)?;
        let link = Arc::new(link, GFP_KERNEL)?;
        let sender = link.sender.clone();
        let memory = Places::new(&ports.handle, VPID, &signals, places)?;
        let machine = machine(&capacity)?;
        let mut queues = KVec::new();
        for cpt in raw.cpts() {
            let endings = capacity.sends + capacity.receives + places + events::REPORTS + 1;
            let pair = [Queue::new(capacity.receives)?, Queue::new(endings)?];
            queues.push((cpt, pair), GFP_KERNEL)?;
        }
        let buffers = VVec::from_elem(0u8, capacity.receives * BUFFER, GFP_KERNEL)?;
        let buffers = PageList::from_buffer(buffers)?;
        let outs = Outs::new(capacity.sends, places)?;
        let ins = In::table(capacity.receives)?;
        let kept = Kept::new(capacity.receives.min(0x8000) as u16)?;
        let sinks = Sinks::new(2 * places)?;
        let core = Core {
            machine,
            link: Some(link),
            places: Some(memory),
            armed: Time(u64::MAX),
            late: Ring::new(2 * places)?,
        };
        let lost = Arc::new(AtomicFlag::new(false), GFP_KERNEL)?;
        let ear = Arc::new(Ear(signals.clone(), lost.clone()), GFP_KERNEL)?;
        let ni = Arc::pin_init(
            pin_init!(Self {
                number,
                raw,
                node,
                immediate: asked.immediate,
                places,
                epoch: Instant::now(),
                binding <- new_mutex!(false, "exlnd_binding"),
                life <- new_mutex!(KVec::new(), "exlnd_life"),
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
                orphan: AtomicFlag::new(false),
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
        sender.attach(ear);
        Ok(ni)
    }

    fn start_threads(self: &Arc<Self>) -> Result {
        let mut threads = self.life.lock();
        // They end in this order: who gives LNet messages, who tells it of ends, and who drives.
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
        match fault::hit(Point::Start) {
            true => Err(ENOMEM),
            false => Ok(()),
        }
    }

    /// Nanoseconds.
    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos().max(0) as u64)
    }

    /// Whether nothing goes on any more.
    fn is_over(&self) -> bool {
        let core = self.core.lock();
        core.machine().is_none_or(|machine| machine.is_over())
    }

    /// Whether nothing goes on that needs a NIC.
    fn is_idle(&self) -> bool {
        let core = self.core.lock();
        core.machine().is_none_or(|machine| machine.is_idle())
    }

    fn wait(&self, ms: i64, over: impl Fn() -> bool) -> bool {
        let begun: Instant<Monotonic> = Instant::now();
        while !over() {
            if begun.elapsed().as_millis() >= ms {
                return false;
            }
            self.signals.bell.ring();
            fsleep(Delta::from_millis(5));
        }
        true
    }

    /// Ends the interface: LNet has no messages of it any more. Sleeps, as a rule for milliseconds,
    /// and for some seconds if peers are gone that may still know addresses.
    pub(crate) fn end(self: &Arc<Self>) {
        self.change(|machine, now| machine.close(now));
        self.ended.xchg(true, Full);
        if !self.wait(PATIENCE_MS, || self.is_over()) {
            pr_warn!("ex{}: something did not end\n", self.number);
        }
        // Not with the lock that others wait for who hold what threads wait for.
        let threads = core::mem::replace(&mut *self.life.lock(), KVec::new());
        for thread in threads {
            drop(thread);
        }
        // Who unbinds the NIC waits for this, and finds nothing to do then.
        let mut binding = self.binding.lock();
        let link = self.core.lock().link.take();
        self.close(link);
        *binding = true;
        drop(binding);
        registry::over(self);
    }

    /// What debugfs shows.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ex{} node {}", self.number, self.node.0)?;
        self.counters.show(f)?;
        let core = self.core.lock();
        if let Some(link) = &core.link {
            writeln!(f, "gets {:?}", link.gets.counters())?;
        }
        if let Some(places) = &core.places {
            let [sources, sinks] = [Side::Source, Side::Sink].map(|side| places.left(side));
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
            let (peers, sends, receives) = machine.flows();
            write!(f, "{peers}{sends}{receives}")?;
        }
        Ok(())
    }
}
