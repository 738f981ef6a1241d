// SPDX-License-Identifier: GPL-2.0-only

//! Limits and times of the driver: constants, module parameters, and the two settings that ethtool
//! changes at run time. All functions run in any context.

use crate::{env::ms, module_parameters as param};
use extoll_core::time::patience;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel_ext::param::{Param, Tunable};
use protocol::eth::{macs, rendezvous};
use wire::ids::NodeId;

/// Maximum number of messages per frame, equal to the limit of a port's outstanding messages (HW
/// §8).
pub(crate) const MAX_FRAGMENTS: u32 = 255;
/// Maximum length of an eager frame in bytes.
pub(crate) const MAX_EAGER: u32 = MAX_FRAGMENTS * 120;
/// Maximum eager threshold in bytes. It makes the driver send all frames of up to [`MAX_EAGER`]
/// bytes eagerly.
const THRESHOLD_MAX: u32 = MAX_EAGER + 1;
/// Maximum and default MTU in bytes, equal to that of IPoIB in connected mode. Linux supports no
/// Ethernet MTU above 65,535, because bridges and veth reject it. IPv4 packets cannot be longer
/// either. With 65,520 bytes a frame and its header fit into 64 KiB. Peers may send longer frames,
/// up to [`MAX_FRAME`].
pub(crate) const MAX_MTU: u32 = 65_520;
/// Minimum MTU in bytes.
pub(crate) const MIN_MTU: u32 = wire::eth::MIN_MTU;
/// Maximum length in bytes of a frame in the protocol. Peers may have an MTU of 65,536.
pub(crate) const MAX_FRAME: u32 = wire::eth::MAX_FRAME;
/// Minimum value of the setting for the number of announced frames in flight.
const TX_FLIGHT_MIN: u32 = 4;
/// Maximum value of the setting for the number of announced frames in flight.
pub(crate) const TX_FLIGHT_MAX: u32 = 512;
/// Default value of the setting for the number of announced frames in flight.
const TX_FLIGHT: u32 = 256;
/// Maximum number of frames that timed out but stay mapped for late GETs.
pub(crate) const TX_QUARANTINE: u16 = 512;
/// Maximum number of buffers that the NIC may still use when a port is closed. They belong to
/// announced frames in flight or timed out, and to GETs in flight or lost.
pub(crate) const RECLAIM_MAX: usize =
    TX_FLIGHT_MAX as usize + TX_QUARANTINE as usize + RX_FLIGHT as usize + RX_LOST as usize;
