// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! PCIe devices lent to other nodes (EXT-PCI): what lender and borrower remember and decide
//! (docs/pci-protocol.md).
//!
//! A lease gives the borrower windows to the device's memory BARs, and the device windows to memory
//! and to an interrupt of the borrower: intervals of the shared memory unit (HW §12). At the target
//! an interval is a number and nothing else. Whoever has a window with that number reaches what is
//! open under it. So no machine gives a number away again before the other end has said that its
//! window is gone ([`Fences`]), and for some time after that, as accesses may be on their way.
//!
//! * [`Lender`]: devices, and who has them.
//! * [`Borrower`]: leases, and accesses to configuration registers.
//! * [`config`]: which registers of a function a borrower sees and may write.
//! * [`accel`]: the same without a lender, for devices behind NICs that have no host.
//! * [`Reach`]: addresses at the lender that lead into memory of the borrower.
//!
//! All memory is had when a machine is made. Every other call takes a bounded time (tables have
//! tens of entries), never sleeps, and may be made in any context with a lock held that keeps others
//! off the machine. What is to be done is asked for: messages and configuration accesses with
//! `step`, from any context; what may sleep with `work`. After any call but these, ask for both
//! until there is nothing. A message that can't be sent may be dropped: it is said again.

pub mod accel;
pub mod borrower;
pub mod config;
mod fences;
pub mod lender;
mod reach;
mod strays;

pub use borrower::{Ask, Borrower, Handle, LeaseEvent, LeaseState, Poll, Refused, Why};
pub use fences::Fences;
pub use lender::{Config, DeviceEvent, DeviceLife, Lender, OpenError, Opened, Write};
pub use reach::{Reach, VECTORS};

/// Times in ticks but where it says ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ticks of a ms.
    pub ms: u64,
    /// Of the lender: it takes a device back when it has heard nothing for so many ms,
    /// 1…[`Limits::longest_ms`].
    pub timeout_ms: u32,
    /// The longest `timeout_ms` of all nodes, whatever this one's is; no more than
    /// [`LONGEST_LEASE_MS`](wire::pci::LONGEST_LEASE_MS), and that unless it is known to be less. No
    /// machine agrees to a longer one, and [`Limits::with_quarantine`] relies on that.
    pub longest_ms: u32,
    /// What is asked is asked again after this time, doubled each time, up to `ask_most`.
    pub ask: u64,
    /// See `ask`.
    pub ask_most: u64,
    /// For so long an access through an interval, or a message, may be on its way.
    pub hold: u64,
    /// After its start a machine gives no numbers away for so long: whoever has leases with an
    /// earlier life has lost them by then. See [`Limits::with_quarantine`].
    pub quarantine: u64,
    /// An access to a configuration register takes no longer.
    pub access: u64,
    /// It is asked for again after this time.
    pub access_again: u64,
    /// What nobody waits for is asked for so long.
    pub give_up: u64,
    /// Leases that a node may have of a lender.
    pub per_node: u8,
    /// Of the lender: bytes of DMA memory that a lease may have. The lender's windows for them take
    /// room from others of its node.
    pub dma_most: u64,
    /// Of the lender: so long after a reset that a borrower has asked for the next one of the lease
    /// begins at the earliest. What it does for others comes in between.
    pub reset_pause: u64,
}

impl Limits {
    /// With the quarantine that is long enough: for the longest time-out that any node may have
    /// agreed to, as it is the other ends that have to lose their leases; for the time that their
    /// drivers take at most, from when a lease is over to when its intervals are closed, which is
    /// `end` ([`lender::Work::Close`] and [`borrower::Work::Close`], and what these wait for); and
    /// for `hold`.
    #[must_use]
    pub const fn with_quarantine(mut self, end: u64) -> Self {
        let lost = self.ticks(self.longest_ms);
        self.quarantine = lost.saturating_add(end).saturating_add(self.hold);
        self
    }

    /// Ticks of so many ms.
    pub(crate) const fn ticks(&self, ms: u32) -> u64 {
        self.ms.saturating_mul(ms as u64)
    }
}

/// Random numbers that name things.
#[derive(Clone, Copy)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    /// A number that was not drawn before.
    pub(crate) fn long(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number that is not 0.
    pub(crate) fn short(&mut self) -> u32 {
        loop {
            if let key @ 1.. = (self.long() >> 16) as u32 {
                return key;
            }
        }
    }
}

/// The earlier one.
pub(crate) fn sooner(a: Option<crate::Time>, b: Option<crate::Time>) -> Option<crate::Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
