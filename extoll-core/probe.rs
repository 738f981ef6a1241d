// SPDX-License-Identifier: GPL-2.0-only

//! Binding of a NIC: probe in the order of HW §3, and removal in the reverse order. Process
//! context. A mutex protects the parts that are removed one by one.

use crate::{
    child,
    debugfs::{self, Files},
    hw::Hw,
    nic::{Context, Nic, Params},
    probe_error::{report, ProbeError, SetupError},
    rf::{self, Directory},
    setup::{self, Irq},
    snq,
    user::{Devices, Pages, Settings},
};
use kernel::{
    auxiliary,
    device::{Bound, Core},
    new_mutex, pci,
    prelude::*,
    sync::{Arc, Mutex},
    ModuleMetadata,
};
use kernel_ext::{
    pci::{msi_count, unique_id, Enabled, Region},
    reset::{ResetClient, ResetWatch},
};
use wire::{
    htax::{Bar, Sides, BAR0_MIN},
    ids::{BusAddr, CpuAddr},
    regs::smfu::RRA_WINDOW,
};

/// Device IDs of Tourmalet revisions 1 and 2 (HW §1).
pub const DEVICE_IDS: [u16; 2] = [0x0010, 0x0011];
/// PCI vendor ID of the NIC.
pub const VENDOR_ID: u16 = 0x1CAD;
/// PCI revision that is not supported (HW §1).
const BAD_REVISION: u8 = 0x42;

/// Client that is called before resets of the device.
struct Resets {
    nic: Arc<Nic>,
    /// Pages of the NIC that processes have mapped.
    pages: Option<Pages>,
}

impl ResetClient for Resets {
    fn prepare_reset(this: &Arc<Self>, reachable: bool) {
        let revoke = || this.pages.iter().for_each(Pages::revoke);
        this.nic.lose_by_reset(reachable, revoke);
        this.nic.monitor().publish();
    }
}

/// Parts of a bound NIC, removed one by one by [`BoundNic::stop`].
#[derive(Default)]
struct Live<'a> {
    resets: Option<Pin<KBox<ResetWatch<Resets>>>>,
    user: Option<Devices>,
    children: [Option<auxiliary::Registration<'a, child::Data>>; child::NAMES.len()],
    files: Option<Files>,
    registers: Option<Directory>,
    irq: Option<Irq<'a>>,
    stopped: bool,
}

/// Bound NIC. Its fields are declared in the order in which they are dropped.
pub struct BoundNic<'a> {
    live: Pin<KBox<Mutex<Live<'a>>>>,
    nic: Arc<Nic>,
    _bar2: Region<'a>,
    _bar0: Region<'a>,
    enabled: Enabled<'a>,
}

