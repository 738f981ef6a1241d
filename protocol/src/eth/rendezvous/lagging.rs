// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Peers that fetch late, though not so late that what they leave is stalled.
//!
//! One that took its time just below that limit would have its share of what may be in flight
//! occupied, and the queue of all others stopped, for nearly all of the time. If there are no others,
//! it may: then it is well that whoever sends to it has to wait.

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Peers that are remembered; of more the one that was late longest ago is forgotten.
const PEERS: u16 = 64;

/// When each of them was late last.
pub(super) struct Lagging<M: Memory> {
    late: Slots<M, Time>,
    /// The peer that the last frame was for, and another one before it, each with its time.
    sent: [Option<(NodeId, Time)>; 2],
}

impl<M: Memory> Lagging<M> {
    pub(super) fn new() -> Result<Self, M::Error> {
        Ok(Self {
            late: Slots::new(PEERS)?,
            sent: [None; 2],
        })
    }

    /// There is a frame for `node`.
    #[inline]
    pub(super) fn sends(&mut self, node: NodeId, now: Time) {
        let [last, before] = &mut self.sent;
        if last.is_some_and(|(other, _)| other != node) {
            *before = *last;
        }
        *last = Some((node, now));
    }

    /// Whether there was one for another peer within `time`.
    pub(super) fn others_wait(&self, node: NodeId, now: Time, time: u64) -> bool {
        let mut sent = self.sent.iter().flatten();
        sent.any(|(other, at)| *other != node && now.since(*at) < time)
    }

    /// `node` has let a frame wait.
    pub(super) fn note(&mut self, node: NodeId, now: Time) {
        let key = u64::from(node.0);
        if self.late.get(key) == Some(&now) {
            return;
        }
        if self.late.get(key).is_some() {
            self.late.remove(key);
        } else if self.late.is_full() {
            let _ = self.late.pop_oldest();
        }
        // There is a place, and the key is not in use.
        let _ = self.late.insert(key, now);
    }

    /// Whether `node` has let one wait within `probation`.
    pub(super) fn contains(&self, node: NodeId, now: Time, probation: u64) -> bool {
        let at = self.late.get(u64::from(node.0));
        at.is_some_and(|at| now.since(*at) < probation)
    }

    /// Sum of what `f` says of each of them.
    pub(super) fn sum(&self, now: Time, probation: u64, f: impl Fn(NodeId) -> usize) -> usize {
        let mut sum = 0;
        let mut next = self.late.oldest().map(|(key, _)| key);
        while let Some(key) = next {
            next = self.late.younger(key);
            // Keys are node IDs.
            let node = NodeId(key as u16);
            if self.contains(node, now, probation) {
                sum += f(node);
            }
        }
        sum
    }
}
