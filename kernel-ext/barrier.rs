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

/// Has every processor do [`wmb`], so that none keeps stores to a page of device memory in its write-combining buffers after the page was
/// taken from all processes: the flush of their TLBs interrupts no processor where an instruction broadcasts it. May sleep.
pub fn wmb_everywhere() {
    // SAFETY: called where sleeping is allowed, so that interrupts are enabled.
    unsafe { bindings::extoll_wmb_everywhere() }
}

/// Orders reads of memory that a device writes (`dma_rmb()`). Any context.
#[inline]
pub fn dma_rmb() {
    // SAFETY: `dma_rmb()` has no preconditions.
    unsafe { bindings::extoll_dma_rmb() }
}
