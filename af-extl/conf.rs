// SPDX-License-Identifier: GPL-2.0-only

//! What is fixed when the module is loaded.

use crate::{module_parameters, nic::Size};
use extoll_core::time::patience;
use kernel_ext::param::Param;
use protocol::ds::{Limits, OpenLimits};

/// Families that have a name but no implementation in the kernels that this is built for.
const FAMILIES: &[i64] = &[13, 14, 18, 19, 22, 25];
/// First protocol number that the kernel leaves free below its limit.
const FIRST_PROTOCOL: i64 = 257;
/// Last one.
const LAST_PROTOCOL: i64 = 261;
/// Sizes of rings in KiB.
const RINGS: &[i64] = &[4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// A millisecond in ticks of the machines.
const MS: u64 = 1_000_000;
/// Bytes of a GET.
const CHUNK: u32 = 128 << 10;

/// Number of the family.
pub(crate) fn family() -> u32 {
    module_parameters::family.value()
}

/// Protocol number.
pub(crate) fn protocol() -> u16 {
    // Checked when the module is loaded.
    module_parameters::protocol.value() as u16
}

/// Whether data may bypass TCP, until that is changed: for each namespace when it begins.
pub(crate) fn data_path() -> u32 {
    u32::from(module_parameters::data_path.value())
}

/// Connections of a NIC that have rings.
pub(crate) fn connections() -> usize {
    module_parameters::connections.value() as usize
}

/// Ring sizes, in the order in which they are used.
pub(crate) fn rings() -> [Size; 2] {
    let large = (module_parameters::large_rings.value() as usize).min(connections());
    let size = |kib: u32, most| Size {
        bytes: (kib as usize) << 10,
        most,
    };
    [
        size(module_parameters::large_ring_kib.value(), large),
        size(module_parameters::ring_kib.value(), connections() - large),
    ]
}

/// Largest `zero_copy_kib`.
pub(crate) const ZERO_COPY_MOST: u32 = 1 << 20;

/// From which size on in KiB data are not copied, until that is changed: for each namespace when it
/// begins.
pub(crate) fn zero_copy_kib() -> u32 {
    module_parameters::zero_copy_kib.value()
}

/// How long a program that connects waits for an answer, in ms: somewhat longer than the questions
/// take.
pub(crate) fn longest_question() -> u32 {
    let asks = module_parameters::asks.value() + 2;
    module_parameters::ask_ms.value().saturating_mul(asks) + 20
}

/// How long the address of a neighbour is waited for, in ms, by a program that would wait for TCP, and by
/// one that would not.
pub(crate) fn neighbour_ms(nonblock: bool) -> u32 {
    patience(match nonblock {
        false => 100,
        true => 20,
    })
}

/// Connections of a NIC with rings that one user has.
pub(crate) fn user_connections() -> usize {
    module_parameters::user_connections.value() as usize
}

/// Times of the negotiation.
pub(crate) fn opening() -> OpenLimits {
    let ask = u64::from(module_parameters::ask_ms.value()) * MS;
    OpenLimits {
        ask,
        asks: module_parameters::asks.value(),
        accept: u64::from(module_parameters::accept_ms.value()) * MS,
        refresh: 250 * MS,
        keep: 1_000 * MS,
        confirm: 5_000 * MS,
        silent: u64::from(module_parameters::silent_ms.value()) * MS,
        late: u64::from(module_parameters::late_ms.value()) * MS,
    }
}

/// Times and sizes of streams.
pub(crate) fn limits() -> Limits {
    let dead = u64::from(module_parameters::dead_ms.value()) * MS;
    let sizes = rings().into_iter().filter(|size| size.most > 0);
    let shortest = sizes.map(|size| size.bytes).min().unwrap_or(0) as u32;
    Limits {
        // So that there is always room for what is announced.
        threshold: module_parameters::threshold.value().min(shortest / 4),
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

/// All parameters with what they may be.
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
        Param::switch("data_path", data_path() != 0),
        Param::new("connections", p::connections.value(), 1, 4096),
        Param::new("user_connections", p::user_connections.value(), 1, 4096),
        Param::one_of("ring_kib", p::ring_kib.value(), RINGS),
        Param::one_of("large_ring_kib", p::large_ring_kib.value(), RINGS),
        Param::new("large_rings", p::large_rings.value(), 0, 4096),
        Param::new("threshold", p::threshold.value(), 256, 1 << 20),
        Param::new(
            "zero_copy_kib",
            p::zero_copy_kib.value(),
            0,
            ZERO_COPY_MOST.into(),
        ),
        Param::new("ask_ms", p::ask_ms.value(), 1, 1000),
        Param::new("asks", p::asks.value(), 1, 100),
        Param::new("accept_ms", p::accept_ms.value(), 1, 60_000),
        Param::new("silent_ms", p::silent_ms.value(), 0, 3_600_000),
        Param::new("late_ms", p::late_ms.value(), 0, 3_600_000),
        Param::new("dead_ms", p::dead_ms.value(), 1000, 3_600_000),
    ]
}
