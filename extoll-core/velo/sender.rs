// SPDX-License-Identifier: GPL-2.0-only

//! Sending half of a VELO port.

use super::{Handle, Mtt, Target, CLASSES};
use crate::{context::Context, stats::PortStats, tx::SendError, vpid::Client};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::trace;
use wire::{
    ids::Vpid,
    velo::{Descriptor, RequesterAddr},
    words::gather,
};

/// Traffic class of messages for which nothing else is said, that of the vendor's kernel sends (HW §9.1).
pub const DEFAULT_CLASS: u8 = 2;

/// A message to send, without its payload.
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
    /// Interrupt the receiver.
    pub irq: bool,
    /// Traffic class, 0…3 ([`DEFAULT_CLASS`]): messages of a port to the same node stay in order within a
    /// class; between classes nothing is said (HW §9.1, §10.8).
    pub class: u8,
}

impl Header {
    /// A message with tags of 0, without interrupt, in the default class.
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

    /// Descriptor for a payload of `len` bytes; `None` for what makes no message.
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

/// Sending half of a port. Drop in any context.
#[derive(Clone)]
pub struct Sender {
    port: Handle,
}

impl Sender {
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

    /// Sets who hears of interrupts and of room to send. Replaces an earlier client, which is not called any
    /// more when this returns. Call [`Mailbox::rearm`](super::Mailbox::rearm) afterwards. Any context, but not
    /// a client's method; one in which an earlier client may be dropped.
    pub fn attach(&self, client: Arc<dyn Client>) {
        self.port.core().set_client(Some(client));
    }

    /// Removes the client: when this returns, it is not called any more. Any context, but not a client's
    /// method; one in which the client may be dropped.
    pub fn detach(&self) {
        self.port.core().set_client(None);
    }

    /// Messages that can be sent by the last known state. No register access, any context.
    pub fn room(&self) -> usize {
        self.port.tx.room()
    }

    /// Messages given to the port since it was opened, and those of them that it will not send again. No
    /// register access, any context.
    pub fn progress(&self) -> (u64, u64) {
        self.port.tx.progress()
    }

    /// Makes sure that the next `n` (at most 255) sends do not fail for lack of credit, provided nobody else
    /// sends. Reads a register only if the last known credit does not suffice. Any context.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`]. After `Full` and `Retry`, [`Client::writable`] is called once there is room for
    /// `n`, perhaps even before this returns.
    pub fn reserve(&self, n: usize) -> Result<(), SendError> {
        self.port.tx.reserve(n)
    }

    /// Sends one message of 1…120 bytes. Any context; takes an interrupt-safe spin lock.
    ///
    /// # Errors
    ///
    /// `Full`: no credit. `Retry`: lost messages are being sent again. In both cases nothing was sent and
    /// [`Client::writable`] follows, perhaps even before this returns. `Down`: for ever. `Invalid`: length not
    /// in 1…120, or class not in 0…3.
    #[inline]
    pub fn send(&self, header: Header, payload: &[u8]) -> Result<(), SendError> {
        self.send_gathered(header, &[payload])
    }

    /// As [`Sender::send`], with a payload in pieces, which go to the NIC without being put together before.
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
    /// As [`Sender::send`], of the whole length.
    #[inline]
    pub fn send_gathered(&self, header: Header, payload: &[&[u8]]) -> Result<(), SendError> {
        // More than a slice can hold is too long in any case.
        let len = payload
            .iter()
            .fold(0usize, |len, part| len.saturating_add(part.len()));
        let descriptor = header.descriptor(len).ok_or(SendError::Invalid)?;
        let page = RequesterAddr::page(self.vpid(), header.class).encode();
        let number = self.port.tx.post(|packet| {
            packet.page = page;
            // The rest of the last word is 0, so that nothing leaks (EXT-Eth rule).
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

    /// Drops it; if nothing else of the port is left, waits until that is closed: its VPID can be opened again,
    /// unless messages are still on their way (reason 34). May sleep, for some 100 ms.
    pub fn close(self) {
        self.port.close();
    }

    /// For those who keep work items from running, as they have interrupts off on the only processor, and wait
    /// for the port (netpoll): looks whether messages were dropped, and sends them again as far as that is
    /// possible now. To be called again and again, some microseconds apart; whether there is room is to be
    /// tried, as nobody is told meanwhile. Any context; it may log.
    pub fn poll(&self) {
        self.port.tx.poll();
    }

    /// Gives up messages that the NIC did not take, e.g. after a transmit time-out. Any context; it may log.
    pub fn reset(&self) {
        self.port.tx.reset();
    }
}
