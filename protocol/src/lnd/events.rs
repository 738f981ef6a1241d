// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What is to be done, and time.

use super::tables::{Lnd, ReceiveNews, SendNews, Ticket, EVENTS};
use super::{Outcome, PeerState, ReceiveState, SendState};
use crate::{base::arena::At, Memory, Time};
use wire::{
    ids::NodeId,
    lnd::{Payload, Source},
};

/// Something to be done, without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<T> {
    /// A message has come, and all that travels with it: LNet has to be given it ([`Lnd::offered`]
    /// tells what), and [`Lnd::parsed`] what it says.
    Offer(Ticket, NodeId),
    /// Payload has to be fetched by GETs, and [`Lnd::fetched`] told what becomes of that. Marks have
    /// to be in the memory ([`marks`](crate::base::marks)).
    Fetch {
        /// The message.
        ticket: Ticket,
        /// Node.
        node: NodeId,
        /// Where it is there.
        source: Source,
        /// Bytes.
        len: u32,
        /// None may be posted later than this.
        post_by: Time,
        /// What is not done then has failed.
        until: Time,
    },
    /// The memory that was registered for GETs of a message has to be revoked: nothing may write to
    /// it any more. Then [`Lnd::shut`] has to be called.
    Shut(Ticket),
    /// A message whose payload was to be fetched is over; whether that was. It has its place until
    /// [`Lnd::finished`] is called, so that no more end than there are places.
    Received(Ticket, bool),
    /// The memory that was exposed for a message has to be revoked: nothing may read it any more, but
    /// its address may not lead anywhere else either. Then [`Lnd::revoked`] has to be called.
    Revoke(Ticket, T),
    /// What became of a message. Its owner may use its memory.
    Sent(Ticket, T, Outcome),
    /// The address that was exposed for a message may be used for others; comes after
    /// [`Event::Sent`].
    Released(Ticket, T),
    /// A peer is alive, or has gone.
    Peer(NodeId, bool),
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// The next thing to be done.
    pub fn next_event(&mut self) -> Option<Event<T>> {
        while let Some(at) = self.receives.pop::<EVENTS>(&mut self.receive_events) {
            if let Some(receive) = self.receives.get_mut(at) {
                receive.listed = false;
            }
            if let Some(event) = self.receive_event(at) {
                return Some(event);
            }
        }
        while let Some(at) = self.sends.pop::<EVENTS>(&mut self.send_events) {
            if let Some(send) = self.sends.get_mut(at) {
                send.listed = false;
            }
            if let Some(event) = self.send_event(at) {
                return Some(event);
            }
        }
        while let Some(at) = self.peers.pop::<EVENTS>(&mut self.peer_events) {
            if let Some((node, Some(alive))) =
                self.peers.get_mut(at).map(|p| (p.node, p.news.take()))
            {
                return Some(Event::Peer(node, alive));
            }
        }
        None
    }

    fn receive_event(&mut self, at: At) -> Option<Event<T>> {
        let ticket = self.receive_ticket(at)?;
        let receive = self.receives.get_mut(at)?;
        let news = &mut receive.news;
        let event = if core::mem::take(&mut news.offer) {
            Some(Event::Offer(ticket, receive.node))
        } else if core::mem::take(&mut news.fetch) {
            match receive.payload {
                Payload::There(_, source) => Some(Event::Fetch {
                    ticket,
                    node: receive.node,
                    source,
                    len: receive.wanted,
                    post_by: receive.post_by,
                    until: receive.until,
                }),
                Payload::Here(_) => None,
            }
        } else if core::mem::take(&mut news.revoke) {
            Some(Event::Shut(ticket))
        } else if core::mem::take(&mut news.received) {
            receive.held = true;
            Some(Event::Received(ticket, receive.done))
        } else {
            None
        };
        if receive.news != ReceiveNews::default() {
            self.list_receive(at);
        }
        if matches!(event, Some(Event::Received(..))) {
            self.end_fetch(at);
        }
        self.reap_receive(at);
        event
    }

    fn send_event(&mut self, at: At) -> Option<Event<T>> {
        let ticket = self.send_ticket(at)?;
        let send = self.sends.get_mut(at)?;
        let news = &mut send.news;
        let event = if core::mem::take(&mut news.revoke) {
            Some(Event::Revoke(ticket, send.token.clone()))
        } else if core::mem::take(&mut news.sent) {
            let outcome = send.outcome?;
            Some(Event::Sent(ticket, send.token.clone(), outcome))
        } else if core::mem::take(&mut news.released) {
            Some(Event::Released(ticket, send.token.clone()))
        } else {
            None
        };
        if send.news != SendNews::default() {
            self.list_send(at);
        }
        self.reap_send(at);
        event
    }

    /// Forgets a message that goes out, if it is over and nothing is to be told of it.
    pub(super) fn reap_send(&mut self, at: At) {
        let Some(send) = self.sends.get(at) else {
            return;
        };
        let over = send.state == SendState::Over && send.news == SendNews::default();
        if !over || send.listed {
            return;
        }
        let peer = send.peer;
        self.send_times.clear(at.index());
        self.sends.remove(at);
        self.leave(peer);
    }

    /// Forgets a message that has come, if it is over and nothing is to be told of it.
    pub(super) fn reap_receive(&mut self, at: At) {
        let Some(receive) = self.receives.get(at) else {
            return;
        };
        let over = receive.state == ReceiveState::Over && receive.news == ReceiveNews::default();
        if !over || receive.listed || receive.held {
            return;
        }
        let peer = receive.peer;
        self.end_fetch(at);
        self.move_receive(at, None);
        self.receive_times.clear(at.index());
        self.receives.remove(at);
        if let Some(p) = self.peers.get_mut(peer) {
            p.receives = p.receives.saturating_sub(1);
        }
        self.leave(peer);
    }

    /// A message has no GET posted any more.
    fn end_fetch(&mut self, at: At) {
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        if !core::mem::take(&mut receive.placed) {
            return;
        }
        let peer = receive.peer;
        let mut waits = false;
        if let Some(p) = self.peers.get_mut(peer) {
            waits = p.fetches >= self.fetches && p.state == PeerState::Up;
            waits &= !p.due.is_empty();
            p.fetches = p.fetches.saturating_sub(1);
        }
        if waits {
            // Another one of this peer's may be fetched now.
            self.set_next(peer, Some(Time(0)));
        }
    }

    fn leave(&mut self, peer: At) {
        if let Some(p) = self.peers.get_mut(peer) {
            p.users = p.users.saturating_sub(1);
        }
    }

    /// Does what is due, `most` things at a time; true if there is more: call again.
    pub fn expire(&mut self, now: Time, most: usize) -> bool {
        for _ in 0..most {
            let due = |first: Option<(Time, u32)>| {
                first
                    .filter(|(at, _)| *at <= now)
                    .map(|(_, i)| At::from_index(i))
            };
            if let Some(at) = due(self.receive_times.first()) {
                self.expire_receive(at, now);
            } else if let Some(at) = due(self.send_times.first()) {
                self.expire_send(at, now);
            } else if let Some(at) = due(self.peer_times.first()) {
                self.expire_peer(at, now);
            } else {
                return false;
            }
        }
        true
    }

    /// When [`Lnd::expire`] has to be called next.
    pub fn next_deadline(&self) -> Option<Time> {
        let all = [
            self.receive_times.first(),
            self.send_times.first(),
            self.peer_times.first(),
        ];
        all.into_iter().flatten().map(|(at, _)| at).min()
    }
}
