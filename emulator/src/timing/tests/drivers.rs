//! Small model drivers. Each has a version with one wrong assumption, and a correct version.
//!
//! The tests show that the unkind model detects a wrong assumption within a few seeds, and that the
//! correct version never fails.

use super::*;
use wire::wcbuf::{Action, Credits, Event, Replay, State, Verdict};

/// Number of seeds that each comparison uses.
const SEEDS: u64 = 48;
/// Number of exchanges in one run.
const ROUNDS: u64 = 8;

/// Returns the number of runs in which `run` returns false.
fn wrong_runs(timing: &str, run: impl Fn(&mut Rig) -> bool) -> u64 {
    (0..SEEDS)
        .map(|seed| u64::from(!run(&mut Rig::new(seed, timing))))
        .sum()
}

/// Checks that the wrong driver fails in several runs, and the correct driver in no run.
fn compare(name: &str, run: impl Fn(&mut Rig, bool) -> bool) {
    compare_with(UNKIND, name, run);
}

/// Compares the drivers as [`compare`] does, with other times or options.
fn compare_with(timing: &str, name: &str, run: impl Fn(&mut Rig, bool) -> bool) {
    let wrong = wrong_runs(timing, |rig| run(rig, false));
    let right = wrong_runs(timing, |rig| run(rig, true));
    assert!(
        wrong >= 4,
        "{name}: the error showed in only {wrong} of {SEEDS} runs"
    );
    assert_eq!(right, 0, "{name}: the right driver fails");
}

/// Wrong assumption: "the data of a PUT has arrived when a later VELO message arrives". HW §10.8
/// guarantees no order between the units.
#[test]
fn a_message_as_completion_of_a_put() {
    compare("put then VELO", |rig, right| {
        (0..ROUNDS).all(|k| {
            rig.put(0, SOURCE, k + 1);
            rig.rma(2, 0, 4, 8, [SOURCE, TARGET]);
            rig.velo(VPID, 0, false, k);
            rig.until(|r| match right {
                true => r.see(1, NOTIFICATIONS + 16 * k + 8) != 0,
                false => r.message(1, k).is_some(),
            });
            let good = rig.see(1, TARGET) == k + 1;
            while rig.step() {}
            good
        })
    });
}

/// Number of bytes of five fragments (HW §10.3).
const LONG: u64 = 5 * 496;

fn long_put(rig: &mut Rig, value: u64, modifiers: u64) {
    (0..LONG / 8).for_each(|k| rig.put(0, SOURCE + 8 * k, value));
    let word = 3 | (2 << 2) | (VPID << 8) | (1 << 16) | (4 << 32) | (modifiers << 35);
    let word = word | ((LONG - 1) << 40);
    rig.store(0, 0x400_0000 | (VPID << 12), &[word, SOURCE, TARGET]);
}

fn whole(rig: &Rig, value: u64) -> bool {
    (0..LONG / 8).all(|k| rig.see(1, TARGET + 8 * k) == value)
}

/// Wrong assumption: "a transfer is complete when its first fragment has arrived". Only the
/// notification of the last fragment reports that the transfer is complete (HW §10.3, §10.5).
#[test]
fn the_first_fragment_as_completion() {
    compare("first fragment", |rig, right| {
        (0..ROUNDS).all(|k| {
            long_put(rig, k + 1, 0);
            rig.until(|r| match right {
                true => r.see(1, NOTIFICATIONS + 16 * k + 8) != 0,
                false => r.see(1, TARGET) == k + 1,
            });
            let good = whole(rig, k + 1);
            while rig.step() {}
            good
        })
    });
}

/// Wrong assumption: "a transfer is complete when its first notification has arrived". With NTR,
/// each fragment has a notification, so the first notification is not the last.
#[test]
fn the_first_notification_as_completion() {
    compare("first of several notifications", |rig, right| {
        (0..ROUNDS / 2).all(|k| {
            long_put(rig, k + 1, 2);
            let taken = 5 * k + if right { 4 } else { 0 };
            rig.until(|r| r.see(1, NOTIFICATIONS + 16 * taken + 8) != 0);
            let good = whole(rig, k + 1);
            while rig.step() {}
            good
        })
    });
}

