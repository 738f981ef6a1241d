// SPDX-License-Identifier: GPL-2.0-only

//! Outgoing messages, from LNet's send call to their end. Process context. The comments of
//! functions say where the caller holds the lock `core`. Functions acquire the lock `outs`
//! themselves.

use super::{
    count::Count,
    memory::{RegionSlots, Side},
    Ni,
};
use crate::{
    conf,
    fault::{self, Point},
    ffi::lnet::{End, Health, Msg, SendRequest},
    ring::Ring,
};
use extoll_core::atu::Region;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::mem::PageList;
use protocol::lnd::{self, Cause, Outcome, SubmitError, Ticket};
use wire::{
    ids::NodeId,
    lnd::{Source, VPID},
};

/// Number of bytes copied in one step.
const CHUNK: usize = 512;

/// Payload of a message that is registered so that the peer can read it.
struct Exposed {
    slot: u32,
    /// `None` after the revocation was started.
    region: Option<Region>,
}

/// An outgoing message.
pub(super) struct Out {
    /// `None` after LNet was notified of the message's end.
    msg: Option<Msg>,
    ticket: Option<Ticket>,
    exposed: Option<Exposed>,
    node: NodeId,
}

/// Outgoing messages. The state machine names them by token, which is their index.
pub(super) struct Outs {
    all: KVVec<Option<Out>>,
    free: Ring<u32>,
    /// Token of the message that uses a registration slot, by slot number.
    users: KVVec<Option<u32>>,
}

impl Outs {
    /// Creates a table for `size` messages and `slots` registration slots. May sleep.
    pub(super) fn new(size: usize, slots: usize) -> Result<Self> {
        let (mut all, mut free) = (KVVec::with_capacity(size, GFP_KERNEL)?, Ring::new(size)?);
        let mut users = KVVec::with_capacity(slots, GFP_KERNEL)?;
        for i in 0..size {
            all.push(None, GFP_KERNEL)?;
            // Cannot fail: the queue has room for all tokens.
            let _ = free.push(i as u32);
        }
        for _ in 0..slots {
            users.push(None, GFP_KERNEL)?;
        }
        Ok(Self { all, free, users })
    }

    fn insert(&mut self, out: Out) -> Result<u32, Out> {
        let Some(token) = self.free.pop() else {
            return Err(out);
        };
        let slot = out.exposed.as_ref().map(|e| e.slot as usize);
        if let Some(user) = slot.and_then(|slot| self.users.get_mut(slot)) {
            *user = Some(token);
        }
        if let Some(entry) = self.all.get_mut(token as usize) {
            *entry = Some(out);
        }
        Ok(token)
    }

    fn get(&mut self, token: u32) -> Option<&mut Out> {
        self.all.get_mut(token as usize)?.as_mut()
    }

    fn remove(&mut self, token: u32) -> Option<Out> {
        let out = self.all.get_mut(token as usize)?.take()?;
        let slot = out.exposed.as_ref().map(|e| e.slot as usize);
        if let Some(user) = slot.and_then(|slot| self.users.get_mut(slot)) {
            *user = None;
        }
        // Cannot fail: the token came from this queue.
        let _ = self.free.push(token);
        Some(out)
    }

    /// Returns the ticket of the message that uses a slot.
    pub(super) fn ticket_at(&mut self, slot: u32) -> Option<Ticket> {
        let token = (*self.users.get(slot as usize)?)?;
        self.get(token)?.ticket
    }

    /// Forgets all registration slots after their registrations have ended.
    pub(super) fn forget_slots(&mut self) {
        for out in self.all.iter_mut().flatten() {
            out.exposed = out.exposed.take().filter(|e| e.region.is_some());
        }
        for user in self.users.iter_mut() {
            *user = None;
        }
    }

    /// Returns whether memory is registered whose message LNet has not been notified of.
    pub(super) fn is_exposed(&self) -> bool {
        let exposed = |out: &Out| out.exposed.is_some() && out.msg.is_some();
        self.all.iter().flatten().any(exposed)
    }

    /// Copies a message's payload from offset `at` on.
    pub(super) fn read(&mut self, token: u32, at: u16, to: &mut [u8]) {
        if let Some(msg) = self.get(token).and_then(|out| out.msg.as_ref()) {
            msg.read(at.into(), to);
        }
    }
}

