//! Frames and their contents.

use super::{Fate, Frame, Rig};
use crate::eth::node::Outgoing;
use crate::eth::setup::MAX_FRAME;
use anyhow::Result;
use protocol::eth::rendezvous::Buffer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Length in bytes of the header and the fields for length and number, in front of the pattern.
const HEAD: usize = 24;

/// Returns the contents of a frame.
pub(super) fn pattern(id: u64, len: usize) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(id ^ 0x5eed);
    let mut data = vec![0; len.max(HEAD)];
    rng.fill(&mut data[..]);
    // The frame is a unicast one.
    data[0] &= !1;
    data[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    data[16..24].copy_from_slice(&id.to_le_bytes());
    data.truncate(len);
    data
}

/// Returns the word at an offset of a frame.
pub(super) fn word(data: &[u8], at: usize) -> u64 {
    data.get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(u64::MAX, u64::from_le_bytes)
}

impl Rig {
    /// Submits a frame for `to` to the network stack of `from`. Returns false without space or
    /// memory for it.
    pub(super) fn submit(&mut self, from: usize, to: usize) -> Result<bool> {
        let flow = self.rng.random_range(0..2);
        let len = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(HEAD as u32..100),
            1 => [496, 497, 992, 993][self.rng.random_range(0..4)],
            _ => self.rng.random_range(100..=MAX_FRAME),
        };
        // Maximum number of frames that a network stack keeps for a stopped queue.
        if !self.nodes[from].is_up() || self.nodes[from].backlog() >= 24 {
            return Ok(false);
        }
        let Some(block) = self.nodes[from].pool.take() else {
            return Ok(false);
        };
        let id = self.frames.len() as u64;
        self.check_get(from, block.address())?;
        block.fill(&pattern(id, len as usize))?;
        let demanded = self.is_demanded(from, to);
        self.frames.push(Frame {
            from,
            to,
            flow,
            len,
            at: self.fabric.now(),
            sent: 0,
            fetched: None,
            fate: Fate::Queued,
            demanded,
        });
        self.summary.frames += 1;
        self.summary.healthy += u64::from(demanded);
        let pristine = self.healthy[from] && self.healthy[to];
        self.summary.recovered += u64::from(demanded && !pristine);
        self.say(|| format!("node {from}: frame {id}, {len} bytes to node {to}"));
        self.open.insert(id);
        let frame = Outgoing {
            id,
            to,
            flow,
            block,
            len,
        };
        self.nodes[from].submit(&mut self.fabric, frame);
        Ok(true)
    }
}
