//! Two ends of a stream connection. The test carries their messages and GETs.

#![allow(dead_code)]

use protocol::ds::{Geometry, Get, Limits, Port, Received, SourceId, Span, Stream};
use protocol::transfer::{Failure, Quiet};
use protocol::{Time, TransportError};
use std::collections::VecDeque;
use wire::ds::{ConnId, Message, Seq};
use wire::ids::Nla;

pub const RING: u32 = 4096;
pub const LIMITS: Limits = Limits {
    threshold: 500,
    chunk: 1000,
    tries: 3,
    get: 100,
    fresh: 50,
    hold: 300,
    ask: 20,
    ask_most: 160,
    give_up: 1_000,
    orphan: 2_000,
    linger: 100,
    cork: 10,
};
pub const FIRST: [Seq; 2] = [Seq(u32::MAX - 700), Seq(77)];

/// Port and receive ring of one end.
#[derive(Default)]
pub struct Out {
    pub messages: VecDeque<(Message, Vec<u8>)>,
    pub gets: VecDeque<(Get, Time, Time)>,
    pub ring: Vec<u8>,
    /// Number of further messages (`room`) and GETs (`get_room`) that the port accepts.
    pub room: usize,
    pub get_room: usize,
}

impl Port for Out {
    fn send(&mut self, message: &Message, data: Span) -> Result<(), TransportError> {
        if self.messages.len() >= self.room {
            return Err(TransportError::Later);
        }
        let parts = data.parts(RING).into_iter();
        let bytes = parts.flat_map(|(at, len)| &self.ring[at as usize..(at + len) as usize]);
        let bytes: Vec<u8> = bytes.copied().collect();
        self.messages.push_back((*message, bytes));
        Ok(())
    }

    fn get(&mut self, get: &Get, post_by: Time, deadline: Time) -> Result<(), TransportError> {
        if self.gets.len() >= self.get_room {
            return Err(TransportError::Later);
        }
        self.gets.push_back((*get, post_by, deadline));
        Ok(())
    }
}

pub struct Side {
    pub stream: Stream,
    pub out: Out,
    pub ring: Vec<u8>,
    pub limits: Limits,
    /// Memory of sources by NLA (`sources`), and of a reader (`sink`).
    pub sources: Vec<(u64, Vec<u8>)>,
    pub sink: Vec<u8>,
}

pub struct Two {
    pub sides: [Side; 2],
    pub now: u64,
}

impl Two {
    pub fn new() -> Self {
        let side = |i: usize| {
            let geometry = Geometry {
                send_isn: FIRST[i],
                receive_isn: FIRST[1 - i],
                send_ring: RING,
                receive_ring: RING,
                peer_ring: RING,
                peer_send: RING,
                sources: true,
            };
            let [own, peer] = [i, 1 - i].map(|i| ConnId::new(i as u32, 5));
            Side {
                stream: Stream::new(own, peer, &geometry, Time(0)),
                out: Out {
                    ring: vec![0; RING as usize],
                    room: 10_000,
                    get_room: 10_000,
                    ..Out::default()
                },
                ring: vec![0; RING as usize],
                limits: LIMITS,
                sources: Vec::new(),
                sink: Vec::new(),
            }
        };
        Self {
            sides: [side(0), side(1)],
            now: 0,
        }
    }

    pub fn write(&mut self, i: usize, data: &[u8]) -> usize {
        let s = &mut self.sides[i];
        let room = s.stream.sending().room();
        let len = room.len.min(data.len() as u32);
        let mut remainder = data;
        for (at, len) in (Span { len, ..room }).parts(RING) {
            let (part, behind) = remainder.split_at(len as usize);
            s.out.ring[at as usize..][..part.len()].copy_from_slice(part);
            remainder = behind;
        }
        s.stream.commit(len, false, Time(self.now));
        self.pump(i);
        len as usize
    }

    pub fn read(&mut self, i: usize, most: u32) -> Vec<u8> {
        let s = &mut self.sides[i];
        let all = s.stream.receiving().readable();
        let span = Span {
            len: all.len.min(most),
            ..all
        };
        let parts = span.parts(RING).into_iter();
        let data = parts.flat_map(|(at, len)| &s.ring[at as usize..(at + len) as usize]);
        let data = data.copied().collect();
        let gets = s.out.gets.len();
        let news = s.stream.consume(span.len, &s.limits);
        self.pump(i);
        // `consume` may return false only if `pump` has no work.
        let gets = gets == self.sides[i].out.gets.len();
        assert!(news || gets, "{:?}", self.sides[i].stream);
        data
    }

