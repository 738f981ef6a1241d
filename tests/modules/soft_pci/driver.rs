// SPDX-License-Identifier: GPL-2.0-only

//! The driver of the device, which checks that the device behaves like any PCI device.

use crate::{
    device::{
        SoftDevice, BAR_BYTES, DEVICE, DOORBELL, MSI, POOL_BASE, POOL_BYTES, TABLE, VECTORS, VENDOR,
    },
    record::{check, RECORD},
    CURRENT,
};
use extoll_core::dma::DmaWords;
use kernel::{
    device::{Bound, Core},
    dma::DataDirection,
    io::Io,
    pci,
    prelude::*,
    scatterlist::{Owned, SGTable},
    sync::{
        atomic::{Full, Relaxed},
        Arc,
    },
};
use kernel_ext::{
    mem::PAGE,
    pci::{device_id, Enabled, Region},
    reset::{ResetClient, ResetWatch},
    testing::SyncMapping,
    vectors::{VectorHandler, Vectors},
};

/// Registers of the configuration space.
const ID: usize = 0;
const PIN: usize = 0x3d;

pub(crate) struct Driver;

kernel::pci_device_table!(
    PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(device_id(VENDOR, DEVICE), ())]
);

/// Counts interrupts.
struct Counter;

impl VectorHandler for Counter {
    fn handle(&self, vector: u32) {
        if let Some(count) = RECORD.handled.get(vector as usize) {
            count.add(1, Relaxed);
        }
    }
}

/// Counts notifications of the loss of the device.
struct ResetEvents;

impl ResetClient for ResetEvents {
    fn prepare_reset(_: &Arc<Self>, reachable: bool) {
        check!(!reachable, "a lost device is reported as reachable");
        RECORD.notified.add(1, Relaxed);
    }
}

/// Resources of the driver for a device.
pub(crate) struct Data<'a> {
    pdev: &'a pci::Device<Bound>,
    _watch: Pin<KBox<ResetWatch<ResetEvents>>>,
    /// Interrupt vectors, which are requested until removal.
    _vectors: Pin<KBox<Vectors<'a, Counter>>>,
    _mapping: SyncMapping<'a>,
    _words: DmaWords,
    _enabled: Enabled<'a>,
}

impl Drop for Data<'_> {
    fn drop(&mut self) {
        RECORD.id_at_end.store(read_id(self.pdev), Relaxed);
    }
}

fn read_id(pdev: &pci::Device<Bound>) -> u32 {
    pdev.config_space().try_read32(ID).unwrap_or(0)
}

/// Returns bytes that are unlikely to occur by chance.
fn pattern(seed: u32, n: usize) -> u8 {
    (n as u32)
        .wrapping_mul(0x9e37_79b1)
        .rotate_left(9)
        .wrapping_add(seed) as u8
}

fn filled(seed: u32, bytes: usize) -> Result<KVec<u8>> {
    let mut list = KVec::with_capacity(bytes, GFP_KERNEL)?;
    for n in 0..bytes {
        list.push(pattern(seed, n), GFP_KERNEL)?;
    }
    Ok(list)
}

/// Returns memory as the device sees it.
fn seen(soft: &SoftDevice, address: u64, bytes: usize) -> Result<KVec<u8>> {
    let mut list = KVec::from_elem(0u8, bytes, GFP_KERNEL)?;
    soft.load(address, &mut list)?;
    Ok(list)
}

/// Checks coherent memory: both sides see each other's writes, and freed memory is cleared.
fn coherent(soft: &SoftDevice, pdev: &pci::Device<Bound>) -> Result {
    let address = {
        let words = DmaWords::new(pdev.as_ref(), 3 * PAGE / 8)?;
        let address = words.address().0;
        check!(
            address % (4 * PAGE) as u64 == 0,
            "coherent memory is not aligned to its size"
        );
        check!(
            (POOL_BASE..POOL_BASE + POOL_BYTES as u64).contains(&address),
            "coherent memory outside of the pool"
        );
        check!(
            (0..3 * PAGE / 8).all(|n| words.read(n) == 0),
            "coherent memory is not clear"
        );
        words.write(5, 0x0102_0304_0506_0708);
        check!(
            seen(soft, address + 40, 2)?[..] == [8, 7],
            "the device does not see coherent memory"
        );
        soft.store(address + 48, &[0x5a])?;
        check!(
            words.read(6) == 0x5a,
            "coherent memory does not show a write by the device"
        );
        address
    };
    check!(
        seen(soft, address, 3 * PAGE)?.iter().all(|b| *b == 0),
        "freed coherent memory is not cleared"
    );
    Ok(())
}

