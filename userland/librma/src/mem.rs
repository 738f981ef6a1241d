// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Registered memory: regions of a port.

use super::{borrow, error, give, status, Endpoint, Outcome, Region, Status};
use extoll::RegionArg;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Registers the pages of a range and returns the region.
///
/// # Safety
/// `port` is null or an open port. The header tells programs that peers may write the memory.
unsafe fn register(port: *mut Endpoint, address: *mut c_void, size: usize) -> Outcome<Region> {
    // SAFETY: the caller meets the safety requirements of this function.
    let endpoint = unsafe { borrow(port, error::INV_PORT)? };
    // SAFETY: the memory belongs to a C program, which has no Rust references to it. The header
    // tells programs that peers may write it.
    let arg = unsafe { endpoint.port.register_memory(address as u64, size as u64) }
        .map_err(|e| error::of(&e))?;
    Ok(Region {
        list: [null_mut(); 2],
        start: arg.start() as *mut c_void,
        nla: arg.nla(),
        count: arg.count(),
        offset: arg.offset(),
        end: (arg.start() + arg.size()) as *mut c_void,
        size: arg.size() as usize,
        refcount: 1,
        endpoint: port.cast(),
        parent: null_mut(),
    })
}

/// # Safety
/// `port` is null or an open port; the memory at `address` belongs to the program, and peers may
/// change it while it is registered; `to` is null or valid for a write.
#[no_mangle]
pub unsafe extern "C" fn rma2_register(
    port: *mut Endpoint,
    address: *mut c_void,
    size: usize,
    to: *mut *mut Region,
) -> Status {
    if to.is_null() {
        return error::INV_VALUE;
    }
    // SAFETY: `port`, `address` and `to` meet this function's safety requirements; `to` is not
    // null.
    status(unsafe {
        register(port, address, size).and_then(|r| give(to, Box::into_raw(Box::new(r))))
    })
}

/// Registers memory like rma2_register. There is no cache, because registering is fast enough
/// without one.
///
/// # Safety
/// `port` is null or an open port; the memory at `address` belongs to the program, and peers may
/// change it while it is registered; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_register_cached(
    port: *mut Endpoint,
    address: *mut c_void,
    size: usize,
    to: *mut *mut Region,
) -> Status {
    // SAFETY: `port`, `address` and `to` meet this function's safety requirements.
    unsafe { rma2_register(port, address, size, to) }
}

/// Registers the page that contains `address`.
///
/// # Safety
/// `port` is null or an open port; the memory at `address` belongs to the program, and peers may
/// change it while it is registered; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_register_adhoc(
    port: *mut Endpoint,
    address: *mut c_void,
    to: *mut *mut Region,
) -> Status {
    let page = (address as usize & !0xFFF) as *mut c_void;
    // SAFETY: `port` and `to` meet this function's safety requirements.
    unsafe { rma2_register(port, page, 4096, to) }
}

/// # Safety
/// `port` is null or an open port; the memory at `address` belongs to the program, and peers may
/// change it while it is registered; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_register_nomalloc(
    port: *mut Endpoint,
    address: *mut c_void,
    size: usize,
    to: *mut Region,
) -> Status {
    if to.is_null() {
        return error::INV_VALUE;
    }
    // SAFETY: `port`, `address` and `to` meet this function's safety requirements; `to` is not
    // null.
    status(unsafe { register(port, address, size).and_then(|r| give(to, r)) })
}

/// # Safety
/// `port` is null or an open port; `region` is null or a region of this library that the caller
/// does not use after this call.
#[no_mangle]
unsafe extern "C" fn rma2_unregister_nofree(port: *mut Endpoint, region: *mut Region) -> Status {
    let run = || -> Outcome<()> {
        // SAFETY: `port` meets this function's safety requirements.
        let endpoint = unsafe { borrow(port, error::INV_PORT)? };
        // SAFETY: `region` meets this function's safety requirements.
        let r = unsafe { borrow(region, error::INV_VALUE)? };
        let words = [
            0,
            0,
            r.start as u64,
            r.nla,
            u64::from(r.count) | (u64::from(r.offset) << 32),
            r.end as u64,
            r.size as u64,
            0,
            0,
            0,
        ];
        endpoint
            .port
            .unregister_memory(RegionArg::from_words(words))
            .map_err(|e| match e.errno() {
                libc::ENODEV => error::NO_DEVICE,
                libc::ETIMEDOUT => error::NOT_FREE,
                _ => error::ATU,
            })
    };
    status(run())
}

/// # Safety
/// `port` is null or an open port; `region` is null or a region of this library that the caller
/// does not use after this call.
#[no_mangle]
pub unsafe extern "C" fn rma2_unregister(port: *mut Endpoint, region: *mut Region) -> Status {
    // SAFETY: `port` and `region` meet this function's safety requirements.
    let result = unsafe { rma2_unregister_nofree(port, region) };
    // The registration has also ended if the NIC was removed or did not confirm the end in time.
    if matches!(result, error::SUCCESS | error::NO_DEVICE | error::NOT_FREE) && !region.is_null() {
        // SAFETY: `rma2_register` created the object, and the caller does not use it after this
        // call.
        drop(unsafe { Box::from_raw(region) });
    }
    result
}

/// # Safety
/// `port` is null or an open port; `region` is null or a region of this library that the caller
/// does not use after this call.
#[no_mangle]
unsafe extern "C" fn rma2_unregister_cached(port: *mut Endpoint, region: *mut Region) -> Status {
    // SAFETY: `port` and `region` meet this function's safety requirements.
    unsafe { rma2_unregister(port, region) }
}

