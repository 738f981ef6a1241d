// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What is sent.

use super::tables::{In, Lnd, WORK};
use super::{Outcome, PeerState, Port, Why};
use crate::{base::arena::At, Memory, Refused, Time};
use wire::{
    ids::NodeId,
    lnd::{pieces, Fragment, Key, Message, Note, Notes, Payload, Place, Request, What},
};

/// Messages of a peer before it is another one's turn.
const TURN: usize = 8;

/// The last part of a request interrupts the receiver, and one in so many, because a mailbox must
/// not fill with parts that no interrupt tells of when many senders stop within a request.
const LOUD: u8 = 16;

/// How a turn ended.
enum Turn {
    /// There is nothing more to send.
    Done,
    /// There may be more.
    More,
    /// The port has no room.
    Full,
    /// The port is dead.
    Dead,
}

impl From<Refused> for Turn {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Later => Self::Full,
            Refused::Never => Self::Dead,
        }
    }
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Sends what is to be sent, about `most` messages. To be called when there is something new,
    /// and when the port has room again. True if there is more: call again.
    pub fn pump(&mut self, port: &mut impl Port<T>, now: Time, most: usize) -> bool {
        let before = self.counters.messages;
        match self.say_strays(port, most) {
            Ok(()) => {}
            Err(Refused::Later) => return false,
            Err(Refused::Never) => {
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
                        // Behind the others.
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

    fn turn(&mut self, at: At, port: &mut impl Port<T>, now: Time) -> Turn {
        if let Err(refused) = self.say(at, port, now) {
            return refused.into();
        }
        self.start_sends(at);
        for _ in 0..TURN {
            let Some(peer) = self.peers.get(at) else {
                return Turn::Done;
            };
            let Some(send) = peer.parts.first() else {
                // Questions come behind requests.
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
    ) -> Result<(), Refused> {
        port.send(node, message, None, false)?;
        self.counters.messages += 1;
        Ok(())
    }

    /// The peer owes an answer from now on.
    fn expect(&mut self, at: At, now: Time) {
        if let Some(peer) = self.peers.get_mut(at) {
            peer.asked.get_or_insert(now);
        }
        self.time_peer(at);
    }

    fn say(&mut self, at: At, port: &mut impl Port<T>, now: Time) -> Result<(), Refused> {
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

    fn said(&mut self, at: At, what: impl FnOnce(&mut super::tables::Say)) {
        if let Some(peer) = self.peers.get_mut(at) {
            what(&mut peer.say);
        }
    }

    /// Collects notes of places from `next` on; true if they fill a message and there may be more.
    fn gather(&mut self, at: At, notes: &mut Notes, next: &mut u16, asks: &mut bool) -> bool {
        while *next < self.slots {
            let slot = *next as u8;
            // Of one place there are two at most.
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
                    // What is missing is what comes next, unless a part of it is there.
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
        at: At,
        port: &mut impl Port<T>,
        (node, key): (NodeId, Key),
        notes: &Notes,
    ) -> Result<(), Refused> {
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

    /// Sends the next part of a message.
    fn say_part(
        &mut self,
        peer: At,
        at: At,
        port: &mut impl Port<T>,
        now: Time,
    ) -> Result<(), Refused> {
        let p = self.peers.get(peer).map(|p| (p.node, p.theirs));
        let (Some((node, key)), Some(place)) = (p, self.place(at)) else {
            // Can't be: it would not be on the list.
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
