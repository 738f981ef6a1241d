// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/extoll/pmap`: physically contiguous buffers for commands without address translation
//! (docs/uapi.md). The process can read their bus addresses. Only the superuser can open the file.
//! The vendor's driver also maps memory at a given address, which this driver rejects.
//!
//! A freed buffer enters the quarantine of the NIC, because commands may still name it.
//!
//! Process context. A mutex per open file protects its buffers.

use super::{put_u64, OpenFile, Shared};
use crate::{
    dma::DmaWords,
    quarantine::{Batch, Quarantined},
};
use kernel::{
    ioctl::{_IOC_NR, _IOC_TYPE, _IOR, _IOW},
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use kernel_ext::chardev::{Handler, Mapping, NewMapping, Opening, Part, Space};
use wire::ids::BusAddr;

const MAGIC: u32 = b'k' as u32;
const MAX_NR: u32 = 9;
const SET_TYPE: u32 = _IOW::<u32>(MAGIC, 0);
const GET_TYPE: u32 = _IOR::<u32>(MAGIC, 1);
const SET_HADDR: u32 = _IOW::<u32>(MAGIC, 2);
const GET_HADDR: u32 = _IOR::<u32>(MAGIC, 3);
const SET_SIZE: u32 = _IOW::<u32>(MAGIC, 4);
const GET_SIZE: u32 = _IOR::<u32>(MAGIC, 5);
const GET_PADDR: u32 = _IOR::<u32>(MAGIC, 6);
const CREATE: u32 = _IOR::<u32>(MAGIC, 7);
const FREE: u32 = _IOR::<u32>(MAGIC, 8);
const SET_CURRENT: u32 = _IOW::<u32>(MAGIC, 9);

/// Types of buffers in the ABI.
const TYPE_COHERENT: u64 = 0;
const TYPE_EMPTY: u64 = 2;
/// Maximum size of a buffer in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum number of buffers per file.
const MAX_BUFFERS: usize = 4096;

/// Buffer of an open file.
struct Buffer {
    key: u64,
    kind: u64,
    bytes: u64,
    /// Memory, with its reserved entry in the quarantine; `None` before it is allocated.
    memory: Option<(Arc<DmaWords>, Batch)>,
    mappings: KVec<Arc<Mapping>>,
}

impl Buffer {
    fn empty(key: u64) -> Self {
        Self {
            key,
            kind: TYPE_EMPTY,
            bytes: 0,
            memory: None,
            mappings: KVec::new(),
        }
    }

    /// Unmaps the memory from the process. The memory is freed after `keep_ms` milliseconds. May
    /// sleep.
    fn revoke(&mut self, keep_ms: u32) {
        for mapping in &self.mappings {
            mapping.revoke();
        }
        self.mappings.clear();
        if let Some((memory, mut batch)) = self.memory.take() {
            batch.push(Quarantined::Words(memory));
            batch.hold(keep_ms);
        }
    }
}

/// Buffers of a file. There is always at least one buffer.
struct Buffers {
    list: KVec<Buffer>,
    current: usize,
    next: u64,
}

impl Buffers {
    fn new() -> Result<Self> {
        let mut list = KVec::new();
        list.push(Buffer::empty(0), GFP_KERNEL)?;
        Ok(Self {
            list,
            current: 0,
            next: 1,
        })
    }

    fn current(&mut self) -> Result<&mut Buffer> {
        self.list.get_mut(self.current).ok_or(EFAULT)
    }

    /// Makes a new buffer and selects it, unless the selected buffer is empty. Returns the key of
    /// the selected buffer.
    fn create(&mut self) -> Result<u64> {
        if self.current()?.kind != TYPE_EMPTY {
            if self.list.len() >= MAX_BUFFERS {
                return Err(ENOSPC);
            }
            self.list.push(Buffer::empty(self.next), GFP_KERNEL)?;
            self.next += 1;
            self.current = self.list.len() - 1;
        }
        Ok(self.current()?.key)
    }

    /// Deletes the selected buffer. Another buffer, or a new empty buffer, is selected afterwards.
    fn free(&mut self, keep_ms: u32) -> Result {
        self.current()?.revoke(keep_ms);
        if self.list.len() == 1 {
            let key = self.next;
            self.next += 1;
            *self.current()? = Buffer::empty(key);
            return Ok(());
        }
        self.list.remove(self.current).map_err(|_| EFAULT)?;
        self.current = self.list.len() - 1;
        Ok(())
    }
}

/// State of an open `/dev/extoll/pmap`.
#[pin_data]
pub(super) struct Pmap {
    id: u64,
    shared: Arc<Shared>,
    space: Arc<Space>,
    /// `None` after the file was detached from the NIC.
    #[pin]
    buffers: Mutex<Option<Buffers>>,
}

impl Pmap {
    pub(super) fn open(shared: &Arc<Shared>, id: u64, opening: &Opening) -> Result<Arc<Self>> {
        let buffers = Buffers::new()?;
        Arc::pin_init(
            pin_init!(Self {
                id,
                shared: shared.clone(),
                space: opening.space().clone(),
                buffers <- new_mutex!(Some(buffers), "extoll_pmap"),
            }),
            GFP_KERNEL,
        )
    }

    fn with<R>(&self, f: impl FnOnce(&mut Buffers) -> Result<R>) -> Result<R> {
        let mut guard = self.buffers.lock();
        f((*guard).as_mut().ok_or(ENODEV)?)
    }

    /// Changes the selected buffer if it has no memory yet.
    fn set(&self, f: impl FnOnce(&mut Buffer)) -> Result<isize> {
        self.with(|buffers| {
            let buffer = buffers.current()?;
            if buffer.memory.is_some() {
                return Err(EBUSY);
            }
            f(buffer);
            Ok(0)
        })
    }

    fn get(&self, arg: usize, f: impl FnOnce(&Buffer) -> u64) -> Result<isize> {
        put_u64(arg, self.with(|buffers| Ok(f(buffers.current()?)))?)
    }
}

impl OpenFile for Pmap {
    fn detach(&self) {
        let keep_ms = self.shared.settings.process_quarantine_ms;
        let mut guard = self.buffers.lock();
        if let Some(buffers) = (*guard).as_mut() {
            buffers.list.iter_mut().for_each(|b| b.revoke(keep_ms));
        }
        *guard = None;
    }

    /// Does nothing, because the file maps only host memory.
    fn revoke(&self) {}
}

impl Handler for Pmap {
    fn ioctl(&self, command: u32, arg: usize) -> Result<isize> {
        if _IOC_TYPE(command) != MAGIC || _IOC_NR(command) > MAX_NR {
            return Err(ENOTTY);
        }
        self.with(|_| Ok(()))?;
        let value = arg as u64;
        match command {
            SET_TYPE if value != TYPE_COHERENT && value != TYPE_EMPTY => Err(EOPNOTSUPP),
            SET_TYPE => self.set(|b| b.kind = value),
            GET_TYPE => self.get(arg, |b| b.kind),
            SET_HADDR => Err(EOPNOTSUPP),
            GET_HADDR => self.get(arg, |_| u64::MAX),
            SET_SIZE => self.set(|b| b.bytes = value),
            GET_SIZE => self.get(arg, |b| b.bytes),
            GET_PADDR => self.get(arg, |b| b.memory.as_ref().map_or(0, |(m, _)| m.address().0)),
            CREATE => put_u64(arg, self.with(Buffers::create)?),
            FREE => {
                let keep_ms = self.shared.settings.process_quarantine_ms;
                self.with(|buffers| buffers.free(keep_ms)).map(|()| 0)
            }
            SET_CURRENT => self.with(|buffers| {
                let at = buffers.list.iter().position(|b| b.key == value);
                buffers.current = at.ok_or(EFAULT)?;
                Ok(0)
            }),
            _ => Ok(0),
        }
    }

    /// Maps the selected buffer, whose memory is allocated if necessary.
    fn mmap(&self, new: NewMapping<'_>) -> Result {
        self.with(|buffers| {
            let buffer = buffers.current()?;
            let bytes = (new.pages() as u64) * BusAddr::PAGE_SIZE;
            if new.offset() != 0 || buffer.kind != TYPE_COHERENT || buffer.bytes != bytes {
                return Err(EFAULT);
            }
            if bytes > MAX_BYTES {
                return Err(EINVAL);
            }
            let fresh = buffer.memory.is_none();
            let (memory, batch) = match buffer.memory.take() {
                Some(memory) => memory,
                None => {
                    let words = bytes as usize / 8;
                    let nic = &self.shared.nic;
                    nic.quarantine().admit_process()?;
                    let batch = nic.quarantine().batch_of_process(None, 1)?;
                    let memory = nic.with_bound(|dev| DmaWords::accounted(dev, words))??;
                    (Arc::new(memory, GFP_KERNEL_ACCOUNT)?, batch)
                }
            };
            buffer.memory = Some((memory.clone(), batch));
            let mut parts = KVec::new();
            parts.push(Part::new(memory, 0, new.pages()), GFP_KERNEL)?;
            buffer.mappings.retain(|m| m.is_used());
            let list = &mut buffer.mappings;
            let result = new.attach(&self.space, parts, |m| Ok(list.push(m, GFP_KERNEL)?));
            if fresh && result.is_err() {
                // The process has not accessed the memory yet, so it need not enter the quarantine.
                buffer.memory = None;
            }
            result
        })
    }

    fn release(&self) {
        self.detach();
        self.shared.forget(self.id);
    }
}
