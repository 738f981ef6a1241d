// SPDX-License-Identifier: GPL-2.0-only

//! PCI host bridges made by software: a domain with one bus, behind which devices are that are somewhere else.
//!
//! | Of the devices | Comes from |
//! |---|---|
//! | configuration space | [`Functions`], a trait of the driver's |
//! | BARs | [`Window`]s: addresses of the processor that lead to them |
//! | interrupts | [`Interrupts::fire`]: MSI and MSI-X only, no pins |
//! | memory for DMA | a [`Pool`], in which everything is that the devices reach … |
//! | BARs of others | … but for [`PeerBar`]s, which they reach without this host |
//!
//! The devices' BARs are taken as they are read, and nothing is moved: what leads to them has been set up for these
//! addresses on both sides, and could not follow. So a BAR that is in none of the windows is an error.
//!
//! Devices get their DMA operations when they are added to the bus, before the kernel looks for a driver: by a notifier, so that
//! devices that are found later by a rescan have them, too. The end of a bridge removes the devices first, then nobody calls
//! [`Functions`] any more, then the interrupts are freed, and the pool last. What somebody still has a reference to by then, the kernel
//! keeps what belongs to it, so that no operation runs without its memory; it says so in its log.
//!
//! # Examples
//!
//! ```
//! # use kernel::{device::{Bound, Device}, prelude::*, sync::Arc};
//! # use kernel_ext::pci_host::{Contiguous, Functions, HostBridge, Message, Pool, Width, Window};
//! /// A function that has nothing but its IDs.
//! struct Dumb;
//!
//! impl Functions for Dumb {
//!     fn read(&self, devfn: u8, offset: u16, width: Width) -> Option<u32> {
//!         if devfn != 0 {
//!             return None;
//!         }
//!         match offset {
//!             0 => Some(0x5678_1234 & width.ones()),
//!             _ => Some(0),
//!         }
//!     }
//!
//!     fn write(&self, devfn: u8, _: u16, _: Width, _: u32) -> Option<()> {
//!         (devfn == 0).then_some(())
//!     }
//!
//!     fn message(&self, vector: u32) -> Message {
//!         Message { address: 0x8000_0000, data: vector }
//!     }
//! }
//!
//! fn attach(nic: &Device<Bound>, windows: &[Window]) -> Result<HostBridge> {
//!     let memory = Contiguous::new(1 << 20, -1)?;
//!     let pool = Pool::new(Arc::new(memory, GFP_KERNEL)?, 0x1_0000_0000)?;
//!     HostBridge::new(nic, windows, 32, pool, Arc::new(Dumb, GFP_KERNEL)?)
//! }
//!
//! fn interrupt(bridge: &HostBridge) {
//!     bridge.interrupts().fire_all();
//! }
//! ```

mod behind;
mod bridge;
mod calls;
mod config;
mod direct;
mod interrupts;
mod memory;
mod peers;
mod pool;
mod shared;
mod window;

pub use behind::{Accesses, Functions, Message, Width};
pub use bridge::{HostBridge, Prepared};
pub use interrupts::Interrupts;
pub use memory::{is_linear, Contiguous, PageMap, PoolMemory};
pub use peers::PeerBar;
pub use pool::{Pool, PoolStats};
pub use window::Window;

/// Why the kernel that this is built for can't have such bridges. Any context.
pub fn unsupported() -> Option<&'static str> {
    if cfg!(CONFIG_PREEMPT_RT) {
        // Configuration registers are read with raw spin locks held.
        return Some("PREEMPT_RT");
    }
    if !cfg!(CONFIG_ARCH_HAS_DMA_OPS) {
        // Drivers would give devices addresses of the node's memory.
        return Some("devices have no DMA operations of their own (CONFIG_ARCH_HAS_DMA_OPS)");
    }
    None
}
