// SPDX-License-Identifier: GPL-2.0-only

//! Safe abstractions that the `kernel` crate lacks. All unsafe code that the drivers need is in
//! this crate and in the modules `mmio` and `dma` of `extoll_core`.

pub mod barrier;
mod bh_lock;
pub(crate) mod bindings;
pub mod cache;
pub mod chardev;
pub mod debugfs;
pub mod global;
pub mod leased;
pub mod mem;
pub mod net;
pub mod param;
pub mod pci;
pub mod pci_host;
pub mod ratelimit;
pub mod reset;
pub mod sched;
pub mod security;
pub mod sysfs;
pub mod tasklet;
pub mod testing;
pub mod timer;
pub mod trace;
pub mod uevent;
pub mod vectors;
pub mod work;

pub use bh_lock::{BhBackend, BhGuard, BhLock};

#[allow(dead_code)]
const __LOG_PREFIX: &[u8] = b"extoll\0";
