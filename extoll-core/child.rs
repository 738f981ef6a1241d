// SPDX-License-Identifier: GPL-2.0-only

//! Auxiliary devices "extoll.NAME" of each NIC. Modules above bind to them to get the NIC's
//! [`Nic`]. Process context.

use crate::{nic::Nic, stats::Reason};
use core::ops::Deref;
use kernel::{
    auxiliary,
    device::Bound,
    prelude::*,
    sync::{
        atomic::{Full, Relaxed},
        Arc,
    },
    time::{delay::fsleep, Delta, Instant, Monotonic},
    types::CovariantForLt,
};

/// Name of the module that registers the devices; first part of the match string.
pub const MODULE: &CStr = c"extoll";
/// Device of the Ethernet driver (exn.ko).
pub const EXN: &CStr = c"exn";
/// Device for raw access to ports, for benchmarks and tests (extoll_bench.ko).
pub const RAW: &CStr = c"raw";
/// Device of the socket driver (af_extl.ko).
pub const AF_EXTL: &CStr = c"af_extl";
/// Device of the Lustre network driver (kexlnd.ko).
pub const EXLND: &CStr = c"exlnd";
/// Device of the driver for PCI devices of other nodes (vpci.ko).
pub const VPCI: &CStr = c"vpci";
/// Names of all devices in the order of their registration; second part of the match string.
pub const NAMES: [&CStr; 5] = [EXN, RAW, AF_EXTL, EXLND, VPCI];

/// Time in milliseconds for which unbinding waits until all handles are dropped.
const PATIENCE_MS: i64 = 5000;

/// Type of the data that is registered with each auxiliary device.
pub(crate) type Data = CovariantForLt!(Arc<Nic>);

/// Handle of a NIC for a module above.
///
/// A module may keep handles in any number of objects. When its `unbind` returns, it must have
/// dropped all handles and everything opened on them. Unbinding the NIC waits up to five seconds
/// for that, then reports the number of remaining handles (reason 42) and continues. With a
/// remaining handle, registers cannot be accessed, and operations fail with `Down` or `ENODEV`.
///
/// Dropping a handle may free the NIC, and may sleep.
pub struct Handle(Arc<Nic>);

impl Handle {
    fn new(nic: &Arc<Nic>) -> Self {
        nic.handles().fetch_add(1, Relaxed);
        Self(nic.clone())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Deref for Handle {
    type Target = Arc<Nic>;

    fn deref(&self) -> &Arc<Nic> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.handles().fetch_sub(1, Full);
    }
}

/// Returns the NIC of an auxiliary device of this module. Called in probe.
///
/// # Errors
///
/// `ENOENT` or `EINVAL` if the device was not registered by this module.
pub fn nic(device: &auxiliary::Device<Bound>) -> Result<Handle> {
    Ok(Handle::new(&*device.registration_data::<Data>()?))
}

/// Opens a port by calling `attempt`, and retries for a second after `EBUSY`, because commands of
/// the VPID's last owner may be pending for a moment. Sleeps.
///
/// # Errors
///
/// The errors of `attempt`.
pub fn patiently<R>(mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 0..20 {
        match attempt() {
            Err(e) if e == EBUSY => fsleep(Delta::from_millis(50)),
            other => return other,
        }
    }
    attempt()
}

/// Waits until the modules above, which were unbound, have dropped their handles. May sleep.
pub(crate) fn wait_for_handles(nic: &Nic) {
    let start = Instant::<Monotonic>::now();
    loop {
        let left = nic.handles().load(Relaxed);
        if left == 0 {
            return;
        }
        if start.elapsed().as_millis() >= PATIENCE_MS {
            nic.context().error(Reason::HandleLeaked, left);
            return;
        }
        fsleep(Delta::from_millis(5));
    }
}
