//! Cache of registrations.

mod heap;

use heap::Heap;
use proptest::prelude::*;
use protocol::mem::cache::{
    Access, Cache, EntryEvent, EntryState, Hold, Invalid, Limits, Pending, Prepared, Range, Refused,
};
use std::collections::BTreeSet;

const CAPACITY: u16 = 8;
const LIMITS: Limits = Limits {
    bytes: 100,
    space_bytes: 60,
    space_entries: 4,
};
const ACCESSES: [Access; 3] = [Access::READ, Access::WRITE, Access::BOTH];

type Numbers = Cache<Heap, u32>;

fn cache() -> Numbers {
    match Cache::new(CAPACITY, LIMITS) {
        Ok(cache) => cache,
        Err(never) => match never {},
    }
}

fn range(space: u64, first: u64, len: u64) -> Range {
    Range::new(space, first, len).unwrap()
}

/// Prepares a registration. Returns the result, and the registrations that were evicted.
fn place(c: &mut Numbers, range: Range, access: Access) -> (Result<Pending, Refused>, Vec<u32>) {
    let mut evicted = Vec::new();
    loop {
        c.check().unwrap();
        match c.prepare(&range, access) {
            Prepared::Ready(pending) => return (Ok(pending), evicted),
            Prepared::Evict(value) => evicted.push(value),
            Prepared::Refused(why) => return (Err(why), evicted),
        }
    }
}

fn add(c: &mut Numbers, range: Range, access: Access, value: u32) -> (Hold, Vec<u32>) {
    let (pending, evicted) = place(c, range, access);
    (c.complete(pending.unwrap(), value).unwrap(), evicted)
}

/// Invalidates a range. Returns idle registrations, registrations in use, and the number of pending
/// registrations.
fn invalidate(c: &mut Numbers, range: Range) -> (Vec<u32>, Vec<u32>, usize) {
    let mut all = (Vec::new(), Vec::new(), 0);
    while let Some(invalid) = c.invalidate(&range) {
        match invalid {
            Invalid::Idle(value) => all.0.push(value),
            Invalid::Busy(value) => all.1.push(*value),
            Invalid::Pending => all.2 += 1,
        }
        c.check().unwrap();
    }
    all
}

#[test]
fn what_was_registered_is_found_again() {
    let mut c = cache();
    let memory = range(1, 100, 20);
    assert_eq!(c.find(&memory, Access::READ), None);
    let (hold, evicted) = add(&mut c, memory, Access::READ, 7);
    assert!(evicted.is_empty());
    assert_eq!((c.get(&hold), c.range(&hold)), (Some(&7), Some(memory)));
    let part = c.find(&range(1, 105, 10), Access::READ).unwrap();
    assert_eq!(c.get(&part), Some(&7));
    // The registration is not found with another access, beyond its ends, or in another space.
    assert_eq!(c.find(&memory, Access::WRITE), None);
    assert_eq!(c.find(&memory, Access::BOTH), None);
    assert_eq!(c.find(&range(1, 105, 16), Access::READ), None);
    assert_eq!(c.find(&range(1, 99, 2), Access::READ), None);
    assert_eq!(c.find(&range(2, 100, 20), Access::READ), None);
    assert_eq!(c.release(hold), None);
    assert_eq!((c.len(), c.idle(), c.bytes()), (1, 0, 20));
    assert_eq!(c.release(part), None);
    assert_eq!((c.len(), c.idle(), c.bytes()), (1, 1, 20));
    assert_eq!(c.failures(), (6, 0));
    c.check().unwrap();
}

#[test]
fn one_that_may_be_read_and_written_will_do_for_either() {
    let mut c = cache();
    let memory = range(1, 0, 10);
    let (hold, _) = add(&mut c, memory, Access::BOTH, 1);
    for access in ACCESSES {
        let also = c.find(&memory, access).unwrap();
        assert_eq!(c.get(&also), Some(&1));
        assert_eq!(c.release(also), None);
        assert!(Access::BOTH.includes(access));
        assert_eq!(access.includes(Access::BOTH), access == Access::BOTH);
    }
    assert_eq!(c.release(hold), None);
}

