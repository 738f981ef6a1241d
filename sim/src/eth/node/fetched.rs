//! Memory that frames are fetched into, with validity tags that a GET must overwrite.

use crate::fabric::Fabric;
use anyhow::Result;
use protocol::base::validity::{find_hole, tag_offsets, ValidityTag};
use wire::eth::match_key;

/// Memory of a GET.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) local: u64,
    len: u32,
    mark: ValidityTag,
}

impl Target {
    /// Writes the validity tags of a new GET of `len` bytes.
    pub(super) fn prepare(fabric: &Fabric, nic: usize, local: u64, len: u32) -> Result<Self> {
        // The value is unique among the GETs of a run.
        let number = (fabric.now() << 32) ^ ((nic as u64) << 28) ^ local;
        let mark = (number | 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_le_bytes();
        for at in tag_offsets(len) {
            fabric.fill(nic, local + u64::from(at), &mark)?;
        }
        Ok(Self { local, len, mark })
    }

    /// Returns true if a notification names this memory.
    pub(super) fn is(&self, key: u64) -> bool {
        match_key(self.local, self.len) == key
    }

    /// Returns the frame, and true if data are missing in it.
    pub(super) fn load(&self, fabric: &Fabric, nic: usize) -> Result<(Vec<u8>, bool)> {
        let mut data = vec![0; self.len as usize];
        fabric.load(nic, self.local, &mut data)?;
        let lost = find_hole(&data, self.mark).is_some();
        Ok((data, lost))
    }
}
