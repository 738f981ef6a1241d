// SPDX-License-Identifier: GPL-2.0-only

//! What can be configured: load-time facts from module parameters, the rest changeable at run time.

use crate::{machine::ms, module_parameters as param};
use extoll_core::time::patience;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel_ext::param::{Param, Tunable};
use protocol::eth::{macs, rendezvous};
use wire::ids::NodeId;

/// Most messages of one frame: what the port can have outstanding (HW §8).
pub(crate) const MAX_FRAGMENTS: u32 = 255;
/// Longest eager frame in bytes: 30,600.
pub(crate) const MAX_EAGER: u32 = MAX_FRAGMENTS * 120;
/// Largest threshold: all unicast frames are eager that can be.
const THRESHOLD_MAX: u32 = MAX_EAGER + 1;
/// Largest and default MTU, that of IPoIB in connected mode. The stack knows no Ethernet MTU above
/// 65,535 (bridges and veth refuse more), IPv4 no packet above that. With 65,520 a frame and its
/// header fit into 64 KiB. Peers may send longer frames, up to [`MAX_FRAME`].
pub(crate) const MAX_MTU: u32 = 65_520;
/// Smallest MTU.
pub(crate) const MIN_MTU: u32 = wire::eth::MIN_MTU;
/// Longest frame that the protocol allows: peers may have an MTU of 65,536.
pub(crate) const MAX_FRAME: u32 = wire::eth::MAX_FRAME;
/// Fewest announced frames that may be allowed in flight.
const TX_FLIGHT_MIN: u32 = 4;
/// Most announced frames that may be in flight.
pub(crate) const TX_FLIGHT_MAX: u32 = 512;
/// Announced frames in flight by default.
const TX_FLIGHT: u32 = 256;
/// Frames given up but kept readable for late fetches.
pub(crate) const TX_QUARANTINE: u16 = 512;
/// Most objects that a port can leave when it is closed: frames announced and given up, fetches.
pub(crate) const LEFT_MAX: usize =
    TX_FLIGHT_MAX as usize + TX_QUARANTINE as usize + RX_FLIGHT as usize + RX_LOST as usize;