#[test]
fn what_has_rested_longest_goes_first_and_nothing_in_use() {
    let mut c = cache();
    let holds: Vec<Hold> = (0..4)
        .map(|i| add(&mut c, range(i, 0, 25), Access::READ, i as u32).0)
        .collect();
    let (refused, _) = place(&mut c, range(9, 0, 1), Access::READ);
    assert_eq!(refused, Err(Refused::Bytes));
    for hold in holds {
        assert_eq!(c.release(hold), None);
    }
    // The first registration is idle again, and was used most recently.
    let used = c.find(&range(0, 3, 3), Access::READ).unwrap();
    assert_eq!(c.release(used), None);
    let used = c.find(&range(1, 3, 3), Access::READ).unwrap();
    let (pending, evicted) = place(&mut c, range(9, 0, 30), Access::READ);
    assert_eq!(evicted, [2, 3]);
    let (refused, evicted) = place(&mut c, range(8, 0, 50), Access::READ);
    assert_eq!((refused, evicted.len()), (Err(Refused::Bytes), 0));
    c.abandon(pending.unwrap());
    assert_eq!(c.shrink(), Some(0));
    assert_eq!(c.shrink(), None);
    assert_eq!(c.release(used), None);
    assert_eq!(c.shrink(), Some(1));
    assert!(c.is_empty());
    c.check().unwrap();
}

#[test]
fn a_space_with_its_share_gives_up_what_is_its_own() {
    let mut c = cache();
    let (old, _) = add(&mut c, range(1, 0, 10), Access::READ, 1);
    assert_eq!(c.release(old), None);
    for i in 0..4 {
        let (hold, evicted) = add(&mut c, range(2, i * 10, 10), Access::READ, 10 + i as u32);
        assert!(evicted.is_empty());
        assert_eq!(c.release(hold), None);
    }
    // Registration 1 has been idle for longer, but belongs to another space.
    let (hold, evicted) = add(&mut c, range(2, 70, 45), Access::READ, 20);
    assert_eq!(evicted, [10, 11, 12]);
    let (refused, _) = place(&mut c, range(2, 200, 16), Access::READ);
    assert_eq!(refused, Err(Refused::SpaceBytes));
    let holds: Vec<Hold> = (0..3)
        .map(|i| add(&mut c, range(2, 300 + i, 1), Access::READ, 30 + i as u32).0)
        .collect();
    let (refused, _) = place(&mut c, range(2, 400, 1), Access::READ);
    assert_eq!(refused, Err(Refused::SpaceEntries));
    assert_eq!(c.failures().1, 2);
    for hold in holds.into_iter().chain([hold]) {
        assert_eq!(c.release(hold), None);
    }
    c.check().unwrap();
}

#[test]
fn all_entries_may_be_in_use() {
    let mut c = cache();
    let holds: Vec<Hold> = (0..u64::from(CAPACITY))
        .map(|i| add(&mut c, range(i, 0, 1), Access::READ, 0).0)
        .collect();
    let (refused, _) = place(&mut c, range(99, 0, 1), Access::READ);
    assert_eq!(refused, Err(Refused::Entries));
    for hold in holds {
        assert_eq!(c.release(hold), None);
    }
}

#[test]
fn invalid_ones_are_revoked_by_exactly_one() {
    let mut c = cache();
    let (resting, _) = add(&mut c, range(1, 0, 10), Access::READ, 1);
    assert_eq!(c.release(resting), None);
    let (busy, _) = add(&mut c, range(1, 8, 10), Access::READ, 2);
    let again = c.find(&range(1, 9, 9), Access::READ).unwrap();
    let pending = place(&mut c, range(1, 5, 10), Access::WRITE).0.unwrap();
    let (other, _) = add(&mut c, range(2, 5, 10), Access::READ, 3);
    let (behind, _) = add(&mut c, range(1, 18, 5), Access::READ, 4);
    assert_eq!(invalidate(&mut c, range(1, 9, 9)), (vec![1], vec![2], 1));
    assert_eq!(invalidate(&mut c, range(1, 9, 9)), (vec![], vec![], 0));
    // The registrations are not found any more, but existing users can still use them.
    assert_eq!(c.find(&range(1, 9, 9), Access::READ), None);
    assert_eq!(c.get(&busy), Some(&2));
    assert_eq!(c.release(busy), None);
    assert_eq!(c.release(again), Some(2));
    assert_eq!(c.complete(pending, 5), Err(5));
    assert_eq!(c.len(), 2);
    // The space ends.
    assert_eq!(invalidate(&mut c, Range::all(1)), (vec![], vec![4], 0));
    assert_eq!(c.release(behind), Some(4));
    assert_eq!(c.release(other), None);
    c.check().unwrap();
    let counts = c.counts();
    assert_eq!(counts.made(EntryState::Overtaken, EntryEvent::Complete), 1);
    assert_eq!(counts.made(EntryState::Doomed, EntryEvent::Rest), 2);
}

