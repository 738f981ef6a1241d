// SPDX-License-Identifier: GPL-2.0-only

//! Events of the state machine. The caller holds the lock `core`, so handlers must not call LNet or
//! wait for other threads. Instead they queue tasks for the threads that call LNet.

use super::{
    drive::{Transmit, BATCH},
    tasks::{Kind, Task},
    Core, Machine, Ni, RegionSlots,
};
use crate::ffi::lnet::address;
use kernel::prelude::*;
use protocol::{
    lnd::{Event, GetFailure},
    Time,
};
use wire::ids::NodeId;

/// Maximum number of queued reports about peers.
pub(super) const REPORTS: usize = 64;

impl Ni {
    /// Lets the state machine send messages, and handles its events.
    pub(super) fn drive(&self, core: &mut Core, now: Time) {
        let mut again;
        loop {
            let Core { machine, link, .. } = core;
            let Some(machine) = (**machine).as_mut() else {
                return;
            };
            let sender = link.as_ref().map(|link| &link.sender);
            let mut transmit = Transmit {
                sender,
                outs: &self.outs,
            };
            again = machine.pump(&mut transmit, now, BATCH);
            let mut any = false;
            while let Some(event) = self.next_event(core) {
                any = true;
                self.event(core, event, now);
            }
            if !any {
                break;
            }
        }
        let next = core.machine().and_then(Machine::next_deadline);
        if again || next.is_some_and(|next| next < core.armed) {
            self.signals.doorbell.notify();
        }
    }

    fn next_event(&self, core: &mut Core) -> Option<Event<u32>> {
        core.machine_mut()?.next_event()
    }

    /// Queues a task for a thread that calls LNet: a thread of the CPT that serves peer `node`, or
    /// of the first CPT if there is no peer.
    pub(super) fn post(&self, node: Option<NodeId>, task: Task) {
        let kind = match task {
            Task::Offer(..) => Kind::Arrivals,
            _ => Kind::Endings,
        };
        let cpt = node.map(|node| self.raw.cpt_of(address(node)));
        let queue = self
            .queues
            .iter()
            .find(|(own, _)| Some(*own) == cpt)
            .or(self.queues.first())
            .and_then(|(_, queues)| queues.get(kind as usize));
        let Some(queue) = queue else {
            return;
        };
        if matches!(task, Task::Peer(..)) && queue.len() >= REPORTS {
            // LNet also detects the state of the peer without this report.
            return;
        }
        if let Err(task) = queue.push(task) {
            // Cannot happen: the queue has room for every message. LNet must not be called here, so
            // the task is leaked.
            pr_err!(
                "ex{}: task queue is full, a message of LNet will not end\n",
                self.number
            );
            core::mem::forget(task);
        }
    }

    fn event(&self, core: &mut Core, event: Event<u32>, now: Time) {
        let Core {
            machine,
            link,
            slots,
            ..
        } = core;
        let Some(machine) = (**machine).as_mut() else {
            return;
        };
        let slots: Option<&RegionSlots> = slots.as_deref();
        match event {
            Event::Offer(ticket, node) => self.post(Some(node), Task::Offer(ticket, node)),
            Event::Fetch {
                ticket,
                node,
                source,
                len,
                post_by,
                until,
            } => {
                let slot = slots.and_then(|slots| self.register_slot(slots, ticket));
                let posted = match (link, slots, slot) {
                    (Some(link), Some(slots), Some(slot)) => self.get(
                        (link, slots),
                        slot,
                        (node, source, len),
                        (post_by, until, now),
                    ),
                    _ => Err(GetFailure::NotPosted),
                };
                if let Err(e) = posted {
                    machine.fetched(ticket, Err(e), now);
                }
            }
            Event::RevokeTarget(ticket) => {
                let slot = self.slot_of(ticket);
                let started = match (slots, slot) {
                    (Some(slots), Some(slot)) => self.revoke_sink(slots, slot),
                    _ => false,
                };
                if !started {
                    // The payload was not registered, so nothing must be revoked.
                    machine.get_target_revoked(ticket);
                }
            }
            Event::Received(ticket, done) => match self.finish(ticket, done) {
                Some(finished) => self.post(Some(finished.node()), Task::Finished(finished)),
                None => machine.finished(ticket),
            },
            Event::Revoke(ticket, token) => {
                if !slots.is_some_and(|slots| self.revoke_out(slots, token)) {
                    machine.revoked(ticket);
                }
            }
            Event::Sent(_, token, outcome) => {
                if let Some((node, end)) = self.out_ended(token, outcome) {
                    self.post(Some(node), Task::Sent(token, end));
                }
            }
            Event::Released(_, token) => self.released(slots, token),
            Event::Peer(node, alive) => self.post(Some(node), Task::Peer(node, alive)),
        }
    }
}
