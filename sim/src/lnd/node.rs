//! A node with a network interface of Lustre. Its reactions to the state machine are in `events`,
//! its LNet in `lnet`, its GETs in `gets`, its transmission in `transmit`.

mod events;
mod gets;
mod lnet;
mod transmit;

use super::held::Held;
use super::memory::Memory;
use super::{Mutation, Plan, LIMITS, TRANSFERS, TRANSFER_LIMITS};
use crate::fabric::Fabric;
use crate::port::Port;
use crate::Heap;
use anyhow::{ensure, Result};
use protocol::base::age_bound::AgeBound;
use protocol::lnd::{Capacity, Limits, Lnd, Outcome, OutgoingMessage, Ticket};
use protocol::transfer::{self, Transfers};
use protocol::Time;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use transmit::{descriptor, Poster, Transmit};
use wire::eth::VPID;
use wire::ids::{Nla, NodeId};
use wire::lnd::{Form, Key, Message, Source};

pub use transmit::bytes;

/// Decision of LNet about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// True if LNet accepts it.
    pub taken: bool,
    /// Number of accepted bytes.
    pub wanted: u32,
    /// Time at which LNet names the destination.
    pub at: u64,
}

/// Report of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The owner of a letter got the outcome.
    Sent(u64, Outcome),
    /// The letter's address may be reused.
    Released(u64),
    /// LNet received a message of a node and decided.
    Offered(u64, NodeId, Wish),
    /// LNet got the payload of a letter, or did not.
    Received(u64, NodeId, Option<Got>),
}

/// Data that LNet got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// Number of accepted bytes.
    pub wanted: u32,
    /// The bytes.
    pub data: Vec<u8>,
}

/// A message whose destination LNet has not named yet.
struct Waiting {
    ticket: Ticket,
    id: u64,
    from: NodeId,
    wish: Wish,
    /// Payload, if LNet holds a copy.
    kept: Option<Vec<u8>>,
}

/// A letter being sent.
struct Out {
    data: Vec<u8>,
    /// Block with the payload, and the address that maps it.
    exposed: Option<(u64, u64)>,
    done: bool,
}

/// Memory that GETs write to.
#[derive(Clone, Copy)]
struct Sink {
    id: u64,
    from: NodeId,
    block: u64,
    offset: u64,
    len: u32,
    address: u64,
    mark: u64,
    /// Time at which LNet requested the data.
    since: u64,
    /// Number of GETs that may be in flight.
    in_flight: u32,
    /// True after the block was returned.
    revoked: bool,
}

/// A revocation in progress.
#[derive(Clone, Copy)]
enum Revoking {
    Out(Ticket, u64),
    Sink(Ticket, u64),
}

/// A node.
pub struct Node {
    nic: usize,
    port: Option<Port>,
    /// State machine.
    pub lnd: Lnd<Heap, u64>,
    capacity: Capacity,
    seed: u64,
    transfers: Transfers<Heap, u64>,
    memory: Memory,
    rng: SmallRng,
    plan: Plan,
    mutation: Option<Mutation>,
    outs: HashMap<u64, Out>,
    /// Memory of GETs by number; `by_ticket` contains the number for each message.
    sinks: HashMap<u64, Sink>,
    by_ticket: HashMap<Ticket, u64>,
    sink_count: u64,
    /// Addresses that GETs may still write to, with the number of these GETs; by number of their
    /// memory.
    flying: HashMap<u64, (u64, u32)>,
    buffers: Vec<Vec<u8>>,
    wishes: Vec<Waiting>,
    revoking: Vec<(u64, Revoking)>,
    /// Messages held by the node's port.
    pub held: Held,
    /// True while no slot for GETs is free.
    pub refuses_gets: bool,
    /// Seed with which the interface is opened again after its end.
    pub reopen: Option<u64>,
    /// Number of completed GETs with holes.
    pub holes: u64,
    /// Number of invalid messages.
    pub strays: u64,
    busy: bool,
    /// Bound of the age of messages.
    age_bound: AgeBound,
    /// Last key used for each node.
    pub keys: HashMap<NodeId, Key>,
    /// Last key received from each node.
    pub received_keys: HashMap<NodeId, Key>,
    /// Reports that the rig has not processed yet.
    pub reports: Vec<Report>,
}

fn table(plan: &Plan) -> Transfers<Heap, u64> {
    let limits = transfer::Limits {
        command: plan.command,
        ..TRANSFER_LIMITS
    };
    match Transfers::new(&TRANSFERS, &limits) {
        Ok(table) => table,
        Err(e) => match e {},
    }
}

fn machine(
    capacity: &Capacity,
    plan: Plan,
    mutation: Option<Mutation>,
    random: u64,
) -> Lnd<Heap, u64> {
    let mut lnd = match Lnd::new(capacity, &limits(plan, mutation), random) {
        Ok(lnd) => lnd,
        Err(e) => match e {},
    };
    lnd.count_from(plan.numbers);
    lnd
}

