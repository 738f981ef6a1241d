// SPDX-License-Identifier: GPL-2.0-only

//! Tests of the completions of transfers (their number, order and context), and of transfers that
//! their owners end early.

use crate::{
    attached::{Attached, Run},
    command::Words,
    engines::{self, LocalMemory},
    protocol::pattern,
    regions,
    report::Report,
};
use extoll_core::rma::{
    self,
    transfer::{
        CallIn, Capacity, Completion, Destination, Direction, Done, Engine, Lists, Quiet,
        RegionPart, Request, RmaError, Setup, Span, Submitter, Ticket,
    },
    LockTarget, NotifySpec, PageOptions,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::sched::cond_resched;
use wire::{ids::Nla, wcbuf::MAX_OUTSTANDING};

/// Method by which the owner of a transfer ends it early.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Cancels each transfer separately.
    Cancel,
    /// Aborts all transfers with the peer.
    Abort,
    /// Drops the engine of the transfers.
    Drop,
}

impl By {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "cancel" => By::Cancel,
            "abort" => By::Abort,
            "drop" => By::Drop,
            _ => return None,
        })
    }
}

/// Kind of a completion, with the name of its counter.
#[derive(Clone, Copy)]
enum CompletionKind {
    Taken,
    Ok,
    TimedOut,
    Cancelled,
    PeerLost,
    Down,
    Faults,
    Settled,
    Unanswered,
    Closed,
    /// Completions that came twice or in a wrong order.
    Wrong,
    Nested,
}

const NAMES: [(CompletionKind, &str); 12] = [
    (CompletionKind::Taken, "taken"),
    (CompletionKind::Ok, "ok"),
    (CompletionKind::TimedOut, "timed_out"),
    (CompletionKind::Cancelled, "cancelled"),
    (CompletionKind::PeerLost, "peer_lost"),
    (CompletionKind::Down, "down"),
    (CompletionKind::Faults, "faults"),
    (CompletionKind::Settled, "settled"),
    (CompletionKind::Unanswered, "unanswered"),
    (CompletionKind::Closed, "closed"),
    (CompletionKind::Wrong, "wrong"),
    (CompletionKind::Nested, "nested"),
];

/// Number of completions of each kind for all owners of a run.
struct Sums([Atomic<u64>; NAMES.len()]);

impl Sums {
    fn new() -> Result<Arc<Self>> {
        let sums = Self([const { Atomic::new(0) }; NAMES.len()]);
        Ok(Arc::new(sums, GFP_KERNEL)?)
    }

    fn count(&self, kind: CompletionKind) {
        if let Some(n) = self.0.get(kind as usize) {
            n.fetch_add(1, Relaxed);
        }
    }

    fn get(&self, kind: CompletionKind) -> u64 {
        self.0.get(kind as usize).map_or(0, |n| n.load(Relaxed))
    }

    fn sum(&self, all: &[CompletionKind]) -> u64 {
        all.iter().map(|kind| self.get(*kind)).sum()
    }

    fn ended(&self) -> u64 {
        use CompletionKind::*;
        self.sum(&[Ok, TimedOut, Cancelled, PeerLost, Down, Faults])
    }

    fn quiet(&self) -> u64 {
        self.sum(&[
            CompletionKind::Settled,
            CompletionKind::Unanswered,
            CompletionKind::Closed,
        ])
    }

    fn show(&self, report: &mut Report<'_>) -> Result {
        for (kind, name) in NAMES {
            report.number(name, self.get(kind))?;
        }
        Result::Ok(())
    }
}

/// Owner of a transfer.
struct Owner {
    sums: Arc<Sums>,
    /// 0 before the outcome is reported, 1 after the outcome, 2 after the transfer is reported
    /// quiet.
    state: Atomic<u32>,
    /// Resources for a callback that uses the engine itself: it submits a lock operation, and waits
    /// for the result if the callback may sleep. `None` for other callbacks.
    again: Option<(Submitter, Destination, CallIn)>,
}

