// SPDX-License-Identifier: GPL-2.0-only

//! The NICs that are bound, and the devices of this node that are kept for others.

use crate::{lend::Kept, nic::Nic};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use kernel_ext::global::Global;

static ALL: Global<All> = Global::new();

/// Both lists.
pub(crate) struct Lists {
    /// By the order in which they were bound.
    pub(crate) nics: KVec<Arc<Nic>>,
    pub(crate) kept: KVec<Arc<Kept>>,
}

#[pin_data]
struct All {
    #[pin]
    lists: Mutex<Lists>,
}

/// While it exists there are lists.
pub(crate) struct Registered(());

impl Registered {
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let none = Lists {
            nics: KVec::new(),
            kept: KVec::new(),
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

/// Calls `f` with the lists, which nobody changes meanwhile. May sleep.
///
/// # Errors
///
/// `ENODEV`: the module goes.
pub(crate) fn with<R>(f: impl FnOnce(&mut Lists) -> R) -> Result<R> {
    let all = ALL.get().ok_or(ENODEV)?;
    let result = f(&mut all.lists.lock());
    Ok(result)
}

/// A NIC has come: it offers what no NIC offers. May sleep.
///
/// # Errors
///
/// `ENOMEM`, `ENODEV`.
pub(crate) fn add_nic(nic: &Arc<Nic>) -> Result {
    with(|lists| {
        lists.nics.push(nic.clone(), GFP_KERNEL)?;
        for kept in &lists.kept {
            kept.offer(nic);
        }
        Ok(())
    })?
}

/// A NIC goes: it is not found any more. May sleep.
pub(crate) fn remove_nic(nic: &Arc<Nic>) {
    let _ = with(|lists| {
        if let Some(at) = lists.nics.iter().position(|n| Arc::ptr_eq(n, nic)) {
            let _ = lists.nics.remove(at);
        }
    });
}

/// A NIC has gone, and with it what it had lent: others offer that. May sleep.
pub(crate) fn offer_by_others(nic: &Arc<Nic>) {
    let _ = with(|lists| {
        for kept in &lists.kept {
            kept.forget(nic);
        }
        let other = lists.nics.first().cloned();
        if let Some(other) = other {
            for kept in &lists.kept {
                kept.offer(&other);
            }
        }
    });
}

/// A device has come: the first NIC offers it, if there is one. May sleep.
///
/// # Errors
///
/// `ENOMEM`, `ENODEV`.
pub(crate) fn add_kept(kept: &Arc<Kept>) -> Result {
    with(|lists| {
        lists.kept.push(kept.clone(), GFP_KERNEL)?;
        if let Some(nic) = lists.nics.first() {
            kept.offer(nic);
        }
        Ok(())
    })?
}

/// A device goes. May sleep.
pub(crate) fn remove_kept(kept: &Arc<Kept>) {
    let _ = with(|lists| {
        if let Some(at) = lists.kept.iter().position(|k| Arc::ptr_eq(k, kept)) {
            let _ = lists.kept.remove(at);
        }
    });
}

/// The NIC with a number: that of its place in the list. May sleep.
pub(crate) fn nic(number: usize) -> Option<Arc<Nic>> {
    with(|lists| lists.nics.get(number).cloned()).ok()?
}
