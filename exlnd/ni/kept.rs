// SPDX-License-Identifier: GPL-2.0-only

//! Messages that LNet keeps for later. Their payload is copied, because they would otherwise occupy
//! buffers, and LNet may wait for messages that need these buffers. Process context, sleeps.

use super::{
    count::Count,
    receive::{failed, In},
    Ni, BUFFER,
};
use crate::ffi::lnet::{End, Wanted};
use extoll_core::memory::KernelMemory;
use kernel::prelude::*;
use protocol::lnd;

/// Copied payloads, by the number of their message.
pub(super) type EagerCopies = lnd::EagerCopies<KernelMemory, KVVec<u8>>;

impl Ni {
    /// Copies the payload of a message that LNet keeps for later. If that fails, the message
    /// occupies its buffer until LNet receives it. Called without locks; sleeps.
    pub(crate) fn keep(&self, number: u64) {
        let kept = self.copy_kept(number).unwrap_or(false);
        self.counters.count(if kept {
            Count::Kept
        } else {
            Count::KeptInPlace
        });
    }

    fn copy_kept(&self, number: u64) -> Option<bool> {
        let (ticket, node) = self.offered(number)?;
        let (_, _, len, inline) = self.core.lock().machine()?.offered(ticket)?;
        if !inline {
            return None;
        }
        let index = ticket.index();
        let mut payload = KVVec::from_elem(0u8, len as usize, GFP_KERNEL).ok()?;
        if len > 0 {
            let at = index as usize * BUFFER;
            self.buffers.copy_to(at, &mut payload).ok()?;
        }
        self.kept.lock().insert(number, node, payload).ok()?;
        let mut core = self.core.lock();
        let now = self.now();
        let kept = core.machine_mut().is_some_and(|m| m.kept(ticket));
        if kept {
            // The entry must be free before another message gets the same index.
            drop(self.set_in(index, In::Free));
        }
        self.drive(&mut core, now);
        drop(core);
        if !kept {
            drop(self.kept.lock().remove(number));
        }
        Some(kept)
    }

    /// Receives a message that LNet has kept, up to the length that LNet requests. Called without
    /// locks.
    pub(super) fn recv_kept(&self, number: u64, msg: Option<Wanted>) {
        let copied = self.kept.lock().remove(number);
        let Some(mut msg) = msg else {
            return;
        };
        let wanted = msg.len();
        let payload = copied.as_ref().and_then(|copied| copied.get(..wanted));
        let end = match payload {
            None => failed(EIO),
            Some(payload) => msg.write(payload).map_or_else(failed, |()| End::OK),
        };
        msg.finalize(end);
    }
}
