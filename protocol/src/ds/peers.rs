// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Nodes and servers that failed a short time ago, and are not tried again for some time.

use crate::{Memory, Slots, Time};
use wire::ids::NodeId;

/// Nodes that did not answer. If the table is full, the oldest entry is dropped, and the node of
/// this entry is asked again.
pub struct SilentNodes<M: Memory> {
    nodes: Slots<M, Time>,
}

impl<M: Memory> SilentNodes<M> {
    /// Returns a table for `capacity` nodes. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            nodes: Slots::new(capacity)?,
        })
    }

    /// Returns true if the node did not answer within the last `silent` ticks.
    pub fn is_silent(&mut self, node: NodeId, silent: u64, now: Time) -> bool {
        let key = u64::from(node.0);
        match self.nodes.get(key) {
            Some(since) if now.since(*since) < silent => true,
            Some(_) => {
                self.nodes.remove(key);
                false
            }
            None => false,
        }
    }

    /// Records that the node did not answer.
    pub fn silent(&mut self, node: NodeId, now: Time) {
        let key = u64::from(node.0);
        self.nodes.remove(key);
        if self.nodes.is_full() {
            self.nodes.pop_oldest();
        }
        // Cannot fail, because a slot is free.
        let _ = self.nodes.insert(key, now);
    }

    /// Removes the node, because a message of it arrived.
    pub fn remove(&mut self, node: NodeId) {
        self.nodes.remove(u64::from(node.0));
    }
}

/// Key of a [`Failures`] table.
pub trait FailureKey: Copy + Eq {
    /// Returns a hash of the key. Collisions depend on the secret, so that a peer cannot cause
    /// them.
    fn digest(&self, secret: u64) -> u64;
}

/// Listening socket of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    /// Node of the server.
    pub node: NodeId,
    /// IPv6 or mapped IPv4 address.
    pub address: [u8; 16],
    /// TCP port.
    pub port: u16,
}

impl FailureKey for Program {
    fn digest(&self, secret: u64) -> u64 {
        let rest = (u64::from(self.node.0) << 16) | u64::from(self.port);
        mix(secret, &self.address, rest)
    }
}

/// Neighbour on the link of a network interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Interface index.
    pub interface: u32,
    /// IPv6 or mapped IPv4 address.
    pub address: [u8; 16],
}

impl FailureKey for Host {
    fn digest(&self, secret: u64) -> u64 {
        mix(secret, &self.address, self.interface.into())
    }
}

fn mix(secret: u64, address: &[u8; 16], rest: u64) -> u64 {
    let address = u128::from_le_bytes(*address);
    [address as u64, (address >> 64) as u64]
        .into_iter()
        .fold(secret ^ rest, |key, word| {
            (key ^ word).wrapping_mul(secret | 1).rotate_left(29)
        })
}

/// Entry of a [`Failures`] table.
struct Failed<S> {
    what: S,
    until: Time,
    /// Number of failures in a row, minus 1; maximum 6.
    times: u8,
}

/// Keys that failed a short time ago and are not tried again for some time. The time is doubled
/// with each failure in a row, up to 64-fold. If the table is full, the oldest entry is dropped.
pub struct Failures<M: Memory, S: FailureKey> {
    failed: Slots<M, Failed<S>>,
    secret: u64,
}

impl<M: Memory, S: FailureKey> Failures<M, S> {
    /// Returns a table for `capacity` keys; `secret` is a random number. May sleep if the
    /// allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(capacity: u16, secret: u64) -> Result<Self, M::Error> {
        Ok(Self {
            failed: Slots::new(capacity)?,
            secret,
        })
    }

    fn get(&self, what: &S) -> Option<&Failed<S>> {
        let found = self.failed.get(what.digest(self.secret));
        found.filter(|failed| failed.what == *what)
    }

    /// Returns true if the key must not be tried now.
    pub fn is_avoided(&self, what: &S, now: Time) -> bool {
        self.get(what).is_some_and(|failed| now < failed.until)
    }

    /// Records a failure. The key is not tried for `pause` ticks, or longer after earlier failures.
    pub fn fail(&mut self, what: S, pause: u64, now: Time) {
        let times = match self.get(&what) {
            // Failures of attempts that began before the first failure do not count separately.
            Some(failed) if now < failed.until => return,
            Some(failed) => failed.times.saturating_add(1).min(6),
            None => 0,
        };
        let key = what.digest(self.secret);
        self.failed.remove(key);
        if self.failed.is_full() {
            self.failed.pop_oldest();
        }
        let until = now.after(pause.saturating_mul(1 << times));
        // Cannot fail, because a slot is free.
        let _ = self.failed.insert(key, Failed { what, until, times });
    }

    /// Records a success, which removes the key.
    pub fn succeed(&mut self, what: &S) {
        if self.get(what).is_some() {
            self.failed.remove(what.digest(self.secret));
        }
    }
}
