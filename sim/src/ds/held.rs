//! What a node's ports have taken and not sent yet, as while they repair what the NIC has dropped.

use crate::fabric::Fabric;
use crate::port::Port;
use protocol::Refused;
use std::collections::VecDeque;
use wire::rma::{Descriptor, RequesterAddr};
use wire::velo;

/// So much may be outstanding in a port.
const MOST: usize = 200;

/// See the module's documentation.
#[derive(Default)]
pub struct Held {
    /// The port of messages sends nothing.
    pub holds: bool,
    /// Nor does that of commands until then.
    pub commands_until: u64,
    polls: u64,
    /// With the number of the connection that they are of.
    messages: VecDeque<(u64, velo::Descriptor, Vec<u8>)>,
    commands: VecDeque<(RequesterAddr, Descriptor)>,
}

impl Held {
    /// Whether something of a connection is still to be sent.
    pub fn has(&self, serial: u64) -> bool {
        self.messages.iter().any(|m| m.0 == serial)
    }

    /// Takes a message, or has it sent at once.
    pub fn send(
        &mut self,
        port: &mut Port,
        fabric: &mut Fabric,
        serial: u64,
        (descriptor, bytes): (velo::Descriptor, &[u8]),
    ) -> Result<(), Refused> {
        if !self.holds && self.messages.is_empty() {
            return port.send(fabric, descriptor, bytes);
        }
        if self.messages.len() >= MOST {
            return Err(Refused::Later);
        }
        let message = (serial, descriptor, bytes.to_vec());
        self.messages.push_back(message);
        Ok(())
    }

    /// Takes a command, or has it posted at once.
    pub fn command(
        &mut self,
        port: &mut Port,
        fabric: &mut Fabric,
        page: RequesterAddr,
        descriptor: &Descriptor,
    ) -> Result<(), Refused> {
        if self.commands_until <= fabric.now() && self.commands.is_empty() {
            return port.command(fabric, page, descriptor);
        }
        if self.commands.len() >= MOST {
            return Err(Refused::Later);
        }
        self.commands.push_back((page, *descriptor));
        Ok(())
    }

    /// Sends some of what was held, in order.
    pub fn release(&mut self, port: &mut Port, fabric: &mut Fabric) {
        self.polls += 1;
        // Not all at once, so that something may come in between.
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
