// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Decisions of LNet about received messages.

use super::tables::{Lnd, PeerList, Ticket};
use super::{ReceiveEvent, ReceiveState};
use crate::{base::arena::Index, Memory, Time};
use wire::lnd::{Form, Header, Payload, Verdict};

/// Action of the driver after LNet has requested the payload of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LnetAction {
    /// The driver copies the payload from the message's buffer, and calls [`Lnd::copied`].
    Copy,
    /// The payload is fetched by [`Event::Fetch`](super::Event::Fetch), and
    /// [`Event::Received`](super::Event::Received) reports the result.
    Fetch,
    /// The message is finished without payload.
    Done,
    /// The payload is not available any more, and the LNet message has failed.
    Lost,
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    pub(super) fn receive_at(&self, ticket: Ticket) -> Option<Index> {
        self.receives.find(ticket.1)
    }

    /// Returns a message to pass to LNet: form of the header, header, number of payload bytes, and
    /// true if the payload is in the buffer.
    pub fn offered(&self, ticket: Ticket) -> Option<(Form, Header, u32, bool)> {
        let receive = self.receives.get(self.receive_at(ticket)?)?;
        let inline = matches!(receive.payload, Payload::Inline(_));
        Some((receive.form, receive.header, receive.payload.len(), inline))
    }

    /// Records LNet's decision about a message; `taken` is true if LNet accepted the message. For
    /// an accepted message, [`Lnd::receive`] was called or will be called.
    pub fn parsed(&mut self, ticket: Ticket, taken: bool) {
        let Some(at) = self.receive_at(ticket) else {
            return;
        };
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        match (receive.state, receive.payload) {
            (ReceiveState::Offered | ReceiveState::Cancelled, _) if !taken => {
                self.answer_for(at, Verdict::Refused);
                self.forget_receive(at, ReceiveEvent::Drop);
            }
            (ReceiveState::Offered, Payload::Inline(_)) => self.answer_for(at, Verdict::Done),
            (ReceiveState::Offered, Payload::Remote(..)) if receive.cancelled => {
                self.step_receive(at, ReceiveEvent::Cancel);
                self.answer_for(at, Verdict::Failed);
            }
            (ReceiveState::Offered, Payload::Remote(..)) => receive.parsed = true,
            _ => {}
        }
    }

    /// Drops a message that was not yet passed to LNet.
    pub(super) fn withdraw(&mut self, at: Index) {
        self.step_receive(at, ReceiveEvent::Cancel);
        self.forget_receive(at, ReceiveEvent::Drop);
    }

    /// Returns the action for a message of which LNet requests `wanted` payload bytes. `wanted` is
    /// 0 if LNet drops the message.
    pub fn receive(&mut self, ticket: Ticket, wanted: u32, now: Time) -> LnetAction {
        let Some(at) = self.receive_at(ticket) else {
            return LnetAction::Lost;
        };
        let receive_for = self.limits.receive;
        let Some(receive) = self.receives.get_mut(at) else {
            return LnetAction::Lost;
        };
        let inline = matches!(receive.payload, Payload::Inline(_));
        let wanted = wanted.min(receive.payload.len());
        match receive.state {
            ReceiveState::Cancelled => {
                self.forget_receive(at, ReceiveEvent::Drop);
                match wanted {
                    0 => LnetAction::Done,
                    _ => LnetAction::Lost,
                }
            }
            ReceiveState::Offered if wanted == 0 => {
                self.answer_for(at, Verdict::Done);
                self.forget_receive(at, ReceiveEvent::Drop);
                LnetAction::Done
            }
            ReceiveState::Offered if inline => {
                self.step_receive(at, ReceiveEvent::Copy);
                self.answer_for(at, Verdict::Done);
                LnetAction::Copy
            }
            ReceiveState::Offered => {
                let peer = receive.peer;
                receive.wanted = wanted;
                receive.deadline = now.after(receive_for);
                let deadline = receive.deadline;
                self.receive_times.set(at.index(), deadline);
                self.step_receive(at, ReceiveEvent::Fetch);
                self.move_receive(at, Some(PeerList::Due));
                self.fetch_due(peer, now);
                LnetAction::Fetch
            }
            _ => LnetAction::Lost,
        }
    }

    /// Frees the buffer after the payload was copied ([`LnetAction::Copy`]).
    pub fn copied(&mut self, ticket: Ticket) {
        if let Some(at) = self.receive_at(ticket) {
            self.forget_receive(at, ReceiveEvent::Copied);
        }
    }

    /// Frees the entry of a message after LNet was notified of
    /// [`Event::Received`](super::Event::Received).
    pub fn finished(&mut self, ticket: Ticket) {
        let Some(at) = self.receive_at(ticket) else {
            return;
        };
        if let Some(receive) = self.receives.get_mut(at) {
            receive.reported = false;
        }
        self.reap_receive(at);
    }

    /// Drops a message that LNet keeps for later (eager receive), after its payload was copied from
    /// the buffer. The message counts as accepted, and [`Lnd::parsed`] and [`Lnd::receive`] are not
    /// needed. The call frees the message's slot, because LNet may keep messages until further
    /// messages have arrived.
    ///
    /// Returns false if the payload must be fetched. The message then keeps its slot until LNet
    /// requests the payload.
    pub fn kept(&mut self, ticket: Ticket) -> bool {
        let Some(at) = self.receive_at(ticket) else {
            return false;
        };
        let inline = self.receives.get(at).is_some_and(|r| {
            r.state == ReceiveState::Offered && matches!(r.payload, Payload::Inline(_))
        });
        if inline {
            self.answer_for(at, Verdict::Done);
            self.step_receive(at, ReceiveEvent::Copy);
            self.forget_receive(at, ReceiveEvent::Copied);
        }
        inline
    }
}
