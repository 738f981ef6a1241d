// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! End of transfers, and reports to their owners.

use super::{
    tables::{PeerList, Ticket, Transfers, ALL, CHAIN, EVENTS, PEER_LIST},
    Done, Event, Failure, Queue, Quiet, TransferEvent, TransferState,
};
use crate::{base::arena::Index, Memory, Time};
use wire::ids::NodeId;

/// Lists of a peer with transfers that have no outcome.
const LIVE: [PeerList; 3] = [PeerList::Ready, PeerList::Blocked, PeerList::Waiting];

impl<M: Memory, T: Clone> Transfers<M, T> {
    /// Ends a transfer whose commands were all answered, with success or with an error.
    pub(super) fn finish(&mut self, at: Index) {
        let done = self.done(at);
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        let (step, outcome) = match job.fault {
            Some(fault) => (TransferEvent::LastAnswer, Err(Failure::Fault(fault))),
            None => (TransferEvent::Finish, Ok(done)),
        };
        self.flow.step(&mut job.state, step);
        self.set_outcome(at, outcome);
        self.set_quiet(at, Quiet::Settled);
    }

    /// Ends a transfer early, unless it has an outcome. The transfer's commands in flight become
    /// late.
    pub(super) fn give_up(&mut self, at: Index, cause: Failure, now: Time) {
        let state = self.jobs.get(at).map(|job| job.state);
        if matches!(
            state,
            None | Some(TransferState::Late | TransferState::Quiet)
        ) {
            return;
        }
        self.free_fragments(at);
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        self.flow.step(&mut job.state, TransferEvent::GiveUp);
        // A known error takes precedence over the cause of the early end.
        let cause = job.fault.map_or(cause, Failure::Fault);
        let (peer, ended, flights) = (job.peer, job.state == TransferState::Quiet, job.flights);
        self.set_outcome(at, Err(cause));
        if ended {
            self.set_quiet(at, Quiet::Settled);
        } else if flights == 0 {
            if let Some(job) = self.jobs.get_mut(at) {
                self.flow.step(&mut job.state, TransferEvent::LastAnswer);
            }
            self.set_quiet(at, Quiet::Settled);
        } else {
            self.make_late(at, peer);
            self.move_to(at, Some(PeerList::Late));
            let until = Time(now.0.saturating_add(self.limits.absorb));
            self.deadlines.set(at.index(), until);
        }
        self.unblock(peer);
    }

    /// Drops the late commands of a transfer without waiting for answers.
    fn forget(&mut self, at: Index, quiet: Quiet) {
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        if !self.flow.step(&mut job.state, TransferEvent::Forget) {
            return;
        }
        let peer = job.peer;
        let mut next = self.peers.get(peer).and_then(|p| p.flights.first());
        while let Some(flight) = next {
            next = self.flights.after::<{ super::tables::FLIGHT }>(flight);
            if self.flights.get(flight).is_some_and(|f| f.job == at) {
                self.counters.forgotten += 1;
                self.remove_flight(flight);
            }
        }
        self.set_quiet(at, quiet);
        self.unblock(peer);
    }

    /// Records the outcome of a transfer.
    fn set_outcome(&mut self, at: Index, outcome: Result<Done, Failure>) {
        let c = &mut self.counters;
        let counter = match outcome {
            Ok(_) => &mut c.done,
            Err(Failure::Fault(_)) => &mut c.faults,
            Err(Failure::TimedOut) => &mut c.timed_out,
            Err(Failure::Cancelled) => &mut c.cancelled,
            Err(Failure::PeerLost) => &mut c.peer_lost,
            Err(Failure::Down) => &mut c.down,
        };
        *counter = counter.wrapping_add(1);
        if let Some(job) = self.jobs.get_mut(at) {
            job.outcome = Some(outcome);
        }
        self.queue_report(at);
    }

    /// Records that a transfer is quiet.
    pub(super) fn set_quiet(&mut self, at: Index, quiet: Quiet) {
        self.deadlines.clear(at.index());
        self.move_to(at, None);
        if let Some(job) = self.jobs.get_mut(at) {
            job.quiet = Some(quiet);
        }
        self.queue_report(at);
    }

    /// Queues the pending report of a transfer.
    fn queue_report(&mut self, at: Index) {
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        if job.queued || job.busy || job.outcome.is_none() && job.quiet.is_none() {
            return;
        }
        job.queued = true;
        let queue = job.queue;
        let [direct, deferred] = &mut self.events;
        let list = match queue {
            Queue::Direct => direct,
            Queue::Deferred => deferred,
        };
        self.jobs.push::<EVENTS>(list, at);
    }

