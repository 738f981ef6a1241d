// SPDX-License-Identifier: GPL-2.0-only

//! Privileges of the calling process.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{prelude::*, task::Kuid};

/// A capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Capability {
    /// Raw access to hardware.
    SysRawio = bindings::CAP_SYS_RAWIO,
    /// Network administration.
    NetAdmin = bindings::CAP_NET_ADMIN,
}

/// Returns true if the calling process has the capability in the initial user namespace. Process
/// context.
pub fn capable(capability: Capability) -> bool {
    // SAFETY: the only precondition is process context.
    unsafe { bindings::capable(capability as c_int) }
}

/// Operations that kernel lockdown can forbid, even to root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Locked {
    /// Direct access to a PCI device: its registers, and physical memory that it reads and writes.
    PciAccess = bindings::lockdown_reason_LOCKDOWN_PCI_ACCESS,
    /// Module parameters that let the administrator choose an address which the hardware accesses.
    ModuleParameters = bindings::lockdown_reason_LOCKDOWN_MODULE_PARAMETERS,
}

/// Checks kernel lockdown for the calling process. The kernel logs each denial, rate-limited.
/// Process context.
///
/// # Errors
///
/// `EPERM`: the kernel is locked down, in mode `integrity` or `confidentiality`.
pub fn locked_down(what: Locked) -> Result {
    // SAFETY: the only precondition is process context.
    kernel::error::to_result(unsafe { bindings::extoll_locked_down(what as u32) })
}

/// Returns the effective user ID of the calling process in the initial user namespace. Process
/// context.
pub fn current_euid() -> u32 {
    Kuid::current_euid().into_raw().val
}

/// Returns a number that cannot be predicted. Any context.
pub fn random() -> u64 {
    // SAFETY: the function has no preconditions.
    unsafe { bindings::get_random_u64() }
}

/// Pages charged to `RLIMIT_MEMLOCK` of a user. The drop uncharges the pages, in any context.
///
/// # Invariants
///
/// `user` owns a reference, and `pages` pages are charged to that user.
pub struct LockedPages {
    user: NonNull<bindings::user_struct>,
    pages: usize,
}

// SAFETY: the reference count and the charge are atomic.
unsafe impl Send for LockedPages {}
// SAFETY: `&LockedPages` has no methods.
unsafe impl Sync for LockedPages {}

impl LockedPages {
    /// Charges `pages` pages to the user of the calling process. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the charge would exceed the limit, and the process does not have `CAP_IPC_LOCK`.
    pub fn charge(pages: usize) -> Result<Self> {
        // SAFETY: the only precondition is process context.
        let user = unsafe { bindings::extoll_memlock_charge(pages) };
        // INVARIANT: a non-null result is a reference to which the pages are charged.
        let user = NonNull::new(user).ok_or(ENOMEM)?;
        Ok(Self { user, pages })
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // SAFETY: by the type invariant `user` is a reference with `pages` pages charged.
        unsafe { bindings::extoll_memlock_uncharge(self.user.as_ptr(), self.pages) }
    }
}
