//! Tests of the path of a descriptor from the CPU into the requester: write combining, fences, time
//! until the descriptor counts as committed, full queues and timeouts (HW §8, §17, G8, G11).

use super::rig::*;
use super::rma::{desc, PLAIN};
use extoll_emulator::nic::{Counters, NicConfig, WriteCombining};
use std::num::NonZeroU32;
use wire::ids::{Unit, Vpid};
use wire::regs::info::{Driver, DRIVER};
use wire::regs::wcbuf;
use wire::rma::{NotificationType, NotifySpec, Operation};
use wire::velo::{DescriptorWord, SlotSize};
use wire::wcbuf::{Action, Credits, Event, Replay, State, Verdict, MARK};

const VELO_PAGE: u64 = 0x0200_0000 + (7 << 12);
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn rig(cfg: NicConfig) -> (Rig, Queue) {
    let mut rig = Rig::with_config(2, cfg);
    rig.probe_all(SlotSize::B128);
    let q = rig.open_velo(1, 9, SlotSize::B128, 4, 1024);
    (rig, q)
}

/// Returns the words of a message of 8 bytes from VPID 7 to VPID 9 of node 1.
fn message(value: u64) -> [u64; 2] {
    let d = DescriptorWord(0).with_target(1).with_vpid(9).with_len(8);
    [d.raw(), value]
}

pub fn store_words(rig: &mut Rig, page: u64, words: &[u64]) {
    for (k, word) in (0..).zip(words) {
        rig.store(0, 0, page + 8 * k, &word.to_le_bytes());
    }
}

fn mark(rig: &mut Rig, page: u64) {
    rig.store(0, 0, page + u64::from(MARK), &[0; 8]);
}

fn pass(rig: &mut Rig, ns: u64) {
    rig.nodes[0].ram.now += ns;
    rig.tick(0);
}

/// Completes everything that is in flight at node 0 by advancing the time.
fn finish(rig: &mut Rig) {
    for _ in 0..10_000 {
        if velo_state(rig).is_idle() {
            return;
        }
        pass(rig, US);
    }
    panic!("still busy");
}

fn velo_state(rig: &mut Rig) -> State {
    State(rig.read(0, wcbuf::state(Unit::Velo, Vpid::from(7))))
}

fn counters(rig: &Rig) -> &Counters {
    rig.nodes[0].nic.counters()
}

fn received(rig: &mut Rig, q: &mut Queue) -> Vec<u64> {
    let got: Vec<u64> = std::iter::from_fn(|| rig.velo_take(q))
        .map(|(_, data)| u64::from_le_bytes(data.try_into().expect("8 bytes")))
        .collect();
    rig.commit(q, false);
    got
}

fn late(wc_commit_ns: u64) -> NicConfig {
    NicConfig {
        wc_commit_ns,
        ..NicConfig::default()
    }
}

#[test]
fn stored_is_not_committed() {
    let mut early = 0;
    for seed in 0..50 {
        let (mut rig, mut q) = rig(NicConfig {
            seed,
            ..late(500 * US)
        });
        for n in 0..20 {
            store_words(&mut rig, VELO_PAGE, &message(n));
        }
        let state = velo_state(&mut rig);
        assert_eq!(state.committed_count(), 0, "no time has passed");
        assert!(!state.is_idle(), "descriptors in flight are visible");
        assert!(rig.velo_take(&mut q).is_none());
        pass(&mut rig, 100 * US);
        early += u32::from(velo_state(&mut rig).committed_count());
        finish(&mut rig);
        assert_eq!(velo_state(&mut rig), State(0).with_committed_count(20));
        assert_eq!(
            received(&mut rig, &mut q),
            (0..20).collect::<Vec<_>>(),
            "messages of a VPID stay in order (HW §9.1)"
        );
    }
    assert!((1..1000).contains(&early), "the times are random: {early}");
    // Without `wc_commit_ns`, descriptors are committed without delay.
    let (mut rig, _) = rig(NicConfig::default());
    store_words(&mut rig, VELO_PAGE, &message(1));
    assert_eq!(velo_state(&mut rig), State(0).with_committed_count(1));
}

