//! Host accesses and the register file: routing, access rights, partial accesses, and calls of the
//! units.

use super::htax::Route;
use super::{Access, Nic, RegMap, RF_SIZE};
use crate::env::{Accessor, Env, TraceEvent};
use wire::ids::{RegOffset, Unit};

const PAGE: u64 = 4096;

/// Returns true for registers of the network: network ports, crossbar, barriers, links and PHY.
pub(super) fn is_network(offset: u32) -> bool {
    matches!(offset, 0x9400..=0x95FF | 0x40_0000..=0x4B_7FFF)
}

/// Unit that a register belongs to.
#[derive(Clone, Copy)]
enum Block {
    Info,
    Htax,
    Network,
    Smfu,
    Atu,
    Snq,
    Queue(Unit),
    WcBuf(Unit),
    Velo,
    Rma,
    Bridge,
    Other,
}

fn block(offset: u32) -> Block {
    match offset {
        0x5400..=0x56FF => Block::Bridge,
        0x8000..=0x87FF => Block::Info,
        0x9200..=0x92FF => Block::Htax,
        _ if is_network(offset) => Block::Network,
        0xA000..=0xAFFF => Block::Smfu,
        0xC000..=0xFFFF => Block::Atu,
        0x1_0000..=0x1_0FFF => Block::Snq,
        0xC0_0000..=0xDF_FFFF => Block::Queue(Unit::Velo),
        0xE0_0000..=0xFF_FFFF => Block::Queue(Unit::Rma),
        0x100_0000..=0x11F_FFFF => Block::WcBuf(Unit::Velo),
        0x120_0000..=0x13F_FFFF => Block::Velo,
        0x140_0000..=0x15F_FFFF => Block::WcBuf(Unit::Rma),
        0x160_0000..=0x17F_FFFF => Block::Rma,
        _ => Block::Other,
    }
}

/// Returns the length of the first chunk of an access. A chunk ends at a page boundary.
fn piece(offset: u64, len: usize) -> usize {
    len.min((PAGE - offset % PAGE) as usize)
}

impl Nic {
    /// Executes a load of the host. Returns true if some of the data arrives over the network later
    /// (see [`Nic::finish_load`]).
    pub(super) fn host_read(
        &mut self,
        bar: u8,
        offset: u64,
        data: &mut [u8],
        env: &mut Env<'_>,
    ) -> bool {
        let base = self.bars.get(usize::from(bar)).copied().unwrap_or(0);
        self.smfu_begin_load();
        let mut done = 0;
        while done < data.len() {
            let at = offset.wrapping_add(done as u64);
            let n = piece(at, data.len() - done);
            let now = &mut data[done..done + n];
            match self.htax.route(bar, base, at, false) {
                Route::Smfu { addr, remote_rf } => self.smfu_load(addr, remote_rf, done, now, env),
                Route::Unmapped => {
                    self.bad_access("read", at, env);
                    now.fill(0);
                }
                route => self.unit_load(route, now, env),
            }
            done += n;
        }
        self.smfu_end_load(data)
    }

    /// Executes a load from a unit of this NIC.
    pub(super) fn unit_load(&mut self, route: Route, data: &mut [u8], env: &mut Env<'_>) {
        match route {
            Route::Rf(rf) => self.rf_load(rf, data, Accessor::Host, env),
            // Requester pages can't be read back, so they return 0 (G8).
            Route::Velo(_) | Route::Rma(_) => data.fill(0),
            Route::Smfu { .. } | Route::Unmapped | Route::Discard => {
                self.htax_discard(false);
                data.fill(0xFF);
            }
        }
    }

