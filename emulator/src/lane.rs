//! Classes of packets that share buffers: channels and lanes.
//!
//! Each *channel* has a separate buffer at every crossbar inport. The set of channels is a MODEL
//! decision, because number and meaning of the chip's virtual channels are unknown (G28). Outports
//! count credits of ten classes (HW §15.3). The channels are:
//!
//! * one per traffic class for messages and requests;
//! * one for RMA responses, so that a response never waits behind a request (as HW §12 demands for
//!   the SMFU's classes);
//! * one for the SMFU. Its requests and responses share the channel, which keeps PCIe order from
//!   end to end (HW §12). They can't deadlock, because the SMFU accepts every packet that arrives;
//! * one for multicasts, which use other routes.
//!
//! A *lane* is the share of one unit in a channel. At the network ports of a NIC, packets queue per
//! lane, in both directions. Units do not wait for each other there, because there is no order
//! between VELO and RMA (HW §10.8). PUTs and GETs of one VPID stay in order.

use crate::env::{Dest, Packet};
use crate::nic::{Body, RmaKind};
use std::cell::Cell;
use std::rc::Rc;

/// Number of channels.
pub const CHANNELS: usize = 7;
/// Number of lanes.
pub const LANES: usize = 11;
/// Number of bytes for headers and checksums that a packet occupies in a buffer in addition to its
/// payload.
pub const OVERHEAD: u64 = 64;

const RESPONSES: u8 = 4;
const SMFU: u8 = 5;
const MULTICASTS: u8 = 6;

/// A unit that has separate lanes at the network ports. The RMA's completer and responder share
/// their lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Velo = 0,
    Rma = 1,
    Smfu = 2,
}

/// A channel of one unit, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u8);

impl Lane {
    /// Lane of responses of the RMA's responder and completer.
    pub const RMA_RESPONSES: Self = Self(8);
    /// Lane of all SMFU packets.
    pub const SMFU: Self = Self(9);
    /// Lane of multicast messages.
    pub const MULTICASTS: Self = Self(10);

    /// Returns the lane of VELO messages of a traffic class.
    pub const fn velo(tc: u8) -> Self {
        Self(tc & 3)
    }

    /// Returns the lane of RMA requests of a traffic class.
    pub const fn rma(tc: u8) -> Self {
        Self(4 + (tc & 3))
    }

    /// Iterates over all lanes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANES as u8).map(Self)
    }

    /// Returns the lane of a packet.
    pub fn of(packet: &Packet) -> Self {
        if matches!(packet.dst, Dest::Group(_)) {
            return Self::MULTICASTS;
        }
        match &packet.body {
            Body::Smfu(_) => Self::SMFU,
            Body::Rma(m) => match m.kind {
                RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. } => Self::RMA_RESPONSES,
                _ => Self::rma(packet.tc),
            },
            Body::Velo(_) => Self::velo(packet.tc),
        }
    }

    /// Returns the index of the lane, below [`LANES`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the bit of the lane in a set of lanes.
    pub const fn bit(self) -> u16 {
        1 << self.0
    }

    /// Returns the lane's channel between crossbars, below [`CHANNELS`].
    pub(crate) const fn channel(self) -> usize {
        (match self {
            Self(n @ 0..4) => n,
            Self(n @ 4..8) => n - 4,
            Self::RMA_RESPONSES => RESPONSES,
            Self::SMFU => SMFU,
            _ => MULTICASTS,
        }) as usize
    }

    pub(crate) const fn port(self) -> Port {
        match self {
            Self(4..=8) => Port::Rma,
            Self::SMFU => Port::Smfu,
            _ => Port::Velo,
        }
    }

    /// Returns true for packets that requesters send. The sender's total credit limits only these
    /// packets, because responses must not wait for it.
    pub const fn is_request(self) -> bool {
        !matches!(self, Self::RMA_RESPONSES | Self::SMFU)
    }

    /// Set of all lanes of RMA requests.
    pub const RMA_REQUESTS: u16 = 0xF0;
    /// Set of all lanes whose packets are stored in mailboxes.
    pub const VELO: u16 = 0x0F | Self::MULTICASTS.bit();
    /// Set of all lanes.
    pub const EVERY: u16 = (1 << LANES) - 1;
}

/// Returns the name of a channel.
pub(crate) const fn channel_name(channel: usize) -> &'static str {
    match channel {
        0 => "tc0",
        1 => "tc1",
        2 => "tc2",
        3 => "tc3",
        4 => "responses",
        5 => "smfu",
        _ => "multicasts",
    }
}

/// Credit of the sending NIC that a packet uses. The receipt is dropped when the packet has been
/// stored or lost; the drop returns the credit.
#[derive(Debug)]
pub struct Receipt {
    in_flight: Rc<Cell<u64>>,
    size: u64,
}

impl Receipt {
    /// Takes `size` bytes of credit.
    pub fn new(in_flight: Rc<Cell<u64>>, size: u64) -> Self {
        in_flight.set(in_flight.get() + size);
        Self { in_flight, size }
    }

    /// Returns the number of bytes of credit.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Takes the same amount of credit again, for a copy of the packet.
    pub fn copy(&self) -> Self {
        Self::new(Rc::clone(&self.in_flight), self.size)
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let left = self.in_flight.get().saturating_sub(self.size);
        self.in_flight.set(left);
    }
}
