// SPDX-License-Identifier: GPL-2.0-only

//! PCI functions that `kernel::pci` lacks: enabling a device while it is bound, claiming BARs
//! without mapping them, capabilities, and MSI vectors with their handler.

use crate::bindings;
use core::marker::PhantomPinned;
use kernel::{
    device::{self, Bound, Core, DeviceContext},
    dma::{Device as _, DmaMask},
    error::to_result,
    pci,
    prelude::*,
    str::CStr,
    sync::atomic::{AtomicFlag, Relaxed},
};

/// Returns the C object of a PCI device.
pub(crate) fn raw<Ctx: DeviceContext>(dev: &pci::Device<Ctx>) -> *mut bindings::pci_dev {
    // `pci::Device` is a transparent wrapper of `Opaque<pci_dev>`, so both have the same address.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// Returns the C object of a device.
fn raw_device<Ctx: DeviceContext>(dev: &device::Device<Ctx>) -> *mut bindings::device {
    // `Device` is a transparent wrapper of `Opaque<device>`, so both have the same address.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// Returns a match by vendor and device ID, for vendors that `pci::Vendor` does not know.
pub const fn device_id(vendor: u16, device: u16) -> pci::DeviceId {
    let id = bindings::pci_device_id {
        vendor: vendor as u32,
        device: device as u32,
        subvendor: !0,
        subdevice: !0,
        class: 0,
        class_mask: 0,
        driver_data: 0,
        override_only: 0,
    };
    // SAFETY: `DeviceId` is a transparent wrapper of `pci_device_id`.
    unsafe { core::mem::transmute::<bindings::pci_device_id, pci::DeviceId>(id) }
}

/// Guard that keeps memory decoding of a device enabled. The drop disables bus mastering and
/// decoding.
pub struct Enabled<'a>(&'a pci::Device<Bound>);

impl<'a> Enabled<'a> {
    /// Enables memory decoding. May sleep. Probe context only.
    ///
    /// # Errors
    ///
    /// Errors of `pci_enable_device_mem`.
    pub fn new(dev: &'a pci::Device<Core<'_>>) -> Result<Self> {
        dev.enable_device_mem()?;
        Ok(Self(dev))
    }
}

impl Enabled<'_> {
    /// Sets the DMA masks to 52 bits, the size of the NIC's page addresses, or else to 32 bits.
    /// Probe context only, before any DMA memory of the device is allocated or mapped.
    ///
    /// # Errors
    ///
    /// Error of `dma_set_mask_and_coherent` if the host supports neither size.
    pub fn set_dma_mask(&self, dev: &pci::Device<Core<'_>>) -> Result {
        // SAFETY: `Core` means that the device is being probed or removed with its lock held.
        // Drivers allocate DMA memory only after this call in probe, so nothing uses the masks
        // concurrently.
        unsafe { dev.dma_set_mask_and_coherent(DmaMask::new::<52>()) }
            // SAFETY: the device is being probed, and no DMA memory exists yet.
            .or_else(|_| unsafe { dev.dma_set_mask_and_coherent(DmaMask::new::<32>()) })?;
        // Segments describe memory that is translated page by page, so their length needs no limit.
        // SAFETY: the device is being probed, and no DMA memory exists yet.
        unsafe { dev.dma_set_max_seg_size(u32::MAX) };
        Ok(())
    }

    /// Runs `f`. During the call, coherent memory for the device is allocated below 4 GiB of its
    /// DMA addresses. Probe context only, after [`Enabled::set_dma_mask`]. May sleep.
    ///
    /// # Errors
    ///
    /// Errors of `dma_set_coherent_mask`. In that case `f` was not run, or its result is dropped.
    pub fn with_low_memory<R>(
        &self,
        dev: &pci::Device<Core<'_>>,
        f: impl FnOnce() -> R,
    ) -> Result<R> {
        let raw = raw_device(dev.as_ref());
        // SAFETY: the device is being probed, so it is valid, and its mask is not changed
        // concurrently.
        let mask = unsafe { bindings::extoll_coherent_mask(raw) };
        let low = mask & u64::from(u32::MAX);
        // SAFETY: the reasons given in `set_dma_mask` apply; only `f` uses the mask before it is
        // restored.
        to_result(unsafe { bindings::extoll_set_coherent_mask(raw, low) })?;
        let done = f();
        // SAFETY: `f` has returned, so the mask is not in use.
        to_result(unsafe { bindings::extoll_set_coherent_mask(raw, mask) })?;
        Ok(done)
    }

    /// Stops memory accesses of the device (bus mastering). Process context.
    pub fn stop_dma(&self) {
        clear_master(self.0);
    }
}

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        // SAFETY: the device is bound, so it is valid, and this object owns one enable count.
        unsafe {
            bindings::pci_clear_master(raw(self.0));
            bindings::pci_disable_device(raw(self.0));
        }
    }
}

