//! Tests of requester pages that change owner. Words that the last owner stored, complete or in
//! flight, must not affect the commands and counts of the next owner (HW §8, G8, G11).

use super::requester::store_words;
use super::rig::*;
use super::rma::desc;
use extoll_emulator::nic::{NicConfig, WriteCombining};
use protocol::nic::reclaim::{stores, Action, Event, Outcome, Reclaim};
use wire::ids::{RegOffset, Unit, Vpid};
use wire::regs::wcbuf;
use wire::rma::{Notification, NotifySpec, Operation, PageOptions, RequesterAddr};
use wire::velo::{DescriptorWord, SlotSize};
use wire::wcbuf::{State, MARK};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const OWNER: u8 = 5;
const WITNESS: u8 = 9;
/// Maximum time in µs for which the driver waits.
const PATIENCE: u64 = 10_000;
/// Value in the words that the last owner stored without completing them.
const LEFT: u64 = 0xDEAD;

/// A requester unit as its owners see it.
struct Requester {
    rig: Rig,
    unit: Unit,
    /// Offset in BAR 0 of each requester page of the VPID.
    pages: Vec<u64>,
    /// Returns the words of a command that writes a value to the witness queue, which the test
    /// reads.
    command: fn(u64) -> Vec<u64>,
    /// Words of a command without a visible effect.
    nothing: Vec<u64>,
    marks: bool,
}

fn rma_words(node: u16, vpid: u8, notify: NotifySpec, value: u64) -> Vec<u64> {
    let op = Operation::NotificationPut { class: 0, value };
    let words = desc(node, vpid, notify, op).encode().expect("legal");
    words.to_vec()
}

fn velo_words(node: u16, vpid: u8, len: u16, value: u64) -> Vec<u64> {
    let d = DescriptorWord(0)
        .with_target(node)
        .with_vpid(vpid.into())
        .with_len(len);
    let mut words = vec![d.raw()];
    words.resize(1 + usize::from(len) / 8, value);
    words
}

impl Requester {
    fn new(unit: Unit, mut cfg: NicConfig, lines: bool) -> (Self, Queue) {
        if lines {
            cfg.wc = WriteCombining::Lines;
        }
        let mut rig = Rig::with_config(2, cfg);
        rig.probe_all(SlotSize::B128);
        let witness = match unit {
            Unit::Velo => rig.open_velo(1, WITNESS, SlotSize::B128, 4, 256),
            Unit::Rma => rig.open_rma(1, WITNESS, 4, 256),
        };
        match unit {
            Unit::Velo => drop(rig.open_velo(0, OWNER, SlotSize::B128, 1, 64)),
            Unit::Rma => drop(rig.open_rma(0, OWNER, 1, 64)),
        }
        let vpid = Vpid::from(OWNER);
        let rma = |p: u8| RequesterAddr::page(vpid, PageOptions::from_index(p)).encode();
        let (pages, nothing): (Vec<u64>, _) = match unit {
            Unit::Velo => {
                let page = wire::velo::RequesterAddr::page(vpid, 0).encode();
                let at = 0x0200_0000 + u64::from(page);
                (vec![at], velo_words(0, OWNER, 120, 0))
            }
            Unit::Rma => (
                [16, 17, 18, 19, 24, 25, 26, 27]
                    .map(|p| 0x0400_0000 + u64::from(rma(p)))
                    .to_vec(),
                rma_words(0, OWNER, NotifySpec::NONE, 0),
            ),
        };
        let command: fn(u64) -> Vec<u64> = match unit {
            Unit::Velo => |value| velo_words(1, WITNESS, 120, value),
            Unit::Rma => |value| {
                let completer = NotifySpec {
                    completer: true,
                    ..NotifySpec::NONE
                };
                rma_words(1, WITNESS, completer, value)
            },
        };
        let this = Self {
            rig,
            unit,
            pages,
            command,
            nothing,
            marks: lines,
        };
        (this, witness)
    }

