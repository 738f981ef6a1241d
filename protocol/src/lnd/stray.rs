// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Messages to nodes that are no peers.

use super::tables::Lnd;
use super::Port;
use crate::{Memory, Refused};
use wire::{
    ids::NodeId,
    lnd::{Key, Message, Welcome},
};

/// Nodes that something is to be said to, at a time.
const NODES: usize = 8;
/// One in so many messages that are sent in a row is one of these.
const SHARE: usize = 4;

/// Something for a node that is no peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stray {
    Stale(Key),
    Welcome(Welcome),
}

/// What is to be said to whom: one thing to each node.
pub(super) struct Strays {
    places: [Option<(NodeId, Stray)>; NODES],
    /// Whose turn it is.
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

    /// The next node in turn.
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
    /// Something is to be said to a node that is no peer, instead of what was before. What does not
    /// fit gets lost.
    pub(super) fn stray(&mut self, node: NodeId, what: Stray) {
        let places = &mut self.strays.places;
        let own = places.iter().position(|s| s.is_some_and(|s| s.0 == node));
        let free = || places.iter().position(Option::is_none);
        let place = own.or_else(free).and_then(|i| places.get_mut(i));
        if let Some(place) = place {
            *place = Some((node, what));
        }
    }

    /// Says it, of about `most` messages a part.
    pub(super) fn say_strays(
        &mut self,
        port: &mut impl Port<T>,
        most: usize,
    ) -> Result<(), Refused> {
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
