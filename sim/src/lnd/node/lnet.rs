//! LNet of a node, which treats messages in every permitted way.

use super::{Got, Node, Report, Sink, Waiting, Wish};
use crate::fabric::Fabric;
use crate::lnd::memory::BLOCK;
use anyhow::{ensure, Result};
use protocol::lnd::{LnetAction, Ticket};
use protocol::Time;
use rand::Rng;
use wire::ids::NodeId;

impl Node {
    pub(super) fn offer(&mut self, fabric: &Fabric, ticket: Ticket, node: NodeId) -> Result<()> {
        let Some((_, header, len, inline)) = self.lnd.offered(ticket) else {
            // The session of the peer has ended.
            return Ok(());
        };
        let id = header[0];
        let rng = &mut self.rng;
        let wanted = match rng.random_range(0..20) {
            0 | 1 => 0,
            2 | 3 => rng.random_range(0..=len),
            _ => len,
        };
        // Copied messages may be held more often.
        let (often, longest) = match (self.plan.keeps, inline) {
            (true, true) => (6, self.plan.patience),
            (true, false) => (1, self.plan.patience.min(50_000_000)),
            (false, _) => (1, self.plan.patience),
        };
        let later = match rng.random_range(0..20) {
            n if n < often => rng.random_range(0..longest),
            16..=19 => rng.random_range(0..20_000_000),
            _ => 0,
        };
        let wish = Wish {
            taken: !rng.random_bool(0.04),
            wanted,
            at: fabric.now() + later,
        };
        self.reports.push(Report::Offered(id, node, wish));
        if wish.taken {
            let mut waiting = Waiting {
                ticket,
                id,
                from: node,
                wish,
                kept: None,
            };
            if later > 0 && self.plan.keeps {
                let buffer = &self.buffers[ticket.index() as usize];
                let data = inline.then(|| buffer[..len as usize].to_vec());
                ensure!(self.lnd.kept(ticket) == inline, "{id} can't be kept");
                waiting.kept = data;
            }
            self.wishes.push(waiting);
            // LNet may name the destination before it returns from the receive call.
            if later == 0 {
                self.wishes(fabric)?;
            }
        }
        self.lnd.parsed(ticket, wish.taken);
        Ok(())
    }

    /// LNet names the destinations that are due.
    pub(super) fn wishes(&mut self, fabric: &Fabric) -> Result<()> {
        let now = fabric.now();
        while let Some(i) = self.wishes.iter().position(|w| w.wish.at <= now) {
            let waiting = self.wishes.swap_remove(i);
            let (id, from) = (waiting.id, waiting.from);
            let got = match waiting.kept {
                Some(mut data) => {
                    let wanted = waiting.wish.wanted;
                    data.truncate(wanted as usize);
                    Some(Got { wanted, data })
                }
                None => match self.wish(fabric, &waiting)? {
                    Some(got) => got,
                    // The result is reported later.
                    None => continue,
                },
            };
            self.reports.push(Report::Received(id, from, got));
        }
        Ok(())
    }

    /// LNet names the destination of a message held by the state machine.
    fn wish(&mut self, fabric: &Fabric, waiting: &Waiting) -> Result<Option<Option<Got>>> {
        let (ticket, id) = (waiting.ticket, waiting.id);
        let inline = self.lnd.offered(ticket).map(|(.., inline)| inline);
        let mut wanted = waiting.wish.wanted;
        let mut sink = None;
        if inline == Some(false) && wanted > 0 {
            sink = self.sink(fabric, id, waiting.from, wanted)?;
            if sink.is_none() {
                // LNet has no buffer.
                wanted = 0;
            }
        }
        let action = self.lnd.receive(ticket, wanted, Time(fabric.now()));
        match (action, sink) {
            (LnetAction::Fetch, Some(sink)) => {
                self.sink_count += 1;
                self.by_ticket.insert(ticket, self.sink_count);
                self.sinks.insert(self.sink_count, sink);
            }
            (_, Some(sink)) => {
                self.memory.release(sink.address);
                self.memory.give_back(fabric, sink.block)?;
            }
            (_, None) => {}
        }
        let data = match action {
            LnetAction::Fetch => return Ok(None),
            LnetAction::Copy => {
                let buffer = &self.buffers[ticket.index() as usize];
                let data = buffer[..wanted as usize].to_vec();
                self.lnd.copied(ticket);
                Some(data)
            }
            LnetAction::Done => Some(Vec::new()),
            LnetAction::Lost => None,
        };
        Ok(Some(data.map(|data| Got { wanted, data })))
    }

    fn sink(&mut self, fabric: &Fabric, id: u64, from: NodeId, len: u32) -> Result<Option<Sink>> {
        // A forged message may have any length.
        let Some(room) = BLOCK.checked_sub(len.into()) else {
            return Ok(None);
        };
        let Some(block) = self.memory.block(fabric)? else {
            return Ok(None);
        };
        let Some(address) = self.memory.expose(fabric, block, true)? else {
            self.memory.give_back(fabric, block)?;
            return Ok(None);
        };
        Ok(Some(Sink {
            id,
            from,
            block,
            offset: self.rng.random_range(0..=room.min(4095)),
            len,
            address,
            mark: 0,
            since: fabric.now(),
            in_flight: 0,
            revoked: false,
        }))
    }
}
