// SPDX-License-Identifier: GPL-2.0-only

//! CPU caches.

use crate::bindings;

/// Writes back and invalidates all caches of the calling CPU (`wbinvd`). Slow, and slows down other
/// CPUs too. Any context.
pub fn flush_all() {
    // SAFETY: `wbinvd` has no preconditions. The memory contents that programs see do not change.
    unsafe { bindings::extoll_flush_caches() }
}