fn limits(plan: Plan, mutation: Option<Mutation>) -> Limits {
    let limits = Limits {
        give_up: plan.give_up,
        ..LIMITS
    };
    match mutation {
        Some(Mutation::NeverAsk) => Limits {
            ask: 1 << 40,
            ask_most: 1 << 40,
            ..limits
        },
        _ => limits,
    }
}

impl Node {
    /// Creates a node without a port.
    ///
    /// # Errors
    ///
    /// Fails if its memory can't be written.
    pub fn new(
        fabric: &Fabric,
        nic: usize,
        capacity: Capacity,
        seed: u64,
        plan: Plan,
        mutation: Option<Mutation>,
    ) -> Result<Self> {
        Ok(Self {
            nic,
            port: None,
            lnd: machine(&capacity, plan, mutation, seed),
            capacity,
            seed,
            transfers: table(&plan),
            memory: Memory::new(fabric, nic)?,
            rng: SmallRng::seed_from_u64(seed),
            plan,
            mutation,
            outs: HashMap::new(),
            sinks: HashMap::new(),
            by_ticket: HashMap::new(),
            sink_count: 0,
            flying: HashMap::new(),
            buffers: vec![vec![0; 8192]; capacity.receives],
            wishes: Vec::new(),
            revoking: Vec::new(),
            held: Held::new(seed ^ 1),
            refuses_gets: false,
            reopen: None,
            holes: 0,
            strays: 0,
            busy: true,
            age_bound: AgeBound::default(),
            keys: HashMap::new(),
            received_keys: HashMap::new(),
            reports: Vec::new(),
        })
    }

    /// Opens the port.
    ///
    /// # Errors
    ///
    /// Fails if the NIC rejects an access.
    pub fn up(&mut self, fabric: &mut Fabric) -> Result<()> {
        self.port = Some(Port::open(fabric, self.nic)?);
        self.memory.up(fabric);
        self.age_bound.emptied(Time(fabric.now()));
        Ok(())
    }

    /// Crashes the node, which loses its state. Its memory may be reused as soon as it is back.
    ///
    /// # Errors
    ///
    /// Fails if its memory can't be written.
    pub fn crash(&mut self, fabric: &mut Fabric, seed: u64) -> Result<()> {
        if let Some(port) = self.port.take() {
            port.close(fabric);
        }
        let seed = match self.mutation {
            Some(Mutation::SameKeys) => self.seed,
            _ => seed,
        };
        let new = Self::new(
            fabric,
            self.nic,
            self.capacity,
            seed,
            self.plan,
            self.mutation,
        )?;
        let old = std::mem::replace(self, new);
        self.reports = old.reports;
        (self.holes, self.strays) = (old.holes, old.strays);
        Ok(())
    }

    /// Returns true if the port is open.
    pub fn is_up(&self) -> bool {
        self.port.is_some()
    }

    /// Closes the interface; node and port stay.
    pub fn close(&mut self, fabric: &Fabric) {
        self.lnd.close(Time(fabric.now()));
    }

    /// Opens the interface again after its end, if requested.
    fn reopen(&mut self) {
        if let Some(seed) = self.reopen.filter(|_| self.lnd.is_closed()) {
            self.lnd = machine(&self.capacity, self.plan, self.mutation, seed);
            self.seed = seed;
            self.reopen = None;
        }
    }

    /// Returns true if messages were sent or received since the last call.
    pub fn was_busy(&mut self) -> bool {
        std::mem::take(&mut self.busy)
    }

    /// Returns true if no message, transfer or revocation is active.
    pub fn is_idle(&self) -> bool {
        self.lnd.is_closed() && self.transfers.is_empty() && self.revoking.is_empty()
    }

    /// Submits a letter. Returns false without memory or a free slot.
    ///
    /// # Errors
    ///
    /// Fails if free memory was written.
    pub fn submit(
        &mut self,
        fabric: &Fabric,
        to: NodeId,
        id: u64,
        data: Vec<u8>,
        there: bool,
        deadline: u64,
    ) -> Result<bool> {
        if self.port.is_none() {
            return Ok(false);
        }
        let (mut exposed, mut source) = (None, None);
        if there {
            let Some(block) = self.memory.block(fabric)? else {
                return Ok(false);
            };
            let Some(address) = self.memory.expose(fabric, block, false)? else {
                self.memory.give_back(fabric, block)?;
                return Ok(false);
            };
            let room = super::memory::BLOCK - data.len() as u64;
            let offset = self.rng.random_range(0..=room.min(4095));
            fabric.fill(self.nic, block + offset, &data)?;
            exposed = Some((block, address));
            source = Some(Source {
                nla: Nla(address + offset),
                vpid: VPID,
            });
        }
        let mut header = [0; 12];
        header[0] = id;
        header[8] = !id;
        let message = OutgoingMessage {
            form: [Form::Nid4, Form::Nid16][(id % 2) as usize],
            header,
            len: data.len() as u32,
            source,
        };
        let now = Time(fabric.now());
        self.outs.insert(
            id,
            Out {
                data,
                exposed,
                done: false,
            },
        );
        let taken = self
            .lnd
            .submit(to, &message, Time(deadline), id, now)
            .is_ok();
        if !taken {
            self.outs.remove(&id);
            if let Some((block, address)) = exposed {
                self.memory.give_back(fabric, block)?;
                self.memory.release(address);
            }
        }
        Ok(taken)
    }

