// SPDX-License-Identifier: GPL-2.0-only

//! Memory of the RMA locks, which peers change by lock commands (HW §10.6).
//!
//! A mutex protects the memory. All functions may sleep.

use crate::dma::DmaWords;
use kernel::{new_mutex, prelude::*, sync::Mutex};
use wire::ids::Vpid;

/// Locks in host memory. The memory exists from [`Locks::set_memory`] to [`Locks::free`].
#[pin_data]
pub(crate) struct Locks {
    #[pin]
    memory: Mutex<Option<DmaWords>>,
}

impl Locks {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { memory <- new_mutex!(None, "extoll_locks") })
    }

    /// Stores the memory of the locks. May sleep.
    pub(super) fn set_memory(&self, memory: DmaWords) {
        *self.memory.lock() = Some(memory);
    }

    /// Zeroes the locks of a closed VPID. May sleep.
    pub(crate) fn clear(&self, vpid: Vpid) {
        if let Some(memory) = &*self.memory.lock() {
            for i in (vpid.index()..memory.words() * 2).step_by(usize::from(Vpid::COUNT)) {
                memory.write_half(i, 0);
            }
        }
    }

    /// Frees the memory. The caller has removed its address from the NIC. May sleep.
    pub(crate) fn free(&self) {
        let memory = self.memory.lock().take();
        drop(memory);
    }
}
