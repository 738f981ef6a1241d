// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Data structures for memory that hardware accesses.

pub mod cache;
pub mod fragments;
pub mod intervals;
pub mod runs;
