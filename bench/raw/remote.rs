// SPDX-License-Identifier: GPL-2.0-only

//! Test commands for registers (`rra`, `backdoor`), memory (`smfu`) and events of this node and
//! other nodes.

use crate::{attached::Attached, notices, report::Report, window};
use extoll_core::{
    backdoor::Bdf,
    nic::Nic,
    rra::{self, Method, Request, Wait},
    smfu::Caching,
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::Arc,
    time::{Delta, Instant, Monotonic},
};
use wire::{
    ids::{NodeId, RegOffset},
    regs::pcie,
};

/// PCI device behind a node in root-port mode.
const DEVICE: Bdf = Bdf::new(1, 0, 0);

/// Values of the words of a command. Numbers are decimal, or hexadecimal with the prefix 0x.
pub(crate) struct Words {
    pub(crate) op: Op,
    method: Method,
    pub(crate) node: NodeId,
    pub(crate) offset: u64,
    pub(crate) value: u64,
    timeout_us: u32,
    /// True to access registers with a spinlock held and interrupts disabled.
    atomic: bool,
    pub(crate) bytes: u64,
    pub(crate) interval: Option<u32>,
    pub(crate) natural: bool,
    pub(crate) probe: bool,
    pub(crate) count: usize,
    pub(crate) rounds: u64,
    pub(crate) repeat: u64,
    /// Pause between repeated operations in µs.
    pub(crate) pause_us: i64,
    pub(crate) caching: Caching,
    pub(crate) ms: u64,
    pub(crate) per_second: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    /// Writes in rounds. The other node runs `Follow` and confirms each round.
    Lead,
    Follow,
    /// Accesses the exported memory of this node.
    Local,
    /// Accesses many registers in one batch.
    Batch,
    /// Begins a backdoor transaction and drops it before its end.
    Undo,
    /// Opens memory to other nodes for a limited time.
    Target,
    /// Opens a window, stores through it, and closes it at once.
    Reuse,
    /// Opens a window that stays until the NIC is removed.
    Park,
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
            atomic: false,
            bytes: 4096,
            interval: None,
            natural: false,
            probe: true,
            count: 64,
            rounds: 1,
            repeat: 1,
            pause_us: 0,
            caching: Caching::Uncached,
            ms: 1000,
            per_second: 0,
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
            ("op", "batch") => self.op = Op::Batch,
            ("op", "undo") => self.op = Op::Undo,
            ("op", "target") => self.op = Op::Target,
            ("op", "reuse") => self.op = Op::Reuse,
            ("op", "park") => self.op = Op::Park,
            ("method", "rma") => self.method = Method::Rma,
            ("method", "smfu") => self.method = Method::Smfu,
            ("method", "local") => self.method = Method::Local,
            ("map", "uc") => self.caching = Caching::Uncached,
            ("map", "wc") => self.caching = Caching::WriteCombining,
            ("wait", "atomic") => self.atomic = true,
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
                    "count" if n <= 4096 => self.count = n as usize,
                    "rounds" => self.rounds = n,
                    "probe" if n <= 1 => self.probe = n == 1,
                    "repeat" if n <= 1 << 20 => self.repeat = n,
                    "pause_us" if n <= 100_000 => self.pause_us = n as i64,
                    "natural" if n <= 1 => self.natural = n == 1,
                    "ms" if n <= 60_000 => self.ms = n,
                    "per_second" if n <= u32::MAX.into() => self.per_second = n as u32,
                    _ => return false,
                }
            }
        }
        true
    }
}

/// Runs a command of this file; returns `None` for other commands. May sleep.
pub(crate) fn run<'a>(
    attached: &Attached,
    verb: &str,
    words: impl Iterator<Item = &'a str>,
    report: &mut Report<'_>,
) -> Option<Result> {
    let command = match verb {
        "rra" => registers,
        "backdoor" => backdoor,
        "smfu" => window::memory,
        "messages" => notices::messages,
        _ => return None,
    };
    let run = || {
        let words = Words::parse(words, report)?;
        if words.op == Op::Park {
            return window::park(attached, &words, report);
        }
        // The run holds a reference to the NIC for the duration of the command.
        let run = attached.begin(Delta::from_secs(60))?;
        let nic = run.nic()?;
        command(&nic, &words, report)
    };
    Some(run())
}

impl Words {
    fn wait(&self) -> Wait {
        if self.atomic {
            Wait::Spin(self.timeout_us)
        } else {
            Wait::Sleep(self.timeout_us)
        }
    }

    fn register(&self) -> RegOffset {
        RegOffset(u32::try_from(self.offset).unwrap_or(u32::MAX))
    }

