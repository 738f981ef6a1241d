// SPDX-License-Identifier: GPL-2.0-only

//! PCI host bridges in software: a PCI domain with one bus, whose devices are in another node.
//!
//! | Property of a device | Provided by |
//! |---|---|
//! | configuration space | [`Functions`], a trait that the driver implements |
//! | BARs | [`Window`]s: CPU addresses that reach the BARs |
//! | interrupts | [`Interrupts::fire_while`]: MSI and MSI-X only, no pins |
//! | DMA memory | a [`Pool`], which contains all memory that the devices access |
//! | BARs of other devices | [`PeerBar`]s, which the devices reach without this host |
//!
//! BARs keep the addresses that they have, because the paths to them were set up for these
//! addresses on both sides. A BAR outside of all windows is an error.
//!
//! A notifier sets the DMA operations of a device when it is added to the bus, before the kernel
//! selects a driver. Devices that a later rescan finds get their operations in the same way.
//!
//! Dropping a bridge first removes the devices. Then the bridge stops calling [`Functions`], frees
//! the interrupts, and finally frees the pool. If a reference to an object of the bridge is left by
//! then, the bridge leaks the memory that the object uses, and logs the leak.
//! # Examples
//!
//! ```
//! # use kernel::{device::{Bound, Device}, prelude::*, sync::Arc};
//! # use kernel_ext::pci_host::{Contiguous, Functions, HostBridge, Message, Pool, Width, Window};
//! /// Function that only has IDs.
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
//!     bridge.interrupts().fire_while(0, || true);
//! }
//! ```

mod bridge;
mod calls;
mod config;
mod direct;
mod gate;
mod interrupts;
mod memory;
mod peers;
mod pool;
mod shared;
mod window;

pub use bridge::{HostBridge, Prepared};
pub use gate::{Accesses, Functions, Message, Width};
pub use interrupts::Interrupts;
pub use memory::{is_linear, Contiguous, PageMap, PoolMemory};
pub use peers::PeerBar;
pub use pool::{Pool, PoolStats};
pub use window::Window;

/// Returns the reason why the target kernel does not support software host bridges; `None` if it
/// supports them. Any context.
pub fn unsupported() -> Option<&'static str> {
    if cfg!(CONFIG_PREEMPT_RT) {
        // Configuration registers are read with raw spin locks held.
        return Some("PREEMPT_RT");
    }
    if !cfg!(CONFIG_ARCH_HAS_DMA_OPS) {
        // Without DMA operations of their own, devices would get addresses of this node's memory
        // from their drivers.
        return Some("devices have no DMA operations of their own (CONFIG_ARCH_HAS_DMA_OPS)");
    }
    None
}
