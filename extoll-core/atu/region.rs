// SPDX-License-Identifier: GPL-2.0-only

//! Registered memory.

use crate::nic::Nic;
use kernel::{prelude::*, sync::Arc};
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
    /// Reading and writing.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
    };
}

/// Memory that RMA commands reach by NLA, on behalf of one VPID.
///
/// Byte i of the memory has NLA [`Region::nla`] + i. Drop revokes: translations are cleared, flushed, and the NIC's
/// notification awaited; only then the memory is unmapped and given back. Drop may sleep, up to the revocation deadline.
/// When the notification does not come in time the memory and the NLAs stay reserved until it does.
///
/// While a region or such a remainder of one exists, its VPID is not given to anybody else.
pub struct Region {
    nic: Arc<Nic>,
    vpid: Vpid,
    nla: Nla,
    bytes: usize,
    access: Access,
}

impl Region {
    /// NLA of the first byte, a multiple of 4096. Any context.
    pub fn nla(&self) -> Nla {
        self.nla
    }

    /// Length in bytes, a multiple of 4096. Any context.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the NIC may do. Any context.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The VPID that commands have to name. Any context.
    pub fn vpid(&self) -> Vpid {
        self.vpid
    }

    /// The NIC. Any context.
    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// False once the memory was unmapped (munmap, mremap, madvise, exit) or the device is gone: commands with its NLAs
    /// fail. Any context.
    pub fn is_alive(&self) -> bool {
        self.nic.is_alive()
    }

    /// Revokes as drop does, and tells how that ended. May sleep.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the NIC may still access the memory, which stays reserved until it says that it does not.
    pub fn revoke(self) -> Result {
        Ok(())
    }
}

/// Registers memory of the current process: `bytes` bytes from `start`, both multiples of 4096, for `vpid`, which
/// the caller must have open. The pages are pinned and count against `RLIMIT_MEMLOCK` (unless `CAP_IPC_LOCK`). When the
/// process unmaps any of it, moves it or ends, the region dies ([`Region::is_alive`]). May sleep; process context of the
/// owner.
///
/// # Errors
///
/// `EINVAL`: not page aligned, nothing, wraps around, no access asked for. `EFAULT`: not all of it is mapped, or not with
/// the access asked for. `ENOMEM`: no memory, or `RLIMIT_MEMLOCK` exceeded. `ENOSPC`: no contiguous NLA range or the
/// limit of address tables reached. `EOPNOTSUPP`: the host cannot share this memory with the device. `EAGAIN`: the memory
/// was unmapped meanwhile. `EINTR`: a fatal signal. `ENODEV`: the device is gone.
pub fn register_user(
    nic: &Arc<Nic>,
    vpid: Vpid,
    start: usize,
    bytes: usize,
    access: Access,
) -> Result<Region> {
    let _ = (nic, vpid, start, bytes, access);
    Err(EOPNOTSUPP)
}
