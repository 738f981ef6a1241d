// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Whether the own port is stuck (a lost write of the NIC leaves a hole in its queue), judged by
//! what peers do.
//!
//! When transfers are given up while no notification comes at all, either their peer is dead or
//! nothing gets through to here. A peer that is heard of again and again from before such a transfer
//! began until it is given up shows that it is the latter. One that is dead is never heard of, one
//! that is away not for a while, and they show nothing: so several are watched, each by itself. Nor
//! does one show anything that is not asked for anything.

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// For so long no notification has come when a transfer that is given up counts: the time that a
    /// transfer gets.
    pub silence: u64,
    /// A peer that is not heard of for longer is away.
    pub gap: u64,
}

impl Proof {
    /// Within this time after it is overdue a transfer is given up.
    const fn slack(&self) -> u64 {
        self.gap / 4
    }
}

struct Suspect {
    /// Since when it has been heard of without a gap, and when last.
    heard: Option<(Time, Time)>,
    /// A transfer was given up that began after that, and until when there was no gap.
    asked: bool,
}

impl Suspect {
    /// Whether it was there for the whole time of a transfer that is given up at `now`.
    fn was_there(&self, now: Time, proof: &Proof) -> bool {
        self.heard.is_some_and(|(first, last)| {
            now.since(last) <= proof.gap
                && now.since(first) >= proof.silence.saturating_add(proof.slack())
        })
    }
}

/// Peers that leave transfers unanswered while no notification comes.
pub struct Suspects<M: Memory> {
    /// By node, the one whose transfer was given up longest ago first.
    peers: Slots<M, Suspect>,
}

impl<M: Memory> Suspects<M> {
    /// For `capacity` peers.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            peers: Slots::new(capacity)?,
        })
    }

    /// Peers that are watched.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// A notification has come, or the port is a new one: all is well.
    pub fn clear(&mut self) {
        while self.peers.pop_oldest().is_some() {}
    }

    /// Transfers with `node` were given up at `now`. The last notification came at `notified`.
    pub fn unanswered(&mut self, node: NodeId, now: Time, notified: Time, proof: &Proof) {
        if now.since(notified) < proof.silence {
            return;
        }
        let key = u64::from(node.0);
        // Moved to the young end.
        let before = match self.peers.get(key) {
            Some(_) => self.peers.remove(key),
            None => None,
        };
        let asked = before
            .as_ref()
            .is_some_and(|s| s.asked || s.was_there(now, proof));
        let heard = before.and_then(|s| s.heard);
        if self.peers.is_full() {
            self.displace();
        }
        let suspect = Suspect { heard, asked };
        // There is a place, and the key was removed.
        let _ = self.peers.insert(key, suspect);
    }

    /// Makes room: one that nothing was heard of, or else the oldest.
    fn displace(&mut self) {
        let mut next = self.peers.oldest().map(|(key, _)| key);
        let first = next;
        while let Some(key) = next {
            next = self.peers.younger(key);
            if self.peers.get(key).is_some_and(|s| s.heard.is_none()) {
                self.peers.remove(key);
                return;
            }
        }
        if let Some(key) = first {
            self.peers.remove(key);
        }
    }

    /// A message of `node` has come: whether the port is stuck.
    pub fn heard(&mut self, node: NodeId, now: Time, proof: &Proof) -> bool {
        let key = u64::from(node.0);
        let Some(suspect) = self.peers.get_mut(key) else {
            return false;
        };
        let first = match suspect.heard {
            Some((first, last)) if now.since(last) <= proof.gap => first,
            _ => now,
        };
        suspect.heard = Some((first, now));
        suspect.asked
    }
}
