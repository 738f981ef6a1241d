// SPDX-License-Identifier: GPL-2.0-only

//! What the protocol machines need from this module: memory, time, buffers.

pub(crate) use extoll_core::machine::Kernel;
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
    base::marks::{hole, marks, Mark},
    eth::{
        order,
        poll::Timer,
        rendezvous::{self, Buffer},
        stuck,
    },
    Time,
};
use wire::ids::NodeId;

/// A table.
pub(crate) type Slots<T> = protocol::Slots<Kernel, T>;

/// The kernel's time in jiffies.
#[derive(Clone, Copy)]
pub(crate) struct Clock;

impl protocol::Clock for Clock {
    fn now(&self) -> Time {
        Time(net::jiffies64())
    }
}

/// Milliseconds as ticks of [`Clock`].
#[inline]
pub(crate) fn ms(ms: u32) -> u64 {
    msecs_to_jiffies(ms) as u64
}

/// Time from `now` to `at`; none if that has passed.
#[inline]
pub(crate) fn delay(now: Time, at: Time) -> Delta {
    duration(at.since(now))
}

/// How long so many ticks of [`Clock`] are.
#[inline]
pub(crate) fn duration(ticks: u64) -> Delta {
    let hz = ms(1000).max(1);
    Delta::from_millis((ticks * 1000 / hz) as i64)
}

/// A frame that peers may fetch.
pub(crate) struct TxBuffer {
    pub(crate) map: TxMapping,
    pub(crate) bql: Option<BqlToken>,
}

impl TxBuffer {
    /// Frees the frame, which peers fetch no more. Any context.
    pub(crate) fn free(self, nic: &Nic) {
        // Without a device it stays mapped.
        let _ = nic.with_bound_atomic(|dev| drop(self.map.unmap(dev)));
    }
}

impl Buffer for TxBuffer {
    fn address(&self) -> u64 {
        self.map.addr()
    }
}

/// Memory that a frame arrives in.
pub(crate) struct RxBuffer {
    pub(crate) map: RxMapping,
    /// What its GET has to overwrite.
    mark: Mark,
}

impl RxBuffer {
    /// Memory for the GET of a frame of `len` bytes. Softirq or process context, does not sleep.
    ///
    /// # Errors
    ///
    /// Those of [`RxMapping::new`].
    pub(crate) fn new(dev: &BoundDevice, ndev: &NetDev, len: u32) -> Result<Self> {
        let mark = security::random().to_le_bytes();
        let map = RxMapping::marked(dev, ndev, len, marks(len), mark)?;
        Ok(Self { map, mark })
    }

    /// Memory for GETs of which nobody looks at what they have brought. As [`RxBuffer::new`].
    pub(crate) fn scratch(dev: &BoundDevice, ndev: &NetDev, len: u32) -> Result<Self> {
        let map = RxMapping::new(dev, ndev, len)?;
        Ok(Self { map, mark: [0; 8] })
    }

    /// The frame that a GET has brought, and where something of it is missing, if so. `None`: the
    /// buffer is of another binding, and stays mapped.
    pub(crate) fn complete(self, dev: &BoundDevice) -> Option<(RxSkb, Option<u32>)> {
        let skb = self.map.complete(dev).ok()?;
        let hole = hole(skb.data(), self.mark);
        Some((skb, hole))
    }

    /// Frees the memory, to which nothing comes any more. Any context.
    pub(crate) fn free(self, nic: &Nic) {
        // Without a device it stays mapped.
        let _ = nic.with_bound_atomic(|dev| drop(self.map.discard(dev)));
    }
}

impl Buffer for RxBuffer {
    fn address(&self) -> u64 {
        self.map.addr()
    }
}

/// Announced frames.
pub(crate) type Sender = rendezvous::Sender<Kernel, TxBuffer>;
/// Fetches.
pub(crate) type Fetches = rendezvous::Fetches<Kernel, RxBuffer>;
/// Announcements that wait.
pub(crate) type Waiting = rendezvous::Waiting<Kernel>;

/// Nodes of foreign MAC addresses.
pub(crate) type Macs = protocol::eth::macs::Macs<Kernel>;
/// Peers that are watched.
pub(crate) type Suspects = stuck::Suspects<Kernel>;

/// A received frame, how it is marked, and its source.
pub(crate) type Frame = (RxSkb, Checksum, NodeId);
/// Frames that wait for earlier ones of their source.
pub(crate) type Order = order::Order<Kernel, Frame>;

/// Makes what is too large for the stacks of those who make many such things.
///
/// # Errors
///
/// Those of `make`, `ENOMEM`.
#[inline(never)]
pub(crate) fn boxed<T>(make: impl FnOnce() -> Result<T>) -> Result<KBox<T>> {
    Ok(KBox::new(make()?, GFP_KERNEL)?)
}

/// Fetches behind their lock.
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
