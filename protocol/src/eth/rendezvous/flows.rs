// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Which flows have announced frames on their way: what comes after them in messages would overtake
//! them at a receiver that delivers frames as they come.

use crate::Memory;
use wire::ids::NodeId;

/// Number of counters. Flows that share one are taken for one flow, which costs them some messages.
const COUNTERS: usize = 256;

/// A flow to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(u8);

impl Place {
    /// `flow` is any number that all frames of a flow share.
    pub(super) fn new(node: NodeId, flow: u32) -> Self {
        // Fibonacci hashing.
        let mixed = (flow ^ (u32::from(node.0) << 16)).wrapping_mul(0x9E37_79B9);
        Self((mixed >> 24) as u8)
    }
}

/// Announced frames on their way, by flow.
pub(super) struct Flows<M: Memory>(M::Array<u16>);

impl<M: Memory> Flows<M> {
    pub(super) fn new() -> Result<Self, M::Error> {
        M::array(COUNTERS, |_| 0).map(Self)
    }

    fn change(&mut self, place: Place, f: impl FnOnce(u16) -> u16) {
        if let Some(n) = self.0.get_mut(usize::from(place.0)) {
            *n = f(*n);
        }
    }

    /// A frame was announced.
    pub(super) fn began(&mut self, place: Place) {
        self.change(place, |n| n.saturating_add(1));
    }

    /// It has arrived, or is not waited for.
    pub(super) fn ended(&mut self, place: Place) {
        self.change(place, |n| n.saturating_sub(1));
    }

    /// Whether there are some of this flow.
    pub(super) fn is_moving(&self, place: Place) -> bool {
        self.0.get(usize::from(place.0)).is_some_and(|n| *n > 0)
    }

    /// All of them.
    pub(super) fn sum(&self) -> usize {
        self.0.iter().map(|n| usize::from(*n)).sum()
    }
}
