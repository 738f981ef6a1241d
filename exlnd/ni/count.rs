// SPDX-License-Identifier: GPL-2.0-only

//! Counters of an interface besides those of its state machine. Any context.

use kernel::{
    fmt,
    sync::atomic::{Atomic, Relaxed},
};

/// Number of size classes: up to 64 bytes, then powers of two up to 1 MiB.
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
    /// Messages that no correct peer sends.
    Strays "strays",
    /// Payload registered for GETs of the peer.
    Exposed "exposed",
    /// Payload that had to be copied before it was registered.
    ExposedCopies "exposed_copies",
    /// Payload fetched directly to a contiguous destination.
    Sinks "sinks",
    /// Payload fetched directly to a destination of several pieces.
    SinkPieces "sink_pieces",
    /// Payload fetched to a buffer and copied.
    SinkCopies "sink_copies",
    /// Failures to find a free registration slot.
    NoSlot "no_place",
    /// Failures to register memory.
    NotRegistered "not_registered",
    /// GETs with missing data.
    Holes "holes",
    /// GETs that could not be posted in time.
    NotPosted "not_posted",
    /// Revocations that the NIC did not confirm in time.
    Late "late_revocations",
    /// Messages that failed by a rule of `lnetctl fault`.
    Faults "faults",
    /// Messages whose header contradicts their payload.
    Lies "lies",
    /// Messages that LNet did not accept.
    NotParsed "not_parsed",
    /// Messages that this interface did not accept for sending.
    NotTaken "not_taken",
    /// Messages that LNet keeps, copied for that.
    Kept "kept",
    /// Messages that LNet keeps and that stay in their buffer, because they could not be copied.
    KeptInPlace "kept_in_place",
    /// Work passes of the thread.
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
