//! Writes that the controller sends in order: data and completions for the host's memory, and
//! interrupts.

use crate::endpoint::function::Function;
use crate::endpoint::{chunks, Link, PciePacket};
use std::collections::VecDeque;

enum Post {
    Write { addr: u64, data: Vec<u8>, sent: u32 },
    Interrupt(u8),
}

/// Queue of the writes and interrupts that have not been sent.
#[derive(Default)]
pub(super) struct Posts {
    queue: VecDeque<Post>,
    /// Set of the vectors that [`super::regs::INTMS`] masks. The mask applies to MSI only.
    pub masked: u32,
    /// Set of the vectors whose interrupts wait until the host clears that mask.
    held: u32,
}

impl Posts {
    pub fn write(&mut self, addr: u64, data: Vec<u8>) {
        self.queue.push_back(Post::Write {
            addr,
            data,
            sent: 0,
        });
    }

    pub fn interrupt(&mut self, vector: u8) {
        self.queue.push_back(Post::Interrupt(vector));
    }

    /// Removes `vectors` from the mask, and queues their held interrupts.
    pub fn unmask(&mut self, vectors: u32) {
        self.masked &= !vectors;
        let free = self.held & !self.masked;
        self.held &= self.masked;
        (0..32)
            .filter(|v| free & (1 << v) != 0)
            .for_each(|v| self.interrupt(v));
    }

    /// Sends entries while credit allows. Returns true if credit is missing.
    pub fn run(&mut self, function: &mut Function, link: &mut Link<'_>) -> bool {
        let (payload, _) = function.config().payload_and_read_request();
        let id = function.bdf();
        while let Some(post) = self.queue.front_mut() {
            match post {
                Post::Write { addr, data, sent } => {
                    let at = addr.wrapping_add(u64::from(*sent));
                    let left = (data.len() as u32).saturating_sub(*sent);
                    for (offset, n) in chunks(at, left, payload) {
                        if link.credits == 0 {
                            return true;
                        }
                        let from = *sent as usize;
                        let bytes = data.get(from..from + n as usize).unwrap_or_default();
                        PciePacket::writes(id, at.wrapping_add(offset.into()), bytes)
                            .for_each(|p| link.send(p));
                        *sent += n;
                    }
                }
                Post::Interrupt(vector) => {
                    if link.credits == 0 {
                        return true;
                    }
                    let bit = 1u32.checked_shl((*vector).into()).unwrap_or(0);
                    if self.masked & bit != 0 && !function.config().msix().0 {
                        self.held |= bit;
                    } else {
                        function.raise(*vector);
                        function.deliver(1, link);
                    }
                }
            }
            self.queue.pop_front();
        }
        false
    }
}
