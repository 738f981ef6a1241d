// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State and decisions of drivers for the units of the NIC, and of programs that own ports.

pub mod backdoor_slots;
pub mod chunks;
pub mod nla;
mod quirks;
pub mod reclaim;
pub mod ring_consumer;
pub mod rra;
pub mod sending;
pub mod smfu;
pub mod snq;
pub mod table_use;
pub mod tickets;
pub mod translation;
