// SPDX-License-Identifier: GPL-2.0-only

//! Why a frame or message was dropped or refused: numbered reasons and the other counters of the
//! interface.

use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use wire::eth::{self, Reject};

/// Which of the standard statistics a reason adds to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Received and thrown away without an error.
    RxDropped,
    /// Impossible length.
    RxLength,
    /// Damaged or illegal.
    RxFrame,
    /// Announced, but not obtained.
    RxMissed,
    /// Not sent by decision.
    TxDropped,
    /// Not sent because of an error.
    TxError,
    /// Given up after a time-out.
    TxAborted,
    /// An event that cost no frame.
    Event,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $num:literal $name:ident $class:ident $key:literal $text:literal;)*) => {
        /// Numbered reasons; the numbers are stable (docs/exn.md).
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Reason {
            $($(#[$doc])* $name = $num,)*
        }

        impl Reason {
            /// All of them, in the order of their numbers from 0.
            pub(crate) const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// Name of the ethtool counter.
            pub(crate) const fn key(self) -> &'static CStr {
                match self {
                    $(Reason::$name => $key,)*
                }
            }

            /// Name without the terminator, for debugfs.
            pub(crate) fn name(self) -> &'static str {
                self.key().to_str().unwrap_or("")
            }

            /// What a log line says.
            pub(crate) const fn text(self) -> &'static str {
                match self {
                    $(Reason::$name => $text,)*
                }
            }

            /// Where it shows in the standard statistics.
            pub(crate) const fn class(self) -> Class {
                match self {
                    $(Reason::$name => Class::$class,)*
                }
            }
        }
    };
}

