// SPDX-License-Identifier: GPL-2.0-only

//! Network devices: [`NetDev`] and [`Registration`], [`Operations`], [`Napi`], socket buffers, ethtool. Sockets are in
//! [`socket`], what modules keep per network namespace in [`namespace`] and [`sysctl`].
//!
//! Life cycle of devices, enforced by types and drop order:
//! 1. [`NetDev::alloc`] makes an unregistered device, shared by `Arc`;
//! 2. [`Napi::new`] ties poll contexts to it;
//! 3. [`Registration::new`] takes the driver's data and registers; its drop unregisters (waits for every callback), then the
//!    data are dropped, then the last `Arc<NetDev>` frees the device.
//!
//! NAPI instances run only between a successful `open` and the matching `stop`: the adapter enables and disables them.

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

/// Bytes of an Ethernet header.
pub const ETH_HLEN: usize = 14;

/// Bottom halves are off on this CPU while it lives. Needed around spin locks that are shared with NAPI or transmit
/// context when they are taken in process context. Task context or softirq, not hard interrupts.
pub struct BhDisabled(core::marker::PhantomData<*mut ()>);

impl BhDisabled {
    /// Switches bottom halves off.
    #[inline]
    pub fn new() -> Self {
        // SAFETY: No preconditions; the drop of the value, which cannot leave this CPU's context since the type is not
        // `Send`, undoes it.
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
        // SAFETY: Balances the call in `new()`.
        unsafe { bindings::extoll_bh_enable() }
    }
}

/// Whether a message about network traffic may be logged now (the kernel's `net_ratelimit()`). Any context.
pub fn ratelimit() -> bool {
    // SAFETY: No preconditions.
    unsafe { bindings::extoll_net_ratelimit() }
}

/// Jiffies since boot, 64 bit. Any context; cheap (a memory read), resolution 1/HZ s.
#[inline]
pub fn jiffies64() -> u64 {
    // SAFETY: No preconditions.
    unsafe { bindings::extoll_jiffies64() }
}
