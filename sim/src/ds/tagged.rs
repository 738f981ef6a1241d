//! Memory with validity tags, which GETs must overwrite.

use crate::fabric::Fabric;
use anyhow::Result;
use protocol::base::validity::{tag_offsets, ValidityTag, TAG_BYTES};
use protocol::ds::Span;
use protocol::Time;

/// Memory of a GET with validity tags.
#[derive(Clone, Copy)]
pub(super) struct Tagged {
    pub(super) ring: u64,
    pub(super) bytes: u32,
    pub(super) to: Span,
    pub(super) secret: ValidityTag,
    /// Node and ring that the GET reads.
    pub(super) from: (usize, u64),
    /// Time until which the GET may be in flight.
    pub(super) deadline: Time,
}

impl Tagged {
    fn tags(self) -> impl Iterator<Item = Span> {
        tag_offsets(self.to.len).map(move |offset| Span {
            at: (self.to.at + offset) & (self.bytes - 1),
            len: TAG_BYTES,
        })
    }

    pub(super) fn write(self, fabric: &Fabric, nic: usize) -> Result<()> {
        for tag in self.tags() {
            let mut remainder = &self.secret[..];
            for (at, len) in tag.parts(self.bytes) {
                let (part, behind) = remainder.split_at(len as usize);
                fabric.fill(nic, self.ring + u64::from(at), part)?;
                remainder = behind;
            }
        }
        Ok(())
    }

    /// Returns true if a tag is still present.
    pub(super) fn is_left(self, fabric: &Fabric, nic: usize) -> Result<bool> {
        for tag in self.tags() {
            let mut all = Vec::new();
            for (at, len) in tag.parts(self.bytes) {
                let mut part = vec![0; len as usize];
                fabric.load(nic, self.ring + u64::from(at), &mut part)?;
                all.extend(part);
            }
            if all == self.secret {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
