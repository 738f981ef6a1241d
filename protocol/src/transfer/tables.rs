// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tables of transfers, peers and commands in flight.

use super::{
    fragments::{Cursor, Pool},
    Capacity, Counters, Done, Failure, Limits, Lock, Queue, Quiet, TransferKind, TransferState,
};
use crate::{
    base::{
        arena::{Arena, Buckets, Index, List, Name},
        deadlines::Deadlines,
        flow::Counts,
        slots::Slots,
    },
    transfer::LockNumbers,
    Memory, Time,
};
use wire::{
    ids::{NodeId, Vpid},
    rma::{Direction, Fault, LockTarget},
};

/// Maximum number of entries of a table.
const MAX: usize = 1 << 16;

/// ID of a transfer, which is never used for another transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub(super) Name);

/// Indices of a transfer's links, for a list of its peer and for an event queue.
pub(super) const PEER_LIST: usize = 0;
pub(super) const EVENTS: usize = 1;
/// Indices of a peer's links, for the list of peers with commands to post, a hash bucket, and the
/// list of all peers.
pub(super) const TURN: usize = 0;
pub(super) const CHAIN: usize = 1;
pub(super) const ALL: usize = 2;
/// Indices of a command's links, for the list of its peer's commands in the order of posting, and
/// for a hash bucket.
pub(super) const FLIGHT: usize = 0;
pub(super) const SAME: usize = 1;

/// List of a peer that contains a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerList {
    /// Transfers that probably have a command to post.
    Ready = 0,
    /// Transfers that wait for another command of the peer.
    Blocked = 1,
    /// Transfers that wait for answers to their own commands.
    Waiting = 2,
    /// Transfers with an outcome that wait for late answers.
    Late = 3,
}

/// Kind and progress of a transfer.
pub(super) enum Kind {
    Data {
        kind: TransferKind,
        local: Cursor,
        remote: Cursor,
        /// Number of bytes without a posted command.
        left: u64,
        /// Number of bytes of answered commands.
        moved: u64,
        /// True if the notification PUT was posted.
        notification_posted: bool,
        confirmed: Confirmed,
    },
    Lock {
        lock: Lock,
        posted: bool,
        /// Word 0 of the answer to the lock operation.
        word: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmed {
    Unasked,
    Asked,
    Yes,
}

/// Transfer or lock operation.
pub(super) struct Job<T> {
    pub(super) token: T,
    pub(super) queue: Queue,
    pub(super) deadline: Time,
    /// Time by which all commands must be posted; `None` after that.
    pub(super) post_by: Option<Time>,
    pub(super) peer: Index,
    pub(super) class: u8,
    pub(super) translate: bool,
    pub(super) serial: u64,
    pub(super) state: TransferState,
    pub(super) list: Option<PeerList>,
    pub(super) kind: Kind,
    /// True if a fence is in flight for which the transfer waits.
    pub(super) fenced: bool,
    /// Number of commands in flight.
    pub(super) flights: u32,
    pub(super) fault: Option<Fault>,
    /// Outcome, and reason for which the transfer is quiet, if the owner did not receive them yet.
    pub(super) outcome: Option<Result<Done, Failure>>,
    pub(super) quiet: Option<Quiet>,
    /// True if the transfer is in an event queue.
    pub(super) queued: bool,
    /// True while the owner is receiving a report.
    pub(super) busy: bool,
}

/// Peer with transfers.
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) vpid: Vpid,
    /// Transfers that are not quiet, by [`PeerList`].
    pub(super) lists: [List; 4],
    /// Number of transfers, including quiet transfers with a pending report.
    pub(super) jobs: usize,
    /// Commands in flight.
    pub(super) flights: List,
    /// Number of bytes of the commands in flight, number of late commands, and number of fences
    /// that are not late.
    pub(super) bytes: u64,
    pub(super) late: u32,
    pub(super) fences: u32,
    /// Bit mask of the lock numbers below 16 in flight.
    pub(super) used: u16,
    pub(super) numbers: LockNumbers,
    /// True if the peer is on the list of peers with commands to post.
    pub(super) in_turn: bool,
}