/// Wrong assumption: "the source of a transfer is free when the descriptor is stored", or "when the
/// descriptor is committed". The source is free after the requester's notification (HW §10.5).
#[test]
fn a_source_that_is_used_again() {
    let run = |rig: &mut Rig, free: fn(&mut Rig, u64) -> bool| {
        for k in 0..ROUNDS {
            rig.put(0, SOURCE, k + 1);
            rig.rma(2, 0, 1, 8, [SOURCE, TARGET + 8 * k]);
            while !free(rig, k) {
                assert!(rig.step(), "never free");
            }
        }
        rig.put(0, SOURCE, 0);
        while rig.step() {}
        (0..ROUNDS).all(|k| rig.see(1, TARGET + 8 * k) == k + 1)
    };
    let told = |rig: &mut Rig, k| rig.see(0, NOTIFICATIONS + 16 * k + 8) != 0;
    compare("free when stored", |rig, right| match right {
        true => run(rig, told),
        false => run(rig, |_, _| true),
    });
    // The descriptor counts as committed before the pages of a longer transfer are read.
    let run = |rig: &mut Rig, right: bool| {
        (0..ROUNDS).all(|k| {
            let len = 64 * 496;
            (0..len / 8).for_each(|w| rig.put(0, SOURCE + 8 * w, k + 1));
            rig.rma(2, 0, 1, len, [SOURCE, TARGET]);
            loop {
                let state = State(rig.world.peek(0, 0x140_0000 + 0x1000 * VPID as u32));
                let idle = state.is_idle() && u64::from(state.committed_count()) == k + 1;
                if (right && told(rig, k)) || (!right && idle) {
                    break;
                }
                assert!(rig.step(), "never free");
            }
            (0..len / 8).for_each(|w| rig.put(0, SOURCE + 8 * w, 0));
            while rig.step() {}
            (0..len / 8).all(|w| rig.see(1, TARGET + 8 * w) == k + 1)
        })
    };
    compare("free when committed", run);
}

/// Wrong assumption: "a page can be reused when its flush has been sent". The page can be reused
/// after the following notification (HW §11.3).
#[test]
fn a_page_that_is_used_again() {
    compare("flush without notification", |rig, right| {
        rig.translate();
        let (page, answer) = (TARGET >> 12, 0x8000);
        rig.put(0, SOURCE, 5);
        for _ in 0..24 {
            rig.rma_te(2, 0, 8, [SOURCE, TARGET]);
        }
        rig.until(|r| r.see(1, TARGET) == 5);
        rig.put(1, 8 * page, 0);
        rig.store(1, 0xC008, &[(1 << 60) | page]);
        rig.store(1, 0xC008, &[(4 << 60) | answer]);
        if right {
            rig.until(|r| r.see(1, answer) != 0);
        }
        rig.put(1, TARGET, 77);
        while rig.step() {}
        rig.see(1, TARGET) == 77
    });
}

/// Wrong assumption: "all data in flight during a flush arrives before the notification that
/// follows the flush". This order is guaranteed only if a fence is between the flush and the
/// notification (HW §11.3, G17).
#[test]
fn a_page_that_was_not_fenced() {
    let timing = format!("{UNKIND}\ndma-delay-ns = 200000\n[nic]\natu-notify = \"own-way\"");
    let lost = format!("{timing}\nfaults = {{ atu-lose-every = 2 }}");
    let run = |rig: &mut Rig, fence: bool, one_before: bool| {
        rig.translate();
        let (page, answer) = (TARGET >> 12, 0x8000);
        rig.put(0, SOURCE, 5);
        for tc in 0..24 {
            rig.rma_te(2, 0, 8, [SOURCE, TARGET + 8 * (tc % 2)]);
        }
        rig.until(|r| r.world.chip_counters(1).dma_writes > 0);
        rig.put(1, 8 * page, 0);
        if one_before {
            rig.store(1, 0xC008, &[(4 << 60) | (answer + 16)]);
        }
        rig.store(1, 0xC008, &[(1 << 60) | page]);
        if fence {
            rig.store(1, 0xC008, &[(3 << 60) | (answer + 8)]);
        }
        rig.store(1, 0xC008, &[(4 << 60) | answer]);
        rig.until(|r| r.see(1, answer) != 0);
        for k in 0..2 {
            rig.put(1, TARGET + 8 * k, 77);
        }
        while rig.step() {}
        (0..2).all(|k| rig.see(1, TARGET + 8 * k) == 77)
    };
    compare_with(&timing, "no fence", |rig, right| run(rig, right, false));
    // The second answer, which is that of the fence, gets lost. The fence must work nevertheless.
    let wrong = wrong_runs(&lost, |rig| run(rig, true, true));
    assert_eq!(wrong, 0, "the fence holds without its answer");
}