    /// Calls `f`. If `atomic` is set, a spinlock is held and interrupts are disabled.
    fn context<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        if !self.atomic {
            return Ok(f());
        }
        let lock = KBox::pin_init(new_spinlock_irq!((), "extoll_bench_atomic"), GFP_KERNEL)?;
        let _held = lock.lock();
        Ok(f())
    }
}

fn registers(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    if w.op == Op::Batch {
        return batch(nic, w, report);
    }
    let (offset, rra) = (w.register(), nic.rra());
    let (method, us) = (w.method, w.timeout_us);
    let start = Instant::<Monotonic>::now();
    let done = w.context(|| match (w.op, w.atomic) {
        (Op::Write, false) => rra
            .write_by(method, us, w.node, offset, w.value)
            .map(|()| w.value),
        (_, false) => rra.read_by(method, us, w.node, offset),
        (op, true) => {
            let mut request = [match op {
                Op::Write => Request::write(w.node, offset, w.value),
                _ => Request::read(w.node, offset),
            }];
            rra.batch(&mut request, w.wait());
            let [request] = request;
            request.result
        }
    })?;
    report.number("us", start.elapsed().as_micros_ceil() as u64)?;
    match done {
        Ok(value) => report.number("value", value),
        Err(e) => report.fail(e.into(), fmt!("{e:?}")),
    }
}

/// Writes a series of values to `count` registers from `offset` on, and reads them back. One batch
/// contains all accesses. They alternate between `node` and node `value`, if `value` is not 0.
fn batch(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let other = NodeId(w.value as u16);
    let node = |n: usize| {
        if w.value != 0 && n % 2 == 1 {
            other
        } else {
            w.node
        }
    };
    let at = |n: usize| RegOffset(w.register().get() + 8 * n as u32);
    let pattern = |n: usize| 0x1234_0000 + n as u64 * 3;
    let mut requests = KVec::with_capacity(2 * w.count, GFP_KERNEL)?;
    for n in 0..w.count {
        let write = Request::write(node(n), at(n), pattern(n));
        requests.push(write, GFP_KERNEL)?;
    }
    for n in 0..w.count {
        requests.push(Request::read(node(n), at(n)), GFP_KERNEL)?;
    }
    let start = Instant::<Monotonic>::now();
    w.context(|| nic.rra().batch(&mut requests, w.wait()))?;
    report.number("us", start.elapsed().as_micros_ceil() as u64)?;
    let failed = requests.iter().filter(|r| r.result.is_err()).count();
    let reads = requests.iter().skip(w.count).enumerate();
    let wrong = reads.filter(|(n, r)| r.result.is_ok_and(|v| v != pattern(*n)));
    report.number("wrong", wrong.count() as u64)?;
    report.number("failed", failed as u64)
}

/// Reads or writes `bytes` bytes at `offset` in the configuration space of the device behind a
/// node.
fn backdoor(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    if w.op == Op::Undo {
        return undo(nic, w, report);
    }
    let (doors, wait) = (nic.backdoors(), w.wait());
    let (register, bytes) = (w.offset as u16, w.bytes as u8);
    if w.op == Op::Local {
        // The node must not be this node, because its completions go to the backdoor's FIFO from
        // now on.
        return Ok(doors.enable(w.node, wait)?);
    }
    let start = Instant::<Monotonic>::now();
    let mut done = Ok(0);
    w.context(|| match w.op {
        Op::Write => {
            let value = w.value as u32;
            let written = doors.config_write(w.node, DEVICE, register, bytes, value, wait);
            done = written.map(|()| value);
        }
        _ => {
            done = doors.try_config_read(w.node, DEVICE, register, bytes, wait);
        }
    })?;
    report.number("us", start.elapsed().as_micros_ceil() as u64)?;
    match done {
        Ok(value) => report.number("value", value.into()),
        Err(e) => report.fail(e.into(), fmt!("{e:?}")),
    }
}

/// Sets a register in a transaction, and drops the transaction.
fn undo(nic: &Arc<Nic>, w: &Words, report: &mut Report<'_>) -> Result {
    let at = pcie::PCIE_TO_HTOC_INTERRUPT_0;
    let mut transaction = nic.backdoors().begin(w.node, w.wait())?;
    transaction.set(at, w.value)?;
    report.number("set", transaction.read(at)?)?;
    // A second transaction cannot begin at the same time.
    let second = nic.backdoors().begin(w.node, Wait::Sleep(100));
    report.number("alone", u64::from(second.is_err()))?;
    drop(second);
    drop(transaction);
    let (method, us) = (Method::Rma, w.timeout_us);
    report.number("value", nic.rra().read_by(method, us, w.node, at)?)
}
