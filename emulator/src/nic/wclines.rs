//! Model of the CPU's write combining for stores to requester pages (HW §8, §17).
//!
//! QEMU passes each store of a guest on at once and hides the guest's fences. In mode `lines`, the
//! model adds the CPU's write-combining buffers. Stores collect in lines of 64 bytes, which leave
//! in any order. Only a fence guarantees that they leave. If the NIC requests it, drivers mark each
//! fence by a store at [`MARK`]. A line without a fence leaves after a delay. All of this is a
//! MODEL decision.

use super::{Nic, NicConfig, WriteCombining};
use crate::env::Env;
use crate::seed::{self, Purpose};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::Rng;
use wire::ids::Unit;
use wire::wcbuf::MARK;

const LINE: usize = 64;
/// Number of lines that a CPU has.
const OPEN: usize = 10;
/// Time in ns within which the mark must follow a delivered descriptor. It is long, because a guest
/// may stop between any two stores.
const GRACE_NS: u64 = 1_000_000_000;

struct Line {
    unit: Unit,
    vpid: u8,
    /// Offset of the line in the requester pages of the unit.
    at: u32,
    bytes: [u8; LINE],
    /// Set of the bytes that have been stored, one bit per byte.
    valid: u64,
    /// Set of the bytes that have been stored since a byte was last overwritten.
    fresh: u64,
    /// Latest time in ns at which the line is delivered.
    due: u64,
}

/// Number of descriptors of a VPID that are complete, but not followed by a fence.
struct Unmarked {
    unit: Unit,
    vpid: u8,
    descriptors: u64,
    until: u64,
}

/// All lines of the host's CPUs.
pub(super) struct Lines {
    rng: SmallRng,
    open: Vec<Line>,
    unmarked: Vec<Unmarked>,
    completed: u64,
}

impl Lines {
    pub(super) fn new(cfg: &NicConfig) -> Self {
        Self {
            rng: cfg.draws(Purpose::Combining),
            open: Vec::new(),
            unmarked: Vec::new(),
            completed: 0,
        }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.rng = seed::rng(seed, 0, Purpose::Combining);
    }

    /// Counts a descriptor that the requester has completed.
    #[inline]
    pub(super) fn completed(&mut self) {
        self.completed = self.completed.wrapping_add(1);
    }

    #[inline]
    pub(super) fn next_due(&self) -> Option<u64> {
        let lines = self.open.iter().map(|l| l.due);
        lines.chain(self.unmarked.iter().map(|u| u.until)).min()
    }

    /// Removes the record of a VPID's descriptors without a fence. Returns the number of these
    /// descriptors.
    fn take_unmarked(&mut self, unit: Unit, vpid: u8) -> u64 {
        let found = self
            .unmarked
            .iter()
            .position(|u| u.unit == unit && u.vpid == vpid);
        found.map_or(0, |i| self.unmarked.swap_remove(i).descriptors)
    }
}

/// Iterates over the runs of valid bytes of a quadword, each as offset and length.
fn runs(valid: u8) -> impl Iterator<Item = (usize, usize)> {
    let bit = move |i: usize| i < 8 && valid & (1 << i) != 0;
    (0..8)
        .filter(move |&i| bit(i) && (i == 0 || !bit(i - 1)))
        .map(move |i| (i, (i..=8).take_while(|&k| bit(k)).count()))
}

impl Nic {
    /// Processes a store of the host to a requester page. `data` does not cross a page boundary.
    #[inline]
    pub(super) fn requester_store(&mut self, unit: Unit, at: u32, data: &[u8], env: &mut Env<'_>) {
        let stores = match unit {
            Unit::Velo => &mut self.counters.velo_stores,
            Unit::Rma => &mut self.counters.rma_stores,
        };
        *stores = stores.wrapping_add(1);
        match self.cfg.wc {
            WriteCombining::Stores => self.page_store(unit, at, data, env),
            WriteCombining::Lines => self.combine(unit, at, data, env),
        }
    }

    fn page_store(&mut self, unit: Unit, at: u32, data: &[u8], env: &mut Env<'_>) {
        match unit {
            Unit::Velo => self.velo_store(at, data, env),
            Unit::Rma => self.rma_store(at, data, env),
        }
    }

    fn combine(&mut self, unit: Unit, at: u32, data: &[u8], env: &mut Env<'_>) {
        let vpid = (at >> 12) as u8;
        if at & 0xFFF >= MARK.into() {
            self.lines_flush(unit, vpid, env);
            return;
        }
        // No fence followed the descriptors that were complete before this store.
        let missed = self.lines.take_unmarked(unit, vpid);
        self.unfenced(unit, vpid, missed, env);
        let mut at = at;
        let mut rest = data;
        while !rest.is_empty() {
            let pos = at as usize % LINE;
            let (now, later) = rest.split_at(rest.len().min(LINE - pos));
            self.combine_line(unit, vpid, at, now, env);
            at += now.len() as u32;
            rest = later;
        }
    }

