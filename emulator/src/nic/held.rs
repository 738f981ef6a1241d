//! Pending accesses to other devices of the host: loads, stores, and the credit of packets whose
//! stores have not ended.

use super::rma_mem::{FaultKind, Source};
use super::smfu_target::Requester;
use super::Nic;
use crate::env::{DmaFault, Env};
use crate::lane::Receipt;
use std::collections::{BTreeMap, VecDeque};

/// Receiver of the data of a load.
enum Waiter {
    /// Another node, through its SMFU.
    Smfu(Requester),
    /// An RMA transfer.
    Rma,
}

/// Pending accesses to other devices.
#[derive(Default)]
pub(super) struct Held {
    /// Pending loads, by the number that the host assigned.
    loads: BTreeMap<u64, Waiter>,
    /// Credit of packets that caused stores to other devices, in order of arrival. The number is
    /// the host's count of stores after the packet. The credit returns when that number of stores
    /// has ended.
    credit: VecDeque<(u64, Receipt)>,
}

impl Waiter {
    fn requester(&self) -> Option<(u16, u64)> {
        match self {
            Self::Smfu(to) => Some((to.node, to.tag)),
            Self::Rma => None,
        }
    }
}

impl Nic {
    /// Begins a load from another device for another node. Returns `false` if `addr` is host
    /// memory.
    pub(super) fn load_for_smfu(
        &mut self,
        to: Requester,
        addr: u64,
        len: u32,
        env: &mut Env<'_>,
    ) -> bool {
        match self.begin_load(addr, len as usize, env) {
            Ok(None) => return false,
            Ok(Some(number)) => {
                self.held.loads.insert(number, Waiter::Smfu(to));
            }
            Err(_) => self.smfu_answer(to, None, env),
        }
        true
    }

    /// Begins a load from another device into `source` at `offset` for an RMA transfer. Returns
    /// `false` if `addr` is host memory.
    pub(super) fn load_for_rma(
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
        let load = match env.host.begin_load(addr, len) {
            Ok(Some(number)) => self.dma_allowed(false, addr, len, env).map(|()| number),
            Ok(None) => return Ok(None),
            Err(fault) => Err(fault),
        };
        let load = load.map_err(|fault| self.dma_failed(false, fault, env));
        load.map(Some)
    }

    /// Processes the end of a load from another device ([`crate::env::Host::begin_load`]); `data`
    /// is `None` if the load failed.
    pub fn loaded(&mut self, number: u64, data: Option<Vec<u8>>, env: &mut Env<'_>) {
        let Some(waiter) = self.held.loads.remove(&number) else {
            // The chip was reset after the load had begun.
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

    /// Counts a failed store to another device. The store was posted, so the chip does not react
    /// otherwise.
    pub fn store_failed(&mut self, addr: u64, len: usize, env: &mut Env<'_>) {
        self.counters.drops.dma = self.counters.drops.dma.wrapping_add(1);
        self.dma_failed(true, DmaFault { addr, len }, env);
    }

    /// Returns the credit of packets whose stores to other devices have all ended.
    pub fn stores_ended(&mut self, env: &mut Env<'_>) {
        let (made, done) = env.host.device_writes();
        let all = made == done;
        // A store that is rejected later never counts as done. Therefore all credit returns when no
        // store is pending (`all`).
        let over = |first: Option<&(u64, Receipt)>| first.is_some_and(|(n, _)| all || *n <= done);
        while over(self.held.credit.front()) {
            self.held.credit.pop_front();
        }
    }

    /// Returns true if this NIC holds the credit of any packet.
    #[inline]
    pub(super) fn holds_credit(&self) -> bool {
        !self.held.credit.is_empty()
    }

    /// Holds the credit of the packet being received if it caused stores to other devices. `before`
    /// is the number of stores before the packet.
    pub(super) fn hold_credit(&mut self, before: u64, env: &mut Env<'_>) {
        let (made, done) = env.host.device_writes();
        if made != before && made != done {
            if let Some(receipt) = self.tx.receipt.take() {
                self.held.credit.push_back((made, receipt));
            }
        }
    }

    /// Returns node and tag of the SMFU load for which the device load `load` was begun.
    pub fn requester(&self, load: u64) -> Option<(u16, u64)> {
        self.held.loads.get(&load).and_then(Waiter::requester)
    }

    /// Iterates over node and tag of all SMFU loads that wait for other devices.
    pub fn requesters(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.held.loads.values().filter_map(Waiter::requester)
    }
}
