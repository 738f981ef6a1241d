// SPDX-License-Identifier: GPL-2.0-only

//! The auxiliary devices "extoll.exn" and "extoll.raw" that every NIC has: how a module above gets at its [`Nic`].

use crate::nic::Nic;
use kernel::{auxiliary, device::Bound, prelude::*, sync::Arc, types::CovariantForLt};

/// Name of the module that registers the device; first part of the match.
pub const MODULE: &CStr = c"extoll";
/// Name of the device for the network driver; second part of the match.
pub const NAME: &CStr = c"exn";
/// Name of the device for raw access to ports (bench/raw); second part of the match.
pub const RAW: &CStr = c"raw";

/// Type of the registration data.
pub(crate) type Data = CovariantForLt!(Arc<Nic>);

/// The NIC that an auxiliary device of this module stands for. To be called in probe; drop the reference, and everything
/// opened on it, before or in unbind.
///
/// # Errors
///
/// `ENOENT` or `EINVAL` if the device was not registered by this module.
pub fn nic(device: &auxiliary::Device<Bound>) -> Result<Arc<Nic>> {
    Ok((*device.registration_data::<Data>()?).clone())
}
