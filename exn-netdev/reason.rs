// SPDX-License-Identifier: GPL-2.0-only

//! Counters of an interface: numbered drop reasons and counts of normal operation. All operations
//! are atomic and run in any context.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use wire::eth::{self, Reject};

/// Standard statistic (`ip -s link`) that a reason adds to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Received intact, but dropped by this node.
    RxDropped,
    /// Received with an invalid length.
    RxLength,
    /// Received damaged or in violation of the protocol.
    RxFrame,
    /// Announced by a peer, but never fetched by this node.
    RxMissed,
    /// Dropped before sending because of a limit or a missing route.
    TxDropped,
    /// Not sent because of an error.
    TxError,
    /// Announced, but not fetched in time or dropped by the peer.
    TxAborted,
    /// Event in which no frame is lost.
    Event,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $num:literal $name:ident $class:ident $key:literal $text:literal;)*) => {
        /// Drop reasons. Their numbers are stable (docs/exn.md).
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Reason {
            $($(#[$doc])* $name = $num,)*
        }

        impl Reason {
            /// All reasons in the order of their numbers, from 0.
            pub(crate) const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// Returns the name of the ethtool counter.
            pub(crate) const fn key(self) -> &'static CStr {
                match self {
                    $(Reason::$name => $key,)*
                }
            }

            /// Returns the name of the counter as `str`, for debugfs.
            pub(crate) fn name(self) -> &'static str {
                self.key().to_str().unwrap_or("")
            }

            /// Returns the text of the log line.
            pub(crate) const fn text(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)*
                }
            }

            /// Returns the standard statistic that the reason adds to.
            pub(crate) const fn class(self) -> Class {
                match self {
                    $(Reason::$name => Class::$class,)*
                }
            }
        }
    };
}

