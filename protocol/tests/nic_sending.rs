// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tests of a port's transmit side with a NIC that commits packets at random times.

use proptest::prelude::*;
use protocol::nic::sending::{Admission, Mode, Next, TxPort, Unavailable, WatchDelay};
use protocol::Time;
use std::collections::VecDeque;
use wire::wcbuf::{Action, Event, State, COPIES};

/// Stall time in ticks.
const STALL: u64 = 1000;

/// NIC with packets that it has not committed.
#[derive(Default)]
struct Nic {
    committed: u8,
    outstanding: u32,
}

impl Nic {
    fn commit(&mut self, n: u32) {
        let n = n.min(self.outstanding);
        self.outstanding -= n;
        self.committed = self.committed.wrapping_add(n as u8);
    }

    fn state(&self) -> State {
        State(0).with_committed_count(self.committed)
    }
}

/// Tries to send `n` packets. Returns true if the packets were sent. Sets `watch` if the watch is
/// due.
fn send(s: &mut TxPort, nic: &mut Nic, n: u8, now: Time, watch: &mut bool) -> bool {
    let admission = match s.admit(n) {
        Admission::ReadState => {
            let (admission, delay) = s.admit_by(n, nic.state(), now);
            *watch |= delay == WatchDelay::Now;
            admission
        }
        other => other,
    };
    match admission {
        Admission::Granted => {
            for _ in 0..n {
                s.take().expect("room was promised");
                nic.outstanding += 1;
            }
            assert!(nic.outstanding <= 255, "more than the NIC can count");
            *watch |= s.sent(|| now) != WatchDelay::Nothing;
            true
        }
        Admission::Refused(refusal) => {
            assert_eq!(refusal, Unavailable::Full);
            false
        }
        Admission::ReadState => panic!("reads the state forever"),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(u8),
    Commit(u32),
    Watch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..40).prop_map(Step::Send),
        1 => (200u8..=255).prop_map(Step::Send),
        2 => (0u32..80).prop_map(Step::Commit),
        2 => Just(Step::Watch),
    ]
}

proptest! {
    /// After a denied send request, a wakeup follows when enough credits are free. The watch runs
    /// until then.
    #[test]
    fn a_refused_send_is_followed_by_a_wakeup(steps in prop::collection::vec(step(), 1..300)) {
        let mut s = TxPort::new(STALL);
        let (mut nic, mut watch, mut now, mut waiting) = (Nic::default(), false, 0u64, false);
        let run_watch = |s: &mut TxPort, nic: &Nic, now: u64, waiting: &mut bool| {
            if s.watch(true).is_err() {
                return false;
            }
            let watched = s.watched(nic.state(), Time(now));
            if s.wake() {
                *waiting = false;
                assert!(s.room() > 0, "woken without room");
                assert!(!s.wake(), "woken twice");
            }
            watched.next != Next::Idle
        };
        for step in steps {
            now += 1;
            match step {
                Step::Send(n) => waiting |= !send(&mut s, &mut nic, n, Time(now), &mut watch),
                Step::Commit(n) => nic.commit(n),
                Step::Watch if watch => watch = run_watch(&mut s, &nic, now, &mut waiting),
                Step::Watch => {}
            }
            prop_assert!(watch || (nic.outstanding == 0 && !waiting));
        }
        // The NIC commits all packets. The waiting sender is woken and the watch ends, although no
        // more packets are sent.
        nic.commit(255);
        for _ in 0..2 {
            watch = watch && run_watch(&mut s, &nic, now, &mut waiting);
        }
        prop_assert!(!waiting);
        prop_assert!(!watch);
    }
}

/// A denied thread is woken even if another thread sends again before.
#[test]
fn a_waiting_thread_is_woken_although_another_sends() {
    let mut s = TxPort::new(STALL);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, 255, Time(0), &mut watch));
    assert!(!send(&mut s, &mut nic, 3, Time(0), &mut watch));
    nic.commit(4);
    assert!(send(&mut s, &mut nic, 4, Time(1), &mut watch));
    s.watched(nic.state(), Time(1));
    assert!(!s.wake(), "woken without room");
    nic.commit(1);
    s.watched(nic.state(), Time(2));
    assert!(s.wake());
}

