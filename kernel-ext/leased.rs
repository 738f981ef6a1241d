// SPDX-License-Identifier: GPL-2.0-only

//! PCI device of this host that another host drives. The driver on this host only reserves the
//! device.

use crate::{
    bindings,
    pci::{is_translated, raw},
    security::{locked_down, Locked},
};
use core::ptr::NonNull;
use kernel::{
    device::Core,
    error::{from_err_ptr, to_result},
    pci,
    prelude::*,
    str::CStr,
    sync::{
        aref::ARef,
        atomic::{Acquire, AtomicFlag, Full, Release},
        Arc,
    },
};

/// Maximum number of BARs of a function.
pub const BARS: usize = 6;

/// A memory BAR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bar {
    /// Address on the bus, where other devices reach the BAR.
    pub bus: u64,
    /// Size in bytes, a power of two.
    pub bytes: u64,
    /// True if reads have no side effects and stores may be merged.
    pub prefetchable: bool,
    /// True for a 64-bit BAR, which also occupies the next BAR's register.
    pub wide: bool,
}

/// Size of an access to configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Word,
    /// Four bytes.
    Dword,
}

impl Width {
    const fn bytes(self) -> c_int {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Dword => 4,
        }
    }
}

/// Enabled device that this host does not use, with claimed memory BARs.
///
/// The object may outlive the binding of the device: then it is [withdrawn](Self::withdraw), and
/// accesses have no effect. [`Self::withdraw`] releases the claims.
pub struct LeasedDevice {
    dev: ARef<pci::Device>,
    bars: [Option<Bar>; BARS],
    /// Claim of the BARs; freed with the object.
    claim: NonNull<bindings::extoll_leased_claim>,
    withdrawn: AtomicFlag,
    /// True when the device will be withdrawn soon.
    leaving: AtomicFlag,
}

impl LeasedDevice {
    /// Enables the device's memory and claims its memory BARs. BARs of other kinds are not claimed.
    /// Called while the device is probed; may sleep.
    ///
    /// # Errors
    ///
    /// - `EPERM`: the kernel is locked down. Another node would drive the device, which can access
    ///   all memory of this host.
    /// - `EBUSY`: a BAR, or the remaining part of a small BAR's page, is already claimed.
    /// - `EINVAL`: a small BAR does not begin at a page.
    /// - `ENODEV`: the device has no memory BAR.
    /// - `EOPNOTSUPP`: the device is behind an IOMMU or a software host bridge, so its addresses
    ///   are invalid for others.
    /// - `ENOMEM`, and the errors of `pci_enable_device_mem`.
    pub fn new(dev: &pci::Device<Core<'_>>, name: &'static CStr) -> Result<Arc<Self>> {
        locked_down(Locked::PciAccess).inspect_err(|_| {
            dev_err!(
                dev.as_ref(),
                "kernel lockdown forbids lending this device to another node\n"
            );
        })?;
        if is_translated(dev.as_ref()) {
            dev_err!(
                dev.as_ref(),
                "not leased: behind an IOMMU it cannot reach the NIC\n"
            );
            return Err(EOPNOTSUPP);
        }
        let mut bars = [None; BARS];
        let mut claimed = 0;
        for (index, bar) in bars.iter_mut().enumerate() {
            // SAFETY: the device is bound, and has six BARs.
            let raw = unsafe { bindings::extoll_leased_bar(raw(dev), index as c_int) };
            if raw.bytes > 0 {
                claimed |= 1 << index;
                *bar = Some(Bar {
                    bus: raw.start,
                    bytes: raw.bytes,
                    prefetchable: raw.prefetchable,
                    wide: raw.wide,
                });
            }
        }
        if claimed == 0 {
            return Err(ENODEV);
        }
        dev.enable_device_mem()?;
        // SAFETY: the device is bound; the name is a static C string.
        let claim = from_err_ptr(unsafe {
            bindings::extoll_leased_claim(raw(dev), claimed, name.as_char_ptr())
        });
        let claim = claim.and_then(|claim| NonNull::new(claim).ok_or(ENOMEM));
        let claim = claim.inspect_err(|_| {
            // SAFETY: the device was enabled above.
            unsafe { bindings::pci_disable_device(raw(dev)) };
        })?;
        let this = Self {
            dev: ARef::from(&**dev),
            bars,
            claim,
            withdrawn: AtomicFlag::new(false),
            leaving: AtomicFlag::new(false),
        };
        Arc::new(this, GFP_KERNEL).map_err(|e| {
            // SAFETY: the device was claimed and enabled above. The drop of `this` frees the claim
            // object itself.
            unsafe {
                bindings::extoll_leased_release(raw(dev), claim.as_ptr());
                bindings::pci_disable_device(raw(dev));
            }
            e.into()
        })
    }

    /// Returns the memory BARs, by number.
    pub fn bars(&self) -> &[Option<Bar>; BARS] {
        &self.bars
    }