impl Owner {
    fn new(sums: &Arc<Sums>, again: Option<(Submitter, Destination, CallIn)>) -> Result<Arc<Self>> {
        let owner = Self {
            sums: sums.clone(),
            state: Atomic::new(0),
            again,
        };
        Ok(Arc::new(owner, GFP_KERNEL)?)
    }

    fn nested(&self, engine: &Submitter, to: Destination, context: CallIn) {
        let timeout = Delta::from_secs(20);
        match context {
            CallIn::Process => {
                // The callback may sleep and wait for another transfer of the same engine.
                fsleep(Delta::from_micros(50));
                let locked = engine.lock(to, LockTarget::Completer, 7, (i32::MAX, 1), timeout);
                if locked.is_ok() {
                    self.sums.count(CompletionKind::Nested);
                }
            }
            CallIn::Poll => {
                // Submits without waiting. No memory is passed, because the caller owns it.
                let nothing: Result<Arc<Nested>> =
                    Arc::new(Nested(self.sums.clone()), GFP_ATOMIC).map_err(Into::into);
                let Ok(nothing) = nothing else { return };
                let (lock, operands) = ((LockTarget::Responder, 8), (i32::MAX, 1));
                let how = (timeout, CallIn::Poll);
                // All slots may be in use.
                let _ = engine.submit_lock(to, lock, operands, how, nothing);
            }
        }
    }
}

impl Completion for Owner {
    fn done(&self, outcome: Result<Done, RmaError>) {
        if self.state.xchg(1, Relaxed) != 0 {
            self.sums.count(CompletionKind::Wrong);
        }
        if let Some((engine, to, context)) = &self.again {
            self.nested(engine, *to, *context);
        }
        self.sums.count(match outcome {
            Ok(_) => CompletionKind::Ok,
            Err(RmaError::TimedOut) => CompletionKind::TimedOut,
            Err(RmaError::Cancelled) => CompletionKind::Cancelled,
            Err(RmaError::PeerLost) => CompletionKind::PeerLost,
            Err(RmaError::Down) => CompletionKind::Down,
            Err(_) => CompletionKind::Faults,
        });
    }

    fn quiet(&self, how: Quiet) {
        if self.state.xchg(2, Relaxed) != 1 {
            self.sums.count(CompletionKind::Wrong);
        }
        self.sums.count(match how {
            Quiet::Settled => CompletionKind::Settled,
            Quiet::Unanswered => CompletionKind::Unanswered,
            Quiet::Closed => CompletionKind::Closed,
        });
    }
}

/// Owner of a lock operation that the callback of another owner has submitted.
struct Nested(Arc<Sums>);

impl Completion for Nested {
    fn done(&self, outcome: Result<Done, RmaError>) {
        if outcome.is_ok() {
            self.0.count(CompletionKind::Nested);
        }
    }
}

/// Waits until `ready` returns true or `ms` milliseconds have passed. Returns the result of
/// `ready`.
fn wait(ms: i64, mut ready: impl FnMut() -> bool) -> Result<bool> {
    let start = Instant::<Monotonic>::now();
    loop {
        if ready() {
            return Ok(true);
        }
        if start.elapsed().as_millis() > ms {
            return Ok(false);
        }
        if kernel::current!().signal_pending() {
            return Err(EINTR);
        }
        fsleep(Delta::from_millis(1));
    }
}

/// Memory and engine that the transfers of a run use.
struct Table {
    engine: Engine,
    memory: LocalMemory,
    to: Destination,
    bytes: u64,
    /// Length of a transfer in bytes.
    len: u64,
}

impl Table {
    fn new(run: &Run<'_>, words: &Words, places: usize, report: &mut Report<'_>) -> Result<Self> {
        let nic = run.nic()?;
        let bytes = regions::bytes(words, report)?;
        let len = words.len.unwrap_or(4096).clamp(8, bytes as u64) & !7;
        let setup = Setup {
            capacity: Capacity {
                transfers: places,
                fragments: 2 * places,
                commands: 64,
            },
            ..Setup::default()
        };
        let engine = engines::open(&nic, setup)?;
        let memory = LocalMemory::new(&nic, engine.requester().vpid(), words, bytes, None)?;
        if memory.region.is_none() {
            return report.fail(EINVAL, fmt!("this kind of memory has no NLA"));
        }
        Ok(Self {
            engine,
            memory,
            to: engines::destination(words)?,
            bytes: bytes as u64,
            len,
        })
    }

