//! Ports through which the streams and transfers of a node post.

use super::held::Held;
use super::tagged::Tagged;
use super::{slots, Mutation, RING_BYTES};
use crate::fabric::Fabric;
use crate::port::Port;
use crate::Heap;
use protocol::ds::{self, Geometry, Get, Span};
use protocol::transfer::{self, Fragment, Notify, Queue, Terms, TransferKind, Transfers};
use protocol::{Time, TransportError};
use std::collections::HashMap;
use wire::ds::{Message, TRAFFIC_CLASS};
use wire::eth::VPID;
use wire::ids::NodeId;
use wire::rma::{Descriptor, Direction, PageOptions, RequesterAddr};
use wire::velo::{self, Mtt, Target};

/// Port of transfers.
pub(super) struct Poster<'a> {
    pub(super) port: &'a mut Port,
    pub(super) held: &'a mut Held,
    pub(super) fabric: &'a mut Fabric,
}

impl transfer::Port for Poster<'_> {
    fn post(&mut self, page: PageOptions, descriptor: &Descriptor) -> Result<(), TransportError> {
        let page = RequesterAddr::page(VPID, page);
        self.held.command(self.port, self.fabric, page, descriptor)
    }
}

/// Port of a stream.
pub(super) struct Wire<'a> {
    pub(super) port: &'a mut Port,
    pub(super) fabric: &'a mut Fabric,
    pub(super) transfers: &'a mut Transfers<Heap, (u64, u16)>,
    pub(super) hasty: &'a mut Vec<(u64, u16)>,
    pub(super) tagged: &'a mut HashMap<(u64, u16), Tagged>,
    pub(super) in_flight: &'a mut Vec<((u64, u16), u64)>,
    pub(super) sink: u64,
    pub(super) mutation: Option<Mutation>,
    pub(super) repeat_every: Option<u64>,
    pub(super) refuses_gets: bool,
    pub(super) held: &'a mut Held,
    pub(super) slots: &'a mut slots::Slots,
    pub(super) waits: &'a mut slots::Waits,
    pub(super) index: u32,
    pub(super) sent: &'a mut u64,
    pub(super) serial: u64,
    pub(super) peer: usize,
    pub(super) send_ring: u64,
    pub(super) receive_ring: u64,
    pub(super) peer_ring: u64,
    pub(super) geometry: Geometry,
}

/// Returns the descriptor of a stream's message.
pub(super) fn message_descriptor(to: NodeId, message: &Message) -> velo::Descriptor {
    velo::Descriptor {
        target: Target::Node(to),
        vpid: VPID,
        mtt: Mtt::from_low_bits(0),
        irq: false,
        tag: message.kind().tag(),
        len: message.len(),
    }
}

impl Wire<'_> {
    fn post(&mut self, descriptor: velo::Descriptor, bytes: &[u8]) -> Result<(), TransportError> {
        let message = (descriptor, bytes);
        self.held.send(self.port, self.fabric, self.serial, message)
    }
}

impl ds::Port for Wire<'_> {
    fn send(&mut self, message: &Message, data: Span) -> Result<(), TransportError> {
        let words = message.words();
        let mut bytes: Vec<u8> = words
            .as_slice()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        let parts = data.parts(self.geometry.send_ring);
        for (at, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            let mut part = vec![0; len as usize];
            let from = self.send_ring + u64::from(at);
            self.fabric
                .load(self.port.nic(), from, &mut part)
                .map_err(|_| TransportError::Never)?;
            bytes.extend(part);
        }
        let descriptor = message_descriptor(Port::node_id(self.peer), message);
        *self.sent += 1;
        if self.repeat_every.is_some_and(|n| *self.sent % n == 0) {
            self.post(descriptor, &bytes)?;
        }
        self.post(descriptor, &bytes)
    }

    fn get(&mut self, get: &Get, post_by: Time, deadline: Time) -> Result<(), TransportError> {
        if self.refuses_gets {
            return Err(TransportError::Later);
        }
        let on_way = self.tagged.values().filter(|m| m.from.0 == self.peer);
        let on_way = on_way.count();
        let (slots, waits) = (&mut *self.slots, &mut *self.waits);
        slots.may_post(self.index, waits, on_way)?;
        let list = |base: u64, span: Span, ring| {
            span.parts(ring)
                .into_iter()
                .filter(|p| p.1 > 0)
                .map(move |(at, len)| Fragment {
                    address: base + u64::from(at),
                    len: len.into(),
                })
        };
        let terms = Terms {
            node: Port::node_id(self.peer),
            vpid: VPID,
            class: TRAFFIC_CLASS,
            translate: false,
            deadline,
            post_by: Some(post_by),
            queue: Queue::Direct,
        };
        let what = TransferKind {
            direction: Direction::Get,
            notify: Notify::Nothing,
            confirm: false,
        };
        // Destination and source of the GET.
        let (ring, bytes, to) = match get.sink {
            Some(at) => (self.sink, RING_BYTES as u32, Span { at, ..get.to }),
            None => (self.receive_ring, self.geometry.receive_ring, get.to),
        };
        let source = get
            .source
            .filter(|_| self.mutation != Some(Mutation::RingForSource));
        let (base, from_bytes, from) = match source {
            Some(nla) => {
                let at = (nla.0 & (RING_BYTES - 1)) as u32;
                (
                    nla.0 - u64::from(at),
                    RING_BYTES as u32,
                    Span { at, ..get.from },
                )
            }
            None => (self.peer_ring, self.geometry.peer_send, get.from),
        };
        let local = list(ring, to, bytes);
        let remote = list(base, from, from_bytes);
        let token = (self.serial, get.id);
        self.transfers
            .submit(&terms, what, local, remote, token)
            .map_err(|_| self.slots.wait(self.index, self.waits))?;
        self.waits.posted();
        let tagged = Tagged {
            ring,
            bytes,
            to,
            secret: ((self.serial << 32) | (u64::from(get.id) << 8) | u64::from(get.failed))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .to_le_bytes(),
            from: (self.peer, base),
            deadline,
        };
        tagged
            .write(self.fabric, self.port.nic())
            .map_err(|_| TransportError::Never)?;
        self.tagged.insert(token, tagged);
        if get.sink.is_some() {
            self.in_flight.push((token, self.sink));
        }
        if self.mutation == Some(Mutation::Hasty) {
            self.hasty.push(token);
        }
        Ok(())
    }
}
