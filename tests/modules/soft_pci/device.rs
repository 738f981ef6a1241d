// SPDX-License-Identifier: GPL-2.0-only

//! The device: its configuration space and its accesses to memory.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Acquire, AtomicFlag, Release},
        Arc, SpinLockIrq,
    },
};
use kernel_ext::pci_host::{Contiguous, Functions, Message, Pool, Width};

/// IDs that no hardware has.
pub(crate) const VENDOR: u16 = 0x1fe5;
pub(crate) const DEVICE: u16 = 0xe711;
/// Size of BAR 0 in bytes.
pub(crate) const BAR_BYTES: u64 = 0x4000;
/// Offsets of the MSI-X table and the pending bits in BAR 0.
pub(crate) const TABLE: u32 = 0x2000;
const PENDING: u32 = 0x3000;
/// Number of interrupt vectors, with MSI-X and with MSI.
pub(crate) const VECTORS: u32 = 8;
/// Offsets of capabilities.
const EXPRESS: usize = 0x40;
pub(crate) const MSI: usize = 0x80;
const MSIX: usize = 0xa0;
/// Address that the device writes to raise an interrupt.
pub(crate) const DOORBELL: u64 = 0x12_3456_7000;
/// Size of the memory for DMA, and its address as seen by the device, which needs more than 32
/// bits.
pub(crate) const POOL_BYTES: usize = 1 << 20;
pub(crate) const POOL_BASE: u64 = 0x34_0010_0000;

/// Size of the used configuration space in bytes. The bytes behind it are 0.
const BYTES: usize = 256;

/// Configuration space, with a mask of writable bits.
struct Space {
    value: [u8; BYTES],
    writable: [u8; BYTES],
}

impl Space {
    fn put(&mut self, at: usize, bytes: u32, value: u32, writable: u32) {
        for (n, (v, w)) in value
            .to_le_bytes()
            .iter()
            .zip(writable.to_le_bytes())
            .take(bytes as usize)
            .enumerate()
        {
            if let (Some(value), Some(mask)) =
                (self.value.get_mut(at + n), self.writable.get_mut(at + n))
            {
                (*value, *mask) = (*v, w);
            }
        }
    }

    /// Returns the initial contents: BAR 0 at a bus address, and an interrupt pin that must be
    /// hidden.
    fn new(bar: u64) -> Self {
        let mut s = Self {
            value: [0; BYTES],
            writable: [0; BYTES],
        };
        let size_mask = !(BAR_BYTES as u32 - 1);
        s.put(0, 4, u32::from(DEVICE) << 16 | u32::from(VENDOR), 0);
        s.put(4, 4, 0x0010_0000, 0x0547);
        s.put(8, 4, 0xff00_0001, 0);
        s.put(0x10, 4, bar as u32 | 4, size_mask);
        s.put(0x14, 4, (bar >> 32) as u32, u32::MAX);
        s.put(0x2c, 4, 0x0001_0000 | u32::from(VENDOR), 0);
        s.put(0x34, 1, EXPRESS as u32, 0);
        s.put(0x3c, 4, 0x010b, 0xff);
        // PCI Express capability of an endpoint, version 2.
        s.put(EXPRESS, 4, 0x0002_0010 | (MSI as u32) << 8, 0);
        s.put(EXPRESS + 4, 4, 0x8000, 0);
        s.put(EXPRESS + 8, 4, 0x2010, 0xffff);
        s.put(EXPRESS + 0xc, 4, 0x11, 0);
        s.put(EXPRESS + 0x28, 4, 0, 0xffff);
        // MSI capability with 8 messages and 64-bit addresses.
        s.put(MSI, 4, 0x0086_0005 | (MSIX as u32) << 8, 0x0071_0000);
        s.put(MSI + 4, 4, 0, !3);
        s.put(MSI + 8, 4, 0, u32::MAX);
        s.put(MSI + 12, 4, 0, 0xffff);
        s.put(MSIX, 4, 0x11 | (VECTORS - 1) << 16, 0xc000_0000);
        s.put(MSIX + 4, 4, TABLE, 0);
        s.put(MSIX + 8, 4, PENDING, 0);
        s
    }

    fn read(&self, at: usize, bytes: u32) -> u32 {
        let byte = |n: usize| u32::from(self.value.get(at + n).copied().unwrap_or(0)) << (8 * n);
        (0..bytes as usize).map(byte).sum()
    }

    fn write(&mut self, at: usize, bytes: u32, value: u32) {
        let all = self.value.iter_mut().zip(&self.writable).skip(at);
        for ((old, mask), new) in all.zip(value.to_le_bytes()).take(bytes as usize) {
            *old = *old & !mask | new & mask;
        }
    }
}

/// Properties of a device.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// True if the driver uses MSI-X, false for MSI.
    pub(crate) msix: bool,
    /// True if there is memory behind BAR 0.
    pub(crate) ram: bool,
    /// True if the driver leaks memory.
    pub(crate) leaks: bool,
}

#[pin_data]
pub(crate) struct SoftDevice {
    #[pin]
    space: SpinLockIrq<KBox<Space>>,
    silent: AtomicFlag,
    /// True until the first driver is bound.
    pub(crate) fresh: AtomicFlag,
    pub(crate) kind: Kind,
    pub(crate) memory: Arc<Contiguous>,
    pub(crate) pool: Arc<Pool>,
}

impl SoftDevice {
    /// Creates a device with BAR 0 at a bus address.
    pub(crate) fn new(bar: u64, kind: Kind) -> Result<Arc<Self>> {
        let memory = Arc::new(Contiguous::new(POOL_BYTES, -1)?, GFP_KERNEL)?;
        let pool = Pool::new(memory.clone(), POOL_BASE)?;
        let space = KBox::new(Space::new(bar), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                space <- new_spinlock_irq!(space, "soft_pci_space"),
                silent: AtomicFlag::new(false),
                fresh: AtomicFlag::new(true),
                kind,
                memory,
                pool,
            }),
            GFP_KERNEL,
        )
    }

    /// Lets the device stop or resume answering.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Release);
    }

    /// Returns a register.
    pub(crate) fn register(&self, at: usize) -> u32 {
        self.space.lock().read(at, 4)
    }

    /// Reads memory at an address as seen by the device.
    pub(crate) fn load(&self, address: u64, to: &mut [u8]) -> Result {
        self.memory.read(Self::position(address)?, to)
    }

    /// Writes memory at an address as seen by the device.
    pub(crate) fn store(&self, address: u64, from: &[u8]) -> Result {
        self.memory.write(Self::position(address)?, from)
    }

    fn position(address: u64) -> Result<usize> {
        let position = address.checked_sub(POOL_BASE).ok_or(EFAULT)?;
        Ok(position as usize)
    }

    /// Returns true if the device answers at `devfn`.
    fn is_at(&self, devfn: u8) -> bool {
        devfn == 0 && !self.silent.load(Acquire)
    }
}

impl Functions for SoftDevice {
    fn read(&self, devfn: u8, offset: u16, width: Width) -> Option<u32> {
        self.is_at(devfn)
            .then(|| self.space.lock().read(offset.into(), width.bytes()))
    }

    fn write(&self, devfn: u8, offset: u16, width: Width, value: u32) -> Option<()> {
        self.is_at(devfn).then(|| {
            let mut space = self.space.lock();
            space.write(offset.into(), width.bytes(), value);
        })
    }

    fn message(&self, vector: u32) -> Message {
        Message {
            address: DOORBELL,
            data: vector,
        }
    }
}
