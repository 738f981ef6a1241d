//! Descriptors between their last store and the committed count (HW §8, G11): what takes its time, what there is no room
//! for, and what never becomes complete.
//!
//! MODEL: a complete descriptor is executed after a random time and counted as committed after another; those of one VPID in
//! order (HW §9.1), those of different VPIDs in any. Until it is counted, `assembly` and `streamout` differ.

use super::wcbuf::{Kept, WcError};
use super::{Nic, NicConfig};
use crate::env::Env;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use wire::ids::{RegOffset, Unit};
use wire::regs::wcbuf::{self as regs, Timeout};

const UNITS: [Unit; 2] = [Unit::Velo, Unit::Rma];

/// Descriptors of a VPID on the way if nothing is said: as many as software can number, so that there is no retry.
const DEPTH: u32 = 256;

/// A generator for one purpose of one NIC.
pub(super) fn draws(cfg: &NicConfig, purpose: u64) -> SmallRng {
    let who = (u64::from(cfg.guid()) << 8) | purpose;
    SmallRng::seed_from_u64(cfg.wc_seed ^ who.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// What a VPID has on the way.
#[derive(Clone, Copy, Default)]
struct Load {
    descriptors: u32,
    /// When the last one is executed; none may overtake it.
    last: u64,
}

struct Flying {
    unit: Unit,
    vpid: u8,
    /// `None`: executed, not counted yet.
    work: Option<Kept>,
}

/// See the module.
pub(super) struct Flight {
    rng: SmallRng,
    /// By time, then by arrival.
    queue: BTreeMap<(u64, u64), Flying>,
    arrivals: u64,
    load: [Box<[Load; 256]>; 2],
    /// When a look for incomplete descriptors is worth it.
    sweep_at: [Option<u64>; 2],
}

impl Flight {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            rng: draws(cfg, 1),
            queue: BTreeMap::new(),
            arrivals: 0,
            load: [
                Box::new([Load::default(); 256]),
                Box::new([Load::default(); 256]),
            ],
            sweep_at: [None; 2],
        }
    }

    /// Descriptors that are not executed.
    pub(super) fn len(&self) -> usize {
        self.queue.values().filter(|f| f.work.is_some()).count()
    }

    pub(super) fn is_busy(&self, unit: Unit, vpid: usize) -> bool {
        self.load[unit as usize][vpid].descriptors != 0
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        let first = self.queue.first_key_value().map(|(k, _)| k.0);
        self.sweep_at.into_iter().flatten().chain(first).min()
    }

    /// Mostly short, at times as long as may be.
    fn delay(&mut self, longest: u64) -> u64 {
        let most = match self.rng.random_ratio(1, 8) {
            true => longest,
            false => longest / 16,
        };
        self.rng.random_range(0..=most)
    }

    fn put(&mut self, at: u64, flying: Flying) {
        self.queue.insert((at, self.arrivals), flying);
        self.arrivals += 1;
    }
}

/// Registers with the time-out of each unit.
fn timeout_register(unit: Unit) -> RegOffset {
    match unit {
        Unit::Velo => regs::velo::TIMEOUT,
        Unit::Rma => regs::rma::TIMEOUT,
    }
}

/// Empties an assembly that is too old, or takes its age into account.
pub(super) fn expire<V: Default + PartialEq>(
    valid: &mut V,
    since: u64,
    now: u64,
    patience: u64,
    oldest: &mut Option<u64>,
) -> bool {
    if *valid == V::default() {
        return false;
    }
    if now.saturating_sub(since) >= patience {
        *valid = V::default();
        return true;
    }
    *oldest = Some(oldest.map_or(since, |o| o.min(since)));
    false
}

impl Nic {
    /// A descriptor is complete.
    #[inline]
    pub(super) fn wcbuf_submit(&mut self, unit: Unit, vpid: u8, work: Kept, env: &mut Env<'_>) {
        self.lines.completed();
        let Some(work) = self.wcbuf_keep(unit, vpid, work) else {
            return;
        };
        let congested = match &work {
            Kept::Message(tc, _, d) => self.velo_congested(*tc, *d),
            Kept::Command(command) => self.rma_congested(command),
        };
        let load = self.flight.load[unit as usize][usize::from(vpid)];
        let depth = self.cfg.wc_depth.map_or(DEPTH, NonZeroU32::get);
        let full = load.descriptors >= depth;
        if !self.wcbuf_admit(unit, vpid, congested || full) {
            return;
        }
        let longest = self.cfg.wc_commit_ns;
        if longest == 0 && load.descriptors == 0 {
            self.wcbuf_commit(unit, vpid);
            self.wcbuf_execute(vpid, work, env);
            return;
        }
        let now = env.host.now_ns();
        let at = (now + self.flight.delay(longest)).max(load.last);
        self.flight.load[unit as usize][usize::from(vpid)] = Load {
            descriptors: load.descriptors + 1,
            last: at,
        };
        let work = Some(work);
        self.flight.put(at, Flying { unit, vpid, work });
    }

