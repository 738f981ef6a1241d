// SPDX-License-Identifier: GPL-2.0-only

//! Binding of a NIC: probe in the order of HW §3, and its reverse.

use crate::{
    bq, child,
    debugfs::{self, Files},
    htax,
    hw::Hw,
    info,
    nic::{Context, Nic, Params},
    refusal::{refuse, Failure, Refusal},
    rf::{self, Directory},
    rma, rra, smfu,
    snq::{Interrupt, Snq},
    user::Devices,
    velo, xbar,
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
    pci::{msi_count, payload_sizes, unique_id, Enabled, Msi, MsiVectors, Region},
    reset::ResetWatch,
};
use wire::{
    htax::{Windows, BAR0_MIN},
    ids::BusAddr,
    regs::smfu::RRA_WINDOW,
};

/// Device IDs of Tourmalet revisions 1 and 2 (HW §1).
pub const DEVICE_IDS: [u16; 2] = [0x0010, 0x0011];
/// Vendor ID.
pub const VENDOR_ID: u16 = 0x1CAD;
/// The PCI revision that has to be refused (HW §1).
const BAD_REVISION: u8 = 0x42;
/// MSI vectors that are allocated at most; only vector 0 is used (HW §1).
const MAX_VECTORS: u32 = 32;

/// What runs by itself and what the units use, taken out one by one by [`BoundNic::stop`].
#[derive(Default)]
struct Live<'a> {
    resets: Option<Pin<KBox<ResetWatch<Nic>>>>,
    user: Option<Devices>,
    children: [Option<auxiliary::Registration<'a, child::Data>>; 2],
    files: Option<Files>,
    registers: Option<Directory>,
    irq: Option<Pin<KBox<Msi<'a, Interrupt>>>>,
    stopped: bool,
}

/// A bound NIC. Fields are in the order in which they are torn down.
pub struct BoundNic<'a> {
    live: Pin<KBox<Mutex<Live<'a>>>>,
    nic: Arc<Nic>,
    _bar2: Region<'a>,
    _bar0: Region<'a>,
    enabled: Enabled<'a>,
}

