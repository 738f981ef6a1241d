//! The rendezvous protocol on one node, driven like by `exn.ko`. There is one queue of frames, of
//! which the first may have to wait. A poll function for messages also does the housekeeping, in
//! the order of [`protocol::eth::poll`]; another one processes notifications.

mod fetched;
mod glue;
mod receive;
mod send;

use crate::eth::setup::{Full, Mutation, Tables, LIMITS, PERIODS};
use crate::fabric::Fabric;
use crate::memory::{Block, Pool};
use crate::port::Port;
use crate::Heap;
use anyhow::Result;
use fetched::Target;
use glue::{Locked, Run, Timed};
use protocol::eth::poll::{self, Timer};
use protocol::eth::rendezvous::{Fetches, Limits, Sender, Waiting};
use protocol::Time;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Time before which all posted commands have reached the NIC: any time, because commands that the
/// port rejects are lost.
const SETTLED: Time = Time(u64::MAX);

/// A frame to be sent.
pub struct Outgoing {
    /// Number of the frame.
    pub id: u64,
    /// Target node.
    pub to: usize,
    /// Flow.
    pub flow: u32,
    /// Memory of the frame.
    pub block: Block,
    /// Length in bytes.
    pub len: u32,
}

/// Report of a node to the rig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Frame `id` was sent in a message.
    Sent {
        /// Number of the frame.
        id: u64,
    },
    /// Frame `id` was announced with this address.
    Announced {
        /// Number of the frame.
        id: u64,
        /// Address of the frame.
        address: u64,
    },
    /// Frame `id` was dropped, because its peer is stalled or the port is closed.
    Dropped {
        /// Number of the frame.
        id: u64,
        /// True if the peer is the reason.
        peer: bool,
    },
    /// The transfer of an announced frame ended.
    Ended {
        /// Address of the frame.
        address: u64,
        /// True if the peer has fetched it.
        fetched: bool,
    },
    /// A GET was posted.
    Get {
        /// Source node.
        from: u16,
        /// Source address.
        address: u64,
        /// Destination memory.
        local: u64,
    },
    /// The NIC reports that a GET into this memory has ended.
    Got {
        /// Destination memory.
        local: u64,
    },
    /// A frame arrived.
    Delivered {
        /// Source node.
        from: u16,
        /// Contents.
        data: Vec<u8>,
    },
    /// An announcement was rejected or discarded.
    Refused {
        /// Source node.
        from: u16,
    },
}

/// Time of the next run of a poll function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// After a short delay.
    Soon,
    /// After the next interrupt.
    Interrupt,
    /// When the timer expires; the interrupt is masked.
    Timer,
}

/// One node.
pub struct Node {
    /// Index of its NIC, which is its node ID.
    pub nic: usize,
    port: Option<Port>,
    sender: Sender<Heap, Block>,
    waiting: Waiting<Heap>,
    fetches: RefCell<Fetches<Heap, Block>>,
    /// Frames being fetched, with their buffers.
    targets: Vec<Target>,
    /// Number of fetched frames with missing data.
    pub holes: u64,
    /// Frames from the network stack, including those that wait for a stopped queue.
    queue: VecDeque<Outgoing>,
    /// Memory of a closed port, with the time until which it is kept.
    held: VecDeque<(u64, Block)>,
    /// Buffers of the node.
    pub pool: Pool,
    timer: Rc<RefCell<Timer>>,
    /// Expiry of the timer.
    timer_at: Option<u64>,
    /// Number of waiting announcements, as published to the poll function for notifications.
    published: usize,
    limits: Limits,
    /// Limits of the GETs.
    fetch_limits: Limits,
    tables: Tables,
    mutation: Option<Mutation>,
    notifications: u64,
    full: Full,
    /// True while the node cannot allocate memory.
    pub short_of_memory: bool,
    /// Reports that the rig has not processed yet.
    pub reports: Vec<Report>,
}

/// Returns the value of an operation that can't fail.
fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

