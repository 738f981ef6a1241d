// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of credits and replay against a model of the NIC's buffer, which drops packets randomly.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use proptest::prelude::*;
use wire::wcbuf::{Action, Credits, Event, Failure, Replay, State, Verdict};

/// Model of the NIC's buffer. It accepts packets in order or drops a packet. After a drop, it also
/// drops all later packets.
struct Hardware {
    state: State,
    accepted: Vec<u32>,
    /// Packets that have arrived but are not committed yet.
    in_flight: Vec<u32>,
    /// Decision for each packet; true drops the packet.
    drops: Vec<bool>,
    next_drop: usize,
}

impl Hardware {
    fn push(&mut self, packet: u32) {
        let drop = self.drops.get(self.next_drop).copied().unwrap_or(false);
        self.next_drop += 1;
        if self.state.retry() || drop {
            let count = self.state.retry_count();
            self.state = self
                .state
                .with_retry(true)
                .with_retry_count(count.checked_add(1).unwrap());
        } else {
            self.in_flight.push(packet);
            self.state = self.state.with_assembly(!self.state.assembly());
        }
    }

    /// Returns the state. Each read commits some packets, so that waiting is tested.
    fn read(&mut self) -> State {
        let seen = self.state;
        if !self.in_flight.is_empty() {
            let packet = self.in_flight.remove(0);
            self.accepted.push(packet);
            let count = self.state.committed_count().wrapping_add(1);
            self.state = self.state.with_committed_count(count);
        } else {
            self.state = self.state.with_streamout(self.state.assembly());
        }
        seen
    }

    fn write(&mut self, state: State) {
        assert!(
            self.in_flight.is_empty(),
            "state written while packets are in flight"
        );
        assert_eq!(state.committed_count(), self.state.committed_count());
        self.state = state;
    }
}

/// Sends `total` numbered packets in bursts. Returns the model with the accepted packets, and the
/// number of replays.
fn run(total: u32, bursts: &[u8], drops: Vec<bool>) -> (Hardware, u32) {
    let mut hw = Hardware {
        state: State(0x0012_3400),
        accepted: vec![],
        in_flight: vec![],
        drops,
        next_drop: 0,
    };
    hw.state = hw.state.opened();
    let mut credits = Credits::new();
    let mut copies = vec![0u32; 256];
    let mut sent = 0;
    let mut replays = 0;
    let mut bursts = bursts.iter().cycle();
    while (hw.accepted.len() as u32) < total {
        for _ in 0..=*bursts.next().unwrap() {
            if sent == total {
                break;
            }
            let Some(i) = credits.take() else { break };
            copies[usize::from(i)] = sent;
            hw.push(sent);
            sent += 1;
        }
        let state = hw.read();
        match credits.on_state(state) {
            Verdict::Ok { outstanding } => assert!(outstanding <= 254),
            Verdict::Full => assert_eq!((credits.room(), credits.outstanding()), (0, 255)),
            Verdict::Retry { dropped } => {
                assert!(dropped > 0);
                replays += 1;
                let mut replay = Replay::new();
                let mut action = replay.start();
                for step in 0.. {
                    assert!(step < 100_000, "replay does not end");
                    let event = match action {
                        Action::ReadState => Event::State(hw.read()),
                        Action::WriteState(s) => {
                            assert!(!s.retry() && s.retry_count() == 0);
                            hw.write(s);
                            Event::Written
                        }
                        Action::Send(i) => {
                            hw.push(copies[usize::from(i)]);
                            Event::Sent
                        }
                        Action::Done => break,
                        Action::Failed(f) => panic!("{f}"),
                    };
                    action = replay.step(&mut credits, event);
                }
                assert_eq!(credits.outstanding(), 0);
            }
            other => panic!("{other}"),
        }
    }
    (hw, replays)
}

#[test]
fn every_packet_arrives_once_and_in_order() {
    let mut drops = vec![false; 1000];
    drops[3] = true;
    drops[700] = true;
    let (hw, replays) = run(1000, &[0, 9, 254, 3], drops);
    assert_eq!(hw.accepted, (0..1000).collect::<Vec<_>>());
    assert_eq!(replays, 2);
}

#[test]
fn dropping_during_the_replay_repeats_it() {
    // Packet 0 is dropped. It is dropped again in its first two replays.
    let (hw, replays) = run(5, &[4], vec![true, false, false, false, false, true, true]);
    assert_eq!(hw.accepted, [0, 1, 2, 3, 4]);
    assert_eq!(replays, 1);
}

#[test]
fn room_needs_no_register_read() {
    let mut c = Credits::new();
    for n in 0..255u8 {
        assert_eq!(c.room(), 255 - n);
        assert_eq!(c.take(), Some(n));
    }
    assert_eq!((c.room(), c.take()), (0, None));
    assert_eq!(c.on_state(State(0)), Verdict::Full);
    assert_eq!(c.on_state(State(10)), Verdict::Ok { outstanding: 245 });
    assert_eq!(c.take(), Some(255));
    assert_eq!(c.take(), Some(0));
    assert_eq!(c.pwp(), 1);
}

