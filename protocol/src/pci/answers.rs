// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Answers that belong to no lease. A node has at most one pending answer. A later answer replaces
//! the pending one. A node repeats a request whose answer it did not receive.

use wire::ids::NodeId;
use wire::pci::Message;

/// Maximum number of nodes with a pending answer.
const NODES_MAX: usize = 16;

/// Pending answers, one per node.
pub(super) struct Answers {
    list: [Option<(NodeId, Message)>; NODES_MAX],
    /// Number of answers that were dropped, because the table was full or a later answer to the
    /// same node replaced them.
    pub(super) dropped: u64,
}

impl Answers {
    pub(super) const NEW: Self = Self {
        list: [None; NODES_MAX],
        dropped: 0,
    };

    pub(super) fn insert(&mut self, node: NodeId, message: Message) {
        let own = |s: &Option<(NodeId, Message)>| s.is_some_and(|(n, _)| n == node);
        let slot = match self.list.iter().position(own) {
            Some(slot) => {
                self.dropped = self.dropped.wrapping_add(1);
                Some(slot)
            }
            None => self.list.iter().position(Option::is_none),
        };
        match slot.and_then(|slot| self.list.get_mut(slot)) {
            Some(slot) => *slot = Some((node, message)),
            None => self.dropped = self.dropped.wrapping_add(1),
        }
    }

    pub(super) fn pop(&mut self) -> Option<(NodeId, Message)> {
        self.list.iter_mut().find_map(Option::take)
    }
}
