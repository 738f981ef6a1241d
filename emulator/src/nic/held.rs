//! Accesses to other devices of the host: loads that are answered later, stores that fail later, and the credit of packets whose
//! stores have not ended.

use super::rma_mem::{FaultKind, Source};
use super::smfu_target::Asker;
use super::Nic;
use crate::env::{DmaFault, Env};
use crate::lane::Receipt;
use std::collections::{BTreeMap, VecDeque};

/// Who waits for a load.
enum Waiter {
    /// Another node, by its SMFU.
    Smfu(Asker),
    /// A transfer of the RMA.
    Rma,
}

/// What waits for other devices.
#[derive(Default)]
pub(super) struct Held {
    /// Loads, by the number of the host's side.
    loads: BTreeMap<u64, Waiter>,
    /// How many stores must have ended before a packet counts as stored, and its credit.
    credit: VecDeque<(u64, Receipt)>,
}

impl Waiter {
    fn asker(&self) -> Option<(u16, u64)> {
        match self {
            Self::Smfu(to) => Some((to.node, to.tag)),
            Self::Rma => None,
        }
    }
}

impl Nic {
    /// Reads what may be another device for another node. `false`: it is memory.
    pub(super) fn ask(&mut self, to: Asker, addr: u64, len: u32, env: &mut Env<'_>) -> bool {
        match self.begin_load(addr, len as usize, env) {
            Ok(None) => return false,
            Ok(Some(number)) => {
                self.held.loads.insert(number, Waiter::Smfu(to));
            }
            Err(_) => self.smfu_answer(to, None, env),
        }
        true
    }

    /// Reads what may be another device for a transfer: into `source` at `offset`, later. `false`: it is memory.
    pub(super) fn ask_for_rma(
        &mut self,
        source: &mut Source,
        (offset, len): (usize, usize),
        addr: u64,
        env: &mut Env<'_>,
    ) -> Result<bool, FaultKind> {
        let number = self.begin_load(addr, len, env);
        let Some(number) = number.map_err(|_| FaultKind::Dma)? else {
            return Ok(false);
        };
        self.held.loads.insert(number, Waiter::Rma);
        source.missing.push((number, offset, len));
        Ok(true)
    }

    fn begin_load(
        &mut self,
        addr: u64,
        len: usize,
        env: &mut Env<'_>,
    ) -> Result<Option<u64>, DmaFault> {
        let asked = match env.host.ask(addr, len) {
            Ok(Some(number)) => self.dma_allowed(false, addr, len, env).map(|()| number),
            Ok(None) => return Ok(None),
            Err(fault) => Err(fault),
        };
        let asked = asked.map_err(|fault| self.dma_failed(false, fault, env));
        asked.map(Some)
    }

    /// A load from another device ([`crate::env::Host::ask`]) has ended; `None`: it failed.
    pub fn loaded(&mut self, number: u64, data: Option<Vec<u8>>, env: &mut Env<'_>) {
        let Some(waiter) = self.held.loads.remove(&number) else {
            // The chip was reset meanwhile.
            return;
        };
        match &data {
            Some(data) => {
                self.counters.dma_reads = self.counters.dma_reads.wrapping_add(1);
                let n = &mut self.counters.dma_bytes_read;
                *n = n.wrapping_add(data.len() as u64);
            }
            None => self.counters.dma_faults = self.counters.dma_faults.wrapping_add(1),
        }
        match waiter {
            Waiter::Smfu(to) => self.smfu_answer(to, data, env),
            Waiter::Rma => self.rma_loaded(number, data),
        }
        self.settle(env);
    }

    /// A store to another device failed. It was posted, so the chip only counts it.
    pub fn store_failed(&mut self, addr: u64, len: usize, env: &mut Env<'_>) {
        self.counters.drops.dma = self.counters.drops.dma.wrapping_add(1);
        self.dma_failed(true, DmaFault { addr, len }, env);
    }

    /// Stores to other devices have ended: senders get back their credit.
    pub fn stores_ended(&mut self, env: &mut Env<'_>) {
        let (made, done) = env.host.device_writes();
        let all = made == done;
        // What was refused meanwhile leaves fewer than were counted.
        let over = |first: Option<&(u64, Receipt)>| first.is_some_and(|(n, _)| all || *n <= done);
        while over(self.held.credit.front()) {
            self.held.credit.pop_front();
        }
    }

    /// True if the credit of some packet is kept.
    #[inline]
    pub(super) fn holds_credit(&self) -> bool {
        !self.held.credit.is_empty()
    }

    /// Keeps the credit of the packet that is being received if it made stores to other devices; `before`: how many there were.
    pub(super) fn hold_credit(&mut self, before: u64, env: &mut Env<'_>) {
        let (made, done) = env.host.device_writes();
        if made != before && made != done {
            if let Some(receipt) = self.tx.receipt.take() {
                self.held.credit.push_back((made, receipt));
            }
        }
    }

    /// The node and tag of a load of the SMFU that another node waits for.
    pub fn asker(&self, load: u64) -> Option<(u16, u64)> {
        self.held.loads.get(&load).and_then(Waiter::asker)
    }

    /// All loads from other devices that other nodes' SMFUs wait for: node and tag.
    pub fn askers(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.held.loads.values().filter_map(Waiter::asker)
    }
}
