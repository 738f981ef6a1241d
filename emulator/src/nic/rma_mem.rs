//! What RMA transfers read and write, and the notifications about them (HW §10.3, §10.4, G12, G13).

use super::bq::Item;
use super::rma_regs::{perf, Half, Reader};
use super::Nic;
use crate::env::{Accessor, Env};
use wire::ids::{NodeId, Unit, Vpid};
use wire::regs::rma as regs;
use wire::rma::{
    fragments, last_fragment_len, last_fragment_start, Command, Mode, Notification,
    NotificationType, NotificationWord, FRAGMENT,
};

/// Bytes per DMA access: whole fragments, so that a fault points at one.
const CHUNK: u32 = FRAGMENT * 128;
const PAGE: u64 = 4096;

/// What an address means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// Bus address.
    Bus,
    /// NLA of a VPID.
    Nla(u8),
    /// Byte offset in the register file (G19).
    Registers,
}

/// What was wrong with an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// Not an address or length for register access (G19).
    Illegal,
    /// No valid translation. Nothing was transferred (G17).
    Translation,
    /// DMA failed.
    Dma,
}

/// A transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemFault {
    pub(super) kind: FaultKind,
    /// First byte that could not be accessed, from the start of the transfer.
    pub(super) offset: u32,
    /// Bytes that were transferred nevertheless.
    pub(super) done: u32,
}

impl MemFault {
    fn new(kind: FaultKind, offset: u32) -> Self {
        Self {
            kind,
            offset,
            done: 0,
        }
    }
}

/// Part of a transfer that is one access.
struct Piece {
    /// Bytes of the transfer before it.
    offset: u32,
    len: u32,
    /// Bus address.
    addr: u64,
}

impl Piece {
    fn range(&self) -> std::ops::Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }
}

/// Everything in a notification that does not depend on the fragment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    /// VPID whose queue takes it.
    pub(super) vpid: u8,
    pub(super) kind: NotificationType,
    pub(super) command: Command,
    pub(super) mode: Mode,
    pub(super) remote_node: u16,
    pub(super) remote_vpid: u8,
}

impl Nic {
    /// Reads the source of a transfer.
    pub(super) fn rma_read(
        &mut self,
        by: Reader,
        space: Space,
        addr: u64,
        len: u32,
        env: &mut Env<'_>,
    ) -> Result<Vec<u8>, MemFault> {
        let mut data = vec![0; len as usize];
        if space == Space::Registers {
            let illegal = MemFault::new(FaultKind::Illegal, 0);
            let range = Self::rra_range(addr, len.into()).ok_or(illegal)?;
            for (at, to) in range.step_by(8).zip(data.chunks_exact_mut(8)) {
                to.copy_from_slice(&self.rf_read(at, Accessor::Remote, env).to_le_bytes());
            }
            return Ok(data);
        }
        let perf = by.perf();
        for p in self.rma_pieces(by.unit(), space, addr, len, false, env)? {
            self.rma_count(perf.requests, Half::Low, 1);
            self.rma_count_bytes(perf.bytes_asked, p.len.into());
            let buf = &mut data[p.range()];
            if self.dma_read(p.addr, buf, env).is_err() {
                self.rma_count(perf.answers, Half::High, 1);
                let bad = bad_byte(&p, |at, range| {
                    env.host.dma_read(at, &mut buf[range]).is_ok()
                });
                return Err(MemFault::new(FaultKind::Dma, bad));
            }
            self.rma_count(perf.answers, Half::Low, 1);
            self.rma_count_bytes(perf.bytes, p.len.into());
        }
        Ok(data)
    }

    /// Completer: writes the destination of a transfer.
    pub(super) fn rma_write(
        &mut self,
        space: Space,
        addr: u64,
        data: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), MemFault> {
        if space == Space::Registers {
            let illegal = MemFault::new(FaultKind::Illegal, 0);
            let range = Self::rra_range(addr, data.len() as u64).ok_or(illegal)?;
            for (at, from) in range.step_by(8).zip(data.chunks_exact(8)) {
                let value = from.try_into().map(u64::from_le_bytes).unwrap_or(0);
                self.rf_write(at, value, Accessor::Remote, env);
            }
            return Ok(());
        }
        let by = NotificationType::Completer;
        for p in self.rma_pieces(by, space, addr, data.len() as u32, true, env)? {
            let buf = &data[p.range()];
            if self.posted_write(p.addr, buf, env).is_err() {
                let bad = bad_byte(&p, |at, range| env.host.dma_write(at, &buf[range]).is_ok());
                return Err(MemFault {
                    kind: FaultKind::Dma,
                    offset: bad,
                    done: bad,
                });
            }
            self.rma_count(regs::PERF_COMPLETER_OUT_0, Half::Low, 1);
            self.rma_count_bytes(regs::PERF_COMPLETER_OUT_1, p.len.into());
        }
        Ok(())
    }

