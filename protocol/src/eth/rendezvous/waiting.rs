// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Announcements that wait to be fetched: they belong to whoever takes messages.

use super::{Allowed, Buffer, FetchEvent, FetchPort, Fetches, Limits};
use crate::{
    base::{age::Horizon, slots::Slots},
    eth::order::Ticket,
    Clock, Memory, Refused, Shared, Time,
};
use wire::{
    eth::{match_key, Announcement},
    ids::NodeId,
};

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
    /// The place that it is to have among frames of its source.
    pub ticket: Option<Ticket>,
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
    /// For a reason of its own: others may go past it. Whether its source has answered nothing for
    /// a while.
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
    /// When room is made: it is not waited for.
    slow: bool,
}

/// Announcements that wait for a place, credit or memory, in the order of their arrival.
pub struct Waiting<M: Memory> {
    queue: Slots<M, Entry>,
    shares: Slots<M, Share>,
    /// Number of the next one.
    number: u64,
    /// What is known of the age of messages.
    horizon: Horizon,
    /// All that was sent before this has been read, or there was room for it.
    full: Option<Time>,
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
            full: None,
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

    /// Fetches what waits, as far as possible. What waits because of its own source, or for memory
    /// of its size, doesn't hold up the others, and what waits because its source answers nothing
    /// is bounded. If nothing more fits then, further messages have to wait for what is in flight,
    /// but not for sources that answer slowly, and for others not for long: room is made.
    pub fn pump<P: FetchPort>(
        &mut self,
        fetches: &impl Shared<Fetches<M, P::Buffer>>,
        clock: &impl Clock,
        port: &mut P,
        limits: &Limits,
        mut refused: impl FnMut(&Announced, Refusal),
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
            taken += 1;
            self.queue.remove(number);
            self.count(&a, false);
        }
        if self.queue.is_empty() {
            self.full = None;
        } else if self.queue.is_full() {
            taken += self.make_room(fetches, clock.now(), limits, refused);
        }
        Pumped {
            taken,
            left: self.queue.len(),
        }
    }

    /// Refuses the oldest announcements of sources that have more than an equal part waiting, for
    /// which they and one more source count: of those that answer slowly, and of any when messages
    /// have been waiting for room for `limits.patience`. Returns how many.
    fn make_room<B: Buffer>(
        &mut self,
        fetches: &impl Shared<Fetches<M, B>>,
        now: Time,
        limits: &Limits,
        mut refused: impl FnMut(&Announced, Refusal),
    ) -> usize {
        let since = self.full.map_or(now, |at| at.max(self.horizon.since()));
        self.full = Some(since);
        let overdue = now.since(since) >= limits.patience;
        self.shares.for_each_mut(|node, share| {
            // Keys are node IDs.
            share.slow = overdue || fetches.with(|f| f.is_slow(NodeId(node as u16)));
            true
        });
        let part = self.queue.len() / (self.shares.len() + 1);
        let mut next = self.queue.oldest().map(|(key, _)| key);
        let mut n = 0;
        while let (Some(number), true) = (next, self.room() < part.max(1)) {
            next = self.queue.younger(number);
            let Some(&Entry { announced: a, .. }) = self.queue.get(number) else {
                break;
            };
            let share = self.share(a.node);
            if !share.slow || share.all <= part {
                continue;
            }
            n += 1;
            self.queue.remove(number);
            self.count(&a, false);
            fetches.with(|f| f.count_waiting(FetchEvent::Refuse));
            refused(&a, Refusal::Waiting(share.all));
        }
        n
    }

    /// Forgets everything; returns the number of announcements. The port is closed.
    pub fn flush<B: Buffer>(&mut self, fetches: &impl Shared<Fetches<M, B>>) -> usize {
        let mut n = 0;
        while let Some((_, entry)) = self.queue.pop_oldest() {
            self.count(&entry.announced, false);
            n += 1;
            fetches.with(|f| f.count_waiting(FetchEvent::Flush));
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
    let now = clock.now();
    let age = now.since(entry.since);
    // Its sender keeps the memory for some time after it has given the frame up, for how long is
    // not known here.
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
        None => match shared.with(|f| f.take_scratch(a.node, now, limits)) {
            Ok(buffer) => (buffer, true),
            Err(None) => return Next::Pass(false),
            Err(Some(open)) => return Next::Refuse(Refusal::Source(open)),
        },
    };
    let local = buffer.address();
    let key = match_key(local, a.len);
    // The notification may come at once, so the entry has to be there before the GET is posted.
    let inserted = shared.with(|f| f.begin(a.node, a.len, buffer, scratch, now, a.ticket));
    if let Err(buffer) = inserted {
        if let Some(buffer) = buffer {
            port.give_back(buffer);
        }
        return Next::Stop;
    }
    match port.get(a.node, &a.announcement, a.len, local) {
        Ok(()) => Next::Taken,
        Err(e) => {
            if let Some(buffer) = shared.with(|f| f.not_posted(key)) {
                port.give_back(buffer);
            }
            match e {
                Refused::Later => Next::Stop,
                Refused::Never => Next::Refuse(Refusal::Port),
            }
        }
    }
}
