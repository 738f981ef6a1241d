//! The control socket: execution of requests, and the server. [`extoll_emulator_api::control`]
//! defines the requests.

mod exec;
mod forge;
pub mod server;

pub use extoll_emulator_api::control::*;
pub use forge::{arrival, Arrival};
