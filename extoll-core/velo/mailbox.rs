// SPDX-License-Identifier: GPL-2.0-only

//! Receiving half of a VELO port.

use super::{Handle, SlotSize, Status, MAX_LEN};
use crate::{
    intake::{PollFlow, Reader, Stop},
    queue::Slot,
    stats::{add, Reason},
};
use core::ops::ControlFlow;
use kernel_ext::{barrier, trace};
use wire::words::scatter;

/// Slots that a message takes at most.
const MOST_SLOTS: usize = 3;

/// Part of a message in a slot: the slot, and the first word of the part.
type Part<'a> = Option<(Slot<'a>, usize)>;

/// A received message, which lies in its mailbox still: what its methods read is copied from there.
pub struct Message<'a> {
    /// Sender, tags, length.
    pub status: Status,
    parts: [Part<'a>; MOST_SLOTS],
    /// Words of each part but the last.
    part_words: usize,
}

impl Message<'_> {
    /// Number of payload bytes, 1…120.
    pub fn len(&self) -> usize {
        usize::from(self.status.len.min(MAX_LEN))
    }

    /// Never true; messages have at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the payload to the start of `to`, as much as fits; returns the number of bytes copied.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.copy_from(0, to)
    }

    /// Copies the payload from byte `from` on to the start of `to`, as much as fits; returns the number of
    /// bytes copied.
    pub fn copy_from(&self, from: usize, to: &mut [u8]) -> usize {
        let n = self.len().saturating_sub(from).min(to.len());
        if let Some(to) = to.get_mut(..n) {
            scatter(from, to, |i| self.word(i));
        }
        n
    }

    /// Copies the payload from byte `from` on to several buffers one after the other, as much as fits; returns
    /// the number of bytes copied.
    pub fn scatter(&self, from: usize, to: &mut [&mut [u8]]) -> usize {
        let mut done = 0;
        for part in to {
            done += self.copy_from(from + done, part);
        }
        done
    }

    /// Payload quadword `index`; bytes beyond the length are unspecified, 0 beyond the message.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        if 8 * index >= self.len() {
            return 0;
        }
        // Most messages have one part.
        if let (true, [Some((slot, first)), ..]) = (index < self.part_words, &self.parts) {
            return slot.word(first + index);
        }
        let mut rest = index;
        for part in &self.parts {
            if rest < self.part_words {
                return part
                    .as_ref()
                    .map_or(0, |(slot, first)| slot.word(first + rest));
            }
            rest -= self.part_words;
        }
        0
    }
}

/// Receiving half of a port. Drop in any context.
pub struct Mailbox {
    reader: Reader,
    port: Handle,
    slot_size: SlotSize,
}

enum Taken {
    Message,
    /// A message was looked at, and the poll ends.
    Last(Stop),
    Bad,
    Nothing,
}

impl Mailbox {
    pub(super) fn new(port: Handle, slot_size: SlotSize) -> Self {
        Self {
            reader: Reader::new(&port.queue, &port.monitor),
            port,
            slot_size,
        }
    }

