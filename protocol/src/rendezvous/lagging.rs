// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Peers that fetch late, though not so late that what they leave is stalled.
//!
//! One that took its time just below that limit would have its share of what may be in flight
//! occupied, and the queue of all others stopped, for nearly all of the time.

use crate::{slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Peers that are remembered; of more the one that was late longest ago is forgotten.
const PEERS: u16 = 64;

/// When each of them was late last.
pub(super) struct Lagging<M: Memory>(Slots<M, Time>);

impl<M: Memory> Lagging<M> {
    pub(super) fn new() -> Result<Self, M::Error> {
        Slots::new(PEERS).map(Self)
    }

    /// `node` has let a frame wait.
    pub(super) fn note(&mut self, node: NodeId, now: Time) {
        let key = u64::from(node.0);
        if self.0.get(key) == Some(&now) {
            return;
        }
        if self.0.get(key).is_some() {
            self.0.remove(key);
        } else if self.0.is_full() {
            let _ = self.0.pop_oldest();
        }
        // There is a place, and the key is not in use.
        let _ = self.0.insert(key, now);
    }

    /// Whether `node` has let one wait within `probation`.
    pub(super) fn contains(&self, node: NodeId, now: Time, probation: u64) -> bool {
        let at = self.0.get(u64::from(node.0));
        at.is_some_and(|at| now.since(*at) < probation)
    }

    /// Sum of what `f` says of each of them.
    pub(super) fn sum(&self, now: Time, probation: u64, f: impl Fn(NodeId) -> usize) -> usize {
        let mut sum = 0;
        let mut next = self.0.oldest().map(|(key, _)| key);
        while let Some(key) = next {
            next = self.0.younger(key);
            // Keys are node IDs.
            let node = NodeId(key as u16);
            if self.contains(node, now, probation) {
                sum += f(node);
            }
        }
        sum
    }
}