    fn combine_line(&mut self, unit: Unit, vpid: u8, at: u32, data: &[u8], env: &mut Env<'_>) {
        let pos = at as usize % LINE;
        let base = at - pos as u32;
        let mask = (u64::MAX >> (LINE - data.len())) << pos;
        let find = |lines: &Lines| {
            let same = |l: &Line| l.unit == unit && l.at == base;
            lines.open.iter().position(same)
        };
        if find(&self.lines).is_some_and(|i| self.lines.open[i].fresh & mask != 0) {
            // If no fence separates two stores to an address, the NIC receives either both stores
            // or only the second store.
            self.unfenced(unit, vpid, 1, env);
            if self.lines.rng.random() {
                self.evict_where(|l| l.unit == unit && l.at == base, env);
                self.lines.take_unmarked(unit, vpid);
            }
        }
        let hold = self.cfg.wc_hold_ns;
        let i = find(&self.lines).unwrap_or_else(|| {
            let due = env.host.now_ns() + self.lines.rng.random_range(hold / 2..=hold);
            self.lines.open.push(Line {
                unit,
                vpid,
                at: base,
                bytes: [0; LINE],
                valid: 0,
                fresh: 0,
                due,
            });
            self.lines.open.len() - 1
        });
        let line = &mut self.lines.open[i];
        line.bytes[pos..pos + data.len()].copy_from_slice(data);
        if line.fresh & mask != 0 {
            line.fresh = 0;
        }
        line.fresh |= mask;
        line.valid |= mask;
        if line.valid == u64::MAX && self.lines.rng.random() {
            self.evict(i, env);
        }
        if self.lines.open.len() > OPEN {
            let i = self.lines.rng.random_range(0..self.lines.open.len());
            self.evict(i, env);
        }
    }

    /// Delivers a line although no fence requested it. Descriptors that the line completes still
    /// need a fence.
    fn evict(&mut self, i: usize, env: &mut Env<'_>) {
        let line = self.lines.open.swap_remove(i);
        let (unit, vpid) = (line.unit, line.vpid);
        let before = self.lines.completed;
        self.deliver_line(&line, env);
        let descriptors = self.lines.completed.wrapping_sub(before);
        if descriptors != 0 {
            let earlier = self.lines.take_unmarked(unit, vpid);
            self.lines.unmarked.push(Unmarked {
                unit,
                vpid,
                descriptors: earlier + descriptors,
                until: env.host.now_ns() + GRACE_NS,
            });
        }
    }

    /// Passes a line to the requester: at once if the line is full, otherwise in chunks in random
    /// order.
    fn deliver_line(&mut self, line: &Line, env: &mut Env<'_>) {
        if line.valid == u64::MAX {
            self.page_store(line.unit, line.at, &line.bytes, env);
            return;
        }
        let mut words: [usize; LINE / 8] = std::array::from_fn(|i| i);
        words.shuffle(&mut self.lines.rng);
        for word in words {
            for (skip, len) in runs((line.valid >> (8 * word)) as u8) {
                let from = 8 * word + skip;
                let data = &line.bytes[from..from + len];
                self.page_store(line.unit, line.at + from as u32, data, env);
            }
        }
    }

    fn evict_where(&mut self, mut which: impl FnMut(&Line) -> bool, env: &mut Env<'_>) {
        let (mut left, stay) = std::mem::take(&mut self.lines.open)
            .into_iter()
            .partition::<Vec<_>, _>(&mut which);
        self.lines.open = stay;
        left.shuffle(&mut self.lines.rng);
        for line in left {
            self.deliver_line(&line, env);
        }
    }

    /// Delivers all lines of a VPID because of a fence, or because of an uncached store to the
    /// VPID's state register, which acts as a fence.
    pub(super) fn lines_flush(&mut self, unit: Unit, vpid: u8, env: &mut Env<'_>) {
        let before = self.lines.completed;
        self.evict_where(|l| l.unit == unit && l.vpid == vpid, env);
        let now = self.lines.completed.wrapping_sub(before);
        let fenced = self.lines.take_unmarked(unit, vpid) + now;
        // Each descriptor needs its own fence (HW §8, §9.1, §10.2). This fence belongs to the last
        // descriptor. The earlier descriptors, in other pages, had no fence.
        self.unfenced(unit, vpid, fenced.saturating_sub(1), env);
    }

    pub(super) fn lines_tick(&mut self, now: u64, env: &mut Env<'_>) {
        while let Some(i) = self.lines.open.iter().position(|l| l.due <= now) {
            self.evict(i, env);
        }
        while let Some(i) = self.lines.unmarked.iter().position(|u| u.until <= now) {
            let u = self.lines.unmarked.swap_remove(i);
            self.unfenced(u.unit, u.vpid, u.descriptors, env);
        }
    }

    fn unfenced(&mut self, unit: Unit, vpid: u8, descriptors: u64, env: &mut Env<'_>) {
        if descriptors != 0 {
            self.counters.wc_unfenced = self.counters.wc_unfenced.wrapping_add(descriptors);
            self.diagnose(env, || {
                format!(
                    "{unit:?} VPID {vpid}: {descriptors} descriptors without a fence behind them"
                )
            });
        }
    }
}
