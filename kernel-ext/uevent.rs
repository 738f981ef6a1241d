// SPDX-License-Identifier: GPL-2.0-only

//! Events that user space hears about a device (udev, netlink).

use crate::{bindings, sysfs::raw};
use kernel::{device, error::to_result, prelude::*};

/// Most variables of one event.
const MAX: usize = 7;

/// Sends a `change` event of `device` with variables of the form `NAME=value`, at most seven. May sleep.
///
/// # Errors
///
/// `EINVAL` for too many variables, `ENOMEM`, and those of `kobject_uevent_env`.
pub fn changed(device: &device::Device, variables: &[&CStr]) -> Result {
    if variables.len() > MAX {
        return Err(EINVAL);
    }
    let mut list = [core::ptr::null_mut(); MAX + 1];
    for (place, variable) in list.iter_mut().zip(variables) {
        *place = variable.as_char_ptr().cast_mut();
    }
    // SAFETY: the device is referenced; the list ends with a null pointer and its strings, which are not changed, stay
    // during the call.
    to_result(unsafe {
        bindings::kobject_uevent_env(
            &raw mut (*raw(device)).kobj,
            bindings::kobject_action_KOBJ_CHANGE,
            list.as_mut_ptr(),
        )
    })
}