/// Packets that were given up do not cause a stall later.
#[test]
fn a_port_that_starts_afresh_does_not_stall_at_once() {
    let mut s = TxPort::new(STALL);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, 9, Time(0), &mut watch));
    assert!(!s.watched(nic.state(), Time(0)).stalled);
    assert_eq!(s.discard(), 9);
    nic = Nic::default();
    let later = STALL - 1;
    assert!(send(&mut s, &mut nic, 1, Time(later), &mut watch));
    assert!(!s.watched(nic.state(), Time(later + 1)).stalled);
    assert!(s.watched(nic.state(), Time(later + 1 + STALL)).stalled);
}

#[test]
fn stalls_are_told_once_and_repairs_open_again() {
    let mut s = TxPort::new(STALL);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, 9, Time(0), &mut watch));
    let told: Vec<u64> = (0..5000)
        .filter(|t| s.watched(nic.state(), Time(*t)).stalled)
        .collect();
    assert_eq!(told, [STALL]);
    nic.commit(1);
    assert!(!s.watched(nic.state(), Time(5000)).stalled);
    assert!(s.watched(nic.state(), Time(6000)).stalled);
    // After a drop the watch repairs, and no other packet may be sent.
    let dropped = nic.state().with_retry(true).with_retry_count(8);
    assert_eq!(s.watched(dropped, Time(6001)).next, Next::Repair);
    assert_eq!(s.mode(), Mode::Repair);
    let refused = Admission::Refused(Unavailable::Retry);
    assert_eq!(s.admit(1), refused);
    assert_eq!(s.watch(true), Err(Next::Repair));
    assert_eq!(s.discard(), 8);
    assert!(s.wake());
    assert_eq!(s.admit(255), Admission::Granted);
    // A port that is closed during a repair stays closed.
    let again = State(0).with_retry(true).with_retry_count(1);
    let mut fresh = Nic::default();
    assert!(send(&mut s, &mut fresh, 1, Time(6002), &mut watch));
    s.polled(again);
    assert_eq!(s.mode(), Mode::Repair);
    s.close();
    assert_eq!(s.repair(), None);
    s.discard();
    let refused = Admission::Refused(Unavailable::Down);
    assert_eq!(s.admit(1), refused);
    assert_eq!(s.watch(true), Err(Next::Idle));
}

/// A NIC that does not answer a single read leaves the port open. The watch continues, and waiting
/// senders are woken after the next answer.
#[test]
fn a_read_of_all_ones_is_repeated() {
    const ONES: State = State(u64::MAX);
    let mut s = TxPort::new(STALL);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, 255, Time(0), &mut watch));
    assert_eq!(s.admit(1), Admission::ReadState);
    let (refused, delay) = s.admit_by(1, ONES, Time(1));
    assert_eq!(refused, Admission::Refused(Unavailable::Full));
    assert_eq!(delay, WatchDelay::Soon);
    // The watch pauses, for any length of time.
    for now in 2..10 {
        assert_eq!(s.watch(true), Ok(()));
        let next = s.watched(ONES, Time(now)).next;
        assert_eq!(next, Next::Again { waiting: false });
        assert!(!s.wake());
    }
    nic.commit(3);
    let next = s.watched(nic.state(), Time(10)).next;
    assert_eq!(next, Next::Again { waiting: true });
    assert!(s.wake());
    assert_eq!(s.admit(1), Admission::Granted);
    // A NIC that never answers causes a stall.
    assert!(s.watched(ONES, Time(10 + STALL)).stalled);
}

#[test]
fn the_watch_of_a_device_that_is_gone_ends() {
    let mut s = TxPort::new(STALL);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, 255, Time(0), &mut watch));
    assert_eq!(s.watch(false), Err(Next::Idle));
}

/// NIC that accepts a limited number of packets at a time and drops further packets.
struct Shallow {
    state: State,
    depth: usize,
    in_flight: VecDeque<u32>,
    taken: Vec<u32>,
}

