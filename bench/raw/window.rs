// SPDX-License-Identifier: GPL-2.0-only

//! Test commands for memory of other nodes (`smfu`).

use crate::{
    attached::Attached,
    remote::{Op, Words},
    report::Report,
};
use extoll_core::{
    dma::DmaWords,
    nic::Nic,
    smfu::{RemoteMemory, TargetMemory, Window, WindowSpec},
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};

fn spec(w: &Words) -> WindowSpec {
    let mut spec = WindowSpec::new(w.node, w.bytes);
    if let Some(number) = w.interval {
        spec = spec.interval(number);
    }
    if w.natural {
        spec = spec.natural();
    }
    if !w.probe {
        spec = spec.no_probe();
    }
    spec
}

fn map(nic: &Arc<Nic>, w: &Words) -> Result<(Window, RemoteMemory)> {
    let window = nic.smfu().window(spec(w))?;
    let mapping = window.map(w.caching)?;
    Ok((window, mapping))
}

/// Runs command `smfu`.
pub(crate) fn memory(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    match w.op {
        Op::Local => {
            let (address, bytes) = nic.smfu().exported().ok_or(ENODATA)?;
            report.number("address", address.0)?;
            report.number("bytes", bytes as u64)?;
            let value = nic.smfu().with_exported(|m| m.read(w.offset as usize / 8));
            return report.number("value", value.ok_or(ENODATA)?);
        }
        Op::Follow => return follow(nic, w, report),
        Op::Target => return target(nic, w, report),
        _ => {}
    }
    let (window, mapping) = match map(nic, w) {
        Ok(both) => both,
        Err(e) => return report.fail(e, fmt!("no window: {e:?}")),
    };
    if w.natural {
        report.number("start", window.offset())?;
    }
    let at = w.offset as usize;
    let done = match w.op {
        // Dropping the window at the end of the function closes it directly after the store.
        Op::Reuse => mapping.write(at, w.value),
        Op::Write => (0..w.repeat)
            .try_for_each(|n| {
                if n != 0 && w.pause_us != 0 {
                    fsleep(Delta::from_micros(w.pause_us));
                }
                mapping.write(at, w.value)
            })
            .map(|()| mapping.flush()),
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

/// Word indices in the exported memory for `lead` and `follow`: number of the round.
const ROUND: usize = 0;
const CONFIRMED: usize = 1;
const DATA: usize = 8;

fn pattern(round: u64, i: usize) -> u64 {
    round << 32 | (i as u64).wrapping_mul(0x9E37_79B9)
}

/// Repeats `f` until it returns a value, for up to 20 s.
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

/// Command `smfu op=lead`: in each round, stores data and then the number of the round. Waits until
/// a load returns the follower's confirmation.
fn lead(mapping: &RemoteMemory, w: &Words, report: &mut Report<'_>) -> Result {
    mapping.write(ROUND * 8, 0u64)?;
    mapping.write(CONFIRMED * 8, 0u64)?;
    for round in 1..=w.rounds {
        for i in 0..w.count {
            let word = pattern(round, i);
            let at = (DATA + i) * 8;
            mapping.write(at, word as u32)?;
            mapping.write(at + 4, (word >> 32) as u32)?;
        }
        mapping.write(ROUND * 8, round)?;
        mapping.flush();
        // A load must not overtake earlier stores.
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

/// Command `smfu op=follow`: waits for the number of each round in this node's exported memory. All
/// data of the round must have arrived before the number.
fn follow(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let with =
        |f: &mut dyn FnMut(&DmaWords) -> u64| nic.smfu().with_exported(|m| f(m)).ok_or(ENODEV);
    let mut bad = 0;
    for round in 1..=w.rounds {
        let seen = until(|| Ok((with(&mut |m| m.read(ROUND))? == round).then_some(())));
        if let Err(e) = seen {
            return report.fail(e, fmt!("the number of round {round} is missing"));
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

/// Checks that memory which is already open is rejected. Opens memory to other nodes through the
/// interval for a limited time, and reports the word at `offset` afterwards.
fn target(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let smfu = nic.smfu();
    let number = w.interval.ok_or(EINVAL)?;
    let words = w.bytes as usize / 8;
    let memory = nic.with_bound(|dev| DmaWords::new(dev, words))??;
    let memory = Arc::new(memory, GFP_KERNEL)?;
    let target = smfu.target(number, TargetMemory::Memory(memory.clone()))?;
    report.number("base", target.base().0)?;
    report.number("open", target.bytes())?;
    let again = smfu.target(number, TargetMemory::Memory(memory.clone()));
    report.number("taken", u64::from(again.err() == Some(EBUSY)))?;
    let twice = smfu.target(number + 1, TargetMemory::Memory(memory.clone()));
    report.number("overlaps", u64::from(twice.err() == Some(EBUSY)))?;
    let short = nic.with_bound(|dev| DmaWords::new(dev, 100))??;
    let short = Arc::new(short, GFP_KERNEL)?;
    let part = smfu.target(number + 1, TargetMemory::Memory(short));
    report.number("part", u64::from(part.err() == Some(EINVAL)))?;
    fsleep(Delta::from_millis(w.ms as i64));
    report.number("value", memory.read(w.offset as usize / 8))?;
    drop(target);
    // The interval is closed, so accesses must have no effect.
    memory.write(w.offset as usize / 8, 0);
    fsleep(Delta::from_millis(w.ms as i64));
    report.number("after", memory.read(w.offset as usize / 8))
}

/// Opens a window that stays until the NIC is removed.
pub(crate) fn park(attached: &Attached, w: &Words, report: &mut Report<'_>) -> Result {
    let nic = attached.nic().ok_or(ENODEV)?;
    let window = nic.smfu().window(spec(w))?;
    report.number("start", window.offset())?;
    report.number("physical", window.physical().ok_or(ENODEV)?.0)?;
    *attached.kept_window() = Some(window);
    Ok(())
}
