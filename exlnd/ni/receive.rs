// SPDX-License-Identifier: GPL-2.0-only

//! Incoming messages, from their delivery to LNet to their end. Process context. Functions that
//! call LNet are called without locks.

use super::{count::Count, Core, Ni, RegionSlots, BUFFER};
use crate::{
    fault::{self, Point},
    ffi::lnet::{address, End, Health, Wanted},
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::mem::{FragmentList, PageList};
use protocol::lnd::{LnetAction, Ticket};
use wire::{
    ids::NodeId,
    lnd::{Form, Header},
};

/// Number of bytes copied in one step.
const CHUNK: usize = 512;

/// Entry in the table of incoming messages. The index is that of the message's ticket.
pub(super) enum In {
    /// The entry belongs to no message.
    Free,
    /// The message was passed to LNet.
    Offered(Ticket, NodeId),
    /// The payload is being fetched.
    Fetching(Fetching),
}

/// An incoming message whose payload is being fetched.
pub(super) struct Fetching {
    pub(super) ticket: Ticket,
    node: NodeId,
    msg: Wanted,
    /// Destination of the GET until it is registered; `None` if it could not be allocated.
    memory: Option<FragmentList>,
    /// Slot in which the destination is registered.
    slot: Option<u32>,
    /// Pages from which the payload is copied, if the GET does not write to the final destination.
    copy: Option<Arc<PageList>>,
}

/// A message that must be finalized, because its payload was fetched or is lost.
pub(super) struct Finished {
    fetching: Fetching,
    done: bool,
}

impl In {
    /// Creates an empty table. May sleep.
    pub(super) fn table(size: usize) -> Result<KVVec<Self>> {
        let mut table = KVVec::with_capacity(size, GFP_KERNEL)?;
        for _ in 0..size {
            table.push(Self::Free, GFP_KERNEL)?;
        }
        Ok(table)
    }
}

/// Returns LNet's result for a message whose payload could not be received.
pub(super) fn failed(e: Error) -> End {
    End(Health::RemoteError, e.to_errno())
}

/// Returns the payload length in a header.
fn payload_len(form: Form, header: &Header) -> Option<u32> {
    let word = match form {
        Form::Nid4 => 3,
        Form::Nid16 => 6,
    };
    header.get(word).map(|word| (word >> 32) as u32)
}

/// Fills the destination with bytes of a list of pages from offset `at` on.
fn copy(pages: &PageList, at: usize, to: &mut Wanted) -> Result {
    let mut done = 0;
    loop {
        let mut bytes = [0; CHUNK];
        let n = to.len().min(CHUNK);
        let part = bytes.get_mut(..n).ok_or(EINVAL)?;
        if n == 0 {
            return Ok(());
        }
        pages.copy_to(at + done, part)?;
        to.write(part)?;
        done += n;
    }
}

impl Finished {
    /// Returns the sender of the message.
    pub(super) fn node(&self) -> NodeId {
        self.fetching.node
    }

    /// Copies the payload if necessary and finalizes the message. Called without locks.
    pub(super) fn end(self, ni: &Ni) {
        let Fetching {
            ticket,
            mut msg,
            slot,
            copy,
            ..
        } = self.fetching;
        let mut end = if self.done { End::OK } else { failed(EIO) };
        if let (true, Some(pages)) = (self.done, copy) {
            if let Err(e) = self::copy(&pages, 0, &mut msg) {
                end = failed(e);
            }
        }
        if let Some(slot) = slot {
            ni.sink_done(slot);
        }
        msg.finalize(end);
        ni.change(|machine, _| machine.finished(ticket));
    }
}

impl Ni {
    pub(super) fn set_in(&self, index: u32, new: In) -> In {
        let mut ins = self.ins.lock();
        match ins.get_mut(index as usize) {
            Some(entry) => core::mem::replace(entry, new),
            None => new,
        }
    }

    /// Passes a message to LNet. Called without locks.
    pub(super) fn offer(&self, ticket: Ticket, node: NodeId) {
        if self.ended.load(Relaxed) {
            // LNet is changing its configuration. Passing a message might have to wait until it has
            // finished.
            return self.change(|machine, _| machine.parsed(ticket, false));
        }
        let offered = {
            let core = self.core.lock();
            core.machine().and_then(|m| m.offered(ticket))
        };
        let Some((form, header, len, _)) = offered else {
            // The sender has cancelled the message.
            return;
        };
        if payload_len(form, &header) != Some(len) {
            // LNet would read beyond the payload.
            self.counters.count(Count::Lies);
            return self.change(|machine, _| machine.parsed(ticket, false));
        }
        self.counters.received(len);
        drop(self.set_in(ticket.index(), In::Offered(ticket, node)));
        let parse = || {
            self.raw
                .parse(form, &header, address(node), ticket.number())
        };
        let taken = !fault::hit(Point::Parse) && parse().is_ok();
        if !taken {
            self.counters.count(Count::NotParsed);
            self.withdraw(ticket);
        }
        self.change(|machine, _| machine.parsed(ticket, taken));
    }

    /// Removes the entry of a message that LNet did not accept.
    fn withdraw(&self, ticket: Ticket) {
        drop(self.kept.lock().remove(ticket.number()));
        if let Some(entry) = self.ins.lock().get_mut(ticket.index() as usize) {
            if matches!(entry, In::Offered(own, _) if *own == ticket) {
                *entry = In::Free;
            }
        }
    }

    /// Returns the message that was passed to LNet under `number`, unless the message has ended or
    /// was copied.
    pub(super) fn offered(&self, number: u64) -> Option<(Ticket, NodeId)> {
        // The lower half of `number` is the index.
        match self.ins.lock().get(number as u32 as usize)? {
            In::Offered(ticket, node) if ticket.number() == number => Some((*ticket, *node)),
            _ => None,
        }
    }

    /// Receives the payload of a message, up to the length that LNet requests. Called without
    /// locks.
    pub(crate) fn recv(&self, number: u64, msg: Option<Wanted>) {
        let Some((ticket, node)) = self.offered(number) else {
            return self.recv_kept(number, msg);
        };
        match msg {
            Some(msg) if msg.len() > 0 => {
                let inline = {
                    let core = self.core.lock();
                    let offered = core.machine().and_then(|m| m.offered(ticket));
                    offered.map(|(.., inline)| inline)
                };
                match inline {
                    Some(false) => self.recv_get((ticket, node), msg),
                    _ => self.recv_inline(ticket, msg),
                }
            }
            msg => {
                let end = self.recv_nothing(ticket);
                if let Some(msg) = msg {
                    msg.finalize(end);
                }
            }
        }
    }

    /// Ends a message whose payload LNet does not request.
    fn recv_nothing(&self, ticket: Ticket) -> End {
        let mut core = self.core.lock();
        drop(self.set_in(ticket.index(), In::Free));
        let now = self.now();
        if let Some(machine) = core.machine_mut() {
            machine.receive(ticket, 0, now);
        }
        self.drive(&mut core, now);
        End::OK
    }

    /// Receives payload that arrived with the message.
    fn recv_inline(&self, ticket: Ticket, mut msg: Wanted) {
        let wanted = msg.len() as u32;
        let action = self.receive(&mut self.core.lock(), ticket, wanted);
        let end = match action {
            LnetAction::Copy => {
                let at = ticket.index() as usize * BUFFER;
                copy(&self.buffers, at, &mut msg).map_or_else(failed, |()| End::OK)
            }
            LnetAction::Done => End::OK,
            LnetAction::Fetch | LnetAction::Lost => failed(EIO),
        };
        let mut core = self.core.lock();
        drop(self.set_in(ticket.index(), In::Free));
        if let (LnetAction::Copy, Some(machine)) = (action, core.machine_mut()) {
            machine.copied(ticket);
        }
        let now = self.now();
        self.drive(&mut core, now);
        drop(core);
        msg.finalize(end);
    }

    /// Starts the GET of a payload that the sender has registered.
    fn recv_get(&self, (ticket, node): (Ticket, NodeId), msg: Wanted) {
        let wanted = msg.len() as u32;
        // If memory is short, the message times out and its sender is notified.
        let (memory, copy) = match self.memory(&msg) {
            Ok((memory, true)) => {
                let pages = memory.pages().clone();
                (Some(memory), Some(pages))
            }
            Ok((memory, false)) => (Some(memory), None),
            Err(_) => (None, None),
        };
        let fetching = Fetching {
            ticket,
            node,
            msg,
            memory,
            slot: None,
            copy,
        };
        let mut core = self.core.lock();
        drop(self.set_in(ticket.index(), In::Fetching(fetching)));
        let action = self.receive(&mut core, ticket, wanted);
        let back = match action {
            LnetAction::Fetch => None,
            _ => Some(self.set_in(ticket.index(), In::Free)),
        };
        let now = self.now();
        self.drive(&mut core, now);
        drop(core);
        if let Some(In::Fetching(fetching)) = back {
            fetching.msg.finalize(failed(EIO));
        }
    }

    fn receive(&self, core: &mut Core, ticket: Ticket, wanted: u32) -> LnetAction {
        let now = self.now();
        match core.machine_mut() {
            Some(machine) => machine.receive(ticket, wanted, now),
            None => LnetAction::Lost,
        }
    }

    /// Removes a message whose payload was fetched or is lost, and returns it for finalization.
    pub(super) fn finish(&self, ticket: Ticket, done: bool) -> Option<Finished> {
        let mut ins = self.ins.lock();
        let entry = ins.get_mut(ticket.index() as usize)?;
        match entry {
            In::Fetching(fetching) if fetching.ticket == ticket => {}
            _ => return None,
        }
        match core::mem::replace(entry, In::Free) {
            In::Fetching(fetching) => Some(Finished { fetching, done }),
            _ => None,
        }
    }

    /// Returns the registration slot of a message that is being fetched.
    pub(super) fn slot_of(&self, ticket: Ticket) -> Option<u32> {
        match self.ins.lock().get(ticket.index() as usize)? {
            In::Fetching(fetching) if fetching.ticket == ticket => fetching.slot,
            _ => None,
        }
    }

    /// Returns the registration slot of a message that is being fetched. Registers the destination
    /// if it has no slot. The caller holds `core`.
    pub(super) fn register_slot(&self, slots: &RegionSlots, ticket: Ticket) -> Option<u32> {
        let mut ins = self.ins.lock();
        let fetching = match ins.get_mut(ticket.index() as usize)? {
            In::Fetching(fetching) if fetching.ticket == ticket => fetching,
            _ => return None,
        };
        if fetching.slot.is_none() {
            match self.register(slots, ticket, fetching.memory.take()?) {
                Ok(slot) => fetching.slot = Some(slot),
                Err(memory) => fetching.memory = Some(memory),
            }
        }
        fetching.slot
    }
}