/// Frames in flight that a peer may have which fetches nothing; an eighth of all if that is less.
pub(crate) const STALLED_PEER_BOUND: u16 = 16;
/// After this time an announced frame no longer counts for the byte queue limit, so that one slow
/// peer can't stop all others.
pub(crate) const STALL_MS: u32 = 100;
/// A peer that lets an announced frame wait for so long lags: what goes to it doesn't count for the
/// byte queue limit, and beyond its part is dropped, so that it can't stop the queue of all others.
pub(crate) const LAG_MS: u32 = 25;
/// For so long it does then.
pub(crate) const PROBATION_MS: u32 = 1000;
/// Messages that are sent with interrupts off.
pub(crate) const BURST: usize = 16;
/// Received frames that netpoll may find, but not deliver, and that wait for nothing else: as many
/// as there can be fetches, since what does not fit would stay in the queue before the frames sent.
pub(crate) const FOUND: usize = RX_FLIGHT as usize + RX_LOST as usize;
/// Peers that are watched because they leave transfers unanswered.
pub(crate) const SUSPECTS: u16 = 64;
/// Fetches in flight.
pub(crate) const RX_FLIGHT: u16 = 256;
/// Fetches not answered in time whose buffers are kept.
pub(crate) const RX_LOST: u16 = 256;
/// Fetches in flight from one source.
pub(crate) const RX_PEER_BOUND: u16 = 192;
/// Announcements that wait for memory, credit or a place.
pub(crate) const RX_WAITING: u16 = 1024;
/// An announcement that got no memory for so long is fetched into the scratch buffer and discarded.
pub(crate) const RX_PATIENCE_MS: u32 = 500;
/// Announcements and frames whose order is known.
pub(crate) const ORDER: u16 = 2048;
/// Frames of one source that may wait for an earlier one that it has announced.
pub(crate) const ORDER_PART: u16 = 128;
/// How long they wait, in ms.
pub(crate) const ORDER_MS: u32 = 100;
/// Maximum length of a frame that is flooded because its destination was not learned, in bytes. ARP
/// probes, neighbour solicitations and TCP SYNs fit; their answers teach the address.
pub(crate) const MAX_FLOODED: u32 = 256;
/// MAC addresses that are not those of nodes, but of containers and virtual machines on them.
const FOREIGN_MACS: u16 = 1024;
/// Of one node.
const FOREIGN_MACS_OF_NODE: u16 = 256;
/// Time for which a silent one is known, in ms: that of the kernel's bridges.
const FOREIGN_AGE_MS: u32 = 300_000;
/// Partial frames at once.
pub(crate) const PARTIALS: u16 = 64;
/// A partial frame whose next fragment doesn't come in this time is discarded.
pub(crate) const PARTIAL_MS: u32 = 1000;
/// Period of housekeeping while something is pending.
pub(crate) const TICK_MS: u32 = 20;
/// Period of housekeeping while nothing is; a quarter of the time-out of announcements if that is
/// less.
pub(crate) const IDLE_MS: u32 = 500;
/// After this time messages are looked for again that there was no room for.
pub(crate) const PAUSE_MS: u32 = 1;
/// A peer that is not heard of for longer, or for half of the time-out, is away, and does not show
/// that our own ports are stuck.
pub(crate) const GAP_MS: u32 = 1000;
/// Pause between the first two times that ports are reopened, which doubles with each.
pub(crate) const RESTART_MS: u32 = 30_000;
/// It grows to this.
pub(crate) const RESTART_MAX_MS: u32 = 3_600_000;
/// Pause before ports are opened that could not be reopened, which doubles with each attempt.
pub(crate) const RETRY_MS: u32 = 500;
/// It grows to this.
pub(crate) const RETRY_MAX_MS: u32 = 30_000;
/// How long the transmit queue may stand still. Longer than the core tries to repair what a
/// requester refuses (5 s), which ends by giving up packets and waking the queue.
pub(crate) const WATCHDOG_MS: u32 = 8000;
/// How long `down` waits for transfers in flight.
pub(crate) const DRAIN_MS: u32 = 500;
/// Notifications that `down` handles before it looks at the time again.
pub(crate) const DRAIN_BATCH: usize = 64;

/// Returns the four bytes that all MAC addresses of the network begin with.
pub(crate) fn mac_prefix() -> [u8; 4] {
    param::mac.value().to_be_bytes()
}

/// 1 leaves layer-4 checksums of sent frames unfinished; all peers must accept such frames.
static SKIP_TX_CSUM: Tunable = Tunable::new("exn.skip_tx_csum", 0);
/// Checksums that the stack verifies: 0 finished ones, 1 all, 2 none.
static VERIFY_RX_CSUM: Tunable = Tunable::new("exn.verify_rx_csum", 0);
/// Interval in ms in which at most four lines per reason are logged.
static LOG_INTERVAL_MS: Tunable = Tunable::new("exn.log_interval_ms", 10_000);
/// Time in ms after which an announced frame or a GET is given up.
static RDV_TIMEOUT_MS: Tunable = Tunable::new("exn.rdv_timeout_ms", 3_000);
/// Time in ms for which memory of a transfer that was given up is kept.
static RDV_QUARANTINE_MS: Tunable = Tunable::new("exn.rdv_quarantine_ms", 60_000);

/// Reads the overrides of all tunables. May sleep.
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

/// Where unicast frames for foreign MAC addresses go.
pub(crate) fn default_node() -> Option<NodeId> {
    u16::try_from(param::default_nodeid.value())
        .ok()
        .map(NodeId)
}