reasons! {
    /// Frame was sent while the carrier is off.
    0 TxNoCarrier TxDropped c"tx_no_carrier" "no carrier";
    /// Frame to send is shorter than an Ethernet header.
    1 TxShort TxError c"tx_short" "frame shorter than an Ethernet header";
    /// Frame to send is longer than the protocol allows.
    2 TxLong TxError c"tx_long" "frame longer than 65,558 bytes";
    /// Destination address belongs to no known node.
    3 TxNoRoute TxDropped c"tx_no_route"
        "destination MAC address belongs to no node and default_nodeid is not set";
    /// Multicast frame is longer than 255 fragments.
    4 TxMulticastLong TxDropped c"tx_multicast_long" "multicast frame longer than 30,600 bytes";
    /// Memory for making the frame contiguous could not be allocated.
    5 TxNoMemory TxDropped c"tx_no_memory" "no memory to make the frame contiguous";
    /// The frame's checksum could not be finished.
    6 TxChecksum TxError c"tx_checksum" "checksum could not be finished";
    /// The frame could not be mapped for DMA.
    7 TxMap TxError c"tx_map_error" "DMA mapping failed";
    /// Peer is stalled or slow and already has the allowed number of frames pending.
    8 TxPeerBound TxDropped c"tx_peer_bound"
        "peer fetches too slowly and has reached its limit of pending frames";
    /// VELO port cannot send any more, because the NIC was removed or the port is closed.
    9 TxPort TxError c"tx_port_error" "VELO port cannot send: NIC is gone or port is closed";
    /// Peer did not fetch the frame in time.
    10 TxTimeout TxAborted c"tx_rdv_timeout" "announced frame was not fetched in time";
    /// Responder notification reports an error.
    11 TxNotifyError TxError c"tx_notify_error" "responder notification reports an error";
    /// Peer reports that it dropped the frame.
    12 TxPeerDropped TxAborted c"tx_peer_dropped" "the peer dropped an announced frame";
    /// Interface was set down before the peer fetched the frame.
    13 TxFlushed TxAborted c"tx_flushed" "interface went down before the frame was fetched";
    /// The transmit watchdog fired.
    14 TxWatchdog Event c"tx_watchdog" "transmit queue stalled";
    /// Source VPID is not 254, or the source node ID is reserved.
    15 RxSource RxFrame c"rx_bad_source"
        "message from a source that is not the port of a network driver";
    /// Type and tag of the message are unknown.
    16 RxType RxFrame c"rx_bad_type" "message of unknown type or with wrong tag";
    /// Mailbox slot contains a message of invalid length or with its error bit set.
    17 RxMessage RxFrame c"rx_bad_message" "message of invalid length or with its error bit set";
    /// Non-final fragment is not 120 bytes long.
    18 RxFragmentLength RxLength c"rx_bad_fragment_length"
        "non-final fragment is not 120 bytes long";
    /// Tag sequence of a frame's fragments is broken.
    19 RxSequence RxFrame c"rx_bad_sequence" "fragment sequence broken, partial frame discarded";
    /// Reassembled frame exceeds 65,558 bytes.
    20 RxTooLong RxLength c"rx_too_long" "reassembled frame longer than 65,558 bytes";
    /// Received frame is shorter than an Ethernet header.
    21 RxShort RxLength c"rx_short" "frame shorter than an Ethernet header";
    /// Final fragment of a frame never arrived.
    22 RxStale RxFrame c"rx_partial_timeout"
        "final fragment never arrived, partial frame discarded";
    /// Too many sources have a partial frame.
    23 RxPartials RxDropped c"rx_partials_full" "too many partial frames at once, oldest discarded";
    /// Memory for an eager frame could not be allocated.
    24 RxNoMemory RxDropped c"rx_no_memory" "no memory for a received frame";
    /// A multicast frame of this node came back.
    25 RxOwnMulticast Event c"rx_own_multicast" "own multicast frame came back";
    /// Announcement is not 16 bytes long.
    26 RxAnnounceLength RxLength c"rx_bad_announce_length" "announcement is not 16 bytes long";
    /// Announced length is invalid.
    27 RxAnnounceSize RxLength c"rx_bad_announce_size" "announced frame has an invalid length";
    /// No memory was available for an announced frame. It was fetched to free the sender's buffer,
    /// and discarded.
    28 RxDiscarded RxDropped c"rx_rdv_discarded"
        "no memory for an announced frame, fetched and discarded";
    /// Source leaves too many GETs unanswered.
    29 RxPeerBound RxMissed c"rx_peer_bound"
        "announcement dropped: its source leaves too many GETs unanswered";
    /// GET was not answered in time.
    30 RxTimeout RxMissed c"rx_rdv_timeout" "GET of an announced frame was not answered in time";
    /// Completer notification reports an error.
    31 RxNotifyError RxFrame c"rx_notify_error" "completer notification reports an error";
    /// RMA port cannot post GETs.
    32 RxPort RxMissed c"rx_port_error"
        "announcement dropped: RMA port cannot fetch (VPID not enabled yet, or NIC gone)";
    /// Notification matches no transfer.
    33 Unmatched Event c"notify_unmatched" "notification that matches no transfer";
    /// Notification for a transfer that had timed out.
    34 Late Event c"notify_late" "notification for a transfer that was given up";
    /// Notification has an unexpected type or command.
    35 BadNotify Event c"notify_bad" "notification of an unexpected type or command";
    /// Peer reports a drop of a frame that is not pending.
    36 DropUnmatched Event c"drop_unmatched" "peer says it dropped a frame that is not pending";
    /// Interface was set down before the frame was fetched.
    37 RxFlushed RxMissed c"rx_flushed" "interface went down before the frame was fetched";
    /// Ports are reopened because they are stuck.
    38 Restart Event c"port_restart"
        "no notification arrives although the peer is alive, reopening the ports";
    /// Announcement is too old: its sender may already reuse the frame's memory.
    39 RxOld RxMissed c"rx_rdv_stale" "announcement dropped: too old";
    /// Too many announcements from the same source wait to be fetched.
    40 RxWaiting RxMissed c"rx_waiting_bound"
        "announcement dropped: too many of its source are waiting";
    /// Reopening the ports failed; the driver retries.
    41 RestartFailed Event c"port_restart_failed"
        "ports could not be reopened, retrying later";
    /// Packets of a fetched frame were lost.
    42 RxHole RxFrame c"rx_rdv_hole"
        "fetched frame is incomplete: packets were lost in the network";
    /// A node sends from more foreign MAC addresses than allowed.
    43 RxMacBound Event c"rx_mac_bound" "too many foreign MAC addresses from one node";
}

