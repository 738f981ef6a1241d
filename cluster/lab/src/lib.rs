//! Runs a cluster of QEMU nodes on one machine: boot, commands, files, faults, clean-up.
//!
//! A *lab* is a directory with sockets and logs, plus the processes that carry its token in their
//! environment: one `extoll-emu` (all NICs and the fabric) and one QEMU per node. No daemon runs on
//! the host. Every `lab` command talks to QEMU's sockets itself, so that killing one command
//! affects only that command. [`Cluster`] is the entry point for programs.
#![forbid(unsafe_code)]

pub mod channel;
pub mod cluster;
pub mod copy;
pub mod devices;
pub mod emu;
pub mod exec;
pub mod initrd;
pub mod insns;
pub mod logscan;
pub mod modules;
pub mod proc;
pub mod qemu;
pub mod spec;
pub mod state;
pub mod ui;

pub use cluster::{Cluster, Health, Node, NodeState};
pub use devices::{Device, Model};
pub use exec::{Command, Input, Output, Running};
pub use extoll_emulator_api::timing::TimingModel;
pub use insns::Instructions;
pub use lab_proto::{Status, WinSize};
pub use spec::{BringUp, Spec};
pub use state::Paths;
