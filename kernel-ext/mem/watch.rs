// SPDX-License-Identifier: GPL-2.0-only

//! Notification of changes in a user address range (`mmu_interval_notifier`).

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

/// Change of pages in the range that is about to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The pages are unmapped or moved, or the process ends. Afterwards no page is mapped at the
    /// addresses.
    Unmapped,
    /// The page table entries change. The addresses may get other pages, but often keep the same
    /// ones, for example when a huge page is split.
    Changed,
}

/// Receiver of notifications.
pub trait Watcher: Send + Sync {
    /// Called before pages at the addresses `start…end` change; [`Watch::wait_idle`] waits until
    /// they have changed. Locks of memory management are held, possibly during memory reclaim. Must
    /// neither sleep nor allocate memory. Must not acquire a lock whose holders sleep or allocate
    /// memory.
    fn changing(&self, change: Change, start: usize, end: usize);
}

/// Watch of an address range. The drop ends the watch; afterwards [`Watcher::changing`] is not
/// called. The drop sleeps. A watch must not be dropped in `changing`, or with a lock held that
/// `changing` takes.
///
/// # Invariants
///
/// The notifier of `0` is initialised and registered.
pub struct Watch(Pin<KBox<Inner>>);

struct Inner {
    notifier: Opaque<bindings::mmu_interval_notifier>,
    watcher: Arc<dyn Watcher>,
}

// SAFETY: any thread may remove a notifier, and watchers are `Send` and `Sync`.
unsafe impl Send for Watch {}
// SAFETY: `&Watch` only gives access to `wait_idle`, which any thread may call.
unsafe impl Sync for Watch {}

const OPS: bindings::mmu_interval_notifier_ops = {
    // SAFETY: null is valid for the other functions, which are optional.
    let mut ops: bindings::mmu_interval_notifier_ops =
        unsafe { MaybeUninit::zeroed().assume_init() };
    ops.invalidate = Some(invalidate);
    ops
};
/// Table in static memory, because the kernel keeps its address.
struct Ops(bindings::mmu_interval_notifier_ops);
// SAFETY: the table is constant.
unsafe impl Sync for Ops {}
static STATIC_OPS: Ops = Ops(OPS);

/// # Safety
///
/// Only the kernel may call this function, for a notifier that [`Watch::new`] registered.
unsafe extern "C" fn invalidate(
    sub: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    seq: c_ulong,
) -> bool {
    // SAFETY: only `Watch::new` registers the notifier, as part of an `Inner` that lives until the
    // notifier was removed.
    let inner = unsafe { &*container_of!(Opaque::cast_from(sub), Inner, notifier) };
    // SAFETY: the kernel expects this call in this callback.
    unsafe { bindings::extoll_invalidate_seq(sub, seq) };
    // SAFETY: the range is valid during the callback.
    let range = unsafe { &*range };
    let change = match range.event {
        bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP
        | bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE => Change::Unmapped,
        // The pages stay, and only access rights change. Pins are not affected, because fork copies
        // pinned pages for the child.
        bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA
        | bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE
        | bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY => return true,
        _ => Change::Changed,
    };
    inner.watcher.changing(change, range.start, range.end);
    true
}

impl Watch {
    /// Watches the `bytes` bytes at `start` of `mm`. May sleep.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the process of `mm` has ended. `ENOMEM`; `EOVERFLOW` for a range that wraps
    /// around.
    pub fn new(mm: &Mm, start: usize, bytes: usize, watcher: Arc<dyn Watcher>) -> Result<Self> {
        let inner = KBox::pin(
            Inner {
                notifier: Opaque::zeroed(),
                watcher,
            },
            GFP_KERNEL,
        )?;
        // If the process ends during this call, another thread frees its address space.
        let used = mm
            .mmget_not_zero()
            .map(MmWithUser::into_mmput_async)
            .ok_or(EFAULT)?;
        // SAFETY: the notifier does not move, and `mm` has users while `used` exists.
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

    /// Waits until no change of the range is in progress. Afterwards the page tables reflect all
    /// changes that [`Watcher::changing`] was notified of before this call. Sleeps. Must not be
    /// called in `changing`, or with a lock held that `changing` takes.
    pub fn wait_idle(&self) {
        // SAFETY: by the type invariant the notifier is registered. `changing` reports later
        // changes, so the returned sequence number is not needed.
        unsafe { bindings::mmu_interval_read_begin(self.0.notifier.get()) };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: by the type invariant the notifier is registered. The kernel does not use the
        // notifier afterwards.
        unsafe { bindings::mmu_interval_notifier_remove(self.0.notifier.get()) };
    }
}
