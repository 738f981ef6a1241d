//! Tests of stream data outside of the rings: sources of the sender, and memory of the reader.

mod ds_two;

use ds_two::*;
use protocol::ds::*;
use protocol::transfer::{Failure, Quiet};
use protocol::Time;
use std::collections::HashMap;
use wire::ds::{Ack, ConnId, Head, Message};
use wire::ids::Nla;

/// Contents of memory that was returned to its owner.
const POISON: u8 = 0xdb;

fn state(t: &Two, id: SourceId) -> SourceState {
    t.sides[0]
        .stream
        .sending()
        .source(id)
        .expect("no such source")
}

#[test]
fn a_source_is_fetched_as_far_as_there_is_room() {
    let mut t = Two::new();
    let all = data(10_000);
    t.write(0, b"before");
    let id = t.lend(0, &all).unwrap();
    // The source uses all sequence numbers of the send ring, so the ring accepts no bytes.
    assert_eq!(t.sides[0].stream.sending().room().len, 0);
    t.settle();
    assert_eq!(t.sides[1].stream.receiving().available(), RING);
    assert_eq!(t.sides[1].stream.receiving().pending(), 10_006 - RING);
    assert!(!state(&t, id).finished);
    let mut got = Vec::new();
    while got.len() < 10_006 {
        got.extend(t.read(1, 500));
        t.settle();
    }
    assert_eq!(got, [b"before".to_vec(), all].concat());
    // The complete source is acknowledged at once.
    let whole = SourceState {
        acknowledged: 10_000,
        finished: true,
        withdrawn: false,
    };
    assert_eq!(state(&t, id), whole);
    t.sides[0].stream.disown_source(id);
    assert_eq!(t.sides[0].stream.sending().source(id), None);
    assert_eq!(t.sides[0].stream.sending().room().len, RING);
    assert_eq!(t.sides[1].stream.counters().source_received, 10_000);
    t.write(0, b"behind");
    t.settle();
    assert_eq!(t.read(1, 100), b"behind");
}

#[test]
fn a_reader_takes_a_source_to_its_memory() {
    let mut t = Two::new();
    t.sides[1].stream.hold_sources(0);
    t.write(0, b"before");
    let all = data(9_000);
    let id = t.lend(0, &all).unwrap();
    t.settle();
    assert!(!t.sides[1].stream.receiving().can_sink());
    assert_eq!(t.sides[1].stream.offer_sink(100), None);
    assert_eq!(t.read(1, 100), b"before");
    assert!(t.sides[1].stream.receiving().can_sink());
    t.sides[1].sink = vec![0; 20_000];
    assert_eq!(t.sides[1].stream.offer_sink(20_000), Some(9_000));
    t.pump(1);
    t.fetch(1, Ok(()));
    assert_eq!(t.sides[1].stream.receiving().sunk(), Some((1_000, false)));
    t.settle();
    assert_eq!(t.sides[1].stream.receiving().sunk(), Some((9_000, true)));
    assert_eq!(t.sides[1].stream.withdraw_sink(), 9_000);
    assert_eq!(t.sides[1].sink[..9_000], all);
    assert!(state(&t, id).finished);
    t.sides[1].stream.release_sources(None);
    t.write(0, b"behind");
    t.settle();
    assert_eq!(t.read(1, 100), b"behind");
    let c = t.sides[1].stream.counters();
    assert_eq!((c.sunk, c.source_received), (9_000, 9_000));
}

