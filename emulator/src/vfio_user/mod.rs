//! vfio-user server: framing, protocol, guest memory.
//!
//! One [`Connection`] serves one client (QEMU's `vfio-user-pci`). It never blocks:
//! [`Connection::service`] handles the messages in the socket, up to a budget, and returns. The
//! client can't map any region, because a single mappable region makes QEMU send stores as blocking
//! round trips.

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

/// Request of a client to make a part of its memory accessible by DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaMapRequest {
    /// First bus address.
    pub iova: u64,
    /// Length in bytes.
    pub size: u64,
    /// Offset in the file that came with the request.
    pub offset: u64,
    /// True if the device may write.
    pub writable: bool,
}

/// Request of a client for an interrupt index.
#[derive(Debug)]
pub enum IrqRequest {
    /// Route vectors `start…` to these eventfds; `None` removes a vector's eventfd.
    Eventfds {
        /// First vector.
        start: u32,
        /// One entry per vector.
        fds: Vec<Option<OwnedFd>>,
    },
    /// Disable the whole index.
    Disable,
    /// Raise these vectors now (loop-back test of the client).
    Trigger {
        /// First vector.
        start: u32,
        /// One entry per vector; true to raise it.
        which: Vec<bool>,
    },
}

/// State of a region read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The data are available.
    Now,
    /// The data arrive later, see [`Device::finish_read`].
    Later,
}

/// Interface to the device behind a connection. No method blocks.
pub trait Device {
    /// Returns the size of region `index` in bytes, or 0 if the device has none (indices as in
    /// [`proto::region`]).
    fn region_size(&self, index: u32) -> u64;
    /// Returns the number of vectors of interrupt index `index` (indices as in [`proto::irq`]).
    fn irq_count(&self, index: u32) -> u32;
    /// Reads a region. The caller has checked offset and length against its size.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<Answer, Errno>;
    /// Completes a pending read. Returns `false` while the data are not available. Until then the
    /// caller executes no other message.
    fn finish_read(&mut self, data: &mut [u8]) -> bool;
    /// Returns true while no message may be executed, because the device can't accept stores now.
    fn stalled(&self) -> bool;
    /// Writes a region. The caller has checked offset and length against its size.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Makes client memory accessible. A request without a file only registers the range, because
    /// it can't be mapped.
    fn dma_map(&mut self, map: DmaMapRequest, fd: Option<OwnedFd>) -> Result<(), Errno>;
    /// Removes the mappings inside `iova…iova+size`, or all of them for `None`. Returns the number
    /// of bytes removed.
    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> Result<u64, Errno>;
    /// Changes interrupt routing. `index` exists and the vectors are in range.
    fn set_irqs(&mut self, index: u32, request: IrqRequest) -> Result<(), Errno>;
    /// Records that negotiation is complete, so the client understands messages from now on.
    fn negotiated(&mut self);
    /// Returns the next DMA message for the client.
    fn next_request(&mut self) -> Option<Request>;
    /// Returns true while answers of the client to such messages are outstanding.
    fn awaits_answers(&self) -> bool;
    /// Processes the client's answer to a DMA message.
    fn answered(&mut self, answer: Answered);
    /// Resets the device (system reset of the guest).
    fn reset(&mut self);
    /// Reports an error of the client. The implementation limits the rate.
    fn complain(&mut self, what: std::fmt::Arguments<'_>);
}
