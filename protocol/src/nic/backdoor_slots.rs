// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Registry of backdoors to other nodes (HW §14). It contains the backdoors in use, and the
//! backdoors that may still hold or receive answers to an earlier user.
//!
//! All requests have the same tag, so a new user would mistake a late answer to an earlier user for
//! its own answer. The new user must wait until no late answer can arrive any more, and then empty
//! the FIFO. Answers from a node may stay in the FIFO for any time. The registry is bounded. After
//! the waiting time, the slot of a backdoor with possible answers may be given to another node.
//! From then on, the backdoor of every node without a slot counts as dirty.

use crate::Time;
use wire::ids::NodeId;

/// State of a backdoor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// The backdoor is in use.
    Busy,
    /// The backdoor has been free since this time, and answers to its last user may be in its FIFO
    /// or in flight.
    Dirty(Time),
}

/// Result of a request for a backdoor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// The backdoor is not available now.
    No,
    /// The caller owns the backdoor, and its FIFO is empty.
    Clean,
    /// The caller owns the backdoor and must empty its FIFO before it sends requests.
    Dirty,
}

/// Registry of up to `N` backdoors that are in use or may hold late answers.
#[derive(Debug)]
pub struct BackdoorSlots<const N: usize> {
    list: [Option<(NodeId, Use)>; N],
    /// Time in ticks after which no answer arrives any more.
    max_answer_ticks: u64,
    /// True if a node without a slot may hold late answers.
    forgotten: bool,
}

impl<const N: usize> BackdoorSlots<N> {
    /// Returns a registry without entries. `max_answer_ticks` is the maximum time in ticks until an
    /// answer arrives.
    #[must_use]
    pub const fn new(max_answer_ticks: u64) -> Self {
        Self {
            list: [None; N],
            max_answer_ticks,
            forgotten: false,
        }
    }

    fn is_expired(&self, since: Time, now: Time) -> bool {
        now.since(since) >= self.max_answer_ticks
    }

    /// Claims the backdoor of `node` for the caller.
    pub fn claim(&mut self, node: NodeId, now: Time) -> Claim {
        let known = |slot: &Option<(NodeId, Use)>| slot.is_some_and(|(n, _)| n == node);
        if let Some(at) = self.list.iter().position(known) {
            return match self.list.get(at).copied().flatten() {
                Some((_, Use::Dirty(since))) if self.is_expired(since, now) => {
                    self.put(at, node);
                    Claim::Dirty
                }
                _ => Claim::No,
            };
        }
        let Some(at) = self.list.iter().position(Option::is_none) else {
            return self.replace(node, now);
        };
        self.put(at, node);
        self.unknown()
    }

    /// Reuses the slot with the oldest late answers, if its waiting time has passed. The
    /// information that the slot's node may hold answers is kept in `forgotten` only.
    fn replace(&mut self, node: NodeId, now: Time) -> Claim {
        let dirty = |(at, slot): (usize, &Option<(NodeId, Use)>)| match slot {
            Some((_, Use::Dirty(since))) => Some((*since, at)),
            _ => None,
        };
        let oldest = self.list.iter().enumerate().filter_map(dirty).min();
        match oldest {
            Some((since, at)) if self.is_expired(since, now) => {
                // Evaluated before `forgotten` is set, because the forgotten answers belong to
                // another node.
                let claim = self.unknown();
                self.forgotten = true;
                self.put(at, node);
                claim
            }
            _ => Claim::No,
        }
    }

    /// Returns the state of a backdoor without a slot.
    fn unknown(&self) -> Claim {
        if self.forgotten {
            Claim::Dirty
        } else {
            Claim::Clean
        }
    }

    fn put(&mut self, at: usize, node: NodeId) {
        if let Some(slot) = self.list.get_mut(at) {
            *slot = Some((node, Use::Busy));
        }
    }

    /// Releases the backdoor of `node`. `dirty` states that answers may be in its FIFO or in
    /// flight.
    pub fn release(&mut self, node: NodeId, dirty: bool, now: Time) {
        let own = |slot: &&mut Option<(NodeId, Use)>| **slot == Some((node, Use::Busy));
        if let Some(slot) = self.list.iter_mut().find(own) {
            *slot = dirty.then_some((node, Use::Dirty(now)));
        }
    }
}
