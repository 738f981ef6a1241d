//! What is said about a fabric and to it: its description (configuration file, topology, switches, seeds), the requests and answers of
//! its control socket, its trace. The model is `extoll-emulator`; who starts a fabric or talks to one needs this crate only.
//!
//! * [`config`]: the file; [`network`], [`link`], [`nic`], [`pci`], [`timing`], [`accelerator`]: its sections, and statistics of the same.
//! * [`topology`]: shorthands; [`variant`]: switches that are drawn; [`seed`]: where draws come from.
//! * [`control`]: requests, answers, the client; [`host`] belongs to the answers. [`trace`]: records.
//!
//! Reading and writing text is most of it, and is compiled without optimisation: generated code for it takes the compiler longer than
//! the whole model.
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
