// SPDX-License-Identifier: GPL-2.0-only

//! Rights and quotas of processes (docs/security.md). Rights are determined once, when a file is
//! opened, and belong to the open file.
//!
//! Process context. One mutex per NIC protects the quotas.

use super::throttle::Budget;
use crate::atu::TableAccount;
use kernel::{prelude::*, static_lock_class, sync::Arc, sync::Mutex};
use kernel_ext::security::{capable, current_euid, locked_down, Capability, Locked};
use wire::{ids::Unit, rma::PageOptions};

/// Number of requester pages per VPID (HW §10.1).
pub(super) const PAGES: u8 = 32;

/// Settings that are fixed when the module is loaded.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Grant all rights to all processes. This is dangerous and only for old binaries.
    pub compat_unsafe: bool,
    /// Maximum number of VPIDs per unit and NIC that one unprivileged user may hold.
    pub vpids_per_user: u32,
    /// Maximum number of interrupts per second for a port of a process; 0 sets no limit.
    pub user_interrupts: u32,
    /// Maximum number of interrupts per second for all ports of an unprivileged user on a NIC; 0
    /// sets no limit.
    pub interrupts_per_user: u32,
    /// Quarantine time in milliseconds of memory that processes may have named by bus address.
    pub process_quarantine_ms: u32,
    /// Lowest user ID that may open files without privilege. The range contains [`USERS`] IDs.
    pub first_user: u32,
}

/// Number of users with their own protection descriptors. These are all 16-bit numbers except 0,
/// which is that of the kernel. The first user has descriptor 65,535.
const USERS: u32 = 65_535;

/// Rights of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rights {
    /// True if the file was opened with `CAP_SYS_RAWIO` while the kernel was not locked down.
    pub(super) privileged: bool,
    /// True if the module was loaded with `compat_unsafe` and the kernel was not locked down.
    pub(super) compat: bool,
    /// Effective user ID when the file was opened, in the initial user namespace.
    pub(super) uid: u32,
    /// Lowest admitted user ID; see [`Settings::first_user`].
    pub(super) first_user: u32,
}

impl Rights {
    /// Returns the rights of the calling process. Kernel lockdown makes every process unprivileged,
    /// because privileged files access physical memory and registers. Lockdown is checked last,
    /// because the kernel logs each violation, and a process without the capability needs no such
    /// check.
    pub(super) fn current(settings: &Settings) -> Self {
        let (capable, compat) = (capable(Capability::SysRawio), settings.compat_unsafe);
        let open = (capable || compat) && locked_down(Locked::PciAccess).is_ok();
        Self {
            privileged: capable && open,
            compat: compat && open,
            uid: current_euid(),
            first_user: settings.first_user,
        }
    }

    /// Returns `EPERM` unless the user is privileged or within the range of admitted users. Users
    /// outside of the range would share protection descriptors with other users. Such users can be
    /// created by subordinate user IDs.
    pub(super) fn admit(self) -> Result {
        let inside = self.uid.wrapping_sub(self.first_user) < USERS;
        if self.has_all_rights() || inside {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// Returns whether the file has all rights.
    pub(super) fn has_all_rights(self) -> bool {
        self.privileged || self.compat
    }

    /// Returns `EPERM` unless the file has all rights.
    pub(super) fn require_privilege(self) -> Result {
        if self.has_all_rights() {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// Returns whether requester page `index` may be used. An unprivileged file may use only pages
    /// with address translation and without access to remote registers: 16…19 and 24…27.
    pub(super) fn may_use(self, index: u8) -> bool {
        let page = PageOptions::from_index(index);
        self.has_all_rights() || (page.translate && !page.rra)
    }

    /// Returns a bitmap of the requester pages that may be used.
    pub(super) fn page_mask(self) -> u32 {
        (0..PAGES)
            .filter(|p| self.may_use(*p))
            .fold(0, |mask, p| mask | 1 << p)
    }

    /// Returns the protection descriptor of the file's ports. Files with all rights have descriptor
    /// 0, like the kernel's ports. Each other user has a unique descriptor, so that ports of
    /// different users cannot communicate.
    pub(super) fn protection(self) -> u16 {
        match self.uid.wrapping_sub(self.first_user) as u16 {
            _ if self.has_all_rights() => 0,
            0 => u16::MAX,
            low => low,
        }
    }
}

/// Name of the lock class. It is one static object, because lockdep compares names by address and
/// constructors are inlined.
static LOCK_NAME: &CStr = c"extoll_quota";

/// Numbers of VPIDs that users hold.
#[pin_data]
pub(super) struct Quota {
    limit: u32,
    #[pin]
    users: Mutex<KVec<User>>,
}

struct User {
    uid: u32,
    /// Number of VPIDs that the user holds, by unit.
    held: [u32; 2],
    budget: Arc<Budget>,
    tables: Arc<TableAccount>,
}

impl Quota {
    pub(super) fn new(limit: u32) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                limit,
                users <- Mutex::new(KVec::new(), LOCK_NAME, static_lock_class!()),
            }),
            GFP_KERNEL,
        )
    }

