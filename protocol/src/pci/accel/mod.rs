// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! A device behind a NIC without a host, which its borrower sets up by registers of that NIC alone
//! (HW §13, §14; docs/pci-protocol.md, *Accelerators*).
//!
//! Nobody is there who could be asked. So a borrower does both ends' work, and what keeps borrowers
//! apart is a word in a register of the accelerator's NIC ([`wire::accel`]):
//!
//! * [`Claim`] gets the word;
//! * [`Watch`] looks whether it still is the borrower's;
//! * [`Plan`] says which interval is what, where everything is on the accelerator's bus, and which
//!   registers are written in which order;
//! * [`Peer`] is what leads to another accelerator;
//! * [`describe`] finds out what the function is;
//! * [`Front`] makes of an access of the borrower's kernel what may be written to the function.
//!
//! None of it has locks or a clock, or waits.

mod claim;
mod front;
mod function;
mod peer;
mod plan;
mod watch;

pub use claim::{Claim, Goal, Times, Unclaimed, Want};
pub use front::{Access, Front};
pub use function::{describe, Cycles, Found, FunctionError, ResetBy};
pub use peer::{Part, Peer, PeerSettings, Slot, PEERS};
pub use plan::{close, host_signs, Plan, PlanError, Setting, Settings, DMA_BASE, DMA_MOST};
pub use watch::{Gone, Sight, Watch};