#[test]
fn an_rma_command_takes_its_time_too() {
    let mut rig = Rig::with_config(2, late(100 * US));
    rig.probe_all(SlotSize::B128);
    let mut q = rig.open_rma(0, 5, 1, 16);
    let notify = NotifySpec {
        requester: true,
        ..NotifySpec::NONE
    };
    let op = Operation::NotificationPut {
        class: 1,
        value: 77,
    };
    rig.rma_post(0, 5, PLAIN, &desc(0, 5, notify, op));
    assert!(rig.rma_take(&mut q).is_none());
    pass(&mut rig, 200 * US);
    let words = rig.rma_take(&mut q).expect("notification");
    let n = wire::rma::Notification::decode(words).expect("sense");
    assert_eq!(
        n.expect("there").kind.code(),
        NotificationType::Requester.code()
    );
    pass(&mut rig, 200 * US);
    let state = State(rig.read(0, wcbuf::state(Unit::Rma, Vpid::from(5))));
    assert_eq!(state, State(0).with_committed_count(1));
}

/// Sends 2,000 messages as a driver does. Returns the received messages and the number of replays.
fn driver_like(rig: &mut Rig, q: &mut Queue, marks: bool) -> (Vec<u64>, u32) {
    let mut credits = Credits::new();
    let mut copies = [0; 256];
    let (mut got, mut repairs) = (Vec::new(), 0);
    let push = |rig: &mut Rig, value| {
        store_words(rig, VELO_PAGE, &message(value));
        if marks {
            mark(rig, VELO_PAGE);
        }
        pass(rig, 2 * US);
    };
    for n in 0..2000 {
        let slot = credits.take().expect("credit");
        copies[usize::from(slot)] = n;
        push(rig, n);
        if n % 16 != 15 {
            continue;
        }
        loop {
            pass(rig, US);
            let state = velo_state(rig);
            match credits.on_state(state) {
                Verdict::Ok { outstanding: 0 } => break,
                Verdict::Ok { .. } | Verdict::Full => continue,
                Verdict::Retry { .. } => {}
                other => panic!("{other}"),
            }
            repairs += 1;
            let mut machine = Replay::new();
            let mut action = machine.start();
            while action != Action::Done {
                let event = match action {
                    Action::ReadState => {
                        pass(rig, US);
                        Event::State(velo_state(rig))
                    }
                    Action::WriteState(value) => {
                        rig.write(0, wcbuf::velo::state(Vpid::from(7)), value.raw());
                        Event::Written
                    }
                    Action::Send(slot) => {
                        push(rig, copies[usize::from(slot)]);
                        Event::Sent
                    }
                    Action::Done => break,
                    Action::Failed(why) => panic!("{why}"),
                };
                action = machine.step(&mut credits, event);
            }
        }
        got.extend(received(rig, q));
    }
    (got, repairs)
}

#[test]
fn a_full_requester_asks_for_a_replay_by_itself() {
    let (mut rig, mut q) = rig(NicConfig {
        wc_depth: NonZeroU32::new(4),
        ..late(50 * US)
    });
    let (got, repairs) = driver_like(&mut rig, &mut q, false);
    assert_eq!(got, (0..2000).collect::<Vec<_>>());
    assert!(repairs > 10, "{repairs}");
    let c = counters(&rig);
    assert!(c.velo.retry_drops >= c.velo.retries && c.velo.retries >= u64::from(repairs));
    assert_eq!(rig.nodes[1].nic.counters().velo.received, 2000);
}