/// Maps a part of a buffer. The device must see exactly these bytes.
fn to_device(soft: &SoftDevice, pdev: &pci::Device<Bound>, first: usize, bytes: usize) -> Result {
    let buffer = filled(1, 4 * PAGE)?;
    let want = filled(1, 4 * PAGE)?;
    let place = buffer.as_ptr().addr() + first;
    let part = first..first + bytes;
    let mut mapping =
        SyncMapping::new(pdev.as_ref(), buffer, part.clone(), DataDirection::ToDevice)?;
    let address = mapping.address();
    check!(
        address as usize % PAGE == place % PAGE,
        "the offset in the page is not kept"
    );
    check!(
        Some(&seen(soft, address, bytes)?[..]) == want.get(part),
        "the device sees other bytes than were mapped"
    );
    // No other byte of the buffer is visible.
    if place % 2048 != 0 {
        check!(
            seen(soft, address - 1, 1)?[..] == [0],
            "the device sees the byte before the mapping"
        );
    }
    if (place + bytes) % 2048 != 0 {
        check!(
            seen(soft, address + bytes as u64, 1)?[..] == [0],
            "the device sees the byte behind the mapping"
        );
    }
    mapping.to_cpu();
    if let Some(first) = mapping.bytes_mut().and_then(|b| b.first_mut()) {
        *first = 0xee;
    }
    mapping.to_device();
    check!(
        seen(soft, address, 1)?[..] == [0xee],
        "the device does not see synchronised bytes"
    );
    soft.store(address, &[0x11])?;
    let back = mapping.end();
    check!(
        back.get(first) == Some(&0xee),
        "bytes that the device may not write were copied back"
    );
    check!(
        seen(soft, address, bytes)?.iter().all(|b| *b == 0),
        "the memory of an ended mapping is not cleared"
    );
    Ok(())
}

/// Checks that the device's writes are visible after synchronisation for the CPU, and other bytes
/// are unchanged.
fn from_device(soft: &SoftDevice, pdev: &pci::Device<Bound>) -> Result {
    let mut mapping = SyncMapping::new(
        pdev.as_ref(),
        filled(2, 3000)?,
        100..2900,
        DataDirection::FromDevice,
    )?;
    let address = mapping.address();
    soft.store(address + 7, &[1, 2, 3])?;
    mapping.to_cpu();
    let bytes = mapping.bytes().ok_or(EIO)?;
    check!(
        bytes.get(7..10) == Some(&[1, 2, 3]),
        "bytes that the device wrote are missing"
    );
    check!(
        bytes.get(6) == Some(&pattern(2, 106)),
        "bytes that the device did not write have changed"
    );
    mapping.to_device();
    soft.store(address + 2799, &[9])?;
    let back = mapping.end();
    check!(
        back.get(107..110) == Some(&[1, 2, 3]),
        "the first bytes that the device wrote are lost"
    );
    check!(
        back.get(2899) == Some(&9),
        "the last byte that the device wrote is lost"
    );
    check!(
        back.get(2900) == Some(&pattern(2, 2900)),
        "a byte behind the mapping has changed"
    );
    Ok(())
}

/// Checks lists of pages.
fn list(soft: &SoftDevice, pdev: &pci::Device<Bound>) -> Result {
    let mut pages = VVec::with_capacity(5 * PAGE, GFP_KERNEL)?;
    for n in 0..5 * PAGE {
        pages.push(pattern(3, n), GFP_KERNEL)?;
    }
    let direction = DataDirection::Bidirectional;
    let table: Pin<KBox<SGTable<Owned<VVec<u8>>>>> = KBox::pin_init(
        SGTable::new(pdev.as_ref(), pages, direction, GFP_KERNEL),
        GFP_KERNEL,
    )?;
    let mut at = 0;
    for entry in table.iter() {
        let bytes = entry.dma_len() as usize;
        let found = seen(soft, entry.dma_address(), bytes)?;
        let right = found.iter().zip(at..).all(|(b, n)| *b == pattern(3, n));
        check!(right, "the device sees other bytes in a list");
        at += bytes;
    }
    check!(at == 5 * PAGE, "a list lacks bytes");
    check!(soft.pool.stats().mapped > 0, "a list is not mapped");
    Ok(())
}

/// Fills the pool. Further mappings must fail without leaks.
fn full(soft: &SoftDevice, pdev: &pci::Device<Bound>) -> Result {
    let (before, mut mappings) = (soft.pool.stats(), KVec::new());
    let bytes = 64 << 10;
    let failed = loop {
        match SyncMapping::new(
            pdev.as_ref(),
            filled(4, bytes)?,
            0..bytes,
            DataDirection::ToDevice,
        ) {
            Ok(mapping) => mappings.push(mapping, GFP_KERNEL)?,
            Err(e) => break e,
        }
        if mappings.len() > POOL_BYTES / bytes {
            break EIO;
        }
    };
    check!(failed == ENOMEM, "a full pool accepts a mapping");
    check!(
        mappings.len() + 2 > POOL_BYTES / bytes,
        "the pool is full too early"
    );
    check!(
        soft.pool.stats().full > before.full,
        "the error of a full pool is not counted"
    );
    for (n, mapping) in mappings.iter().enumerate() {
        // Each mapping has separate memory.
        soft.store(mapping.address(), &[n as u8])?;
    }
    for (n, mapping) in mappings.iter().enumerate() {
        check!(
            seen(soft, mapping.address(), 1)?[..] == [n as u8],
            "two mappings share memory"
        );
    }
    drop(mappings);
    check!(
        soft.pool.stats().used == before.used,
        "slots of ended mappings are lost"
    );
    check!(
        soft.pool.stats().most > before.used,
        "the maximum number of used slots is wrong"
    );
    Ok(())
}

