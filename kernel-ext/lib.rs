// SPDX-License-Identifier: GPL-2.0-only

//! Safe abstractions that the `kernel` crate lacks. All unsafe code of the drivers above lives here
//! (and in `extoll_core`'s `mmio` and `dma` modules).

pub mod bindings;
pub mod barrier;
pub mod net;
