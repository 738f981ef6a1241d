// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Queue of received announcements whose frames were not fetched yet. The receive path owns it.

use super::{Allowed, Buffer, FetchEvent, FetchPort, Fetches, Limits};
use crate::{
    base::{age_bound::AgeBound, slots::Slots},
    eth::order::Ticket,
    Clock, Memory, Shared, Time, TransportError,
};
use wire::{
    eth::{match_key, Announcement},
    ids::NodeId,
};

/// A received announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// Node that announced the frame.
    pub node: NodeId,
    /// Address and length as announced.
    pub announcement: Announcement,
    /// Number of bytes to be fetched.
    pub len: u32,
    /// The frame cannot be delivered, and is fetched only to release the sender's memory.
    pub discard: bool,
    /// Position in the delivery order of the source's frames.
    pub ticket: Option<Ticket>,
}

/// Announcement in the queue.
#[derive(Clone, Copy)]
struct Entry {
    announced: Announced,
    /// Lower bound for the time at which the announcement was sent.
    since: Time,
    /// Time at which the announcement was read.
    read: Time,
}

/// Reason for which an announced frame is not fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnnouncementError {
    /// The source has this number of GETs in flight or without answer.
    Source(usize),
    /// The source has this number of announcements waiting, which is too many.
    Waiting(usize),
    /// The announcement is so old that its sender may have reused the memory.
    Stale,
    /// The port refuses the GET.
    Port,
}

/// Result of a run of [`Waiting::pump`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pumped {
    /// Number of announcements whose GET was posted, or which were refused.
    pub handled: usize,
    /// Number of announcements that still wait.
    pub remaining: usize,
}

/// Result of an attempt to fetch an announcement.
enum Next {
    /// The GET is posted.
    Posted,
    /// The announcement is refused.
    Refuse(AnnouncementError),
    /// The announcement waits because of its own source, and announcements of other sources may
    /// overtake it. The value is true if no GET of the source was answered for
    /// [`Limits::patience`].
    Pass(bool),
    /// Memory for frames of this length is not available.
    Short(u32),
    /// No announcement can be fetched now.
    Stop,
}

/// Numbers of waiting announcements of one source.
#[derive(Clone, Copy, Default)]
struct SourceCount {
    all: usize,
    /// Announcements among `all` whose frames are only to be discarded.
    discards: usize,
    /// True if announcements of the source may be refused when the queue is full
    /// ([`Waiting::make_room`]).
    slow: bool,
}

/// Announcements that wait for a slot, credits or memory, in their order of arrival.
pub struct Waiting<M: Memory> {
    queue: Slots<M, Entry>,
    sources: Slots<M, SourceCount>,
    /// Number of the next announcement.
    number: u64,
    /// Age bound of messages.
    age_bound: AgeBound,
    /// Time at which the queue became full; `None` while it is not. All messages that were sent
    /// before this time have been read.
    full: Option<Time>,
}

