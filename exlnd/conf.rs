// SPDX-License-Identifier: GPL-2.0-only

//! Module parameters and constants: limits, sizes and times. All functions run in any context.

use crate::module_parameters as params;
use core::ops::RangeInclusive;
use kernel_ext::param::{Param, Tunable};
use protocol::lnd::{Capacity, Limits};

/// One millisecond in ticks of the state machine (nanoseconds).
const MS: u64 = 1_000_000;
/// One second in ticks of the state machine.
const S: u64 = 1_000 * MS;

/// Permitted values of the tunable `immediate`, the maximum payload in bytes that is sent in
/// messages. The minimum covers the payload of GET answers that LNet counts as small.
pub(crate) const IMMEDIATE: RangeInclusive<i64> = 1024..=7064;
/// Maximum of [`slots`].
const MAX_SLOTS: u32 = 4096;
/// Time in ticks that is subtracted from the timeout, so that a message's memory can be revoked in
/// time.
const REVOCATION: u64 = 2 * S;

/// LNet's tunables of an interface for which the user set no values.
pub(crate) struct Tunables {
    pub(crate) credits: i32,
    pub(crate) peer_credits: i32,
    pub(crate) router_credits: i32,
    pub(crate) peer_timeout: i32,
}

/// Maximum payload in bytes that is sent in messages. Peers read longer payload by GET.
static IMMEDIATE_BYTES: Tunable = Tunable::new("kexlnd.immediate", 4096);
/// Maximum number of concurrent messages whose payload is read by GET, in each direction.
static SLOTS: Tunable = Tunable::new("kexlnd.places", 256);
/// Maximum number of messages from peers that are received concurrently.
static RECEIVES: Tunable = Tunable::new("kexlnd.receives", 1024);
/// Maximum number of peers of an interface.
static PEERS: Tunable = Tunable::new("kexlnd.peers", 1024);

/// Reads the user's overrides of all tunables. May sleep.
pub(crate) fn load_tunables() {
    let all = [&IMMEDIATE_BYTES, &SLOTS, &RECEIVES, &PEERS];
    all.into_iter().for_each(Tunable::load);
}

/// Returns all parameters and tunables with their permitted ranges.
pub(crate) fn parameters() -> [Param; 10] {
    [
        Param::new("lnd_type", params::lnd_type.value(), 0, 255),
        Param::new("credits", params::credits.value(), 1, 16384),
        Param::new("peer_credits", params::peer_credits.value(), 1, 256),
        Param::new(
            "peer_buffer_credits",
            params::peer_buffer_credits.value(),
            0,
            65536,
        ),
        Param::new("peer_timeout", params::peer_timeout.value(), 0, 3600),
        Param::new("timeout", params::timeout.value(), 10, 600),
        IMMEDIATE_BYTES.param(*IMMEDIATE.start(), *IMMEDIATE.end()),
        SLOTS.param(16, MAX_SLOTS.into()),
        RECEIVES.param(16, 16384),
        PEERS.param(1, 32768),
    ]
}

/// Returns the LNet network type number; `None` for the number that LNet knows as `ex`.
pub(crate) fn kind() -> Option<u32> {
    Some(params::lnd_type.value()).filter(|kind| *kind != 0)
}

/// Returns LNet's tunables from the module parameters.
pub(crate) fn tunables() -> Tunables {
    Tunables {
        credits: params::credits.value() as i32,
        peer_credits: params::peer_credits.value() as i32,
        router_credits: params::peer_buffer_credits.value() as i32,
        peer_timeout: params::peer_timeout.value() as i32,
    }
}

/// Returns the time in seconds within which each message must be delivered or fail.
pub(crate) fn timeout() -> u32 {
    params::timeout.value()
}

/// Returns the default maximum payload in bytes that is sent in messages. Interfaces can override
/// it.
pub(crate) fn immediate() -> u32 {
    IMMEDIATE_BYTES.number()
}

/// Returns the number of registration slots of an interface in each direction. `max_concurrent` is
/// the number of messages that LNet sends concurrently.
pub(crate) fn slots(max_concurrent: u32) -> usize {
    let most = max_concurrent.min(MAX_SLOTS);
    SLOTS.number().max(most) as usize
}

/// Returns the time in nanoseconds after which an undelivered outgoing message fails.
pub(crate) fn send_timeout() -> u64 {
    u64::from(timeout()) * S - REVOCATION
}

/// Returns the table sizes of an interface with `slots` registration slots per direction.
pub(crate) fn capacity(slots: usize) -> Capacity {
    let sends = 2 * slots + params::credits.value() as usize;
    Capacity {
        peers: PEERS.number() as u16,
        sends: sends.min(65_535),
        receives: RECEIVES.number() as usize,
        slots: 16,
        fetches: slots as u32 / 4,
    }
}

/// Returns the times of the protocol (docs/lnd-protocol.md).
pub(crate) fn limits() -> Limits {
    Limits {
        ask: 200 * MS,
        ask_most: 2 * S,
        give_up: 10 * S,
        dead: 5 * S,
        busy: 10 * MS,
        fresh: 200 * MS,
        hold: 500 * MS,
        port: 5 * S,
        get: 500 * MS,
        tries: 8,
        receive: send_timeout().saturating_sub(2 * S),
    }
}
