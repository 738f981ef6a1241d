//! What RMA transfers read and write, and the notifications about them (HW §10.3, §10.4, G12, G13).

use super::bq::Item;
use super::rma_regs::Half;
use super::Nic;
use crate::env::{Accessor, Env};
use wire::ids::{NodeId, Unit, Vpid};
use wire::regs::rma as regs;
use wire::rma::{
    fragments, last_fragment_len, last_fragment_start, Command, Mode, Notification,
    NotificationType, FRAGMENT,
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

/// A transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemFault {
    /// First byte that could not be accessed, from the start of the transfer.
    pub(super) offset: u32,
    /// The address was illegal for register access; else translation or DMA failed.
    pub(super) illegal: bool,
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
        space: Space,
        addr: u64,
        len: u32,
        env: &mut Env<'_>,
    ) -> Result<Vec<u8>, MemFault> {
        let mut data = vec![0; len as usize];
        match space {
            Space::Registers => {
                let illegal = MemFault {
                    offset: 0,
                    illegal: true,
                };
                let range = Self::rra_range(addr, len.into()).ok_or(illegal)?;
                for (at, to) in range.step_by(8).zip(data.chunks_exact_mut(8)) {
                    to.copy_from_slice(&self.rf_read(at, Accessor::Remote, env).to_le_bytes());
                }
            }
            Space::Bus | Space::Nla(_) => {
                let mut done = 0;
                while done < len {
                    let n = piece(space, addr, done, len);
                    let buf = &mut data[done as usize..(done + n) as usize];
                    let at = self.rma_bus_addr(space, addr, done, false, env)?;
                    if self.dma_read(at, buf, env).is_err() {
                        let good = good_bytes(n, |f, n| {
                            let buf = &mut [0; FRAGMENT as usize][..n];
                            env.host.dma_read(at.wrapping_add(f), buf).is_ok()
                        });
                        return Err(MemFault {
                            offset: done + good,
                            illegal: false,
                        });
                    }
                    done += n;
                }
            }
        }
        Ok(data)
    }

    /// Writes the destination of a transfer.
    pub(super) fn rma_write(
        &mut self,
        space: Space,
        addr: u64,
        data: &[u8],
        env: &mut Env<'_>,
    ) -> Result<(), MemFault> {
        match space {
            Space::Registers => {
                let illegal = MemFault {
                    offset: 0,
                    illegal: true,
                };
                let range = Self::rra_range(addr, data.len() as u64).ok_or(illegal)?;
                for (at, from) in range.step_by(8).zip(data.chunks_exact(8)) {
                    let value = from.try_into().map(u64::from_le_bytes).unwrap_or(0);
                    self.rf_write(at, value, Accessor::Remote, env);
                }
            }
            Space::Bus | Space::Nla(_) => {
                let len = data.len() as u32;
                let mut done = 0;
                while done < len {
                    let n = piece(space, addr, done, len);
                    let buf = &data[done as usize..(done + n) as usize];
                    let at = self.rma_bus_addr(space, addr, done, true, env)?;
                    if self.posted_write(at, buf, env).is_err() {
                        let good = good_bytes(n, |f, n| {
                            let from = &buf[f as usize..f as usize + n];
                            env.host.dma_write(at.wrapping_add(f), from).is_ok()
                        });
                        return Err(MemFault {
                            offset: done + good,
                            illegal: false,
                        });
                    }
                    done += n;
                }
            }
        }
        Ok(())
    }

    fn rma_bus_addr(
        &mut self,
        space: Space,
        addr: u64,
        done: u32,
        write: bool,
        env: &mut Env<'_>,
    ) -> Result<u64, MemFault> {
        let at = addr.wrapping_add(done.into());
        match space {
            Space::Nla(vpid) => self.translate(at, vpid, write, env).ok_or(MemFault {
                offset: done,
                illegal: false,
            }),
            Space::Bus | Space::Registers => Ok(at),
        }
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
        let good = result.map_or_else(|fault| fault.offset, |()| len);
        if note.mode.ntr {
            for f in fragments(len).take_while(|f| f.offset + f.len <= good) {
                self.notify(note, start.wrapping_add(f.offset.into()), f.len - 1, 0, env);
            }
        } else if result.is_ok() {
            let size = last_fragment_len(len).saturating_sub(1);
            self.notify(note, last_fragment_start(start, len), size, 0, env);
        }
        if let Err(fault) = result {
            let offset = fault.offset / FRAGMENT * FRAGMENT;
            let size = len.saturating_sub(offset).clamp(1, FRAGMENT) - 1;
            let at = start.wrapping_add(offset.into());
            self.notify(note, at, size, note.kind.code(), env);
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
        if error != 0 {
            self.counters.rma.error_notifications =
                self.counters.rma.error_notifications.wrapping_add(1);
        }
        let counter = match note.kind {
            NotificationType::Requester => regs::PERF_REQUESTER_NOTI,
            NotificationType::Responder => regs::PERF_RESPONDER_NOTI,
            NotificationType::Completer => regs::PERF_COMPLETER_NOTI,
        };
        self.rma_count(counter, Half::Low, 1);
        if note.mode.irq {
            self.rma_count(counter, Half::High, 1);
        }
        self.queue_put(
            Unit::Rma,
            note.vpid,
            Item::Notification(words, note.mode.irq),
            env,
        );
    }
}

/// Bytes of the next access of a transfer.
fn piece(space: Space, addr: u64, done: u32, len: u32) -> u32 {
    let rest = len - done;
    match space {
        Space::Nla(_) => {
            let at = addr.wrapping_add(done.into());
            rest.min((PAGE - at % PAGE) as u32)
        }
        Space::Bus | Space::Registers => rest.min(CHUNK),
    }
}

/// After a failed access of `n` bytes: bytes before the first fragment that can't be accessed. If all can (the fault
/// was injected), the first one counts as the culprit.
fn good_bytes(n: u32, mut access: impl FnMut(u64, usize) -> bool) -> u32 {
    let bad = fragments(n).find(|f| !access(f.offset.into(), f.len as usize));
    bad.map_or(0, |f| f.offset)
}
