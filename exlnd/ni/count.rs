// SPDX-License-Identifier: GPL-2.0-only

//! Counters of an interface. The state machine has counters of its own. Any context.

use kernel::{
    fmt,
    sync::atomic::{Atomic, Relaxed},
};

/// Number of size classes: the first covers up to 64 bytes, the others powers of two up to 1 MiB.
const CLASSES: usize = 15;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// Counter of an interface.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Count { $($(#[$doc])* $name,)* }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

counts! {
    /// Received messages that violate the protocol.
    Strays "strays",
    /// Outgoing payloads that were registered for GETs of the peer.
    Exposed "exposed",
    /// Outgoing payloads that had to be copied before registration.
    ExposedCopies "exposed_copies",
    /// Payloads fetched directly to a contiguous destination.
    Sinks "sinks",
    /// Payloads fetched directly to a destination of several memory ranges.
    SinkPieces "sink_pieces",
    /// Payloads fetched to an intermediate buffer and copied from there.
    SinkCopies "sink_copies",
    /// Attempts to find a free registration slot that failed.
    NoSlot "no_place",
    /// Attempts to register memory that failed.
    NotRegistered "not_registered",
    /// GETs with missing data.
    Holes "holes",
    /// GETs that could not be posted in time.
    NotPosted "not_posted",
    /// Revocations that the NIC did not confirm in time.
    Late "late_revocations",
    /// Messages that failed by a rule of `lnetctl fault`.
    Faults "faults",
    /// Incoming messages whose length contradicts the payload length in LNet's header.
    Lies "lies",
    /// Messages that LNet did not accept.
    NotParsed "not_parsed",
    /// Messages of LNet that this interface could not send.
    NotTaken "not_taken",
    /// Messages whose payload was copied because LNet keeps them for later.
    Kept "kept",
    /// Messages that LNet keeps for later and whose payload could not be copied from its buffer.
    KeptInPlace "kept_in_place",
    /// Work passes of the interface's thread.
    Turns "turns",
}

/// Counters of an interface.
pub(super) struct Counters {
    counts: [Atomic<u64>; NAMES.len()],
    sent: [Atomic<u64>; CLASSES],
    received: [Atomic<u64>; CLASSES],
}

fn class(bytes: u32) -> usize {
    (bytes.max(1).next_power_of_two().trailing_zeros() as usize)
        .saturating_sub(6)
        .min(CLASSES - 1)
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            counts: [const { Atomic::new(0) }; NAMES.len()],
            sent: [const { Atomic::new(0) }; CLASSES],
            received: [const { Atomic::new(0) }; CLASSES],
        }
    }

    pub(super) fn count(&self, what: Count) {
        if let Some(n) = self.counts.get(what as usize) {
            n.add(1, Relaxed);
        }
    }

    /// Counts an outgoing message with `bytes` bytes of payload.
    pub(super) fn sent(&self, bytes: u32) {
        if let Some(n) = self.sent.get(class(bytes)) {
            n.add(1, Relaxed);
        }
    }

    /// Counts an incoming message with `bytes` bytes of payload.
    pub(super) fn received(&self, bytes: u32) {
        if let Some(n) = self.received.get(class(bytes)) {
            n.add(1, Relaxed);
        }
    }

    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, n) in NAMES.iter().zip(&self.counts) {
            writeln!(f, "{name} {}", n.load(Relaxed))?;
        }
        for (what, classes) in [("sent", &self.sent), ("received", &self.received)] {
            for (i, n) in classes.iter().enumerate() {
                let n = n.load(Relaxed);
                if n > 0 {
                    writeln!(f, "{what}_{} {n}", 64u32 << i)?;
                }
            }
        }
        Ok(())
    }
}
