// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages from peers, from the first part of a request to its answer ([`ReceiveState`]).

use super::tables::{InState, Lnd, PeerList, Receive, ReceivePending, Ticket};
use super::{GetFailure, PeerState, ReceiveEvent, ReceiveState};
use crate::{base::arena::Index, Memory, Time};
use wire::lnd::{fragments, Fragment, NoteKind, Payload, Request, RequestId, Verdict};

fn bit(part: u8) -> u64 {
    1u64.checked_shl(part.into()).unwrap_or(0)
}

impl ReceiveState {
    /// Returns true if a destination of GETs may be registered in this state.
    pub(super) const fn is_fetching(self) -> bool {
        matches!(self, Self::Due | Self::Fetching | Self::Closing)
    }
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Processes a `REQUEST`. Returns the message whose buffer receives the payload; `None` if the
    /// payload is not needed.
    pub(super) fn on_request(
        &mut self,
        peer: Index,
        request: &Request,
        now: Time,
    ) -> Option<Index> {
        let id = request.id;
        let slot = self.in_slot(peer, id.slot)?;
        if slot.seq == id.seq {
            match slot.state {
                InState::Active(at) => return self.add_part(at, 0),
                // The peer repeats the request, because the answer may be lost.
                InState::Answered(verdict) => self.note(peer, id.slot, NoteKind::Answer(verdict)),
                InState::Nothing => {}
            }
            self.counters.odd += 1;
            return None;
        }
        if slot.seq.wrapping_add(1) != id.seq || matches!(slot.state, InState::Active(_)) {
            self.counters.odd += 1;
            return None;
        }
        slot.seq = id.seq;
        let node = self.peers.get(peer)?.node;
        let receive = Receive {
            peer,
            node,
            state: ReceiveState::Gathering,
            list: None,
            form: request.form,
            header: request.header,
            payload: request.payload,
            slot: Some(id.slot),
            parts: 0,
            wanted: 0,
            tries: 0,
            failed: None,
            not_before: now,
            post_by: now,
            until: now,
            deadline: Time(u64::MAX),
            parsed: false,
            counted: false,
            cancelled: false,
            done: false,
            reported: false,
            pending: ReceivePending::default(),
            queued: false,
        };
        // Limit the entries of each peer, because LNet may keep messages for any time. The limit
        // leaves at least as many free entries as the peer uses.
        let most = (2 * usize::from(self.slots)).min(self.receives.room());
        let count = self.peers.get(peer).map(|p| p.receives as usize);
        let room = count.is_some_and(|count| count < most);
        let inserted = if room {
            self.receives.insert(receive).map_err(drop)
        } else {
            Err(())
        };
        match inserted {
            Ok((at, _)) => {
                if let Some(slot) = self.in_slot(peer, id.slot) {
                    slot.state = InState::Active(at);
                    slot.pending_note = None;
                }
                if let Some(p) = self.peers.get_mut(peer) {
                    p.users += 1;
                    p.receives += 1;
                }
                // Set a time-out, because the remaining parts may never arrive.
                let until = now.after(self.limits.receive);
                if let Some(r) = self.receives.get_mut(at) {
                    r.deadline = until;
                }
                self.receive_times.set(at.index(), until);
                self.add_part(at, 0)
            }
            Err(()) => {
                self.counters.busy += 1;
                self.answer(peer, id.slot, Verdict::Busy);
                None
            }
        }
    }

    /// Records a part of a request. Returns the message if the part is new.
    fn add_part(&mut self, at: Index, part: u8) -> Option<Index> {
        let receive = self.receives.get_mut(at)?;
        if receive.state != ReceiveState::Gathering || receive.parts & bit(part) != 0 {
            self.counters.odd += 1;
            return None;
        }
        receive.parts |= bit(part);
        let count = match receive.payload {
            Payload::Inline(len) => fragments(receive.form, len.into()).unwrap_or(0),
            Payload::Remote(..) => 0,
        };
        if receive.parts.count_ones() == u32::from(count) + 1 {
            receive.pending.offer = true;
            self.receive_times.clear(at.index());
            self.step_receive(at, ReceiveEvent::Complete);
            self.counters.offered += 1;
            self.list_receive(at);
        }
        Some(at)
    }

    /// Processes a `FRAGMENT`. Returns the message and the payload's offset in its buffer, if the
    /// payload is needed.
    pub(super) fn on_fragment(&mut self, peer: Index, fragment: &Fragment) -> Option<(Index, u16)> {
        let id = fragment.id;
        let slot = self.in_slot(peer, id.slot)?;
        let at = match slot.state {
            InState::Active(at) if slot.seq == id.seq => at,
            _ => {
                // The fragment arrived before its request, or after the answer.
                self.counters.odd += 1;
                return None;
            }
        };
        let receive = self.receives.get(at)?;
        let Payload::Inline(len) = receive.payload else {
            self.counters.nonsense += 1;
            return None;
        };
        let (offset, n) = wire::lnd::pieces(receive.form, len, fragment.part);
        if n != fragment.len {
            self.counters.nonsense += 1;
            return None;
        }
        Some((self.add_part(at, fragment.part)?, offset))
    }

