// SPDX-License-Identifier: GPL-2.0-only

//! Remote register file access (RRA): access to quadword registers of any node (HW §13).
//!
//! Requests over RMA use VPID 252. It is open while the NIC is bound, because a NIC may reject
//! requests for a VPID that is closed (G19). Any number of callers may have any number of requests
//! outstanding. Over the SMFU there is one access at a time. An access to the own node stays in
//! this host with every method.
//!
//! A successful write means that the NIC sent the request (RMA), or that the store was posted
//! (SMFU). It does not mean that the register was written. Later accesses to the same node by the
//! same method are executed after the write. Registers with read side effects (HW §14) also have
//! them for remote reads. A read that timed out may still be executed.
//!
//! Locks: the mutex `closed` for opening the port, and the spinlocks `port` (RMA) and
//! `window_target` (SMFU), which disable interrupts.
//!
//! **With a spinlock held**, use [`Rra::batch`] with [`Wait::Spin`]. The CPU spins until the answer
//! arrives (a round trip and two notifications, i.e. some microseconds) or until the time-out.
//! Requests in flight at the time-out get another 20 µs.

mod port;
mod request;

use crate::{
    context::Context, dma::DmaWords, quarantine::Quarantine, rma::Rma, smfu::Smfu, stats::Reason,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        new_spinlock_irq, Arc, Mutex, SpinLockIrq,
    },
};
use port::{Port, Posted, Ticket};
use wire::{
    ids::{NodeId, RegOffset},
    regs::info,
};

pub(crate) use request::Deadline;
pub use request::{
    Method, Operation, Request, RraError, Wait, DEFAULT_TIMEOUT_US, MAX_SPIN_US, MAX_TIMEOUT_US,
};

/// Reads a register of this NIC. Any context.
///
/// # Errors
///
/// `BadOffset`, `Down`.
pub(crate) fn read_local(ctx: &Context, offset: RegOffset) -> Result<u64, RraError> {
    if !offset.is_valid() {
        return Err(RraError::BadOffset);
    }
    let hw = ctx.alive_access().ok_or(RraError::Down)?;
    let value = hw.rf.read(offset);
    if ctx.check_removed(&hw, value) {
        return Err(RraError::Down);
    }
    Ok(value)
}

/// Writes a register of this NIC. Any context.
///
/// # Errors
///
/// `BadOffset`, `Down`.
pub(crate) fn write_local(ctx: &Context, offset: RegOffset, value: u64) -> Result<(), RraError> {
    if !offset.is_valid() {
        return Err(RraError::BadOffset);
    }
    let hw = ctx.alive_access().ok_or(RraError::Down)?;
    hw.rf.write(offset, value);
    Ok(())
}

/// Maximum number of outstanding requests per caller.
const AT_ONCE: usize = 16;

/// Node that interval 0 of the SMFU points to, and whether stores to it may be in flight.
type WindowTarget = Option<(NodeId, bool)>;

/// Access to registers of all nodes.
#[pin_data]
pub struct Rra {
    ctx: Arc<Context>,
    smfu: Arc<Smfu>,
    rma: Arc<Rma>,
    quarantine: Arc<Quarantine>,
    /// Set before the port is closed. Waiting callers then return.
    closing: AtomicFlag,
    /// Mutex for opening and closing. Its value is true after the port was closed permanently.
    #[pin]
    closed: Mutex<bool>,
    #[pin]
    port: SpinLockIrq<Option<Port>>,
    #[pin]
    window_target: SpinLockIrq<WindowTarget>,
}

