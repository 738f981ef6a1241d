// SPDX-License-Identifier: GPL-2.0-only

//! Remote register file access: one quadword register of any node (HW §13).
//!
//! Requests of one NIC are made one after the other. Over RMA they use VPID 252, which is open while the NIC is bound: a NIC may
//! refuse requests of others to a VPID that is not (G19). An access to the own node never leaves the host, whatever the method.
//!
//! What a write's success means: by RMA that the NIC sent the request, by SMFU that the store was posted; neither that
//! the register was written. Later accesses to the same node by the same method come after it. Registers whose reading
//! has an effect (HW §14) show it remotely too: a read that timed out may still happen.

use crate::{
    dma::DmaWords,
    nic::Nic,
    rma::{Notifications, PageOptions, Requester, SendError},
    stats::Reason,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex,
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use wire::{
    ids::{NodeId, RegOffset, Vpid},
    regs::info,
    rma::{Command, Descriptor, Modifiers, Notification, NotificationType, NotifySpec, Operation},
    rra::{Answer, Reads, Slot, Writes, EXPIRY_S},
};

/// Time-out in microseconds that the vendor's driver has, and that [`read`] and [`write()`] use (HW §13).
pub const DEFAULT_TIMEOUT_US: u32 = 1000;
/// Longest time-out in microseconds.
pub const MAX_TIMEOUT_US: u32 = 10_000_000;
/// Reads that may be unanswered, overdue ones included.
const SLOTS: usize = 4096;
/// Bytes of the notification queue: the smallest there is.
const QUEUE_BYTES: u32 = 512 * 1024;
/// Notifications that it holds.
const QUEUE_SLOTS: usize = QUEUE_BYTES as usize / 16;
/// Where requests go: the register file, physical local addresses, traffic class 2 (HW §13).
const PAGE: PageOptions = PageOptions {
    traffic_class: 2,
    rra: true,
    irq: false,
    translate: false,
};

/// How a register of another node is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Immediate put and get.
    Rma,
    /// Store and load in interval 0 of the SMFU window.
    Smfu,
    /// Not at all: registers of this node only.
    Local,
}

/// Why an access failed. Each is counted; what the network or a node did wrong is logged too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RraError {
    /// Node IDs 0xFFFE and 0xFFFF are no nodes (HW §4.2), and [`Method::Local`] knows only the own one.
    BadNode,
    /// Not a multiple of 8, or outside the register file.
    BadOffset,
    /// No answer in time.
    TimedOut,
    /// The NIC reported an error for the request; bits as in the notification (HW §10.4).
    Failed(u8),
    /// Too many requests wait for answers that do not come; or such answers may still reach memory of an earlier binding of the
    /// driver, so that the port stays closed to them for up to a minute.
    Busy,
    /// The device is gone or unbound.
    Down,
    /// The port could not be opened.
    Open(Error),
}

impl From<RraError> for Error {
    fn from(e: RraError) -> Error {
        match e {
            RraError::BadNode | RraError::BadOffset => EINVAL,
            RraError::TimedOut => ETIMEDOUT,
            RraError::Failed(_) => EIO,
            RraError::Busy => EBUSY,
            RraError::Down => ENODEV,
            RraError::Open(e) => e,
        }
    }
}

/// State of a NIC's remote access.
#[pin_data]
pub(crate) struct Rra {
    /// The port is about to be closed: nobody waits any longer.
    closing: AtomicFlag,
    #[pin]
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    port: Option<Port>,
    /// Node that interval 0 of the SMFU leads to, and whether stores to it may be under way.
    smfu: Option<(NodeId, bool)>,
}

struct Port {
    nic: Arc<Nic>,
    requester: Requester,
    notifications: Notifications,
    answers: Answers,
}

/// What notifications are compared with.
struct Answers {
    memory: DmaWords,
    slots: KVec<Slot>,
    next: usize,
    writes: Writes,
    epoch: Instant<Monotonic>,
}

/// A request that was answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Read(usize),
    Write(u32),
}

impl Answers {
    fn now_s(&self) -> u32 {
        (self.epoch.elapsed().as_millis() / 1000) as u32
    }

    fn address(&self, slot: usize) -> u64 {
        self.memory.address().0 + slot as u64 * 8
    }

