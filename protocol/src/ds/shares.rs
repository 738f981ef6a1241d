// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! How much of something each user has, so that one can't have all of it.

use crate::{Memory, Slots};

/// How many each user has of what there is a bounded number of.
pub struct Shares<M: Memory> {
    users: Slots<M, u16>,
}

impl<M: Memory> Shares<M> {
    /// For `all` that there are at most. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(all: u16) -> Result<Self, M::Error> {
        Ok(Self {
            users: Slots::new(all)?,
        })
    }

    /// A user takes one: whether he may, of whom nobody has more than `most`. To be given back.
    #[must_use]
    pub fn take(&mut self, user: u32, most: u16) -> bool {
        let user = u64::from(user);
        match self.users.get_mut(user) {
            Some(n) if *n < most => {
                *n += 1;
                true
            }
            Some(_) => false,
            None => most > 0 && self.users.insert(user, 1).is_ok(),
        }
    }

    /// A user gives one back.
    pub fn give(&mut self, user: u32) {
        let user = u64::from(user);
        let left = self.users.get_mut(user).map(|n| {
            *n = n.saturating_sub(1);
            *n
        });
        if left == Some(0) {
            self.users.remove(user);
        }
    }

    /// How many a user has.
    #[must_use]
    pub fn count(&self, user: u32) -> u16 {
        self.users.get(u64::from(user)).copied().unwrap_or(0)
    }
}
