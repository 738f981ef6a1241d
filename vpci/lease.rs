// SPDX-License-Identifier: GPL-2.0-only

//! A borrowed device: its lease, the intervals opened for it, and its configuration space as this
//! node's kernel sees it.
//!
//! Configuration accesses ([`Functions`]) come in any context and hold the spin lock `space` until
//! the answer has arrived. Spin locks here disable interrupts.

use crate::{accel::Accelerator, conf, nic::Nic};
use extoll_core::{
    dma::{DmaWords, PoolWords},
    pool_pages::PoolPages,
    smfu::{Smfu, Target, TargetMemory, Window, WindowSpec},
};
use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{AtomicFlag, Relaxed},
        Arc, Mutex, SpinLockIrq,
    },
};
use kernel_ext::pci_host::{
    self, Functions, HostBridge, Interrupts, Message, Pool, PoolStats, Width,
};
use protocol::pci::{
    borrower::{EndReason, Handle},
    config::{Layout, Msix, Read, Space, Written},
    ConfigAccess, Poll, Reach,
};
use wire::{
    ids::NodeId,
    pci::{Device, Grant, Register, BARS},
    smfu::PAGE,
};

/// First bus address of 32-bit BARs as the kernel sees them; may differ from the CPU's address.
const LOW: u64 = 0x8000_0000;

/// Maximum number of attempts to read a register that describes the device. Less than
/// `UNANSWERED_MAX`, because that many unanswered accesses end the lease.
const TRIES: u32 = 4;

/// DMA memory of a device.
#[derive(Clone)]
enum Memory {
    /// Memory through which all DMA data are copied.
    Words(Arc<DmaWords>),
    /// Memory through which data are copied, and addresses for pages that drivers map without
    /// copying.
    Pages(Arc<PoolPages>),
}

impl Memory {
    /// Returns the memory in the form that an SMFU target needs.
    fn target(&self) -> TargetMemory {
        match self {
            Self::Words(words) => TargetMemory::Memory(words.clone()),
            Self::Pages(pages) => TargetMemory::Pages(pages.clone()),
        }
    }

    /// Creates the pool of DMA memory. `base` is its address for the device.
    fn pool(self, base: u64) -> Result<Arc<Pool>> {
        match self {
            Self::Words(words) => {
                let memory = Arc::new(PoolWords::new(words)?, GFP_KERNEL)?;
                Pool::new(memory, base)
            }
            Self::Pages(pages) if pages.has_pages() => {
                Pool::with_pages(pages.clone(), Some(pages), base)
            }
            Self::Pages(pages) => Pool::new(pages, base),
        }
    }
}

/// Resources of a lease, in the order of their creation; they are released in reverse order.
#[derive(Default)]
struct Resources {
    targets: KVec<Target>,
    memory: Option<Memory>,
    pool: Option<Arc<Pool>>,
    /// Interval numbers and addresses that the lender granted.
    grant: Option<Grant>,
    /// Windows to the device's BARs, by BAR index.
    windows: KVec<(usize, Window)>,
    bridge: Option<HostBridge>,
}

/// Back end of a lease: how it is obtained and how configuration registers are accessed.
pub(crate) enum Backend {
    /// The lender has a host and is accessed by messages.
    Messages(Handle),
    /// The lender has no host and is accessed by registers of its NIC.
    Backdoor(Arc<Accelerator>),
}

/// A lease of a device, at the borrower.
#[pin_data]
pub(crate) struct Lease {
    nic: Arc<Nic>,
    pub(crate) backend: Backend,
    pub(crate) lender: NodeId,
    pub(crate) device: Device,
    /// Bytes of bus addresses for pages that are mapped without copying; `None` without an IOMMU.
    pages: Option<u64>,
    /// Configuration space as the kernel sees it; `None` while no device exists. The lock allows
    /// one access at a time.
    #[pin]
    space: SpinLockIrq<Option<(Space, Option<Msix>)>>,
    /// Window in the lender's NIC through which stores of the device raise interrupts at this node.
    #[pin]
    interrupts: SpinLockIrq<Option<Reach>>,
    #[pin]
    resources: Mutex<Resources>,
    /// Handlers that the NIC's interrupt calls.
    #[pin]
    interrupts_entry: Mutex<Option<Arc<Interrupts>>>,
    /// Set when the lease must be returned.
    unwanted: AtomicFlag,
    /// PCI domain of the device and result of the lease; `None` until they are known.
    #[pin]
    end: SpinLockIrq<(Option<u32>, Option<Result<EndReason>>)>,
}