reasons! {
    /// Sent while the carrier is off.
    0 TxNoCarrier TxDropped c"tx_no_carrier" "no carrier";
    /// Shorter than an Ethernet header.
    1 TxShort TxError c"tx_short" "frame shorter than an Ethernet header";
    /// Longer than the protocol allows.
    2 TxLong TxError c"tx_long" "frame longer than 65,558 bytes";
    /// No node for the destination address.
    3 TxNoRoute TxDropped c"tx_no_route"
        "destination MAC address belongs to no node and default_nodeid is not set";
    /// Multicast longer than 255 fragments.
    4 TxMulticastLong TxDropped c"tx_multicast_long" "multicast frame longer than 30,600 bytes";
    /// No memory to linearise the frame.
    5 TxNoMemory TxDropped c"tx_no_memory" "no memory to make the frame contiguous";
    /// The checksum could not be finished.
    6 TxChecksum TxError c"tx_checksum" "checksum could not be finished";
    /// DMA mapping failed.
    7 TxMap TxError c"tx_map_error" "DMA mapping failed";
    /// The peer does not fetch, or late, and has as many frames pending as allowed.
    8 TxPeerBound TxDropped c"tx_peer_bound"
        "the peer fetches nothing, or late, and has the allowed number of frames pending";
    /// The port refused to send.
    9 TxPort TxError c"tx_port_error" "the port refused to send";
    /// Not fetched in time.
    10 TxTimeout TxAborted c"tx_rdv_timeout" "announced frame was not fetched in time";
    /// The responder reported an error.
    11 TxNotifyError TxError c"tx_notify_error" "responder notification reports an error";
    /// The peer says that it dropped the frame.
    12 TxPeerDropped TxAborted c"tx_peer_dropped" "the peer dropped an announced frame";
    /// The interface went down before the frame was fetched.
    13 TxFlushed TxAborted c"tx_flushed" "interface went down before the frame was fetched";
    /// The transmit watchdog fired.
    14 TxWatchdog Event c"tx_watchdog" "transmit queue stood still";
    /// Source VPID is not 254, or a reserved node.
    15 RxSource RxFrame c"rx_bad_source" "message from a source that is no network driver";
    /// Message type and tag that the protocol does not know.
    16 RxType RxFrame c"rx_bad_type" "message of unknown type or with wrong tag";
    /// The slot holds an impossible message.
    17 RxMessage RxFrame c"rx_bad_message" "mailbox slot with an impossible message";
    /// A fragment that is not 120 bytes long.
    18 RxFragmentLength RxLength c"rx_bad_fragment_length"
        "fragment that is not the last has not 120 bytes";
    /// Tag sequence broken.
    19 RxSequence RxFrame c"rx_bad_sequence" "fragment sequence broken, partial frame discarded";
    /// More than 65,558 bytes reassembled.
    20 RxTooLong RxLength c"rx_too_long" "reassembled frame longer than 65,558 bytes";
    /// Shorter than a header.
    21 RxShort RxLength c"rx_short" "frame shorter than an Ethernet header";
    /// The end of a frame never came.
    22 RxStale RxFrame c"rx_partial_timeout" "fragments without end, partial frame discarded";
    /// Too many partial frames at once.
    23 RxPartials RxDropped c"rx_partials_full" "too many partial frames at once, oldest discarded";
    /// No memory for an eager frame.
    24 RxNoMemory RxDropped c"rx_no_memory" "no memory for a received frame";
    /// Own multicast came back.
    25 RxOwnMulticast Event c"rx_own_multicast" "own multicast frame came back";
    /// An announcement whose length is not 16.
    26 RxAnnounceLength RxLength c"rx_bad_announce_length" "announcement has not 16 bytes";
    /// An announced frame of absurd size.
    27 RxAnnounceSize RxLength c"rx_bad_announce_size" "announced frame has an absurd size";
    /// Fetched only to be thrown away.
    28 RxDiscarded RxDropped c"rx_rdv_discarded"
        "no memory for an announced frame, fetched and discarded";
    /// The source does not answer GETs.
    29 RxPeerBound RxMissed c"rx_peer_bound"
        "announcement refused: the source leaves too many fetches unanswered";
    /// A GET was not answered.
    30 RxTimeout RxMissed c"rx_rdv_timeout" "fetch of an announced frame was not answered in time";
    /// A completer notification with an error.
    31 RxNotifyError RxFrame c"rx_notify_error" "completer notification reports an error";
    /// The port refused a GET.
    32 RxPort RxMissed c"rx_port_error" "the port refused a fetch";
    /// A notification that belongs to nothing.
    33 Unmatched Event c"notify_unmatched" "notification that matches no transfer";
    /// A notification for something that was given up.
    34 Late Event c"notify_late" "notification for a transfer that was given up";
    /// A notification of a wrong type or command.
    35 BadNotify Event c"notify_bad" "notification of a type or command that was not asked for";
    /// "Frame dropped" for a frame that is not pending.
    36 DropUnmatched Event c"drop_unmatched" "peer says it dropped a frame that is not pending";
    /// Announcements lost when the interface went down.
    37 RxFlushed RxMissed c"rx_flushed" "interface went down before the frame was fetched";
    /// The ports were reopened.
    38 Restart Event c"port_restart"
        "no notification comes although the peer is alive, reopening the ports";
    /// Read so late that its sender may use the memory for something else.
    39 RxOld RxMissed c"rx_rdv_stale" "announcement refused: too old";
    /// The source has too many announcements waiting.
    40 RxWaiting RxMissed c"rx_waiting_bound" "announcement refused: too many of its source wait";
    /// The ports could not be reopened, which is tried again.
    41 RestartFailed Event c"port_restart_failed"
        "the ports can't be opened again, trying again later";
    /// Packets of a fetched frame were lost.
    42 RxHole RxFrame c"rx_rdv_hole" "fetched frame with a hole: packets got lost on their way";
    /// A node sends with more foreign addresses than it may have.
    43 RxMacBound Event c"rx_mac_bound" "too many foreign MAC addresses of one node";
}

impl Reason {
    /// Whether it is worth a log line: not what is a consequence of something logged elsewhere, or
    /// harmless.
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

/// The reason that is counted for what the encoding of messages refuses.
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
            /// All of them.
            pub(crate) const ALL: &'static [Counter] = &[$(Counter::$name),*];

            /// Name of the ethtool counter.
            pub(crate) const fn key(self) -> &'static CStr {
                match self {
                    $(Counter::$name => $key,)*
                }
            }
        }
    };
}

