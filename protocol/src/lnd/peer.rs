// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Begin and end of sessions (docs/lnd-protocol.md, Sessions).

use super::replies::Reply;
use super::tables::{InSlot, InState, Lnd, OutSlot, Pending, PendingControl};
use super::{Cause, Outcome, PeerEvent, PeerState, ReceiveEvent, ReceiveState, SendState};
use crate::{base::arena::Index, Memory, Time};
use wire::{
    ids::NodeId,
    lnd::{Answer, Hello, Key, Welcome, VERSION},
};

impl<M: Memory, T: Clone> Lnd<M, T> {
    pub(super) fn clear_slots(&mut self, at: Index) {
        let seq = self.count_from;
        for slot in 0..self.slots {
            if let Some(s) = self.out_slot(at, slot as u8) {
                *s = OutSlot {
                    seq,
                    ..OutSlot::default()
                };
            }
            if let Some(s) = self.in_slot(at, slot as u8) {
                *s = InSlot {
                    seq,
                    ..InSlot::default()
                };
            }
        }
    }

    pub(super) fn set_next(&mut self, at: Index, next: Option<Time>) {
        if let Some(peer) = self.peers.get_mut(at) {
            peer.next = next;
        }
        self.time_peer(at);
    }

    /// Sets the timer of a peer to its next action.
    pub(super) fn time_peer(&mut self, at: Index) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        let timed_out = peer.asked.map(|t| t.after(self.limits.give_up));
        let timed_out = timed_out.filter(|_| peer.state != PeerState::Down);
        match [peer.next, timed_out].into_iter().flatten().min() {
            Some(time) => self.peer_times.set(at.index(), time),
            None => self.peer_times.clear(at.index()),
        }
    }

    fn step_peer(&mut self, at: Index, event: PeerEvent) -> bool {
        match self.peers.get_mut(at) {
            Some(peer) => self.peer_flow.step(&mut peer.state, event),
            None => false,
        }
    }

    /// Starts the greeting if no session exists.
    pub(super) fn start_greeting(&mut self, at: Index, now: Time) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        if !matches!(peer.state, PeerState::New | PeerState::Down) {
            return;
        }
        // Use the key of a pending session, because it was already sent to the peer.
        let own = match peer.pending {
            Some(pending) => pending.own,
            None => self.draw_key(),
        };
        self.step_peer(at, PeerEvent::Want);
        let first = self.limits.ask;
        if let Some(peer) = self.peers.get_mut(at) {
            peer.own = own;
            peer.asked = Some(now);
            peer.interval = first;
            peer.pending_control.hello = true;
        }
        self.set_next(at, Some(now.after(first)));
        self.queue_peer(at);
    }

    /// Returns the contents of a greeting of this end.
    pub(super) fn hello(&self, own: Key) -> Hello {
        Hello {
            version: VERSION,
            slots: self.slots,
            key: own,
            incarnation: self.incarnation,
        }
    }

    /// Processes `HELLO`.
    pub(super) fn on_hello(&mut self, node: NodeId, hello: &Hello, now: Time) {
        let welcome = |answer, own| Welcome {
            answer,
            own,
            key: hello.key,
            incarnation: hello.incarnation,
        };
        let answer = match () {
            () if self.closing => Answer::Closing,
            () if hello.version != VERSION => Answer::Version,
            () => Answer::Yes,
        };
        let peer = match answer {
            Answer::Yes => self.find_or_create(node, now),
            _ => None,
        };
        let Some((at, peer)) = peer.and_then(|at| Some((at, self.peers.get(at)?))) else {
            let answer = match answer {
                Answer::Yes => Answer::Full,
                no => no,
            };
            let reply = Reply::Welcome(welcome(answer, self.hello(Key(0))));
            return self.queue_reply(node, reply);
        };
        let who = (hello.key, hello.incarnation);
        let same = peer.state == PeerState::Up && (peer.theirs, peer.incarnation) == who;
        let known = peer.pending.filter(|p| (p.key, p.incarnation) == who);
        let own = match (same, known, peer.state) {
            (true, ..) | (false, None, PeerState::Greeting) => peer.own,
            (false, Some(pending), _) => pending.own,
            (false, None, _) => self.draw_key(),
        };
        let answer = welcome(Answer::Yes, self.hello(own));
        if let Some(peer) = self.peers.get_mut(at) {
            if !same {
                peer.pending = Some(Pending {
                    own,
                    key: hello.key,
                    incarnation: hello.incarnation,
                    slots: hello.slots,
                    hello_at: now,
                });
            }
            peer.pending_control.welcome = Some(answer);
        }
        self.queue_peer(at);
    }

    /// Processes `WELCOME`.
    pub(super) fn on_welcome(&mut self, node: NodeId, welcome: &Welcome, sent: Time, now: Time) {
        let Some(at) = self.find(node) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let mine = (welcome.key, welcome.incarnation) == (peer.own, self.incarnation);
        if !mine || peer.state != PeerState::Greeting {
            // Confirm the session, because the peer may not know that this end uses it.
            if mine && peer.state == PeerState::Up {
                peer.pending_control.confirm = true;
                self.queue_peer(at);
            }
            return;
        }
        if welcome.answer != Answer::Yes || welcome.own.version != VERSION {
            return self.down(at, Cause::Unwelcome, now);
        }
        let pending = Pending {
            own: peer.own,
            key: welcome.own.key,
            incarnation: welcome.own.incarnation,
            slots: welcome.own.slots,
            hello_at: now,
        };
        peer.pending_control.confirm = true;
        self.step_peer(at, PeerEvent::Welcome);
        self.begin(at, pending, sent);
    }

    /// Begins a session.
    fn begin(&mut self, at: Index, with: Pending, sent: Time) {
        self.counters.sessions += 1;
        let slots = self.slots.min(with.slots);
        self.clear_slots(at);
        if let Some(peer) = self.peers.get_mut(at) {
            peer.own = with.own;
            peer.theirs = with.key;
            peer.incarnation = with.incarnation;
            peer.slots = slots;
            peer.used = 0;
            peer.pending = None;
            peer.alive_after = sent;
            peer.asked = None;
            peer.pending_control.hello = false;
        }
        self.set_next(at, None);
        self.list_peer(at, true);
        self.queue_peer(at);
    }

    /// Returns the peer whose session has this key, after beginning a pending session with it.
    /// `sent` is a lower bound of the time at which the message was sent.
    pub(super) fn session(
        &mut self,
        node: NodeId,
        key: Key,
        sent: Time,
        now: Time,
    ) -> Option<Index> {
        let at = self.find(node);
        let Some((at, peer)) = at.and_then(|at| Some((at, self.peers.get(at)?))) else {
            self.queue_reply(node, Reply::Stale(key));
            return None;
        };
        let state = peer.state;
        if state == PeerState::Up && peer.own == key {
            return Some(at);
        }
        if let Some(pending) = peer.pending.filter(|p| p.own == key) {
            if state == PeerState::Up {
                self.end_session(at, Cause::PeerLost, now);
            }
            self.step_peer(at, PeerEvent::Adopt);
            self.begin(at, pending, sent);
            return Some(at);
        }
        // The peer may use the key of this end's greeting before the session exists at this end.
        if state != PeerState::Greeting || peer.own != key {
            if let Some(peer) = self.peers.get_mut(at) {
                peer.pending_control.stale = Some(key);
            }
            self.queue_peer(at);
        }
        None
    }

    /// Processes `STALE`, which means that the peer knows no session with this key.
    pub(super) fn on_stale(&mut self, node: NodeId, key: Key, now: Time) {
        let Some(at) = self.find(node) else {
            return;
        };
        let ours = self
            .peers
            .get(at)
            .is_some_and(|p| p.state == PeerState::Up && p.theirs == key);
        if ours {
            self.end_session(at, Cause::PeerLost, now);
            self.step_peer(at, PeerEvent::Stale);
            self.greet_if_queued(at, now);
        }
    }

    fn greet_if_queued(&mut self, at: Index, now: Time) {
        if self.peers.get(at).is_some_and(|p| !p.queue.is_empty()) {
            self.start_greeting(at, now);
        }
    }

    /// Records that a message in the peer's session arrived. The peer sent it after `sent`.
    pub(super) fn session_message(&mut self, at: Index, sent: Time, now: Time) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.alive_after = peer.alive_after.max(sent);
        peer.asked = None;
        self.time_peer(at);
        self.fetch_due(at, now);
    }

    /// Ends the session or greeting of a peer that does not answer or declined.
    fn down(&mut self, at: Index, cause: Cause, now: Time) {
        if self.peers.get(at).is_some_and(|p| p.state == PeerState::Up) {
            self.end_session(at, cause, now);
        }
        self.step_peer(at, PeerEvent::Silent);
        let lately = self.limits.ask_most;
        if let Some(peer) = self.peers.get_mut(at) {
            peer.asked = None;
            peer.pending_control.hello = false;
            // Drop an old pending session, because a peer that still needs it would have repeated
            // `HELLO`.
            peer.pending = peer.pending.filter(|p| now.since(p.hello_at) <= lately);
            peer.pending_control.welcome = peer
                .pending_control
                .welcome
                .filter(|_| peer.pending.is_some());
        }
        self.close_queued(at, Outcome::NotDelivered(cause), now);
        self.set_next(at, Some(now.after(self.limits.dead)));
        self.list_peer(at, false);
    }

    /// Ends a session. The results of its unanswered requests are unknown.
    pub(super) fn end_session(&mut self, at: Index, cause: Cause, now: Time) {
        self.counters.lost += 1;
        for slot in 0..self.slots {
            let slot = slot as u8;
            if let Some(send) = self.out_slot(at, slot).and_then(|s| s.user.take()) {
                self.lose_send(send, cause, now);
            }
            let state = self
                .in_slot(at, slot)
                .map(|s| core::mem::take(&mut s.state));
            if let Some(InState::Active(receive)) = state {
                self.lose_receive(receive, now);
            }
        }
        // `lose_send` and `lose_receive` have removed all requests from these slots.
        self.clear_slots(at);
        let key = Key(0);
        if let Some(peer) = self.peers.get_mut(at) {
            (peer.own, peer.theirs, peer.used) = (key, key, 0);
            peer.asked = None;
            peer.pending_control = PendingControl {
                welcome: peer.pending_control.welcome,
                ..PendingControl::default()
            };
        }
        self.set_next(at, None);
    }

    fn lose_send(&mut self, at: Index, cause: Cause, now: Time) {
        let rest = now.after(self.limits.memory());
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        send.slot = None;
        send.next = rest;
        match send.state {
            SendState::Sending | SendState::Waiting => {
                let outcome = if send.part_sent {
                    Outcome::Unknown(cause)
                } else {
                    Outcome::NotDelivered(cause)
                };
                self.close_send(at, outcome, now);
            }
            SendState::Resting if send.source.is_some() => self.send_times.set(at.index(), rest),
            SendState::Resting => self.release_send(at),
            _ => {}
        }
    }

    fn lose_receive(&mut self, at: Index, now: Time) {
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        receive.slot = None;
        let remote = matches!(receive.payload, wire::lnd::Payload::Remote(..));
        match receive.state {
            ReceiveState::Gathering => self.forget_receive(at, ReceiveEvent::Cancel),
            ReceiveState::Offered if remote && receive.pending.offer => self.withdraw(at),
            ReceiveState::Offered if remote => {
                self.step_receive(at, ReceiveEvent::Cancel);
            }
            ReceiveState::Due | ReceiveState::Fetching => self.fail_receive(at, now),
            _ => {}
        }
    }

    /// Handles the expired timer of a peer.
    pub(super) fn expire_peer(&mut self, at: Index, now: Time) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        let due = peer.next.is_some_and(|t| t <= now);
        let timed_out = peer
            .asked
            .is_some_and(|t| t.after(self.limits.give_up) <= now);
        match peer.state {
            PeerState::Greeting if timed_out => self.down(at, Cause::Unreachable, now),
            PeerState::Up if timed_out => self.down(at, Cause::PeerLost, now),
            PeerState::Greeting if due => {
                let most = self.limits.ask_most;
                let mut next = now;
                if let Some(peer) = self.peers.get_mut(at) {
                    peer.interval = peer.interval.saturating_mul(2).min(most);
                    peer.pending_control.hello = true;
                    next = now.after(peer.interval.max(1));
                }
                self.set_next(at, Some(next));
                self.queue_peer(at);
            }
            // While a due GET waits for a sign of life, `fetch_due` sends another `PING`.
            PeerState::Up if due => {
                self.set_next(at, None);
                self.fetch_due(at, now);
            }
            _ if due => self.set_next(at, None),
            _ => self.time_peer(at),
        }
    }

    /// Returns node ID and state of each peer, beginning with the oldest entry.
    pub fn peers(&self) -> impl Iterator<Item = (NodeId, PeerState)> + '_ {
        let mut next = self.by_node.oldest().map(|(node, _)| node);
        core::iter::from_fn(move || {
            let node = next?;
            next = self.by_node.younger(node);
            let peer = self.peers.get(*self.by_node.get(node)?)?;
            Some((peer.node, peer.state))
        })
    }

    /// Closes the interface. All messages end, and new messages are refused. The next [`Lnd::pump`]
    /// notifies the peers. The close is complete when [`Lnd::is_closed`] returns true.
    pub fn close(&mut self, now: Time) {
        self.closing = true;
        self.end_all(Cause::Closing, now);
    }

    /// Ends all messages because the port has failed.
    pub fn down_all(&mut self, now: Time) {
        self.end_all(Cause::Down, now);
    }

    fn end_all(&mut self, cause: Cause, now: Time) {
        let mut next = self.by_node.oldest().map(|(key, at)| (key, *at));
        while let Some((key, at)) = next {
            self.close_queued(at, Outcome::NotDelivered(cause), now);
            let up = self.peers.get(at).filter(|p| p.state == PeerState::Up);
            // Notify the peer, so that it need not wait for a time-out.
            let farewell = up.map(|p| p.own).filter(|_| cause == Cause::Closing);
            if up.is_some() {
                self.end_session(at, cause, now);
            }
            if let Some(peer) = self.peers.get_mut(at) {
                peer.pending_control = PendingControl {
                    stale: farewell,
                    ..PendingControl::default()
                };
                peer.asked = None;
                peer.pending = None;
            }
            self.step_peer(at, PeerEvent::Leave);
            self.set_next(at, None);
            self.queue_peer(at);
            let younger = self.by_node.younger(key);
            next = younger.and_then(|key| Some((key, *self.by_node.get(key)?)));
        }
    }

    /// Returns true if all messages are finished and all events are delivered.
    pub fn is_closed(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    /// Returns true if no memory is registered and no peer knows an address of this node. The
    /// driver may then replace the port. LNet may still keep received messages.
    pub fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.fetching == 0
    }

    pub(super) fn count_fetching(&mut self, before: bool, after: bool) {
        self.fetching += usize::from(after);
        self.fetching -= usize::from(before).min(self.fetching);
    }
}
