// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Use of the SMFU window: intervals and mask mode (HW §12).

use crate::ids::NodeId;
use crate::regs::smfu::{INTERVALS, RRA_WINDOW};

/// Granularity of intervals in bytes.
pub const PAGE: u64 = 4096;
/// Intervals that software sets up (HW §3.6); number 0 leads to remote register files.
pub const USABLE: u32 = INTERVALS - 1;

/// Addresses `start..end` as offsets in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
}

impl Span {
    const fn meets(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// Why a part of the window was not given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Size 0, not a multiple of the page size, or a number out of range.
    Invalid,
    /// The interval is in use.
    Taken,
    /// No interval left, or no room in the window.
    Full,
}

/// Who uses which part of a window of `size` bytes.
#[derive(Clone, Debug)]
pub struct Layout {
    size: u64,
    spans: [Option<Span>; USABLE as usize],
    mask: Option<MaskMode>,
}

impl Layout {
    /// A window of `size` bytes, of which the first 32 MiB belong to interval 0.
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            spans: [None; USABLE as usize],
            mask: None,
        }
    }

    /// Takes interval `want` (1…62), or the lowest free one, and room for `bytes`, a multiple of [`PAGE`], at the lowest
    /// address.
    ///
    /// # Errors
    ///
    /// See [`Refused`].
    pub fn reserve(&mut self, bytes: u64, want: Option<u32>) -> Result<(u32, Span), Refused> {
        if bytes == 0 || bytes % PAGE != 0 {
            return Err(Refused::Invalid);
        }
        let number = match want {
            Some(n @ 1..USABLE) if self.spans.get(n as usize).is_some_and(|s| s.is_none()) => n,
            Some(1..USABLE) => return Err(Refused::Taken),
            Some(_) => return Err(Refused::Invalid),
            None => (1..USABLE)
                .find(|n| self.spans.get(*n as usize).is_some_and(|s| s.is_none()))
                .ok_or(Refused::Full)?,
        };
        let span = self.room(bytes).ok_or(Refused::Full)?;
        if let Some(place) = self.spans.get_mut(number as usize) {
            *place = Some(span);
        }
        Ok((number, span))
    }

    /// The lowest free span: it begins at the start of the free part or where something else ends.
    fn room(&self, bytes: u64) -> Option<Span> {
        let mask = self.mask.map(|m| m.span());
        let taken = || self.spans.iter().flatten().chain(mask.iter());
        let starts = core::iter::once(RRA_WINDOW).chain(taken().map(|s| s.end));
        starts
            .filter_map(|start| {
                let end = start.checked_add(bytes)?;
                Some(Span { start, end })
            })
            .filter(|s| s.end <= self.size && !taken().any(|t| t.meets(s)))
            .min_by_key(|s| s.start)
    }

    /// Gives an interval back.
    pub fn free(&mut self, number: u32) {
        if let Some(place) = self.spans.get_mut(number as usize) {
            *place = None;
        }
    }

    /// Sets mask mode for `nodes` slices of `slice` bytes each.
    ///
    /// # Errors
    ///
    /// `Invalid` for sizes that are no powers of two or do not fit; `Taken` if the mode is set, or an interval is in the way.
    pub fn set_mask(&mut self, slice: u64, nodes: u32) -> Result<MaskMode, Refused> {
        let mode = MaskMode::new(slice, nodes).ok_or(Refused::Invalid)?;
        let span = mode.span();
        if span.end > self.size || span.start >= span.end {
            return Err(Refused::Invalid);
        }
        if self.mask.is_some() || self.spans.iter().flatten().any(|s| s.meets(&span)) {
            return Err(Refused::Taken);
        }
        self.mask = Some(mode);
        Ok(mode)
    }

    /// Ends mask mode.
    pub fn clear_mask(&mut self) {
        self.mask = None;
    }
}

/// Mask mode: outside intervals the node is part of the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaskMode {
    slice: u64,
    nodes: u32,
}

impl MaskMode {
    /// Slices of `slice` bytes, a power of two of at least 64, for nodes 0…`nodes` − 1, `nodes` a power of two of 2…65536.
    pub const fn new(slice: u64, nodes: u32) -> Option<Self> {
        let good = slice.is_power_of_two()
            && nodes.is_power_of_two()
            && slice >= 64
            && nodes >= 2
            && nodes <= 1 << 16
            && slice <= 1 << 31;
        if good {
            Some(Self { slice, nodes })
        } else {
            None
        }
    }

    /// Value of `addr_mask`.
    pub const fn mask(self) -> u64 {
        (self.nodes as u64 - 1) * self.slice
    }

    /// Value of `nNodeOffset`.
    pub const fn shift(self) -> u64 {
        self.slice.trailing_zeros() as u64
    }

    /// The part of the window that it uses: what leads to remote register files is left out.
    pub const fn span(self) -> Span {
        Span {
            start: RRA_WINDOW,
            end: self.slice * self.nodes as u64,
        }
    }

    /// Slice of a node; `None` for a node that has none, or whose slice meets the remote register files' part.
    pub const fn slice(self, node: NodeId) -> Option<Span> {
        let start = node.0 as u64 * self.slice;
        if node.0 as u32 >= self.nodes || start < RRA_WINDOW {
            return None;
        }
        Some(Span {
            start,
            end: start + self.slice,
        })
    }
}
