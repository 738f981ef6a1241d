// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Delivery order of received frames.
//!
//! A source sends small frames in messages. It announces large frames, which the receiver fetches
//! by GET. Without [`Order`], frames in messages would overtake announced frames that the same
//! source sent before.
//!
//! An announcement is in one of these states:
//!
//! * `Waiting`: the receive path has reported it ([`Order::announced`]).
//! * `Ready`: its frame was fetched ([`Order::arrived`]). Frames in messages are `Ready` at once
//!   ([`Order::complete`]).
//! * `Abandoned`: the frame will not arrive ([`Order::ended`]), or its position in the delivery
//!   order was given up. A frame that arrives afterwards is delivered at once.
//!
//! [`Order::pop`] returns the frames that may be delivered. A frame waits only for earlier
//! announcements of its own source. It waits no longer than the limit passed to [`Order::expire`].
//! If more frames of a source wait than its limit allows, the positions of all its announcements
//! are given up.

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Position of an announced frame in the delivery order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(u64);

enum State<F> {
    /// Announced, but not received completely.
    Waiting,
    /// Received completely.
    Ready(F),
    /// The frame will not arrive, or its position in the delivery order was given up.
    Abandoned,
}

struct Item<F> {
    node: NodeId,
    since: Time,
    state: State<F>,
    /// Number of the source's next item.
    next: Option<u64>,
}

/// Source that has items in the table.
struct Source {
    first: u64,
    last: u64,
    /// Number of complete frames that wait.
    ready: usize,
}

/// Announcements and frames of all sources in their order of arrival.
pub struct Order<M: Memory, F> {
    /// Announcements and frames by number, in their order of arrival.
    items: Slots<M, Item<F>>,
    sources: Slots<M, Source>,
    /// Sources whose first item is not `Waiting`.
    runnable: Slots<M, ()>,
    /// Number of the next item.
    number: u64,
    /// Maximum number of complete frames of one source that wait.
    max_ready: usize,
    /// Total number of announcements whose position was given up.
    given_up: u64,
}

impl<M: Memory, F> Order<M, F> {
    /// Creates a table for `capacity` announcements and frames that wait for them. Up to
    /// `max_ready` frames of one source may wait.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Memory::array`] if an allocation fails.
    pub fn new(capacity: u16, max_ready: u16) -> Result<Self, M::Error> {
        Ok(Self {
            items: Slots::new(capacity)?,
            sources: Slots::new(capacity)?,
            runnable: Slots::new(capacity)?,
            number: 0,
            max_ready: max_ready.into(),
            given_up: 0,
        })
    }

