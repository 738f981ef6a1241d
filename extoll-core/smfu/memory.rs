// SPDX-License-Identifier: GPL-2.0-only

//! Kernel mappings of remote memory in the SMFU window.
//!
//! Loads and stores work in any context and acquire no locks. Mapping and unmapping may sleep.

use super::{window::Route, Smfu};
use crate::mmio::{Remote, Word};
use kernel::{prelude::*, revocable::Revocable, sync::Arc};

/// Reason why an access to remote memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// The access is outside of the window, or not aligned to its size.
    Outside,
    /// The target did not answer. In rare cases, the load returned all ones as data while another
    /// access timed out.
    TimedOut,
    /// The device was removed or unbound.
    Down,
}

impl From<AccessError> for Error {
    fn from(e: AccessError) -> Error {
        match e {
            AccessError::Outside => EFAULT,
            AccessError::TimedOut => ETIMEDOUT,
            AccessError::Down => ENODEV,
        }
    }
}

/// Cache attribute of a kernel mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Each access is executed at once.
    Uncached,
    /// The CPU merges and delays stores.
    WriteCombining,
}

/// Mapped part of the window. It is revoked when the device is unbound.
#[pin_data]
pub(super) struct IoMapping {
    #[pin]
    pub(super) io: Revocable<Remote>,
}

impl Smfu {
    /// Maps `bytes` bytes of the window from `offset` on, and registers the mapping to be revoked
    /// at unbinding. May sleep.
    pub(super) fn map_io(&self, offset: u64, bytes: u64, combine: bool) -> Result<Arc<IoMapping>> {
        let start = self.window_start().ok_or(ENODEV)?;
        self.ctx.with_bound(|_| {
            let remote = Remote::map(start + offset, bytes as usize, combine)?;
            let init = pin_init!(IoMapping { io <- Revocable::new(remote) });
            let mapping = Arc::pin_init(init, GFP_KERNEL)?;
            let mut state = self.state.lock();
            if state.closed {
                return Err(ENODEV);
            }
            state.mapped.push(mapping.clone(), GFP_KERNEL)?;
            Ok(mapping)
        })?
    }

    /// Unregisters a mapping that is not used any more. May sleep.
    pub(super) fn unmap_io(&self, mapping: &Arc<IoMapping>) {
        let mut state = self.state.lock();
        state.mapped.retain(|m| !Arc::ptr_eq(m, mapping));
    }

    /// Flushes earlier stores by loading the quadword at byte `at` of a mapping.
    pub(super) fn push_stores(&self, mapping: &IoMapping, at: usize) {
        let before = self.timeouts();
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        let Some(io) = mapping.io.try_access() else {
            return;
        };
        if u64::load(&io, at) == Some(u64::MAX) {
            // The result is ignored, but a time-out must be counted now, so that the next load does
            // not report it.
            let _ = self.failed(&hw, before);
        }
    }

    /// Revokes all mappings, waits for their users, and prevents new mappings. May sleep.
    pub(crate) fn unmap_all(&self) {
        let mapped = {
            let mut state = self.state.lock();
            state.closed = true;
            core::mem::take(&mut state.mapped)
        };
        for m in &mapped {
            m.io.revoke();
        }
    }
}

/// Kernel mapping of remote memory. Accesses fail after the device was unbound. They work in any
/// context, but a load stalls the CPU until it is answered or times out. Drop unmaps the memory and
/// may sleep.
pub struct RemoteMemory {
    route: Arc<Route>,
    mapping: Arc<IoMapping>,
}

impl RemoteMemory {
    /// Maps `bytes` bytes of the window from `offset` on. `route` points that range to a node. May
    /// sleep.
    pub(super) fn new(
        route: &Arc<Route>,
        offset: u64,
        bytes: u64,
        caching: Caching,
    ) -> Result<Self> {
        let combine = caching == Caching::WriteCombining;
        let mapping = route.smfu().map_io(offset, bytes, combine)?;
        Ok(Self {
            route: route.clone(),
            mapping,
        })
    }

    /// Loads a word at byte `offset`. Any context.
    ///
    /// # Errors
    ///
    /// See [`AccessError`].
    pub fn read<T: Word>(&self, offset: usize) -> Result<T, AccessError> {
        let smfu = self.route.smfu();
        let before = smfu.timeouts();
        let hw = smfu.ctx.alive_access().ok_or(AccessError::Down)?;
        let io = self.mapping.io.try_access().ok_or(AccessError::Down)?;
        let value = T::load(&io, offset).ok_or(AccessError::Outside)?;
        if value == T::ONES {
            smfu.failed(&hw, before)?;
        }
        Ok(value)
    }

    /// Stores a word at byte `offset`. Returns before the word has arrived at the target. Any
    /// context.
    ///
    /// # Errors
    ///
    /// `Outside`, `Down`.
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<(), AccessError> {
        let io = self.mapping.io.try_access().ok_or(AccessError::Down)?;
        // Checked in an RCU read-side section, as in `Context::alive_access`.
        if !self.route.smfu().ctx.is_alive() {
            return Err(AccessError::Down);
        }
        self.route.note_store();
        value.store(&io, offset).ok_or(AccessError::Outside)
    }

    /// Makes the CPU send stores that a write-combining mapping still delays.
    pub fn flush(&self) {
        kernel_ext::barrier::wmb();
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        self.route.smfu().unmap_io(&self.mapping);
    }
}
