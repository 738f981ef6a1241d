// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! What is remembered.

use super::stray::Strays;
use super::{
    Capacity, Counters, Limits, Outcome, PeerState, ReceiveState, ReceiveStep, SendState, SendStep,
};
use crate::{
    base::{
        arena::{Arena, At, List, Name},
        deadlines::Deadlines,
        flow::Counts,
        slots::Slots,
    },
    Memory, Time,
};
use wire::{
    ids::NodeId,
    lnd::{Form, Header, Incarnation, Key, Payload, Place, Source, Verdict, Welcome, What},
};

/// Lists of an object: one of its peer's, and that of what has something to tell.
pub(super) const PEER: usize = 0;
pub(super) const EVENTS: usize = 1;
/// Lists of a peer: those that have something to say, and that of what has something to tell.
pub(super) const WORK: usize = 0;

/// Names a message for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub(super) At, pub(super) Name);

impl Ticket {
    /// Its place: a number below the capacity, that nothing else has at the same time.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0.index()
    }
}

/// List of a peer that a message is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    /// Waits for a place in the session.
    Queue,
    /// Waits as the peer was busy.
    Later,
    /// Has parts to send.
    Parts,
    /// Waits until its peer is known to be alive.
    Due,
}

/// What is to be told of a message that goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SendNews {
    pub(super) revoke: bool,
    pub(super) sent: bool,
    pub(super) released: bool,
}

/// A message that goes out.
pub(super) struct Send<T> {
    pub(super) token: T,
    pub(super) peer: At,
    pub(super) state: SendState,
    pub(super) on: Option<On>,
    pub(super) form: Form,
    pub(super) header: Header,
    pub(super) len: u32,
    pub(super) source: Option<Source>,
    pub(super) deadline: Time,
    /// Place in the session.
    pub(super) slot: Option<u8>,
    /// The part to send next, and how many there are.
    pub(super) part: u8,
    pub(super) parts: u8,
    /// Some of it was sent, and the peer has not said since that it was busy.
    pub(super) said: bool,
    /// When the peer is asked next, or it is queued again, or released.
    pub(super) next: Time,
    pub(super) interval: u64,
    /// For so long it waits when the peer is busy next.
    pub(super) busy: u64,
    /// The peer was busy: its first part goes alone until there is a place.
    pub(super) alone: bool,
    /// The peer was asked, and has not said that something is missing.
    pub(super) asked: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) news: SendNews,
    pub(super) listed: bool,
}

/// What is to be told of a message that comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ReceiveNews {
    pub(super) offer: bool,
    pub(super) fetch: bool,
    pub(super) revoke: bool,
    pub(super) received: bool,
}

/// A message that comes in.
pub(super) struct Receive {
    pub(super) peer: At,
    pub(super) node: NodeId,
    pub(super) state: ReceiveState,
    pub(super) on: Option<On>,
    pub(super) form: Form,
    pub(super) header: Header,
    pub(super) payload: Payload,
    /// Its place in the session, as long as it has not been answered.
    pub(super) slot: Option<u8>,
    /// Parts that are there.
    pub(super) parts: u64,
    /// Bytes that LNet wants.
    pub(super) wanted: u32,
    pub(super) tries: u8,
    pub(super) failed: Option<Time>,
    /// The port has no place for a GET before this.
    pub(super) not_before: Time,
    /// Until when a GET has to be posted, and to be done.
    pub(super) post_by: Time,
    pub(super) until: Time,
    pub(super) deadline: Time,
    /// LNet has said that it takes it.
    pub(super) parsed: bool,
    /// A GET was posted for it: it counts among those of its peer.
    pub(super) placed: bool,
    /// The peer does not want it, which LNet has to be waited for.
    pub(super) cancelled: bool,
    pub(super) done: bool,
    /// Its end was told, and is not known to have been taken note of.
    pub(super) held: bool,
    pub(super) news: ReceiveNews,
    pub(super) listed: bool,
}

/// A place for a request to the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutSlot {
    pub(super) seq: u16,
    pub(super) user: Option<At>,
    /// A note to send.
    pub(super) say: Option<What>,
}

/// What is in a place for requests of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum In {
    #[default]
    Nothing,
    Active(At),
    Answered(Verdict),
}

/// A place for requests of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InSlot {
    pub(super) seq: u16,
    pub(super) state: In,
    pub(super) say: Option<What>,
}

/// A session that the peer has asked for and not used yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    pub(super) own: Key,
    pub(super) key: Key,
    pub(super) incarnation: Incarnation,
    pub(super) slots: u16,
    /// When it has said so last.
    pub(super) said: Time,
}

/// What a peer is to be told besides requests and notes about them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Say {
    pub(super) hello: bool,
    pub(super) welcome: Option<Welcome>,
    pub(super) stale: Option<Key>,
    pub(super) ping: bool,
    pub(super) pong: bool,
    /// That this end has the session.
    pub(super) confirm: bool,
    /// Slots have notes.
    pub(super) notes: bool,
}