#[test]
fn a_readers_memory_that_is_withdrawn_is_not_used_any_more() {
    let mut t = Two::new();
    t.sides[1].stream.hold_sources(0);
    let all = data(9_000);
    t.lend(0, &all).unwrap();
    t.carry(0, false);
    t.sides[1].sink = vec![0; 9_000];
    t.sides[1].stream.offer_sink(9_000);
    t.pump(1);
    t.fetch(1, Ok(()));
    // The third GET is finished before the second.
    let second = t.sides[1].out.gets.pop_front().unwrap();
    t.fetch(1, Ok(()));
    t.sides[1].out.gets.push_front(second);
    assert_eq!(t.sides[1].stream.withdraw_sink(), 1_000);
    t.sides[1].stream.release_sources(None);
    // The GETs in flight finish now, and their data are discarded.
    while !t.sides[1].out.gets.is_empty() {
        let (get, ..) = t.sides[1].out.gets.pop_front().unwrap();
        assert!(get.sink.is_some());
        let quiet = Some(Quiet::Settled);
        let s = &mut t.sides[1].stream;
        s.get_ended(get.id, Some(Ok(())), quiet, &LIMITS, Time(0));
    }
    t.sides[1].sink.fill(POISON);
    let mut got = all[..1_000].to_vec();
    t.pump(1);
    assert!(t.sides[1].out.gets.iter().all(|g| g.0.sink.is_none()));
    while got.len() < 9_000 {
        t.settle();
        got.extend(t.read(1, 700));
    }
    assert_eq!(got, all);
    assert!(t.sides[1].stream.is_quiet());
}

#[test]
fn who_may_take_a_source_is_waited_for_a_short_time() {
    let mut t = Two::new();
    t.sides[1].stream.hold_sources(0);
    t.sides[1].stream.release_sources(Some(Time(5)));
    t.lend(0, &data(2_000)).unwrap();
    t.settle();
    assert_eq!(t.sides[1].stream.receiving().available(), 0);
    assert_eq!(t.sides[1].stream.deadline(&LIMITS), Some(Time(5)));
    t.wait_for(1);
    t.settle();
    assert_eq!(t.read(1, 9_000), data(2_000));
}

#[test]
fn a_source_that_is_withdrawn_ends_where_the_peer_says() {
    let mut t = Two::new();
    let all = data(10_000);
    let id = t.lend(0, &all).unwrap();
    t.settle();
    assert!(t.sides[0].stream.withdraw_source(id, true));
    t.pump(0);
    assert!(matches!(t.carry(0, false), Some(Message::RmaCut { .. })));
    assert!(!state(&t, id).finished);
    t.settle();
    let cut = SourceState {
        acknowledged: RING,
        finished: true,
        withdrawn: true,
    };
    assert_eq!(state(&t, id), cut);
    t.sides[0].stream.disown_source(id);
    t.sides[0].sources[0].1.fill(POISON);
    // The following data arrive after the reader has passed the sequence numbers without bytes.
    let mut got = Vec::new();
    while got.len() < RING as usize + 5 {
        if t.sides[0].stream.sending().room().len >= 5 && got.len() == RING as usize {
            t.write(0, b"after");
        }
        t.settle();
        got.extend(t.read(1, 900));
        t.settle();
        t.wait(LIMITS.ask);
        assert!(t.now < 10_000, "{:?}", t.sides[1].stream);
    }
    assert_eq!(got[..RING as usize], all[..RING as usize]);
    assert_eq!(got[RING as usize..], *b"after");
}

#[test]
fn a_withdrawal_does_not_wait_for_a_reader_who_has_all() {
    let mut t = Two::new();
    t.sides[1].stream.hold_sources(0);
    let all = data(9_000);
    let id = t.lend(0, &all).unwrap();
    t.settle();
    t.sides[1].sink = vec![0; 4_000];
    assert_eq!(t.sides[1].stream.offer_sink(4_000), Some(4_000));
    t.pump(1);
    t.settle();
    assert_eq!(t.sides[1].stream.receiving().sunk(), Some((4_000, true)));
    assert!(t.sides[0].stream.withdraw_source(id, true));
    t.pump(0);
    t.settle();
    // The reader has not noticed yet that its memory is filled.
    let cut = SourceState {
        acknowledged: 4_000,
        finished: true,
        withdrawn: true,
    };
    assert_eq!(state(&t, id), cut);
    assert_eq!(t.sides[1].stream.withdraw_sink(), 4_000);
    assert_eq!(t.sides[1].sink, all[..4_000]);
}

