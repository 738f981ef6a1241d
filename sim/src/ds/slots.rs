//! GET slots, whose number per peer may be small. Connections that need one queue up, and each
//! posts at most one budget of GETs before a waiting one.

use super::node::Node;
use super::Mutation;
use crate::fabric::Fabric;
use crate::port::Port;
use crate::Heap;
use anyhow::{ensure, Result};
use protocol::ds::{Round, WaitQueue};
use protocol::TransportError;
use std::collections::HashMap;

/// Maximum number of GETs that a connection posts while others wait for a slot.
const GET_BUDGET: u8 = 8;
/// Maximum number of connections of a node.
const MOST: usize = 256;

/// Slot state of a connection.
#[derive(Default)]
pub struct Waits {
    /// True if there was no slot at the last attempt.
    pub refused: bool,
    /// Number of GETs that the connection may still post while others wait.
    get_budget: u8,
}

/// Slot state of a node.
pub struct Slots {
    queue: WaitQueue<Heap>,
    /// Number of slots for each peer; `None`: unlimited.
    pub few: Option<usize>,
    /// Number of GETs that each connection has posted while another connection waits.
    ahead: HashMap<(usize, u64), u64>,
    /// Number of times that a connection had to wait.
    pub waited: u64,
}

impl Waits {
    /// Counts a posted GET.
    pub fn posted(&mut self) {
        self.get_budget = self.get_budget.saturating_sub(1);
    }
}

impl Slots {
    pub fn new() -> Self {
        let queue = match WaitQueue::new(MOST) {
            Ok(queue) => queue,
            Err(e) => match e {},
        };
        Self {
            queue,
            few: None,
            ahead: HashMap::new(),
            waited: 0,
        }
    }

    /// Queues a connection.
    pub fn wait(&mut self, index: u32, waits: &mut Waits) -> TransportError {
        *waits = Waits {
            refused: true,
            get_budget: 0,
        };
        self.waited += 1;
        self.queue.push(index);
        TransportError::Later
    }

    /// Returns true if a connection may post a GET to a peer with `on_way` GETs in flight.
    /// Otherwise the connection is queued.
    ///
    /// # Errors
    ///
    /// Fails if there is no slot, or others wait for one.
    pub fn may_post(
        &mut self,
        index: u32,
        waits: &mut Waits,
        on_way: usize,
    ) -> Result<(), TransportError> {
        let after = self.queue.others(index) > 0;
        let full = self.few.is_some_and(|few| on_way >= few);
        if full || after && waits.get_budget == 0 {
            return Err(self.wait(index, waits));
        }
        Ok(())
    }

    /// Removes a connection.
    pub fn forget(&mut self, index: usize) {
        self.ahead.retain(|(waits, _), _| *waits != index);
    }

    fn remove(&mut self, at: usize) {
        if let Some(index) = self.queue.remove(at) {
            self.forget(index as usize);
        }
    }
}

impl Node {
    /// Checks that a connection has posted no more than one budget of GETs before a waiting one to
    /// the same peer.
    pub(super) fn count_gets(&mut self, i: usize, gets: u64) -> Result<()> {
        let Some(conn) = self.conns[i].as_ref().filter(|_| gets > 0) else {
            return Ok(());
        };
        let (serial, peer) = (conn.serial, conn.peer);
        let mut at = 0;
        while let Some(index) = self.slots.queue.get(at).map(|index| index as usize) {
            at += 1;
            let other = self.conns.get(index).and_then(Option::as_ref);
            if index == i || other.is_none_or(|other| other.peer != peer) {
                continue;
            }
            let ahead = self.slots.ahead.entry((index, serial)).or_default();
            *ahead += gets;
            ensure!(
                *ahead <= u64::from(GET_BUDGET),
                "connection {i} of node {} has posted {ahead} GETs while {index} waits for a slot",
                self.nic
            );
        }
        Ok(())
    }

    /// Assigns free slots to waiting connections.
    pub(super) fn give_slots(&mut self, fabric: &mut Fabric) -> Result<()> {
        let mut round = Round::new(self.slots.queue.len());
        while let Some(at) = round.next_position() {
            let index = self.slots.queue.get(at).map(|index| index as usize);
            let conn = index.and_then(|i| self.conns.get_mut(i)?.as_mut());
            let (Some(i), Some(conn)) = (index, conn) else {
                self.slots.remove(at);
                continue;
            };
            let node = Port::node_id(conn.peer);
            if round.is_full(node) {
                round.keep();
                continue;
            }
            conn.waits.get_budget = GET_BUDGET;
            conn.stream.retry_gets();
            let before = conn.stream.counters().gets;
            self.pump_one(fabric, i)?;
            let Some(conn) = &mut self.conns[i] else {
                continue;
            };
            let none = conn.stream.counters().gets == before;
            let keep = none || self.mutation == Some(Mutation::StaysFirst);
            if conn.waits.refused && keep {
                round.set_full(node);
                round.keep();
            } else {
                self.slots.remove(at);
                if conn.waits.refused {
                    self.slots.queue.push(i as u32);
                }
            }
        }
        Ok(())
    }
}
