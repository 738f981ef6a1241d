// SPDX-License-Identifier: GPL-2.0-only

//! All translations and reserves of a NIC, for unbinding; and what keeps it from being unbound.

use super::{reserve::Reserved, translation::Translation, Atu};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{
        atomic::{Full, Relaxed},
        Arc,
    },
};
use wire::ids::Vpid;

/// Room for a translation in the registry.
pub(super) type TranslationNode = RBTreeNodeReservation<u64, Arc<Translation>>;
/// Room for a reserve.
pub(super) type ReserveNode = RBTreeNodeReservation<u64, Arc<Reserved>>;

/// See the module. Needs no memory when something is entered or taken out.
pub(super) struct Registry {
    open: bool,
    /// By first page.
    translations: RBTree<u64, Arc<Translation>>,
    count: usize,
    reserves: RBTree<u64, Arc<Reserved>>,
    reserve_count: usize,
}

impl Registry {
    /// Before a NIC is set up.
    pub(super) fn closed() -> Self {
        Self {
            open: false,
            translations: RBTree::new(),
            count: 0,
            reserves: RBTree::new(),
            reserve_count: 0,
        }
    }

    /// From now on translations can be made.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// From now on none can be made.
    pub(super) fn refuse(&mut self) {
        self.open = false;
    }

    /// Enters a translation; false if it is to be ended at once, since unbinding has looked at all
    /// others.
    pub(super) fn enter(&mut self, node: RBTreeNode<u64, Arc<Translation>>) -> bool {
        self.translations.insert(node);
        self.count += 1;
        self.open
    }

    /// Takes a translation out. The node is to be dropped without the lock.
    pub(super) fn take(&mut self, page: u64) -> Option<RBTreeNode<u64, Arc<Translation>>> {
        let node = self.translations.remove_node(&page)?;
        self.count -= 1;
        Some(node)
    }

    /// Enters a reserve; the node comes back if none can be made any more.
    pub(super) fn enter_reserve(
        &mut self,
        node: RBTreeNode<u64, Arc<Reserved>>,
    ) -> Result<(), RBTreeNode<u64, Arc<Reserved>>> {
        if !self.open {
            return Err(node);
        }
        self.reserves.insert(node);
        self.reserve_count += 1;
        Ok(())
    }

    /// Takes a reserve out. The node is to be dropped without the lock.
    pub(super) fn take_reserve(&mut self, page: u64) -> Option<RBTreeNode<u64, Arc<Reserved>>> {
        let node = self.reserves.remove_node(&page)?;
        self.reserve_count -= 1;
        Some(node)
    }

    /// Numbers of translations and reserves.
    pub(super) fn show(&self) -> (usize, usize) {
        (self.count, self.reserve_count)
    }
}

impl Atu {
    /// Calls `f` for every translation, without a lock. May sleep if `f` does.
    pub(super) fn for_each(&self, f: impl Fn(&Arc<Translation>)) {
        let mut page = 0;
        loop {
            let next = {
                let registry = self.registry.lock();
                let cursor = registry.translations.cursor_lower_bound(&(page + 1));
                cursor.map(|c| (*c.current().0, c.current().1.clone()))
            };
            let Some((first, translation)) = next else {
                return;
            };
            page = first;
            f(&translation);
        }
    }

    /// Takes from all reserves what is not in use. May sleep.
    pub(super) fn retire_reserves(&self) {
        let mut page = 0;
        loop {
            let next = {
                let registry = self.registry.lock();
                let cursor = registry.reserves.cursor_lower_bound(&(page + 1));
                cursor.map(|c| (*c.current().0, c.current().1.clone()))
            };
            let Some((first, reserve)) = next else {
                return;
            };
            page = first;
            reserve.close();
        }
    }
}

/// Keeps the NIC from being unbound while memory is mapped for it. Drop in any context.
pub(super) struct BoundHold(Arc<Atu>);

impl BoundHold {
    /// Any context.
    ///
    /// # Errors
    ///
    /// `ENODEV` before the NIC is set up, and once unbinding has begun.
    pub(super) fn new(atu: &Arc<Atu>) -> Result<Self> {
        let registry = atu.registry.lock();
        if !registry.open {
            return Err(ENODEV);
        }
        atu.gauges.bound.add(1, Relaxed);
        drop(registry);
        Ok(Self(atu.clone()))
    }

    /// The unit that is kept bound.
    pub(super) fn atu(&self) -> &Arc<Atu> {
        &self.0
    }
}

impl Drop for BoundHold {
    fn drop(&mut self) {
        self.0.gauges.bound.fetch_sub(1, Full);
    }
}

/// Keeps a VPID from being given to somebody else while the NIC may translate for it. Any context.
pub(super) struct VpidUse {
    atu: Arc<Atu>,
    vpid: Vpid,
}

impl VpidUse {
    pub(super) fn new(atu: &Arc<Atu>, vpid: Vpid) -> Self {
        if let Some(uses) = atu.uses(vpid) {
            uses.add(1, Relaxed);
        }
        Self {
            atu: atu.clone(),
            vpid,
        }
    }

    pub(super) fn vpid(&self) -> Vpid {
        self.vpid
    }
}

impl Drop for VpidUse {
    fn drop(&mut self) {
        if let Some(uses) = self.atu.uses(self.vpid) {
            uses.fetch_sub(1, Full);
        }
    }
}
