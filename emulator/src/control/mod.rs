//! The control socket: what requests do, and the server. [`extoll_emulator_api::control`] has the requests themselves.

mod exec;
mod forge;
pub mod server;

pub use extoll_emulator_api::control::*;
pub use forge::{arrival, Arrival};
