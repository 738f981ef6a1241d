// SPDX-License-Identifier: GPL-2.0-only

//! Where C and Rust meet, with all of the module's unsafe code: lnet.c calls [`entry`], and offers
//! what [`lnet`] and [`thread`] make safe.

#![allow(unsafe_code)]

mod entry;
pub(crate) mod lnet;
pub(crate) mod thread;
