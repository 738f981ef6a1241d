// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sets the soname of the shared library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsmfu.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
