// SPDX-License-Identifier: GPL-2.0-only

//! Environment of the state machines in `protocol::eth`: clock, receive and transmit buffers, lock
//! wrappers, and type aliases for this module. Functions run in any context unless their comment
//! says otherwise.

pub(crate) use extoll_core::memory::KernelMemory;
use extoll_core::nic::Nic;
use kernel::{
    prelude::*,
    sync::SpinLockIrq,
    time::{msecs_to_jiffies, Delta},
};
use kernel_ext::{
    mem::BoundDevice,
    net::{self, BqlToken, Checksum, NetDev, RxMapping, RxSkb, TxMapping},
    security,
};
use protocol::{
    base::validity::{find_hole, tag_offsets, ValidityTag},
    eth::{
        order,
        poll::Timer,
        rendezvous::{self, Buffer},
        stuck,
    },
    Time,
};
use wire::ids::NodeId;

/// Table of bounded size, indexed by key.
pub(crate) type Slots<T> = protocol::Slots<KernelMemory, T>;

/// The kernel's time in jiffies since boot.
#[derive(Clone, Copy)]
pub(crate) struct Clock;

impl protocol::Clock for Clock {
    fn now(&self) -> Time {
        Time(net::jiffies64())
    }
}

/// Converts milliseconds to ticks of [`Clock`].
#[inline]
pub(crate) fn ms(ms: u32) -> u64 {
    msecs_to_jiffies(ms) as u64
}

/// Returns the time from `now` to `at`, zero if `at` has passed.
#[inline]
pub(crate) fn delay(now: Time, at: Time) -> Delta {
    duration(at.since(now))
}

/// Converts ticks of [`Clock`] to a duration.
#[inline]
pub(crate) fn duration(ticks: u64) -> Delta {
    let hz = ms(1000).max(1);
    Delta::from_millis((ticks * 1000 / hz) as i64)
}

/// Announced frame, mapped for GETs of the peer.
pub(crate) struct TxBuffer {
    pub(crate) map: TxMapping,
    pub(crate) bql: Option<BqlToken>,
}

impl TxBuffer {
    /// Unmaps and frees the frame after the last access of the peer. Any context.
    pub(crate) fn free(self, nic: &Nic) {
        // Without a bound device the frame stays mapped and is leaked.
        let _ = nic.with_bound_atomic(|dev| drop(self.map.unmap(dev)));
    }
}

impl Buffer for TxBuffer {
    fn address(&self) -> u64 {
        self.map.addr()
    }
}

/// Receive buffer of a GET.
pub(crate) struct RxBuffer {
    pub(crate) map: RxMapping,
    /// Value of the validity tags in the buffer, which the GET must overwrite.
    tag: ValidityTag,
}

impl RxBuffer {
    /// Allocates and maps the buffer for a frame of `len` bytes. Softirq or process context, does
    /// not sleep.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`RxMapping::new`].
    pub(crate) fn new(dev: &BoundDevice, ndev: &NetDev, len: u32) -> Result<Self> {
        let tag = security::random().to_le_bytes();
        let map = RxMapping::with_tags(dev, ndev, len, tag_offsets(len), tag)?;
        Ok(Self { map, tag })
    }

    /// Allocates and maps a buffer without validity tags, for GETs whose data is discarded.
    /// Otherwise like [`RxBuffer::new`].
    pub(crate) fn scratch(dev: &BoundDevice, ndev: &NetDev, len: u32) -> Result<Self> {
        let map = RxMapping::new(dev, ndev, len)?;
        Ok(Self { map, tag: [0; 8] })
    }

    /// Unmaps the buffer. Returns the frame and, if data is missing, the offset in bytes of the
    /// first hole. Returns `None` if the buffer was mapped by an earlier driver binding. The buffer
    /// then stays mapped.
    pub(crate) fn complete(self, dev: &BoundDevice) -> Option<(RxSkb, Option<u32>)> {
        let skb = self.map.complete(dev).ok()?;
        let hole = find_hole(skb.data(), self.tag);
        Some((skb, hole))
    }

    /// Unmaps and frees the buffer after the last write of its GET. Any context.
    pub(crate) fn free(self, nic: &Nic) {
        // Without a bound device the buffer stays mapped and is leaked.
        let _ = nic.with_bound_atomic(|dev| drop(self.map.discard(dev)));
    }
}

impl Buffer for RxBuffer {
    fn address(&self) -> u64 {
        self.map.addr()
    }
}

/// Announced frames of the sending side.
pub(crate) type Sender = rendezvous::Sender<KernelMemory, TxBuffer>;
/// GETs in flight and GETs that timed out.
pub(crate) type Fetches = rendezvous::Fetches<KernelMemory, RxBuffer>;
/// Announcements that wait to be fetched.
pub(crate) type Waiting = rendezvous::Waiting<KernelMemory>;

/// Nodes of foreign MAC addresses.
pub(crate) type Macs = protocol::eth::macs::Macs<KernelMemory>;
/// Peers that are watched because they leave transfers unanswered.
pub(crate) type Suspects = stuck::Suspects<KernelMemory>;

/// A received frame, the state of its checksum, and its source node.
pub(crate) type Frame = (RxSkb, Checksum, NodeId);
/// Frames that are held until earlier frames of their source arrive.
pub(crate) type Order = order::Order<KernelMemory, Frame>;

/// Creates a large object in a separate stack frame and moves it to the heap. May sleep.
///
/// # Errors
///
/// Returns the errors of `make`, or `ENOMEM`.
#[inline(never)]
pub(crate) fn boxed<T>(make: impl FnOnce() -> Result<T>) -> Result<KBox<T>> {
    Ok(KBox::new(make()?, GFP_KERNEL)?)
}

/// The table of GETs behind its lock.
pub(crate) struct Locked<'a>(pub(crate) &'a SpinLockIrq<KBox<Fetches>>);

impl protocol::Shared<Fetches> for Locked<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Fetches) -> R) -> R {
        f(&mut self.0.lock())
    }
}

/// The timer behind its lock.
pub(crate) struct Timed<'a>(pub(crate) &'a SpinLockIrq<Timer>);

impl protocol::Shared<Timer> for Timed<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Timer) -> R) -> R {
        f(&mut self.0.lock())
    }
}
