// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The side that fetches: [`Waiting`] announcements belong to whoever takes messages, [`Fetches`] are shared with whoever takes
//! notifications.

use super::{Buffer, Limits, Peers};
use crate::{flow::Counts, poll::Horizon, slots::Slots, Clock, Memory, Refused, Shared, Time};
use wire::{
    ext_eth::{last_size, match_key, Announcement, Completion},
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
    since: Time,
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

/// How a fetch ended. Buffers are to be freed by the caller, without its lock.
#[derive(Debug)]
pub enum Fetched<B> {
    /// The frame of this node.
    Frame(B, NodeId),
    /// The frame was only fetched to free the sender's buffer.
    Discarded,
    /// It failed with these error bits.
    Failed(Option<B>, u8),
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
    /// Fetches that are not answered hold their places for `timeout` and `keep`. So an unknown source gets few places, and while some are
    /// unanswered nobody gets more than a part of what is left. A silent source gets one at a time as long as there is no shortage:
    /// enough to notice that it answers again.
    pub fn allowed(&self, clock: &impl Clock, node: NodeId, limits: &Limits) -> Allowed {
        let source = self.sources.get(node);
        let all = source.open + source.lost;
        let places = self.fetches.room();
        let most = limits.source.saturating_add(limits.lossy_source);
        let bound = match source {
            s if s.silent => usize::from(places > (places + self.fetches.len()) / 8),
            s if s.lost > 0 && all >= most => 1,
            s if s.lost > 0 || !s.answered => limits.lossy_source.min(places / 8).max(1),
            _ if self.lost + self.late == 0 => limits.source,
            _ => limits.source.min(places / 4).max(1),
        };
        if source.open >= bound {
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

    /// Takes the scratch buffer for a frame of `node`.
    fn take_scratch(&mut self, node: NodeId, now: Time) -> Option<B> {
        let scratch = self.scratch.take()?;
        self.scratch_for = Some((node, now));
        Some(scratch)
    }

    fn return_scratch(&mut self, scratch: B) {
        self.scratch = Some(scratch);
        self.scratch_for = None;
    }

    fn insert(&mut self, key: u64, fetch: Fetch<B>) -> Result<(), Fetch<B>> {
        let (node, since) = (fetch.node, fetch.since);
        self.fetches.insert(key, fetch)?;
        self.sources.update(node, |s| {
            if s.open == 0 {
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
            false => s.open = s.open.saturating_sub(1),
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
        if !self.fetches.get(c.key).is_some_and(is_it) {
            return Fetched::Unmatched;
        }
        let now = clock.now();
        self.sources.update(c.peer, |s| {
            s.silent = false;
            s.answered = true;
            s.progress = now;
        });
        let event = match c.error {
            0 => FetchEvent::Arrived,
            _ => FetchEvent::Failed,
        };
        match self.end(c.key, event) {
            None => Fetched::Unmatched,
            Some((_, _, buffer)) if c.error != 0 => Fetched::Failed(buffer, c.error),
            Some((FetchState::Lost, _, buffer)) => Fetched::Late(buffer),
            Some((_, node, Some(buffer))) => Fetched::Frame(buffer, node),
            Some((_, _, None)) => Fetched::Discarded,
        }
    }

    /// Marks what is overdue, and gives the memory back that was kept for long enough (`free`). Returns a source and the number of
    /// fetches lost. What the port may still have to post keeps its memory: it has posted all that it got before `settled`.
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
            if f.state != FetchState::Lost && !f.late {
                f.late = true;
                self.late += 1;
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
                self.sources.update(f.node, |s| {
                    s.open = s.open.saturating_sub(1);
                    s.lost += 1;
                    s.silent = true;
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

    /// Takes any fetch out, after the port was closed: true if it was still expected. The NIC may write to it all the same.
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
        match () {
            () if self.counts.refused() != 0 => Err("an impossible transition"),
            () if lost != self.lost => Err("wrong number of fetches lost"),
            () if late != self.late => Err("wrong number of late fetches"),
            () if scratch != usize::from(self.scratch_for.is_some()) => {
                Err("the scratch buffer is in use for nothing")
            }
            () if scratch + usize::from(self.scratch.is_some()) > 1 => Err("two scratch buffers"),
            () => Ok(()),
        }
    }
}

/// An announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// Who has announced it.
    pub node: NodeId,
    /// What was announced.
    pub announcement: Announcement,
    /// Bytes to be fetched.
    pub len: u32,
    /// Not a frame that can be delivered: only to free the sender's buffer.
    pub discard: bool,
}

/// One that waits.
#[derive(Clone, Copy)]
struct Entry {
    announced: Announced,
    /// It was sent after this.
    since: Time,
    /// It was read then.
    read: Time,
}

/// Why an announcement is not fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its source leaves this many unanswered or in flight.
    Source(usize),
    /// Its source has too many waiting.
    Waiting(usize),
    /// It is so old that its sender may use the memory for something else.
    Stale,
    /// The port said so.
    Port,
}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pumped {
    /// Announcements done with: fetched, or refused.
    pub taken: usize,
    /// Announcements that wait.
    pub left: usize,
}

/// Why an announcement is not fetched now.
enum Next {
    /// It is done with.
    Taken,
    /// It is refused.
    Refuse(Refusal),
    /// For a reason of its own: others may go past it. Whether its source has answered nothing for a while.
    Pass(bool),
    /// There is no memory for frames of this length.
    Short(u32),
    /// For a reason that holds for all.
    Stop,
}

/// Announcements of one source that wait.
#[derive(Clone, Copy, Default)]
struct Share {
    all: usize,
    /// Of these, only to free the sender's buffer.
    discards: usize,
}

/// Announcements that wait for a place, credit or memory, in the order of their arrival.
pub struct Waiting<M: Memory> {
    queue: Slots<M, Entry>,
    shares: Slots<M, Share>,
    /// Number of the next one.
    number: u64,
    /// What is known of the age of messages.
    horizon: Horizon,
}

impl<M: Memory> Waiting<M> {
    /// For `capacity` announcements.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            queue: Slots::new(capacity)?,
            shares: Slots::new(capacity)?,
            number: 0,
            horizon: Horizon::default(),
        })
    }

    /// Announcements that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Further announcements that fit.
    pub fn room(&self) -> usize {
        self.queue.room()
    }

    /// What is known of the age of the messages that announcements come in.
    pub fn horizon(&mut self) -> &mut Horizon {
        &mut self.horizon
    }

    fn share(&self, node: NodeId) -> Share {
        let share = self.shares.get(u64::from(node.0));
        share.copied().unwrap_or_default()
    }

    /// Takes an announcement.
    ///
    /// # Errors
    ///
    /// Its source has too many waiting, or there is no room at all.
    pub fn push(
        &mut self,
        clock: &impl Clock,
        announced: Announced,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        let share = self.share(announced.node);
        if share.all >= limits.waiting
            || announced.discard && share.discards >= limits.slow_waiting
            || self.queue.is_full()
        {
            return Err(Refusal::Waiting(share.all));
        }
        let read = clock.now();
        let entry = Entry {
            announced,
            since: self.horizon.since().min(read),
            read,
        };
        let number = self.number;
        self.number = number.wrapping_add(1);
        // There is room, and numbers don't come again before 2⁶⁴ announcements.
        if self.queue.insert(number, entry).is_ok() {
            self.count(&announced, true);
        }
        Ok(())
    }

    /// Counts what came or went of a source.
    fn count(&mut self, a: &Announced, came: bool) {
        let key = u64::from(a.node.0);
        if self.shares.get(key).is_none() {
            // There is room: no more sources than announcements.
            let _ = self.shares.insert(key, Share::default());
        }
        let Some(share) = self.shares.get_mut(key) else {
            return;
        };
        let discards = usize::from(a.discard);
        if came {
            share.all += 1;
            share.discards += discards;
        } else {
            share.all = share.all.saturating_sub(1);
            share.discards = share.discards.saturating_sub(discards);
        }
        if share.all == 0 {
            self.shares.remove(key);
        }
    }

    /// Fetches what waits, as far as possible. What waits because of its own source, or for memory of its size, doesn't hold up the others,
    /// and what waits because its source answers nothing is bounded.
    pub fn pump<P: FetchPort>(
        &mut self,
        fetches: &impl Shared<Fetches<M, P::Buffer>>,
        clock: &impl Clock,
        port: &mut P,
        limits: &Limits,
        mut refused: impl FnMut(NodeId, u32, Refusal),
    ) -> Pumped {
        let mut taken = 0;
        let mut short = u32::MAX;
        let mut next = self.queue.oldest().map(|(key, _)| key);
        while let Some(number) = next {
            next = self.queue.younger(number);
            let Some(&entry) = self.queue.get(number) else {
                break;
            };
            let a = entry.announced;
            let mut outcome = fetch(&entry, fetches, clock, port, limits, short);
            if let Next::Pass(true) = outcome {
                let waiting = self.share(a.node).all;
                if waiting > limits.slow_waiting {
                    outcome = Next::Refuse(Refusal::Waiting(waiting));
                }
            }
            match outcome {
                Next::Taken => {}
                Next::Refuse(why) => {
                    fetches.with(|f| {
                        f.counts
                            .step(&mut { FetchState::Waiting }, FetchEvent::Refuse)
                    });
                    refused(a.node, a.len, why);
                }
                Next::Pass(_) => continue,
                Next::Short(len) => {
                    short = short.min(len);
                    continue;
                }
                Next::Stop => break,
            }
            taken += 1;
            self.queue.remove(number);
            self.count(&a, false);
        }
        Pumped {
            taken,
            left: self.queue.len(),
        }
    }

    /// Forgets everything; returns the number of announcements. The port is closed.
    pub fn flush<B: Buffer>(&mut self, fetches: &impl Shared<Fetches<M, B>>) -> usize {
        let mut n = 0;
        while let Some((_, entry)) = self.queue.pop_oldest() {
            self.count(&entry.announced, false);
            n += 1;
            fetches.with(|f| {
                f.counts
                    .step(&mut { FetchState::Waiting }, FetchEvent::Flush);
            });
        }
        n
    }

    /// Checks what must always hold; for tests.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&mut self, limits: &Limits) -> Result<(), &'static str> {
        let (mut all, mut excess) = (0, false);
        self.shares.for_each_mut(|_, s| {
            all += s.all;
            excess |= s.all > limits.waiting || s.discards > limits.slow_waiting;
            true
        });
        match () {
            () if all != self.queue.len() => Err("wrong number of announcements that wait"),
            () if excess => Err("too many announcements of one source wait"),
            () => Ok(()),
        }
    }
}

/// Fetches one announced frame. There is no memory for frames of `short` bytes.
fn fetch<M: Memory, P: FetchPort>(
    entry: &Entry,
    shared: &impl Shared<Fetches<M, P::Buffer>>,
    clock: &impl Clock,
    port: &mut P,
    limits: &Limits,
    short: u32,
) -> Next {
    let a = &entry.announced;
    let mut state = FetchState::Waiting;
    let now = clock.now();
    let age = now.since(entry.since);
    // Its sender keeps the memory for some time after it has given the frame up, for how long is not known here.
    if age >= 2 * limits.timeout {
        return Next::Refuse(Refusal::Stale);
    }
    match shared.with(|f| f.allowed(clock, a.node, limits)) {
        Allowed::Yes => {}
        Allowed::Later { slow } => return Next::Pass(slow),
        Allowed::Full => return Next::Stop,
        Allowed::No(open) => return Next::Refuse(Refusal::Source(open)),
    }
    match port.reserve() {
        Ok(()) => {}
        Err(Refused::Later) => return Next::Stop,
        Err(Refused::Never) => return Next::Refuse(Refusal::Port),
    }
    // By now the sender has given it up.
    let discard = a.discard || age >= limits.timeout;
    let fresh = match discard || a.len >= short {
        true => None,
        false => port.buffer(a.len),
    };
    let (buffer, scratch) = match fresh {
        Some(buffer) => (buffer, false),
        None if !discard && now.since(entry.read) < limits.patience => return Next::Short(a.len),
        None => match shared.with(|f| scratch_for(f, a.node, now, limits)) {
            Ok(buffer) => (buffer, true),
            Err(next) => return next,
        },
    };
    let local = buffer.address();
    let key = match_key(local, a.len);
    let event = match scratch {
        false => FetchEvent::Post,
        true => FetchEvent::PostScratch,
    };
    // The notification may come at once, so the entry has to be there before the GET is posted.
    let inserted = shared.with(|f| {
        f.counts.step(&mut state, event);
        let fetch = Fetch {
            buffer,
            scratch,
            node: a.node,
            last: last_size(a.len),
            since: now,
            state,
            late: false,
        };
        f.insert(key, fetch).map_err(|fetch| {
            f.counts.step(&mut state, FetchEvent::NotPosted);
            if scratch {
                f.return_scratch(fetch.buffer);
                return None;
            }
            Some(fetch.buffer)
        })
    });
    if inserted.is_err() {
        return Next::Stop;
    }
    match port.get(a.node, &a.announcement, a.len, local) {
        Ok(()) => Next::Taken,
        Err(e) => {
            let buffer = shared.with(|f| f.end(key, FetchEvent::NotPosted));
            drop(buffer);
            match e {
                Refused::Later => Next::Stop,
                Refused::Never => Next::Refuse(Refusal::Port),
            }
        }
    }
}

/// The scratch buffer for a frame of `node`, or what becomes of the frame without. A source that was silent doesn't get it, and one that
/// holds it without answering is not waited for.
fn scratch_for<M: Memory, B: Buffer>(
    fetches: &mut Fetches<M, B>,
    node: NodeId,
    now: Time,
    limits: &Limits,
) -> Result<B, Next> {
    let source = fetches.sources.get(node);
    if source.silent {
        return Err(Next::Refuse(Refusal::Source(source.open + source.lost)));
    }
    match fetches.scratch_for {
        Some((holder, since)) if holder == node && now.since(since) >= limits.stall => {
            Err(Next::Refuse(Refusal::Source(source.open)))
        }
        _ => fetches.take_scratch(node, now).ok_or(Next::Pass(false)),
    }
}