/// Wrong assumption: "each arrival raises an interrupt". With `irq-missed`
/// = `forget`, an arrival while interrupts are masked raises no interrupt (G7). Software must check
/// the queue once more after a register read, because earlier writes of the chip may be in flight.
#[test]
fn a_sleep_without_another_look() {
    let timing = format!("{UNKIND}\n[nic]\nirq-missed = \"forget\"");
    compare_with(&timing, "sleep without a look", |rig, right| {
        let (mut read, mut entries) = (0, 0);
        rig.interrupts();
        for k in 0..ROUNDS {
            rig.velo(VPID, 0, true, k);
            for _ in 0..k % 4 {
                rig.step();
            }
        }
        loop {
            if rig.interrupts() == 0 {
                // Events run one by one, so interrupts arrive at different points of the loop.
                if !rig.step() {
                    break;
                }
            } else {
                while rig.see(1, RING + 64 * entries + 56) >> 63 != 0 {
                    entries += 1;
                }
                rig.store(1, 0x10038, &[(entries + 255) & 255]);
                rig.store(1, 0x10040, &[0x1_0000 | (entries + 1)]);
                loop {
                    let before = read;
                    while rig.message(1, read).is_some() {
                        read += 1;
                    }
                    // One event may run between the check and the store that arms.
                    rig.step();
                    rig.store(1, 0xD0_0000 + 0x1000 * VPID, &[(1 << 32) | read]);
                    if right {
                        let mut raw = [0; 8];
                        assert!(rig.world.load(1, 0, 0xC0_2800 + 8 * VPID, &mut raw));
                    }
                    if !right || (read == before && rig.message(1, read).is_none()) {
                        break;
                    }
                }
            }
        }
        read == ROUNDS
    });
}

/// Wrong assumption: "an entry of the SNQ reports one VPID". An entry reports all VPIDs that raised
/// interrupts before its program read the vector (HW §6.5).
#[test]
fn the_lowest_bit_of_a_vector() {
    compare("one VPID per interrupt", |rig, right| {
        rig.more_queues();
        let vpids = VPID..VPID + 3;
        for vpid in vpids.clone() {
            rig.velo_to(vpid, true, vpid);
        }
        while rig.step() {}
        let mut woken = 0u64;
        for k in 0.. {
            let at = RING + 64 * k;
            if rig.see(1, at + 56) >> 63 == 0 {
                break;
            }
            let vector = rig.see(1, at + 24);
            woken |= match right {
                true => vector,
                false => vector & vector.wrapping_neg(),
            };
        }
        vpids.fold(0, |all, v| all | (1 << v)) == woken
    });
}

/// Reader of the mailbox of 32 slots, which behaves like software (HW §9.5).
struct Mailbox {
    taken: u64,
    got: Vec<u64>,
}

impl Mailbox {
    fn take(&mut self, rig: &mut Rig) {
        let slot = self.taken % 32;
        if let Some(text) = rig.message(1, slot) {
            self.got.push(text);
            rig.put(1, MAILBOX + 128 * slot + 120, 0);
            self.taken += 1;
            let rp = self.taken % 32;
            rig.store(1, 0xD0_0000 + 0x1000 * VPID, &[rp]);
        }
    }
}

/// Options with minimum buffer sizes, so that a slow receiver soon blocks the sender.
const NARROW: &str = "model = \"unkind\"\nqueue-limit = LIMIT\n[network]\ninput-buffer-bytes = 600\nnp-buffer-bytes = 600";

fn state(rig: &mut Rig) -> State {
    State(rig.world.peek(0, 0x100_0000 + 0x1000 * VPID as u32))
}

