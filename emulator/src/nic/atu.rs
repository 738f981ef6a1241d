//! Address translation unit (ATU): translation, commands and translation cache (HW §11, G17).

use super::dma::nth;
use super::random_delay::RandomDelay;
use super::rma_regs::{perf, Half};
use super::tlb::Tlb;
use super::{AtuNotify, Nic, NicConfig};
use crate::env::{Env, Stream};
use crate::seed::Purpose;
use std::collections::VecDeque;
use wire::atu::{Command, CommandWord, GatBase, GatEntry, NlaParts, GAT_ENTRIES};
use wire::ids::{Nla, RegOffset, Vpid};
use wire::regs::atu::{self as regs, Cnt0, Cnt2, Cnt3, Cnt4, Cnt5, Control};
use wire::rma::NotificationType;

/// Maximum number of pending commands. If there are more, the oldest command is executed at once.
const FIFO: usize = 4096;
const UNITS: [NotificationType; 3] = [
    NotificationType::Requester,
    NotificationType::Responder,
    NotificationType::Completer,
];

pub(super) struct Atu {
    tlb: Tlb,
    delay: RandomDelay,
    /// Pending commands in order, each with the time in ns at which it is due.
    waiting: VecDeque<(u64, Command)>,
    /// Number of translations since the fault for translations was set.
    pub(super) translations: u32,
    /// Number of answers since the fault for answers was set.
    pub(super) answers: u32,
}

impl Atu {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            tlb: Tlb::new(cfg),
            delay: RandomDelay::new(cfg, Purpose::Translation, cfg.atu_command_ns),
            waiting: VecDeque::new(),
            translations: 0,
            answers: 0,
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.delay.reseed(seed);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.waiting.front().map(|(due, _)| *due)
    }
}