fn clear_master(dev: &pci::Device<Bound>) {
    // SAFETY: the device is bound, so it is valid.
    unsafe { bindings::pci_clear_master(raw(dev)) };
}

/// Stops memory accesses of a PCI device (bus mastering). Earlier writes of the device have arrived
/// when this function returns. Process context.
///
/// # Errors
///
/// `EINVAL`: `dev` is not a PCI device.
pub fn stop_dma(dev: &device::Device<Bound>) -> Result {
    clear_master(<&pci::Device<Bound>>::try_from(dev)?);
    Ok(())
}

/// Returns true if an IOMMU translates the device's addresses, so that it cannot use bus addresses
/// of other devices. Any context.
pub fn is_translated(dev: &device::Device<Bound>) -> bool {
    // SAFETY: the device is valid while bound.
    unsafe { bindings::extoll_iommu_mapped(raw_device(dev)) }
}

/// Claimed BAR, released by drop.
pub struct Region<'a> {
    dev: &'a pci::Device<Bound>,
    bar: u32,
    start: u64,
    len: u64,
}

impl<'a> Region<'a> {
    /// Claims a BAR without mapping it. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device does not implement the BAR, `EBUSY` if it is already claimed.
    pub fn claim(dev: &'a pci::Device<Bound>, bar: u32, name: &'static CStr) -> Result<Self> {
        let start = dev.resource_start(bar)?;
        let len = dev.resource_len(bar)?;
        if len == 0 || start == 0 {
            return Err(ENODEV);
        }
        // SAFETY: the device is valid while bound, `bar` was checked by `resource_len`, the name is
        // static.
        to_result(unsafe {
            bindings::pci_request_region(raw(dev), bar as c_int, name.as_char_ptr())
        })?;
        Ok(Self {
            dev,
            bar,
            start,
            len,
        })
    }

    /// Returns true if the BAR register still holds the address that the kernel assigned. False
    /// after a reset or power cycle that the kernel did not notice. May sleep.
    pub fn is_assigned(&self) -> bool {
        // SAFETY: the device is valid while bound, and `bar` is one of its memory BARs.
        unsafe { bindings::extoll_pci_bar_set(raw(self.dev), self.bar as c_int) }
    }

    /// Returns the physical address for CPU accesses.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the bus address, for accesses by devices.
    pub fn bus(&self) -> u64 {
        // SAFETY: the device is valid while bound, and `bar` is one of its memory BARs.
        unsafe { bindings::extoll_pci_bus_address(raw(self.dev), self.bar as c_int) }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Returns true if the BAR contains the `len` bytes at physical address `start`.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        start
            .checked_sub(self.start)
            .is_some_and(|offset| offset <= self.len && len <= self.len - offset)
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // SAFETY: this object owns the claim that `claim` made; the device is still bound.
        unsafe { bindings::pci_release_region(raw(self.dev), self.bar as c_int) };
    }
}

/// Returns the configured PCIe Max Payload Size and Max Read Request Size in bytes.
pub fn payload_sizes(dev: &pci::Device<Bound>) -> (u32, u32) {
    // SAFETY: the device is valid while bound; both functions only read its configuration space.
    let (mps, mrrs) = unsafe {
        (
            bindings::pcie_get_mps(raw(dev)),
            bindings::pcie_get_readrq(raw(dev)),
        )
    };
    (mps.max(128) as u32, mrrs.max(128) as u32)
}

/// Returns the number of plain MSI vectors that the device supports; 0 without an MSI capability.
pub fn msi_count(dev: &pci::Device<Bound>) -> u32 {
    // SAFETY: the device is valid while bound; the function only reads its MSI capability.
    let n = unsafe { bindings::pci_msi_vec_count(raw(dev)) };
    n.max(0) as u32
}

