// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The sending side of a port that several parties share, against a NIC that commits at its own pace.

use proptest::prelude::*;
use std::collections::VecDeque;
use wire::room_queue::{PartyId, RoomPlace, RoomQueue};
use wire::sending::{Admission, Kick, Limits, Mode, Next, Refusal, Sending};
use wire::time::Time;
use wire::wcbuf::{Action, Event, State, COPIES};

const LIMITS: Limits = Limits {
    stall: 1000,
    grant: 20,
};

fn sending(parties: usize) -> (Sending<Vec<RoomPlace>>, Vec<PartyId>) {
    let mut sending = Sending::new(vec![RoomPlace::FREE; parties], LIMITS);
    let mut ids = vec![PartyId::FIRST];
    ids.extend((1..parties).map(|_| sending.parties().add().unwrap()));
    assert!(sending.parties().add().is_none());
    (sending, ids)
}

/// A NIC: packets that it has not committed.
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

/// Tries to send `n` packets; true if they were sent. `watch`: the watch will look.
fn send(
    s: &mut Sending<Vec<RoomPlace>>,
    nic: &mut Nic,
    id: PartyId,
    n: u8,
    now: Time,
    watch: &mut bool,
) -> bool {
    let admission = match s.admit(id, n, || now) {
        Admission::Look => {
            let (admission, kick) = s.admit_by(id, n, nic.state(), now);
            *watch |= kick == Kick::Now;
            admission
        }
        other => other,
    };
    match admission {
        Admission::Granted => {
            for _ in 0..n {
                s.take(id).expect("room was promised");
                nic.outstanding += 1;
            }
            assert!(nic.outstanding <= 255, "more than the NIC can count");
            *watch |= s.sent(|| now) != Kick::Nothing;
            true
        }
        Admission::Refused(refusal) => {
            assert_eq!(refusal, Refusal::Full);
            false
        }
        Admission::Look => panic!("looks for ever"),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize, u8),
    Commit(u32),
    Watch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..5, 1u8..40).prop_map(|(p, n)| Step::Send(p, n)),
        1 => (0usize..5, 200u8..=255).prop_map(|(p, n)| Step::Send(p, n)),
        2 => (0u32..80).prop_map(Step::Commit),
        2 => Just(Step::Watch),
    ]
}

proptest! {
    /// Nobody who was refused is forgotten, whatever the others do, and the watch runs as long as it has to.
    #[test]
    fn all_who_wait_are_told(steps in prop::collection::vec(step(), 1..300)) {
        let (mut s, ids) = sending(5);
        let (mut nic, mut watch, mut now) = (Nic::default(), false, 0u64);
        let mut waiting = [false; 5];
        let run_watch = |s: &mut Sending<Vec<RoomPlace>>, nic: &Nic, now: u64, waiting: &mut [bool; 5]| {
            if s.watch(true).is_err() {
                return false;
            }
            let watched = s.watched(nic.state(), Time(now));
            while let Some(id) = s.wake(Time(now)) {
                waiting[id.index()] = false;
                assert!(s.room(id) > 0, "told of no room");
            }
            watched.next != Next::Idle
        };
        for step in steps {
            now += 1;
            match step {
                Step::Send(p, n) => {
                    if !send(&mut s, &mut nic, ids[p], n, Time(now), &mut watch) {
                        waiting[p] = true;
                    }
                }
                Step::Commit(n) => nic.commit(n),
                Step::Watch if watch => watch = run_watch(&mut s, &nic, now, &mut waiting),
                Step::Watch => {}
            }
            prop_assert!(watch || (nic.outstanding == 0 && !waiting.contains(&true)));
        }
        // The NIC commits all, and nobody sends any more: all hear of room, the watch ends.
        nic.commit(255);
        for _ in 0..20 {
            now += LIMITS.grant;
            watch = watch && run_watch(&mut s, &nic, now, &mut waiting);
        }
        prop_assert_eq!(waiting, [false; 5]);
        prop_assert!(!watch);
    }
}

/// Parties that always have something to send get their share, even if one asks all the time, which may have two
/// parties where the others have one.
#[test]
fn none_starves_the_others() {
    let (mut s, ids) = sending(4);
    let (mut nic, mut watch) = (Nic::default(), false);
    let mut sent = [0u32; 4];
    let mut ready = VecDeque::from([0usize, 1, 2, 3]);
    for now in 0..20_000u64 {
        let now = Time(now);
        // Party 0 tries all the time, the others when they are told, as much as they can.
        for p in std::iter::once(0).chain(ready.drain(..)) {
            while send(&mut s, &mut nic, ids[p], 2, now, &mut watch) {
                sent[p] += 2;
            }
        }
        nic.commit(7);
        if s.watch(true).is_ok() {
            s.watched(nic.state(), now);
            while let Some(id) = s.wake(now) {
                ready.push_back(ids.iter().position(|i| *i == id).unwrap());
            }
        }
    }
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least > 20_000 && most < &(2 * least), "{sent:?}");
}

