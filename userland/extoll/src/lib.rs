// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Access to an Extoll NIC for user programs: VELO messages, RMA transfers and registered memory,
//! SMFU windows, registers.
//!
//! ```no_run
//! use extoll::{rma, Buffer, Device, Wait};
//! use std::time::Duration;
//! # fn main() -> extoll::Result<()> {
//! let port = rma::Port::open(&Device::default())?;
//! let region = port.register(Buffer::new(1 << 20)?)?;
//! region.write(0, b"hello")?;
//! // The peer of this example is the port itself.
//! let peer = rma::Peer::new(port.node(), port.vpid());
//! port.put_wait(&peer, &region, 0, 5, region.nla_at(4096)?, Wait::for_at_most(Duration::from_secs(1)))?;
//! # Ok(())
//! # }
//! ```
//!
//! **Ownership.** A port owns its VPID and its mappings. They are freed when the port and all of
//! its regions are dropped. A [`rma::Region`] owns its [`Buffer`]. The NIC may write the buffer at
//! any time, so that no slice of it is available. The buffer is not freed while it is registered,
//! even after `mem::forget`. A forked child does not inherit buffers.
//!
//! **Threads.** All types are `Send` and `Sync`. A port has one lock for sending and one for
//! receiving. No thread holds a lock while it waits. One thread may therefore send, drain or wait
//! for room while another one receives, each with its own deadline. Messages of one thread stay in
//! order; messages of different threads have no defined order.
//!
//! **Waiting.** All calls that wait take a [`Wait`]. A signal handler that runs while a call waits
//! ends the call with [`Error::Interrupted`].
//!
//! **Event loops.** Ports implement [`std::os::fd::AsFd`]. Repeat these steps: call `arm`; try to
//! receive until there is nothing; wait until the descriptor is readable, with the time limit that
//! `arm` returned. Only messages sent with the interrupt flag make the descriptor readable at once.
//! `arm` returns a time limit while packets are unconfirmed, because the NIC may drop them, and
//! only calls of the program detect and repeat dropped packets.
//!
//! **Removal of the NIC.** Unbinding the NIC revokes all mappings. Calls that sleep return
//! [`Error::Gone`], and so do all later calls of the port, without an access to the mappings. An
//! access to a revoked mapping before a system call reported the removal ends the process by
//! SIGBUS. Such accesses happen in calls that poll, send or do not wait, and in windows and
//! exported memory. They also happen in calls that sleep, between two system calls, when they found
//! an entry in the queue or repair dropped packets.
#![deny(missing_docs)]

#[cfg(test)]
extern crate self as extoll;

mod backend;
mod error;
#[cfg(test)]
#[path = "../tests/fake/mod.rs"]
mod fake;
mod memory;
mod nic;
mod pages;
mod pmap;
mod raw;
mod registers;
mod ring;
pub mod rma;
#[cfg(test)]
mod signals;
mod smfu;
pub mod velo;
mod wait;

pub use backend::{Backend, Device, PortInfo, RegionArg};
pub use error::{Error, Result};
pub use memory::Buffer;
pub use nic::{nics, Nic, NicStatus};
pub use pmap::ContiguousBuffer;
pub use raw::{flush, Mapping};
pub use registers::{AccessMethod, RegisterFile};
pub use smfu::{Smfu, Window};
pub use wait::{poll_milliseconds, Wait};
pub use wire;

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets posted, without repetitions.
    pub posted: u64,
    /// Reads of the write-combining buffer's state. Each is a read from the device.
    pub state_reads: u64,
    /// Repairs, which repeat packets that the NIC dropped.
    pub replays: u64,
    /// Packets that repairs sent again.
    pub resent: u64,
    /// Packets that were lost because a repair took too long.
    pub lost: u64,
    /// Messages or notifications received from the queue.
    pub received: u64,
    /// Slots of the queue that were skipped because the NIC's write did not arrive.
    pub skipped: u64,
    /// Updates of the read pointer. Each is a write to the device.
    pub commits: u64,
    /// Number of times that calls slept.
    pub sleeps: u64,
    /// Number of sleeps that ended because the descriptor became readable.
    pub woken: u64,
}
