//! Messages and commands that a node's ports have accepted but not sent, as during a repair after
//! the NIC dropped some.

use crate::fabric::Fabric;
use crate::port::Port;
use protocol::TransportError;
use std::collections::VecDeque;
use wire::rma::{Descriptor, RequesterAddr};
use wire::velo;

/// Maximum number of messages or commands held by a port.
const MOST: usize = 200;

/// Messages and commands held by the ports of a node.
#[derive(Default)]
pub struct Held {
    /// True while the message port holds all messages.
    pub holds: bool,
    /// Time in ns until which the command port holds all commands.
    pub commands_until: u64,
    polls: u64,
    /// Messages with the number of their connection.
    messages: VecDeque<(u64, velo::Descriptor, Vec<u8>)>,
    commands: VecDeque<(RequesterAddr, Descriptor)>,
}

impl Held {
    /// Returns true if a message of a connection is held.
    pub fn has(&self, serial: u64) -> bool {
        self.messages.iter().any(|m| m.0 == serial)
    }

    /// Sends a message at once or holds it.
    pub fn send(
        &mut self,
        port: &mut Port,
        fabric: &mut Fabric,
        serial: u64,
        (descriptor, bytes): (velo::Descriptor, &[u8]),
    ) -> Result<(), TransportError> {
        if !self.holds && self.messages.is_empty() {
            return port.send(fabric, descriptor, bytes);
        }
        if self.messages.len() >= MOST {
            return Err(TransportError::Later);
        }
        let message = (serial, descriptor, bytes.to_vec());
        self.messages.push_back(message);
        Ok(())
    }

    /// Posts a command at once or holds it.
    pub fn command(
        &mut self,
        port: &mut Port,
        fabric: &mut Fabric,
        page: RequesterAddr,
        descriptor: &Descriptor,
    ) -> Result<(), TransportError> {
        if self.commands_until <= fabric.now() && self.commands.is_empty() {
            return port.command(fabric, page, descriptor);
        }
        if self.commands.len() >= MOST {
            return Err(TransportError::Later);
        }
        self.commands.push_back((page, *descriptor));
        Ok(())
    }

    /// Sends some of the held messages and commands, in order.
    pub fn release(&mut self, port: &mut Port, fabric: &mut Fabric) {
        self.polls += 1;
        // Only a few at a time, so that other events may occur in between.
        if self.polls % 4 != 0 {
            return;
        }
        for _ in 0..self.messages.len().div_ceil(8) {
            let message = self.messages.front().filter(|_| !self.holds);
            if let Some((_, descriptor, bytes)) = message {
                if port.send(fabric, *descriptor, bytes).is_ok() {
                    self.messages.pop_front();
                }
            }
        }
        let sends = self.commands_until <= fabric.now();
        for _ in 0..self.commands.len().div_ceil(8) {
            if let Some((page, descriptor)) = self.commands.front().filter(|_| sends) {
                if port.command(fabric, *page, descriptor).is_ok() {
                    self.commands.pop_front();
                }
            }
        }
    }
}
