//! Descriptors between their last store and the increment of the committed count (HW §8, G11):
//! delays, limits, and timeouts of incomplete descriptors.
//!
//! MODEL: a complete descriptor is executed after a random time. Descriptors of one VPID are
//! executed in order (HW §9.1), descriptors of different VPIDs in any order. A descriptor leaves
//! the requester when its message enters the network, or when its RMA command begins. While the
//! network is blocked, the descriptor stays in the requester (HW §8: "accepted", §9.6). Another
//! random time passes between this and the increment of the committed count. Until then, `assembly`
//! and `streamout` differ.
//! differ.

use super::random_delay::RandomDelay;
use super::wcbuf::{Kept, WcError};
use super::{Nic, NicConfig};
use crate::env::Env;
use crate::seed::Purpose;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use wire::ids::{RegOffset, Unit};
use wire::regs::wcbuf::{self as regs, Timeout};

const UNITS: [Unit; 2] = [Unit::Velo, Unit::Rma];

/// Default maximum number of descriptors of a VPID in flight. Software's count has the same range,
/// so there is no retry.
const DEPTH: u32 = 256;

/// Descriptors of a VPID that are in flight.
#[derive(Clone, Copy, Default)]
struct Load {
    descriptors: u32,
    /// Time in ns at which the VPID's last descriptor is executed. Later descriptors must not
    /// overtake it.
    last: u64,
}

struct Flying {
    unit: Unit,
    vpid: u8,
    /// The descriptor; `None` after it has left the requester and before it counts as committed.
    work: Option<Kept>,
}

/// All descriptors in flight.
pub(super) struct Flight {
    delay: RandomDelay,
    /// Descriptors by the time in ns at which they are due, then by order of arrival.
    queue: BTreeMap<(u64, u64), Flying>,
    arrivals: u64,
    /// Time at which the descriptor that is being executed was due.
    executing: Option<u64>,
    load: [Box<[Load; 256]>; 2],
    /// Time of the next check for incomplete descriptors of each unit.
    sweep_at: [Option<u64>; 2],
}

impl Flight {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            delay: RandomDelay::new(cfg, Purpose::Requesters, cfg.wc_commit_ns),
            queue: BTreeMap::new(),
            arrivals: 0,
            executing: None,
            load: [
                Box::new([Load::default(); 256]),
                Box::new([Load::default(); 256]),
            ],
            sweep_at: [None; 2],
        }
    }

    /// Returns the number of descriptors that have not been executed.
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

    pub(super) fn reseed(&mut self, seed: u64) {
        self.delay.reseed(seed);
    }

    fn put(&mut self, at: u64, flying: Flying) {
        self.queue.insert((at, self.arrivals), flying);
        self.arrivals += 1;
    }
}

/// Returns the time-out register of a unit.
fn timeout_register(unit: Unit) -> RegOffset {
    match unit {
        Unit::Velo => regs::velo::TIMEOUT,
        Unit::Rma => regs::rma::TIMEOUT,
    }
}

/// Clears an assembly that is older than `patience` ns, and returns true. Otherwise, includes its
/// time in `oldest`.
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
    /// Passes a complete descriptor to the requester.
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
        self.flight.load[unit as usize][usize::from(vpid)].descriptors += 1;
        if self.flight.delay.is_off() {
            self.wcbuf_execute(vpid, work, env);
            return;
        }
        let now = env.host.now_ns();
        let at = (now + self.flight.delay.draw()).max(load.last);
        self.flight.load[unit as usize][usize::from(vpid)].last = at;
        let work = Some(work);
        self.flight.put(at, Flying { unit, vpid, work });
    }

    /// Records that the message or command of a descriptor has left the requester or was dropped.
    pub(super) fn wcbuf_left(&mut self, unit: Unit, vpid: u8, env: &Env<'_>) {
        if self.flight.delay.is_off() {
            self.wcbuf_done(unit, vpid);
            return;
        }
        let since = self.flight.executing.unwrap_or(env.host.now_ns());
        let at = since + self.flight.delay.draw();
        let work = None;
        self.flight.put(at, Flying { unit, vpid, work });
    }

    fn wcbuf_done(&mut self, unit: Unit, vpid: u8) {
        self.wcbuf_commit(unit, vpid);
        let load = &mut self.flight.load[unit as usize][usize::from(vpid)];
        load.descriptors = load.descriptors.saturating_sub(1);
    }

    fn wcbuf_execute(&mut self, vpid: u8, work: Kept, env: &mut Env<'_>) {
        match work {
            Kept::Message(tc, message, d) => self.velo_execute(vpid, tc, message, d, env),
            Kept::Command(command) => self.rma_take(&command, env),
        }
    }

    /// Runs the work of the requesters that is due.
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
                self.flight.executing = Some(due);
                self.wcbuf_execute(vpid, work, env);
                self.flight.executing = None;
            } else {
                self.wcbuf_done(unit, vpid);
            }
        }
        for unit in UNITS {
            if self.flight.sweep_at[unit as usize].is_some_and(|at| at <= now) {
                self.sweep(unit, now, env);
            }
        }
    }

    /// Returns the time in ns for which a descriptor may stay incomplete; `None` for no limit.
    fn wcbuf_patience(&self, unit: Unit) -> Option<u64> {
        let timeout = Timeout(self.storage.at(timeout_register(unit).0));
        let ns = u64::from(timeout.timeout()).saturating_mul(self.cfg.wc_timeout_unit_ns);
        (timeout.timeout_active() && ns != 0).then_some(ns)
    }

    /// Schedules the timeout check, because software has begun a descriptor.
    #[inline]
    pub(super) fn watch_incomplete(&mut self, unit: Unit, now: u64) {
        if self.flight.sweep_at[unit as usize].is_none() {
            let patience = self.wcbuf_patience(unit);
            self.flight.sweep_at[unit as usize] = patience.map(|p| now.saturating_add(p));
        }
    }

    /// Discards descriptors that software has not completed in time (HW §8: time-out).
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

    /// Counts and reports stores that correct software never makes: stores that are not whole
    /// aligned quadwords (HW §17), and stores behind the first `window` bytes of the page, which
    /// hold descriptors (G8). The requester executes these stores nevertheless.
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
