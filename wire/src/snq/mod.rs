// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! System notification queue: trigger events, ring entries, ring state, micro-program (HW §6).
//!
//! An enabled event starts a program that reads registers and writes 64-byte entries into a ring in
//! host memory. [`Instruction`] is one word of the program. [`assemble`] builds a program from a
//! table that lists the registers to record for each event. [`TOURMALET`] is the driver's program.

mod event;
mod isa;
mod program;
mod table;

pub use event::{TriggerEvent, TriggerMask};
pub use isa::{Instruction, InstructionError, InstructionWord, Opcode, MAX_BURST};
pub use program::{
    assemble, AssembleError, Emission, EventProgram, Program, Style, END, FIRST_CONTINUATION,
    PROGRAM_WORDS,
};
pub use table::{TABLE, TOURMALET};

use crate::regs::snq::IrqWatermark;

/// Number of payload words of an entry.
pub const PAYLOAD_WORDS: usize = 7;
/// Size of an entry in bytes.
pub const ENTRY_BYTES: usize = 64;

bits! {
    /// Last quadword of a ring entry.
    pub struct Header {
        /// Time stamp.
        ts / with_ts: u64 [39:0];
        /// Meaning unknown (G4).
        tc / with_tc: u8 [47:40];
        /// Program address of the instruction that wrote the entry.
        pc / with_pc: u16 [59:48];
        /// Reserved.
        reserved / with_reserved: u8 [62:60];
        /// Toggles with each lap of the ring; 1 in the first lap.
        flip / with_flip: bool [63:63];
    }
}

/// A ring entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Entry {
    /// Payload words, right-aligned: an entry with n words fills payload[7−n…6].
    pub payload: [u64; PAYLOAD_WORDS],
    /// Header.
    pub header: Header,
}

impl Entry {
    /// Converts from eight quadwords in memory order.
    pub const fn from_words(words: [u64; 8]) -> Self {
        let [a, b, c, d, e, f, g, header] = words;
        Self {
            payload: [a, b, c, d, e, f, g],
            header: Header(header),
        }
    }

    /// Returns eight quadwords in memory order.
    pub const fn to_words(&self) -> [u64; 8] {
        let [a, b, c, d, e, f, g] = self.payload;
        [a, b, c, d, e, f, g, self.header.0]
    }

    /// Converts from bytes in memory (little endian).
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut words = [0; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut qw = [0; 8];
            qw.copy_from_slice(chunk);
            *word = u64::from_le_bytes(qw);
        }
        Self::from_words(words)
    }

    /// Returns the bytes in memory (little endian).
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the `n` words of the entry in program order, up to seven.
    pub fn words(&self, n: usize) -> &[u64] {
        self.payload
            .get(PAYLOAD_WORDS.saturating_sub(n)..)
            .unwrap_or(&[])
    }

    /// Returns an entry with `words` right-aligned and other words 0. Words beyond the seventh are
    /// dropped.
    pub fn with_words(words: &[u64], header: Header) -> Self {
        let mut entry = Self {
            payload: [0; PAYLOAD_WORDS],
            header,
        };
        let n = words.len().min(PAYLOAD_WORDS);
        for (to, from) in entry.payload.iter_mut().skip(PAYLOAD_WORDS - n).zip(words) {
            *to = *from;
        }
        entry
    }
}

/// Software's state of the ring (HW §6.4): next entry, its expected flip bit, and values for
/// re-arming.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ring {
    entries: u16,
    consumed: u16,
    watermark: u16,
    flip: bool,
}

impl Ring {
    /// Returns the state of a ring of `entries` entries, whose hardware write pointer is `wp`
    /// before the queue is started. Returns `None` unless `entries` is a power of two in 2…32,768.
    pub const fn new(entries: u16, wp: u16) -> Option<Self> {
        if entries < 2 || !entries.is_power_of_two() {
            return None;
        }
        let last = entries - 1;
        Some(Self {
            entries,
            consumed: wp.wrapping_sub(1) & last,
            watermark: wp.wrapping_add(1) & last,
            flip: true,
        })
    }

    /// Returns the index of the next entry.
    pub const fn next(&self) -> u16 {
        (self.consumed + 1) & (self.entries - 1)
    }

    /// Returns whether `header`, read from entry [`Ring::next`], belongs to a written entry.
    pub const fn is_valid(&self, header: Header) -> bool {
        header.flip() == self.flip
    }

    /// Returns the header that slot `index` must have before the queue is started; all other words
    /// are 0.
    ///
    /// If hardware keeps its write pointer over a restart (G6), it does not write the slots before
    /// the pointer in the first lap. Software reads them in the second lap and expects the other
    /// flip bit, so zeros would look valid there.
    pub const fn blank(&self, index: u16) -> Header {
        Header(0).with_flip(index < self.next())
    }

    /// Returns the expected header of entry [`Ring::next`]. The caller stores it over a lost entry.
    /// Otherwise the stale header of the previous lap would look valid in the next lap, before
    /// hardware writes the entry.
    pub const fn filler(&self) -> Header {
        Header(0).with_flip(self.flip)
    }

    /// Advances past entry [`Ring::next`].
    pub fn consume(&mut self) {
        let last = self.entries - 1;
        if self.next() == last {
            self.flip = !self.flip;
        }
        self.consumed = self.next();
        self.watermark = (self.watermark + 1) & last;
    }

    /// Returns the value for `queue_rplt`: index of the last consumed entry.
    pub const fn rplt(&self) -> u16 {
        self.consumed
    }

    /// Returns the value for `irq_watermark`, armed. The caller must write it after `queue_rplt`.
    pub const fn watermark(&self) -> IrqWatermark {
        IrqWatermark(0)
            .with_watermark(self.watermark)
            .with_enable(true)
    }
}
