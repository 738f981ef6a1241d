//! Formats and protocol state machines of the Extoll Tourmalet NIC.
//!
//! Pure `no_std` code without allocation, I/O or `unsafe`: the same sources compile into the kernel
//! modules and into every host-side program.
#![no_std]
#![forbid(unsafe_code)]
