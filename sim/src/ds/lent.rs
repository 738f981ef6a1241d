//! Memory of programs as source or destination of GETs, in place of the rings.

use super::node::Node;
use super::{Mutation, LIMITS, RING_BYTES};
use crate::fabric::Fabric;
use anyhow::Result;
use protocol::ds::{RingFree, SourceId};
use protocol::Time;
use wire::ids::Nla;

/// Memory that a program sends.
pub struct Lent {
    id: SourceId,
    slot: u64,
    len: u32,
    withdrawn: bool,
}

/// Progress of memory that a program sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The program waits for the end of the transfer.
    Waits,
    /// The transfer has finished; this number of bytes is part of the stream.
    Over(u64),
}

impl Node {
    /// Sends bytes from a program's memory; the program waits from then on. Returns false if that
    /// is not possible.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be accessed, or was written while it was unused.
    pub fn lend(&mut self, fabric: &Fabric, pair: (usize, usize), data: &[u8]) -> Result<bool> {
        let (nic, mutation) = (self.nic(), self.mutation());
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(false);
        };
        if conn.lent.is_some() || !conn.stream.can_send() {
            return Ok(false);
        }
        if (conn.stream.sending().source_room() as usize) < data.len() {
            return Ok(false);
        }
        let Some(slot) = self.ring(fabric)? else {
            return Ok(false);
        };
        fabric.fill(nic, slot, data)?;
        let len = data.len() as u32;
        let conn = self.find(pair.0, pair.1);
        let id = conn.and_then(|c| c.stream.commit_source(len, Nla(slot)));
        let Some((conn, id)) = self.find(pair.0, pair.1).zip(id) else {
            self.give_back(fabric, slot)?;
            return Ok(false);
        };
        conn.lent = Some(Lent {
            id,
            slot,
            len,
            withdrawn: false,
        });
        if mutation == Some(Mutation::SourceChanged) {
            fabric.fill(nic, slot, &vec![0x5a; data.len()])?;
        }
        Ok(true)
    }

    /// Returns the progress of memory that a program sends. With `withdraw`, the program stops
    /// waiting.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be accessed.
    pub fn sent(
        &mut self,
        fabric: &Fabric,
        pair: (usize, usize),
        withdraw: bool,
    ) -> Result<Option<Sent>> {
        let mutation = self.mutation();
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(None);
        };
        if let Some(n) = conn.sent.take() {
            return Ok(Some(Sent::Over(n)));
        }
        let Some(lent) = &mut conn.lent else {
            return Ok(None);
        };
        if withdraw && !lent.withdrawn {
            lent.withdrawn = conn.stream.withdraw_source(lent.id, true);
            if lent.withdrawn && mutation == Some(Mutation::SourceAtOnce) {
                let (id, slot) = (lent.id, lent.slot);
                let done = conn.stream.sending().source(id);
                let done = done.map_or(0, |s| s.acknowledged);
                conn.lent = None;
                conn.stream.disown_source(id);
                self.give_back(fabric, slot)?;
                return Ok(Some(Sent::Over(done.into())));
            }
        }
        self.settle_lent(fabric, pair)?;
        let conn = self.find(pair.0, pair.1);
        Ok(Some(match conn.and_then(|c| c.sent.take()) {
            Some(n) => Sent::Over(n),
            None => Sent::Waits,
        }))
    }

    /// Returns memory that the other end has fetched or will never fetch.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be accessed.
    pub(super) fn settle_lent(&mut self, fabric: &Fabric, pair: (usize, usize)) -> Result<()> {
        let mutation = self.mutation();
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(());
        };
        let Some(lent) = &conn.lent else {
            return Ok(());
        };
        let state = conn.stream.sending().source(lent.id);
        let (slot, id) = (lent.slot, lent.id);
        // An entry that was never announced is removed when it is withdrawn.
        let finished = state.is_none_or(|s| s.finished);
        let bytes = match state {
            Some(_) if lent.withdrawn && mutation == Some(Mutation::WithdrawnCounts) => lent.len,
            state => state.map_or(0, |s| s.acknowledged),
        };
        if finished {
            conn.stream.disown_source(id);
            (conn.lent, conn.sent) = (None, Some(bytes.into()));
            return self.give_back(fabric, slot);
        }
        // The other end may not have learned that the connection has ended.
        let free_at = match conn.stream.send_ring_free(&LIMITS) {
            RingFree::At(at) => at.0,
            RingFree::Now => fabric.now(),
            RingFree::No | RingFree::Uncommitted => return Ok(()),
        };
        (conn.lent, conn.sent) = (None, Some(bytes.into()));
        self.hold_off(free_at, slot);
        Ok(())
    }

    /// Provides memory into which the next source of the other end is fetched. Without free memory,
    /// the data are fetched to the ring.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be accessed, or was written while it was unused.
    pub fn offer(&mut self, fabric: &Fabric, pair: (usize, usize), len: u32) -> Result<()> {
        let can = self
            .find(pair.0, pair.1)
            .is_some_and(|c| c.stream.receiving().can_sink() && c.stream.end().is_none());
        if !can {
            return Ok(());
        }
        let slot = self.ring(fabric)?;
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(());
        };
        let Some(slot) = slot else {
            conn.stream.release_sources(None);
            return Ok(());
        };
        match conn.stream.offer_sink(len.min(RING_BYTES as u32)) {
            Some(_) => conn.sink = Some(slot),
            None => self.give_back(fabric, slot)?,
        }
        Ok(())
    }

    /// Withdraws memory for reception. Returns its contents. The memory is reused when no GET can
    /// write to it any more.
    ///
    /// # Errors
    ///
    /// Fails if memory can't be accessed.
    pub fn take_sink(&mut self, fabric: &Fabric, pair: (usize, usize)) -> Result<Vec<u8>> {
        let (nic, mutation) = (self.nic(), self.mutation());
        let Some(conn) = self.find(pair.0, pair.1) else {
            return Ok(Vec::new());
        };
        let Some(slot) = conn.sink.take() else {
            return Ok(Vec::new());
        };
        let mut data = vec![0; conn.stream.withdraw_sink() as usize];
        conn.stream.release_sources(None);
        fabric.load(nic, slot, &mut data)?;
        match mutation {
            Some(Mutation::SinkAtOnce) => self.give_back(fabric, slot)?,
            _ => self.withdrawn_sinks.push(slot),
        }
        self.reuse_withdrawn(fabric)?;
        Ok(data)
    }

    /// Reuses withdrawn memory that no GET writes to.
    pub(super) fn reuse_withdrawn(&mut self, fabric: &Fabric) -> Result<()> {
        for slot in std::mem::take(&mut self.withdrawn_sinks) {
            match self.in_flight.iter().any(|(_, to)| *to == slot) {
                true => self.withdrawn_sinks.push(slot),
                false => self.give_back(fabric, slot)?,
            }
        }
        Ok(())
    }

    /// Keeps sources of the other end for a waiting program, except the next `most` bytes. With
    /// `None`, the program has stopped waiting, and sources are kept until `until` only.
    pub fn hold(&mut self, pair: (usize, usize), most: Option<u32>, until: u64) {
        if let Some(conn) = self.find(pair.0, pair.1) {
            match most {
                Some(most) => conn.stream.hold_sources(most),
                None => conn.stream.release_sources(Some(Time(until))),
            }
        }
    }
}
