// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Whether the own port is stuck (a lost write of the NIC leaves a hole in its queue), judged by
//! what peers do.
//!
//! When transfers are given up while no notification comes at all, either their peer is dead or
//! nothing gets through to here. A peer that is heard of for a while, and still answers nothing of
//! what it is asked for meanwhile, shows that it is the latter. One that is dead is never heard of,
//! and shows nothing: so several are watched, each by itself. One that was away for a while and is
//! not asked for anything since shows nothing either.

use crate::{slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// For so long no notification has come when a transfer that is given up counts. It is not
    /// less than what a transfer gets until it is given up.
    pub silence: u64,
    /// For so long what was given up shows something.
    pub fresh: u64,
    /// For so long a peer has to be heard of.
    pub heard: u64,
}

struct Suspect {
    /// When a transfer with it was given up last.
    given_up: Time,
    /// When it was first heard of after that.
    heard: Option<Time>,
    /// A transfer was given up that began after that.
    asked: bool,
}

/// Peers that leave transfers unanswered while no notification comes.
pub struct Suspects<M: Memory> {
    /// By node, the one with the oldest transfer first.
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
        // What was seen long ago shows nothing.
        let before = before.filter(|s| now.since(s.given_up) < proof.fresh);
        let heard = before.as_ref().and_then(|s| s.heard);
        let asked = before.is_some_and(|s| s.asked)
            || heard.is_some_and(|first| now.since(first) >= proof.silence);
        if self.peers.is_full() {
            self.displace();
        }
        let suspect = Suspect {
            given_up: now,
            heard,
            asked,
        };
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
        if now.since(suspect.given_up) >= proof.fresh {
            // It was away since, and nothing was asked of it that it could have answered.
            self.peers.remove(key);
            return false;
        }
        let first = *suspect.heard.get_or_insert(now);
        suspect.asked && now.since(first) >= proof.heard
    }
}