#[test]
fn nonsense_is_reported() {
    let mut c = Credits::new();
    assert_eq!(c.take(), Some(0));
    let desync = Verdict::Desync {
        committed: 2,
        known: 0,
        pwp: 1,
    };
    assert_eq!(c.on_state(State(2)), desync);
    assert_eq!(c.on_state(State(u64::MAX)), Verdict::Unread);
    assert_eq!(c.on_state(State(1)), Verdict::Ok { outstanding: 0 });
    assert_eq!(
        c.on_state(State(0)),
        Verdict::Desync {
            committed: 0,
            known: 1,
            pwp: 1
        }
    );
    // A retry flag without dropped packets does not cause a replay.
    assert_eq!(
        c.on_state(State(1).with_retry(true)),
        Verdict::Ok { outstanding: 0 }
    );

    let mut r = Replay::new();
    assert_eq!(
        r.step(&mut c, Event::Sent),
        Action::Failed(Failure::Protocol)
    );
    let mut r = Replay::new();
    let failure = Failure::Desync {
        committed: 9,
        known: 1,
        pwp: 1,
    };
    assert_eq!(
        r.step(&mut c, Event::State(State(9))),
        Action::Failed(failure)
    );
}

#[test]
fn replay_without_need_ends() {
    let mut c = Credits::new();
    let mut r = Replay::new();
    assert_eq!(r.start(), Action::ReadState);
    assert_eq!(
        r.step(&mut c, Event::State(State(0))),
        Action::WriteState(State(0))
    );
    assert_eq!(r.step(&mut c, Event::Written), Action::ReadState);
    assert_eq!(r.step(&mut c, Event::State(State(0))), Action::Done);
    assert_eq!((r.resent(), r.rounds()), (0, 1));
}

#[test]
fn a_read_of_all_ones_is_not_written_back() {
    assert_eq!(State(u64::MAX).fresh(), State(0));
}

/// A replay continues at the same step after a period in which the device did not answer.
#[test]
fn a_repair_outlives_reads_of_all_ones() {
    let mut c = Credits::new();
    assert_eq!(c.take(), Some(0));
    let mut r = Replay::new();
    let read = |r: &mut Replay, c: &mut Credits, state: State| {
        for _ in 0..3 {
            let action = r.step(c, Event::State(State(u64::MAX)));
            assert_eq!(action, Action::ReadState);
        }
        r.step(c, Event::State(state))
    };
    let dropped = State(0).with_retry(true).with_retry_count(1);
    let clear = Action::WriteState(State(0));
    assert_eq!(read(&mut r, &mut c, dropped), clear);
    assert_eq!(r.step(&mut c, Event::Written), Action::ReadState);
    assert_eq!(read(&mut r, &mut c, State(0)), Action::Send(0));
    assert_eq!(r.step(&mut c, Event::Sent), Action::ReadState);
    assert_eq!(read(&mut r, &mut c, State(0)), Action::ReadState);
    assert_eq!(read(&mut r, &mut c, State(1)), Action::Done);
    assert_eq!(r.resent(), 1);
}

#[test]
fn clearing_is_repeated_until_the_count_reads_zero() {
    let mut c = Credits::new();
    assert_eq!(c.take(), Some(0));
    let dropped = State(0).with_retry(true).with_retry_count(1);
    let busy = dropped.with_assembly(true);
    let mut r = Replay::new();
    assert_eq!(r.step(&mut c, Event::State(busy)), Action::ReadState);
    assert_eq!(
        r.step(&mut c, Event::State(dropped)),
        Action::WriteState(State(0))
    );
    assert_eq!(r.step(&mut c, Event::Written), Action::ReadState);
    assert_eq!(
        r.step(&mut c, Event::State(dropped)),
        Action::WriteState(State(0))
    );
    assert_eq!(r.step(&mut c, Event::Written), Action::ReadState);
    assert_eq!(r.step(&mut c, Event::State(State(0))), Action::Send(0));
    assert_eq!(r.step(&mut c, Event::Sent), Action::ReadState);
    assert_eq!(r.step(&mut c, Event::State(State(0))), Action::ReadState);
    assert_eq!(r.step(&mut c, Event::State(State(1))), Action::Done);
    assert_eq!(r.resent(), 1);
}

proptest! {
    #[test]
    fn no_packet_is_lost_doubled_or_reordered(
        total in 1u32..1500,
        bursts in prop::collection::vec(any::<u8>(), 1..6),
        drops in prop::collection::vec(prop::bool::weighted(0.02), 0..3000),
    ) {
        let (hw, _) = run(total, &bursts, drops);
        prop_assert_eq!(hw.accepted, (0..total).collect::<Vec<_>>());
    }

    #[test]
    fn any_sequence_of_states_is_survived(states: Vec<u64>, sends: Vec<u8>) {
        let mut credits = Credits::new();
        let mut replay = Replay::new();
        for (raw, n) in states.iter().zip(sends.iter().cycle()) {
            for _ in 0..*n {
                let before = credits.room();
                prop_assert_eq!(credits.take().is_some(), before > 0);
            }
            let _ = credits.on_state(State(*raw));
            let _ = replay.step(&mut credits, Event::State(State(*raw)));
            prop_assert_eq!(u16::from(credits.room()) + u16::from(credits.outstanding()), 255);
        }
    }
}

proptest! {
    #[test]
    fn a_fresh_state_is_idle_whatever_was_left(left: u64) {
        let fresh = State(left).fresh();
        prop_assert!(fresh.is_idle() && !fresh.retry());
        prop_assert_eq!((fresh.retry_count(), fresh.committed_count()), (0, 0));
        prop_assume!(left != u64::MAX);
        let toggles = State(0).with_retry(true).with_assembly(true).raw();
        prop_assert_eq!(fresh.raw() & !toggles, State(left).opened().raw() & !toggles);
    }
}
