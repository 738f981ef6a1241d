//! Ends of the LND protocol, connected by queues, and a model of their memory.

#![allow(dead_code)]

use protocol::lnd::{
    Capacity, Event, GetFailure, Limits, Lnd, LnetAction, Outcome, OutgoingMessage, PeerState,
    Port, Ticket,
};
use protocol::{Memory, Time, TransportError};
use std::collections::{HashMap, VecDeque};
use wire::ids::{Nla, NodeId};
use wire::lnd::{Form, Key, Message, Source, VPID};

pub struct Heap;

impl Memory for Heap {
    type Array<T> = Vec<T>;
    type Error = std::convert::Infallible;

    fn array<T>(len: usize, make: impl FnMut(usize) -> T) -> Result<Vec<T>, Self::Error> {
        Ok((0..len).map(make).collect())
    }
}

pub const CAPACITY: Capacity = Capacity {
    peers: 4,
    sends: 16,
    receives: 12,
    slots: 4,
    fetches: 3,
};

pub const LIMITS: Limits = Limits {
    ask: 10,
    ask_most: 40,
    give_up: 200,
    dead: 300,
    busy: 20,
    fresh: 30,
    hold: 50,
    port: 20,
    get: 40,
    tries: 4,
    receive: 400,
};

/// Message in flight.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub from: u16,
    pub to: u16,
    pub message: Message,
    pub data: Vec<u8>,
    /// True if the message does not interrupt the receiver.
    pub quiet: bool,
}

/// Port of a sender.
pub struct Out<'a> {
    pub from: u16,
    pub room: usize,
    pub dead: bool,
    pub payloads: &'a HashMap<u32, Vec<u8>>,
    pub sent: Vec<InFlight>,
}

impl Port<u32> for Out<'_> {
    fn send(
        &mut self,
        to: NodeId,
        message: &Message,
        payload: Option<(&u32, u16)>,
        quiet: bool,
    ) -> Result<(), TransportError> {
        if self.dead {
            return Err(TransportError::Never);
        }
        if self.room == 0 {
            return Err(TransportError::Later);
        }
        self.room -= 1;
        let mut data = Vec::new();
        if let Some((token, at)) = payload {
            let at = usize::from(at);
            data = self.payloads[token][at..at + usize::from(message.data_len())].to_vec();
        }
        assert_eq!(data.len(), usize::from(message.data_len()));
        let words = message.words();
        let read = Message::parse(message.kind().tag(), message.len(), |i| {
            words.as_slice().get(i).copied().unwrap_or(0)
        });
        assert_eq!(
            read,
            Ok(*message),
            "the encoded message decodes to the same message"
        );
        self.sent.push(InFlight {
            from: self.from,
            to: to.0,
            message: *message,
            data,
            quiet,
        });
        Ok(())
    }
}

/// End of the protocol with its memory.
pub struct End {
    pub node: u16,
    pub lnd: Lnd<Heap, u32>,
    /// Payload by token.
    pub payloads: HashMap<u32, Vec<u8>>,
    /// Token of each exposed address that the peer can read.
    pub exposed: HashMap<u64, u32>,
    /// Addresses by token, until their release.
    pub addresses: HashMap<u32, u64>,
    pub free: Vec<u64>,
    /// Message buffers by table index.
    pub buffers: HashMap<u32, Vec<u8>>,
    /// Pending events, in order.
    pub events: VecDeque<Event<u32>>,
    pub outcomes: HashMap<u32, Outcome>,
    /// Key of the last received message of a session.
    pub key: Option<Key>,
}

impl End {
    /// Returns the state of a peer; `None` without an entry.
    pub fn peer_state(&self, node: NodeId) -> Option<PeerState> {
        self.lnd.peers().find(|(n, _)| *n == node).map(|(_, s)| s)
    }

    pub fn new(node: u16, random: u64) -> Self {
        Self::with(node, random, &CAPACITY)
    }

    pub fn with(node: u16, random: u64, capacity: &Capacity) -> Self {
        let lnd = match Lnd::new(capacity, &LIMITS, random) {
            Ok(lnd) => lnd,
            Err(e) => match e {},
        };
        Self {
            node,
            lnd,
            payloads: HashMap::new(),
            exposed: HashMap::new(),
            addresses: HashMap::new(),
            free: (1..64).map(|i| i * 0x10_0000).collect(),
            buffers: HashMap::new(),
            events: VecDeque::new(),
            outcomes: HashMap::new(),
            key: None,
        }
    }