#[test]
fn depth_is_exact() {
    let (mut rig, mut q) = rig(NicConfig {
        wc_depth: NonZeroU32::new(3),
        ..late(50 * US)
    });
    for n in 0..5 {
        store_words(&mut rig, VELO_PAGE, &message(n));
    }
    let state = velo_state(&mut rig);
    assert!(state.retry());
    assert_eq!((state.committed_count(), state.retry_count()), (0, 2));
    finish(&mut rig);
    // While `retry` is set, later descriptors are dropped, too (HW §8).
    store_words(&mut rig, VELO_PAGE, &message(5));
    let state = velo_state(&mut rig);
    assert_eq!((state.committed_count(), state.retry_count()), (3, 3));
    assert_eq!(received(&mut rig, &mut q), [0, 1, 2]);
}

#[test]
fn incomplete_descriptors_time_out() {
    let (mut rig, mut q) = rig(NicConfig::default());
    // The timeout register has the value 0x20 and is active (HW §8), which means slightly longer
    // than a second.
    let half = message(1)[0].to_le_bytes();
    rig.store(0, 0, VELO_PAGE, &half);
    rig.store(0, 0, 0x0400_0000 + (7 << 12) + 8, &[1; 8]);
    pass(&mut rig, 1000 * MS);
    rig.store(0, 0, VELO_PAGE + 8, &[1; 8]);
    assert!(rig.velo_take(&mut q).is_some(), "in time");
    rig.store(0, 0, VELO_PAGE, &half);
    pass(&mut rig, 30 * MS);
    assert_eq!(counters(&rig).drops.wc_timeout, 1, "RMA");
    pass(&mut rig, 900 * MS);
    let deadline = rig.nodes[0].nic.next_deadline().expect("a deadline");
    assert!(deadline <= rig.nodes[0].ram.now + 1000 * MS);
    rig.nodes[0].ram.now = deadline;
    rig.tick(0);
    assert_eq!(counters(&rig).drops.wc_timeout, 2);
    assert_eq!(counters(&rig).events[22], 2);
    assert_eq!(rig.read(0, wcbuf::velo::ERRORS0), (7 << 24) | 1);
    assert_eq!(rig.read(0, wcbuf::rma::ERRORS0), (7 << 24) | 1);
    // The remaining bytes alone are not a message, and are dropped, too.
    rig.store(0, 0, VELO_PAGE + 8, &[1; 8]);
    assert!(rig.velo_take(&mut q).is_none());
    pass(&mut rig, 2000 * MS);
    assert_eq!(counters(&rig).drops.wc_timeout, 3);
    // A disabled timeout never expires.
    rig.write(0, wcbuf::velo::TIMEOUT, 0x20 << 32);
    rig.store(0, 0, VELO_PAGE, &half);
    pass(&mut rig, 100_000 * MS);
    rig.store(0, 0, VELO_PAGE + 8, &[1; 8]);
    assert!(rig.velo_take(&mut q).is_some());
    assert_eq!(counters(&rig).drops.wc_timeout, 3);
}

#[test]
fn reserved_bits_and_wrong_places_are_reported() {
    let (mut rig, mut q) = rig(NicConfig::default());
    for bit in [26, 30, 35, 39, 60, 63] {
        let [d, value] = message(bit);
        store_words(&mut rig, VELO_PAGE, &[d | (1 << bit), value]);
    }
    assert_eq!(received(&mut rig, &mut q), [26, 30, 35, 39, 60, 63]);
    assert_eq!(counters(&rig).reserved_bits, 6);
    let log = &rig.nodes[0].log.diagnostics;
    assert!(log.iter().all(|t| t.contains("reserved bits")), "{log:?}");
    // RMA descriptors belong in the first 32 bytes of a requester page.
    rig.open_rma(0, 5, 1, 16);
    let op = Operation::NotificationPut { class: 0, value: 1 };
    let words = desc(0, 5, NotifySpec::NONE, op).encode().expect("words");
    let page = 0x0400_0000 + (5 << 12);
    store_words(&mut rig, page + 0x20, &words);
    assert_eq!(counters(&rig).wc_misplaced, 3);
    assert_eq!(
        counters(&rig).rma.commands[5],
        1,
        "executed in spite of the offset"
    );
    assert_eq!(counters(&rig).events[22], 0);
    rig.store(0, 0, page + 4, &[0; 4]);
    assert_eq!(counters(&rig).wc_not_aligned, 1);
    assert_eq!(rig.read(0, wcbuf::rma::ERRORS1), (5 << 24) | 1);
    assert_eq!(counters(&rig).events[22], 1);
}

