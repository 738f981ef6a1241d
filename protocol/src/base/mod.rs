// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Data structures that all state machines share.

pub mod age_bound;
pub mod arena;
pub mod deadlines;
pub mod flow;
pub mod slots;
pub mod time;
pub mod validity;