#[test]
fn a_withdrawal_does_not_wait_for_a_reader_who_took_his_memory_back() {
    let mut t = Two::new();
    t.sides[1].stream.hold_sources(0);
    let all = data(20_000);
    let id = t.lend(0, &all).unwrap();
    t.settle();
    t.sides[1].sink = vec![0; 20_000];
    assert_eq!(t.sides[1].stream.offer_sink(20_000), Some(20_000));
    t.pump(1);
    t.fetch(1, Ok(()));
    let had = t.sides[1].stream.withdraw_sink();
    t.sides[1].stream.release_sources(None);
    t.settle();
    // The remainder does not fit into the ring, because the program does not read.
    assert!(!state(&t, id).finished);
    assert!(t.sides[0].stream.withdraw_source(id, true));
    t.pump(0);
    t.settle();
    let cut = state(&t, id);
    assert!(cut.finished && cut.acknowledged > had, "{cut:?}");
    t.sides[0].stream.disown_source(id);
    t.sides[0].sources[0].1.fill(POISON);
    let remainder = had as usize..cut.acknowledged as usize;
    assert_eq!(t.read(1, 9_000), all[remainder]);
    for _ in 0..50 {
        t.settle();
        t.wait(LIMITS.ask);
    }
    t.write(0, b"behind");
    t.settle();
    assert_eq!(t.read(1, 100), b"behind");
}

#[test]
fn who_copies_to_the_ring_keeps_his_place_when_what_is_before_it_is_withdrawn() {
    let mut t = Two::new();
    t.sides[0].out.room = 0;
    let id = t.lend(0, &data(100)).unwrap();
    let room = t.sides[0].stream.sending().room();
    assert!(t.sides[0].stream.withdraw_source(id, false));
    assert_eq!(t.sides[0].stream.sending().room().at, room.at);
    assert!(state(&t, id).finished);
    t.sides[0].stream.disown_source(id);
    t.sides[0].sources[0].1.fill(POISON);
    t.write(0, b"behind");
    t.sides[0].out.room = 100;
    t.pump(0);
    t.settle();
    assert_eq!(t.read(1, 100), b"behind");
}

#[test]
fn no_more_is_lent_than_the_reader_could_pass_if_it_is_withdrawn() {
    let mut t = Two::new();
    // A waiting reader never provides memory.
    t.sides[1].stream.hold_sources(0);
    let lend = |t: &mut Two| {
        assert_eq!(t.write(0, b"x"), 1);
        let id = t.lend(0, &data(100))?;
        t.settle();
        assert!(t.sides[0].stream.withdraw_source(id, true));
        t.pump(0);
        t.settle();
        assert!(state(t, id).finished && state(t, id).acknowledged == 0);
        t.sides[0].stream.disown_source(id);
        t.wait(LIMITS.ask);
        t.settle();
        Some(())
    };
    let lent = (0..12).filter_map(|_| lend(&mut t)).count();
    assert_eq!(lent, 8);
    let ends = t.sides.each_ref().map(|side| side.stream.end());
    assert_eq!(ends, [None, None]);
    t.settle();
    let mut got = Vec::new();
    while got.len() < 12 {
        let some = t.read(1, 5);
        assert!(!some.is_empty());
        got.extend(some);
    }
    assert_eq!(got, [b'x'; 12]);
    // The sender learns the read position from the next message of the peer.
    t.write(1, b"y");
    t.settle();
    assert!(lend(&mut t).is_some());
}

