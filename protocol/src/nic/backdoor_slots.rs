// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Which nodes' backdoors (HW §14) somebody has, and which may hold something that its last user left.
//!
//! What was left, a *residue*, is an answer in a FIFO, or one that comes yet: all requests have the same tag, so the
//! next user would take it for his own. He has to wait until nothing can come any more, and empty the FIFO. A node
//! that does not answer keeps its residue for ever. The memory of that is bounded: a place whose residue is complete
//! may be given to another node, and from then on any node that has no place may have one.

use crate::Time;
use wire::ids::NodeId;

/// State of a backdoor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Somebody has it.
    Busy,
    /// Nobody has it, and there may be a residue since then.
    Dirty(Time),
}

/// Whether somebody may have a backdoor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// Not now.
    No,
    /// He has it, and nothing can be left in it.
    Clean,
    /// He has it, and has to empty its FIFO before he sends anything.
    Dirty,
}

/// The backdoors that are in use or have a residue; `N` at once.
#[derive(Debug)]
pub struct BackdoorSlots<const N: usize> {
    list: [Option<(NodeId, Use)>; N],
    /// Ticks after which nothing comes any more.
    late: u64,
    /// A node without a place may have a residue.
    forgotten: bool,
}

impl<const N: usize> BackdoorSlots<N> {
    /// Nobody has used any. `late`: for so many ticks an answer may come.
    #[must_use]
    pub const fn new(late: u64) -> Self {
        Self {
            list: [None; N],
            late,
            forgotten: false,
        }
    }

    fn is_over(&self, since: Time, now: Time) -> bool {
        now.since(since) >= self.late
    }

    /// Somebody wants the backdoor of `node`.
    pub fn take(&mut self, node: NodeId, now: Time) -> Taken {
        let known = |place: &Option<(NodeId, Use)>| place.is_some_and(|(n, _)| n == node);
        if let Some(at) = self.list.iter().position(known) {
            return match self.list.get(at).copied().flatten() {
                Some((_, Use::Dirty(since))) if self.is_over(since, now) => {
                    self.put(at, node);
                    Taken::Dirty
                }
                _ => Taken::No,
            };
        }
        let Some(at) = self.list.iter().position(Option::is_none) else {
            return self.replace(node, now);
        };
        self.put(at, node);
        self.unknown()
    }

    /// Takes the place whose residue is oldest, if that is complete: it can be found again, but not told
    /// from nothing.
    fn replace(&mut self, node: NodeId, now: Time) -> Taken {
        let dirty = |(at, place): (usize, &Option<(NodeId, Use)>)| match place {
            Some((_, Use::Dirty(since))) => Some((*since, at)),
            _ => None,
        };
        let oldest = self.list.iter().enumerate().filter_map(dirty).min();
        match oldest {
            Some((since, at)) if self.is_over(since, now) => {
                // First: what is forgotten is not this node's, which has no place.
                let taken = self.unknown();
                self.forgotten = true;
                self.put(at, node);
                taken
            }
            _ => Taken::No,
        }
    }

    /// What may be in the backdoor of a node without a place.
    fn unknown(&self) -> Taken {
        match self.forgotten {
            true => Taken::Dirty,
            false => Taken::Clean,
        }
    }

    fn put(&mut self, at: usize, node: NodeId) {
        if let Some(place) = self.list.get_mut(at) {
            *place = Some((node, Use::Busy));
        }
    }

    /// Who has the backdoor of `node` is done with it; `dirty`: there may be a residue.
    pub fn leave(&mut self, node: NodeId, dirty: bool, now: Time) {
        let own = |place: &&mut Option<(NodeId, Use)>| **place == Some((node, Use::Busy));
        if let Some(place) = self.list.iter_mut().find(own) {
            *place = dirty.then_some((node, Use::Dirty(now)));
        }
    }
}
