// SPDX-License-Identifier: GPL-2.0-only

//! Commands on remote registers (`rra`) and on memory of other nodes (`smfu`), for tests.

use crate::{attached::Attached, report::Report};
use extoll_core::{
    dma::DmaWords,
    nic::Nic,
    rra::{self, Method},
    smfu::{self, Caching, Mapping, Masked, Window},
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use wire::ids::{NodeId, RegOffset};

/// Words of a command; numbers are decimal or hexadecimal with 0x.
struct Words {
    op: Op,
    method: Method,
    node: NodeId,
    offset: u64,
    value: u64,
    timeout_us: u32,
    bytes: u64,
    interval: Option<u32>,
    /// Mask mode with so many slices instead of an interval.
    slices: Option<u32>,
    count: usize,
    rounds: u64,
    caching: Caching,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Read,
    Write,
    /// Writes in rounds, each confirmed by the other side's `Follow`.
    Lead,
    Follow,
    /// The own exported memory.
    Local,
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Words {
    fn parse<'a>(words: impl Iterator<Item = &'a str>, report: &mut Report<'_>) -> Result<Self> {
        let mut all = Self {
            op: Op::Read,
            method: Method::Rma,
            node: NodeId(u16::MAX),
            offset: 0,
            value: 0,
            timeout_us: rra::DEFAULT_TIMEOUT_US,
            bytes: 4096,
            interval: None,
            slices: None,
            count: 64,
            rounds: 1,
            caching: Caching::Uncached,
        };
        for word in words {
            if !all.take(word) {
                return report.fail(EINVAL, fmt!("'{word}' is not understood"));
            }
        }
        Ok(all)
    }

    fn take(&mut self, word: &str) -> bool {
        let Some((key, text)) = word.split_once('=') else {
            return false;
        };
        match (key, text) {
            ("op", "read") => self.op = Op::Read,
            ("op", "write") => self.op = Op::Write,
            ("op", "lead") => self.op = Op::Lead,
            ("op", "follow") => self.op = Op::Follow,
            ("op", "local") => self.op = Op::Local,
            ("method", "rma") => self.method = Method::Rma,
            ("method", "smfu") => self.method = Method::Smfu,
            ("method", "local") => self.method = Method::Local,
            ("map", "uc") => self.caching = Caching::Uncached,
            ("map", "wc") => self.caching = Caching::WriteCombining,
            (_, text) => {
                let Some(n) = number(text) else { return false };
                match key {
                    "nic" => {}
                    "node" if n <= u16::MAX.into() => self.node = NodeId(n as u16),
                    "offset" => self.offset = n,
                    "value" => self.value = n,
                    "timeout_us" => self.timeout_us = n.min(rra::MAX_TIMEOUT_US.into()) as u32,
                    "bytes" => self.bytes = n,
                    "interval" => self.interval = Some(n as u32),
                    "slices" => self.slices = Some(n as u32),
                    "count" if n <= 4096 => self.count = n as usize,
                    "rounds" => self.rounds = n,
                    _ => return false,
                }
            }
        }
        true
    }
}

/// Runs a command of this file; `None` for others. May sleep.
pub(crate) fn run<'a>(
    attached: &Attached,
    verb: &str,
    words: impl Iterator<Item = &'a str>,
    report: &mut Report<'_>,
) -> Option<Result> {
    let command = match verb {
        "rra" => registers,
        "smfu" => memory,
        _ => return None,
    };
    let run = || {
        let words = Words::parse(words, report)?;
        // Holds the NIC for the time of the command.
        let run = attached.begin(Delta::from_secs(60))?;
        command(&run.nic()?, &words, report)
    };
    Some(run())
}

fn registers(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let offset = RegOffset(u32::try_from(w.offset).unwrap_or(u32::MAX));
    let start = Instant::<Monotonic>::now();
    let done = if w.op == Op::Write {
        rra::write_by(nic, w.method, w.timeout_us, w.node, offset, w.value).map(|()| w.value)
    } else {
        rra::read_by(nic, w.method, w.timeout_us, w.node, offset)
    };
    report.number("us", start.elapsed().as_micros_ceil() as u64)?;
    match done {
        Ok(value) => report.number("value", value),
        Err(e) => report.fail(e.into(), fmt!("{e:?}")),
    }
}

