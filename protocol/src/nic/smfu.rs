// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! SMFU window and targets (HW §12): allocation of intervals and of addresses in the window, and
//! list of the addresses that other nodes can access.

use wire::{
    ids::BusAddr,
    regs::smfu::{ADDRESS_END, INTERVALS, RRA_WINDOW},
    smfu::{Span, PAGE, UNMAPPED_BASE, USABLE},
};

/// Reason why a range of the window cannot be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// The size is 0 or not a multiple of the page size, or the interval number is out of range.
    Invalid,
    /// The interval is in use.
    Taken,
    /// No interval is free, or the window has no free range of sufficient size.
    Full,
}

/// Allocator for the intervals of a window of `size` bytes.
#[derive(Clone, Debug)]
pub struct WindowAllocator {
    size: u64,
    spans: [Option<Span>; USABLE as usize],
}

/// Reason for which a target cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetError {
    /// The interval number is not in 1…62, or the range is empty or not page aligned.
    Invalid,
    /// The interval is in use.
    Taken,
    /// The range exceeds the 48-bit addresses of the unit's registers.
    TooHigh,
    /// The range contains interrupt addresses.
    Interrupts,
    /// The range overlaps another target or the exported range.
    Overlaps,
}

/// Target of an interval: effect of packets that other nodes send to the interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    /// Packets access memory or device registers. Contains base address and size in bytes.
    Memory(u64, u64),
    /// Packets cause interrupts on this node.
    Interrupts,
    /// Packets have no effect. The interval number remains reserved.
    Closed,
}

/// Targets of a node: address ranges and interrupts that other nodes can access by intervals (HW
/// §12).
#[derive(Clone, Debug)]
pub struct Targets {
    list: [Option<Entry>; INTERVALS as usize],
    /// Base address and size in bytes of the range that all intervals without a target access.
    exported: Option<(u64, u64)>,
}

impl WindowAllocator {
    /// Returns the allocator for a window of `size` bytes, whose first 32 MiB belong to interval 0.
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            spans: [None; USABLE as usize],
        }
    }

    /// Reserves interval `want` (1…62), or the lowest free interval if `want` is `None`. It also
    /// reserves `bytes` bytes of the window, where `bytes` is a multiple of [`PAGE`]. The bytes
    /// begin at the lowest free address that is a multiple of `align`, a power of two.
    ///
    /// # Errors
    ///
    /// See [`WindowError`].
    pub fn reserve(
        &mut self,
        bytes: u64,
        align: u64,
        want: Option<u32>,
    ) -> Result<(u32, Span), WindowError> {
        if bytes == 0 || bytes % PAGE != 0 || !align.is_power_of_two() {
            return Err(WindowError::Invalid);
        }
        let number = match want {
            Some(n @ 1..USABLE) if self.spans.get(n as usize).is_some_and(|s| s.is_none()) => n,
            Some(1..USABLE) => return Err(WindowError::Taken),
            Some(_) => return Err(WindowError::Invalid),
            None => (1..USABLE)
                .find(|n| self.spans.get(*n as usize).is_some_and(|s| s.is_none()))
                .ok_or(WindowError::Full)?,
        };
        let span = self.room(bytes, align).ok_or(WindowError::Full)?;
        if let Some(slot) = self.spans.get_mut(number as usize) {
            *slot = Some(span);
        }
        Ok((number, span))
    }

    /// Returns the lowest free span of this size and alignment.
    fn room(&self, bytes: u64, align: u64) -> Option<Span> {
        let taken = || self.spans.iter().flatten();
        let starts = core::iter::once(RRA_WINDOW).chain(taken().map(|s| s.end));
        starts
            .filter_map(|start| {
                let start = start.checked_next_multiple_of(align)?;
                let end = start.checked_add(bytes)?;
                Some(Span { start, end })
            })
            .filter(|s| s.end <= self.size && !taken().any(|t| t.meets(s)))
            .min_by_key(|s| s.start)
    }

    /// Releases an interval and its range of the window.
    pub fn free(&mut self, number: u32) {
        if let Some(slot) = self.spans.get_mut(number as usize) {
            *slot = None;
        }
    }

    /// Returns the set of free intervals (1…62); bit *n* is interval *n*.
    pub fn free_numbers(&self) -> u64 {
        let usable = (0u32..).zip(&self.spans).skip(1);
        let free = usable.filter(|(_, span)| span.is_none());
        free.fold(0, |set, (n, _)| set | (1 << n))
    }
}

impl Default for Targets {
    fn default() -> Self {
        Self::new()
    }
}

impl Targets {
    /// Returns a list without targets.
    pub const fn new() -> Self {
        Self {
            list: [None; INTERVALS as usize],
            exported: None,
        }
    }

