// SPDX-License-Identifier: GPL-2.0-only

//! Bound on the address tables that a user's memory lies in.

use super::Atu;
use kernel::{
    prelude::*,
    sync::{new_mutex, Arc, Mutex},
};
use wire::{nla::Range, table_use::TableUse};

/// The tables of one user on one NIC. What is registered with it ([`Atu::register_user_for`]) may
/// lie in as many tables as the NIC's limit says, and in two for each GiB that it has.
#[pin_data]
pub(crate) struct TableAccount {
    /// Tables that need not be filled.
    spare: u32,
    /// Locked with the tables of the NIC.
    #[pin]
    used: Mutex<TableUse<KVVec<u32>>>,
}

impl Atu {
    /// An account for another user. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn account(&self) -> Result<Arc<TableAccount>> {
        TableAccount::new(self.settings.gats, self.settings.spare_tables)
    }
}

impl TableAccount {
    /// For a NIC with `gats` tables, of which `spare` need not be filled. May sleep.
    pub(crate) fn new(gats: u32, spare: u32) -> Result<Arc<Self>> {
        let used = TableUse::new(KVVec::from_elem(0, gats as usize, GFP_KERNEL)?);
        Arc::pin_init(
            pin_init!(Self {
                spare,
                used <- new_mutex!(used, "extoll_table_account"),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether nothing is registered with it, so that it may be forgotten. May sleep.
    pub(crate) fn is_idle(&self) -> bool {
        self.used.lock().pages() == 0
    }

    pub(super) fn may_add(&self, range: Range) -> bool {
        self.used.lock().may_add(range, self.spare)
    }

    pub(super) fn add(&self, range: Range) {
        self.used.lock().add(range);
    }

    pub(super) fn remove(&self, range: Range) {
        self.used.lock().remove(range);
    }

    /// What `f` finds first in one of the tables that the user has.
    pub(super) fn find<R>(&self, f: impl FnMut(Range) -> Option<R>) -> Option<R> {
        self.used.lock().windows().find_map(f)
    }
}
