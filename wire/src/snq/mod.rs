// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! System notification queue (HW §6): trigger events, ring entries, ring state and micro-program.
//!
//! An enabled event starts a program. The program reads registers and writes 64-byte entries into a
//! ring in host memory. [`Instruction`] is one word of the program. [`assemble`] builds a program
//! from a table that lists the registers to record for each event. [`TOURMALET`] is the driver's
//! program.

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
        /// Time stamp of the entry, from the NIC's counter.
        ts / with_ts: u64 [39:0];
        /// Meaning unknown (G4).
        tc / with_tc: u8 [47:40];
        /// Program address of the instruction that wrote the entry.
        pc / with_pc: u16 [59:48];
        /// Reserved.
        reserved / with_reserved: u8 [62:60];
        /// Bit that toggles with each lap of the ring. It is 1 in the first lap.
        flip / with_flip: bool [63:63];
    }
}

/// Entry of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Entry {
    /// Payload words, right-aligned. An entry with n words fills payload[7−n…6].
    pub payload: [u64; PAYLOAD_WORDS],
    /// Header.
    pub header: Header,
}

impl Entry {
    /// Decodes eight quadwords in memory order.
    pub const fn from_words(words: [u64; 8]) -> Self {
        let [a, b, c, d, e, f, g, header] = words;
        Self {
            payload: [a, b, c, d, e, f, g],
            header: Header(header),
        }
    }

    /// Returns the eight quadwords in memory order.
    pub const fn to_words(&self) -> [u64; 8] {
        let [a, b, c, d, e, f, g] = self.payload;
        [a, b, c, d, e, f, g, self.header.0]
    }

    /// Decodes the bytes in memory (little endian).
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut words = [0; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut qw = [0; 8];
            qw.copy_from_slice(chunk);
            *word = u64::from_le_bytes(qw);
        }
        Self::from_words(words)
    }

    /// Returns the bytes for memory (little endian).
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the last `n` payload words in program order, at most seven.
    pub fn words(&self, n: usize) -> &[u64] {
        self.payload
            .get(PAYLOAD_WORDS.saturating_sub(n)..)
            .unwrap_or(&[])
    }

    /// Returns an entry with `words` right-aligned and all other payload words 0. Drops words after
    /// the seventh.
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

/// Software's state of the ring (HW §6.4): index of the next entry, expected flip bit, and register
/// values that re-arm the interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ring {
    entries: u16,
    consumed: u16,
    watermark: u16,
    flip: bool,
}

impl Ring {
    /// Returns the state of a ring of `entries` entries. `wp` is the NIC's write pointer before the
    /// queue is started. Returns `None` unless `entries` is a power of two in 2…32,768.
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

    /// Returns whether `header` belongs to a written entry. The caller has read it from entry
    /// [`Ring::next`].
    pub const fn is_valid(&self, header: Header) -> bool {
        header.flip() == self.flip
    }

    /// Returns the header that software stores in slot `index` before the queue is started. All
    /// other words of the slot must be 0.
    ///
    /// The NIC may keep its write pointer over a restart (G6). In the first lap it then skips the
    /// slots before the pointer. Software reads these slots in the second lap, in which the flip
    /// bit of valid entries is 0. A header of 0 would therefore look valid.
    pub const fn blank(&self, index: u16) -> Header {
        Header(0).with_flip(index < self.next())
    }

    /// Returns a header that is invalid in the next lap. The caller stores it into entry
    /// [`Ring::next`] if the NIC lost the entry. Otherwise the header of the previous lap would
    /// look valid in the next lap, before the NIC has written the entry.
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

    /// Returns the value for `queue_rplt`, which is the index of the last consumed entry.
    pub const fn rplt(&self) -> u16 {
        self.consumed
    }

    /// Returns the value for `irq_watermark` that arms the interrupt. The caller must write it
    /// after `queue_rplt`.
    pub const fn watermark(&self) -> IrqWatermark {
        IrqWatermark(0)
            .with_watermark(self.watermark)
            .with_enable(true)
    }
}
