//! Rendezvous on one node, as `exn.ko` drives the machine: one queue of frames, of which the first may have to wait; announcements
//! before notifications; housekeeping from time to time.

use crate::fabric::Fabric;
use crate::memory::{Block, Pool};
use crate::port::Port;
use crate::Heap;
use anyhow::Result;
use protocol::rendezvous::{
    Admitted, AnnouncePort, Ended, FetchPort, Fetched, Fetches, Limits, Sender, Shared, Unsent,
    Waiting,
};
use protocol::{Refused, Time};
use std::cell::RefCell;
use std::collections::VecDeque;
use wire::ext_eth::{self, Announcement, Completion, Message, Side, GET_PAGE};
use wire::ids::{NodeId, Unit};

/// Sizes of the tables: small, so that all bounds are reached.
pub const FLIGHT: u16 = 16;
/// Frames given up whose memory is kept.
pub const QUARANTINE: u16 = 32;
/// Fetches in flight.
pub const FETCHES: u16 = 16;
/// Fetches lost whose memory is kept.
pub const LOST: u16 = 32;
/// Announcements that wait.
pub const WAITING: u16 = 48;
/// Longest frame.
pub const MAX_FRAME: u32 = 2000;

const MS: u64 = 1_000_000;

/// The limits of `exn.ko` with smaller tables and a shorter quarantine, in ns.
pub const LIMITS: Limits = Limits {
    stall: 100 * MS,
    timeout: 3_000 * MS,
    keep: 20_000 * MS,
    patience: 500 * MS,
    flight: FLIGHT as usize,
    stalled_peer: 2,
    fetches: FETCHES as usize,
    source: 12,
    lossy_source: 4,
};

/// An error put into the glue, to see that the simulation finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Memory that was given up is used again at once.
    NoQuarantine,
    /// A notification ends a transfer whoever it is with.
    AnyPeer,
    /// No bound for peers that stand still.
    NoPeerBound,
    /// Notifications are counted, but the machine does not hear of some.
    DeafToNotifications,
    /// An announcement is fetched twice.
    FetchTwice,
}

impl Mutation {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::NoQuarantine,
        Self::AnyPeer,
        Self::NoPeerBound,
        Self::DeafToNotifications,
        Self::FetchTwice,
    ];
}

/// A frame to be sent.
pub struct Outgoing {
    /// Number of the frame.
    pub id: u64,
    /// To whom.
    pub to: usize,
    /// Its bytes.
    pub block: Block,
    /// Number of bytes.
    pub len: u32,
}

/// What a node reports to the rig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Frame `id` was announced with this address.
    Announced {
        /// Frame.
        id: u64,
        /// Its address.
        address: u64,
    },
    /// Frame `id` was dropped: its peer stands still, or the port is gone.
    Dropped {
        /// Frame.
        id: u64,
        /// Because of its peer.
        peer: bool,
    },
    /// An announced frame ended.
    Ended {
        /// Its address.
        address: u64,
        /// The peer has fetched it.
        fetched: bool,
    },
    /// A GET was posted.
    Get {
        /// To this node.
        from: u16,
        /// For this address.
        address: u64,
    },
    /// A frame arrived.
    Delivered {
        /// From this node.
        from: u16,
        /// Its bytes.
        data: Vec<u8>,
    },
    /// An announcement was refused or thrown away.
    Refused {
        /// Of this node.
        from: u16,
    },
}

struct Announcer<'a> {
    fabric: &'a mut Fabric,
    port: &'a mut Port,
}

impl AnnouncePort for Announcer<'_> {
    fn announce(&mut self, to: NodeId, announcement: &Announcement) -> Result<(), Refused> {
        self.port.send(
            self.fabric,
            ext_eth::announcement_descriptor(to),
            &announcement.encode(),
        )
    }
}

struct Fetcher<'a> {
    fabric: &'a mut Fabric,
    port: &'a mut Port,
    pool: &'a Pool,
    lengths: &'a mut Vec<(u64, u32)>,
    reports: &'a mut Vec<Report>,
    short_of_memory: bool,
    twice: bool,
}