/// Returns a number that identifies a device on this host: PCI domain in \[31:16\], bus in
/// \[15:8\], slot and function in \[7:0\].
pub fn unique_id(dev: &pci::Device<Bound>) -> u32 {
    // SAFETY: the device is valid while bound.
    let domain = unsafe { bindings::extoll_pci_domain(raw(dev)) };
    (domain as u32) << 16 | u32::from(dev.dev_id())
}

/// Hard interrupt handler.
pub trait IrqHandler: Send + Sync {
    /// Called in hard interrupt context for every interrupt of the vector. Must not sleep.
    fn handle(&self);
}

/// Allocated plain MSI vectors, freed by drop.
pub struct MsiVectors<'a> {
    dev: &'a pci::Device<Bound>,
    count: u32,
}

impl<'a> MsiVectors<'a> {
    /// Allocates 1…`max` plain MSI vectors. May sleep.
    ///
    /// # Errors
    ///
    /// Errors of `pci_alloc_irq_vectors`, for example `ENOSPC` without an MSI capability.
    pub fn new(dev: &'a pci::Device<Bound>, max: u32) -> Result<Self> {
        // SAFETY: the device is valid while bound.
        let n = unsafe { bindings::pci_alloc_irq_vectors(raw(dev), 1, max, bindings::PCI_IRQ_MSI) };
        to_result(n)?;
        Ok(Self {
            dev,
            count: n as u32,
        })
    }

    /// Returns the number of vectors, at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Installs the handler on vector 0. May sleep; the handler may run before this function
    /// returns.
    ///
    /// # Errors
    ///
    /// Errors of `request_irq`.
    pub fn request<T: IrqHandler + 'static>(
        self,
        name: &'static CStr,
        handler: T,
    ) -> Result<Pin<KBox<Msi<'a, T>>>> {
        // SAFETY: the device is valid while bound and has at least one vector.
        let irq = unsafe { bindings::pci_irq_vector(raw(self.dev), 0) };
        to_result(irq)?;
        let msi = KBox::pin(
            Msi {
                handler,
                irq: irq as c_uint,
                installed: AtomicFlag::new(false),
                _vectors: self,
                _pin: PhantomPinned,
            },
            GFP_KERNEL,
        )?;
        let cookie: *const Msi<'a, T> = &*msi;
        // SAFETY: the cookie is pinned, so its memory is valid until its drop, which frees the
        // interrupt first. If the object is leaked, the data that the handler refers to live as
        // long, because `T` is `'static`.
        to_result(unsafe {
            bindings::request_irq(
                msi.irq,
                Some(Msi::<T>::callback),
                0,
                name.as_char_ptr(),
                cookie.cast_mut().cast(),
            )
        })?;
        msi.installed.store(true, Relaxed);
        Ok(msi)
    }
}

impl Drop for MsiVectors<'_> {
    fn drop(&mut self) {
        // SAFETY: this object owns the allocated vectors. A handler was freed before, by the field
        // order of `Msi`.
        unsafe { bindings::pci_free_irq_vectors(raw(self.dev)) };
    }
}

/// Handler on vector 0 of plain MSI vectors. The drop waits for running handlers, then frees the
/// vectors.
#[pin_data(PinnedDrop)]
pub struct Msi<'a, T: IrqHandler> {
    handler: T,
    irq: c_uint,
    /// True if the handler was installed. The drop then removes the handler.
    installed: AtomicFlag,
    _vectors: MsiVectors<'a>,
    #[pin]
    _pin: PhantomPinned,
}

impl<T: IrqHandler> Msi<'_, T> {
    /// Returns the handler.
    pub fn handler(&self) -> &T {
        &self.handler
    }

    extern "C" fn callback(_irq: c_int, cookie: *mut c_void) -> bindings::irqreturn_t {
        // SAFETY: `cookie` is the pinned object, whose drop frees the interrupt first. The object
        // is accessed by shared reference only.
        let msi = unsafe { &*cookie.cast::<Msi<'_, T>>() };
        msi.handler.handle();
        bindings::irqreturn::IRQ_HANDLED
    }
}

#[pinned_drop]
impl<T: IrqHandler> PinnedDrop for Msi<'_, T> {
    fn drop(self: Pin<&mut Self>) {
        if !self.installed.load(Relaxed) {
            return;
        }
        let cookie: *const Self = &*self;
        // SAFETY: `request` installed the handler with this cookie. `free_irq` waits for running
        // handlers.
        unsafe { bindings::free_irq(self.irq, cookie.cast_mut().cast()) };
    }
}
