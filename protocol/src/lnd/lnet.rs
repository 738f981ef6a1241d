// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What LNet says of messages that come in.

use super::tables::{Lnd, On, Ticket};
use super::{ReceiveState, ReceiveStep};
use crate::{base::arena::At, Memory, Time};
use wire::lnd::{Form, Header, Payload, Verdict};

/// What is to be done for an LNet message whose payload is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// Copy it from the buffer that it came in, and say [`Lnd::copied`] then.
    Copy,
    /// It will be fetched: [`Event::Fetch`](super::Event::Fetch) follows, then
    /// [`Event::Received`](super::Event::Received).
    Fetch,
    /// Nothing: it is done.
    Nothing,
    /// It can't be had any more; the LNet message has failed.
    Gone,
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    pub(super) fn receive_at(&self, ticket: Ticket) -> Option<At> {
        self.receives.find(ticket.1)
    }

    /// A message that LNet was given: form of its header, header, bytes of payload, and whether
    /// these are in the buffer that they came in.
    pub fn offered(&self, ticket: Ticket) -> Option<(Form, Header, u32, bool)> {
        let receive = self.receives.get(self.receive_at(ticket)?)?;
        let here = matches!(receive.payload, Payload::Here(_));
        Some((receive.form, receive.header, receive.payload.len(), here))
    }

    /// LNet has taken a message, or not; if it has, [`Lnd::receive`] is or was called for it, or
    /// will be.
    pub fn parsed(&mut self, ticket: Ticket, taken: bool) {
        let Some(at) = self.receive_at(ticket) else {
            return;
        };
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        match (receive.state, receive.payload) {
            (ReceiveState::Offered | ReceiveState::Lapsed, _) if !taken => {
                self.answer_for(at, Verdict::Refused);
                self.forget_receive(at, ReceiveStep::Drop);
            }
            (ReceiveState::Offered, Payload::Here(_)) => self.answer_for(at, Verdict::Done),
            (ReceiveState::Offered, Payload::There(..)) if receive.cancelled => {
                self.step_receive(at, ReceiveStep::Lapse);
                self.answer_for(at, Verdict::Failed);
            }
            (ReceiveState::Offered, Payload::There(..)) => receive.parsed = true,
            _ => {}
        }
    }

    /// LNet need not be given a message that it was not given yet.
    pub(super) fn withdraw(&mut self, at: At) {
        self.step_receive(at, ReceiveStep::Lapse);
        self.forget_receive(at, ReceiveStep::Drop);
    }

    /// LNet wants so many bytes of the payload of a message, none if it drops it.
    pub fn receive(&mut self, ticket: Ticket, wanted: u32, now: Time) -> Taking {
        let Some(at) = self.receive_at(ticket) else {
            return Taking::Gone;
        };
        let receive_for = self.limits.receive;
        let Some(receive) = self.receives.get_mut(at) else {
            return Taking::Gone;
        };
        let here = matches!(receive.payload, Payload::Here(_));
        let wanted = wanted.min(receive.payload.len());
        match receive.state {
            ReceiveState::Lapsed => {
                self.forget_receive(at, ReceiveStep::Drop);
                match wanted {
                    0 => Taking::Nothing,
                    _ => Taking::Gone,
                }
            }
            ReceiveState::Offered if wanted == 0 => {
                self.answer_for(at, Verdict::Done);
                self.forget_receive(at, ReceiveStep::Drop);
                Taking::Nothing
            }
            ReceiveState::Offered if here => {
                self.step_receive(at, ReceiveStep::Copy);
                self.answer_for(at, Verdict::Done);
                Taking::Copy
            }
            ReceiveState::Offered => {
                let peer = receive.peer;
                receive.wanted = wanted;
                receive.deadline = now.after(receive_for);
                let deadline = receive.deadline;
                self.receive_times.set(at.index(), deadline);
                self.step_receive(at, ReceiveStep::Fetch);
                self.move_receive(at, Some(On::Due));
                self.fetch_due(peer, now);
                Taking::Fetch
            }
            _ => Taking::Gone,
        }
    }

    /// Payload that [`Lnd::receive`] said to copy was copied: the buffer is free.
    pub fn copied(&mut self, ticket: Ticket) {
        if let Some(at) = self.receive_at(ticket) {
            self.forget_receive(at, ReceiveStep::Copied);
        }
    }

    /// LNet was told of a message that [`Event::Received`](super::Event::Received) was about.
    pub fn finished(&mut self, ticket: Ticket) {
        let Some(at) = self.receive_at(ticket) else {
            return;
        };
        if let Some(receive) = self.receives.get_mut(at) {
            receive.held = false;
        }
        self.reap_receive(at);
    }

    /// LNet keeps a message for later that it was given and has not said yet what it wants of, and
    /// its payload was copied from the buffer that it came in: the buffer is free, and nothing is
    /// remembered of the message, which counts as taken; neither [`Lnd::parsed`] nor
    /// [`Lnd::receive`] is needed. So what LNet keeps does not keep out what it waits for.
    ///
    /// False if that can't be, as the payload has to be fetched: then the message has its place in
    /// the session until LNet wants it.
    pub fn kept(&mut self, ticket: Ticket) -> bool {
        let Some(at) = self.receive_at(ticket) else {
            return false;
        };
        let here = self.receives.get(at).is_some_and(|r| {
            r.state == ReceiveState::Offered && matches!(r.payload, Payload::Here(_))
        });
        if here {
            self.answer_for(at, Verdict::Done);
            self.step_receive(at, ReceiveStep::Copy);
            self.forget_receive(at, ReceiveStep::Copied);
        }
        here
    }
}
