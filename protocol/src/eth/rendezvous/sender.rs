// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The side that announces.

use super::{
    flows::{Flows, Place},
    lagging::Lagging,
    Buffer, Limits, Peers, Tally,
};
use crate::{
    base::{flow::Counts, slots::Slots},
    Clock, Memory, Refused, Time,
};
use wire::{
    eth::{last_size, match_key, Announcement, Completion},
    ids::NodeId,
};

crate::flow! {
    /// Life of an announced frame.
    states FlightState {
        /// The peer may fetch it any time.
        Announced,
        /// Not fetched for a while: held against the peer.
        Stalled,
        /// Not waited for any more. Its memory stays as it is, because the peer may still fetch it.
        GivenUp,
        /// Its memory is the caller's again.
        Ended,
    }
    /// What happens to it.
    events FlightEvent {
        /// The announcement could not be sent.
        NotSent,
        /// The peer has fetched it.
        Fetched,
        /// The NIC reports that the fetch failed.
        Failed,
        /// The peer says that it dropped it.
        Dropped,
        /// It is due to be fetched.
        Stall,
        /// It is overdue.
        TimeOut,
        /// It was kept for long enough.
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
    /// Whether the frame is still waited for.
    fn is_active(self) -> bool {
        matches!(self, Self::Announced | Self::Stalled)
    }
}

/// Sends announcements.
pub trait AnnouncePort {
    /// Sends one.
    ///
    /// # Errors
    ///
    /// Nothing was sent.
    fn announce(&mut self, to: NodeId, announcement: &Announcement) -> Result<(), Refused>;
}

struct Flight<B> {
    buffer: B,
    node: NodeId,
    flow: Place,
    /// Size that its notification has to show.
    last: u32,
    /// When it was announced, or given up.
    since: Time,
    /// How often its peer had become slow, or fetched again, by then.
    turns: u32,
    /// When the port was last found to have held the announcement back, for long.
    held: Time,
    state: FlightState,
}

/// Whether a frame may be announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admitted {
    /// Now.
    Yes {
        /// The peer answers soon: what goes to one that stands still or lags must not count for
        /// what limits the traffic with all.
        prompt: bool,
    },
    /// When others have ended.
    Later,
    /// The peer fetches nothing, or late, and has this many pending.
    No(usize),
}

/// Why a frame was not announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsent {
    /// The port said so.
    Refused(Refused),
    /// No place, or memory that is announced already.
    Table,
}

/// How an announced frame ended. Buffers are to be freed by the caller, without its lock.
#[derive(Debug)]
pub enum Ended<B> {
    /// The peer has it.
    Fetched(B),
    /// The fetch failed with these error bits.
    Failed(B, u8),
    /// It had been given up before.
    Late(B),
    /// There is none, or it is none of this peer's.
    Unmatched,
}

