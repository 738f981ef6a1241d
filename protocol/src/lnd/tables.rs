// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tables of peers, messages and slots.

use super::{
    replies::Replies, Capacity, Counters, Limits, Outcome, PeerState, ReceiveEvent, ReceiveState,
    SendEvent, SendState,
};
use crate::{
    base::{
        arena::{Arena, Index, List, Name},
        deadlines::Deadlines,
        flow::Counts,
        slots::Slots,
    },
    Memory, Time,
};
use wire::{
    ids::NodeId,
    lnd::{Form, Header, Incarnation, Key, NoteKind, Payload, RequestId, Source, Verdict, Welcome},
};

/// Index of a message's link for a list of its peer. The link for the list of pending events has
/// index [`EVENTS`].
pub(super) const PEER: usize = 0;
pub(super) const EVENTS: usize = 1;
/// Index of a peer's link for the list of peers with messages to send. The link for the list of
/// pending events has index [`EVENTS`].
pub(super) const WORK: usize = 0;

/// ID of a message, which is never used for another message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub(super) Index, pub(super) Name);

impl Ticket {
    /// Returns the table index, which is below the capacity. Messages that exist at the same time
    /// have different indices.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0.index()
    }
}

/// List of a peer that contains a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerList {
    /// Messages to the peer that wait for a slot.
    Queue,
    /// Messages to the peer that wait after `BUSY`.
    Later,
    /// Messages to the peer with parts to send.
    Transmit,
    /// Messages from the peer that wait for a GET.
    Due,
}

/// Pending events of a message to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SendPending {
    pub(super) revoke: bool,
    pub(super) sent: bool,
    pub(super) released: bool,
}

/// Message to a peer.
pub(super) struct Send<T> {
    pub(super) token: T,
    pub(super) peer: Index,
    pub(super) state: SendState,
    pub(super) list: Option<PeerList>,
    pub(super) form: Form,
    pub(super) header: Header,
    pub(super) len: u32,
    pub(super) source: Option<Source>,
    pub(super) deadline: Time,
    /// Slot of the message in the session.
    pub(super) slot: Option<u8>,
    /// Next part to send (`part`), and number of parts (`parts`).
    pub(super) part: u8,
    pub(super) parts: u8,
    /// True if at least one part was sent since the message was queued.
    pub(super) part_sent: bool,
    /// Time of the next question, of the next attempt, or of the release, depending on the state.
    pub(super) next: Time,
    pub(super) interval: u64,
    /// Delay after the next `BUSY`, in ticks.
    pub(super) busy: u64,
    /// True after the peer was busy. Then only the first part is sent until the peer reports
    /// missing parts.
    pub(super) first_part_only: bool,
    /// True if the peer was asked, and has not reported a missing part since then.
    pub(super) asked: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) pending: SendPending,
    pub(super) queued: bool,
}

/// Pending events of a message from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ReceivePending {
    pub(super) offer: bool,
    pub(super) fetch: bool,
    pub(super) revoke: bool,
    pub(super) received: bool,
}

/// Message from a peer.
pub(super) struct Receive {
    pub(super) peer: Index,
    pub(super) node: NodeId,
    pub(super) state: ReceiveState,
    pub(super) list: Option<PeerList>,
    pub(super) form: Form,
    pub(super) header: Header,
    pub(super) payload: Payload,
    /// Slot of the message in the session until the message is answered.
    pub(super) slot: Option<u8>,
    /// Bit mask of the parts that have arrived.
    pub(super) parts: u64,
    /// Number of payload bytes that LNet requested.
    pub(super) wanted: u32,
    pub(super) tries: u8,
    pub(super) failed: Option<Time>,
    /// Earliest time of the next GET after the port could not post a GET.
    pub(super) not_before: Time,
    /// Latest time to post the GET (`post_by`), and its deadline (`until`).
    pub(super) post_by: Time,
    pub(super) until: Time,
    pub(super) deadline: Time,
    /// True if LNet has accepted the message.
    pub(super) parsed: bool,
    /// True if a GET was posted for the message, so that the message counts in `Peer::fetches`.
    pub(super) counted: bool,
    /// True if the peer cancelled the message while LNet was deciding about it.
    pub(super) cancelled: bool,
    pub(super) done: bool,
    /// True if [`Event::Received`](super::Event::Received) was delivered, and [`Lnd::finished`] was
    /// not called yet.
    pub(super) reported: bool,
    pub(super) pending: ReceivePending,
    pub(super) queued: bool,
}