    /// Claims a VPID for a user. Returns `None` for files with all rights, which are not counted,
    /// and `EDQUOT` above the limit. `account` makes an account for a new user.
    pub(super) fn claim(
        self: &Arc<Self>,
        unit: Unit,
        rights: Rights,
        account: impl FnOnce() -> Result<Arc<TableAccount>>,
    ) -> Result<Option<QuotaClaim>> {
        if rights.has_all_rights() {
            return Ok(None);
        }
        if self.limit == 0 {
            return Err(EDQUOT);
        }
        let uid = rights.uid;
        let mut users = self.users.lock();
        // A user without VPIDs is kept while its interrupt budget is in use or its memory is in
        // quarantine.
        users.retain(|user| user.holds() || !user.budget.is_idle() || !user.tables.is_idle());
        let mut present = users.iter_mut().find(|user| user.uid == uid);
        let (budget, tables) = match present.as_mut() {
            None => {
                let budget = Arc::new(Budget::new(), GFP_KERNEL)?;
                let tables = account()?;
                let mut user = User {
                    uid,
                    held: [0; 2],
                    budget: budget.clone(),
                    tables: tables.clone(),
                };
                *user.held_of(unit) = 1;
                users.push(user, GFP_KERNEL)?;
                (budget, tables)
            }
            Some(user) => {
                let held = user.held_of(unit);
                if *held >= self.limit {
                    return Err(EDQUOT);
                }
                *held += 1;
                (user.budget.clone(), user.tables.clone())
            }
        };
        drop(users);
        let quota = self.clone();
        Ok(Some(QuotaClaim {
            quota,
            uid,
            unit,
            budget,
            tables,
        }))
    }
}

impl User {
    fn holds(&self) -> bool {
        self.held.iter().any(|n| *n != 0)
    }

    fn held_of(&mut self, unit: Unit) -> &mut u32 {
        let [velo, rma] = &mut self.held;
        match unit {
            Unit::Velo => velo,
            Unit::Rma => rma,
        }
    }
}

/// Claim of one VPID by a user. Drop returns the VPID to the user's quota.
pub(super) struct QuotaClaim {
    quota: Arc<Quota>,
    uid: u32,
    unit: Unit,
    budget: Arc<Budget>,
    tables: Arc<TableAccount>,
}

impl QuotaClaim {
    /// Returns the account of the user's address tables.
    pub(super) fn tables(&self) -> &Arc<TableAccount> {
        &self.tables
    }

    /// Returns the interrupt budget of all ports of the user.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

impl Drop for QuotaClaim {
    fn drop(&mut self) {
        let mut users = self.quota.users.lock();
        if let Some(user) = users.iter_mut().find(|user| user.uid == self.uid) {
            *user.held_of(self.unit) -= 1;
        }
    }
}

#[kunit_tests(extoll_policy)]
mod tests {
    use super::*;

    const USER: Rights = Rights {
        privileged: false,
        compat: false,
        uid: 1000,
        first_user: 0,
    };

    #[test]
    fn users_get_translated_pages_only() {
        let root = Rights {
            privileged: true,
            ..USER
        };
        let compat = Rights {
            compat: true,
            ..USER
        };
        // Pages 16…19 and 24…27: translated, and not for remote registers.
        assert_eq!(USER.page_mask(), 0x0F0F_0000);
        assert_eq!(root.page_mask(), u32::MAX);
        assert_eq!(compat.page_mask(), u32::MAX);
        assert_eq!(USER.require_privilege(), Err(EPERM));
        assert_eq!(root.require_privilege(), Ok(()));
        assert_eq!(compat.require_privilege(), Ok(()));
    }

    #[test]
    fn no_user_has_the_protection_of_the_kernel() {
        let of = |uid, first_user| Rights {
            uid,
            first_user,
            ..USER
        };
        assert_eq!(of(1000, 0).protection(), 1000);
        assert_eq!(of(0, 0).protection(), u16::MAX);
        assert_eq!(of(100_000, 100_000).protection(), u16::MAX);
        assert_eq!(of(100_007, 100_000).protection(), 7);
        for (uid, first) in [(0, 0), (65_534, 0), (100_000, 100_000), (165_534, 100_000)] {
            assert_eq!(of(uid, first).admit(), Ok(()));
        }
        for (uid, first) in [
            (65_535, 0),
            (u32::MAX, 0),
            (99_999, 100_000),
            (165_535, 100_000),
        ] {
            assert_eq!(of(uid, first).admit(), Err(EPERM));
        }
        let root = Rights {
            privileged: true,
            ..USER
        };
        assert_eq!(root.protection(), 0);
        assert_eq!(
            Rights {
                uid: 1 << 20,
                ..root
            }
            .admit(),
            Ok(())
        );
    }

    #[test]
    fn quota_is_per_user_and_given_back() -> Result {
        let quota = Quota::new(2)?;
        let other = Rights { uid: 7, ..USER };
        let account = || TableAccount::new(4, 2);
        let take = |rights| quota.claim(Unit::Rma, rights, account);
        let first = take(USER)?;
        let second = take(USER)?;
        assert!(first.is_some() && second.is_some());
        assert_eq!(take(USER).err(), Some(EDQUOT));
        // Each unit has its own count, but the user has one budget.
        let velo = quota.claim(Unit::Velo, USER, account)?;
        let budgets = [&first, &velo].map(|s| s.as_ref().map(|s| Arc::as_ptr(s.budget())));
        assert!(budgets[0] == budgets[1]);
        let foreign = take(other)?;
        // Files with all rights are neither counted nor limited.
        let root = Rights {
            privileged: true,
            ..USER
        };
        assert!(take(root)?.is_none());
        drop(first);
        let third = take(USER)?;
        assert_eq!(take(USER).err(), Some(EDQUOT));
        drop((second, third, foreign));
        let holding = || {
            quota
                .users
                .lock()
                .iter()
                .filter(|user| user.holds())
                .count()
        };
        assert_eq!(holding(), 1);
        drop(velo);
        assert_eq!(holding(), 0);
        let none = Quota::new(0)?;
        assert_eq!(none.claim(Unit::Rma, USER, account).err(), Some(EDQUOT));
        Ok(())
    }
}
