// SPDX-License-Identifier: GPL-2.0-only

//! Interface between C and Rust. It contains all unsafe code of the module. lnet.c calls [`entry`];
//! [`lnet`] and [`thread`] are safe wrappers of functions in lnet.c.

#![allow(unsafe_code)]

mod entry;
pub(crate) mod lnet;
pub(crate) mod thread;
