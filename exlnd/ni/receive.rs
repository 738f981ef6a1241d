// SPDX-License-Identifier: GPL-2.0-only

//! Messages that come in, from when LNet is given them.

use super::{count::Count, Core, Ni, Places, BUFFER};
use crate::{
    fault::{self, Point},
    ffi::lnet::{address, End, Health, Wanted},
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};
use kernel_ext::mem::{FragmentList, PageList};
use protocol::lnd::{Taking, Ticket};
use wire::{
    ids::NodeId,
    lnd::{Form, Header},
};

/// Bytes that are copied at a time.
const CHUNK: usize = 512;

/// A message that has come in, by the number of its ticket.
pub(super) enum In {
    /// There is none.
    Free,
    /// LNet was given it.
    Offered(Ticket, NodeId),
    /// Its payload is being fetched.
    Fetching(Fetching),
}

/// See [`In::Fetching`].
pub(super) struct Fetching {
    pub(super) ticket: Ticket,
    node: NodeId,
    msg: Wanted,
    /// Memory that it is to be fetched to, until that is registered; none if there was none to get.
    memory: Option<FragmentList>,
    /// The place where it is registered.
    place: Option<u32>,
    /// If that is not where it belongs: from where it has to be copied.
    copy: Option<Arc<PageList>>,
}

/// One whose end LNet has to be told of.
pub(super) struct Got {
    fetching: Fetching,
    done: bool,
}

impl In {
    /// A table of them. May sleep.
    pub(super) fn table(size: usize) -> Result<KVVec<Self>> {
        let mut table = KVVec::with_capacity(size, GFP_KERNEL)?;
        for _ in 0..size {
            table.push(Self::Free, GFP_KERNEL)?;
        }
        Ok(table)
    }
}

/// A message that has come in could not be had.
pub(super) fn failed(e: Error) -> End {
    End(Health::RemoteError, e.to_errno())
}

/// Bytes of payload that a header tells LNet of.
fn told(form: Form, header: &Header) -> Option<u32> {
    let word = match form {
        Form::Nid4 => 3,
        Form::Nid16 => 6,
    };
    header.get(word).map(|word| (word >> 32) as u32)
}

/// Copies the first bytes of a list of pages, from `at` on.
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

impl Got {
    /// Whose message it is.
    pub(super) fn node(&self) -> NodeId {
        self.fetching.node
    }

    /// Tells LNet. Without locks.
    pub(super) fn end(self, ni: &Ni) {
        let Fetching {
            ticket,
            mut msg,
            place,
            copy,
            ..
        } = self.fetching;
        let mut end = match self.done {
            true => End::OK,
            false => failed(EIO),
        };
        if let (true, Some(pages)) = (self.done, copy) {
            if let Err(e) = self::copy(&pages, 0, &mut msg) {
                end = failed(e);
            }
        }
        if let Some(place) = place {
            ni.sink_done(place);
        }
        msg.finalize(end);
        ni.change(|machine, _| machine.finished(ticket));
    }
}

impl Ni {
    pub(super) fn set_in(&self, index: u32, new: In) -> In {
        let mut ins = self.ins.lock();
        match ins.get_mut(index as usize) {
            Some(place) => core::mem::replace(place, new),
            None => new,
        }
    }

