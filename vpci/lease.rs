// SPDX-License-Identifier: GPL-2.0-only

//! A device that is borrowed: what the kernel of this node sees of it.

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
    borrower::{Handle, Why},
    config::{Layout, Msix, Read, Space, Written},
    Ask, Poll, Reach,
};
use wire::{
    ids::NodeId,
    pci::{Device, Grant, Register, BARS},
    smfu::PAGE,
};

/// Bus addresses of BARs of 32 bits, as the kernel sees them: they need not be those of the
/// processor.
const LOW: u64 = 0x8000_0000;

/// Maximum number of attempts to read a register that describes the device. Less than `UNANSWERED_MOST`,
/// because that many unanswered accesses end the lease.
const TRIES: u32 = 4;

/// What a device reaches here.
#[derive(Clone)]
enum Memory {
    /// All that it reaches.
    Words(Arc<DmaWords>),
    /// And pages that drivers map.
    Pages(Arc<PoolPages>),
}

impl Memory {
    fn target(&self) -> TargetMemory {
        match self {
            Self::Words(words) => TargetMemory::Memory(words.clone()),
            Self::Pages(pages) => TargetMemory::Pages(pages.clone()),
        }
    }

    /// `base`: where devices reach it.
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

/// What a lease has, which is had in this order and ends in the other one.
#[derive(Default)]
struct Parts {
    /// DMA memory and interrupts.
    targets: KVec<Target>,
    memory: Option<Memory>,
    pool: Option<Arc<Pool>>,
    grant: Option<Grant>,
    windows: KVec<(usize, Window)>,
    bridge: Option<HostBridge>,
}

/// How a lease is had, and configuration registers are reached.
pub(crate) enum Way {
    /// The lender has a host, which is asked.
    Messages(Handle),
    /// It has none: by registers of its NIC.
    Backdoor(Arc<Accelerator>),
}

/// A lease.
#[pin_data]
pub(crate) struct Lease {
    nic: Arc<Nic>,
    pub(crate) way: Way,
    pub(crate) lender: NodeId,
    pub(crate) device: Device,
    /// Behind an IOMMU: bytes of addresses for pages that are mapped as they are.
    pages: Option<u64>,
    /// One access at a time.
    #[pin]
    space: SpinLockIrq<Option<(Space, Option<Msix>)>>,
    #[pin]
    interrupts: SpinLockIrq<Option<Reach>>,
    #[pin]
    parts: Mutex<Parts>,
    /// What the NIC's interrupts may be meant for.
    #[pin]
    heard: Mutex<Option<Arc<Interrupts>>>,
    unwanted: AtomicFlag,
    /// PCI domain of its device plus 1, and why it is over.
    #[pin]
    end: SpinLockIrq<(Option<u32>, Option<Result<Why>>)>,
}

impl Lease {
    /// Nothing is open yet. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(
        nic: &Arc<Nic>,
        way: Way,
        lender: NodeId,
        device: Device,
        pages: Option<u64>,
    ) -> Result<Arc<Self>> {
        let init = pin_init!(Self {
            nic: nic.clone(),
            way,
            lender,
            device,
            pages,
            space <- new_spinlock_irq!(None, "vpci_space"),
            interrupts <- new_spinlock_irq!(None, "vpci_reach"),
            parts <- new_mutex!(Parts::default(), "vpci_parts"),
            heard <- new_mutex!(None, "vpci_heard"),
            unwanted: AtomicFlag::new(false),
            end <- new_spinlock_irq!((None, None), "vpci_end"),
        });
        Arc::pin_init(init, GFP_KERNEL)
    }

    /// Its name in the machine, if the lender has a host.
    pub(crate) fn handle(&self) -> Option<Handle> {
        match self.way {
            Way::Messages(handle) => Some(handle),
            Way::Backdoor(_) => None,
        }
    }

    /// Makes an access to a configuration register: the value, 0 of a write; `None`: all ones. One at
    /// a time. Any context; the time of it is bounded.
    fn access(&self, ask: Ask) -> Option<u32> {
        match &self.way {
            Way::Messages(handle) => self.nic.access(*handle, ask).ok(),
            Way::Backdoor(accelerator) => accelerator.access(&self.nic, ask),
        }
    }

