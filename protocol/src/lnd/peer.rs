// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sessions: begin and end (docs/lnd-protocol.md, Sessions).

use super::stray::Stray;
use super::tables::{In, InSlot, Lnd, OutSlot, Pending, Say};
use super::{Outcome, PeerState, PeerStep, ReceiveState, ReceiveStep, SendState, Why};
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
        let gone = peer.asked.map(|t| t.after(self.limits.give_up));
        let gone = gone.filter(|_| peer.state != PeerState::Down);
        match [peer.next, gone].into_iter().flatten().min() {
            Some(time) => self.peer_times.set(at.index(), time),
            None => self.peer_times.clear(at.index()),
        }
    }

    fn step_peer(&mut self, at: Index, event: PeerStep) -> bool {
        match self.peers.get_mut(at) {
            Some(peer) => self.peer_flow.step(&mut peer.state, event),
            None => false,
        }
    }

    /// Starts the greeting if no session exists.
    pub(super) fn want(&mut self, at: Index, now: Time) {
        let Some(peer) = self.peers.get(at) else {
            return;
        };
        if !matches!(peer.state, PeerState::New | PeerState::Down) {
            return;
        }
        // A pending session's key was already sent to the peer.
        let own = match peer.pending {
            Some(pending) => pending.own,
            None => self.draw_key(),
        };
        self.step_peer(at, PeerStep::Want);
        let first = self.limits.ask;
        if let Some(peer) = self.peers.get_mut(at) {
            peer.own = own;
            peer.asked = Some(now);
            peer.interval = first;
            peer.say.hello = true;
        }
        self.set_next(at, Some(now.after(first)));
        self.want_work(at);
    }

    /// Returns the description of this end for a greeting.
    pub(super) fn hello(&self, own: Key) -> Hello {
        Hello {
            version: VERSION,
            slots: self.slots,
            key: own,
            incarnation: self.incarnation,
        }
    }

    /// Processes `HELLO`.
    pub(super) fn take_hello(&mut self, node: NodeId, hello: &Hello, now: Time) {
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
            Answer::Yes => self.make(node, now),
            _ => None,
        };
        let Some((at, peer)) = peer.and_then(|at| Some((at, self.peers.get(at)?))) else {
            let answer = match answer {
                Answer::Yes => Answer::Full,
                no => no,
            };
            let what = Stray::Welcome(welcome(answer, self.hello(Key(0))));
            return self.stray(node, what);
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
                    said: now,
                });
            }
            peer.say.welcome = Some(answer);
        }
        self.want_work(at);
    }

    /// Processes `WELCOME`.
    pub(super) fn take_welcome(&mut self, node: NodeId, welcome: &Welcome, sent: Time, now: Time) {
        let Some(at) = self.find(node) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let mine = (welcome.key, welcome.incarnation) == (peer.own, self.incarnation);
        if !mine || peer.state != PeerState::Greeting {
            // The peer may have missed that this end uses the session.
            if mine && peer.state == PeerState::Up {
                peer.say.confirm = true;
                self.want_work(at);
            }
            return;
        }
        if welcome.answer != Answer::Yes || welcome.own.version != VERSION {
            return self.down(at, Why::Unwelcome, now);
        }
        let pending = Pending {
            own: peer.own,
            key: welcome.own.key,
            incarnation: welcome.own.incarnation,
            slots: welcome.own.slots,
            said: now,
        };
        peer.say.confirm = true;
        self.step_peer(at, PeerStep::Welcome);
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
            peer.heard = sent;
            peer.asked = None;
            peer.say.hello = false;
        }
        self.set_next(at, None);
        self.list_peer(at, true);
        self.want_work(at);
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
            self.stray(node, Stray::Stale(key));
            return None;
        };
        let state = peer.state;
        if state == PeerState::Up && peer.own == key {
            return Some(at);
        }
        if let Some(pending) = peer.pending.filter(|p| p.own == key) {
            if state == PeerState::Up {
                self.lose(at, Why::PeerLost, now);
            }
            self.step_peer(at, PeerStep::Adopt);
            self.begin(at, pending, sent);
            return Some(at);
        }
        // The peer may use the key of this end's greeting before the session exists here.
        if state != PeerState::Greeting || peer.own != key {
            if let Some(peer) = self.peers.get_mut(at) {
                peer.say.stale = Some(key);
            }
            self.want_work(at);
        }
        None
    }

    /// Processes `STALE`: the peer knows no session with this key.
    pub(super) fn take_stale(&mut self, node: NodeId, key: Key, now: Time) {
        let Some(at) = self.find(node) else {
            return;
        };
        let ours = self
            .peers
            .get(at)
            .is_some_and(|p| p.state == PeerState::Up && p.theirs == key);
        if ours {
            self.lose(at, Why::PeerLost, now);
            self.step_peer(at, PeerStep::Stale);
            self.want_if_queued(at, now);
        }
    }

    fn want_if_queued(&mut self, at: Index, now: Time) {
        if self.peers.get(at).is_some_and(|p| !p.queue.is_empty()) {
            self.want(at, now);
        }
    }

    /// Records a message in the peer's session, which the peer sent after `sent`.
    pub(super) fn heard(&mut self, at: Index, sent: Time, now: Time) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        peer.heard = peer.heard.max(sent);
        peer.asked = None;
        self.time_peer(at);
        self.fetch_due(at, now);
    }

    /// Ends the session or greeting of a peer that does not answer or declined.
    fn down(&mut self, at: Index, why: Why, now: Time) {
        if self.peers.get(at).is_some_and(|p| p.state == PeerState::Up) {
            self.lose(at, why, now);
        }
        self.step_peer(at, PeerStep::Silent);
        let lately = self.limits.ask_most;
        if let Some(peer) = self.peers.get_mut(at) {
            peer.asked = None;
            peer.say.hello = false;
            // A peer that still wants the pending session would have repeated `HELLO`.
            peer.pending = peer.pending.filter(|p| now.since(p.said) <= lately);
            peer.say.welcome = peer.say.welcome.filter(|_| peer.pending.is_some());
        }
        self.close_queued(at, Outcome::NotDelivered(why), now);
        self.set_next(at, Some(now.after(self.limits.dead)));
        self.list_peer(at, false);
    }

    /// Ends a session; the results of its requests are unknown.
    pub(super) fn lose(&mut self, at: Index, why: Why, now: Time) {
        self.counters.lost += 1;
        for slot in 0..self.slots {
            let slot = slot as u8;
            if let Some(send) = self.out_slot(at, slot).and_then(|s| s.user.take()) {
                self.lose_send(send, why, now);
            }
            let state = self
                .in_slot(at, slot)
                .map(|s| core::mem::take(&mut s.state));
            if let Some(In::Active(receive)) = state {
                self.lose_receive(receive, now);
            }
        }
        // `lose_send` and `lose_receive` have removed all requests from these slots.
        self.clear_slots(at);
        let key = Key(0);
        if let Some(peer) = self.peers.get_mut(at) {
            (peer.own, peer.theirs, peer.used) = (key, key, 0);
            peer.asked = None;
            peer.say = Say {
                welcome: peer.say.welcome,
                ..Say::default()
            };
        }
        self.set_next(at, None);
    }

    fn lose_send(&mut self, at: Index, why: Why, now: Time) {
        let rest = now.after(self.limits.memory());
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        send.slot = None;
        send.next = rest;
        match send.state {
            SendState::Sending | SendState::Waiting => {
                let outcome = match send.said {
                    true => Outcome::Unknown(why),
                    false => Outcome::NotDelivered(why),
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
        let there = matches!(receive.payload, wire::lnd::Payload::There(..));
        match receive.state {
            ReceiveState::Gathering => self.forget_receive(at, ReceiveStep::Lapse),
            ReceiveState::Offered if there && receive.news.offer => self.withdraw(at),
            ReceiveState::Offered if there => {
                self.step_receive(at, ReceiveStep::Lapse);
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
        let gone = peer
            .asked
            .is_some_and(|t| t.after(self.limits.give_up) <= now);
        match peer.state {
            PeerState::Greeting if gone => self.down(at, Why::Unreachable, now),
            PeerState::Up if gone => self.down(at, Why::PeerLost, now),
            PeerState::Greeting if due => {
                let most = self.limits.ask_most;
                let mut next = now;
                if let Some(peer) = self.peers.get_mut(at) {
                    peer.interval = peer.interval.saturating_mul(2).min(most);
                    peer.say.hello = true;
                    next = now.after(peer.interval.max(1));
                }
                self.set_next(at, Some(next));
                self.want_work(at);
            }
            // `fetch_due` sends another `PING` while a due GET waits for an answer.
            PeerState::Up if due => {
                self.set_next(at, None);
                self.fetch_due(at, now);
            }
            _ if due => self.set_next(at, None),
            _ => self.time_peer(at),
        }
    }

    /// Closes the interface: all messages end, and new ones are refused. The next [`Lnd::pump`]
    /// notifies the peers. The close is complete when [`Lnd::is_over`] returns true.
    pub fn close(&mut self, now: Time) {
        self.closing = true;
        self.end_all(Why::Closing, now);
    }

    /// Ends all messages because the port has failed.
    pub fn down_all(&mut self, now: Time) {
        self.end_all(Why::Down, now);
    }

    fn end_all(&mut self, why: Why, now: Time) {
        let mut next = self.by_node.oldest().map(|(key, at)| (key, *at));
        while let Some((key, at)) = next {
            self.close_queued(at, Outcome::NotDelivered(why), now);
            let up = self.peers.get(at).filter(|p| p.state == PeerState::Up);
            // The peer then need not wait for a time-out.
            let farewell = up.map(|p| p.own).filter(|_| why == Why::Closing);
            if up.is_some() {
                self.lose(at, why, now);
            }
            if let Some(peer) = self.peers.get_mut(at) {
                peer.say = Say {
                    stale: farewell,
                    ..Say::default()
                };
                peer.asked = None;
                peer.pending = None;
            }
            self.step_peer(at, PeerStep::Leave);
            self.set_next(at, None);
            self.want_work(at);
            let younger = self.by_node.younger(key);
            next = younger.and_then(|key| Some((key, *self.by_node.get(key)?)));
        }
    }

    /// Returns whether all messages are finished and all events are delivered.
    pub fn is_over(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    /// Returns whether no memory is registered and no peer knows an address. The driver may then
    /// replace the port. LNet may still keep received messages.
    pub fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.fetching == 0
    }

    pub(super) fn count_fetching(&mut self, before: bool, after: bool) {
        self.fetching += usize::from(after);
        self.fetching -= usize::from(before).min(self.fetching);
    }
}
