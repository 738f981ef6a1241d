// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! State machines of Ethernet over Extoll (EXT-Eth), for `exn.ko`.
//!
//! * [`rendezvous`]: announced frames at the sender, and their GETs at the receiver.
//! * [`order`]: delivery order of received frames.
//! * [`poll`]: sequence of work in a NAPI poll function.
//! * [`macs`]: table of MAC addresses behind nodes.
//! * [`stuck`], [`restart`]: detection of a stuck port, and limits for its restarts.

pub mod macs;
pub mod order;
pub mod poll;
pub mod reassembly;
pub mod rendezvous;
pub mod restart;
pub mod stuck;
