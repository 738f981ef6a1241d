// SPDX-License-Identifier: GPL-2.0-only

//! Lists of the bound NICs and of this node's devices to lend. Process context; the mutex of the
//! lists is held while NICs and devices are offered to each other, so it comes before all locks of
//! [`Nic`].

use crate::{lend::OfferedDevice, nic::Nic};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use kernel_ext::global::Global;

static ALL: Global<All> = Global::new();

/// Bound NICs and offered devices of the module.
pub(crate) struct Lists {
    /// NICs in the order in which they were bound.
    pub(crate) nics: KVec<Arc<Nic>>,
    /// Devices bound to the lender driver.
    pub(crate) devices: KVec<Arc<OfferedDevice>>,
}

#[pin_data]
struct All {
    #[pin]
    lists: Mutex<Lists>,
}

/// Owner of the lists; they exist while this value does, i.e. while the module is loaded.
pub(crate) struct Registered(());

impl Registered {
    /// Creates the lists. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let none = Lists {
            nics: KVec::new(),
            devices: KVec::new(),
        };
        let all = pin_init!(All {
            lists <- new_mutex!(none, "vpci_lists"),
        });
        ALL.set(Some(Arc::pin_init(all, GFP_KERNEL)?));
        Ok(Self(()))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        ALL.set(None);
    }
}

/// Calls `f` with the lists locked. May sleep.
///
/// # Errors
///
/// `ENODEV`: the module is being unloaded.
pub(crate) fn with<R>(f: impl FnOnce(&mut Lists) -> R) -> Result<R> {
    let all = ALL.get().ok_or(ENODEV)?;
    let result = f(&mut all.lists.lock());
    Ok(result)
}

/// Adds a NIC and lets it offer the devices that no NIC offers. May sleep.
///
/// # Errors
///
/// `ENOMEM`, `ENODEV`.
pub(crate) fn add_nic(nic: &Arc<Nic>) -> Result {
    with(|lists| {
        lists.nics.push(nic.clone(), GFP_KERNEL)?;
        for offered in &lists.devices {
            offered.offer(nic);
        }
        Ok(())
    })?
}

/// Removes a NIC. May sleep.
pub(crate) fn remove_nic(nic: &Arc<Nic>) {
    let _ = with(|lists| {
        if let Some(at) = lists.nics.iter().position(|n| Arc::ptr_eq(n, nic)) {
            let _ = lists.nics.remove(at);
        }
    });
}

/// Lets another NIC offer the devices of a removed NIC. May sleep.
pub(crate) fn offer_by_others(nic: &Arc<Nic>) {
    let _ = with(|lists| {
        for offered in &lists.devices {
            offered.forget(nic);
        }
        let other = lists.nics.first().cloned();
        if let Some(other) = other {
            for offered in &lists.devices {
                offered.offer(&other);
            }
        }
    });
}

/// Adds a device and lets the first NIC offer the device, if a NIC is bound. May sleep.
///
/// # Errors
///
/// `ENOMEM`, `ENODEV`.
pub(crate) fn add_device(offered: &Arc<OfferedDevice>) -> Result {
    with(|lists| {
        lists.devices.push(offered.clone(), GFP_KERNEL)?;
        if let Some(nic) = lists.nics.first() {
            offered.offer(nic);
        }
        Ok(())
    })?
}

/// Removes a device. May sleep.
pub(crate) fn remove_device(offered: &Arc<OfferedDevice>) {
    let _ = with(|lists| {
        if let Some(at) = lists.devices.iter().position(|k| Arc::ptr_eq(k, offered)) {
            let _ = lists.devices.remove(at);
        }
    });
}

/// Returns the NIC at position `number` of the list. May sleep.
pub(crate) fn nic(number: usize) -> Option<Arc<Nic>> {
    with(|lists| lists.nics.get(number).cloned()).ok()?
}