/// Sender that follows the protocol of HW §8.
struct Sender {
    credits: Credits,
    copies: [u64; 256],
    turn: u32,
    repairs: u32,
    waits: u32,
}

impl Sender {
    /// Runs one event. The receiver reads a message at every fourth call, and when no event is
    /// pending.
    fn pass(&mut self, rig: &mut Rig, mailbox: &mut Mailbox) {
        self.turn += 1;
        if !rig.step() || self.turn % 4 == 0 {
            mailbox.take(rig);
        }
    }

    /// Returns true if all sent messages count as committed.
    fn poll(&mut self, rig: &mut Rig, mailbox: &mut Mailbox) -> bool {
        self.pass(rig, mailbox);
        match self.credits.on_state(state(rig)) {
            Verdict::Ok { outstanding } => return outstanding == 0,
            Verdict::Full => self.waits += 1,
            Verdict::Retry { .. } => self.repair(rig, mailbox),
            other => panic!("{other}"),
        }
        false
    }

    fn repair(&mut self, rig: &mut Rig, mailbox: &mut Mailbox) {
        self.repairs += 1;
        let mut machine = Replay::new();
        let mut action = machine.start();
        while action != Action::Done {
            let event = match action {
                Action::ReadState => {
                    self.pass(rig, mailbox);
                    Event::State(state(rig))
                }
                Action::WriteState(value) => {
                    let at = 0x100_0000 + 0x1000 * VPID as u32;
                    rig.world.poke(0, at, value.raw());
                    Event::Written
                }
                Action::Send(slot) => {
                    rig.velo(VPID, 0, false, self.copies[usize::from(slot)]);
                    Event::Sent
                }
                Action::Done => break,
                Action::Failed(why) => panic!("{why}"),
            };
            action = machine.step(&mut self.credits, event);
        }
    }

    fn send(&mut self, rig: &mut Rig, mailbox: &mut Mailbox, text: u64) {
        let slot = loop {
            if let Some(slot) = self.credits.take() {
                break slot;
            }
            self.poll(rig, mailbox);
        };
        self.copies[usize::from(slot)] = text;
        rig.velo(VPID, 0, false, text);
    }
}

/// Wrong assumption: "every stored message arrives". A slow receiver fills the buffers of the
/// network, then those of the requester (HW §8, §9.6), which rejects messages. A sender that
/// follows the protocol of HW §8 repeats rejected messages. All messages then arrive once and in
/// order.
#[test]
fn a_slow_receiver() {
    const MESSAGES: u64 = 500;
    let (mut repairs, mut waits) = (0, 0);
    for seed in 0..8 {
        for careful in [false, true] {
            // If software polls rarely, the state register fills up before it requests a replay.
            let (every, limit) = match seed % 2 {
                0 => (8, "[16, 32]"),
                _ => (u64::MAX, "[4096, 4096]"),
            };
            let timing = format!("{NARROW}\n[nic]\nhold-buffer-bytes = 600");
            let mut rig = Rig::new(seed, &timing.replace("LIMIT", limit));
            let (taken, got) = (0, Vec::new());
            let mut mailbox = Mailbox { taken, got };
            let mut sender = Sender {
                credits: Credits::new(),
                copies: [0; 256],
                turn: 0,
                repairs: 0,
                waits: 0,
            };
            for n in 0..MESSAGES {
                if !careful {
                    rig.velo(VPID, 0, false, n);
                    sender.pass(&mut rig, &mut mailbox);
                    continue;
                }
                sender.send(&mut rig, &mut mailbox, n);
                if n % every == every - 1 {
                    sender.poll(&mut rig, &mut mailbox);
                }
            }
            while careful && !sender.poll(&mut rig, &mut mailbox) {}
            for _ in 0..20 * MESSAGES {
                sender.pass(&mut rig, &mut mailbox);
            }
            let all: Vec<u64> = (0..MESSAGES).collect();
            if careful {
                assert_eq!(mailbox.got, all, "seed {seed}");
            } else if seed % 2 == 0 {
                assert_ne!(mailbox.got, all, "seed {seed}: no message was rejected");
            }
            repairs += sender.repairs;
            waits += sender.waits;
        }
    }
    assert!(repairs > 4 && waits > 20, "{repairs} {waits}");
}