    /// Reads a register that describes the device. Makes up to [`TRIES`] attempts, because a lender that
    /// stalls once must not make the device look broken. Not with interrupts disabled; takes [`TRIES`] times
    /// `access_ms` at most. `None` as of [`Self::access`].
    fn read(&self, register: Register) -> Option<u32> {
        let ask = Ask::Read(register);
        let Way::Messages(handle) = &self.way else {
            return self.access(ask);
        };
        let mut tries = (0..TRIES).map(|_| self.nic.access(*handle, ask));
        tries.find(|how| *how != Err(Poll::TimedOut))?.ok()
    }

    /// It is to be given back. Any context.
    pub(crate) fn give_up(&self) {
        self.unwanted.store(true, Relaxed);
    }

    /// Whether it is to be given back, asked for the first time.
    pub(crate) fn take_unwanted(&self) -> bool {
        self.unwanted.xchg(false, Relaxed)
    }

    /// PCI domain of the device, once it is there.
    pub(crate) fn domain(&self) -> Option<u32> {
        self.end.lock().0
    }

    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<Result<Why>> {
        self.end.lock().1
    }

    pub(crate) fn set_over(&self, why: Result<Why>) {
        let mut end = self.end.lock();
        end.1.get_or_insert(why);
    }

    /// Memory of as many bytes as were told to the lender. May sleep.
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

    /// Where its device has memory and interrupts, and what became of that memory, once it is there.
    /// May sleep.
    pub(crate) fn reach(&self) -> (Option<Grant>, Option<PoolStats>) {
        let parts = self.parts.lock();
        let (grant, pool) = (parts.grant, parts.pool.clone());
        drop(parts);
        (grant, pool.map(|pool| pool.stats()))
    }

    /// The pool of its device, once there is one. May sleep.
    pub(crate) fn pool(&self) -> Option<Arc<Pool>> {
        self.parts.lock().pool.clone()
    }

    /// Numbers of its targets that are open. May sleep.
    pub(crate) fn targets(&self) -> u64 {
        let parts = self.parts.lock();
        let numbers = parts.targets.iter().map(|target| 1u64 << target.interval());
        numbers.fold(0, |set, bit| set | bit)
    }

    /// Of a device behind a NIC without a host: whether nobody else binds its driver or ends it, what
    /// the caller does from now on.
    pub(crate) fn take(&self) -> bool {
        match &self.way {
            Way::Messages(_) => false,
            Way::Backdoor(accelerator) => accelerator.take(),
        }
    }

    /// The driver of such a device has been bound.
    pub(crate) fn leave(&self) {
        if let Way::Backdoor(accelerator) = &self.way {
            accelerator.leave();
        }
    }

    /// Nodes whose devices its device reaches. May sleep.
    pub(crate) fn peers(&self) -> [Option<NodeId>; 2] {
        match &self.way {
            Way::Messages(_) => [None; 2],
            Way::Backdoor(accelerator) => accelerator.peers(),
        }
    }

    /// Where processors of this node have a BAR of its device. May sleep.
    pub(crate) fn window(&self, bar: usize) -> Option<u64> {
        let parts = self.parts.lock();
        let (_, window) = parts.windows.iter().find(|(index, _)| *index == bar)?;
        Some(window.physical()?.0)
    }

    /// Opens its intervals. May sleep.
    pub(crate) fn open(&self, grant: &Grant) -> Result {
        let smfu = self.nic.smfu()?;
        let numbers = &grant.numbers;
        let memory = self.memory(&smfu)?;
        {
            let mut shut = self.nic.shut.lock();
            shut.reserve(2 * usize::from(conf::leases()) + 2, GFP_KERNEL)?;
        }
        let mut parts = Parts {
            grant: Some(*grant),
            ..Parts::default()
        };
        let target = smfu.target(numbers.dma.into(), memory.target())?;
        parts.targets.push(target, GFP_KERNEL)?;
        parts.memory = Some(memory);
        let target = smfu.interrupt_target(numbers.interrupts.into())?;
        parts.targets.push(target, GFP_KERNEL)?;
        let bars = self.device.bars.iter().zip(numbers.bars).enumerate();
        for (index, (bar, number)) in bars {
            let Some(bar) = bar else {
                continue;
            };
            let spec = WindowSpec::new(self.lender, bar.window())
                .interval(number.into())
                .natural()
                .no_probe();
            parts
                .windows
                .push((index, smfu.window(spec)?), GFP_KERNEL)?;
        }
        *self.interrupts.lock() = Reach::new(grant.interrupts, PAGE);
        *self.parts.lock() = parts;
        Ok(())
    }

