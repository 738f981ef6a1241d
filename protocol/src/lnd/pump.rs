// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transmission of messages, one work pass of a peer after the other.

use super::tables::{In, Lnd, WORK};
use super::{Outcome, PeerState, Port, Why};
use crate::{base::arena::Index, Memory, Time, TransportError};
use wire::{
    ids::NodeId,
    lnd::{pieces, Fragment, Key, Message, Note, Notes, Payload, Place, Request, What},
};

/// Maximum number of request parts of a peer in one work pass.
const TURN: usize = 8;

/// Interval of a request's parts that interrupt the receiver, besides the last one. Without these
/// interrupts, unread parts could fill a mailbox if many senders stop within a request.
const LOUD: u8 = 16;

/// Result of a work pass.
enum Turn {
    /// The peer has no more messages to send.
    Done,
    /// The peer may have more messages to send.
    More,
    /// The port has no room.
    Full,
    /// The port has failed.
    Dead,
}

impl From<TransportError> for Turn {
    fn from(refused: TransportError) -> Self {
        match refused {
            TransportError::Later => Self::Full,
            TransportError::Never => Self::Dead,
        }
    }
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Sends pending messages, about `most` at a time. Returns whether there are more; the driver
    /// then calls it again. The driver also calls it after each event, and when the port has room
    /// again.
    pub fn pump(&mut self, port: &mut impl Port<T>, now: Time, most: usize) -> bool {
        let before = self.counters.messages;
        match self.say_strays(port, most) {
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
            let turn = self.turn(peer, port, now);
            match turn {
                Turn::Done | Turn::More => {
                    self.peers.unlink::<WORK>(&mut self.work, peer);
                    if let Some(p) = self.peers.get_mut(peer) {
                        p.in_work = false;
                    }
                    if matches!(turn, Turn::More) {
                        // The peer continues after all other peers.
                        self.want_work(peer);
                    }
                }
                Turn::Full => return false,
                Turn::Dead => {
                    self.down_all(now);
                    return false;
                }
            }
        }
        !self.work.is_empty() || !self.strays.is_empty()
    }

