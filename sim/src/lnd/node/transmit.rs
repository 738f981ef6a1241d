//! Transmission of a node: GETs and messages.

use super::Out;
use crate::fabric::Fabric;
use crate::lnd::held::Held;
use crate::port::Port;
use protocol::{lnd, transfer, TransportError};
use std::collections::HashMap;
use wire::eth::VPID;
use wire::ids::NodeId;
use wire::lnd::{Key, Message};
use wire::rma::{Descriptor, PageOptions, RequesterAddr};
use wire::velo::{self, Mtt, Target};

/// Posts GETs.
pub(super) struct Poster<'a> {
    pub port: &'a mut Port,
    pub fabric: &'a mut Fabric,
}

impl transfer::Port for Poster<'_> {
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), TransportError> {
        let page = RequesterAddr::page(VPID, page);
        self.port.command(self.fabric, page, descriptor)
    }
}

/// Sends messages.
pub(super) struct Transmit<'a> {
    pub port: &'a mut Port,
    pub fabric: &'a mut Fabric,
    pub held: &'a mut Held,
    pub outs: &'a HashMap<u64, Out>,
    pub keys: &'a mut HashMap<NodeId, Key>,
}

/// Returns the descriptor of a message to a node.
pub(super) fn descriptor(to: NodeId, tag: u8, len: usize) -> velo::Descriptor {
    velo::Descriptor {
        target: Target::Node(to),
        vpid: VPID,
        mtt: Mtt::from_low_bits(0),
        irq: false,
        tag,
        len: len as u16,
    }
}

/// Returns a message as bytes.
pub fn bytes(message: &Message) -> Vec<u8> {
    let words = message.words();
    let words = words.as_slice().iter();
    words.flat_map(|w| w.to_le_bytes()).collect()
}

impl lnd::Port<u64> for Transmit<'_> {
    fn send(
        &mut self,
        to: NodeId,
        message: &Message,
        payload: Option<(&u64, u16)>,
        _quiet: bool,
    ) -> Result<(), TransportError> {
        let mut bytes = bytes(message);
        if let Some((id, at)) = payload {
            let out = self.outs.get(id).ok_or(TransportError::Never)?;
            let at = usize::from(at);
            bytes.extend(&out.data[at..at + usize::from(message.data_len())]);
        }
        match message {
            Message::Request(r) => self.keys.insert(to, r.key),
            Message::Notes(key, _) => self.keys.insert(to, *key),
            _ => None,
        };
        let descriptor = descriptor(to, message.kind().tag(), bytes.len());
        self.held.send(self.port, self.fabric, descriptor, &bytes)
    }
}
