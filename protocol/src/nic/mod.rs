// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Units of the NIC: what drivers, and programs that own ports, remember and decide.

pub mod backdoor_slots;
pub mod chunks;
pub mod nla;
pub mod reclaim;
pub mod ring_consumer;
pub mod rra;
pub mod sending;
pub mod smfu;
pub mod snq;
pub mod table_use;
pub mod tickets;
pub mod translation;
