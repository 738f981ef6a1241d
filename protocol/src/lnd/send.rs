// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages to peers, from their submission to the release of their address ([`SendState`]).

use super::tables::{Lnd, PeerList, Send, SendPending, Ticket};
use super::{Cause, Outcome, PeerState, SendEvent, SendState};
use crate::{base::arena::Index, Memory, Time};
use wire::{
    ids::NodeId,
    lnd::{fragments, Form, Header, NoteKind, RequestId, Source, Verdict, MAX_PAYLOAD},
};

/// Maximum time between two attempts to send a request to a busy peer, as a multiple of
/// [`Limits::busy`](super::Limits::busy).
const MAX_BUSY_FACTOR: u64 = 16;

/// LNet message to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingMessage {
    /// Form of the header.
    pub form: Form,
    /// LNet header.
    pub header: Header,
    /// Number of payload bytes.
    pub len: u32,
    /// Location from which the peer fetches the payload; `None` if the payload is sent in messages.
    pub source: Option<Source>,
}

/// Reason for which [`Lnd::submit`] refuses a message. A refused message leaves no state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SubmitError {
    /// The payload is too long, or payload to fetch is empty.
    Invalid,
    /// The table of messages is full.
    Full,
    /// The table of peers is full.
    Peers,
    /// The peer is down, or too many of its messages are `Resting` and keep their addresses.
    Unreachable,
    /// The interface is being closed.
    Closing,
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Accepts a message, which [`Lnd::pump`] sends later. If the message is not finished at
    /// `deadline`, its memory is revoked.
    ///
    /// # Errors
    ///
    /// Returns the reason for the refusal, and the token.
    pub fn submit(
        &mut self,
        node: NodeId,
        message: &OutgoingMessage,
        deadline: Time,
        token: T,
        now: Time,
    ) -> Result<Ticket, (SubmitError, T)> {
        let refuse = |lnd: &mut Self, cause, token| {
            lnd.counters.refused += 1;
            Err((cause, token))
        };
        let parts = match message.source {
            Some(_) if message.len == 0 || message.len > MAX_PAYLOAD => None,
            Some(_) => Some(1),
            None => fragments(message.form, message.len).map(|n| n + 1),
        };
        let Some(parts) = parts else {
            return refuse(self, SubmitError::Invalid, token);
        };
        if self.closing {
            return refuse(self, SubmitError::Closing, token);
        }
        if self.sends.room() == 0 {
            return refuse(self, SubmitError::Full, token);
        }
        let Some(peer) = self.find_or_create(node, now) else {
            return refuse(self, SubmitError::Peers, token);
        };
        // A peer with a pending session is alive.
        let down = self.peers.get(peer).is_some_and(|p| {
            p.state == PeerState::Down && p.next.is_some_and(|t| t > now) && p.pending.is_none()
        });
        if down || message.source.is_some() && self.is_unsteady(peer) {
            return refuse(self, SubmitError::Unreachable, token);
        }
        let send = Send {
            token,
            peer,
            state: SendState::Queued,
            list: None,
            form: message.form,
            header: message.header,
            len: message.len,
            source: message.source,
            deadline,
            slot: None,
            part: 0,
            parts,
            part_sent: false,
            next: Time(u64::MAX),
            interval: 0,
            busy: self.limits.busy.max(1),
            first_part_only: false,
            asked: false,
            outcome: None,
            pending: SendPending::default(),
            queued: false,
        };
        let (at, name) = match self.sends.insert(send) {
            Ok(both) => both,
            Err(send) => return refuse(self, SubmitError::Full, send.token),
        };
        self.counters.sends += 1;
        if let Some(p) = self.peers.get_mut(peer) {
            p.users += 1;
        }
        self.send_times.set(at.index(), deadline);
        self.move_send(at, Some(PeerList::Queue));
        self.start_greeting(peer, now);
        Ok(Ticket(at, name))
    }

    /// Assigns free slots to queued messages of a peer.
    pub(super) fn start_sends(&mut self, peer: Index) {
        while let Some(at) = self.startable(peer) {
            let Some(slot) = self.assign_slot(peer, at) else {
                return;
            };
            let interval = self.limits.ask;
            if let Some(send) = self.sends.get_mut(at) {
                send.slot = Some(slot);
                send.part = 0;
                send.interval = interval;
            }
            self.step_send(at, SendEvent::Start);
            self.move_send(at, Some(PeerList::Transmit));
        }
    }

    fn startable(&self, peer: Index) -> Option<Index> {
        let p = self.peers.get(peer)?;
        let free = p.state == PeerState::Up && p.used < p.slots;
        p.queue.first().filter(|_| free && !self.is_unsteady(peer))
    }

    /// Returns true if a peer has the maximum number of messages in state `Resting`, because its
    /// sessions have ended repeatedly. More such messages would occupy the entries of other peers.
    fn is_unsteady(&self, peer: Index) -> bool {
        let most = 2 * u32::from(self.slots);
        self.peers.get(peer).is_some_and(|p| p.resting >= most)
    }

    /// Assigns the next free slot after the slot that was assigned last.
    fn assign_slot(&mut self, peer: Index, at: Index) -> Option<u8> {
        let (slots, last) = self.peers.get(peer).map(|p| (p.slots, p.last_slot))?;
        for i in 1..=slots {
            let number = (last + i) % slots;
            let Some(slot) = self.out_slot(peer, number as u8) else {
                continue;
            };
            if slot.user.is_none() {
                slot.user = Some(at);
                slot.seq = slot.seq.wrapping_add(1);
                slot.pending_note = None;
                let p = self.peers.get_mut(peer)?;
                p.last_slot = number;
                p.used += 1;
                return Some(number as u8);
            }
        }
        None
    }

    fn free_slot(&mut self, at: Index) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        let (peer, Some(number)) = (send.peer, send.slot.take()) else {
            return;
        };
        if let Some(slot) = self.out_slot(peer, number) {
            slot.user = None;
            slot.pending_note = None;
        }
        if let Some(p) = self.peers.get_mut(peer) {
            p.used = p.used.saturating_sub(1);
        }
        self.queue_peer(peer);
    }

    /// Returns the slot and number of a message in the session.
    pub(super) fn request_id(&mut self, at: Index) -> Option<RequestId> {
        let send = self.sends.get(at)?;
        let (peer, slot) = (send.peer, send.slot?);
        let seq = self.out_slot(peer, slot)?.seq;
        Some(RequestId { slot, seq })
    }

    /// Records that a part of a message was sent.
    pub(super) fn part_sent(&mut self, at: Index, now: Time) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        send.part_sent = true;
        send.part += 1;
        let more = send.part < send.parts;
        if more && !send.first_part_only {
            return;
        }
        send.next = now.after(send.interval);
        send.asked |= more;
        let time = send.next.min(send.deadline);
        self.step_send(at, SendEvent::Sent);
        self.move_send(at, None);
        self.send_times.set(at.index(), time);
        if more {
            // Ask the peer before sending the remaining parts. Its answer shows if it has a free
            // entry for the request.
            self.queue_note(at, NoteKind::Ask);
        }
    }

    /// Processes the peer's answer to a request.
    pub(super) fn answered(&mut self, at: Index, verdict: Verdict, now: Time) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        let outcome = match verdict {
            Verdict::Done => Outcome::Delivered,
            Verdict::Busy => Outcome::NotDelivered(Cause::Busy),
            Verdict::Refused => Outcome::NotDelivered(Cause::Refused),
            Verdict::Cancelled => Outcome::NotDelivered(Cause::Cancelled),
            Verdict::Failed => Outcome::Failed,
        };
        let state = send.state;
        match state {
            SendState::Sending | SendState::Waiting if verdict == Verdict::Busy => {
                self.counters.peer_busy += 1;
                self.retry_later(at, now);
            }
            SendState::Sending | SendState::Waiting => {
                self.free_slot(at);
                self.end_send(at, SendEvent::Answer, outcome);
            }
            SendState::Closing => {
                // The late answer replaces an unknown result.
                if matches!(send.outcome, Some(Outcome::Unknown(_))) {
                    send.outcome = Some(outcome);
                }
                self.free_slot(at);
            }
            SendState::Resting => {
                self.free_slot(at);
                self.release_send(at);
            }
            SendState::Queued | SendState::Finished => {}
        }
    }

    /// Queues a message for another attempt after `BUSY`.
    fn retry_later(&mut self, at: Index, now: Time) {
        self.free_slot(at);
        self.step_send(at, SendEvent::Later);
        self.move_send(at, Some(PeerList::Later));
        let most = self.limits.busy.saturating_mul(MAX_BUSY_FACTOR).max(1);
        if let Some(send) = self.sends.get_mut(at) {
            (send.part_sent, send.first_part_only, send.asked) = (false, true, false);
            send.next = now.after(send.busy);
            send.busy = send.busy.saturating_mul(2).min(most);
            let time = send.next.min(send.deadline);
            self.send_times.set(at.index(), time);
        }
    }

    /// Repeats a request of which the peer reported a missing part. The request is repeated at most
    /// once per question, even if the peer reports the missing part several times.
    pub(super) fn missing(&mut self, at: Index) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        if !core::mem::take(&mut send.asked) {
            self.counters.odd += 1;
            return;
        }
        match send.state {
            SendState::Waiting => {
                (send.part, send.first_part_only) = (0, false);
                let deadline = send.deadline;
                self.counters.again += 1;
                self.step_send(at, SendEvent::Again);
                self.send_times.set(at.index(), deadline);
                self.move_send(at, Some(PeerList::Transmit));
            }
            // Repeat the `CANCEL`, because it or the request may be lost.
            SendState::Closing | SendState::Resting => self.queue_note(at, NoteKind::Cancel),
            _ => {}
        }
    }

    fn queue_note(&mut self, at: Index, kind: NoteKind) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        let (peer, Some(number)) = (send.peer, send.slot) else {
            return;
        };
        if let Some(slot) = self.out_slot(peer, number) {
            slot.pending_note = Some(kind);
        }
        self.queue_notes(peer);
    }

    /// Ends a message without an answer.
    pub(super) fn close_send(&mut self, at: Index, outcome: Outcome, now: Time) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        if send.slot.is_some() && !send.part_sent {
            self.unused_slot(at);
        }
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        if send.slot.is_some() {
            send.interval = self.limits.ask;
            send.next = now.after(send.interval);
        }
        self.end_send(at, SendEvent::GiveUp, outcome);
        self.queue_note(at, NoteKind::Cancel);
    }

    /// Frees the slot and the number of a request that was never sent.
    fn unused_slot(&mut self, at: Index) {
        let used = self.sends.get(at).and_then(|s| Some((s.peer, s.slot?)));
        if let Some((peer, number)) = used {
            if let Some(slot) = self.out_slot(peer, number) {
                slot.seq = slot.seq.wrapping_sub(1);
            }
            self.free_slot(at);
        }
    }

    fn end_send(&mut self, at: Index, step: SendEvent, outcome: Outcome) {
        if !self.step_send(at, step) {
            return;
        }
        self.move_send(at, None);
        self.send_times.clear(at.index());
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        send.outcome = Some(outcome);
        if send.source.is_some() {
            send.pending.revoke = true;
            self.list_send(at);
        } else {
            self.memory_revoked(at);
        }
    }

    /// Records that the exposed memory of a message is revoked. Its address stays reserved until
    /// [`Event::Released`](super::Event::Released).
    pub fn revoked(&mut self, ticket: Ticket) {
        let at = self.sends.find(ticket.1);
        let at = at.filter(|at| self.sends.get(*at).is_some_and(|s| !s.pending.revoke));
        if let Some(at) = at {
            self.memory_revoked(at);
        }
    }

    fn memory_revoked(&mut self, at: Index) {
        let Some(send) = self.sends.get(at) else {
            return;
        };
        // A message that was sent, but has no slot any more, has lost its session.
        let ended = send.slot.is_none() && matches!(send.outcome, Some(Outcome::Unknown(_)));
        let exposed = send.source.is_some();
        let rest = send.slot.is_some() || ended && exposed;
        let step = if rest {
            SendEvent::Rest
        } else {
            SendEvent::Close
        };
        if !self.step_send(at, step) {
            return;
        }
        let c = &mut self.counters;
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        let count = match send.outcome {
            Some(Outcome::Delivered) => &mut c.delivered,
            Some(Outcome::NotDelivered(_)) => &mut c.not_delivered,
            Some(Outcome::Failed) => &mut c.failed,
            Some(Outcome::Unknown(_)) | None => &mut c.unknown,
        };
        *count += 1;
        send.pending.sent = true;
        send.pending.released = exposed && !rest;
        let (peer, next) = (send.peer, send.next);
        self.list_send(at);
        if rest {
            self.send_times.set(at.index(), next);
            if let Some(p) = self.peers.get_mut(peer) {
                p.resting += 1;
            }
        }
    }

    /// Releases a message whose address the peer cannot use any more.
    pub(super) fn release_send(&mut self, at: Index) {
        if !self.step_send(at, SendEvent::Release) {
            return;
        }
        self.send_times.clear(at.index());
        if let Some(peer) = self.sends.get(at).map(|s| s.peer) {
            if let Some(p) = self.peers.get_mut(peer) {
                p.resting = p.resting.saturating_sub(1);
            }
            self.queue_peer(peer);
        }
        if let Some(send) = self.sends.get_mut(at) {
            send.pending.released = send.source.is_some();
            if send.pending.released {
                return self.list_send(at);
            }
        }
        self.reap_send(at);
    }

    /// Handles the expired timer of a message.
    pub(super) fn expire_send(&mut self, at: Index, now: Time) {
        self.send_times.clear(at.index());
        let most = self.limits.ask_most;
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        match send.state {
            SendState::Queued | SendState::Sending | SendState::Waiting if send.deadline <= now => {
                let outcome = if send.part_sent {
                    Outcome::Unknown(Cause::TimedOut)
                } else {
                    Outcome::NotDelivered(Cause::TimedOut)
                };
                self.close_send(at, outcome, now);
            }
            SendState::Queued => {
                let (peer, deadline) = (send.peer, send.deadline);
                self.send_times.set(at.index(), deadline);
                if send.list == Some(PeerList::Later) {
                    self.move_send(at, Some(PeerList::Queue));
                    self.start_greeting(peer, now);
                }
            }
            SendState::Sending => {
                let deadline = send.deadline;
                self.send_times.set(at.index(), deadline);
            }
            SendState::Waiting | SendState::Resting if send.slot.is_some() => {
                send.interval = send.interval.saturating_mul(2).min(most).max(1);
                send.next = now.after(send.interval);
                send.asked = true;
                let (kind, time) = match send.state {
                    SendState::Waiting => (NoteKind::Ask, send.next.min(send.deadline)),
                    _ => (NoteKind::Cancel, send.next),
                };
                self.counters.asked += 1;
                self.send_times.set(at.index(), time);
                self.queue_note(at, kind);
            }
            SendState::Resting => self.release_send(at),
            _ => {}
        }
    }

    /// Ends a peer's messages without a slot.
    pub(super) fn close_queued(&mut self, peer: Index, outcome: Outcome, now: Time) {
        let first = |lnd: &Self| {
            let p = lnd.peers.get(peer)?;
            p.queue.first().or(p.later.first())
        };
        while let Some(send) = first(self) {
            self.close_send(send, outcome, now);
        }
    }
}
