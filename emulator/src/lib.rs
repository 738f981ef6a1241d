//! Model of the Extoll Tourmalet NIC and its fabric.
//!
//! * [`env`]: what the NIC model needs from its surroundings (host memory, interrupts, the network).
//! * [`nic`]: one NIC.
pub mod env;
pub mod nic;