#[test]
fn a_user_can_say_that_it_is_no_good() {
    let mut c = cache();
    let (hold, _) = add(&mut c, range(1, 0, 10), Access::READ, 1);
    c.invalidate_held(&hold);
    c.invalidate_held(&hold);
    assert_eq!(c.find(&range(1, 0, 10), Access::READ), None);
    assert_eq!(c.release(hold), Some(1));
    c.check().unwrap();
}

#[test]
fn what_is_pending_does_not_hide_what_is_there() {
    let mut c = cache();
    let (hold, _) = add(&mut c, range(1, 0, 10), Access::READ, 1);
    let pending = place(&mut c, range(1, 0, 20), Access::READ).0.unwrap();
    let found = c.find(&range(1, 2, 2), Access::READ).unwrap();
    assert_eq!(c.get(&found), Some(&1));
    // The search now returns the larger registration, and the smaller registration is idle.
    let larger = c.complete(pending, 2).unwrap();
    assert_eq!((c.release(hold), c.release(found)), (None, None));
    let found = c.find(&range(1, 2, 2), Access::READ).unwrap();
    assert_eq!(c.get(&found), Some(&2));
    assert_eq!((c.release(larger), c.release(found)), (None, None));
    assert_eq!(c.shrink(), Some(1));
}

#[test]
fn holds_of_another_cache_do_nothing() {
    let (mut one, mut other) = (cache(), cache());
    let (hold, _) = add(&mut one, range(1, 0, 10), Access::READ, 1);
    assert_eq!((other.get(&hold), other.range(&hold)), (None, None));
    other.invalidate_held(&hold);
    assert_eq!(other.release(hold), None);
    let pending = place(&mut one, range(1, 0, 1), Access::READ).0.unwrap();
    assert_eq!(other.complete(pending, 5), Err(5));
    let pending = place(&mut one, range(1, 0, 1), Access::READ).0.unwrap();
    other.abandon(pending);
    other.check().unwrap();
    one.check().unwrap();
}

/// Random operation.
#[derive(Clone, Debug)]
enum Op {
    /// Uses memory. If the memory must be registered, the registration takes some time if `later`
    /// is set, or fails.
    Use {
        range: Range,
        access: Access,
        later: bool,
        fails: bool,
    },
    /// Completes a registration that took some time.
    Complete(usize),
    Release(usize),
    Invalidate(Range),
    NoGood(usize),
    Shrink,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let range = || {
        (0u64..4, 0u64..80, 1u64..40)
            .prop_map(|(space, first, len)| Range::new(space, first, len).unwrap())
    };
    let op = prop_oneof![
        6 => (range(), 0usize..3, prop::bool::weighted(0.2), prop::bool::weighted(0.1))
            .prop_map(|(range, a, later, fails)| {
                let access = ACCESSES[a];
                Op::Use { range, access, later, fails }
            }),
        2 => any::<usize>().prop_map(Op::Complete),
        6 => any::<usize>().prop_map(Op::Release),
        2 => range().prop_map(Op::Invalidate),
        1 => any::<usize>().prop_map(Op::NoGood),
        1 => Just(Op::Shrink),
    ];
    prop::collection::vec(op, 0..300)
}

/// Registration, as known to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    range: Range,
    access: Access,
    valid: bool,
    /// Time at which the last use of the registration ended.
    rested: u64,
}