/// Announced frames, in flight and given up.
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
    /// For `flight` frames in flight and `quarantine` given up.
    ///
    /// # Errors
    ///
    /// There is no memory.
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

    /// Frames in flight.
    pub fn active(&self) -> usize {
        self.flights.len() - self.given_up
    }

    /// Frames in flight that don't stand still.
    pub fn moving(&self) -> usize {
        self.active() - self.stalled
    }

    /// Frames given up whose memory is kept.
    pub fn given_up(&self) -> usize {
        self.given_up
    }

    /// Whether there is nothing to look after.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// What happened so far.
    pub fn counts(&self) -> &Counts<FlightState> {
        &self.counts
    }

    /// There is a frame for `node`, to be announced or not.
    #[inline]
    pub fn sends(&mut self, clock: &impl Clock, node: NodeId) {
        self.lagging.sends(node, clock.now());
    }

    /// Whether frames of this flow to `node` were announced that are on their way: not fetched, but
    /// not stalled either. What goes in messages now overtakes them.
    pub fn is_moving(&self, node: NodeId, flow: u32) -> bool {
        self.flows.is_moving(Place::new(node, flow))
    }

    /// Whether a frame to `node` may be announced.
    ///
    /// What stands still doesn't count for what may be in flight, so it stops nobody else, but it
    /// takes places until its quarantine is over. So peers that fetch nothing get few, all of them
    /// together half of what may be in flight, and beyond a first one, which shows that they fetch
    /// again, nothing that the quarantine has no room for. Beside the few one at a time is
    /// announced, at growing intervals ([`Self::may_try`]); once it has fetched one that was
    /// announced when it was slow, what stands still by then counts no longer. A peer without a
    /// record does not get the last quarter of what may be in flight, nor more places than it
    /// leaves to others. One that leaves things unanswered and has its part of the quarantine gets
    /// fewer still. Of the last eighth of all places each peer gets one at a time. What finds no
    /// place is refused: a place that is not given up soon comes back only when its quarantine is
    /// over.
    ///
    /// For a peer that fetches late nobody waits who sends to others ([`Sender::sends`]): it has a
    /// part of what may be in flight, and beyond that nothing.
    pub fn admit(&self, clock: &impl Clock, node: NodeId, limits: &Limits) -> Admitted {
        let peer = self.peers.get(node);
        let now = clock.now();
        let room = self.flights.room();
        let reserve = (room + self.flights.len()) / 8;
        if peer.is_slow() {
            let few = limits.stalled_peer.min(limits.flight / 8);
            let bound = match self.has_its_part(&peer) {
                true => few / 4,
                false => few,
            }
            .max(1);
            let fits = peer.open < bound || peer.back && peer.recent() < bound;
            let part = fits && (peer.back || self.peers.slow() < limits.flight / 2);
            let further = part || self.may_try(&peer, bound, now, limits);
            let kept = self.given_up + self.peers.slow() < self.quarantine;
            // What peers get that leave things unanswered keeps others from half of what there is
            // at most, until it stands still.
            let moving = self.peers.slow().saturating_sub(self.stalled);
            let has_room = room > reserve && moving < (limits.flight / 2).max(1);
            if !(has_room && (peer.open == 0 || further && kept)) {
                return Admitted::No(peer.open);
            }
        }
        let lags = self.lagging.contains(node, now, limits.probation);
        if lags && !peer.is_slow() {
            let bound = limits.stalled_peer.max(limits.flight / 4);
            let open = |node| self.peers.get(node).open;
            let all = || self.lagging.sum(now, limits.probation, open);
            let others = || self.lagging.others_wait(node, now, limits.probation);
            if peer.open > 0 && (peer.open >= bound || all() >= 2 * bound) && others() {
                return Admitted::No(peer.open);
            }
        }
        if self.moving() >= limits.flight {
            return Admitted::Later;
        }
        // Places come back only when a quarantine is over: nobody waits for them.
        let free = room.saturating_sub(reserve);
        if room == 0 || (free == 0 && peer.open > 0) {
            return Admitted::No(peer.open);
        }
        let share = (limits.flight - limits.flight / 4).min(free / 2).max(1);
        if peer.is_slow() {
            // What stands still may do so for long, and is bounded above.
            if peer.recent() >= share {
                return Admitted::No(peer.open);
            }
        } else if peer.open >= share {
            return Admitted::Later;
        }
        Admitted::Yes {
            prompt: !peer.is_slow() && !lags,
        }
    }

    /// Whether a slow peer gets a frame, beside those that it let stand still, to show whether it
    /// fetches again: when the last one does so for twice as long as that before it did, or a
    /// quarter of the time-out; at once if the last one was fetched. A peer that has its part of the
    /// quarantine gets none so.
    fn may_try(&self, peer: &Tally, few: usize, now: Time, limits: &Limits) -> bool {
        let longest = limits.stall.max(limits.timeout / 4);
        // Of those that it may have anyway none shows more than the others.
        let tries = peer.recent().min(peer.open.saturating_sub(few));
        let pause = (limits.stall << tries.min(16)).min(longest);
        !self.has_its_part(peer)
            && peer.open == peer.late
            && (peer.back || now.since(peer.progress) >= pause)
    }

    /// Whether a peer gets no more of the quarantine but by time: it has a quarter of what is left.
    fn has_its_part(&self, peer: &Tally) -> bool {
        peer.lost >= self.quarantine.saturating_sub(self.given_up) / 4
    }

    /// Announces a frame of `len` bytes that was admitted. Order matters within a `flow`.
    ///
    /// # Errors
    ///
    /// The buffer, and why.
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
        let flow = Place::new(node, flow);
        let now = clock.now();
        let Tally {
            turns, progress, ..
        } = self.peers.get(node);
        let flight = Flight {
            buffer,
            node,
            flow,
            last: last_size(len),
            since: now,
            turns,
            held: Time::default(),
            state: FlightState::Announced,
        };
        // The notification may come at once, so the entry has to be there before the message is
        // sent.
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
        // It was shown nothing.
        self.peers.update(node, |p| p.progress = progress);
        match self.end(key, FlightEvent::NotSent) {
            Some((_, f)) => Err((f.buffer, Unsent::Refused(refused))),
            // Can't be: it was inserted above.
            None => Ok(()),
        }
    }

    /// Removes a frame by an event; the state it was in.
    fn end(&mut self, key: u64, event: FlightEvent) -> Option<(FlightState, Flight<B>)> {
        let state = self.flights.get(key)?.state;
        let mut next = state;
        if !self.counts.step(&mut next, event) {
            return None;
        }
        let flight = self.flights.remove(key)?;
        self.peers.update(flight.node, |p| match state {
            FlightState::GivenUp => p.lost = p.lost.saturating_sub(1),
            _ => p.ended(flight.turns, state == FlightState::Stalled),
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

    /// A responder notification.
    pub fn notified(&mut self, clock: &impl Clock, limits: &Limits, c: &Completion) -> Ended<B> {
        // A GET of this peer that reads something else may end at the same address.
        let is_it = |f: &&Flight<B>| f.node == c.peer && (c.error != 0 || f.last == c.last);
        let flight = self.flights.get(c.key).filter(is_it);
        let Some(f) = flight else {
            return Ended::Unmatched;
        };
        let from = f.since.max(f.held);
        let turns = f.state.is_active().then_some(f.turns);
        let now = clock.now();
        if now.since(from) >= limits.lag {
            self.lagging.note(c.peer, now);
        }
        let event = match c.error {
            0 => FlightEvent::Fetched,
            _ => FlightEvent::Failed,
        };
        self.peers.update(c.peer, |p| p.fetches(turns));
        match self.end(c.key, event) {
            Some((FlightState::GivenUp, f)) => Ended::Late(f.buffer),
            Some((_, f)) if c.error != 0 => Ended::Failed(f.buffer, c.error),
            Some((_, f)) => Ended::Fetched(f.buffer),
            None => Ended::Unmatched,
        }
    }

    /// `node` says that it dropped the frame at `address`: true if that is in flight. Its GET may
    /// be under way all the same, so the frame is given up as one that was not fetched in time.
    /// While the peer has its part of the quarantine it stays in flight, stalled (`stalled` hears
    /// of it), until it is overdue: or a peer could fill the quarantine as fast as it gets frames.
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
        let give_up = !self.has_its_part(&peer);
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
            let turns = f.turns;
            self.peers.update(node, |p| {
                p.ended(turns, was_stalled);
                p.lost += 1;
            });
        } else if !was_stalled {
            self.counts.step(&mut f.state, FlightEvent::Stall);
            self.stalled += 1;
            let turns = f.turns;
            self.peers.update(node, |p| p.stalls(turns));
        }
        true
    }

    /// Marks what stands still (`stalled` hears of it, and says whether it can take another one),
    /// gives up what is overdue, and gives the memory back that was kept for long enough (`free`).
    /// Returns a peer and the number of frames given up, and whether all of it was done. While the
    /// quarantine is full, what is overdue stays in flight.
    ///
    /// The port has sent all that it got before `settled`. What it may still have to send keeps its
    /// memory, and is not held against the peer before it is overdue: an announcement that the port
    /// has held back for half the time in which a frame counts as stalled has that time from then.
    pub fn age(
        &mut self,
        clock: &impl Clock,
        limits: &Limits,
        settled: Time,
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
                if age >= limits.keep && f.since < settled {
                    if let Some((_, f)) = self.end(key, FlightEvent::Expire) {
                        free(f.buffer);
                    }
                }
                continue;
            }
            if age < limits.lag {
                // Others in flight are younger, and what was given up behind them is no older.
                break;
            }
            let mut waited = age;
            if f.state == FlightState::Announced && age < limits.timeout {
                if f.since >= settled && age >= limits.stall / 2 {
                    f.held = now;
                }
                waited = now.since(f.since.max(f.held));
            }
            if waited < limits.lag {
                continue;
            }
            if f.state == FlightState::Announced && (f.since < settled || age >= limits.timeout) {
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
                let turns = f.turns;
                self.peers.update(f.node, |p| p.stalls(turns));
                more = stalled(&mut f.buffer);
            }
            if age >= limits.timeout && self.given_up < self.quarantine {
                self.counts.step(&mut f.state, FlightEvent::TimeOut);
                f.since = now;
                self.given_up += 1;
                self.stalled -= 1;
                let turns = f.turns;
                self.peers.update(f.node, |p| {
                    p.ended(turns, true);
                    p.lost += 1;
                    p.silent = true;
                });
                lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            }
            if !more {
                return (lost, false);
            }
        }
        (lost, true)
    }

    /// Takes any frame out, after the port was closed: true if it was in flight. Peers may fetch it
    /// all the same.
    pub fn flush_one(&mut self) -> Option<(bool, B)> {
        let (key, _) = self.flights.oldest()?;
        let (state, f) = self.end(key, FlightEvent::Flush)?;
        Some((state.is_active(), f.buffer))
    }

    /// Checks what must always hold; for tests.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let (mut given_up, mut stalled, mut moving) = (0, 0, 0);
        self.flights.for_each_mut(|_, f| {
            moving += usize::from(f.state == FlightState::Announced);
            given_up += usize::from(f.state == FlightState::GivenUp);
            stalled += usize::from(f.state == FlightState::Stalled);
            true
        });
        let (mut slow, mut right) = (0, true);
        let flights = &mut self.flights;
        let tallies = &self.peers.tallies;
        flights.for_each_mut(|_, f| {
            right &= tallies.get(u64::from(f.node.0)).is_some();
            true
        });
        self.peers.tallies.for_each_mut(|node, p| {
            slow += if p.is_slow() { p.open } else { 0 };
            let mut found = Tally { ..*p };
            (found.open, found.late, found.lost, found.old) = (0, 0, 0, 0);
            flights.for_each_mut(|_, f| {
                if u64::from(f.node.0) == node {
                    found.lost += usize::from(f.state == FlightState::GivenUp);
                    found.late += usize::from(f.state == FlightState::Stalled);
                    found.open += usize::from(f.state.is_active());
                    found.old += usize::from(f.state.is_active() && f.turns != p.turns);
                }
                true
            });
            right &= found == *p;
            true
        });
        match () {
            () if slow != self.peers.slow() => Err("wrong number of frames for slow peers"),
            () if !right => Err("frames are counted for the wrong peer, or not as they are"),
            () if self.counts.refused() != 0 => Err("an impossible transition"),
            () if given_up != self.given_up => Err("wrong number of frames given up"),
            () if stalled != self.stalled => Err("wrong number of frames stalled"),
            () if moving != self.flows.sum() => Err("wrong number of frames by flow"),
            () if self.given_up > self.quarantine => Err("too many frames given up"),
            () => Ok(()),
        }
    }
}
