// SPDX-License-Identifier: GPL-2.0-only

//! Protocol between client and server over VELO. The user tag of a message names the request. A
//! reply carries the tag of its request with [`REPLY`] set.

use wire::ids::{BusAddr, Vpid};

/// Requests a reply that returns the payload with an interrupt.
pub(crate) const PING: u8 = 1;
/// Requests a reply that returns the payload without an interrupt. Client and server poll.
pub(crate) const PING_POLL: u8 = 2;
/// Ends the client's session: the server stops polling and ends the lease. There is no reply.
pub(crate) const DONE: u8 = 3;
/// Requests an [`Offer`]. The payload is the time in ms for which the server must not free the
/// memory.
pub(crate) const ASK: u8 = 4;
/// Carries data that the server only counts. There is no reply.
pub(crate) const DATA: u8 = 5;
/// Bit in the tag of replies.
pub(crate) const REPLY: u8 = 0x80;

/// Default VPID of the server, which is not allocated to processes.
pub(crate) const DEFAULT_VPID: u16 = 251;

const MAGIC: u64 = 0x3048_434e_4542_5845;

/// Memory that the server offers to RMA, and the number of PUTs that have arrived there.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    /// VPID of the RMA port.
    pub(crate) vpid: Vpid,
    /// Memory that clients read; word `i` is [`pattern`]`(seed, i)`.
    pub(crate) source: BusAddr,
    /// Length of `source` in bytes.
    pub(crate) source_len: u64,
    /// Memory that clients write.
    pub(crate) sink: BusAddr,
    /// Length of `sink` in bytes.
    pub(crate) sink_len: u64,
    /// Seed of the pattern in `source`.
    pub(crate) seed: u64,
    /// Number of PUTs that arrived since the server started.
    pub(crate) puts: u64,
}

/// Length of an encoded [`Offer`] in bytes.
pub(crate) const OFFER_BYTES: usize = 64;

impl Offer {
    pub(crate) fn encode(&self) -> [u8; OFFER_BYTES] {
        let words = [
            MAGIC,
            u64::from(self.vpid.get()),
            self.source.0,
            self.source_len,
            self.sink.0,
            self.sink_len,
            self.seed,
            self.puts,
        ];
        let mut bytes = [0; OFFER_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes an offer. Returns `None` if the peer is not a server of this protocol version or if
    /// a value is invalid.
    pub(crate) fn decode(word: impl Fn(usize) -> u64) -> Option<Self> {
        let offer = Self {
            vpid: Vpid::new(u16::try_from(word(1)).ok()?)?,
            source: BusAddr(word(2)),
            source_len: word(3),
            sink: BusAddr(word(4)),
            sink_len: word(5),
            seed: word(6),
            puts: word(7),
        };
        let sane = |a: BusAddr, len: u64| {
            len <= 1 << 30 && len % 8 == 0 && a.0 % 8 == 0 && a.0 < BusAddr::END
        };
        (word(0) == MAGIC
            && sane(offer.source, offer.source_len)
            && sane(offer.sink, offer.sink_len))
        .then_some(offer)
    }
}

/// Returns word `index` of the test pattern, which differs for every index.
pub(crate) fn pattern(seed: u64, index: u64) -> u64 {
    let x = (index ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^ (x >> 29)
}
