//! Locks: fetch-compare-and-add on 32-bit counters in host memory (HW §10.6, G16).

use super::Nic;
use crate::env::Env;
use wire::regs::rma::{self as regs, LockCfg};

/// Result of a lock operation: true if the value changed, and the value after the operation.
pub(super) struct Locked {
    pub(super) success: bool,
    pub(super) value: i32,
}

impl Nic {
    /// Adds `add` to lock `number` of `vpid` if the value of the lock is less than or equal to
    /// `compare`. Returns `None` if the lock does not exist or its memory can't be read.
    pub(super) fn lock(
        &mut self,
        vpid: u8,
        number: u32,
        compare: i32,
        add: i32,
        env: &mut Env<'_>,
    ) -> Option<Locked> {
        let cfg = LockCfg(self.storage.at(regs::LOCK_CFG.0));
        if number >= cfg.number_allowed() || u16::from(vpid) >= cfg.vpids_allowed() {
            self.diagnose(env, || {
                format!("lock {number} of VPID {vpid} does not exist")
            });
            return None;
        }
        let base = self.storage.at(regs::LOCK_BASE.0) & !0xFFF;
        let at = base.checked_add(4 * (u64::from(vpid) + 256 * u64::from(number)))?;
        let mut raw = [0; 4];
        self.dma_read(at, &mut raw, env).ok()?;
        let mut value = i32::from_le_bytes(raw);
        let success = value <= compare;
        if success {
            value = value.wrapping_add(add);
            // The write is posted, so the chip does not notice a failure.
            if self.dma_write(at, &value.to_le_bytes(), env).is_err() {
                self.counters.drops.dma = self.counters.drops.dma.wrapping_add(1);
            }
        }
        Some(Locked { success, value })
    }
}
