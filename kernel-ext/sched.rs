// SPDX-License-Identifier: GPL-2.0-only

//! Scheduling.

use crate::bindings;

/// Yields the CPU if another task must run (`cond_resched()`). Process context, without locks that
/// forbid sleeping.
#[inline]
pub fn cond_resched() {
    // SAFETY: the only precondition is the context; the kernel reports a violation of it and
    // survives.
    unsafe { bindings::extoll_cond_resched() }
}

/// Returns true if another task must run on this CPU (`need_resched()`). Any context.
#[inline]
pub fn need_resched() -> bool {
    // SAFETY: the function has no preconditions, and only reads a flag of the current task.
    unsafe { bindings::extoll_need_resched() }
}

/// Returns true if a fatal signal is pending for the calling process. Process context.
pub fn is_killed() -> bool {
    // SAFETY: `current` is a valid task during the call.
    unsafe { bindings::extoll_fatal_signal() }
}