impl Rra {
    /// Allocates the unit, whose port is opened later. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(
        ctx: Arc<Context>,
        smfu: Arc<Smfu>,
        rma: Arc<Rma>,
        quarantine: Arc<Quarantine>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                smfu,
                rma,
                quarantine,
                closing: AtomicFlag::new(false),
                closed <- new_mutex!(false, "extoll_rra_closed"),
                port <- new_spinlock_irq!(None, "extoll_rra"),
                window_target <- new_spinlock_irq!(None, "extoll_rra_pointed"),
            }),
            GFP_KERNEL,
        )
    }

    /// Reads a register by RMA, with the default time-out. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RraError`].
    pub fn read(&self, node: NodeId, offset: RegOffset) -> Result<u64, RraError> {
        self.read_by(Method::Rma, DEFAULT_TIMEOUT_US, node, offset)
    }

    /// Writes a register by RMA, with the default time-out. The documentation of the module says
    /// what success means. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RraError`].
    pub fn write(&self, node: NodeId, offset: RegOffset, value: u64) -> Result<(), RraError> {
        self.write_by(Method::Rma, DEFAULT_TIMEOUT_US, node, offset, value)
    }

    /// Reads a register by `method`. For RMA, `timeout_us` is the time-out in microseconds,
    /// 1…10,000,000. For the SMFU, the CPU stalls up to the NIC's own time-out. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RraError`].
    pub fn read_by(
        &self,
        method: Method,
        timeout_us: u32,
        node: NodeId,
        offset: RegOffset,
    ) -> Result<u64, RraError> {
        let request = Request::read(node, offset);
        self.single(method, timeout_us, request)
    }

    /// Writes a register by `method`. `timeout_us` has the meaning of [`Rra::read_by`]. May sleep.
    ///
    /// # Errors
    ///
    /// See [`RraError`].
    pub fn write_by(
        &self,
        method: Method,
        timeout_us: u32,
        node: NodeId,
        offset: RegOffset,
        value: u64,
    ) -> Result<(), RraError> {
        let request = Request::write(node, offset, value);
        self.single(method, timeout_us, request).map(drop)
    }

    fn single(
        &self,
        method: Method,
        timeout_us: u32,
        mut request: Request,
    ) -> Result<u64, RraError> {
        let Request { node, offset, .. } = request;
        match self.check(method, node, offset)? {
            Method::Rma => {
                self.batch(core::slice::from_mut(&mut request), Wait::Sleep(timeout_us));
                request.result
            }
            Method::Local => self.local(&request),
            Method::Smfu => {
                let done = self.through_window(&request);
                self.report(node, offset, &done);
                done
            }
        }
    }

    /// Executes requests to any nodes by RMA, and stores a result in each. Many requests are
    /// outstanding at the same time. Requests to the same node are executed in order, even if one
    /// of them fails. Requests to the own node are executed first. `wait` determines the context,
    /// and the time-out for the whole batch.
    ///
    /// ```no_run
    /// # use extoll_core::{nic::Nic, rra::{Request, Wait}};
    /// # use wire::{ids::NodeId, regs::info};
    /// # fn example(nic: &Nic) {
    /// // Reads the network state of two nodes in the time of one access.
    /// let mut requests = [1, 2].map(|n| Request::read(NodeId(n), info::NW_STATE));
    /// nic.rra().batch(&mut requests, Wait::Sleep(1000));
    /// for request in &requests {
    ///     if let Ok(state) = request.result {
    ///         // …
    /// #       let _ = state;
    ///     }
    /// }
    /// # }
    /// ```
    pub fn batch(&self, requests: &mut [Request], wait: Wait) {
        let mut until = Deadline::new(wait);
        for chunk in requests.chunks_mut(AT_ONCE) {
            self.chunk(chunk, &mut until);
        }
    }

    /// Executes up to [`AT_ONCE`] requests.
    fn chunk(&self, requests: &mut [Request], until: &mut Deadline) {
        let mut steps = [Step::Next(RraError::TimedOut); AT_ONCE];
        for (request, step) in requests.iter_mut().zip(&mut steps) {
            request.result = match self.check(Method::Rma, request.node, request.offset) {
                Err(e) => Err(e),
                Ok(Method::Local) => self.local(request),
                Ok(_) => continue,
            };
            *step = Step::Done;
        }
        let sleeps = until.pause.is_some();
        let mut last = false;
        loop {
            let poll = |port: &mut Port| self.poll(port, requests, &mut steps, last);
            let left = match self.with_port(sleeps, poll) {
                Ok(left) => left,
                Err(e) => {
                    let all = requests.iter_mut().zip(&steps);
                    for (request, _) in all.filter(|(_, step)| **step != Step::Done) {
                        request.result = Err(e);
                    }
                    0
                }
            };
            if left == 0 {
                return;
            }
            until.pause();
            last = until.passed();
        }
    }

    /// Posts requests and collects answers. If `last` is set, ends the remaining requests. Returns
    /// the number of unfinished requests.
    fn poll(
        &self,
        port: &mut Port,
        requests: &mut [Request],
        steps: &mut [Step],
        last: bool,
    ) -> usize {
        port.poll(&self.ctx);
        let down = !self.ctx.is_alive() || self.closing.load(Relaxed);
        let (mut stuck, mut left) = (false, 0);
        for (request, step) in requests.iter_mut().zip(steps) {
            let done = match *step {
                Step::Done => continue,
                Step::Posted(ticket) => port.result(ticket),
                // Requests are posted in order, so a request that cannot be posted blocks those
                // after it.
                Step::Next(_) if stuck || last || down => None,
                Step::Next(_) => match port.post(request) {
                    Posted::Yes(ticket) => {
                        *step = Step::Posted(ticket);
                        None
                    }
                    Posted::Later(why) => {
                        *step = Step::Next(why);
                        stuck = true;
                        None
                    }
                    Posted::Never(e) => Some(Err(e)),
                },
            };
            let done = match (done, *step) {
                (Some(done), _) => done,
                (None, Step::Posted(ticket)) if last || down => {
                    port.give_up(ticket);
                    Err(if down {
                        RraError::Down
                    } else {
                        RraError::TimedOut
                    })
                }
                (None, Step::Next(_)) if down => Err(RraError::Down),
                (None, Step::Next(why)) if last => Err(why),
                (None, _) => {
                    left += 1;
                    continue;
                }
            };
            self.report(request.node, request.offset, &done);
            request.result = done;
            *step = Step::Done;
        }
        left
    }

    /// Reads a register of this NIC. Any context.
    ///
    /// # Errors
    ///
    /// `BadOffset`, `Down`.
    pub fn read_local(&self, offset: RegOffset) -> Result<u64, RraError> {
        read_local(&self.ctx, offset)
    }

    /// Writes a register of this NIC. Any context.
    ///
    /// # Errors
    ///
    /// `BadOffset`, `Down`.
    pub fn write_local(&self, offset: RegOffset, value: u64) -> Result<(), RraError> {
        write_local(&self.ctx, offset, value)
    }

    fn local(&self, request: &Request) -> Result<u64, RraError> {
        match request.operation {
            Operation::Read => self.read_local(request.offset),
            Operation::Write(value) => self.write_local(request.offset, value).map(|()| value),
        }
    }

    /// Checks the arguments and returns the method to use for a node.
    fn check(&self, method: Method, node: NodeId, offset: RegOffset) -> Result<Method, RraError> {
        if !offset.is_valid() {
            return Err(RraError::BadOffset);
        }
        if node.is_reserved() {
            return Err(RraError::BadNode);
        }
        match method {
            _ if node == self.ctx.node() => Ok(Method::Local),
            Method::Local => Err(RraError::BadNode),
            remote => Ok(remote),
        }
    }

    /// Counts and logs errors that other nodes or the network caused.
    fn report(&self, node: NodeId, offset: RegOffset, done: &Result<u64, RraError>) {
        let detail = u64::from(node.0) << 32 | u64::from(offset.get());
        match done {
            Err(RraError::TimedOut) => self.ctx.error(Reason::RraTimeout, detail),
            Err(RraError::Failed(_)) => self.ctx.error(Reason::RraFailed, detail),
            Err(RraError::Busy) => self.ctx.note(Reason::RraBusy, detail),
            _ => {}
        }
    }

    /// Calls `f` with the port. Opens the port if necessary, provided that the caller may sleep.
    fn with_port<T>(&self, sleeps: bool, f: impl FnOnce(&mut Port) -> T) -> Result<T, RraError> {
        if self.closing.load(Relaxed) || !self.ctx.is_alive() {
            return Err(RraError::Down);
        }
        if sleeps && self.port.lock().is_none() {
            self.open()?;
        }
        match &mut *self.port.lock() {
            Some(port) => Ok(f(port)),
            None if sleeps => Err(RraError::Down),
            None => Err(RraError::Open(EAGAIN)),
        }
    }

    /// Opens the port (HW §3.7), if it is not open yet. May sleep.
    ///
    /// # Errors
    ///
    /// `Open`, `Down`.
    pub(crate) fn open(&self) -> Result<(), RraError> {
        let closed = self.closed.lock();
        if *closed {
            return Err(RraError::Down);
        }
        if self.port.lock().is_some() {
            return Ok(());
        }
        let port = Port::open(&self.ctx, &self.rma).map_err(RraError::Open)?;
        *self.port.lock() = Some(port);
        Ok(())
    }

    /// Points interval 0 to the request's node, and loads from or stores to it.
    fn through_window(&self, request: &Request) -> Result<u64, RraError> {
        let node = request.node;
        let mut window_target = self.window_target.lock();
        if self.closing.load(Relaxed) || !self.ctx.is_alive() {
            return Err(RraError::Down);
        }
        match *window_target {
            Some((current, _)) if current == node => {}
            old => {
                if let Some((_, true)) = old {
                    // Stores to the window and register writes take different paths in the chip. A
                    // load that follows the stores completes after them. The stores therefore
                    // cannot reach the node that interval 0 points to next.
                    let _ = self.smfu.rra_load(info::DRIVER);
                }
                self.smfu.point_rra(node).ok_or(RraError::Down)?;
                *window_target = Some((node, false));
            }
        }
        match request.operation {
            Operation::Read => {
                let value = self.smfu.rra_load(request.offset)?;
                // The load completed after all earlier stores.
                *window_target = Some((node, false));
                Ok(value)
            }
            Operation::Write(value) => {
                self.smfu.rra_store(request.offset, value)?;
                *window_target = Some((node, true));
                Ok(value)
            }
        }
    }

    /// Closes the port permanently. The caller keeps the returned memory until RMA is stopped. May
    /// sleep.
    pub(crate) fn close(&self) -> LateMemory {
        self.closing.store(true, Relaxed);
        *self.closed.lock() = true;
        let port = self.port.lock().take();
        // Both locks are released before the port is closed.
        LateMemory(port.map(|port| port.close(&self.ctx, &self.quarantine)))
    }
}

/// Progress of a request of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The request was not posted yet. Contains the error to report if the time-out passes.
    Next(RraError),
    Posted(Ticket),
    Done,
}

/// Memory to which late answers may still be written. Must be kept until RMA is stopped.
#[allow(dead_code)] // Held for its drop, never read.
pub(crate) struct LateMemory(Option<DmaWords>);
