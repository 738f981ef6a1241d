// SPDX-License-Identifier: GPL-2.0-only

//! Memory of other nodes as the kernel accesses it.

use super::{window::Route, Smfu};
use crate::mmio::{Remote, Word};
use kernel::{prelude::*, revocable::Revocable, sync::Arc};

/// Why remote memory was not accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessError {
    /// Outside the window, or not aligned to its size.
    Outside,
    /// The target did not answer; or, seldom, a load of all ones was under way while another access
    /// timed out.
    TimedOut,
    /// The device is gone or unbound.
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

/// How the kernel maps a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Every access goes out at once.
    Uncached,
    /// Stores are merged and go out later.
    WriteCombining,
}

/// A mapped part of the window, revoked when the device goes.
#[pin_data]
pub(super) struct IoMapping {
    #[pin]
    pub(super) io: Revocable<Remote>,
}

impl Smfu {
    /// Maps `bytes` of the window from `offset` while the device is bound, and notes that for the
    /// end of the binding. May sleep.
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

    /// The mapping is not needed any more. May sleep.
    pub(super) fn unmap_io(&self, mapping: &Arc<IoMapping>) {
        let mut state = self.state.lock();
        state.mapped.retain(|m| !Arc::ptr_eq(m, mapping));
    }

    /// Loads the quadword at byte `at` of a mapping, whatever it is: stores before it are through.
    pub(super) fn push_stores(&self, mapping: &IoMapping, at: usize) {
        let before = self.timeouts();
        let Some(hw) = self.ctx.alive_access() else {
            return;
        };
        let Some(io) = mapping.io.try_access() else {
            return;
        };
        if u64::load(&io, at) == Some(u64::MAX) {
            // Whether the target answered does not matter, but the next reader must not be told so.
            let _ = self.failed(&hw, before);
        }
    }

    /// Revokes all mappings and waits for their users; no more are made. May sleep.
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

/// Memory of another node as the kernel accesses it; unmapped by drop, and useless once the device
/// is unbound. Accesses: any context, but a load holds the processor until it is answered or timed
/// out. The drop may sleep.
pub struct RemoteMemory {
    route: Arc<Route>,
    mapping: Arc<IoMapping>,
}

impl RemoteMemory {
    /// `bytes` of the window from `offset`, which `route` leads somewhere. May sleep.
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

    /// Loads a word at byte `offset`.
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

    /// Stores a word at byte `offset`. Success says nothing about its arrival.
    ///
    /// # Errors
    ///
    /// `Outside`, `Down`.
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<(), AccessError> {
        let io = self.mapping.io.try_access().ok_or(AccessError::Down)?;
        // Looked at by a reader of RCU, as `Context::alive_access` does.
        if !self.route.smfu().ctx.is_alive() {
            return Err(AccessError::Down);
        }
        self.route.note_store();
        value.store(&io, offset).ok_or(AccessError::Outside)
    }

    /// Sends stores that a write-combining mapping still holds.
    pub fn flush(&self) {
        kernel_ext::barrier::wmb();
    }
}

impl Drop for RemoteMemory {
    fn drop(&mut self) {
        self.route.smfu().unmap_io(&self.mapping);
    }
}