    /// Where a transfer goes. All of it is translated before anything is accessed (G17).
    fn rma_pieces(
        &mut self,
        by: NotificationType,
        space: Space,
        addr: u64,
        len: u32,
        write: bool,
        env: &mut Env<'_>,
    ) -> Result<Vec<Piece>, MemFault> {
        let mut pieces = Vec::new();
        let mut offset = 0;
        while offset < len {
            let at = addr.wrapping_add(offset.into());
            let fault = MemFault::new(FaultKind::Translation, offset);
            let (limit, addr) = match space {
                Space::Nla(vpid) => (
                    (PAGE - at % PAGE) as u32,
                    self.translate(by, at, vpid, write, env).ok_or(fault)?,
                ),
                Space::Bus | Space::Registers => (CHUNK, at),
            };
            let len = limit.min(len - offset);
            pieces.push(Piece { offset, len, addr });
            offset += len;
        }
        Ok(pieces)
    }

    /// Writes the notification or notifications of a transfer that is over.
    pub(super) fn notify_transfer(
        &mut self,
        note: Note,
        start: u64,
        len: u32,
        result: Result<(), MemFault>,
        env: &mut Env<'_>,
    ) {
        let done = result.map_or_else(|fault| fault.done, |()| len);
        if note.mode.ntr {
            for f in fragments(len).take_while(|f| f.offset + f.len <= done) {
                self.notify(note, start.wrapping_add(f.offset.into()), f.len - 1, 0, env);
            }
        } else if result.is_ok() {
            let size = last_fragment_len(len).saturating_sub(1);
            self.notify(note, last_fragment_start(start, len), size, 0, env);
        }
        if let Err(fault) = result {
            self.notify_failed(note, start, len, fault.offset, note.kind, env);
        }
    }

    /// Writes the notification of a transfer of which a unit could not access the byte at `offset`.
    pub(super) fn notify_failed(
        &mut self,
        note: Note,
        start: u64,
        len: u32,
        offset: u32,
        unit: NotificationType,
        env: &mut Env<'_>,
    ) {
        let offset = offset / FRAGMENT * FRAGMENT;
        let size = len.saturating_sub(offset).clamp(1, FRAGMENT) - 1;
        let at = start.wrapping_add(offset.into());
        self.notify(note, at, size, unit.code(), env);
    }

    /// Writes one notification.
    pub(super) fn notify(
        &mut self,
        note: Note,
        word0: u64,
        size_field: u32,
        error: u8,
        env: &mut Env<'_>,
    ) {
        let words = Notification {
            word0,
            size_field,
            vpid: Vpid::from(note.remote_vpid),
            node: NodeId(note.remote_node),
            kind: note.kind,
            command: note.command,
            mode: note.mode,
            error,
        }
        .encode();
        self.notify_words(note.vpid, words, note.kind, env);
    }

    /// Writes a notification of a sub-unit, given as its words.
    pub(super) fn notify_words(
        &mut self,
        vpid: u8,
        words: [u64; 2],
        by: NotificationType,
        env: &mut Env<'_>,
    ) {
        let word1 = NotificationWord(words[1]);
        if word1.error() != 0 {
            self.counters.rma.error_notifications =
                self.counters.rma.error_notifications.wrapping_add(1);
        }
        let irq = Mode::from_bits(word1.mode()).irq;
        self.rma_count(perf(by).noti, Half::Low, 1);
        if irq {
            self.rma_count(perf(by).noti, Half::High, 1);
        }
        self.queue_put(Unit::Rma, vpid, Item::Notification(words, irq), env);
    }
}

/// After a failed access: first byte, from the start of the transfer, of the first fragment in it that can't be accessed. If
/// all can (the fault was injected), the first one counts as the culprit.
fn bad_byte(p: &Piece, mut access: impl FnMut(u64, std::ops::Range<usize>) -> bool) -> u32 {
    let end = p.offset + p.len;
    let mut at = p.offset;
    while at < end {
        let stop = end.min((at / FRAGMENT + 1) * FRAGMENT);
        let range = (at - p.offset) as usize..(stop - p.offset) as usize;
        if !access(p.addr.wrapping_add((at - p.offset).into()), range) {
            return at;
        }
        at = stop;
    }
    p.offset
}
