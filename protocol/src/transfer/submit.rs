// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Submission of transfers.

use super::{
    fragments::{measure, Fragment},
    tables::{peer_hash, Confirmed, Job, Kind, Peer, PeerList, Ticket, Transfers, ALL, CHAIN},
    Lock, Terms, TransferKind, TransferState,
};
use crate::{
    base::arena::{Index, List},
    transfer::{LockNumbers, SubmitError},
    Memory,
};

impl<M: Memory, T> Transfers<M, T> {
    fn refuse<R>(&mut self, cause: SubmitError, token: T) -> Result<R, (SubmitError, T)> {
        let counter = match cause {
            SubmitError::Invalid => &mut self.counters.refused_invalid,
            SubmitError::Transfers => &mut self.counters.refused_transfers,
            SubmitError::Fragments => &mut self.counters.refused_fragments,
            SubmitError::Peer => &mut self.counters.refused_peer,
        };
        *counter = counter.wrapping_add(1);
        Err((cause, token))
    }

    /// Accepts a transfer between fragment lists of equal length. Each iterator is cloned and read
    /// twice. [`Transfers::post`] posts the commands.
    ///
    /// # Errors
    ///
    /// The reason, and the token.
    pub fn submit(
        &mut self,
        terms: &Terms,
        kind: TransferKind,
        local: impl Iterator<Item = Fragment> + Clone,
        remote: impl Iterator<Item = Fragment> + Clone,
        token: T,
    ) -> Result<Ticket, (SubmitError, T)> {
        let sizes = measure(local.clone()).zip(measure(remote.clone()));
        let Some(((local_count, bytes), (remote_count, others))) = sizes else {
            return self.refuse(SubmitError::Invalid, token);
        };
        if bytes != others {
            return self.refuse(SubmitError::Invalid, token);
        }
        let Some(fragments) = local_count.checked_add(remote_count) else {
            return self.refuse(SubmitError::Invalid, token);
        };
        if fragments > self.pool.room() {
            return self.refuse(SubmitError::Fragments, token);
        }
        if fragments > self.allowance(terms.node).1 {
            return self.refuse(SubmitError::Peer, token);
        }
        let peer = match self.admit(terms) {
            Ok(peer) => peer,
            Err(cause) => return self.refuse(cause, token),
        };
        let room = self.pool.room();
        let kind = Kind::Data {
            kind,
            local: self.pool.store(local),
            remote: self.pool.store(remote),
            left: bytes,
            moved: 0,
            notification_posted: false,
            confirmed: Confirmed::Unasked,
        };
        self.charge(peer, room);
        self.insert(terms, peer, kind, token)
    }

    /// Accepts a lock operation.
    ///
    /// # Errors
    ///
    /// The reason, and the token.
    pub fn submit_lock(
        &mut self,
        terms: &Terms,
        lock: Lock,
        token: T,
    ) -> Result<Ticket, (SubmitError, T)> {
        if lock.number >= 1 << 24 {
            return self.refuse(SubmitError::Invalid, token);
        }
        let peer = match self.admit(terms) {
            Ok(peer) => peer,
            Err(cause) => return self.refuse(cause, token),
        };
        let kind = Kind::Lock {
            lock,
            posted: false,
            word: 0,
        };
        self.insert(terms, peer, kind, token)
    }

    /// Returns the peer's entry if one more transfer with the peer is possible.
    fn admit(&mut self, terms: &Terms) -> Result<Index, SubmitError> {
        if self.jobs.room() == 0 {
            return Err(SubmitError::Transfers);
        }
        if !self.allowance(terms.node).0 {
            return Err(SubmitError::Peer);
        }
        self.count_transfer(terms.node)
            .map_err(|()| SubmitError::Transfers)?;
        if let Some(at) = self.find_peer(terms.node, terms.vpid) {
            return Ok(at);
        }
        let peer = Peer {
            node: terms.node,
            vpid: terms.vpid,
            lists: [List::NEW; 4],
            jobs: 0,
            flights: List::NEW,
            bytes: 0,
            late: 0,
            fences: 0,
            used: 0,
            numbers: LockNumbers::default(),
            in_turn: false,
        };
        // Cannot fail, because the table has one entry per transfer.
        let Ok((at, _)) = self.peers.insert(peer) else {
            self.uncount_transfer(terms.node);
            return Err(SubmitError::Transfers);
        };
        if let Some(bucket) = self.by_peer.of(peer_hash(terms.node, terms.vpid)) {
            self.peers.push::<CHAIN>(bucket, at);
        }
        self.peers.push::<ALL>(&mut self.all_peers, at);
        Ok(at)
    }

    fn insert(
        &mut self,
        terms: &Terms,
        peer: Index,
        kind: Kind,
        token: T,
    ) -> Result<Ticket, (SubmitError, T)> {
        self.serial += 1;
        let job = Job {
            token,
            queue: terms.queue,
            deadline: terms.deadline,
            post_by: terms.post_by,
            peer,
            class: terms.class & 3,
            translate: terms.translate,
            serial: self.serial,
            state: TransferState::Queued,
            list: None,
            kind,
            fenced: false,
            flights: 0,
            fault: None,
            outcome: None,
            quiet: None,
            queued: false,
            busy: false,
        };
        let (at, name) = match self.jobs.insert(job) {
            Ok(both) => both,
            Err(job) => return self.refuse(SubmitError::Transfers, job.token),
        };
        self.counters.submitted += 1;
        if let Some(p) = self.peers.get_mut(peer) {
            p.jobs += 1;
        }
        let first = terms
            .post_by
            .map_or(terms.deadline, |t| t.min(terms.deadline));
        self.deadlines.set(at.index(), first);
        self.move_to(at, Some(PeerList::Ready));
        self.take_turn(peer);
        Ok(Ticket(name))
    }
}
