// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Table of posted GETs at the receiver. The receive path shares it with the context that processes
//! notifications.

use super::{Buffer, Limits, Peers};
use crate::{
    base::{flow::Counts, slots::Slots},
    eth::order::Ticket,
    Clock, Memory, Time, TransportError,
};
use wire::{
    eth::{last_size, match_key, Announcement, Completion},
    ids::NodeId,
};

crate::flow! {
    /// States of an announcement at its receiver.
    states FetchState {
        /// Waiting to be fetched.
        Waiting,
        /// The GET is posted.
        Fetching,
        /// A GET to the scratch buffer is posted, and the frame will be discarded.
        Discarding,
        /// The GET was not answered in time. The buffer remains mapped, and data that arrive are
        /// discarded.
        Lost,
        /// Finished.
        Ended,
    }
    /// Events of an announcement at its receiver.
    events FetchEvent {
        /// A buffer is available, and the GET is about to be posted.
        Post,
        /// Only the scratch buffer is available, and the GET is about to be posted.
        PostScratch,
        /// The port refused the GET.
        NotPosted,
        /// The announcement is refused.
        Refuse,
        /// The frame has arrived.
        Arrived,
        /// The NIC reports that the GET failed.
        Failed,
        /// [`Limits::timeout`] has passed.
        TimeOut,
        /// [`Limits::quarantine`] has passed.
        Expire,
        /// The port was closed.
        Flush,
    }
    transitions {
        Waiting + Post => Fetching;
        Waiting + PostScratch => Discarding;
        Waiting + Refuse => Ended;
        Waiting + Flush => Ended;
        Fetching + NotPosted => Waiting;
        Fetching + Arrived => Ended;
        Fetching + Failed => Ended;
        Fetching + TimeOut => Lost;
        Fetching + Flush => Ended;
        Discarding + NotPosted => Waiting;
        Discarding + Arrived => Ended;
        Discarding + Failed => Ended;
        Discarding + TimeOut => Lost;
        Discarding + Flush => Ended;
        Lost + Arrived => Ended;
        Lost + Failed => Ended;
        Lost + Expire => Ended;
        Lost + Flush => Ended;
    }
}

/// Memory and transmit path for GETs.
pub trait FetchPort {
    /// Memory to which GETs write.
    type Buffer: Buffer;
    /// Reserves the resources to post one GET.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the resources are not available.
    fn reserve(&mut self) -> Result<(), TransportError>;
    /// Allocates a buffer for `len` bytes. Returns `None` if no memory is available.
    fn buffer(&mut self, len: u32) -> Option<Self::Buffer>;
    /// Returns an unused buffer to the port.
    fn give_back(&mut self, buffer: Self::Buffer) {
        drop(buffer);
    }
    /// Posts the GET of `len` bytes for an announcement, to the address `local`.
    ///
    /// # Errors
    ///
    /// Returns the reason for which the GET was not posted.
    fn get(
        &mut self,
        from: NodeId,
        announcement: &Announcement,
        len: u32,
        local: u64,
    ) -> Result<(), TransportError>;
}

struct Fetch<B> {
    buffer: B,
    /// True if `buffer` is the scratch buffer.
    scratch: bool,
    node: NodeId,
    /// Size field of the expected notification.
    last: u32,
    ticket: Option<Ticket>,
    since: Time,
    /// Generation of the source's transfers when the GET was posted.
    generation: u32,
    /// Last known time at which the port had not sent the GET yet.
    last_unsent: Time,
    state: FetchState,
    /// True if the GET is stalled, so that it does not count as in flight.
    stalled: bool,
}

/// Decision about a further GET from a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// The caller may post the GET now.
    Yes,
    /// The GET must wait for other GETs from the same source.
    Later {
        /// True if the source has answered nothing for [`Limits::patience`].
        slow: bool,
    },
    /// The GET must wait for GETs from other sources.
    Full,
    /// The GET is refused because the source has this number of GETs in flight or without answer.
    No(usize),
}

/// End of a GET, with the position of its frame in the delivery order. The caller frees the buffer
/// without holding its lock.
#[derive(Debug)]
pub enum Fetched<B> {
    /// The frame has arrived. Contains the buffer, the source node and the frame's position.
    Frame(B, NodeId, Option<Ticket>),
    /// The frame was discarded.
    Discarded(Option<Ticket>),
    /// The GET failed with these error bits.
    Failed(Option<B>, u8, Option<Ticket>),
    /// An answer to a GET that was counted as lost before.
    Late(Option<B>),
    /// No GET from this peer matches the notification.
    Unmatched,
}

