// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Capabilities of a function, and the selection of those that a borrower sees.

use super::{command, COMMAND, EXTENDED, HEADER, HEADER_END, POINTER};

/// Maximum number of capabilities of a function, in both chains.
const CAPABILITIES_MAX: usize = 64;
/// Maximum number of capabilities in the first chain, each of which has at least 4 bytes.
const FIRST_MAX: usize = 48;
/// End of the configuration space of a function without extended registers.
const SHORT_END: u16 = EXTENDED;
/// End of the extended configuration space.
const LONG_END: u16 = 4096;

/// Capability that a borrower sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shown {
    /// Power management. Its state is writable if the function keeps its registers in D3hot.
    Power,
    /// MSI.
    Msi {
        /// True if the address has 64 bits.
        wide: bool,
        /// True if vectors have mask bits.
        masks: bool,
    },
    /// MSI-X. Its table is in a BAR.
    MsiX,
    /// PCI Express.
    Express,
    /// Advanced Features, which contains the reset of functions that are not PCI Express.
    Advanced,
    /// Vendor-specific capability, which is read-only.
    Vendor,
    /// Subsystem ID of a bridge, which is read-only.
    Subsystem,
    /// Serial number, extended.
    Serial,
    /// Vendor-specific extended capability, which is read-only.
    VendorExtended,
}

/// A capability.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capability {
    /// Capability ID, in the numbering of standard or extended capabilities.
    pub id: u16,
    /// Offset in configuration space.
    pub at: u16,
    /// Size in bytes.
    pub len: u16,
    /// Kind of capability that the borrower sees; `None` if it is hidden.
    pub shown: Option<Shown>,
    /// Offset of the next visible capability in the chain; 0 for the last capability.
    pub next: u16,
}

impl Capability {
    /// Returns the first offset after the capability.
    #[must_use]
    pub const fn end(&self) -> u16 {
        self.at + self.len
    }

    /// Returns true if the capability is in the chain of extended capabilities.
    #[must_use]
    pub const fn is_extended(&self) -> bool {
        self.at >= EXTENDED
    }
}

/// Reason for which a function cannot be lent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LayoutError {
    /// The function does not answer.
    Gone,
    /// The header has this type, which is that of a bridge or of another function without normal
    /// BARs.
    Header(u8),
    /// A chain of capabilities is invalid or circular at this offset.
    Chain(u16),
    /// The function has too many capabilities.
    TooMany,
    /// Two capabilities overlap at this offset.
    Overlap(u16),
    /// A capability describes the BARs (enhanced allocation).
    Allocation,
}

/// Capabilities of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Capabilities in ascending order of offsets.
    list: [Capability; CAPABILITIES_MAX],
    count: u8,
    first: u16,
    first_extended: u16,
    /// True if the function keeps its registers when it leaves D3hot.
    has_no_soft_reset: bool,
}

/// Unused entry.
const NONE: Capability = Capability {
    id: 0,
    at: 0,
    len: 0,
    shown: None,
    next: 0,
};

impl Layout {
    /// Layout of a function without capabilities.
    pub const EMPTY: Self = Self {
        list: [NONE; CAPABILITIES_MAX],
        count: 0,
        first: 0,
        first_extended: 0,
        has_no_soft_reset: false,
    };

    /// Reads the chains of standard and extended capabilities. `read` returns the four bytes at an
    /// offset that is a multiple of four, and all ones if the function does not answer.
    ///
    /// # Errors
    ///
    /// See [`LayoutError`].
    pub fn read(mut read: impl FnMut(u16) -> u32) -> Result<Self, LayoutError> {
        let mut layout = Self::EMPTY;
        if read(0) == u32::MAX {
            return Err(LayoutError::Gone);
        }
        let header = (read(HEADER) >> 16) as u8;
        if header & 0x7F != 0 {
            return Err(LayoutError::Header(header));
        }
        let express = layout.read_first(&mut read)?;
        // Functions that are not PCI Express have no extended registers.
        if express {
            layout.read_extended(&mut read)?;
        }
        layout.sort();
        layout.bound()?;
        layout.link();
        Ok(layout)
    }

    fn push(&mut self, capability: Capability) -> Result<(), LayoutError> {
        let slot = self.list.get_mut(usize::from(self.count));
        *slot.ok_or(LayoutError::TooMany)? = capability;
        self.count += 1;
        Ok(())
    }

