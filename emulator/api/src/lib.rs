//! Interfaces of an emulated fabric: its description (configuration file, topology, switches,
//! seeds), its control socket and its trace. The crate `extoll-emulator` contains the model itself.
//! Programs that start or control a fabric need only this crate.
//!
//! * [`config`]: the configuration file.
//! * [`network`], [`link`], [`nic`], [`pci`], [`timing`], [`accelerator`]: sections of the
//!   configuration file, and statistics.
//! * [`topology`]: shorthands of topologies.
//! * [`variant`]: switches of the model.
//! * [`seed`]: seeds of random number generators.
//! * [`control`]: requests, answers and a client of the control socket.
//! * [`host`]: statistics in answers.
//! * [`trace`]: records of a trace.
//!
//! This crate is compiled without optimisation, because most of it parses and writes text.
//! Optimising the parsers would take the compiler longer than optimising the model.
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