/// Checks the configuration space and the BAR.
fn registers(soft: &SoftDevice, pdev: &pci::Device<Bound>) -> Result {
    let config = pdev.config_space();
    let id = u32::from(DEVICE) << 16 | u32::from(VENDOR);
    check!(config.try_read32(ID)? == id, "wrong IDs");
    check!(config.try_read16(2)? == DEVICE, "wrong ID in 16 bits");
    check!(
        config.try_read8(1)? == (VENDOR >> 8) as u8,
        "wrong ID in 8 bits"
    );
    check!(config.try_read8(PIN)? == 0, "there is an interrupt pin");
    check!(pdev.resource_len(0)? == BAR_BYTES, "BAR 0 has another size");
    if !soft.kind.ram {
        // Without memory behind it, the BAR can only be claimed.
        return Region::claim(pdev, 0, c"soft_pci").map(drop);
    }
    let bar = pdev.iomap_region(0, c"soft_pci")?;
    bar.try_write32(0x1234_5678, 8)?;
    check!(
        bar.try_read32(8)? == 0x1234_5678,
        "BAR 0 does not keep a value"
    );
    Ok(())
}

/// Checks the messages that the PCI core has programmed.
fn messages(soft: &SoftDevice, pdev: &pci::Device<Bound>, count: u32) -> Result {
    let (low, high) = (DOORBELL as u32, (DOORBELL >> 32) as u32);
    if !soft.kind.msix {
        check!(
            soft.register(MSI) >> 16 & 0x71 == 0x31,
            "MSI is not enabled with 8 messages"
        );
        check!(
            soft.register(MSI + 4) == low,
            "wrong address in the capability"
        );
        check!(
            soft.register(MSI + 8) == high,
            "wrong high address in the capability"
        );
        check!(
            soft.register(MSI + 12) % VECTORS == 0,
            "the first of 8 messages is not aligned"
        );
        return Ok(());
    }
    if !soft.kind.ram {
        return Ok(());
    }
    let bar = pdev.iomap_region(0, c"soft_pci")?;
    for vector in 0..count {
        let entry = (TABLE + 16 * vector) as usize;
        check!(bar.try_read32(entry)? == low, "wrong address in the table");
        check!(
            bar.try_read32(entry + 4)? == high,
            "wrong high address in the table"
        );
        check!(
            bar.try_read32(entry + 8)? == vector,
            "wrong data in the table"
        );
        check!(
            bar.try_read32(entry + 12)? & 1 == 0,
            "a vector that is requested is masked"
        );
    }
    Ok(())
}

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Data<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let soft = CURRENT.get().ok_or(ENODEV)?;
        RECORD.probed.add(1, Relaxed);
        let enabled = Enabled::new(pdev)?;
        registers(&soft, pdev)?;
        let bound = pdev.as_ref();
        // Only the first driver can test small masks, because a later driver finds the masks that
        // an earlier driver set.
        if soft.fresh.xchg(false, Full) {
            let refused = soft.pool.stats().refused;
            let early = SyncMapping::new(bound, filled(0, 8)?, 0..8, DataDirection::ToDevice);
            check!(
                early.is_err(),
                "a device with 32 bits of address reaches the pool"
            );
            check!(
                soft.pool.stats().refused > refused,
                "the rejected mapping is not counted"
            );
        }
        enabled.set_dma_mask(pdev)?;
        coherent(&soft, pdev)?;
        for first in [0, 1, 2047, 2048, 4095] {
            for bytes in [1, 2048, 2049, 4096, 10_000] {
                to_device(&soft, pdev, first, bytes)?;
            }
        }
        from_device(&soft, pdev)?;
        list(&soft, pdev)?;
        full(&soft, pdev)?;
        check!(soft.pool.stats().used == 0, "slots are left");
        let vectors = Vectors::new(pdev, VECTORS, soft.kind.msix, c"soft_pci", Counter)?;
        check!(vectors.count() == VECTORS, "not all vectors");
        messages(&soft, pdev, vectors.count())?;
        let mapping = SyncMapping::new(
            bound,
            filled(5, 9000)?,
            0..9000,
            DataDirection::Bidirectional,
        )?;
        if soft.kind.leaks {
            core::mem::forget(DmaWords::new(bound, PAGE / 8)?);
        }
        Ok(Data {
            pdev,
            _watch: KBox::pin_init(
                ResetWatch::new(pdev, Arc::new(ResetEvents, GFP_KERNEL)?),
                GFP_KERNEL,
            )?,
            _vectors: vectors,
            _mapping: mapping,
            _words: DmaWords::new(bound, PAGE / 8)?,
            _enabled: enabled,
        })
    }
}
