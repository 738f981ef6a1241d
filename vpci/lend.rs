// SPDX-License-Identifier: GPL-2.0-only

//! Lender: the PCI driver of devices that this node lends, and the intervals that are open for
//! their borrowers.
//!
//! Process context, may sleep, except [`access`]. Lock order: the mutex `by` of a device, then the
//! locks of [`Nic`].

use crate::{conf, nic::Nic};
use core::pin::Pin;
use extoll_core::smfu::{ClosedTarget, Smfu, Target, TargetMemory, Window, WindowSpec};
use kernel::{
    device::Core,
    new_mutex, pci,
    prelude::*,
    sync::{Arc, Mutex},
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use kernel_ext::leased::{LeasedDevice, Width};
use protocol::pci::{
    config::Layout,
    lender::{self, Work},
    Config, OpenError, Opened,
};
use wire::{
    pci::{Bar, Device, DeviceState, Identity, Location, Numbers, Reason, Register},
    smfu::PAGE,
};

/// Maximum number of attempts to reset a device whose lock is held by another context.
const TRIES: u32 = 20;
/// Time between these attempts in ms.
const PAUSE_MS: i64 = 100;
/// Maximum time in ms that the removal of a device waits for the end of its lease.
const PATIENCE_MS: i64 = 3_000;

const fn width(register: Register) -> Width {
    match register.size() {
        1 => Width::Byte,
        2 => Width::Word,
        _ => Width::Dword,
    }
}

/// Executes a configuration access of the borrower on a leased device. Any context.
pub(crate) fn access(device: &LeasedDevice, config: &Config) -> Result<u32, ()> {
    let (at, width) = (config.register.offset(), width(config.register));
    let Some(write) = config.write else {
        return if device.is_usable() {
            Ok(device.read(at, width))
        } else {
            Err(())
        };
    };
    let old = match write.keep {
        0 => 0,
        _ => device.read(at, width),
    };
    if !device.is_usable() {
        return Err(());
    }
    device.write(at, width, write.merged(old));
    Ok(0)
}

/// A device that this node lends.
#[pin_data]
pub(crate) struct OfferedDevice {
    device: Arc<LeasedDevice>,
    offer: Device,
    layout: Layout,
    /// The NIC that offers the device, and the lender's handle for it.
    #[pin]
    by: Mutex<Option<(Arc<Nic>, u32)>>,
}

impl OfferedDevice {
    fn new(pdev: &pci::Device<Core<'_>>) -> Result<Arc<Self>> {
        let device = LeasedDevice::new(pdev, c"vpci")?;
        let own = device.clone();
        let made = Self::describe(&device).and_then(|(offer, layout)| {
            let offered = pin_init!(Self {
                device: own,
                offer,
                layout,
                by <- new_mutex!(None, "vpci_by"),
            });
            Arc::pin_init(offered, GFP_KERNEL)
        });
        made.inspect_err(|_| {
            let _ = device.withdraw(pdev);
        })
    }

    fn describe(device: &Arc<LeasedDevice>) -> Result<(Device, Layout)> {
        let layout = Layout::read(|at| device.read(at, Width::Dword)).map_err(|e| {
            pr_err!("device {:08x}: cannot be lent: {:?}\n", device.address(), e);
            ENOTSUPP
        })?;
        let dword = |at| device.read(at, Width::Dword);
        let (ids, class, subsystem) = (dword(0), dword(8), dword(0x2c));
        let location = device.address();
        let mut bars = [None; wire::pci::BARS];
        for (to, bar) in bars.iter_mut().zip(device.bars()) {
            *to = bar.map(|bar| Bar {
                log2: bar.bytes.trailing_zeros() as u8,
                is_64bit: bar.wide,
                prefetchable: bar.prefetchable,
            });
        }
        let offer = Device {
            identity: Identity {
                vendor: ids as u16,
                device: (ids >> 16) as u16,
                subsystem_vendor: subsystem as u16,
                subsystem: (subsystem >> 16) as u16,
                class: class >> 8,
                revision: class as u8,
            },
            location: Location {
                domain: location >> 16,
                bus: (location >> 8) as u8,
                devfn: location as u8,
            },
            bars,
            state: DeviceState::Free,
            ..Device::default()
        };
        Ok((offer, layout))
    }

    /// Lets a NIC offer the device, unless another one does. May sleep.
    pub(crate) fn offer(&self, nic: &Arc<Nic>) {
        let mut by = self.by.lock();
        if by.is_some() || nic.is_closing() {
            return;
        }
        let (offer, layout) = (&self.offer, &self.layout);
        let name = nic.with_machines(|machines, _| machines.lender.offer(offer, layout));
        let Some(name) = name else {
            return pr_err!(
                "device {:08x} not offered: parameter `leases` allows no more\n",
                self.device.address()
            );
        };
        match nic.offer(name, &self.device) {
            Ok(()) => *by = Some((nic.clone(), name)),
            Err(e) => {
                pr_err!(
                    "device {:08x} not offered: {:?}\n",
                    self.device.address(),
                    e
                );
                nic.with_machines(|machines, now| machines.lender.withdraw(now, name));
                nic.wake();
            }
        }
    }

    /// Clears the NIC that offers the device if it is `nic`, which is being removed. The NIC itself
    /// ends the lease. May sleep.
    pub(crate) fn forget(&self, nic: &Arc<Nic>) {
        let mut by = self.by.lock();
        if by.as_ref().is_some_and(|(n, _)| Arc::ptr_eq(n, nic)) {
            *by = None;
        }
    }

    /// Ends the lease of the device and gives the device back to the kernel. May sleep.
    fn end(&self, pdev: &pci::Device<Core<'_>>) {
        self.device.leave();
        let by = self.by.lock().take();
        if let Some((nic, name)) = by {
            nic.with_machines(|machines, now| machines.lender.withdraw(now, name));
            nic.pump();
            nic.wake();
            let start: Instant<Monotonic> = Instant::now();
            while nic.offered(name).is_some() && start.elapsed().as_millis() < PATIENCE_MS {
                fsleep(Delta::from_millis(5));
            }
            if nic.offered(name).is_some() {
                pr_err!(
                    "device {:08x}: not returned by its borrower in time, access revoked\n",
                    self.device.address()
                );
                self.device.quiesce();
                nic.lending.lock().end(name);
                nic.forget(name);
            }
        }
        if let Err(e) = self.device.withdraw(pdev) {
            pr_warn!(
                "device {:08x}: could not be reset before its return: {:?}\n",
                self.device.address(),
                e
            );
        }
    }
}

/// PCI driver of devices that this node lends. The driver binds only to devices to whose
/// `driver_override` an administrator has written "vpci".
pub(crate) struct LenderDriver;

kernel::pci_device_table!(
    PCI_TABLE,
    <LenderDriver as pci::Driver>::IdInfo,
    // No vendor uses this ID.
    [(kernel_ext::pci::device_id(0xffff, 0xffff), ())]
);

/// A bound device.
pub(crate) struct BoundOffer(Arc<OfferedDevice>);

impl pci::Driver for LenderDriver {
    type IdInfo = ();
    type Data<'bound> = BoundOffer;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let offered = OfferedDevice::new(pdev)?;
        if let Err(e) = crate::registry::add_device(&offered) {
            offered.end(pdev);
            return Err(e);
        }
        Ok(BoundOffer(offered))
    }

    fn unbind<'bound>(pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        crate::registry::remove_device(&this.0);
        this.0.end(pdev);
    }
}