/// What keeps the mapped part of the window.
enum Part {
    Interval(#[allow(dead_code)] Window),
    Slice(#[allow(dead_code)] Masked),
}

fn map(nic: &Arc<Nic>, w: &Words) -> Result<(Part, Mapping)> {
    if let Some(slices) = w.slices {
        let mask = Masked::new(nic, w.bytes, slices)?;
        let mapping = mask.map(w.node, w.caching)?;
        return Ok((Part::Slice(mask), mapping));
    }
    let window = Window::new(nic, w.node, w.bytes, w.interval)?;
    let mapping = window.map(w.caching)?;
    Ok((Part::Interval(window), mapping))
}

fn memory(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    match w.op {
        Op::Local => {
            let (address, bytes) = smfu::exported(nic).ok_or(ENODATA)?;
            report.number("address", address.0)?;
            report.number("bytes", bytes as u64)?;
            let value = smfu::with_exported(nic, |m| m.read(w.offset as usize / 8));
            return report.number("value", value.ok_or(ENODATA)?);
        }
        Op::Follow => return follow(nic, w, report),
        _ => {}
    }
    let (_part, mapping) = match map(nic, w) {
        Ok(both) => both,
        Err(e) => return report.fail(e, fmt!("no window: {e:?}")),
    };
    let at = w.offset as usize;
    let done = match w.op {
        Op::Write => mapping.write(at, w.value).map(|()| mapping.flush()),
        Op::Lead => return lead(&mapping, w, report),
        _ => match mapping.read::<u64>(at) {
            Ok(value) => return report.number("value", value),
            Err(e) => Err(e),
        },
    };
    match done {
        Ok(()) => Ok(()),
        Err(e) => report.fail(e.into(), fmt!("{e:?}")),
    }
}

/// Layout of the exported memory for `lead` and `follow`: round number, confirmation, data.
const ROUND: usize = 0;
const CONFIRMED: usize = 1;
const DATA: usize = 8;

fn pattern(round: u64, i: usize) -> u64 {
    round << 32 | (i as u64).wrapping_mul(0x9E37_79B9)
}

/// Tries `f` until it gives a value, for 20 s.
fn until<T>(mut f: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::<Monotonic>::now();
    while start.elapsed().as_millis() < 20_000 {
        if let Some(value) = f()? {
            return Ok(value);
        }
        fsleep(Delta::from_micros(50));
    }
    Err(ETIMEDOUT)
}

/// Stores data, then the round's number, and waits until the follower's confirmation can be loaded. The second half of the rounds
/// begins with bytes instead of words.
fn lead(mapping: &Mapping, w: &Words, report: &mut Report<'_>) -> Result {
    mapping.write(ROUND * 8, 0u64)?;
    mapping.write(CONFIRMED * 8, 0u64)?;
    for round in 1..=w.rounds {
        for i in 0..w.count {
            let word = pattern(round, i);
            let at = (DATA + i) * 8;
            if round * 2 > w.rounds {
                mapping.write_bytes(at, &word.to_le_bytes())?;
            } else {
                mapping.write(at, word as u32)?;
                mapping.write(at + 4, (word >> 32) as u32)?;
            }
        }
        mapping.write(ROUND * 8, round)?;
        mapping.flush();
        // A load sees all stores before it.
        if w.count > 0
            && mapping.read::<u64>((DATA + w.count - 1) * 8)? != pattern(round, w.count - 1)
        {
            return report.fail(EIO, fmt!("round {round}: the load overtook the stores"));
        }
        let confirmed = until(|| {
            let value: u64 = mapping.read(CONFIRMED * 8)?;
            Ok((value >= round).then_some(value))
        });
        if let Err(e) = confirmed {
            return report.fail(e, fmt!("round {round} was not confirmed"));
        }
    }
    report.number("rounds", w.rounds)
}

/// Waits for each round's number in the own exported memory; the data must all be there then.
fn follow(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let with =
        |f: &mut dyn FnMut(&DmaWords) -> u64| smfu::with_exported(nic, |m| f(m)).ok_or(ENODEV);
    let mut bad = 0;
    for round in 1..=w.rounds {
        let seen = until(|| Ok((with(&mut |m| m.read(ROUND))? == round).then_some(())));
        if let Err(e) = seen {
            return report.fail(e, fmt!("round {round} did not come"));
        }
        bad += with(&mut |m| {
            let wrong = (0..w.count).filter(|i| m.read(DATA + i) != pattern(round, *i));
            let bad = wrong.count() as u64;
            m.write(CONFIRMED, round);
            bad
        })?;
    }
    report.number("rounds", w.rounds)?;
    report.number("bad", bad)
}