impl FetchPort for Fetcher<'_> {
    type Buffer = Block;

    fn reserve(&mut self) -> Result<(), Refused> {
        self.port.reserve(self.fabric, Unit::Rma)
    }

    fn buffer(&mut self, _len: u32) -> Option<Block> {
        match self.short_of_memory {
            true => None,
            false => self.pool.take(),
        }
    }

    fn get(
        &mut self,
        from: NodeId,
        announcement: &Announcement,
        len: u32,
        local: u64,
    ) -> Result<(), Refused> {
        let descriptor = ext_eth::get_descriptor(from, announcement, len, local);
        self.port.command(self.fabric, GET_PAGE, &descriptor)?;
        if self.twice {
            let _ = self.port.command(self.fabric, GET_PAGE, &descriptor);
        }
        self.lengths.retain(|(at, _)| *at != local);
        self.lengths.push((local, len));
        self.reports.push(Report::Get {
            from: from.0,
            address: announcement.address,
        });
        Ok(())
    }
}

/// Fetches behind their lock.
struct Locked<'a>(&'a RefCell<Fetches<Heap, Block>>);

impl Shared<Fetches<Heap, Block>> for Locked<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Fetches<Heap, Block>) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

/// One node.
pub struct Node {
    /// Index of its NIC, which is its node ID.
    pub nic: usize,
    port: Option<Port>,
    sender: Sender<Heap, Block>,
    waiting: Waiting<Heap>,
    fetches: RefCell<Fetches<Heap, Block>>,
    /// Lengths of the frames that are being fetched, by their buffers.
    lengths: Vec<(u64, u32)>,
    /// Frames that the stack has handed over or keeps for a stopped queue.
    queue: VecDeque<Outgoing>,
    /// Memory of what a closed port left, and until when it stays as it is.
    held: VecDeque<(u64, Block)>,
    /// Its buffers.
    pub pool: Pool,
    limits: Limits,
    mutation: Option<Mutation>,
    notifications: u64,
    /// Its system has no memory.
    pub short_of_memory: bool,
    /// What happened, for the rig to take.
    pub reports: Vec<Report>,
}

