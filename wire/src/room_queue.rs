// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Who may use credits that several parties share: first come, first served.
//!
//! A party that does not get what it wants waits in a queue. When there is room for the first one, that
//! much is *granted* to it: nobody else can take it away before the party, which is told, gets round to
//! using it. Nobody is told of room that is not his. A party that goes on sending while others wait queues
//! up behind them, so none can starve the others; a grant that is not used for a while is taken back.
//! Several threads may be one party: who waits is told although another one has used what was granted.

use crate::time::Time;
use core::ops::DerefMut;

/// No element.
const NONE: u32 = u32::MAX;

/// A party.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartyId(u32);

impl PartyId {
    /// The party that is there from the beginning.
    pub const FIRST: PartyId = PartyId(0);

    /// Its place among all.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No party has this place.
    Free,
    /// Wants nothing.
    Idle,
    /// In the queue.
    Waiting,
    /// Has credits that others can't take.
    Granted,
}

/// Place of a party.
#[derive(Clone, Copy, Debug)]
pub struct RoomPlace {
    stage: Stage,
    /// Credits wanted, or granted and not used.
    credits: u8,
    /// When they were granted.
    since: Time,
    before: u32,
    after: u32,
}

impl RoomPlace {
    /// Nobody's.
    pub const FREE: RoomPlace = RoomPlace {
        stage: Stage::Free,
        credits: 0,
        since: Time(0),
        before: NONE,
        after: NONE,
    };
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

/// The parties of one pool of credits, in memory of the caller.
#[derive(Debug)]
pub struct RoomQueue<S> {
    places: S,
    waiting: List,
    granted: List,
    /// Credits that are granted.
    reserved: u32,
}

impl<S: DerefMut<Target = [RoomPlace]>> RoomQueue<S> {
    /// `places` are [`RoomPlace::FREE`]. With [`PartyId::FIRST`], if there is a place.
    pub fn new(places: S) -> Self {
        let mut this = Self {
            places,
            waiting: EMPTY,
            granted: EMPTY,
            reserved: 0,
        };
        let _first = this.add();
        this
    }

    /// Number of places.
    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Moves to more memory, whose places are [`RoomPlace::FREE`]; gives the old one back. If it is not larger
    /// than the old one, `places` comes back.
    pub fn grow(&mut self, mut places: S) -> S {
        if places.len() <= self.places.len() {
            return places;
        }
        for (new, old) in places.iter_mut().zip(self.places.iter()) {
            *new = *old;
        }
        core::mem::replace(&mut self.places, places)
    }

    /// A new party; `None` if there is no place ([`RoomQueue::grow`]).
    pub fn add(&mut self) -> Option<PartyId> {
        let free = self.places.iter().position(|p| p.stage == Stage::Free)?;
        let id = u32::try_from(free).ok().filter(|id| *id != NONE)?;
        self.places.get_mut(free)?.stage = Stage::Idle;
        Some(PartyId(id))
    }

    /// The party is gone, and so is what it waited for or was granted.
    pub fn remove(&mut self, id: PartyId) {
        self.withdraw(id);
        if let Some(place) = self.places.get_mut(id.index()) {
            *place = RoomPlace::FREE;
        }
    }

    /// Whether nobody waits and nothing is granted.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.waiting.first == NONE && self.reserved == 0
    }

    /// Whether somebody waits.
    pub fn is_wanted(&self) -> bool {
        self.waiting.first != NONE
    }

    /// Whether somebody waits who comes before the party.
    pub fn is_behind(&self, id: PartyId) -> bool {
        self.is_wanted() && self.waiting.first != id.0
    }

    /// Credits of `room` that the party may use now: what was granted to it, or what is left when others
    /// have theirs, unless somebody waits.
    #[inline]
    pub fn share(&self, id: PartyId, room: u32) -> u32 {
        if self.is_idle() {
            return room;
        }
        let own = self.own(id);
        let others = room.saturating_sub(self.reserved);
        if self.is_behind(id) {
            own.min(room)
        } else {
            own.saturating_add(others)
        }
    }

