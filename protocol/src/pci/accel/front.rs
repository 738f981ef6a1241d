// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What a borrower makes of accesses of its kernel, and of the function's driver, to configuration
//! registers of a function behind a NIC without a host.
//!
//! The rules are those of a lender with a host ([`Filter`]): nobody moves BARs, and MSI leads to the
//! borrower's interrupts. Here they keep a driver from what the borrower has set up itself.

use crate::pci::borrower::UNANSWERED_MOST;
use crate::pci::config::{Filter, Layout, Verdict};
use crate::pci::{Ask, Reach, Write};
use crate::Time;
use wire::pci::Register;

use super::ResetBy;

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read this register: that is the answer.
    Read(Register),
    /// Write this to the register, over what it has if bits are kept; [`Front::made`] is to be called
    /// when that has been done.
    Write(Register, Write),
    /// Set this bit over what the register has: the function is reset, and [`Front::reset`] is to be
    /// called.
    Reset(ResetBy),
    /// The function was reset a while ago: write the BARs again ([`super::Plan::bars`]), call
    /// [`Front::restored`], and ask again.
    Restore,
    /// Nothing; all ones.
    Denied,
    /// Nothing, as the function is being reset; all ones.
    Resetting,
}

/// See the module's documentation. Any context; its owner keeps accesses apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    filter: Filter,
    layout: Layout,
    by: ResetBy,
    /// The function was reset, and may be used again then.
    ready: Option<Time>,
    /// How long a reset takes, in ticks.
    pause: u64,
    /// Accesses one after the other that nothing was answered to, and when the first of them began.
    unanswered: u32,
    since: Time,
}

impl Front {
    /// With the page for interrupts; a reset takes `pause` ticks (100 ms, by PCI Express).
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

    /// What is to be done for an access.
    pub fn access(&mut self, now: Time, ask: Ask) -> Access {
        match self.ready {
            Some(ready) if now < ready => return Access::Resetting,
            Some(_) => return Access::Restore,
            None => {}
        }
        let verdict = match ask {
            Ask::Reset => return Access::Reset(self.by),
            Ask::Read(register) => (self.filter.read(&self.layout, register), register),
            Ask::Write(register, value) => {
                let verdict = self.filter.write(&self.layout, register, value);
                (verdict, Filter::place(register))
            }
        };
        match verdict {
            (Verdict::Read, register) => Access::Read(register),
            (Verdict::Write(write), register) => Access::Write(register, write),
            (Verdict::Denied, _) => Access::Denied,
        }
    }

    /// What [`Access::Write`] said has been written.
    pub fn made(&mut self, register: Register) {
        self.filter.made(&self.layout, register);
    }

    /// The function was told to reset itself.
    pub fn reset(&mut self, now: Time) {
        self.filter.reset();
        self.ready = Some(now.after(self.pause));
    }

    /// Whether an access that began then was answered.
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

    /// Since when so many accesses were not answered that the function counts as dead if its NIC answers. (If that does not either, a cable
    /// may be out, which the time-out of the lease is for.)
    #[must_use]
    pub const fn silent_since(&self) -> Option<Time> {
        if self.unanswered >= UNANSWERED_MOST {
            Some(self.since)
        } else {
            None
        }
    }

    /// Its BARs are where they were.
    pub fn restored(&mut self) {
        self.ready = None;
    }
}
