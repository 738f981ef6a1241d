// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Number of resource units in use per user, with a limit.

use crate::{Memory, Slots};

/// Number of units of a bounded resource that each user has.
pub struct Shares<M: Memory> {
    users: Slots<M, u16>,
}

impl<M: Memory> Shares<M> {
    /// Returns a table for a resource of `all` units. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(all: u16) -> Result<Self, M::Error> {
        Ok(Self {
            users: Slots::new(all)?,
        })
    }

    /// Charges one unit to a user, up to a total of `most`. Returns false if the user already has
    /// `most` units. The caller returns the unit with [`Shares::release`].
    #[must_use]
    pub fn charge(&mut self, user: u32, most: u16) -> bool {
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

    /// Subtracts one unit from a user's number.
    pub fn release(&mut self, user: u32) {
        let user = u64::from(user);
        let left = self.users.get_mut(user).map(|n| {
            *n = n.saturating_sub(1);
            *n
        });
        if left == Some(0) {
            self.users.remove(user);
        }
    }

    /// Returns the number of units that a user has.
    #[must_use]
    pub fn count(&self, user: u32) -> u16 {
        self.users.get(u64::from(user)).copied().unwrap_or(0)
    }
}