fn lines(seed: u64) -> NicConfig {
    NicConfig {
        wc: WriteCombining::Lines,
        seed,
        ..NicConfig::default()
    }
}

#[test]
fn only_a_mode_that_needs_marks_asks_for_them() {
    let (mut rig, _) = rig(lines(1));
    let driver = Driver(rig.read(0, DRIVER));
    assert!(driver.wants_marks());
    assert_eq!(driver.ver(), NicConfig::default().driver_version);
    let (mut rig, _) = self::rig(NicConfig::default());
    assert!(!Driver(rig.read(0, DRIVER)).wants_marks());
    assert!(
        !Driver(u64::MAX).wants_marks(),
        "a removed card reads all ones"
    );
}

#[test]
fn lines_stay_until_a_fence() {
    let (mut rig, mut q) = rig(lines(1));
    store_words(&mut rig, VELO_PAGE, &message(1));
    pass(&mut rig, 40 * MS);
    assert!(received(&mut rig, &mut q).is_empty());
    assert_eq!(velo_state(&mut rig), State(0), "reading flushes nothing");
    mark(&mut rig, VELO_PAGE + (1 << 12));
    assert!(
        received(&mut rig, &mut q).is_empty(),
        "a fence of another VPID"
    );
    mark(&mut rig, VELO_PAGE);
    assert_eq!(received(&mut rig, &mut q), [1]);
    assert_eq!(velo_state(&mut rig).committed_count(), 1);
    pass(&mut rig, 5000 * MS);
    assert_eq!(counters(&rig).wc_unfenced, 0);
}

#[test]
fn every_descriptor_gets_through_with_fences() {
    for seed in 0..20 {
        let (mut rig, mut q) = rig(NicConfig {
            wc_commit_ns: 50 * US,
            wc_depth: NonZeroU32::new(4 + seed as u32),
            ..lines(seed)
        });
        let (got, _) = driver_like(&mut rig, &mut q, true);
        assert_eq!(got, (0..2000).collect::<Vec<_>>());
        // The messages have every possible length, so some consist of whole lines.
        let mut want = Vec::new();
        for len in 1..=120u16 {
            let data = pattern(len.into(), len.into());
            let d = DescriptorWord(0).with_target(1).with_vpid(9).with_len(len);
            let mut padded = data.clone();
            padded.resize(data.len().div_ceil(8) * 8, 0);
            let mut words = vec![d.raw()];
            let qw = |c: &[u8]| u64::from_le_bytes(c.try_into().expect("8 bytes"));
            words.extend(padded.chunks_exact(8).map(qw));
            store_words(&mut rig, VELO_PAGE, &words);
            mark(&mut rig, VELO_PAGE);
            finish(&mut rig);
            want.push(data);
        }
        let got: Vec<_> = std::iter::from_fn(|| rig.velo_take(&mut q))
            .map(|(_, data)| data)
            .collect();
        assert_eq!(got, want);
        pass(&mut rig, 5000 * MS);
        let c = counters(&rig);
        assert_eq!((c.wc_unfenced, c.drops.incomplete_descriptor), (0, 0));
    }
}

