//! Model of the Extoll Tourmalet NIC and its fabric.
//!
//! * [`env`]: what the NIC model needs from its surroundings (host memory, interrupts, the network).
pub mod env;
