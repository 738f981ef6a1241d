// SPDX-License-Identifier: GPL-2.0-only

//! Memory that a device reaches: lists of pages, their DMA mapping, and news of changes of user address spaces.

mod dma;
mod pages;
mod watch;

pub use dma::{DmaRoom, DmaTable, Unmapped};
pub use pages::{Maps, PageList, MAX_PINNED};
pub use watch::{Change, Watch, Watcher};

/// Bytes of a page. The NIC's pages have as many (HW §11.1), so kernels with larger ones are not supported.
pub const PAGE: usize = kernel::page::PAGE_SIZE;
const _: () = assert!(PAGE == 4096);