    /// Returns the offset in bytes of the memory that GET number `i` reads.
    fn place(&self, i: u64) -> u64 {
        let end = self.bytes - self.len + 8;
        (i * self.len).checked_rem(end).unwrap_or(0) & !7
    }

    /// Submits GET number `i`, which uses the offset `place(i)` in local and in remote memory.
    fn get(
        &self,
        words: &Words,
        i: u64,
        (timeout, context): (Delta, CallIn),
        owner: Arc<Owner>,
    ) -> Result<Ticket, RmaError> {
        let region = self.memory.region.as_ref().ok_or(RmaError::Invalid)?;
        let at = self.place(i);
        let request = Request {
            to: self.to,
            direction: Direction::Get,
            lists: Lists::Regions {
                local: &[RegionPart::new(region, at as usize, self.len as usize)],
                remote: &[Span {
                    address: Nla(words.nla.wrapping_add(at)),
                    len: self.len,
                }],
            },
            confirm: false,
            timeout,
            context,
        };
        self.engine.submit(&request, owner)
    }
}

/// Command `calls`: `count` GETs of `len` bytes with completions.
///
/// The completions alternate between process context and the context of the notification handler.
/// The engine has one slot more than `inflight`, so that `inflight` GETs can be in flight. Every
/// eighth owner uses the engine in its callback. `mode=poll` polls the engine.
pub(crate) fn calls(
    run: &Run<'_>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    // One additional slot is for lock operations that owners submit in their callbacks.
    let table = Table::new(run, words, words.inflight as usize + 1, report)?;
    let sums = Sums::new()?;
    let (mut busy, mut polls, mut more) = (0, 0u64, false);
    let poll = words.polls();
    for i in 0..words.count {
        let context = match i % 2 {
            0 => CallIn::Process,
            _ => CallIn::Poll,
        };
        loop {
            run.waiter.check()?;
            let again = (i % 8 < 2).then(|| (table.engine.submitter(), table.to, context));
            let owner = Owner::new(&sums, again)?;
            match table.get(words, i, (timeout, context), owner) {
                Ok(_) => break,
                Err(RmaError::Busy) => busy += 1,
                Err(e) => return report.fail(e.into(), fmt!("GET {i} was rejected: {e:?}")),
            }
            if poll {
                polls += 1;
                more = table.engine.poll();
                cond_resched();
            } else {
                fsleep(Delta::from_micros(200));
            }
        }
        sums.count(CompletionKind::Taken);
    }
    let taken = sums.get(CompletionKind::Taken);
    let all = wait(60_000, || {
        if poll {
            more = table.engine.poll();
        }
        sums.quiet() == taken
    })?;
    while more {
        more = table.engine.poll();
    }
    let counters = table.engine.counters();
    for i in 0..words.count {
        let first = table.place(i) / 8;
        let mut place = first..first + table.len / 8;
        let view = &table.memory.view;
        if let Some(w) = place.find(|w| view.read(*w as usize) != pattern(words.seed, *w)) {
            return report.fail(EBADMSG, fmt!("GET {i}: word {w} is wrong"));
        }
        cond_resched();
    }
    drop(table.engine);
    sums.show(report)?;
    report.number("all", u64::from(all))?;
    report.number("busy", busy)?;
    report.number("polls", polls)?;
    report.number("refused_transfers", counters.refused_transfers)?;
    report.number("refused_peer", counters.refused_peer)
}

