// SPDX-License-Identifier: GPL-2.0-only

//! Sending half of a VELO port, which sends messages.
//!
//! Sending works in any context and acquires the port's spinlock, which disables interrupts.

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

/// Message header, i.e. all parameters except the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Receiving node or multicast group.
    pub target: Target,
    /// VPID that receives the message.
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

    /// Returns the NIC's context: its identity, status and liveness.
    pub fn context(&self) -> &Arc<Context> {
        self.port.core().ctx()
    }

    /// Returns the port's counters.
    pub fn stats(&self) -> &PortStats {
        self.port.core().stats()
    }

    /// Sets the client, which is called for interrupts and when messages can be sent again. It
    /// replaces the earlier client, which is not called after this function returns. The caller
    /// must call [`Mailbox::rearm`](super::Mailbox::rearm) afterwards. Any context in which the
    /// earlier client may be dropped. Must not be called from a method of a client.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.port.core().set_client(Some(client));
    }

    /// Removes the client, which is not called after this function returns. Any context in which
    /// the client may be dropped. Must not be called from a method of a client.
    pub fn detach(&self) {
        self.port.core().set_client(None);
    }

    /// Returns the number of messages that can be sent according to the NIC's last known state. No
    /// register access. Any context.
    pub fn room(&self) -> usize {
        self.port.tx.credit()
    }

    /// Returns the number of messages sent since the port was opened, and how many of them will not
    /// be sent again. No register access. Any context.
    pub fn progress(&self) -> (u64, u64) {
        self.port.tx.progress()
    }

    /// Ensures that the next `n` sends (maximum 255) do not fail for lack of credit, provided that
    /// no other thread sends. Reads a register only if the last known credit does not suffice. Any
    /// context.
    ///
    /// # Errors
    ///
    /// The errors of [`Sender::send`]. After `Full` and `Retry`, [`Client::writable`] is called
    /// when there is credit for `n` messages, possibly before this function returns.
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        self.port.tx.reserve(n)
    }

    /// Sends one message of 1…120 bytes. Any context; acquires a spinlock that disables interrupts.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: dropped messages are being sent again. In both cases the message
    /// was not sent, and [`Client::writable`] is called later, possibly before this function
    /// returns. `Down`: the port cannot be used any more. `Invalid`: the length is not in 1…120, or
    /// the class not in 0…3.
    #[inline]
    pub fn send(&self, header: Header, payload: &[u8]) -> Result<(), SendError> {
        self.send_gathered(header, &[payload])
    }

    /// Sends a message like [`Sender::send`]. The payload is in fragments, which are written to the
    /// NIC without an intermediate copy.
    ///
    /// ```
    /// use extoll_core::velo::{Header, SendError, Sender};
    ///
    /// fn send(port: &Sender, to: Header, head: [u8; 8], body: &[u8]) -> Result<(), SendError> {
    ///     port.send_gathered(to, &[&head, body])
    /// }
    /// ```
    ///
    /// The errors of [`Sender::send`]. The limits apply to the total length.
    ///
    /// The errors of [`Sender::send`]. The limits apply to the total length.
    #[inline]
    pub fn send_gathered(&self, header: Header, payload: &[&[u8]]) -> Result<(), SendError> {
        // The sum saturates, because a saturated length is invalid.
        let len = payload
            .iter()
            .fold(0usize, |len, part| len.saturating_add(part.len()));
        let descriptor = header.descriptor(len).ok_or(SendError::Invalid)?;
        let page = RequesterAddr::page(self.vpid(), header.class).encode();
        let number = self.port.tx.post(|packet| {
            packet.page = page;
            // The remainder of the last word is 0, so that no memory contents leak (a rule of
            // Ethernet over Extoll).
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

    /// Drops this half. If it is the last handle of the port, waits until the port is closed. The
    /// VPID can then be opened again, unless messages are still pending (reason 34). May sleep for
    /// some 100 ms.
    pub fn close(self) {
        self.port.close();
    }

    /// Checks whether messages were dropped, and resends them as far as possible. This is for
    /// callers that prevent work items from running while they wait for the port, i.e. with
    /// interrupts disabled on the only CPU (netpoll). It must be called repeatedly, some
    /// microseconds apart. Clients are not called, so the caller retries its send. Any context; may
    /// log.
    pub fn poll(&self) {
        self.port.tx.poll();
    }

    /// Discards messages that the NIC did not accept, for example after a transmit time-out. Any
    /// context; may log.
    pub fn reset(&self) {
        self.port.tx.reset();
    }
}
