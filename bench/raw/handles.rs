// SPDX-License-Identifier: GPL-2.0-only

//! `handles`: registered memory in a pool, and regions that are dropped where nobody may sleep.

use crate::{
    command::Words,
    regions::{Kind, View, QUEUE_BYTES},
    report::Report,
};
use extoll_core::{atu::Region, nic::Nic, rma};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{Arc, SpinLockIrq},
};
use kernel_ext::{
    mem::{Pool, PAGE},
    work::{Deferred, Settled},
};

/// Most regions.
const MOST: u64 = 256;

/// Memory that is registered as long as it is in the pool.
struct Buffer {
    region: Region,
    view: View,
}

/// Registers `count` buffers for a pool and as many for handles; takes all of the pool, and gives
/// them back and drops the handles under a spinlock, with interrupts off. When this returns all
/// regions have ended.
pub(crate) fn run(nic: &Arc<Nic>, words: &Words, report: &mut Report<'_>) -> Result {
    if words.count == 0 || words.count > MOST {
        return report.fail(EINVAL, fmt!("count is 1 to {MOST}"));
    }
    let count = words.count as usize;
    let (requester, _notifications) = rma::open(nic, None, QUEUE_BYTES)?;
    let vpid = requester.vpid();
    // Dropped before the port, also when something fails.
    let _settled = Settled;
    let buffer = || {
        let view = View::new(nic, Kind::Buffer, PAGE)?;
        let region = view.register(nic, vpid, words.access)?;
        Ok(Buffer { region, view })
    };
    let pool = Pool::new(count, |_| buffer())?;
    let mut taken = KVec::with_capacity(count, GFP_KERNEL)?;
    while let Some(buffer) = Pool::take(&pool) {
        buffer.view.fill(PAGE, Some(words.seed));
        taken.push(buffer, GFP_KERNEL)?;
    }
    report.number("taken", taken.len() as u64)?;
    let mut handles = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        handles.push(Deferred::new(buffer()?, GFP_KERNEL)?, GFP_KERNEL)?;
    }
    let alive =
        |regions: &mut dyn Iterator<Item = &Region>| regions.filter(|r| r.is_alive()).count();
    let pooled = alive(&mut taken.iter().map(|b| &b.region));
    let held = alive(&mut handles.iter().map(|b| &b.region));
    report.number("alive", (pooled + held) as u64)?;
    let lock: Pin<KBox<SpinLockIrq<()>>> =
        KBox::pin_init(new_spinlock_irq!((), "extoll_bench_handles"), GFP_KERNEL)?;
    let exhausted = {
        let _atomic = lock.lock();
        handles.clear();
        taken.clear();
        pool.exhausted()
    };
    report.number("exhausted", exhausted)?;
    report.number("left", pool.left() as u64)?;
    report.number("least", pool.least() as u64)?;
    Ok(())
}
