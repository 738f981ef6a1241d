//! vfio-user server: framing, protocol, guest memory.
//!
//! One [`Connection`] serves one client (QEMU's `vfio-user-pci`). It never blocks: [`Connection::service`] handles what the
//! socket holds, up to a budget, and returns. No region can be mapped by the client, because a single mappable region makes
//! QEMU send stores as blocking round trips.

pub mod conn;
pub mod mem;
pub mod proto;
mod session;
mod words;

pub use conn::{Closed, Connection, Progress};
pub use mem::GuestMemory;

use crate::peer::{Answered, Request};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// A client's request to make a piece of its memory reachable by DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaMapRequest {
    /// First bus address.
    pub iova: u64,
    /// Length in bytes.
    pub size: u64,
    /// Offset in the file that came with the request.
    pub offset: u64,
    /// The device may write.
    pub writable: bool,
}

/// What a client asks of an interrupt index.
#[derive(Debug)]
pub enum IrqRequest {
    /// Route vectors `start…` to these eventfds; `None` leaves a vector without one.
    Eventfds {
        /// First vector.
        start: u32,
        /// One entry per vector.
        fds: Vec<Option<OwnedFd>>,
    },
    /// Switch the whole index off.
    Disable,
    /// Raise these vectors now (loop-back test of the client).
    Trigger {
        /// First vector.
        start: u32,
        /// One entry per vector: raise it or not.
        which: Vec<bool>,
    },
}

/// State of a region read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The data are there.
    Now,
    /// They come later: [`Device::finish_read`].
    Later,
}

/// What the protocol needs from the device behind a connection. No method blocks.
pub trait Device {
    /// Size of region `index` in bytes, 0 if the device has none (indices as in [`proto::region`]).
    fn region_size(&self, index: u32) -> u64;
    /// Number of vectors of interrupt index `index` (indices as in [`proto::irq`]).
    fn irq_count(&self, index: u32) -> u32;
    /// Reads a region; offset and length have been checked against its size.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<Answer, Errno>;
    /// Completes the read that was left for later; `false`: not yet. No other message is executed meanwhile.
    fn finish_read(&mut self, data: &mut [u8]) -> bool;
    /// True while no message may be executed, because the device can't take stores now.
    fn stalled(&self) -> bool;
    /// Writes a region; offset and length have been checked against its size.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Makes client memory reachable. Requests without a file are accepted and ignored (nothing can be mapped).
    fn dma_map(&mut self, map: DmaMapRequest, fd: Option<OwnedFd>) -> Result<(), Errno>;
    /// Withdraws the mappings that lie in `iova…iova+size`; with `None` all of them. Returns the bytes withdrawn.
    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> Result<u64, Errno>;
    /// Changes interrupt routing. `index` exists and the vectors are in range.
    fn set_irqs(&mut self, index: u32, request: IrqRequest) -> Result<(), Errno>;
    /// The client understands what is sent to it from now on.
    fn negotiated(&mut self);
    /// The next DMA message for the client.
    fn next_request(&mut self) -> Option<Request>;
    /// True while the client owes answers to such messages.
    fn awaits_answers(&self) -> bool;
    /// The client answered one.
    fn answered(&mut self, answer: Answered);
    /// Resets the device (system reset of the guest).
    fn reset(&mut self);
    /// Says what the client did wrong; the implementation limits the rate.
    fn complain(&mut self, what: std::fmt::Arguments<'_>);
}