/// # Safety
/// `port` is null or an open port; `region` is null or a region of this library that the caller
/// does not use after this call.
#[no_mangle]
unsafe extern "C" fn rma2_unregister_adhoc(port: *mut Endpoint, region: *mut Region) -> Status {
    // SAFETY: `port` and `region` meet this function's safety requirements.
    unsafe { rma2_unregister(port, region) }
}

/// Stores the value that `read` returns for a region.
///
/// # Safety
/// `region` is null or valid; `to` is null or valid for a write.
unsafe fn ask<T>(region: *const Region, to: *mut T, read: impl FnOnce(&Region) -> T) -> Status {
    // SAFETY: the caller meets the safety requirements of this function.
    status(unsafe { borrow(region, error::INV_VALUE).and_then(|r| give(to, read(r))) })
}

/// # Safety
/// `region` is null or a region of this library; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_get_nla(region: *const Region, offset: usize, to: *mut u64) -> Status {
    // SAFETY: `region` and `to` meet this function's safety requirements.
    unsafe { ask(region, to, |r| r.nla + u64::from(r.offset) + offset as u64) }
}

/// # Safety
/// `region` is null or a region of this library; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_get_va(
    region: *const Region,
    offset: usize,
    to: *mut *mut c_void,
) -> Status {
    let address = |r: &Region| r.start.wrapping_byte_add(r.offset as usize + offset);
    // SAFETY: `region` and `to` meet this function's safety requirements.
    unsafe { ask(region, to, address) }
}

/// # Safety
/// `region` is null or a region of this library; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_get_size(region: *const Region, to: *mut usize) -> Status {
    // SAFETY: `region` and `to` meet this function's safety requirements.
    unsafe { ask(region, to, |r| r.size) }
}

/// # Safety
/// `region` is null or a region of this library; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn rma2_get_page_count(region: *const Region, to: *mut usize) -> Status {
    // SAFETY: `region` and `to` meet this function's safety requirements.
    unsafe { ask(region, to, |r| r.count as usize) }
}

/// Returns 1 if `test` is true for the start and end addresses of the region and of the range, and
/// 0 otherwise.
///
/// # Safety
/// `region` is null or valid.
unsafe fn compare(
    region: *const Region,
    start: *const c_void,
    size: usize,
    test: impl FnOnce([usize; 2], [usize; 2]) -> bool,
) -> c_int {
    // SAFETY: the caller meets the safety requirements of this function.
    unsafe { borrow(region, 0) }.map_or(0, |r| {
        let range = [start as usize, (start as usize).saturating_add(size)];
        test([r.start as usize, r.end as usize], range).into()
    })
}

/// # Safety
/// `region` is null or a region of this library; `start` is only compared.
#[no_mangle]
unsafe extern "C" fn rma2_get_region_contained(
    region: *const Region,
    start: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: `region` and `start` meet this function's safety requirements.
    unsafe { compare(region, start, size, |r, x| r[0] <= x[0] && x[1] <= r[1]) }
}

/// # Safety
/// `region` is null or a region of this library; `start` is only compared.
#[no_mangle]
unsafe extern "C" fn rma2_get_region_overlap(
    region: *const Region,
    start: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: `region` and `start` meet this function's safety requirements.
    unsafe { compare(region, start, size, |r, x| r[0] < x[1] && x[0] < r[1]) }
}

/// # Safety
/// `region` is null or a region of this library; `start` is only compared.
#[no_mangle]
unsafe extern "C" fn rma2_get_region_equal(
    region: *const Region,
    start: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: `region` and `start` meet this function's safety requirements.
    unsafe { compare(region, start, size, |r, x| r == x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_answer() {
        let region = Region {
            list: [null_mut(); 2],
            start: 0x1_0000 as *mut c_void,
            nla: 0x5000,
            count: 2,
            offset: 0x10,
            end: 0x1_2000 as *mut c_void,
            size: 8192,
            refcount: 1,
            endpoint: null_mut(),
            parent: null_mut(),
        };
        let at = |a: usize| a as *const c_void;
        let (mut nla, mut va, mut size) = (0, null_mut(), 0);
        // SAFETY: all pointers are valid, except for the last pointer, which is null.
        unsafe {
            assert_eq!(rma2_get_nla(&region, 4, &mut nla), 0);
            assert_eq!(rma2_get_va(&region, 4, &mut va), 0);
            assert_eq!(rma2_get_size(&region, &mut size), 0);
            assert_eq!((nla, va as usize, size), (0x5014, 0x1_0014, 8192));
            assert_eq!(rma2_get_page_count(&region, &mut size), 0);
            assert_eq!(size, 2);
            assert_eq!(rma2_get_region_contained(&region, at(0x1_1000), 0x1000), 1);
            assert_eq!(rma2_get_region_contained(&region, at(0x1_1000), 0x1001), 0);
            assert_eq!(rma2_get_region_overlap(&region, at(0x1_1FFF), 9), 1);
            assert_eq!(rma2_get_region_overlap(&region, at(0x1_2000), 9), 0);
            assert_eq!(rma2_get_region_equal(&region, at(0x1_0000), 8192), 1);
            assert_eq!(
                rma2_get_nla(std::ptr::null(), 0, &mut nla),
                error::INV_VALUE
            );
        }
    }
}