/// One who is told and does not send holds the others up for a while only; who is told has his room.
#[test]
fn what_is_granted_is_kept_and_taken_back() {
    let mut parties = RoomQueue::new(vec![RoomPlace::FREE; 3]);
    let (a, b) = (parties.add().unwrap(), parties.add().unwrap());
    parties.wait(a, 10);
    parties.wait(b, 5);
    // Not in the order of size.
    assert_eq!(parties.grant(9, Time(0)), None);
    assert_eq!(parties.grant(12, Time(0)), Some(a));
    assert_eq!(parties.grant(12, Time(0)), None);
    assert_eq!((parties.share(a, 12), parties.share(b, 12)), (10, 2));
    assert_eq!(parties.share(PartyId::FIRST, 12), 0);
    parties.used(a, 4);
    assert_eq!(
        (parties.share(a, 8), parties.share(PartyId::FIRST, 8)),
        (6, 0)
    );
    parties.expire(Time(19), 20);
    assert_eq!(parties.share(a, 8), 6);
    parties.expire(Time(20), 20);
    assert_eq!(parties.share(a, 8), 0);
    assert_eq!(parties.grant(8, Time(20)), Some(b));
    parties.remove(b);
    assert!(parties.is_idle());
}

/// Two threads of a party: the one that waits is told although the other has used its room.
#[test]
fn a_waiting_thread_is_told_although_another_sends() {
    let mut parties = RoomQueue::new(vec![RoomPlace::FREE; 2]);
    let other = parties.add().unwrap();
    parties.wait(PartyId::FIRST, 3);
    parties.wait(other, 1);
    assert_eq!(parties.share(PartyId::FIRST, 4), 4);
    parties.used(PartyId::FIRST, 3);
    // Now it is behind the other one.
    assert_eq!(parties.share(PartyId::FIRST, 4), 0);
    assert_eq!(parties.grant(2, Time(0)), Some(other));
    assert_eq!(parties.grant(2, Time(0)), Some(PartyId::FIRST));
}

/// Places are added while parties wait and have room.
#[test]
fn parties_survive_growing() {
    let mut parties = RoomQueue::new(vec![RoomPlace::FREE; 2]);
    let a = parties.add().unwrap();
    parties.wait(a, 3);
    parties.wait(PartyId::FIRST, 2);
    assert_eq!(parties.grant(4, Time(1)), Some(a));
    assert!(parties.add().is_none());
    assert_eq!(parties.grow(vec![RoomPlace::FREE; 2]).len(), 2);
    assert_eq!(parties.capacity(), 2);
    assert_eq!(parties.grow(vec![RoomPlace::FREE; 8]).len(), 2);
    let b = parties.add().unwrap();
    assert_eq!(parties.share(a, 4), 3);
    assert_eq!(parties.share(b, 4), 0);
    parties.used(a, 3);
    assert_eq!(parties.grant(4, Time(2)), Some(PartyId::FIRST));
}

/// What was given up is not what stands still afterwards.
#[test]
fn a_port_that_starts_afresh_does_not_stall_at_once() {
    let (mut s, ids) = sending(1);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, ids[0], 9, Time(0), &mut watch));
    assert!(!s.watched(nic.state(), Time(0)).stalled);
    assert_eq!(s.give_up(), 9);
    nic = Nic::default();
    let later = LIMITS.stall - 1;
    assert!(send(&mut s, &mut nic, ids[0], 1, Time(later), &mut watch));
    assert!(!s.watched(nic.state(), Time(later + 1)).stalled);
    assert!(
        s.watched(nic.state(), Time(later + 1 + LIMITS.stall))
            .stalled
    );
}

