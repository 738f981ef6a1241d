// SPDX-License-Identifier: GPL-2.0-only

//! Module parameters and constants: limits and times. All functions run in any context.

use crate::module_parameters as params;
use kernel::time::Delta;
use kernel_ext::param::{Param, Tunable};
use protocol::pci::{accel::Times, Limits};
use wire::pci::LONGEST_LEASE_MS;

/// A millisecond in ticks of the state machines.
const MS: u64 = 1_000_000;
/// Maximum time in ms that the end of a lease takes, including the driver's unbinding and a reset.
const END_MS: u64 = 5_000;
/// Maximum number of devices that one node borrows.
const PER_NODE: u8 = 8;
/// Maximum of `dma_kib`.
const DMA_KIB_MAX: u32 = 65_536;
/// Maximum of `map_kib`.
const MAP_KIB_MAX: u32 = 1 << 20;

/// Time in ms without a message after which a lease ends.
static TIMEOUT_MS: Tunable = Tunable::new("vpci.timeout_ms", 4000);
/// Maximum time of an access to a configuration register in ms.
static ACCESS_MS: Tunable = Tunable::new("vpci.access_ms", 200);

/// Reads the overrides of all tunables. May sleep.
pub(crate) fn load_tunables() {
    [&TIMEOUT_MS, &ACCESS_MS]
        .into_iter()
        .for_each(Tunable::load);
}

/// Returns all parameters and tunables with their ranges.
pub(crate) fn parameters() -> [Param; 5] {
    [
        TIMEOUT_MS.param(100, 10_000),
        ACCESS_MS.param(1, 1_000),
        Param::new("dma_kib", params::dma_kib.value(), 64, DMA_KIB_MAX.into()),
        Param::new("map_kib", params::map_kib.value(), 0, MAP_KIB_MAX.into()),
        Param::new("leases", params::leases.value(), 1, 16),
    ]
}

/// Returns the time for which interval numbers stay reserved if the other end has not confirmed the
/// release.
pub(crate) fn quarantine() -> Delta {
    Delta::from_nanos(limits().quarantine as i64)
}

/// Returns the bytes of DMA memory of a lease; whole pages.
pub(crate) fn dma_bytes() -> u64 {
    u64::from(params::dma_kib.value()).next_multiple_of(4) << 10
}

/// Returns the bytes of bus addresses of a lease for pages that are mapped without copying; whole
/// pages, or 0.
pub(crate) fn map_bytes() -> u64 {
    u64::from(params::map_kib.value()).next_multiple_of(4) << 10
}

/// Returns the maximum time of a configuration access to an accelerator in microseconds.
pub(crate) fn access_us() -> u64 {
    u64::from(ACCESS_MS.number()) * 1000
}

/// Returns the waiting times for claims of accelerators' lease words, in nanoseconds.
pub(crate) fn claim_times() -> Times {
    Times {
        window: 200 * MS,
        // Covers the time from a read that is answered within `window` to the action that depends
        // on it.
        claim_wait: 1_000 * MS,
        // Owners check their word eight times within the longest timeout.
        take_wait: 2_500 * MS,
        // Sum of the longest timeout, an eighth of that timeout between two checks, and a reserve
        // for the last check.
        late_wait: 13_000 * MS,
    }
}

/// Returns the maximum number of devices that a NIC lends. The same maximum applies to devices that
/// are borrowed through the NIC.
pub(crate) fn leases() -> u16 {
    params::leases.value() as u16
}

/// Returns the times and limits of the state machines, in nanoseconds.
pub(crate) fn limits() -> Limits {
    let timeout_ms = TIMEOUT_MS.number();
    let access = u64::from(ACCESS_MS.number()) * MS;
    let in_flight_max = 500 * MS;
    let limits = Limits {
        ms: MS,
        timeout_ms,
        // The maximum of all nodes, because other nodes may use other parameters.
        longest_ms: LONGEST_LEASE_MS,
        retry: 100 * MS,
        retry_max: 10_000 * MS,
        in_flight_max,
        quarantine: 0,
        access,
        access_retry: access / 4,
        give_up: 10_000 * MS,
        per_node: PER_NODE,
        // Maximum that a borrower requests if its parameters are in their valid ranges.
        dma_max: u64::from(DMA_KIB_MAX + MAP_KIB_MAX) << 10,
        reset_pause: 1_000 * MS,
    };
    limits.with_quarantine(END_MS * MS)
}