impl Reason {
    /// Returns whether events of this reason are logged. Harmless events are only counted, as are
    /// consequences of an event that is logged elsewhere.
    pub(crate) const fn is_logged(self) -> bool {
        !matches!(
            self,
            Reason::TxNoCarrier
                | Reason::RxOwnMulticast
                | Reason::Late
                | Reason::TxFlushed
                | Reason::RxFlushed
                | Reason::RestartFailed
        )
    }
}

/// Returns the reason to count for a message that the decoder rejected.
pub(crate) fn reason_of(reject: &Reject) -> Reason {
    use eth::Reason as W;
    match reject.reason {
        W::Empty | W::MessageLength => Reason::RxMessage,
        W::SourceVpid => Reason::RxSource,
        W::FragmentLength => Reason::RxFragmentLength,
        W::TagBreak | W::Tail => Reason::RxSequence,
        W::FrameTooLong => Reason::RxTooLong,
        W::Runt => Reason::RxShort,
        W::AnnouncementLength => Reason::RxAnnounceLength,
        W::AnnouncedSize => Reason::RxAnnounceSize,
        W::OwnGroupFrame => Reason::RxOwnMulticast,
        W::NotificationType | W::NotificationError => Reason::BadNotify,
        W::LastTag | W::DroppedLength | W::UnexpectedMtt => Reason::RxType,
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident $key:literal;)*) => {
        /// Counters of normal operation.
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All counters in the order of their numbers.
            pub(crate) const ALL: &'static [Counter] = &[$(Counter::$name),*];

            /// Returns the name of the ethtool counter.
            pub(crate) const fn key(self) -> &'static CStr {
                match self {
                    $(Counter::$name => $key,)*
                }
            }
        }
    };
}

counters! {
    /// Eager unicast frames sent.
    TxEager c"tx_eager_frames";
    /// Messages sent for eager and multicast frames.
    TxFragments c"tx_eager_fragments";
    /// Multicast frames sent.
    TxMulticast c"tx_multicast_frames";
    /// Unicast frames flooded to all nodes.
    TxFlooded c"tx_flooded_frames";
    /// Frames announced to a peer.
    TxRdv c"tx_rdv_frames";
    /// Announced frames that their peer has fetched.
    TxRdvDone c"tx_rdv_done";
    /// Frames linearised by the driver.
    TxLinearized c"tx_linearized";
    /// Checksums finished by the driver.
    TxChecksummed c"tx_checksummed";
    /// Frames shorter than the threshold that were announced because announced frames of their flow
    /// were in flight.
    TxShortRdv c"tx_rdv_short";
    /// Times that the queue was stopped because the port had no credit.
    TxStopCredit c"tx_stop_credit";
    /// Times that the queue was stopped because the limit of frames in flight was reached.
    TxStopFull c"tx_stop_full";
    /// Times that the queue was woken.
    TxWake c"tx_wake";
    /// Announced frames that stalled and are no longer charged to the byte queue limit and to their
    /// socket.
    TxStalled c"tx_rdv_stalled";
    /// Eager frames received.
    RxEager c"rx_eager_frames";
    /// Messages received with fragments of eager frames.
    RxFragments c"rx_eager_fragments";
    /// Multicast frames received.
    RxMulticast c"rx_multicast_frames";
    /// Eager broadcast frames received.
    RxBroadcast c"rx_broadcast_frames";
    /// Frames received with an unfinished checksum.
    RxUnfinished c"rx_csum_unfinished";
    /// Announcements received.
    RxAnnounced c"rx_rdv_announced";
    /// Announced frames that were fetched and received.
    RxRdv c"rx_rdv_frames";
    /// Attempts in which no waiting announcement could be fetched, for lack of memory or credit, or
    /// because a limit was reached.
    RxDeferred c"rx_rdv_deferred";
    /// Frames that were held until an earlier frame of their source was complete.
    RxHeld c"rx_held_frames";
    /// Announced frames that later frames of their source overtook, because the frame did not
    /// arrive in time.
    RxUnordered c"rx_unordered";
    /// Runs of the poll function that left messages in the mailbox, because too many announcements
    /// waited.
    RxPaused c"rx_paused";
    /// Runs of the poll function.
    PollVelo c"poll_velo";
    /// Runs of the poll function that found RMA notifications.
    PollRma c"poll_rma";
}