    /// Returns true if a queue contains a report.
    pub fn has_events(&self, queue: Queue) -> bool {
        let [direct, deferred] = &self.events;
        !match queue {
            Queue::Direct => direct,
            Queue::Deferred => deferred,
        }
        .is_empty()
    }

    /// Returns the next report for an owner. If the report has no `quiet`, the driver calls
    /// [`Transfers::report_done`] afterwards, because an owner receives one report at a time.
    pub fn next_event(&mut self, queue: Queue) -> Option<Event<T>> {
        let [direct, deferred] = &mut self.events;
        let list = match queue {
            Queue::Direct => direct,
            Queue::Deferred => deferred,
        };
        let at = self.jobs.pop::<EVENTS>(list)?;
        let ticket = Ticket(self.jobs.name(at)?);
        let job = self.jobs.get_mut(at)?;
        job.queued = false;
        let (outcome, quiet) = (job.outcome.take(), job.quiet.take());
        if quiet.is_none() {
            job.busy = true;
            let token = job.token.clone();
            return Some(Event {
                ticket,
                token,
                outcome,
                quiet,
            });
        }
        let job = self.jobs.remove(at)?;
        self.leave_peer(job.peer);
        Some(Event {
            ticket,
            token: job.token,
            outcome,
            quiet,
        })
    }

    /// Records that the owner has received the last report of [`Transfers::next_event`]. Returns
    /// true if another report to this owner is due.
    pub fn report_done(&mut self, ticket: Ticket) -> bool {
        let Some(at) = self.jobs.find(ticket.0) else {
            return false;
        };
        if let Some(job) = self.jobs.get_mut(at) {
            job.busy = false;
        }
        self.queue_report(at);
        self.jobs.get(at).is_some_and(|job| job.queued)
    }

