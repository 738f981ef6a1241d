//! Faults of a run, and actions of administrators.

use super::{Event, Rig, BUSY, MS};
use anyhow::Result;
use protocol::Time;
use rand::Rng;
use wire::ids::NodeId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// No message passes between two nodes.
    Cut(usize, usize),
    /// No message passes from or to a node.
    Isolate(usize),
    /// The system has stopped, but its NIC and devices run.
    Crash(usize),
    PowerOff(usize),
    /// The node never comes back; other nodes are notified or not.
    Die(usize, bool),
    /// The module is unloaded and loaded again.
    Reload(usize),
    /// A device is reclaimed, with a grace time in ms.
    Reclaim(usize, u32),
    /// A device is not offered for a while.
    Withdraw(usize),
    /// A device stops working.
    Break(usize),
    /// Other users take interval numbers.
    Others(usize),
}

impl Fault {
    /// Returns the node whose driver the fault stops.
    fn ends(self) -> Option<usize> {
        match self {
            Self::Crash(n) | Self::PowerOff(n) | Self::Die(n, _) | Self::Reload(n) => Some(n),
            _ => None,
        }
    }
}

impl Rig {
    pub(super) fn add_fault(&mut self) {
        let count = self.nodes.len();
        let node = self.rng.random_range(0..count);
        let other = (node + self.rng.random_range(1..count)) % count;
        let device = self.rng.random_range(0..self.functions.len());
        let fault = match self.rng.random_range(0..13) {
            0 => Fault::Cut(node, other),
            1 => Fault::Isolate(node),
            2 | 3 => Fault::Crash(node),
            4 => Fault::PowerOff(node),
            5 => Fault::Die(node, self.rng.random_bool(0.5)),
            6 | 7 => Fault::Reload(node),
            8 => Fault::Reclaim(device, [0, 100, 600][self.rng.random_range(0..3)]),
            9 => Fault::Withdraw(device),
            10 => Fault::Break(device),
            _ => Fault::Others(node),
        };
        let same = |f: &Fault| *f == fault || f.ends().is_some() && f.ends() == fault.ends();
        if self.faults.iter().any(|(f, _)| same(f)) {
            return;
        }
        let at = self.rng.random_range(0..BUSY);
        self.add(fault, at);
    }

    /// Loads modules again; devices are requested as soon as a module is back. Some lenders are cut
    /// off during the reload.
    pub(super) fn add_reloads(&mut self) {
        for _ in 0..self.rng.random_range(1..=3) {
            let node = self.rng.random_range(0..self.nodes.len());
            let fault = Fault::Reload(node);
            if self.faults.iter().any(|(f, _)| f.ends() == fault.ends()) {
                continue;
            }
            let at = self.rng.random_range(0..BUSY);
            self.add(fault, at);
            let lender = self.functions[self.rng.random_range(0..self.functions.len())].home;
            let cut = Fault::Cut(node, lender);
            let new = !self.faults.iter().any(|(f, _)| *f == cut);
            if lender != node && new && self.rng.random_bool(0.5) {
                let number = self.faults.len();
                self.faults.push((cut, at + 1_500 * MS));
                self.at(at.saturating_sub(MS), Event::Fault(number));
            }
            for _ in 0..4 {
                let at = at + self.rng.random_range(MS..1_200 * MS);
                self.at(at, Event::Want(node));
            }
        }
    }

    fn add(&mut self, fault: Fault, at: u64) {
        let span = [30 * MS, 400 * MS, 1_500 * MS][self.rng.random_range(0..3)];
        let end = at + self.rng.random_range(MS..=span);
        let number = self.faults.len();
        self.faults.push((fault, end));
        self.at(at, Event::Fault(number));
    }

    fn cut(&mut self, a: usize, b: usize, more: bool) {
        for (a, b) in [(a, b), (b, a)] {
            let cut = &mut self.net.cut[a][b];
            *cut = if more { *cut + 1 } else { *cut - 1 };
        }
    }

    /// Switches a node off.
    fn power_off(&mut self, node: usize) {
        self.nodes[node].clear();
        self.nodes[node].on = false;
        self.stop(node);
        for function in self.functions.iter_mut().filter(|f| f.home == node) {
            function.reset();
        }
    }

    fn stop(&mut self, node: usize) {
        self.nodes[node].life = None;
        for function in self.functions.iter_mut().filter(|f| f.home == node) {
            function.handle = None;
            function.stopping = false;
        }
    }

    pub(super) fn begin(&mut self, i: usize) -> Result<()> {
        let (fault, end) = self.faults[i];
        self.log(|| format!("{fault:?}"));
        let now = Time(self.now);
        self.at(end.max(self.now + 1), Event::Heal(i));
        match fault {
            Fault::Cut(a, b) => self.cut(a, b, true),
            Fault::Isolate(a) => {
                let others = (0..self.nodes.len()).filter(|b| *b != a);
                others.for_each(|b| self.cut(a, b, true));
            }
            Fault::Crash(node) => self.stop(node),
            Fault::PowerOff(node) => self.power_off(node),
            Fault::Die(node, _) => {
                self.power_off(node);
                self.nodes[node].dead = true;
            }
            Fault::Reload(node) => {
                self.stop(node);
                self.nodes[node].clear();
                return self.start(node);
            }
            Fault::Reclaim(device, grace) => {
                let (home, handle) = (self.functions[device].home, self.functions[device].handle);
                if let (Some(life), Some(handle)) = (self.nodes[home].life.as_mut(), handle) {
                    life.lender.reclaim(now, handle, grace);
                    return self.drain(home);
                }
            }
            Fault::Withdraw(device) => {
                let (home, handle) = (self.functions[device].home, self.functions[device].handle);
                if let (Some(life), Some(handle)) = (self.nodes[home].life.as_mut(), handle) {
                    life.lender.withdraw(now, handle);
                    return self.drain(home);
                }
            }
            Fault::Break(device) => self.functions[device].works = false,
            Fault::Others(node) => {
                self.others(node);
                return self.check_tables();
            }
        }
        Ok(())
    }

    pub(super) fn heal(&mut self, i: usize) -> Result<()> {
        let (fault, _) = self.faults[i];
        self.log(|| format!("{fault:?} ends"));
        let now = Time(self.now);
        match fault {
            Fault::Cut(a, b) => self.cut(a, b, false),
            Fault::Isolate(a) => {
                let others = (0..self.nodes.len()).filter(|b| *b != a);
                others.for_each(|b| self.cut(a, b, false));
            }
            Fault::Crash(node) => {
                self.nodes[node].clear();
                return self.start(node);
            }
            Fault::PowerOff(node) => return self.start(node),
            Fault::Die(node, notified) if notified => {
                for other in 0..self.nodes.len() {
                    if let Some(life) = self.nodes[other].life.as_mut() {
                        let down = NodeId(node as u16);
                        life.lender.node_down(now, down);
                        life.borrower.node_down(now, down);
                        self.drain(other)?;
                    }
                }
            }
            Fault::Withdraw(device) => {
                let function = &self.functions[device];
                let home = function.home;
                // The previous offer may not have ended yet.
                if self.nodes[home].life.is_none() {
                    return Ok(());
                }
                if function.handle.is_some() {
                    let at = self.now + 100 * MS;
                    self.at(at, Event::Heal(i));
                    return self.drain(home);
                }
                self.offer(device)?;
                return self.drain(home);
            }
            Fault::Break(device) => self.functions[device].works = true,
            Fault::Others(node) => self.no_others(node),
            Fault::Die(..) | Fault::Reload(_) | Fault::Reclaim(..) => {}
        }
        Ok(())
    }
}
