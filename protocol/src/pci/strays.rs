// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Answers that belong to no lease. A node has one at a time: the last one counts, and whoever
//! misses the others asks again.

use wire::ids::NodeId;
use wire::pci::Message;

/// Nodes that can have one at the same time.
const MOST: usize = 16;

/// See the module's documentation.
pub(super) struct Strays {
    list: [Option<(NodeId, Message)>; MOST],
    /// How often there was no room, or another answer was given up for a later one.
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
