// SPDX-License-Identifier: GPL-2.0-only

//! What a process may do with the NIC (docs/security.md). Rights are determined once, when a file is opened, and belong
//! to the open file.

use kernel::{new_mutex, prelude::*, sync::Arc, sync::Mutex};
use kernel_ext::security::{capable, current_euid, Capability};
use wire::rma::PageOptions;

/// Requester pages per VPID (HW §10.1).
pub(super) const PAGES: u8 = 32;

/// Load-time settings.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Everybody may do everything: for old binaries, dangerous.
    pub compat_unsafe: bool,
    /// VPIDs per unit that one unprivileged user may hold on a NIC.
    pub vpids_per_user: u32,
    /// Interrupts per second that a port of a process may have, 0 = any number.
    pub interrupts: u32,
}

/// Rights of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rights {
    /// Opened with `CAP_SYS_RAWIO`.
    pub(super) privileged: bool,
    /// The module was loaded with `compat_unsafe`.
    pub(super) compat: bool,
    /// Effective user at open, in the initial user namespace.
    pub(super) uid: u32,
}

impl Rights {
    /// Those of the calling process.
    pub(super) fn current(settings: &Settings) -> Self {
        Self {
            privileged: capable(Capability::SysRawio),
            compat: settings.compat_unsafe,
            uid: current_euid(),
        }
    }

    /// True when nothing is forbidden.
    pub(super) fn unlocked(self) -> bool {
        self.privileged || self.compat
    }

    /// `EPERM` unless unlocked.
    pub(super) fn demand(self) -> Result {
        if self.unlocked() {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// True if requester page `index` may be used. Others need translation, and must not lead to remote registers: that
    /// leaves 16…19 and 24…27.
    pub(super) fn may_use(self, index: u8) -> bool {
        let page = PageOptions::from_index(index);
        self.unlocked() || (page.translate && !page.rra)
    }

    /// Bit p: requester page p may be used.
    pub(super) fn page_mask(self) -> u32 {
        (0..PAGES)
            .filter(|p| self.may_use(*p))
            .fold(0, |mask, p| mask | 1 << p)
    }

    /// Protection descriptor of the ports: 0, that of the kernel's ports, only for unlocked files; else one per user, so
    /// that users reach their own ports on all nodes and nobody else's. Users whose numbers agree in the low 16 bits share
    /// one.
    pub(super) fn protection(self) -> u16 {
        match self.uid as u16 {
            _ if self.unlocked() => 0,
            0 => u16::MAX,
            low => low,
        }
    }
}

/// Number of VPIDs that users hold.
#[pin_data]
pub(super) struct Quota {
    limit: u32,
    #[pin]
    held: Mutex<KVec<(u32, u32)>>,
}

impl Quota {
    pub(super) fn new(limit: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { limit, held <- new_mutex!(KVec::new(), "extoll_quota") }),
            GFP_KERNEL,
        )
    }

    /// Takes one for a user; unlocked files are not counted. `EDQUOT` beyond the limit.
    pub(super) fn take(self: &Arc<Self>, rights: Rights) -> Result<Option<Share>> {
        if rights.unlocked() {
            return Ok(None);
        }
        let uid = rights.uid;
        let mut held = self.held.lock();
        match held.iter_mut().find(|(user, _)| *user == uid) {
            Some((_, n)) if *n >= self.limit => return Err(EDQUOT),
            Some((_, n)) => *n += 1,
            None if self.limit == 0 => return Err(EDQUOT),
            None => held.push((uid, 1), GFP_KERNEL)?,
        }
        drop(held);
        let quota = self.clone();
        Ok(Some(Share { quota, uid }))
    }
}

/// One VPID of a user, given back by drop.
pub(super) struct Share {
    quota: Arc<Quota>,
    uid: u32,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.quota.held.lock();
        let Some(i) = held.iter().position(|(user, _)| *user == self.uid) else {
            return;
        };
        let left = held.get_mut(i).map_or(0, |(_, n)| {
            *n -= 1;
            *n
        });
        if left == 0 {
            let last = held.len() - 1;
            held.swap(i, last);
            held.truncate(last);
        }
    }
}
