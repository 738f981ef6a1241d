// SPDX-License-Identifier: GPL-2.0-only

//! BARs of other devices, which the devices behind a bridge reach without going through this host.

use super::Pool;
use kernel::prelude::*;

/// Maximum number of peer BARs.
pub(super) const MAX_PEERS: usize = 12;

/// BAR of another device, or addresses that are forwarded to such a BAR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerBar {
    /// First address of the BAR for CPUs.
    pub cpu: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// First address of the BAR for the device.
    pub bus: u64,
}

pub(super) type Bars = [Option<PeerBar>; MAX_PEERS];

impl Pool {
    /// Lets drivers map the BAR (`dma_map_resource`). Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an empty range or one that overflows, `ENOSPC` if the pool has the maximum
    /// number of peer BARs.
    pub fn add_peer(&self, bar: PeerBar) -> Result {
        let ends = [bar.cpu, bar.bus].map(|at| at.checked_add(bar.bytes));
        if bar.bytes == 0 || ends.iter().any(Option::is_none) {
            return Err(EINVAL);
        }
        let mut bars = self.peers.lock();
        let slot = bars.iter_mut().find(|b| b.is_none()).ok_or(ENOSPC)?;
        *slot = Some(bar);
        Ok(())
    }

    /// Prevents further mappings of the BAR. The device keeps addresses that drivers mapped before;
    /// the caller is responsible for what these addresses reach. Any context.
    pub fn drop_peer(&self, bar: &PeerBar) {
        for slot in self.peers.lock().iter_mut() {
            if slot.as_ref() == Some(bar) {
                *slot = None;
            }
        }
    }

    /// Returns the device's address of the peer BAR's bytes at CPU address `cpu`.
    pub(super) fn map_peer(&self, cpu: u64, bytes: usize, mask: u64) -> Option<u64> {
        let found = self.peers.lock().iter().flatten().find_map(|bar| {
            let at = cpu.checked_sub(bar.cpu)?;
            let end = at.checked_add(bytes as u64)?;
            (end <= bar.bytes).then(|| bar.bus + at)
        });
        // Checks the last byte against the mask; it is in the BAR, so the sum does not overflow.
        let found = found.filter(|at| bytes > 0 && (at + bytes as u64 - 1) & !mask == 0);
        if found.is_none() {
            self.refuse();
        }
        found
    }
}
