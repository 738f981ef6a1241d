// SPDX-License-Identifier: GPL-2.0-only

//! Per-user limits of a NIC's resources. Process context or softirq.

use super::KernelMemory;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::{net::socket::accountable_user, new_bh_lock, BhLock};
use protocol::ds::Shares;

/// Numbers of a resource's units that each user holds.
#[pin_data]
pub(super) struct Users {
    #[pin]
    shares: BhLock<Shares<KernelMemory>>,
    /// Maximum number of units per user.
    most: u16,
}

/// One unit of a resource, charged to a user unless the user is privileged. The drop returns the
/// unit, in process context or in a softirq.
pub(crate) struct Charge(Option<(Arc<Users>, u32)>);

impl Users {
    /// Creates the limits of a resource that has `all` units. One user may hold at most `most`
    /// units. May sleep.
    pub(super) fn new(all: usize, most: usize) -> Result<Arc<Self>> {
        let shares = Shares::new(all.min(0x8000) as u16)?;
        let most = most.min(all).min(0x8000) as u16;
        Arc::pin_init(
            pin_init!(Self {
                shares <- new_bh_lock!(shares, "extl_users"),
                most,
            }),
            GFP_KERNEL,
        )
    }

    /// Charges a unit to the user who is accountable for the calling process. Returns `None` if the
    /// user holds the maximum.
    pub(super) fn charge(self: &Arc<Self>) -> Option<Charge> {
        let Some(user) = accountable_user() else {
            return Some(Charge(None));
        };
        let charged = self.shares.lock().charge(user, self.most);
        charged.then(|| Charge(Some((self.clone(), user))))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((users, user)) = &self.0 {
            users.shares.lock().release(*user);
        }
    }
}
