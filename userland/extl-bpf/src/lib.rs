// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The BPF program behind `extlctl enable`, which turns sockets of TCP into sockets of AF_EXTL when programs make them.
//!
//! [`switch`] makes the program, out of instructions ([`asm`]), for what [`symbols`] and [`btf`] find in the running kernel; [`sys`]
//! has the few system calls that load and keep it. No library does that: those that are well kept either have no programs that
//! modify return values, or come with a C library and a compiler for BPF, for a program of some sixty instructions.
#![deny(missing_docs)]

pub mod asm;
pub mod btf;
pub mod switch;
pub mod symbols;
pub mod sys;