impl<M: Memory> Waiting<M> {
    /// Creates a queue for `capacity` announcements.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: u16) -> Result<Self, M::Error> {
        Ok(Self {
            queue: Slots::new(capacity)?,
            sources: Slots::new(capacity)?,
            number: 0,
            age_bound: AgeBound::default(),
            full: None,
        })
    }

    /// Returns the number of waiting announcements.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if no announcement waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of further announcements that fit.
    pub fn room(&self) -> usize {
        self.queue.room()
    }

    /// Returns the age bound of the messages that contain announcements.
    pub fn age_bound(&mut self) -> &mut AgeBound {
        &mut self.age_bound
    }

    fn source(&self, node: NodeId) -> SourceCount {
        let source = self.sources.get(u64::from(node.0));
        source.copied().unwrap_or_default()
    }

    /// Adds an announcement.
    ///
    /// # Errors
    ///
    /// Returns [`AnnouncementError::Waiting`] if the source has too many announcements waiting, or
    /// the queue is full.
    pub fn push(
        &mut self,
        clock: &impl Clock,
        announced: Announced,
        limits: &Limits,
    ) -> Result<(), AnnouncementError> {
        let source = self.source(announced.node);
        if source.all >= limits.waiting
            || announced.discard && source.discards >= limits.slow_waiting
            || self.queue.is_full()
        {
            return Err(AnnouncementError::Waiting(source.all));
        }
        let read = clock.now();
        let entry = Entry {
            announced,
            since: self.age_bound.since().min(read),
            read,
        };
        let number = self.number;
        self.number = number.wrapping_add(1);
        // Cannot fail: a slot is free, and a number repeats only after 2⁶⁴ announcements.
        if self.queue.insert(number, entry).is_ok() {
            self.count(&announced, true);
        }
        Ok(())
    }

    /// Counts an announcement of a source that was added or removed.
    fn count(&mut self, a: &Announced, came: bool) {
        let key = u64::from(a.node.0);
        if self.sources.get(key).is_none() {
            // The insertion cannot fail, because there are at most as many sources as
            // announcements.
            let _ = self.sources.insert(key, SourceCount::default());
        }
        let Some(source) = self.sources.get_mut(key) else {
            return;
        };
        let discards = usize::from(a.discard);
        if came {
            source.all += 1;
            source.discards += discards;
        } else {
            source.all = source.all.saturating_sub(1);
            source.discards = source.discards.saturating_sub(discards);
        }
        if source.all == 0 {
            self.sources.remove(key);
        }
    }

    /// Posts GETs for waiting announcements, as far as possible. An announcement that waits because
    /// of its own source, or for memory of its size, does not delay other announcements. The number
    /// of announcements of a source that does not answer is limited. If the queue is full
    /// afterwards, new messages cannot be read. Announcements of stalled sources are then refused
    /// at once, and other announcements after [`Limits::patience`].
    pub fn pump<P: FetchPort>(
        &mut self,
        fetches: &impl Shared<Fetches<M, P::Buffer>>,
        clock: &impl Clock,
        port: &mut P,
        limits: &Limits,
        mut refused: impl FnMut(&Announced, AnnouncementError),
    ) -> Pumped {
        let mut handled = 0;
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
                let waiting = self.source(a.node).all;
                if waiting > limits.slow_waiting {
                    outcome = Next::Refuse(AnnouncementError::Waiting(waiting));
                }
            }
            match outcome {
                Next::Posted => {}
                Next::Refuse(why) => {
                    fetches.with(|f| f.count_waiting(FetchEvent::Refuse));
                    refused(&a, why);
                }
                Next::Pass(_) => continue,
                Next::Short(len) => {
                    short = short.min(len);
                    continue;
                }
                Next::Stop => break,
            }
            handled += 1;
            self.queue.remove(number);
            self.count(&a, false);
        }
        if self.queue.is_empty() {
            self.full = None;
        } else if self.queue.is_full() {
            handled += self.make_room(fetches, clock.now(), limits, refused);
        }
        Pumped {
            handled,
            remaining: self.queue.len(),
        }
    }

    /// Refuses the oldest announcements of sources that occupy too much of the queue. For n sources
    /// with announcements, the maximum is the (n + 1)-th part of the queue. The limit applies to
    /// stalled sources. It applies to all sources if messages have waited for a free slot for
    /// `limits.patience`. Returns the number of refused announcements.
    fn make_room<B: Buffer>(
        &mut self,
        fetches: &impl Shared<Fetches<M, B>>,
        now: Time,
        limits: &Limits,
        mut refused: impl FnMut(&Announced, AnnouncementError),
    ) -> usize {
        let since = self.full.map_or(now, |at| at.max(self.age_bound.since()));
        self.full = Some(since);
        let overdue = now.since(since) >= limits.patience;
        self.sources.for_each_mut(|node, source| {
            // All keys are node IDs.
            source.slow = overdue || fetches.with(|f| f.is_stalled(NodeId(node as u16)));
            true
        });
        let equal_part = self.queue.len() / (self.sources.len() + 1);
        let mut next = self.queue.oldest().map(|(key, _)| key);
        let mut n = 0;
        while let (Some(number), true) = (next, self.room() < equal_part.max(1)) {
            next = self.queue.younger(number);
            let Some(&Entry { announced: a, .. }) = self.queue.get(number) else {
                break;
            };
            let source = self.source(a.node);
            if !source.slow || source.all <= equal_part {
                continue;
            }
            n += 1;
            self.queue.remove(number);
            self.count(&a, false);
            fetches.with(|f| f.count_waiting(FetchEvent::Refuse));
            refused(&a, AnnouncementError::Waiting(source.all));
        }
        n
    }

    /// Removes all announcements after the port was closed. Returns their number.
    pub fn flush<B: Buffer>(&mut self, fetches: &impl Shared<Fetches<M, B>>) -> usize {
        let mut n = 0;
        while let Some((_, entry)) = self.queue.pop_oldest() {
            self.count(&entry.announced, false);
            n += 1;
            fetches.with(|f| f.count_waiting(FetchEvent::Flush));
        }
        n
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&mut self, limits: &Limits) -> Result<(), &'static str> {
        let (mut all, mut excess) = (0, false);
        self.sources.for_each_mut(|_, s| {
            all += s.all;
            excess |= s.all > limits.waiting || s.discards > limits.slow_waiting;
            true
        });
        match () {
            () if all != self.queue.len() => Err("wrong number of waiting announcements"),
            () if excess => Err("too many announcements of one source wait"),
            () => Ok(()),
        }
    }
}