impl Nic {
    /// Returns the bus address for an NLA of `vpid`, on behalf of the RMA sub-unit `by`. If the
    /// translation fails, reports a fault and returns `None`.
    pub(super) fn translate(
        &mut self,
        by: NotificationType,
        nla: u64,
        vpid: u8,
        write: bool,
        env: &mut Env<'_>,
    ) -> Option<u64> {
        let c5 = Cnt5(self.storage.at(regs::CNT_5.0));
        let c5 = c5.with_requests(c5.requests().wrapping_add(1));
        self.storage.set_at(regs::CNT_5.0, c5.raw());
        let count = &mut self.counters.atu;
        count.requests = count.requests.wrapping_add(1);
        let found = self.try_translate(nla, vpid, write, env);
        let unit = perf(by);
        self.rma_count(unit.atu[0], Half::Low, 1);
        self.rma_count(unit.atu[0], Half::High, 1);
        match found {
            Ok(addr) => {
                let c0 = Cnt0(self.storage.at(regs::CNT_0.0));
                let c0 = c0.with_translations(c0.translations().wrapping_add(1));
                self.storage.set_at(regs::CNT_0.0, c0.raw());
                Some(addr)
            }
            Err(why) => {
                self.rma_count(unit.atu[1], Half::Low, 1);
                self.counters.atu.refused = self.counters.atu.refused.wrapping_add(1);
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
        if nth(&mut self.atu.translations, self.cfg.faults.atu_fault_every) {
            return Err("injected fault".to_owned());
        }
        if nla & !NlaParts::KNOWN != 0 {
            return Err("address bits above the GAT index".to_owned());
        }
        let page = (nla >> 12) as u32;
        let entry = match self.atu.tlb.get(page) {
            Some(entry) => {
                self.counters.atu.tlb_hits = self.counters.atu.tlb_hits.wrapping_add(1);
                self.check_stale(nla, entry, env);
                entry
            }
            None => self.fetch_gate(NlaParts(nla), env)?,
        };
        let to = entry.translate(Nla(nla), Vpid::from(vpid), write);
        to.map(|addr| addr.0).map_err(|fault| fault.to_string())
    }

    /// Reads a GATe from host memory. A valid GATe is cached, regardless of the requester. An
    /// invalid GATe is not cached, because a registration needs no flush (HW §11.3).
    fn fetch_gate(&mut self, nla: NlaParts, env: &mut Env<'_>) -> Result<GatEntry, String> {
        let base = self.gat_base(nla);
        if !base.valid() {
            return Err(format!("GAT {} is not valid", nla.gat()));
        }
        let entry = self
            .dma_read_qw(base.entry_addr(nla.entry()).0, env)
            .map(GatEntry)
            .map_err(|_| format!("GAT {} can't be read", nla.gat()))?;
        let c0 = Cnt0(self.storage.at(regs::CNT_0.0));
        let c0 = c0.with_memory_reads(c0.memory_reads().wrapping_add(1));
        self.storage.set_at(regs::CNT_0.0, c0.raw());
        if entry.is_well_formed() {
            self.atu.tlb.put((nla.raw() >> 12) as u32, entry);
            self.counters.atu.cached = self.atu.tlb.len() as u64;
        }
        Ok(entry)
    }

    fn gat_base(&self, nla: NlaParts) -> GatBase {
        GatBase(self.storage.at(regs::gat(nla.gat().into()).0))
    }

    /// Counts and reports a use of a cached translation that differs from the GATe in memory. Such
    /// a use is an error of software, unless a flush is in progress.
    fn check_stale(&mut self, nla: u64, cached: GatEntry, env: &mut Env<'_>) {
        let base = self.gat_base(NlaParts(nla));
        let mut raw = [0; 8];
        let at = base.entry_addr(NlaParts(nla).entry()).0;
        let read = base.valid() && env.host.peek(at, &mut raw);
        let now = GatEntry(u64::from_le_bytes(raw));
        if read && now.start() == cached.start() {
            return;
        }
        self.counters.atu.stale_hits = self.counters.atu.stale_hits.wrapping_add(1);
        self.diagnose(env, || {
            format!("cached translation of {nla:#x} used; its GATe has changed since and was not flushed")
        });
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
        let injected = self.cfg.faults.atu_delay_ns;
        let delay = injected.unwrap_or_else(|| self.atu.delay.draw());
        if delay == 0 && self.atu.waiting.is_empty() {
            self.atu_execute(command, env);
            return true;
        }
        if self.atu.waiting.len() >= FIFO {
            self.atu_run(1, env);
        }
        let last = self.atu.waiting.back().map_or(0, |(due, _)| *due);
        let due = env.host.now_ns().saturating_add(delay).max(last);
        self.atu.waiting.push_back((due, command));
        self.counters.atu.waiting = self.atu.waiting.len() as u64;
        true
    }

    /// Executes the pending commands that are due.
    pub(super) fn atu_tick(&mut self, now_ns: u64, env: &mut Env<'_>) {
        let due = self.atu.waiting.partition_point(|(due, _)| *due <= now_ns);
        self.atu_run(due, env);
    }

    /// Executes the first `n` pending commands.
    pub(super) fn atu_run(&mut self, n: usize, env: &mut Env<'_>) {
        for _ in 0..n {
            if let Some((_, command)) = self.atu.waiting.pop_front() {
                self.atu_execute(command, env);
            }
        }
        self.counters.atu.waiting = self.atu.waiting.len() as u64;
    }

    fn atu_execute(&mut self, command: Command, env: &mut Env<'_>) {
        let at = |s: &Self, r: RegOffset| s.storage.at(r.0);
        let c2 = Cnt2(at(self, regs::CNT_2));
        let c2 = c2.with_cmds_all(c2.cmds_all().wrapping_add(1));
        let flush = c2.with_cmds_flushes(c2.cmds_flushes().wrapping_add(1));
        let c3 = Cnt3(at(self, regs::CNT_3));
        let c4 = Cnt4(at(self, regs::CNT_4));
        let (c2, c3, c4) = match command {
            Command::FlushPages { gat, entry, count } => {
                if entry + count > GAT_ENTRIES {
                    self.diagnose(env, || {
                        format!("ATU flush of {count} entries from {entry} leaves GAT {gat}")
                    });
                }
                let gone = self.atu.tlb.flush(gat, entry, count);
                self.count_flushed(gone);
                (flush, c3, c4.with_cmds_idx(c4.cmds_idx().wrapping_add(1)))
            }
            Command::FlushVpid(vpid) => {
                let gone = self.atu.tlb.flush_vpid(vpid.get());
                self.count_flushed(gone);
                (flush, c3, c4.with_cmds_vpid(c4.cmds_vpid().wrapping_add(1)))
            }
            Command::Fence(_) => (
                c2,
                c3.with_cmds_fences(c3.cmds_fences().wrapping_add(1)),
                c4,
            ),
            Command::Notify(_) => (c2, c3.with_cmds_noti(c3.cmds_noti().wrapping_add(1)), c4),
        };
        self.storage.set_at(regs::CNT_2.0, c2.raw());
        self.storage.set_at(regs::CNT_3.0, c3.raw());
        self.storage.set_at(regs::CNT_4.0, c4.raw());
        if let Command::Fence(_) = command {
            // Sub-units answer at once. They translate and access a packet in one call, so no
            // translation is in use between calls.
            for unit in UNITS {
                self.rma_count(perf(unit).atu[2], Half::Low, 1);
                self.rma_count(perf(unit).atu[2], Half::High, 1);
            }
        }
        match (command, self.cfg.atu_notify) {
            (Command::Fence(to), _) => {
                // The fence orders later writes even if an injected fault loses the answer of the
                // fence.
                env.host.fence();
                self.atu_answer(to.0, Stream::Everything, env);
            }
            (Command::Notify(to), AtuNotify::BehindAll) => {
                self.atu_answer(to.0, Stream::Everything, env);
            }
            (Command::Notify(to), AtuNotify::OwnWay) => {
                self.atu_answer(to.0, Stream::Answers, env);
            }
            _ => {}
        }
    }

    fn count_flushed(&mut self, entries: usize) {
        let count = &mut self.counters.atu;
        count.flushed = count.flushed.wrapping_add(entries as u64);
        count.cached = self.atu.tlb.len() as u64;
    }

    /// Writes an answer that follows earlier answers and the earlier writes of stream `after`.
    fn atu_answer(&mut self, to: u64, after: Stream, env: &mut Env<'_>) {
        if nth(&mut self.atu.answers, self.cfg.faults.atu_lose_every) {
            self.counters.atu.lost_answers = self.counters.atu.lost_answers.wrapping_add(1);
            return;
        }
        // The result is ignored. `dma_write` counts and reports a failure, and the chip can't
        // signal a failure.
        env.host.enter(Stream::Answers);
        env.host.enter(after);
        let written = self.dma_write(to, &1u64.to_le_bytes(), env).is_ok();
        env.host.leave();
        env.host.leave();
        if written {
            self.counters.atu.answers = self.counters.atu.answers.wrapping_add(1);
        }
    }
}
