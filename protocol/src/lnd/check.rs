// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Invariants of [`Lnd`], checked by tests and simulations.

use super::tables::{InState, Lnd, PeerList};
use super::{PeerState, ReceiveState, SendState};
use crate::{base::arena::Index, Memory};

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Sets the request number after which later sessions begin to count, so that tests can cover
    /// the wrap-around. Both ends must use the same number.
    pub fn count_from(&mut self, number: u16) {
        self.count_from = number;
    }

    /// Checks the invariants.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.peer_flow.impossible()
            + self.send_flow.impossible()
            + self.receive_flow.impossible()
            > 0
        {
            return Err("an event that its state forbids");
        }
        for index in 0..self.sends.capacity() {
            let at = Index::from_index(index as u32);
            let Some(send) = self.sends.get(at) else {
                continue;
            };
            let p = self
                .peers
                .get(send.peer)
                .ok_or("a message without a peer")?;
            if let Some(slot) = send.slot {
                let first = send.peer.index() as usize * usize::from(self.slots);
                let user = self
                    .out_slots
                    .get(first + usize::from(slot))
                    .and_then(|s| s.user);
                if user != Some(at) || p.state != PeerState::Up {
                    return Err("a message has a slot that belongs to another message");
                }
            }
            let list = match send.state {
                SendState::Sending => Some(PeerList::Transmit),
                // A message in state `Queued` is on one of two lists.
                SendState::Queued if send.list == Some(PeerList::Later) => send.list,
                SendState::Queued => Some(PeerList::Queue),
                _ => None,
            };
            if send.list != list {
                return Err("a message is on a list of another state");
            }
            let in_flight = matches!(send.state, SendState::Sending | SendState::Waiting);
            if in_flight != (send.slot.is_some() && in_flight) {
                return Err("a message is sent without a slot");
            }
        }
        let mut fetching = 0;
        for index in 0..self.receives.capacity() {
            let at = Index::from_index(index as u32);
            let Some(receive) = self.receives.get(at) else {
                continue;
            };
            fetching += usize::from(receive.state.is_fetching());
            if (receive.state == ReceiveState::Due) != (receive.list == Some(PeerList::Due)) {
                return Err("a due GET is not on its peer's list");
            }
            if receive.counted && self.peers.get(receive.peer).is_none_or(|p| p.fetches == 0) {
                return Err("a GET is not counted for its peer");
            }
            if let Some(slot) = receive.slot {
                let first = receive.peer.index() as usize * usize::from(self.slots);
                let state = self
                    .in_slots
                    .get(first + usize::from(slot))
                    .map(|s| s.state);
                if state != Some(InState::Active(at)) {
                    return Err("a request is not in its slot");
                }
            }
        }
        if fetching != self.fetching {
            return Err("the number of messages with registered memory is wrong");
        }
        Ok(())
    }
}
