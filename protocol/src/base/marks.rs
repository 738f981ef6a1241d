// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Whether all of a GET has arrived.
//!
//! Its completer tells of the last packet only (HW §10.3): of those before it some may have been lost,
//! with a link that went away for a moment, here or elsewhere on the way. Nothing here tells of that,
//! and the memory of such a packet holds what it held before: a hole. So a random quadword is put into
//! the memory that a GET writes to, again and again, so close together that each packet but the last
//! covers one. One that is still there afterwards shows a packet that is missing, or data that is the
//! same by chance: the GET has failed.

use wire::rma::FRAGMENT;

/// Bytes from one mark to the next: any 496 bytes one behind the other, a whole packet, have one in
/// them.
pub const MARK_DISTANCE: u32 = FRAGMENT - MARK_BYTES;
/// Bytes of a mark.
pub const MARK_BYTES: u32 = 8;

/// A mark: a number that nobody can guess, another one for each GET.
pub type Mark = [u8; MARK_BYTES as usize];

/// Offsets of the marks in `len` bytes. What is no longer than a packet has none: the only packet is
/// the one that is told of.
pub fn marks(len: u32) -> impl Iterator<Item = u32> + Clone {
    let count = match len {
        0..=FRAGMENT => 0,
        _ => (len - MARK_BYTES) / MARK_DISTANCE + 1,
    };
    (0..count).map(|i| i * MARK_DISTANCE)
}

/// Where the first mark is that is left in what a GET has written, if it has lost something.
#[must_use]
pub fn hole(data: &[u8], mark: Mark) -> Option<u32> {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    marks(len).find(|at| {
        let rest = data.get(*at as usize..).unwrap_or_default();
        rest.starts_with(&mark)
    })
}