    fn turn(&mut self, at: Index, port: &mut impl Port<T>, now: Time) -> Turn {
        if let Err(refused) = self.say(at, port, now) {
            return refused.into();
        }
        self.start_sends(at);
        for _ in 0..TURN {
            let Some(peer) = self.peers.get(at) else {
                return Turn::Done;
            };
            let Some(send) = peer.parts.first() else {
                // Questions about requests are sent after the requests.
                return match peer.say.notes && peer.state == PeerState::Up {
                    true => Turn::More,
                    false => Turn::Done,
                };
            };
            if let Err(refused) = self.say_part(at, send, port, now) {
                return refused.into();
            }
        }
        Turn::More
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

    /// Starts the wait for a message of the peer.
    fn expect(&mut self, at: Index, now: Time) {
        if let Some(peer) = self.peers.get_mut(at) {
            peer.asked.get_or_insert(now);
        }
        self.time_peer(at);
    }

    fn say(&mut self, at: Index, port: &mut impl Port<T>, now: Time) -> Result<(), TransportError> {
        let Some(peer) = self.peers.get(at) else {
            return Ok(());
        };
        let (node, say, own, theirs) = (peer.node, peer.say, peer.own, peer.theirs);
        let state = peer.state;
        if let Some(welcome) = say.welcome {
            self.send(port, node, &Message::Welcome(welcome))?;
            self.said(at, |say| say.welcome = None);
        }
        if let Some(key) = say.stale {
            self.send(port, node, &Message::Stale(key))?;
            self.said(at, |say| say.stale = None);
        }
        if say.hello && state == PeerState::Greeting {
            let hello = self.hello(own);
            self.send(port, node, &Message::Hello(hello))?;
            self.said(at, |say| say.hello = false);
        }
        if state != PeerState::Up {
            return Ok(());
        }
        let mut notes = Notes::NONE;
        let mut asks = say.ping;
        if say.ping {
            notes.push(Note::bare(What::Ping));
        }
        if say.pong {
            notes.push(Note::bare(What::Pong));
        }
        let mut last = 0;
        if say.notes {
            while self.gather(at, &mut notes, &mut last, &mut asks) {
                self.say_notes(at, port, (node, theirs), &notes)?;
                notes = Notes::NONE;
            }
        }
        if !notes.is_empty() || say.confirm {
            self.say_notes(at, port, (node, theirs), &notes)?;
        }
        self.said(at, |say| {
            (say.ping, say.pong, say.confirm, say.notes) = (false, false, false, false);
        });
        if asks {
            self.expect(at, now);
        }
        Ok(())
    }

    fn said(&mut self, at: Index, what: impl FnOnce(&mut super::tables::Say)) {
        if let Some(peer) = self.peers.get_mut(at) {
            what(&mut peer.say);
        }
    }

    /// Collects notes of the slots from `next` on. Returns whether the message is full and there
    /// may be more notes.
    fn gather(&mut self, at: Index, notes: &mut Notes, next: &mut u16, asks: &mut bool) -> bool {
        while *next < self.slots {
            let slot = *next as u8;
            // Each slot has up to two notes.
            if notes.as_slice().len() + 2 > Notes::MOST {
                return true;
            }
            if let Some(out) = self.out_slot(at, slot) {
                if let (Some(what), seq) = (out.say, out.seq) {
                    *asks = true;
                    let place = Place { slot, seq };
                    notes.push(Note { what, place });
                }
            }
            if let Some(inn) = self.in_slot(at, slot) {
                if let Some(what) = inn.say {
                    // A request of which no part has arrived has the next number.
                    let active = matches!(inn.state, In::Active(_));
                    let seq = match what {
                        What::Missing if !active => inn.seq.wrapping_add(1),
                        _ => inn.seq,
                    };
                    let place = Place { slot, seq };
                    notes.push(Note { what, place });
                }
            }
            *next += 1;
        }
        false
    }

    fn say_notes(
        &mut self,
        at: Index,
        port: &mut impl Port<T>,
        (node, key): (NodeId, Key),
        notes: &Notes,
    ) -> Result<(), TransportError> {
        self.send(port, node, &Message::Notes(key, *notes))?;
        for note in notes.as_slice() {
            self.counters.notes += 1;
            let slot = note.place.slot;
            match note.what {
                What::Ping | What::Pong => {}
                What::Ask | What::Cancel => {
                    if let Some(out) = self.out_slot(at, slot) {
                        out.say = None;
                    }
                }
                _ => {
                    if let Some(inn) = self.in_slot(at, slot) {
                        inn.say = None;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the next part of a request.
    fn say_part(
        &mut self,
        peer: Index,
        at: Index,
        port: &mut impl Port<T>,
        now: Time,
    ) -> Result<(), TransportError> {
        let p = self.peers.get(peer).map(|p| (p.node, p.theirs));
        let (Some((node, key)), Some(place)) = (p, self.place(at)) else {
            // Impossible, because such a message is not on the list.
            self.close_send(at, Outcome::NotDelivered(Why::Down), now);
            return Ok(());
        };
        let Some(send) = self.sends.get(at) else {
            return Ok(());
        };
        let last = send.part + 1 == send.parts || send.alone;
        let quiet = !last && (send.part + 1) % LOUD != 0;
        let payload = match send.source {
            Some(source) => Payload::There(send.len, source),
            None => Payload::Here(send.len as u16),
        };
        let (offset, len) = pieces(send.form, send.len as u16, send.part);
        let message = match send.part {
            0 => Message::Request(Request {
                key,
                place,
                form: send.form,
                header: send.header,
                payload,
            }),
            part => Message::Fragment(Fragment {
                key,
                place,
                part,
                len,
            }),
        };
        let data = match payload {
            Payload::Here(_) if len > 0 => Some((&send.token, offset)),
            _ => None,
        };
        port.send(node, &message, data, quiet)?;
        self.counters.messages += 1;
        self.said_part(at, now);
        Ok(())
    }
}