#[test]
fn where_a_get_that_failed_may_still_write_nothing_is_left_out() {
    let mut t = Two::new();
    // The source is larger than the ring, so some of its bytes are not fetched.
    let all = data(6_000);
    t.sides[1].out.get_room = 2;
    let id = t.lend(0, &all).unwrap();
    t.carry(0, false);
    assert_eq!(t.sides[1].out.gets.len(), 2);
    for _ in 0..2 {
        let (get, ..) = t.sides[1].out.gets.pop_front().unwrap();
        let s = &mut t.sides[1].stream;
        // The GET is not quiet, so its data may arrive late.
        s.get_ended(get.id, Some(Err(Failure::TimedOut)), None, &LIMITS, Time(0));
    }
    assert!(t.sides[0].stream.withdraw_source(id, true));
    t.pump(0);
    t.sides[1].out.get_room = 10_000;
    let wait = |t: &mut Two| {
        for _ in 0..50 {
            t.settle();
            t.wait(5);
        }
    };
    wait(&mut t);
    let state = state(&t, id);
    assert_eq!((state.acknowledged, state.finished), (2_000, true));
    t.sides[0].stream.disown_source(id);
    assert_eq!(t.read(1, RING), all[..2_000]);
    wait(&mut t);
    t.write(0, b"behind");
    wait(&mut t);
    assert_eq!(t.read(1, RING), b"behind");
}

#[test]
fn a_source_has_a_name_of_its_own() {
    let mut t = Two::new();
    t.sides[0].out.room = 0;
    let first = t.lend(0, &data(1_000)).unwrap();
    assert!(t.sides[0].stream.withdraw_source(first, true));
    // The second source begins at the sequence number of the first source.
    let second = t.lend(0, &data(1_000)).unwrap();
    assert_ne!(first, second);
    assert_eq!(t.sides[0].stream.sending().source(first), None);
    // Calls with the ID of the first source have no effect on the second source.
    t.sides[0].stream.withdraw_source(first, true);
    t.sides[0].stream.disown_source(first);
    assert!(!state(&t, second).withdrawn);
    t.sides[0].out.room = 10_000;
    t.pump(0);
    t.settle();
    assert_eq!(t.read(1, RING), data(1_000));
    assert!(state(&t, second).finished);
}

#[test]
fn an_answer_to_a_withdrawal_is_not_forgotten_for_another_one() {
    let mut t = Two::new();
    t.sides[1].stream.hold_sources(0);
    let first = t.lend(0, &data(1_000)).unwrap();
    t.carry(0, false);
    // This source is withdrawn before it is announced, and is not the last item of the stream.
    t.sides[0].out.room = 0;
    let second = t.lend(0, &data(600)).unwrap();
    t.write(0, b"behind");
    assert!(t.sides[0].stream.withdraw_source(second, true));
    t.sides[0].out.room = 10_000;
    t.pump(0);
    while t.carry(0, false).is_some() {}
    // The port is full, so the answer cannot be sent.
    t.sides[1].out.room = 0;
    assert!(t.sides[0].stream.withdraw_source(first, true));
    t.pump(0);
    let cut = |(m, _): &(Message, Vec<u8>)| matches!(m, Message::RmaCut { .. });
    let sent = t.sides[0].out.messages.iter().filter(|m| cut(m)).count();
    assert_eq!(
        sent, 1,
        "the second withdrawal was sent before the answer to the first"
    );
    while t.carry(0, false).is_some() {}
    let head = Head {
        conn: ConnId::new(1, 5),
        seq: FIRST[0].plus(1_000),
        marks: 0,
    };
    let ack = Ack {
        ack: FIRST[1],
        edge: FIRST[1].plus(RING),
    };
    // The receiver ignores a second withdrawal that arrives too early.
    let early = Message::RmaCut {
        head,
        ack,
        end: FIRST[0].plus(1_600),
        len: 600,
    };
    t.deliver(1, &early, &[]);
    t.sides[1].out.room = 10_000;
    t.sides[1].stream.release_sources(None);
    t.pump(1);
    for _ in 0..50 {
        t.settle();
        t.wait(5);
    }
    let nothing = SourceState {
        acknowledged: 0,
        finished: true,
        withdrawn: true,
    };
    assert_eq!((state(&t, first), state(&t, second)), (nothing, nothing));
    assert_eq!(t.read(1, RING), b"behind");
}

