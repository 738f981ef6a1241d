// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Who uses which part of the SMFU window, and what is opened to other nodes (HW §12).

use wire::{
    ids::BusAddr,
    regs::smfu::{ADDRESS_END, INTERVALS, RRA_WINDOW},
    smfu::{Span, PAGE, UNMAPPED_BASE, USABLE},
};

/// Why a part of the window was not given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// Size 0, not a multiple of the page size, or a number out of range.
    Invalid,
    /// The interval is in use.
    Taken,
    /// No interval left, or no room in the window.
    Full,
}

/// Who uses which part of a window of `size` bytes.
#[derive(Clone, Debug)]
pub struct WindowAllocator {
    size: u64,
    spans: [Option<Span>; USABLE as usize],
}

/// Why memory was not opened to other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetError {
    /// No number of an interval that software sets up, or nothing of whole pages.
    Invalid,
    /// The interval has a target.
    Taken,
    /// Above what the registers of the unit can hold (48 bits).
    TooHigh,
    /// Addresses that mean interrupts.
    Interrupts,
    /// Part of it is open by another interval already, or exported to all.
    Overlaps,
}

/// What an interval leads to when packets of other nodes come with its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    /// Memory, or registers of a device: base and bytes.
    Memory(u64, u64),
    /// Interrupts of this node.
    Interrupts,
    /// Nothing any more; nobody else gets the number yet.
    Closed,
}

/// What a node opens to others by intervals (HW §12).
#[derive(Clone, Debug)]
pub struct Targets {
    list: [Option<Entry>; INTERVALS as usize],
    /// What all intervals without a target of their own lead to: base and bytes.
    exported: Option<(u64, u64)>,
}

impl WindowAllocator {
    /// A window of `size` bytes, of which the first 32 MiB belong to interval 0.
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            spans: [None; USABLE as usize],
        }
    }

    /// Takes interval `want` (1…62), or the lowest free one, and room for `bytes`, a multiple of
    /// [`PAGE`], at the lowest address that is a multiple of `align`, a power of two.
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

    /// The lowest free span: it begins at the start of the free part or where something else ends,
    /// but for what alignment skips.
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

    /// Gives an interval back.
    pub fn free(&mut self, number: u32) {
        if let Some(slot) = self.spans.get_mut(number as usize) {
            *slot = None;
        }
    }

    /// Intervals (1…62) that are free, as a set: bit *n* stands for number *n*.
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
    /// Nothing is opened.
    pub const fn new() -> Self {
        Self {
            list: [None; INTERVALS as usize],
            exported: None,
        }
    }

    /// `bytes` at `base` are what all intervals without a target lead to.
    ///
    /// # Errors
    ///
    /// As [`Targets::open`], but for numbers; nothing changes then.
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

    /// Opens `bytes` at `base` to what comes with interval `number` (1…62).
    ///
    /// # Errors
    ///
    /// See [`TargetError`].
    pub fn open(&mut self, number: u32, base: BusAddr, bytes: u64) -> Result<(), TargetError> {
        self.check(base, bytes)?;
        self.take(number, Entry::Memory(base.0, bytes))
    }

    /// Has what comes with interval `number` (1…62) cause interrupts.
    ///
    /// # Errors
    ///
    /// `Invalid`, `Taken`.
    pub fn open_interrupts(&mut self, number: u32) -> Result<(), TargetError> {
        self.take(number, Entry::Interrupts)
    }

    /// Has what was opened for an interval lead nowhere; its number stays taken until
    /// [`Targets::close`].
    pub fn disable(&mut self, number: u32) {
        if let Some(Some(slot)) = self.list.get_mut(number as usize) {
            *slot = Entry::Closed;
        }
    }

    /// Keeps a number that nothing is opened for from others, until [`Targets::close`]; whether it
    /// was free. It leads nowhere.
    pub fn hold(&mut self, number: u32) -> bool {
        self.take(number, Entry::Closed).is_ok()
    }

    /// Numbers (1…62) for which nothing is opened, as a set: bit *n* stands for number *n*.
    pub fn free_numbers(&self) -> u64 {
        let usable = (0u32..USABLE).zip(&self.list).skip(1);
        let free = usable.filter(|(_, slot)| slot.is_none());
        free.fold(0, |set, (n, _)| set | (1 << n))
    }

    /// Ends what was opened for an interval.
    pub fn close(&mut self, number: u32) {
        if let Some(slot) = self.list.get_mut(number as usize) {
            *slot = None;
        }
    }

    /// The base to be set for an interval; with `hold`, interrupts lead nowhere.
    pub fn base(&self, number: u32, hold: bool) -> BusAddr {
        match self.list.get(number as usize) {
            Some(Some(Entry::Memory(base, _))) => BusAddr(*base),
            Some(Some(Entry::Interrupts)) if hold => UNMAPPED_BASE,
            Some(Some(Entry::Closed)) => UNMAPPED_BASE,
            Some(Some(Entry::Interrupts)) => BusAddr(BusAddr::INTERRUPTS.start),
            // Not 0, which means the same to some readers of the sources and all of memory to
            // others.
            _ => self.default_base(),
        }
    }

    /// The base for what comes without an interval, and with one that nothing was opened for.
    pub fn default_base(&self) -> BusAddr {
        self.exported
            .map_or(UNMAPPED_BASE, |(base, _)| BusAddr(base))
    }

    /// Intervals that cause interrupts.
    pub fn interrupts(&self) -> impl Iterator<Item = u32> + '_ {
        let all = (0u32..).zip(&self.list);
        all.filter_map(|(n, o)| matches!(o, Some(Entry::Interrupts)).then_some(n))
    }
}