    /// Returns the number of announcements and frames.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the total number of announcements whose position was given up. Reasons are a late
    /// frame, too many frames that wait for it, and a full table.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    fn append(&mut self, now: Time, node: NodeId, state: State<F>) -> Result<u64, State<F>> {
        let number = self.number;
        let ready = usize::from(matches!(state, State::Ready(_)));
        let item = Item {
            node,
            since: now,
            state,
            next: None,
        };
        self.items.insert(number, item).map_err(|item| item.state)?;
        self.number = number.wrapping_add(1);
        let key = u64::from(node.0);
        let before = self.sources.get_mut(key).map(|source| {
            source.ready += ready;
            core::mem::replace(&mut source.last, number)
        });
        match before.and_then(|last| self.items.get_mut(last)) {
            Some(last) => last.next = Some(number),
            None => {
                let source = Source {
                    first: number,
                    last: number,
                    ready,
                };
                // The insertion cannot fail, because there are at most as many sources as items.
                let _ = self.sources.insert(key, source);
            }
        }
        Ok(number)
    }

    /// Marks the source as runnable if its first item is not `Waiting`.
    fn check_first(&mut self, node: NodeId) {
        let key = u64::from(node.0);
        let first = self.sources.get(key).map(|source| source.first);
        let first = first.and_then(|first| self.items.get(first));
        if first.is_some_and(|item| !matches!(item.state, State::Waiting))
            && self.runnable.get(key).is_none()
        {
            // The insertion cannot fail, because there are at most as many sources as items.
            let _ = self.runnable.insert(key, ());
        }
    }

    /// Records an announcement. Returns `None` if the table is full. The frame is then delivered as
    /// soon as it arrives.
    pub fn announced(&mut self, now: Time, node: NodeId) -> Option<Ticket> {
        match self.append(now, node, State::Waiting) {
            Ok(number) => Some(Ticket(number)),
            Err(_) => {
                self.given_up += 1;
                None
            }
        }
    }

    /// Records a complete frame that was not announced.
    ///
    /// # Errors
    ///
    /// Returns the frame if it may be delivered at once, because it waits for no announcement. If
    /// the table is full, the earlier positions of its source are given up, and the frame is
    /// returned too.
    pub fn complete(&mut self, now: Time, node: NodeId, frame: F) -> Result<(), F> {
        let Some(source) = self.sources.get(u64::from(node.0)) else {
            return Err(frame);
        };
        if source.ready >= self.max_ready || self.items.is_full() {
            self.give_up(node);
        }
        match self.append(now, node, State::Ready(frame)) {
            Ok(_) => Ok(()),
            Err(State::Ready(frame)) => Err(frame),
            Err(_) => Ok(()),
        }
    }

    /// Gives up the positions of all announcements of a source. Its complete frames are delivered
    /// next.
    fn give_up(&mut self, node: NodeId) {
        let mut next = self.sources.get(u64::from(node.0)).map(|s| s.first);
        while let Some(item) = next.and_then(|number| self.items.get_mut(number)) {
            next = item.next;
            if matches!(item.state, State::Waiting) {
                item.state = State::Abandoned;
                self.given_up += 1;
            }
        }
        self.check_first(node);
    }

    /// Records that the frame of an announcement was fetched.
    ///
    /// # Errors
    ///
    /// Returns the frame if its position was given up. The caller must deliver it at once.
    pub fn arrived(&mut self, ticket: Ticket, frame: F) -> Result<(), F> {
        let Some(item) = self.items.get_mut(ticket.0) else {
            return Err(frame);
        };
        if !matches!(item.state, State::Waiting) {
            return Err(frame);
        }
        item.state = State::Ready(frame);
        let node = item.node;
        let ready = self.sources.get_mut(u64::from(node.0)).map(|source| {
            source.ready += 1;
            source.ready
        });
        self.check_first(node);
        if ready.is_some_and(|ready| ready > self.max_ready) {
            self.give_up(node);
        }
        Ok(())
    }

    /// Records that the frame of an announcement will not arrive.
    pub fn ended(&mut self, ticket: Ticket) {
        if let Some(item) = self.items.get_mut(ticket.0) {
            if matches!(item.state, State::Waiting) {
                item.state = State::Abandoned;
                let node = item.node;
                self.check_first(node);
            }
        }
    }

    /// Gives up the positions of announcements that have waited for `limit` ticks. The caller must
    /// call this function periodically.
    pub fn expire(&mut self, now: Time, limit: u64) {
        let mut next = self.items.oldest().map(|(number, _)| number);
        while let Some(number) = next {
            next = self.items.younger(number);
            let Some(item) = self.items.get_mut(number) else {
                break;
            };
            if now.since(item.since) < limit {
                // All remaining items are younger.
                break;
            }
            if matches!(item.state, State::Waiting) {
                item.state = State::Abandoned;
                self.given_up += 1;
                let node = item.node;
                self.check_first(node);
            }
        }
    }

    /// Returns the arrival time of the oldest announcement or frame.
    pub fn oldest(&self) -> Option<Time> {
        self.items.oldest().map(|(_, item)| item.since)
    }

    /// Returns the next frame to be delivered. Serves sources in round-robin order.
    pub fn pop(&mut self) -> Option<F> {
        loop {
            let (key, ()) = self.runnable.pop_oldest()?;
            let Some(first) = self.sources.get(key).map(|source| source.first) else {
                continue;
            };
            let waits = |item: &Item<F>| matches!(item.state, State::Waiting);
            if self.items.get(first).is_none_or(waits) {
                continue;
            }
            let Some(item) = self.items.remove(first) else {
                continue;
            };
            let ready = usize::from(matches!(item.state, State::Ready(_)));
            match item.next {
                Some(next) => {
                    if let Some(source) = self.sources.get_mut(key) {
                        source.first = next;
                        source.ready = source.ready.saturating_sub(ready);
                    }
                    self.check_first(item.node);
                }
                None => {
                    self.sources.remove(key);
                }
            }
            if let State::Ready(frame) = item.state {
                return Some(frame);
            }
        }
    }

    /// Removes all items in their order of arrival. `f` receives the frames.
    pub fn flush(&mut self, mut f: impl FnMut(F)) {
        while let Some((_, item)) = self.items.pop_oldest() {
            if let State::Ready(frame) = item.state {
                f(frame);
            }
        }
        while self.sources.pop_oldest().is_some() {}
        while self.runnable.pop_oldest().is_some() {}
    }

    /// Checks the invariants, for tests.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let (mut items, mut ready, mut excess) = (0, 0, false);
        let (mut stuck, mut loops) = (false, false);
        let Self {
            items: all,
            sources,
            runnable,
            max_ready,
            ..
        } = self;
        sources.for_each_mut(|key, source| {
            let first = all.get(source.first);
            let waits = first.is_none_or(|item| matches!(item.state, State::Waiting));
            stuck |= waits == runnable.get(key).is_some();
            excess |= source.ready > *max_ready && waits;
            let mut next = Some(source.first);
            while let Some(item) = next.and_then(|number| all.get(number)) {
                items += 1;
                ready += usize::from(matches!(item.state, State::Ready(_)));
                loops |= item.next.is_some_and(|n| Some(n) <= next);
                if loops || u64::from(item.node.0) != key {
                    loops = true;
                    return false;
                }
                if item.next.is_none() && next != Some(source.last) {
                    stuck = true;
                }
                next = item.next;
            }
            true
        });
        let mut counted = 0;
        sources.for_each_mut(|_, source| {
            counted += source.ready;
            true
        });
        match () {
            () if loops => Err("a source's list has a loop, or an item of another source"),
            () if items != self.items.len() => Err("items without a source"),
            () if ready != counted => Err("wrong number of complete frames"),
            () if stuck => {
                Err("a runnable source is not marked as runnable, or a waiting source is marked")
            }
            () if excess => Err("too many frames of one source wait"),
            () => Ok(()),
        }
    }
}
