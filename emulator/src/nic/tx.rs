//! The way out: packets go to the outbox at once, or wait in order while the network takes nothing.

use super::rma::RmaCommand;
use super::{Nic, Pressure, RmaMessage};
use crate::env::{Env, Packet};
use std::collections::VecDeque;

/// Least that a packet costs of the network's credit, in bytes: its descriptor.
const MIN_CREDIT: u64 = 16;
/// Bytes that one thing held back costs the host, about.
pub(super) const HOLD_COST: u64 = 256;

/// Something that ends in a packet. Data is read when it is executed, so waiting costs little.
pub(super) enum Job {
    Packet(Packet),
    Command(RmaCommand),
    /// Request from a node that asks for a response, with its traffic class.
    Serve(u16, u8, RmaMessage),
}

#[derive(Default)]
pub(super) struct Tx {
    queue: VecDeque<Job>,
    /// Packets that arrived while the NIC is frozen.
    frozen: VecDeque<Packet>,
    frozen_bytes: u64,
    pub(super) pressure: Pressure,
}

impl Tx {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Forgets RMA commands of a VPID of this node and requests to it; returns how many that were.
    pub(super) fn forget_rma(&mut self, vpid: u8) -> usize {
        let before = self.queue.len();
        self.queue.retain(|job| match job {
            Job::Packet(_) => true,
            Job::Command(command) => command.vpid != vpid,
            Job::Serve(_, _, m) => m.peer_vpid != vpid,
        });
        before - self.queue.len()
    }
}

impl Nic {
    /// True if nothing may be sent now, or if something waits already.
    pub(super) fn tx_blocked(&self, env: &Env<'_>) -> bool {
        env.tx_credit == 0 || self.cfg.faults.frozen || !self.tx.is_empty()
    }

    /// Things that wait for the network.
    pub(super) fn tx_len(&self) -> usize {
        self.tx.len()
    }

    /// True if a requester must refuse further descriptors.
    pub(super) fn tx_full(&self) -> bool {
        self.tx.len() + self.rma.engine.len() >= self.cfg.tx_queue_limit
    }

    /// Sends a packet, in order.
    pub(super) fn send(&mut self, packet: Packet, env: &mut Env<'_>) {
        if self.tx_blocked(env) {
            self.tx.queue.push_back(Job::Packet(packet));
        } else {
            self.inject(packet, env);
        }
    }

    /// Puts a packet into the outbox.
    pub(super) fn inject(&mut self, packet: Packet, env: &mut Env<'_>) {
        self.counters.packets_sent = self.counters.packets_sent.wrapping_add(1);
        let cost = u64::from(packet.bytes).max(MIN_CREDIT);
        if env.tx_credit != u64::MAX {
            env.tx_credit = env.tx_credit.saturating_sub(cost);
        }
        env.outbox.push_back(packet);
    }

    /// Queues something that has to wait its turn. Requests of other nodes are limited like messages on hold.
    pub(super) fn wait_tx(&mut self, job: Job) {
        let cost = (self.tx.queue.len() as u64).saturating_mul(HOLD_COST);
        if matches!(job, Job::Serve(..)) && cost > self.cfg.hold_limit_bytes {
            self.counters.drops.hold_limit = self.counters.drops.hold_limit.wrapping_add(1);
            return;
        }
        self.tx.queue.push_back(job);
    }

    /// Executes what waited, while the network takes it.
    pub(super) fn run_tx(&mut self, env: &mut Env<'_>) {
        while env.tx_credit != 0 && !self.cfg.faults.frozen {
            match self.tx.queue.pop_front() {
                Some(Job::Packet(packet)) => self.inject(packet, env),
                Some(Job::Command(command)) => self.rma_execute(&command, env),
                Some(Job::Serve(node, tc, message)) => self.rma_serve(node, tc, message, env),
                None => break,
            }
        }
    }

    /// Keeps a packet that arrives while the NIC is frozen.
    pub(super) fn hold_packet(&mut self, packet: Packet, env: &mut Env<'_>) {
        let cost = HOLD_COST + u64::from(packet.bytes);
        if self.tx.frozen_bytes.saturating_add(cost) > self.cfg.hold_limit_bytes {
            self.counters.drops.hold_limit = self.counters.drops.hold_limit.wrapping_add(1);
            self.diagnose(env, || {
                "frozen NIC: too many packets waiting, dropped".to_owned()
            });
            return;
        }
        self.tx.frozen_bytes += cost;
        self.tx.frozen.push_back(packet);
    }

    /// Takes in what arrived while the NIC was frozen.
    pub(super) fn thaw(&mut self, env: &mut Env<'_>) {
        self.tx.frozen_bytes = 0;
        for packet in std::mem::take(&mut self.tx.frozen) {
            self.deliver(packet, env);
        }
    }
}
