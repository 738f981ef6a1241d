// SPDX-License-Identifier: GPL-2.0-only

//! Scheduling, and what the calling process may do.

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

/// Whether the calling process may touch hardware (CAP_SYS_RAWIO). Process context.
pub fn may_rawio() -> bool {
    // SAFETY: in process context, as any context that asks for capabilities.
    unsafe { bindings::extoll_may_rawio() }
}
