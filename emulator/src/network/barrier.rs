//! Barrier units of the NICs. Each unit has a tree over the links (HW §15.5).
//!
//! Only the registers are known, from a chip with an equal number of links. The protocol is this
//! project's decision (G24, docs/emulator.md). A unit reports to its parent after its hosts have
//! arrived and its children have reported. The root then sends a release, which each unit passes on
//! to its children.

use super::{Network, TE_BARRIER_RELEASED};
use wire::regs::barrier::{UnitsConfig, UnitsWorkSet};

/// Number of barrier units of a NIC.
pub(super) const UNITS: usize = 16;
/// Bit of unit 0 in `lp_in.barrier_received`.
const RECEIVED: u32 = 34;

/// A barrier unit of a NIC.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unit {
    config: u64,
    /// Number of times that the host has arrived since the last release.
    arrived: u8,
    /// Set of links over which a child has reported.
    children: u8,
    /// True after the report to the parent.
    reported: bool,
    /// Flags `released_0`, `released_1` and `released_active`. The last one selects the flag that
    /// the next release sets.
    flags: UnitsWorkSet,
}

impl Unit {
    pub fn work_set(&self) -> u64 {
        self.flags.with_reached(self.arrived > 0).raw()
    }

    pub fn config(&self) -> u64 {
        self.config
    }

    /// Writes the register that holds the work set. Returns `true` if the write is an arrival of
    /// the host.
    pub fn write_work_set(&mut self, value: u64) -> bool {
        let arrives = UnitsWorkSet(value).reached();
        if arrives {
            self.arrived = self.arrived.saturating_add(1);
        }
        arrives
    }

    pub fn write_config(&mut self, value: u64) {
        let config = UnitsConfig(value);
        if config.reset() {
            *self = Self::default();
        }
        self.config = config.with_reset(false).raw();
    }

    /// Returns true if the unit must report: all hosts have arrived, all children have reported,
    /// and the unit has not reported yet.
    fn complete(&self) -> bool {
        let c = UnitsConfig(self.config);
        let waits = c.host_count() != 0 || c.child_nodes() != 0;
        c.enable()
            && waits
            && !self.reported
            && self.arrived >= c.host_count()
            && self.children & c.child_nodes() == c.child_nodes()
    }

    fn release(&mut self) {
        let second = self.flags.released_active();
        self.flags = UnitsWorkSet(0)
            .with_released_0(!second)
            .with_released_1(second)
            .with_released_active(!second);
        (self.arrived, self.children, self.reported) = (0, 0, false);
    }
}

impl Network {
    /// Processes a change of barrier unit `k` of this NIC.
    pub(super) fn barrier(&mut self, nic: usize, k: usize) {
        let mut look_at = vec![nic];
        while let Some(nic) = look_at.pop() {
            let parents = {
                let mut regs = self.regs(nic);
                let unit = &mut regs.barriers[k];
                if !unit.complete() {
                    continue;
                }
                unit.reported = true;
                UnitsConfig(unit.config).parent_nodes()
            };
            if parents == 0 {
                self.release_tree(nic, k);
                continue;
            }
            for (to, port) in self.barrier_signal(nic, k, parents) {
                self.regs(to).barriers[k].children |= 1 << port;
                look_at.push(to);
            }
        }
    }

    fn release_tree(&mut self, root: usize, k: usize) {
        let mut down = vec![root];
        while let Some(nic) = down.pop() {
            let children = {
                let mut regs = self.regs(nic);
                let unit = &mut regs.barriers[k];
                unit.release();
                UnitsConfig(unit.config).child_nodes()
            };
            self.raise(nic, TE_BARRIER_RELEASED);
            for (to, port) in self.barrier_signal(nic, k, children) {
                let unit = self.regs(to).barriers[k];
                let from_parent = UnitsConfig(unit.config).parent_nodes() & (1 << port) != 0;
                // A unit is released once per report. The check of `reported` therefore also ends
                // the loop if the tree has a cycle.
                if unit.reported && from_parent {
                    self.regs(to).barriers[k].reported = false;
                    down.push(to);
                }
            }
        }
    }

    /// Signals the neighbours on `links`. Returns the receivers and their ports. A signal over a
    /// link that is down is lost.
    fn barrier_signal(&mut self, nic: usize, k: usize, links: u8) -> Vec<(usize, u8)> {
        let ports = self.nodes[nic].ports;
        let heard = ports.into_iter().enumerate().filter_map(|(p, cable)| {
            let (c, side) = cable.filter(|_| links & (1 << p) != 0)?;
            let far = self.cables[c].ends[1 - side];
            self.cables[c].live.then_some((far.nic, far.port))
        });
        let heard: Vec<(usize, u8)> = heard.collect();
        for &(to, port) in &heard {
            self.regs(to).links[usize::from(port)].id_flags |= 1 << (RECEIVED as usize + k);
        }
        heard
    }
}
