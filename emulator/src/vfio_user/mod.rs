//! vfio-user server: framing, protocol and guest memory.
//!
//! A [`Connection`] serves one client (QEMU's `vfio-user-pci`). It never blocks:
//! [`Connection::service`] handles the messages in the socket, up to a budget, and returns. The
//! client can't map any region, because even a single mappable region makes QEMU send each store as
//! a blocking round trip.

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

/// Request of a client to make a range of its memory accessible by DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaMapRequest {
    /// First bus address of the range.
    pub iova: u64,
    /// Length of the range in bytes.
    pub size: u64,
    /// Offset of the range in the file that came with the request.
    pub offset: u64,
    /// True if the device may write to the range.
    pub writable: bool,
}

/// Request of a client that concerns the vectors of an interrupt index.
#[derive(Debug)]
pub enum IrqRequest {
    /// Route vectors from `start` on to these eventfds; `None` removes the eventfd of a vector.
    Eventfds {
        /// Number of the first vector.
        start: u32,
        /// Eventfd of each vector.
        fds: Vec<Option<OwnedFd>>,
    },
    /// Disable all vectors of the index.
    Disable,
    /// Raise vectors now, as a loop-back test of the client.
    Trigger {
        /// Number of the first vector.
        start: u32,
        /// True for each vector to raise.
        which: Vec<bool>,
    },
}

/// State of a read of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The data is available.
    Now,
    /// The data arrives later (see [`Device::finish_read`]).
    Later,
}

/// Interface to the device behind a connection. No method blocks.
pub trait Device {
    /// Returns the size of region `index` in bytes, or 0 if the device does not have the region.
    /// [`proto::region`] contains the indices.
    fn region_size(&self, index: u32) -> u64;
    /// Returns the number of vectors of interrupt index `index`. [`proto::irq`] contains the
    /// indices.
    fn irq_count(&self, index: u32) -> u32;
    /// Reads a region. The caller has checked offset and length against the size of the region.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<Answer, Errno>;
    /// Completes a pending read. Returns `false` while the data is not available. Until it is
    /// available, the caller executes no other message.
    fn finish_read(&mut self, data: &mut [u8]) -> bool;
    /// Returns true while no message may be executed, because the device can't accept stores.
    fn stalled(&self) -> bool;
    /// Writes a region. The caller has checked offset and length against the size of the region.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Makes memory of the client accessible. A request without a file only registers the range,
    /// which can't be mapped.
    fn dma_map(&mut self, map: DmaMapRequest, fd: Option<OwnedFd>) -> Result<(), Errno>;
    /// Removes the mappings inside the range `(iova, size)`, or all mappings for `None`. Returns
    /// the number of bytes removed.
    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> Result<u64, Errno>;
    /// Changes interrupt routing. The caller has checked that `index` exists and the vectors are in
    /// range.
    fn set_irqs(&mut self, index: u32, request: IrqRequest) -> Result<(), Errno>;
    /// Records that the negotiation is complete. From now on, the client understands DMA messages.
    fn negotiated(&mut self);
    /// Returns the next DMA message for the client.
    fn next_request(&mut self) -> Option<Request>;
    /// Returns true while answers of the client to DMA messages are pending.
    fn awaits_answers(&self) -> bool;
    /// Processes the client's answer to a DMA message.
    fn answered(&mut self, answer: Answered);
    /// Resets the device, as in a system reset of the guest.
    fn reset(&mut self);
    /// Reports an error of the client. The implementation limits the rate.
    fn complain(&mut self, what: std::fmt::Arguments<'_>);
}