    /// Takes up to `budget` messages and calls `f` for each; returns their number. Fewer than `budget` means
    /// that the mailbox was found empty, or that `f` ended it. A message whose slots stay empty although the
    /// NIC wrote them is skipped. No register access but an occasional read pointer update, and a look at the
    /// write pointer while nothing comes. Any context.
    ///
    /// `f` returns nothing, or whether to go on:
    ///
    /// ```
    /// use core::ops::ControlFlow;
    /// use extoll_core::velo::{Mailbox, Stop};
    ///
    /// /// Reads messages into a buffer until one does not fit, which stays in the mailbox.
    /// fn read(mailbox: &mut Mailbox, buffer: &mut [u8]) -> usize {
    ///     let mut at = 0;
    ///     mailbox.poll(64, |message| match buffer.get_mut(at..at + message.len()) {
    ///         Some(place) => {
    ///             at += message.copy_to(place);
    ///             ControlFlow::Continue(())
    ///         }
    ///         None => ControlFlow::Break(Stop::Left),
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
            match self.take(&mut f) {
                // A bad one counts as work, so that a stream of them ends the pass.
                Taken::Message | Taken::Bad => done += 1,
                Taken::Last(Stop::Taken) => {
                    done += 1;
                    break;
                }
                Taken::Last(Stop::Left) | Taken::Nothing => break,
            }
        }
        let port = &self.port;
        self.reader.commit_if_due(&port.queue, port.core().stats());
        done
    }

    /// Drops it, as [`Sender::close`](super::Sender::close). May sleep, for some 100 ms.
    pub fn close(self) {
        let Self { port, reader, .. } = self;
        drop(reader);
        port.close();
    }

    /// Slots that the NIC has written and that were not read, which is at least the number of messages that
    /// wait. Reads a register. Any context.
    pub fn backlog(&self) -> usize {
        self.reader.backlog() as usize
    }

    /// True when a message waits. No register access. Any context.
    pub fn pending(&self) -> bool {
        self.ready().is_some()
    }

    /// Unmasks the interrupt of the port after the mailbox was found empty. True when a message is waiting all
    /// the same: poll again, as its interrupt may or may not come (G7). Any context.
    #[must_use]
    pub fn rearm(&mut self) -> bool {
        let port = &self.port;
        self.reader.rearm(&port.queue, port.core().stats());
        self.pending()
    }

    /// Slots of the message whose status word is `raw`; 1 if that makes no sense.
    fn slots_of(&self, raw: u64) -> u32 {
        match Status::decode(raw) {
            Ok(Some(status)) => self.slot_size.slots_for(status.len),
            Ok(None) | Err(_) => 1,
        }
    }

    /// Status word of the next message if all its slots are there.
    fn ready(&self) -> Option<u64> {
        let (queue, first) = (&self.port.queue, self.reader.next());
        let raw = queue.status(first);
        if raw == 0 {
            return None;
        }
        let slots = self.slots_of(raw);
        let complete = (1..slots).all(|i| queue.status(queue.next(first, i)) != 0);
        complete.then_some(raw)
    }

    /// The next message is not there, or not all of it: skips what got lost on its way.
    fn skip_lost(&mut self) -> Taken {
        let port = &self.port;
        let (queue, first) = (&port.queue, self.reader.next());
        let overdue = self.reader.overdue();
        if overdue == 0 {
            return Taken::Nothing;
        }
        let raw = queue.status(first);
        let slots = if raw == 0 {
            let empty = self.reader.run_of_empty(queue, overdue);
            // What follows in 64-byte slots may be the rest of a long message: no slot tells which one it is. A
            // message begins where the NIC's pointer was.
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
        self.reader.advance(queue, slots);
        Taken::Bad
    }

    fn take<F: PollFlow>(&mut self, f: &mut impl FnMut(&Message<'_>) -> F) -> Taken {
        let Some(raw) = self.ready() else {
            return self.skip_lost();
        };
        barrier::dma_rmb();
        let port = &self.port;
        let (queue, core) = (&port.queue, port.core());
        let first = self.reader.next();
        trace::velo_complete(core.ctx().id(), core.vpid().get() as u8, first, raw);
        let Ok(Some(status)) = Status::decode(raw) else {
            core.ctx().error(Reason::BadStatus, raw);
            add(&core.stats().errors, 1);
            self.reader.advance(queue, 1);
            return Taken::Bad;
        };
        let mut parts = [const { None }; MOST_SLOTS];
        for (part, piece) in parts.iter_mut().zip(self.slot_size.pieces(status.len)) {
            let slot = queue.slot(queue.next(first, piece.slot.into()));
            *part = slot.map(|slot| (slot, usize::from(piece.slot_offset) / 8));
        }
        let message = Message {
            status,
            parts,
            part_words: usize::from(self.slot_size.capacity()) / 8,
        };
        let flow = f(&message).flow();
        if flow == ControlFlow::Break(Stop::Left) {
            return Taken::Last(Stop::Left);
        }
        if status.err {
            add(&core.stats().errors, 1);
        }
        add(&core.stats().received, 1);
        self.reader
            .advance(queue, self.slot_size.slots_for(status.len));
        match flow {
            ControlFlow::Continue(()) => Taken::Message,
            ControlFlow::Break(stop) => Taken::Last(stop),
        }
    }
}
