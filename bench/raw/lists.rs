// SPDX-License-Identifier: GPL-2.0-only

//! Transfers between fragment lists with random boundaries, for the scenarios `raw::engine_…`. The
//! memory is compared byte by byte.

use crate::{
    attached::{Attached, Run},
    command::Words,
    engines::{self, LocalMemory},
    protocol::pattern,
    regions,
    report::Report,
};
use extoll_core::{
    atu::Region,
    nic::Nic,
    quarantine::Quarantined,
    rma::transfer::{
        CallIn, Capacity, Direction, Engine, Lists, RegionPart, Request, RmaError, Setup, Span,
        Submitter,
    },
};
use kernel::{prelude::*, time::Delta};
use kernel_ext::sched::cond_resched;
use wire::ids::{BusAddr, Nla};

/// Maximum number of fragments of a list.
pub(crate) const MAX_FRAGMENTS: usize = 512;
/// Time in ms for which memory of unanswered transfers is not freed.
const KEEP_MS: u32 = 20_000;

/// Pseudo-random number generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a random number in 0…`end` − 1; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }
}

/// Offset and length in bytes of each chunk of a fragment list, in the order of the list.
type Places = KVec<(u64, u64)>;

/// Cuts `len` bytes into up to `most` chunks, and places them in random order within `room` bytes.
fn scatter(random: &mut Random, len: u64, room: u64, most: u64) -> Result<Places> {
    let mut places = KVec::with_capacity(most as usize, GFP_KERNEL)?;
    let (mut left, mut gap, mut at) = (len, room - len, 0);
    for i in 1..=most {
        if left == 0 {
            break;
        }
        let piece = if i == most {
            left
        } else {
            (1 + random.below(2 * len / most + 1)).min(left)
        };
        let skip = random.below(2 * gap / most + 1).min(gap);
        gap -= skip;
        at += skip;
        // Inserts the chunk at a random position of the list.
        places.push((at, piece), GFP_KERNEL)?;
        let (last, other) = (places.len() - 1, random.below(places.len() as u64) as usize);
        places.swap(last, other);
        at += piece;
        left -= piece;
    }
    Ok(places)
}

/// Returns the offset of each byte of a list, in the order of the list.
fn spread(places: &Places) -> impl Iterator<Item = u64> + '_ {
    places.iter().flat_map(|(at, len)| *at..*at + *len)
}

/// Expected contents of memory, byte by byte.
struct Shadow(VVec<u8>);

impl Shadow {
    /// Creates contents with the pattern of `seed`.
    fn new(bytes: usize, seed: u64) -> Result<Self> {
        let mut all = VVec::with_capacity(bytes, GFP_KERNEL)?;
        for i in 0..bytes / 8 {
            all.extend_from_slice(&pattern(seed, i as u64).to_le_bytes(), GFP_KERNEL)?;
        }
        Ok(Self(all))
    }

    fn word(&self, i: usize) -> u64 {
        let bytes = self.0.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    }

    /// Copies the bytes of the list `others` of `other` to the bytes of the list `places`.
    fn take(&mut self, places: &Places, other: &Shadow, others: &Places) {
        for (to, from) in spread(places).zip(spread(others)) {
            if let (Some(to), Some(from)) =
                (self.0.get_mut(to as usize), other.0.get(from as usize))
            {
                *to = *from;
            }
        }
    }
}

impl LocalMemory {
    /// Returns the index of the first word that differs from the expected contents.
    fn mismatch(&self, shadow: &Shadow) -> Option<usize> {
        (0..shadow.0.len() / 8).find(|i| {
            if i % 4096 == 0 {
                cond_resched();
            }
            self.view.read(*i) != shadow.word(*i)
        })
    }

    fn refill(&self, shadow: &mut Shadow, seed: u64) -> Result {
        *shadow = Shadow::new(shadow.0.len(), seed)?;
        for i in 0..shadow.0.len() / 8 {
            self.view.write(i, shadow.word(i));
        }
        Ok(())
    }
}

/// Performs a transfer between local and remote fragments, and waits for it.
fn transfer(
    engine: &Submitter,
    words: &Words,
    memory: &LocalMemory,
    (direction, timeout): (Direction, Delta),
    [here, there]: [&Places; 2],
) -> Result<Result<u64, RmaError>> {
    let mut request = Request {
        to: engines::destination(words)?,
        direction,
        lists: Lists::Bus {
            local: &[],
            remote: &[],
        },
        confirm: direction == Direction::Put,
        timeout,
        context: CallIn::Poll,
    };
    let start = words.nla.wrapping_add(words.offset);
    let done = match &memory.region {
        Some(region) => {
            let part =
                |(at, len): &(u64, u64)| RegionPart::new(region, *at as usize, *len as usize);
            let span = |(at, len): &(u64, u64)| Span {
                address: Nla(start.wrapping_add(*at)),
                len: *len,
            };
            let local = engines::collect(here.iter().map(part))?;
            let remote = engines::collect(there.iter().map(span))?;
            request.lists = Lists::Regions {
                local: &local,
                remote: &remote,
            };
            engine.start(&request)
        }
        None => {
            let base = memory.bus().ok_or(EINVAL)?;
            let span = |base: u64| {
                move |(at, len): &(u64, u64)| Span {
                    address: BusAddr(base.wrapping_add(*at)),
                    len: *len,
                }
            };
            let local = engines::collect(here.iter().map(span(base)))?;
            let remote = engines::collect(there.iter().map(span(start)))?;
            request.lists = Lists::Bus {
                local: &local,
                remote: &remote,
            };
            engine.start(&request)
        }
    };
    Ok(done.and_then(|handle| handle.done()).map(|done| done.bytes))
}