impl Lease {
    /// Creates a lease without open intervals. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        nic: &Arc<Nic>,
        backend: Backend,
        lender: NodeId,
        device: Device,
        pages: Option<u64>,
    ) -> Result<Arc<Self>> {
        let init = pin_init!(Self {
            nic: nic.clone(),
            backend,
            lender,
            device,
            pages,
            space <- new_spinlock_irq!(None, "vpci_space"),
            interrupts <- new_spinlock_irq!(None, "vpci_reach"),
            resources <- new_mutex!(Resources::default(), "vpci_parts"),
            interrupts_entry <- new_mutex!(None, "vpci_heard"),
            unwanted: AtomicFlag::new(false),
            end <- new_spinlock_irq!((None, None), "vpci_end"),
        });
        Arc::pin_init(init, GFP_KERNEL)
    }

    /// Returns the borrower's handle of the lease, if the lender has a host.
    pub(crate) fn handle(&self) -> Option<Handle> {
        match self.backend {
            Backend::Messages(handle) => Some(handle),
            Backend::Backdoor(_) => None,
        }
    }

    /// Performs a configuration access; the caller allows one at a time. Returns the value read, or
    /// 0 for a write. Returns `None` if the kernel must read all ones. Any context; takes a bounded
    /// time.
    fn access(&self, request: ConfigAccess) -> Option<u32> {
        match &self.backend {
            Backend::Messages(handle) => self.nic.access(*handle, request).ok(),
            Backend::Backdoor(accelerator) => accelerator.access(&self.nic, request),
        }
    }

    /// Reads a register that describes the device, in up to [`TRIES`] attempts of `access_ms`,
    /// because the lender may stall. Interrupts must be enabled. Returns `None` if all attempts
    /// return `None`.
    fn read(&self, register: Register) -> Option<u32> {
        let request = ConfigAccess::Read(register);
        let Backend::Messages(handle) = &self.backend else {
            return self.access(request);
        };
        let mut tries = (0..TRIES).map(|_| self.nic.access(*handle, request));
        tries.find(|how| *how != Err(Poll::TimedOut))?.ok()
    }

    /// Requests the return of the lease. Any context.
    pub(crate) fn give_up(&self) {
        self.unwanted.store(true, Relaxed);
    }

    /// Returns whether the return was requested, and clears the request.
    pub(crate) fn take_unwanted(&self) -> bool {
        self.unwanted.xchg(false, Relaxed)
    }

    /// Returns the PCI domain of the device, once it exists.
    pub(crate) fn domain(&self) -> Option<u32> {
        self.end.lock().0
    }

    /// Returns the result of the lease, if it has ended.
    pub(crate) fn result(&self) -> Option<Result<EndReason>> {
        self.end.lock().1
    }

    pub(crate) fn set_result(&self, why: Result<EndReason>) {
        let mut end = self.end.lock();
        end.1.get_or_insert(why);
    }

    /// Allocates DMA memory of the size that was announced to the lender. May sleep.
    fn memory(&self, smfu: &Smfu) -> Result<Memory> {
        let bytes = conf::dma_bytes() as usize;
        if let Some(pages) = self.pages {
            let pages = smfu.pool_pages(bytes, pages as usize)?;
            return pages.map(Memory::Pages).ok_or(ENODEV);
        }
        let handle = self.nic.handle()?;
        let memory = handle.with_bound(|dev| DmaWords::new(dev, bytes / 8))??;
        Ok(Memory::Words(Arc::new(memory, GFP_KERNEL)?))
    }

    /// Returns the granted addresses and the DMA pool's statistics, once they exist. May sleep.
    pub(crate) fn reach(&self) -> (Option<Grant>, Option<PoolStats>) {
        let resources = self.resources.lock();
        let (grant, pool) = (resources.grant, resources.pool.clone());
        drop(resources);
        (grant, pool.map(|pool| pool.stats()))
    }

    /// Returns the DMA pool, once it exists. May sleep.
    pub(crate) fn pool(&self) -> Option<Arc<Pool>> {
        self.resources.lock().pool.clone()
    }

    /// Returns the numbers of the open targets as a bit set. May sleep.
    pub(crate) fn targets(&self) -> u64 {
        let resources = self.resources.lock();
        let numbers = resources.targets.iter().map(|t| 1u64 << t.interval());
        numbers.fold(0, |set, bit| set | bit)
    }

    /// Claims the exclusive right to bind the driver or to end the lease. Applies only to devices
    /// behind a NIC without a host. Returns false if another thread has the right.
    pub(crate) fn claim(&self) -> bool {
        match &self.backend {
            Backend::Messages(_) => false,
            Backend::Backdoor(accelerator) => accelerator.claim(),
        }
    }

    /// Releases the right that [`Self::claim`] acquired, after the driver was bound.
    pub(crate) fn release(&self) {
        if let Backend::Backdoor(accelerator) = &self.backend {
            accelerator.release();
        }
    }

    /// Returns the nodes of accelerators whose devices this device can access. May sleep.
    pub(crate) fn peers(&self) -> [Option<NodeId>; 2] {
        match &self.backend {
            Backend::Messages(_) => [None; 2],
            Backend::Backdoor(accelerator) => accelerator.peers(),
        }
    }

    /// Returns the CPU address of a BAR of the device. May sleep.
    pub(crate) fn window(&self, bar: usize) -> Option<u64> {
        let resources = self.resources.lock();
        let (_, window) = resources.windows.iter().find(|(index, _)| *index == bar)?;
        Some(window.physical()?.0)
    }

    /// Opens targets and windows of the lease. May sleep.
    pub(crate) fn open(&self, grant: &Grant) -> Result {
        let smfu = self.nic.smfu()?;
        let numbers = &grant.numbers;
        let memory = self.memory(&smfu)?;
        {
            let mut closed = self.nic.closed_targets.lock();
            closed.reserve(2 * usize::from(conf::leases()) + 2, GFP_KERNEL)?;
        }
        let mut resources = Resources {
            grant: Some(*grant),
            ..Resources::default()
        };
        let target = smfu.target(numbers.dma.into(), memory.target())?;
        resources.targets.push(target, GFP_KERNEL)?;
        resources.memory = Some(memory);
        let target = smfu.interrupt_target(numbers.interrupts.into())?;
        resources.targets.push(target, GFP_KERNEL)?;
        let bars = self.device.bars.iter().zip(numbers.bars).enumerate();
        for (index, (bar, number)) in bars {
            let Some(bar) = bar else {
                continue;
            };
            let spec = WindowSpec::new(self.lender, bar.window())
                .interval(number.into())
                .natural()
                .no_probe();
            let window = (index, smfu.window(spec)?);
            resources.windows.push(window, GFP_KERNEL)?;
        }
        *self.interrupts.lock() = Reach::new(grant.interrupts, PAGE);
        *self.resources.lock() = resources;
        Ok(())
    }

    /// Creates the host bridge, finds the device and binds its driver. May sleep for a long time.
    pub(crate) fn build(self: &Arc<Self>) -> Result {
        let dword = |at| {
            let register = Register::new(at, 4);
            let value = register.and_then(|register| self.read(register));
            value.unwrap_or(u32::MAX)
        };
        let layout = Layout::read(dword).map_err(|e| {
            pr_err!(
                "node {}: device has an invalid config space: {:?}\n",
                self.lender.0,
                e
            );
            EIO
        })?;
        let vectors = vectors(&layout, |register| self.read(register));
        let msix = Msix::read(&layout, &self.device.bars, dword);
        let msix = msix.map_err(|_| {
            pr_err!(
                "node {}: MSI-X table of the device is outside of its BARs\n",
                self.lender.0
            );
            EIO
        })?;
        let mut at = [0; BARS];
        let mut windows = KVec::new();
        let (pool, count) = {
            let resources = self.resources.lock();
            for (index, window) in &resources.windows {
                let bar = self.device.bars.get(*index).copied().flatten();
                let (cpu, bar) = (window.physical().ok_or(ENODEV)?.0, bar.ok_or(EIO)?);
                let low = LOW + window.offset();
                let bus = if bar.is_64bit { cpu } else { low };
                if let Some(at) = at.get_mut(*index) {
                    *at = bus;
                }
                let window = pci_host::Window {
                    cpu,
                    bus,
                    bytes: window.bytes(),
                    prefetchable: bar.prefetchable,
                };
                windows.push(window, GFP_KERNEL)?;
            }
            let memory = resources.memory.clone().ok_or(ENODEV)?;
            let grant = resources.grant.ok_or(ENODEV)?;
            (memory.pool(grant.dma)?, vectors)
        };
        self.resources.lock().pool = Some(pool.clone());
        *self.space.lock() = Some((Space::new(&layout, &self.device.bars, &at), msix));
        let behind = Arc::new(Behind(self.clone()), GFP_KERNEL)?;
        let handle = self.nic.handle()?;
        let prepare = |dev: &_| HostBridge::prepare(dev, &windows, count, pool, behind);
        let bridge = handle.with_bound(|dev| prepare(dev))??;
        drop(handle);
        // Unbinding the NIC waits for the work item or system call that runs this function, and
        // afterwards for the removal of the bridge.
        let bridge = bridge.begin()?;
        self.end.lock().0 = Some(bridge.domain());
        pr_info!(
            "node {}: device {:04x}:{:04x} is in PCI domain {:x}\n",
            self.lender.0,
            self.device.identity.vendor,
            self.device.identity.device,
            bridge.domain()
        );
        self.resources.lock().bridge = Some(bridge);
        Ok(())
    }

    /// Removes the device and its host bridge. `lost` is set if the device does not answer any
    /// more. May sleep.
    pub(crate) fn remove(&self, lost: bool) {
        let bridge = self.resources.lock().bridge.take();
        if let Some(bridge) = bridge {
            if lost {
                bridge.lost();
            } else {
                bridge.remove();
            }
        }
        self.remove_interrupts();
        *self.space.lock() = None;
    }

    /// Stops calling the handlers of the device and waits until they have returned. May sleep.
    pub(crate) fn remove_interrupts(&self) {
        let entry = self.interrupts_entry.lock().take();
        if let Some(interrupts) = entry {
            self.nic.remove_interrupts(&interrupts);
        }
    }

    /// Disconnects the windows to the device, so that its driver cannot access it any more. May
    /// sleep.
    pub(crate) fn cut(&self) {
        for (_, window) in &self.resources.lock().windows {
            window.disconnect();
        }
    }

    /// Closes all intervals. The numbers of targets stay reserved. May sleep.
    pub(crate) fn close(&self) {
        let resources = core::mem::take(&mut *self.resources.lock());
        drop(resources.pool);
        drop(resources.windows);
        let mut closed = self.nic.closed_targets.lock();
        for target in resources.targets {
            // Space was reserved before the targets were opened.
            if let Err(full) = closed.push_within_capacity(target.close_keep_number()) {
                full.0.hold_off(conf::quarantine());
            }
        }
    }
}

