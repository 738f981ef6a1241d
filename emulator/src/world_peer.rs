//! Accesses of NICs to other devices of their hosts: what the clients are asked, what they answer, and what must not wait.
//!
//! A client that waits for the answer to a load of its guest from a NIC answers no DMA message meanwhile, on the sockets of all
//! its NICs. Such a load may come from a device of another host, or of its own. If that host waits in the same way and what it
//! waits for comes back to the first one, nobody would ever answer: the load that closes the circle ends with all ones instead.

use crate::peer::{Answered, Request, Settled};
use crate::world::World;
use std::collections::BTreeSet;

impl World {
    /// The client of a NIC takes DMA messages from now on.
    pub fn host_takes_dma(&mut self, nic: usize) {
        self.slots[nic].machine.peers.open();
    }

    /// The client is gone, with all that it was asked.
    pub(crate) fn host_gone(&mut self, nic: usize) {
        let loads = self.slots[nic].machine.disconnect();
        self.fail_loads(nic, loads);
    }

    /// True if the client of a NIC has to be asked something now.
    pub fn has_request(&self, nic: usize) -> bool {
        self.slots[nic].machine.peers.has_request()
    }

    /// True while the client of a NIC owes answers.
    pub fn awaits_answers(&self, nic: usize) -> bool {
        self.slots[nic].machine.peers.awaits()
    }

    /// The next DMA message for the client of a NIC.
    pub fn next_request(&mut self, nic: usize) -> Option<Request> {
        let now = self.now();
        let machine = &mut self.slots[nic].machine;
        let request = machine.peers.request(now)?;
        // Behind a load, what is written to memory need not wait.
        self.run_due(nic);
        Some(request)
    }

    fn run_due(&mut self, nic: usize) {
        let now = self.now();
        let machine = &mut self.slots[nic].machine;
        machine.now_ns = now;
        machine.run_due();
    }

    /// The client of a NIC answered a DMA message.
    pub fn answered(&mut self, nic: usize, answer: Answered) {
        let now = self.now();
        let machine = &mut self.slots[nic].machine;
        machine.now_ns = now;
        let id = answer.id;
        match machine.peers.answer(answer) {
            Settled::Stored => {
                machine.stats.peer_stores += 1;
                self.run_due(nic);
                self.with_nic(nic, |n, env| n.stores_ended(env));
            }
            Settled::Loaded(load, data) => {
                machine.stats.peer_loads += 1;
                self.with_nic(nic, |n, env| n.loaded(load, Some(data), env));
            }
            Settled::Nobody {
                load,
                addr,
                len,
                error,
            } => {
                let what = if load.is_some() { "read" } else { "write" };
                machine.refused(addr, len, what, error);
                self.run_due(nic);
                self.with_nic(nic, |n, env| match load {
                    Some(load) => n.loaded(load, None, env),
                    None => {
                        n.store_failed(addr, len, env);
                        n.stores_ended(env);
                    }
                });
            }
            Settled::Garbage(load) => {
                machine.stats.protocol_errors += 1;
                machine.warn(format_args!("answer to DMA message {id} makes no sense"));
                self.run_due(nic);
                self.fail_loads(nic, load.into_iter().collect());
            }
            Settled::Late => {}
        }
        self.settle();
    }

    /// Loads of other nodes get no data, and stores that have ended give their senders' credit back.
    fn fail_loads(&mut self, nic: usize, loads: Vec<u64>) {
        self.with_nic(nic, |n, env| {
            n.stores_ended(env);
            for load in loads {
                n.loaded(load, None, env);
            }
        });
    }

    /// When a client is given up that answers nothing.
    pub(crate) fn peer_deadline(&self) -> Option<u64> {
        let all = self.slots.iter();
        all.filter_map(|s| s.machine.peers.deadline()).min()
    }

    /// Gives up clients that answer nothing.
    pub(crate) fn expire_peers(&mut self, now: u64) {
        for nic in 0..self.slots.len() {
            let machine = &mut self.slots[nic].machine;
            if machine.peers.deadline().is_some_and(|at| at <= now) {
                machine.now_ns = now;
                let loads = machine.give_up();
                self.fail_loads(nic, loads);
            }
        }
    }

    /// Hosts that wait for answers of other hosts: who waits, for whom.
    fn waits(&self) -> BTreeSet<(usize, usize)> {
        let mut waits = BTreeSet::new();
        for (i, slot) in self.slots.iter().enumerate() {
            for (node, tag) in slot.nic.askers() {
                let who = self.slots.iter().position(|s| {
                    s.connected && s.nic.node_id().0 == node && s.nic.host_waits_for(tag)
                });
                waits.extend(who.map(|who| (self.host_of(who), self.host_of(i))));
            }
        }
        waits
    }

    fn host_of(&self, nic: usize) -> usize {
        nic / self.nics_per_node().max(1)
    }

    /// Of the loads that a NIC is about to ask its client for: ends those for which that client would wait itself.
    pub(crate) fn refuse_circles(&mut self, nic: usize) {
        for load in self.slots[nic].machine.peers.take_new() {
            let host = self.host_of(nic);
            let waits = self.waits();
            let Some((node, tag)) = self.slots[nic].nic.asker(load) else {
                continue;
            };
            let waiting = |s: &crate::world::Slot| {
                s.connected && s.nic.node_id().0 == node && s.nic.host_waits_for(tag)
            };
            let Some(origin) = self.slots.iter().position(waiting) else {
                continue;
            };
            if !reaches(&waits, host, self.host_of(origin)) {
                continue;
            }
            let now = self.now();
            let machine = &mut self.slots[nic].machine;
            if !machine.peers.cancel(load) {
                continue;
            }
            machine.now_ns = now;
            machine.stats.peer_deadlocks += 1;
            machine.warn(format_args!(
                "node {node} loads from a device of this host, which waits for that load: all ones"
            ));
            self.run_due(nic);
            self.fail_loads(nic, vec![load]);
        }
    }
}

/// True if `from` is `to`, or waits for it.
fn reaches(waits: &BTreeSet<(usize, usize)>, from: usize, to: usize) -> bool {
    let (mut todo, mut seen) = (vec![from], BTreeSet::from([from]));
    while let Some(host) = todo.pop() {
        if host == to {
            return true;
        }
        let next = waits.range((host, 0)..=(host, usize::MAX));
        todo.extend(next.map(|(_, to)| *to).filter(|to| seen.insert(*to)));
    }
    false
}

#[cfg(test)]
#[path = "world_peer_tests.rs"]
mod tests;
