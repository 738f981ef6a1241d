// SPDX-License-Identifier: GPL-2.0-only

//! Registry of all translations and reserves of a NIC, which unbinding ends, and the counts that
//! delay unbinding and the reuse of VPIDs.
//!
//! The spinlock `registry`, which disables interrupts, protects the registry. Functions run in any
//! context unless their comment says otherwise.

use super::{reserve::ReserveInner, translation::Translation, Atu};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{
        atomic::{Full, Relaxed},
        Arc,
    },
};
use wire::ids::Vpid;

/// Preallocated node for a translation in the registry.
pub(super) type TranslationNode = RBTreeNodeReservation<u64, Arc<Translation>>;
/// Preallocated node for a reserve in the registry.
pub(super) type ReserveNode = RBTreeNodeReservation<u64, Arc<ReserveInner>>;

/// All translations and reserves of a NIC. Insertion and removal allocate no memory.
pub(super) struct Registry {
    open: bool,
    /// Translations, by the number of their first page.
    translations: RBTree<u64, Arc<Translation>>,
    count: usize,
    reserves: RBTree<u64, Arc<ReserveInner>>,
    reserve_count: usize,
}

impl Registry {
    /// Makes the registry of a NIC that was not set up.
    pub(super) fn closed() -> Self {
        Self {
            open: false,
            translations: RBTree::new(),
            count: 0,
            reserves: RBTree::new(),
            reserve_count: 0,
        }
    }

    /// Allows new translations.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Forbids new translations.
    pub(super) fn refuse(&mut self) {
        self.open = false;
    }

    /// Inserts a translation. Returns false if unbinding has already processed the registry; the
    /// caller must then end the translation at once.
    pub(super) fn enter(&mut self, node: RBTreeNode<u64, Arc<Translation>>) -> bool {
        self.translations.insert(node);
        self.count += 1;
        self.open
    }

    /// Removes a translation. The caller drops the node after releasing the lock.
    pub(super) fn remove(&mut self, page: u64) -> Option<RBTreeNode<u64, Arc<Translation>>> {
        let node = self.translations.remove_node(&page)?;
        self.count -= 1;
        Some(node)
    }

    /// Inserts a reserve. Returns the node if the registry is closed.
    pub(super) fn enter_reserve(
        &mut self,
        node: RBTreeNode<u64, Arc<ReserveInner>>,
    ) -> Result<(), RBTreeNode<u64, Arc<ReserveInner>>> {
        if !self.open {
            return Err(node);
        }
        self.reserves.insert(node);
        self.reserve_count += 1;
        Ok(())
    }

    /// Removes a reserve. The caller drops the node after releasing the lock.
    pub(super) fn remove_reserve(
        &mut self,
        page: u64,
    ) -> Option<RBTreeNode<u64, Arc<ReserveInner>>> {
        let node = self.reserves.remove_node(&page)?;
        self.reserve_count -= 1;
        Some(node)
    }

    /// Returns the numbers of translations and of reserves.
    pub(super) fn show(&self) -> (usize, usize) {
        (self.count, self.reserve_count)
    }
}

impl Atu {
    /// Calls `f` for each translation, without a lock held. May sleep if `f` does.
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

    /// Closes all reserves, which frees their unused translations. May sleep.
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

/// Delays unbinding of the NIC while memory is mapped for it. Can be dropped in any context.
pub(super) struct BoundHold(Arc<Atu>);

impl BoundHold {
    /// Delays unbinding until the value is dropped. Any context.
    ///
    /// # Errors
    ///
    /// `ENODEV` before the NIC is set up and after unbinding has begun.
    pub(super) fn new(atu: &Arc<Atu>) -> Result<Self> {
        let registry = atu.registry.lock();
        if !registry.open {
            return Err(ENODEV);
        }
        atu.gauges.bound.add(1, Relaxed);
        drop(registry);
        Ok(Self(atu.clone()))
    }

    /// Returns the unit. Any context.
    pub(super) fn atu(&self) -> &Arc<Atu> {
        &self.0
    }
}

impl Drop for BoundHold {
    fn drop(&mut self) {
        self.0.gauges.bound.fetch_sub(1, Full);
    }
}

/// Delays reuse of a VPID while the NIC may translate for it. Any context.
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
