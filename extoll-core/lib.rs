// SPDX-License-Identifier: GPL-2.0-only

//! Base driver for the Extoll Tourmalet NIC.

#![deny(unsafe_code)]

#[allow(dead_code)]
const __LOG_PREFIX: &[u8] = b"extoll\0";

use kernel::prelude::*;

/// Placeholder for the cross-module proof; replaced by the real API.
pub fn hello(x: u64) {
    kernel_ext::barrier::wmb();
    pr_info!("hello {}\n", x);
}