    /// Answers the request in a slot, and stores the answer for a repeated request.
    pub(super) fn answer(&mut self, peer: Index, slot: u8, verdict: Verdict) {
        if let Some(slot) = self.in_slot(peer, slot) {
            slot.state = InState::Answered(verdict);
        }
        self.note(peer, slot, NoteKind::Answer(verdict));
    }

    pub(super) fn answer_for(&mut self, at: Index, verdict: Verdict) {
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        let peer = receive.peer;
        if let Some(slot) = receive.slot.take() {
            self.answer(peer, slot, verdict);
        }
    }

    /// Processes `ASK`.
    pub(super) fn on_ask(&mut self, peer: Index, id: RequestId) {
        let Some(slot) = self.in_slot(peer, id.slot).copied() else {
            return;
        };
        let kind = match slot.state {
            InState::Nothing | InState::Answered(_) if slot.seq.wrapping_add(1) == id.seq => {
                NoteKind::Missing
            }
            InState::Answered(verdict) if slot.seq == id.seq => NoteKind::Answer(verdict),
            InState::Active(at) if slot.seq == id.seq => {
                match self.receives.get(at).map(|r| r.state) {
                    Some(ReceiveState::Gathering) => NoteKind::Missing,
                    _ => NoteKind::Working,
                }
            }
            _ => return,
        };
        self.note(peer, id.slot, kind);
    }

    /// Processes `CANCEL`.
    pub(super) fn on_cancel(&mut self, peer: Index, id: RequestId, now: Time) {
        let Some(slot) = self.in_slot(peer, id.slot) else {
            return;
        };
        let (seq, state) = (slot.seq, slot.state);
        let at = match state {
            InState::Active(at) if seq == id.seq => at,
            InState::Answered(verdict) if seq == id.seq => {
                return self.note(peer, id.slot, NoteKind::Answer(verdict));
            }
            // The request has not arrived. Mark it as answered, so that it is ignored if it arrives
            // later.
            InState::Nothing | InState::Answered(_) if seq.wrapping_add(1) == id.seq => {
                slot.seq = id.seq;
                return self.answer(peer, id.slot, Verdict::Cancelled);
            }
            _ => return,
        };
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        let remote = matches!(receive.payload, Payload::Remote(..));
        match receive.state {
            ReceiveState::Gathering => {
                self.answer_for(at, Verdict::Cancelled);
                self.forget_receive(at, ReceiveEvent::Cancel);
            }
            ReceiveState::Offered if receive.pending.offer => {
                self.answer_for(at, Verdict::Cancelled);
                self.withdraw(at);
            }
            ReceiveState::Offered if remote && receive.parsed => {
                self.step_receive(at, ReceiveEvent::Cancel);
                self.answer_for(at, Verdict::Failed);
            }
            ReceiveState::Offered if remote => {
                receive.cancelled = true;
                self.note(peer, id.slot, NoteKind::Working);
            }
            ReceiveState::Due | ReceiveState::Fetching => self.fail_receive(at, now),
            // LNet is accepting the message.
            _ => self.note(peer, id.slot, NoteKind::Working),
        }
    }

    /// Drops an incomplete request. The peer may send it again.
    fn abandon(&mut self, at: Index) {
        let used = self
            .receives
            .get_mut(at)
            .and_then(|r| Some((r.peer, r.slot.take()?)));
        if let Some(slot) = used.and_then(|(peer, slot)| self.in_slot(peer, slot)) {
            slot.seq = slot.seq.wrapping_sub(1);
            slot.state = InState::Nothing;
            slot.pending_note = None;
        }
        self.forget_receive(at, ReceiveEvent::Cancel);
    }

