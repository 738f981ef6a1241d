// SPDX-License-Identifier: GPL-2.0-only

//! Registered memory, as its owner has it.

use super::{end::RevokeClient, translation::Translation, Atu};
use crate::context::Context;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::mem::PageList;
use protocol::translation::Turn;
use wire::ids::{Nla, Vpid};

/// What the NIC may do with registered memory, be it for commands of its owner or of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The NIC may read it: source of local PUTs and of remote GETs.
    pub read: bool,
    /// The NIC may write it: destination of local GETs and of remote PUTs.
    pub write: bool,
}

impl Access {
    /// Reading only.
    pub const READ: Self = Self {
        read: true,
        write: false,
    };
    /// Writing only.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
    };
    /// Reading and writing.
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

/// Memory that RMA commands reach by NLA, on behalf of one VPID.
///
/// Byte i of the memory has NLA [`Region::nla`] + i. It is a range of bytes in pages, of which the
/// NIC, and with it every peer that may use the VPID, reaches all bytes ([`super::WholePages`]).
///
/// Drop ends it, in any context: translations are cleared, and flushed; a work item awaits that the
/// NIC says so, and only then the memory is unmapped and given back. Who wants to wait for that
/// calls [`Region::revoke`], for many regions [`Atu::revoke_all`]; who wants to hear of it,
/// [`Region::revoke_async`]. When the NIC does not say so within about a second, memory and NLAs
/// stay reserved (quarantine) until it does, or until it is unbound.
///
/// While a region or such a remainder of one exists, its VPID is not given to anybody else, and
/// can't be opened again. Keep the port open as long as there are regions.
///
/// Unbinding the NIC ends all its regions: what is left of them can only be dropped.
pub struct Region {
    translation: Arc<Translation>,
    turn: Turn,
    /// Of the first byte in the first page.
    first_offset: usize,
    bytes: usize,
    /// Its end is left to the worker already.
    left: bool,
}

impl Region {
    /// Bytes `first_offset` to `first_offset` + `bytes` of the pages that are translated.
    pub(super) fn new(
        translation: Arc<Translation>,
        turn: Turn,
        first_offset: usize,
        bytes: usize,
    ) -> Self {
        Self {
            translation,
            turn,
            first_offset,
            bytes,
            left: false,
        }
    }

    pub(super) fn translation(&self) -> (&Arc<Translation>, Turn) {
        (&self.translation, self.turn)
    }

    /// NLA of the first byte. Any context.
    pub fn nla(&self) -> Nla {
        Nla(self.translation.nla().0 + self.first_offset as u64)
    }

    /// Length in bytes. Any context.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Place of the first byte in its page, 0…4095. Any context.
    pub fn first_offset(&self) -> usize {
        self.first_offset
    }

    /// What the NIC may do. Any context.
    pub fn access(&self) -> Access {
        self.translation.access
    }

    /// The VPID that commands have to name. Any context.
    pub fn vpid(&self) -> Vpid {
        self.translation.vpid
    }

    /// The unit whose NLA it has. Any context.
    pub fn atu(&self) -> &Arc<Atu> {
        &self.translation.atu
    }

    fn ctx(&self) -> &Context {
        self.translation.ctx()
    }

    /// False once the memory was unmapped (munmap, mremap, madvise, exit) or the device is gone:
    /// commands with its NLAs fail. Any context.
    pub fn is_alive(&self) -> bool {
        self.translation.is_live(self.turn) && self.ctx().is_alive()
    }

    /// NLA of byte `offset`, if `len` bytes from there lie in the region and it is alive. Any
    /// context.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Nla> {
        let inside = offset.checked_add(len)? <= self.bytes();
        (inside && self.is_alive()).then(|| Nla(self.nla().0 + offset as u64))
    }

    /// [`Region::slice`] for a command that a port of `vpid` gives to the NIC of `ctx`, and that
    /// writes here, or reads. Numbers of another NIC mean other memory. Any context.
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

    /// Ends it, waits for that, and tells how it went. May sleep, as a rule some milliseconds,
    /// about a second at most.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the NIC may still access the memory, which stays reserved until it says that it
    /// does not.
    pub fn revoke(self) -> Result {
        if self.translation.conclude(self.turn, None) {
            Ok(())
        } else {
            Err(ETIMEDOUT)
        }
    }

    /// Ends it as drop does, and tells `client` when it has ended. Any context.
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
    /// /// In a softirq, say.
    /// fn end(region: Region, ended: &Arc<Ended>) {
    ///     region.revoke_async(ended.clone());
    /// }
    /// ```
    pub fn revoke_async(mut self, client: Arc<dyn RevokeClient>) {
        self.left = true;
        self.translation.abandon(self.turn, Some(client));
    }

    /// Has a list of pages dropped where sleeping is allowed, some time after the region. Any
    /// context.
    pub fn keep(&self, pages: Arc<PageList>) {
        self.translation.keep(pages);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.left {
            self.translation.abandon(self.turn, None);
        }
    }
}
