// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assignment of notifications to commands, and their effects.

use super::{
    tables::{flight_hash, Action, CommandInFlight, Confirmed, Kind, PeerList, Role, FLIGHT, SAME},
    Done, Quiet, TransferEvent, TransferState, Transfers,
};
use crate::{base::arena::Index, Memory};
use wire::rma::{
    last_fragment_len, Command, Fault, LockResult, LockTarget, Notification, NotificationType,
};

/// Returns the kind of command to which a notification belongs. The notification does not name the
/// unit of a lock operation.
fn kind(n: &Notification) -> Option<Action> {
    use NotificationType::{Completer, Requester};
    match (n.kind, n.command) {
        (
            Completer,
            Command::ByteGet | Command::QwGet | Command::ByteGetResponse | Command::QwGetResponse,
        ) => Some(Action::Get),
        (Requester, Command::BytePut | Command::QwPut) => Some(Action::Put),
        (Completer, Command::Lock | Command::LockResponse) => {
            Some(Action::Lock(LockTarget::Completer))
        }
        _ => None,
    }
}

impl CommandInFlight {
    fn is(&self, action: Action) -> bool {
        match action {
            Action::Lock(_) => self.is_lock(),
            _ => self.action == action,
        }
    }
}

impl<M: Memory, T: Clone> Transfers<M, T> {
    /// Processes a notification of the port. Returns false, and counts the notification, if it
    /// belongs to no command in flight. Such a notification was caused by a peer, or is too late.
    pub fn process_notification(&mut self, n: &Notification) -> bool {
        match self.find_flight(n) {
            Some(at) => self.answered(at, n),
            None => {
                self.counters.unclaimed = self.counters.unclaimed.wrapping_add(1);
                return false;
            }
        }
        true
    }

    fn find_flight(&mut self, n: &Notification) -> Option<Index> {
        let action = kind(n)?;
        let peer = self.find_peer(n.node, n.vpid)?;
        let key = match action {
            Action::Lock(_) => LockResult(n.word0).number().into(),
            _ => n.word0,
        };
        let failed = n.error != 0;
        if !failed || matches!(action, Action::Lock(_)) {
            let last = n.last_size();
            let found = self.oldest_same(peer, action, key, |f| {
                f.is_lock() || last_fragment_len(f.len) == last
            });
            // The error of a lock operation may contain no lock number.
            if found.is_some() || !failed {
                return found;
            }
        }
        // Search the commands in the order of posting.
        let mut next = self.peers.get(peer)?.flights.first();
        while let Some(at) = next {
            let f = self.flights.get(at)?;
            let inside = || n.word0.checked_sub(f.start).map(|d| d < f.len.into());
            if f.is(action) && (f.is_lock() || inside() == Some(true)) {
                return Some(at);
            }
            next = self.flights.after::<FLIGHT>(at);
        }
        None
    }

    /// Returns the oldest command with this kind and key.
    fn oldest_same(
        &mut self,
        peer: Index,
        action: Action,
        key: u64,
        also: impl Fn(&CommandInFlight) -> bool,
    ) -> Option<Index> {
        let mut found: Option<(Index, u64)> = None;
        let mut next = self.by_key.first(flight_hash(peer, action, key));
        while let Some(at) = next {
            let f = self.flights.get(at)?;
            let same = f.peer == peer && f.is(action) && f.key() == key && also(f);
            if same && found.is_none_or(|(_, order)| f.order < order) {
                found = Some((at, f.order));
            }
            next = self.flights.after::<SAME>(at);
        }
        found.map(|(at, _)| at)
    }

    fn answered(&mut self, at: Index, n: &Notification) {
        let Some(flight) = self.remove_flight(at) else {
            return;
        };
        if flight.late {
            self.counters.late += 1;
        }
        if let Action::Lock(unit) = flight.action {
            self.drop_fenced(&flight, unit);
        }
        if flight.late {
            self.finish_late(flight.job);
        } else {
            self.progress(&flight, n);
        }
        self.unblock(flight.peer);
    }

    /// Processes the answer to a command of a transfer without outcome.
    fn progress(&mut self, flight: &CommandInFlight, n: &Notification) {
        let Some(job) = self.jobs.get_mut(flight.job) else {
            return;
        };
        let fault = match flight.role {
            // Any answer proves that earlier commands were answered, even an error.
            Role::Fence => {
                job.fenced = false;
                None
            }
            _ => Fault::of(n),
        };
        match (&mut job.kind, flight.role) {
            (Kind::Data { moved, .. }, Role::Data) if fault.is_none() => {
                *moved += u64::from(flight.len);
            }
            (Kind::Data { confirmed, .. }, Role::Confirm) => *confirmed = Confirmed::Yes,
            (Kind::Lock { word, .. }, Role::Operation) => *word = n.word0,
            _ => {}
        }
        if let Some(fault) = fault {
            job.fault.get_or_insert(fault);
            if job.state == TransferState::InFlight {
                self.flow.step(&mut job.state, TransferEvent::Fault);
                self.free_fragments(flight.job);
                self.move_to(flight.job, Some(PeerList::Waiting));
            }
        }
        let Some(job) = self.jobs.get(flight.job) else {
            return;
        };
        if job.state == TransferState::Failing {
            if job.flights == 0 {
                self.finish(flight.job);
            }
        } else if self.is_finished(flight.job) {
            self.finish(flight.job);
        } else if job.list == Some(PeerList::Waiting) && self.has_next(flight.job) {
            self.move_to(flight.job, Some(PeerList::Ready));
        }
    }

    /// Drops late commands that precede an answered lock operation of the same class. `unit` has
    /// answered the lock operation, so no earlier answer of this unit can arrive any more.
    fn drop_fenced(&mut self, lock: &CommandInFlight, unit: LockTarget) {
        let Some(peer) = self.peers.get(lock.peer).filter(|p| p.late > 0) else {
            return;
        };
        let mut next = peer.flights.first();
        while let Some(at) = next {
            next = self.flights.after::<FLIGHT>(at);
            let Some(f) = self.flights.get(at).copied() else {
                return;
            };
            let reached = match f.action {
                // The local requester sends the notifications of PUTs, in the order of all
                // commands.
                Action::Put => true,
                Action::Get => unit == LockTarget::Responder,
                Action::Lock(at) => at == unit,
            };
            if f.late && reached && f.class == lock.class && f.order < lock.order {
                self.counters.passed += 1;
                self.remove_flight(at);
                self.finish_late(f.job);
            }
        }
    }

    /// Ends a late transfer without commands in flight.
    fn finish_late(&mut self, at: Index) {
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        if job.state == TransferState::Late && job.flights == 0 {
            self.flow.step(&mut job.state, TransferEvent::LastAnswer);
            self.set_quiet(at, Quiet::Settled);
        }
    }

    /// Returns the result of a transfer whose commands were all answered.
    pub(super) fn done(&self, at: Index) -> Done {
        match self.jobs.get(at).map(|job| &job.kind) {
            Some(Kind::Data { moved, .. }) => Done {
                bytes: *moved,
                word: 0,
            },
            Some(Kind::Lock { word, .. }) => Done {
                bytes: 0,
                word: *word,
            },
            None => Done::default(),
        }
    }
}
