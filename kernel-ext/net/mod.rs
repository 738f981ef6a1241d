// SPDX-License-Identifier: GPL-2.0-only

//! Network devices: [`NetDev`] and [`Registration`], [`Operations`], [`Napi`], socket buffers,
//! ethtool. Sockets are in [`socket`]. Data per network namespace are in [`namespace`] and
//! [`sysctl`].
//!
//! Life cycle of devices, enforced by types and drop order:
//! 1. [`NetDev::alloc`] makes an unregistered device, shared by `Arc`.
//! 2. [`Napi::new`] attaches a NAPI instance to the device.
//! 3. [`Registration::new`] receives the driver's data and registers the device. The drop of the
//!    registration unregisters the device and waits for every callback. Then the data are dropped.
//!    Finally the last `Arc<NetDev>` frees the device.
//!
//! A NAPI instance runs only between a successful `open` and the matching `stop`, because the
//! callbacks in this module enable and disable it.

mod dev;
mod ethtool;
pub mod namespace;
mod napi;
mod ops;
mod skb;
pub mod socket;
mod stats;
pub mod sysctl;

pub use dev::{Config, Device, NetDev, Registration, Rtnl};
pub use ethtool::{Ack, EthtoolOps, RingParam, Tunable};
pub use napi::{Napi, NapiPoll, PollCx};
pub use ops::{Operations, Transmit, TxQueue};
pub use skb::{Checksum, Owner, RxMapping, RxSkb, SkBuff, TxMapping, Unmapped};
pub use stats::{BqlDone, BqlToken, Stats64};

use crate::bindings;

/// Size of an Ethernet header in bytes.
pub const ETH_HLEN: usize = 14;

/// Guard that disables bottom halves on this CPU. Process context needs the guard around spin locks
/// that NAPI or the transmit path also acquire. Task context or softirq, not hard interrupts.
pub struct BhDisabled(core::marker::PhantomData<*mut ()>);

impl BhDisabled {
    /// Disables bottom halves.
    #[inline]
    pub fn new() -> Self {
        // SAFETY: the function has no preconditions. The drop undoes the call on the same CPU and
        // in the same context, because the type is not `Send`.
        unsafe { bindings::extoll_bh_disable() };
        Self(core::marker::PhantomData)
    }
}

impl Default for BhDisabled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BhDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the call balances the call in `new()`.
        unsafe { bindings::extoll_bh_enable() }
    }
}

/// Returns true if a message about network traffic may be logged now (`net_ratelimit()`). Any
/// context.
pub fn ratelimit() -> bool {
    // SAFETY: the function has no preconditions.
    unsafe { bindings::extoll_net_ratelimit() }
}

/// Returns the jiffies since boot, 64 bits. Any context; costs a memory read; resolution 1/HZ s.
#[inline]
pub fn jiffies64() -> u64 {
    // SAFETY: the function has no preconditions.
    unsafe { bindings::extoll_jiffies64() }
}
