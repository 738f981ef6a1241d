//! Checks of the invariants.

use super::{
    sink, source, Event, Mutation, Report, Rig, Transfer, BLOCK, BLOCKS, LATE, LIMITS, MS, POISON,
    SOURCE,
};
use crate::port::FREE;
use anyhow::{ensure, Result};
use protocol::transfer::{Failure, Quiet};
use rand::Rng;
use wire::rma::{Command, Direction, NotificationType};

impl Rig {
    /// Processes and checks the reports to owners on a node.
    pub(super) fn collect(&mut self, node: usize) -> Result<()> {
        for report in std::mem::take(&mut self.nodes[node].reports) {
            self.record_trace(|| format!("node {node}: {report:?}"));
            self.receive(node, report)?;
        }
        for n in std::mem::take(&mut self.nodes[node].unclaimed) {
            // Peers notify of PUTs, GETs and notification PUTs. Late notifications for a closed
            // port arrive too.
            let expected = matches!(
                (n.kind, n.command),
                (
                    NotificationType::Completer,
                    Command::BytePut | Command::NotificationPut
                ) | (NotificationType::Responder, Command::ByteGet)
            );
            ensure!(
                expected || !self.healthy[node] || !self.is_well(n.node.0.into()),
                "node {node} has no owner for {n:?}"
            );
        }
        Ok(())
    }

    fn is_well(&self, node: usize) -> bool {
        self.healthy.get(node) == Some(&true)
    }

    fn receive(&mut self, node: usize, report: Report) -> Result<()> {
        let now = self.fabric.now();
        let id = report.id as usize;
        let mutation = self.mutation;
        if let Some(outcome) = report.outcome {
            let t = &mut self.transfers[id];
            ensure!(t.node == node && !t.outcome, "{id} has two outcomes");
            ensure!(!t.quiet, "{id} ends after it became quiet");
            t.outcome = true;
            ensure!(
                now <= t.deadline + LATE,
                "{id} ends {} ms late",
                (now - t.deadline) / MS
            );
            let (demanded, kind) = (t.demanded, t.kind);
            match outcome {
                Ok(done) => {
                    self.summary.done += 1;
                    let t = &self.transfers[id];
                    ensure!(done.bytes == t.data.len() as u64, "{id} misses bytes");
                    match kind {
                        Some(w) if w.direction == Direction::Get => self.check_got(id)?,
                        Some(w) if w.confirm => self.check_put(id)?,
                        _ => {}
                    }
                }
                Err(e) => {
                    ensure!(!demanded, "{id} between healthy nodes ends with {e:?}");
                    ensure!(
                        !matches!(e, Failure::Fault(_)) || mutation.is_some(),
                        "{id} ends with {e:?}"
                    );
                    let get = kind.is_some_and(|w| w.direction == Direction::Get);
                    if get && e != Failure::Down && self.rng.random_bool(0.7) {
                        let later = self.rng.random_range(1..20 * MS);
                        self.at(now + later, Event::Retry(id));
                    }
                }
            }
        }
        if let Some(quiet) = report.quiet {
            let t = &mut self.transfers[id];
            ensure!(t.outcome, "{id} is quiet without an outcome");
            ensure!(!t.quiet, "{id} becomes quiet twice");
            t.quiet = true;
            match quiet {
                Quiet::Settled if report.outcome.is_none() => self.summary.settled_late += 1,
                Quiet::Unanswered => self.summary.unanswered += 1,
                _ => {}
            }
        }
        let reuse = match mutation {
            Some(Mutation::ReuseAtOutcome) => report.outcome.is_some(),
            _ => report.quiet.is_some(),
        };
        if reuse {
            let keep = match report.quiet {
                Some(Quiet::Closed) => LIMITS.absorb,
                _ => 0,
            };
            self.release(id, keep)?;
        }
        Ok(())
    }

