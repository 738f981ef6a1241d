// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Interpretation of the error counters in a report of VELO or RMA (events 24 and 27).

use wire::{
    ids::RegOffset,
    regs::{
        rma::{self, ErrorCounters},
        velo::{self, Counter1},
    },
};

/// Kind of counters that changed since the last report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ErrorChange {
    /// No error counter changed.
    Nothing,
    /// Only messages for closed VPIDs were counted. A peer has started before its partner on this
    /// node, or still runs after the partner has ended.
    ClosedPort,
    /// Another error counter changed.
    Error,
}

/// Error counters of VELO and RMA with their last reported values.
#[derive(Clone, Debug)]
pub struct ErrorReports {
    /// Register, mask of the bits that count messages for closed VPIDs, and last value.
    list: [(RegOffset, u64, u64); 10],
}

/// Bits of the fourth counter in an RMA counter register, which counts the responder's `vpid`
/// errors.
const VPID_3: u64 = ErrorCounters(0).with_count_3(!0).with_ovflw_3(true).raw();
/// Bits of the first counter in an RMA counter register, which counts the completer's `vpid`
/// errors.
const VPID_0: u64 = ErrorCounters(0).with_count_0(!0).with_ovflw_0(true).raw();

impl Default for ErrorReports {
    fn default() -> Self {
        Self::new()
    }
}

impl ErrorReports {
    /// Returns a comparison state in which all counters are 0.
    pub const fn new() -> Self {
        const NONE: u64 = 0;
        let disabled = Counter1(0).with_disabled_mbox(!0).raw();
        Self {
            list: [
                (velo::COUNTER_1, disabled, 0),
                (rma::REQUESTER_ERROR_CNT_0, NONE, 0),
                (rma::REQUESTER_ERROR_CNT_1, NONE, 0),
                (rma::RESPONDER_ERROR_CNT_0, VPID_3, 0),
                (rma::RESPONDER_ERROR_CNT_1, NONE, 0),
                (rma::RESPONDER_ERROR_CNT_2, NONE, 0),
                (rma::COMPLETER_ERROR_CNT_0, NONE, 0),
                (rma::COMPLETER_ERROR_CNT_1, NONE, 0),
                (rma::COMPLETER_ERROR_CNT_2, VPID_0, 0),
                (rma::COMPLETER_ERROR_CNT_3, NONE, 0),
            ],
        }
    }

    /// Compares a report with the last report, and stores it. The report consists of the values
    /// `words` of `registers`.
    pub fn compare(&mut self, registers: &[RegOffset], words: &[u64]) -> ErrorChange {
        let mut worst = ErrorChange::Nothing;
        for (reg, word) in registers.iter().zip(words) {
            let Some((_, closed, last)) = self.list.iter_mut().find(|(r, _, _)| r == reg) else {
                continue; // The register is no error counter.
            };
            let changed = *word ^ *last;
            *last = *word;
            worst = worst.max(match changed {
                0 => ErrorChange::Nothing,
                c if c & !*closed == 0 => ErrorChange::ClosedPort,
                _ => ErrorChange::Error,
            });
        }
        worst
    }
}
