// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Leases (docs/pci-protocol.md, Leases): names, negotiation messages and configuration registers.

use super::message::{Reject, Rejected};
use super::{BARS, LONGEST_LEASE_MS};
use crate::regs::smfu::INTERVALS;
use crate::smfu::PAGE;

/// Random number that an end draws when it starts. It changes with every restart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Incarnation(pub u64);

/// Name of a lease. It consists of a random number of the borrower (in its request) and one of the
/// lender (in its answer).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// Value that names no lease.
    pub const NONE: Self = Self(0);

    /// Returns the name with both numbers. `key` is 0 while the borrower does not know the lender's
    /// number.
    #[must_use]
    pub const fn new(nonce: u32, key: u32) -> Self {
        Self(nonce as u64 | ((key as u64) << 32))
    }

    /// Returns the borrower's number, which is not 0.
    #[must_use]
    pub const fn nonce(self) -> u32 {
        self.0 as u32
    }

    /// Returns the lender's number; 0 while the borrower does not know it.
    #[must_use]
    pub const fn key(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Bit mask of the intervals 1…62, which software sets up. Bit *n* is interval *n*.
const USABLE: u64 = (1 << (INTERVALS - 1)) - 2;

/// Limit of the size of DMA memory in bytes. Sizes are below it.
const DMA_END: u64 = 1 << 40;
/// Limit of the addresses that the NIC uses on the bus (HW §2). Addresses are below it.
const ADDRESS_END: u64 = 1 << 52;

bits! {
    /// Device of a lender, in one of its generations.
    pub struct NamedWord {
        /// Handle of the device.
        handle / with_handle: u32 [31:0];
        /// Generation of the device.
        generation / with_generation: u32 [63:32];
    }
}

bits! {
    /// Access to a configuration register.
    pub struct RegisterWord {
        /// Offset of the register in bytes.
        offset / with_offset: u16 [15:0];
        /// Value to write.
        value / with_value: u32 [63:32];
    }
}

/// Configuration register of 1, 2 or 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Register {
    offset: u16,
    size: u8,
}

impl Register {
    /// Limit of register offsets. Offsets are below it.
    pub const END: u16 = 4096;

    /// Returns the register of `size` bytes at `offset`. Returns `None` unless the size is 1, 2 or
    /// 4 and the offset is a multiple of the size below [`Register::END`].
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

    /// Returns the offset in bytes, which is a multiple of the size.
    #[must_use]
    pub const fn offset(self) -> u16 {
        self.offset
    }

    /// Returns the size in bytes: 1, 2 or 4.
    #[must_use]
    pub const fn size(self) -> u8 {
        self.size
    }

    /// Returns the offset of the aligned dword that contains the register.
    #[must_use]
    pub const fn dword(self) -> u16 {
        self.offset & !3
    }

    /// Returns the number of bits in the aligned dword below the register.
    #[must_use]
    pub const fn shift(self) -> u32 {
        8 * (self.offset & 3) as u32
    }

    /// Returns a value of the register's size with all bits set. A read that the device does not
    /// answer returns this value.
    #[must_use]
    pub const fn ones(self) -> u32 {
        u32::MAX >> (32 - 8 * self.size as u32)
    }

    pub(super) fn parse(word: u64, size: u8) -> Result<Self, Rejected> {
        let offset = RegisterWord(word).offset();
        Self::new(offset, size).ok_or(Rejected::new(Reject::Field, u64::from(offset)))
    }
}

/// Returns whether `set` contains only intervals that software sets up.
const fn is_set(set: u64) -> bool {
    set & !USABLE == 0
}

/// Contents of [`Kind::Borrow`](super::Kind::Borrow). The number of the message is also the
/// borrower's number in the lease's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Borrow {
    /// Handle of the device.
    pub handle: u32,
    /// Generation of the device in the lender's description.
    pub generation: u32,
    /// Incarnation of the lender that described the device.
    pub lender: Incarnation,
    /// Bit mask of interval numbers that are free for the borrower's windows to BARs. Bit *n* is
    /// interval *n*.
    pub windows: u64,
    /// Bit mask of interval numbers that are free for the borrower's targets: DMA memory and
    /// interrupts.
    pub targets: u64,
    /// Size of DMA memory in bytes: a multiple of 4096 that is less than 2^40.
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

/// Interval numbers of a lease. Each is a window at one end and the target at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Numbers {
    /// Numbers for the BARs, with windows of the borrower and targets of the lender; 0 for a BAR
    /// that does not exist.
    pub bars: [u8; BARS],
    /// Number for DMA memory, with a window of the lender and a target of the borrower.
    pub dma: u8,
    /// Number for interrupts, with a window of the lender and a target of the borrower.
    pub interrupts: u8,
}

impl Numbers {
    /// Returns the numbers of the BARs as a bit mask. Bit *n* is number *n*.
    #[must_use]
    pub fn bar_set(&self) -> u64 {
        let some = self.bars.iter().filter(|n| **n != 0);
        some.fold(0, |set, n| set | 1u64.checked_shl((*n).into()).unwrap_or(0))
    }

    /// Returns the numbers of DMA memory and interrupts as a bit mask.
    #[must_use]
    pub fn dma_set(&self) -> u64 {
        let bit = |n: u8| 1u64.checked_shl(n.into()).unwrap_or(0) & !1;
        bit(self.dma) | bit(self.interrupts)
    }

    /// Returns whether all numbers are usable and distinct.
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
    /// Generation and timeout of a lease.
    pub struct TermsWord {
        /// Generation of the device.
        generation / with_generation: u32 [31:0];
        /// Timeout in ms.
        timeout / with_timeout: u32 [63:32];
    }
}

/// Contents of [`Kind::Grant`](super::Kind::Grant). The number of the message is the number of the
/// request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Grant {
    /// Name of the lease.
    pub lease: LeaseId,
    /// Generation of the device.
    pub generation: u32,
    /// Time in ms, 1…[`LONGEST_LEASE_MS`]. After this time without a message, the lender takes the
    /// device back.
    pub timeout_ms: u32,
    /// Interval numbers of the lease.
    pub numbers: Numbers,
    /// Address of the first byte of DMA memory on the lender's bus. The device uses this address.
    pub dma: u64,
    /// Address of a page on the lender's bus, to which the device writes its interrupts.
    pub interrupts: u64,
    /// Incarnation of the borrower that sent the request.
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
