// SPDX-License-Identifier: GPL-2.0-only

//! Base driver for the Extoll Tourmalet NIC: one file per functional unit, with typed handles for
//! the modules above.
//!
//! A module above is an auxiliary driver (see [`child`]). It gets its [`nic::Nic`] from
//! [`child::nic`]. On the NIC it opens [`velo`] and [`rma`] ports, accesses registers by [`rra`],
//! and accesses memory of other nodes by [`smfu`].
//!
//! All public functions state the contexts in which they may be called. "Any context" includes hard
//! interrupts, and "may sleep" means process context.

#![deny(unsafe_code)]

pub mod atu;
pub mod backdoor;
pub mod child;
mod context;
mod debugfs;
pub mod dma;
mod events;
mod htax;
mod hw;
mod info;
pub mod links;
pub mod memory;
mod mmio;
pub mod monitor;
pub mod nic;
mod params;
pub mod pool_pages;
mod port;
pub mod probe;
pub mod probe_error;
pub mod quarantine;
mod queue;
mod quirks;
mod reclaim;
mod report;
mod rf;
mod ring_consumer;
pub mod rma;
pub mod rra;
mod setup;
pub mod smfu;
pub mod snq;
pub mod stats;
mod subscribers;
pub mod time;
mod tx;
pub mod user;
pub mod velo;
pub mod vpid;
mod xbar;

// The `pr_*!` macros use this prefix.
#[allow(dead_code)]
const __LOG_PREFIX: &[u8] = b"extoll\0";