impl Node {
    /// Creates a node with a closed port.
    ///
    /// # Errors
    ///
    /// Fails if its memory is not accessible.
    pub fn new(
        fabric: &Fabric,
        nic: usize,
        tables: Tables,
        mutation: Option<Mutation>,
    ) -> Result<Self> {
        // Buffers for all frames held by one period of the port and the one before, and for frames
        // of the network stack.
        let buffers = 3 * tables.buffers();
        let mut limits = tables.limits();
        let mut fetch_limits = limits;
        match mutation {
            Some(Mutation::NoQuarantine) => (limits.quarantine, fetch_limits.quarantine) = (0, 0),
            Some(Mutation::NoFetchQuarantine) => fetch_limits.quarantine = 0,
            Some(Mutation::NoPeerBound) => {
                limits.stalled_peer = usize::MAX;
                limits.timeout = u64::MAX / 4;
            }
            Some(Mutation::NoLag) => limits.lag = u64::MAX,
            Some(Mutation::NoWaitingBound) => {
                (fetch_limits.waiting, fetch_limits.slow_waiting) = (usize::MAX, usize::MAX);
                (fetch_limits.stall, fetch_limits.patience) = (LIMITS.timeout, u64::MAX);
            }
            _ => {}
        }
        Ok(Self {
            nic,
            port: None,
            sender: sure(Sender::new(tables.flight, tables.quarantine)),
            waiting: sure(Waiting::new(tables.waiting)),
            fetches: RefCell::new(sure(Fetches::new(tables.fetches, tables.lost))),
            targets: Vec::new(),
            holes: 0,
            queue: VecDeque::new(),
            held: VecDeque::new(),
            pool: Pool::new(fabric, nic, buffers),
            timer: Rc::default(),
            timer_at: None,
            published: 0,
            limits,
            fetch_limits,
            tables,
            mutation,
            notifications: 0,
            full: Full::default(),
            short_of_memory: false,
            reports: Vec::new(),
        })
    }

    /// Opens the port.
    ///
    /// # Errors
    ///
    /// Fails if the NIC rejects an access, or there is no memory for the scratch buffer.
    pub fn up(&mut self, fabric: &mut Fabric) -> Result<()> {
        self.port = Some(Port::open(fabric, self.nic)?);
        let scratch = self.pool.take();
        anyhow::ensure!(scratch.is_some(), "no memory for the scratch buffer");
        self.fetches.borrow_mut().set_scratch(scratch);
        self.waiting.age_bound().emptied(Time(fabric.now()));
        *self.timer.borrow_mut() = Timer::new();
        self.timer_at = None;
        Ok(())
    }

    /// Restarts the node after a loss of power. All memory is free at once.
    ///
    /// # Errors
    ///
    /// Fails if its memory is not accessible.
    pub fn forget(&mut self, fabric: &mut Fabric) -> Result<()> {
        self.down(fabric);
        self.held.clear();
        anyhow::ensure!(self.pool.is_idle(), "memory without a user is in use");
        let reports = std::mem::take(&mut self.reports);
        let (full, holes) = (self.full, self.holes);
        let old = self.pool.clone();
        *self = Self::new(fabric, self.nic, self.tables, self.mutation)?;
        // The free blocks keep their order.
        self.pool = old;
        (self.reports, self.full, self.holes) = (reports, full, holes);
        Ok(())
    }

    /// Returns true if the port is open.
    pub fn is_up(&self) -> bool {
        self.port.is_some()
    }

    /// Closes the port. Memory that peers may still read or write is held; all other memory is
    /// returned.
    pub fn down(&mut self, fabric: &mut Fabric) {
        let Some(port) = self.port.take() else {
            return;
        };
        port.close(fabric);
        self.waiting.flush(&Locked(&self.fetches));
        let until = fabric.now() + self.limits.quarantine;
        while let Some((active, block)) = self.sender.flush_one() {
            if active {
                self.reports.push(Report::Ended {
                    address: protocol::eth::rendezvous::Buffer::address(&block),
                    fetched: false,
                });
            }
            self.held.push_back((until, block));
        }
        let mut fetches = self.fetches.borrow_mut();
        while let Some((_, block)) = fetches.flush_one() {
            self.held.push_back((until, block));
        }
        fetches.set_scratch(None);
        drop(fetches);
        for frame in self.queue.drain(..) {
            self.reports.push(Report::Dropped {
                id: frame.id,
                peer: false,
            });
        }
    }

    /// Queues a frame from the network stack and sends what is possible.
    pub fn submit(&mut self, fabric: &mut Fabric, frame: Outgoing) {
        self.queue.push_back(frame);
        self.transmit(fabric);
    }