#[test]
fn memory_of_a_program_that_is_gone_is_not_lent_for_long() {
    let mut t = Two::new();
    t.lend(0, &data(16_000)).unwrap();
    t.sides[0].stream.close(Time(0));
    t.pump(0);
    // The peer reads slowly but steadily.
    while t.now < 10_000 && t.sides[0].stream.end().is_none() {
        for ticks in [190, 5, 5] {
            t.wait(ticks);
            t.settle();
        }
        t.read(1, 160);
        t.settle();
    }
    assert_eq!(t.sides[0].stream.end(), Some(End::OrphanTimeout));
    // The limit is 8,000 ticks after the close, regardless of acknowledgements.
    assert!((8_000..8_400).contains(&t.now), "{}", t.now);
}

#[test]
fn a_source_nobody_was_told_of_was_never_there() {
    let mut t = Two::new();
    t.sides[0].out.room = 0;
    let id = t.lend(0, &data(100_000)).unwrap();
    assert!(t.sides[0].stream.withdraw_source(id, true));
    assert_eq!(t.sides[0].stream.sending().source(id), None);
    assert_eq!(t.sides[0].stream.sending().unacknowledged(), 0);
    // If data follow the source, its sequence numbers are not used again.
    let id = t.lend(0, &data(100)).unwrap();
    t.write(0, b"behind");
    assert!(t.sides[0].stream.withdraw_source(id, true));
    assert!(state(&t, id).finished);
    assert_eq!(state(&t, id).acknowledged, 0);
    t.sides[0].stream.disown_source(id);
    t.sides[0].sources[1].1.fill(POISON);
    t.sides[0].out.room = 100;
    t.pump(0);
    t.settle();
    assert_eq!(t.read(1, 100), b"behind");
}

#[test]
fn the_end_comes_behind_a_source() {
    let mut t = Two::new();
    let all = data(10_000);
    t.lend(0, &all).unwrap();
    t.sides[0].stream.shut();
    t.pump(0);
    t.settle();
    assert_eq!(t.sides[1].stream.counters().gaps, 0);
    let mut got = Vec::new();
    while !t.sides[1].stream.ready().peer_finished {
        got.extend(t.read(1, 1_000));
        t.settle();
    }
    got.extend(t.read(1, RING));
    assert_eq!(got, all);
    assert!(t.sides[1].stream.receiving().is_finished());
}

#[test]
fn who_does_not_take_sources_ignores_them() {
    let geometry = Geometry {
        send_isn: FIRST[1],
        receive_isn: FIRST[0],
        send_ring: RING,
        receive_ring: RING,
        peer_ring: RING,
        peer_send: RING,
        sources: false,
    };
    let mut stream = Stream::new(ConnId::new(1, 5), ConnId::new(0, 5), &geometry, Time(0));
    assert_eq!(stream.sending().source_room(), 0);
    assert_eq!(stream.commit_source(10, Nla(0)), None);
    let head = Head {
        conn: ConnId::new(1, 5),
        seq: FIRST[0],
        marks: 0,
    };
    let ack = Ack {
        ack: FIRST[1],
        edge: FIRST[1].plus(RING),
    };
    for message in [
        Message::RmaSource {
            head,
            ack,
            nla: Nla(0x1000),
            len: 10,
            push: true,
        },
        Message::RmaCut {
            head,
            ack,
            end: FIRST[0].plus(10),
            len: 10,
        },
    ] {
        stream.receive(&message, Time(0), &LIMITS, Time(0));
    }
    assert_eq!(stream.receiving().pending(), 0);
    assert_eq!((stream.counters().foreign, stream.end()), (2, None));
}

#[test]
fn a_source_behind_the_room_breaks_the_rules() {
    let mut t = Two::new();
    t.sides[1].out.get_room = 0;
    t.write(0, &data(RING as usize));
    while t.carry(0, false).is_some() {}
    let head = Head {
        conn: ConnId::new(1, 5),
        seq: FIRST[0].plus(RING),
        marks: 0,
    };
    let ack = Ack {
        ack: FIRST[1],
        edge: FIRST[1].plus(RING),
    };
    let message = Message::RmaSource {
        head,
        ack,
        nla: Nla(0x1000),
        len: 10,
        push: true,
    };
    t.sides[1]
        .stream
        .receive(&message, Time(0), &LIMITS, Time(0));
    let end = t.sides[1].stream.end();
    assert_eq!(end, Some(End::Broken(Violation::Room)));
}

