// SPDX-License-Identifier: GPL-2.0-only

//! Requester half of an RMA port, which posts commands.
//!
//! Posting works in any context and acquires the port's spinlock, which disables interrupts.

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

/// Requester half of a port. Can be dropped in any context.
#[derive(Clone)]
pub struct Requester {
    port: Handle,
}

impl Requester {
    pub(super) fn new(port: Handle) -> Self {
        Self { port }
    }

    /// Returns the port's VPID.
    pub fn vpid(&self) -> Vpid {
        self.port.core().vpid()
    }

    /// Returns the NIC's context: its identity, status and liveness.
    pub fn context(&self) -> &Arc<Context> {
        self.port.core().ctx()
    }

    /// Returns the port's counters.
    pub fn stats(&self) -> &PortStats {
        self.port.core().stats()
    }

    /// Returns false while [`crate::quarantine`] keeps the VPID disabled. During that time commands
    /// fail with `Retry`, and the NIC accepts neither answers nor commands of peers.
    /// [`Client::writable`] is called when the VPID is enabled. Any context.
    pub fn is_enabled(&self) -> bool {
        !self.port.core().unit().quarantine.is_disabled(self.vpid())
    }

    /// Sets the client, which is called for interrupts and when commands can be posted again. It
    /// replaces the earlier client, which is not called after this function returns. The caller
    /// must call [`rearm`](super::Notifications::rearm) afterwards. Must not be called from a
    /// method of a client.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.port.core().set_client(Some(client));
    }

    /// Removes the client, which is not called after this function returns. Must not be called from
    /// a method of a client.
    pub fn detach(&self) {
        self.port.core().set_client(None);
    }

    /// Returns the number of commands that can be posted according to the NIC's last known state.
    /// No register access. Any context.
    pub fn room(&self) -> usize {
        self.port.tx.credit()
    }

    /// Returns the number of commands posted since the port was opened, and how many of them will
    /// not be posted again. No register access. Any context.
    pub fn progress(&self) -> (u64, u64) {
        self.port.tx.progress()
    }

    /// Ensures that the next `n` commands (maximum 255) do not fail for lack of credit, provided
    /// that no other thread posts commands. See
    /// [`velo::Sender::reserve`](crate::velo::Sender::reserve).
    ///
    /// # Errors
    ///
    /// The errors of [`Requester::post`].
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        if !self.is_enabled() {
            return Err(SendError::Retry);
        }
        self.port.tx.reserve(n)
    }

    /// Posts a command. Any context; acquires a spinlock that disables interrupts.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: dropped commands are being posted again, or the VPID is not
    /// enabled yet. In both cases no command was posted, and [`Client::writable`] is called later,
    /// possibly before this function returns. `Down`: the port cannot be used any more. `Invalid`:
    /// the command does not permit a count, address or number.
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
    /// The errors of [`Requester::post`]. `Invalid` also for a local region that is dead, too
    /// short, read-only, or belongs to another NIC or VPID.
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
    /// The errors of [`Requester::get`], but the local region must permit reading.
    pub fn put(&self, peer: Peer, address: Address<'_>, len: u32) -> Result<(), SendError> {
        let ends = address
            .ends(self, false, len.into())
            .ok_or(SendError::Invalid)?;
        self.put_ends(&peer, ends, len)
    }

    /// Executes a fetch-compare-and-add on lock `number` of the peer's VPID: if the lock's value is
    /// not greater than `compare`, the NIC adds `add`. The completer notification contains the
    /// outcome as [`LockResult`](super::LockResult). See [`Requester::post`].
    ///
    /// # Errors
    ///
    /// The errors of [`Requester::post`].
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

    /// Sends the peer a notification with a class and a value, without data. See
    /// [`Requester::post`].
    ///
    /// # Errors
    ///
    /// The errors of [`Requester::post`].
    pub fn notify(&self, peer: Peer, class: u8, value: u64) -> Result<(), SendError> {
        self.command(&peer, false, Operation::NotificationPut { class, value })
    }

    /// Drops this half. If it is the last handle of the port, waits until the port is closed. The
    /// VPID can then be opened again, unless commands are still pending (reason 34). May sleep for
    /// about 100 ms.
    pub fn close(self) {
        self.port.close();
    }

    /// Discards commands that the NIC did not accept, for example after a transmit time-out. Any
    /// context.
    pub fn reset(&self) {
        self.port.tx.reset();
    }
}