    /// Sends any message, like an attacker on the node.
    pub fn forge(&mut self, fabric: &mut Fabric, to: NodeId, tag: u8, bytes: &[u8]) {
        if let Some(port) = &mut self.port {
            let _ = port.send(fabric, descriptor(to, tag, bytes.len()), bytes);
        }
    }

    /// Processes all pending events.
    ///
    /// # Errors
    ///
    /// Fails if an invariant is violated or memory can't be accessed.
    pub fn poll(&mut self, fabric: &mut Fabric, others: u16) -> Result<()> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        // A requester that has dropped a command drops all later ones until the driver polls it.
        port.look(fabric);
        self.held.release(port, fabric);
        while let Some(m) = self.message(fabric)? {
            self.busy = true;
            let mut source = m.status.source.node;
            if self.mutation == Some(Mutation::Unsourced) && self.rng.random_bool(0.3) {
                source = NodeId((source.0 + 1) % others);
            }
            self.receive(fabric, source, m.status.tag, &m.data);
            self.age_bound.read(1);
        }
        // Messages behind a slot with a lost write count as old as that slot.
        let backlog = self.port.as_ref().map_or(0, |port| port.backlog(fabric));
        self.age_bound.count(Time(fabric.now()), backlog);
        for _ in 0..2 {
            self.transfers(fabric)?;
            self.revocations(fabric)?;
            self.wishes(fabric)?;
            let now = Time(fabric.now());
            if self.mutation != Some(Mutation::NoTimer) {
                while self.lnd.expire(now, 4) {}
            }
            self.pump(fabric);
            self.events(fabric)?;
        }
        self.pump(fabric);
        self.reopen();
        self.lnd.check().map_err(anyhow::Error::msg)
    }

    fn message(&mut self, fabric: &mut Fabric) -> Result<Option<crate::port::Message>> {
        match &mut self.port {
            Some(port) => port.message(fabric),
            None => Ok(None),
        }
    }

    fn receive(&mut self, fabric: &Fabric, source: NodeId, tag: u8, bytes: &[u8]) {
        let word = |i: usize| {
            let mut raw = [0; 8];
            for (to, from) in raw.iter_mut().zip(bytes.iter().skip(8 * i)) {
                *to = *from;
            }
            u64::from_le_bytes(raw)
        };
        let Ok(message) = Message::parse(tag, bytes.len() as u16, word) else {
            self.strays += 1;
            return;
        };
        let now = Time(fabric.now());
        if let Message::Welcome(welcome) = message {
            self.received_keys.insert(source, welcome.own.key);
        }
        let sent = match self.mutation {
            Some(Mutation::Stale) => now.after(1 << 40),
            _ => self.age_bound.since(),
        };
        if let Some(part) = self.lnd.receive_message(source, &message, sent, now) {
            let from = &bytes[usize::from(message.data_offset())..];
            let buffer = &mut self.buffers[part.of.index() as usize];
            buffer[usize::from(part.at)..][..usize::from(part.len)].copy_from_slice(from);
        }
    }

    fn pump(&mut self, fabric: &mut Fabric) {
        let Some(port) = &mut self.port else {
            return;
        };
        let now = Time(fabric.now());
        let mut transmit = Transmit {
            port,
            fabric,
            held: &mut self.held,
            outs: &self.outs,
            keys: &mut self.keys,
        };
        while self.lnd.pump(&mut transmit, now, 8) {}
    }

    /// Returns the state of the state machine as text.
    pub fn look(&self) -> String {
        let (peers, sends, receives) = self.lnd.flows();
        format!("{peers}{sends}{receives}{:?}", self.lnd.counters())
    }

    /// Checks at the end of a run that the node has released everything.
    ///
    /// # Errors
    ///
    /// Fails if a message, transfer or block is left, or free memory was written.
    pub fn check_end(&self, fabric: &Fabric) -> Result<()> {
        let nic = self.nic;
        ensure!(
            self.lnd.is_closed(),
            "node {nic} has {} messages out and {} in at the end",
            self.lnd.sends(),
            self.lnd.receives()
        );
        ensure!(self.is_idle(), "node {nic} has transfers at the end");
        ensure!(
            self.outs.is_empty() && self.sinks.is_empty() && self.wishes.is_empty(),
            "node {nic} has letters at the end"
        );
        self.memory.check_end(fabric)
    }
}
