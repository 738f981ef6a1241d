// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Rendezvous of EXT-Eth: the sender announces a frame, and the receiver fetches it with one GET.
//! The NICs of both nodes report the end of the GET by a notification with the address of the last
//! fragment (EXT §4, docs/eth-protocol.md).
//!
//! [`Sender`] is the table of announced frames at the sender. States of a frame ([`FlightState`]):
//!
//! * `Announced`: the peer may fetch the frame.
//! * `Stalled`: the peer did not fetch the frame within [`Limits::stall`]. The frame does not count
//!   as in flight any more, and the number of further frames to the peer is limited.
//! * `GivenUp`: the peer did not fetch the frame within [`Limits::timeout`], or reports that it
//!   dropped it. The memory remains mapped and unchanged for [`Limits::quarantine`], because a GET
//!   may still read it.
//! * `Ended`: the frame was fetched, its GET failed, or its quarantine has expired. The memory
//!   belongs to the caller again.
//!
//! The driver calls [`Sender::admit`] and [`Sender::announce`] for each frame, [`Sender::notified`]
//! for responder notifications, [`Sender::dropped`] if a peer reports a dropped frame, and
//! [`Sender::age`] periodically.
//!
//! [`Waiting`] and [`Fetches`] belong to the receiver. States of an announcement ([`FetchState`]):
//!
//! * `Waiting`: the announcement is in the queue [`Waiting`], which the receive path owns.
//! * `Fetching`: the GET is posted, and the announcement is in the table [`Fetches`], which the
//!   receive path shares with the context that processes notifications.
//! * `Discarding`: like `Fetching`, but the GET writes to the scratch buffer. The GET only releases
//!   the sender's memory, and the frame is lost.
//! * `Lost`: the GET was not answered within [`Limits::timeout`]. The buffer remains mapped for
//!   [`Limits::quarantine`], because data may still arrive.
//! * `Ended`: the frame has arrived, the GET failed, the announcement was refused, or the
//!   quarantine has expired.
//!
//! The driver calls [`Waiting::push`] for each announcement, [`Waiting::pump`] when a GET may have
//! become possible, [`Fetches::notified`] for completer notifications, and [`Fetches::age`]
//! periodically.
//!
//! Rules of both ends:
//!
//! * Memory that a GET may still read or write is not freed. It remains in quarantine for
//!   [`Limits::quarantine`].
//! * A transfer ends only by a notification or report of its own peer. Notifications of other peers
//!   are ignored.
//! * A fetched frame is valid only if all of its packets have arrived. The owner of the buffers
//!   checks this with validity tags ([`crate::base::validity`]). An incomplete frame cannot be
//!   fetched again, because its sender reuses the memory after the notification.
//! * A peer that does not answer may occupy only a limited number of slots in the tables. Transfers
//!   with other peers do not wait for it.

mod flows;
mod lagging;
mod receiver;
mod sender;
mod waiting;

pub use crate::Shared;
pub use receiver::{Allowed, FetchEvent, FetchPort, FetchState, Fetched, Fetches};
pub use sender::{Admitted, AnnouncePort, Ended, FlightEvent, FlightState, Sender, Unsent};
pub use waiting::{Announced, AnnouncementError, Pumped, Waiting};

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Memory of a frame. It remains mapped for the NIC until this value is dropped.
pub trait Buffer {
    /// Returns the NIC's address of the memory.
    fn address(&self) -> u64;
}

/// Time limits in ticks, and maximum numbers of transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Time after which an announced frame or a GET counts as stalled.
    pub stall: u64,
    /// Time, less than `stall`, after which an announced frame counts as late. Its peer is then
    /// lagging.
    pub lag: u64,
    /// Time for which a peer is lagging after its last late frame.
    pub lag_hold: u64,
    /// Time after which an announced frame is given up, and a GET is lost.
    pub timeout: u64,
    /// Quarantine: time for which the memory of a frame or GET remains mapped and unchanged after
    /// `timeout`.
    pub quarantine: u64,
    /// Time after which an announcement without memory is fetched to the scratch buffer and
    /// discarded. A source that has sent no answer for this time may have only `slow_waiting`
    /// announcements waiting.
    pub patience: u64,
    /// Maximum number of announced frames in flight. Stalled frames do not count.
    pub flight: usize,
    /// Maximum number of announced frames in flight to a stalled peer, or an eighth of `flight` if
    /// that is less. A peer is stalled while frames to it are stalled. It remains stalled if frames
    /// were given up and it has answered none since then. A stalled peer that fetches again may
    /// have this number of further frames. While frames for other peers are sent, a lagging peer
    /// may have the maximum of this number and a quarter of `flight`. All lagging peers together
    /// may have twice that number.
    pub stalled_peer: usize,
    /// Maximum number of GETs in flight. Stalled GETs do not count.
    pub fetches: usize,
    /// Maximum number of GETs in flight from one source.
    pub source: usize,
    /// Maximum number of GETs in flight from a source that has not answered any GET yet, or has
    /// lost GETs.
    pub lossy_source: usize,
    /// Maximum number of waiting announcements of one source.
    pub waiting: usize,
    /// Maximum number of waiting announcements of a source that does not answer. For every source,
    /// it is also the maximum number of waiting announcements that will be discarded.
    pub slow_waiting: usize,
}

