// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Dispatch of received messages.

use super::tables::{Lnd, Ticket};
use crate::{base::arena::Index, Memory, Time};
use wire::{
    ids::NodeId,
    lnd::{Message, NoteKind, Notes},
};

/// Destination of received payload in the buffer of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadTarget {
    /// Message whose buffer is the destination.
    pub of: Ticket,
    /// Offset in the buffer.
    pub at: u16,
    /// Number of bytes.
    pub len: u16,
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Processes a message that a node sent from [`wire::lnd::VPID`]. `sent` is a lower bound of
    /// the time at which it was sent (see [`AgeBound`](crate::base::age_bound::AgeBound)). Returns
    /// the destination of its payload, which the driver must copy before the next call of this
    /// object.
    pub fn receive_message(
        &mut self,
        node: NodeId,
        message: &Message,
        sent: Time,
        now: Time,
    ) -> Option<PayloadTarget> {
        let (key, len) = match message {
            Message::Hello(hello) => {
                self.on_hello(node, hello, now);
                return None;
            }
            Message::Welcome(welcome) => {
                self.on_welcome(node, welcome, sent, now);
                return None;
            }
            Message::Stale(key) => {
                self.on_stale(node, *key, now);
                return None;
            }
            Message::Request(request) => (request.key, message.data_len()),
            Message::Fragment(fragment) => (fragment.key, fragment.len),
            Message::Notes(key, _) => (*key, 0),
        };
        let Some(peer) = self.session(node, key, sent, now) else {
            self.counters.strays += 1;
            return None;
        };
        self.session_message(peer, sent, now);
        let part = match message {
            Message::Request(request) => self.on_request(peer, request, now).map(|at| (at, 0)),
            Message::Fragment(fragment) => self.on_fragment(peer, fragment),
            Message::Notes(_, notes) => {
                self.on_notes(peer, notes, now);
                None
            }
            _ => None,
        };
        let (at, offset) = part.filter(|_| len > 0)?;
        Some(PayloadTarget {
            of: self.receive_ticket(at)?,
            at: offset,
            len,
        })
    }

    fn on_notes(&mut self, peer: Index, notes: &Notes, now: Time) {
        for note in notes.as_slice() {
            let id = note.id;
            match note.kind {
                NoteKind::Ask => self.on_ask(peer, id),
                NoteKind::Cancel => self.on_cancel(peer, id, now),
                NoteKind::Ping => {
                    if let Some(p) = self.peers.get_mut(peer) {
                        p.pending_control.pong = true;
                    }
                    self.queue_peer(peer);
                }
                NoteKind::Pong => {}
                NoteKind::Answer(_) | NoteKind::Working | NoteKind::Missing => {
                    let Some(at) = self.request_at(peer, id) else {
                        self.counters.odd += 1;
                        continue;
                    };
                    match note.kind {
                        NoteKind::Answer(verdict) => self.answered(at, verdict, now),
                        NoteKind::Missing => self.missing(at),
                        _ => {}
                    }
                }
            }
        }
    }
}
