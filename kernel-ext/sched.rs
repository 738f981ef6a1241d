// SPDX-License-Identifier: GPL-2.0-only

//! Scheduling.

use crate::bindings;

/// Lets others run if they have to (`cond_resched()`). Process context without locks that forbid sleeping.
#[inline]
pub fn cond_resched() {
    // SAFETY: no preconditions but the context, whose violation the kernel reports and survives.
    unsafe { bindings::extoll_cond_resched() }
}
