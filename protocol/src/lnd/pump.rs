// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transmission of messages, one work pass of a peer after the other.

use super::tables::{InState, Lnd, WORK};
use super::{Cause, Outcome, PeerState, Port};
use crate::{base::arena::Index, Memory, Time, TransportError};
use wire::{
    ids::NodeId,
    lnd::{pieces, Fragment, Key, Message, Note, NoteKind, Notes, Payload, Request, RequestId},
};

/// Maximum number of request parts of a peer in one work pass.
const PARTS_PER_PASS: usize = 8;

/// Number of parts of a request after which a part interrupts the receiver. The last part always
/// interrupts the receiver. Without the other interrupts, unread parts could fill a mailbox if many
/// senders stop within a request.
const INTERRUPT_INTERVAL: u8 = 16;

/// Result of a work pass.
enum PassResult {
    /// The peer has no more messages to send.
    Done,
    /// The peer may have more messages to send.
    More,
    /// The port is full.
    Full,
    /// The port has failed.
    Dead,
}

impl From<TransportError> for PassResult {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Later => Self::Full,
            TransportError::Never => Self::Dead,
        }
    }
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Sends up to about `most` pending messages. Returns true if more are pending; the driver then
    /// calls this function again. The driver also calls it after each event, and when the port
    /// accepts messages again.
    pub fn pump(&mut self, port: &mut impl Port<T>, now: Time, most: usize) -> bool {
        let before = self.counters.messages;
        match self.send_replies(port, most) {
            Ok(()) => {}
            Err(TransportError::Later) => return false,
            Err(TransportError::Never) => {
                self.down_all(now);
                return false;
            }
        }
        while (self.counters.messages - before) < most as u64 {
            let Some(peer) = self.work.first() else {
                break;
            };
            let result = self.work_pass(peer, port, now);
            match result {
                PassResult::Done | PassResult::More => {
                    self.peers.unlink::<WORK>(&mut self.work, peer);
                    if let Some(p) = self.peers.get_mut(peer) {
                        p.in_work = false;
                    }
                    if matches!(result, PassResult::More) {
                        // Queue the peer again, behind all other peers.
                        self.queue_peer(peer);
                    }
                }
                PassResult::Full => return false,
                PassResult::Dead => {
                    self.down_all(now);
                    return false;
                }
            }
        }
        !self.work.is_empty() || !self.replies.is_empty()
    }

    fn work_pass(&mut self, at: Index, port: &mut impl Port<T>, now: Time) -> PassResult {
        if let Err(error) = self.send_control(at, port, now) {
            return error.into();
        }
        self.start_sends(at);
        for _ in 0..PARTS_PER_PASS {
            let Some(peer) = self.peers.get(at) else {
                return PassResult::Done;
            };
            let Some(send) = peer.parts.first() else {
                // Send notes about requests in the next work pass, after the requests.
                return if peer.pending_control.notes && peer.state == PeerState::Up {
                    PassResult::More
                } else {
                    PassResult::Done
                };
            };
            if let Err(error) = self.send_part(at, send, port, now) {
                return error.into();
            }
        }
        PassResult::More
    }

    fn send(
        &mut self,
        port: &mut impl Port<T>,
        node: NodeId,
        message: &Message,
    ) -> Result<(), TransportError> {
        port.send(node, message, None, false)?;
        self.counters.messages += 1;
        Ok(())
    }

    /// Starts the time-out for a message of the peer.
    fn expect(&mut self, at: Index, now: Time) {
        if let Some(peer) = self.peers.get_mut(at) {
            peer.asked.get_or_insert(now);
        }
        self.time_peer(at);
    }

    fn send_control(
        &mut self,
        at: Index,
        port: &mut impl Port<T>,
        now: Time,
    ) -> Result<(), TransportError> {
        let Some(peer) = self.peers.get(at) else {
            return Ok(());
        };
        let (node, control, own, theirs) = (peer.node, peer.pending_control, peer.own, peer.theirs);
        let state = peer.state;
        if let Some(welcome) = control.welcome {
            self.send(port, node, &Message::Welcome(welcome))?;
            self.control_sent(at, |control| control.welcome = None);
        }
        if let Some(key) = control.stale {
            self.send(port, node, &Message::Stale(key))?;
            self.control_sent(at, |control| control.stale = None);
        }
        if control.hello && state == PeerState::Greeting {
            let hello = self.hello(own);
            self.send(port, node, &Message::Hello(hello))?;
            self.control_sent(at, |control| control.hello = false);
        }
        if state != PeerState::Up {
            return Ok(());
        }
        let mut notes = Notes::NONE;
        let mut asks = control.ping;
        if control.ping {
            notes.push(Note::bare(NoteKind::Ping));
        }
        if control.pong {
            notes.push(Note::bare(NoteKind::Pong));
        }
        let mut last = 0;
        if control.notes {
            while self.gather(at, &mut notes, &mut last, &mut asks) {
                self.send_notes(at, port, (node, theirs), &notes)?;
                notes = Notes::NONE;
            }
        }
        if !notes.is_empty() || control.confirm {
            self.send_notes(at, port, (node, theirs), &notes)?;
        }
        self.control_sent(at, |control| {
            (control.ping, control.pong, control.confirm, control.notes) =
                (false, false, false, false);
        });
        if asks {
            self.expect(at, now);
        }
        Ok(())
    }

    fn control_sent(&mut self, at: Index, clear: impl FnOnce(&mut super::tables::PendingControl)) {
        if let Some(peer) = self.peers.get_mut(at) {
            clear(&mut peer.pending_control);
        }
    }

    /// Collects notes of the slots from `next` on. Returns true if the message is full and more
    /// notes may be pending.
    fn gather(&mut self, at: Index, notes: &mut Notes, next: &mut u16, asks: &mut bool) -> bool {
        while *next < self.slots {
            let slot = *next as u8;
            // Each slot has at most two notes.
            if notes.as_slice().len() + 2 > Notes::MAX {
                return true;
            }
            if let Some(out_slot) = self.out_slot(at, slot) {
                if let (Some(kind), seq) = (out_slot.pending_note, out_slot.seq) {
                    *asks = true;
                    let id = RequestId { slot, seq };
                    notes.push(Note { kind, id });
                }
            }
            if let Some(in_slot) = self.in_slot(at, slot) {
                if let Some(kind) = in_slot.pending_note {
                    // A request of which no part has arrived has the number after the slot's last
                    // request.
                    let active = matches!(in_slot.state, InState::Active(_));
                    let seq = match kind {
                        NoteKind::Missing if !active => in_slot.seq.wrapping_add(1),
                        _ => in_slot.seq,
                    };
                    let id = RequestId { slot, seq };
                    notes.push(Note { kind, id });
                }
            }
            *next += 1;
        }
        false
    }

    fn send_notes(
        &mut self,
        at: Index,
        port: &mut impl Port<T>,
        (node, key): (NodeId, Key),
        notes: &Notes,
    ) -> Result<(), TransportError> {
        self.send(port, node, &Message::Notes(key, *notes))?;
        for note in notes.as_slice() {
            self.counters.notes += 1;
            let slot = note.id.slot;
            match note.kind {
                NoteKind::Ping | NoteKind::Pong => {}
                NoteKind::Ask | NoteKind::Cancel => {
                    if let Some(out_slot) = self.out_slot(at, slot) {
                        out_slot.pending_note = None;
                    }
                }
                _ => {
                    if let Some(in_slot) = self.in_slot(at, slot) {
                        in_slot.pending_note = None;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the next part of a request.
    fn send_part(
        &mut self,
        peer: Index,
        at: Index,
        port: &mut impl Port<T>,
        now: Time,
    ) -> Result<(), TransportError> {
        let p = self.peers.get(peer).map(|p| (p.node, p.theirs));
        let (Some((node, key)), Some(id)) = (p, self.request_id(at)) else {
            // Unreachable, because a message without a slot is not on the list.
            self.close_send(at, Outcome::NotDelivered(Cause::Down), now);
            return Ok(());
        };
        let Some(send) = self.sends.get(at) else {
            return Ok(());
        };
        let last = send.part + 1 == send.parts || send.first_part_only;
        let quiet = !last && (send.part + 1) % INTERRUPT_INTERVAL != 0;
        let payload = match send.source {
            Some(source) => Payload::Remote(send.len, source),
            None => Payload::Inline(send.len as u16),
        };
        let (offset, len) = pieces(send.form, send.len as u16, send.part);
        let message = match send.part {
            0 => Message::Request(Request {
                key,
                id,
                form: send.form,
                header: send.header,
                payload,
            }),
            part => Message::Fragment(Fragment { key, id, part, len }),
        };
        let data = match payload {
            Payload::Inline(_) if len > 0 => Some((&send.token, offset)),
            _ => None,
        };
        port.send(node, &message, data, quiet)?;
        self.counters.messages += 1;
        self.part_sent(at, now);
        Ok(())
    }
}