    /// Submits a message whose header contains its token.
    pub fn submit(
        &mut self,
        to: u16,
        token: u32,
        len: usize,
        remote: bool,
        until: u64,
        now: u64,
    ) -> bool {
        let data: Vec<u8> = (0..len)
            .map(|i| (i as u32 ^ token.wrapping_mul(31)) as u8)
            .collect();
        let mut source = None;
        if remote {
            let Some(nla) = self.free.pop() else {
                return false;
            };
            self.exposed.insert(nla, token);
            self.addresses.insert(token, nla);
            source = Some(Source {
                nla: Nla(nla),
                vpid: VPID,
            });
        }
        let message = OutgoingMessage {
            form: [Form::Nid4, Form::Nid16][token as usize % 2],
            header: [u64::from(token), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            len: len as u32,
            source,
        };
        self.payloads.insert(token, data);
        let taken = self
            .lnd
            .submit(NodeId(to), &message, Time(until), token, Time(now));
        if taken.is_err() {
            self.payloads.remove(&token);
            self.exposed.retain(|_, t| *t != token);
            self.free.extend(self.addresses.remove(&token));
        }
        taken.is_ok()
    }

    pub fn pump(&mut self, room: usize, now: u64) -> Vec<InFlight> {
        let mut out = Out {
            from: self.node,
            room,
            dead: false,
            payloads: &self.payloads,
            sent: Vec::new(),
        };
        while self.lnd.pump(&mut out, Time(now), 5) {}
        out.sent
    }

    /// Sends about `most` messages. Returns true if more messages are pending.
    pub fn pump_some(&mut self, most: usize, now: u64) -> (bool, Vec<InFlight>) {
        let mut out = Out {
            from: self.node,
            room: 1000,
            dead: false,
            payloads: &self.payloads,
            sent: Vec::new(),
        };
        let more = self.lnd.pump(&mut out, Time(now), most);
        (more, out.sent)
    }

    /// Calls `pump` with a port that has failed.
    pub fn pump_dead(&mut self, now: u64) {
        let mut out = Out {
            from: self.node,
            room: 1000,
            dead: true,
            payloads: &self.payloads,
            sent: Vec::new(),
        };
        while self.lnd.pump(&mut out, Time(now), 5) {}
    }

    pub fn deliver(&mut self, m: &InFlight, sent: u64, now: u64) {
        match m.message {
            Message::Request(r) => self.key = Some(r.key),
            Message::Fragment(f) => self.key = Some(f.key),
            Message::Notes(key, _) => self.key = Some(key),
            _ => {}
        }
        let part = self
            .lnd
            .receive_message(NodeId(m.from), &m.message, Time(sent), Time(now));
        if let Some(part) = part {
            assert_eq!(usize::from(part.len), m.data.len());
            let buffer = self
                .buffers
                .entry(part.of.index())
                .or_insert_with(|| vec![0; 8192]);
            buffer[usize::from(part.at)..][..m.data.len()].copy_from_slice(&m.data);
        }
    }

    pub fn collect(&mut self) {
        while let Some(event) = self.lnd.next_event() {
            self.events.push_back(event);
        }
    }

    /// Performs revocations and records outcomes. Returns all other events.
    pub fn simple(&mut self) -> Vec<Event<u32>> {
        let mut rest = Vec::new();
        loop {
            self.collect();
            let Some(event) = self.events.pop_front() else {
                return rest;
            };
            match event {
                Event::Revoke(ticket, token) => {
                    self.exposed.retain(|_, t| *t != token);
                    self.lnd.revoked(ticket);
                }
                Event::Sent(_, token, outcome) => {
                    assert!(self.exposed.values().all(|t| *t != token));
                    assert_eq!(self.outcomes.insert(token, outcome), None);
                }
                Event::Released(_, token) => {
                    assert!(self.outcomes.contains_key(&token));
                    let nla = self.addresses.remove(&token).expect("released twice");
                    self.free.push(nla);
                }
                Event::RevokeTarget(ticket) => self.lnd.get_target_revoked(ticket),
                Event::Received(ticket, _) => {
                    self.lnd.finished(ticket);
                    rest.push(event);
                }
                other => rest.push(other),
            }
        }
    }

    /// Accepts a message with all its payload for LNet. Returns its token, the action, and the
    /// payload if it is in the buffer.
    pub fn accept(&mut self, ticket: Ticket, now: u64) -> (u32, LnetAction, Option<Vec<u8>>) {
        let (_, header, len, inline) = self.lnd.offered(ticket).expect("no such offer");
        let action = self.lnd.receive(ticket, len, Time(now));
        self.lnd.parsed(ticket, true);
        let mut data = inline.then(Vec::new);
        if action == LnetAction::Copy {
            data = Some(self.buffers[&ticket.index()][..len as usize].to_vec());
            self.lnd.copied(ticket);
        }
        (header[0] as u32, action, data)
    }
}

/// Carries messages until no end sends any more.
pub fn settle(ends: &mut [End], now: u64) -> Vec<(u16, Event<u32>)> {
    let mut rest = Vec::new();
    loop {
        let mut moved = false;
        for i in 0..ends.len() {
            for m in ends[i].pump(1000, now) {
                moved = true;
                if let Some(to) = ends.iter_mut().find(|e| e.node == m.to) {
                    to.deliver(&m, now, now);
                }
            }
        }
        for end in ends.iter_mut() {
            let node = end.node;
            for event in end.simple() {
                moved = true;
                rest.push((node, event));
            }
            end.lnd.check().unwrap();
        }
        if !moved {
            return rest;
        }
    }
}

pub fn lost() -> Result<(), GetFailure> {
    Err(GetFailure::Lost)
}

pub fn pair() -> [End; 2] {
    [End::new(1, 11), End::new(2, 22)]
}

/// Returns the only message that is offered to LNet.
pub fn offer(events: &[(u16, Event<u32>)]) -> Ticket {
    let mut all = events.iter().filter_map(|(_, e)| match e {
        Event::Offer(ticket, _) => Some(*ticket),
        _ => None,
    });
    let ticket = all.next().expect("no offer");
    assert_eq!(all.next(), None);
    ticket
}

pub fn fetch(events: &[(u16, Event<u32>)]) -> Option<Ticket> {
    events.iter().find_map(|(_, e)| match e {
        Event::Fetch { ticket, .. } => Some(*ticket),
        _ => None,
    })
}

/// Returns two ends, and a message from node 1 whose payload node 2 must fetch.
pub fn fetching() -> ([End; 2], Ticket) {
    let mut ends = pair();
    assert!(ends[0].submit(2, 7, 5000, true, 1000, 0));
    let ticket = offer(&settle(&mut ends, 0));
    assert_eq!(ends[1].accept(ticket, 0), (7, LnetAction::Fetch, None));
    let events = settle(&mut ends, 0);
    assert_eq!(fetch(&events), Some(ticket));
    (ends, ticket)
}
