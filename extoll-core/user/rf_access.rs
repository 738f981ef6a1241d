// SPDX-License-Identifier: GPL-2.0-only

//! `/dev/extoll/extoll_rf_access`: access to registers of this and other nodes (docs/uapi.md). Only
//! the superuser can open the file.
//!
//! Process context. A mutex per open file protects its settings and mappings.

use super::{get_u64, put_u64, OpenFile, Shared};
use crate::{
    mmio,
    rra::{self, Method, RraError},
};
use kernel::{
    ioctl::{_IOC_NR, _IOC_TYPE, _IOR, _IOW},
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    uaccess::UserSlice,
};
use kernel_ext::chardev::{Cache, Handler, Mapping, NewMapping, Opening, Part, Space};
use wire::{
    ids::{NodeId, RegOffset},
    regs::info,
};

const MAGIC: u32 = b'n' as u32;
const MAX_NR: u32 = 5;
const GET_WRITE_METHOD: u32 = _IOR::<u64>(MAGIC, 0);
const GET_READ_METHOD: u32 = _IOR::<u64>(MAGIC, 1);
const GET_TIMEOUT: u32 = _IOR::<u64>(MAGIC, 2);
const SET_WRITE_METHOD: u32 = _IOW::<u64>(MAGIC, 3);
const SET_READ_METHOD: u32 = _IOW::<u64>(MAGIC, 4);
const SET_TIMEOUT: u32 = _IOW::<u64>(MAGIC, 5);

const METHODS: [(u64, Method); 3] = [(0, Method::Rma), (1, Method::Smfu), (2, Method::Local)];
/// Bits of the file position that contain the register's offset.
const OFFSET_MASK: u64 = 0x3FF_FFFF;
/// Number of pages of the register file.
const PAGES: usize = RegOffset::WINDOW as usize / 4096;

struct State {
    write: Method,
    read: Method,
    timeout_us: u32,
    node: Option<NodeId>,
    offset: RegOffset,
    mappings: KVec<Arc<Mapping>>,
}

/// State of an open `/dev/extoll/extoll_rf_access`.
#[pin_data]
pub(super) struct RfAccess {
    id: u64,
    shared: Arc<Shared>,
    space: Arc<Space>,
    /// `None` after the file was detached from the NIC.
    #[pin]
    state: Mutex<Option<State>>,
}

fn number(method: Method) -> u64 {
    METHODS
        .iter()
        .find(|(_, m)| *m == method)
        .map_or(2, |(n, _)| *n)
}

/// Converts errors to those of the vendor's driver, which returns `EFAULT` for invalid arguments.
fn errno(error: RraError) -> Error {
    match error {
        RraError::BadNode | RraError::BadOffset => EFAULT,
        other => other.into(),
    }
}

impl RfAccess {
    pub(super) fn open(shared: &Arc<Shared>, id: u64, opening: &Opening) -> Result<Arc<Self>> {
        let state = State {
            write: Method::Smfu,
            read: Method::Rma,
            timeout_us: rra::DEFAULT_TIMEOUT_US,
            node: None,
            offset: info::NODE,
            mappings: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                id,
                shared: shared.clone(),
                space: opening.space().clone(),
                state <- new_mutex!(Some(state), "extoll_rf_access"),
            }),
            GFP_KERNEL,
        )
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
        let mut guard = self.state.lock();
        f((*guard).as_mut().ok_or(ENODEV)?)
    }

    /// Returns method, time-out in microseconds, node and register of the next access. Returns
    /// `EFAULT` if no node was set, unless the method accesses only this node.
    fn target(
        &self,
        method: impl FnOnce(&State) -> Method,
    ) -> Result<(Method, u32, NodeId, RegOffset)> {
        let own = self.shared.nic.node();
        self.with(|s| {
            let method = method(s);
            let node = match method {
                Method::Local => own,
                _ => s.node.ok_or(EFAULT)?,
            };
            Ok((method, s.timeout_us, node, s.offset))
        })
    }

    fn set_method(
        &self,
        arg: usize,
        f: impl FnOnce(&mut State) -> (&mut Method, Method),
    ) -> Result<isize> {
        let value = get_u64(arg)?;
        let found = METHODS.iter().find(|(n, _)| *n == value);
        self.with(|s| {
            let (place, default) = f(s);
            *place = found.map_or(default, |(_, m)| *m);
            found.map(|_| 0).ok_or(EFAULT)
        })
    }
}

