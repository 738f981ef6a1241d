// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! libsmfu.so: the functions of include/smfu.h, implemented with the crate `extoll`.
//!
//! C programs call the exported functions and must observe the contract of the header. Pointers are
//! null or valid. Handles and mappings were created by this library and have not been closed or
//! unmapped. Functions of type int return -EINVAL for null.
#![deny(missing_docs)]

use extoll::{Device, Error, Smfu, Window};
use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

/// # Safety
/// `name` is null or a zero-terminated string; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn smfu_open(name: *const c_char, to: *mut *mut Smfu) -> c_int {
    let device = if name.is_null() {
        Device::default()
    } else {
        Device::at(OsStr::from_bytes(
            // SAFETY: `name` is not null, and this function requires that it is zero-terminated.
            unsafe { CStr::from_ptr(name) }.to_bytes(),
        ))
    };
    // SAFETY: `to` meets this function's safety requirements.
    unsafe { give(to, || Smfu::open(&device)) }
}

/// Creates an object and stores a pointer to it.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn give<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Error>) -> c_int {
    if to.is_null() {
        return -libc::EINVAL;
    }
    match make() {
        Ok(made) => {
            // SAFETY: the pointer is not null, so the caller guarantees that it is valid.
            unsafe { to.write(Box::into_raw(Box::new(made))) };
            0
        }
        Err(e) => -e.errno(),
    }
}

/// # Safety
/// `smfu` is null or an open handle that the caller does not use after this call.
#[no_mangle]
unsafe extern "C" fn smfu_close(smfu: *mut Smfu) {
    if !smfu.is_null() {
        // SAFETY: `smfu_open` created the object, and the caller does not use it after this call.
        drop(unsafe { Box::from_raw(smfu) });
    }
}

/// # Safety
/// `smfu` is null or an open handle.
#[no_mangle]
unsafe extern "C" fn smfu_node(smfu: *const Smfu) -> u16 {
    // SAFETY: `smfu` meets this function's safety requirements.
    unsafe { smfu.as_ref() }.map_or(u16::MAX, |s| s.node().0)
}

/// # Safety
/// `smfu` is null or an open handle.
#[no_mangle]
unsafe extern "C" fn smfu_exported(smfu: *const Smfu) -> u64 {
    // SAFETY: `smfu` meets this function's safety requirements.
    unsafe { smfu.as_ref() }.map_or(0, Smfu::exported)
}

/// # Safety
/// `smfu` is null or an open handle; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn smfu_map_window(smfu: *const Smfu, len: usize, to: *mut *mut Window) -> c_int {
    // SAFETY: `smfu` and `to` meet this function's safety requirements.
    match unsafe { smfu.as_ref() } {
        // SAFETY: `to` meets this function's safety requirements.
        Some(s) if len > 0 => unsafe { give(to, || s.window(len)) },
        _ => -libc::EINVAL,
    }
}

/// # Safety
/// `smfu` is null or an open handle; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn smfu_map_local(smfu: *const Smfu, len: usize, to: *mut *mut Window) -> c_int {
    // SAFETY: `smfu` and `to` meet this function's safety requirements.
    match unsafe { smfu.as_ref() } {
        // SAFETY: `to` meets this function's safety requirements.
        Some(s) if len > 0 => unsafe { give(to, || s.local(len)) },
        _ => -libc::EINVAL,
    }
}

/// # Safety
/// `mapping` is null or a valid mapping.
#[no_mangle]
unsafe extern "C" fn smfu_address(mapping: *const Window) -> *mut c_void {
    // SAFETY: `mapping` meets this function's safety requirements.
    unsafe { mapping.as_ref() }.map_or(std::ptr::null_mut(), |m| m.address().cast())
}

/// # Safety
/// `mapping` is null or a valid mapping.
#[no_mangle]
unsafe extern "C" fn smfu_length(mapping: *const Window) -> usize {
    // SAFETY: `mapping` meets this function's safety requirements.
    unsafe { mapping.as_ref() }.map_or(0, Window::len)
}

/// # Safety
/// `mapping` is null or a valid mapping that the caller does not use after this call.
#[no_mangle]
unsafe extern "C" fn smfu_unmap(mapping: *mut Window) {
    if !mapping.is_null() {
        // SAFETY: this library created the object, and the caller does not use it after this call.
        drop(unsafe { Box::from_raw(mapping) });
    }
}

#[no_mangle]
extern "C" fn smfu_flush() {
    extoll::flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn null_and_missing_devices_are_answered() {
        let (mut smfu, mut mapping) = (null_mut(), null_mut());
        // SAFETY: all pointers are valid or null.
        unsafe {
            assert_eq!(
                smfu_open(c"/nonexistent".as_ptr(), &mut smfu),
                -libc::ENODEV
            );
            assert_eq!(smfu_open(null(), null_mut()), -libc::EINVAL);
            assert_eq!(smfu_map_local(smfu, 4096, &mut mapping), -libc::EINVAL);
            assert!(smfu_address(mapping).is_null());
            smfu_unmap(mapping);
            smfu_close(smfu);
        }
        smfu_flush();
    }
}
