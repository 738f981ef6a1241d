// SPDX-License-Identifier: GPL-2.0-only

//! Handle of a registered memory region ([`Region`]).
//!
//! Most functions work in any context and acquire only the spinlock of the translation. The
//! comments of functions that wait for the NIC say that they may sleep.

use super::{revoke::RevokeClient, translation::Translation, Atu};
use crate::context::Context;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::mem::PageList;
use protocol::nic::translation::Generation;
use wire::ids::{Nla, Vpid};

/// Access of the NIC to registered memory, for commands of its owner and of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Allows the NIC to read, as the source of local PUTs and of remote GETs.
    pub read: bool,
    /// Allows the NIC to write, as the destination of local GETs and of remote PUTs.
    pub write: bool,
}

impl Access {
    /// Read access only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };
    /// Write access only.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
    };
    /// Read and write access.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
    };

    pub(super) fn check(self) -> Result {
        if self.read || self.write {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }
}

/// Registered memory, which RMA commands of one VPID name by NLA.
///
/// Byte i of the memory has NLA [`Region::nla`] + i. A region can begin and end within a page.
/// Nevertheless the NIC, and every peer that may use the VPID, can access all bytes of its pages
/// ([`super::WholePages`]).
///
/// Drop ends the region in any context: it clears and flushes the translations. A work item then
/// waits for the NIC's confirmation, and unmaps and frees the memory. [`Region::revoke`] waits for
/// that end, and [`Atu::revoke_all`] waits for the end of many regions. [`Region::revoke_async`]
/// reports it by callback. If the NIC does not confirm within about a second, memory and NLAs stay
/// reserved (quarantine). They are freed when the NIC confirms or is unbound.
///
/// The VPID cannot be opened again while its regions or their quarantined memory exist. Keep the
/// port open while regions exist.
///
/// Unbinding the NIC ends all its regions. Their handles can only be dropped afterwards.
pub struct Region {
    translation: Arc<Translation>,
    generation: Generation,
    /// Offset of the first byte in the first page.
    first_offset: usize,
    bytes: usize,
    /// Set if a work item is ending the region, so that drop does nothing.
    left: bool,
}

impl Region {
    /// Makes a handle for `bytes` bytes from `first_offset` on in the translated pages.
    pub(super) fn new(
        translation: Arc<Translation>,
        generation: Generation,
        first_offset: usize,
        bytes: usize,
    ) -> Self {
        Self {
            translation,
            generation,
            first_offset,
            bytes,
            left: false,
        }
    }

    pub(super) fn translation(&self) -> (&Arc<Translation>, Generation) {
        (&self.translation, self.generation)
    }

    /// Returns the NLA of the first byte. Any context.
    pub fn nla(&self) -> Nla {
        Nla(self.translation.nla().0 + self.first_offset as u64)
    }

    /// Returns the length in bytes. Any context.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the offset of the first byte in its page, 0…4095. Any context.
    pub fn first_offset(&self) -> usize {
        self.first_offset
    }

    /// Returns the NIC's access to the memory. Any context.
    pub fn access(&self) -> Access {
        self.translation.access
    }

    /// Returns the VPID that commands for this region must use. Any context.
    pub fn vpid(&self) -> Vpid {
        self.translation.vpid
    }

    /// Returns the address translation unit of the region's NIC. Any context.
    pub fn atu(&self) -> &Arc<Atu> {
        &self.translation.atu
    }

    fn ctx(&self) -> &Context {
        self.translation.ctx()
    }

    /// Returns whether the region's NLAs can be used. They become unusable when the memory is
    /// unmapped (munmap, mremap, madvise, exit) or the device is removed. Commands that name them
    /// then fail. Any context.
    pub fn is_alive(&self) -> bool {
        self.translation.is_live(self.generation) && self.ctx().is_alive()
    }

    /// Returns the NLA of byte `offset`, if the region is alive and contains the `len` bytes from
    /// that byte on. Any context.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Nla> {
        let inside = offset.checked_add(len)? <= self.bytes();
        (inside && self.is_alive()).then(|| Nla(self.nla().0 + offset as u64))
    }

    /// Returns the NLA like [`Region::slice`], for a command of a port of `vpid` on the NIC of
    /// `ctx`. `write` says whether the command writes to the region. The result is `None` as well
    /// if the region belongs to another NIC or VPID, or does not permit this access. Any context.
    pub(crate) fn for_command(
        &self,
        ctx: &Context,
        vpid: Vpid,
        write: bool,
        (offset, len): (usize, usize),
    ) -> Option<Nla> {
        let access = self.access();
        let allowed = if write { access.write } else { access.read };
        let own = core::ptr::eq(self.ctx(), ctx) && self.vpid() == vpid;
        self.slice(offset, len).filter(|_| allowed && own)
    }

    /// Ends the region and waits until its memory is freed. May sleep, usually for some
    /// milliseconds, at most for about a second.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the NIC may still access the memory, which stays reserved until the NIC has
    /// answered.
    pub fn revoke(self) -> Result {
        if self.translation.conclude(self.generation, None) {
            Ok(())
        } else {
            Err(ETIMEDOUT)
        }
    }

    /// Ends the region as drop does, and calls `client` when the region has ended. Any context.
    ///
    /// ```
    /// use extoll_core::atu::{Region, RevokeClient};
    /// use kernel::{prelude::*, sync::{Arc, Completion}};
    ///
    /// #[pin_data]
    /// struct Ended {
    ///     #[pin]
    ///     all: Completion,
    /// }
    ///
    /// impl RevokeClient for Ended {
    ///     fn revoked(&self, _result: Result) {
    ///         self.all.complete_all();
    ///     }
    /// }
    ///
    /// /// Ends a region, for example in a softirq.
    /// fn end(region: Region, ended: &Arc<Ended>) {
    ///     region.revoke_async(ended.clone());
    /// }
    /// ```
    pub fn revoke_async(mut self, client: Arc<dyn RevokeClient>) {
        self.left = true;
        self.translation.abandon(self.generation, Some(client));
    }

    /// Stores a reference to a list of pages. It is dropped some time after the region has ended,
    /// in a context that may sleep. Any context.
    pub fn drop_later(&self, pages: Arc<PageList>) {
        self.translation.drop_later(pages);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.left {
            self.translation.abandon(self.generation, None);
        }
    }
}
