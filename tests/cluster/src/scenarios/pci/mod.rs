//! Device Lending (`vpci.ko`) and the functions that it uses.

pub mod accel;
pub mod accel_drive;
pub mod accel_node;
pub mod borrow;
pub mod devices;
pub mod ends;
pub mod fabric;
pub mod host_bridge;
pub mod hostile;
pub mod lease;