    fn register(&self) -> RegOffset {
        wcbuf::state(self.unit, Vpid::from(OWNER))
    }

    fn state(&mut self) -> State {
        let register = self.register();
        State(self.rig.read(0, register))
    }

    fn pass(&mut self, ns: u64) {
        self.rig.nodes[0].ram.now += ns;
        self.rig.tick(0);
    }

    fn fence(&mut self, page: usize) {
        if self.marks {
            let at = self.pages[page] + u64::from(MARK);
            self.rig.store(0, 0, at, &[0; 8]);
        }
    }

    fn word(&mut self, page: usize, index: usize, value: u64) {
        store_words(&mut self.rig, self.pages[page] + 8 * index as u64, &[value]);
        self.fence(page);
    }

    fn post(&mut self, page: usize, value: u64) {
        let words = (self.command)(value);
        store_words(&mut self.rig, self.pages[page], &words);
        self.fence(page);
    }

    /// Performs the driver's steps for a VPID that changes owner.
    fn erase(&mut self) -> Outcome {
        let us = |this: &Self| this.rig.nodes[0].ram.now / US;
        self.fence(0);
        let register = self.register();
        let mut machine = Reclaim::new(self.pages.len() as u8, PATIENCE, us(self));
        let mut action = machine.start();
        loop {
            let event = match action {
                Action::ReadState => {
                    self.pass(20 * US);
                    Event::State(self.state())
                }
                Action::Write(state) => {
                    self.rig.write(0, register, state.raw());
                    Event::Done
                }
                Action::Store(page) => {
                    for index in stores(self.nothing.len() as u8) {
                        let value = self.nothing[usize::from(index)];
                        self.word(page.into(), index.into(), value);
                    }
                    Event::Done
                }
                Action::End(outcome) => return outcome,
            };
            action = machine.step(event, us(self));
        }
    }

    fn taken(&mut self, witness: &mut Queue) -> Vec<u64> {
        let got = std::iter::from_fn(|| match self.unit {
            Unit::Velo => {
                let (_, data) = self.rig.velo_take(witness)?;
                assert!(
                    data.chunks(8).all(|w| w == &data[..8]),
                    "all words come from one message"
                );
                Some(u64::from_le_bytes(data[..8].try_into().expect("8 bytes")))
            }
            Unit::Rma => {
                let words = self.rig.rma_take(witness)?;
                let n = Notification::decode(words).expect("sense").expect("there");
                Some(n.word0)
            }
        })
        .collect();
        self.rig.commit(witness, false);
        got
    }

    /// Checks that commands of the next owner are executed only when they are complete, and that no
    /// other command is counted.
    fn check_heir(&mut self, witness: &mut Queue) {
        let fresh = self.state().fresh();
        let register = self.register();
        self.rig.write(0, register, fresh.raw());
        for page in 0..self.pages.len() {
            let words = (self.command)(1000 + page as u64);
            let (last, first) = words.split_last().expect("words");
            for (index, word) in first.iter().enumerate() {
                self.word(page, index, *word);
            }
            self.pass(200 * MS);
            assert_eq!(
                self.state(),
                State(fresh.raw() + page as u64),
                "page {page}"
            );
            assert!(self.taken(witness).is_empty(), "page {page}");
            self.word(page, first.len(), *last);
            self.pass(200 * MS);
            self.pass(200 * MS);
            assert_eq!(self.taken(witness), [1000 + page as u64]);
        }
        let counted = State(fresh.raw() + self.pages.len() as u64);
        assert_eq!(self.state(), counted);
    }
}