/// Returns the maximum number of interrupts of a device.
fn vectors(layout: &Layout, read: impl Fn(Register) -> Option<u32>) -> u32 {
    const MSI: u16 = 5;
    const MSIX: u16 = 0x11;
    let mut max = 1;
    for capability in layout.capabilities() {
        let control = || {
            let register = Register::new(capability.at + 2, 2)?;
            read(register)
        };
        let count = match capability.id {
            MSI if !capability.is_extended() => 1 << ((control().unwrap_or(0) >> 1) & 7).min(5),
            MSIX if !capability.is_extended() => (control().unwrap_or(0) & 0x7ff) + 1,
            _ => continue,
        };
        max = max.max(count);
    }
    max
}

/// Functions behind the host bridge of a lease.
struct Behind(Arc<Lease>);

fn register(offset: u16, width: Width) -> Option<Register> {
    Register::new(offset, width.bytes() as u8)
}

impl Functions for Behind {
    fn read(&self, devfn: u8, offset: u16, width: Width) -> Option<u32> {
        if devfn != 0 {
            return None;
        }
        let register = register(offset, width)?;
        let lease = &self.0;
        let space = lease.space.lock();
        let (space, msix) = space.as_ref()?;
        match space.read(register) {
            Read::Value(value) => Some(value),
            Read::Ask => {
                let value = lease.access(ConfigAccess::Read(register))?;
                let value = space.seen(register, value);
                Some(msix.map_or(value, |msix| msix.seen(register, value)))
            }
        }
    }

    fn write(&self, devfn: u8, offset: u16, width: Width, value: u32) -> Option<()> {
        if devfn != 0 {
            return None;
        }
        let register = register(offset, width)?;
        let lease = &self.0;
        let mut space = lease.space.lock();
        let (space, _) = space.as_mut().get_mut().as_mut()?;
        let request = match space.write(register, value) {
            Written::Done => return Some(()),
            Written::Ask(register, value) => ConfigAccess::Write(register, value),
            Written::Reset => ConfigAccess::Reset,
        };
        lease.access(request).map(drop)
    }

    fn begin(&self, interrupts: &Arc<Interrupts>) -> Result {
        let lease = &self.0;
        lease.nic.add_interrupts(interrupts)?;
        *lease.interrupts_entry.lock() = Some(interrupts.clone());
        Ok(())
    }

    fn message(&self, vector: u32) -> Message {
        let reach = *self.0.interrupts.lock();
        let (address, data) = reach.and_then(|r| r.message(vector)).unwrap_or_default();
        Message { address, data }
    }
}
