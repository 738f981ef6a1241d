// SPDX-License-Identifier: GPL-2.0-only

//! Commands for many regions: `end` (all methods of ending regions), `reserve` (registration in
//! atomic context) and `buffers` (a pool that is registered once).
//!
//! The functions of the kernel API that any context may call are called with a spinlock held and
//! interrupts disabled.

use crate::{
    command::Words,
    protocol::pattern,
    regions::{Kind, View, QUEUE_BYTES},
    report::Report,
};
use extoll_core::{
    atu::{Access, Buffer, BufferPool, Region, Reserve, WholePages},
    nic::Nic,
    rma::{
        transfer::{Destination, Engine, Notify},
        Address,
    },
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{Arc, SpinLockIrq},
    time::{Delta, Instant, Monotonic},
};
use kernel_ext::mem::{PageList, PAGE};
use wire::{ids::Nla, rma::MAX_LEN};

/// Maximum number of regions at a time.
const MOST: u64 = 4096;

/// Method of ending regions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Ends each region by a separate call, which waits.
    Each,
    /// Ends all regions by one call, which waits once.
    All,
    /// Drops the regions in atomic context.
    Drop,
}

impl How {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "each" => How::Each,
            "all" => How::All,
            "drop" => How::Drop,
            _ => return None,
        })
    }
}

/// Calls functions in atomic context.
struct Atomic(Pin<KBox<SpinLockIrq<()>>>);

impl Atomic {
    fn new() -> Result<Self> {
        let lock = new_spinlock_irq!((), "extoll_bench_atomic");
        Ok(Self(KBox::pin_init(lock, GFP_KERNEL)?))
    }

