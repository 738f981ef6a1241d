//! Deterministic simulation: instances of a protocol's state machine on the nodes of an emulated
//! fabric, with seeded timing and faults.
//!
//! * [`fabric`]: the emulator's world with a simulated clock, and the memory of the nodes.
//! * [`port`]: a minimal driver of one VPID: messages, GETs, notifications.
//! * [`memory`]: buffers of a node that reveal late accesses.
//! * [`seeds`]: runs of many seeds.
//! * [`eth`]: Ethernet over Extoll: nodes, runs, invariants; [`eth::node`]: its rendezvous on one
//!   node, driven like by exn; [`eth::setup`]: its limits and injected bugs.
//! * [`ds`]: connections of direct sockets: nodes, runs, invariants.
//! * [`lnd`]: network interfaces of Lustre: nodes, runs, invariants.
//! * [`pci`]: Device Lending: nodes, runs, invariants.
//! * [`transfers`]: RMA transfers, driven like by the engine of `extoll.ko`: nodes, runs,
//!   invariants.
//!
//! All random choices follow from the seed, so a run can be repeated with its trace: `sim --seed N
//! --trace`.
#![forbid(unsafe_code)]

pub mod ds;
pub mod eth;
pub mod fabric;
pub mod lnd;
pub mod memory;
pub mod pci;
pub mod port;
pub mod seeds;
pub mod transfers;

/// Memory of tables on the host.
pub struct Heap;

impl protocol::Memory for Heap {
    type Array<T> = Vec<T>;
    type Error = std::convert::Infallible;

    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>, Self::Error> {
        Ok((0..len).map(make).collect())
    }
}