counters! {
    /// Unicast frames sent eagerly.
    TxEager c"tx_eager_frames";
    /// Messages sent for eager frames.
    TxFragments c"tx_eager_fragments";
    /// Multicast frames sent.
    TxMulticast c"tx_multicast_frames";
    /// Unicast frames sent to all nodes.
    TxFlooded c"tx_flooded_frames";
    /// Frames announced.
    TxRdv c"tx_rdv_frames";
    /// Announced frames that were fetched.
    TxRdvDone c"tx_rdv_done";
    /// Frames that had to be made contiguous by the driver.
    TxLinearized c"tx_linearized";
    /// Checksums finished by the driver.
    TxChecksummed c"tx_checksummed";
    /// Short frames that were announced, behind announced ones of their flow.
    TxShortRdv c"tx_rdv_short";
    /// Queue stopped for want of credit.
    TxStopCredit c"tx_stop_credit";
    /// Queue stopped because the bound of frames in flight was reached.
    TxStopFull c"tx_stop_full";
    /// Queue woken.
    TxWake c"tx_wake";
    /// Frames whose bytes were given back to the byte queue limit early.
    TxStalled c"tx_rdv_stalled";
    /// Eager frames received.
    RxEager c"rx_eager_frames";
    /// Messages received with pieces of eager frames.
    RxFragments c"rx_eager_fragments";
    /// Multicast frames received.
    RxMulticast c"rx_multicast_frames";
    /// Eager frames for everybody that were received.
    RxBroadcast c"rx_broadcast_frames";
    /// Frames received whose checksum is to be finished.
    RxUnfinished c"rx_csum_unfinished";
    /// Announcements received.
    RxAnnounced c"rx_rdv_announced";
    /// Announced frames received.
    RxRdv c"rx_rdv_frames";
    /// Announcements that had to wait (memory, credit, bound).
    RxDeferred c"rx_rdv_deferred";
    /// Frames that waited for an earlier one of their source.
    RxHeld c"rx_held_frames";
    /// Announced frames that were not waited for (any longer): what came later went past them.
    RxUnordered c"rx_unordered";
    /// Pauses of message processing because too many announcements wait.
    RxPaused c"rx_paused";
    /// Runs of the poll function.
    PollVelo c"poll_velo";
    /// Runs of it that found notifications.
    PollRma c"poll_rma";
}

const REASONS: usize = Reason::ALL.len();
const COUNTERS: usize = Counter::ALL.len();

/// Gauges that `ethtool -S` shows behind the counters.
pub(crate) const GAUGES: [&CStr; 6] = [
    c"tx_rdv_in_flight",
    c"tx_rdv_quarantined",
    c"rx_rdv_in_flight",
    c"rx_rdv_waiting",
    c"rx_partial_frames",
    c"foreign_macs",
];

/// Names for `ethtool -S`: counters, reasons, gauges.
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

/// The counters of one interface. They survive `down` and `up`.
pub(crate) struct Counters {
    counters: [Atomic<u64>; COUNTERS],
    reasons: [Atomic<u64>; REASONS],
}

impl Counters {
    /// All zero.
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

    /// How often a reason occurred.
    pub(crate) fn reason_count(&self, r: Reason) -> u64 {
        self.reasons.get(r as usize).map_or(0, |v| v.load(Relaxed))
    }

    /// Value of a counter.
    pub(crate) fn get(&self, c: Counter) -> u64 {
        self.counters.get(c as usize).map_or(0, |v| v.load(Relaxed))
    }

    /// Sum of all reasons of a class.
    pub(crate) fn class(&self, class: Class) -> u64 {
        Reason::ALL
            .iter()
            .filter(|r| r.class() == class)
            .fold(0, |n, r| n.wrapping_add(self.reason_count(*r)))
    }

    /// All values in the order of [`NAMES`], without the gauges.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> + '_ {
        Iterator::chain(self.counters.iter(), self.reasons.iter()).map(|v| v.load(Relaxed))
    }
}
