// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Rendezvous of EXT-Eth: a frame is announced, fetched by the receiver with one GET, and both
//! sides learn of the end by a notification that names the address of the last fragment (EXT §4).
//!
//! [`Sender`] keeps announced frames, [`Waiting`] and [`Fetches`] are the receiver. Rules that both
//! follow:
//! * Memory that a GET may still read or write is not given back: what was given up stays in a
//!   quarantine first.
//! * Only the peer that a transfer is with can end it.
//! * A frame that was fetched counts only if all of it has come, which whoever has the buffers looks
//!   at ([`crate::base::marks`]): by then its sender has heard that it was fetched, and uses the memory for
//!   something else, so that it can't be fetched again.
//! * A peer that leaves things unanswered may occupy a part of the tables only, and what it holds
//!   up is not waited for.

mod flows;
mod lagging;
mod receiver;
mod sender;
mod waiting;

pub use crate::Shared;
pub use receiver::{Allowed, FetchEvent, FetchPort, FetchState, Fetched, Fetches};
pub use sender::{Admitted, AnnouncePort, Ended, FlightEvent, FlightState, Sender, Unsent};
pub use waiting::{Announced, Pumped, Refusal, Waiting};

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Memory of a frame, mapped for the NIC for as long as this exists.
pub trait Buffer {
    /// Address for the NIC.
    fn address(&self) -> u64;
}

/// Times in ticks, and bounds per peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// After this time an announced frame counts as stalled, and a fetch as late.
    pub stall: u64,
    /// A peer that let an announced frame wait for this time, less than `stall`, counts as lagging.
    pub lag: u64,
    /// It does for so long then.
    pub probation: u64,
    /// After this time an announced frame is given up, and a fetch is lost.
    pub timeout: u64,
    /// For so long the memory of both stays untouched then.
    pub keep: u64,
    /// An announcement that gets no memory for so long is fetched to be thrown away, and a source
    /// that answers nothing for so long has less waiting.
    pub patience: u64,
    /// Announced frames in flight, stalled ones not counted.
    pub flight: usize,
    /// Announced frames in flight to a peer that has stalled ones, or has fetched none since some
    /// were given up, and as many beside those once it fetches again; an eighth of `flight` if that
    /// is less. A lagging one may have as many, or a quarter of `flight`, and all lagging ones
    /// together twice that, while there are frames for others.
    pub stalled_peer: usize,
    /// Fetches in flight, late ones not counted.
    pub fetches: usize,
    /// Fetches in flight from one source.
    pub source: usize,
    /// Fetches in flight from a source that has answered none yet, or has left some unanswered.
    pub lossy_source: usize,
    /// Announcements that wait of one source.
    pub waiting: usize,
    /// Announcements that wait of a source that answers nothing, and that wait to be thrown away of
    /// any source.
    pub slow_waiting: usize,
}

/// How long memory has to be kept at least that was announced and given up, in ms, beyond the
/// time-out of `timeout` ms. Peers post GETs for what is up to twice their time-out old; what they
/// have posted gets here within 5 s, or never.
#[must_use]
pub const fn shortest_keep_ms(timeout: u32) -> u32 {
    timeout.saturating_add(5_000)
}

/// Transfers of one peer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Tally {
    /// Waited for.
    open: usize,
    /// Of these, not answered in time.
    late: usize,
    /// Not waited for any more, but not forgotten.
    lost: usize,
    /// It has answered nothing since it last let something be lost.
    silent: bool,
    /// How often it became silent (receiver), or slow and then fetched again (sender).
    turns: u32,
    /// Of those that are waited for, begun before it last did. They say nothing of how it is now.
    old: usize,
    /// Sender: it has fetched something that was announced after that, and nothing of that has
    /// come to stand still since.
    back: bool,
    /// Sender: it has fetched something that was announced after it became slow, and some of what
    /// stood still then does so still.
    shown: bool,
    /// It has answered something.
    answered: bool,
    /// When it last answered something (receiver), or began to owe an answer (sender: another one),
    /// other than old ones.
    progress: Time,
}

impl Tally {
    /// Whether it leaves things unanswered.
    fn is_slow(&self) -> bool {
        self.late > 0 || self.silent
    }

    /// What there is from now on says how it is now.
    fn turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        self.old = self.open;
        self.back = false;
    }

    /// One that was begun after so many `turns` stands still.
    fn stalls(&mut self, turns: u32) {
        if !self.is_slow() {
            self.turn();
            self.shown = false;
        } else if turns == self.turns {
            self.back = false;
        }
        self.late += 1;
    }

    /// One was fetched that was begun after so many `turns`; `None` for one that was given up. The
    /// first that was begun when the peer was slow already shows that it fetches again, and what
    /// stands still by then may be lost; this once only, or it could have any number stand still.
    fn fetches(&mut self, turns: Option<u32>) {
        self.silent = false;
        if turns == Some(self.turns) {
            if self.late > 0 && !self.shown {
                self.shown = true;
                self.turn();
            }
            self.back = true;
        }
    }

    /// Begun since the last turn.
    fn recent(&self) -> usize {
        self.open.saturating_sub(self.old)
    }

    /// One that was begun after so many `turns` is not waited for any more.
    fn ended(&mut self, turns: u32, late: bool) {
        self.open = self.open.saturating_sub(1);
        self.late = self.late.saturating_sub(usize::from(late));
        if turns != self.turns {
            self.old = self.old.saturating_sub(1);
            self.shown &= self.old > 0;
        }
    }

    /// It has answered something. Of what it owed when it became silent more may be lost.
    fn answers(&mut self, now: Time) {
        self.silent = false;
        self.answered = true;
        self.progress = now;
    }

    /// One that is not waited for any more was lost. The others may be lost as well, long since: of
    /// a link that was away for a moment such losses are found one after the other.
    fn lost(&mut self) {
        self.lost += 1;
        if !self.silent {
            self.silent = true;
            self.turn();
        }
    }
}

/// Transfers by peer.
struct Peers<M: Memory> {
    tallies: Slots<M, Tally>,
    /// What is waited for from peers that leave things unanswered.
    slow: usize,
}

impl<M: Memory> Peers<M> {
    /// For as many peers as there can be transfers.
    fn new(transfers: u16) -> Result<Self, M::Error> {
        Ok(Self {
            tallies: Slots::new(transfers)?,
            slow: 0,
        })
    }

    fn get(&self, node: NodeId) -> Tally {
        self.tallies
            .get(u64::from(node.0))
            .copied()
            .unwrap_or_default()
    }

    /// What is waited for from peers that leave things unanswered.
    fn slow(&self) -> usize {
        self.slow
    }

    /// Changes a peer's tally; a peer without transfers is forgotten.
    fn update(&mut self, node: NodeId, f: impl FnOnce(&mut Tally)) {
        let key = u64::from(node.0);
        if self.tallies.get(key).is_none() {
            // There is room: no more peers than transfers.
            let _ = self.tallies.insert(key, Tally::default());
        }
        if let Some(t) = self.tallies.get_mut(key) {
            let slow = |t: &Tally| if t.is_slow() { t.open } else { 0 };
            let before = slow(t);
            f(t);
            self.slow = (self.slow + slow(t)).saturating_sub(before);
            if t.open == 0 && t.lost == 0 {
                self.tallies.remove(key);
            }
        }
    }
}