    /// Gives LNet a message. Without locks.
    pub(super) fn offer(&self, ticket: Ticket, node: NodeId) {
        if self.ended.load(Relaxed) {
            // LNet's configuration changes, which giving it a message may have to wait for.
            return self.change(|machine, _| machine.parsed(ticket, false));
        }
        let offered = {
            let core = self.core.lock();
            core.machine().and_then(|m| m.offered(ticket))
        };
        let Some((form, header, len, _)) = offered else {
            // Its sender has cancelled it.
            return;
        };
        if told(form, &header) != Some(len) {
            // LNet would take what is not there for payload.
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

    /// LNet was not given a message after all.
    fn withdraw(&self, ticket: Ticket) {
        drop(self.kept.lock().take(ticket.number()));
        if let Some(place) = self.ins.lock().get_mut(ticket.index() as usize) {
            if matches!(place, In::Offered(own, _) if *own == ticket) {
                *place = In::Free;
            }
        }
    }

    /// The message that LNet was given by this number, unless that is over, or it was copied.
    pub(super) fn offered(&self, number: u64) -> Option<(Ticket, NodeId)> {
        // Its place is the lower half.
        match self.ins.lock().get(number as u32 as usize)? {
            In::Offered(ticket, node) if ticket.number() == number => Some((*ticket, *node)),
            _ => None,
        }
    }

    /// LNet wants something of a message, or nothing. Without locks.
    pub(crate) fn recv(&self, number: u64, msg: Option<Wanted>) {
        let Some((ticket, node)) = self.offered(number) else {
            return self.recv_kept(number, msg);
        };
        match msg {
            Some(msg) if msg.len() > 0 => {
                let here = {
                    let core = self.core.lock();
                    let offered = core.machine().and_then(|m| m.offered(ticket));
                    offered.map(|(.., here)| here)
                };
                match here {
                    Some(false) => self.recv_far((ticket, node), msg),
                    _ => self.recv_near(ticket, msg),
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

    /// LNet wants nothing of a message.
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

    /// LNet wants payload that has come with the message.
    fn recv_near(&self, ticket: Ticket, mut msg: Wanted) {
        let wanted = msg.len() as u32;
        let taking = self.receive(&mut self.core.lock(), ticket, wanted);
        let end = match taking {
            Taking::Copy => {
                let at = ticket.index() as usize * BUFFER;
                copy(&self.buffers, at, &mut msg).map_or_else(failed, |()| End::OK)
            }
            Taking::Nothing => End::OK,
            Taking::Fetch | Taking::Gone => failed(EIO),
        };
        let mut core = self.core.lock();
        drop(self.set_in(ticket.index(), In::Free));
        if let (Taking::Copy, Some(machine)) = (taking, core.machine_mut()) {
            machine.copied(ticket);
        }
        let now = self.now();
        self.drive(&mut core, now);
        drop(core);
        msg.finalize(end);
    }

    /// LNet wants payload that has to be fetched.
    fn recv_far(&self, (ticket, node): (Ticket, NodeId), msg: Wanted) {
        let wanted = msg.len() as u32;
        // Without memory it fails when its time is over, and its sender hears of that.
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
            place: None,
            copy,
        };
        let mut core = self.core.lock();
        drop(self.set_in(ticket.index(), In::Fetching(fetching)));
        let taking = self.receive(&mut core, ticket, wanted);
        let back = match taking {
            Taking::Fetch => None,
            _ => Some(self.set_in(ticket.index(), In::Free)),
        };
        let now = self.now();
        self.drive(&mut core, now);
        drop(core);
        if let Some(In::Fetching(fetching)) = back {
            fetching.msg.finalize(failed(EIO));
        }
    }

    fn receive(&self, core: &mut Core, ticket: Ticket, wanted: u32) -> Taking {
        let now = self.now();
        match core.machine_mut() {
            Some(machine) => machine.receive(ticket, wanted, now),
            None => Taking::Gone,
        }
    }

    /// The payload of a message was fetched, or can't be had: what LNet has to be told.
    pub(super) fn got(&self, ticket: Ticket, done: bool) -> Option<Got> {
        let mut ins = self.ins.lock();
        let place = ins.get_mut(ticket.index() as usize)?;
        match place {
            In::Fetching(fetching) if fetching.ticket == ticket => {}
            _ => return None,
        }
        match core::mem::replace(place, In::Free) {
            In::Fetching(fetching) => Some(Got { fetching, done }),
            _ => None,
        }
    }

    /// The place of the memory that a message is fetched to.
    pub(super) fn place_of(&self, ticket: Ticket) -> Option<u32> {
        match self.ins.lock().get(ticket.index() as usize)? {
            In::Fetching(fetching) if fetching.ticket == ticket => fetching.place,
            _ => None,
        }
    }

    /// The same, where it is registered if that was not done. With the lock of the machine.
    pub(super) fn make_place(&self, places: &Places, ticket: Ticket) -> Option<u32> {
        let mut ins = self.ins.lock();
        let fetching = match ins.get_mut(ticket.index() as usize)? {
            In::Fetching(fetching) if fetching.ticket == ticket => fetching,
            _ => return None,
        };
        if fetching.place.is_none() {
            match self.register(places, ticket, fetching.memory.take()?) {
                Ok(place) => fetching.place = Some(place),
                Err(memory) => fetching.memory = Some(memory),
            }
        }
        fetching.place
    }
}
