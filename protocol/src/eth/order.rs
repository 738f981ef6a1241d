// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Frames of one source in the order in which it sent them, although some of them are announced and
//! have to be fetched first, which later ones that come in messages would overtake.
//!
//! Whoever takes messages tells [`Order`] of announcements and shows it frames that are complete;
//! whoever ends fetches tells how they ended. A frame waits for earlier announcements of its own
//! source only, and for none of them longer than [`Order::expire`] is told: what is late has lost
//! its place. A source that keeps more frames waiting than its part has its order given up for
//! once.

use crate::{base::slots::Slots, Memory, Time};
use wire::ids::NodeId;

/// Place of an announced frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(u64);

enum State<F> {
    /// Announced.
    Waiting,
    /// Complete.
    Ready(F),
    /// It will not come, or not in time.
    Gone,
}

struct Item<F> {
    node: NodeId,
    since: Time,
    state: State<F>,
    /// The next one of the same source.
    next: Option<u64>,
}

/// A source of which something is in the table.
struct Source {
    first: u64,
    last: u64,
    /// Frames that are complete.
    ready: usize,
}

/// See the module's documentation.
pub struct Order<M: Memory, F> {
    /// Everything in the order of arrival, by number.
    items: Slots<M, Item<F>>,
    sources: Slots<M, Source>,
    /// Sources whose first item does not wait.
    runnable: Slots<M, ()>,
    /// Number of the next one.
    number: u64,
    /// Complete frames of one source that may wait.
    part: usize,
    /// Announcements whose order was given up.
    given_up: u64,
}

impl<M: Memory, F> Order<M, F> {
    /// For `capacity` announcements and frames that wait for them, of which a source may have
    /// `part` frames.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(capacity: u16, part: u16) -> Result<Self, M::Error> {
        Ok(Self {
            items: Slots::new(capacity)?,
            sources: Slots::new(capacity)?,
            runnable: Slots::new(capacity)?,
            number: 0,
            part: part.into(),
            given_up: 0,
        })
    }

    /// Announcements and frames in it.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether [`Order::pop`] has something.
    pub fn is_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// Announcements whose order was given up so far: late ones, those of sources with too much
    /// behind them, and those without a place.
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
                // There is room: no more sources than items.
                let _ = self.sources.insert(key, source);
            }
        }
        Ok(number)
    }

    /// Marks the source as one to be looked at if its first item does not wait.
    fn check_first(&mut self, node: NodeId) {
        let key = u64::from(node.0);
        let first = self.sources.get(key).map(|source| source.first);
        let first = first.and_then(|first| self.items.get(first));
        if first.is_some_and(|item| !matches!(item.state, State::Waiting))
            && self.runnable.get(key).is_none()
        {
            // There is room: no more sources than items.
            let _ = self.runnable.insert(key, ());
        }
    }

    /// An announcement has come. `None`: there is no place for it, and its frame is not to wait for
    /// anything.
    pub fn announced(&mut self, now: Time, node: NodeId) -> Option<Ticket> {
        match self.append(now, node, State::Waiting) {
            Ok(number) => Some(Ticket(number)),
            Err(_) => {
                self.given_up += 1;
                None
            }
        }
    }

    /// A frame is complete that was not announced.
    ///
    /// # Errors
    ///
    /// The frame: it waits for nothing. Or there is no room; then whatever it would have waited for
    /// has lost its order.
    pub fn complete(&mut self, now: Time, node: NodeId, frame: F) -> Result<(), F> {
        let Some(source) = self.sources.get(u64::from(node.0)) else {
            return Err(frame);
        };
        if source.ready >= self.part || self.items.is_full() {
            self.give_up(node);
        }
        match self.append(now, node, State::Ready(frame)) {
            Ok(_) => Ok(()),
            Err(State::Ready(frame)) => Err(frame),
            Err(_) => Ok(()),
        }
    }

    /// What a source has announced loses its order: all its frames that are complete come next.
    fn give_up(&mut self, node: NodeId) {
        let mut next = self.sources.get(u64::from(node.0)).map(|s| s.first);
        while let Some(item) = next.and_then(|number| self.items.get_mut(number)) {
            next = item.next;
            if matches!(item.state, State::Waiting) {
                item.state = State::Gone;
                self.given_up += 1;
            }
        }
        self.check_first(node);
    }

    /// The frame that was announced has arrived.
    ///
    /// # Errors
    ///
    /// The frame: it was too late, and waits for nothing.
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
        if ready.is_some_and(|ready| ready > self.part) {
            self.give_up(node);
        }
        Ok(())
    }

    /// The frame that was announced will not come.
    pub fn ended(&mut self, ticket: Ticket) {
        if let Some(item) = self.items.get_mut(ticket.0) {
            if matches!(item.state, State::Waiting) {
                item.state = State::Gone;
                let node = item.node;
                self.check_first(node);
            }
        }
    }

    /// Announcements that have waited for `limit` lose their order. To be called now and then.
    pub fn expire(&mut self, now: Time, limit: u64) {
        let mut next = self.items.oldest().map(|(number, _)| number);
        while let Some(number) = next {
            next = self.items.younger(number);
            let Some(item) = self.items.get_mut(number) else {
                break;
            };
            if now.since(item.since) < limit {
                // All others are younger.
                break;
            }
            if matches!(item.state, State::Waiting) {
                item.state = State::Gone;
                self.given_up += 1;
                let node = item.node;
                self.check_first(node);
            }
        }
    }

    /// When the oldest announcement or frame came.
    pub fn oldest(&self) -> Option<Time> {
        self.items.oldest().map(|(_, item)| item.since)
    }

    /// The next frame whose turn it is. Sources take turns.
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

    /// Forgets everything, from the oldest on; `f` gets the frames.
    pub fn flush(&mut self, mut f: impl FnMut(F)) {
        while let Some((_, item)) = self.items.pop_oldest() {
            if let State::Ready(frame) = item.state {
                f(frame);
            }
        }
        while self.sources.pop_oldest().is_some() {}
        while self.runnable.pop_oldest().is_some() {}
    }

    /// Checks what must always hold; for tests.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&mut self) -> Result<(), &'static str> {
        let (mut items, mut ready, mut excess) = (0, 0, false);
        let (mut stuck, mut loops) = (false, false);
        let Self {
            items: all,
            sources,
            runnable,
            part,
            ..
        } = self;
        sources.for_each_mut(|key, source| {
            let first = all.get(source.first);
            let waits = first.is_none_or(|item| matches!(item.state, State::Waiting));
            stuck |= waits == runnable.get(key).is_some();
            excess |= source.ready > *part && waits;
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
            () if loops => Err("a source's items are not in order"),
            () if items != self.items.len() => Err("items of no source"),
            () if ready != counted => Err("wrong number of complete frames"),
            () if stuck => {
                Err("a source whose turn it is is not known, or one whose turn it is not")
            }
            () if excess => Err("too many frames of one source wait"),
            () => Ok(()),
        }
    }
}
