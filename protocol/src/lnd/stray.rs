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
/// Part of the messages in a run of [`Lnd::pump`] that may be of this kind: one of four.
const SHARE: usize = 4;

/// Message to a node without a peer entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stray {
    Stale(Key),
    Welcome(Welcome),
}

/// Pending messages, up to one per node.
pub(super) struct Strays {
    places: [Option<(NodeId, Stray)>; NODES],
    /// Index of the next entry to send.
    turn: usize,
}

impl Strays {
    pub(super) const NEW: Self = Self {
        places: [None; NODES],
        turn: 0,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// Returns the next pending message and its index.
    fn first(&self) -> Option<(usize, NodeId, Stray)> {
        let mut turns = (0..NODES).map(|i| (self.turn + i) % NODES);
        turns.find_map(|i| {
            let (node, what) = (*self.places.get(i)?)?;
            Some((i, node, what))
        })
    }

    fn done(&mut self, index: usize) {
        if let Some(place) = self.places.get_mut(index) {
            *place = None;
        }
        self.turn = (index + 1) % NODES;
    }
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Queues a message to a node without a peer entry, in place of an earlier one. Drops it if the
    /// table is full.
    pub(super) fn stray(&mut self, node: NodeId, what: Stray) {
        let places = &mut self.strays.places;
        let own = places.iter().position(|s| s.is_some_and(|s| s.0 == node));
        let free = || places.iter().position(Option::is_none);
        let place = own.or_else(free).and_then(|i| places.get_mut(i));
        if let Some(place) = place {
            *place = Some((node, what));
        }
    }

    /// Sends some of the pending messages: a quarter of `most`, rounded up.
    pub(super) fn say_strays(
        &mut self,
        port: &mut impl Port<T>,
        most: usize,
    ) -> Result<(), TransportError> {
        for _ in 0..most.div_ceil(SHARE) {
            let Some((index, node, what)) = self.strays.first() else {
                break;
            };
            let message = match what {
                Stray::Stale(key) => Message::Stale(key),
                Stray::Welcome(welcome) => Message::Welcome(welcome),
            };
            port.send(node, &message, None, false)?;
            self.counters.messages += 1;
            self.strays.done(index);
        }
        Ok(())
    }
}
