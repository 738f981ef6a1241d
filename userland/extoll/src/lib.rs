// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Access to an Extoll NIC for user programs: VELO messages, RMA transfers, registered memory, SMFU
//! windows and registers.
//!
//! ```no_run
//! use extoll::{rma, Buffer, Device, Wait};
//! use std::time::Duration;
//!
//! # fn main() -> extoll::Result<()> {
//! let port = rma::Port::open(&Device::default())?;
//! let region = port.register(Buffer::new(1 << 20)?)?;
//! region.write(0, b"hello")?;
//!
//! // The peer of this example is the port itself.
//! let peer = rma::Peer::new(port.node(), port.vpid());
//! port.put_wait(&peer, &region, 0, 5, region.nla_at(4096)?, Wait::for_at_most(Duration::from_secs(1)))?;
//! # Ok(())
//! # }
//! ```
//!
//! **Ownership.** A port owns its VPID and its mappings. They are freed when the port and all of
//! its regions are dropped. A [`rma::Region`] owns its [`Buffer`]. No slice of the buffer is
//! available, because the NIC may write the buffer at any time. The buffer is not freed while it is
//! registered, even after `mem::forget`. A forked child does not inherit buffers.
//!
//! **Threads.** All types are `Send` and `Sync`. A port has one lock for sending and one for
//! receiving. No thread holds a lock while it waits. One thread may therefore send, drain or wait
//! for credits while another thread receives. Each call has its own deadline. Messages of one
//! thread stay in order. Messages of different threads have no defined order.
//!
//! **Waiting.** All calls that wait take a [`Wait`]. A signal handler that runs while a call waits
//! ends the call with [`Error::Interrupted`].
//!
//! **Event loops.** Ports implement [`std::os::fd::AsFd`]. An event loop repeats three steps. It
//! calls `arm`, receives until the queue is empty, and waits until the descriptor is readable. The
//! wait must not exceed the time limit that `arm` returned. Only messages sent with the interrupt
//! flag make the descriptor readable at once. `arm` returns a time limit while packets are
//! unconfirmed, because the NIC may drop packets. Only calls of the program detect and repeat
//! dropped packets.
//!
//! **Removal of the NIC.** Unbinding the NIC revokes all mappings. Calls that sleep return
//! [`Error::Gone`]. All later calls of the port also return it, without an access to the mappings.
//!
//! A process that accesses a revoked mapping before a system call has reported the removal is
//! killed by SIGBUS. Such accesses happen in calls that poll, send or do not wait, and in windows
//! and exported memory. They also happen between two system calls of a call that sleeps, while it
//! reads a queue entry or repeats dropped packets.
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

/// Counters of a port, which start at 0 when the port is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of packets posted, without repetitions.
    pub posted: u64,
    /// Number of reads of the write-combining buffer's state. Each is a read from the device.
    pub state_reads: u64,
    /// Number of replays, which repeat packets that the NIC dropped.
    pub replays: u64,
    /// Number of packets that replays sent again.
    pub resent: u64,
    /// Number of packets that were lost because a replay took too long.
    pub lost: u64,
    /// Number of messages or notifications received from the queue.
    pub received: u64,
    /// Number of queue slots that were skipped because the NIC's write did not arrive.
    pub skipped: u64,
    /// Number of updates of the read pointer. Each is a write to the device.
    pub commits: u64,
    /// Number of times that calls slept.
    pub sleeps: u64,
    /// Number of sleeps that ended because the descriptor became readable.
    pub woken: u64,
}