    /// Returns the number of frames that wait for the queue.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    fn set_timer(&mut self, at: Time) {
        let done = self.mutation == Some(Mutation::NoTimer) && self.notifications > 8;
        self.timer_at = Some(if done { u64::MAX } else { at.0 });
    }

    /// Returns the expiry of the timer.
    pub fn timer(&self) -> Option<u64> {
        self.timer_at
    }

    /// Makes the timer expire if it is due. Returns true if it did.
    pub fn ring(&mut self, now: u64) -> bool {
        let rings = self.timer_at.is_some_and(|at| at <= now);
        if rings {
            self.timer_at = None;
        }
        rings
    }

    /// Runs the poll function for messages once; `now` may be slightly old.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be read.
    pub fn poll(&mut self, fabric: &mut Fabric, now: u64, budget: usize) -> Result<Again> {
        self.transmit(fabric);
        let Some(mut port) = self.port.take() else {
            return Ok(Again::Interrupt);
        };
        port.look(fabric);
        // A receiver that delivers frames as they arrive processes the announced frames first.
        if let Err(e) = self.take_notifications(fabric, &mut port, usize::MAX) {
            self.port = Some(port);
            return Err(e);
        }
        let timer = Rc::clone(&self.timer);
        let mut run = Run {
            node: self,
            port,
            fabric,
            now,
            failed: None,
        };
        let ran = poll::run(&mut run, &Timed(timer), &Time(now), budget, &PERIODS);
        let Run { port, failed, .. } = run;
        self.port = Some(port);
        if let Some(e) = failed {
            return Err(e);
        }
        self.transmit(fabric);
        self.full.waiting |= self.waiting.room() == 0;
        Ok(match ran {
            ran if ran.paused => Again::Timer,
            ran if ran.messages >= budget => Again::Soon,
            _ => Again::Interrupt,
        })
    }

    /// Runs the poll function for notifications once. Returns the time of its next run, and true if
    /// the other poll function must run.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be read.
    pub fn poll_notifications(
        &mut self,
        fabric: &mut Fabric,
        budget: usize,
    ) -> Result<(Again, bool)> {
        let Some(mut port) = self.port.take() else {
            return Ok((Again::Interrupt, false));
        };
        let work = self.take_notifications(fabric, &mut port, budget);
        self.port = Some(port);
        let work = work?;
        self.transmit(fabric);
        let again = match work < budget {
            true => Again::Interrupt,
            false => Again::Soon,
        };
        Ok((again, work > 0 && self.published > 0))
    }

    /// Returns the number of unread messages that the NIC has written.
    pub fn backlog_of_messages(&self, fabric: &mut Fabric) -> usize {
        self.port.as_ref().map_or(0, |p| p.backlog(fabric))
    }

    /// Returns true if there are events without an interrupt.
    pub fn overlooked(&mut self, fabric: &mut Fabric) -> bool {
        self.port.as_mut().is_some_and(|p| p.overlooked(fabric))
    }

    /// Does the housekeeping; `now` may be slightly old.
    fn age(&mut self, now: u64) {
        let time = Time(now);
        let (_, all) = self
            .sender
            .age(&time, &self.limits, SETTLED, |_| true, drop);
        debug_assert!(all);
        let mut fetches = self.fetches.borrow_mut();
        fetches.age(&time, &self.fetch_limits, SETTLED, drop);
        if fetches.needs_scratch() && !self.short_of_memory {
            fetches.set_scratch(self.pool.take());
        }
        drop(fetches);
        self.full = self.full.or(self.fullness());
    }

    /// Returns memory of a closed port when its hold-off time has elapsed.
    pub fn release(&mut self, now: u64) {
        while self.held.front().is_some_and(|(until, _)| *until <= now) {
            self.held.pop_front();
        }
    }

    fn fullness(&self) -> Full {
        let fetches = self.fetches.borrow();
        Full {
            flight: self.sender.in_flight() >= usize::from(self.tables.flight),
            quarantine: self.sender.given_up() >= usize::from(self.tables.quarantine),
            fetches: fetches.len() - fetches.lost() >= usize::from(self.tables.fetches),
            lost: fetches.lost() >= usize::from(self.tables.lost),
            waiting: false,
        }
    }

    /// Returns the tables that have been full so far.
    pub fn full(&self) -> Full {
        self.full.or(self.fullness())
    }

    /// Returns true if no frame, announcement or held memory is pending.
    pub fn is_idle(&self) -> bool {
        let fetches = self.fetches.borrow().is_empty();
        self.queue.is_empty()
            && self.sender.is_empty()
            && self.waiting.is_empty()
            && fetches
            && self.held.is_empty()
    }

    /// Checks the invariants of the state machines.
    ///
    /// # Errors
    ///
    /// Returns the violated invariant.
    pub fn check(&mut self) -> Result<(), String> {
        let error = |what: &str| format!("node {}: {what}", self.nic);
        self.sender.check().map_err(error)?;
        self.fetches.borrow_mut().check().map_err(error)?;
        self.waiting.check(&self.fetch_limits).map_err(error)?;
        if self.mutation.is_none() && self.sender.in_flight() > self.limits.flight {
            return Err(error("more frames in flight than allowed"));
        }
        Ok(())
    }

    /// Returns the transitions of both state machines.
    pub fn transitions(&self) -> String {
        format!("{}{}", self.sender.counts(), self.fetches.borrow().counts())
    }
}
