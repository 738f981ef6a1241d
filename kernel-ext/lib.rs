// SPDX-License-Identifier: GPL-2.0-only

//! Safe abstractions that the `kernel` crate lacks. All unsafe code of the drivers above lives here
//! (and in `extoll_core`'s `mmio` and `dma` modules).

pub mod barrier;
pub(crate) mod bindings;
pub mod cache;
pub mod chardev;
pub mod debugfs;
pub mod global;
pub mod mem;
pub mod net;
pub mod param;
pub mod pci;
pub mod ratelimit;
pub mod reset;
pub mod sched;
pub mod security;
pub mod sysfs;
pub mod trace;
pub mod uevent;
pub mod work;

#[allow(dead_code)]
const __LOG_PREFIX: &[u8] = b"extoll\0";
