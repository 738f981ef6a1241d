// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What must always hold; for tests.

use super::tables::{In, Lnd, On};
use super::{PeerState, ReceiveState, SendState};
use crate::{base::arena::At, Memory};

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Requests of later sessions are counted from behind this number on, not from 1; the same for
    /// all ends.
    pub fn count_from(&mut self, number: u16) {
        self.count_from = number;
    }

    /// Checks what must always hold.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.peer_flow.refused() + self.send_flow.refused() + self.receive_flow.refused() > 0 {
            return Err("something happened that can't");
        }
        for index in 0..self.sends.capacity() {
            let at = At::from_index(index as u32);
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
                    return Err("a message has a place that is not its own");
                }
            }
            let on = match send.state {
                SendState::Sending => Some(On::Parts),
                // Whoever waits can be found.
                SendState::Queued if send.on == Some(On::Later) => send.on,
                SendState::Queued => Some(On::Queue),
                _ => None,
            };
            if send.on != on {
                return Err("a message is on a list that it does not belong to");
            }
            let moving = matches!(send.state, SendState::Sending | SendState::Waiting);
            if moving != (send.slot.is_some() && moving) {
                return Err("a message is sent without a place");
            }
        }
        let mut fetching = 0;
        for index in 0..self.receives.capacity() {
            let at = At::from_index(index as u32);
            let Some(receive) = self.receives.get(at) else {
                continue;
            };
            fetching += usize::from(receive.state.is_fetching());
            if (receive.state == ReceiveState::Due) != (receive.on == Some(On::Due)) {
                return Err("a GET is due that nobody posts");
            }
            if receive.placed && self.peers.get(receive.peer).is_none_or(|p| p.fetches == 0) {
                return Err("a GET is not counted");
            }
            if let Some(slot) = receive.slot {
                let place = receive.peer.index() as usize * usize::from(self.slots);
                let state = self.inn.get(place + usize::from(slot)).map(|s| s.state);
                if state != Some(In::Active(at)) {
                    return Err("a request is not in its place");
                }
            }
        }
        if fetching != self.fetching {
            return Err("what has memory is not counted");
        }
        Ok(())
    }
}
