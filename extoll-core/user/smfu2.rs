// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/extoll/smfu2`: the window to memory of other nodes, and the memory that this node exports
//! (docs/uapi.md).
//!
//! The window and the exported memory are not divided among processes. A mapping of the window
//! gives access to all intervals, including those of the kernel and of remote register files.
//! Therefore only files with all rights can map it.
//!
//! Process context. A mutex per open file protects its mappings.

use super::{policy::Rights, put_u64, OpenFile, Shared};
use crate::mmio;
use kernel::{
    ioctl::{_IOC_NR, _IOC_TYPE, _IOR},
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use kernel_ext::{
    cache,
    chardev::{Cache, Handler, Mapping, NewMapping, Opening, Part, Space},
};

const MAGIC: u32 = b'k' as u32;
const MAX_NR: u32 = 2;
const GET_LOCAL_SIZE: u32 = _IOR::<u64>(MAGIC, 0);
const FLUSH_CACHES: u32 = _IOR::<u64>(MAGIC, 1);
const GET_NODE_ID: u32 = _IOR::<u64>(MAGIC, 2);

/// State of an open `/dev/extoll/smfu2`.
#[pin_data]
pub(super) struct Smfu2 {
    id: u64,
    shared: Arc<Shared>,
    rights: Rights,
    space: Arc<Space>,
    /// `None` after the file was detached from the NIC.
    #[pin]
    mappings: Mutex<Option<KVec<Arc<Mapping>>>>,
}

impl Smfu2 {
    /// Opens a file. Returns `EAGAIN` if the network does not run.
    pub(super) fn open(shared: &Arc<Shared>, id: u64, opening: &Opening) -> Result<Arc<Self>> {
        if !shared.nic.status().is_up() {
            return Err(EAGAIN);
        }
        let rights = Rights::current(&shared.settings);
        Arc::pin_init(
            pin_init!(Self {
                id,
                shared: shared.clone(),
                rights,
                space: opening.space().clone(),
                mappings <- new_mutex!(Some(KVec::new()), "extoll_smfu_mappings"),
            }),
            GFP_KERNEL,
        )
    }
}

impl OpenFile for Smfu2 {
    fn detach(&self) {
        let mut mappings = self.mappings.lock();
        for mapping in mappings.iter().flatten() {
            mapping.revoke();
        }
        *mappings = None;
    }

    fn revoke(&self) {
        for mapping in self.mappings.lock().iter().flatten() {
            mapping.revoke();
        }
    }
}

impl Handler for Smfu2 {
    fn ioctl(&self, command: u32, arg: usize) -> Result<isize> {
        if _IOC_TYPE(command) != MAGIC || _IOC_NR(command) > MAX_NR {
            return Err(ENOTTY);
        }
        let nic = &self.shared.nic;
        if self.mappings.lock().is_none() {
            return Err(ENODEV);
        }
        match command {
            GET_LOCAL_SIZE => put_u64(arg, nic.smfu().exported().map_or(0, |(_, n)| n as u64)),
            FLUSH_CACHES => {
                self.rights.require_privilege()?;
                cache::flush_all();
                Ok(0)
            }
            GET_NODE_ID => put_u64(arg, nic.node().0.into()),
            _ => Ok(0),
        }
    }

    /// Maps the window (page offset 0) or the exported memory (page offset 1).
    fn mmap(&self, new: NewMapping<'_>) -> Result {
        self.rights.require_privilege()?;
        let nic = &self.shared.nic;
        let pages = new.pages();
        // Locked until the mapping is in the list, so that it is revoked when the file is detached.
        let mut mappings = self.mappings.lock();
        let list = (*mappings).as_mut().ok_or(ENODEV)?;
        if !nic.is_alive() {
            return Err(ENODEV);
        }
        let part = match new.offset() {
            0 => {
                let (phys, size) = nic.smfu().whole_window().ok_or(ENODEV)?;
                if pages as u64 > size >> 12 {
                    return Err(EFAULT);
                }
                let source = mmio::pages(phys.0, size, 0, pages, Cache::Uncached)?;
                Part::new(source, 0, pages)
            }
            1 => {
                let memory = nic.smfu().exported_memory().ok_or(EFAULT)?;
                if pages > memory.words() * 8 >> 12 {
                    return Err(EFAULT);
                }
                Part::new(memory, 0, pages)
            }
            _ => return Err(EFAULT),
        };
        let mut parts = KVec::new();
        parts.push(part, GFP_KERNEL)?;
        list.retain(|m| m.is_used());
        new.attach(&self.space, parts, |m| Ok(list.push(m, GFP_KERNEL)?))
    }

    fn release(&self) {
        self.detach();
        self.shared.forget(self.id);
    }
}
