//! Model of the Extoll Tourmalet NIC and its fabric.
//!
//! * [`nic`]: one NIC.
//! * [`env`]: interface from the NIC model to host memory, interrupts and the network.
//! * [`endpoint`]: PCIe devices behind NICs that have no host.
//! * [`lane`]: classes of packets that share buffers.
//! * [`network`]: crossbars, links, topologies and routes.
//! * [`pci`] and [`vfio_user`]: the NIC as a PCI device of QEMU.
//! * [`peer`]: accesses of a NIC to other devices of its host.
//! * [`machine`]: the host of a NIC: guest memory, interrupts and configuration space.
//! * [`world`]: all NICs and the network.
//! * [`setup`]: the set-up step, which programs the NICs.
//! * [`reactor`]: the event loop that drives the world.
//! * [`timing`]: random delays and reordering.
//! * [`variant`]: options of a run.
//! * [`control`]: the control socket and its client.
//! * [`trace`]: the trace file.
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