/// Resources in use by transfers with all VPIDs of a node.
#[derive(Default)]
pub(super) struct Share {
    /// Number of transfers, including quiet transfers with a pending report.
    pub(super) jobs: usize,
    /// Number of fragments in the pool.
    pub(super) fragments: usize,
}

impl Peer {
    pub(super) fn list(&mut self, list: PeerList) -> &mut List {
        let [ready, blocked, waiting, late] = &mut self.lists;
        match list {
            PeerList::Ready => ready,
            PeerList::Blocked => blocked,
            PeerList::Waiting => waiting,
            PeerList::Late => late,
        }
    }
}

/// Kind of a command, as contained in its notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Get,
    Put,
    Lock(LockTarget),
}

/// Purpose of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Transfers data.
    Data,
    /// Performs the owner's lock operation.
    Operation,
    /// Proves that a PUT has arrived.
    Confirm,
    /// Proves that no earlier answer can arrive any more.
    Fence,
}

/// Command in flight.
#[derive(Clone, Copy)]
pub(super) struct CommandInFlight {
    pub(super) job: Index,
    pub(super) peer: Index,
    pub(super) action: Action,
    pub(super) role: Role,
    /// Local address, or lock number.
    pub(super) start: u64,
    pub(super) len: u32,
    pub(super) class: u8,
    /// Serial number in the order of posting.
    pub(super) order: u64,
    /// True if the command's transfer has an outcome.
    pub(super) late: bool,
}

impl CommandInFlight {
    /// Returns the key of the command's notification, which is the address of the last fragment or
    /// the lock number.
    pub(super) fn key(&self) -> u64 {
        match self.action {
            Action::Lock(_) => self.start,
            Action::Get | Action::Put => wire::rma::last_fragment_start(self.start, self.len),
        }
    }

    pub(super) fn is_lock(&self) -> bool {
        matches!(self.action, Action::Lock(_))
    }

    /// Returns the bit of the lock number in [`Peer::used`], or 0.
    pub(super) fn number_bit(&self) -> u16 {
        match self.action {
            Action::Lock(_) if self.start < 16 => 1 << self.start,
            _ => 0,
        }
    }
}

pub(super) fn peer_hash(node: NodeId, vpid: Vpid) -> u64 {
    (u64::from(node.0) << 8) | u64::from(vpid.get())
}

pub(super) fn flight_hash(peer: Index, action: Action, key: u64) -> u64 {
    let code = match action {
        Action::Get => 0,
        Action::Put => 1,
        Action::Lock(_) => 2,
    };
    // The multiplier is odd, so that addresses which differ only in high bits have different
    // hashes.
    key.wrapping_mul(0xD6E8_FEB8_6659_FD93)
        .wrapping_add((u64::from(peer.index()) << 34) | (code << 32))
}

/// All transfers of a port, each with a token `T` of its owner. Only [`Transfers::new`] allocates
/// memory or sleeps. See [`crate::transfer`].
pub struct Transfers<M: Memory, T> {
    pub(super) limits: Limits,
    pub(super) jobs: Arena<M, Job<T>, 2>,
    pub(super) peers: Arena<M, Peer, 3>,
    /// Resources in use, by node.
    pub(super) shares: Slots<M, Share>,
    pub(super) flights: Arena<M, CommandInFlight, 2>,
    pub(super) by_peer: Buckets<M>,
    pub(super) by_key: Buckets<M>,
    pub(super) pool: Pool<M>,
    pub(super) deadlines: Deadlines<M>,
    /// Peers with commands to post, in round-robin order.
    pub(super) turns: List,
    pub(super) all_peers: List,
    pub(super) events: [List; 2],
    /// Serial numbers of the last submitted transfer (`serial`) and of the last posted command
    /// (`order`).
    pub(super) serial: u64,
    pub(super) order: u64,
    pub(super) flow: Counts<TransferState>,
    pub(super) counters: Counters,
}

