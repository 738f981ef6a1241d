// SPDX-License-Identifier: GPL-2.0-only

//! Rights of the calling process.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{prelude::*, task::Kuid};

/// A capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Capability {
    /// Raw access to hardware.
    SysRawio = bindings::CAP_SYS_RAWIO,
    /// Administration of networks.
    NetAdmin = bindings::CAP_NET_ADMIN,
}

/// True if the calling process has the capability in the initial user namespace. Process context.
pub fn capable(capability: Capability) -> bool {
    // SAFETY: no preconditions but the context.
    unsafe { bindings::capable(capability as c_int) }
}

/// What kernel lockdown can forbid everybody, root included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Locked {
    /// Direct access to a PCI device: registers, physical memory that the device reads and writes.
    PciAccess = bindings::lockdown_reason_LOCKDOWN_PCI_ACCESS,
    /// Module parameters that have the hardware access an address of the administrator's choice.
    ModuleParameters = bindings::lockdown_reason_LOCKDOWN_MODULE_PARAMETERS,
}

/// Checks kernel lockdown for the calling process. The kernel logs each refusal, rate-limited.
/// Process context.
///
/// # Errors
///
/// `EPERM`: the kernel is locked down, in mode `integrity` or `confidentiality`.
pub fn locked_down(what: Locked) -> Result {
    // SAFETY: no preconditions but the context.
    kernel::error::to_result(unsafe { bindings::extoll_locked_down(what as u32) })
}

/// Effective user of the calling process, as the initial user namespace numbers it. Process context.
pub fn current_euid() -> u32 {
    Kuid::current_euid().into_raw().val
}

/// A number that nobody can guess. Any context.
pub fn random() -> u64 {
    // SAFETY: no preconditions.
    unsafe { bindings::get_random_u64() }
}

/// Pages charged to `RLIMIT_MEMLOCK` of a user, given back by drop. Any context for the drop.
///
/// # Invariants
///
/// `user` is a reference, and `pages` are charged to it.
pub struct LockedPages {
    user: NonNull<bindings::user_struct>,
    pages: usize,
}

// SAFETY: reference count and charge are atomic.
unsafe impl Send for LockedPages {}
// SAFETY: `&LockedPages` allows nothing.
unsafe impl Sync for LockedPages {}

impl LockedPages {
    /// Charges `pages` pages to the user of the calling process. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: beyond the limit, and the process has no `CAP_IPC_LOCK`.
    pub fn charge(pages: usize) -> Result<Self> {
        // SAFETY: no preconditions but the context.
        let user = unsafe { bindings::extoll_memlock_charge(pages) };
        // INVARIANT: non-null means a reference with the charge.
        let user = NonNull::new(user).ok_or(ENOMEM)?;
        Ok(Self { user, pages })
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        // SAFETY: by the invariants.
        unsafe { bindings::extoll_memlock_uncharge(self.user.as_ptr(), self.pages) }
    }
}
