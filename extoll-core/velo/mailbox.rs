// SPDX-License-Identifier: GPL-2.0-only

//! Receiving half of a VELO port, which polls the mailbox and arms its interrupt.
//!
//! The mailbox has one consumer and needs no lock. All functions except `close` run in any context.

use super::{Handle, SlotSize, Status, MAX_LEN};
use crate::{
    queue::Slot,
    ring_consumer::{Consumer, PollFlow, Stop},
    stats::{add, Reason},
};
use core::ops::ControlFlow;
use kernel_ext::{barrier, trace};
use wire::words::scatter;

/// Maximum number of slots that a message occupies.
const MAX_SLOTS: usize = 3;

/// Fragment of a message: its slot, and the index of its first word in the slot.
type Fragment<'a> = Option<(Slot<'a>, usize)>;

/// Received message. It stays in its mailbox, and the methods copy data from there.
pub struct Message<'a> {
    /// Sender, tags and length of the message.
    pub status: Status,
    fragments: [Fragment<'a>; MAX_SLOTS],
    /// Number of payload words in each fragment except the last.
    fragment_words: usize,
}

impl Message<'_> {
    /// Returns the number of payload bytes, 1…120.
    pub fn len(&self) -> usize {
        usize::from(self.status.len.min(MAX_LEN))
    }

    /// Returns false, because messages have at least 1 byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the start of the payload to `to`, limited to the length of `to`. Returns the number
    /// of bytes copied.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.copy_from(0, to)
    }

    /// Copies the payload from byte `from` on to `to`, limited to the length of `to`. Returns the
    /// number of bytes copied.
    pub fn copy_from(&self, from: usize, to: &mut [u8]) -> usize {
        let n = self.len().saturating_sub(from).min(to.len());
        if let Some(to) = to.get_mut(..n) {
            scatter(from, to, |i| self.word(i));
        }
        n
    }

    /// Copies the payload from byte `from` on to several buffers, one after the other, limited to
    /// their lengths. Returns the number of bytes copied.
    pub fn scatter(&self, from: usize, to: &mut [&mut [u8]]) -> usize {
        let mut done = 0;
        for buffer in to {
            done += self.copy_from(from + done, buffer);
        }
        done
    }

    /// Returns quadword `index` of the payload. Bytes beyond the length are unspecified. Words
    /// beyond the message are 0.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        if 8 * index >= self.len() {
            return 0;
        }
        // This is the fast path, because most messages have one fragment.
        if let (true, [Some((slot, first)), ..]) = (index < self.fragment_words, &self.fragments) {
            return slot.word(first + index);
        }
        let mut remainder = index;
        for fragment in &self.fragments {
            if remainder < self.fragment_words {
                return fragment
                    .as_ref()
                    .map_or(0, |(slot, first)| slot.word(first + remainder));
            }
            remainder -= self.fragment_words;
        }
        0
    }
}

/// Receiving half of a port. Can be dropped in any context.
pub struct Mailbox {
    consumer: Consumer,
    port: Handle,
    slot_size: SlotSize,
}

enum Step {
    Message,
    /// A message was processed, and the closure ended the poll.
    Last(Stop),
    Bad,
    Nothing,
}

impl Mailbox {
    pub(super) fn new(port: Handle, slot_size: SlotSize) -> Self {
        Self {
            consumer: Consumer::new(&port.queue, &port.monitor),
            port,
            slot_size,
        }
    }