/// Posts the GET for one announced frame. `short` is the minimum length for which no memory is
/// available.
fn fetch<M: Memory, P: FetchPort>(
    entry: &Entry,
    shared: &impl Shared<Fetches<M, P::Buffer>>,
    clock: &impl Clock,
    port: &mut P,
    limits: &Limits,
    short: u32,
) -> Next {
    let a = &entry.announced;
    let now = clock.now();
    let age = now.since(entry.since);
    // The sender keeps the memory for some time after it has given the frame up, but this node does
    // not know for how long.
    if age >= 2 * limits.timeout {
        return Next::Refuse(AnnouncementError::Stale);
    }
    match shared.with(|f| f.allowed(clock, a.node, limits)) {
        Allowed::Yes => {}
        Allowed::Later { slow } => return Next::Pass(slow),
        Allowed::Full => return Next::Stop,
        Allowed::No(open) => return Next::Refuse(AnnouncementError::Source(open)),
    }
    match port.reserve() {
        Ok(()) => {}
        Err(TransportError::Later) => return Next::Stop,
        Err(TransportError::Never) => return Next::Refuse(AnnouncementError::Port),
    }
    // The sender has given the frame up by now.
    let discard = a.discard || age >= limits.timeout;
    let fresh = if discard || a.len >= short {
        None
    } else {
        port.buffer(a.len)
    };
    let (buffer, scratch) = match fresh {
        Some(buffer) => (buffer, false),
        None if !discard && now.since(entry.read) < limits.patience => return Next::Short(a.len),
        None => match shared.with(|f| f.claim_scratch(a.node, now, limits)) {
            Ok(buffer) => (buffer, true),
            Err(None) => return Next::Pass(false),
            Err(Some(open)) => return Next::Refuse(AnnouncementError::Source(open)),
        },
    };
    let local = buffer.address();
    let key = match_key(local, a.len);
    // Insert the entry before the GET is posted, because the notification may arrive at once.
    let inserted = shared.with(|f| f.begin(a.node, a.len, buffer, scratch, now, a.ticket));
    if let Err(buffer) = inserted {
        if let Some(buffer) = buffer {
            port.give_back(buffer);
        }
        return Next::Stop;
    }
    match port.get(a.node, &a.announcement, a.len, local) {
        Ok(()) => Next::Posted,
        Err(e) => {
            if let Some(buffer) = shared.with(|f| f.not_posted(key)) {
                port.give_back(buffer);
            }
            match e {
                TransportError::Later => Next::Stop,
                TransportError::Never => Next::Refuse(AnnouncementError::Port),
            }
        }
    }
}
