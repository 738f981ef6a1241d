// SPDX-License-Identifier: GPL-2.0-only

//! Limit on the number of address tables that the memory of one user occupies.
//!
//! All functions may sleep. Lock order: mutex of the unit's tables, mutex of an account.

use super::Atu;
use kernel::{
    prelude::*,
    sync::{new_mutex, Arc, Mutex},
};
use protocol::nic::{nla::NlaRange, table_use::TableUse};

/// Use of one NIC's address tables by one user. Memory registered with the account
/// ([`Atu::register_user_for`]) may occupy a limited number of tables, plus two for each GiB
/// registered.
#[pin_data]
pub(crate) struct TableAccount {
    /// Maximum number of partially filled tables.
    spare: u32,
    /// Number of pages that the user occupies in each table. Changed with the mutex of the unit's
    /// tables held.
    #[pin]
    used: Mutex<TableUse<KVVec<u32>>>,
}

impl Atu {
    /// Allocates an account for a user. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn account(&self) -> Result<Arc<TableAccount>> {
        TableAccount::new(self.settings.gats, self.settings.spare_tables)
    }
}

impl TableAccount {
    /// Allocates an account for a NIC with `gats` tables and a limit of `spare` partially filled
    /// tables. May sleep.
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

    /// Returns whether no memory is registered with the account, so that it can be freed. May
    /// sleep.
    pub(crate) fn is_idle(&self) -> bool {
        self.used.lock().pages() == 0
    }

    pub(super) fn may_add(&self, range: NlaRange) -> bool {
        self.used.lock().may_add(range, self.spare)
    }

    pub(super) fn add(&self, range: NlaRange) {
        self.used.lock().add(range);
    }

    pub(super) fn remove(&self, range: NlaRange) {
        self.used.lock().remove(range);
    }

    /// Calls `f` with the NLA range of each table that the user occupies, until `f` returns a
    /// result.
    pub(super) fn find<R>(&self, f: impl FnMut(NlaRange) -> Option<R>) -> Option<R> {
        self.used.lock().windows().find_map(f)
    }
}
