//! Tests of questions to a unit that loses and delays answers. No ticket is answered by the answer
//! to an earlier question, and all tickets are answered when answers arrive again.

use proptest::prelude::*;
use protocol::nic::tickets::{Ask, Ticket, Tickets};
use std::collections::{HashSet, VecDeque};

/// Command: a flush for which a context waits, or a question.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Command {
    Flush,
    Write(usize),
}

/// State of driver and unit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    tickets: Tickets,
    words: Vec<bool>,
    /// Commands that were issued and not executed yet.
    queue: VecDeque<Command>,
    /// Words of executed questions whose writes are delayed, in order.
    writes: VecDeque<usize>,
    given: u64,
    flushed: u64,
    /// Tickets, each with the number of flushes that were issued before.
    out: Vec<(Ticket, u64)>,
}

impl World {
    fn new(words: usize) -> Self {
        Self {
            tickets: Tickets::new(words as u32),
            words: vec![false; words],
            queue: VecDeque::new(),
            writes: VecDeque::new(),
            given: 0,
            flushed: 0,
            out: Vec::new(),
        }
    }

    fn look(&mut self) {
        let words = &self.words;
        self.tickets.check(|i| words[i]);
    }

    fn ask(&mut self) -> Option<Ticket> {
        self.look();
        match self.tickets.ask() {
            Ask::New(ticket, word) => {
                self.words[word] = false;
                self.queue.push_back(Command::Write(word));
                self.out.push((ticket, self.given));
                Some(ticket)
            }
            Ask::Again(word) => {
                self.queue.push_back(Command::Write(word));
                None
            }
        }
    }

    fn flush(&mut self) {
        self.given += 1;
        self.queue.push_back(Command::Flush);
    }

    /// Executes the next command. The answer may be lost.
    fn execute(&mut self, lose: bool) {
        match self.queue.pop_front() {
            Some(Command::Flush) => self.flushed += 1,
            Some(Command::Write(word)) if !lose => self.writes.push_back(word),
            _ => {}
        }
    }

    fn arrive(&mut self) {
        if let Some(word) = self.writes.pop_front() {
            self.words[word] = true;
        }
    }

    /// Checks for each answered ticket that all earlier flushes were executed.
    fn check(&mut self) {
        self.look();
        for (ticket, flushes) in &self.out {
            if self.tickets.is_answered(*ticket) {
                assert!(
                    self.flushed >= *flushes,
                    "{ticket:?} is answered too early: {self:?}"
                );
            }
        }
        let open = self.tickets.asked() - self.tickets.answered();
        assert!(open < self.words.len() as u64, "{open} open");
    }
}

/// Explores all sequences of `steps` steps. The number of words is so small that each word is
/// reused.
fn explore(world: World, steps: u32, seen: &mut HashSet<(World, u32)>) {
    if steps == 0 || !seen.insert((world.clone(), steps)) {
        return;
    }
    let mut go = |f: &dyn Fn(&mut World)| {
        let mut next = world.clone();
        f(&mut next);
        if next != world {
            next.check();
            explore(next, steps - 1, seen);
        }
    };
    go(&|w| {
        w.flush();
        w.ask();
    });
    go(&|w| {
        w.ask();
    });
    go(&|w| w.execute(false));
    go(&|w| w.execute(true));
    go(&|w| w.arrive());
}

#[test]
fn no_answer_is_taken_for_another_in_any_order() {
    for words in [2, 3] {
        explore(World::new(words), 9, &mut HashSet::new());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Flush,
    Ask,
    Execute(bool),
    Arrive,
}

proptest! {
    #[test]
    fn answers_are_right_and_come_in_the_end(
        words in 2usize..6,
        steps in prop::collection::vec(prop_oneof![
            1 => Just(Step::Flush),
            2 => Just(Step::Ask),
            2 => any::<bool>().prop_map(Step::Execute),
            2 => Just(Step::Arrive),
        ], 0..300),
    ) {
        let mut w = World::new(words);
        for step in steps {
            match step {
                Step::Flush => w.flush(),
                Step::Ask => {
                    w.ask();
                }
                Step::Execute(lose) => w.execute(lose),
                Step::Arrive => w.arrive(),
            }
            w.check();
        }
        // Without further losses, the answer to one more question, new or repeated, answers all
        // tickets.
        w.ask();
        while !w.queue.is_empty() || !w.writes.is_empty() {
            w.execute(false);
            w.arrive();
            w.check();
        }
        prop_assert!(w.out.iter().all(|(t, _)| w.tickets.is_answered(*t)));
        // The next question is new, and not repeated.
        prop_assert!(w.ask().is_some());
    }
}

#[test]
fn a_unit_that_loses_all_answers_is_asked_again_for_nobody_new() {
    let mut w = World::new(4);
    let tickets: Vec<_> = (0..10).map(|_| w.ask()).collect();
    assert_eq!(tickets.iter().flatten().count(), 3);
    for _ in 0..10 {
        w.execute(true);
    }
    assert_eq!(w.ask(), None);
    w.execute(false);
    w.arrive();
    w.check();
    assert!(tickets.iter().flatten().all(|t| w.tickets.is_answered(*t)));
}
