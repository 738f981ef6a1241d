//! Direct sockets (`af_extl.ko`).

pub mod connect;
pub mod direct;
pub mod kselftest;
pub mod sockets;
pub mod tools;
pub mod users;
pub mod zero_copy;
