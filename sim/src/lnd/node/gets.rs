//! GETs of a node and their memory.

use super::{Got, Node, Poster, Report, Sink};
use crate::fabric::Fabric;
use crate::lnd::{Mutation, IDLE, LIMITS};
use anyhow::{ensure, Result};
use protocol::base::validity::{find_hole, tag_offsets, TAG_BYTES};
use protocol::lnd::{GetFailure, Ticket};
use protocol::transfer::{Failure, Fragment, Notify, Queue, Terms, TransferKind};
use protocol::Time;
use rand::Rng;
use wire::ids::NodeId;
use wire::lnd::{Source, TRAFFIC_CLASS};
use wire::rma::Direction;

impl Node {
    pub(super) fn fetch(
        &mut self,
        fabric: &Fabric,
        ticket: Ticket,
        (node, source, len): (NodeId, Source, u32),
        post_by: Time,
        until: Time,
    ) -> Result<()> {
        let now = Time(fabric.now());
        let mark = self.rng.random();
        let number = self.by_ticket.get(&ticket).copied().unwrap_or(0);
        let Some(sink) = self.sinks.get_mut(&number) else {
            anyhow::bail!("a GET is posted for unwanted data");
        };
        ensure!(sink.len == len, "another length is fetched than was wanted");
        let terms = Terms {
            node,
            vpid: source.vpid,
            class: TRAFFIC_CLASS,
            translate: true,
            deadline: until,
            post_by: Some(post_by),
            queue: Queue::Direct,
        };
        let get = TransferKind {
            direction: Direction::Get,
            notify: Notify::Nothing,
            confirm: false,
        };
        let list = |address| {
            let len = u64::from(len);
            std::iter::once(Fragment { address, len })
        };
        let (local, remote) = (list(sink.address + sink.offset), list(source.nla.0));
        let taken = match self.refuses_gets {
            true => false,
            false => self
                .transfers
                .submit(&terms, get, local, remote, number)
                .is_ok(),
        };
        if !taken {
            self.lnd.fetched(ticket, Err(GetFailure::NotPosted), now);
            return Ok(());
        }
        sink.mark = mark;
        sink.in_flight += 1;
        let flying = (sink.address, sink.in_flight);
        self.flying.insert(number, flying);
        for at in tag_offsets(len) {
            let to = sink.block + sink.offset + u64::from(at);
            fabric.fill(self.nic, to, &mark.to_le_bytes()[..TAG_BYTES as usize])?;
        }
        if self.mutation == Some(Mutation::Hasty) {
            self.lnd.fetched(ticket, Ok(()), now);
        }
        Ok(())
    }

    fn data(&self, fabric: &Fabric, sink: &Sink) -> Result<Vec<u8>> {
        let mut data = vec![0; sink.len as usize];
        fabric.load(self.nic, sink.block + sink.offset, &mut data)?;
        Ok(data)
    }

    pub(super) fn received(&mut self, fabric: &Fabric, ticket: Ticket, done: bool) -> Result<()> {
        let number = self.by_ticket.remove(&ticket).unwrap_or(0);
        let Some(sink) = self.sinks.get(&number).copied() else {
            anyhow::bail!("unwanted payload arrived");
        };
        let most = LIMITS.receive + self.plan.revoke + 4 * IDLE;
        ensure!(
            fabric.now() <= sink.since + most,
            "{} was fetched for too long",
            sink.id
        );
        let got = match done {
            true if self.mutation == Some(Mutation::Nothing) => Some(Vec::new()),
            true => Some(self.data(fabric, &sink)?),
            false => None,
        };
        self.lnd.finished(ticket);
        let wanted = sink.len;
        let got = got.map(|data| Got { wanted, data });
        self.reports.push(Report::Received(sink.id, sink.from, got));
        self.memory.give_back(fabric, sink.block)?;
        if let Some(sink) = self.sinks.get_mut(&number) {
            sink.revoked = true;
        }
        self.reap(number)
    }

    /// Frees the address of a sink when no GET can write to it any more.
    pub(super) fn reap(&mut self, number: u64) -> Result<()> {
        let hasty = self.mutation == Some(Mutation::SinkAddressAtOnce);
        let Some(sink) = self.sinks.get(&number).copied() else {
            return Ok(());
        };
        if sink.revoked && (sink.in_flight == 0 || hasty) {
            let used = self.flying.values().any(|(at, _)| *at == sink.address);
            ensure!(
                !used,
                "a GET may still come for an address that is used again"
            );
            self.memory.release(sink.address);
            self.sinks.remove(&number);
        }
        Ok(())
    }

    pub(super) fn transfers(&mut self, fabric: &mut Fabric) -> Result<()> {
        let Some(port) = &mut self.port else {
            return Ok(());
        };
        while let Some(n) = port.notification(fabric)? {
            self.busy = true;
            self.transfers.process_notification(&n);
        }
        let now = Time(fabric.now());
        while self.transfers.expire(now, 4) {}
        let mut poster = Poster { port, fabric };
        while self.transfers.post(&mut poster, now, 8).more {}
        while let Some(e) = self.transfers.next_event(Queue::Direct) {
            if e.quiet.is_none() {
                self.transfers.report_done(e.ticket);
            }
            if let Some(outcome) = e.outcome {
                let result = match outcome {
                    Ok(_) => Ok(()),
                    Err(Failure::Fault(_)) => Err(GetFailure::Fault),
                    // There was no free slot, so no command is in flight.
                    Err(Failure::TimedOut) if e.quiet.is_some() => Err(GetFailure::NotPosted),
                    Err(_) => Err(GetFailure::Lost),
                };
                self.fetched(fabric, e.token, result, now)?;
            }
            if e.quiet.is_some() {
                if let Some(sink) = self.sinks.get_mut(&e.token) {
                    sink.in_flight -= 1;
                }
                if let Some((_, count)) = self.flying.get_mut(&e.token) {
                    *count -= 1;
                    if *count == 0 {
                        self.flying.remove(&e.token);
                    }
                }
                self.reap(e.token)?;
            }
        }
        Ok(())
    }

    fn fetched(
        &mut self,
        fabric: &Fabric,
        number: u64,
        mut result: Result<(), GetFailure>,
        now: Time,
    ) -> Result<()> {
        let ticket = self.by_ticket.iter().find(|(_, n)| **n == number);
        let (Some(ticket), Some(sink)) = (ticket.map(|(t, _)| *t), self.sinks.get(&number)) else {
            return Ok(());
        };
        if result.is_ok() && find_hole(&self.data(fabric, sink)?, sink.mark.to_le_bytes()).is_some()
        {
            self.holes += 1;
            if self.mutation != Some(Mutation::Unmarked) {
                result = Err(GetFailure::Lost);
            }
        }
        self.lnd.fetched(ticket, result, now);
        Ok(())
    }
}