/// Without a fence, the last message of a driver is late. Of several messages, only some arrive.
#[test]
fn a_missing_fence_is_found() {
    let mut lost = 0;
    for seed in 0..20 {
        let (mut rig, mut q) = rig(lines(seed));
        for n in 0..50 {
            store_words(&mut rig, VELO_PAGE, &message(n));
            pass(&mut rig, 10 * US);
        }
        assert_eq!(counters(&rig).wc_unfenced, 49, "each was overwritten");
        assert!(received(&mut rig, &mut q).len() < 50);
        pass(&mut rig, 100 * MS);
        assert_eq!(*received(&mut rig, &mut q).last().expect("the last"), 49);
        pass(&mut rig, 1000 * MS);
        assert_eq!(counters(&rig).wc_unfenced, 50);
        lost += 50 - rig.nodes[1].nic.counters().velo.received;
    }
    assert!((100..900).contains(&lost), "{lost} of 1000");
}

#[test]
fn a_single_message_without_a_fence_is_late_and_found() {
    for again in [false, true] {
        let (mut rig, mut q) = rig(lines(3));
        store_words(&mut rig, VELO_PAGE, &message(1));
        pass(&mut rig, 100 * MS);
        assert_eq!(received(&mut rig, &mut q), [1]);
        assert_eq!(counters(&rig).wc_unfenced, 0, "the fence may still come");
        if again {
            // The fence does not follow, but the next message does.
            store_words(&mut rig, VELO_PAGE, &message(2)[..1]);
        } else {
            pass(&mut rig, 1000 * MS);
        }
        assert_eq!(counters(&rig).wc_unfenced, 1);
    }
    // A slow guest, which sends its fence late, must not be counted.
    let (mut rig, mut q) = rig(lines(3));
    store_words(&mut rig, VELO_PAGE, &message(1));
    pass(&mut rig, 500 * MS);
    mark(&mut rig, VELO_PAGE);
    pass(&mut rig, 5000 * MS);
    assert_eq!(received(&mut rig, &mut q), [1]);
    assert_eq!(counters(&rig).wc_unfenced, 0);
}

#[test]
fn a_processor_has_few_lines() {
    let (mut rig, _) = rig(lines(5));
    // Thirty VPIDs begin a message at the same time without a fence, so most lines leave without a
    // fence.
    for vpid in 0..30u64 {
        store_words(&mut rig, 0x0200_0000 + (vpid << 12), &message(vpid));
    }
    let sent = counters(&rig).velo.sent;
    assert_eq!(sent, 20);
    pass(&mut rig, 100 * MS);
    assert_eq!(counters(&rig).velo.sent, 30);
    pass(&mut rig, 1000 * MS);
    assert_eq!(counters(&rig).wc_unfenced, 30);
}

#[test]
fn an_uncached_store_to_the_state_acts_as_a_fence() {
    let (mut rig, mut q) = rig(lines(6));
    store_words(&mut rig, VELO_PAGE, &message(1));
    rig.write(0, wcbuf::velo::state(Vpid::from(7)), 0);
    assert_eq!(received(&mut rig, &mut q), [1]);
    assert_eq!(
        velo_state(&mut rig),
        State(0),
        "the store follows the message"
    );
    pass(&mut rig, 5000 * MS);
    assert_eq!(counters(&rig).wc_unfenced, 0);
}

/// A fence must follow each descriptor (HW §8, §10.2). One fence does not suffice for two
/// descriptors in pages of different traffic classes.
#[test]
fn two_descriptors_before_one_fence_are_found() {
    let (mut rig, mut q) = rig(lines(7));
    store_words(&mut rig, VELO_PAGE, &message(1));
    store_words(&mut rig, VELO_PAGE + (1 << 20), &message(2));
    mark(&mut rig, VELO_PAGE);
    let mut got = received(&mut rig, &mut q);
    got.sort_unstable();
    assert_eq!(got, [1, 2]);
    assert_eq!(counters(&rig).wc_unfenced, 1);
    for n in 3..20 {
        store_words(&mut rig, VELO_PAGE + ((n % 4) << 20), &message(n));
        mark(&mut rig, VELO_PAGE);
    }
    pass(&mut rig, 5000 * MS);
    assert_eq!(counters(&rig).wc_unfenced, 1);
}
