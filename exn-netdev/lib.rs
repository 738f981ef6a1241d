// SPDX-License-Identifier: GPL-2.0-only

//! `exn.ko`: Ethernet over Extoll.

use kernel::prelude::*;

struct Exn;
impl kernel::Module for Exn {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let _ = extoll_core::child::NAME;
        Ok(Self)
    }
}

module! {
    type: Exn,
    name: "exn",
    authors: ["Extoll for Linux"],
    description: "Ethernet over Extoll",
    license: "GPL v2",
}