    fn wcbuf_execute(&mut self, vpid: u8, work: Kept, env: &mut Env<'_>) {
        match work {
            Kept::Message(tc, message, d) => self.velo_execute(vpid, tc, message, d, env),
            Kept::Command(command) => self.rma_take(command),
        }
    }

    /// Does what is due in the requesters.
    #[inline]
    pub(super) fn requester_tick(&mut self, env: &mut Env<'_>) {
        let now = env.host.now_ns();
        if self.lines.next_due().is_some_and(|at| at <= now) {
            self.lines_tick(now, env);
        }
        if self.flight.next_due().is_some_and(|at| at <= now) {
            self.flight_tick(now, env);
        }
    }

    fn flight_tick(&mut self, now: u64, env: &mut Env<'_>) {
        while let Some(entry) = self.flight.queue.first_entry() {
            let due = entry.key().0;
            if due > now {
                break;
            }
            let Flying { unit, vpid, work } = entry.remove();
            if let Some(work) = work {
                self.wcbuf_execute(vpid, work, env);
                let at = due + self.flight.delay(self.cfg.wc_commit_ns);
                let work = None;
                self.flight.put(at, Flying { unit, vpid, work });
            } else {
                self.wcbuf_commit(unit, vpid);
                let load = &mut self.flight.load[unit as usize][usize::from(vpid)];
                load.descriptors -= 1;
            }
        }
        for unit in UNITS {
            if self.flight.sweep_at[unit as usize].is_some_and(|at| at <= now) {
                self.sweep(unit, now, env);
            }
        }
    }

    /// How long a descriptor may be incomplete.
    fn wcbuf_patience(&self, unit: Unit) -> Option<u64> {
        let timeout = Timeout(self.storage.at(timeout_register(unit).0));
        let ns = u64::from(timeout.timeout()).saturating_mul(self.cfg.wc_timeout_unit_ns);
        (timeout.timeout_active() && ns != 0).then_some(ns)
    }

    /// A descriptor is begun.
    #[inline]
    pub(super) fn watch_incomplete(&mut self, unit: Unit, now: u64) {
        if self.flight.sweep_at[unit as usize].is_none() {
            let patience = self.wcbuf_patience(unit);
            self.flight.sweep_at[unit as usize] = patience.map(|p| now.saturating_add(p));
        }
    }

    /// Discards descriptors that software did not go on with (HW §8: time-out).
    fn sweep(&mut self, unit: Unit, now: u64, env: &mut Env<'_>) {
        self.flight.sweep_at[unit as usize] = None;
        let Some(patience) = self.wcbuf_patience(unit) else {
            return;
        };
        let (late, oldest) = match unit {
            Unit::Velo => self.velo_expire(now, patience),
            Unit::Rma => self.rma_expire(now, patience),
        };
        self.flight.sweep_at[unit as usize] = oldest.map(|at| at.saturating_add(patience));
        for vpid in late {
            self.counters.drops.wc_timeout = self.counters.drops.wc_timeout.wrapping_add(1);
            self.wcbuf_error(unit, vpid, WcError::QwLength);
            self.diagnose(env, || {
                format!("{unit:?} VPID {vpid}: the descriptor was not completed in time")
            });
        }
    }

    /// Reports stores that are executed although no good software makes them: not of whole quadwords (HW §17), or behind the part
    /// of the page that is `window` bytes long and takes descriptors (G8).
    #[inline]
    pub(super) fn check_store(
        &mut self,
        unit: Unit,
        vpid: u8,
        offset: u16,
        window: usize,
        len: usize,
        env: &mut Env<'_>,
    ) {
        if offset % 8 != 0 || len % 8 != 0 {
            self.counters.wc_not_aligned = self.counters.wc_not_aligned.wrapping_add(1);
            self.wcbuf_error(unit, vpid, WcError::NotAligned);
            self.diagnose(env, || {
                format!("{unit:?} VPID {vpid}: {len}-byte store at offset {offset:#x} of the page")
            });
        }
        if usize::from(offset) >= window {
            self.counters.wc_misplaced = self.counters.wc_misplaced.wrapping_add(1);
            self.diagnose(env, || {
                format!("{unit:?} VPID {vpid}: descriptor at offset {offset:#x} of the page")
            });
        }
    }
}