    /// Calls `f` with a spinlock held and interrupts disabled.
    fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

fn pages(nic: &Arc<Nic>, bytes: usize) -> Result<Arc<PageList>> {
    match View::new(nic, Kind::Pages, bytes)? {
        View::Pages(pages) => Ok(pages),
        _ => Err(EINVAL),
    }
}

/// Command `end`: registers `count` regions of `bytes` bytes and ends them by the method `how`.
pub(crate) fn end(nic: &Arc<Nic>, words: &Words, report: &mut Report<'_>) -> Result {
    let bytes = crate::regions::bytes(words, report)?;
    if words.count == 0 || words.count > MOST {
        return report.fail(EINVAL, fmt!("count is 1 to {MOST}"));
    }
    let (requester, _notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    let memory = pages(nic, bytes)?;
    let mut regions = KVVec::with_capacity(words.count as usize, GFP_KERNEL)?;
    for _ in 0..words.count {
        let region = nic
            .atu()
            .register_pages(requester.vpid(), memory.clone(), words.access)?;
        regions.push(region, GFP_KERNEL)?;
    }
    let atomic = Atomic::new()?;
    let begin: Instant<Monotonic> = Instant::now();
    let result = match words.how {
        How::Each => regions.into_iter().try_for_each(Region::revoke),
        How::All => {
            let result = nic.atu().revoke_all(|| regions.iter());
            if regions.iter().any(Region::is_alive) {
                return report.fail(EBADMSG, fmt!("a region is still alive"));
            }
            result
        }
        How::Drop => {
            for region in regions {
                atomic.run(|| drop(region));
            }
            Ok(())
        }
    };
    report.number("micros", begin.elapsed().as_micros_ceil().max(0) as u64)?;
    match result {
        Ok(()) => report.line(fmt!("result ok")),
        Err(e) => report.line(fmt!("result {e:?}")),
    }
}

/// Engine on a new port that reads regions of this node through the network.
struct SelfPort {
    engine: Engine,
    to: Destination,
    timeout: Delta,
}

impl SelfPort {
    fn new(nic: &Arc<Nic>, timeout: Delta) -> Result<Self> {
        let (requester, notifications) = nic.rma().open(None, QUEUE_BYTES)?;
        let to = Destination {
            node: nic.node(),
            vpid: requester.vpid(),
            traffic_class: 0,
            notify: Notify::Nothing,
        };
        let engine = Engine::new(requester, notifications)?;
        Ok(Self {
            engine,
            to,
            timeout,
        })
    }

    /// Reads `len` bytes at `remote` of this node through the network into `region`.
    fn get(&self, remote: Nla, region: &Region, len: usize) -> Result {
        let address = Address::Region {
            region,
            offset: 0,
            remote,
        };
        let handle = self.engine.get(self.to, address, len as u64, self.timeout);
        Ok(handle.and_then(|handle| handle.wait())?)
    }
}

/// Returns the element of `all` with index `round` modulo the length.
fn one_of<T>(all: &[T], round: u64) -> Option<&T> {
    all.get((round as usize).checked_rem(all.len())?)
}

fn fill(pages: &PageList, bytes: usize, seed: u64) {
    for i in 0..bytes / 8 {
        pages.write(i, pattern(seed, i as u64));
    }
}

fn is_pattern(pages: &PageList, bytes: usize, seed: u64) -> bool {
    (0..bytes / 8).all(|i| pages.read(i) == pattern(seed, i as u64))
}

/// Command `reserve`: allocates a reserve of `inflight` regions of `bytes` bytes.
///
/// Each of `count` rounds registers all regions and one more, which must fail, reads one region,
/// and ends all regions. Only the read runs in a context that may sleep.
pub(crate) fn reserve(
    nic: &Arc<Nic>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let bytes = crate::regions::bytes(words, report)?;
    let most = bytes / PAGE;
    if most > Reserve::MAX_PAGES || bytes > MAX_LEN as usize {
        return report.fail(
            EINVAL,
            fmt!("bytes exceeds the limit of {} pages", Reserve::MAX_PAGES),
        );
    }
    let port = SelfPort::new(nic, timeout)?;
    let vpid = port.to.vpid;
    let reserve = nic
        .atu()
        .reserve(vpid, words.inflight as usize, most, words.access)?;
    let (source, sink) = (pages(nic, bytes)?, pages(nic, bytes)?);
    let local = nic
        .atu()
        .register_pages(vpid, sink.clone(), Access::READ_WRITE)?;
    let (long, atomic) = (pages(nic, bytes + PAGE)?, Atomic::new()?);
    let mut regions = KVVec::with_capacity(words.inflight as usize, GFP_KERNEL)?;
    let whole = WholePages::EXPOSED;
    let (mut registered, mut refused) = (0, 0);
    for round in 0..words.count {
        if kernel::current!().signal_pending() {
            return Err(EINTR);
        }
        fill(&source, bytes, words.seed + round);
        loop {
            match atomic.run(|| reserve.register(&source, whole)) {
                Ok(region) => regions.push(region, GFP_KERNEL)?,
                Err(e) if e == EAGAIN => break,
                Err(e) => return Err(e),
            }
        }
        registered += regions.len() as u64;
        refused += 1;
        if regions.len() as u64 != words.inflight {
            return report.fail(EBADMSG, fmt!("{} regions", regions.len()));
        }
        let Some(region) = one_of(&regions, round) else {
            return Err(EINVAL);
        };
        port.get(region.nla(), &local, bytes)?;
        if !is_pattern(&sink, bytes, words.seed + round) {
            return report.fail(EBADMSG, fmt!("round {round}: the GET returned wrong data"));
        }
        nic.atu().revoke_all(|| regions.iter())?;
        while let Some(region) = regions.pop() {
            atomic.run(|| drop(region));
        }
        // A registration that fails because it is too long must consume no region.
        let refusal = atomic.run(|| reserve.register(&long, whole)).err();
        if refusal != Some(EINVAL) {
            return report.fail(
                EBADMSG,
                fmt!("unexpected result for too many pages: {refusal:?}"),
            );
        }
    }
    // Drops the reserve before its last region, which must stay usable.
    let last = atomic.run(|| reserve.register(&source, whole))?;
    drop(reserve);
    port.get(last.nla(), &local, bytes)?;
    last.revoke()?;
    local.revoke()?;
    report.number("registered", registered)?;
    report.number("refused", refused)
}

/// Takes all buffers and writes into each.
fn take_all(pool: &BufferPool, seed: u64, all: &mut KVVec<Buffer>) -> Result {
    while let Some(buffer) = pool.take() {
        let seed = seed + buffer.number() as u64;
        for i in 0..buffer.bytes() / 8 {
            buffer.write(i, pattern(seed, i as u64));
        }
        // Writes behind the end of the buffer, which must have no effect.
        buffer.write(buffer.bytes() / 8, 0);
        all.push_within_capacity(buffer).map_err(|_| ENOSPC)?;
    }
    Ok(())
}

/// Command `buffers`: creates a pool of `inflight` buffers of `size` bytes.
///
/// Each of `count` rounds takes and fills all buffers in atomic context, reads one buffer through
/// the network, and returns all buffers in atomic context. At the end, the pool and the buffers are
/// dropped in atomic context, too.
pub(crate) fn buffers(
    nic: &Arc<Nic>,
    words: &Words,
    timeout: Delta,
    report: &mut Report<'_>,
) -> Result {
    let (count, size) = (words.inflight as usize, words.size as usize);
    let port = SelfPort::new(nic, timeout)?;
    let vpid = port.to.vpid;
    let pool = nic.atu().buffers(vpid, count, size, Access::READ_WRITE)?;
    let sink = pages(nic, size.next_multiple_of(PAGE))?;
    let local = nic
        .atu()
        .register_pages(vpid, sink.clone(), Access::READ_WRITE)?;
    let (atomic, mut all) = (Atomic::new()?, KVVec::with_capacity(count, GFP_KERNEL)?);
    let (mut taken, mut last) = (0, None);
    for round in 0..words.count {
        if kernel::current!().signal_pending() {
            return Err(EINTR);
        }
        let seed = words.seed + round;
        atomic.run(|| take_all(&pool, seed, &mut all))?;
        taken += all.len() as u64;
        if all.len() != count || pool.count() != (count, 0) {
            return report.fail(EBADMSG, fmt!("{} buffers", all.len()));
        }
        // Buffers must come in the order in which they were returned.
        let order = |i: usize| all.get(i).map(Buffer::number);
        if last.is_some_and(|last| order(0) != Some(last)) {
            return report.fail(EBADMSG, fmt!("the first buffer is {:?}", order(0)));
        }
        let Some(buffer) = one_of(&all, round) else {
            return Err(EINVAL);
        };
        port.get(buffer.nla(), &local, size)?;
        if !is_pattern(&sink, size, seed + buffer.number() as u64) {
            return report.fail(EBADMSG, fmt!("round {round}: the GET returned wrong data"));
        }
        last = order(count - 1);
        atomic.run(|| {
            while let Some(buffer) = all.pop() {
                drop(buffer);
            }
        });
    }
    let buffer = pool.take();
    atomic.run(|| drop(pool));
    if let Some(buffer) = &buffer {
        port.get(buffer.nla(), &local, size)?;
    }
    atomic.run(|| drop(buffer));
    local.revoke()?;
    report.number("taken", taken)
}
