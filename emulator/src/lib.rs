//! Model of the Extoll Tourmalet NIC and its fabric.
//!
//! * [`env`]: what the NIC model needs from its surroundings (host memory, interrupts, the network).
//! * [`nic`]: one NIC.
//! * [`endpoint`]: PCIe devices behind NICs that have no host.
//! * [`lane`]: which packets share buffers.
//! * [`network`]: crossbars, links, topologies, routes.
//! * [`pci`] and [`vfio_user`]: how QEMU sees a NIC; [`peer`]: what a NIC asks of other devices of its host.
//! * [`world`]: all NICs, the network and the set-up step; [`reactor`]: the event loop that drives it.
//! * [`timing`]: what passes what, and how late; [`variant`]: the switches of a run.
//! * [`control`]: the control socket and its client; [`trace`]: the trace file.
#![forbid(unsafe_code)]

pub use extoll_emulator_api::{accelerator, config, seed, variant};

pub mod control;
pub mod device;
pub mod endpoint;
pub mod env;
pub mod lane;
pub mod machine;
pub mod network;
pub mod nic;
pub mod pci;
pub mod peer;
pub mod reactor;
pub mod setup;
pub mod timing;
pub mod trace;
pub mod vfio_user;
pub mod world;
mod world_peer;