impl Shallow {
    fn new(depth: usize) -> Self {
        Self {
            state: State(0),
            depth,
            in_flight: VecDeque::new(),
            taken: Vec::new(),
        }
    }

    fn push(&mut self, packet: u32) {
        if self.state.retry() || self.in_flight.len() == self.depth {
            let dropped = self.state.retry_count() + 1;
            self.state = self.state.with_retry(true).with_retry_count(dropped);
        } else {
            self.in_flight.push_back(packet);
            self.state = self.state.with_assembly(!self.state.streamout());
        }
    }

    /// Advances the time.
    fn commit(&mut self) {
        if let Some(packet) = self.in_flight.pop_front() {
            self.taken.push(packet);
            let count = self.state.committed_count().wrapping_add(1);
            self.state = self.state.with_committed_count(count);
        }
        if self.in_flight.is_empty() {
            self.state = self.state.with_streamout(self.state.assembly());
        }
    }

    /// Performs one step of the repair, if a repair is in progress. Returns true if a pause is due.
    fn repair(&mut self, s: &mut TxPort, copies: &[u32; COPIES]) -> Option<bool> {
        let event = match s.repair()? {
            Action::ReadState => Event::State(self.state),
            Action::WriteState(state) => {
                assert!(self.in_flight.is_empty(), "written with packets in flight");
                self.state = state;
                Event::Written
            }
            Action::Send(number) => {
                self.push(copies[usize::from(number)]);
                Event::Sent
            }
            Action::Done | Action::Failed(_) => panic!("{:?}", s.repair()),
        };
        Some(s.repair_done(event))
    }
}

/// Simulates a sender with interrupts disabled, which sends when permitted and otherwise polls by
/// itself. In rounds for which `watch` returns true, the watch runs instead of the poll. Returns
/// the packets in the order of acceptance by the NIC, and the number of repairs.
fn without_the_watch(total: u32, depth: usize, watch: impl Fn(u64) -> bool) -> (Vec<u32>, u32) {
    let mut s = TxPort::new(STALL);
    let mut nic = Shallow::new(depth);
    let mut copies = [0; COPIES];
    let (mut sent, mut repairs) = (0, 0);
    for round in 0u64.. {
        assert!(round < 1_000_000, "{sent} sent, {:?}", s.mode());
        // The time does not advance.
        let now = Time(7);
        let admission = match s.admit(1) {
            Admission::ReadState => s.admit_by(1, nic.state, now).0,
            other => other,
        };
        if admission == Admission::Granted && sent < total {
            let number = s.take().expect("room was promised");
            copies[usize::from(number)] = sent;
            nic.push(sent);
            s.sent(|| now);
            sent += 1;
            continue;
        }
        if sent == total && s.mode() == Mode::Open && s.credits().outstanding() == 0 {
            break;
        }
        nic.commit();
        if watch(round) {
            match s.watch(true) {
                Ok(()) => {
                    s.watched(nic.state, now);
                    s.wake();
                }
                Err(next) => {
                    assert_eq!(next, Next::Repair);
                    repairs += u32::from(s.repair_began());
                    nic.repair(&mut s, &copies);
                }
            }
        } else {
            if s.is_in_doubt() {
                s.polled(nic.state);
            }
            repairs += u32::from(s.repair_began());
            while nic.repair(&mut s, &copies) == Some(false) {}
        }
    }
    (nic.taken, repairs)
}

/// A sender that blocks the watch sends all of its packets by itself, once and in order. This is
/// true even if the watch and the sender repair alternately.
#[test]
fn packets_are_repaired_without_the_watch() {
    for depth in [1, 16, 64, 300] {
        for every in [0, 2, 3, 7] {
            let watch = |round: u64| every != 0 && round % every == 0;
            let (taken, repairs) = without_the_watch(1000, depth, watch);
            assert!(taken.iter().copied().eq(0..1000), "{depth} {every}");
            assert_eq!(repairs == 0, depth == 300, "{depth} {every}");
        }
    }
}
