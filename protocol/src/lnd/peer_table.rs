// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table of peers.

use super::replies::Reply;
use super::tables::{Lnd, Peer, PendingControl};
use super::PeerState;
use crate::{
    base::arena::{Index, List},
    Memory, Time,
};
use wire::{ids::NodeId, lnd::Key};

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Returns the peer entry of a node.
    pub(super) fn find(&self, node: NodeId) -> Option<Index> {
        self.by_node.get(node.0.into()).copied()
    }

    /// Returns the peer entry of a node, and creates it if possible.
    pub(super) fn find_or_create(&mut self, node: NodeId, now: Time) -> Option<Index> {
        if let Some(at) = self.find(node) {
            return Some(at);
        }
        if self.peers.room() == 0 {
            self.evict();
        }
        let peer = Peer {
            node,
            state: PeerState::New,
            own: Key(0),
            theirs: Key(0),
            incarnation: Default::default(),
            slots: 0,
            last_slot: 0,
            used: 0,
            pending: None,
            queue: List::NEW,
            parts: List::NEW,
            later: List::NEW,
            due: List::NEW,
            alive_after: now,
            asked: None,
            next: None,
            interval: 0,
            pending_control: PendingControl::default(),
            in_work: false,
            users: 0,
            receives: 0,
            fetches: 0,
            resting: 0,
            pending_event: None,
        };
        let (at, _) = self.peers.insert(peer).ok()?;
        if self.by_node.insert(node.0.into(), at).is_err() {
            self.peers.remove(at);
            return None;
        }
        self.clear_slots(at);
        Some(at)
    }

    /// Removes an idle peer. Prefers a peer without session, and otherwise the peer that has been
    /// silent for the longest time. Sends `STALE` to a peer with a session, so that the peer sends
    /// a greeting before it sends requests again.
    fn evict(&mut self) {
        let mut found: Option<(bool, Time, u64, Index)> = None;
        let mut next = self.by_node.oldest().map(|(key, at)| (key, *at));
        while let Some((key, at)) = next {
            let idle = self.peers.get(at).filter(|p| {
                p.users == 0
                    && !p.in_work
                    && p.pending_event.is_none()
                    && p.state != PeerState::Greeting
            });
            if let Some(p) = idle {
                let up = p.state == PeerState::Up;
                if found.is_none_or(|f| (up, p.alive_after) < (f.0, f.1)) {
                    found = Some((up, p.alive_after, key, at));
                }
            }
            let younger = self.by_node.younger(key);
            next = younger.and_then(|key| Some((key, *self.by_node.get(key)?)));
        }
        let Some((up, _, key, at)) = found else {
            return;
        };
        self.by_node.remove(key);
        self.peer_times.clear(at.index());
        let peer = self.peers.remove(at).filter(|_| up);
        if let Some(peer) = peer {
            self.queue_reply(peer.node, Reply::Stale(peer.own));
        }
    }
}
