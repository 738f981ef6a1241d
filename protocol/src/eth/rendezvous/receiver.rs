// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The side that fetches: [`Fetches`] are shared with whoever takes notifications.

use super::{Buffer, Limits, Peers};
use crate::{
    base::{flow::Counts, slots::Slots},
    eth::order::Ticket,
    Clock, Memory, Refused, Time,
};
use wire::{
    eth::{last_size, match_key, Announcement, Completion},
    ids::NodeId,
};

crate::flow! {
    /// Life of an announcement at its receiver.
    states FetchState {
        /// Not fetched yet.
        Waiting,
        /// The GET is posted.
        Fetching,
        /// The GET is posted, into the scratch buffer: the frame is thrown away.
        Discarding,
        /// Not answered in time. The buffer stays as it is, and what arrives is thrown away.
        Lost,
        /// Done with.
        Ended,
    }
    /// What happens to it.
    events FetchEvent {
        /// A buffer was found, and the GET goes out.
        Post,
        /// Only the scratch buffer was found.
        PostScratch,
        /// The port did not take the GET.
        NotPosted,
        /// It is refused.
        Refuse,
        /// The frame has arrived.
        Arrived,
        /// The NIC reports that it failed.
        Failed,
        /// It is overdue.
        TimeOut,
        /// It was kept for long enough.
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

/// Finds buffers and posts GETs.
pub trait FetchPort {
    /// Memory that frames arrive in.
    type Buffer: Buffer;
    /// Makes sure that one GET can be posted.
    ///
    /// # Errors
    ///
    /// It can't.
    fn reserve(&mut self) -> Result<(), Refused>;
    /// A buffer for `len` bytes, `None` without memory.
    fn buffer(&mut self, len: u32) -> Option<Self::Buffer>;
    /// Takes a buffer back that was not used.
    fn give_back(&mut self, buffer: Self::Buffer) {
        drop(buffer);
    }
    /// Posts the GET of `len` bytes for an announcement, to the address `local`.
    ///
    /// # Errors
    ///
    /// Nothing was posted.
    fn get(
        &mut self,
        from: NodeId,
        announcement: &Announcement,
        len: u32,
        local: u64,
    ) -> Result<(), Refused>;
}

struct Fetch<B> {
    buffer: B,
    /// `buffer` is the scratch buffer.
    scratch: bool,
    node: NodeId,
    /// Size that its notification has to show.
    last: u32,
    ticket: Option<Ticket>,
    since: Time,
    /// How often its source had become silent by then.
    turns: u32,
    /// When the port was last found to have held the GET back.
    held: Time,
    state: FetchState,
    /// Not answered for a while: it doesn't count for what may be in flight.
    late: bool,
}

/// What a source may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Fetch now.
    Yes,
    /// Not now, because of its own fetches; whether it has answered nothing for a while.
    Later {
        /// So it is.
        slow: bool,
    },
    /// Not now, because of all fetches.
    Full,
    /// It leaves this many unanswered or in flight.
    No(usize),
}

/// How a fetch ended, with the place that its frame was to have. Buffers are to be freed by the
/// caller, without its lock.
#[derive(Debug)]
pub enum Fetched<B> {
    /// The frame of this node.
    Frame(B, NodeId, Option<Ticket>),
    /// The frame was only fetched to free the sender's buffer.
    Discarded(Option<Ticket>),
    /// It failed with these error bits.
    Failed(Option<B>, u8, Option<Ticket>),
    /// It had been given up before.
    Late(Option<B>),
    /// There is none, or it is none of this peer's.
    Unmatched,
}

/// Fetches in flight and lost, by the address of their last fragment.
pub struct Fetches<M: Memory, B> {
    fetches: Slots<M, Fetch<B>>,
    sources: Peers<M>,
    /// Those that were not answered in time.
    lost: usize,
    /// Those that are waited for, but were not answered for a while.
    late: usize,
    /// For frames that are fetched only to free the sender's buffer; `None` while in use.
    scratch: Option<B>,
    /// For whose frame it is in use, and since when.
    scratch_for: Option<(NodeId, Time)>,
    counts: Counts<FetchState>,
}

impl<M: Memory, B: Buffer> Fetches<M, B> {
    /// For `flight` fetches in flight and `lost` that were not answered in time.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(flight: u16, lost: u16) -> Result<Self, M::Error> {
        Ok(Self {
            fetches: Slots::new(flight.saturating_add(lost))?,
            sources: Peers::new(flight.saturating_add(lost))?,
            lost: 0,
            late: 0,
            scratch: None,
            scratch_for: None,
            counts: Counts::default(),
        })
    }

    /// Number in flight, lost ones included.
    pub fn len(&self) -> usize {
        self.fetches.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fetches.is_empty()
    }

    /// Whether none is still expected to be answered.
    pub fn is_idle(&self) -> bool {
        self.fetches.len() == self.lost
    }

    /// Those that were not answered in time.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// What happened so far.
    pub fn counts(&self) -> &Counts<FetchState> {
        &self.counts
    }

    /// Puts the scratch buffer in its place or takes it; returns what was there.
    pub fn set_scratch(&mut self, scratch: Option<B>) -> Option<B> {
        core::mem::replace(&mut self.scratch, scratch)
    }

    /// Whether a scratch buffer is missing: the one that there was got lost with its fetch.
    pub fn needs_scratch(&self) -> bool {
        self.scratch.is_none() && self.scratch_for.is_none()
    }

    /// Whether a frame of this source may be fetched.
    ///
    /// Fetches that are not answered hold their places for `timeout` and `keep`. So an unknown
    /// source gets few places, and while some are unanswered nobody gets more than a part of what
    /// is left. A silent source gets one at a time as long as there is no shortage: enough to notice
    /// that it answers again. What it owed when it became silent doesn't count for what it may have
    /// in flight, then and when it answers again; in flight and lost together it never has more than
    /// one beyond `source` and `lossy_source`, but by time. Any other leaves a quarter of what there is
    /// to those that come after it, so that no two that answer late, if not too late, hold all.
    pub fn allowed(&self, clock: &impl Clock, node: NodeId, limits: &Limits) -> Allowed {
        let source = self.sources.get(node);
        let all = source.open + source.lost;
        let places = self.fetches.room();
        let most = limits.source.saturating_add(limits.lossy_source);
        let bound = match source {
            s if s.silent => usize::from(places > (places + self.fetches.len()) / 8),
            s if s.lost > 0 && all >= most => 1,
            s if s.lost > 0 || !s.answered => limits.lossy_source.min(places / 8).max(1),
            s if self.lost + self.late == 0 => {
                let others = (self.fetches.len() - self.lost).saturating_sub(s.open);
                let left = limits.fetches.saturating_sub(others);
                limits.source.min(left - left / 4).max(1)
            }
            _ => limits.source.min(places / 4).max(1),
        };
        if source.recent() >= bound {
            let quiet = match all {
                0 => 0,
                _ => clock.now().since(source.progress),
            };
            match source.silent && quiet >= limits.stall {
                true => Allowed::No(all),
                false => Allowed::Later {
                    slow: quiet >= limits.patience,
                },
            }
        } else if places == 0 || self.fetches.len() - self.lost - self.late >= limits.fetches {
            Allowed::Full
        } else {
            Allowed::Yes
        }
    }

    /// Whether `node` leaves fetches unanswered for longer than a while, or has answered nothing
    /// since it let one be lost.
    pub fn is_slow(&self, node: NodeId) -> bool {
        self.sources.get(node).is_slow()
    }

    /// Takes the scratch buffer for a frame of `node`.
    ///
    /// # Errors
    ///
    /// There is none now. Or there is none for `node`, which was silent, or holds it without
    /// answering: it leaves this many unanswered or in flight.
    pub(super) fn take_scratch(
        &mut self,
        node: NodeId,
        now: Time,
        limits: &Limits,
    ) -> Result<B, Option<usize>> {
        let source = self.sources.get(node);
        if source.silent {
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

    /// Counts what happened to an announcement that waits.
    pub(super) fn count_waiting(&mut self, event: FetchEvent) {
        self.counts.step(&mut { FetchState::Waiting }, event);
    }

    /// A frame of `len` bytes is about to be fetched from `node`.
    ///
    /// # Errors
    ///
    /// There is no place: the buffer, if it is the caller's.
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
        let event = match scratch {
            false => FetchEvent::Post,
            true => FetchEvent::PostScratch,
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
            turns: self.sources.get(node).turns,
            held: Time::default(),
            state,
            late: false,
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

    /// The port did not take the GET. Returns its buffer, if it is the caller's.
    pub(super) fn not_posted(&mut self, key: u64) -> Option<B> {
        self.end(key, FetchEvent::NotPosted)?.2
    }

    fn insert(&mut self, key: u64, fetch: Fetch<B>) -> Result<(), Fetch<B>> {
        let (node, since) = (fetch.node, fetch.since);
        self.fetches.insert(key, fetch)?;
        self.sources.update(node, |s| {
            if s.open == s.old {
                s.progress = since;
            }
            s.open += 1;
        });
        Ok(())
    }

    /// Ends a fetch by an event; the state it was in. The scratch buffer goes back to its place.
    fn end(&mut self, key: u64, event: FetchEvent) -> Option<(FetchState, NodeId, Option<B>)> {
        let state = self.fetches.get(key)?.state;
        let mut next = state;
        if !self.counts.step(&mut next, event) {
            return None;
        }
        let f = self.fetches.remove(key)?;
        let lost = state == FetchState::Lost;
        self.lost = self.lost.saturating_sub(usize::from(lost));
        self.late = self.late.saturating_sub(usize::from(f.late));
        self.sources.update(f.node, |s| match lost {
            true => s.lost = s.lost.saturating_sub(1),
            false => s.ended(f.turns, f.late),
        });
        if f.scratch {
            self.return_scratch(f.buffer);
            return Some((state, f.node, None));
        }
        Some((state, f.node, Some(f.buffer)))
    }

    /// A completer notification.
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

    /// Marks what is overdue, and gives the memory back that was kept for long enough (`free`).
    /// Returns a source and the number of fetches lost.
    ///
    /// The port has posted all that it got before `settled`. What it may still have to post keeps
    /// its memory, and is not held against the source before it is lost.
    pub fn age(
        &mut self,
        clock: &impl Clock,
        limits: &Limits,
        settled: Time,
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
                // All others are younger.
                break;
            }
            if f.state != FetchState::Lost && age < limits.timeout {
                if f.since >= settled {
                    f.held = now;
                }
                if now.since(f.since.max(f.held)) < limits.stall {
                    continue;
                }
            }
            if f.state != FetchState::Lost && !f.late {
                f.late = true;
                self.late += 1;
                self.sources.update(f.node, |s| s.late += 1);
            }
            if age < limits.timeout {
                continue;
            }
            if f.state != FetchState::Lost {
                self.counts.step(&mut f.state, FetchEvent::TimeOut);
                self.lost += 1;
                f.late = false;
                self.late -= 1;
                if f.scratch {
                    // Its buffer is kept as any other, and others need one.
                    f.scratch = false;
                    self.scratch_for = None;
                }
                let turns = f.turns;
                self.sources.update(f.node, |s| {
                    s.ended(turns, true);
                    s.lost();
                });
                lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            }
            if age >= limits.timeout + limits.keep && f.since < settled {
                if let Some((_, _, Some(buffer))) = self.end(key, FetchEvent::Expire) {
                    free(buffer);
                }
            }
        }
        lost
    }

    /// Takes any fetch out, after the port was closed: true if it was still expected. The NIC may
    /// write to it all the same.
    pub fn flush_one(&mut self) -> Option<(bool, B)> {
        let (key, _) = self.fetches.oldest()?;
        let (state, _, buffer) = self.end(key, FetchEvent::Flush)?;
        let buffer = buffer.or_else(|| self.scratch.take())?;
        Some((state != FetchState::Lost, buffer))
    }

    /// Checks what must always hold; for tests.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let (mut lost, mut late, mut scratch) = (0, 0, 0);
        self.fetches.for_each_mut(|_, f| {
            lost += usize::from(f.state == FetchState::Lost);
            late += usize::from(f.late);
            scratch += usize::from(f.scratch);
            true
        });
        let (mut owed, mut old) = (0, true);
        self.sources.tallies.for_each_mut(|_, s| {
            owed += s.late;
            old &= s.old <= s.open;
            true
        });
        match () {
            () if self.counts.refused() != 0 => Err("an impossible transition"),
            () if lost != self.lost => Err("wrong number of fetches lost"),
            () if late != self.late => Err("wrong number of late fetches"),
            () if owed != late => Err("late fetches are held against the wrong source"),
            () if !old => Err("a source owes more from before it was silent than it owes"),
            () if scratch != usize::from(self.scratch_for.is_some()) => {
                Err("the scratch buffer is in use for nothing")
            }
            () if scratch + usize::from(self.scratch.is_some()) > 1 => Err("two scratch buffers"),
            () => Ok(()),
        }
    }
}
