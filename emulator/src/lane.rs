//! Which packets share buffers.
//!
//! MODEL decision (G28: number and meaning of the virtual channels are unknown; outports count credits of ten classes, HW
//! §15.3). A *channel* is what has a buffer of its own at every crossbar inport: one per traffic class for messages and
//! requests, one for RMA responses, so that a response never waits behind a request (as HW §12 demands of the SMFU's
//! classes), one for the SMFU, and one for multicasts, which take other routes. SMFU requests and responses share theirs:
//! that keeps PCIe order from end to end (HW §12), and can't lock up because the SMFU takes whatever arrives.
//!
//! A *lane* is a channel of one unit: what queues at the network ports of a NIC, on the way in and on the way out. Units do not
//! wait for each other there (HW §10.8: no order between VELO and RMA), while put and get of one VPID stay in order.

use crate::env::{Dest, Packet};
use crate::nic::{Body, RmaKind};
use std::cell::Cell;
use std::rc::Rc;

/// Number of channels.
pub const CHANNELS: usize = 7;
/// Number of lanes.
pub const LANES: usize = 11;
/// Bytes that a packet takes in buffers besides its payload: headers, check sums.
pub const OVERHEAD: u64 = 64;

const RESPONSES: u8 = 4;
const SMFU: u8 = 5;
const MULTICASTS: u8 = 6;

/// A unit with a lane of its own at the network ports; the RMA's completer and responder share theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Velo = 0,
    Rma = 1,
    Smfu = 2,
}

/// A channel of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane(u8);

impl Lane {
    /// Answers of RMA responder and completer.
    pub const RMA_RESPONSES: Self = Self(8);
    /// Everything of the SMFU.
    pub const SMFU: Self = Self(9);
    /// Multicast messages.
    pub const MULTICASTS: Self = Self(10);

    /// Messages of a traffic class.
    pub const fn velo(tc: u8) -> Self {
        Self(tc & 3)
    }

    /// RMA requests of a traffic class.
    pub const fn rma(tc: u8) -> Self {
        Self(4 + (tc & 3))
    }

    /// All lanes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANES as u8).map(Self)
    }

    /// Lane of a packet.
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

    /// Index, below [`LANES`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Bit in a set of lanes.
    pub const fn bit(self) -> u16 {
        1 << self.0
    }

    /// Channel between crossbars, below [`CHANNELS`].
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

    /// True for what requesters send on their own account. Only this is limited by the sender's overall credit; answers must
    /// not wait for it.
    pub const fn is_request(self) -> bool {
        !matches!(self, Self::RMA_RESPONSES | Self::SMFU)
    }

    /// All lanes of RMA requests.
    pub const RMA_REQUESTS: u16 = 0xF0;
    /// All lanes that end in mailboxes.
    pub const VELO: u16 = 0x0F | Self::MULTICASTS.bit();
    /// Every lane.
    pub const EVERY: u16 = (1 << LANES) - 1;
}

/// Name of a channel.
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

/// A packet's part of the credit of the NIC that sent it. It comes back when this is dropped: when the packet has been stored,
/// or lost.
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

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// As much again, for a copy of the packet.
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