/// Maximum number of frames in flight to a peer that does not fetch its frames. If an eighth of the
/// overall limit is less, that value applies.
pub(crate) const STALLED_PEER_BOUND: u16 = 16;
/// Time in ms after which an announced frame counts as stalled. A stalled frame is not charged to
/// the byte queue limit, because one slow peer would otherwise stop the traffic to all others.
pub(crate) const STALL_MS: u32 = 100;
/// Time in ms after which a peer that has not fetched a frame counts as slow. Frames to a slow peer
/// are not charged to the byte queue limit, because they would stop the queue for all other peers.
/// Frames beyond the peer's limit are dropped.
pub(crate) const LAG_MS: u32 = 25;
/// Time in ms for which a peer counts as slow after its last late GET.
pub(crate) const LAG_HOLD_MS: u32 = 1000;
/// Maximum number of messages that are sent in one go with interrupts off.
pub(crate) const BURST: usize = 16;
/// Maximum number of received frames that netpoll collects for later delivery. It equals the
/// maximum number of GETs, because a notification without space for its frame would block the
/// transmit completions behind it.
pub(crate) const NETPOLL_FRAMES: usize = RX_FLIGHT as usize + RX_LOST as usize;
/// Maximum number of peers that are watched because they leave transfers unanswered.
pub(crate) const WATCHED_PEERS: u16 = 64;
/// Maximum number of GETs in flight.
pub(crate) const RX_FLIGHT: u16 = 256;
/// Maximum number of lost GETs (not answered in time) whose buffers are kept.
pub(crate) const RX_LOST: u16 = 256;
/// Maximum number of GETs in flight to one source.
pub(crate) const RX_PEER_BOUND: u16 = 192;
/// Maximum number of announcements that wait for memory, credit or a free slot.
pub(crate) const RX_WAITING: u16 = 1024;
/// Time in ms after which an announced frame for which no memory is available is fetched into the
/// scratch buffer and discarded.
pub(crate) const RX_WAIT_MS: u32 = 500;
/// Maximum number of announced and held frames whose order is tracked.
pub(crate) const ORDER: u16 = 2048;
/// Maximum number of frames of one source that are held until an earlier announced frame arrives.
pub(crate) const ORDER_PER_SOURCE: u16 = 128;
/// Maximum time in ms for which a frame is held.
pub(crate) const ORDER_MS: u32 = 100;
/// Maximum length in bytes of a frame that is flooded because its destination was not learned. ARP
/// probes, neighbour solicitations and TCP SYNs fit. The address is learned from their answers.
pub(crate) const MAX_FLOODED: u32 = 256;
/// Maximum number of learned foreign MAC addresses, i.e. those of containers and virtual machines.
const FOREIGN_MACS: u16 = 1024;
/// Maximum number of learned foreign MAC addresses of one node.
const FOREIGN_MACS_OF_NODE: u16 = 256;
/// Time in ms after which a foreign address without traffic is forgotten, as in the kernel's
/// bridges.
const FOREIGN_AGE_MS: u32 = 300_000;
/// Maximum number of sources with a partial frame.
pub(crate) const PARTIALS: u16 = 64;
/// Time in ms after which a partial frame is discarded if no further fragment arrives.
pub(crate) const PARTIAL_MS: u32 = 1000;
/// Period of housekeeping in ms while work is pending.
pub(crate) const TICK_MS: u32 = 20;
/// Period of housekeeping in ms while no work is pending. If a quarter of `rdv_timeout_ms` is less,
/// that value applies.
pub(crate) const IDLE_MS: u32 = 500;
/// Time in ms after which the mailbox is polled again if the table of announcements was full.
pub(crate) const PAUSE_MS: u32 = 1;
/// Maximum gap in ms between two messages of a peer that counts as present. If half of
/// `rdv_timeout_ms` is more, that value applies. Only a peer that is present can prove that this
/// node's ports are stuck.
pub(crate) const ABSENT_MS: u32 = 1000;
/// Pause in ms between the first two restarts of the ports. The pause doubles with each restart.
pub(crate) const RESTART_MS: u32 = 30_000;
/// Maximum pause in ms between two restarts.
pub(crate) const RESTART_MAX_MS: u32 = 3_600_000;
/// Pause in ms before the first retry of a failed restart. The pause doubles with each retry.
pub(crate) const RETRY_MS: u32 = 500;
/// Maximum pause in ms between two retries.
pub(crate) const RETRY_MAX_MS: u32 = 30_000;
/// Time in ms after which the transmit watchdog fires. `extoll.ko` repairs a stalled requester
/// within 5 s, drops its packets and wakes the queue. The watchdog must not fire before that.
pub(crate) const WATCHDOG_MS: u32 = 8000;
/// Time in ms for which `down` waits for transfers in flight.
pub(crate) const DRAIN_MS: u32 = 500;
/// Maximum number of notifications that `down` processes before it checks the time again.
pub(crate) const DRAIN_BATCH: usize = 64;

/// Returns the first four bytes of all MAC addresses of the network.
pub(crate) fn mac_prefix() -> [u8; 4] {
    param::mac.value().to_be_bytes()
}

/// Set to 1 to send frames with unfinished layer-4 checksums. All peers must accept such frames.
static SKIP_TX_CSUM: Tunable = Tunable::new("exn.skip_tx_csum", 0);
/// Received checksums that the stack verifies. 0: finished checksums, 1: all, 2: none.
static VERIFY_RX_CSUM: Tunable = Tunable::new("exn.verify_rx_csum", 0);
/// Interval in ms in which at most four lines are logged for each reason.
static LOG_INTERVAL_MS: Tunable = Tunable::new("exn.log_interval_ms", 10_000);
/// Time in ms after which an announced frame or a GET times out.
static RDV_TIMEOUT_MS: Tunable = Tunable::new("exn.rdv_timeout_ms", 3_000);
/// Time in ms for which the memory of a transfer that timed out is kept.
static RDV_QUARANTINE_MS: Tunable = Tunable::new("exn.rdv_quarantine_ms", 60_000);

/// Reads the user's overrides of all tunables. May sleep.
pub(crate) fn load_tunables() {
    let all = [
        &SKIP_TX_CSUM,
        &VERIFY_RX_CSUM,
        &LOG_INTERVAL_MS,
        &RDV_TIMEOUT_MS,
        &RDV_QUARANTINE_MS,
    ];
    all.into_iter().for_each(Tunable::load);
}

/// Returns the destination node of unicast frames to unknown foreign MAC addresses, if one is set.
pub(crate) fn default_node() -> Option<NodeId> {
    u16::try_from(param::default_nodeid.value())
        .ok()
        .map(NodeId)
}

