//! Reactions of a node to its state machine: revocations, and reports to owners.

use super::{Node, Report, Revoking};
use crate::fabric::Fabric;
use crate::lnd::Mutation;
use anyhow::{ensure, Result};
use protocol::lnd::{Event, Outcome};
use rand::Rng;

impl Node {
    pub(super) fn events(&mut self, fabric: &mut Fabric) -> Result<()> {
        while let Some(event) = self.lnd.next_event() {
            self.busy = true;
            match event {
                Event::Offer(ticket, node) => self.offer(fabric, ticket, node)?,
                Event::Fetch {
                    ticket,
                    node,
                    source,
                    len,
                    post_by,
                    until,
                } => self.fetch(fabric, ticket, (node, source, len), post_by, until)?,
                Event::RevokeTarget(ticket) => {
                    if let Some(number) = self.by_ticket.get(&ticket).copied() {
                        let what = Revoking::Sink(ticket, number);
                        self.revoke(fabric, what, Mutation::SinkAtOnce);
                    }
                }
                Event::Received(ticket, done) => self.received(fabric, ticket, done)?,
                Event::Revoke(ticket, id) => {
                    self.revoke(fabric, Revoking::Out(ticket, id), Mutation::MemoryAtOnce);
                }
                Event::Sent(_, id, outcome) => self.sent(fabric, id, outcome)?,
                Event::Released(_, id) => {
                    let out = self.outs.get(&id).filter(|out| out.done);
                    let exposed = out.and_then(|out| out.exposed);
                    ensure!(exposed.is_some(), "the address of {id} is released twice");
                    self.outs.remove(&id);
                    if let Some((_, address)) = exposed {
                        if self.mutation != Some(Mutation::AddressAtOnce) {
                            self.memory.release(address);
                        }
                    }
                    self.reports.push(Report::Released(id));
                }
                Event::Peer(..) => {}
            }
        }
        Ok(())
    }

    /// Starts a revocation. With the mutation it counts as finished at once.
    fn revoke(&mut self, fabric: &Fabric, what: Revoking, hasty: Mutation) {
        let later = self.rng.random_range(0..self.plan.revoke);
        self.revoking.push((fabric.now() + later, what));
        if self.mutation == Some(hasty) {
            match what {
                Revoking::Out(ticket, _) => self.lnd.revoked(ticket),
                Revoking::Sink(ticket, _) => self.lnd.get_target_revoked(ticket),
            }
        }
    }

    pub(super) fn revocations(&mut self, fabric: &mut Fabric) -> Result<()> {
        let now = fabric.now();
        while let Some(i) = self.revoking.iter().position(|(due, _)| *due <= now) {
            let (_, what) = self.revoking.swap_remove(i);
            match what {
                Revoking::Out(ticket, id) => {
                    let exposed = self.outs.get(&id).and_then(|out| out.exposed);
                    if let Some((_, address)) = exposed {
                        self.memory.revoke(fabric, address)?;
                    }
                    self.lnd.revoked(ticket);
                }
                Revoking::Sink(ticket, number) => {
                    if let Some(sink) = self.sinks.get(&number) {
                        self.memory.revoke(fabric, sink.address)?;
                    }
                    self.lnd.get_target_revoked(ticket);
                }
            }
        }
        Ok(())
    }

    fn sent(&mut self, fabric: &Fabric, id: u64, outcome: Outcome) -> Result<()> {
        let Some(out) = self.outs.get_mut(&id).filter(|out| !out.done) else {
            anyhow::bail!("{id} ends twice");
        };
        out.done = true;
        match out.exposed {
            Some((block, address)) => {
                self.memory.give_back(fabric, block)?;
                if self.mutation == Some(Mutation::AddressAtOnce) {
                    self.memory.release(address);
                }
            }
            None => {
                self.outs.remove(&id);
            }
        }
        self.reports.push(Report::Sent(id, outcome));
        Ok(())
    }
}
