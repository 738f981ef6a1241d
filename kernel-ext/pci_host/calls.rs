// SPDX-License-Identifier: GPL-2.0-only

//! Functions that `pci_dma.c` calls for the DMA operations of devices.

use super::Pool;
use crate::bindings;
use core::ptr;
use kernel::{dma::DataDirection, prelude::*};

/// Address of a failed mapping (`DMA_MAPPING_ERROR`).
const MAPPING_ERROR: u64 = u64::MAX;

struct Table(bindings::extoll_pool_calls);

// SAFETY: the table is constant.
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
/// `pool` belongs to a bridge, which keeps it alive as long as it has devices.
unsafe fn of<'a>(pool: *const c_void) -> &'a Pool {
    // SAFETY: by the function's requirements the pointer is a valid pool.
    unsafe { &*pool.cast::<Pool>() }
}

/// # Safety
///
/// Only the DMA operations of a device may call this function, with the pool of its bridge. These
/// requirements apply to all functions below.
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
    // SAFETY: by the function's requirements `pool` is the device's pool.
    let address = unsafe { of(pool) }.map(phys, size, keep, mask, copy, direction);
    address.unwrap_or(MAPPING_ERROR)
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn map_peer(pool: *const c_void, phys: u64, size: usize, mask: u64) -> u64 {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    let address = unsafe { of(pool) }.map_peer(phys, size, mask);
    address.unwrap_or(MAPPING_ERROR)
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn unmap(pool: *const c_void, address: u64, size: usize, copy: bool) {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    unsafe { of(pool) }.unmap(address, size, copy);
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn sync(pool: *const c_void, address: u64, size: usize, to_device: bool) {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    unsafe { of(pool) }.sync(address, size, to_device);
}

/// # Safety
///
/// The requirements of [`map`] apply; `address` must be valid for writes.
unsafe extern "C" fn alloc(
    pool: *const c_void,
    size: usize,
    mask: u64,
    address: *mut u64,
) -> *mut c_void {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    match unsafe { of(pool) }.alloc(size, mask) {
        Some((memory, at)) => {
            // SAFETY: by the function's requirements `address` is valid for writes.
            unsafe { address.write(at) };
            memory.cast()
        }
        None => ptr::null_mut(),
    }
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn free(pool: *const c_void, address: u64, size: usize) {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    unsafe { of(pool) }.free(address, size);
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn reach(pool: *const c_void, mask: u64) -> bool {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    unsafe { of(pool) }.is_reached(mask)
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn mask(pool: *const c_void) -> u64 {
    // The mask has all bits up to the highest bit of the last address.
    // SAFETY: by the function's requirements `pool` is the device's pool.
    u64::MAX >> unsafe { of(pool) }.last().leading_zeros()
}

/// # Safety
///
/// The requirements of [`map`] apply.
unsafe extern "C" fn largest(pool: *const c_void) -> usize {
    // SAFETY: by the function's requirements `pool` is the device's pool.
    unsafe { of(pool) }.largest()
}
