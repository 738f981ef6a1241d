//! SMFU: host accesses to the shared memory window (HW §12, G18).
//!
//! Windows to other nodes are not modelled yet: every access counts as one that matches no interval.

use super::{Nic, Te};
use crate::env::Env;
use wire::ids::RegOffset;
use wire::regs::smfu::{self as regs, TimeoutControl};

impl Nic {
    pub(super) fn smfu_load(
        &mut self,
        addr: u64,
        remote_rf: bool,
        data: &mut [u8],
        env: &mut Env<'_>,
    ) {
        data.fill(0xFF);
        self.smfu_no_interval("load", addr, remote_rf, env);
    }

    pub(super) fn smfu_store(
        &mut self,
        addr: u64,
        remote_rf: bool,
        data: &[u8],
        env: &mut Env<'_>,
    ) {
        let _ = data;
        self.smfu_no_interval("store", addr, remote_rf, env);
    }

    fn smfu_no_interval(&mut self, what: &str, addr: u64, remote_rf: bool, env: &mut Env<'_>) {
        self.counters.drops.smfu_no_interval = self.counters.drops.smfu_no_interval.wrapping_add(1);
        let at = regs::TIMEOUT_CONTROL.0;
        let control = TimeoutControl(self.storage.at(at)).with_timeout_err(true);
        self.storage.set_at(at, control.raw());
        self.raise(Te::SmfuTimeout);
        let to = if remote_rf {
            "remote registers"
        } else {
            "remote memory"
        };
        self.diagnose(env, || {
            format!("SMFU {what} at {addr:#x} ({to}): no interval leads anywhere")
        });
    }

    pub(super) fn smfu_reg_write(&mut self, offset: RegOffset, value: u64) -> bool {
        match offset {
            regs::TIMEOUT_CONTROL => {
                // The error flag is cleared by writing 1 (HW §12).
                let new = TimeoutControl(value);
                let old = TimeoutControl(self.storage.at(offset.0));
                let err = old.timeout_err() && !new.timeout_err();
                self.storage
                    .set_at(offset.0, new.with_timeout_err(err).raw());
            }
            regs::COUNTER_RESET => {
                if value & 1 != 0 {
                    for at in (regs::SENT_COUNT_NP.0..=regs::MISC_COUNT.0).step_by(8) {
                        self.storage.set_at(at, 0);
                    }
                    for i in 0..regs::INTERVALS {
                        self.storage.set_at(regs::interval_counter(i).0, 0);
                    }
                }
            }
            _ => return false,
        }
        true
    }
}
