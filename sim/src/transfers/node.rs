//! A node with the transfers of `protocol::transfer`, driven like by the engine of `extoll.ko`.

use super::{Mutation, CAPACITY, LIMITS};
use crate::fabric::Fabric;
use crate::memory::{Block, Pool};
use crate::port::Port;
use crate::Heap;
use anyhow::Result;
use protocol::transfer::{
    self, Done, Failure, Fragment, Limits, Lock, Queue, Quiet, SubmitError, Terms, Ticket,
    TransferKind, Transfers,
};
use protocol::{Time, TransportError};
use wire::eth::VPID;
use wire::ids::NodeId;
use wire::rma::{
    Command, Descriptor, Mode, Notification, NotificationType, Operation, PageOptions,
    RequesterAddr,
};

/// Report to the owner of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Number of the transfer.
    pub id: u64,
    /// Outcome.
    pub outcome: Option<Result<Done, Failure>>,
    /// Reason why the transfer became quiet.
    pub quiet: Option<Quiet>,
}

/// Posts to the port of a node.
struct Poster<'a> {
    port: &'a mut Port,
    fabric: &'a mut Fabric,
    /// Forged answers of lock operations that are not posted.
    hasty: Option<&'a mut Vec<Notification>>,
}

impl transfer::Port for Poster<'_> {
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), TransportError> {
        if let (Operation::Lock { number, add: 0, .. }, Some(hasty)) =
            (descriptor.op, &mut self.hasty)
        {
            hasty.push(Notification {
                word0: u64::from(number),
                size_field: 0,
                vpid: descriptor.vpid,
                node: descriptor.node,
                kind: NotificationType::Completer,
                command: Command::LockResponse,
                mode: Mode::default(),
                error: 0,
            });
            return Ok(());
        }
        let page = RequesterAddr::page(VPID, page);
        self.port.command(self.fabric, page, descriptor)
    }
}

/// A node.
pub struct Node {
    nic: usize,
    port: Option<Port>,
    table: Transfers<Heap, u64>,
    /// Buffers of the node.
    pub pool: Pool,
    mutation: Option<Mutation>,
    taken: u64,
    /// Notifications that belong to no transfer.
    pub unclaimed: Vec<Notification>,
    /// Reports that the rig has not processed yet.
    pub reports: Vec<Report>,
}

fn table(mutation: Option<Mutation>) -> Transfers<Heap, u64> {
    let absorb = match mutation {
        Some(Mutation::NoAbsorb) => 0,
        _ => LIMITS.absorb,
    };
    let window = match mutation {
        Some(Mutation::NoWindow) => CAPACITY.commands,
        _ => LIMITS.window,
    };
    let node_fragments = match mutation {
        Some(Mutation::NoWindow) => CAPACITY.fragments,
        _ => LIMITS.node_fragments,
    };
    let limits = Limits {
        absorb,
        window,
        node_fragments,
        ..LIMITS
    };
    match Transfers::new(&CAPACITY, &limits) {
        Ok(table) => table,
        Err(e) => match e {},
    }
}