impl OpenFile for RfAccess {
    fn detach(&self) {
        let mut state = self.state.lock();
        for mapping in state.iter().flat_map(|s| &s.mappings) {
            mapping.revoke();
        }
        *state = None;
    }

    fn revoke(&self) {
        for mapping in self.state.lock().iter().flat_map(|s| &s.mappings) {
            mapping.revoke();
        }
    }
}

impl Handler for RfAccess {
    fn ioctl(&self, command: u32, arg: usize) -> Result<isize> {
        if _IOC_TYPE(command) != MAGIC || _IOC_NR(command) > MAX_NR {
            return Err(ENOTTY);
        }
        self.with(|_| Ok(()))?;
        match command {
            GET_WRITE_METHOD => put_u64(arg, self.with(|s| Ok(number(s.write)))?),
            GET_READ_METHOD => put_u64(arg, self.with(|s| Ok(number(s.read)))?),
            GET_TIMEOUT => put_u64(arg, self.with(|s| Ok(s.timeout_us.into()))?),
            SET_WRITE_METHOD => self.set_method(arg, |s| (&mut s.write, Method::Smfu)),
            SET_READ_METHOD => self.set_method(arg, |s| (&mut s.read, Method::Rma)),
            SET_TIMEOUT => {
                let us = u32::try_from(get_u64(arg)?).map_err(|_| EINVAL)?;
                if us == 0 || us > rra::MAX_TIMEOUT_US {
                    return Err(EINVAL);
                }
                self.with(|s| {
                    s.timeout_us = us;
                    Ok(0)
                })
            }
            _ => Err(EFAULT),
        }
    }

    /// Sets the node to bits 47:32 of the offset, and the register to bits 25:0.
    fn seek(&self, offset: i64) -> Result<i64> {
        self.with(|s| {
            s.node = Some(NodeId((offset >> 32) as u16));
            s.offset = RegOffset((offset as u64 & OFFSET_MASK) as u32);
            Ok(offset)
        })
    }

    fn read(&self, to: UserSlice) -> Result<usize> {
        let mut to = to.writer();
        if to.len() != 8 {
            return Err(EFAULT);
        }
        let (method, timeout, node, offset) = self.target(|s| s.read)?;
        let rra = self.shared.nic.rra();
        let value = rra.read_by(method, timeout, node, offset).map_err(errno)?;
        to.write(&value)?;
        Ok(8)
    }

    fn write(&self, from: UserSlice) -> Result<usize> {
        let mut from = from.reader();
        if from.len() != 8 {
            return Err(EFAULT);
        }
        let value: u64 = from.read()?;
        let (method, timeout, node, offset) = self.target(|s| s.write)?;
        let rra = self.shared.nic.rra();
        rra.write_by(method, timeout, node, offset, value)
            .map_err(errno)?;
        Ok(8)
    }

    /// Maps the whole register file of this NIC.
    fn mmap(&self, new: NewMapping<'_>) -> Result {
        if new.pages() != PAGES {
            return Err(EINVAL);
        }
        let nic = &self.shared.nic;
        // Called with the list locked, so that the mapping is in the list before pages are revoked.
        self.with(|s| {
            let base = nic.alive_access().ok_or(ENODEV)?.windows.cpu.rf.0;
            let source = mmio::pages(base, RegOffset::WINDOW.into(), 0, PAGES, Cache::Uncached)?;
            let mut parts = KVec::new();
            parts.push(Part::new(source, 0, PAGES), GFP_KERNEL)?;
            s.mappings.retain(|m| m.is_used());
            let list = &mut s.mappings;
            new.attach(&self.space, parts, |m| Ok(list.push(m, GFP_KERNEL)?))
        })
    }

    fn release(&self) {
        self.detach();
        self.shared.forget(self.id);
    }
}