/// Table of GETs in flight and lost GETs, by the address of their last fragment.
pub struct Fetches<M: Memory, B> {
    fetches: Slots<M, Fetch<B>>,
    sources: Peers<M>,
    /// Number of lost GETs in the table.
    lost: usize,
    /// Number of stalled GETs that are not lost.
    stalled: usize,
    /// Buffer for frames that are discarded; `None` while in use.
    scratch: Option<B>,
    /// Node whose frame uses the scratch buffer, and the time at which this use began.
    scratch_for: Option<(NodeId, Time)>,
    counts: Counts<FetchState>,
}

impl<M: Memory, B: Buffer> Fetches<M, B> {
    /// Creates a table for `flight` GETs in flight and `lost` lost GETs.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(flight: u16, lost: u16) -> Result<Self, M::Error> {
        Ok(Self {
            fetches: Slots::new(flight.saturating_add(lost))?,
            sources: Peers::new(flight.saturating_add(lost))?,
            lost: 0,
            stalled: 0,
            scratch: None,
            scratch_for: None,
            counts: Counts::default(),
        })
    }

    /// Returns the number of GETs, including lost GETs.
    pub fn len(&self) -> usize {
        self.fetches.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.fetches.is_empty()
    }

    /// Returns true if no GET is expected to be answered.
    pub fn is_idle(&self) -> bool {
        self.fetches.len() == self.lost
    }

    /// Returns the number of lost GETs.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Returns the number of times that each transition was made.
    pub fn counts(&self) -> &Counts<FetchState> {
        &self.counts
    }

    /// Replaces the scratch buffer. Returns the previous buffer.
    pub fn set_scratch(&mut self, scratch: Option<B>) -> Option<B> {
        core::mem::replace(&mut self.scratch, scratch)
    }

    /// Returns true if the scratch buffer is missing, because its GET was lost.
    pub fn needs_scratch(&self) -> bool {
        self.scratch.is_none() && self.scratch_for.is_none()
    }

    /// Decides whether a frame of this source may be fetched.
    ///
    /// A GET without answer keeps its slot until `timeout` and then `quarantine` have passed. These
    /// limits apply:
    ///
    /// * A source that has not answered any GET so far, or has lost GETs, may have up to
    ///   [`Limits::lossy_source`] GETs, but not more than an eighth of the free slots.
    /// * A source that has not answered since a GET was lost may have one GET at a time, while more
    ///   than an eighth of all slots is free. This GET shows whether the source answers again.
    ///   Earlier GETs of the source do not count in this limit. The total of its lost GETs and GETs
    ///   in flight is at most one more than `source` and `lossy_source`. Its slots become free only
    ///   at the end of a quarantine.
    /// * While any GETs are stalled or lost, a source may have up to a quarter of the free slots.
    /// * Otherwise each source leaves a quarter of the remaining GETs to other sources, so that two
    ///   sources that answer late cannot occupy all GETs.
    pub fn allowed(&self, clock: &impl Clock, node: NodeId, limits: &Limits) -> Allowed {
        let source = self.sources.get(node);
        let all = source.open + source.lost;
        let room = self.fetches.room();
        let most = limits.source.saturating_add(limits.lossy_source);
        let bound = match source {
            s if s.unresponsive => usize::from(room > (room + self.fetches.len()) / 8),
            s if s.lost > 0 && all >= most => 1,
            s if s.lost > 0 || !s.answered => limits.lossy_source.min(room / 8).max(1),
            s if self.lost + self.stalled == 0 => {
                let others = (self.fetches.len() - self.lost).saturating_sub(s.open);
                let left = limits.fetches.saturating_sub(others);
                limits.source.min(left - left / 4).max(1)
            }
            _ => limits.source.min(room / 4).max(1),
        };
        if source.recent() >= bound {
            let quiet = match all {
                0 => 0,
                _ => clock.now().since(source.progress),
            };
            if source.unresponsive && quiet >= limits.stall {
                Allowed::No(all)
            } else {
                Allowed::Later {
                    slow: quiet >= limits.patience,
                }
            }
        } else if room == 0 || self.fetches.len() - self.lost - self.stalled >= limits.fetches {
            Allowed::Full
        } else {
            Allowed::Yes
        }
    }

    /// Returns true if the source is stalled, because it has stalled GETs, or because it has
    /// answered no GET since a GET was lost.
    pub fn is_stalled(&self, node: NodeId) -> bool {
        self.sources.get(node).is_stalled()
    }

    /// Claims the scratch buffer for a frame of `node`.
    ///
    /// # Errors
    ///
    /// Returns `None` if the buffer is in use. Returns the number of GETs of `node` in flight or
    /// without answer if `node` may not have the buffer. This is so if `node` has not answered
    /// since a GET was lost, or if a stalled GET of `node` uses the buffer.
    pub(super) fn claim_scratch(
        &mut self,
        node: NodeId,
        now: Time,
        limits: &Limits,
    ) -> Result<B, Option<usize>> {
        let source = self.sources.get(node);
        if source.unresponsive {
            return Err(Some(source.open + source.lost));
        }
        match self.scratch_for {
            Some((holder, since)) if holder == node && now.since(since) >= limits.stall => {
                Err(Some(source.open))
            }
            _ => {
                let scratch = self.scratch.take().ok_or(None)?;
                self.scratch_for = Some((node, now));
                Ok(scratch)
            }
        }
    }

    fn return_scratch(&mut self, scratch: B) {
        self.scratch = Some(scratch);
        self.scratch_for = None;
    }

    /// Counts an event of a waiting announcement.
    pub(super) fn count_waiting(&mut self, event: FetchEvent) {
        self.counts.step(&mut { FetchState::Waiting }, event);
    }

    /// Inserts a GET of `len` bytes from `node` that is about to be posted.
    ///
    /// # Errors
    ///
    /// Returns the buffer if the table is full, unless it is the scratch buffer.
    pub(super) fn begin(
        &mut self,
        node: NodeId,
        len: u32,
        buffer: B,
        scratch: bool,
        now: Time,
        ticket: Option<Ticket>,
    ) -> Result<(), Option<B>> {
        let mut state = FetchState::Waiting;
        let event = if scratch {
            FetchEvent::PostScratch
        } else {
            FetchEvent::Post
        };
        self.counts.step(&mut state, event);
        let key = match_key(buffer.address(), len);
        let fetch = Fetch {
            buffer,
            scratch,
            node,
            last: last_size(len),
            ticket,
            since: now,
            generation: self.sources.get(node).generation,
            last_unsent: Time::default(),
            state,
            stalled: false,
        };
        self.insert(key, fetch).map_err(|fetch| {
            self.counts.step(&mut state, FetchEvent::NotPosted);
            if scratch {
                self.return_scratch(fetch.buffer);
                return None;
            }
            Some(fetch.buffer)
        })
    }

    /// Removes a GET that the port refused. Returns its buffer, unless it is the scratch buffer.
    pub(super) fn not_posted(&mut self, key: u64) -> Option<B> {
        self.end(key, FetchEvent::NotPosted)?.2
    }

    fn insert(&mut self, key: u64, fetch: Fetch<B>) -> Result<(), Fetch<B>> {
        let (node, since) = (fetch.node, fetch.since);
        self.fetches.insert(key, fetch)?;
        self.sources.update(node, |s| {
            if s.open == s.open_earlier {
                s.progress = since;
            }
            s.open += 1;
        });
        Ok(())
    }

    /// Removes a GET after an event. Returns its previous state and its buffer. Does not return the
    /// scratch buffer, but marks it as free.
    fn end(&mut self, key: u64, event: FetchEvent) -> Option<(FetchState, NodeId, Option<B>)> {
        let state = self.fetches.get(key)?.state;
        let mut next = state;
        if !self.counts.step(&mut next, event) {
            return None;
        }
        let f = self.fetches.remove(key)?;
        let lost = state == FetchState::Lost;
        self.lost = self.lost.saturating_sub(usize::from(lost));
        self.stalled = self.stalled.saturating_sub(usize::from(f.stalled));
        self.sources.update(f.node, |s| {
            if lost {
                s.lost = s.lost.saturating_sub(1);
            } else {
                s.ended(f.generation, f.stalled);
            }
        });
        if f.scratch {
            self.return_scratch(f.buffer);
            return Some((state, f.node, None));
        }
        Some((state, f.node, Some(f.buffer)))
    }

    /// Processes a completer notification.
    pub fn notified(&mut self, clock: &impl Clock, c: &Completion) -> Fetched<B> {
        let is_it = |f: &Fetch<B>| f.node == c.peer && (c.error != 0 || f.last == c.last);
        let Some(fetch) = self.fetches.get(c.key).filter(|f| is_it(f)) else {
            return Fetched::Unmatched;
        };
        let ticket = fetch.ticket;
        let now = clock.now();
        self.sources.update(c.peer, |s| s.answers(now));
        let event = match c.error {
            0 => FetchEvent::Arrived,
            _ => FetchEvent::Failed,
        };
        match self.end(c.key, event) {
            None => Fetched::Unmatched,
            Some((_, _, buffer)) if c.error != 0 => Fetched::Failed(buffer, c.error, ticket),
            Some((FetchState::Lost, _, buffer)) => Fetched::Late(buffer),
            Some((_, node, Some(buffer))) => Fetched::Frame(buffer, node, ticket),
            Some((_, _, None)) => Fetched::Discarded(ticket),
        }
    }

    /// Processes time-outs: marks stalled and lost GETs, and calls `free` for memory at the end of
    /// its quarantine. Returns a source with the number of GETs lost.
    ///
    /// The port has sent all GETs that were posted before `posted_before`. GETs that were posted
    /// later keep their memory, and do not count against their sources until they are lost.
    pub fn age(
        &mut self,
        clock: &impl Clock,
        limits: &Limits,
        posted_before: Time,
        mut free: impl FnMut(B),
    ) -> Option<(NodeId, u64)> {
        let now = clock.now();
        let mut lost: Option<(NodeId, u64)> = None;
        let mut next = self.fetches.oldest().map(|(key, _)| key);
        while let Some(key) = next {
            next = self.fetches.younger(key);
            let Some(f) = self.fetches.get_mut(key) else {
                break;
            };
            let age = now.since(f.since);
            if age < limits.stall {
                // All remaining GETs are younger.
                break;
            }
            if f.state != FetchState::Lost && age < limits.timeout {
                if f.since >= posted_before {
                    f.last_unsent = now;
                }
                if now.since(f.since.max(f.last_unsent)) < limits.stall {
                    continue;
                }
            }
            if f.state != FetchState::Lost && !f.stalled {
                f.stalled = true;
                self.stalled += 1;
                self.sources.update(f.node, |s| s.stalled += 1);
            }
            if age < limits.timeout {
                continue;
            }
            if f.state != FetchState::Lost {
                self.counts.step(&mut f.state, FetchEvent::TimeOut);
                self.lost += 1;
                f.stalled = false;
                self.stalled -= 1;
                if f.scratch {
                    // The lost GET keeps this buffer, and the driver sets a new scratch buffer.
                    f.scratch = false;
                    self.scratch_for = None;
                }
                let generation = f.generation;
                self.sources.update(f.node, |s| {
                    s.ended(generation, true);
                    s.lost();
                });
                lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            }
            if age >= limits.timeout + limits.quarantine && f.since < posted_before {
                if let Some((_, _, Some(buffer))) = self.end(key, FetchEvent::Expire) {
                    free(buffer);
                }
            }
        }
        lost
    }

    /// Removes a GET after the port was closed. Returns true if it was not lost. The NIC may still
    /// write to the buffer.
    pub fn flush_one(&mut self) -> Option<(bool, B)> {
        let (key, _) = self.fetches.oldest()?;
        let (state, _, buffer) = self.end(key, FetchEvent::Flush)?;
        let buffer = buffer.or_else(|| self.scratch.take())?;
        Some((state != FetchState::Lost, buffer))
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let (mut lost, mut stalled, mut scratch) = (0, 0, 0);
        self.fetches.for_each_mut(|_, f| {
            lost += usize::from(f.state == FetchState::Lost);
            stalled += usize::from(f.stalled);
            scratch += usize::from(f.scratch);
            true
        });
        let (mut by_source, mut valid) = (0, true);
        self.sources.stats.for_each_mut(|_, s| {
            by_source += s.stalled;
            valid &= s.open_earlier <= s.open;
            true
        });
        match () {
            () if self.counts.impossible() != 0 => Err("an impossible transition"),
            () if lost != self.lost => Err("wrong number of lost GETs"),
            () if stalled != self.stalled => Err("wrong number of stalled GETs"),
            () if by_source != stalled => Err("wrong number of stalled GETs by source"),
            () if !valid => Err("a source has more GETs of earlier generations than GETs"),
            () if scratch != usize::from(self.scratch_for.is_some()) => {
                Err("the scratch buffer is in use without a GET")
            }
            () if scratch + usize::from(self.scratch.is_some()) > 1 => Err("two scratch buffers"),
            () => Ok(()),
        }
    }
}