/// Returns the minimum value of [`Limits::quarantine`] for announced frames in ms, if the time-out
/// is `timeout` ms. Peers post GETs for announcements that are up to twice their time-out old. A
/// GET arrives at most 5 s after it was posted.
#[must_use]
pub const fn shortest_quarantine_ms(timeout: u32) -> u32 {
    timeout.saturating_add(5_000)
}

/// Statistics of the transfers with one peer. A transfer is an announced frame (at the sender) or a
/// GET (at the receiver).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct PeerStats {
    /// Transfers that are not given up.
    open: usize,
    /// Transfers among `open` that are stalled.
    stalled: usize,
    /// Transfers that were given up and are in quarantine.
    lost: usize,
    /// True if a transfer was given up, and the peer has answered no transfer since then.
    unresponsive: bool,
    /// Generation of transfers. Receiver: number of times that the peer became unresponsive.
    /// Sender: number of times that the peer stalled, plus the number of times that it fetched
    /// again afterwards.
    generation: u32,
    /// Transfers among `open` of earlier generations. Their results say nothing about the current
    /// state of the peer.
    open_earlier: usize,
    /// At the sender: true if the peer has fetched a frame of the current generation, and no frame
    /// of this generation has stalled since then.
    fetches_again: bool,
    /// At the sender: true if the peer has fetched a frame that was announced after the stall, and
    /// frames that were stalled at that time are still in the table.
    stall_excused: bool,
    /// True if the peer has answered a transfer.
    answered: bool,
    /// Receiver: time of the last answer, or time at which a GET was posted while no other GET of
    /// this generation was open. Sender: time of the last announcement.
    progress: Time,
}

impl PeerStats {
    /// Returns true if the peer is stalled, because a transfer is stalled, or because a transfer
    /// was given up and the peer has answered none since then.
    fn is_stalled(&self) -> bool {
        self.stalled > 0 || self.unresponsive
    }

    /// Begins a new generation of transfers.
    fn begin_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.open_earlier = self.open;
        self.fetches_again = false;
    }

    /// Records that a transfer of `generation` has stalled.
    fn stalls(&mut self, generation: u32) {
        if !self.is_stalled() {
            self.begin_generation();
            self.stall_excused = false;
        } else if generation == self.generation {
            self.fetches_again = false;
        }
        self.stalled += 1;
    }

    /// Records that the peer has fetched a frame of `generation`; `None` if the frame was given up
    /// before. The first fetch of a frame that was announced while the peer was stalled begins a
    /// new generation, because the frames that are still stalled may be lost. Only the first such
    /// fetch after a stall begins a generation; otherwise the peer could leave any number of frames
    /// stalled.
    fn fetches(&mut self, generation: Option<u32>) {
        self.unresponsive = false;
        if generation == Some(self.generation) {
            if self.stalled > 0 && !self.stall_excused {
                self.stall_excused = true;
                self.begin_generation();
            }
            self.fetches_again = true;
        }
    }

    /// Returns the number of open transfers of the current generation.
    fn recent(&self) -> usize {
        self.open.saturating_sub(self.open_earlier)
    }

    /// Records the end of an open transfer of `generation`. `stalled` is true if the transfer
    /// was stalled.
    fn ended(&mut self, generation: u32, stalled: bool) {
        self.open = self.open.saturating_sub(1);
        self.stalled = self.stalled.saturating_sub(usize::from(stalled));
        if generation != self.generation {
            self.open_earlier = self.open_earlier.saturating_sub(1);
            self.stall_excused &= self.open_earlier > 0;
        }
    }

    /// Records an answer of the peer. Other transfers of earlier generations may still be lost.
    fn answers(&mut self, now: Time) {
        self.unresponsive = false;
        self.answered = true;
        self.progress = now;
    }

    /// Records that a transfer was given up. The first such transfer begins a new generation,
    /// because the other open transfers may be lost too. After a short link failure, for example,
    /// the lost transfers time out one after the other.
    fn lost(&mut self) {
        self.lost += 1;
        if !self.unresponsive {
            self.unresponsive = true;
            self.begin_generation();
        }
    }
}

/// Statistics of all peers that have transfers.
struct Peers<M: Memory> {
    stats: Slots<M, PeerStats>,
    /// Number of open transfers of stalled peers.
    stalled_open: usize,
}

impl<M: Memory> Peers<M> {
    /// Creates statistics for up to `transfers` transfers, each of which may have a different peer.
    fn new(transfers: u16) -> Result<Self, M::Error> {
        Ok(Self {
            stats: Slots::new(transfers)?,
            stalled_open: 0,
        })
    }

    fn get(&self, node: NodeId) -> PeerStats {
        self.stats
            .get(u64::from(node.0))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the number of open transfers of stalled peers.
    fn stalled_open(&self) -> usize {
        self.stalled_open
    }

    /// Changes the statistics of a peer. Removes the statistics when the peer has no transfers any
    /// more.
    fn update(&mut self, node: NodeId, f: impl FnOnce(&mut PeerStats)) {
        let key = u64::from(node.0);
        if self.stats.get(key).is_none() {
            // The insertion cannot fail, because there are at most as many peers as transfers.
            let _ = self.stats.insert(key, PeerStats::default());
        }
        if let Some(t) = self.stats.get_mut(key) {
            let stalled_open = |t: &PeerStats| if t.is_stalled() { t.open } else { 0 };
            let before = stalled_open(t);
            f(t);
            self.stalled_open = (self.stalled_open + stalled_open(t)).saturating_sub(before);
            if t.open == 0 && t.lost == 0 {
                self.stats.remove(key);
            }
        }
    }
}
