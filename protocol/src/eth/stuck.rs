// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Detection of a stuck port of this node, from the behaviour of its peers.
//!
//! A lost write of the NIC leaves a hole in the port's notification queue, and the driver finds no
//! notifications after the hole. All transfers of the port are then given up, because the driver
//! receives no notification at all. The driver also receives no notification if the peers of all
//! transfers are dead.
//!
//! A peer is alive if it sent messages without a gap from before a transfer began until the
//! transfer was given up. The next message of this peer then proves that the port is stuck. A dead
//! or unreachable peer sends no messages, so it is no evidence. Peers are therefore observed
//! separately. Only peers with transfers are observed.

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Times that decide whether a port is stuck, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Minimum time without any notification, equal to the time-out of a transfer.
    pub silence: u64,
    /// Maximum time between two messages of a peer that counts as reachable.
    pub gap: u64,
}

impl Proof {
    /// Returns the maximum delay from the time-out of a transfer until it is given up.
    const fn slack(&self) -> u64 {
        self.gap / 4
    }
}

struct Suspect {
    /// Times of the first and last message in the current series of messages without a gap.
    messages: Option<(Time, Time)>,
    /// The peer was reachable during a whole transfer that was given up.
    proven: bool,
}

impl Suspect {
    /// Returns true if the peer was reachable during a whole transfer that is given up at `now`.
    fn was_there(&self, now: Time, proof: &Proof) -> bool {
        self.messages.is_some_and(|(first, last)| {
            now.since(last) <= proof.gap
                && now.since(first) >= proof.silence.saturating_add(proof.slack())
        })
    }
}

/// Peers whose transfers were given up while no notification arrived.
pub struct Suspects<M: Memory> {
    /// Peers by node, in the order in which their last transfer was given up, oldest first.
    peers: Slots<M, Suspect>,
}

impl<M: Memory> Suspects<M> {
    /// Creates a table for `capacity` peers.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            peers: Slots::new(capacity)?,
        })
    }

    /// Returns the number of peers under observation.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns true if no peer is under observation.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Removes all peers, because a notification has arrived or the port was reopened.
    pub fn clear(&mut self) {
        while self.peers.pop_oldest().is_some() {}
    }

    /// Records that transfers with `node` were given up at `now`. The last notification arrived at
    /// `notified`.
    pub fn unanswered(&mut self, node: NodeId, now: Time, notified: Time, proof: &Proof) {
        if now.since(notified) < proof.silence {
            return;
        }
        let key = u64::from(node.0);
        // Insert the peer again as the youngest.
        let before = match self.peers.get(key) {
            Some(_) => self.peers.remove(key),
            None => None,
        };
        let proven = before
            .as_ref()
            .is_some_and(|s| s.proven || s.was_there(now, proof));
        let messages = before.and_then(|s| s.messages);
        if self.peers.is_full() {
            self.displace();
        }
        let suspect = Suspect { messages, proven };
        // Cannot fail: a slot is free, and the key was removed.
        let _ = self.peers.insert(key, suspect);
    }

    /// Removes a peer that has sent no message, or the oldest peer if there is none.
    fn displace(&mut self) {
        let mut next = self.peers.oldest().map(|(key, _)| key);
        let first = next;
        while let Some(key) = next {
            next = self.peers.younger(key);
            if self.peers.get(key).is_some_and(|s| s.messages.is_none()) {
                self.peers.remove(key);
                return;
            }
        }
        if let Some(key) = first {
            self.peers.remove(key);
        }
    }

    /// Records a message of `node`. Returns true if the port is stuck.
    pub fn message(&mut self, node: NodeId, now: Time, proof: &Proof) -> bool {
        let key = u64::from(node.0);
        let Some(suspect) = self.peers.get_mut(key) else {
            return false;
        };
        let first = match suspect.messages {
            Some((first, last)) if now.since(last) <= proof.gap => first,
            _ => now,
        };
        suspect.messages = Some((first, now));
        suspect.proven
    }
}