    /// Processes up to `budget` messages with `f` and returns their number. It is smaller than
    /// `budget` if the mailbox is empty or `f` stopped the poll. A message whose slots stay empty
    /// although the NIC wrote them is skipped. Registers are accessed only to update the read
    /// pointer from time to time, and to read the write pointer while the mailbox is empty. Any
    /// context.
    ///
    /// `f` returns `()`, or a [`ControlFlow`] that stops the poll:
    ///
    /// ```
    /// use core::ops::ControlFlow;
    /// use extoll_core::velo::{Mailbox, Stop};
    ///
    /// /// Reads messages into a buffer until one does not fit, which stays in the mailbox.
    /// fn read(mailbox: &mut Mailbox, buffer: &mut [u8]) -> usize {
    ///     let mut at = 0;
    ///     mailbox.poll(64, |message| match buffer.get_mut(at..at + message.len()) {
    ///         Some(to) => {
    ///             at += message.copy_to(to);
    ///             ControlFlow::Continue(())
    ///         }
    ///         None => ControlFlow::Break(Stop::Kept),
    ///     });
    ///     at
    /// }
    /// ```
    pub fn poll<F: PollFlow>(
        &mut self,
        budget: usize,
        mut f: impl FnMut(&Message<'_>) -> F,
    ) -> usize {
        let mut done = 0;
        while done < budget {
            match self.step(&mut f) {
                // Invalid messages are counted, so that a flood of them ends the poll.
                Step::Message | Step::Bad => done += 1,
                Step::Last(Stop::Consumed) => {
                    done += 1;
                    break;
                }
                Step::Last(Stop::Kept) | Step::Nothing => break,
            }
        }
        let port = &self.port;
        self.consumer
            .commit_if_due(&port.queue, port.core().stats());
        done
    }

    /// Drops the mailbox. If it is the last handle of the port, waits until the port is closed,
    /// like [`Sender::close`](super::Sender::close). May sleep for some 100 ms.
    pub fn close(self) {
        let Self { port, consumer, .. } = self;
        drop(consumer);
        port.close();
    }

    /// Returns the number of slots that the NIC has written and that were not read. It is at least
    /// the number of waiting messages. Reads a register. Any context.
    pub fn unread_slots(&self) -> usize {
        self.consumer.unread() as usize
    }

    /// Returns whether a message is in the mailbox. No register access. Any context.
    pub fn pending(&self) -> bool {
        self.ready().is_some()
    }

    /// Arms the port's interrupt after the mailbox was found empty. Returns whether a message has
    /// arrived. The caller must then poll again, because the interrupt for it may not be raised
    /// (G7). Any context.
    #[must_use]
    pub fn rearm(&mut self) -> bool {
        let port = &self.port;
        self.consumer.rearm(&port.queue, port.core().stats());
        self.pending()
    }

    /// Returns the number of slots of the message with status word `raw`; 1 if the status word is
    /// invalid.
    fn slots_of(&self, raw: u64) -> u32 {
        match Status::decode(raw) {
            Ok(Some(status)) => self.slot_size.slots_for(status.len),
            Ok(None) | Err(_) => 1,
        }
    }

    /// Returns the status word of the next message if all its slots have arrived.
    fn ready(&self) -> Option<u64> {
        let (queue, first) = (&self.port.queue, self.consumer.next());
        let raw = queue.status(first);
        if raw == 0 {
            return None;
        }
        let slots = self.slots_of(raw);
        let complete = (1..slots).all(|i| queue.status(queue.next(first, i)) != 0);
        complete.then_some(raw)
    }

    /// Skips slots that are overdue, because their message was lost or is incomplete.
    fn skip_overdue(&mut self) -> Step {
        let port = &self.port;
        let (queue, first) = (&port.queue, self.consumer.next());
        let overdue = self.consumer.overdue();
        if overdue == 0 {
            return Step::Nothing;
        }
        let raw = queue.status(first);
        let slots = if raw == 0 {
            let empty = self.consumer.run_of_empty(queue, overdue);
            // With 64-byte slots, the next filled slot may be the continuation of a long message,
            // and its content does not show this. The NIC's write pointer points to the start of a
            // message.
            match self.slots_of(queue.status(queue.next(first, empty))) {
                1 => empty,
                _ => overdue,
            }
        } else {
            self.slots_of(raw).min(overdue)
        };
        let core = port.core();
        core.ctx().error(
            Reason::LostMessage,
            u64::from(core.vpid().get()) | u64::from(slots) << 32,
        );
        add(&core.stats().skipped, slots.into());
        self.consumer.advance(queue, slots);
        Step::Bad
    }

    fn step<F: PollFlow>(&mut self, f: &mut impl FnMut(&Message<'_>) -> F) -> Step {
        let Some(raw) = self.ready() else {
            return self.skip_overdue();
        };
        barrier::dma_rmb();
        let port = &self.port;
        let (queue, core) = (&port.queue, port.core());
        let first = self.consumer.next();
        trace::velo_complete(core.ctx().id(), core.vpid().get() as u8, first, raw);
        let Ok(Some(status)) = Status::decode(raw) else {
            core.ctx().error(Reason::BadStatus, raw);
            add(&core.stats().errors, 1);
            self.consumer.advance(queue, 1);
            return Step::Bad;
        };
        let mut fragments = [const { None }; MAX_SLOTS];
        for (fragment, part) in fragments.iter_mut().zip(self.slot_size.parts(status.len)) {
            let slot = queue.slot(queue.next(first, part.slot.into()));
            *fragment = slot.map(|slot| (slot, usize::from(part.slot_offset) / 8));
        }
        let message = Message {
            status,
            fragments,
            fragment_words: usize::from(self.slot_size.capacity()) / 8,
        };
        let flow = f(&message).flow();
        if flow == ControlFlow::Break(Stop::Kept) {
            return Step::Last(Stop::Kept);
        }
        if status.err {
            add(&core.stats().errors, 1);
        }
        add(&core.stats().received, 1);
        self.consumer
            .advance(queue, self.slot_size.slots_for(status.len));
        match flow {
            ControlFlow::Continue(()) => Step::Message,
            ControlFlow::Break(stop) => Step::Last(stop),
        }
    }
}
