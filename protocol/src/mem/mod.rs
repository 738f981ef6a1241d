// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Memory that hardware accesses: pieces, runs of slots.

pub mod cache;
pub mod fragments;
pub mod intervals;
pub mod runs;