    /// Exports `bytes` bytes at `base`. Packets for intervals without a target access these bytes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Targets::open`] that concern the range. The list is then unchanged.
    pub fn export(&mut self, base: BusAddr, bytes: u64) -> Result<(), TargetError> {
        self.check(base, bytes)?;
        self.exported = Some((base.0, bytes));
        Ok(())
    }

    fn check(&self, base: BusAddr, bytes: u64) -> Result<(), TargetError> {
        if base.0 == 0 || bytes == 0 || (base.0 | bytes) % PAGE != 0 {
            return Err(TargetError::Invalid);
        }
        let end = base.0.checked_add(bytes).ok_or(TargetError::TooHigh)?;
        if end >= ADDRESS_END {
            return Err(TargetError::TooHigh);
        }
        if base.meets_interrupts(bytes) {
            return Err(TargetError::Interrupts);
        }
        let opened = self.list.iter().flatten().filter_map(|o| match o {
            Entry::Memory(base, bytes) => Some((*base, *bytes)),
            Entry::Interrupts | Entry::Closed => None,
        });
        let mut all = opened.chain(self.exported);
        if all.any(|(start, len)| start < end && base.0 < start + len) {
            return Err(TargetError::Overlaps);
        }
        Ok(())
    }

    fn take(&mut self, number: u32, what: Entry) -> Result<(), TargetError> {
        if !(1..USABLE).contains(&number) {
            return Err(TargetError::Invalid);
        }
        match self.list.get_mut(number as usize) {
            Some(slot @ None) => {
                *slot = Some(what);
                Ok(())
            }
            _ => Err(TargetError::Taken),
        }
    }

    /// Opens `bytes` bytes at `base` to packets for interval `number` (1…62).
    ///
    /// # Errors
    ///
    /// See [`TargetError`].
    pub fn open(&mut self, number: u32, base: BusAddr, bytes: u64) -> Result<(), TargetError> {
        self.check(base, bytes)?;
        self.take(number, Entry::Memory(base.0, bytes))
    }

    /// Opens interval `number` (1…62) for interrupts.
    ///
    /// # Errors
    ///
    /// Returns [`TargetError::Invalid`] or [`TargetError::Taken`].
    pub fn open_interrupts(&mut self, number: u32) -> Result<(), TargetError> {
        self.take(number, Entry::Interrupts)
    }

    /// Closes the target of an interval and keeps its number reserved until [`Targets::close`].
    pub fn disable(&mut self, number: u32) {
        if let Some(Some(slot)) = self.list.get_mut(number as usize) {
            *slot = Entry::Closed;
        }
    }

    /// Reserves a free number without a target until [`Targets::close`]. Returns false if the
    /// number is in use or invalid.
    pub fn hold(&mut self, number: u32) -> bool {
        self.take(number, Entry::Closed).is_ok()
    }

    /// Returns the set of free numbers (1…62); bit *n* is interval *n*.
    pub fn free_numbers(&self) -> u64 {
        let usable = (0u32..USABLE).zip(&self.list).skip(1);
        let free = usable.filter(|(_, slot)| slot.is_none());
        free.fold(0, |set, (n, _)| set | (1 << n))
    }

    /// Closes the target of an interval and releases its number.
    pub fn close(&mut self, number: u32) {
        if let Some(slot) = self.list.get_mut(number as usize) {
            *slot = None;
        }
    }

    /// Returns the base address to be set for an interval. With `hold`, interrupts are not
    /// delivered.
    pub fn base(&self, number: u32, hold: bool) -> BusAddr {
        match self.list.get(number as usize) {
            Some(Some(Entry::Memory(base, _))) => BusAddr(*base),
            Some(Some(Entry::Interrupts)) if hold => UNMAPPED_BASE,
            Some(Some(Entry::Closed)) => UNMAPPED_BASE,
            Some(Some(Entry::Interrupts)) => BusAddr(BusAddr::INTERRUPTS.start),
            // The base address is never 0, because the documents disagree on the meaning of 0: no
            // target, or all of memory.
            _ => self.default_base(),
        }
    }

    /// Returns the base address for packets without an interval, and for intervals without a
    /// target.
    pub fn default_base(&self) -> BusAddr {
        self.exported
            .map_or(UNMAPPED_BASE, |(base, _)| BusAddr(base))
    }

    /// Returns the intervals that cause interrupts.
    pub fn interrupts(&self) -> impl Iterator<Item = u32> + '_ {
        let all = (0u32..).zip(&self.list);
        all.filter_map(|(n, o)| matches!(o, Some(Entry::Interrupts)).then_some(n))
    }
}