/// An incomplete command is never executed, and the next command is executed correctly, regardless
/// of the words that were left.
#[test]
fn whatever_words_are_left_the_page_is_empty() {
    for left in 1..7u8 {
        let (mut r, mut witness) = Requester::new(Unit::Rma, NicConfig::default(), false);
        let words = (r.command)(LEFT);
        for page in 0..r.pages.len() {
            for (i, word) in words
                .iter()
                .enumerate()
                .filter(|(i, _)| (left >> i) & 1 != 0)
            {
                r.word(page, i, *word);
            }
        }
        assert_eq!(r.erase(), Outcome::Empty, "{left:#b}");
        r.check_heir(&mut witness);
    }
    let mut rng = Rng(7);
    for _ in 0..200 {
        let (mut r, mut witness) = Requester::new(Unit::Velo, NicConfig::default(), false);
        let left = rng.below(0xFFFF);
        for (i, word) in (r.command)(LEFT).iter().enumerate() {
            if (left >> i) & 1 != 0 {
                r.word(0, i, *word);
            }
        }
        assert_eq!(r.erase(), Outcome::Empty, "{left:#b}");
        r.check_heir(&mut witness);
    }
}

/// The driver releases pages only after all commands of the last owner have been counted. This also
/// applies to a command that takes as long as the driver waits at most.
#[test]
fn what_is_on_its_way_is_waited_for() {
    let (mut unclear, mut at_once) = (0, 0);
    for seed in 1..=120 {
        let mut rng = Rng(seed);
        let unit = [Unit::Velo, Unit::Rma][rng.below(2) as usize];
        let wc_commit_ns = [0, MS, 9 * MS, 40 * MS][rng.below(4) as usize];
        let cfg = NicConfig {
            seed,
            wc_commit_ns,
            ..NicConfig::default()
        };
        let (mut r, mut witness) = Requester::new(unit, cfg, rng.below(2) == 0);
        let sent = rng.below(40);
        for value in 0..sent {
            let page = rng.below(r.pages.len() as u64) as usize;
            r.post(page, value);
        }
        let words = (r.command)(LEFT);
        for page in 0..r.pages.len() {
            // One random word is left out, so that the command stays incomplete.
            let missing = rng.below(words.len() as u64) as usize;
            for (i, word) in words.iter().enumerate() {
                if i != missing && rng.below(2) == 0 {
                    r.word(page, i, *word);
                }
            }
        }
        if rng.below(4) == 0 {
            let nonsense = State(0xFF00_0001_0000_0055).with_assembly(true);
            let register = r.register();
            r.rig.write(0, register, nonsense.raw());
        }
        let mut tries = 1;
        loop {
            match r.erase() {
                Outcome::Empty => break,
                Outcome::Unclear if tries < 100 => tries += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        if tries == 1 {
            at_once += 1;
        } else {
            unclear += 1;
        }
        let mut came = r.taken(&mut witness);
        came.sort_unstable();
        assert_eq!(came, (0..sent).collect::<Vec<_>>(), "seed {seed}");
        r.check_heir(&mut witness);
    }
    assert!(unclear > 10 && at_once > 10, "{unclear}, {at_once}");
}

/// The driver does not release pages while the buffer keeps words for ever, or while counts still
/// change.
#[test]
fn what_does_not_settle_is_left_alone() {
    let moving = |n: u64| State(n & 0xFF);
    let busy = |n: u64| State(0).with_assembly(n > 0);
    for state in [moving, busy] {
        let mut machine = Reclaim::new(8, PATIENCE, 0);
        let (mut action, mut now) = (machine.start(), 0);
        while !matches!(action, Action::End(_)) {
            now += 20;
            action = match action {
                Action::ReadState => machine.step(Event::State(state(now)), now),
                Action::Write(_) => machine.step(Event::Done, now),
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(action, Action::End(Outcome::Unclear));
        assert!(now <= 4 * PATIENCE);
    }
    let mut machine = Reclaim::new(8, PATIENCE, 0);
    let gone = Event::State(State(u64::MAX));
    assert_eq!(machine.step(gone, 20), Action::End(Outcome::Absent));
}
