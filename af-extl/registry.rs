// SPDX-License-Identifier: GPL-2.0-only

//! What all sockets of the module share: the NICs, and the sockets that accept connections.

use crate::{connection::Shown, nic::Nic};
use kernel::{
    fmt, new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{Arc, Mutex},
};
use kernel_ext::{
    global::Global,
    net::socket::{SockId, Tcp},
};
use wire::ds::Tuple;

static ALL: Global<All> = Global::new();

/// The object, while the module is loaded.
pub(crate) fn all() -> Option<Arc<All>> {
    ALL.get()
}

/// See the module's documentation.
#[pin_data]
pub(crate) struct All {
    #[pin]
    nics: Mutex<KVec<Arc<Nic>>>,
    #[pin]
    listeners: Mutex<RBTree<SockId, Arc<Shown>>>,
}

/// While it exists [`all`] has something. Made and dropped when the module is loaded and unloaded.
pub(crate) struct Registered(());

impl Registered {
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let all = Arc::pin_init(
            pin_init!(All {
                nics <- new_mutex!(KVec::new(), "extl_nics"),
                listeners <- new_mutex!(RBTree::new(), "extl_listeners"),
            }),
            GFP_KERNEL,
        )?;
        ALL.set(Some(all));
        Ok(Self(()))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        ALL.set(None);
    }
}

/// Process context, may sleep.
impl All {
    /// A NIC was bound.
    pub(crate) fn add(&self, nic: &Arc<Nic>) -> Result {
        Ok(self.nics.lock().push(nic.clone(), GFP_KERNEL)?)
    }

    /// A NIC goes.
    pub(crate) fn remove(&self, nic: &Arc<Nic>) {
        self.nics.lock().retain(|other| !Arc::ptr_eq(other, nic));
    }

    /// The NIC that a test is true of.
    pub(crate) fn find(&self, test: impl Fn(&Nic) -> bool) -> Option<Arc<Nic>> {
        let nics = self.nics.lock();
        nics.iter().find(|nic| test(nic)).cloned()
    }

    /// A socket begins to accept connections. Without memory its clients use TCP.
    pub(crate) fn hear(&self, shown: &Arc<Shown>) {
        let Ok(place) = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT) else {
            return;
        };
        let id = shown.id();
        let mut listeners = self.listeners.lock();
        if listeners.get(&id).is_none() {
            listeners.insert(place.into_node(id, shown.clone()));
        }
    }

    /// A socket that began to accept connections is closed.
    pub(crate) fn deafen(&self, shown: &Arc<Shown>) {
        let node = self.listeners.lock().remove_node(&shown.id());
        // Without the lock.
        drop(node);
    }

    /// Of a socket of the module's that listens, and does not want what only TCP has: whether data of
    /// its connections may bypass TCP.
    pub(crate) fn listener_may_bypass(&self, id: SockId) -> Option<bool> {
        let listeners = self.listeners.lock();
        let shown = listeners.get(&id).filter(|shown| !shown.wants_tcp());
        shown.map(|shown| shown.may_bypass())
    }

    /// Tells clients that have asked for a connection that TCP carries it: those of all NICs with an
    /// interface in its namespace, as other namespaces may have the same addresses.
    pub(crate) fn refuse(&self, tcp: &Tcp, tuple: &Tuple) {
        for nic in self.nics.lock().iter() {
            if nic.is_waited_for() && tcp.shares_namespace(nic.device()) {
                nic.refuse_all(tuple);
            }
        }
    }

    /// What there is of the NICs.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nics.lock().iter().try_for_each(|nic| nic.show(f))
    }

    /// What there is of their connections.
    pub(crate) fn show_connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nics = self.nics.lock();
        nics.iter().try_for_each(|nic| nic.show_connections(f))
    }
}
