// SPDX-License-Identifier: GPL-2.0-only

//! Registers and memory of other devices, which devices reach past their host.

use super::Pool;
use kernel::prelude::*;

/// BARs that a device may reach.
pub(super) const MOST: usize = 12;

/// A BAR of another device, or what leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerBar {
    /// Where processors have it.
    pub cpu: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Where the device has it.
    pub bus: u64,
}

pub(super) type Bars = [Option<PeerBar>; MOST];

impl Pool {
    /// From now on drivers may map (`dma_map_resource`) what processors have there. Any context.
    ///
    /// # Errors
    ///
    /// `EINVAL` for addresses without an end, `ENOSPC` if there are too many.
    pub fn add_peer(&self, bar: PeerBar) -> Result {
        let ends = [bar.cpu, bar.bus].map(|at| at.checked_add(bar.bytes));
        if bar.bytes == 0 || ends.iter().any(Option::is_none) {
            return Err(EINVAL);
        }
        let mut bars = self.peers.lock();
        let place = bars.iter_mut().find(|b| b.is_none()).ok_or(ENOSPC)?;
        *place = Some(bar);
        Ok(())
    }

    /// Nobody may map that any more. The device still has the addresses of what drivers have mapped: where these lead is
    /// the caller's business. Any context.
    pub fn drop_peer(&self, bar: &PeerBar) {
        for place in self.peers.lock().iter_mut() {
            if place.as_ref() == Some(bar) {
                *place = None;
            }
        }
    }

    /// The device's address of what processors have at `cpu`.
    pub(super) fn map_peer(&self, cpu: u64, bytes: usize, mask: u64) -> Option<u64> {
        let found = self.peers.lock().iter().flatten().find_map(|bar| {
            let at = cpu.checked_sub(bar.cpu)?;
            let end = at.checked_add(bytes as u64)?;
            (end <= bar.bytes).then(|| bar.bus + at)
        });
        // Its last byte, which is in the BAR.
        let found = found.filter(|at| bytes > 0 && (at + bytes as u64 - 1) & !mask == 0);
        if found.is_none() {
            self.refuse();
        }
        found
    }
}
