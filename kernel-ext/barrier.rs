// SPDX-License-Identifier: GPL-2.0-only

//! Memory barriers that `kernel::sync::barrier` lacks.

use crate::bindings;

/// Full write barrier (`wmb()`): flushes write-combining buffers and orders all earlier stores before all
/// later ones, device memory included. Any context.
#[inline]
pub fn wmb() {
    // SAFETY: `wmb()` has no preconditions.
    unsafe { bindings::extoll_wmb() }
}

/// Orders stores to memory that a device reads (`dma_wmb()`) before all later stores, also those to write-combining
/// memory. Any context.
#[inline]
pub fn dma_wmb() {
    // SAFETY: `dma_wmb()` has no preconditions.
    unsafe { bindings::extoll_dma_wmb() }
}

/// Orders reads of memory that a device writes (`dma_rmb()`). Any context.
#[inline]
pub fn dma_rmb() {
    // SAFETY: `dma_rmb()` has no preconditions.
    unsafe { bindings::extoll_dma_rmb() }
}
