// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! BPF program of `extlctl enable`. It replaces TCP sockets by AF_EXTL sockets when programs create
//! them.
//!
//! [`switch`] generates the instructions of the program ([`asm`]). The instructions contain
//! addresses and type information that [`symbols`] and [`btf`] find in the running kernel. [`sys`]
//! contains the system calls that load, attach and pin the program. No BPF library is used. The
//! maintained ones lack programs that modify return values, or they require a C library and a
//! compiler, but the program has only about sixty instructions.
#![deny(missing_docs)]

pub mod asm;
pub mod btf;
pub mod switch;
pub mod symbols;
pub mod sys;