/// Open intervals of a lease.
struct OpenLease {
    /// Lender's handle of the device.
    name: u32,
    /// Targets of the device's BARs.
    targets: KVec<Target>,
    /// Windows to the borrower: DMA memory, interrupts.
    windows: KVec<Window>,
}

/// Open intervals of all leases of this node's devices.
#[derive(Default)]
pub(crate) struct Lending {
    leases: KVec<OpenLease>,
    /// Target numbers of ended leases that must not be reused yet.
    closed_targets: KVec<ClosedTarget>,
}

impl Lending {
    /// Returns whether no interval is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Closes the intervals of a device. May sleep.
    pub(crate) fn end(&mut self, name: u32) {
        let at = self.leases.iter().position(|lease| lease.name == name);
        let Some(lease) = at.and_then(|at| self.leases.remove(at).ok()) else {
            return;
        };
        for target in lease.targets {
            // The call cannot fail, because space was reserved before the targets were opened.
            let _ = self
                .closed_targets
                .push_within_capacity(target.close_keep_number());
        }
    }
}

/// Iterates over the interval numbers in a bit set, without 0 and 63.
fn numbers(set: u64) -> impl Iterator<Item = u32> {
    (1..63).filter(move |n| set & 1 << n != 0)
}

/// Calls `open` with numbers of the set until one is not in use. Removes that number from the set.
fn first<T>(set: &mut u64, open: impl Fn(u32) -> Result<T>) -> Result<(u8, T)> {
    for number in numbers(*set) {
        match open(number) {
            Ok(t) => {
                *set &= !(1 << number);
                return Ok((number as u8, t));
            }
            Err(e) if e == EBUSY => {}
            Err(e) => return Err(e),
        }
    }
    Err(EBUSY)
}

