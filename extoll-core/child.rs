// SPDX-License-Identifier: GPL-2.0-only

//! The auxiliary devices "extoll.NAME" that every NIC has: how a module above gets at its [`Nic`].

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

/// Name of the module that registers the devices; first part of the match.
pub const MODULE: &CStr = c"extoll";
/// The network driver (exn.ko).
pub const EXN: &CStr = c"exn";
/// Raw access to ports, for measurements and tests (extoll_bench.ko).
pub const RAW: &CStr = c"raw";
/// A module for sockets.
pub const AF_EXTL: &CStr = c"af_extl";
/// A Lustre network driver.
pub const EXLND: &CStr = c"exlnd";
/// A module for PCI devices of other nodes.
pub const VPCI: &CStr = c"vpci";
/// Names of all devices, in the order in which they are registered; second part of the match.
pub const NAMES: [&CStr; 5] = [EXN, RAW, AF_EXTL, EXLND, VPCI];

/// How long unbinding waits for handles, in milliseconds.
const PATIENCE_MS: i64 = 5000;

/// Type of the registration data.
pub(crate) type Data = CovariantForLt!(Arc<Nic>);

/// A module's handle of a NIC.
///
/// It may be kept in as many objects as the module likes, which are not bound to the time of the
/// binding. All of it, and everything opened on it, must be dropped when the module's `unbind` has
/// returned, though: unbinding the NIC waits for that five seconds, and then reports how many are
/// left (reason 42) and goes on. What is left is of no use then: registers are not reached any
/// more, operations fail with `Down` or `ENODEV`.
///
/// Dropping it may free the NIC, and may sleep.
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

/// The NIC that an auxiliary device of this module stands for. To be called in probe.
///
/// # Errors
///
/// `ENOENT` or `EINVAL` if the device was not registered by this module.
pub fn nic(device: &auxiliary::Device<Bound>) -> Result<Handle> {
    Ok(Handle::new(&*device.registration_data::<Data>()?))
}

/// Opens a port by `attempt`; its last owner may still have something on its way for a moment, so `EBUSY` is
/// tried again for a second. Sleeps.
///
/// # Errors
///
/// Those of `attempt`.
pub fn patiently<R>(mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 0..20 {
        match attempt() {
            Err(e) if e == EBUSY => fsleep(Delta::from_millis(50)),
            other => return other,
        }
    }
    attempt()
}

/// Waits until the modules above, which are unbound, have dropped their handles. May sleep.
pub(crate) fn wait_for_handles(nic: &Nic) {
    let start = Instant::<Monotonic>::now();
    loop {
        let left = nic.handles().load(Relaxed);
        if left == 0 {
            return;
        }
        if start.elapsed().as_millis() >= PATIENCE_MS {
            nic.context().error(Reason::HandleLeft, left);
            return;
        }
        fsleep(Delta::from_millis(5));
    }
}