/// Returns LNet's result for an outcome of the state machine.
fn end_of(outcome: Outcome) -> End {
    let errno = |e: Error| e.to_errno();
    match outcome {
        Outcome::Delivered => End::OK,
        Outcome::NotDelivered(Cause::Closing | Cause::Down) => {
            End(Health::LocalAborted, errno(ESHUTDOWN))
        }
        Outcome::NotDelivered(Cause::Refused) => End(Health::RemoteError, errno(EPROTO)),
        Outcome::NotDelivered(_) => End(Health::RemoteDropped, errno(EHOSTUNREACH)),
        Outcome::Failed => End(Health::RemoteError, errno(EIO)),
        Outcome::Unknown(Cause::TimedOut) => End(Health::NetworkTimeout, errno(ETIMEDOUT)),
        Outcome::Unknown(Cause::Closing | Cause::Down) => End(Health::LocalError, errno(EIO)),
        Outcome::Unknown(_) => End(Health::RemoteTimeout, errno(ETIMEDOUT)),
    }
}

fn refused(error: SubmitError) -> (Health, Error) {
    match error {
        SubmitError::Invalid => (Health::LocalError, EINVAL),
        SubmitError::Full | SubmitError::Peers => (Health::LocalDropped, EAGAIN),
        SubmitError::Unreachable => (Health::RemoteDropped, EHOSTUNREACH),
        SubmitError::Closing => (Health::LocalAborted, ESHUTDOWN),
    }
}

/// Copies the payload of a message to a new list of pages.
fn copy(msg: &Msg, len: u32) -> Result<Arc<PageList>> {
    let buffer = VVec::from_elem(0u8, len as usize, GFP_KERNEL)?;
    let pages = PageList::from_buffer(buffer)?;
    let mut at = 0;
    while at < len {
        let mut bytes = [0; CHUNK];
        let n = (len - at).min(CHUNK as u32) as usize;
        if let Some(part) = bytes.get_mut(..n) {
            msg.read(at, part);
            pages.copy_from(at as usize, part)?;
        }
        at += n as u32;
    }
    Ok(Arc::new(pages, GFP_KERNEL)?)
}

impl Ni {
    /// Sends a message of LNet. If the message cannot be sent now (no slot, no NIC, no such peer),
    /// it is finalized with an error, because LNet does not resend a message whose send call fails.
    /// Sleeps.
    ///
    /// # Errors
    ///
    /// If the message can never be sent, returns the message, its health status and the error.
    pub(crate) fn send(&self, msg: Msg) -> Result<(), (Msg, Health, Error)> {
        self.try_send(msg).or_else(|(msg, health, e)| {
            self.counters.count(Count::NotTaken);
            if health == Health::LocalError {
                return Err((msg, health, e));
            }
            msg.finalize(End(health, e.to_errno()));
            Ok(())
        })
    }

    fn try_send(&self, mut msg: Msg) -> Result<(), (Msg, Health, Error)> {
        if msg.is_to_fail() {
            self.counters.count(Count::Faults);
            msg.finalize_as_is(EIO.to_errno());
            return Ok(());
        }
        let request = match msg.send_request() {
            Ok(request) => request,
            Err(e) => return Err((msg, Health::LocalError, e)),
        };
        let node = request.address.checked_sub(1).map(u16::try_from);
        let Some(Ok(node)) = node else {
            return Err((msg, Health::LocalError, EADDRNOTAVAIL));
        };
        let node = NodeId(node);
        let slots = {
            let core = self.core.lock();
            core.slots.clone().filter(|_| core.link.is_some())
        };
        let Some(slots) = slots else {
            return Err((msg, Health::LocalDropped, ENODEV));
        };
        let mut exposed = None;
        if request.len > self.immediate {
            match self.expose(&slots, &msg, &request) {
                Ok(e) => exposed = Some(e),
                // A payload of this length can be sent in messages.
                Err(_) if conf::IMMEDIATE.contains(&request.len.into()) => {}
                Err(e) => return Err((msg, Health::LocalDropped, e)),
            }
        }
        let source = exposed.as_ref().and_then(|e| e.region.as_ref());
        let source = source.map(|region| Source {
            nla: region.nla(),
            vpid: VPID,
        });
        let message = lnd::OutgoingMessage {
            form: request.form,
            header: request.header,
            len: request.len,
            source,
        };
        self.submit(&slots, node, &message, msg, exposed)
    }

