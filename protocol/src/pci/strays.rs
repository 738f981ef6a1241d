// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Answers that belong to no lease. A node has at most one pending answer. A later answer replaces
//! it, and the node repeats the request whose answer it did not get.

use wire::ids::NodeId;
use wire::pci::Message;

/// Maximum number of nodes with a pending answer.
const MOST: usize = 16;

/// Pending answers, one per node.
pub(super) struct Strays {
    list: [Option<(NodeId, Message)>; MOST],
    /// Number of answers that were dropped, because the table was full or a later answer to the
    /// same node replaced them.
    pub(super) dropped: u64,
}

impl Strays {
    pub(super) const NEW: Self = Self {
        list: [None; MOST],
        dropped: 0,
    };

    pub(super) fn put(&mut self, node: NodeId, message: Message) {
        let own = |s: &Option<(NodeId, Message)>| s.is_some_and(|(n, _)| n == node);
        let place = match self.list.iter().position(own) {
            Some(place) => {
                self.dropped = self.dropped.wrapping_add(1);
                Some(place)
            }
            None => self.list.iter().position(Option::is_none),
        };
        match place.and_then(|place| self.list.get_mut(place)) {
            Some(place) => *place = Some((node, message)),
            None => self.dropped = self.dropped.wrapping_add(1),
        }
    }

    pub(super) fn take(&mut self) -> Option<(NodeId, Message)> {
        self.list.iter_mut().find_map(Option::take)
    }
}