/// Slot for requests to the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutSlot {
    pub(super) seq: u16,
    pub(super) user: Option<Index>,
    /// Note to send.
    pub(super) pending_note: Option<NoteKind>,
}

/// Contents of a slot for requests of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum InState {
    #[default]
    Nothing,
    Active(Index),
    Answered(Verdict),
}

/// Slot for requests from the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InSlot {
    pub(super) seq: u16,
    pub(super) state: InState,
    pub(super) pending_note: Option<NoteKind>,
}

/// Session that the peer has requested and not used yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pending {
    pub(super) own: Key,
    pub(super) key: Key,
    pub(super) incarnation: Incarnation,
    pub(super) slots: u16,
    /// Time of the last `HELLO`.
    pub(super) hello_at: Time,
}

/// Pending messages to a peer, except requests and notes about requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingControl {
    pub(super) hello: bool,
    pub(super) welcome: Option<Welcome>,
    pub(super) stale: Option<Key>,
    pub(super) ping: bool,
    pub(super) pong: bool,
    /// A message with the session's key must be sent, so that the peer knows that this end uses the
    /// session.
    pub(super) confirm: bool,
    /// Notes in slots must be sent.
    pub(super) notes: bool,
}

/// Peer of the interface.
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) state: PeerState,
    /// This end's key of the session or greeting.
    pub(super) own: Key,
    /// The peer's key of the session.
    pub(super) theirs: Key,
    pub(super) incarnation: Incarnation,
    /// Number of slots for requests to the peer.
    pub(super) slots: u16,
    /// Slot that was assigned last.
    pub(super) last_slot: u16,
    pub(super) used: u16,
    pub(super) pending: Option<Pending>,
    pub(super) queue: List,
    pub(super) later: List,
    pub(super) parts: List,
    pub(super) due: List,
    /// Lower bound of the time of the peer's last sign of life.
    pub(super) alive_after: Time,
    /// Time of the first question to the peer after its last sign of life.
    pub(super) asked: Option<Time>,
    /// Time of the next `HELLO` or `PING`, or the end of state `Down`.
    pub(super) next: Option<Time>,
    pub(super) interval: u64,
    pub(super) pending_control: PendingControl,
    pub(super) in_work: bool,
    /// Number of messages to and from the peer.
    pub(super) users: u32,
    /// Number of messages from the peer.
    pub(super) receives: u32,
    /// Number of messages from the peer for which a GET was posted.
    pub(super) fetches: u32,
    /// Number of messages to the peer in `Resting`.
    pub(super) resting: u32,
    /// Pending event: the peer is alive (true) or down (false).
    pub(super) pending_event: Option<bool>,
}

/// Peers and messages of a network interface; see [`crate::lnd`].
pub struct Lnd<M: Memory, T> {
    pub(super) limits: Limits,
    pub(super) slots: u16,
    /// Value of [`Capacity::fetches`].
    pub(super) fetches: u32,
    /// Number of messages from peers for which memory is or may be registered.
    pub(super) fetching: usize,
    pub(super) incarnation: Incarnation,
    pub(super) random: u64,
    pub(super) closing: bool,
    /// Request number before the first request of a session.
    pub(super) count_from: u16,
    pub(super) peers: Arena<M, Peer, 2>,
    pub(super) by_node: Slots<M, Index>,
    pub(super) out_slots: M::Array<OutSlot>,
    pub(super) in_slots: M::Array<InSlot>,
    pub(super) sends: Arena<M, Send<T>, 2>,
    pub(super) receives: Arena<M, Receive, 2>,
    pub(super) send_times: Deadlines<M>,
    pub(super) receive_times: Deadlines<M>,
    pub(super) peer_times: Deadlines<M>,
    pub(super) work: List,
    pub(super) send_events: List,
    pub(super) receive_events: List,
    pub(super) peer_events: List,
    pub(super) replies: Replies,
    pub(super) peer_flow: Counts<PeerState>,
    pub(super) send_flow: Counts<SendState>,
    pub(super) receive_flow: Counts<ReceiveState>,
    pub(super) counters: Counters,
}