impl<'a> BoundNic<'a> {
    /// Sets a NIC up (HW §3). May sleep. Every refusal is counted, and logged with its reason. `M` is the
    /// module that this crate is linked into; it stays loaded while a debugfs file is open.
    ///
    /// # Errors
    ///
    /// `ENODEV` for a device that cannot be driven here (revision 0x42, no MSI, no DMA mask, BARs missing, too small or lost,
    /// registers unreadable), `EBUSY` if a BAR is claimed by others, `ENOMEM`, and those of the PCI core.
    pub fn probe<M: ModuleMetadata + 'static>(
        pdev: &'a pci::Device<Core<'_>>,
        params: Params,
    ) -> Result<Self> {
        let dev: &'a pci::Device<Bound> = pdev;
        // Step 1.
        let enabled =
            Enabled::new(pdev).inspect_err(|e| refuse(dev, Refusal::Enable, fmt!("{e:?}")))?;
        let revision = dev.revision_id();
        if revision == BAD_REVISION {
            refuse(dev, Refusal::Revision, fmt!("{revision:#x}"));
            return Err(ENODEV);
        }
        let vectors = msi_count(dev);
        if vectors == 0 {
            refuse(dev, Refusal::Msi, fmt!("{vectors} vectors"));
            return Err(ENODEV);
        }
        // Step 2.
        enabled.set_dma_mask(pdev).map_err(|e| {
            refuse(dev, Refusal::DmaMask, fmt!("{e:?}"));
            ENODEV
        })?;
        let bar0 = Self::claim(dev, 0, BAR0_MIN)?;
        let bar2 = Self::claim(dev, 2, RRA_WINDOW + 1)?;
        let windows = Windows::standard(BusAddr(bar0.start()), BusAddr(bar2.start()), bar2.size());
        let hw = Hw::map(dev.as_ref(), &bar0, windows, params.mark_fences)
            .inspect_err(|e| refuse(dev, Refusal::Map, fmt!("{e:?}")))?;
        // Whoever had the device before may have left it running, with addresses of memory that is somebody else's by now.
        hw.quiesce();
        pdev.set_master();
        let no_setup = |e: &Error| refuse(dev, Refusal::Setup, fmt!("{e:?}"));
        let smfu_bytes = hw.windows.smfu_size;
        let ctx = Context::new(dev.as_ref(), unique_id(dev), params.log_interval_ms, hw)
            .inspect_err(no_setup)?;
        let nic = Snq::new(dev.as_ref())
            .and_then(|snq| Nic::new(ctx, params, smfu_bytes, snq))
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
        // From here on an error gives the hardware up again by the drop of `this`.
        this.start(dev, vectors).map_err(|Failure(why, e)| {
            refuse(dev, why, fmt!("{e:?}"));
            e
        })?;
        let resets = KBox::pin_init(ResetWatch::new(pdev, this.nic.clone()), GFP_KERNEL)
            .inspect_err(no_setup)?;
        this.live.lock().resets = Some(resets);
        let files = debugfs::files::<M>(&this.nic)
            .inspect_err(|e| dev_warn!(dev, "no debugfs files: {:?}\n", e))
            .ok();
        this.live.lock().files = files;
        let registers = rf::directory(dev.as_ref(), &this.nic)
            .inspect_err(|e| dev_warn!(dev, "no register files in sysfs: {:?}\n", e))
            .ok();
        this.live.lock().registers = registers;
        let user = Devices::new::<M>(dev.as_ref(), &this.nic)
            .inspect_err(|e| dev_warn!(dev, "no device files: {:?}\n", e))
            .ok();
        this.live.lock().user = user;
        // Last, since children may be probed at once.
        for (slot, name) in [child::NAME, child::RAW].into_iter().enumerate() {
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

    fn claim(dev: &'a pci::Device<Bound>, bar: u32, min: u64) -> Result<Region<'a>> {
        let size = dev.resource_len(bar)?;
        if size < min {
            refuse(
                dev,
                Refusal::BarSize,
                fmt!("BAR {bar} has {size:#x} bytes, at least {min:#x} are needed"),
            );
            return Err(ENODEV);
        }
        let region = Region::claim(dev, bar, c"extoll")
            .inspect_err(|e| refuse(dev, Refusal::BarClaimed, fmt!("BAR {bar}: {e:?}")))?;
        if !region.is_assigned() {
            refuse(dev, Refusal::BarLost, fmt!("BAR {bar}"));
            return Err(ENODEV);
        }
        Ok(region)
    }

    /// Steps 3 to 27.
    fn start(&self, dev: &'a pci::Device<Bound>, vectors: u32) -> Result<(), Failure> {
        let nic = &self.nic;
        nic.listen()?;
        {
            let hw = nic.access().ok_or(ENODEV)?;
            htax::init(&hw)?;
            info::read_network_state(nic, &hw)?;
            xbar::init(&hw);
            nic.snq.setup(&hw)?;
        }
        let irq = MsiVectors::new(dev, vectors.min(MAX_VECTORS))
            .and_then(|v| v.request(c"extoll", Interrupt(nic.clone())))
            .map_err(|e| Failure(Refusal::Interrupt, e))?;
        self.live.lock().irq = Some(irq);
        {
            let hw = nic.access().ok_or(ENODEV)?;
            nic.snq.start(&hw, nic.params.snq_irq);
            info::read_network_state(nic, &hw)?;
        }
        bq::init(nic)?;
        velo::init(nic)?;
        nic.atu().init()?;
        let (mps, mrrs) = payload_sizes(dev);
        rma::init(nic, mps, mrrs)?;
        smfu::init(nic)?;
        // Step 27. A NIC without it is of use all the same, and the first request tries again.
        if let Err(e) = rra::open(nic) {
            dev_warn!(dev, "remote registers are not available yet: {:?}\n", e);
        }
        nic.schedule_status();
        nic.schedule_events();
        nic.schedule_watch();
        Ok(())
    }

    /// Unbinds: children first, then interrupts, then the units, then the mappings. Further calls do nothing. May
    /// sleep.
    pub fn stop(&self) {
        // Each is dropped without the lock.
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
        let files = self.live.lock().files.take();
        drop(files);
        let registers = self.live.lock().registers.take();
        drop(registers);
        if !self.nic.is_alive() {
            self.nic.isolate();
            // So that it stays quiet if it recovers.
            if let Some(hw) = self.nic.access() {
                hw.quiesce();
            }
        }
        let remains = rra::close(&self.nic);
        self.nic.snq.stop(&self.nic);
        let irq = self.live.lock().irq.take();
        drop(irq);
        stop_units(&self.nic);
        // What the hardware did not confirm to have forgotten is out of its reach now.
        self.enabled.stop_dma();
        self.nic.atu().release();
        self.nic.shutdown();
        drop(remains);
        self.nic.snq.free();
        self.nic.locks.free();
        self.nic.smfu.free_exported();
    }
}

/// Leaves no address of host memory in the hardware.
fn stop_units(nic: &Arc<Nic>) {
    smfu::stop(nic);
    rma::stop(nic);
    nic.atu().stop();
    velo::stop(nic);
    bq::stop(nic);
}

impl Drop for BoundNic<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}
