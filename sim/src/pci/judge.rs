//! Checks of the invariants.

use super::net::Packet;
use super::node::{numbers, Link};
use super::{Rig, LONGEST};
use anyhow::{ensure, Result};
use protocol::pci::{LeaseState, OfferState};

impl Rig {
    /// Returns true in the case that only power fencing can solve. The target node of a window has
    /// lost its state since the window was created, and the node with the window is dead and can't
    /// close it.
    fn is_excused(&self, from: usize, to: usize, since: u64) -> bool {
        let forgot = match &self.nodes[to].life {
            Some(life) => life.since > since,
            None => true,
        };
        let gone = match &self.nodes[from].life {
            Some(life) => life.since > since && life.since + LONGEST > self.now,
            None => true,
        };
        forgot && gone
    }

    /// Checks that no window leads to a target of another lease.
    pub(super) fn check_tables(&self) -> Result<()> {
        for (from, node) in self.nodes.iter().enumerate().filter(|n| n.1.on) {
            for (n, window) in node.windows.iter().enumerate() {
                let Some(window) = window else {
                    continue;
                };
                // A device that is not bus master cannot access memory.
                let quiet = |i: usize| self.functions[i].master.is_none();
                if window.function.is_some_and(quiet) {
                    continue;
                }
                let to = &self.nodes[window.node];
                let Some(target) = to.targets[n].filter(|_| to.on) else {
                    continue;
                };
                ensure!(
                    target.lease == window.lease
                        || self.is_excused(from, window.node, window.since),
                    "window {n} of {from} for lease {:x} leads to what is open at {} for {:x}",
                    window.lease.0,
                    window.node,
                    target.lease.0
                );
            }
        }
        for (i, function) in self.functions.iter().enumerate() {
            if let Some((lease, _)) = function.master {
                let by = function.used_by;
                ensure!(
                    by == Some(lease) || self.mutation.is_some(),
                    "device {i} masters the bus for {lease:x?}, used by {by:x?}"
                );
            }
        }
        Ok(())
    }

    /// Processes and checks an access on arrival.
    pub(super) fn arrive(&mut self, i: u64) -> Result<()> {
        let Some(packet) = self.net.packets.remove(&i) else {
            return Ok(());
        };
        let Packet {
            from, to, number, ..
        } = packet;
        if !self.nodes[to].on || self.net.cut[from][to] > 0 {
            return Ok(());
        }
        let Some(target) = self.nodes[to].targets[number] else {
            return Ok(());
        };
        let what = if packet.dma { "DMA" } else { "an access" };
        ensure!(
            target.lease == packet.lease || self.is_excused(from, to, packet.since),
            "{what} of lease {:x} of {from} arrives at what is open at {to} for {:x}",
            packet.lease.0,
            target.lease.0
        );
        self.summary.arrived += 1;
        if !packet.dma {
            // The access changes the state of the device.
            let mine = |f: &&mut super::Function| f.home == to;
            let handle = self.nodes[to].life.as_ref().and_then(|life| {
                let mut all = life.lender.devices();
                Some(
                    all.find(|(_, lease)| *lease == Some(packet.lease))?
                        .0
                        .handle,
                )
            });
            let mut all = self.functions.iter_mut().filter(mine);
            if let Some(f) = all.find(|f| f.handle.is_some() && f.handle == handle) {
                f.used_by = Some(packet.lease);
            }
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<()> {
        self.check_tables()?;
        for node in 0..self.nodes.len() {
            self.check_node(node)?;
        }
        Ok(())
    }

    fn check_node(&mut self, i: usize) -> Result<()> {
        let node = &self.nodes[i];
        let Some(life) = &node.life else {
            return Ok(());
        };
        for (handle, lease, lender, state) in life.borrower.leases() {
            let lender = usize::from(lender.0);
            ensure!(
                state == LeaseState::Up,
                "{handle:?} of {i} is {state} in the end"
            );
            let other = self.nodes[lender].life.as_ref();
            let known = other.is_some_and(|l| l.lender.devices().any(|d| d.1 == Some(lease)));
            ensure!(known, "ends do not agree: {i} has {lease:x?} of {lender}");
        }
        for (device, lease) in life.lender.devices() {
            let state = life.lender.state(device.handle);
            let Some(lease) = lease else {
                let rests = [Some(OfferState::Free), Some(OfferState::Broken)];
                ensure!(rests.contains(&state), "a device of {i} is {state:?}");
                continue;
            };
            ensure!(
                state == Some(OfferState::Lent),
                "a device of {i} is {state:?} in the end"
            );
            let has = |n: &super::Node| {
                let life = n.life.as_ref();
                life.is_some_and(|l| l.borrower.leases().any(|b| b.1 == lease))
            };
            ensure!(
                self.nodes.iter().any(has),
                "ends do not agree: {i} has lent {lease:x?}"
            );
        }
        let fences = [life.lender.fences(), life.borrower.fences()];
        for (peer, lease, set, since) in fences.iter().flat_map(|f| f.open()) {
            let dead = self.nodes.get(usize::from(peer.0)).is_none_or(|p| p.dead);
            ensure!(
                dead || set == 0,
                "{set:#x} of {lease:x?} at {i} is fenced for {peer} since {}",
                since.0
            );
        }
        let held = fences[0].numbers() | fences[1].numbers();
        ensure!(
            node.parked == held,
            "targets {:#x} of {i} are held, not {held:#x}",
            node.parked
        );
        let known: Vec<_> = life
            .lender
            .devices()
            .filter_map(|d| d.1)
            .chain(life.borrower.leases().map(|l| l.1))
            .collect();
        let stray = |l: &Option<Link>| l.is_some_and(|l| !known.contains(&l.lease));
        for (name, table) in [("window", &node.windows), ("target", &node.targets)] {
            for (n, link) in table.iter().enumerate() {
                ensure!(!stray(link), "{name} {n} of {i} is left: {:x?}", link);
            }
        }
        let (l, b) = (life.lender.counters(), life.borrower.counters());
        ensure!(
            l.misused + b.misused == 0 && life.lender.flow().impossible() == 0,
            "calls in a wrong state: {l:?} {b:?}"
        );
        ensure!(life.borrower.flow().impossible() == 0, "an impossible step");
        ensure!(
            b.stuck == 0 || self.liar == Some(i),
            "a lease of {i} is lost without answers, though its lender answers"
        );
        let s = &mut self.summary;
        s.fenced += numbers(held).count() as u64;
        s.expired += l.expired;
        s.reclaimed += l.reclaimed;
        s.resets += l.resets;
        s.again += l.again + b.again;
        s.odd += l.odd + b.odd;
        s.stuck += b.stuck;
        Ok(())
    }
}