    #[inline]
    pub(super) fn host_write(&mut self, bar: u8, offset: u64, data: &[u8], env: &mut Env<'_>) {
        let base = self.bars.get(usize::from(bar)).copied().unwrap_or(0);
        let mut offset = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(piece(offset, rest.len()));
            match self.htax.route(bar, base, offset, true) {
                Route::Unmapped => self.bad_access("write", offset, env),
                route => self.unit_store(route, now, env),
            }
            offset = offset.wrapping_add(now.len() as u64);
            rest = later;
        }
    }

    /// Executes a store to a unit of this NIC.
    #[inline]
    pub(super) fn unit_store(&mut self, route: Route, data: &[u8], env: &mut Env<'_>) {
        match route {
            Route::Velo(at) => self.requester_store(Unit::Velo, at, data, env),
            Route::Rma(at) => self.requester_store(Unit::Rma, at, data, env),
            Route::Rf(rf) => self.rf_store(rf, data, Accessor::Host, env),
            Route::Smfu { addr, remote_rf } => self.smfu_store(addr, remote_rf, data, env),
            Route::Unmapped | Route::Discard => self.htax_discard(true),
        }
    }

    fn bad_access(&mut self, what: &str, offset: u64, env: &mut Env<'_>) {
        self.counters.bad_accesses = self.counters.bad_accesses.wrapping_add(1);
        self.diagnose(env, || format!("{what} of {offset:#x}: no such address"));
    }

    fn odd_access(&mut self, what: &str, offset: u32, len: usize, env: &mut Env<'_>) {
        self.counters.odd_accesses = self.counters.odd_accesses.wrapping_add(1);
        self.diagnose(env, || {
            format!(
                "{len}-byte {what} at RF+{offset:#x}: registers are accessed as aligned quadwords"
            )
        });
    }

    /// Executes a load from the register file. Accesses to parts of quadwords are accepted (G32).
    pub(super) fn rf_load(
        &mut self,
        offset: u32,
        data: &mut [u8],
        by: Accessor,
        env: &mut Env<'_>,
    ) {
        let mut offset = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let skip = (offset % 8) as usize;
            let n = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(n);
            if n != 8 {
                self.odd_access("read", offset, n, env);
            }
            let value = self.rf_read(offset & !7, by, env).to_le_bytes();
            now.copy_from_slice(&value[skip..skip + n]);
            rest = later;
            offset = offset.wrapping_add(n as u32);
        }
    }

    /// Executes a store to the register file. Parts of quadwords are merged with the old value
    /// (G32).
    pub(super) fn rf_store(&mut self, offset: u32, data: &[u8], by: Accessor, env: &mut Env<'_>) {
        let mut offset = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let skip = (offset % 8) as usize;
            let (now, later) = rest.split_at(rest.len().min(8 - skip));
            let mut value = [0; 8];
            if now.len() != 8 {
                self.odd_access("write", offset, now.len(), env);
                let at = offset & !7;
                let slot = RegMap::get().slot(at);
                // A register that ignores writes must not be read, because the read may have side
                // effects.
                if slot.is_some_and(|s| s.access != Access::ReadOnly) {
                    value = self.rf_value(at, by, env).unwrap_or(0).to_le_bytes();
                }
            }
            value[skip..skip + now.len()].copy_from_slice(now);
            self.rf_write(offset & !7, u64::from_le_bytes(value), by, env);
            offset = offset.wrapping_add(now.len() as u32);
            rest = later;
        }
    }

    /// Reads the register at an aligned offset, with side effects. Returns 0 if the register is
    /// write only or does not exist (G32).
    pub(super) fn rf_read(&mut self, offset: u32, by: Accessor, env: &mut Env<'_>) -> u64 {
        let readable = RegMap::get()
            .slot(offset)
            .is_some_and(|s| s.access != Access::WriteOnly);
        let value = if readable {
            self.rf_value(offset, by, env).unwrap_or(0)
        } else {
            self.bad_access("read of register", offset.into(), env);
            0
        };
        if env.trace.enabled() {
            env.trace.event(TraceEvent::RegRead { by, offset, value });
        }
        value
    }

    /// Returns the current value of a register regardless of access rights, or `None` if there is
    /// no register.
    pub(super) fn rf_value(&mut self, offset: u32, by: Accessor, env: &mut Env<'_>) -> Option<u64> {
        let slot = RegMap::get().slot(offset)?;
        let at = RegOffset(offset);
        let live = match block(offset) {
            Block::Info => self.info_read(at, env),
            Block::Htax => self.htax.read(at),
            Block::Network => self.net.as_mut().and_then(|net| net.read(offset)),
            Block::Snq => self.snq.read(at),
            Block::Queue(unit) => self.queue_reg_read(unit, at),
            Block::WcBuf(unit) => self.wcbuf_reg_read(unit, at),
            Block::Velo => self.velo_reg_read(at, by),
            Block::Rma => self.rma_reg_read(at, by),
            Block::Smfu => self.smfu_reg_read(at),
            Block::Bridge => self.bridge_reg_read(at),
            Block::Atu | Block::Other => None,
        };
        Some(live.unwrap_or_else(|| self.storage.get(slot)))
    }

    /// Writes the register at an aligned offset. The write is ignored if the register is read only
    /// or does not exist (G32).
    pub(super) fn rf_write(&mut self, offset: u32, value: u64, by: Accessor, env: &mut Env<'_>) {
        if env.trace.enabled() {
            env.trace.event(TraceEvent::RegWrite { by, offset, value });
        }
        let slot = match RegMap::get().slot(offset) {
            Some(slot) if slot.access != Access::ReadOnly => slot,
            _ => {
                self.bad_access("write of register", offset.into(), env);
                return;
            }
        };
        let at = RegOffset(offset);
        let taken = match block(offset) {
            Block::Info => self.info_write(at, value, env),
            Block::Htax => self.htax.write(at, value),
            Block::Network => self
                .net
                .as_mut()
                .is_some_and(|net| net.write(offset, value)),
            Block::Smfu => self.smfu_reg_write(at, value, env),
            Block::Atu => self.atu_reg_write(at, value, env),
            Block::Snq => self.snq_write(at, value, env),
            Block::Queue(unit) => self.queue_reg_write(unit, at, value, env),
            Block::WcBuf(unit) => self.wcbuf_reg_write(unit, at, value, env),
            Block::Velo => self.velo_reg_write(at, value, env),
            Block::Rma => self.rma_reg_write(at, value, env),
            Block::Bridge => self.bridge_reg_write(at, value, env),
            Block::Other => false,
        };
        if !taken {
            self.storage.set(slot, value);
        }
    }

    /// Returns the register offsets of an access by a remote node (G19). Returns `None` if the
    /// access is out of range or is not in aligned quadwords.
    pub(super) fn rra_range(addr: u64, len: u64) -> Option<std::ops::Range<u32>> {
        let end = addr.checked_add(len)?;
        (addr % 8 == 0 && len % 8 == 0 && end <= u64::from(RF_SIZE))
            .then_some(addr as u32..end as u32)
    }
}
