// SPDX-License-Identifier: GPL-2.0-only

//! CPU caches.

use crate::bindings;

/// Writes back and invalidates all caches of the calling CPU (`wbinvd`). Slow, and slows down other
/// CPUs too. Any context.
pub fn flush_all() {
    // SAFETY: `wbinvd` has no preconditions and does not change memory contents as programs see
    // them.
    unsafe { bindings::extoll_flush_caches() }
}