    /// The request that a notification ends, with its error bits; `awaited` is waited for.
    fn take(
        &mut self,
        nic: &Nic,
        n: &Notification,
        awaited: Option<Request>,
    ) -> Option<(Request, u8)> {
        let found = match (n.kind, n.command) {
            (NotificationType::Completer, Command::ByteGetResponse) => {
                let offset = n.word0.wrapping_sub(self.memory.address().0);
                let index = (offset / 8) as usize;
                match Reads(&mut self.slots).settle(index, n.node) {
                    Answer::Awaited => Some(Request::Read(index)),
                    Answer::Late => {
                        nic.note(Reason::LateAnswer, offset);
                        return None;
                    }
                    Answer::Unknown => None,
                }
            }
            (NotificationType::Requester, Command::ImmediatePut) => {
                let awaited = match awaited {
                    Some(Request::Write(id)) => Some(id),
                    _ => None,
                };
                let settled = self.writes.settle(n.node, n.word0, awaited);
                settled.map(Request::Write)
            }
            // The origin's own view of a failed get (G17).
            (NotificationType::Requester, Command::ByteGet) if n.error != 0 => None,
            _ => None,
        };
        if found.is_none() {
            nic.error(Reason::UnexpectedAnswer, n.word0);
        }
        found.map(|request| (request, n.error))
    }
}

impl Port {
    fn open(nic: &Arc<Nic>) -> Result<Self> {
        let memory = nic.with_bound(|dev| DmaWords::new(dev, SLOTS))??;
        let mut slots = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        for _ in 0..SLOTS {
            slots.push(Slot::FREE, GFP_KERNEL)?;
        }
        let (requester, notifications) = nic.rma().open(Some(Vpid::RRA), QUEUE_BYTES)?;
        Ok(Self {
            nic: nic.clone(),
            requester,
            notifications,
            answers: Answers {
                memory,
                slots,
                next: 0,
                writes: Writes::default(),
                epoch: Instant::now(),
            },
        })
    }

    fn post(
        &self,
        node: NodeId,
        spec: NotifySpec,
        op: Operation,
        until: &Deadline,
    ) -> Result<(), RraError> {
        let descriptor = Descriptor {
            node,
            vpid: Vpid::RRA,
            notify: spec,
            modifiers: Modifiers::NONE,
            op,
        };
        let mut pause = Pause::default();
        loop {
            let last = until.passed();
            match self.requester.post(PAGE, &descriptor) {
                Ok(()) => return Ok(()),
                Err(SendError::Full | SendError::Retry) if self.nic.rra.closing.load(Relaxed) => {
                    return Err(RraError::Down)
                }
                Err(SendError::Full | SendError::Retry) if last => {
                    return Err(match self.requester.is_enabled() {
                        true => RraError::TimedOut,
                        false => RraError::Busy,
                    });
                }
                Err(SendError::Full | SendError::Retry) => pause.sleep(),
                Err(SendError::Down) => return Err(RraError::Down),
                Err(SendError::Invalid) => return Err(RraError::BadOffset),
            }
        }
    }

    /// Takes in what was answered, and returns the error bits of `request` if it was among them.
    fn settle(&mut self, request: Option<Request>) -> Option<u8> {
        let nic = self.nic.clone();
        let mut found = None;
        let answers = &mut self.answers;
        // One queue at most: a peer that sends without end holds up neither deadlines nor closing.
        self.notifications.poll(QUEUE_SLOTS, |n| {
            if let Some((ended, error)) = answers.take(&nic, n, request) {
                if Some(ended) == request {
                    found = Some(error);
                } else {
                    nic.note(Reason::LateAnswer, n.word0);
                }
            }
        });
        found
    }

    /// Waits for the end of `request`; others that end meanwhile are accounted for.
    fn wait(&mut self, request: Request, until: &Deadline) -> Result<(), RraError> {
        let mut pause = Pause::default();
        let nic = self.nic.clone();
        loop {
            let last = until.passed();
            match self.settle(Some(request)) {
                Some(0) => return Ok(()),
                Some(error) => return Err(RraError::Failed(error)),
                None if !nic.is_alive() || nic.rra.closing.load(Relaxed) => {
                    return Err(RraError::Down)
                }
                None if last => return Err(RraError::TimedOut),
                None => pause.sleep(),
            }
        }
    }