/// Command `give_up`: submits `count` GETs of `len` bytes, and ends them after `pause_ms`
/// milliseconds by the method `by`. Then retries the first GET until `timeout_ms` milliseconds have
/// passed.
pub(crate) fn give_up(
    run: &Run<'_>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let table = Table::new(run, words, 2 * words.count as usize + 2, report)?;
    let sums = Sums::new()?;
    let mut tickets = KVec::new();
    for i in 0..words.count {
        let context = [CallIn::Process, CallIn::Poll][i as usize % 2];
        let owner = Owner::new(&sums, None)?;
        match table.get(words, i, (timeout, context), owner) {
            Ok(ticket) => tickets.push(ticket, GFP_KERNEL)?,
            Err(e) => return report.fail(e.into(), fmt!("GET {i} was rejected: {e:?}")),
        }
    }
    let taken = words.count;
    fsleep(Delta::from_millis(words.pause_ms as i64));
    let start = Instant::<Monotonic>::now();
    let Table {
        engine,
        memory,
        to,
        bytes,
        len,
    } = table;
    match words.by {
        By::Cancel => tickets.iter().for_each(|t| {
            engine.cancel(*t);
        }),
        By::Abort => engine.abort(to.node),
        By::Drop => {
            drop(engine);
            report.number("ended", sums.ended())?;
            return sums.show(report);
        }
    }
    let table = Table {
        engine,
        memory,
        to,
        bytes,
        len,
    };
    wait(20_000, || sums.ended() == taken)?;
    report.number("end_ms", start.elapsed().as_millis() as u64)?;
    report.number("ended", sums.ended())?;
    // Retries into the memory of the ended GET, before the NIC has reported late answers.
    let retried = Sums::new()?;
    let owner = Owner::new(&retried, None)?;
    let again = table.get(words, 0, (timeout, CallIn::Process), owner);
    wait(30_000, || sums.quiet() == taken)?;
    report.number("quiet_ms", start.elapsed().as_millis() as u64)?;
    wait(60_000, || retried.ended() == 1)?;
    sums.show(report)?;
    match (again, retried.get(CompletionKind::Ok)) {
        (Err(e), _) => report.line(fmt!("retry {e:?}"))?,
        (Ok(_), 1) => {
            report.line(fmt!("retry ok"))?;
            regions::compare(
                &table.memory.view,
                table.len as usize,
                words.seed,
                0,
                report,
            )?;
        }
        (Ok(_), _) => report.line(fmt!("retry failed"))?,
    }
    report.number("fences", table.engine.counters().fences)
}

/// Command `heard`: shows the notifications from peers that the engine of the offer received.
pub(crate) fn received(attached: &Attached, report: &mut Report<'_>) -> Result {
    let place = attached.offer();
    let Some(offer) = place.as_ref() else {
        return report.fail(ENOENT, fmt!("there is no offer"));
    };
    let (engine, _) = offer.engine();
    report.number("unclaimed", engine.counters().unclaimed)?;
    let Some(received) = &offer.received else {
        return Ok(());
    };
    for (name, n) in ["puts", "gets", "values", "others"]
        .iter()
        .zip(&received.counts)
    {
        report.number(name, n.load(Relaxed))?;
    }
    report.number("own", received.own.load(Relaxed))?;
    report.number("last", received.last.load(Relaxed))
}

/// Command `flood`: sends `count` notification PUTs to a peer at maximum speed.
pub(crate) fn flood(run: &Run<'_>, words: &Words, report: &mut Report<'_>) -> Result {
    let nic = run.nic()?;
    let to = engines::destination(words)?;
    let (requester, _notifications) = nic.rma().open(None, 512 << 10)?;
    requester.attach(run.waiter.client(wire::ids::Unit::Rma)?);
    let peer = rma::Peer {
        notify: NotifySpec::from_bits(4),
        page: PageOptions {
            irq: true,
            ..PageOptions::default()
        },
        ..rma::Peer::new(to.node, to.vpid)
    };
    for i in 0..words.count {
        run.waiter.check()?;
        run.waiter.send(|| requester.notify(peer, 1, i))?;
        if i % 64 == 0 {
            cond_resched();
        }
    }
    // Waits until the NIC has accepted all commands, because closing the port would discard the
    // commands that have not been accepted. All credits are free then.
    run.waiter
        .send(|| requester.reserve(MAX_OUTSTANDING.into()))?;
    let sent = requester.progress().0;
    requester.detach();
    report.number("sent", sent)
}
