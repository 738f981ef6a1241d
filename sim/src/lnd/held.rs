//! Messages that a node's port holds for a while and sends in another order.

use crate::fabric::Fabric;
use crate::port::Port;
use protocol::TransportError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use wire::velo::Descriptor;

/// Maximum number of held messages.
const MOST: usize = 300;
/// Time in ns after which a message is dropped that the NIC does not accept.
pub const GIVEN_UP: u64 = 50_000_000;

/// Messages held by the port of a node.
pub struct Held {
    rng: SmallRng,
    /// Probability that a message is held.
    pub likely: f64,
    /// Maximum delay in ns.
    pub longest: u64,
    /// Every n-th message is sent twice.
    pub repeat_every: Option<u64>,
    sent: u64,
    messages: Vec<(u64, Descriptor, Vec<u8>)>,
}

impl Held {
    /// Creates a port that holds no messages.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            likely: 0.0,
            longest: 1,
            repeat_every: None,
            sent: 0,
            messages: Vec::new(),
        }
    }

    /// Sends a message at once or holds it.
    pub fn send(
        &mut self,
        port: &mut Port,
        fabric: &mut Fabric,
        descriptor: Descriptor,
        bytes: &[u8],
    ) -> Result<(), TransportError> {
        self.sent += 1;
        let twice = self.repeat_every.is_some_and(|n| self.sent % n == 0);
        if self.messages.len() + 2 > MOST {
            return Err(TransportError::Later);
        }
        for i in 0..1 + u64::from(twice) {
            if i == 1 || self.likely > 0.0 && self.rng.random_bool(self.likely) {
                let due = fabric.now() + self.rng.random_range(0..self.longest);
                self.messages.push((due, descriptor, bytes.to_vec()));
            } else {
                port.send(fabric, descriptor, bytes)?;
            }
        }
        Ok(())
    }

    /// Sends the messages whose delay has elapsed. Messages that can't be sent for long are lost.
    pub fn release(&mut self, port: &mut Port, fabric: &mut Fabric) {
        let now = fabric.now();
        self.messages.retain(|(due, descriptor, bytes)| {
            if now > due + GIVEN_UP {
                return false;
            }
            *due > now || port.send(fabric, *descriptor, bytes) == Err(TransportError::Later)
        });
    }
}