impl Nic {
    /// Performs the lender's pending actions that may sleep. Runs in work item 0.
    pub(crate) fn lend(self: &Arc<Self>) {
        self.release_earlier_targets();
        loop {
            let work = self.with_machines(|machines, _| machines.lender.work());
            let Some(work) = work else {
                break;
            };
            match work {
                Work::Open(open) => {
                    let result = self.open_lease(&open);
                    if result.is_err() {
                        self.lending.lock().end(open.handle);
                    }
                    self.with_machines(|machines, now| {
                        machines.lender.opened(now, open.handle, result)
                    });
                }
                Work::Close(name, _) => {
                    if let Some(device) = self.offered(name) {
                        if !device.quiesce() {
                            // The device may write to addresses that its next borrower will use,
                            // until it is reset.
                            pr_warn!(
                                "device {:08x}: transactions still pending, resetting it\n",
                                device.address()
                            );
                            self.reset(name);
                        }
                    }
                    self.lending.lock().end(name);
                    self.with_machines(|machines, now| machines.lender.closed(now, name));
                }
                Work::Reset(name) => {
                    let done = self.reset(name);
                    self.with_machines(|machines, now| machines.lender.reset(now, name, done));
                }
                Work::Release(set) => {
                    let mut lending = self.lending.lock();
                    lending
                        .closed_targets
                        .retain(|t| set & 1 << t.interval() == 0);
                }
                Work::Gone(name) => self.forget(name),
            }
            self.pump();
        }
    }

    /// Resets a device. Returns false on failure.
    fn reset(&self, name: u32) -> bool {
        let Some(device) = self.offered(name) else {
            return false;
        };
        for _ in 0..TRIES {
            match device.reset() {
                Err(e) if e == EAGAIN => fsleep(Delta::from_millis(PAUSE_MS)),
                // The device is being removed.
                Err(e) if e == ENODEV => return false,
                Err(e) => {
                    pr_err!(
                        "device {:08x}: cannot be reset: {:?}\n",
                        device.address(),
                        e
                    );
                    return false;
                }
                Ok(()) => return true,
            }
        }
        pr_err!(
            "device {:08x}: cannot be reset, because its lock is held\n",
            device.address()
        );
        false
    }

    fn open_lease(&self, open: &lender::Open) -> Result<Opened, OpenError> {
        if !self.reset(open.handle) {
            return Err(OpenError::Broken);
        }
        let device = self.offered(open.handle).ok_or(OpenError::Broken)?;
        self.open_intervals(&device, open).map_err(|e| {
            pr_err!(
                "device {:08x}: cannot open intervals for its borrower: {:?}\n",
                device.address(),
                e
            );
            let reason = match e {
                e if e == EBUSY => Reason::NoInterval,
                e if e == ENOSPC => Reason::NoRoom,
                _ => Reason::NotAllowed,
            };
            OpenError::Refuse(reason)
        })
    }

    fn open_intervals(&self, device: &Arc<LeasedDevice>, open: &lender::Open) -> Result<Opened> {
        let smfu: Arc<Smfu> = self.smfu()?;
        let mut numbers = Numbers::default();
        let mut lease = OpenLease {
            name: open.handle,
            targets: KVec::with_capacity(device.bars().len(), GFP_KERNEL)?,
            windows: KVec::with_capacity(2, GFP_KERNEL)?,
        };
        let (mut bars, mut links) = (open.bars, open.links);
        let all = device.bars().iter().zip(&mut numbers.bars).enumerate();
        for (index, (_, number)) in all.filter(|(_, (bar, _))| bar.is_some()) {
            let (n, target) = first(&mut bars, |n| {
                let memory = TargetMemory::Bar {
                    device: device.clone(),
                    bar: index,
                };
                smfu.target(n, memory)
            })?;
            *number = n;
            lease
                .targets
                .push_within_capacity(target)
                .map_err(|_| ENOMEM)?;
        }
        // No probe load is needed when the windows are closed, because the borrower's memory is
        // also closed then. Ending a lease takes longer than stores of the device stay in flight.
        let window = |number, bytes| {
            let spec = WindowSpec::new(open.borrower, bytes);
            smfu.window(spec.interval(number).no_probe())
        };
        let (n, dma) = first(&mut links, |n| window(n, open.dma))?;
        numbers.dma = n;
        let (n, interrupts) = first(&mut links, |n| window(n, PAGE))?;
        numbers.interrupts = n;
        let opened = Opened {
            numbers,
            dma: dma.bus().ok_or(ENODEV)?.0,
            interrupts: interrupts.bus().ok_or(ENODEV)?.0,
        };
        for window in [dma, interrupts] {
            lease
                .windows
                .push_within_capacity(window)
                .map_err(|_| ENOMEM)?;
        }
        let mut lending = self.lending.lock();
        // Reserves space, so that closing the targets later cannot fail.
        let open: usize = lending.leases.iter().map(|lease| lease.targets.len()).sum();
        lending
            .closed_targets
            .reserve(open + lease.targets.len(), GFP_KERNEL)?;
        lending.leases.push(lease, GFP_KERNEL)?;
        Ok(opened)
    }

    /// Closes all intervals when the NIC is removed. May sleep.
    pub(crate) fn end_lending(&self) {
        let mut lending = self.lending.lock();
        while let Some(name) = lending.leases.first().map(|lease| lease.name) {
            if let Some(device) = self.offered(name) {
                device.quiesce();
            }
            lending.end(name);
        }
        for target in core::mem::take(&mut lending.closed_targets) {
            target.hold_off(conf::quarantine());
        }
        drop(lending);
        self.forget_all();
    }
}
