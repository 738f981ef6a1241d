// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Ethernet over Extoll (EXT-Eth): the state machines of `exn.ko`.

pub mod macs;
pub mod order;
pub mod poll;
pub mod rendezvous;
pub mod restart;
pub mod stuck;
