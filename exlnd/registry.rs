// SPDX-License-Identifier: GPL-2.0-only

//! List of the bound NICs and of the LNet interfaces that use them. Process context. No function
//! except [`show`] calls an interface with the mutex of the list held.

use crate::ni::Ni;
use extoll_core::child::Handle;
use kernel::{
    fmt, new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use kernel_ext::global::Global;
use wire::ids::NodeId;

static ALL: Global<All> = Global::new();

/// A bound NIC.
struct Entry {
    /// Number of the NIC. LNet's interface on NIC N is `exN`.
    number: u32,
    /// Number of the binding, unique while the module is loaded.
    id: u64,
    handle: Handle,
    /// Set while an interface uses the NIC or is being started on it.
    claimed: bool,
    ni: Option<Arc<Ni>>,
}

/// The bound NICs.
struct Nics {
    bound: KVec<Entry>,
    /// Number of NICs that were bound since the module was loaded.
    count: u64,
}

impl Nics {
    fn find(&mut self, id: u64) -> Option<&mut Entry> {
        self.bound.iter_mut().find(|nic| nic.id == id)
    }

    fn of(&mut self, ni: &Arc<Ni>) -> Option<&mut Entry> {
        let is_own = |nic: &&mut Entry| nic.ni.as_ref().is_some_and(|n| Arc::ptr_eq(n, ni));
        self.bound.iter_mut().find(is_own)
    }
}

#[pin_data]
struct All {
    #[pin]
    nics: Mutex<Nics>,
}

/// Owner of the list. The list exists as long as this value, i.e. while the module is loaded.
pub(crate) struct Registered(());

impl Registered {
    /// Creates the list. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let none = Nics {
            bound: KVec::new(),
            count: 0,
        };
        let all = pin_init!(All {
            nics <- new_mutex!(none, "exlnd_nics"),
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

/// A bound NIC. Dropping the value ends the use of the NIC and may sleep.
pub(crate) struct Bound(u64);

impl Bound {
    /// Adds a NIC under the lowest free number. If all modules of the NIC are loaded, this is also
    /// the number of the NIC's device files. An interface that lost the NIC with this node ID finds
    /// it by [`adopt`]. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV`: the module is being unloaded.
    pub(crate) fn new(handle: Handle) -> Result<Self> {
        let all = ALL.get().ok_or(ENODEV)?;
        let mut nics = all.nics.lock();
        let is_free = |n: &u32| !nics.bound.iter().any(|nic| nic.number == *n);
        let number = (0..=nics.bound.len() as u32).find(is_free);
        let number = number.ok_or(ENODEV)?;
        let id = nics.count;
        nics.count += 1;
        let entry = Entry {
            number,
            id,
            handle,
            claimed: false,
            ni: None,
        };
        nics.bound.push(entry, GFP_KERNEL)?;
        Ok(Self(id))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let Some(all) = ALL.get() else {
            return;
        };
        let entry = {
            let mut nics = all.nics.lock();
            let at = nics.bound.iter().position(|nic| nic.id == self.0);
            at.and_then(|at| nics.bound.remove(at).ok())
        };
        if let Some(ni) = entry.as_ref().and_then(|entry| entry.ni.as_ref()) {
            ni.lose();
        }
    }
}

/// Claim of a NIC for an interface that is being started. Drop releases the NIC unless it was
/// assigned.
pub(crate) struct Claim {
    id: u64,
    handle: Handle,
    assigned: bool,
}

impl Claim {
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.assigned {
            return;
        }
        if let Some(all) = ALL.get() {
            if let Some(nic) = all.nics.lock().find(self.id) {
                nic.claimed = false;
            }
        }
    }
}

/// Claims a NIC. May sleep.
///
/// # Errors
///
/// `ENODEV`: there is no NIC with this number. `EBUSY`: the NIC has an interface.
pub(crate) fn claim(number: u32) -> Result<Claim> {
    let all = ALL.get().ok_or(ENODEV)?;
    let mut nics = all.nics.lock();
    let nic = nics.bound.iter_mut().find(|nic| nic.number == number);
    let nic = nic.ok_or(ENODEV)?;
    if core::mem::replace(&mut nic.claimed, true) {
        return Err(EBUSY);
    }
    Ok(Claim {
        id: nic.id,
        handle: nic.handle.clone(),
        assigned: false,
    })
}

/// Assigns a claimed NIC to its interface. From now on, unbinding the NIC calls [`Ni::lose`]. May
/// sleep.
///
/// # Errors
///
/// `ENODEV`: the NIC was unbound.
pub(crate) fn assign(mut claim: Claim, ni: &Arc<Ni>) -> Result {
    let all = ALL.get().ok_or(ENODEV)?;
    let mut nics = all.nics.lock();
    let nic = nics.find(claim.id).ok_or(ENODEV)?;
    nic.ni = Some(ni.clone());
    claim.assigned = true;
    Ok(())
}

/// Assigns the NIC with a node ID to an interface without a NIC, if the NIC is free and its network
/// is up. From then on, unbinding the NIC calls [`Ni::lose`]. May sleep.
pub(crate) fn adopt(ni: &Arc<Ni>, node: NodeId) -> Option<Handle> {
    let all = ALL.get()?;
    let mut nics = all.nics.lock();
    let fits = |nic: &&mut Entry| {
        let status = nic.handle.status();
        !nic.claimed && status.is_up() && status.node == node
    };
    let nic = nics.bound.iter_mut().find(fits)?;
    nic.claimed = true;
    nic.ni = Some(ni.clone());
    Some(nic.handle.clone())
}

/// Returns whether an interface has a bound NIC. May sleep.
pub(crate) fn has(ni: &Arc<Ni>) -> bool {
    ALL.get()
        .is_some_and(|all| all.nics.lock().of(ni).is_some())
}

/// Releases the NIC of an interface that was stopped or that cannot use the NIC. May sleep.
pub(crate) fn release(ni: &Arc<Ni>) {
    let Some(all) = ALL.get() else {
        return;
    };
    let mut nics = all.nics.lock();
    let own = nics.of(ni).and_then(|nic| {
        nic.claimed = false;
        nic.ni.take()
    });
    drop(nics);
    drop(own);
}

/// Writes the statistics of all interfaces.
pub(crate) fn show(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(all) = ALL.get() else {
        return Ok(());
    };
    let nics = all.nics.lock();
    nics.bound
        .iter()
        .filter_map(|nic| nic.ni.as_ref())
        .try_for_each(|ni| ni.show(f))
}
