// SPDX-License-Identifier: GPL-2.0-only

//! Module parameters and constants: limits, sizes and times. All functions run in any context.

use crate::{module_parameters, nic::Size};
use extoll_core::time::patience;
use kernel_ext::param::{Param, Tunable};
use protocol::ds::{Limits, OpenLimits};

/// Socket families that have a number, but no implementation, in the supported kernels.
const FAMILIES: &[i64] = &[13, 14, 18, 19, 22, 25];
/// First protocol number that the kernel does not use.
const FIRST_PROTOCOL: i64 = 257;
/// Last protocol number below the kernel's limit.
const LAST_PROTOCOL: i64 = 261;
/// Permitted sizes of rings in KiB.
const RINGS: &[i64] = &[4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// A millisecond in ticks of the state machines.
const MS: u64 = 1_000_000;
/// Maximum number of bytes of one GET.
const CHUNK: u32 = 128 << 10;

/// 1 if data may bypass TCP in new network namespaces; later `net.extl.data_path` decides.
static DATA_PATH: Tunable = Tunable::new("af_extl.data_path", 1);
/// Size in KiB of the rings of connections beyond the first `large_rings`; a power of two.
static RING_KIB: Tunable = Tunable::new("af_extl.ring_kib", 64);
/// Size in KiB of the rings of each NIC's first `large_rings` connections; a power of two.
static LARGE_RING_KIB: Tunable = Tunable::new("af_extl.large_ring_kib", 256);
/// Maximum number of connections of a NIC that have rings of `large_ring_kib`.
static LARGE_RINGS: Tunable = Tunable::new("af_extl.large_rings", 64);
/// Minimum size in bytes of data that the peer reads by GET; smaller data are sent in messages.
static THRESHOLD: Tunable = Tunable::new("af_extl.threshold", 2048);
/// Initial `net.extl.zero_copy_kib` of a network namespace.
static ZERO_COPY_KIB: Tunable = Tunable::new("af_extl.zero_copy_kib", 1024);
/// Interval between requests of the negotiation in ms.
static ASK_MS: Tunable = Tunable::new("af_extl.ask_ms", 10);
/// Number of unanswered requests after which a peer counts as stalled.
static ASKS: Tunable = Tunable::new("af_extl.asks", 4);
/// Time in ms that a client waits until the server's program has accepted.
static ACCEPT_MS: Tunable = Tunable::new("af_extl.accept_ms", 200);
/// Time in ms before a peer that did not answer is asked again.
static RETRY_MS: Tunable = Tunable::new("af_extl.silent_ms", 10000);
/// Time in ms before a server that accepted too late is asked again; doubles each time.
static LATE_MS: Tunable = Tunable::new("af_extl.late_ms", 1000);
/// Time in ms after which a peer that does not answer counts as down.
static DEAD_MS: Tunable = Tunable::new("af_extl.dead_ms", 10000);

/// Reads the overrides of all tunables. May sleep.
pub(crate) fn load_tunables() {
    let all = [
        &DATA_PATH,
        &RING_KIB,
        &LARGE_RING_KIB,
        &LARGE_RINGS,
        &THRESHOLD,
        &ZERO_COPY_KIB,
        &ASK_MS,
        &ASKS,
        &ACCEPT_MS,
        &RETRY_MS,
        &LATE_MS,
        &DEAD_MS,
    ];
    all.into_iter().for_each(Tunable::load);
}

/// Returns the number of the family.
pub(crate) fn family() -> u32 {
    module_parameters::family.value()
}

/// Returns the protocol number.
pub(crate) fn protocol() -> u16 {
    // The value fits `u16`, because the module checks its range at load time.
    module_parameters::protocol.value() as u16
}

/// Returns the initial value of each namespace's `net.extl.data_path`: 1 if data may bypass TCP.
pub(crate) fn data_path() -> u32 {
    DATA_PATH.number()
}

/// Returns the maximum number of connections of a NIC that have rings.
pub(crate) fn connections() -> usize {
    module_parameters::connections.value() as usize
}

/// Returns the ring sizes in the order of preference.
pub(crate) fn rings() -> [Size; 2] {
    let large = (LARGE_RINGS.number() as usize).min(connections());
    let size = |kib: u32, most| Size {
        bytes: (kib as usize) << 10,
        most,
    };
    [
        size(LARGE_RING_KIB.number(), large),
        size(RING_KIB.number(), connections() - large),
    ]
}

/// Maximum of `zero_copy_kib`.
pub(crate) const ZERO_COPY_MOST: u32 = 1 << 20;

/// Returns the initial value of each namespace's `net.extl.zero_copy_kib`: minimum size in KiB of
/// calls that use zero copy.
pub(crate) fn zero_copy_kib() -> u32 {
    ZERO_COPY_KIB.number()
}

/// Returns the time in ms that `connect` waits for an answer of the peer: slightly more than the
/// time of all requests.
pub(crate) fn max_ask_ms() -> u32 {
    let asks = ASKS.number() + 2;
    ASK_MS.number().saturating_mul(asks) + 20
}

/// Returns the time in ms to wait for the resolution of a neighbour's address, for blocking and
/// non-blocking calls.
pub(crate) fn neighbour_ms(nonblock: bool) -> u32 {
    patience(if nonblock { 20 } else { 100 })
}

/// Returns the maximum number of connections with rings of one user.
pub(crate) fn user_connections() -> usize {
    module_parameters::user_connections.value() as usize
}

/// Returns the times of the negotiation.
pub(crate) fn opening() -> OpenLimits {
    let ask = u64::from(ASK_MS.number()) * MS;
    OpenLimits {
        ask,
        asks: ASKS.number(),
        accept: u64::from(ACCEPT_MS.number()) * MS,
        refresh: 250 * MS,
        keep: 1_000 * MS,
        confirm: 5_000 * MS,
        silent: u64::from(RETRY_MS.number()) * MS,
        late: u64::from(LATE_MS.number()) * MS,
    }
}

/// Returns the times and sizes that the state machines of streams use.
pub(crate) fn limits() -> Limits {
    let dead = u64::from(DEAD_MS.number()) * MS;
    let sizes = rings().into_iter().filter(|size| size.most > 0);
    let shortest = sizes.map(|size| size.bytes).min().unwrap_or(0) as u32;
    Limits {
        // The threshold is limited to a quarter of the smallest ring, so that an announced chunk
        // always fits.
        threshold: THRESHOLD.number().min(shortest / 4),
        chunk: CHUNK,
        tries: 8,
        get: 500 * MS,
        fresh: 200 * MS,
        hold: 500 * MS,
        ask: 200 * MS,
        ask_most: (dead / 4).max(200 * MS),
        give_up: dead,
        orphan: 60_000 * MS,
        linger: 3_000 * MS,
        cork: 200 * MS,
    }
}

/// Returns all parameters with their values and ranges.
pub(crate) fn parameters() -> [Param; 16] {
    use module_parameters as p;
    [
        Param::one_of("family", family(), FAMILIES),
        Param::new(
            "protocol",
            p::protocol.value(),
            FIRST_PROTOCOL,
            LAST_PROTOCOL,
        ),
        DATA_PATH.param(0, 1),
        Param::new("connections", p::connections.value(), 1, 4096),
        Param::new("user_connections", p::user_connections.value(), 1, 4096),
        RING_KIB.one_of(RINGS),
        LARGE_RING_KIB.one_of(RINGS),
        LARGE_RINGS.param(0, 4096),
        THRESHOLD.param(256, 1 << 20),
        ZERO_COPY_KIB.param(0, ZERO_COPY_MOST.into()),
        ASK_MS.param(1, 1000),
        ASKS.param(1, 100),
        ACCEPT_MS.param(1, 60_000),
        RETRY_MS.param(0, 3_600_000),
        LATE_MS.param(0, 3_600_000),
        DEAD_MS.param(1000, 3_600_000),
    ]
}
