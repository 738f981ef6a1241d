//! Delays of packets from the units of a NIC to the network. Each unit and traffic class has a
//! queue, which is released in random order relative to other queues (G28).

use super::{Draw, Lanes, TimingConfig, TimingStats};
use crate::env::Packet;
use crate::lane::{self, LANES, OVERHEAD};
use crate::nic::{Body, RmaKind, SmfuMessage};
use crate::seed::Purpose;
use std::collections::BTreeMap;

/// Group of packets that enter the network in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    /// VELO messages of a traffic class.
    Velo(u8),
    /// VELO messages of one VPID in all traffic classes, because they are delivered in order (HW
    /// §9.1).
    VeloSource(u16),
    /// RMA requests of a traffic class to completers and responders. Requests of one VPID are
    /// processed in order (HW §10.8).
    RmaRequest(u8),
    /// RMA responses of a traffic class.
    RmaResponse(u8),
    /// SMFU stores. No SMFU packet may pass them (PCIe order, HW §12).
    SmfuPosted,
    /// Loads by the SMFU.
    SmfuRead,
    /// Responses to SMFU loads.
    SmfuResponse,
}

impl Lane {
    /// Returns the lanes of a packet. The flag is true if the packet must follow all earlier SMFU
    /// stores.
    fn of(packet: &Packet) -> ([Option<Self>; 2], bool) {
        let tc = packet.tc;
        match &packet.body {
            Body::Velo(m) => (
                [Some(Lane::Velo(tc)), Some(Lane::VeloSource(m.src_vpid))],
                false,
            ),
            Body::Rma(m) => {
                let lane = match m.kind {
                    RmaKind::GetResponse { .. } | RmaKind::LockResponse { .. } => {
                        Lane::RmaResponse(tc)
                    }
                    _ => Lane::RmaRequest(tc),
                };
                ([Some(lane), None], false)
            }
            Body::Smfu(m) => {
                let lane = match **m {
                    SmfuMessage::Write { .. } => Lane::SmfuPosted,
                    SmfuMessage::Read { .. } => Lane::SmfuRead,
                    SmfuMessage::Response { .. } => Lane::SmfuResponse,
                };
                ([Some(lane), None], true)
            }
        }
    }
}

/// Packets of one NIC that have not entered the network.
pub(crate) struct Injection {
    draw: Draw,
    most: u64,
    lanes: Lanes<Lane>,
    /// Packets by release time in ns and by sending order.
    queue: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    /// Number of waiting bytes in each lane of the network.
    waiting: [u64; LANES],
}

/// Returns the number of bytes that a packet uses of the credit and of the buffer space of its
/// lane.
fn cost(packet: &Packet) -> u64 {
    u64::from(packet.bytes) + OVERHEAD
}

impl Injection {
    pub(super) fn new(cfg: &TimingConfig, seed: u64, nic: usize) -> Self {
        Self {
            draw: Draw::new(cfg, seed, nic, Purpose::Injection),
            most: cfg.inject_delay_ns,
            lanes: Lanes::default(),
            queue: BTreeMap::new(),
            sent: 0,
            waiting: [0; LANES],
        }
    }

    /// Adds a packet that the NIC sends.
    pub(super) fn add(&mut self, now: u64, packet: Packet, stats: &mut TimingStats) {
        let (lanes, smfu) = Lane::of(&packet);
        let after = if smfu {
            self.lanes.last(Lane::SmfuPosted)
        } else {
            0
        };
        let at = self.lanes.place(
            now,
            self.most,
            after,
            lanes.into_iter().flatten(),
            &mut self.draw,
        );
        self.waiting[lane::Lane::of(&packet).index()] += cost(&packet);
        self.sent += 1;
        if self
            .queue
            .last_key_value()
            .is_some_and(|(last, _)| last.0 > at)
        {
            stats.packets_overtook += 1;
        }
        self.queue.insert((at, self.sent), packet);
    }

    /// Removes and returns the next packet that is due.
    pub(super) fn pop_due(&mut self, now: u64, stats: &mut TimingStats) -> Option<Packet> {
        let entry = self.queue.first_entry().filter(|e| e.key().0 <= now)?;
        let packet = entry.remove();
        self.waiting[lane::Lane::of(&packet).index()] -= cost(&packet);
        stats.packets_delayed += 1;
        Some(packet)
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the number of waiting bytes of each lane.
    pub(super) fn waiting(&self) -> &[u64; LANES] {
        &self.waiting
    }

    /// Returns the number of waiting bytes that use the credit of requesters.
    pub(super) fn bytes(&self) -> u64 {
        let requests = lane::Lane::all().filter(|l| l.is_request());
        requests.map(|l| self.waiting[l.index()]).sum()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.lanes = Lanes::default();
        self.waiting = [0; LANES];
    }

    pub(super) fn reseed(&mut self, seed: u64, nic: usize) {
        self.draw.reseed(seed, nic, Purpose::Injection);
    }
}