    /// Requests GETs for the peer's due messages if the peer is known to be alive. Otherwise
    /// requests `PING`.
    pub(super) fn fetch_due(&mut self, peer: Index, now: Time) {
        let Some(p) = self.peers.get(peer) else {
            return;
        };
        let (alive_after, due, up) = (p.alive_after, p.due, p.state == PeerState::Up);
        let mut room = self.fetches.saturating_sub(p.fetches);
        let mut begun = 0;
        if !up {
            return;
        }
        let fresh = now.since(alive_after) < self.limits.fresh;
        let mut ask = false;
        let mut next = due.first();
        while let Some(at) = next {
            next = self.receives.after::<{ super::tables::PEER }>(at);
            let Some(receive) = self.receives.get_mut(at) else {
                break;
            };
            if now < receive.not_before || !receive.counted && room == 0 {
                continue;
            }
            // After a failed GET, post the next GET only after a later sign of life of the peer.
            if !fresh || receive.failed.is_some_and(|failed| alive_after <= failed) {
                ask = true;
                continue;
            }
            if !receive.counted {
                (room, begun) = (room - 1, begun + 1);
                receive.counted = true;
            }
            let post_by = alive_after.after(self.limits.fresh.saturating_mul(2));
            let until = now.after(self.limits.get);
            receive.post_by = post_by;
            receive.until = until.min(post_by.after(self.limits.hold));
            receive.pending.fetch = true;
            self.step_receive(at, ReceiveEvent::Post);
            self.move_receive(at, None);
            self.list_receive(at);
        }
        let Some(p) = self.peers.get_mut(peer) else {
            return;
        };
        p.fetches += begun;
        if !ask {
            // Stop the timer, because no `PING` is needed.
            return self.set_next(peer, None);
        }
        if p.next.is_some() {
            return;
        }
        p.pending_control.ping = true;
        self.set_next(peer, Some(now.after(self.limits.ask)));
        self.queue_peer(peer);
    }

    /// Processes the result of a message's GETs.
    pub fn fetched(&mut self, ticket: Ticket, result: Result<(), GetFailure>, now: Time) {
        let Some(at) = self.receive_at(ticket) else {
            return;
        };
        let (tries, pause) = (self.limits.tries, self.limits.busy.max(1));
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        if receive.state != ReceiveState::Fetching || receive.pending.fetch {
            return;
        }
        // After its deadline, a GET may have read memory that the peer had already reused.
        if result.is_ok() && now <= receive.until {
            receive.done = true;
            self.counters.fetched += 1;
            self.answer_for(at, Verdict::Done);
            self.end_receive(at, ReceiveEvent::Fetched);
            return;
        }
        if result == Err(GetFailure::NotPosted) {
            receive.not_before = now.after(pause);
        } else {
            receive.failed = Some(now);
            receive.tries = receive.tries.saturating_add(1);
        }
        let peer = receive.peer;
        let time = if receive.not_before > now {
            receive.deadline.min(receive.not_before)
        } else {
            receive.deadline
        };
        if receive.tries >= tries || receive.deadline <= now {
            return self.fail_receive(at, now);
        }
        self.counters.gets_again += 1;
        self.step_receive(at, ReceiveEvent::Fail);
        self.receive_times.set(at.index(), time);
        self.move_receive(at, Some(PeerList::Due));
        self.fetch_due(peer, now);
    }

    /// Ends a message whose payload cannot be fetched.
    pub(super) fn fail_receive(&mut self, at: Index, _now: Time) {
        self.counters.not_fetched += 1;
        self.answer_for(at, Verdict::Failed);
        self.end_receive(at, ReceiveEvent::GiveUp);
    }

    fn end_receive(&mut self, at: Index, step: ReceiveEvent) {
        if !self.step_receive(at, step) {
            return;
        }
        self.move_receive(at, None);
        self.receive_times.clear(at.index());
        if let Some(receive) = self.receives.get_mut(at) {
            receive.pending.fetch = false;
            receive.pending.revoke = true;
        }
        self.list_receive(at);
    }

    /// Records that the destination of a message's GETs is revoked, so that even late GETs cannot
    /// write to it.
    pub fn get_target_revoked(&mut self, ticket: Ticket) {
        let at = self.receive_at(ticket);
        let at = at.filter(|at| self.receives.get(*at).is_some_and(|r| !r.pending.revoke));
        if let Some(at) = at {
            if self.step_receive(at, ReceiveEvent::Close) {
                if let Some(receive) = self.receives.get_mut(at) {
                    receive.pending.received = true;
                }
                self.list_receive(at);
            }
        }
    }

    /// Ends a message with the event `step`, and drops its pending events for the driver.
    pub(super) fn forget_receive(&mut self, at: Index, step: ReceiveEvent) {
        if self.step_receive(at, step) {
            if let Some(receive) = self.receives.get_mut(at) {
                receive.pending = ReceivePending::default();
            }
            self.reap_receive(at);
        }
    }

    /// Handles the expired timer of a message.
    pub(super) fn expire_receive(&mut self, at: Index, now: Time) {
        let Some(receive) = self.receives.get(at) else {
            return;
        };
        let (peer, deadline) = (receive.peer, receive.deadline);
        if deadline <= now && receive.state == ReceiveState::Gathering {
            return self.abandon(at);
        }
        if deadline <= now {
            self.receive_times.clear(at.index());
            return self.fail_receive(at, now);
        }
        self.receive_times.set(at.index(), deadline);
        self.fetch_due(peer, now);
    }
}