/// Returns whether frames are sent with unfinished checksums. All peers must accept them.
pub(crate) fn skip_tx_checksum() -> bool {
    SKIP_TX_CSUM.value() != 0
}

/// Received checksums that the stack verifies. Verification is optional, because the links have CRC
/// and retransmission. Peers may send unfinished checksums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    /// The stack verifies all finished checksums. For frames that arrived in several messages it
    /// also verifies unfinished checksums, because only the frame's checksum reveals that a message
    /// was lost on its way into the mailbox.
    Finished,
    /// The stack verifies all checksums.
    All,
    /// All frames are passed to the stack as verified.
    None,
}

/// Returns the setting of `verify_rx_csum`.
pub(crate) fn verify_rx_checksum() -> Verify {
    match VERIFY_RX_CSUM.value() {
        0 => Verify::Finished,
        1 => Verify::All,
        _ => Verify::None,
    }
}

/// Returns the interval in ms in which at most four lines are logged for each reason.
pub(crate) fn log_interval_ms() -> u32 {
    LOG_INTERVAL_MS.number()
}

/// Bit in the value of `mac` that would make the address a group address.
const GROUP_BIT: i64 = 1 << 24;

/// Returns all parameters and tunables with their permitted ranges.
pub(crate) fn parameters() -> [Param; 8] {
    let nodes = i64::from(NodeId::FIRST_RESERVED.0) - 1;
    let least = rendezvous::shortest_quarantine_ms(timeout_ms());
    [
        Param::new(
            "velo_threshold",
            param::velo_threshold.value(),
            0,
            THRESHOLD_MAX.into(),
        ),
        Param::new("default_nodeid", param::default_nodeid.value(), -1, nodes),
        Param::new("mac", param::mac.value(), 0, u32::MAX.into()).with_clear(GROUP_BIT),
        SKIP_TX_CSUM.param(0, 1),
        VERIFY_RX_CSUM.param(0, 2),
        LOG_INTERVAL_MS.param(0, 86_400_000),
        RDV_TIMEOUT_MS.param(200, 600_000),
        RDV_QUARANTINE_MS.param(least.into(), 3_600_000),
    ]
}

/// Returns the time in ms after which an announced frame or a GET times out.
pub(crate) fn timeout_ms() -> u32 {
    RDV_TIMEOUT_MS.number()
}

/// Returns the time in ms for which the memory of transfers that timed out stays mapped.
/// [`parameters`] ensures that peers with the same timeout do not fetch an announced frame after
/// that time.
pub(crate) fn quarantine_ms() -> u32 {
    RDV_QUARANTINE_MS.number()
}

/// Returns the time in ms for which a peer may leave a frame unfetched. It is `ms`, multiplied in
/// slow guests ([`patience`]). The product is limited to half of `rdv_timeout_ms`.
pub(crate) fn scaled(ms: u32) -> u32 {
    patience(ms).min(ms.max(timeout_ms() / 2))
}

/// Returns the bounds of the table of foreign MAC addresses.
pub(crate) fn foreign_macs() -> macs::Bounds {
    macs::Bounds {
        all: FOREIGN_MACS,
        of_node: FOREIGN_MACS_OF_NODE,
        age: ms(FOREIGN_AGE_MS),
    }
}

/// Settings that ethtool changes at run time.
pub(crate) struct Conf {
    threshold: Atomic<u32>,
    flight: Atomic<u32>,
}

impl Conf {
    /// Creates the settings from defaults and module parameters.
    pub(crate) fn new() -> Self {
        let c = Self {
            threshold: Atomic::new(120),
            flight: Atomic::new(TX_FLIGHT),
        };
        // Cannot fail: the module does not load with a value out of range.
        c.set_threshold(param::velo_threshold.value());
        c
    }

    /// Returns the eager threshold in bytes; shorter unicast frames are sent eagerly.
    #[inline]
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold.load(Relaxed)
    }

    /// Sets the eager threshold in bytes; 0 announces every unicast frame. Returns false if `bytes`
    /// exceeds the maximum.
    pub(crate) fn set_threshold(&self, bytes: u32) -> bool {
        let ok = bytes <= THRESHOLD_MAX;
        if ok {
            self.threshold.store(bytes, Relaxed);
        }
        ok
    }

    /// Returns the limit of announced frames in flight.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.flight.load(Relaxed)
    }

    /// Sets the limit of announced frames in flight. Returns false if it is out of range.
    pub(crate) fn set_flight(&self, frames: u32) -> bool {
        let ok = (TX_FLIGHT_MIN..=TX_FLIGHT_MAX).contains(&frames);
        if ok {
            self.flight.store(frames, Relaxed);
        }
        ok
    }
}
