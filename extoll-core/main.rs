// SPDX-License-Identifier: GPL-2.0-only

//! Module entry of `extoll.ko`.

#![forbid(unsafe_code)]

use kernel::prelude::*;

struct Extoll;
impl kernel::Module for Extoll {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

module! {
    type: Extoll,
    name: "extoll",
    authors: ["Extoll for Linux"],
    description: "Base driver for the Extoll Tourmalet NIC",
    license: "GPL v2",
}
