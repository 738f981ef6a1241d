// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table of announced frames at the sender.

use super::{
    flows::{FlowIndex, Flows},
    lagging::Lagging,
    Buffer, Limits, PeerStats, Peers,
};
use crate::{
    base::{flow::Counts, slots::Slots},
    Clock, Memory, Time, TransportError,
};
use wire::{
    eth::{last_size, match_key, Announcement, Completion},
    ids::NodeId,
};

crate::flow! {
    /// States of an announced frame.
    states FlightState {
        /// The peer may fetch the frame.
        Announced,
        /// The frame was not fetched within [`Limits::stall`], so the peer counts as stalled.
        Stalled,
        /// The frame was given up. Its memory remains mapped and unchanged, because the peer may
        /// still fetch the frame.
        GivenUp,
        /// The memory belongs to the caller again.
        Ended,
    }
    /// Events of an announced frame.
    events FlightEvent {
        /// The announcement could not be sent.
        NotSent,
        /// The peer has fetched the frame.
        Fetched,
        /// The NIC reports that the peer's GET failed.
        Failed,
        /// The peer reports that it dropped the frame.
        Dropped,
        /// [`Limits::stall`] has passed.
        Stall,
        /// [`Limits::timeout`] has passed.
        TimeOut,
        /// [`Limits::quarantine`] has passed.
        Expire,
        /// The port was closed.
        Flush,
    }
    transitions {
        Announced + NotSent => Ended;
        Announced + Fetched => Ended;
        Announced + Failed => Ended;
        Announced + Dropped => GivenUp;
        Announced + Stall => Stalled;
        Announced + Flush => Ended;
        Stalled + Fetched => Ended;
        Stalled + Failed => Ended;
        Stalled + Dropped => GivenUp;
        Stalled + TimeOut => GivenUp;
        Stalled + Flush => Ended;
        GivenUp + Fetched => Ended;
        GivenUp + Failed => Ended;
        GivenUp + Expire => Ended;
        GivenUp + Flush => Ended;
    }
}

impl FlightState {
    /// Returns true if the frame was not given up.
    fn is_active(self) -> bool {
        matches!(self, Self::Announced | Self::Stalled)
    }
}

/// Transmit path for announcements.
pub trait AnnouncePort {
    /// Sends an announcement.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the announcement was not sent.
    fn announce(&mut self, to: NodeId, announcement: &Announcement) -> Result<(), TransportError>;
}

struct Flight<B> {
    buffer: B,
    node: NodeId,
    flow: FlowIndex,
    /// Size field of the expected notification.
    last: u32,
    /// Time at which the frame was announced or given up.
    since: Time,
    /// Generation of the peer's transfers at the time `since`.
    generation: u32,
    /// Last time at which the port had left the announcement unsent for half of [`Limits::stall`].
    last_unsent: Time,
    state: FlightState,
}

/// Decision about a new frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admitted {
    /// Announce the frame now.
    Yes {
        /// True if the peer is neither stalled nor lagging. A frame to a stalled or lagging peer
        /// must not count in limits that all peers share.
        prompt: bool,
    },
    /// Announce the frame when other frames have ended.
    Later,
    /// Do not announce the frame: the peer is stalled or lagging, and has this number of frames in
    /// flight.
    No(usize),
}

/// Reason for which a frame was not announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsent {
    /// The port refused the announcement.
    Refused(TransportError),
    /// The table is full, or the memory is announced already.
    Table,
}

/// End of an announced frame. The caller frees the buffer without holding its lock.
#[derive(Debug)]
pub enum Ended<B> {
    /// The peer has fetched the frame.
    Fetched(B),
    /// The peer's GET failed with these error bits.
    Failed(B, u8),
    /// The frame had been given up before the peer fetched it.
    Late(B),
    /// No frame of this peer matches the notification.
    Unmatched,
}

/// Announced frames, both in flight and in quarantine.
pub struct Sender<M: Memory, B> {
    flights: Slots<M, Flight<B>>,
    peers: Peers<M>,
    flows: Flows<M>,
    lagging: Lagging<M>,
    given_up: usize,
    stalled: usize,
    quarantine: usize,
    counts: Counts<FlightState>,
}

