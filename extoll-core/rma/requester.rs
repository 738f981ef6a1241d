// SPDX-License-Identifier: GPL-2.0-only

//! Requesting half of an RMA port.

use super::{
    address::{Address, Ends, Peer},
    Handle, PACKET_WORDS,
};
use crate::{context::Context, stats::PortStats, tx::SendError, vpid::Client};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::trace;
use wire::{
    ids::Vpid,
    rma::{Descriptor, LockTarget, Operation, PageOptions, RequesterAddr},
};

/// Requesting half of a port. Drop in any context.
#[derive(Clone)]
pub struct Requester {
    port: Handle,
}

impl Requester {
    pub(super) fn new(port: Handle) -> Self {
        Self { port }
    }

    /// Own VPID.
    pub fn vpid(&self) -> Vpid {
        self.port.core().vpid()
    }

    /// What is known of the NIC: identity, status, liveness.
    pub fn context(&self) -> &Arc<Context> {
        self.port.core().ctx()
    }

    /// Counters.
    pub fn stats(&self) -> &PortStats {
        self.port.core().stats()
    }

    /// False while the VPID stays disabled because of [`crate::quarantine`]: commands are refused with `Retry`, answers and
    /// commands of peers are not taken, and [`Client::writable`] follows. Any context.
    pub fn is_enabled(&self) -> bool {
        !self.port.core().unit().quarantine.is_waiting(self.vpid())
    }

    /// Sets who hears of interrupts and of room to send. Replaces an earlier client, which is not called any more when
    /// this returns. Call [`rearm`](super::Notifications::rearm) afterwards. Not from a client's method.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.port.core().set_client(Some(client));
    }

    /// Removes the client: when this returns, it is not called any more. Not from a client's method.
    pub fn detach(&self) {
        self.port.core().set_client(None);
    }

    /// Commands that can be posted by the last known state. No register access, any context.
    pub fn room(&self) -> usize {
        self.port.tx.room()
    }

    /// Commands given to the port since it was opened, and those of them that it will not post again. No register access, any context.
    pub fn progress(&self) -> (u64, u64) {
        self.port.tx.progress()
    }

    /// Makes sure that the next `n` (at most 255) commands do not fail for lack of credit, provided nobody else posts;
    /// see [`velo::Sender::reserve`](crate::velo::Sender::reserve).
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        if !self.is_enabled() {
            return Err(SendError::Retry);
        }
        self.port.tx.reserve(n)
    }

    /// Posts a command. Any context; takes an interrupt-safe spin lock.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: lost commands are being sent again, or the VPID is not enabled yet. In both
    /// cases nothing was posted and [`Client::writable`] follows, perhaps even before this returns. `Down`: for
    /// ever. `Invalid`: a count, address or number that the command does not allow.
    pub fn post(&self, page: PageOptions, descriptor: &Descriptor) -> Result<(), SendError> {
        let words = descriptor.encode().map_err(|_| SendError::Invalid)?;
        if !self.is_enabled() {
            return Err(SendError::Retry);
        }
        let vpid = self.vpid();
        self.port.tx.post(|packet| {
            packet.page = RequesterAddr::page(vpid, page).encode();
            packet.words = words;
            packet.len = PACKET_WORDS as u8;
        })?;
        let [a, b, c] = words;
        trace::rma_post(self.context().id(), vpid.get() as u8, a, b, c);
        Ok(())
    }

    fn command(&self, peer: &Peer, translate: bool, op: Operation) -> Result<(), SendError> {
        let page = PageOptions {
            translate,
            ..peer.page
        };
        self.post(
            page,
            &Descriptor {
                node: peer.node,
                vpid: peer.vpid,
                notify: peer.notify,
                modifiers: peer.modifiers,
                op,
            },
        )
    }

    pub(super) fn get_ends(&self, peer: &Peer, ends: Ends, len: u32) -> Result<(), SendError> {
        let op = Operation::Get {
            qw: peer.quadwords,
            len,
            remote: ends.remote,
            local: ends.local,
        };
        self.command(peer, ends.translate, op)
    }

    pub(super) fn put_ends(&self, peer: &Peer, ends: Ends, len: u32) -> Result<(), SendError> {
        let op = Operation::Put {
            qw: peer.quadwords,
            len,
            local: ends.local,
            remote: ends.remote,
        };
        self.command(peer, ends.translate, op)
    }

    /// Reads `len` (1…8 MiB) bytes of the peer's memory into local memory. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`]; `Invalid` also for a local region that is dead, too short, read-only or another NIC's or VPID's.
    pub fn get(&self, peer: Peer, address: Address<'_>, len: u32) -> Result<(), SendError> {
        let ends = address
            .ends(self, true, len.into())
            .ok_or(SendError::Invalid)?;
        self.get_ends(&peer, ends, len)
    }

    /// Writes `len` (1…8 MiB) bytes of local memory to the peer's memory. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::get`], where the local region has to allow reading.
    pub fn put(&self, peer: Peer, address: Address<'_>, len: u32) -> Result<(), SendError> {
        let ends = address
            .ends(self, false, len.into())
            .ok_or(SendError::Invalid)?;
        self.put_ends(&peer, ends, len)
    }

    /// Fetch-compare-and-add on lock `number` of the peer's VPID: if its value is at most `compare`, adds `add`. The
    /// completer notification carries the outcome as [`LockResult`](super::LockResult). See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn lock(
        &self,
        peer: Peer,
        at: LockTarget,
        number: u32,
        compare: i32,
        add: i32,
    ) -> Result<(), SendError> {
        self.command(
            &peer,
            false,
            Operation::Lock {
                at,
                number,
                compare,
                add,
            },
        )
    }

    /// Only notifies the peer, with a class and a value. See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// As [`Requester::post`].
    pub fn notify(&self, peer: Peer, class: u8, value: u64) -> Result<(), SendError> {
        self.command(&peer, false, Operation::NotificationPut { class, value })
    }

    /// Drops it; if nothing else of the port is left, waits until that is closed: its VPID can be opened again,
    /// unless commands are still on their way (reason 34). May sleep, for some 100 ms.
    pub fn close(self) {
        self.port.close();
    }

    /// Gives up commands that the NIC did not take, e.g. after a transmit time-out. Any context.
    pub fn reset(&self) {
        self.port.tx.reset();
    }
}