    fn own(&self, id: PartyId) -> u32 {
        match self.places.get(id.index()) {
            Some(place) if place.stage == Stage::Granted => place.credits.into(),
            _ => 0,
        }
    }

    /// The party used `credits`.
    #[inline]
    pub fn used(&mut self, id: PartyId, credits: u8) {
        if self.is_idle() {
            return;
        }
        let Some(place) = self.places.get_mut(id.index()) else {
            return;
        };
        match place.stage {
            Stage::Granted => {
                let used = place.credits.min(credits);
                place.credits -= used;
                self.reserved -= u32::from(used);
                if place.credits == 0 {
                    self.withdraw(id);
                }
            }
            // It was first, and found room before it was told. Another of its threads may wait for that still.
            Stage::Waiting if place.credits > credits => place.credits -= credits,
            Stage::Waiting => {
                self.withdraw(id);
                self.append(id, Stage::Waiting, 1);
            }
            Stage::Idle | Stage::Free => {}
        }
    }

    /// The party gets in the queue for `credits`, or waits for that much if it is in there; what it was
    /// granted is given back.
    pub fn wait(&mut self, id: PartyId, credits: u8) {
        let Some(place) = self.places.get_mut(id.index()) else {
            return;
        };
        match place.stage {
            Stage::Free => {}
            Stage::Waiting => place.credits = place.credits.max(credits),
            Stage::Idle | Stage::Granted => {
                self.withdraw(id);
                self.append(id, Stage::Waiting, credits);
            }
        }
    }

    /// Grants the first one in the queue what it waits for, if `room` has it besides what is granted
    /// already: it is to be told.
    pub fn grant(&mut self, room: u32, now: Time) -> Option<PartyId> {
        let id = PartyId(self.waiting.first);
        let credits = self.places.get(id.index())?.credits;
        if room.saturating_sub(self.reserved) < u32::from(credits) {
            return None;
        }
        self.withdraw(id);
        self.append(id, Stage::Granted, credits);
        if let Some(place) = self.places.get_mut(id.index()) {
            place.since = now;
        }
        self.reserved += u32::from(credits);
        Some(id)
    }

    /// Takes back what was granted `limit` ticks ago or earlier.
    pub fn expire(&mut self, now: Time, limit: u64) {
        while let Some(place) = self.places.get(self.granted.first as usize) {
            if now.since(place.since) < limit {
                return;
            }
            self.withdraw(PartyId(self.granted.first));
        }
    }

    /// Takes a party out of its list, and back what was granted.
    fn withdraw(&mut self, id: PartyId) {
        let Some(place) = self.places.get_mut(id.index()) else {
            return;
        };
        let RoomPlace {
            stage,
            credits,
            before,
            after,
            ..
        } = *place;
        let list = match stage {
            Stage::Waiting => &mut self.waiting,
            Stage::Granted => &mut self.granted,
            Stage::Idle | Stage::Free => return,
        };
        *place = RoomPlace {
            stage: Stage::Idle,
            ..RoomPlace::FREE
        };
        if stage == Stage::Granted {
            self.reserved -= u32::from(credits);
        }
        match before {
            NONE => list.first = after,
            _ => {
                if let Some(p) = self.places.get_mut(before as usize) {
                    p.after = after;
                }
            }
        }
        match after {
            NONE => list.last = before,
            _ => {
                if let Some(p) = self.places.get_mut(after as usize) {
                    p.before = before;
                }
            }
        }
    }

    /// Puts a party that is in no list at the end of one.
    fn append(&mut self, id: PartyId, stage: Stage, credits: u8) {
        let list = match stage {
            Stage::Granted => &mut self.granted,
            _ => &mut self.waiting,
        };
        let before = core::mem::replace(&mut list.last, id.0);
        if before == NONE {
            list.first = id.0;
        } else if let Some(p) = self.places.get_mut(before as usize) {
            p.after = id.0;
        }
        if let Some(place) = self.places.get_mut(id.index()) {
            *place = RoomPlace {
                stage,
                credits,
                since: place.since,
                before,
                after: NONE,
            };
        }
    }
}
