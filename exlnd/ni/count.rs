// SPDX-License-Identifier: GPL-2.0-only

//! What an interface counts besides its machine.

use kernel::{
    fmt,
    sync::atomic::{Atomic, Relaxed},
};

/// Size classes: up to 64 bytes, then twice as many for each, up to 1 MiB.
const CLASSES: usize = 15;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// Something that is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Count { $($(#[$doc])* $name,)* }

        const NAMES: &[&str] = &[$($text,)*];
    };
}

counts! {
    /// Messages that no peer sends.
    Strays "strays",
    /// Payload that is exposed from where it is.
    Exposed "exposed",
    /// Payload that had to be copied for that.
    ExposedCopies "exposed_copies",
    /// Payload that is fetched to where it belongs.
    Sinks "sinks",
    /// Of these, in several pieces.
    SinkPieces "sink_pieces",
    /// Payload that is fetched elsewhere, and copied.
    SinkCopies "sink_copies",
    /// No place to register memory.
    NoPlace "no_place",
    /// Memory that could not be registered.
    NotRegistered "not_registered",
    /// GETs that have left something out.
    Holes "holes",
    /// GETs that the engine had no place for, or did not get around to in time.
    NotPosted "not_posted",
    /// Ends of registrations that the NIC did not confirm in time.
    Late "late_revocations",
    /// Messages that a rule of `lnetctl fault` made fail.
    Faults "faults",
    /// Messages whose header tells of other payload than there is.
    Lies "lies",
    /// Messages that LNet did not take.
    NotParsed "not_parsed",
    /// Messages that this interface did not take.
    NotTaken "not_taken",
    /// Messages that LNet keeps, and that were copied for that.
    Kept "kept",
    /// The same, not copied as there is no room.
    KeptInPlace "kept_in_place",
    /// Threads that woke up.
    Turns "turns",
}

/// All numbers of an interface.
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

    /// A message with so many bytes goes out.
    pub(super) fn sent(&self, bytes: u32) {
        if let Some(n) = self.sent.get(class(bytes)) {
            n.add(1, Relaxed);
        }
    }

    /// One has come in.
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
