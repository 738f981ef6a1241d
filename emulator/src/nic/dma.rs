//! Bus accesses of the NIC to host memory, and interrupts.

use super::{LoseWrite, LossyRing, Nic};
use crate::env::{DmaFault, Env, TraceEvent};
use std::ops::RangeInclusive;

/// Address range in which a posted write from the network becomes an interrupt (G26).
pub(super) const MSI_RANGE: RangeInclusive<u64> = 0xFD_0000_0000..=0xFD_FFFF_FFFF;

/// Increments `count`. Returns true on every `every`-th call; 0 counts as 1.
pub(super) fn nth(count: &mut u32, every: Option<u32>) -> bool {
    every.is_some_and(|every| {
        *count = count.wrapping_add(1);
        *count % every.max(1) == 0
    })
}

impl Nic {
    pub(super) fn dma_allowed(
        &mut self,
        write: bool,
        addr: u64,
        len: usize,
        env: &mut Env<'_>,
    ) -> Result<(), DmaFault> {
        let fault = DmaFault { addr, len };
        if !self.bus_master {
            self.counters.drops.bus_master_off = self.counters.drops.bus_master_off.wrapping_add(1);
            return Err(fault);
        }
        if nth(&mut self.dma_accesses, self.cfg.faults.dma_fault_every) {
            return Err(fault);
        }
        if env.trace.enabled() {
            env.trace.event(TraceEvent::Dma { write, addr, len });
        }
        Ok(())
    }

    pub(super) fn dma_failed(
        &mut self,
        write: bool,
        fault: DmaFault,
        env: &mut Env<'_>,
    ) -> DmaFault {
        self.counters.dma_faults = self.counters.dma_faults.wrapping_add(1);
        let what = if write { "write to" } else { "read of" };
        let why = if self.bus_master {
            ""
        } else {
            ": bus mastering is off"
        };
        self.diagnose(env, || {
            format!(
                "DMA {what} {:#x}, {} bytes failed{why}",
                fault.addr, fault.len
            )
        });
        fault
    }

    /// Reads host memory.
    pub(super) fn dma_read(
        &mut self,
        addr: u64,
        buf: &mut [u8],
        env: &mut Env<'_>,
    ) -> Result<(), DmaFault> {
        self.dma_allowed(false, addr, buf.len(), env)
            .and_then(|()| env.host.dma_read(addr, buf))
            .map_err(|fault| self.dma_failed(false, fault, env))?;
        self.counters.dma_reads = self.counters.dma_reads.wrapping_add(1);
        self.counters.dma_bytes_read = self.counters.dma_bytes_read.wrapping_add(buf.len() as u64);
        Ok(())
    }

    /// Writes host memory.
    pub(super) fn dma_write(
        &mut self,
        addr: u64,
        data: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), DmaFault> {
        self.dma_allowed(true, addr, data.len(), env)
            .and_then(|()| env.host.dma_write(addr, data))
            .map_err(|fault| self.dma_failed(true, fault, env))?;
        self.counters.dma_writes = self.counters.dma_writes.wrapping_add(1);
        self.counters.dma_bytes_written = self
            .counters
            .dma_bytes_written
            .wrapping_add(data.len() as u64);
        Ok(())
    }

    /// Returns the slots of an item of `slots` slots that the bus loses because of
    /// [`super::Faults::lose_writes`]. Each slot is one bit.
    pub(super) fn lost_slots(&mut self, ring: LossyRing, vpid: u8, slots: u32) -> u8 {
        let list = &mut self.cfg.faults.lose_writes;
        let hit = |l: &LoseWrite| {
            l.ring == ring
                && l.count > 0
                && l.vpid.is_none_or(|v| v == vpid)
                && l.slot.is_none_or(|s| u32::from(s) < slots)
        };
        let Some(i) = list.iter().position(hit) else {
            return 0;
        };
        let slot = list[i].slot;
        list[i].count -= 1;
        if list[i].count == 0 {
            list.remove(i);
        }
        self.counters.drops.lost_write = self.counters.drops.lost_write.wrapping_add(1);
        slot.map_or(u8::MAX, |s| 1 << s)
    }

    /// Reads one quadword of host memory.
    pub(super) fn dma_read_qw(&mut self, addr: u64, env: &mut Env<'_>) -> Result<u64, DmaFault> {
        let mut raw = [0; 8];
        self.dma_read(addr, &mut raw, env)?;
        Ok(u64::from_le_bytes(raw))
    }

    /// Performs a posted write that came from the network: a write to memory, or an interrupt
    /// (G26).
    pub(super) fn posted_write(
        &mut self,
        addr: u64,
        data: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), DmaFault> {
        if MSI_RANGE.contains(&addr) {
            self.send_msi(env);
            return Ok(());
        }
        self.dma_write(addr, data, env)
    }

    /// Sends MSI message 0.
    pub(super) fn send_msi(&mut self, env: &mut Env<'_>) {
        if !self.bus_master {
            self.counters.drops.bus_master_off = self.counters.drops.bus_master_off.wrapping_add(1);
            return;
        }
        if self.lost_slots(LossyRing::Msi, 0, 1) != 0 {
            return;
        }
        self.counters.interrupts = self.counters.interrupts.wrapping_add(1);
        if env.trace.enabled() {
            env.trace.event(TraceEvent::Msi { vector: 0 });
        }
        env.host.msi(0);
    }
}
