//! Port, buffers and common operations for tests of the rendezvous.

// No test file uses all items of this module.
#![allow(dead_code)]

use crate::heap::Heap;
use protocol::eth::rendezvous::{
    AnnouncePort, Announced, AnnouncementError, Buffer, FetchPort, Fetched, Fetches, Limits,
    Sender, Shared, Waiting,
};
use protocol::{Time, TransportError};
use std::cell::RefCell;
use std::collections::VecDeque;
use wire::eth::{last_size, match_key, Announcement, Completion, Side};
use wire::ids::NodeId;

#[derive(Debug, PartialEq, Eq)]
pub struct At(pub u64);

impl Buffer for At {
    fn address(&self) -> u64 {
        self.0
    }
}

pub const LIMITS: Limits = Limits {
    stall: 10,
    lag: 4,
    lag_hold: 100,
    timeout: 100,
    quarantine: 1000,
    patience: 20,
    flight: 16,
    stalled_peer: 2,
    fetches: 8,
    source: 6,
    lossy_source: 2,
    waiting: 12,
    slow_waiting: 4,
};
pub const LEN: u32 = 1000;
/// Time before which the port has executed all commands. The value covers every command of a test.
pub const NOW: Time = Time(u64::MAX);

/// Port that records GETs and announcements.
#[derive(Default)]
pub struct Port {
    pub answer: Option<TransportError>,
    pub sent: Vec<u64>,
    pub buffers: VecDeque<u64>,
    /// Maximum length of an available buffer.
    pub largest: Option<u32>,
    /// Lengths of the requested buffers.
    pub asked: Vec<u32>,
}

impl AnnouncePort for Port {
    fn announce(&mut self, _: NodeId, a: &Announcement) -> Result<(), TransportError> {
        self.sent.push(a.address);
        self.answer.map_or(Ok(()), Err)
    }
}

impl FetchPort for Port {
    type Buffer = At;

    fn reserve(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn buffer(&mut self, len: u32) -> Option<At> {
        self.asked.push(len);
        if len > self.largest.unwrap_or(u32::MAX) {
            return None;
        }
        self.buffers.pop_front().map(At)
    }

    fn get(&mut self, _: NodeId, a: &Announcement, _: u32, _: u64) -> Result<(), TransportError> {
        self.sent.push(a.address);
        self.answer.map_or(Ok(()), Err)
    }
}

pub struct Locked(pub RefCell<Fetches<Heap, At>>);

impl Shared<Fetches<Heap, At>> for Locked {
    fn with<R>(&self, f: impl FnOnce(&mut Fetches<Heap, At>) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

pub fn sender() -> Sender<Heap, At> {
    Sender::new(16, 8).unwrap()
}

pub fn receiver() -> (Waiting<Heap>, Locked) {
    let fetches = Fetches::new(8, 24).unwrap();
    (Waiting::new(16).unwrap(), Locked(RefCell::new(fetches)))
}

pub fn done(side: Side, address: u64, peer: u16, error: u8) -> Completion {
    Completion {
        side,
        key: match_key(address, LEN),
        last: last_size(LEN),
        peer: NodeId(peer),
        error,
    }
}

pub fn announce(s: &mut Sender<Heap, At>, at: u64, node: u16, address: u64) {
    let result = s.announce(
        &Time(at),
        &mut Port::default(),
        NodeId(node),
        At(address),
        LEN,
        0,
    );
    assert_eq!(result, Ok(()));
}

pub fn age(s: &mut Sender<Heap, At>, at: u64) -> (u64, usize, Vec<u64>) {
    let (mut stalled, mut freed) = (0, Vec::new());
    let count = |_: &mut At| {
        stalled += 1;
        true
    };
    let (lost, all) = s.age(&Time(at), &LIMITS, NOW, count, |b| freed.push(b.0));
    assert!(all);
    s.check().unwrap();
    (lost.map_or(0, |l| l.1), stalled, freed)
}

pub fn dropped(s: &mut Sender<Heap, At>, at: u64, node: u16, address: u64) -> bool {
    let found = s.dropped(&Time(at), NodeId(node), address, |_| {});
    s.check().unwrap();
    found
}

pub fn push(w: &mut Waiting<Heap>, at: u64, node: u16, address: u64, discard: bool) {
    let a = Announcement {
        address,
        len: LEN.into(),
    };
    let announced = Announced {
        node: NodeId(node),
        announcement: a,
        len: LEN,
        discard,
        ticket: None,
    };
    w.age_bound().emptied(Time(at));
    assert_eq!(w.push(&Time(at), announced, &LIMITS), Ok(()));
    w.check(&LIMITS).unwrap();
}

pub fn pump(
    w: &mut Waiting<Heap>,
    f: &Locked,
    at: u64,
    port: &mut Port,
) -> Vec<(u16, AnnouncementError)> {
    let mut refused = Vec::new();
    w.pump(f, &Time(at), port, &LIMITS, |a, why| {
        refused.push((a.node.0, why));
    });
    f.0.borrow_mut().check().unwrap();
    w.check(&LIMITS).unwrap();
    refused
}

/// Makes `node` a source that has answered a GET.
pub fn acquaint(f: &Locked, node: u16) {
    let (mut w, mut port) = (Waiting::new(1).unwrap(), Port::default());
    let address = (1 << 40) | (u64::from(node) << 32);
    port.buffers.push_back(address);
    push(&mut w, 0, node, 1, false);
    pump(&mut w, f, 0, &mut port);
    // One GET remains open, because a source without GETs is forgotten.
    port.buffers.push_back(address + 0x1_0000);
    push(&mut w, 0, node, 1, false);
    pump(&mut w, f, 0, &mut port);
    let ended = f.with(|f| f.notified(&Time(0), &done(Side::Received, address, node, 0)));
    assert!(matches!(ended, Fetched::Frame(..)), "{ended:?}");
}

pub fn plenty() -> Port {
    Port {
        buffers: (1..100).map(|i| i << 20).collect(),
        ..Port::default()
    }
}

/// Returns a sender with the sizes of the driver, and a quarantine of twenty time-outs.
pub fn large_sender() -> (Sender<Heap, At>, Limits) {
    let limits = Limits {
        flight: 256,
        stalled_peer: 16,
        quarantine: 2000,
        ..LIMITS
    };
    (Sender::new(512, 512).unwrap(), limits)
}