impl<M: Memory, B: Buffer> Sender<M, B> {
    /// Creates a table for `flight` frames in flight and `quarantine` frames in quarantine.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(flight: u16, quarantine: u16) -> Result<Self, M::Error> {
        Ok(Self {
            flights: Slots::new(flight.saturating_add(quarantine))?,
            peers: Peers::new(flight.saturating_add(quarantine))?,
            flows: Flows::new()?,
            lagging: Lagging::new()?,
            given_up: 0,
            stalled: 0,
            quarantine: usize::from(quarantine),
            counts: Counts::default(),
        })
    }

    /// Returns the number of frames that were not given up.
    pub fn active(&self) -> usize {
        self.flights.len() - self.given_up
    }

    /// Returns the number of frames that are neither given up nor stalled.
    pub fn in_flight(&self) -> usize {
        self.active() - self.stalled
    }

    /// Returns the number of frames in quarantine.
    pub fn given_up(&self) -> usize {
        self.given_up
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Returns the number of times that each transition was made.
    pub fn counts(&self) -> &Counts<FlightState> {
        &self.counts
    }

    /// Records that a frame for `node` is to be sent, in messages or announced.
    #[inline]
    pub fn sends(&mut self, clock: &impl Clock, node: NodeId) {
        self.lagging.sends(node, clock.now());
    }

    /// Returns true if announced frames of this flow to `node` are in flight. Stalled frames do not
    /// count. Frames that are sent in messages now would overtake them.
    pub fn flow_in_flight(&self, node: NodeId, flow: u32) -> bool {
        self.flows.in_flight(FlowIndex::new(node, flow))
    }

    /// Decides whether a frame to `node` may be announced.
    ///
    /// Stalled frames do not count as in flight, so that they do not stop frames to other peers.
    /// They still occupy slots until the end of their quarantine. These limits apply:
    ///
    /// * Each peer may have up to three quarters of [`Limits::flight`], and up to half of the free
    ///   slots.
    /// * A stalled peer may have up to [`Limits::stalled_peer`] frames, and all stalled peers
    ///   together up to half of `flight`. The first frame shows whether the peer fetches again. All
    ///   further frames must fit into the free slots of the quarantine.
    /// * In addition, a stalled peer may have one more frame at a time, at growing intervals
    ///   ([`Self::may_probe`]). After the peer has fetched a frame that was announced while it was
    ///   stalled, frames that were stalled before do not count any more.
    /// * A stalled peer that occupies its maximum number of slots in the quarantine may have a
    ///   quarter of `stalled_peer`.
    /// * A lagging peer may have only a fraction of `flight` while frames for other peers are sent
    ///   ([`Sender::sends`]), so that these frames do not wait for it.
    /// * When less than an eighth of all slots is free, each peer may have one frame at a time.
    ///
    /// A frame without a slot is refused instead of delayed, because a slot in quarantine becomes
    /// free only after a long time.
    pub fn admit(&self, clock: &impl Clock, node: NodeId, limits: &Limits) -> Admitted {
        let peer = self.peers.get(node);
        let now = clock.now();
        let room = self.flights.room();
        let reserve = (room + self.flights.len()) / 8;
        if peer.is_stalled() {
            let few = limits.stalled_peer.min(limits.flight / 8);
            let bound = if self.quarantine_exhausted(&peer) {
                few / 4
            } else {
                few
            };
            let bound = bound.max(1);
            let fits = peer.open < bound || peer.fetches_again && peer.recent() < bound;
            let within_bound =
                fits && (peer.fetches_again || self.peers.stalled_open() < limits.flight / 2);
            let further = within_bound || self.may_probe(&peer, bound, now, limits);
            let kept = self.given_up + self.peers.stalled_open() < self.quarantine;
            // Frames in flight to stalled peers may occupy half of `flight`. Frames that are
            // stalled themselves do not count.
            let in_flight = self.peers.stalled_open().saturating_sub(self.stalled);
            let has_room = room > reserve && in_flight < (limits.flight / 2).max(1);
            if !(has_room && (peer.open == 0 || further && kept)) {
                return Admitted::No(peer.open);
            }
        }
        let lags = self.lagging.contains(node, now, limits.lag_hold);
        if lags && !peer.is_stalled() {
            let bound = limits.stalled_peer.max(limits.flight / 4);
            let open = |node| self.peers.get(node).open;
            let all = || self.lagging.sum(now, limits.lag_hold, open);
            let others = || self.lagging.others_wait(node, now, limits.lag_hold);
            if peer.open > 0 && (peer.open >= bound || all() >= 2 * bound) && others() {
                return Admitted::No(peer.open);
            }
        }
        if self.in_flight() >= limits.flight {
            return Admitted::Later;
        }
        // Refuse the frame instead of delaying it, because slots become free only at the end of a
        // quarantine.
        let free = room.saturating_sub(reserve);
        if room == 0 || (free == 0 && peer.open > 0) {
            return Admitted::No(peer.open);
        }
        let share = (limits.flight - limits.flight / 4).min(free / 2).max(1);
        if peer.is_stalled() {
            // Only recent frames count here. The number of stalled frames is limited above, and
            // frames may remain stalled for long.
            if peer.recent() >= share {
                return Admitted::No(peer.open);
            }
        } else if peer.open >= share {
            return Admitted::Later;
        }
        Admitted::Yes {
            prompt: !peer.is_stalled() && !lags,
        }
    }

    /// Returns true if a stalled peer may get one frame more than `few`, which shows whether the
    /// peer fetches again. All of its frames must be stalled, and it must have less than its
    /// maximum number of slots in the quarantine. The frame is permitted if the peer has fetched
    /// such an additional frame, or if it has made no progress for a pause. The pause is
    /// [`Limits::stall`], doubled for each additional frame, up to a quarter of the time-out.
    fn may_probe(&self, peer: &PeerStats, few: usize, now: Time, limits: &Limits) -> bool {
        let longest = limits.stall.max(limits.timeout / 4);
        // Only frames beyond the first `few` frames count as attempts.
        let tries = peer.recent().min(peer.open.saturating_sub(few));
        let pause = (limits.stall << tries.min(16)).min(longest);
        !self.quarantine_exhausted(peer)
            && peer.open == peer.stalled
            && (peer.fetches_again || now.since(peer.progress) >= pause)
    }

    /// Returns true if the peer has its maximum of frames in quarantine: a quarter of the remaining
    /// slots, or more.
    fn quarantine_exhausted(&self, peer: &PeerStats) -> bool {
        peer.lost >= self.quarantine.saturating_sub(self.given_up) / 4
    }

    /// Announces a frame of `len` bytes that [`Sender::admit`] has allowed. `flow` is equal for all
    /// frames that must not overtake each other.
    ///
    /// # Errors
    ///
    /// Returns the buffer, and the reason for which the frame was not announced.
    pub fn announce(
        &mut self,
        clock: &impl Clock,
        port: &mut impl AnnouncePort,
        node: NodeId,
        buffer: B,
        len: u32,
        flow: u32,
    ) -> Result<(), (B, Unsent)> {
        let address = buffer.address();
        let key = match_key(address, len);
        let flow = FlowIndex::new(node, flow);
        let now = clock.now();
        let PeerStats {
            generation,
            progress,
            ..
        } = self.peers.get(node);
        let flight = Flight {
            buffer,
            node,
            flow,
            last: last_size(len),
            since: now,
            generation,
            last_unsent: Time::default(),
            state: FlightState::Announced,
        };
        // Insert the entry before the message is sent, because the notification may arrive at once.
        self.flights
            .insert(key, flight)
            .map_err(|f| (f.buffer, Unsent::Table))?;
        self.peers.update(node, |p| {
            p.open += 1;
            p.progress = now;
        });
        self.flows.began(flow);
        let announcement = Announcement {
            address,
            len: u64::from(len),
        };
        let Err(refused) = port.announce(node, &announcement) else {
            return Ok(());
        };
        // The peer did not receive the announcement.
        self.peers.update(node, |p| p.progress = progress);
        match self.end(key, FlightEvent::NotSent) {
            Some((_, f)) => Err((f.buffer, Unsent::Refused(refused))),
            // Unreachable: the entry was inserted above.
            None => Ok(()),
        }
    }

    /// Removes a frame after an event. Returns its previous state.
    fn end(&mut self, key: u64, event: FlightEvent) -> Option<(FlightState, Flight<B>)> {
        let state = self.flights.get(key)?.state;
        let mut next = state;
        if !self.counts.step(&mut next, event) {
            return None;
        }
        let flight = self.flights.remove(key)?;
        self.peers.update(flight.node, |p| match state {
            FlightState::GivenUp => p.lost = p.lost.saturating_sub(1),
            _ => p.ended(flight.generation, state == FlightState::Stalled),
        });
        if state == FlightState::Announced {
            self.flows.ended(flight.flow);
        }
        self.given_up = self
            .given_up
            .saturating_sub(usize::from(state == FlightState::GivenUp));
        self.stalled = self
            .stalled
            .saturating_sub(usize::from(state == FlightState::Stalled));
        Some((state, flight))
    }

    /// Processes a responder notification.
    pub fn notified(&mut self, clock: &impl Clock, limits: &Limits, c: &Completion) -> Ended<B> {
        // Compare the size too, because a GET of this peer for other memory may end at the same
        // address.
        let is_it = |f: &&Flight<B>| f.node == c.peer && (c.error != 0 || f.last == c.last);
        let flight = self.flights.get(c.key).filter(is_it);
        let Some(f) = flight else {
            return Ended::Unmatched;
        };
        let from = f.since.max(f.last_unsent);
        let generation = f.state.is_active().then_some(f.generation);
        let now = clock.now();
        if now.since(from) >= limits.lag {
            self.lagging.note(c.peer, now);
        }
        let event = match c.error {
            0 => FlightEvent::Fetched,
            _ => FlightEvent::Failed,
        };
        self.peers.update(c.peer, |p| p.fetches(generation));
        match self.end(c.key, event) {
            Some((FlightState::GivenUp, f)) => Ended::Late(f.buffer),
            Some((_, f)) if c.error != 0 => Ended::Failed(f.buffer, c.error),
            Some((_, f)) => Ended::Fetched(f.buffer),
            None => Ended::Unmatched,
        }
    }

    /// Processes the report of `node` that it dropped the frame at `address`. Returns false if no
    /// such frame is in flight. The frame is given up and goes into quarantine, because its GET may
    /// be in flight. If the peer has its maximum number of frames in quarantine, the frame is
    /// stalled until its time-out instead. Otherwise a peer could fill the quarantine by reporting
    /// each frame as dropped. Calls `stalled` for a frame that was not stalled before.
    pub fn dropped(
        &mut self,
        clock: &impl Clock,
        node: NodeId,
        address: u64,
        stalled: impl FnOnce(&mut B),
    ) -> bool {
        let peer = self.peers.get(node);
        let (mut found, mut left) = (None, peer.open);
        if left == 0 {
            return false;
        }
        self.flights.for_each_mut(|key, f| {
            if f.state.is_active() && f.node == node {
                left -= 1;
                if f.buffer.address() == address {
                    found = Some(key);
                }
            }
            found.is_none() && left > 0
        });
        let give_up = !self.quarantine_exhausted(&peer);
        let Some(f) = found.and_then(|key| self.flights.get_mut(key)) else {
            return false;
        };
        let was_stalled = f.state == FlightState::Stalled;
        if !was_stalled {
            stalled(&mut f.buffer);
            self.flows.ended(f.flow);
        }
        if give_up {
            self.counts.step(&mut f.state, FlightEvent::Dropped);
            f.since = clock.now();
            self.given_up += 1;
            self.stalled -= usize::from(was_stalled);
            let generation = f.generation;
            self.peers.update(node, |p| {
                p.ended(generation, was_stalled);
                p.lost += 1;
            });
        } else if !was_stalled {
            self.counts.step(&mut f.state, FlightEvent::Stall);
            self.stalled += 1;
            let generation = f.generation;
            self.peers.update(node, |p| p.stalls(generation));
        }
        true
    }

    /// Processes time-outs. Calls `stalled` for each frame that becomes stalled. `stalled` returns
    /// false if it cannot process another frame. Gives up frames after their time-out, and calls
    /// `free` for memory at the end of its quarantine. While the quarantine is full, frames remain
    /// stalled after their time-out. Returns a peer with the number of frames given up, and true if
    /// all time-outs were processed. The port has sent all announcements that were posted before
    /// `posted_before`. Frames that were announced later keep their memory, and do not count
    /// against their peers before the time-out. If the port has not sent an announcement after half
    /// of [`Limits::stall`], the time until the frame counts as stalled begins again.
    pub fn age(
        &mut self,
        clock: &impl Clock,
        limits: &Limits,
        posted_before: Time,
        mut stalled: impl FnMut(&mut B) -> bool,
        mut free: impl FnMut(B),
    ) -> (Option<(NodeId, u64)>, bool) {
        let now = clock.now();
        let mut lost: Option<(NodeId, u64)> = None;
        let mut next = self.flights.oldest().map(|(key, _)| key);
        while let Some(key) = next {
            next = self.flights.younger(key);
            let Some(f) = self.flights.get_mut(key) else {
                break;
            };
            let age = now.since(f.since);
            if f.state == FlightState::GivenUp {
                if age >= limits.quarantine && f.since < posted_before {
                    if let Some((_, f)) = self.end(key, FlightEvent::Expire) {
                        free(f.buffer);
                    }
                }
                continue;
            }
            if age < limits.lag {
                // The remaining frames in flight are younger, and the remaining given-up frames are
                // not due yet.
                break;
            }
            let mut waited = age;
            if f.state == FlightState::Announced && age < limits.timeout {
                if f.since >= posted_before && age >= limits.stall / 2 {
                    f.last_unsent = now;
                }
                waited = now.since(f.since.max(f.last_unsent));
            }
            if waited < limits.lag {
                continue;
            }
            if f.state == FlightState::Announced
                && (f.since < posted_before || age >= limits.timeout)
            {
                self.lagging.note(f.node, now);
            }
            if waited < limits.stall {
                continue;
            }
            let mut more = true;
            if f.state == FlightState::Announced {
                self.counts.step(&mut f.state, FlightEvent::Stall);
                self.stalled += 1;
                self.flows.ended(f.flow);
                let generation = f.generation;
                self.peers.update(f.node, |p| p.stalls(generation));
                more = stalled(&mut f.buffer);
            }
            if age >= limits.timeout && self.given_up < self.quarantine {
                self.counts.step(&mut f.state, FlightEvent::TimeOut);
                f.since = now;
                self.given_up += 1;
                self.stalled -= 1;
                let generation = f.generation;
                self.peers.update(f.node, |p| {
                    p.ended(generation, true);
                    p.lost += 1;
                    p.unresponsive = true;
                });
                lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            }
            if !more {
                return (lost, false);
            }
        }
        (lost, true)
    }

    /// Removes a frame after the port was closed. Returns true if it was not given up. Peers may
    /// still fetch the frame.
    pub fn flush_one(&mut self) -> Option<(bool, B)> {
        let (key, _) = self.flights.oldest()?;
        let (state, f) = self.end(key, FlightEvent::Flush)?;
        Some((state.is_active(), f.buffer))
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let (mut given_up, mut stalled, mut in_flight) = (0, 0, 0);
        self.flights.for_each_mut(|_, f| {
            in_flight += usize::from(f.state == FlightState::Announced);
            given_up += usize::from(f.state == FlightState::GivenUp);
            stalled += usize::from(f.state == FlightState::Stalled);
            true
        });
        let (mut stalled_open, mut right) = (0, true);
        let flights = &mut self.flights;
        let stats = &self.peers.stats;
        flights.for_each_mut(|_, f| {
            right &= stats.get(u64::from(f.node.0)).is_some();
            true
        });
        self.peers.stats.for_each_mut(|node, p| {
            stalled_open += if p.is_stalled() { p.open } else { 0 };
            let mut found = PeerStats { ..*p };
            (found.open, found.stalled, found.lost, found.open_earlier) = (0, 0, 0, 0);
            flights.for_each_mut(|_, f| {
                if u64::from(f.node.0) == node {
                    found.lost += usize::from(f.state == FlightState::GivenUp);
                    found.stalled += usize::from(f.state == FlightState::Stalled);
                    found.open += usize::from(f.state.is_active());
                    found.open_earlier +=
                        usize::from(f.state.is_active() && f.generation != p.generation);
                }
                true
            });
            right &= found == *p;
            true
        });
        match () {
            () if stalled_open != self.peers.stalled_open() => {
                Err("wrong number of frames to stalled peers")
            }
            () if !right => Err("the statistics of a peer do not match its frames"),
            () if self.counts.impossible() != 0 => Err("an impossible transition"),
            () if given_up != self.given_up => Err("wrong number of frames given up"),
            () if stalled != self.stalled => Err("wrong number of frames stalled"),
            () if in_flight != self.flows.sum() => Err("wrong number of frames by flow"),
            () if self.given_up > self.quarantine => Err("too many frames given up"),
            () => Ok(()),
        }
    }
}
