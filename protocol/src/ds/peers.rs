// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Peers that did not answer, or failed otherwise: they are not asked for some time.

use crate::{Memory, Slots, Time};
use wire::ids::NodeId;

/// Nodes that did not answer, a bounded number of them: of more the oldest is asked again.
pub struct SilentNodes<M: Memory> {
    nodes: Slots<M, Time>,
}

impl<M: Memory> SilentNodes<M> {
    /// For `capacity` nodes. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            nodes: Slots::new(capacity)?,
        })
    }

    /// Whether a node did not answer within the last `silent` ticks.
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

    /// It has not answered.
    pub fn silent(&mut self, node: NodeId, now: Time) {
        let key = u64::from(node.0);
        self.nodes.remove(key);
        if self.nodes.is_full() {
            self.nodes.pop_oldest();
        }
        // There is room.
        let _ = self.nodes.insert(key, now);
    }

    /// Something came from it.
    pub fn heard(&mut self, node: NodeId) {
        self.nodes.remove(u64::from(node.0));
    }
}

/// What may fail, as [`Failures`] tells it from others.
pub trait Subject: Copy + Eq {
    /// A number for it; which ones share one depends on a secret.
    fn digest(&self, secret: u64) -> u64;
}

/// A server's program: where its connections go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    /// Node of the server.
    pub node: NodeId,
    /// Address, of IPv6 or mapped.
    pub address: [u8; 16],
    /// Port of TCP.
    pub port: u16,
}

impl Subject for Program {
    fn digest(&self, secret: u64) -> u64 {
        let rest = (u64::from(self.node.0) << 16) | u64::from(self.port);
        mix(secret, &self.address, rest)
    }
}

/// A host on the link of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host {
    /// Number of the interface.
    pub interface: u32,
    /// Address, of IPv6 or mapped.
    pub address: [u8; 16],
}

impl Subject for Host {
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

/// A failure.
struct Failed<S> {
    what: S,
    until: Time,
    /// How often in a row.
    times: u8,
}

/// What has failed lately, and is not tried for some time: twice as long each time it fails again, up to
/// 64 times as long. A bounded number: of more the oldest is tried again.
pub struct Failures<M: Memory, S: Subject> {
    failed: Slots<M, Failed<S>>,
    secret: u64,
}

impl<M: Memory, S: Subject> Failures<M, S> {
    /// For `capacity` of them; `secret` is a random number. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
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

    /// Whether there is no use in trying now.
    pub fn is_avoided(&self, what: &S, now: Time) -> bool {
        self.get(what).is_some_and(|failed| now < failed.until)
    }

    /// It has failed: not to be tried for `pause` ticks, or longer if it has failed before.
    pub fn fail(&mut self, what: S, pause: u64, now: Time) {
        let times = match self.get(&what) {
            // Others that were begun before it was known, at the same time: once.
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
        // There is room.
        let _ = self.failed.insert(key, Failed { what, until, times });
    }

    /// It has not failed.
    pub fn succeed(&mut self, what: &S) {
        if self.get(what).is_some() {
            self.failed.remove(what.digest(self.secret));
        }
    }
}
