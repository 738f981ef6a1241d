// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Accesses of the borrower's kernel and of the function's driver to configuration registers of an
//! accelerator.
//!
//! The rules are the rules of a lender with a host ([`Filter`]): BARs do not move, and MSI leads to
//! the borrower's interrupt window. For an accelerator, the borrower applies the rules to its own
//! driver, to protect the settings that the borrower has made.

use crate::pci::borrower::UNANSWERED_MAX;
use crate::pci::config::{Filter, Layout, Verdict};
use crate::pci::{ConfigAccess, Reach, Write};
use crate::Time;
use wire::pci::Register;

use super::ResetBy;

/// Operation that executes an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read this register and return its value.
    Read(Register),
    /// Write this value to the register, then call [`AccessFilter::executed`]. If the write keeps
    /// bits, read the register first.
    Write(Register, Write),
    /// Set this bit and keep the other bits of the register, then call [`AccessFilter::reset`]. The
    /// bit makes the function reset itself.
    Reset(ResetBy),
    /// The function has been reset: write its BARs again ([`super::Plan::bars`]), call
    /// [`AccessFilter::restored`], and repeat the access.
    Restore,
    /// The access is denied: return all ones.
    Denied,
    /// The function is being reset: return all ones.
    Resetting,
}

/// Access filter of one function. It may be used in any context, and the caller serializes
/// accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessFilter {
    filter: Filter,
    layout: Layout,
    by: ResetBy,
    /// Time at which the reset in progress ends; `None` if there is no reset, or if the BARs are
    /// restored.
    ready: Option<Time>,
    /// Duration of a reset, in ticks.
    pause: u64,
    /// Number of consecutive accesses that were not answered.
    unanswered: u32,
    /// Time at which the first of the unanswered accesses began.
    since: Time,
}

impl AccessFilter {
    /// Creates the filter of a function. `interrupts` is the window for interrupts. A reset takes
    /// `pause` ticks (PCI Express: 100 ms).
    #[must_use]
    pub const fn new(layout: &Layout, by: ResetBy, interrupts: Option<Reach>, pause: u64) -> Self {
        Self {
            filter: Filter::new(interrupts),
            layout: *layout,
            by,
            ready: None,
            pause,
            unanswered: 0,
            since: Time(0),
        }
    }

    /// Returns the operation that executes an access.
    pub fn access(&mut self, now: Time, request: ConfigAccess) -> Access {
        match self.ready {
            Some(ready) if now < ready => return Access::Resetting,
            Some(_) => return Access::Restore,
            None => {}
        }
        let verdict = match request {
            ConfigAccess::Reset => return Access::Reset(self.by),
            ConfigAccess::Read(register) => (self.filter.read(&self.layout, register), register),
            ConfigAccess::Write(register, value) => {
                let verdict = self.filter.write(&self.layout, register, value);
                (verdict, Filter::accessed_register(register))
            }
        };
        match verdict {
            (Verdict::Read, register) => Access::Read(register),
            (Verdict::Write(write), register) => Access::Write(register, write),
            (Verdict::Denied, _) => Access::Denied,
        }
    }

    /// Reports that [`Access::Write`] was executed.
    pub fn executed(&mut self, register: Register) {
        self.filter.executed(&self.layout, register);
    }

    /// Reports that [`Access::Reset`] was executed.
    pub fn reset(&mut self, now: Time) {
        self.filter.reset();
        self.ready = Some(now.after(self.pause));
    }

    /// Reports the result of the access that began at `begun`; `answered` is true if the function
    /// answered.
    pub fn answered(&mut self, begun: Time, answered: bool) {
        if answered {
            self.unanswered = 0;
            return;
        }
        if self.unanswered == 0 {
            self.since = begun;
        }
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Returns the time since which [`UNANSWERED_MAX`] or more accesses were not answered. The
    /// function then counts as dead, if its NIC answers. If the NIC does not answer, a cable may be
    /// unplugged, and the time-out of the lease applies.
    #[must_use]
    pub const fn silent_since(&self) -> Option<Time> {
        if self.unanswered >= UNANSWERED_MAX {
            Some(self.since)
        } else {
            None
        }
    }

    /// Reports that the BARs were written again after a reset.
    pub fn restored(&mut self) {
        self.ready = None;
    }
}