#[test]
fn stalls_are_told_once_and_repairs_open_again() {
    let (mut s, ids) = sending(1);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, ids[0], 9, Time(0), &mut watch));
    let told: Vec<u64> = (0..5000)
        .filter(|t| s.watched(nic.state(), Time(*t)).stalled)
        .collect();
    assert_eq!(told, [LIMITS.stall]);
    nic.commit(1);
    assert!(!s.watched(nic.state(), Time(5000)).stalled);
    assert!(s.watched(nic.state(), Time(6000)).stalled);
    // A drop: the watch repairs, nobody sends meanwhile.
    let dropped = nic.state().with_retry(true).with_retry_count(8);
    assert_eq!(s.watched(dropped, Time(6001)).next, Next::Repair);
    assert_eq!(s.mode(), Mode::Repair);
    let refused = Admission::Refused(Refusal::Retry);
    assert_eq!(s.admit(ids[0], 1, || Time(6001)), refused);
    assert_eq!(s.watch(true), Err(Next::Repair));
    assert_eq!(s.give_up(), 8);
    assert_eq!(s.wake(Time(6002)), Some(ids[0]));
    assert_eq!(s.admit(ids[0], 255, || Time(6002)), Admission::Granted);
    // Closed meanwhile, it stays so.
    let again = State(0).with_retry(true).with_retry_count(1);
    let mut fresh = Nic::default();
    assert!(send(&mut s, &mut fresh, ids[0], 1, Time(6002), &mut watch));
    s.noticed(again);
    assert_eq!(s.mode(), Mode::Repair);
    s.close();
    assert_eq!(s.repair(), None);
    s.give_up();
    let refused = Admission::Refused(Refusal::Down);
    assert_eq!(s.admit(ids[0], 1, || Time(6003)), refused);
    assert_eq!(s.watch(true), Err(Next::Idle));
}

/// A NIC that does not answer once: nobody is told that the port is down for good, the watch goes on, and who
/// waits is told when it answers again.
#[test]
fn a_read_of_all_ones_is_repeated() {
    const ONES: State = State(u64::MAX);
    let (mut s, ids) = sending(1);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, ids[0], 255, Time(0), &mut watch));
    assert_eq!(s.admit(ids[0], 1, || Time(1)), Admission::Look);
    let (refused, kick) = s.admit_by(ids[0], 1, ONES, Time(1));
    assert_eq!(refused, Admission::Refused(Refusal::Full));
    assert_eq!(kick, Kick::Soon);
    // With a pause, however long it takes.
    for now in 2..10 {
        assert_eq!(s.watch(true), Ok(()));
        let next = s.watched(ONES, Time(now)).next;
        assert_eq!(next, Next::Again { waiting: false });
        assert_eq!(s.wake(Time(now)), None);
    }
    nic.commit(3);
    let next = s.watched(nic.state(), Time(10)).next;
    assert_eq!(next, Next::Again { waiting: true });
    assert_eq!(s.wake(Time(10)), Some(ids[0]));
    assert_eq!(s.admit(ids[0], 1, || Time(10)), Admission::Granted);
    // That it never answers is a stall.
    assert!(s.watched(ONES, Time(10 + LIMITS.stall)).stalled);
}

#[test]
fn the_watch_of_a_device_that_is_gone_ends() {
    let (mut s, ids) = sending(1);
    let (mut nic, mut watch) = (Nic::default(), false);
    assert!(send(&mut s, &mut nic, ids[0], 255, Time(0), &mut watch));
    assert_eq!(s.watch(false), Err(Next::Idle));
}

/// A NIC that takes so many packets at a time and drops what follows.
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

    /// Time passes.
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

    /// One step of the repair, if there is one: whether a pause is due.
    fn repair(&mut self, s: &mut Sending<Vec<RoomPlace>>, copies: &[u32; COPIES]) -> Option<bool> {
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
        Some(s.repair_did(event))
    }
}

/// What a sender does that has interrupts off: it sends when it may and looks by itself in between, but for
/// the times that `watch` runs. Returns the packets as the NIC has taken them, and how often it repaired.
fn without_the_watch(total: u32, depth: usize, watch: impl Fn(u64) -> bool) -> (Vec<u32>, u32) {
    let (mut s, ids) = sending(1);
    let mut nic = Shallow::new(depth);
    let mut copies = [0; COPIES];
    let (mut sent, mut repairs) = (0, 0);
    for round in 0u64.. {
        assert!(round < 1_000_000, "{sent} sent, {:?}", s.mode());
        // The clock stands still.
        let now = Time(7);
        let admission = match s.admit(ids[0], 1, || now) {
            Admission::Look => s.admit_by(ids[0], 1, nic.state, now).0,
            other => other,
        };
        if admission == Admission::Granted && sent < total {
            let number = s.take(ids[0]).expect("room was promised");
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
                    while s.wake(now).is_some() {}
                }
                Err(next) => {
                    assert_eq!(next, Next::Repair);
                    repairs += u32::from(s.repair_began());
                    nic.repair(&mut s, &copies);
                }
            }
        } else {
            if s.is_in_doubt() {
                s.noticed(nic.state);
            }
            repairs += u32::from(s.repair_began());
            while nic.repair(&mut s, &copies) == Some(false) {}
        }
    }
    (nic.taken, repairs)
}

/// Who keeps the watch from running gets all of its packets out by itself, once and in order, also when both
/// of them repair by turns.
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
