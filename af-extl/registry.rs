// SPDX-License-Identifier: GPL-2.0-only

//! Global state of the module: the NICs and the listening sockets.
//!
//! Process context; both mutexes may be held while memory is allocated. A thread never holds both
//! mutexes.

use crate::{connection::SocketInfo, nic::Nic};
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

/// Returns the global state while the module is loaded.
pub(crate) fn all() -> Option<Arc<All>> {
    ALL.get()
}

/// NICs and listening sockets of the module.
#[pin_data]
pub(crate) struct All {
    #[pin]
    nics: Mutex<KVec<Arc<Nic>>>,
    #[pin]
    listeners: Mutex<RBTree<SockId, Arc<SocketInfo>>>,
}

/// Owner of the global state: [`all`] returns that state while this value exists, i.e. while the
/// module is loaded.
pub(crate) struct Registered(());

impl Registered {
    /// Creates the global state. May sleep.
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

/// All functions run in process context and may sleep.
impl All {
    /// Adds a NIC after it was bound.
    pub(crate) fn add(&self, nic: &Arc<Nic>) -> Result {
        Ok(self.nics.lock().push(nic.clone(), GFP_KERNEL)?)
    }

    /// Removes a NIC before it is unbound.
    pub(crate) fn remove(&self, nic: &Arc<Nic>) {
        self.nics.lock().retain(|other| !Arc::ptr_eq(other, nic));
    }

    /// Returns the first NIC for which `test` returns true.
    pub(crate) fn find(&self, test: impl Fn(&Nic) -> bool) -> Option<Arc<Nic>> {
        let nics = self.nics.lock();
        nics.iter().find(|nic| test(nic)).cloned()
    }

    /// Adds a socket that begins to listen. If the allocation fails, its clients use TCP.
    pub(crate) fn add_listener(&self, info: &Arc<SocketInfo>) {
        let Ok(reservation) = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT) else {
            return;
        };
        let id = info.id();
        let mut listeners = self.listeners.lock();
        if listeners.get(&id).is_none() {
            listeners.insert(reservation.into_node(id, info.clone()));
        }
    }

    /// Removes a listening socket that is closed.
    pub(crate) fn remove_listener(&self, info: &Arc<SocketInfo>) {
        let node = self.listeners.lock().remove_node(&info.id());
        // The node of the list is freed without the lock.
        drop(node);
    }

    /// Returns `None` unless `id` is a listening socket of this module that does not require TCP.
    /// Otherwise returns whether data of its connections may bypass TCP.
    pub(crate) fn listener_may_bypass(&self, id: SockId) -> Option<bool> {
        let listeners = self.listeners.lock();
        let info = listeners.get(&id).filter(|info| !info.wants_tcp());
        info.map(|info| info.may_bypass())
    }

    /// Notifies clients that requested a direct connection that TCP carries the data. Only NICs
    /// with an interface in the socket's namespace are considered, because other namespaces may use
    /// the same addresses.
    pub(crate) fn decline(&self, tcp: &Tcp, tuple: &Tuple) {
        for nic in self.nics.lock().iter() {
            if nic.has_requests() && tcp.shares_namespace(nic.device()) {
                nic.decline_all(tuple);
            }
        }
    }

    /// Writes the statistics of all NICs.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nics.lock().iter().try_for_each(|nic| nic.show(f))
    }

    /// Writes a line for each connection of all NICs.
    pub(crate) fn show_connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nics = self.nics.lock();
        nics.iter().try_for_each(|nic| nic.show_connections(f))
    }
}
