//! Accesses of NICs to other devices of their hosts: DMA messages to clients, the clients' answers,
//! and avoidance of deadlocks.
//!
//! A client that waits for its guest's load from a NIC answers no DMA messages on the sockets of
//! all its NICs. Such a load may read a device of another host, or of the same host. If the other
//! host waits in the same way, hosts may wait for each other in a cycle. The load that would close
//! the cycle returns all ones.

use crate::peer::{Answered, Request, Settled};
use crate::world::World;
use std::collections::BTreeSet;

impl World {
    /// Records that the client of a NIC accepts DMA messages.
    pub fn host_takes_dma(&mut self, nic: usize) {
        self.slots[nic].machine.peers.open();
    }

    /// Drops all accesses that wait for a client that has disconnected.
    pub(crate) fn host_gone(&mut self, nic: usize) {
        let loads = self.slots[nic].machine.disconnect();
        self.fail_loads(nic, loads);
    }

    /// Returns true if a message can be sent to the client of a NIC now.
    pub fn has_request(&self, nic: usize) -> bool {
        self.slots[nic].machine.peers.has_request()
    }

    /// Returns true while answers of the client of a NIC are pending.
    pub fn awaits_answers(&self, nic: usize) -> bool {
        self.slots[nic].machine.peers.awaits()
    }

    /// Returns the next DMA message for the client of a NIC.
    pub fn next_request(&mut self, nic: usize) -> Option<Request> {
        let now = self.now();
        let machine = &mut self.slots[nic].machine;
        let request = machine.peers.request(now)?;
        // Memory writes that are queued behind a load do not wait for the answer to the load.
        self.run_due(nic);
        Some(request)
    }

    fn run_due(&mut self, nic: usize) {
        let now = self.now();
        let machine = &mut self.slots[nic].machine;
        machine.now_ns = now;
        machine.run_due();
    }

    /// Processes an answer of the client of a NIC to a DMA message.
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
            Settled::NoDevice {
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
                machine.warn(format_args!(
                    "answer to DMA message {id} does not match any pending access"
                ));
                self.run_due(nic);
                self.fail_loads(nic, load.into_iter().collect());
            }
            Settled::Late => {}
        }
        self.settle();
    }

    /// Ends loads of other nodes without data. Returns the credit of stores that have ended to the
    /// NICs that sent the stores.
    fn fail_loads(&mut self, nic: usize, loads: Vec<u64>) {
        self.with_nic(nic, |n, env| {
            n.stores_ended(env);
            for load in loads {
                n.loaded(load, None, env);
            }
        });
    }

    /// Returns the next time at which the emulator stops waiting for a client that does not answer.
    pub(crate) fn peer_deadline(&self) -> Option<u64> {
        let all = self.slots.iter();
        all.filter_map(|s| s.machine.peers.deadline()).min()
    }

    /// Stops waiting for clients that have not answered in time.
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

    /// Returns pairs of hosts. The first host of a pair waits for an answer of the second host.
    fn waits(&self) -> BTreeSet<(usize, usize)> {
        let mut waits = BTreeSet::new();
        for (i, slot) in self.slots.iter().enumerate() {
            for (node, tag) in slot.nic.requesters() {
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

    /// Ends the new loads of a NIC that its client can't answer, because the client waits for these
    /// loads.
    pub(crate) fn break_cycles(&mut self, nic: usize) {
        for load in self.slots[nic].machine.peers.take_new() {
            let host = self.host_of(nic);
            let waits = self.waits();
            let Some((node, tag)) = self.slots[nic].nic.requester(load) else {
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
                "load of node {node} from a device of this host returns all ones, because this host waits for that node"
            ));
            self.run_due(nic);
            self.fail_loads(nic, vec![load]);
        }
    }
}

/// Returns true if `from` equals `to`, or waits for it directly or indirectly.
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