/// Whether frames are sent with unfinished checksums, by agreement with all peers.
pub(crate) fn skip_tx_checksum() -> bool {
    SKIP_TX_CSUM.value() != 0
}

/// What is done about checksums of received frames. The links have CRC and retransmission, and
/// peers may leave checksums unfinished.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    /// The stack verifies all but unfinished ones. Of frames that came in several messages it
    /// verifies those, too: a receiver can't always tell that a message of a frame got lost on its
    /// way into the mailbox, only the checksum of the frame does.
    Finished,
    /// The stack verifies all.
    All,
    /// Nobody verifies any.
    None,
}

/// What `verify_rx_csum` says.
pub(crate) fn verify_rx_checksum() -> Verify {
    match VERIFY_RX_CSUM.value() {
        0 => Verify::Finished,
        1 => Verify::All,
        _ => Verify::None,
    }
}

/// Time in which a reason gets few log lines, in ms.
pub(crate) fn log_interval_ms() -> u32 {
    LOG_INTERVAL_MS.number()
}

/// Bit of `mac` that makes an address one of a multicast group.
const GROUP_BIT: i64 = 1 << 24;

/// Returns all parameters and tunables with their ranges.
pub(crate) fn parameters() -> [Param; 8] {
    let nodes = i64::from(NodeId::FIRST_RESERVED.0) - 1;
    let least = rendezvous::shortest_keep_ms(timeout_ms());
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

/// Time after which an announced frame, or a fetch, is given up, in ms.
pub(crate) fn timeout_ms() -> u32 {
    RDV_TIMEOUT_MS.number()
}

/// Time for which what was given up stays mapped, in ms: longer ([`parameters`]) than peers take
/// what was announced for fresh enough to be fetched, if they have the same time-out.
pub(crate) fn quarantine_ms() -> u32 {
    RDV_QUARANTINE_MS.number()
}

/// Returns for how long peers may let frames wait, in ms: `ms`, multiplied in slow guests
/// ([`patience`]). At most half of the time-out then, because what waits longer is given up.
pub(crate) fn patient(ms: u32) -> u32 {
    patience(ms).min(ms.max(timeout_ms() / 2))
}

/// Bounds of the table of foreign MAC addresses.
pub(crate) fn foreign_macs() -> macs::Bounds {
    macs::Bounds {
        all: FOREIGN_MACS,
        of_node: FOREIGN_MACS_OF_NODE,
        age: ms(FOREIGN_AGE_MS),
    }
}

/// What can be changed at run time.
pub(crate) struct Conf {
    threshold: Atomic<u32>,
    flight: Atomic<u32>,
}

impl Conf {
    /// Defaults and module parameters.
    pub(crate) fn new() -> Self {
        let c = Self {
            threshold: Atomic::new(120),
            flight: Atomic::new(TX_FLIGHT),
        };
        // In range: the module does not load otherwise.
        c.set_threshold(param::velo_threshold.value());
        c
    }

    /// Unicast frames shorter than this are sent eagerly, in bytes.
    #[inline]
    pub(crate) fn threshold(&self) -> u32 {
        self.threshold.load(Relaxed)
    }

    /// Changes the threshold; false if it is longer than what can be sent eagerly. 0 announces
    /// every unicast frame.
    pub(crate) fn set_threshold(&self, bytes: u32) -> bool {
        let ok = bytes <= THRESHOLD_MAX;
        if ok {
            self.threshold.store(bytes, Relaxed);
        }
        ok
    }

    /// Announced frames that may be in flight.
    #[inline]
    pub(crate) fn flight(&self) -> u32 {
        self.flight.load(Relaxed)
    }

    /// Changes the number of announced frames in flight; false if it is out of range.
    pub(crate) fn set_flight(&self, frames: u32) -> bool {
        let ok = (TX_FLIGHT_MIN..=TX_FLIGHT_MAX).contains(&frames);
        if ok {
            self.flight.store(frames, Relaxed);
        }
        ok
    }
}