    /// Frees the memory of a transfer, or holds it off for `keep` ns.
    fn release(&mut self, id: usize, keep: u64) -> Result<()> {
        let empty = Transfer {
            blocks: Vec::new(),
            sinks: Vec::new(),
            local: Vec::new(),
            remote: Vec::new(),
            data: Vec::new(),
            ..self.transfers[id]
        };
        let mut t = std::mem::replace(&mut self.transfers[id], empty);
        // Data may arrive after the outcome; only a later lock operation proves that none will
        // arrive.
        let certain = t.kind.is_some_and(|w| w.confirm) && self.arrived(&t)?;
        let rest = match certain || t.sinks.is_empty() {
            true => keep,
            false => LIMITS.absorb,
        };
        self.free(&mut t, rest)?;
        Ok(())
    }

    /// Returns memory at once or after `rest` ns.
    pub(super) fn free(&mut self, t: &mut Transfer, rest: u64) -> Result<()> {
        let now = self.fabric.now();
        let blocks = std::mem::take(&mut t.blocks);
        let closed = rest > 0 && t.sinks.is_empty();
        if closed {
            self.resting.push((now + rest, blocks));
        } else {
            drop(blocks);
        }
        for i in std::mem::take(&mut t.sinks) {
            self.sinks[t.peer][t.node][i as usize] = (now + rest, rest > 0);
            if rest == 0 {
                let at = sink(t.node, i);
                self.fabric.fill(t.peer, at, &[POISON; BLOCK as usize])?;
            }
        }
        Ok(())
    }

    fn read(&self, node: usize, list: &[protocol::transfer::Fragment]) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for f in list {
            let mut part = vec![0; f.len as usize];
            self.fabric.load(node, f.address, &mut part)?;
            all.extend(part);
        }
        Ok(all)
    }

    fn check_got(&self, id: usize) -> Result<()> {
        let t = &self.transfers[id];
        let got = self.read(t.node, &t.local)?;
        ensure!(got == t.data, "{id} did not fetch the peer's data");
        Ok(())
    }

    fn arrived(&self, t: &Transfer) -> Result<bool> {
        Ok(self.read(t.peer, &t.remote)? == t.data)
    }

    fn check_put(&self, id: usize) -> Result<()> {
        let t = &self.transfers[id];
        ensure!(
            self.arrived(t)? || !self.is_lossless(t),
            "{id} did not write its data to the peer"
        );
        Ok(())
    }

    /// Checks that free memory was not written.
    pub(super) fn check_poison(&self, node: usize, address: u64, len: u64) -> Result<()> {
        let mut data = vec![0; len as usize];
        self.fabric.load(node, address, &mut data)?;
        ensure!(
            data.iter().all(|b| *b == POISON),
            "memory of node {node} at {address:#x} was written to while nobody used it"
        );
        Ok(())
    }

    /// Checks that no transfer of a node is overdue.
    pub(super) fn check_deadlines(&self, node: usize) -> Result<()> {
        let now = self.fabric.now();
        let late = self.transfers.iter().enumerate().find(|(_, t)| {
            t.node == node && !t.outcome && now > t.deadline + LATE && self.nodes[node].is_up()
        });
        if let Some((id, t)) = late {
            anyhow::bail!("{id} is {} ms overdue", (now - t.deadline) / MS);
        }
        Ok(())
    }

    pub(super) fn check_end(&mut self) -> Result<()> {
        for (id, t) in self.transfers.iter().enumerate() {
            ensure!(t.outcome && t.quiet, "{id} has not ended");
        }
        self.rest()?;
        for (i, node) in self.nodes.iter().enumerate() {
            ensure!(node.is_idle(), "node {i} has transfers at the end");
            ensure!(node.pool.is_idle(), "node {i} lost memory");
            self.check_poison(i, FREE, BLOCKS as u64 * BLOCK)?;
            let mut data = source(i);
            self.fabric.load(i, SOURCE, &mut data)?;
            ensure!(data == source(i), "source memory of node {i} was written");
        }
        Ok(())
    }
}
