// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Register offsets (with hardware names) and typed fields. Each unit of the NIC has a submodule.
//!
//! An array accessor returns [`RegOffset::INVALID`] if an index is out of range. `TABLE` in each
//! module lists its registers for checks and traces. The names are those of the register map
//! without the prefix `extoll_rf_`. HW §4–§15 describe the field layouts and mark the fields that
//! are known only from sibling chips.

use crate::ids::RegOffset;

/// Register or register array of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegInfo {
    /// Name in the register map. `#` represents the index of the outer dimension.
    pub name: &'static str,
    /// Byte offset of the first element.
    pub offset: u32,
    /// (count, stride in bytes) of the outer dimension; (1, 0) if there is none.
    pub outer: (u32, u32),
    /// (count, stride in bytes) of the inner dimension; (1, 0) if there is none.
    pub inner: (u32, u32),
}

/// Returns the offset of element `(i, j)`, or [`RegOffset::INVALID`].
#[inline]
const fn element(info: &RegInfo, i: u32, j: u32) -> RegOffset {
    if i < info.outer.0 && j < info.inner.0 {
        RegOffset(info.offset + i * info.outer.1 + j * info.inner.1)
    } else {
        RegOffset::INVALID
    }
}

/// Result of [`lookup`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Located {
    /// Register or array that contains the offset.
    pub info: &'static RegInfo,
    /// Index in the outer dimension; 0 if there is no outer dimension.
    pub outer: u32,
    /// Index in the inner dimension; 0 if there is no inner dimension.
    pub inner: u32,
}

impl core::fmt::Display for Located {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut parts = self.info.name.splitn(2, '#');
        f.write_str(parts.next().unwrap_or(""))?;
        if let Some(rest) = parts.next() {
            write!(f, "{}{}", self.outer, rest)?;
        }
        if self.info.inner.0 > 1 {
            write!(f, "[{}]", self.inner)?;
        }
        Ok(())
    }
}

