// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Actions for the driver, and time-outs.

use super::tables::{Lnd, ReceivePending, SendPending, Ticket, EVENTS};
use super::{Outcome, PeerState, ReceiveState, SendState};
use crate::{base::arena::Index, Memory, Time};
use wire::{
    ids::NodeId,
    lnd::{Payload, Source},
};

/// Action that the driver must perform without the lock of [`Lnd`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<T> {
    /// A complete message arrived. The driver passes it to LNet ([`Lnd::offered`] describes it),
    /// and reports LNet's decision to [`Lnd::parsed`].
    Offer(Ticket, NodeId),
    /// Payload must be fetched by GETs. The driver writes validity tags to the destination first
    /// ([`validity`](crate::base::validity)), and reports the result to [`Lnd::fetched`].
    Fetch {
        /// Message to which the payload belongs.
        ticket: Ticket,
        /// Node ID of the peer.
        node: NodeId,
        /// Location of the payload on that node.
        source: Source,
        /// Number of bytes to fetch.
        len: u32,
        /// Latest time to post a GET.
        post_by: Time,
        /// Time at which unfinished GETs count as failed.
        until: Time,
    },
    /// The destination of a message's GETs must be revoked, so that no GET can write to this
    /// memory. The driver then calls [`Lnd::get_target_revoked`].
    RevokeTarget(Ticket),
    /// A message whose payload had to be fetched is finished. The value is true if the payload is
    /// complete. The message keeps its entry until the driver calls [`Lnd::finished`], so that the
    /// number of such events is limited.
    Received(Ticket, bool),
    /// The exposed memory of a message must be revoked, so that the peer cannot read the memory any
    /// more. The address of the memory stays reserved. The driver then calls [`Lnd::revoked`].
    Revoke(Ticket, T),
    /// Result of a message. The message's owner may use its memory again.
    Sent(Ticket, T, Outcome),
    /// The exposed address of a message may be used again. This event follows [`Event::Sent`].
    Released(Ticket, T),
    /// A peer is alive (true) or down.
    Peer(NodeId, bool),
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Returns the next action.
    pub fn next_event(&mut self) -> Option<Event<T>> {
        while let Some(at) = self.receives.pop::<EVENTS>(&mut self.receive_events) {
            if let Some(receive) = self.receives.get_mut(at) {
                receive.queued = false;
            }
            if let Some(event) = self.receive_event(at) {
                return Some(event);
            }
        }
        while let Some(at) = self.sends.pop::<EVENTS>(&mut self.send_events) {
            if let Some(send) = self.sends.get_mut(at) {
                send.queued = false;
            }
            if let Some(event) = self.send_event(at) {
                return Some(event);
            }
        }
        while let Some(at) = self.peers.pop::<EVENTS>(&mut self.peer_events) {
            if let Some((node, Some(alive))) = self
                .peers
                .get_mut(at)
                .map(|p| (p.node, p.pending_event.take()))
            {
                return Some(Event::Peer(node, alive));
            }
        }
        None
    }

    fn receive_event(&mut self, at: Index) -> Option<Event<T>> {
        let ticket = self.receive_ticket(at)?;
        let receive = self.receives.get_mut(at)?;
        let pending = &mut receive.pending;
        let event = if core::mem::take(&mut pending.offer) {
            Some(Event::Offer(ticket, receive.node))
        } else if core::mem::take(&mut pending.fetch) {
            match receive.payload {
                Payload::Remote(_, source) => Some(Event::Fetch {
                    ticket,
                    node: receive.node,
                    source,
                    len: receive.wanted,
                    post_by: receive.post_by,
                    until: receive.until,
                }),
                Payload::Inline(_) => None,
            }
        } else if core::mem::take(&mut pending.revoke) {
            Some(Event::RevokeTarget(ticket))
        } else if core::mem::take(&mut pending.received) {
            receive.reported = true;
            Some(Event::Received(ticket, receive.done))
        } else {
            None
        };
        if receive.pending != ReceivePending::default() {
            self.list_receive(at);
        }
        if matches!(event, Some(Event::Received(..))) {
            self.end_fetch(at);
        }
        self.reap_receive(at);
        event
    }

    fn send_event(&mut self, at: Index) -> Option<Event<T>> {
        let ticket = self.send_ticket(at)?;
        let send = self.sends.get_mut(at)?;
        let pending = &mut send.pending;
        let event = if core::mem::take(&mut pending.revoke) {
            Some(Event::Revoke(ticket, send.token.clone()))
        } else if core::mem::take(&mut pending.sent) {
            let outcome = send.outcome?;
            Some(Event::Sent(ticket, send.token.clone(), outcome))
        } else if core::mem::take(&mut pending.released) {
            Some(Event::Released(ticket, send.token.clone()))
        } else {
            None
        };
        if send.pending != SendPending::default() {
            self.list_send(at);
        }
        self.reap_send(at);
        event
    }

    /// Removes a finished message to a peer, unless an event about it is pending.
    pub(super) fn reap_send(&mut self, at: Index) {
        let Some(send) = self.sends.get(at) else {
            return;
        };
        let finished = send.state == SendState::Finished && send.pending == SendPending::default();
        if !finished || send.queued {
            return;
        }
        let peer = send.peer;
        self.send_times.clear(at.index());
        self.sends.remove(at);
        self.leave(peer);
    }

    /// Removes a finished message from a peer, unless an event about it is pending or unfinished.
    pub(super) fn reap_receive(&mut self, at: Index) {
        let Some(receive) = self.receives.get(at) else {
            return;
        };
        let finished =
            receive.state == ReceiveState::Finished && receive.pending == ReceivePending::default();
        if !finished || receive.queued || receive.reported {
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

    /// Ends the message's share in the number of its peer's messages with GETs
    /// ([`Capacity::fetches`](super::Capacity::fetches)).
    fn end_fetch(&mut self, at: Index) {
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        if !core::mem::take(&mut receive.counted) {
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
            // An immediate expiry of the peer's timer starts the GETs of its next message.
            self.set_next(peer, Some(Time(0)));
        }
    }

    fn leave(&mut self, peer: Index) {
        if let Some(p) = self.peers.get_mut(peer) {
            p.users = p.users.saturating_sub(1);
        }
    }

    /// Handles up to `most` expired timers. Returns true if more timers may have expired. The
    /// driver then calls this function again.
    pub fn expire(&mut self, now: Time, most: usize) -> bool {
        for _ in 0..most {
            let due = |first: Option<(Time, u32)>| {
                first
                    .filter(|(at, _)| *at <= now)
                    .map(|(_, i)| Index::from_index(i))
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

    /// Returns the time of the next call of [`Lnd::expire`].
    pub fn next_deadline(&self) -> Option<Time> {
        let all = [
            self.receive_times.first(),
            self.send_times.first(),
            self.peer_times.first(),
        ];
        all.into_iter().flatten().map(|(at, _)| at).min()
    }
}