/// The value of what can't fail.
fn sure<T>(result: Result<T, std::convert::Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

impl Node {
    /// A node whose port is closed.
    ///
    /// # Errors
    ///
    /// There is no handle to its memory.
    pub fn new(fabric: &Fabric, nic: usize, mutation: Option<Mutation>) -> Result<Self> {
        // All that may be held by one period, and by one before it, and frames of the stack.
        let tables = usize::from(FLIGHT + QUARANTINE + FETCHES + LOST + 1);
        let mut limits = LIMITS;
        match mutation {
            Some(Mutation::NoQuarantine) => limits.keep = 0,
            Some(Mutation::NoPeerBound) => {
                limits.stalled_peer = usize::MAX;
                limits.timeout = u64::MAX / 4;
            }
            _ => {}
        }
        Ok(Self {
            nic,
            port: None,
            sender: sure(Sender::new(FLIGHT, QUARANTINE)),
            waiting: sure(Waiting::new(WAITING)),
            fetches: RefCell::new(sure(Fetches::new(FETCHES, LOST))),
            lengths: Vec::new(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
            pool: Pool::new(fabric, nic, 3 * tables)?,
            limits,
            mutation,
            notifications: 0,
            short_of_memory: false,
            reports: Vec::new(),
        })
    }

    /// Opens the port.
    ///
    /// # Errors
    ///
    /// The NIC refuses an access, or there is no memory for the scratch buffer.
    pub fn up(&mut self, fabric: &mut Fabric) -> Result<()> {
        self.port = Some(Port::open(fabric, self.nic)?);
        let scratch = self.pool.take();
        anyhow::ensure!(scratch.is_some(), "no memory for the scratch buffer");
        self.fetches.borrow_mut().set_scratch(scratch);
        Ok(())
    }

    /// Whether the port is open.
    pub fn is_up(&self) -> bool {
        self.port.is_some()
    }

    /// Closes the port. What peers may still read or write is held, the rest given back.
    pub fn down(&mut self, fabric: &mut Fabric) {
        let Some(port) = self.port.take() else {
            return;
        };
        port.close(fabric);
        self.waiting.flush(&Locked(&self.fetches));
        let until = fabric.now() + self.limits.keep;
        while let Some((active, block)) = self.sender.flush_one() {
            if active {
                self.reports.push(Report::Ended {
                    address: protocol::rendezvous::Buffer::address(&block),
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

    /// Takes a frame from the stack.
    pub fn submit(&mut self, fabric: &mut Fabric, frame: Outgoing) {
        self.queue.push_back(frame);
        self.transmit(fabric);
    }

    /// Frames that wait for the queue.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    fn transmit(&mut self, fabric: &mut Fabric) {
        let Some(port) = self.port.as_mut() else {
            return;
        };
        while let Some(frame) = self.queue.pop_front() {
            let to = Port::node_id(frame.to);
            match self.sender.admit(to, &self.limits) {
                Admitted::Later => {
                    self.queue.push_front(frame);
                    return;
                }
                Admitted::No(_) => {
                    let id = frame.id;
                    self.reports.push(Report::Dropped { id, peer: true });
                    continue;
                }
                Admitted::Yes { .. } => {}
            }
            let Outgoing { id, len, block, .. } = frame;
            let address = protocol::rendezvous::Buffer::address(&block);
            let now = Time(fabric.now());
            let mut port = Announcer {
                fabric: &mut *fabric,
                port: &mut *port,
            };
            match self.sender.announce(&now, &mut port, to, block, len) {
                Ok(()) => self.reports.push(Report::Announced { id, address }),
                Err((block, Unsent::Refused(Refused::Later))) => {
                    let to = frame.to;
                    self.queue.push_front(Outgoing { id, to, block, len });
                    return;
                }
                Err(_) => self.reports.push(Report::Dropped { id, peer: false }),
            }
        }
    }

    /// One run of the poll functions. Returns whether there was anything to do.
    ///
    /// # Errors
    ///
    /// Memory can't be read.
    pub fn poll(&mut self, fabric: &mut Fabric, budget: usize) -> Result<bool> {
        let Some(mut port) = self.port.take() else {
            return Ok(false);
        };
        port.look(fabric);
        let mut work = 0;
        while work < budget && self.waiting.room() > 0 {
            let Some(message) = port.message(fabric)? else {
                break;
            };
            work += 1;
            let from = message.status.source.node;
            match Message::parse(&message.status, &message.data) {
                Ok(Message::Announcement(a)) => self.announced(fabric, from, a),
                Ok(Message::Dropped { address }) => {
                    let ended = self.sender.dropped(from, address);
                    self.ended(ended);
                }
                Ok(Message::Eager { .. }) | Err(_) => {}
            }
        }
        self.pump(fabric, &mut port);
        while work < 2 * budget {
            let Some(notification) = port.notification(fabric)? else {
                break;
            };
            work += 1;
            self.notifications += 1;
            if let Ok(completion) = Completion::from_notification(&notification) {
                self.notified(completion)?;
            }
        }
        self.port = Some(port);
        self.transmit(fabric);
        Ok(work > 0)
    }

    fn announced(&mut self, fabric: &Fabric, from: NodeId, a: Announcement) {
        let (len, discard) = match a.frame_len(MAX_FRAME) {
            Ok(len) => (len, false),
            Err(_) if (1..=u64::from(MAX_FRAME)).contains(&a.len) => (a.len as u32, true),
            Err(_) => return,
        };
        let now = Time(fabric.now());
        if !self.waiting.push(&now, from, a, len, discard) {
            self.reports.push(Report::Refused { from: from.0 });
        }
    }

    fn pump(&mut self, fabric: &mut Fabric, port: &mut Port) {
        let now = Time(fabric.now());
        let mut refused = Vec::new();
        let mut fetcher = Fetcher {
            fabric,
            port,
            pool: &self.pool,
            lengths: &mut self.lengths,
            reports: &mut self.reports,
            short_of_memory: self.short_of_memory,
            twice: self.mutation == Some(Mutation::FetchTwice),
        };
        self.waiting.pump(
            &Locked(&self.fetches),
            &now,
            &mut fetcher,
            &self.limits,
            |from, _, _| refused.push(Report::Refused { from: from.0 }),
        );
        self.reports.append(&mut refused);
    }

    fn ended(&mut self, ended: Ended<Block>) {
        let (block, fetched) = match ended {
            Ended::Fetched(block) | Ended::Late(block) => (block, true),
            Ended::Failed(block, _) | Ended::Dropped(block) => (block, false),
            Ended::Unmatched => return,
        };
        self.reports.push(Report::Ended {
            address: protocol::rendezvous::Buffer::address(&block),
            fetched,
        });
    }

    fn notified(&mut self, mut c: Completion) -> Result<()> {
        if self.mutation == Some(Mutation::DeafToNotifications) && self.notifications % 3 == 0 {
            return Ok(());
        }
        if c.side == Side::Sent {
            let mut ended = self.sender.notified(&c);
            if self.mutation == Some(Mutation::AnyPeer) {
                for node in 0..8 {
                    if matches!(ended, Ended::Unmatched) {
                        c.peer = NodeId(node);
                        ended = self.sender.notified(&c);
                    }
                }
            }
            self.ended(ended);
            return Ok(());
        }
        let ended = self.fetches.borrow_mut().notified(&c);
        match ended {
            Fetched::Frame(block, from) => {
                let address = protocol::rendezvous::Buffer::address(&block);
                let len = self.lengths.iter().find(|(at, _)| *at == address);
                let mut data = vec![0; len.map_or(0, |(_, len)| *len as usize)];
                block.load(&mut data)?;
                self.reports.push(Report::Delivered { from: from.0, data });
            }
            Fetched::Discarded => self.reports.push(Report::Refused { from: c.peer.0 }),
            Fetched::Failed(..) | Fetched::Late(_) | Fetched::Unmatched => {}
        }
        Ok(())
    }

    /// Housekeeping; `now` may be a moment old.
    pub fn tick(&mut self, fabric: &mut Fabric, now: u64) {
        if self.port.is_some() {
            self.sender.age(&Time(now), &self.limits, |_| {}, drop);
            self.fetches
                .borrow_mut()
                .age(&Time(now), &self.limits, drop);
            self.transmit(fabric);
        }
        while self.held.front().is_some_and(|(until, _)| *until <= now) {
            self.held.pop_front();
        }
    }

    /// Whether nothing is pending: no frame, no announcement, no memory held.
    pub fn is_idle(&self) -> bool {
        let fetches = self.fetches.borrow().is_empty();
        self.queue.is_empty()
            && self.sender.is_empty()
            && self.waiting.is_empty()
            && fetches
            && self.held.is_empty()
    }

    /// Whether frames or announcements are waited for.
    pub fn is_quiet(&self) -> bool {
        let fetches = self.fetches.borrow().is_idle();
        self.queue.is_empty() && self.sender.active() == 0 && self.waiting.is_empty() && fetches
    }

    /// Checks what must hold for the machine at any time.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&mut self) -> Result<(), String> {
        let place = |what: &str| format!("node {}: {what}", self.nic);
        self.sender.check().map_err(place)?;
        self.fetches.borrow_mut().check().map_err(place)?;
        if self.mutation.is_none() && self.sender.active() > self.limits.flight {
            return Err(place("more frames in flight than allowed"));
        }
        Ok(())
    }

    /// Transitions of both machines.
    pub fn transitions(&self) -> String {
        format!("{}{}", self.sender.counts(), self.fetches.borrow().counts())
    }
}