    fn read(&mut self, node: NodeId, offset: RegOffset, until: &Deadline) -> Result<u64, RraError> {
        let now = self.answers.now_s();
        let from = self.answers.next;
        let slot = Reads(&mut self.answers.slots)
            .claim(from, node, now)
            .ok_or(RraError::Busy)?;
        self.answers.next = (slot + 1) % SLOTS;
        let spec = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        let op = Operation::Get {
            qw: false,
            len: 8,
            remote: offset.get().into(),
            local: self.answers.address(slot),
        };
        self.post(node, spec, op, until)
            .inspect_err(|_| Reads(&mut self.answers.slots).cancel(slot))?;
        self.wait(Request::Read(slot), until).inspect_err(|e| {
            if !matches!(e, RraError::Failed(_)) {
                let now = self.answers.now_s();
                Reads(&mut self.answers.slots).give_up(slot, now);
            }
        })?;
        Ok(self.answers.memory.read(slot))
    }

    fn write(
        &mut self,
        node: NodeId,
        offset: RegOffset,
        value: u64,
        until: &Deadline,
    ) -> Result<(), RraError> {
        let now = self.answers.now_s();
        let id = self
            .answers
            .writes
            .push(node, value, now)
            .ok_or(RraError::Busy)?;
        let spec = NotifySpec {
            requester: true,
            ..NotifySpec::NONE
        };
        let op = Operation::ImmediatePut {
            len: 8,
            remote: offset.get().into(),
            value,
        };
        self.post(node, spec, op, until)
            .inspect_err(|_| self.answers.writes.cancel(id))?;
        self.wait(Request::Write(id), until)
    }
}

/// When a request is given up.
struct Deadline {
    start: Instant<Monotonic>,
    limit: Delta,
}

impl Deadline {
    fn new(timeout_us: u32) -> Self {
        Self {
            start: Instant::now(),
            limit: Delta::from_micros(timeout_us.clamp(1, MAX_TIMEOUT_US).into()),
        }
    }

    fn passed(&self) -> bool {
        self.start.elapsed().as_nanos() >= self.limit.as_nanos()
    }
}

/// Growing pauses between looks: short answers cost little time, long waits little processor.
struct Pause(i64);

impl Default for Pause {
    fn default() -> Self {
        Self(2)
    }
}

impl Pause {
    fn sleep(&mut self) {
        fsleep(Delta::from_micros(self.0));
        self.0 = (self.0 * 2).min(200);
    }
}

impl Rra {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            closing: AtomicFlag::new(false),
            state <- new_mutex!(State::default(), "extoll_rra"),
        })
    }
}

/// Reads a register by RMA, with the default time-out. May sleep.
///
/// # Errors
///
/// See [`RraError`].
pub fn read(nic: &Arc<Nic>, node: NodeId, offset: RegOffset) -> Result<u64, RraError> {
    read_by(nic, Method::Rma, DEFAULT_TIMEOUT_US, node, offset)
}

/// Writes a register by RMA, with the default time-out; see the module's text about what success means. May sleep.
///
/// # Errors
///
/// See [`RraError`].
pub fn write(nic: &Arc<Nic>, node: NodeId, offset: RegOffset, value: u64) -> Result<(), RraError> {
    write_by(nic, Method::Rma, DEFAULT_TIMEOUT_US, node, offset, value)
}

/// Reads a register by `method`. `timeout_us` of 1…10,000,000 is for RMA; by SMFU the NIC's own time-out counts, and the
/// processor waits. May sleep.
///
/// # Errors
///
/// See [`RraError`].
pub fn read_by(
    nic: &Arc<Nic>,
    method: Method,
    timeout_us: u32,
    node: NodeId,
    offset: RegOffset,
) -> Result<u64, RraError> {
    let done = match check(nic, method, node, offset)? {
        Method::Local => return read_local(nic, offset),
        Method::Rma => with_port(nic, |port| {
            port.read(node, offset, &Deadline::new(timeout_us))
        }),
        Method::Smfu => through_window(nic, node, |nic| nic.smfu.rra_load(nic, offset)),
    };
    report(nic, node, offset, done)
}

/// Writes a register by `method`; as [`read_by`]. May sleep.
///
/// # Errors
///
/// See [`RraError`].
pub fn write_by(
    nic: &Arc<Nic>,
    method: Method,
    timeout_us: u32,
    node: NodeId,
    offset: RegOffset,
    value: u64,
) -> Result<(), RraError> {
    let done = match check(nic, method, node, offset)? {
        Method::Local => return write_local(nic, offset, value),
        Method::Rma => with_port(nic, |port| {
            port.write(node, offset, value, &Deadline::new(timeout_us))
        }),
        Method::Smfu => through_window(nic, node, |nic| nic.smfu.rra_store(nic, offset, value)),
    };
    report(nic, node, offset, done)
}

