// SPDX-License-Identifier: GPL-2.0-only

//! Memory barriers that `kernel::sync::barrier` lacks.

use crate::bindings;

/// Full write barrier (`wmb()`): flushes write-combining buffers and orders all earlier stores
/// before all later ones, device memory included. Any context.
#[inline]
pub fn wmb() {
    // SAFETY: `wmb()` has no preconditions.
    unsafe { bindings::extoll_wmb() }
}

/// Executes [`wmb`] on every CPU. The caller has unmapped a page of device memory from all
/// processes; after this call no CPU keeps stores to that page in its write-combining buffers. The
/// TLB flush of the unmapping does not suffice, because it interrupts no other CPU on machines with
/// a broadcast TLB flush instruction. May sleep.
pub fn wmb_everywhere() {
    // SAFETY: the caller may sleep, so interrupts are enabled.
    unsafe { bindings::extoll_wmb_everywhere() }
}

/// Orders reads of memory that a device writes (`dma_rmb()`). Any context.
#[inline]
pub fn dma_rmb() {
    // SAFETY: `dma_rmb()` has no preconditions.
    unsafe { bindings::extoll_dma_rmb() }
}