/// Cache, and a model of its contents.
struct Model {
    cache: Numbers,
    /// Registrations by number.
    known: Vec<Known>,
    /// Registrations that the cache has not returned.
    live: BTreeSet<u32>,
    holds: Vec<(Hold, u32)>,
    /// Pending registrations; false if they were invalidated in the meantime.
    pending: Vec<(Pending, Range, Access, bool)>,
    time: u64,
}

impl Model {
    fn uses(&self, value: u32) -> usize {
        self.holds.iter().filter(|(_, v)| *v == value).count()
    }

    /// Checks that a returned registration is not in use, and was not returned before.
    fn revoke(&mut self, value: u32) {
        assert!(self.live.remove(&value), "{value} is returned twice");
        assert_eq!(self.uses(value), 0, "{value} is in use");
    }

    fn bytes(&self, space: Option<u64>) -> (u64, usize) {
        let live = self.live.iter().map(|v| self.known[*v as usize].range);
        let pending = self.pending.iter().map(|(_, range, ..)| *range);
        let all = live.chain(pending);
        let all: Vec<Range> = all.filter(|r| space.is_none_or(|s| s == r.space)).collect();
        (all.iter().map(Range::len).sum(), all.len())
    }

    fn find(&mut self, range: Range, access: Access) -> bool {
        let fits = |v: &&u32| {
            let known = self.known[**v as usize];
            known.valid && known.range.covers(&range) && known.access.includes(access)
        };
        let farthest = self.live.iter().filter(fits);
        let farthest = farthest.map(|v| self.known[*v as usize].range.last).max();
        let found = self.cache.find(&range, access);
        assert_eq!(found.is_some(), farthest.is_some());
        let Some(hold) = found else { return false };
        let value = *self.cache.get(&hold).unwrap();
        let known = self.known[value as usize];
        assert!(fits(&&value) && self.live.contains(&value));
        assert_eq!(
            (Some(known.range.last), self.cache.range(&hold)),
            (farthest, Some(known.range))
        );
        self.holds.push((hold, value));
        true
    }

    /// Returns the idle registrations of one space or all spaces, in the order of their last use.
    fn resting(&self, space: Option<u64>) -> Vec<u32> {
        let rests = |v: &u32| {
            let range = self.known[*v as usize].range;
            self.uses(*v) == 0 && space.is_none_or(|s| s == range.space)
        };
        let mut all: Vec<u32> = self.live.iter().copied().filter(rests).collect();
        all.sort_by_key(|v| self.known[*v as usize].rested);
        all
    }

    fn prepare(&mut self, range: Range, access: Access) -> Option<Pending> {
        loop {
            let (own, own_entries) = self.bytes(Some(range.space));
            let own_full =
                own + range.len() > LIMITS.space_bytes || own_entries >= LIMITS.space_entries;
            let (bytes, entries) = self.bytes(None);
            let full = bytes + range.len() > LIMITS.bytes || entries >= usize::from(CAPACITY);
            match self.cache.prepare(&range, access) {
                Prepared::Ready(pending) => {
                    assert!(!own_full && !full);
                    return Some(pending);
                }
                Prepared::Evict(value) => {
                    assert!(own_full || full, "{value} was evicted without need");
                    let space = own_full.then_some(range.space);
                    assert_eq!(self.resting(space).first(), Some(&value));
                    self.revoke(value);
                }
                Prepared::Refused(_) => {
                    // The memory would exceed a limit even after the eviction of all idle
                    // registrations.
                    let idle = |space| {
                        let idle = self.resting(space);
                        let bytes: u64 = idle
                            .iter()
                            .map(|v| self.known[*v as usize].range.len())
                            .sum();
                        (bytes, idle.len())
                    };
                    let (own_idle, all_idle) = (idle(Some(range.space)), idle(None));
                    let fits = own - own_idle.0 + range.len() <= LIMITS.space_bytes
                        && own_entries - own_idle.1 < LIMITS.space_entries
                        && bytes - all_idle.0 + range.len() <= LIMITS.bytes
                        && entries - all_idle.1 < usize::from(CAPACITY);
                    assert!(!fits, "{range:?} would fit");
                    return None;
                }
            }
        }
    }

