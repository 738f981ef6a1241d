// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Formats of the Extoll Tourmalet NIC, and of the protocols that its drivers speak.
//!
//! This crate is pure `no_std` code without allocation, I/O or `unsafe`. The same sources are
//! compiled into the kernel modules and into every host program. Every function may be called from
//! any context, because no function panics, sleeps or locks.
//!
//! "HW §n" cites the hardware reference. "G n" cites its list of open questions. The list states
//! the decision on each question.
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::match_bool)]
#![deny(missing_docs)]

#[macro_use]
mod bits;

pub mod accel;
pub mod atu;
pub mod bq;
pub mod ds;
pub mod eth;
pub mod htax;
pub mod ids;
pub mod lnd;
pub mod pci;
mod quirks;
pub mod regs;
pub mod rma;
pub mod route;
pub mod smfu;
pub mod snq;
pub mod tlp;
pub mod velo;
pub mod wcbuf;
pub mod words;
