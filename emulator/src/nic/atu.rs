//! ATU: address translation (HW §11, G17). Nothing is cached, so flushes only count.

use super::Nic;
use crate::env::Env;
use wire::atu::{Command, CommandWord, GatBase, GatEntry, NlaParts};
use wire::ids::{Nla, RegOffset, Vpid};
use wire::regs::atu::{self as regs, Cnt0, Cnt2, Cnt3, Cnt4, Control};

impl Nic {
    /// Bus address for an NLA of `vpid`; `None` with a diagnostic if there is no valid translation.
    pub(super) fn translate(
        &mut self,
        nla: u64,
        vpid: u8,
        write: bool,
        env: &mut Env<'_>,
    ) -> Option<u64> {
        let found = self.try_translate(nla, vpid, write, env);
        match found {
            Ok(addr) => Some(addr),
            Err(why) => {
                self.diagnose(env, || {
                    format!("translation of {nla:#x} for VPID {vpid}: {why}")
                });
                None
            }
        }
    }

    fn try_translate(
        &mut self,
        nla: u64,
        vpid: u8,
        write: bool,
        env: &mut Env<'_>,
    ) -> Result<u64, String> {
        if !Control(self.storage.at(regs::CONTROL.0)).enable() {
            return Err("the ATU is off".to_owned());
        }
        let parts = NlaParts(nla);
        if nla & !NlaParts::KNOWN != 0 {
            return Err("address bits above the GAT index".to_owned());
        }
        let base = GatBase(self.storage.at(regs::gat(parts.gat().into()).0));
        if !base.valid() {
            return Err(format!("GAT {} is not valid", parts.gat()));
        }
        let entry = self
            .dma_read_qw(base.entry_addr(parts.entry()).0, env)
            .map_err(|_| "GAT can't be read")?;
        let c = Cnt0(self.storage.at(regs::CNT_0.0));
        let c = c
            .with_translations(c.translations().wrapping_add(1))
            .with_memory_reads(c.memory_reads().wrapping_add(1));
        self.storage.set_at(regs::CNT_0.0, c.raw());
        let to = GatEntry(entry).translate(Nla(nla), Vpid::from(vpid), write);
        to.map(|addr| addr.0).map_err(|fault| fault.to_string())
    }

    pub(super) fn atu_reg_write(
        &mut self,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        if offset != regs::CMD_INTERFACE {
            return false;
        }
        let command = match Command::decode(CommandWord(value)) {
            Ok(command) => command,
            Err(why) => {
                self.diagnose(env, || format!("ATU command {value:#x}: {why}"));
                return true;
            }
        };
        let at = |s: &Self, r: RegOffset| s.storage.at(r.0);
        let c2 = Cnt2(at(self, regs::CNT_2));
        let c2 = c2.with_cmds_all(c2.cmds_all().wrapping_add(1));
        let flush = c2.with_cmds_flushes(c2.cmds_flushes().wrapping_add(1));
        let c3 = Cnt3(at(self, regs::CNT_3));
        let c4 = Cnt4(at(self, regs::CNT_4));
        let (c2, c3, c4, answer) = match command {
            Command::FlushPages { .. } => (
                flush,
                c3,
                c4.with_cmds_idx(c4.cmds_idx().wrapping_add(1)),
                None,
            ),
            Command::FlushVpid(_) => (
                flush,
                c3,
                c4.with_cmds_vpid(c4.cmds_vpid().wrapping_add(1)),
                None,
            ),
            Command::Fence(to) => (
                c2,
                c3.with_cmds_fences(c3.cmds_fences().wrapping_add(1)),
                c4,
                Some(to),
            ),
            Command::Notify(to) => (
                c2,
                c3.with_cmds_noti(c3.cmds_noti().wrapping_add(1)),
                c4,
                Some(to),
            ),
        };
        self.storage.set_at(regs::CNT_2.0, c2.raw());
        self.storage.set_at(regs::CNT_3.0, c3.raw());
        self.storage.set_at(regs::CNT_4.0, c4.raw());
        if let Some(to) = answer {
            // A failed write is counted and reported; there is nobody else to tell.
            let _ = self.dma_write(to.0, &1u64.to_le_bytes(), env);
        }
        true
    }
}