    fn submit(
        &self,
        slots: &Arc<RegionSlots>,
        node: NodeId,
        message: &lnd::OutgoingMessage,
        msg: Msg,
        exposed: Option<Exposed>,
    ) -> Result<(), (Msg, Health, Error)> {
        let out = Out {
            msg: Some(msg),
            ticket: None,
            exposed,
            node,
        };
        let mut core = self.core.lock();
        let now = self.now();
        // The NIC may have been lost or replaced since the memory was registered.
        let bound = core.link.is_some()
            && core
                .slots
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, slots));
        let inserted = if !bound || fault::hit(Point::Submit) {
            Err(out)
        } else {
            self.outs.lock().insert(out)
        };
        let (out, (health, e)) = match inserted {
            Ok(token) => {
                let deadline = now.after(conf::send_timeout());
                let taken = core.machine_mut().map(|machine| {
                    let taken = machine.submit(node, message, deadline, token, now);
                    taken.map_err(|(error, _)| error)
                });
                let error = match taken {
                    Some(Ok(ticket)) => {
                        if let Some(out) = self.outs.lock().get(token) {
                            out.ticket = Some(ticket);
                        }
                        self.counters.sent(message.len);
                        self.drive(&mut core, now);
                        return Ok(());
                    }
                    Some(Err(error)) => error,
                    None => SubmitError::Closing,
                };
                (self.outs.lock().remove(token), refused(error))
            }
            Err(out) if bound => (Some(out), refused(SubmitError::Full)),
            Err(out) => (Some(out), (Health::LocalDropped, ENODEV)),
        };
        drop(core);
        let Some(out) = out else {
            // Cannot happen: the message was inserted above.
            return Ok(());
        };
        if let Some(exposed) = out.exposed {
            unexpose(slots, exposed);
        }
        match out.msg {
            Some(msg) => Err((msg, health, e)),
            None => Ok(()),
        }
    }

    /// Registers the payload of a message for the peer.
    fn expose(&self, slots: &RegionSlots, msg: &Msg, request: &SendRequest<'_>) -> Result<Exposed> {
        let taken = if fault::hit(Point::Source) {
            None
        } else {
            slots.claim(Side::Source)
        };
        let Some((number, slot)) = taken else {
            self.counters.count(Count::NoSlot);
            return Err(EAGAIN);
        };
        // The payload must be contiguous, because the peer receives a single address.
        let pages = request.pages().map(|list| list.contiguous());
        let pages = match pages {
            Ok(Ok(pages)) if !fault::hit(Point::SourceGaps) => Ok(pages),
            _ => {
                self.counters.count(Count::ExposedCopies);
                copy(msg, request.len)
            }
        };
        match pages.and_then(|pages| slot.register(&pages)) {
            Ok(region) => {
                self.counters.count(Count::Exposed);
                Ok(Exposed {
                    slot: number,
                    region: Some(region),
                })
            }
            Err(e) => {
                self.counters.count(Count::NotRegistered);
                slots.free(number);
                Err(e)
            }
        }
    }

    /// Starts the revocation of a message's registration. Returns whether the message was
    /// registered. The caller holds `core`.
    pub(super) fn revoke_out(&self, slots: &RegionSlots, token: u32) -> bool {
        let mut outs = self.outs.lock();
        let exposed = outs.get(token).and_then(|out| out.exposed.as_mut());
        let registered = exposed.and_then(|e| Some((e.slot, e.region.take()?)));
        drop(outs);
        match registered.map(|(number, region)| (slots.get(number), region)) {
            Some((Some(slot), region)) => {
                slot.revoke(region);
                true
            }
            _ => false,
        }
    }

    /// Returns the peer of an outgoing message that has ended, and LNet's result. The peer
    /// determines the thread that finalizes the message.
    pub(super) fn out_ended(&self, token: u32, outcome: Outcome) -> Option<(NodeId, End)> {
        let node = self.outs.lock().get(token)?.node;
        Some((node, end_of(outcome)))
    }

    /// Frees the registration slot of a message after the peer can no longer read its memory.
    pub(super) fn released(&self, slots: Option<&RegionSlots>, token: u32) {
        let mut outs = self.outs.lock();
        let Some(out) = outs.get(token) else {
            return;
        };
        let notified = out.msg.is_none();
        if let (Some(exposed), Some(slots)) = (&out.exposed, slots) {
            slots.free(exposed.slot);
            if let Some(user) = outs.users_mut(token) {
                *user = None;
            }
        }
        if let Some(out) = outs.get(token) {
            out.exposed = None;
        }
        if notified {
            outs.remove(token);
        }
    }

    /// Finalizes an outgoing message. Called without locks.
    pub(super) fn sent(&self, token: u32, end: End) {
        let msg = {
            let mut outs = self.outs.lock();
            let Some(out) = outs.get(token) else {
                return;
            };
            let msg = out.msg.take();
            // A registered message stays in the table until `released`, because the peer still
            // knows its address.
            if out.exposed.is_none() {
                outs.remove(token);
            }
            msg
        };
        if let Some(msg) = msg {
            msg.finalize(end);
        }
    }
}

impl Outs {
    fn users_mut(&mut self, token: u32) -> Option<&mut Option<u32>> {
        let slot = self.get(token)?.exposed.as_ref()?.slot;
        self.users.get_mut(slot as usize)
    }
}

/// Ends the registration of a payload whose address the peer does not know.
fn unexpose(slots: &RegionSlots, exposed: Exposed) {
    drop(exposed.region);
    slots.free(exposed.slot);
}
