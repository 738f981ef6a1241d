// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Number of announced frames in flight, by flow. If a later frame of the same flow were sent in
//! messages, it would overtake them at a receiver that delivers frames in their order of arrival.

use crate::Memory;
use wire::ids::NodeId;

/// Number of counters. Flows that share a counter are treated as one flow, so that some frames are
/// announced unnecessarily.
const COUNTERS: usize = 256;

/// Index of a flow's counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FlowIndex(u8);

impl FlowIndex {
    /// Returns the index of the counter of a flow to `node`. `flow` is any number that is equal for
    /// all frames of the flow.
    pub(super) fn new(node: NodeId, flow: u32) -> Self {
        // Fibonacci hashing.
        let mixed = (flow ^ (u32::from(node.0) << 16)).wrapping_mul(0x9E37_79B9);
        Self((mixed >> 24) as u8)
    }
}

/// Numbers of announced frames in flight, by flow.
pub(super) struct Flows<M: Memory>(M::Array<u16>);

impl<M: Memory> Flows<M> {
    pub(super) fn new() -> Result<Self, M::Error> {
        M::array(COUNTERS, |_| 0).map(Self)
    }

    fn change(&mut self, index: FlowIndex, f: impl FnOnce(u16) -> u16) {
        if let Some(n) = self.0.get_mut(usize::from(index.0)) {
            *n = f(*n);
        }
    }

    /// Counts a frame that was announced.
    pub(super) fn began(&mut self, index: FlowIndex) {
        self.change(index, |n| n.saturating_add(1));
    }

    /// Uncounts a frame that was fetched, stalled or given up.
    pub(super) fn ended(&mut self, index: FlowIndex) {
        self.change(index, |n| n.saturating_sub(1));
    }

    /// Returns true if announced frames of the flow are in flight.
    pub(super) fn in_flight(&self, index: FlowIndex) -> bool {
        self.0.get(usize::from(index.0)).is_some_and(|n| *n > 0)
    }

    /// Returns the number of all announced frames in flight.
    pub(super) fn sum(&self) -> usize {
        self.0.iter().map(|n| usize::from(*n)).sum()
    }
}