impl Node {
    /// Creates a node without a port.
    ///
    /// # Errors
    ///
    /// Fails if its memory is not accessible.
    pub fn new(
        fabric: &Fabric,
        nic: usize,
        blocks: usize,
        mutation: Option<Mutation>,
    ) -> Result<Self> {
        Ok(Self {
            nic,
            port: None,
            table: table(mutation),
            pool: Pool::new(fabric, nic, blocks),
            mutation,
            taken: 0,
            unclaimed: Vec::new(),
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
        Ok(())
    }

    /// Closes the engine and the port.
    pub fn down(&mut self, fabric: &mut Fabric) {
        let now = Time(fabric.now());
        self.table.close(Quiet::Closed, now, usize::MAX);
        self.report();
        if let Some(port) = self.port.take() {
            port.close(fabric);
        }
        self.table = table(self.mutation);
    }

    /// Returns true if the port is open.
    pub fn is_up(&self) -> bool {
        self.port.is_some()
    }

    /// Returns true if the node has no unfinished transfers.
    pub fn is_idle(&self) -> bool {
        self.table.is_empty()
    }

    /// Submits a transfer.
    ///
    /// # Errors
    ///
    /// Returns the reason for the rejection.
    pub fn submit(
        &mut self,
        fabric: &mut Fabric,
        terms: &Terms,
        kind: TransferKind,
        lists: [&[Fragment]; 2],
        id: u64,
    ) -> Result<Ticket, SubmitError> {
        let [local, remote] = lists.map(|l| l.iter().copied());
        let taken = self.table.submit(terms, kind, local, remote, id);
        self.post(fabric);
        taken.map_err(|(cause, _)| cause)
    }

    /// Submits a lock operation.
    ///
    /// # Errors
    ///
    /// Returns the reason for the rejection.
    pub fn lock(
        &mut self,
        fabric: &mut Fabric,
        terms: &Terms,
        lock: Lock,
        id: u64,
    ) -> Result<Ticket, SubmitError> {
        let taken = self.table.submit_lock(terms, lock, id);
        self.post(fabric);
        taken.map_err(|(cause, _)| cause)
    }

    /// Cancels a transfer.
    pub fn cancel(&mut self, fabric: &Fabric, ticket: Ticket) -> bool {
        self.table.cancel(ticket, Time(fabric.now()))
    }

    /// Gives up a peer.
    pub fn abort(&mut self, fabric: &Fabric, node: usize) {
        let mark = self.table.mark();
        let now = Time(fabric.now());
        let node = Port::node_id(node);
        while self.table.abort(node, mark, now, 3) {}
    }

    fn post(&mut self, fabric: &mut Fabric) {
        let now = Time(fabric.now());
        let mut answers = Vec::new();
        if let Some(port) = &mut self.port {
            let hasty = self.mutation == Some(Mutation::HastyFence);
            let mut poster = Poster {
                port,
                fabric,
                hasty: hasty.then_some(&mut answers),
            };
            while self.table.post(&mut poster, now, 8).more {}
        }
        for n in answers {
            self.table.process_notification(&n);
        }
    }

    /// Processes notifications, ends overdue transfers, posts commands and reports to owners.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be read.
    pub fn poll(&mut self, fabric: &mut Fabric) -> Result<()> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        // The requester may have dropped commands, or have credits again.
        port.overlooked(fabric);
        while let Some(mut n) = port.notification(fabric)? {
            self.taken += 1;
            match self.mutation {
                Some(Mutation::Deaf) if self.taken % 23 == 0 => continue,
                Some(Mutation::OtherNode) if self.taken % 11 == 0 => {
                    n.node = NodeId((n.node.0 + 1) % 3);
                }
                _ => {}
            }
            if !self.table.process_notification(&n) {
                self.unclaimed.push(n);
            }
        }
        let now = Time(fabric.now());
        if self.mutation != Some(Mutation::NoTimer) {
            while self.table.expire(now, 4) {}
        }
        self.post(fabric);
        self.report();
        Ok(())
    }

    fn report(&mut self) {
        for queue in [Queue::Deferred, Queue::Direct] {
            while let Some(e) = self.table.next_event(queue) {
                self.reports.push(Report {
                    id: e.token,
                    outcome: e.outcome,
                    quiet: e.quiet,
                });
                if e.quiet.is_none() {
                    self.table.report_done(e.ticket);
                }
            }
        }
    }

    /// Checks the invariants of the state machine.
    ///
    /// # Errors
    ///
    /// Returns the violated invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.mutation == Some(Mutation::NoWindow) {
            return Ok(());
        }
        self.table.check()
    }

    /// Returns the counters.
    pub fn counters(&self) -> transfer::Counters {
        *self.table.counters()
    }

    /// Returns a block of memory.
    pub fn block(&self) -> Option<Block> {
        self.pool.take()
    }
}
