// SPDX-License-Identifier: GPL-2.0-only

//! Command `handles`: drops handles of regions in atomic context.

use crate::{
    command::Words,
    regions::{Kind, View, QUEUE_BYTES},
    report::Report,
};
use extoll_core::nic::Nic;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{Arc, SpinLockIrq},
};
use kernel_ext::{
    mem::PAGE,
    work::{Deferred, FlushOnDrop},
};

/// Maximum number of regions.
const MOST: u64 = 256;

/// Registers `count` buffers, and drops the handles of their regions under a spinlock with
/// interrupts disabled. A work item revokes the regions later.
pub(crate) fn run(nic: &Arc<Nic>, words: &Words, report: &mut Report<'_>) -> Result {
    if words.count == 0 || words.count > MOST {
        return report.fail(EINVAL, fmt!("count is 1 to {MOST}"));
    }
    let count = words.count as usize;
    let (requester, _notifications) = nic.rma().open(None, QUEUE_BYTES)?;
    let vpid = requester.vpid();
    // Flushes that work item before the port is closed, even after an error.
    let _flush = FlushOnDrop;
    let mut handles = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        let view = View::new(nic, Kind::Buffer, PAGE)?;
        let region = view.register(nic, vpid, words.access)?;
        handles.push(Deferred::new(region, GFP_KERNEL)?, GFP_KERNEL)?;
    }
    let alive = handles.iter().filter(|region| region.is_alive()).count();
    report.number("alive", alive as u64)?;
    let lock: Pin<KBox<SpinLockIrq<()>>> =
        KBox::pin_init(new_spinlock_irq!((), "extoll_bench_handles"), GFP_KERNEL)?;
    let _atomic = lock.lock();
    handles.clear();
    Ok(())
}
