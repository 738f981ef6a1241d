// SPDX-License-Identifier: GPL-2.0-only

//! News of changes of a user address range (`mmu_interval_notifier`).

use crate::bindings;
use core::mem::MaybeUninit;
use kernel::{
    container_of,
    error::to_result,
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::Arc,
    types::Opaque,
};

/// What is about to happen to pages of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// They are unmapped or moved, or the process ends: nothing will be there.
    Gone,
    /// Their page table entries change. Perhaps other pages will be there; often the same, e.g.
    /// when a huge page is split.
    Suspect,
}

/// Hears of changes.
pub trait Watcher: Send + Sync {
    /// Pages of the addresses `start…end` are about to change; [`Watch::settle`] waits until they
    /// have. Called with locks of the memory management held, perhaps while memory is reclaimed:
    /// must neither sleep nor allocate, nor take a lock under which somebody does.
    fn changing(&self, change: Change, start: usize, end: usize);
}

/// Watches a range; ended by drop, after which [`Watcher::changing`] is not called any more. The
/// drop sleeps; not from `changing`, nor with a lock that it takes.
///
/// # Invariants
///
/// `0` is initialised and registered.
pub struct Watch(Pin<KBox<Inner>>);

struct Inner {
    notifier: Opaque<bindings::mmu_interval_notifier>,
    watcher: Arc<dyn Watcher>,
}

// SAFETY: notifiers may be removed by any thread, and watchers are `Send` and `Sync`.
unsafe impl Send for Watch {}
// SAFETY: `&Watch` allows nothing.
unsafe impl Sync for Watch {}

const OPS: bindings::mmu_interval_notifier_ops = {
    // SAFETY: the other functions are optional.
    let mut ops: bindings::mmu_interval_notifier_ops =
        unsafe { MaybeUninit::zeroed().assume_init() };
    ops.invalidate = Some(invalidate);
    ops
};
/// Its address is what the kernel keeps.
struct Ops(bindings::mmu_interval_notifier_ops);
// SAFETY: never changed.
unsafe impl Sync for Ops {}
static STATIC_OPS: Ops = Ops(OPS);

/// # Safety
///
/// To be called by the kernel for a notifier that [`Watch::new`] registered.
unsafe extern "C" fn invalidate(
    sub: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    seq: c_ulong,
) -> bool {
    // SAFETY: only registered by `Watch::new`, within an `Inner` that lives until the notifier was
    // removed.
    let inner = unsafe { &*container_of!(Opaque::cast_from(sub), Inner, notifier) };
    // SAFETY: this is the callback that has to do so.
    unsafe { bindings::extoll_invalidate_seq(sub, seq) };
    // SAFETY: valid during the callback.
    let range = unsafe { &*range };
    let change = match range.event {
        bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP
        | bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE => Change::Gone,
        // The same pages with other rights, which do not concern pins: fork copies pinned pages for
        // the child.
        bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA
        | bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE
        | bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY => return true,
        _ => Change::Suspect,
    };
    inner.watcher.changing(change, range.start, range.end);
    true
}

impl Watch {
    /// Watches `bytes` bytes from `start` of `mm`. May sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`: its process has ended. `ENOMEM`, `EOVERFLOW` for a range that wraps around.
    pub fn new(mm: &Mm, start: usize, bytes: usize, watcher: Arc<dyn Watcher>) -> Result<Self> {
        let inner = KBox::pin(
            Inner {
                notifier: Opaque::zeroed(),
                watcher,
            },
            GFP_KERNEL,
        )?;
        // If the process ends meanwhile, its address space is not taken down here.
        let used = mm
            .mmget_not_zero()
            .map(MmWithUser::into_mmput_async)
            .ok_or(EFAULT)?;
        // SAFETY: the notifier has a stable address, and `mm` has users while `used` exists.
        to_result(unsafe {
            bindings::mmu_interval_notifier_insert(
                inner.notifier.get(),
                used.as_raw(),
                start as c_ulong,
                bytes as c_ulong,
                &STATIC_OPS.0,
            )
        })?;
        Ok(Self(inner))
    }

    /// Waits until no change of the range is under way: what the page tables say then is not older
    /// than any change that [`Watcher::changing`] was told of before. Sleeps; not from `changing`,
    /// nor with a lock that it takes.
    pub fn settle(&self) {
        // SAFETY: registered by the invariants. Whether something changes later is told by
        // `changing`, so the number that this returns is not needed.
        unsafe { bindings::mmu_interval_read_begin(self.0.notifier.get()) };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: registered by the invariants; nobody refers to it afterwards.
        unsafe { bindings::mmu_interval_notifier_remove(self.0.notifier.get()) };
    }
}
