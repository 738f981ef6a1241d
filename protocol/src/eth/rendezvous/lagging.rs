// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Lagging peers: peers that fetch frames late, but not late enough for the frames to count as
//! stalled.
//!
//! Without a limit, a peer that needs nearly [`Limits::stall`](super::Limits::stall) for each frame
//! would occupy many of the slots for frames in flight. It would also stop the transmit queue,
//! which all peers share, nearly all of the time. A lagging peer is therefore limited while frames
//! for other peers are sent. Without traffic to other peers, a lagging peer has no limit, and its
//! senders wait for it.

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Maximum number of lagging peers. A further lagging peer replaces the one whose last late frame
/// is the oldest.
const PEERS: u16 = 64;

/// Times at which peers last fetched a frame late.
pub(super) struct Lagging<M: Memory> {
    late: Slots<M, Time>,
    /// Destination and time of the last frame, and of the last frame to any other peer before it.
    sent: [Option<(NodeId, Time)>; 2],
}

impl<M: Memory> Lagging<M> {
    pub(super) fn new() -> Result<Self, M::Error> {
        Ok(Self {
            late: Slots::new(PEERS)?,
            sent: [None; 2],
        })
    }

    /// Records that a frame for `node` is to be sent.
    #[inline]
    pub(super) fn sends(&mut self, node: NodeId, now: Time) {
        let [last, before] = &mut self.sent;
        if last.is_some_and(|(other, _)| other != node) {
            *before = *last;
        }
        *last = Some((node, now));
    }

    /// Returns true if a frame for another peer was to be sent within the last `time` ticks.
    pub(super) fn others_wait(&self, node: NodeId, now: Time, time: u64) -> bool {
        let mut sent = self.sent.iter().flatten();
        sent.any(|(other, at)| *other != node && now.since(*at) < time)
    }

    /// Records that `node` fetched a frame late.
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
        // Cannot fail: a slot is free, and the key is not in use.
        let _ = self.late.insert(key, now);
    }

    /// Returns true if `node` was late within the last `lag_hold` ticks.
    pub(super) fn contains(&self, node: NodeId, now: Time, lag_hold: u64) -> bool {
        let at = self.late.get(u64::from(node.0));
        at.is_some_and(|at| now.since(*at) < lag_hold)
    }

    /// Returns the sum of `f` over all lagging peers.
    pub(super) fn sum(&self, now: Time, lag_hold: u64, f: impl Fn(NodeId) -> usize) -> usize {
        let mut sum = 0;
        let mut next = self.late.oldest().map(|(key, _)| key);
        while let Some(key) = next {
            next = self.late.younger(key);
            // All keys are node IDs.
            let node = NodeId(key as u16);
            if self.contains(node, now, lag_hold) {
                sum += f(node);
            }
        }
        sum
    }
}