    fn complete(&mut self, pending: Pending, range: Range, access: Access, valid: bool) {
        let value = self.known.len() as u32;
        self.known.push(Known {
            range,
            access,
            valid,
            rested: 0,
        });
        match self.cache.complete(pending, value) {
            Ok(hold) => {
                assert!(valid);
                self.live.insert(value);
                self.holds.push((hold, value));
            }
            Err(refused) => assert_eq!((refused, valid), (value, false)),
        }
    }

    fn invalidate(&mut self, range: Range) {
        let hit = |v: &u32| {
            let known = self.known[*v as usize];
            known.valid && known.range.meets(&range)
        };
        let hit: BTreeSet<u32> = self.live.iter().copied().filter(hit).collect();
        let mut pending = 0;
        for (_, r, _, valid) in &mut self.pending {
            if r.meets(&range) {
                pending += usize::from(*valid);
                *valid = false;
            }
        }
        let (idle, busy, found) = invalidate(&mut self.cache, range);
        assert_eq!(found, pending);
        let all: BTreeSet<u32> = idle.iter().chain(&busy).copied().collect();
        assert_eq!((all.len(), &all), (idle.len() + busy.len(), &hit));
        for value in busy {
            assert_ne!(self.uses(value), 0);
            self.known[value as usize].valid = false;
        }
        for value in idle {
            self.known[value as usize].valid = false;
            self.revoke(value);
        }
    }

    fn step(&mut self, op: Op) {
        self.time += 1;
        match op {
            Op::Use {
                range,
                access,
                later,
                fails,
            } => {
                if self.find(range, access) {
                    return;
                }
                match self.prepare(range, access) {
                    Some(pending) if later => self.pending.push((pending, range, access, true)),
                    Some(pending) if fails => self.cache.abandon(pending),
                    Some(pending) => self.complete(pending, range, access, true),
                    None => {}
                }
            }
            Op::Complete(i) if !self.pending.is_empty() => {
                let (pending, range, access, valid) = self.pending.remove(i % self.pending.len());
                self.complete(pending, range, access, valid);
            }
            Op::Release(i) if !self.holds.is_empty() => {
                let (hold, value) = self.holds.remove(i % self.holds.len());
                let last = self.uses(value) == 0;
                let valid = self.known[value as usize].valid;
                self.known[value as usize].rested = self.time;
                let back = self.cache.release(hold);
                assert_eq!(back, (last && !valid).then_some(value));
                back.into_iter().for_each(|value| self.revoke(value));
            }
            Op::Invalidate(range) => self.invalidate(range),
            Op::NoGood(i) if !self.holds.is_empty() => {
                let (hold, value) = &self.holds[i % self.holds.len()];
                self.cache.invalidate_held(hold);
                self.known[*value as usize].valid = false;
            }
            Op::Shrink => {
                let oldest = self.resting(None).first().copied();
                assert_eq!(self.cache.shrink(), oldest);
                oldest.into_iter().for_each(|value| self.revoke(value));
            }
            Op::Complete(_) | Op::Release(_) | Op::NoGood(_) => {}
        }
    }
}

proptest! {
    /// The cache finds existing registrations, evicts idle registrations in the order of their last
    /// use, returns each registration once, and keeps its limits.
    #[test]
    fn it_does_what_the_model_does(ops in ops()) {
        let mut m = Model {
            cache: cache(),
            known: Vec::new(),
            live: BTreeSet::new(),
            holds: Vec::new(),
            pending: Vec::new(),
            time: 0,
        };
        for op in ops {
            m.step(op);
            m.cache.check().unwrap();
            let (bytes, entries) = m.bytes(None);
            prop_assert_eq!((m.cache.bytes(), m.cache.len()), (bytes, entries));
            prop_assert_eq!(m.cache.idle(), m.resting(None).len());
        }
        // At the end all registrations are returned.
        for space in 0..4 {
            m.invalidate(Range::all(space));
        }
        while !m.pending.is_empty() {
            m.step(Op::Complete(0));
        }
        while !m.holds.is_empty() {
            m.step(Op::Release(0));
        }
        prop_assert!(m.live.is_empty() && m.cache.is_empty());
        m.cache.check().unwrap();
    }
}
