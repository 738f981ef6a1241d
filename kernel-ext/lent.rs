// SPDX-License-Identifier: GPL-2.0-only

//! A PCI device of this host that another host drives: this one's driver only keeps it.

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

/// BARs that a function has at most.
pub const BARS: usize = 6;

/// A memory BAR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bar {
    /// Where other devices reach it: its address on the bus.
    pub bus: u64,
    /// Size in bytes, a power of two.
    pub bytes: u64,
    /// Reading it has no effect, and stores may be merged.
    pub prefetchable: bool,
    /// It has 64 bits, and takes the place of the next BAR, too.
    pub wide: bool,
}

/// Size of an access to configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two.
    Word,
    /// Four.
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

/// A device that is enabled, whose memory BARs are claimed, and that this host does not use.
///
/// It may be kept longer than the device is bound: it is [withdrawn](Self::withdraw) then, and
/// reaches nothing any more. Claims end with [`Self::withdraw`].
pub struct LentDevice {
    dev: ARef<pci::Device>,
    bars: [Option<Bar>; BARS],
    /// Of the BARs; freed with the object.
    claim: NonNull<bindings::extoll_lent_claim>,
    withdrawn: AtomicFlag,
    /// It will be withdrawn soon.
    leaving: AtomicFlag,
}

impl LentDevice {
    /// Enables the device's memory and claims its memory BARs. Others are left alone. While the
    /// device is probed; may sleep.
    ///
    /// # Errors
    ///
    /// `EPERM` under kernel lockdown: another node drives the device, which can access all memory of
    /// this host. `EBUSY` if somebody has claimed a BAR, or the rest of the page of a small one; `EINVAL` for a small
    /// one that does not begin with a page; `ENODEV` if it has none; `EOPNOTSUPP` behind a host bridge of
    /// software, whose addresses mean nothing to others, or an IOMMU; those of
    /// `pci_enable_device_mem`; `ENOMEM`.
    pub fn new(dev: &pci::Device<Core<'_>>, name: &'static CStr) -> Result<Arc<Self>> {
        locked_down(Locked::PciAccess).inspect_err(|_| {
            dev_err!(
                dev.as_ref(),
                "kernel lockdown forbids to lend it to another node\n"
            );
        })?;
        if is_translated(dev.as_ref()) {
            dev_err!(dev.as_ref(), "behind an IOMMU it does not reach the NIC\n");
            return Err(EOPNOTSUPP);
        }
        let mut bars = [None; BARS];
        let mut claimed = 0;
        for (index, bar) in bars.iter_mut().enumerate() {
            // SAFETY: the device is bound, and has six BARs.
            let raw = unsafe { bindings::extoll_lent_bar(raw(dev), index as c_int) };
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
        // SAFETY: the device is bound; the name is static.
        let claim = from_err_ptr(unsafe {
            bindings::extoll_lent_claim(raw(dev), claimed, name.as_char_ptr())
        });
        let claim = claim.and_then(|claim| NonNull::new(claim).ok_or(ENOMEM));
        let claim = claim.inspect_err(|_| {
            // SAFETY: it was enabled above.
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
            // SAFETY: claimed and enabled above; the claim itself is freed with the object.
            unsafe {
                bindings::extoll_lent_release(raw(dev), claim.as_ptr());
                bindings::pci_disable_device(raw(dev));
            }
            e.into()
        })
    }

    /// Its memory BARs, by number.
    pub fn bars(&self) -> &[Option<Bar>; BARS] {
        &self.bars
    }

    /// Whether it may still be used.
    pub fn is_usable(&self) -> bool {
        !self.withdrawn.load(Acquire)
    }

    /// Where it is on this host: PCI domain in \[31:16\], bus in \[15:8\], slot and function in
    /// \[7:0\].
    pub fn place(&self) -> u32 {
        // SAFETY: a reference is held.
        let domain = unsafe { bindings::extoll_pci_domain(raw(&*self.dev)) };
        (domain as u32) << 16 | u32::from(self.dev.dev_id())
    }

    /// Reads configuration space at `offset` below 4096, a multiple of the width. All ones if the
    /// device does not answer or is withdrawn. Any context.
    pub fn read(&self, offset: u16, width: Width) -> u32 {
        if !self.is_usable() || !is_place(offset, width) {
            return u32::MAX >> (32 - 8 * width.bytes());
        }
        // SAFETY: a reference is held; the access lies in configuration space.
        unsafe { bindings::extoll_lent_read(raw(&*self.dev), offset.into(), width.bytes()) }
    }

    /// Writes configuration space, as [`Self::read`] reads it; nothing if that would give all ones
    /// for sure. What the kernel has written there itself (BARs above all) is the caller's to leave
    /// alone. Any context.
    pub fn write(&self, offset: u16, width: Width, value: u32) {
        if !self.is_usable() || !is_place(offset, width) {
            return;
        }
        let (offset, bytes) = (offset.into(), width.bytes());
        // SAFETY: as in `read`.
        unsafe { bindings::extoll_lent_write(raw(&*self.dev), offset, bytes, value) }
    }

    /// Forbids the function to access memory, and waits until what it has begun is over, for some
    /// seconds at most; false if it is not. May sleep.
    pub fn quiesce(&self) -> bool {
        if !self.is_usable() {
            return true;
        }
        // SAFETY: a reference is held.
        unsafe {
            bindings::pci_clear_master(raw(&*self.dev));
            bindings::pci_wait_for_pending_transaction(raw(&*self.dev)) != 0
        }
    }

    /// Forbids the function to access memory; what it has begun may go on. Any context.
    pub fn stop(&self) {
        if self.is_usable() {
            // SAFETY: a reference is held.
            unsafe { bindings::pci_clear_master(raw(&*self.dev)) };
        }
    }

    /// It is being unbound: from now on [`Self::reset`], which would wait for the device's lock, fails
    /// at once; [`Self::withdraw`] resets it. Any context.
    pub fn leave(&self) {
        self.leaving.store(true, Release);
    }

    /// Resets the function, which keeps its configuration. May sleep, for seconds with devices that
    /// have no reset of their own; without the device's lock.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: somebody has the device's lock, e.g. since it is being unbound. `ENOTTY`: it can't
    /// be reset. `ENODEV`: it is or will be withdrawn. Those of the reset.
    pub fn reset(&self) -> Result {
        if !self.is_usable() || self.leaving.load(Acquire) {
            return Err(ENODEV);
        }
        // SAFETY: a reference is held.
        to_result(unsafe { bindings::extoll_lent_reset(raw(&*self.dev), self.claim.as_ptr()) })
    }

    /// The end, to be called before the device is unbound, when nobody else reaches its BARs any
    /// more: resets it, and gives up the claims. Only the first call does something. May sleep.
    ///
    /// # Errors
    ///
    /// Those of the reset; the rest is done.
    pub fn withdraw(&self, dev: &pci::Device<Core<'_>>) -> Result {
        if self.withdrawn.xchg(true, Full) {
            return Ok(());
        }
        let result = {
            let claim = self.claim.as_ptr();
            // SAFETY: the device is bound, and its lock held (`Core`).
            unsafe { bindings::extoll_lent_reset_locked(raw(dev), claim) }
        };
        let result = to_result(result);
        // SAFETY: claimed and enabled in `new`; the device is bound.
        unsafe {
            bindings::pci_clear_master(raw(dev));
            bindings::extoll_lent_release(raw(dev), self.claim.as_ptr());
            bindings::pci_disable_device(raw(dev));
        }
        result
    }
}

// SAFETY: what the claim holds is changed with the device's lock only.
unsafe impl Send for LentDevice {}
// SAFETY: as above.
unsafe impl Sync for LentDevice {}

impl Drop for LentDevice {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference any more. Its device was withdrawn, or never kept.
        unsafe { bindings::extoll_lent_free(self.claim.as_ptr()) };
    }
}

fn is_place(offset: u16, width: Width) -> bool {
    offset < 4096 && c_int::from(offset) % width.bytes() == 0
}