/// Declares registers. The forms are `const NAME`, `fn name(vpid)`, `fn name(i < N)` and `fn name(i
/// < N, j < M)`.
macro_rules! regs {
    (@m [$($t:expr,)*]) => {
        /// Registers of this unit.
        pub const TABLE: &[$crate::regs::RegInfo] = &[$($t,)*];
    };
    (@m [$($t:expr,)*]
        $(#[$m:meta])* const $N:ident = $off:literal, $csv:literal;
        $($rest:tt)*) => {
        $(#[$m])*
        pub const $N: $crate::ids::RegOffset = $crate::ids::RegOffset($off);
        regs!(@m [$($t,)* $crate::regs::RegInfo {
            name: $csv, offset: $off, outer: (1, 0), inner: (1, 0)
        },] $($rest)*);
    };
    (@m [$($t:expr,)*]
        $(#[$m:meta])* fn $f:ident(vpid) = $off:literal + $st:literal, $csv:literal;
        $($rest:tt)*) => {
        $(#[$m])*
        #[inline]
        pub const fn $f(vpid: $crate::ids::Vpid) -> $crate::ids::RegOffset {
            $crate::ids::RegOffset($off + vpid.get() as u32 * $st)
        }
        regs!(@m [$($t,)* $crate::regs::RegInfo {
            name: $csv, offset: $off, outer: (1, 0), inner: (256, $st)
        },] $($rest)*);
    };
    (@m [$($t:expr,)*]
        $(#[$m:meta])* fn $f:ident($i:ident < $n:literal)
            = $off:literal + $st:literal, $csv:literal;
        $($rest:tt)*) => {
        $(#[$m])*
        #[inline]
        pub const fn $f($i: u32) -> $crate::ids::RegOffset {
            const INFO: $crate::regs::RegInfo = $crate::regs::RegInfo {
                name: $csv, offset: $off, outer: (1, 0), inner: ($n, $st),
            };
            $crate::regs::element(&INFO, 0, $i)
        }
        regs!(@m [$($t,)* $crate::regs::RegInfo {
            name: $csv, offset: $off, outer: (1, 0), inner: ($n, $st)
        },] $($rest)*);
    };
    (@m [$($t:expr,)*]
        $(#[$m:meta])* fn $f:ident(# $i:ident < $n:literal)
            = $off:literal + $st:literal, $csv:literal;
        $($rest:tt)*) => {
        $(#[$m])*
        #[inline]
        pub const fn $f($i: u32) -> $crate::ids::RegOffset {
            const INFO: $crate::regs::RegInfo = $crate::regs::RegInfo {
                name: $csv, offset: $off, outer: ($n, $st), inner: (1, 0),
            };
            $crate::regs::element(&INFO, $i, 0)
        }
        regs!(@m [$($t,)* $crate::regs::RegInfo {
            name: $csv, offset: $off, outer: ($n, $st), inner: (1, 0)
        },] $($rest)*);
    };
    (@m [$($t:expr,)*]
        $(#[$m:meta])* fn $f:ident(# $i:ident < $n:literal, $j:ident < $k:literal)
            = $off:literal + $st:literal + $st2:literal, $csv:literal;
        $($rest:tt)*) => {
        $(#[$m])*
        #[inline]
        pub const fn $f($i: u32, $j: u32) -> $crate::ids::RegOffset {
            const INFO: $crate::regs::RegInfo = $crate::regs::RegInfo {
                name: $csv, offset: $off, outer: ($n, $st), inner: ($k, $st2),
            };
            $crate::regs::element(&INFO, $i, $j)
        }
        regs!(@m [$($t,)* $crate::regs::RegInfo {
            name: $csv, offset: $off, outer: ($n, $st), inner: ($k, $st2)
        },] $($rest)*);
    };
    ($($rest:tt)*) => { regs!(@m [] $($rest)*); };
}

pub mod atu;
pub mod barrier;
mod bq_regs;
pub mod gpio;
pub mod htax;
pub mod info;
pub mod lp;
pub mod map;
pub mod np;
pub mod pcie;
pub mod phy;
pub mod rma;
pub mod smfu;
pub mod snq;
pub mod velo;
pub mod wcbuf;
pub mod xbar;

pub use bq_regs::{rma as rma_bq, velo as velo_bq, BqRegs};

/// Register tables of all units.
pub const TABLES: &[&[RegInfo]] = &[
    pcie::TABLE,
    info::TABLE,
    gpio::TABLE,
    htax::TABLE,
    np::TABLE,
    smfu::TABLE,
    atu::TABLE,
    snq::TABLE,
    xbar::inp::TABLE,
    xbar::outp::TABLE,
    barrier::TABLE,
    lp::TABLE,
    phy::TABLE,
    velo_bq::TABLE,
    rma_bq::TABLE,
    velo::TABLE,
    rma::TABLE,
    wcbuf::velo::TABLE,
    wcbuf::rma::TABLE,
];

/// Finds the named register at `offset`; `None` for an offset that this crate does not name.
pub fn lookup(offset: RegOffset) -> Option<Located> {
    for info in TABLES.iter().flat_map(|t| t.iter()) {
        let Some(mut rest) = offset.0.checked_sub(info.offset) else {
            continue;
        };
        let mut outer = 0;
        if info.outer.1 != 0 {
            outer = rest / info.outer.1;
            rest %= info.outer.1;
        }
        let mut inner = 0;
        if info.inner.1 != 0 {
            inner = rest / info.inner.1;
            rest %= info.inner.1;
        }
        if rest == 0 && outer < info.outer.0 && inner < info.inner.0 {
            return Some(Located { info, outer, inner });
        }
    }
    None
}

bits! {
    /// Pair of packet counters of the HTAX bridge, a network port or a link port.
    pub struct PacketCounter {
        /// Number of packets received.
        rcvd_pkts / with_rcvd_pkts: u32 [31:0];
        /// Number of packets sent.
        sent_pkts / with_sent_pkts: u32 [63:32];
    }
}
