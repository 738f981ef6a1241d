// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! libsmfu.so: the functions of include/smfu.h over the `extoll` crate.
//!
//! Every function is called from C and relies on what the header promises: pointers are null or valid, and made by this library
//! and not closed yet. Null is answered with -EINVAL.
#![deny(missing_docs)]

use extoll::{Device, Error, Smfu, Window};
use std::ffi::{c_char, c_int, c_void, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

/// # Safety
/// `name` is null or a string that ends with a zero; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn smfu_open(name: *const c_char, to: *mut *mut Smfu) -> c_int {
    let device = if name.is_null() {
        Device::default()
    } else {
        Device::at(OsStr::from_bytes(
            // SAFETY: a string ended by a zero, as the header says.
            unsafe { CStr::from_ptr(name) }.to_bytes(),
        ))
    };
    // SAFETY: no more of `to` is used than the section above promises.
    unsafe { give(to, || Smfu::open(&device)) }
}

/// Makes something and stores a pointer to it.
///
/// # Safety
/// `to` is null or valid for writing.
unsafe fn give<T>(to: *mut *mut T, make: impl FnOnce() -> Result<T, Error>) -> c_int {
    if to.is_null() {
        return -libc::EINVAL;
    }
    match make() {
        Ok(made) => {
            // SAFETY: not null, so valid.
            unsafe { to.write(Box::into_raw(Box::new(made))) };
            0
        }
        Err(e) => -e.errno(),
    }
}

/// # Safety
/// `smfu` is null or an open handle, which nobody uses any more.
#[no_mangle]
unsafe extern "C" fn smfu_close(smfu: *mut Smfu) {
    if !smfu.is_null() {
        // SAFETY: made by smfu_open and, by the header, not used any more.
        drop(unsafe { Box::from_raw(smfu) });
    }
}

/// # Safety
/// `smfu` is null or an open handle.
#[no_mangle]
unsafe extern "C" fn smfu_node(smfu: *const Smfu) -> u16 {
    // SAFETY: no more of `smfu` is used than the section above promises.
    unsafe { smfu.as_ref() }.map_or(u16::MAX, |s| s.node().0)
}

/// # Safety
/// `smfu` is null or an open handle.
#[no_mangle]
unsafe extern "C" fn smfu_exported(smfu: *const Smfu) -> u64 {
    // SAFETY: no more of `smfu` is used than the section above promises.
    unsafe { smfu.as_ref() }.map_or(0, Smfu::exported)
}

/// # Safety
/// `smfu` is null or an open handle; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn smfu_map_window(smfu: *const Smfu, len: usize, to: *mut *mut Window) -> c_int {
    // SAFETY: no more of `smfu` and `to` is used than the section above promises.
    match unsafe { smfu.as_ref() } {
        // SAFETY: no more of `to` is used than the section above promises.
        Some(s) if len > 0 => unsafe { give(to, || s.window(len)) },
        _ => -libc::EINVAL,
    }
}

/// # Safety
/// `smfu` is null or an open handle; `to` is null or valid for a write.
#[no_mangle]
unsafe extern "C" fn smfu_map_local(smfu: *const Smfu, len: usize, to: *mut *mut Window) -> c_int {
    // SAFETY: no more of `smfu` and `to` is used than the section above promises.
    match unsafe { smfu.as_ref() } {
        // SAFETY: no more of `to` is used than the section above promises.
        Some(s) if len > 0 => unsafe { give(to, || s.local(len)) },
        _ => -libc::EINVAL,
    }
}

/// # Safety
/// `mapping` is null or a mapping that was not unmapped.
#[no_mangle]
unsafe extern "C" fn smfu_address(mapping: *const Window) -> *mut c_void {
    // SAFETY: no more of `mapping` is used than the section above promises.
    unsafe { mapping.as_ref() }.map_or(std::ptr::null_mut(), |m| m.address().cast())
}

/// # Safety
/// `mapping` is null or a mapping that was not unmapped.
#[no_mangle]
unsafe extern "C" fn smfu_length(mapping: *const Window) -> usize {
    // SAFETY: no more of `mapping` is used than the section above promises.
    unsafe { mapping.as_ref() }.map_or(0, Window::len)
}

/// # Safety
/// `mapping` is null or a mapping that was not unmapped, which nobody uses any more.
#[no_mangle]
unsafe extern "C" fn smfu_unmap(mapping: *mut Window) {
    if !mapping.is_null() {
        // SAFETY: made by this library and, by the header, not used any more.
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
        // SAFETY: pointers are valid or null.
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
