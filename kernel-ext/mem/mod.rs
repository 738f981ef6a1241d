// SPDX-License-Identifier: GPL-2.0-only

//! Memory that a device reaches, and memory for when there is none.
//!
//! | What | |
//! |---|---|
//! | lists of pages | [`PageList`]: kernel buffers, pages, pinned user memory |
//! | memory in pieces, with ends that are not aligned | [`FragmentList`]: user memory of an iterator, block requests, frames |
//! | mappings for a device | [`Streaming`]: of one range or of a list of pages, made and undone with a [`BoundDevice`]; [`DmaRoom`]: made without memory |
//! | news of changes of user address spaces | [`Watch`] |
//! | objects that were made before | [`Pool`] |

mod bound;
mod fragments;
mod pages;
mod pool;
mod room;
mod streaming;
mod user;
mod watch;

pub use bound::BoundDevice;
pub use fragments::{BioVecs, FragmentList};
pub use pages::PageList;
pub use pool::{Pool, Taken};
pub use room::{DmaRoom, RoomPages, StreamingRoom};
pub use streaming::{
    Bytes, Contiguous, Kind, Pages, Range, Streaming, StreamingPages, StreamingRange,
};
pub use user::{Maps, Pin, UserIter, UserRange, MAX_PINNED};
pub use watch::{Change, Watch, Watcher};
pub use wire::fragments::Fragment;

/// Bytes of a page. The NIC's pages have as many (HW §11.1), so kernels with larger ones are not supported.
pub const PAGE: usize = kernel::page::PAGE_SIZE;
const _: () = assert!(PAGE == 4096);
