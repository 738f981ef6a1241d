// SPDX-License-Identifier: GPL-2.0-only

//! Memory for devices: lists of pages, DMA mappings, pinned user memory.
//!
//! | Purpose | Type |
//! |---|---|
//! | whole pages: kernel buffers, pages, pinned user memory | [`PageList`] |
//! | fragments of memory, with unaligned ends | [`FragmentList`] |
//! | mappings for a device, made and undone with a [`BoundDevice`] | [`Streaming`] |
//! | addresses behind an IOMMU, to which changing pages are linked | [`IovaRange`] |
//! | mappings of lists of pages, made without allocating memory | [`PreallocatedTable`] |
//! | notification of changes of user address spaces | [`Watch`] |

mod bound;
mod copy;
mod fragment_tests;
mod fragments;
mod iova;
mod pages;
mod prealloc;
mod streaming;
mod streaming_tests;
mod user;
mod watch;

pub use bound::BoundDevice;
pub use copy::TagPositions;
pub use fragments::{BioVecs, FragmentList};
pub use iova::IovaRange;
pub use pages::PageList;
pub use prealloc::{PreallocatedPages, PreallocatedTable, StreamingPrealloc};
pub use protocol::mem::fragments::Fragment;
pub use streaming::{
    Bytes, Contiguous, Kind, Pages, Range, Streaming, StreamingPages, StreamingRange,
};
pub use user::{Maps, MAX_PINNED};
pub use watch::{Change, Watch, Watcher};

/// Page size in bytes, equal to the size of the NIC's pages (HW §11.1). Kernels with larger pages
/// are not supported.
pub const PAGE: usize = kernel::page::PAGE_SIZE;
const _: () = assert!(PAGE == 4096);