    /// Has the kernel find the device, and its driver use it. Takes long.
    pub(crate) fn build(self: &Arc<Self>) -> Result {
        let dword = |at| {
            let register = Register::new(at, 4);
            let value = register.and_then(|register| self.read(register));
            value.unwrap_or(u32::MAX)
        };
        let layout = Layout::read(dword);
        let layout = layout.map_err(|e| {
            pr_err!("node {}: not a device: {:?}\n", self.lender.0, e);
            EIO
        })?;
        let vectors = vectors(&layout, |register| self.read(register));
        let msix = Msix::read(&layout, &self.device.bars, dword);
        let msix = msix.map_err(|_| {
            pr_err!(
                "node {}: its MSI-X table is not in its BARs\n",
                self.lender.0
            );
            EIO
        })?;
        let mut at = [0; BARS];
        let mut windows = KVec::new();
        let (pool, count) = {
            let parts = self.parts.lock();
            for (index, window) in &parts.windows {
                let bar = self.device.bars.get(*index).copied().flatten();
                let (cpu, bar) = (window.physical().ok_or(ENODEV)?.0, bar.ok_or(EIO)?);
                let bus = if bar.wide { cpu } else { LOW + window.offset() };
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
            let memory = parts.memory.clone().ok_or(ENODEV)?;
            let grant = parts.grant.ok_or(ENODEV)?;
            (memory.pool(grant.dma)?, vectors)
        };
        self.parts.lock().pool = Some(pool.clone());
        *self.space.lock() = Some((Space::new(&layout, &self.device.bars, &at), msix));
        let behind = Arc::new(Behind(self.clone()), GFP_KERNEL)?;
        let handle = self.nic.handle()?;
        let prepare = |dev: &_| HostBridge::prepare(dev, &windows, count, pool, behind);
        let bridge = handle.with_bound(|dev| prepare(dev))??;
        drop(handle);
        // The NIC is unbound when the work item has ended that this is in, and later the bridge.
        let bridge = bridge.begin()?;
        self.end.lock().0 = Some(bridge.domain());
        pr_info!(
            "node {}: {:04x}:{:04x} is in domain {:x}\n",
            self.lender.0,
            self.device.identity.vendor,
            self.device.identity.device,
            bridge.domain()
        );
        self.parts.lock().bridge = Some(bridge);
        Ok(())
    }

    /// The kernel forgets the device: in order, or because it is out of reach. May sleep.
    pub(crate) fn remove(&self, lost: bool) {
        let bridge = self.parts.lock().bridge.take();
        if let Some(bridge) = bridge {
            if lost {
                bridge.lost();
            } else {
                bridge.remove();
            }
        }
        self.mute();
        *self.space.lock() = None;
    }

    /// Handlers of its device are not called any more. May sleep.
    pub(crate) fn mute(&self) {
        let heard = self.heard.lock().take();
        if let Some(interrupts) = heard {
            self.nic.unlisten(&interrupts);
        }
    }

    /// Registers of the device are out of reach, whatever its driver does. May sleep.
    pub(crate) fn cut(&self) {
        for (_, window) in &self.parts.lock().windows {
            window.cut();
        }
    }

    /// Closes its intervals; nobody gets the numbers of targets yet. May sleep.
    pub(crate) fn close(&self) {
        let parts = core::mem::take(&mut *self.parts.lock());
        drop(parts.pool);
        drop(parts.windows);
        let mut shut = self.nic.shut.lock();
        for target in parts.targets {
            // There was room for it before it was opened.
            if let Err(full) = shut.push_within_capacity(target.shut()) {
                full.0.rest(conf::quarantine());
            }
        }
    }
}

/// Interrupts that a device causes, at most.
fn vectors(layout: &Layout, read: impl Fn(Register) -> Option<u32>) -> u32 {
    const MSI: u16 = 5;
    const MSIX: u16 = 0x11;
    let mut most = 1;
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
        most = most.max(count);
    }
    most
}

/// What the host bridge finds behind it.
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
                let value = lease.access(Ask::Read(register))?;
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
        let ask = match space.write(register, value) {
            Written::Done => return Some(()),
            Written::Ask(register, value) => Ask::Write(register, value),
            Written::Reset => Ask::Reset,
        };
        lease.access(ask).map(drop)
    }

    fn begin(&self, interrupts: &Arc<Interrupts>) -> Result {
        let lease = &self.0;
        lease.nic.listen(interrupts)?;
        *lease.heard.lock() = Some(interrupts.clone());
        Ok(())
    }

    fn message(&self, vector: u32) -> Message {
        let reach = *self.0.interrupts.lock();
        let (address, data) = reach.and_then(|r| r.message(vector)).unwrap_or_default();
        Message { address, data }
    }
}
