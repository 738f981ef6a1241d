//! Interfaces of a fabric: its description (configuration file, topology, switches, seeds), its
//! control socket and its trace. The model itself is `extoll-emulator`; programs that start or
//! control a fabric need only this crate.
//!
//! * [`config`]: the configuration file; [`network`], [`link`], [`nic`], [`pci`], [`timing`],
//!   [`accelerator`]: its sections and their statistics.
//! * [`topology`]: shorthands; [`variant`]: switches of the model; [`seed`]: seeds of random number
//!   generators.
//! * [`control`]: requests, answers, client; [`host`]: statistics in answers. [`trace`]: records of
//!   a trace.
//!
//! This crate is compiled without optimisation, because most of it parses and writes text.
//! Optimising that generated code takes the compiler longer than the whole model.
#![forbid(unsafe_code)]

pub mod accelerator;
pub mod config;
pub mod control;
pub mod counters;
pub mod host;
pub mod link;
pub mod network;
pub mod nic;
pub mod pci;
pub mod seed;
pub mod timing;
pub mod topology;
pub mod trace;
pub mod variant;