    /// Returns false once the device is withdrawn.
    pub fn is_usable(&self) -> bool {
        !self.withdrawn.load(Acquire)
    }

    /// Returns the address on this host: PCI domain in \[31:16\], bus in \[15:8\], slot and
    /// function in \[7:0\].
    pub fn address(&self) -> u32 {
        // SAFETY: `dev` holds a reference.
        let domain = unsafe { bindings::extoll_pci_domain(raw(&*self.dev)) };
        (domain as u32) << 16 | u32::from(self.dev.dev_id())
    }

    /// Reads configuration space at `offset`, which is below 4096 and a multiple of the width.
    /// Returns all ones if the device does not answer or is withdrawn, or for an invalid offset.
    /// Any context.
    pub fn read(&self, offset: u16, width: Width) -> u32 {
        if !self.is_usable() || !is_aligned(offset, width) {
            return u32::MAX >> (32 - 8 * width.bytes());
        }
        // SAFETY: `dev` holds a reference; the access is within configuration space.
        unsafe { bindings::extoll_leased_read(raw(&*self.dev), offset.into(), width.bytes()) }
    }

    /// Writes configuration space. Has no effect for a withdrawn device and for an invalid offset,
    /// like [`Self::read`]. The caller must not change registers that the kernel manages, in
    /// particular BARs. Any context.
    pub fn write(&self, offset: u16, width: Width, value: u32) {
        if !self.is_usable() || !is_aligned(offset, width) {
            return;
        }
        let (offset, bytes) = (offset.into(), width.bytes());
        // SAFETY: the reasons given in `read` apply.
        unsafe { bindings::extoll_leased_write(raw(&*self.dev), offset, bytes, value) }
    }

    /// Disables bus mastering and waits up to a few seconds for pending transactions of the
    /// function. Returns false if transactions are still pending. May sleep.
    pub fn quiesce(&self) -> bool {
        if !self.is_usable() {
            return true;
        }
        // SAFETY: `dev` holds a reference.
        unsafe {
            bindings::pci_clear_master(raw(&*self.dev));
            bindings::pci_wait_for_pending_transaction(raw(&*self.dev)) != 0
        }
    }

    /// Disables bus mastering without waiting for pending transactions. Any context.
    pub fn stop(&self) {
        if self.is_usable() {
            // SAFETY: `dev` holds a reference.
            unsafe { bindings::pci_clear_master(raw(&*self.dev)) };
        }
    }

    /// Announces that the driver is being unbound. Afterwards [`Self::reset`] fails at once,
    /// because it would wait for the device's lock; [`Self::withdraw`] resets the device instead.
    /// Any context.
    pub fn leave(&self) {
        self.leaving.store(true, Release);
    }

    /// Resets the function and restores its configuration. May sleep; for seconds if the device
    /// itself has no reset method. The caller must not hold the device's lock.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: another context holds the device's lock, for example because the driver is being
    /// unbound. `ENOTTY`: the device cannot be reset. `ENODEV`: the device is withdrawn or will be
    /// withdrawn. Other errors come from the reset.
    pub fn reset(&self) -> Result {
        if !self.is_usable() || self.leaving.load(Acquire) {
            return Err(ENODEV);
        }
        // SAFETY: `dev` holds a reference.
        to_result(unsafe { bindings::extoll_leased_reset(raw(&*self.dev), self.claim.as_ptr()) })
    }

    /// Resets the device and releases the claims. Called before the driver is unbound, when no
    /// other node can reach the BARs. Calls after the first have no effect. May sleep.
    ///
    /// # Errors
    ///
    /// Errors of the reset; the claims are released in any case.
    pub fn withdraw(&self, dev: &pci::Device<Core<'_>>) -> Result {
        if self.withdrawn.xchg(true, Full) {
            return Ok(());
        }
        let result = {
            let claim = self.claim.as_ptr();
            // SAFETY: the device is bound, and `Core` means that its lock is held.
            unsafe { bindings::extoll_leased_reset_locked(raw(dev), claim) }
        };
        let result = to_result(result);
        // SAFETY: `new` claimed and enabled the device, which is still bound.
        unsafe {
            bindings::pci_clear_master(raw(dev));
            bindings::extoll_leased_release(raw(dev), self.claim.as_ptr());
            bindings::pci_disable_device(raw(dev));
        }
        result
    }
}

// SAFETY: the claim is changed with the device's lock held only.
unsafe impl Send for LeasedDevice {}
// SAFETY: the reason given for `Send` applies.
unsafe impl Sync for LeasedDevice {}

impl Drop for LeasedDevice {
    fn drop(&mut self) {
        // SAFETY: no reference is left. The device was withdrawn, or `new` has released the claims.
        unsafe { bindings::extoll_leased_free(self.claim.as_ptr()) };
    }
}

fn is_aligned(offset: u16, width: Width) -> bool {
    offset < 4096 && c_int::from(offset) % width.bytes() == 0
}
