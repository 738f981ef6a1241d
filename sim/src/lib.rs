//! Deterministic simulation: instances of a protocol machine on the nodes of an emulated fabric,
//! under seeded time and faults.
//!
//! * [`fabric`]: the emulator's world with a clock that the simulation moves, and memory of the
//!   nodes.
//! * [`port`]: the smallest driver of one VPID: messages, GETs, notifications.
//! * [`lnd`]: network interfaces of Lustre: nodes, runs, what must hold.
//! * [`memory`]: buffers of a node, with a record of who may still access them.
//! * [`eth::node`]: exn's rendezvous on one node, as the kernel module drives it.
//! * [`eth::setup`]: its limits, and errors that can be put into it.
//! * [`pci`]: PCIe devices lent to other nodes: nodes, runs, what must hold.
//! * [`eth`]: what happens in a run, and what must hold.
//! * [`seeds`]: runs of many seeds.
//! * [`ds`]: connections of direct sockets: nodes, runs, what must hold.
//! * [`transfers`]: RMA transfers, as the engine of `extoll.ko` drives them: nodes, runs, what must hold.
//!
//! Everything that is drawn comes from the seed, so a run can be repeated with its trace: `sim
//! --seed N --trace`.
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
