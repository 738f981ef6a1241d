// SPDX-License-Identifier: GPL-2.0-only

//! Sending half of a VELO port.
//!
//! Sending works in any context and takes the port's spinlock, which disables interrupts.

use super::{Handle, Mtt, Target, CLASSES};
use crate::{context::Context, stats::PortStats, tx::SendError, vpid::Client};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::trace;
use wire::{
    ids::Vpid,
    velo::{Descriptor, RequesterAddr},
    words::gather,
};

/// Default traffic class, which the vendor's kernel modules use (HW §9.1).
pub const DEFAULT_CLASS: u8 = 2;

/// Message header: everything except the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Node or multicast group.
    pub target: Target,
    /// Receiving VPID.
    pub vpid: Vpid,
    /// Message type tag.
    pub mtt: Mtt,
    /// User tag.
    pub tag: u8,
    /// Request an interrupt at the receiver.
    pub irq: bool,
    /// Traffic class, 0…3 ([`DEFAULT_CLASS`]). Messages of a port to the same node stay in order
    /// within a class, but not between classes (HW §9.1, §10.8).
    pub class: u8,
}

impl Header {
    /// Makes a header with tags of 0, without interrupt, in the default class.
    pub const fn new(target: Target, vpid: Vpid) -> Self {
        Self {
            target,
            vpid,
            mtt: Mtt::from_low_bits(0),
            tag: 0,
            irq: false,
            class: DEFAULT_CLASS,
        }
    }

    /// Returns the descriptor for a payload of `len` bytes; `None` if the message is invalid.
    fn descriptor(&self, len: usize) -> Option<u64> {
        let descriptor = Descriptor {
            target: self.target,
            vpid: self.vpid,
            mtt: self.mtt,
            irq: self.irq,
            tag: self.tag,
            len: u16::try_from(len).ok()?,
        };
        descriptor.encode().ok().filter(|_| self.class < CLASSES)
    }
}

/// Sending half of a port. Can be dropped in any context.
#[derive(Clone)]
pub struct Sender {
    port: Handle,
}

impl Sender {
    pub(super) fn new(port: Handle) -> Self {
        Self { port }
    }

    /// Returns the port's VPID.
    pub fn vpid(&self) -> Vpid {
        self.port.core().vpid()
    }

    /// Returns the NIC's context: identity, status, liveness.
    pub fn context(&self) -> &Arc<Context> {
        self.port.core().ctx()
    }

    /// Returns the port's counters.
    pub fn stats(&self) -> &PortStats {
        self.port.core().stats()
    }

    /// Sets the client for interrupts and for room to send. Replaces an earlier client, which is
    /// not called after this returns. Call [`Mailbox::rearm`](super::Mailbox::rearm) afterwards.
    /// Any context in which the earlier client may be dropped; must not be called from a client's
    /// method.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.port.core().set_client(Some(client));
    }

    /// Removes the client, which is not called after this returns. Any context in which the client
    /// may be dropped; must not be called from a client's method.
    pub fn detach(&self) {
        self.port.core().set_client(None);
    }

    /// Returns the number of messages that can be sent according to the last known state. No
    /// register access. Any context.
    pub fn room(&self) -> usize {
        self.port.tx.credit()
    }

    /// Returns the number of messages sent since the port was opened, and the number of those that
    /// will not be sent again. No register access. Any context.
    pub fn progress(&self) -> (u64, u64) {
        self.port.tx.progress()
    }

    /// Ensures that the next `n` (maximum 255) sends do not fail for lack of credit, provided that
    /// this is the only sender. Reads a register only if the last known credit does not suffice.
    /// Any context.
    ///
    /// # Errors
    ///
    /// As for [`Sender::send`]. After `Full` and `Retry`, [`Client::writable`] is called once there
    /// is room for `n`, possibly before this returns.
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        self.port.tx.reserve(n)
    }

    /// Sends one message of 1…120 bytes. Any context; takes a spinlock that disables interrupts.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: dropped messages are being sent again. In both cases nothing was
    /// sent and [`Client::writable`] follows, possibly before this returns. `Down`: permanent.
    /// `Invalid`: length not in 1…120, or class not in 0…3.
    #[inline]
    pub fn send(&self, header: Header, payload: &[u8]) -> Result<(), SendError> {
        self.send_gathered(header, &[payload])
    }

    /// Like [`Sender::send`], with a payload in fragments, which are written to the NIC without an
    /// intermediate copy.
    ///
    /// ```
    /// use extoll_core::velo::{Header, SendError, Sender};
    ///
    /// fn send(port: &Sender, to: Header, head: [u8; 8], body: &[u8]) -> Result<(), SendError> {
    ///     port.send_gathered(to, &[&head, body])
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Sender::send`], for the total length.
    #[inline]
    pub fn send_gathered(&self, header: Header, payload: &[&[u8]]) -> Result<(), SendError> {
        // The sum saturates, because such a length is invalid anyway.
        let len = payload
            .iter()
            .fold(0usize, |len, part| len.saturating_add(part.len()));
        let descriptor = header.descriptor(len).ok_or(SendError::Invalid)?;
        let page = RequesterAddr::page(self.vpid(), header.class).encode();
        let number = self.port.tx.post(|packet| {
            packet.page = page;
            // The remainder of the last word is 0, so that no memory content leaks (EXT-Eth rule).
            if let Some((first, rest)) = packet.words.split_first_mut() {
                *first = descriptor;
                packet.len = 1 + gather(rest, payload.iter().copied()) as u8;
            }
        })?;
        self.trace(number, descriptor);
        Ok(())
    }

    #[inline]
    fn trace(&self, number: u8, descriptor: u64) {
        trace::velo_post(
            self.context().id(),
            self.vpid().get() as u8,
            number,
            descriptor,
        );
    }

    /// Drops this half; if it is the last handle of the port, waits until the port is closed. The
    /// VPID can then be opened again, unless messages are still pending (reason 34). May sleep, for
    /// some 100 ms.
    pub fn close(self) {
        self.port.close();
    }

    /// Checks whether messages were dropped, and resends them as far as possible. For callers that
    /// keep work items from running while they wait for the port: with interrupts disabled on the
    /// only CPU (netpoll). Must be called repeatedly, some microseconds apart. Clients are not
    /// called, so the caller retries its send. Any context; may log.
    pub fn poll(&self) {
        self.port.tx.poll();
    }

    /// Discards messages that the NIC did not accept, for example after a transmit time-out. Any
    /// context; may log.
    pub fn reset(&self) {
        self.port.tx.reset();
    }
}
