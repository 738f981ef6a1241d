// SPDX-License-Identifier: GPL-2.0-only

//! What `pci_dma.c` calls for the DMA operations of devices.

use super::Pool;
use crate::bindings;
use core::ptr;
use kernel::{dma::DataDirection, prelude::*};

/// What a mapping that failed has as address.
const MAPPING_ERROR: u64 = u64::MAX;

struct Table(bindings::extoll_pool_calls);

// SAFETY: never changed.
unsafe impl Sync for Table {}

static TABLE: Table = Table(bindings::extoll_pool_calls {
    map: Some(map),
    map_peer: Some(map_peer),
    unmap: Some(unmap),
    sync: Some(sync),
    alloc: Some(alloc),
    free: Some(free),
    reach: Some(reach),
    mask: Some(mask),
    largest: Some(largest),
});

pub(super) fn table() -> *const bindings::extoll_pool_calls {
    &raw const TABLE.0
}

/// # Safety
///
/// `pool` is that of a bridge, which keeps it as long as there are devices.
unsafe fn of<'a>(pool: *const c_void) -> &'a Pool {
    // SAFETY: by the requirements.
    unsafe { &*pool.cast::<Pool>() }
}

/// # Safety
///
/// To be called for the pool of a bridge by its devices' DMA operations, as all functions here are.
unsafe extern "C" fn map(
    pool: *const c_void,
    phys: u64,
    size: usize,
    keep: u64,
    mask: u64,
    copy: bool,
    direction: bindings::dma_data_direction,
) -> u64 {
    let is = |d: DataDirection| bindings::dma_data_direction::from(d) == direction;
    let direction = if is(DataDirection::ToDevice) {
        DataDirection::ToDevice
    } else if is(DataDirection::FromDevice) {
        DataDirection::FromDevice
    } else {
        DataDirection::Bidirectional
    };
    // SAFETY: by the requirements.
    let address = unsafe { of(pool) }.map(phys, size, keep, mask, copy, direction);
    address.unwrap_or(MAPPING_ERROR)
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn map_peer(pool: *const c_void, phys: u64, size: usize, mask: u64) -> u64 {
    // SAFETY: by the requirements.
    let address = unsafe { of(pool) }.map_peer(phys, size, mask);
    address.unwrap_or(MAPPING_ERROR)
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn unmap(pool: *const c_void, address: u64, size: usize, copy: bool) {
    // SAFETY: by the requirements.
    unsafe { of(pool) }.unmap(address, size, copy);
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn sync(pool: *const c_void, address: u64, size: usize, to_device: bool) {
    // SAFETY: by the requirements.
    unsafe { of(pool) }.sync(address, size, to_device);
}

/// # Safety
///
/// As [`map`]; `address` is the caller's, to be written.
unsafe extern "C" fn alloc(
    pool: *const c_void,
    size: usize,
    mask: u64,
    address: *mut u64,
) -> *mut c_void {
    // SAFETY: by the requirements.
    match unsafe { of(pool) }.alloc(size, mask) {
        Some((memory, at)) => {
            // SAFETY: by the requirements.
            unsafe { address.write(at) };
            memory.cast()
        }
        None => ptr::null_mut(),
    }
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn free(pool: *const c_void, address: u64, size: usize) {
    // SAFETY: by the requirements.
    unsafe { of(pool) }.free(address, size);
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn reach(pool: *const c_void, mask: u64) -> bool {
    // SAFETY: by the requirements.
    unsafe { of(pool) }.is_reached(mask)
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn mask(pool: *const c_void) -> u64 {
    // All ones up to the highest bit of an address.
    // SAFETY: by the requirements.
    u64::MAX >> unsafe { of(pool) }.last().leading_zeros()
}

/// # Safety
///
/// As [`map`].
unsafe extern "C" fn largest(pool: *const c_void) -> usize {
    // SAFETY: by the requirements.
    unsafe { of(pool) }.largest()
}
