// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! User programs on an Extoll NIC: VELO messages, RMA transfers and registered memory, SMFU windows, registers.
//!
//! ```no_run
//! use extoll::{rma, Buffer, Device, Wait};
//! use std::time::Duration;
//! # fn main() -> extoll::Result<()> {
//! let port = rma::Port::open(&Device::default())?;
//! let region = port.register(Buffer::new(1 << 20)?)?;
//! region.write(0, b"hello")?;
//! // To ourselves: the peer is this very port.
//! let peer = rma::Peer::new(port.node(), port.vpid());
//! port.put_wait(&peer, &region, 0, 5, region.nla_at(4096)?, Wait::for_at_most(Duration::from_secs(1)))?;
//! # Ok(())
//! # }
//! ```
//!
//! **Ownership.** A port owns its VPID and its mappings; the last of the port and its regions frees them. A [`rma::Region`]
//! owns its [`Buffer`]: the NIC may write it at any time, so it is never lent as a slice, and it cannot be freed while the
//! NIC knows of it, not even by `mem::forget`. Buffers are not inherited by a forked child.
//!
//! **Threads.** All types here are `Send` and `Sync`. Sending and receiving on a port have a lock each, which nobody holds while
//! waiting: one thread may send, drain or wait for room while another one receives, and each keeps to its own deadline. Messages of
//! one thread stay in order; between threads there is none.
//!
//! **Waiting.** Nothing waits without a [`Wait`]. Ports implement [`std::os::fd::AsFd`]: to sit in an event loop call `arm`, then try to
//! receive once more, then wait until the descriptor is readable, at most as long as `arm` said, and begin again. Only messages that their
//! sender marked for an interrupt wake a program at once. A signal handler that runs while a call waits ends it with [`Error::Interrupted`]. `arm` names a time while packets are not confirmed by the NIC: it drops some at times,
//! and only the program's next call finds that out and repeats them.
//!
//! **A NIC that goes.** Unbinding revokes all mappings. Calls that sleep end with [`Error::Gone`], and from then on no call of the
//! port touches its mappings: all fail with it. What cannot be caught is an access before a system call told: of a call that polls, sends, or
//! only tries, of a window or the exported memory, and, between two system calls of a call that sleeps, of a thread that just found
//! something in the queue or repairs. It ends the process with SIGBUS.
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

/// Counters of one port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets written to the requester page, without repetitions.
    pub posted: u64,
    /// Reads of the write-combining buffer's state, one device read each.
    pub state_reads: u64,
    /// Repairs after the NIC dropped packets.
    pub replays: u64,
    /// Packets written again by repairs.
    pub resent: u64,
    /// Packets given up because a repair took too long.
    pub lost: u64,
    /// Messages or notifications taken from the queue.
    pub received: u64,
    /// Slots of the queue given up because the NIC's write never arrived.
    pub skipped: u64,
    /// Writes of the read pointer, one device write each.
    pub commits: u64,
    /// Sleeps of waiting calls.
    pub sleeps: u64,
    /// Sleeps that ended because the descriptor became readable.
    pub woken: u64,
}
