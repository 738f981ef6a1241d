// SPDX-License-Identifier: GPL-2.0-only

//! Scheduling.

use crate::bindings;

/// Lets others run if they have to (`cond_resched()`). Process context without locks that forbid sleeping.
#[inline]
pub fn cond_resched() {
    // SAFETY: no preconditions but the context, whose violation the kernel reports and survives.
    unsafe { bindings::extoll_cond_resched() }
}

/// Whether somebody else is to run here (`need_resched()`). Any context.
#[inline]
pub fn need_resched() -> bool {
    // SAFETY: no preconditions: a flag of the current task.
    unsafe { bindings::extoll_need_resched() }
}

/// Whether the calling process is killed: a fatal signal is pending. Process context.
pub fn is_killed() -> bool {
    // SAFETY: `current` is valid.
    unsafe { bindings::extoll_fatal_signal() }
}