/// Reads a register of this NIC. Any context.
///
/// # Errors
///
/// `BadOffset`, `Down`.
pub fn read_local(nic: &Arc<Nic>, offset: RegOffset) -> Result<u64, RraError> {
    if !offset.is_valid() {
        return Err(RraError::BadOffset);
    }
    let hw = nic.alive_access().ok_or(RraError::Down)?;
    let value = hw.rf.read(offset);
    if nic.is_gone(&hw, value) {
        return Err(RraError::Down);
    }
    Ok(value)
}

/// Writes a register of this NIC. Any context.
///
/// # Errors
///
/// `BadOffset`, `Down`.
pub fn write_local(nic: &Arc<Nic>, offset: RegOffset, value: u64) -> Result<(), RraError> {
    if !offset.is_valid() {
        return Err(RraError::BadOffset);
    }
    let hw = nic.alive_access().ok_or(RraError::Down)?;
    hw.rf.write(offset, value);
    Ok(())
}

/// The method to use for a node.
fn check(nic: &Nic, method: Method, node: NodeId, offset: RegOffset) -> Result<Method, RraError> {
    if !offset.is_valid() {
        return Err(RraError::BadOffset);
    }
    if node.is_reserved() {
        return Err(RraError::BadNode);
    }
    match method {
        _ if node == nic.node() => Ok(Method::Local),
        Method::Local => Err(RraError::BadNode),
        remote => Ok(remote),
    }
}

/// Counts and logs what went wrong outside this host.
fn report<T>(
    nic: &Nic,
    node: NodeId,
    offset: RegOffset,
    done: Result<T, RraError>,
) -> Result<T, RraError> {
    let detail = u64::from(node.0) << 32 | u64::from(offset.get());
    match done {
        Err(RraError::TimedOut) => nic.error(Reason::RraTimeout, detail),
        Err(RraError::Failed(_)) => nic.error(Reason::RraFailed, detail),
        Err(RraError::Busy) => nic.note(Reason::RraBusy, detail),
        _ => {}
    }
    done
}

fn with_port<T>(
    nic: &Arc<Nic>,
    f: impl FnOnce(&mut Port) -> Result<T, RraError>,
) -> Result<T, RraError> {
    let mut state = nic.rra.state.lock();
    if state.closed || !nic.is_alive() {
        return Err(RraError::Down);
    }
    if state.port.is_none() {
        state.port = Some(Port::open(nic).map_err(RraError::Open)?);
    }
    f(state.port.as_mut().ok_or(RraError::Down)?)
}

/// Opens the port (HW §3.7), which the first request does otherwise. May sleep.
///
/// # Errors
///
/// `Open`, `Down`.
pub(crate) fn open(nic: &Arc<Nic>) -> Result<(), RraError> {
    with_port(nic, |_| Ok(()))
}

/// Points interval 0 at `node` and runs `f`, which says whether it leaves a store under way.
fn through_window<T>(
    nic: &Arc<Nic>,
    node: NodeId,
    f: impl FnOnce(&Arc<Nic>) -> Result<(T, bool), RraError>,
) -> Result<T, RraError> {
    let mut state = nic.rra.state.lock();
    if state.closed || !nic.is_alive() {
        return Err(RraError::Down);
    }
    match state.smfu {
        Some((current, _)) if current == node => {}
        old => {
            if let Some((_, true)) = old {
                // The way of stores to the window and that of register writes differ on the chip: a load that follows
                // the stores makes sure that they are through before they could go to the other node.
                let _ = nic.smfu.rra_load(nic, info::DRIVER);
            }
            nic.smfu.point_rra(nic, node).ok_or(RraError::Down)?;
            state.smfu = Some((node, false));
        }
    }
    let (value, posted) = f(nic)?;
    state.smfu = Some((node, posted));
    Ok(value)
}

/// Memory that late answers may still be written to; to be kept until RMA is stopped.
#[allow(dead_code)] // Held, never read.
pub(crate) struct Remains(Option<DmaWords>);

/// Closes the port for good. May sleep.
pub(crate) fn close(nic: &Nic) -> Remains {
    let port = {
        nic.rra.closing.store(true, Relaxed);
        let mut state = nic.rra.state.lock();
        state.closed = true;
        state.port.take()
    };
    // The port is closed here, outside the lock.
    Remains(port.map(|mut p| {
        // What came after its deadline is looked at by the next request only.
        p.settle(None);
        let now = p.answers.now_s();
        if Reads(&mut p.answers.slots).is_expected(now) {
            nic.quarantine().outlives(Vpid::RRA, EXPIRY_S * 1000);
        }
        p.answers.memory
    }))
}
