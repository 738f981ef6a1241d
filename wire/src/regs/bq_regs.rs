// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `buffer_queue_rf`: VELO mailboxes and RMA notification queues (HW §7). [`crate::bq`] has the
//! formats.

use crate::ids::{RegOffset, Unit, Vpid};

/// Registers of the VELO receive queues.
pub mod velo {
    regs! {
        /// Enable bit and errors, see [`crate::bq::General`].
        const GENERAL = 0xC00000, "buffer_queue_rf_velo_general";
        /// State of the unit, see [`crate::bq::Debug`].
        const DEBUG = 0xC00008, "buffer_queue_rf_velo_debug";
        /// Total number of slots − 1.
        fn ub(vpid) = 0xC00800 + 8, "buffer_queue_rf_velo_ub";
        /// Address of the descriptor page, and number of segments − 1, see [`crate::bq::DcqBase`].
        fn dcq_base_dcq_ub(vpid) = 0xC01000 + 8, "buffer_queue_rf_velo_dcq_base_dcq_ub";
        /// Descriptor of the current segment, see [`crate::bq::SegmentDesc`].
        fn c_base_size_valid(vpid) = 0xC01800 + 8, "buffer_queue_rf_velo_c_base_size_valid";
        /// Descriptor of the next segment.
        fn n_base_size_valid(vpid) = 0xC02000 + 8, "buffer_queue_rf_velo_n_base_size_valid";
        /// Write pointers, see [`crate::bq::WritePointers`].
        fn wp_lwp_dcq_rp(vpid) = 0xC02800 + 8, "buffer_queue_rf_velo_wp_lwp_dcq_rp";
        /// Read pointer and interrupt retrigger, see [`crate::bq::Rp`]. Each VPID has a separate
        /// page.
        fn rp(vpid) = 0xD00000 + 0x1000, "buffer_queue_rf_velo_rp";
    }
}

/// Registers of the RMA notification queues.
pub mod rma {
    regs! {
        /// Enable bit and errors, see [`crate::bq::General`].
        const GENERAL = 0xE00000, "buffer_queue_rf_rma_general";
        /// State of the unit, see [`crate::bq::Debug`].
        const DEBUG = 0xE00008, "buffer_queue_rf_rma_debug";
        /// Total number of slots − 1.
        fn ub(vpid) = 0xE00800 + 8, "buffer_queue_rf_rma_ub";
        /// Address of the descriptor page, and number of segments − 1, see [`crate::bq::DcqBase`].
        fn dcq_base_dcq_ub(vpid) = 0xE01000 + 8, "buffer_queue_rf_rma_dcq_base_dcq_ub";
        /// Descriptor of the current segment, see [`crate::bq::SegmentDesc`].
        fn c_base_size_valid(vpid) = 0xE01800 + 8, "buffer_queue_rf_rma_c_base_size_valid";
        /// Descriptor of the next segment.
        fn n_base_size_valid(vpid) = 0xE02000 + 8, "buffer_queue_rf_rma_n_base_size_valid";
        /// Write pointers, see [`crate::bq::WritePointers`].
        fn wp_lwp_dcq_rp(vpid) = 0xE02800 + 8, "buffer_queue_rf_rma_wp_lwp_dcq_rp";
        /// Read pointer and interrupt retrigger, see [`crate::bq::Rp`]. Each VPID has a separate
        /// page.
        fn rp(vpid) = 0xF00000 + 0x1000, "buffer_queue_rf_rma_rp";
    }
}

/// Unit whose queue registers are accessed, selected at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BqRegs(pub Unit);

macro_rules! select {
    ($($(#[$m:meta])* $f:ident;)*) => {
        $(
            $(#[$m])*
            pub const fn $f(self, vpid: Vpid) -> RegOffset {
                match self.0 {
                    Unit::Velo => velo::$f(vpid),
                    Unit::Rma => rma::$f(vpid),
                }
            }
        )*
    };
}

impl BqRegs {
    /// Returns the offset of register `general`.
    pub const fn general(self) -> RegOffset {
        match self.0 {
            Unit::Velo => velo::GENERAL,
            Unit::Rma => rma::GENERAL,
        }
    }

    select! {
        /// Total number of slots − 1.
        ub;
        /// Address of the descriptor page, and number of segments − 1.
        dcq_base_dcq_ub;
        /// Descriptor of the current segment.
        c_base_size_valid;
        /// Descriptor of the next segment.
        n_base_size_valid;
        /// Write pointers.
        wp_lwp_dcq_rp;
        /// Read pointer and interrupt retrigger.
        rp;
    }
}