    /// Removes one transfer from the count of its peer. Removes the peer after its last transfer.
    fn leave_peer(&mut self, at: Index) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.jobs = peer.jobs.saturating_sub(1);
        let (jobs, node, vpid) = (peer.jobs, peer.node, peer.vpid);
        self.uncount_transfer(node);
        if jobs > 0 {
            return;
        }
        let hash = super::tables::peer_hash(node, vpid);
        self.leave_turn(at);
        if let Some(bucket) = self.by_peer.of(hash) {
            self.peers.unlink::<CHAIN>(bucket, at);
        }
        self.peers.unlink::<ALL>(&mut self.all_peers, at);
        self.peers.remove(at);
    }

    /// Handles up to `most` expired deadlines. Returns true if more deadlines have expired. The
    /// driver then calls this function again.
    pub fn expire(&mut self, now: Time, most: usize) -> bool {
        for _ in 0..most {
            let due = self.deadlines.first().filter(|(at, _)| *at <= now);
            let Some((_, item)) = due else {
                return false;
            };
            let at = Index::from_index(item);
            match self.jobs.get(at).map(|job| job.state) {
                Some(TransferState::Late) => self.forget(at, Quiet::Unanswered),
                Some(TransferState::Quiet) | None => self.deadlines.clear(item),
                Some(_) => self.give_up(at, Failure::TimedOut, now),
            }
        }
        self.deadlines.first().is_some_and(|(at, _)| at <= now)
    }

    /// Ends a transfer with [`Failure::Cancelled`]. Returns false if it has an outcome already.
    /// Commands in flight may touch memory until the transfer is quiet.
    pub fn cancel(&mut self, ticket: Ticket, now: Time) -> bool {
        let Some(at) = self.jobs.find(ticket.0) else {
            return false;
        };
        let state = self.jobs.get(at).map(|job| job.state);
        if matches!(
            state,
            None | Some(TransferState::Late | TransferState::Quiet)
        ) {
            return false;
        }
        self.give_up(at, Failure::Cancelled, now);
        true
    }

    /// Returns the serial number of the last submitted transfer, which the caller passes to
    /// [`Transfers::abort`] to end all transfers submitted so far.
    pub fn mark(&self) -> u64 {
        self.serial
    }

    /// Ends up to `most` transfers with a node, on all of its VPIDs, with [`Failure::PeerLost`].
    /// Only ends transfers up to the serial number `mark`. Returns true if such transfers remain.
    /// The driver then calls this function again.
    pub fn abort(&mut self, node: NodeId, mark: u64, now: Time, most: usize) -> bool {
        let mut left = most;
        let mut next = self.all_peers.first();
        while let Some(peer) = next {
            next = self.peers.after::<ALL>(peer);
            if self.peers.get(peer).is_none_or(|p| p.node != node) {
                continue;
            }
            while let Some(at) = self.live_until(peer, mark) {
                if left == 0 {
                    return true;
                }
                left -= 1;
                self.give_up(at, Failure::PeerLost, now);
            }
        }
        false
    }

    /// Returns a transfer of a peer that has no outcome and a serial number up to `mark`.
    fn live_until(&self, peer: Index, mark: u64) -> Option<Index> {
        let peer = self.peers.get(peer)?;
        for list in LIVE {
            let mut next = peer.lists.get(list as usize).and_then(|l| l.first());
            while let Some(at) = next {
                if self.jobs.get(at)?.serial <= mark {
                    return Some(at);
                }
                next = self.jobs.after::<PEER_LIST>(at);
            }
        }
        None
    }

    /// Ends all transfers with [`Failure::Down`], without waiting for answers. Transfers with
    /// commands in flight become quiet for the reason `quiet`. Ends up to `most` transfers. Returns
    /// true if transfers remain. The driver then calls this function again.
    pub fn close(&mut self, quiet: Quiet, now: Time, most: usize) -> bool {
        let mut left = most;
        let mut next = self.all_peers.first();
        while let Some(peer) = next {
            next = self.peers.after::<ALL>(peer);
            loop {
                let late = self.peers.get(peer).and_then(|p| p.lists[3].first());
                let live = self.live_until(peer, u64::MAX);
                if live.is_none() && late.is_none() {
                    break;
                }
                if left == 0 {
                    return true;
                }
                left -= 1;
                if let Some(at) = live {
                    self.give_up(at, Failure::Down, now);
                } else if let Some(at) = late {
                    self.forget(at, quiet);
                }
            }
        }
        false
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        let (mut jobs, mut flights) = (0, 0);
        let mut next = self.all_peers.first();
        while let Some(at) = next {
            next = self.peers.after::<ALL>(at);
            let peer = self.peers.get(at).ok_or("no peer")?;
            jobs += peer.jobs;
            flights += peer.flights.len();
            let late = self.check_flights(at)?;
            if late != peer.late as usize {
                return Err("wrong number of late commands");
            }
            // Fences are allowed in addition, each with its own lock number.
            if peer.flights.len() > self.limits.window + 16 {
                return Err("too many commands of one peer in flight");
            }
            let share = self.shares.get(peer.node.0.into());
            let share = share.ok_or("no share of a node")?;
            if share.jobs < peer.jobs || share.jobs > self.limits.node.max(1) {
                return Err("wrong number of transfers of one node");
            }
            if share.fragments > self.limits.node_fragments {
                return Err("too many fragments of one node");
            }
            if !peer.in_turn && peer.flights.is_empty() && !peer.lists[0].is_empty() {
                return Err("a peer with a command to post is not in the turn list");
            }
            if !peer.lists[1].is_empty() && peer.flights.is_empty() {
                return Err("a transfer is blocked although no command is in flight");
            }
        }
        let (mut all, mut fragments) = (0, self.pool.room());
        let mut node = self.shares.oldest().map(|(key, _)| key);
        while let Some(key) = node {
            let share = self.shares.get(key).ok_or("no share")?;
            all += share.jobs;
            fragments += share.fragments;
            node = self.shares.younger(key);
        }
        match () {
            () if all != jobs => Err("wrong number of transfers of nodes"),
            () if fragments != self.pool.len() => Err("wrong number of fragments of nodes"),
            () if jobs != self.jobs.len() => Err("wrong number of transfers"),
            () if flights != self.flights.len() => Err("wrong number of commands in flight"),
            () if self.flow.impossible() != 0 => Err("an event that its state forbids"),
            () => Ok(()),
        }
    }

    /// Returns the number of a peer's late commands.
    fn check_flights(&self, peer: Index) -> Result<usize, &'static str> {
        let mut late = 0;
        let mut order = 0;
        let mut next = self.peers.get(peer).and_then(|p| p.flights.first());
        while let Some(at) = next {
            next = self.flights.after::<{ super::tables::FLIGHT }>(at);
            let flight = self.flights.get(at).ok_or("no command")?;
            let job = self.jobs.get(flight.job).ok_or("a command without job")?;
            if flight.late != (job.state == TransferState::Late) {
                return Err("a command and its transfer differ in being late");
            }
            if flight.order <= order {
                return Err("commands out of order");
            }
            order = flight.order;
            late += usize::from(flight.late);
        }
        Ok(late)
    }
}