impl<'a> BoundNic<'a> {
    /// Sets a NIC up (HW §3). `settings` determines the rights of processes. Each probe error is
    /// counted, and logged with its reason. `M` is the module that this crate is linked into. It
    /// stays loaded while a debugfs file is open. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV` for an unsupported device: revision 0x42, no MSI, no DMA mask, unreadable
    /// registers, or BARs that are missing, too small or lost. `EBUSY` if another driver has
    /// claimed a BAR. `ENOMEM`, and errors of the PCI core.
    pub fn probe<M: ModuleMetadata + 'static>(
        pdev: &'a pci::Device<Core<'_>>,
        params: Params,
        settings: Settings,
    ) -> Result<Self> {
        let dev: &'a pci::Device<Bound> = pdev;
        // Step 1 of HW §3.
        let enabled =
            Enabled::new(pdev).inspect_err(|e| report(dev, ProbeError::Enable, fmt!("{e:?}")))?;
        let revision = dev.revision_id();
        if revision == BAD_REVISION {
            report(dev, ProbeError::Revision, fmt!("{revision:#x}"));
            return Err(ENODEV);
        }
        let vectors = msi_count(dev);
        if vectors == 0 {
            report(dev, ProbeError::Msi, fmt!("{vectors} vectors"));
            return Err(ENODEV);
        }
        // Step 2 of HW §3.
        enabled.set_dma_mask(pdev).map_err(|e| {
            report(dev, ProbeError::DmaMask, fmt!("{e:?}"));
            ENODEV
        })?;
        let bar0 = Self::claim(dev, 0, BAR0_MIN)?;
        let bar2 = Self::claim(dev, 2, RRA_WINDOW + 1)?;
        let sides = Sides::standard(Self::bar(&bar0), Self::bar(&bar2));
        let windows = sides.ok_or(ENODEV).inspect_err(|_| {
            let (low, high) = (bar0.bus(), bar2.bus());
            report(dev, ProbeError::BarAddress, fmt!("{low:#x}, {high:#x}"));
        })?;
        let hw = Hw::map(dev.as_ref(), &bar0, windows)
            .inspect_err(|e| report(dev, ProbeError::Map, fmt!("{e:?}")))?;
        // An earlier driver may have left the device running, with addresses of memory that now has
        // another owner.
        hw.quiesce();
        pdev.set_master();
        let no_setup = |e: &Error| report(dev, ProbeError::Setup, fmt!("{e:?}"));
        let smfu_bytes = hw.windows.bus.smfu_size;
        let ctx = Context::new(dev.as_ref(), unique_id(dev), params.log_interval_ms, hw)
            .inspect_err(no_setup)?;
        let nic = enabled
            .with_low_memory(pdev, || snq::allocate(dev.as_ref()))
            .and_then(|ring| Nic::new(ctx, ring?, params, smfu_bytes))
            .inspect_err(no_setup)?;

        let live = new_mutex!(Live::default(), "extoll_live");
        let live = KBox::pin_init(live, GFP_KERNEL).inspect_err(no_setup)?;
        let this = Self {
            live,
            nic,
            _bar2: bar2,
            _bar0: bar0,
            enabled,
        };
        // After this line, dropping `this` shuts the hardware down.
        let irq = |irq| this.live.lock().irq = Some(irq);
        setup::begin(&this.nic, dev, vectors, irq).map_err(|SetupError(why, e)| {
            report(dev, why, fmt!("{e:?}"));
            e
        })?;
        let files = debugfs::files::<M>(&this.nic)
            .inspect_err(|e| dev_warn!(dev, "no debugfs files: {:?}\n", e))
            .ok();
        this.live.lock().files = files;
        let registers = rf::directory(dev.as_ref(), this.nic.context())
            .inspect_err(|e| dev_warn!(dev, "no register files in sysfs: {:?}\n", e))
            .ok();
        this.live.lock().registers = registers;
        let user = Devices::new::<M>(dev.as_ref(), &this.nic, settings)
            .inspect_err(|e| dev_warn!(dev, "no device files: {:?}\n", e))
            .ok();
        let pages = user.as_ref().map(Devices::pages);
        this.live.lock().user = user;
        // The PCI core does not reset a device during its probe.
        let nic = this.nic.clone();
        let resets = Arc::new(Resets { nic, pages }, GFP_KERNEL)
            .map_err(Error::from)
            .and_then(|client| KBox::pin_init(ResetWatch::new(pdev, client), GFP_KERNEL))
            .inspect_err(no_setup)?;
        this.live.lock().resets = Some(resets);
        // Children are registered last, because drivers may bind to them at once.
        for (slot, name) in child::NAMES.into_iter().enumerate() {
            let nic = this.nic.clone();
            let child =
                auxiliary::Registration::new(dev.as_ref(), name, nic.id(), child::MODULE, nic)
                    .inspect_err(no_setup)?;
            if let Some(place) = this.live.lock().children.get_mut(slot) {
                *place = Some(child);
            }
        }
        Ok(this)
    }

    fn bar(region: &Region<'_>) -> Bar {
        Bar {
            cpu: CpuAddr(region.start()),
            bus: BusAddr(region.bus()),
            size: region.size(),
        }
    }

    fn claim(dev: &'a pci::Device<Bound>, bar: u32, min: u64) -> Result<Region<'a>> {
        let size = dev.resource_len(bar)?;
        if size < min {
            report(
                dev,
                ProbeError::BarSize,
                fmt!("BAR {bar} has {size:#x} bytes, at least {min:#x} are needed"),
            );
            return Err(ENODEV);
        }
        let region = Region::claim(dev, bar, c"extoll")
            .inspect_err(|e| report(dev, ProbeError::BarClaimed, fmt!("BAR {bar}: {e:?}")))?;
        if !region.is_assigned() {
            report(dev, ProbeError::BarLost, fmt!("BAR {bar}"));
            return Err(ENODEV);
        }
        Ok(region)
    }

    /// Unbinds the NIC: removes device files first, then children, files, interrupts, units and
    /// mappings. Further calls do nothing. May sleep.
    pub fn stop(&self) {
        // Each part is dropped after the lock is released.
        let resets = self.live.lock().resets.take();
        drop(resets);
        let user = self.live.lock().user.take();
        drop(user);
        let children = {
            let mut live = self.live.lock();
            if core::mem::replace(&mut live.stopped, true) {
                return;
            }
            core::mem::take(&mut live.children)
        };
        drop(children);
        child::wait_for_handles(&self.nic);
        let files = self.live.lock().files.take();
        drop(files);
        let registers = self.live.lock().registers.take();
        drop(registers);
        let irq = || drop(self.live.lock().irq.take());
        setup::end(&self.nic, &self.enabled, irq);
    }
}

impl Drop for BoundNic<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}
