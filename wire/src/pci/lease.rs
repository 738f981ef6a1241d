// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Leases: their names, how they begin, registers (docs/pci-protocol.md, Leases).

use super::message::{Reject, Rejected};
use super::{BARS, LONGEST_LEASE_MS};
use crate::regs::smfu::INTERVALS;
use crate::smfu::PAGE;

/// A random number that an end draws when it starts: names its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Incarnation(pub u64);

/// Name of a lease: what the borrower drew for its request, and what the lender drew for its
/// answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// No lease.
    pub const NONE: Self = Self(0);

    /// Of both numbers; `key` is 0 as long as the borrower does not know it.
    #[must_use]
    pub const fn new(nonce: u32, key: u32) -> Self {
        Self(nonce as u64 | ((key as u64) << 32))
    }

    /// What the borrower drew; not 0.
    #[must_use]
    pub const fn nonce(self) -> u32 {
        self.0 as u32
    }

    /// What the lender drew; 0 if there is no lease yet that the borrower knows.
    #[must_use]
    pub const fn key(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Bits of intervals that software sets up, 1…62: bit *n* stands for interval *n*.
const USABLE: u64 = (1 << (INTERVALS - 1)) - 2;

/// Largest DMA memory in bytes, plus one.
const DMA_END: u64 = 1 << 40;
/// First address behind those that the NIC puts on the bus (HW §2).
const ADDRESS_END: u64 = 1 << 52;

bits! {
    /// A device of a lender, in one of its states.
    pub struct NamedWord {
        /// Handle.
        handle / with_handle: u32 [31:0];
        /// Generation.
        generation / with_generation: u32 [63:32];
    }
}

bits! {
    /// Which register is accessed.
    pub struct RegisterWord {
        /// Offset in bytes.
        offset / with_offset: u16 [15:0];
        /// What is written.
        value / with_value: u32 [63:32];
    }
}

/// A configuration register of 1, 2 or 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Register {
    offset: u16,
    size: u8,
}

impl Register {
    /// First offset behind the registers.
    pub const END: u16 = 4096;

    /// The register of `size` bytes at `offset`; `None` unless the size is 1, 2 or 4, the offset a
    /// multiple of it and below [`Register::END`].
    #[must_use]
    pub const fn new(offset: u16, size: u8) -> Option<Self> {
        let fits =
            matches!(size, 1 | 2 | 4) && offset < Self::END && offset & (size as u16 - 1) == 0;
        if fits {
            Some(Self { offset, size })
        } else {
            None
        }
    }

    /// Offset in bytes, a multiple of the size.
    #[must_use]
    pub const fn offset(self) -> u16 {
        self.offset
    }

    /// Size in bytes: 1, 2 or 4.
    #[must_use]
    pub const fn size(self) -> u8 {
        self.size
    }

    /// Offset of the four bytes that it is in.
    #[must_use]
    pub const fn dword(self) -> u16 {
        self.offset & !3
    }

    /// How many bits of these come before it.
    #[must_use]
    pub const fn shift(self) -> u32 {
        8 * (self.offset & 3) as u32
    }

    /// All ones in its size: what a read gives that nobody answers.
    #[must_use]
    pub const fn ones(self) -> u32 {
        u32::MAX >> (32 - 8 * self.size as u32)
    }

    pub(super) fn parse(word: u64, size: u8) -> Result<Self, Rejected> {
        let offset = RegisterWord(word).offset();
        Self::new(offset, size).ok_or(Rejected::new(Reject::Field, u64::from(offset)))
    }
}

/// Whether a set holds intervals that software sets up, and no others.
const fn is_set(set: u64) -> bool {
    set & !USABLE == 0
}

/// See [`Kind::Borrow`](super::Kind::Borrow). The number of the message is the borrower's part of
/// the lease's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Borrow {
    /// Which device.
    pub handle: u32,
    /// Its generation when it was described.
    pub generation: u32,
    /// Which life of the lender described it.
    pub lender: Incarnation,
    /// Interval numbers for which the borrower can make windows: for BARs. Bit *n* stands for number *n*.
    pub windows: u64,
    /// Interval numbers for which it can open targets: for DMA memory and interrupts.
    pub targets: u64,
    /// Bytes of DMA memory, a multiple of 4096, less than 2^40.
    pub dma: u64,
}

impl Borrow {
    pub(super) const fn words(&self) -> [u64; 5] {
        let named = NamedWord(0)
            .with_handle(self.handle)
            .with_generation(self.generation);
        [
            named.raw(),
            self.lender.0,
            self.windows,
            self.targets,
            self.dma,
        ]
    }

