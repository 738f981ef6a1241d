// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The BPF program of `extlctl enable`, which replaces TCP sockets by AF_EXTL sockets when programs
//! create them.
//!
//! [`switch`] generates the program as instructions ([`asm`]) for the addresses and types that
//! [`symbols`] and [`btf`] find in the running kernel. [`sys`] contains the system calls that load,
//! attach and pin the program. It uses no BPF library: the maintained ones lack programs that
//! modify return values, or require a C library and a compiler for some sixty instructions.
#![deny(missing_docs)]

pub mod asm;
pub mod btf;
pub mod switch;
pub mod symbols;
pub mod sys;
