// SPDX-License-Identifier: GPL-2.0-only

//! The device: its configuration space, and what it does to memory.

use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{Acquire, AtomicFlag, Release},
        Arc, SpinLockIrq,
    },
};
use kernel_ext::pci_host::{Contiguous, Functions, Message, Pool, Width};

/// IDs, which no hardware has.
pub(crate) const VENDOR: u16 = 0x1fe5;
pub(crate) const DEVICE: u16 = 0xe711;
/// Bytes of BAR 0.
pub(crate) const BAR_BYTES: u64 = 0x4000;
/// MSI-X table and pending bits in BAR 0.
pub(crate) const TABLE: u32 = 0x2000;
const PENDING: u32 = 0x3000;
/// Vectors that the device has, by MSI-X and by plain MSI.
pub(crate) const VECTORS: u32 = 8;
/// Places of capabilities.
const EXPRESS: usize = 0x40;
pub(crate) const MSI: usize = 0x80;
const MSIX: usize = 0xa0;
/// Where the device stores to interrupt.
pub(crate) const DOORBELL: u64 = 0x12_3456_7000;
/// Bytes of memory for DMA, and where the device has it: out of reach for 32 bits.
pub(crate) const POOL_BYTES: usize = 1 << 20;
pub(crate) const POOL_BASE: u64 = 0x34_0010_0000;

/// Bytes of configuration space that are not 0.
const BYTES: usize = 256;

/// Configuration space, and which of its bits can be written.
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

    /// With BAR 0 at a bus address, and a pin that must not be seen.
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
        // An endpoint, version 2.
        s.put(EXPRESS, 4, 0x0002_0010 | (MSI as u32) << 8, 0);
        s.put(EXPRESS + 4, 4, 0x8000, 0);
        s.put(EXPRESS + 8, 4, 0x2010, 0xffff);
        s.put(EXPRESS + 0xc, 4, 0x11, 0);
        s.put(EXPRESS + 0x28, 4, 0, 0xffff);
        // 8 messages, 64 bits of address.
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

/// How a device is made.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// The driver uses MSI-X, or plain MSI.
    pub(crate) msix: bool,
    /// There is memory behind BAR 0.
    pub(crate) ram: bool,
    /// The driver leaves a piece of memory behind.
    pub(crate) leaks: bool,
}

#[pin_data]
pub(crate) struct SoftDevice {
    #[pin]
    space: SpinLockIrq<KBox<Space>>,
    silent: AtomicFlag,
    /// No driver has had it.
    pub(crate) fresh: AtomicFlag,
    pub(crate) kind: Kind,
    pub(crate) memory: Arc<Contiguous>,
    pub(crate) pool: Arc<Pool>,
}

impl SoftDevice {
    /// A device with BAR 0 at a bus address.
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

    /// From now on it does not answer any more, or it does.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Release);
    }

    /// A register.
    pub(crate) fn register(&self, at: usize) -> u32 {
        self.space.lock().read(at, 4)
    }

    /// What the device finds at an address.
    pub(crate) fn load(&self, address: u64, to: &mut [u8]) -> Result {
        self.memory.read(Self::position(address)?, to)
    }

    /// Has the device write to an address.
    pub(crate) fn store(&self, address: u64, from: &[u8]) -> Result {
        self.memory.write(Self::position(address)?, from)
    }

    fn position(address: u64) -> Result<usize> {
        let position = address.checked_sub(POOL_BASE).ok_or(EFAULT)?;
        Ok(position as usize)
    }

    /// Whether it answers at `devfn`.
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
