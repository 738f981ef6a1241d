// SPDX-License-Identifier: GPL-2.0-only

//! The NICs, and the interfaces that use them.

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

/// A NIC that is bound.
struct Entry {
    /// What it is called by: its interface is ex0.
    number: u32,
    /// No other binding has the same.
    id: u64,
    handle: Handle,
    /// Somebody has it, or is about to.
    claimed: bool,
    ni: Option<Arc<Ni>>,
}

/// All that are bound.
struct Nics {
    bound: KVec<Entry>,
    /// How many were.
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

/// While it exists there are NICs.
pub(crate) struct Registered(());

impl Registered {
    /// May sleep.
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

/// A NIC that is bound: its drop ends what is done with it, and may sleep.
pub(crate) struct Bound(u64);

impl Bound {
    /// Gives a NIC the lowest number that is free, which is that of its device files if all of its
    /// modules are loaded. An interface that had the NIC with this node ID, and has none, takes it
    /// by itself ([`adopt`]). May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENODEV`.
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

/// A NIC that an interface is begun for; given back by drop.
pub(crate) struct Claim {
    id: u64,
    handle: Handle,
    kept: bool,
}

impl Claim {
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.kept {
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
/// `ENODEV`: there is none with this number. `EBUSY`: it has an interface.
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
        kept: false,
    })
}

/// An interface begins: from now on it hears if its NIC goes. May sleep.
///
/// # Errors
///
/// `ENODEV`: it is gone.
pub(crate) fn begun(mut claim: Claim, ni: &Arc<Ni>) -> Result {
    let all = ALL.get().ok_or(ENODEV)?;
    let mut nics = all.nics.lock();
    let nic = nics.find(claim.id).ok_or(ENODEV)?;
    nic.ni = Some(ni.clone());
    claim.kept = true;
    Ok(())
}

/// Gives an interface without a NIC the one with a node ID, if there is one that nobody has and
/// whose network runs. The interface hears if that goes. May sleep.
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

/// Whether an interface has a NIC that is bound. May sleep.
pub(crate) fn has(ni: &Arc<Ni>) -> bool {
    ALL.get()
        .is_some_and(|all| all.nics.lock().of(ni).is_some())
}

/// An interface has ended, or can't use its NIC, which may have another one. May sleep.
pub(crate) fn over(ni: &Arc<Ni>) {
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

/// What there is of the interfaces.
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