/// A peer.
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) state: PeerState,
    /// Own key of the session, or of the greeting.
    pub(super) own: Key,
    /// The peer's key of the session.
    pub(super) theirs: Key,
    pub(super) incarnation: Incarnation,
    /// Places that this end may use.
    pub(super) slots: u16,
    /// The place that was taken last.
    pub(super) last_slot: u16,
    pub(super) used: u16,
    pub(super) pending: Option<Pending>,
    pub(super) queue: List,
    pub(super) later: List,
    pub(super) parts: List,
    pub(super) due: List,
    /// It was alive after this time.
    pub(super) heard: Time,
    /// Since when it owes an answer.
    pub(super) asked: Option<Time>,
    /// When a hello or ping goes out, or it may be tried again.
    pub(super) next: Option<Time>,
    pub(super) interval: u64,
    pub(super) say: Say,
    pub(super) in_work: bool,
    /// Messages, in either direction, that know it.
    pub(super) users: u32,
    /// Of these, those that come in.
    pub(super) receives: u32,
    /// Of these, those that a GET was posted for.
    pub(super) fetches: u32,
    /// Of those that go out, those that rest.
    pub(super) resting: u32,
    /// What is to be told: whether it is alive.
    pub(super) news: Option<bool>,
}

/// Peers and messages of a network interface. See the module's documentation.
pub struct Lnd<M: Memory, T> {
    pub(super) limits: Limits,
    pub(super) slots: u16,
    /// See [`Capacity::fetches`].
    pub(super) fetches: u32,
    /// Messages for which memory is registered here, or may be.
    pub(super) fetching: usize,
    pub(super) incarnation: Incarnation,
    pub(super) random: u64,
    pub(super) closing: bool,
    /// The number before the first one of a session.
    pub(super) count_from: u16,
    pub(super) peers: Arena<M, Peer, 2>,
    pub(super) by_node: Slots<M, At>,
    pub(super) out: M::Array<OutSlot>,
    pub(super) inn: M::Array<InSlot>,
    pub(super) sends: Arena<M, Send<T>, 2>,
    pub(super) receives: Arena<M, Receive, 2>,
    pub(super) send_times: Deadlines<M>,
    pub(super) receive_times: Deadlines<M>,
    pub(super) peer_times: Deadlines<M>,
    pub(super) work: List,
    pub(super) send_events: List,
    pub(super) receive_events: List,
    pub(super) peer_events: List,
    pub(super) strays: Strays,
    pub(super) peer_flow: Counts<PeerState>,
    pub(super) send_flow: Counts<SendState>,
    pub(super) receive_flow: Counts<ReceiveState>,
    pub(super) counters: Counters,
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Makes the tables. `random` is a number that no other life of the interface has had: keys and
    /// the incarnation are made from it. May sleep where getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(capacity: &Capacity, limits: &Limits, random: u64) -> Result<Self, M::Error> {
        let peers = capacity.peers.clamp(1, 0x8000);
        let slots = capacity.slots.clamp(1, 256);
        let (sends, receives) = (capacity.sends.max(1), capacity.receives.max(1));
        let all = usize::from(peers) * usize::from(slots);
        let mut lnd = Self {
            limits: *limits,
            slots,
            fetches: capacity.fetches.max(1),
            fetching: 0,
            incarnation: Incarnation(0),
            random,
            closing: false,
            count_from: 0,
            peers: Arena::new(peers.into())?,
            by_node: Slots::new(peers)?,
            out: M::array(all, |_| OutSlot::default())?,
            inn: M::array(all, |_| InSlot::default())?,
            sends: Arena::new(sends)?,
            receives: Arena::new(receives)?,
            send_times: Deadlines::new(sends)?,
            receive_times: Deadlines::new(receives)?,
            peer_times: Deadlines::new(peers.into())?,
            work: List::NEW,
            send_events: List::NEW,
            receive_events: List::NEW,
            peer_events: List::NEW,
            strays: Strays::NEW,
            peer_flow: Counts::default(),
            send_flow: Counts::default(),
            receive_flow: Counts::default(),
            counters: Counters::default(),
        };
        lnd.incarnation = Incarnation(lnd.draw());
        Ok(lnd)
    }

    /// A number that was not drawn before.
    pub(super) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn draw_key(&mut self) -> Key {
        loop {
            // 0 is no key.
            if let key @ 1.. = (self.draw() >> 16) as u32 {
                return Key(key);
            }
        }
    }

    fn index(&self, peer: At, slot: u8) -> Option<usize> {
        let inside = u16::from(slot) < self.slots;
        let index = peer.index() as usize * usize::from(self.slots) + usize::from(slot);
        inside.then_some(index)
    }

    pub(super) fn out_slot(&mut self, peer: At, slot: u8) -> Option<&mut OutSlot> {
        let index = self.index(peer, slot)?;
        self.out.get_mut(index)
    }

    pub(super) fn in_slot(&mut self, peer: At, slot: u8) -> Option<&mut InSlot> {
        let index = self.index(peer, slot)?;
        self.inn.get_mut(index)
    }

    /// The request in a place, if its number is this one.
    pub(super) fn user(&mut self, peer: At, place: Place) -> Option<At> {
        let slot = self.out_slot(peer, place.slot)?;
        slot.user.filter(|_| slot.seq == place.seq)
    }

    /// A peer has something to say.
    pub(super) fn want_work(&mut self, at: At) {
        if let Some(peer) = self.peers.get_mut(at) {
            if !peer.in_work {
                peer.in_work = true;
                self.peers.push::<WORK>(&mut self.work, at);
            }
        }
    }

    /// Something is to be told to a peer of a request of its.
    pub(super) fn note(&mut self, peer: At, slot: u8, what: What) {
        if let Some(slot) = self.in_slot(peer, slot) {
            slot.say = Some(what);
        }
        self.want_notes(peer);
    }

    pub(super) fn want_notes(&mut self, peer: At) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.say.notes = true;
        }
        self.want_work(peer);
    }

    pub(super) fn step_send(&mut self, at: At, event: SendStep) -> bool {
        match self.sends.get_mut(at) {
            Some(send) => self.send_flow.step(&mut send.state, event),
            None => false,
        }
    }

    pub(super) fn step_receive(&mut self, at: At, event: ReceiveStep) -> bool {
        let Some(receive) = self.receives.get_mut(at) else {
            return false;
        };
        let before = receive.state.is_fetching();
        let done = self.receive_flow.step(&mut receive.state, event);
        let after = receive.state.is_fetching();
        self.count_fetching(before, after);
        done
    }

    /// Puts a message that goes out on another list of its peer, or on none.
    pub(super) fn move_send(&mut self, at: At, on: Option<On>) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        let (peer, old) = (send.peer, core::mem::replace(&mut send.on, on));
        let Some(p) = self.peers.get_mut(peer) else {
            return;
        };
        match old {
            Some(On::Queue) => self.sends.unlink::<PEER>(&mut p.queue, at),
            Some(On::Later) => self.sends.unlink::<PEER>(&mut p.later, at),
            Some(On::Parts) => self.sends.unlink::<PEER>(&mut p.parts, at),
            _ => {}
        }
        match on {
            Some(On::Queue) => self.sends.push::<PEER>(&mut p.queue, at),
            Some(On::Later) => return self.sends.push::<PEER>(&mut p.later, at),
            Some(On::Parts) => self.sends.push::<PEER>(&mut p.parts, at),
            _ => return,
        }
        self.want_work(peer);
    }

    /// The same for one that comes in.
    pub(super) fn move_receive(&mut self, at: At, on: Option<On>) {
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        let old = core::mem::replace(&mut receive.on, on);
        let Some(p) = self.peers.get_mut(receive.peer) else {
            return;
        };
        if old.is_some() {
            self.receives.unlink::<PEER>(&mut p.due, at);
        }
        if on.is_some() {
            self.receives.push::<PEER>(&mut p.due, at);
        }
    }

    /// There is something to tell of a message that goes out.
    pub(super) fn list_send(&mut self, at: At) {
        if let Some(send) = self.sends.get_mut(at) {
            if !core::mem::replace(&mut send.listed, true) {
                self.sends.push::<EVENTS>(&mut self.send_events, at);
            }
        }
    }

    /// The same for one that comes in.
    pub(super) fn list_receive(&mut self, at: At) {
        if let Some(receive) = self.receives.get_mut(at) {
            if !core::mem::replace(&mut receive.listed, true) {
                self.receives.push::<EVENTS>(&mut self.receive_events, at);
            }
        }
    }

    /// Whether a peer is alive is to be told.
    pub(super) fn list_peer(&mut self, at: At, alive: bool) {
        if let Some(peer) = self.peers.get_mut(at) {
            if peer.news.replace(alive).is_none() {
                self.peers.push::<EVENTS>(&mut self.peer_events, at);
            }
        }
    }

    /// The ticket of a message that goes out.
    pub(super) fn send_ticket(&self, at: At) -> Option<Ticket> {
        Some(Ticket(at, self.sends.name(at)?))
    }

    /// The ticket of one that comes in.
    pub(super) fn receive_ticket(&self, at: At) -> Option<Ticket> {
        Some(Ticket(at, self.receives.name(at)?))
    }

    /// Messages that go out and are not forgotten.
    pub fn sends(&self) -> usize {
        self.sends.len()
    }

    /// Messages that come in and are not forgotten.
    pub fn receives(&self) -> usize {
        self.receives.len()
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How often each step was made, of peers, of messages that go out, of those that come in.
    pub fn flows(
        &self,
    ) -> (
        &Counts<PeerState>,
        &Counts<SendState>,
        &Counts<ReceiveState>,
    ) {
        (&self.peer_flow, &self.send_flow, &self.receive_flow)
    }

    /// State of a peer.
    pub fn peer_state(&self, node: NodeId) -> Option<PeerState> {
        let at = *self.by_node.get(node.0.into())?;
        Some(self.peers.get(at)?.state)
    }
}
