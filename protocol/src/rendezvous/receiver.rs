// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The side that fetches: [`Waiting`] announcements belong to whoever takes messages, [`Fetches`] are shared with whoever takes
//! notifications.

use super::{Buffer, Limits, Peers};
use crate::{flow::Counts, slots::Slots, Clock, Memory, Refused, Time};
use wire::{
    ext_eth::{match_key, Announcement, Completion},
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

/// Access to what is behind a lock.
pub trait Shared<T> {
    /// Calls `f` with the lock held.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

struct Fetch<B> {
    buffer: B,
    /// `buffer` is the scratch buffer.
    scratch: bool,
    node: NodeId,
    since: Time,
    state: FetchState,
}

/// What a source may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowed {
    /// Fetch now.
    Yes,
    /// Not now, because of its own fetches.
    Later,
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
    /// For frames that are fetched only to free the sender's buffer; `None` while in use.
    scratch: Option<B>,
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
            scratch: None,
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

    /// Whether a frame of this source may be fetched.
    pub fn allowed(&self, node: NodeId, limits: &Limits) -> Allowed {
        let source = self.sources.get(node);
        let all = source.open + source.lost;
        if source.lost > 0 && all >= limits.lossy_source {
            Allowed::No(all)
        } else if source.open >= limits.source {
            Allowed::Later
        } else if self.fetches.is_full() || self.fetches.len() - self.lost >= limits.fetches {
            Allowed::Full
        } else {
            Allowed::Yes
        }
    }

    /// Whether this source has left a fetch unanswered.
    fn is_lossy(&self, node: NodeId) -> bool {
        self.sources.get(node).lost > 0
    }

    fn insert(&mut self, key: u64, fetch: Fetch<B>) -> Result<(), Fetch<B>> {
        let node = fetch.node;
        self.fetches.insert(key, fetch)?;
        self.sources.update(node, |s| s.open += 1);
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
        self.sources.update(f.node, |s| match lost {
            true => s.lost = s.lost.saturating_sub(1),
            false => s.open = s.open.saturating_sub(1),
        });
        if f.scratch {
            self.scratch = Some(f.buffer);
            return Some((state, f.node, None));
        }
        Some((state, f.node, Some(f.buffer)))
    }

    /// A completer notification.
    pub fn notified(&mut self, c: &Completion) -> Fetched<B> {
        if self.fetches.get(c.key).is_none_or(|f| f.node != c.peer) {
            return Fetched::Unmatched;
        }
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
    /// fetches lost.
    pub fn age(
        &mut self,
        clock: &impl Clock,
        limits: &Limits,
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
            if age < limits.timeout {
                // All others are younger.
                break;
            }
            if f.state != FetchState::Lost {
                self.counts.step(&mut f.state, FetchEvent::TimeOut);
                self.lost += 1;
                self.sources.update(f.node, |s| {
                    s.open = s.open.saturating_sub(1);
                    s.lost += 1;
                });
                lost = Some((f.node, lost.map_or(0, |(_, n)| n) + 1));
            }
            if age >= limits.timeout + limits.keep {
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
        let (mut lost, mut scratch) = (0, 0);
        self.fetches.for_each_mut(|_, f| {
            lost += usize::from(f.state == FetchState::Lost);
            scratch += usize::from(f.scratch);
            true
        });
        match () {
            () if self.counts.refused() != 0 => Err("an impossible transition"),
            () if lost != self.lost => Err("wrong number of fetches lost"),
            () if scratch + usize::from(self.scratch.is_some()) > 1 => Err("two scratch buffers"),
            () => Ok(()),
        }
    }
}

/// An announcement that waits.
struct Announced {
    node: NodeId,
    announcement: Announcement,
    len: u32,
    since: Time,
    /// Not a frame that can be delivered: only to free the sender's buffer.
    discard: bool,
}

/// Why an announcement is not fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its source has this many fetches in flight and leaves some unanswered.
    Source(usize),
    /// The port will never take it.
    Port,
}

/// What [`Waiting::pump`] did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pumped {
    /// Announcements that are done with.
    pub taken: usize,
    /// Announcements that still wait.
    pub left: usize,
}

/// Why the oldest announcements are not fetched now.
enum Next {
    /// It is done with.
    Taken,
    /// For a reason of its own: others may go past it.
    Pass,
    /// For a reason that holds for all.
    Stop,
}

/// Announcements that wait for a place, credit or memory, in the order of their arrival.
pub struct Waiting<M: Memory> {
    queue: Slots<M, Announced>,
    /// Number of the next one.
    number: u64,
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
            number: 0,
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

    /// Takes an announcement of `len` bytes; with `discard` only to free the sender's buffer. False: no room.
    #[must_use]
    pub fn push(
        &mut self,
        clock: &impl Clock,
        node: NodeId,
        announcement: Announcement,
        len: u32,
        discard: bool,
    ) -> bool {
        let announced = Announced {
            node,
            announcement,
            len,
            since: clock.now(),
            discard,
        };
        let number = self.number;
        self.number = number.wrapping_add(1);
        self.queue.insert(number, announced).is_ok()
    }

    /// Fetches what waits, as far as possible. What waits because of its own source doesn't hold up the others.
    pub fn pump<P: FetchPort>(
        &mut self,
        fetches: &impl Shared<Fetches<M, P::Buffer>>,
        clock: &impl Clock,
        port: &mut P,
        limits: &Limits,
        mut refused: impl FnMut(NodeId, u32, Refusal),
    ) -> Pumped {
        let mut taken = 0;
        let mut next = self.queue.oldest().map(|(key, _)| key);
        while let Some(number) = next {
            next = self.queue.younger(number);
            let Some(a) = self.queue.get(number) else {
                break;
            };
            match fetch(a, fetches, clock, port, limits, &mut refused) {
                Next::Taken => {
                    taken += 1;
                    self.queue.remove(number);
                }
                Next::Pass => {}
                Next::Stop => break,
            }
        }
        Pumped {
            taken,
            left: self.queue.len(),
        }
    }

    /// Forgets everything; returns the number of announcements. The port is closed.
    pub fn flush<B: Buffer>(&mut self, fetches: &impl Shared<Fetches<M, B>>) -> usize {
        let mut n = 0;
        while self.queue.pop_oldest().is_some() {
            n += 1;
            fetches.with(|f| {
                f.counts
                    .step(&mut { FetchState::Waiting }, FetchEvent::Flush);
            });
        }
        n
    }
}

/// Fetches one announced frame.
fn fetch<M: Memory, P: FetchPort>(
    a: &Announced,
    shared: &impl Shared<Fetches<M, P::Buffer>>,
    clock: &impl Clock,
    port: &mut P,
    limits: &Limits,
    refused: &mut impl FnMut(NodeId, u32, Refusal),
) -> Next {
    let mut state = FetchState::Waiting;
    let mut refuse = |why| {
        shared.with(|f| {
            f.counts
                .step(&mut { FetchState::Waiting }, FetchEvent::Refuse)
        });
        refused(a.node, a.len, why);
        Next::Taken
    };
    let (allowed, lossy) = shared.with(|f| (f.allowed(a.node, limits), f.is_lossy(a.node)));
    match allowed {
        Allowed::Yes => {}
        Allowed::Later => return Next::Pass,
        Allowed::Full => return Next::Stop,
        Allowed::No(open) => return refuse(Refusal::Source(open)),
    }
    match port.reserve() {
        Ok(()) => {}
        Err(Refused::Later) => return Next::Stop,
        Err(Refused::Never) => return refuse(Refusal::Port),
    }
    let now = clock.now();
    let waited = now.since(a.since);
    // By now the sender has given it up. Its memory stays readable for a while, for how long is not known here.
    let discard = a.discard || waited >= limits.timeout;
    let fresh = if discard { None } else { port.buffer(a.len) };
    let (buffer, scratch) = match fresh {
        Some(buffer) => (buffer, false),
        None if !discard && waited < limits.patience => return Next::Stop,
        // What leaves the scratch buffer unanswered doesn't get it again before it is free.
        None => match shared.with(|f| f.set_scratch(None)) {
            Some(buffer) => (buffer, true),
            None if discard && lossy => return refuse(Refusal::Source(0)),
            None => return Next::Pass,
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
            since: now,
            state,
        };
        f.insert(key, fetch).map_err(|fetch| {
            f.counts.step(&mut state, FetchEvent::NotPosted);
            if scratch {
                f.scratch = Some(fetch.buffer);
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
                Refused::Never => refuse(Refusal::Port),
            }
        }
    }
}
