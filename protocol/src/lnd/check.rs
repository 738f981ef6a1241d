// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Invariants of [`Lnd`], checked by tests and simulations.

use super::tables::{In, Lnd, On};
use super::{PeerState, ReceiveState, SendState};
use crate::{base::arena::Index, Memory};

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Sets the number before the first request of later sessions, for tests of wrap-around. Both
    /// ends need the same number.
    pub fn count_from(&mut self, number: u16) {
        self.count_from = number;
    }

    /// Checks the invariants.
    ///
    /// # Errors
    ///
    /// Description of the violated invariant.
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
                let place = send.peer.index() as usize * usize::from(self.slots);
                let user = self.out.get(place + usize::from(slot)).and_then(|s| s.user);
                if user != Some(at) || p.state != PeerState::Up {
                    return Err("a message has a slot that belongs to another one");
                }
            }
            let on = match send.state {
                SendState::Sending => Some(On::Parts),
                // Each waiting message is on a list.
                SendState::Queued if send.on == Some(On::Later) => send.on,
                SendState::Queued => Some(On::Queue),
                _ => None,
            };
            if send.on != on {
                return Err("a message is on a list of another state");
            }
            let moving = matches!(send.state, SendState::Sending | SendState::Waiting);
            if moving != (send.slot.is_some() && moving) {
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
            if (receive.state == ReceiveState::Due) != (receive.on == Some(On::Due)) {
                return Err("a due GET is not on its peer's list");
            }
            if receive.placed && self.peers.get(receive.peer).is_none_or(|p| p.fetches == 0) {
                return Err("a GET is not counted for its peer");
            }
            if let Some(slot) = receive.slot {
                let place = receive.peer.index() as usize * usize::from(self.slots);
                let state = self.inn.get(place + usize::from(slot)).map(|s| s.state);
                if state != Some(In::Active(at)) {
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
