// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Devices behind a NIC without a host ("accelerators"). The borrower sets such a device up through
//! registers of its NIC (HW §13, §14; docs/pci-protocol.md, *Accelerators*).
//!
//! There is no lender with a CPU, so the borrower does the work of both ends. A lease word in a
//! register of the accelerator's NIC ([`wire::accel`]) ensures that only one node uses the device.
//!
//! * [`Claim`] acquires the lease word.
//! * [`Watch`] checks periodically that the lease word still names the borrower.
//! * [`Plan`] assigns interval numbers and addresses on the accelerator's bus, and lists the
//!   registers to be written in order.
//! * [`Peer`] lists the registers that connect the device to another accelerator.
//! * [`describe`] reads identity, capabilities and BARs of the function.
//! * [`AccessFilter`] decides how an access of the borrower's kernel to the function is executed.
//!
//! These objects contain no I/O, locks or clocks, and never wait. The driver executes the
//! operations that they return.

mod access_filter;
mod claim;
mod function;
mod peer;
mod plan;
mod watch;

pub use access_filter::{Access, AccessFilter};
pub use claim::{Claim, ClaimStep, Goal, Times, Unclaimed};
pub use function::{describe, Cycles, Found, FunctionError, ResetBy};
pub use peer::{Peer, PeerBar, PeerSettings, Slot, PEERS};
pub use plan::{close, host_check, Plan, PlanError, Setting, Settings, DMA_BASE, DMA_MAX};
pub use watch::{CheckResult, LossReason, Watch};