/// Pseudo-random number generator. Equal seeds give equal walks.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = 1 + self.below(most);
        (0..len).map(|_| self.below(251) as u8).collect()
    }
}

/// Item written to the stream: bytes, or a source whose final length is unknown until it is
/// finished.
enum Piece {
    Bytes(Vec<u8>),
    Lent(SourceId, usize, Vec<u8>),
}

/// Random walk of a reader and a writer. They use rings, sources and a reader's memory, while
/// messages and GETs are lost, duplicated and delayed.
struct Walk {
    t: Two,
    random: Random,
    pieces: Vec<Piece>,
    got: Vec<u8>,
    /// Delivered messages, some of which are delivered again.
    old: Vec<(Message, Vec<u8>)>,
    /// For each GET, the reader's memory to which it writes (`sinks`), and the current memory of
    /// the reader (`lent`).
    sinks: HashMap<u16, u32>,
    lent: u32,
    lossy: bool,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let lossy = random.below(2) == 0;
        Self {
            t: Two::new(),
            random,
            pieces: Vec::new(),
            got: Vec::new(),
            old: Vec::new(),
            sinks: HashMap::new(),
            lent: 0,
            lossy,
        }
    }

    fn write(&mut self) {
        match self.random.below(3) {
            0 => {
                let bytes = self.random.bytes(9_000);
                if let Some(id) = self.t.lend(0, &bytes) {
                    let slot = self.t.sides[0].sources.len() - 1;
                    self.pieces.push(Piece::Lent(id, slot, bytes));
                }
            }
            _ => {
                let most = [30, 2_000][self.random.below(2) as usize];
                let mut bytes = self.random.bytes(most);
                let n = self.t.write(0, &bytes);
                bytes.truncate(n);
                self.pieces.push(Piece::Bytes(bytes));
            }
        }
    }

    /// Replaces finished sources by their bytes, and overwrites their memory.
    fn settle(&mut self, withdraw: bool) {
        for piece in &mut self.pieces {
            let Piece::Lent(id, slot, bytes) = piece else {
                continue;
            };
            let s = &mut self.t.sides[0];
            if withdraw
                && s.stream.withdraw_source(*id, true)
                && s.stream.sending().source(*id).is_none()
            {
                *piece = Piece::Bytes(Vec::new());
                continue;
            }
            let state = s.stream.sending().source(*id).expect("no such source");
            if state.finished {
                bytes.truncate(state.acknowledged as usize);
                s.stream.disown_source(*id);
                s.sources[*slot].1.fill(POISON);
                *piece = Piece::Bytes(std::mem::take(bytes));
            }
        }
        self.t.pump(0);
    }

    fn read(&mut self) {
        let receiving = self.t.sides[1].stream.receiving();
        let sunk = receiving.sunk();
        match (sunk, self.random.below(4)) {
            (Some((_, whole)), n) if whole || n == 0 => {
                self.note();
                let n = self.t.sides[1].stream.withdraw_sink() as usize;
                self.got.extend(&self.t.sides[1].sink[..n]);
                self.t.sides[1].sink.fill(POISON);
                self.lent += 1;
                self.t.sides[1].stream.release_sources(None);
                self.t.pump(1);
            }
            (None, 0) => {
                let most = self.random.below(300) as u32;
                self.t.sides[1].stream.hold_sources(most);
                self.t.pump(1);
            }
            (None, 1) => {
                let len = 1 + self.random.below(9_000) as u32;
                self.t.sides[1].sink = vec![POISON; len as usize];
                self.t.sides[1].stream.offer_sink(len);
                self.t.pump(1);
            }
            (None, 2) => {
                self.t.sides[1].stream.release_sources(None);
                self.t.pump(1);
            }
            _ => {
                let most = self.random.below(3_000) as u32;
                // Position behind the first readable bytes, determined before they are read.
                let receiving = self.t.sides[1].stream.receiving();
                let all = receiving.available();
                let skip = self.random.below(u64::from(all) + 1) as u32;
                let behind = receiving.readable_behind(skip);
                assert!(behind.len > 0 || skip == all, "{skip} of {all}");
                self.got.extend(self.t.read(1, most));
            }
        }
    }

    fn carry(&mut self) {
        let from = self.random.below(2) as usize;
        let lost = self.lossy && self.random.below(8) == 0;
        let Some((message, bytes)) = self.t.sides[from].out.messages.pop_front() else {
            return;
        };
        if from == 0 && self.random.below(6) == 0 {
            self.old.push((message, bytes.clone()));
        }
        if !lost {
            self.t.deliver(1 - from, &message, &bytes);
        }
        if self.random.below(10) == 0 && !self.old.is_empty() {
            let i = self.random.below(self.old.len() as u64) as usize;
            let (message, bytes) = self.old.swap_remove(i);
            self.t.deliver(1, &message, &bytes);
        }
    }

    /// Assigns GETs that were posted since the last call to the current memory of the reader.
    fn note(&mut self) {
        for (get, ..) in &self.t.sides[1].out.gets {
            if get.sink.is_some() {
                self.sinks.entry(get.id).or_insert(self.lent);
            }
        }
    }

    fn fetch(&mut self) {
        self.note();
        let gets = self.t.sides[1].out.gets.len() as u64;
        if gets == 0 {
            return;
        }
        let i = self.random.below(gets) as usize;
        self.t.sides[1].out.gets.swap(0, i);
        let get = self.t.sides[1].out.gets[0].0;
        let old = self.sinks.remove(&get.id).is_some_and(|n| n != self.lent);
        let fails = self.lossy && self.random.below(8) == 0;
        let outcome = if fails {
            Err(Failure::TimedOut)
        } else {
            Ok(())
        };
        if old {
            // The GET writes to memory that was withdrawn.
            self.t.sides[1].out.gets.pop_front();
            let (quiet, now) = (Some(Quiet::Settled), Time(self.t.now));
            let stream = &mut self.t.sides[1].stream;
            stream.get_ended(get.id, Some(outcome), quiet, &LIMITS, now);
            self.t.pump(1);
        } else {
            self.t.fetch(1, outcome);
        }
    }

    fn run(mut self, seed: u64) {
        for step in 0..1_500 {
            match self.random.below(10) {
                0 | 1 => self.write(),
                2 | 3 => self.read(),
                4..=6 => self.carry(),
                7 | 8 => self.fetch(),
                _ => self.t.wait(1),
            }
            let withdraw = self.random.below(60) == 0;
            self.settle(withdraw);
            for side in &self.t.sides {
                assert_eq!(side.stream.end(), None, "seed {seed}, step {step}");
            }
        }
        self.lossy = false;
        self.t.sides[0].stream.shut();
        self.t.pump(0);
        for _ in 0..3_000 {
            for _ in 0..20 {
                self.carry();
                self.fetch();
                self.read();
            }
            self.settle(false);
            self.t.wait(5);
        }
        let receiving = self.t.sides[1].stream.receiving();
        assert!(
            receiving.is_finished() && receiving.available() == 0,
            "seed {seed}: {:?}\n{:?}",
            self.t.sides[0].stream,
            self.t.sides[1].stream
        );
        let mut written: Vec<u8> = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => written.extend(bytes),
                Piece::Lent(..) => panic!("seed {seed}: a source is not finished"),
            }
        }
        let wrong = (written.iter().zip(&self.got)).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "seed {seed} of {}", written.len());
        assert_eq!(written.len(), self.got.len(), "seed {seed}");
    }
}

#[test]
fn streams_with_sources_stay_exact() {
    let seeds = std::env::var("DS_SEED").ok().and_then(|s| s.parse().ok());
    for seed in seeds.map_or(1..=300, |seed| seed..=seed) {
        Walk::new(seed).run(seed);
    }
}
