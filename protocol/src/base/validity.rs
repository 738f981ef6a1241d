// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Validity tags: detection of data that a GET did not deliver.
//!
//! The completer reports the last packet of a GET only (HW §10.3). Earlier packets may be lost
//! without report, for example by a link failure in this or another node. The memory that a lost
//! packet should have overwritten keeps its old content (a hole). Before the GET, a random
//! quadword, the tag, is therefore written to this memory every [`TAG_DISTANCE`] bytes. Each packet
//! except the last overwrites at least one tag. A tag that is unchanged after the GET means that a
//! packet is missing. In rare cases the data contain the same quadword. The reader treats the GET
//! as failed in both cases.

use wire::rma::FRAGMENT;

/// Distance between the starts of two tags in bytes. Each range of 496 bytes, the size of a full
/// packet, contains a whole tag.
pub const TAG_DISTANCE: u32 = FRAGMENT - TAG_BYTES;
/// Size of a tag in bytes.
pub const TAG_BYTES: u32 = 8;

/// Validity tag: a random number that other nodes cannot guess. Each GET has a different tag.
pub type ValidityTag = [u8; TAG_BYTES as usize];

/// Returns the offsets of the tags in `len` bytes. A GET of a single packet has no tags, because
/// the completer reports this packet.
pub fn tag_offsets(len: u32) -> impl Iterator<Item = u32> + Clone {
    let count = match len {
        0..=FRAGMENT => 0,
        _ => (len - TAG_BYTES) / TAG_DISTANCE + 1,
    };
    (0..count).map(|i| i * TAG_DISTANCE)
}

/// Returns the offset of the first tag that a GET did not overwrite; `None` if all data have
/// arrived.
#[must_use]
pub fn find_hole(data: &[u8], mark: ValidityTag) -> Option<u32> {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    tag_offsets(len).find(|at| {
        let rest = data.get(*at as usize..).unwrap_or_default();
        rest.starts_with(&mark)
    })
}
