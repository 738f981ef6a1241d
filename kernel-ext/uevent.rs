// SPDX-License-Identifier: GPL-2.0-only

//! Events about a device for user space (udev, netlink).

use crate::{bindings, sysfs::raw};
use kernel::{device, error::to_result, prelude::*};

/// Maximum number of variables of one event.
const MAX: usize = 7;

/// Sends a `change` event of `device` with up to seven variables of the form `NAME=value`. May
/// sleep.
///
/// # Errors
///
/// `EINVAL` for too many variables, `ENOMEM`, and the errors of `kobject_uevent_env`.
pub fn changed(device: &device::Device, variables: &[&CStr]) -> Result {
    if variables.len() > MAX {
        return Err(EINVAL);
    }
    let mut list = [core::ptr::null_mut(); MAX + 1];
    for (place, variable) in list.iter_mut().zip(variables) {
        *place = variable.as_char_ptr().cast_mut();
    }
    // SAFETY: the caller's reference keeps the device. The list ends with a null pointer. The
    // strings live during the call, which does not change them.
    to_result(unsafe {
        bindings::kobject_uevent_env(
            &raw mut (*raw(device)).kobj,
            bindings::kobject_action_KOBJ_CHANGE,
            list.as_mut_ptr(),
        )
    })
}