impl<M: Memory, T> Transfers<M, T> {
    /// Allocates the tables. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(capacity: &Capacity, limits: &Limits) -> Result<Self, M::Error> {
        let jobs = capacity.transfers.clamp(1, MAX);
        let flights = capacity.commands.clamp(1, MAX);
        let limits = Limits {
            window: limits.window.max(1),
            command: limits.command.clamp(1, wire::rma::MAX_LEN),
            ..*limits
        };
        Ok(Self {
            limits,
            jobs: Arena::new(jobs)?,
            peers: Arena::new(jobs)?,
            shares: Slots::new(u16::try_from(jobs).unwrap_or(u16::MAX))?,
            flights: Arena::new(flights)?,
            by_peer: Buckets::new(jobs)?,
            by_key: Buckets::new(flights)?,
            pool: Pool::new(capacity.fragments)?,
            deadlines: Deadlines::new(jobs)?,
            turns: List::NEW,
            all_peers: List::NEW,
            events: [List::NEW; 2],
            serial: 0,
            order: 0,
            flow: Counts::default(),
            counters: Counters::default(),
        })
    }

    /// Returns the number of transfers that are in progress, late, or have a pending report.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns true if there are no transfers.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the number of commands in flight, including late commands.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Returns the statistics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of times that each transition of a transfer was made.
    pub fn flow(&self) -> &Counts<TransferState> {
        &self.flow
    }

    pub(super) fn find_peer(&mut self, node: NodeId, vpid: Vpid) -> Option<Index> {
        let mut next = self.by_peer.first(peer_hash(node, vpid));
        while let Some(at) = next {
            let peer = self.peers.get(at)?;
            if (peer.node, peer.vpid) == (node, vpid) {
                return Some(at);
            }
            next = self.peers.after::<CHAIN>(at);
        }
        None
    }

    /// Returns true if a node may have one more transfer, and the number of further fragments that
    /// it may have.
    pub(super) fn allowance(&self, node: NodeId) -> (bool, usize) {
        let share = self.shares.get(node.0.into());
        let (jobs, fragments) = share.map_or((0, 0), |s| (s.jobs, s.fragments));
        (
            jobs < self.limits.node.max(1),
            self.limits.node_fragments.saturating_sub(fragments),
        )
    }

    /// Adds one transfer to the count of a node.
    ///
    /// # Errors
    ///
    /// Returns an error if the table of nodes is full.
    pub(super) fn count_transfer(&mut self, node: NodeId) -> Result<(), ()> {
        let key = node.0.into();
        if self.shares.get(key).is_none() {
            self.shares.insert(key, Share::default()).map_err(|_| ())?;
        }
        if let Some(share) = self.shares.get_mut(key) {
            share.jobs += 1;
        }
        Ok(())
    }

    /// Removes one transfer, which has no fragments, from the count of a node.
    pub(super) fn uncount_transfer(&mut self, node: NodeId) {
        let key = node.0.into();
        if let Some(share) = self.shares.get_mut(key) {
            share.jobs = share.jobs.saturating_sub(1);
            if share.jobs == 0 {
                self.shares.remove(key);
            }
        }
    }

    /// Updates the fragment count of a peer's node after the number of free cells in the pool has
    /// changed from `room`.
    pub(super) fn charge(&mut self, peer: Index, room: usize) {
        let node = self.peers.get(peer).map(|p| p.node.0.into());
        if let Some(share) = node.and_then(|key| self.shares.get_mut(key)) {
            share.fragments = (share.fragments + room).saturating_sub(self.pool.room());
        }
    }

    /// Frees the fragments of a transfer that posts no more commands.
    pub(super) fn free_fragments(&mut self, at: Index) {
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        let (peer, room) = (job.peer, self.pool.room());
        if let Kind::Data { local, remote, .. } = &mut job.kind {
            self.pool.free(local);
            self.pool.free(remote);
            self.charge(peer, room);
        }
    }

    /// Moves a transfer to another list of its peer, or to no list.
    pub(super) fn move_to(&mut self, at: Index, list: Option<PeerList>) {
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        let (peer, old) = (job.peer, core::mem::replace(&mut job.list, list));
        let Some(peer) = self.peers.get_mut(peer) else {
            return;
        };
        if let Some(old) = old {
            self.jobs.unlink::<PEER_LIST>(peer.list(old), at);
        }
        if let Some(new) = list {
            self.jobs.push::<PEER_LIST>(peer.list(new), at);
        }
    }

    /// Adds a peer with ready transfers to the list of peers with commands to post.
    pub(super) fn take_turn(&mut self, at: Index) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        if !peer.in_turn && !peer.list(PeerList::Ready).is_empty() {
            peer.in_turn = true;
            self.peers.push::<TURN>(&mut self.turns, at);
        }
    }

    pub(super) fn leave_turn(&mut self, at: Index) {
        if let Some(peer) = self.peers.get_mut(at) {
            if core::mem::take(&mut peer.in_turn) {
                self.peers.unlink::<TURN>(&mut self.turns, at);
            }
        }
    }

    /// Makes the blocked transfers of a peer ready, because a command was answered or dropped.
    pub(super) fn unblock(&mut self, at: Index) {
        while let Some(job) = self
            .peers
            .get(at)
            .and_then(|p| p.lists[PeerList::Blocked as usize].first())
        {
            self.move_to(job, Some(PeerList::Ready));
        }
        self.take_turn(at);
    }

    /// Adds a posted command to the tables.
    pub(super) fn add_flight(&mut self, flight: CommandInFlight) {
        // Cannot fail, because the caller checked for a free entry before it posted the command.
        let Ok((at, _)) = self.flights.insert(flight) else {
            return;
        };
        if let Some(bucket) = self
            .by_key
            .of(flight_hash(flight.peer, flight.action, flight.key()))
        {
            self.flights.push::<SAME>(bucket, at);
        }
        if let Some(peer) = self.peers.get_mut(flight.peer) {
            self.flights.push::<FLIGHT>(&mut peer.flights, at);
            peer.bytes += u64::from(flight.len);
            peer.used |= flight.number_bit();
            peer.fences += u32::from(flight.role == Role::Fence);
        }
        if let Some(job) = self.jobs.get_mut(flight.job) {
            job.flights += 1;
        }
    }

    /// Removes a command that was answered, or whose answer is not awaited any more.
    pub(super) fn remove_flight(&mut self, at: Index) -> Option<CommandInFlight> {
        let flight = *self.flights.get(at)?;
        let hash = flight_hash(flight.peer, flight.action, flight.key());
        if let Some(bucket) = self.by_key.of(hash) {
            self.flights.unlink::<SAME>(bucket, at);
        }
        if let Some(peer) = self.peers.get_mut(flight.peer) {
            self.flights.unlink::<FLIGHT>(&mut peer.flights, at);
            peer.bytes = peer.bytes.saturating_sub(u64::from(flight.len));
            peer.used &= !flight.number_bit();
            if flight.late {
                peer.late = peer.late.saturating_sub(1);
            } else if flight.role == Role::Fence {
                peer.fences = peer.fences.saturating_sub(1);
            }
        }
        if let Some(job) = self.jobs.get_mut(flight.job) {
            job.flights = job.flights.saturating_sub(1);
        }
        self.flights.remove(at)
    }

    /// Marks the commands in flight of a transfer as late.
    pub(super) fn make_late(&mut self, job: Index, peer: Index) {
        let Some(p) = self.peers.get_mut(peer) else {
            return;
        };
        let mut next = p.flights.first();
        while let Some(at) = next {
            next = self.flights.after::<FLIGHT>(at);
            let flight = self.flights.get_mut(at);
            if let Some(flight) = flight.filter(|f| f.job == job && !f.late) {
                flight.late = true;
                p.late += 1;
                if flight.role == Role::Fence {
                    p.fences = p.fences.saturating_sub(1);
                }
            }
        }
    }

    /// Returns the number of bytes of a transfer's answered commands, for tests.
    pub fn moved(&self, ticket: Ticket) -> Option<u64> {
        match &self.jobs.get(self.jobs.find(ticket.0)?)?.kind {
            Kind::Data { moved, .. } => Some(*moved),
            Kind::Lock { .. } => None,
        }
    }

    /// Returns the time of the next call of [`Transfers::expire`].
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| at)
    }
}

impl Action {
    pub(super) fn of(direction: Direction) -> Self {
        match direction {
            Direction::Get => Action::Get,
            Direction::Put => Action::Put,
        }
    }
}
