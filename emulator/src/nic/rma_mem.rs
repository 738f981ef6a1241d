//! Memory accesses of RMA transfers, and their notifications (HW §10.3, §10.4, G12, G13).

use super::bq::Item;
use super::rma_regs::{perf, Half, Reader};
use super::Nic;
use crate::env::{Accessor, Env};
use wire::ids::{NodeId, Unit, Vpid};
use wire::regs::rma as regs;
use wire::rma::{
    fragment_count, fragments, Command, Mode, Notification, NotificationType, NotificationWord,
};

const PAGE: u64 = 4096;

/// Address space of an RMA address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// Memory by its bus address.
    Bus,
    /// Memory by an NLA of this VPID.
    Nla(u8),
    /// Register file, by a byte offset (G19).
    Registers,
}

/// Reason why an access failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// Address or length is invalid for register access (G19).
    Illegal,
    /// The address has no valid translation. No byte of the packet was transferred (G17).
    Translation,
    /// A DMA read failed.
    Dma,
}

/// Data for a packet, as far as it has been read.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) data: Vec<u8>,
    /// Pending loads from other devices: number of the load, offset in the data, and length in
    /// bytes.
    pub(super) missing: Vec<(u64, usize, usize)>,
    /// True if at least one of the loads failed.
    pub(super) failed: bool,
}

/// Content that the notifications of all fragments have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    /// VPID whose queue receives the notification.
    pub(super) vpid: u8,
    pub(super) kind: NotificationType,
    pub(super) command: Command,
    pub(super) mode: Mode,
    pub(super) remote_node: u16,
    pub(super) remote_vpid: u8,
}

/// Chunk of a packet that one access transfers: bus address and length in bytes.
type Piece = (u64, u32);

impl Nic {
    /// Reads the source of a packet, or begins loads from other devices (see [`Source::missing`]).
    pub(super) fn rma_read(
        &mut self,
        by: Reader,
        space: Space,
        addr: u64,
        len: u32,
        env: &mut Env<'_>,
    ) -> Result<Source, FaultKind> {
        let mut source = Source {
            data: vec![0; len as usize],
            ..Source::default()
        };
        let data = &mut source.data;
        if space == Space::Registers {
            let range = Self::rra_range(addr, len.into()).ok_or(FaultKind::Illegal)?;
            for (at, to) in range.step_by(8).zip(data.chunks_exact_mut(8)) {
                to.copy_from_slice(&self.rf_read(at, Accessor::Remote, env).to_le_bytes());
            }
            return Ok(source);
        }
        let perf = by.perf();
        let mut offset = 0;
        for (at, n) in self.rma_pieces(by.unit(), space, addr, len, false, env)? {
            let place = (offset, n as usize);
            offset += n as usize;
            self.rma_count(perf.requests, Half::Low, 1);
            self.rma_count_bytes(perf.bytes_asked, n.into());
            if self.load_for_rma(&mut source, place, at, env)? {
                continue;
            }
            let buf = &mut source.data[place.0..offset];
            if self.dma_read(at, buf, env).is_err() {
                self.rma_count(perf.answers, Half::High, 1);
                return Err(FaultKind::Dma);
            }
            self.rma_count(perf.answers, Half::Low, 1);
            self.rma_count_bytes(perf.bytes, n.into());
        }
        Ok(source)
    }

    /// Writes the data of a packet for the completer. DMA writes are posted, so only reasons that
    /// the chip can detect before the write return an error.
    pub(super) fn rma_write(
        &mut self,
        space: Space,
        addr: u64,
        data: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), FaultKind> {
        if space == Space::Registers {
            let range = Self::rra_range(addr, data.len() as u64).ok_or(FaultKind::Illegal)?;
            for (at, from) in range.step_by(8).zip(data.chunks_exact(8)) {
                let value = from.try_into().map(u64::from_le_bytes).unwrap_or(0);
                self.rf_write(at, value, Accessor::Remote, env);
            }
            return Ok(());
        }
        let by = NotificationType::Completer;
        let mut rest = data;
        for (at, n) in self.rma_pieces(by, space, addr, data.len() as u32, true, env)? {
            let (buf, later) = rest.split_at(n as usize);
            rest = later;
            // The write is posted, so the chip does not notice a failure.
            if self.posted_write(at, buf, env).is_err() {
                self.counters.drops.dma = self.counters.drops.dma.wrapping_add(1);
            }
            self.rma_count(regs::PERF_COMPLETER_OUT_0, Half::Low, 1);
            self.rma_count_bytes(regs::PERF_COMPLETER_OUT_1, n.into());
        }
        Ok(())
    }

    /// Returns the accesses that transfer a packet. The whole packet is translated before the first
    /// access (G17).
    fn rma_pieces(
        &mut self,
        by: NotificationType,
        space: Space,
        addr: u64,
        len: u32,
        write: bool,
        env: &mut Env<'_>,
    ) -> Result<impl Iterator<Item = Piece>, FaultKind> {
        let Space::Nla(vpid) = space else {
            return Ok([(addr, len), (0, 0)].into_iter().take(1));
        };
        let first = len.min((PAGE - addr % PAGE) as u32);
        let mut translate = |at| {
            let to = self.translate(by, at, vpid, write, env);
            to.ok_or(FaultKind::Translation)
        };
        let mut pieces = [(translate(addr)?, first), (0, 0)];
        if first == len {
            return Ok(pieces.into_iter().take(1));
        }
        // A packet is never longer than a page.
        pieces[1] = (translate(addr.wrapping_add(first.into()))?, len - first);
        Ok(pieces.into_iter().take(2))
    }

    /// Writes the notifications for a GET request that was sent: one notification per fragment if
    /// `ntr` is set, otherwise one notification.
    pub(super) fn notify_sent(&mut self, note: Note, start: u64, len: u32, env: &mut Env<'_>) {
        let skip = match note.mode.ntr {
            true => 0,
            false => fragment_count(len) - 1,
        };
        for f in fragments(len).skip(skip as usize) {
            self.notify(note, start.wrapping_add(f.offset.into()), f.len - 1, 0, env);
        }
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

    /// Writes a notification of a sub-unit. `words` are the two words of the notification.
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
