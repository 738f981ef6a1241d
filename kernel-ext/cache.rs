// SPDX-License-Identifier: GPL-2.0-only

//! CPU caches.

use crate::bindings;

/// Writes back and invalidates all caches of the calling CPU (`wbinvd`): slow, for everybody. Any context.
pub fn flush_all() {
    // SAFETY: no preconditions; changes no memory as programs see it.
    unsafe { bindings::extoll_flush_caches() }
}
