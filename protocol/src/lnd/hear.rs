// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Dispatch of received messages.

use super::tables::{Lnd, Ticket};
use crate::{base::arena::Index, Memory, Time};
use wire::{
    ids::NodeId,
    lnd::{Message, Notes, What},
};

/// Destination of received payload in the buffer of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
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
    pub fn take(&mut self, node: NodeId, message: &Message, sent: Time, now: Time) -> Option<Part> {
        let (key, len) = match message {
            Message::Hello(hello) => {
                self.take_hello(node, hello, now);
                return None;
            }
            Message::Welcome(welcome) => {
                self.take_welcome(node, welcome, sent, now);
                return None;
            }
            Message::Stale(key) => {
                self.take_stale(node, *key, now);
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
        self.heard(peer, sent, now);
        let part = match message {
            Message::Request(request) => self.take_request(peer, request, now).map(|at| (at, 0)),
            Message::Fragment(fragment) => self.take_fragment(peer, fragment),
            Message::Notes(_, notes) => {
                self.take_notes(peer, notes, now);
                None
            }
            _ => None,
        };
        let (at, offset) = part.filter(|_| len > 0)?;
        Some(Part {
            of: self.receive_ticket(at)?,
            at: offset,
            len,
        })
    }

    fn take_notes(&mut self, peer: Index, notes: &Notes, now: Time) {
        for note in notes.as_slice() {
            let place = note.place;
            match note.what {
                What::Ask => self.take_ask(peer, place),
                What::Cancel => self.take_cancel(peer, place, now),
                What::Ping => {
                    if let Some(p) = self.peers.get_mut(peer) {
                        p.say.pong = true;
                    }
                    self.want_work(peer);
                }
                What::Pong => {}
                What::Answer(_) | What::Working | What::Missing => {
                    let Some(at) = self.user(peer, place) else {
                        self.counters.odd += 1;
                        continue;
                    };
                    match note.what {
                        What::Answer(verdict) => self.answered(at, verdict, now),
                        What::Missing => self.missing(at),
                        _ => {}
                    }
                }
            }
        }
    }
}