const REASONS: usize = Reason::ALL.len();
const COUNTERS: usize = Counter::ALL.len();

/// Gauges that `ethtool -S` shows after the counters.
pub(crate) const GAUGES: [&CStr; 6] = [
    c"tx_rdv_in_flight",
    c"tx_rdv_quarantined",
    c"rx_rdv_in_flight",
    c"rx_rdv_waiting",
    c"rx_partial_frames",
    c"foreign_macs",
];

/// Names for `ethtool -S`: counters, reasons, gauges, in the order of [`Counters::values`].
pub(crate) const NAMES: [&CStr; COUNTERS + REASONS + GAUGES.len()] = {
    let mut names = [c""; COUNTERS + REASONS + GAUGES.len()];
    let mut i = 0;
    while i < COUNTERS {
        names[i] = Counter::ALL[i].key();
        i += 1;
    }
    let mut i = 0;
    while i < REASONS {
        names[COUNTERS + i] = Reason::ALL[i].key();
        i += 1;
    }
    let mut i = 0;
    while i < GAUGES.len() {
        names[COUNTERS + REASONS + i] = GAUGES[i];
        i += 1;
    }
    names
};

/// Counters of one interface. They keep their values when the interface is set down and up.
pub(crate) struct Counters {
    counters: [Atomic<u64>; COUNTERS],
    reasons: [Atomic<u64>; REASONS],
}

impl Counters {
    /// Creates counters with value 0.
    pub(crate) fn new() -> Self {
        Self {
            counters: core::array::from_fn(|_| Atomic::new(0)),
            reasons: core::array::from_fn(|_| Atomic::new(0)),
        }
    }

    /// Counts one event. Any context.
    #[inline]
    pub(crate) fn inc(&self, c: Counter) {
        self.add(c, 1);
    }

    /// Counts `n` events. Any context.
    #[inline]
    pub(crate) fn add(&self, c: Counter, n: u64) {
        if let Some(v) = self.counters.get(c as usize) {
            v.fetch_add(n, Relaxed);
        }
    }

    /// Counts a reason `n` times. Any context.
    pub(crate) fn reason(&self, r: Reason, n: u64) {
        if let Some(v) = self.reasons.get(r as usize) {
            v.fetch_add(n, Relaxed);
        }
    }

    /// Returns the number of events of a reason.
    pub(crate) fn reason_count(&self, r: Reason) -> u64 {
        self.reasons.get(r as usize).map_or(0, |v| v.load(Relaxed))
    }

    /// Returns the value of a counter.
    pub(crate) fn get(&self, c: Counter) -> u64 {
        self.counters.get(c as usize).map_or(0, |v| v.load(Relaxed))
    }

    /// Returns the sum of all reasons of a class.
    pub(crate) fn class(&self, class: Class) -> u64 {
        Reason::ALL
            .iter()
            .filter(|r| r.class() == class)
            .fold(0, |n, r| n.wrapping_add(self.reason_count(*r)))
    }

    /// Returns all values in the order of [`NAMES`], without the gauges.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> + '_ {
        Iterator::chain(self.counters.iter(), self.reasons.iter()).map(|v| v.load(Relaxed))
    }
}