    pub(super) fn parse(word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let named = NamedWord(word(2));
        let (windows, targets, dma) = (word(4), word(5), word(6));
        for set in [windows, targets] {
            if !is_set(set) {
                return Err(Rejected::new(Reject::Field, set));
            }
        }
        if dma == 0 || dma % PAGE != 0 || dma >= DMA_END {
            return Err(Rejected::new(Reject::Field, dma));
        }
        Ok(Self {
            handle: named.handle(),
            generation: named.generation(),
            lender: Incarnation(word(3)),
            windows,
            targets,
            dma,
        })
    }
}

/// Interval numbers of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Numbers {
    /// For each BAR: window of the borrower, target of the lender; 0 where there is none.
    pub bars: [u8; BARS],
    /// DMA memory: window of the lender, target of the borrower.
    pub dma: u8,
    /// Interrupts: window of the lender, target of the borrower.
    pub interrupts: u8,
}

impl Numbers {
    /// Those of the BARs, as a set: bit *n* stands for number *n*.
    #[must_use]
    pub fn bar_set(&self) -> u64 {
        let some = self.bars.iter().filter(|n| **n != 0);
        some.fold(0, |set, n| set | 1u64.checked_shl((*n).into()).unwrap_or(0))
    }

    /// Those of DMA memory and interrupts, as a set.
    #[must_use]
    pub fn dma_set(&self) -> u64 {
        let bit = |n: u8| 1u64.checked_shl(n.into()).unwrap_or(0) & !1;
        bit(self.dma) | bit(self.interrupts)
    }

    /// Whether all of them can be, and each is there once.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let bars = self.bars.iter().filter(|n| **n != 0).count() as u32;
        let (bar_set, dma_set) = (self.bar_set(), self.dma_set());
        let known = is_set(bar_set) && is_set(dma_set);
        known && bar_set.count_ones() == bars && dma_set.count_ones() == 2
    }

    const fn raw(&self) -> u64 {
        let [a, b, c, d, e, f] = self.bars;
        u64::from_le_bytes([a, b, c, d, e, f, self.dma, self.interrupts])
    }

    const fn from_raw(raw: u64) -> Self {
        let [a, b, c, d, e, f, dma, interrupts] = raw.to_le_bytes();
        Self {
            bars: [a, b, c, d, e, f],
            dma,
            interrupts,
        }
    }
}

bits! {
    /// Terms of a lease.
    pub struct TermsWord {
        /// Generation of the device.
        generation / with_generation: u32 [31:0];
        /// Time-out in ms.
        timeout / with_timeout: u32 [63:32];
    }
}

/// See [`Kind::Grant`](super::Kind::Grant). The number of the message is that of the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// Generation of the device.
    pub generation: u32,
    /// The lender takes the device back when it hears nothing for so many ms,
    /// 1…[`LONGEST_LEASE_MS`].
    pub timeout_ms: u32,
    /// Interval numbers.
    pub numbers: Numbers,
    /// Where the device finds the first byte of DMA memory: a bus address of the lender.
    pub dma: u64,
    /// Where it stores to cause interrupts: a page, at a bus address of the lender.
    pub interrupts: u64,
    /// Which life of the borrower has asked.
    pub borrower: Incarnation,
}

impl Grant {
    pub(super) const fn words(&self) -> [u64; 6] {
        let terms = TermsWord(0)
            .with_generation(self.generation)
            .with_timeout(self.timeout_ms);
        [
            self.lease.0,
            terms.raw(),
            self.numbers.raw(),
            self.dma,
            self.interrupts,
            self.borrower.0,
        ]
    }

    pub(super) fn parse(number: u32, word: impl Fn(usize) -> u64) -> Result<Self, Rejected> {
        let lease = LeaseId(word(2));
        let terms = TermsWord(word(3));
        let numbers = Numbers::from_raw(word(4));
        let (dma, interrupts) = (word(5), word(6));
        let field = |value| Err(Rejected::new(Reject::Field, value));
        if lease.key() == 0 || number == 0 || lease.nonce() != number {
            return field(lease.0);
        }
        if !(1..=LONGEST_LEASE_MS).contains(&terms.timeout()) {
            return field(terms.timeout().into());
        }
        if !numbers.is_valid() {
            return field(numbers.raw());
        }
        for address in [dma, interrupts] {
            if address == 0 || address % PAGE != 0 || address >= ADDRESS_END {
                return field(address);
            }
        }
        Ok(Self {
            lease,
            generation: terms.generation(),
            timeout_ms: terms.timeout(),
            numbers,
            dma,
            interrupts,
            borrower: Incarnation(word(7)),
        })
    }
}