    pub fn pump(&mut self, i: usize) {
        let s = &mut self.sides[i];
        let left = |out: &Out| (out.messages.len(), out.gets.len());
        let (idle, before) = (s.stream.is_idle(&s.limits, Time(self.now)), left(&s.out));
        let mut result = Ok(true);
        while result == Ok(true) {
            result = s.stream.pump(&mut s.out, &s.limits, Time(self.now), 3);
        }
        s.stream.check().unwrap();
        // `is_idle` may return true only if `pump` has no work.
        assert!(!idle || left(&s.out) == before, "{:?}", s.stream);
        // No action is due before the next deadline.
        let deadline = s.stream.deadline(&s.limits);
        assert!(
            deadline.is_none_or(|at| at.0 > self.now),
            "{deadline:?} at {}: {:?}",
            self.now,
            s.stream
        );
    }

    /// Delivers the first message of a side to the other side, or drops the message.
    pub fn carry(&mut self, from: usize, lost: bool) -> Option<Message> {
        let (message, data) = self.sides[from].out.messages.pop_front()?;
        if !lost {
            self.deliver(1 - from, &message, &data);
        }
        Some(message)
    }

    pub fn deliver(&mut self, to: usize, message: &Message, data: &[u8]) {
        let s = &mut self.sides[to];
        let noted = s.stream.deadline(&s.limits);
        if let Received::Data { skip, to } =
            s.stream
                .receive(message, Time(self.now), &LIMITS, Time(self.now))
        {
            let mut remainder = &data[skip.into()..];
            for (at, len) in to.parts(RING) {
                let (part, behind) = remainder.split_at(len as usize);
                s.ring[at as usize..][..part.len()].copy_from_slice(part);
                remainder = behind;
            }
            assert!(remainder.is_empty());
        }
        let idle = self.sides[to].stream.is_idle(&LIMITS, Time(self.now));
        self.pump(to);
        let s = &self.sides[to];
        if let (true, Some(at)) = (idle, s.stream.deadline(&s.limits)) {
            // The deadline that was known before must not be later than the current deadline.
            assert!(noted.is_some_and(|noted| noted <= at), "{:?}", s.stream);
        }
    }

    /// Ends the first GET of a side with the given outcome.
    pub fn fetch(&mut self, to: usize, outcome: Result<(), Failure>) -> Get {
        let (get, ..) = self.sides[to]
            .out
            .gets
            .pop_front()
            .expect("no GET is queued");
        if outcome.is_ok() {
            let mut remainder = &self.sent(1 - to, &get)[..];
            if let Some(at) = get.sink {
                self.sides[to].sink[at as usize..][..remainder.len()].copy_from_slice(remainder);
                remainder = &[];
            }
            let parts = get.to.parts(RING).into_iter();
            for (at, len) in parts.filter(|_| get.sink.is_none()) {
                let (part, behind) = remainder.split_at(len as usize);
                self.sides[to].ring[at as usize..][..part.len()].copy_from_slice(part);
                remainder = behind;
            }
        }
        let now = Time(self.now);
        let s = &mut self.sides[to];
        let quiet = Some(Quiet::Settled);
        s.stream
            .get_ended(get.id, Some(outcome), quiet, &LIMITS, now);
        self.pump(to);
        get
    }

    /// Returns the bytes that a GET reads.
    pub fn sent(&self, from: usize, get: &Get) -> Vec<u8> {
        let side = &self.sides[from];
        if let Some(nla) = get.source {
            let found = |s: &&(u64, Vec<u8>)| s.0 <= nla.0 && nla.0 < s.0 + s.1.len() as u64;
            let (base, bytes) = side.sources.iter().find(found).expect("no such source");
            return bytes[(nla.0 - base) as usize..][..get.from.len as usize].to_vec();
        }
        let parts = get.from.parts(RING).into_iter();
        let bytes = parts.flat_map(|(at, len)| &side.out.ring[at as usize..(at + len) as usize]);
        bytes.copied().collect()
    }

    /// Writes a source to the stream.
    pub fn lend(&mut self, i: usize, data: &[u8]) -> Option<SourceId> {
        let s = &mut self.sides[i];
        let nla = 0x1000_0000 * (1 + s.sources.len() as u64);
        let id = s.stream.commit_source(data.len() as u32, Nla(nla))?;
        s.sources.push((nla, data.to_vec()));
        self.pump(i);
        Some(id)
    }

    /// Delivers messages and finishes GETs until none are left.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            for i in 0..2 {
                while self.carry(i, false).is_some() {
                    moved = true;
                }
                while !self.sides[i].out.gets.is_empty() {
                    self.fetch(i, Ok(()));
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    pub fn wait(&mut self, ticks: u64) {
        self.now += ticks;
        for i in 0..2 {
            self.pump(i);
        }
    }

    /// Advances the time to the next deadline of a side.
    pub fn wait_for(&mut self, i: usize) {
        let at = self.sides[i]
            .stream
            .deadline(&LIMITS)
            .expect("no deadline is set");
        self.now = self.now.max(at.0);
        self.pump(i);
    }
}

pub fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}
