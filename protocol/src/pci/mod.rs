// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Device Lending over Extoll (EXT-PCI): the state machines of a lender and of a borrower of PCIe
//! devices (docs/pci-protocol.md).
//!
//! During a lease, the borrower has windows to the device's memory BARs, and the device has windows
//! to DMA memory and to an interrupt target of the borrower. Windows and targets are intervals of
//! the shared memory unit (SMFU, HW §12). The owner of a target identifies accesses only by the
//! interval number: any window with this number reaches the target that is open under it. A number
//! is therefore fenced after its lease ([`Fences`]). The number is not reused until the other end
//! has confirmed that its window is closed, and until [`Limits::in_flight_max`] has passed after
//! that, because accesses may be in flight.
//!
//! * [`Lender`]: devices that this node offers, and their leases.
//! * [`Borrower`]: leases that this node has, and accesses to configuration registers.
//! * [`config`]: the configuration registers of a function that a borrower can read and write.
//! * [`accel`]: leases without a lender, for devices behind NICs that have no host.
//! * [`Reach`]: bus addresses at the lender that lead into memory of the borrower.
//!
//! The state machines do no I/O. The driver reports each event to them. Events are a received
//! message (`receive`), the time (`time`, due at `next`), the result of an operation (`opened`,
//! `closed`, `reset`, `configured`), and a request of a user. After each event it calls `step` and
//! `work` until both return `None`. `step` returns the next message or configuration access, which
//! any context can execute; `work` returns the next operation that may sleep. A message that cannot
//! be sent may be dropped, because it is repeated.
//!
//! Only `new` allocates memory. Every other call takes a limited time, because tables have tens of
//! entries. It never sleeps, and may be made in any context. The caller serializes the calls of a
//! state machine with a lock.

pub mod accel;
mod answers;
pub mod borrower;
pub mod config;
mod fences;
pub mod lender;
mod reach;

pub use borrower::{
    AccessError, Borrower, ConfigAccess, EndReason, Handle, LeaseEvent, LeaseState, Poll,
};
pub use fences::Fences;
pub use lender::{Config, DeviceEvent, Lender, OfferState, OpenError, Opened, Write};
pub use reach::{Reach, VECTORS};

/// Time limits and maximum numbers of a lender or borrower. Times are in ticks unless the name ends
/// in `_ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ticks per millisecond.
    pub ms: u64,
    /// Time-out of a lease in ms, 1…[`Limits::longest_ms`]. The lender ends a lease after this time
    /// without a message of the borrower.
    pub timeout_ms: u32,
    /// Maximum `timeout_ms` of all nodes in the network, up to
    /// [`LONGEST_LEASE_MS`](wire::pci::LONGEST_LEASE_MS). Use that constant unless the maximum is
    /// known to be smaller. The state machines reject longer time-outs, and
    /// [`Limits::with_quarantine`] relies on this limit.
    pub longest_ms: u32,
    /// Interval after which a request is repeated for the first time. It is doubled at each
    /// repetition, up to `retry_max`.
    pub retry: u64,
    /// Maximum interval between two repetitions of a request.
    pub retry_max: u64,
    /// Maximum time for which a message or an access through an interval may be in flight.
    pub in_flight_max: u64,
    /// Time after its start during which a state machine assigns no interval numbers. Within this
    /// time, other nodes end their leases from before the start. See [`Limits::with_quarantine`].
    pub quarantine: u64,
    /// Maximum time for an access to a configuration register.
    pub access: u64,
    /// Interval between repetitions of an access to a configuration register.
    pub access_retry: u64,
    /// Time for which the other end is asked to confirm the end of a lease without interval
    /// numbers.
    pub give_up: u64,
    /// Maximum number of leases that one node may have from a lender.
    pub per_node: u8,
    /// Maximum DMA memory of a lease in bytes, used by the lender. The lender's windows to this
    /// memory take address space from other users of its NIC.
    pub dma_max: u64,
    /// Minimum time between the end of a reset and the start of the next reset that a borrower
    /// requests, used by the lender. The lender serves other borrowers in the meantime.
    pub reset_pause: u64,
}

impl Limits {
    /// Sets [`Limits::quarantine`] to the sum of `longest_ms`, `end` and `in_flight_max`. `end` is
    /// the maximum time, in ticks, from the end of a lease until a driver has closed its intervals.
    /// It covers [`lender::Work::Close`] and [`borrower::Work::Close`], including all waits in
    /// them. `longest_ms` is used because the other nodes must end their leases, each after its own
    /// time-out.
    #[must_use]
    pub const fn with_quarantine(mut self, end: u64) -> Self {
        let lost = self.ticks(self.longest_ms);
        self.quarantine = lost.saturating_add(end).saturating_add(self.in_flight_max);
        self
    }

    /// Converts milliseconds to ticks.
    pub(crate) const fn ticks(&self, ms: u32) -> u64 {
        self.ms.saturating_mul(ms as u64)
    }
}

/// Generator of random numbers that identify leases, devices and incarnations of state machines.
#[derive(Clone, Copy)]
pub(crate) struct RandomNumbers(pub(crate) u64);

impl RandomNumbers {
    /// Returns the next number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns the next number that is not 0.
    pub(crate) fn next_nonzero(&mut self) -> u32 {
        loop {
            if let key @ 1.. = (self.next_u64() >> 16) as u32 {
                return key;
            }
        }
    }
}

/// Returns the earlier of two optional times.
pub(crate) fn earlier(a: Option<crate::Time>, b: Option<crate::Time>) -> Option<crate::Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
