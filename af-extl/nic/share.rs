// SPDX-License-Identifier: GPL-2.0-only

//! Bounds of what one user has of a NIC.

use super::Kernel;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::{net::socket::accountable_user, new_bh_lock, BhLock};
use protocol::ds::Shares;

/// How many of something each user has.
#[pin_data]
pub(super) struct Users {
    #[pin]
    shares: BhLock<Shares<Kernel>>,
    /// So many each, at most.
    most: u16,
}

/// One of them, of a user unless he may exceed the bound. Given back by its drop, in process
/// context or a softirq.
pub(crate) struct Share(Option<(Arc<Users>, u32)>);

impl Users {
    /// Of `all` one user has `most` at most. May sleep.
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

    /// One for who answers for the calling process; `None`: he has as many as one may have.
    pub(super) fn take(self: &Arc<Self>) -> Option<Share> {
        let Some(user) = accountable_user() else {
            return Some(Share(None));
        };
        let taken = self.shares.lock().take(user, self.most);
        taken.then(|| Share(Some((self.clone(), user))))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((users, user)) = &self.0 {
            users.shares.lock().give(*user);
        }
    }
}