/// Command `lists`: performs `count` transfers between local memory and `bytes` bytes of a peer,
/// alternately in both directions.
///
/// The peer's memory contains the pattern of `seed`. Each side of a transfer has up to `frags`
/// fragments. All memory is compared, including the gaps between the fragments. `shared=1` uses the
/// engine of the offer.
pub(crate) fn lists(
    attached: &Attached,
    run: &Run<'_>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let nic = run.nic()?;
    let bytes = regions::bytes(words, report)?;
    let most = words.frags.clamp(1, MAX_FRAGMENTS as u64);
    let setup = Setup {
        capacity: Capacity {
            transfers: 4,
            fragments: 4 * MAX_FRAGMENTS,
            commands: 64,
        },
        ..Setup::default()
    };
    let own = if words.shared {
        None
    } else {
        Some(engines::open(&nic, setup)?)
    };
    let (engine, vpid) = match &own {
        Some(engine) => (engine.submitter(), engine.requester().vpid()),
        None => match attached.offer().as_ref() {
            Some(offer) => offer.engine(),
            None => return report.fail(ENOENT, fmt!("there is no offer")),
        },
    };
    let memory = match LocalMemory::new(&nic, vpid, words, bytes, None) {
        Ok(memory) => memory,
        Err(e) => return report.fail(e, fmt!("no local memory: {e:?}")),
    };
    let before = engine.counters();
    let mut outcome = compare(&engine, words, &memory, bytes, most, timeout, report);
    if outcome.is_ok() {
        let after = engine.counters();
        report.number("commands", after.commands - before.commands)?;
        report.number("fences", after.fences - before.fences)?;
        outcome = report.line(fmt!("result ok"));
    }
    end(&nic, own, memory, report)?;
    outcome
}

/// Drops the engine before the memory, because the NIC may access memory with a bus address until
/// the engine is dropped.
fn end(nic: &Nic, engine: Option<Engine>, memory: LocalMemory, report: &mut Report<'_>) -> Result {
    let LocalMemory { region, view } = memory;
    let region: Option<Region> = region;
    let mut batch = match &engine {
        Some(engine) => {
            let vpid = engine.requester().vpid();
            Some(nic.quarantine().batch(vpid, 1)?)
        }
        None => None,
    };
    drop(engine);
    if let (Some(batch), regions::View::Words(words)) = (&mut batch, &view) {
        batch.push(Quarantined::Words(words.clone()));
    }
    if let Some(batch) = batch {
        batch.hold(KEEP_MS);
    }
    match region.map(Region::revoke) {
        Some(Err(e)) => report.line(fmt!("revoked {e:?}")),
        _ => Ok(()),
    }
}

fn compare(
    engine: &Submitter,
    words: &Words,
    memory: &LocalMemory,
    bytes: usize,
    most: u64,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let mut random = Random::new(words.seed);
    let mut theirs = Shadow::new(bytes, words.seed)?;
    let mut mine = Shadow::new(bytes, 0)?;
    let (mut total, mut fragments) = (0, 0);
    for round in 1..=words.count {
        // The last round reads the result of all other rounds.
        let last = round == words.count;
        let get = last || random.below(2) == 0;
        memory.refill(&mut mine, words.seed.wrapping_add(round))?;
        let len = if last {
            bytes as u64
        } else {
            1 + random.below(bytes as u64 / 2)
        };
        let number = 1 + random.below(most);
        let here = scatter(&mut random, len, bytes as u64, number)?;
        let number = 1 + random.below(most);
        let there = scatter(&mut random, len, bytes as u64, number)?;
        fragments += here.len() + there.len();
        let direction = if get { Direction::Get } else { Direction::Put };
        match transfer(engine, words, memory, (direction, timeout), [&here, &there])? {
            Ok(done) if done == len => total += len,
            result => {
                return report.fail(
                    EIO,
                    fmt!("round {round}: {direction:?} ends with {result:?}"),
                )
            }
        }
        if get {
            mine.take(&here, &theirs, &there);
        } else {
            theirs.take(&there, &mine, &here);
        }
        if let Some(word) = memory.mismatch(&mine) {
            return report.fail(
                EBADMSG,
                fmt!("round {round}: {direction:?} of {len} bytes, word {word} is wrong"),
            );
        }
        if kernel::current!().signal_pending() {
            return Err(EINTR);
        }
    }
    report.number("transfers", words.count)?;
    report.number("fragments", fragments as u64)?;
    report.number("bytes", total)
}