impl<M: Memory, T: Clone> Lnd<M, T> {
    /// Allocates the tables. `random` must differ from all earlier values of this interface,
    /// because keys and the incarnation are derived from it. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
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
            out_slots: M::array(all, |_| OutSlot::default())?,
            in_slots: M::array(all, |_| InSlot::default())?,
            sends: Arena::new(sends)?,
            receives: Arena::new(receives)?,
            send_times: Deadlines::new(sends)?,
            receive_times: Deadlines::new(receives)?,
            peer_times: Deadlines::new(peers.into())?,
            work: List::NEW,
            send_events: List::NEW,
            receive_events: List::NEW,
            peer_events: List::NEW,
            replies: Replies::NEW,
            peer_flow: Counts::default(),
            send_flow: Counts::default(),
            receive_flow: Counts::default(),
            counters: Counters::default(),
        };
        lnd.incarnation = Incarnation(lnd.draw());
        Ok(lnd)
    }

    /// Returns a pseudo-random number that no earlier call has returned.
    pub(super) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn draw_key(&mut self) -> Key {
        loop {
            // 0 is not a valid key.
            if let key @ 1.. = (self.draw() >> 16) as u32 {
                return Key(key);
            }
        }
    }

    fn index(&self, peer: Index, slot: u8) -> Option<usize> {
        let inside = u16::from(slot) < self.slots;
        let index = peer.index() as usize * usize::from(self.slots) + usize::from(slot);
        inside.then_some(index)
    }

    pub(super) fn out_slot(&mut self, peer: Index, slot: u8) -> Option<&mut OutSlot> {
        let index = self.index(peer, slot)?;
        self.out_slots.get_mut(index)
    }

    pub(super) fn in_slot(&mut self, peer: Index, slot: u8) -> Option<&mut InSlot> {
        let index = self.index(peer, slot)?;
        self.in_slots.get_mut(index)
    }

    /// Returns the message of the request in a slot if the request has the number in `id`.
    pub(super) fn request_at(&mut self, peer: Index, id: RequestId) -> Option<Index> {
        let slot = self.out_slot(peer, id.slot)?;
        slot.user.filter(|_| slot.seq == id.seq)
    }

    /// Adds a peer to the list of peers with messages to send.
    pub(super) fn queue_peer(&mut self, at: Index) {
        if let Some(peer) = self.peers.get_mut(at) {
            if !peer.in_work {
                peer.in_work = true;
                self.peers.push::<WORK>(&mut self.work, at);
            }
        }
    }

    /// Queues a note about a request of the peer.
    pub(super) fn note(&mut self, peer: Index, slot: u8, kind: NoteKind) {
        if let Some(slot) = self.in_slot(peer, slot) {
            slot.pending_note = Some(kind);
        }
        self.queue_notes(peer);
    }

    pub(super) fn queue_notes(&mut self, peer: Index) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.pending_control.notes = true;
        }
        self.queue_peer(peer);
    }

    pub(super) fn step_send(&mut self, at: Index, event: SendEvent) -> bool {
        match self.sends.get_mut(at) {
            Some(send) => self.send_flow.step(&mut send.state, event),
            None => false,
        }
    }

    pub(super) fn step_receive(&mut self, at: Index, event: ReceiveEvent) -> bool {
        let Some(receive) = self.receives.get_mut(at) else {
            return false;
        };
        let before = receive.state.is_fetching();
        let done = self.receive_flow.step(&mut receive.state, event);
        let after = receive.state.is_fetching();
        self.count_fetching(before, after);
        done
    }

    /// Moves a message to a peer to another list, or to no list.
    pub(super) fn move_send(&mut self, at: Index, list: Option<PeerList>) {
        let Some(send) = self.sends.get_mut(at) else {
            return;
        };
        let (peer, old) = (send.peer, core::mem::replace(&mut send.list, list));
        let Some(p) = self.peers.get_mut(peer) else {
            return;
        };
        match old {
            Some(PeerList::Queue) => self.sends.unlink::<PEER>(&mut p.queue, at),
            Some(PeerList::Later) => self.sends.unlink::<PEER>(&mut p.later, at),
            Some(PeerList::Transmit) => self.sends.unlink::<PEER>(&mut p.parts, at),
            _ => {}
        }
        match list {
            Some(PeerList::Queue) => self.sends.push::<PEER>(&mut p.queue, at),
            Some(PeerList::Later) => return self.sends.push::<PEER>(&mut p.later, at),
            Some(PeerList::Transmit) => self.sends.push::<PEER>(&mut p.parts, at),
            _ => return,
        }
        self.queue_peer(peer);
    }

    /// Moves a message from a peer to the list of due GETs, or to no list.
    pub(super) fn move_receive(&mut self, at: Index, list: Option<PeerList>) {
        let Some(receive) = self.receives.get_mut(at) else {
            return;
        };
        let old = core::mem::replace(&mut receive.list, list);
        let Some(p) = self.peers.get_mut(receive.peer) else {
            return;
        };
        if old.is_some() {
            self.receives.unlink::<PEER>(&mut p.due, at);
        }
        if list.is_some() {
            self.receives.push::<PEER>(&mut p.due, at);
        }
    }

    /// Adds a message to a peer to the list of pending events.
    pub(super) fn list_send(&mut self, at: Index) {
        if let Some(send) = self.sends.get_mut(at) {
            if !core::mem::replace(&mut send.queued, true) {
                self.sends.push::<EVENTS>(&mut self.send_events, at);
            }
        }
    }

    /// Adds a message from a peer to the list of pending events.
    pub(super) fn list_receive(&mut self, at: Index) {
        if let Some(receive) = self.receives.get_mut(at) {
            if !core::mem::replace(&mut receive.queued, true) {
                self.receives.push::<EVENTS>(&mut self.receive_events, at);
            }
        }
    }

    /// Queues the event that a peer is alive or down.
    pub(super) fn list_peer(&mut self, at: Index, alive: bool) {
        if let Some(peer) = self.peers.get_mut(at) {
            if peer.pending_event.replace(alive).is_none() {
                self.peers.push::<EVENTS>(&mut self.peer_events, at);
            }
        }
    }

    /// Returns the ticket of a message to a peer.
    pub(super) fn send_ticket(&self, at: Index) -> Option<Ticket> {
        Some(Ticket(at, self.sends.name(at)?))
    }

    /// Returns the ticket of a message from a peer.
    pub(super) fn receive_ticket(&self, at: Index) -> Option<Ticket> {
        Some(Ticket(at, self.receives.name(at)?))
    }

    /// Returns the number of messages to peers.
    pub fn sends(&self) -> usize {
        self.sends.len()
    }

    /// Returns the number of messages from peers.
    pub fn receives(&self) -> usize {
        self.receives.len()
    }

    /// Returns the statistics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of times that each transition was made, for peers, for messages to peers
    /// and for messages from peers.
    pub fn flows(
        &self,
    ) -> (
        &Counts<PeerState>,
        &Counts<SendState>,
        &Counts<ReceiveState>,
    ) {
        (&self.peer_flow, &self.send_flow, &self.receive_flow)
    }
}