    /// Reads the first chain. Returns true if the function is PCI Express.
    fn read_first(&mut self, read: &mut impl FnMut(u16) -> u32) -> Result<bool, LayoutError> {
        if read(COMMAND) & command::CAPABILITIES == 0 {
            return Ok(false);
        }
        let mut express = false;
        let mut at = (read(POINTER) & 0xFC) as u16;
        for _ in 0..=FIRST_MAX {
            if at == 0 {
                return Ok(express);
            }
            let word = read(at);
            if at < HEADER_END || word == u32::MAX {
                return Err(LayoutError::Chain(at));
            }
            let id = (word & 0xFF) as u16;
            let control = word >> 16;
            let (len, shown) = match id {
                0x01 => {
                    self.has_no_soft_reset = read(at + 4) & 8 != 0;
                    (8, Some(Shown::Power))
                }
                0x05 => {
                    let (wide, masks) = (control & 0x80 != 0, control & 0x100 != 0);
                    let len = match (wide, masks) {
                        (false, false) => 10,
                        (true, false) => 14,
                        (false, true) => 20,
                        (true, true) => 24,
                    };
                    (len, Some(Shown::Msi { wide, masks }))
                }
                0x09 => (((control & 0xFF) as u16).max(4), Some(Shown::Vendor)),
                0x0D => (8, Some(Shown::Subsystem)),
                0x10 => {
                    express = true;
                    let len = if control & 0xF >= 2 { 60 } else { 20 };
                    (len, Some(Shown::Express))
                }
                0x11 => (12, Some(Shown::MsiX)),
                0x13 => (6, Some(Shown::Advanced)),
                0x14 => return Err(LayoutError::Allocation),
                // The size of other capabilities follows from their neighbours.
                _ => (0, None),
            };
            self.push(Capability {
                id,
                at,
                len,
                shown,
                next: 0,
            })?;
            at = ((word >> 8) & 0xFC) as u16;
        }
        Err(LayoutError::Chain(at))
    }

    fn read_extended(&mut self, read: &mut impl FnMut(u16) -> u32) -> Result<(), LayoutError> {
        let mut at = EXTENDED;
        for _ in 0..CAPABILITIES_MAX {
            let word = read(at);
            // The function has no extended capabilities.
            if word == 0 || word == u32::MAX {
                return match at {
                    EXTENDED => Ok(()),
                    _ => Err(LayoutError::Chain(at)),
                };
            }
            let id = (word & 0xFFFF) as u16;
            let (len, shown) = match id {
                0x03 => (12, Some(Shown::Serial)),
                0x0B => {
                    let len = (read(at + 4) >> 20) as u16;
                    (len.max(8), Some(Shown::VendorExtended))
                }
                _ => (0, None),
            };
            self.push(Capability {
                id,
                at,
                len,
                shown,
                next: 0,
            })?;
            at = ((word >> 20) & 0xFFC) as u16;
            match at {
                0 => return Ok(()),
                EXTENDED..LONG_END => {}
                _ => return Err(LayoutError::Chain(at)),
            }
        }
        Err(LayoutError::TooMany)
    }

    fn sort(&mut self) {
        let count = usize::from(self.count);
        // Insertion sort, because the sort functions of `core` may panic.
        for end in 1..count {
            for i in (1..=end).rev() {
                let Some([a, b]) = self.list.get_mut(i - 1..=i) else {
                    return;
                };
                if a.at <= b.at {
                    break;
                }
                core::mem::swap(a, b);
            }
        }
    }

    /// Extends each hidden capability up to the next capability, because its size is unknown.
    /// Checks that capabilities do not overlap.
    fn bound(&mut self) -> Result<(), LayoutError> {
        let mut behind = LONG_END;
        let count = usize::from(self.count);
        for c in self.list.iter_mut().take(count).rev() {
            if !c.is_extended() {
                behind = behind.min(SHORT_END);
            }
            match c.shown {
                // Two capabilities at the same offset mean that the chain is circular.
                _ if c.at >= behind => return Err(LayoutError::Chain(c.at)),
                Some(_) if c.len > behind - c.at => return Err(LayoutError::Overlap(c.at)),
                Some(_) => {}
                None => c.len = behind - c.at,
            }
            behind = c.at;
        }
        Ok(())
    }

    /// Links each capability to the next visible capability.
    fn link(&mut self) {
        let (mut next, mut next_extended) = (0, 0);
        let count = usize::from(self.count);
        for c in self.list.iter_mut().take(count).rev() {
            let next = if c.is_extended() {
                &mut next_extended
            } else {
                &mut next
            };
            c.next = *next;
            if c.shown.is_some() {
                *next = c.at;
            }
        }
        self.first = next;
        self.first_extended = next_extended;
    }

    /// Returns all capabilities in ascending order of offsets.
    #[must_use]
    pub fn capabilities(&self) -> &[Capability] {
        self.list.get(..self.count.into()).unwrap_or_default()
    }

    /// Returns the capability that contains an offset.
    #[must_use]
    pub fn at(&self, offset: u16) -> Option<&Capability> {
        let mut all = self.capabilities().iter();
        all.find(|c| (c.at..c.end()).contains(&offset))
    }

    /// Returns the offset of the first visible capability; 0 if there is none.
    #[must_use]
    pub const fn first(&self) -> u16 {
        self.first
    }

    /// Returns the offset of the first visible extended capability; 0 if there is none.
    #[must_use]
    pub const fn first_extended(&self) -> u16 {
        self.first_extended
    }

    /// Returns true if the function keeps its registers when it leaves D3hot.
    #[must_use]
    pub const fn has_no_soft_reset(&self) -> bool {
        self.has_no_soft_reset
    }
}
