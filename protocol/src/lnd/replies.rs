// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages to nodes without a peer entry.

use super::tables::Lnd;
use super::Port;
use crate::{Memory, TransportError};
use wire::{
    ids::NodeId,
    lnd::{Key, Message, Welcome},
};

/// Maximum number of nodes with a pending message.
const NODES: usize = 8;
/// Reciprocal of the maximum fraction of messages in a run of [`Lnd::pump`] that go to nodes
/// without a peer entry.
const SHARE: usize = 4;

/// Message to a node without a peer entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Stale(Key),
    Welcome(Welcome),
}

/// Pending messages to nodes without a peer entry, at most one per node.
pub(super) struct Replies {
    slots: [Option<(NodeId, Reply)>; NODES],
    /// Index of the next entry to send.
    next: usize,
}

impl Replies {
    pub(super) const NEW: Self = Self {
        slots: [None; NODES],
        next: 0,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Returns the next pending message and its index.
    fn first(&self) -> Option<(usize, NodeId, Reply)> {
        let mut indices = (0..NODES).map(|i| (self.next + i) % NODES);
        indices.find_map(|i| {
            let (node, reply) = (*self.slots.get(i)?)?;
            Some((i, node, reply))
        })
    }

    fn done(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = None;
        }
        self.next = (index + 1) % NODES;
    }
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Queues a message to a node without a peer entry. The message replaces an earlier message to
    /// the same node. It is dropped if the table is full.
    pub(super) fn queue_reply(&mut self, node: NodeId, reply: Reply) {
        let slots = &mut self.replies.slots;
        let own = slots.iter().position(|s| s.is_some_and(|s| s.0 == node));
        let free = || slots.iter().position(Option::is_none);
        let slot = own.or_else(free).and_then(|i| slots.get_mut(i));
        if let Some(slot) = slot {
            *slot = Some((node, reply));
        }
    }

    /// Sends some of the pending messages: a quarter of `most`, rounded up.
    pub(super) fn send_replies(
        &mut self,
        port: &mut impl Port<T>,
        most: usize,
    ) -> Result<(), TransportError> {
        for _ in 0..most.div_ceil(SHARE) {
            let Some((index, node, reply)) = self.replies.first() else {
                break;
            };
            let message = match reply {
                Reply::Stale(key) => Message::Stale(key),
                Reply::Welcome(welcome) => Message::Welcome(welcome),
            };
            port.send(node, &message, None, false)?;
            self.counters.messages += 1;
            self.replies.done(index);
        }
        Ok(())
    }
}
