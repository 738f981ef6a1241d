//! Tests of the end of a translation in every order of its contexts: owner, MMU notifier, work
//! item, unbinding, and a NIC that answers late or never.

use protocol::base::flow::Flow;
use protocol::nic::tickets::{Ask, Ticket, Tickets};
use protocol::nic::translation::{
    Answer, Effect, Event, Flush, Generation, Lifecycle, Next, Pages, Phase, Why,
};
use std::collections::{HashSet, VecDeque};

const WORDS: usize = 3;

/// Commands to the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Command {
    Flush,
    Write(usize),
}

/// Context that ends the translation. It can be interrupted between any two steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Party {
    kind: Kind,
    generation: Generation,
    at: At,
    /// Number of times that the context asked the NIC while the translation was in quarantine.
    asked: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    /// Calls `revoke`, and returns if the NIC does not answer.
    Owner,
    /// Begins the end in a context that cannot wait, and leaves the remaining steps to the work
    /// item.
    Notifier,
    /// Completes ends that were begun, and returns for translations in quarantine.
    Worker,
    /// Leaves the end to the reaper, and begins it in a context that cannot wait.
    Dropper,
    /// Completes the ends that were left to the reaper, in any generation, when the reaper is
    /// scheduled.
    Reaper,
    /// Waits for the NIC on behalf of other translations, then ends this translation too.
    Batch,
    /// Acts like the owner, then disables the NIC's access to memory, and frees memory and NLAs.
    Unbind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Leave,
    List,
    Next,
    Zero,
    Flush,
    Count,
    Zeroed(Flush),
    Ask,
    Wait(Flush, Option<Ticket>),
    Free,
    GiveBack,
    Released,
    CutOff,
    /// Finished, with the result for this generation.
    End(Outcome),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Outcome {
    Over,
    Quarantined,
    Begun,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    life: Lifecycle,
    tickets: Tickets,
    words: [bool; WORDS],
    queue: VecDeque<Command>,
    flushes: u64,
    /// True if the entries translate to memory.
    entries: bool,
    /// True if the NIC caches the translation.
    cached: bool,
    /// True if the NIC can access host memory.
    master: bool,
    /// True if the memory belongs to the region and was not freed.
    memory: bool,
    /// Number of generations that were freed.
    given_back: u8,
    /// Number of times that the entries were used again.
    again: u8,
    /// Number of answers that may be lost.
    losses: u8,
    /// True if the reaper is scheduled.
    listed: bool,
    /// Last generation that was left to the reaper.
    left: Option<Generation>,
    parties: Vec<Party>,
}

impl World {
    fn new(kinds: &[Kind], losses: u8) -> Self {
        let life = Lifecycle::new();
        let generation = life.generation();
        Self {
            life,
            tickets: Tickets::new(WORDS as u32),
            words: [false; WORDS],
            queue: VecDeque::new(),
            flushes: 0,
            entries: true,
            cached: true,
            master: true,
            memory: true,
            given_back: 0,
            again: 0,
            losses,
            listed: false,
            left: None,
            parties: kinds
                .iter()
                .map(|kind| Party {
                    kind: *kind,
                    generation,
                    at: match kind {
                        Kind::Batch => At::Ask,
                        Kind::Dropper => At::Leave,
                        Kind::Reaper => At::List,
                        _ => At::Next,
                    },
                    asked: 0,
                })
                .collect(),
        }
    }

    fn ask(&mut self) -> Option<Ticket> {
        self.look();
        match self.tickets.ask() {
            Ask::New(ticket, word) => {
                self.words[word] = false;
                self.queue.push_back(Command::Write(word));
                Some(ticket)
            }
            Ask::Again(word) => {
                self.queue.push_back(Command::Write(word));
                None
            }
        }
    }

    fn look(&mut self) {
        let words = self.words;
        self.tickets.check(|i| words[i]);
    }

    fn is_answered(&mut self, ticket: Option<Ticket>) -> bool {
        self.look();
        ticket.is_some_and(|t| self.tickets.is_answered(t))
    }

    /// Returns the possible next steps of context `n`, as the states that follow.
    fn moves(&self, n: usize) -> Vec<World> {
        let (party, life) = (&self.parties[n], &self.life);
        let generation = party.generation;
        let go = |f: &dyn Fn(&mut World) -> At| {
            let mut w = self.clone();
            let at = f(&mut w);
            w.parties[n].at = at;
            vec![w]
        };
        match party.at {
            At::End(_) => vec![],
            At::Leave => go(&|w| {
                if w.life.next(generation) == Next::Done {
                    return At::End(Outcome::Over);
                }
                w.life.defer(generation);
                w.left = Some(generation);
                At::Next
            }),
            At::List if party.kind == Kind::Dropper => go(&|w| {
                w.listed = true;
                At::End(Outcome::Begun)
            }),
            At::List if self.listed => go(&|w| {
                w.listed = false;
                match w.life.deferred() {
                    Some((left, _)) => {
                        w.parties[n].generation = left;
                        At::Next
                    }
                    None => At::List,
                }
            }),
            At::List => vec![],
            At::Next => match life.next(generation) {
                Next::Revoke => go(&|w| {
                    let theirs = party.kind == Kind::Reaper && w.left != Some(generation);
                    assert!(!theirs, "ends a generation that was not left to it: {w:?}");
                    if w.life.revoke(generation) {
                        At::Zero
                    } else {
                        At::Next
                    }
                }),
                // The notifier does nothing for an end that has begun.
                _ if party.kind == Kind::Notifier => go(&|_| At::End(Outcome::Begun)),
                _ if party.kind == Kind::Dropper => go(&|_| At::List),
                Next::Zeroing | Next::Releasing => vec![],
                Next::Ask(_) => go(&|_| At::Ask),
                Next::CheckTicket(ticket) => match party.kind {
                    Kind::Owner | Kind::Batch => go(&|_| At::End(Outcome::Quarantined)),
                    Kind::Unbind => go(&|_| At::CutOff),
                    // Limit the number of questions, so that all orders terminate.
                    _ if party.asked == 2 => vec![],
                    _ => go(&|w| {
                        if w.is_answered(ticket) {
                            w.life.forgotten(generation, Why::Answered);
                        } else {
                            w.parties[n].asked += 1;
                            let next = w.ask();
                            w.life.asked_again(generation, next);
                        }
                        At::Next
                    }),
                },
                Next::Release => go(&|w| {
                    if w.life.release(generation) {
                        At::Free
                    } else {
                        At::Next
                    }
                }),
                Next::Done if party.kind == Kind::Reaper => go(&|_| At::List),
                Next::Done => go(&|_| At::End(Outcome::Over)),
            },
            At::Zero => go(&|w| {
                w.entries = false;
                At::Flush
            }),
            At::Flush => go(&|w| {
                w.queue.push_back(Command::Flush);
                At::Count
            }),
            At::Count => go(&|w| {
                w.flushes += 1;
                At::Zeroed(Flush(w.flushes))
            }),
            At::Zeroed(flush) => go(&|w| {
                w.life.zeroed(generation, flush);
                At::Next
            }),
            At::Ask => go(&|w| {
                let upto = Flush(w.flushes);
                At::Wait(upto, w.ask())
            }),
            At::Wait(upto, ticket) => {
                let answered = self.clone().is_answered(ticket);
                // Without an answer, the deadline may pass at any time.
                let result = if answered { Ok(()) } else { Err(ticket) };
                go(&|w| {
                    w.life.answered(generation, Answer { upto, result });
                    At::Next
                })
            }
            At::Free => go(&|w| {
                assert!(w.memory, "freed twice: {w:?}");
                w.memory = false;
                At::GiveBack
            }),
            At::GiveBack => go(&|w| {
                w.given_back += 1;
                At::Released
            }),
            At::Released => go(&|w| {
                w.life.released(generation);
                At::Next
            }),
            At::CutOff => go(&|w| {
                w.master = false;
                w.life.forgotten(generation, Why::CutOff);
                At::Next
            }),
        }
    }

    /// Returns the possible next steps of the NIC.
    fn nic(&self) -> Vec<World> {
        let mut all = vec![];
        if let Some(command) = self.queue.front() {
            let mut w = self.clone();
            w.queue.pop_front();
            match *command {
                Command::Flush => w.cached = false,
                Command::Write(word) => {
                    if self.losses != 0 {
                        let mut lost = w.clone();
                        lost.losses -= 1;
                        all.push(lost);
                    }
                    w.words[word] = true;
                }
            }
            all.push(w);
        }
        if self.entries && !self.cached {
            let mut w = self.clone();
            w.cached = true;
            all.push(w);
        }
        all
    }

    /// Uses the entries for other memory, whose owner ends the new translation.
    fn again(&self) -> Vec<World> {
        let unbinding = self.parties.iter().any(|p| p.kind == Kind::Unbind);
        let mut w = self.clone();
        if unbinding || self.again == 1 {
            return vec![];
        }
        let Some(generation) = w.life.begin_again() else {
            return vec![];
        };
        w.again += 1;
        w.memory = true;
        w.entries = true;
        w.parties.push(Party {
            kind: Kind::Owner,
            generation,
            at: At::Next,
            asked: 0,
        });
        vec![w]
    }

    fn check(&self) {
        let reach = self.master && (self.entries || self.cached);
        assert!(
            self.memory || !reach,
            "the NIC has access to freed memory: {self:?}"
        );
        assert!(self.given_back <= 1 + self.again, "{self:?}");
        let phase = self.life.phase();
        for party in &self.parties {
            if party.at == At::End(Outcome::Over) && party.generation == self.life.generation() {
                assert!(phase == Phase::Gone && !self.memory, "not freed: {self:?}");
            }
        }
        if phase == Phase::Gone {
            assert_eq!(self.given_back, 1 + self.again, "{self:?}");
        }
    }
}

/// Explores all orders. Returns the number of states, and the phases in which no context can
/// continue.
fn explore(first: World) -> (usize, HashSet<Phase>) {
    let mut seen = HashSet::new();
    let mut ends = HashSet::new();
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        world.check();
        let mut parties: Vec<_> = (0..world.parties.len())
            .flat_map(|n| world.moves(n))
            .collect();
        if parties.is_empty() && world.queue.is_empty() {
            ends.insert(world.life.phase());
        }
        parties.extend(world.nic());
        parties.extend(world.again());
        open.extend(parties);
    }
    (seen.len(), ends)
}

#[test]
fn whoever_comes_first_memory_goes_once_and_not_too_early() {
    use Kind::{Batch, Dropper, Notifier, Owner, Reaper, Unbind, Worker};
    for (kinds, losses) in [
        (&[Owner][..], 1),
        (&[Owner, Owner], 1),
        (&[Owner, Worker], 2),
        (&[Notifier, Worker], 2),
        (&[Owner, Notifier, Worker], 1),
        (&[Dropper, Reaper], 2),
        (&[Dropper, Dropper, Reaper], 1),
        (&[Owner, Dropper, Reaper], 1),
        (&[Batch, Owner], 1),
        (&[Batch, Notifier], 1),
        (&[Owner, Unbind], 1),
        (&[Notifier, Worker, Unbind], 1),
    ] {
        let (worlds, ends) = explore(World::new(kinds, losses));
        // A translation may remain in quarantine if all contexts have returned before the NIC
        // answered.
        let allowed: HashSet<_> = match kinds.last() {
            Some(Unbind) => [Phase::Gone].into(),
            _ => [Phase::Gone, Phase::Quarantined].into(),
        };
        assert!(ends.contains(&Phase::Gone), "{kinds:?}: {ends:?}");
        assert!(ends.is_subset(&allowed), "{kinds:?}: {ends:?}");
        assert!(worlds > 20, "{kinds:?}: {worlds} worlds");
    }
}

/// A late work item of an earlier generation has no effect.
#[test]
fn lives_are_told_apart() {
    let mut life = Lifecycle::new();
    let first = life.generation();
    let answer = |upto, result| Answer {
        upto: Flush(upto),
        result,
    };
    assert!(life.revoke(first) && !life.revoke(first));
    life.zeroed(first, Flush(7));
    assert_eq!(life.next(first), Next::Ask(Flush(7)));
    // A result for an earlier flush has no effect, whether it is an answer or a time-out.
    assert_eq!(life.answered(first, answer(6, Ok(()))), Effect::None);
    assert_eq!(life.answered(first, answer(6, Err(None))), Effect::None);
    assert!(!life.forgotten(first, Why::Answered));
    assert_eq!(life.answered(first, answer(7, Ok(()))), Effect::Forgotten);
    assert!(life.release(first) && !life.release(first));
    assert_eq!(life.begin_again(), None);
    life.released(first);
    let second = life.begin_again().unwrap();
    assert_ne!(first, second);
    assert!(!life.revoke(first));
    assert_eq!(life.next(first), Next::Done);
    assert_eq!(life.next(second), Next::Revoke);
    assert!(life.revoke(second));
    life.zeroed(second, Flush(9));
    assert!(!life.forgotten(first, Why::CutOff));
    assert_eq!(life.answered(first, answer(9, Ok(()))), Effect::None);
    assert_eq!(life.answered(first, answer(9, Err(None))), Effect::None);
    assert_eq!(life.next(second), Next::Ask(Flush(9)));
    assert_eq!(
        life.answered(second, answer(9, Err(None))),
        Effect::Quarantined
    );
    let mut tickets = Tickets::new(4);
    let Ask::New(ticket, _) = tickets.ask() else {
        panic!("no ticket");
    };
    life.asked_again(first, Some(ticket));
    assert_eq!(life.next(second), Next::CheckTicket(None));
    life.asked_again(second, Some(ticket));
    assert_eq!(life.next(second), Next::CheckTicket(Some(ticket)));
}

/// A work item ends the generation that was left to it, and no later generation.
#[test]
fn a_worker_ends_only_what_was_left_to_it() {
    let mut life = Lifecycle::new();
    let first = life.generation();
    assert_eq!(life.deferred(), None);
    // The end is left to the work item before it has begun, because it takes long.
    life.defer(first);
    assert_eq!(life.deferred(), Some((first, Next::Revoke)));
    assert!(life.revoke(first));
    assert_eq!(life.deferred(), Some((first, Next::Zeroing)));
    life.zeroed(first, Flush(1));
    let answer = Answer {
        upto: Flush(1),
        result: Ok(()),
    };
    assert_eq!(life.answered(first, answer), Effect::Forgotten);
    assert!(life.release(first));
    assert_eq!(life.deferred(), Some((first, Next::Releasing)));
    life.released(first);
    assert_eq!(life.deferred(), None);
    // The generation has ended already.
    life.defer(first);
    let second = life.begin_again().unwrap();
    assert_eq!(life.deferred(), None);
    // The generation has been replaced.
    life.defer(first);
    assert_eq!(life.deferred(), None);
    life.defer(second);
    assert_eq!(life.deferred(), Some((second, Next::Revoke)));
}

#[test]
fn suspects_are_gathered_while_it_lives() {
    let pages = |first, end| Pages { first, end };
    let mut life = Lifecycle::new();
    let generation = life.generation();
    assert_eq!(life.take_replaced_pages(), None);
    assert!(life.suspect(pages(5, 6)) && life.suspect(pages(2, 3)));
    assert_eq!(life.take_replaced_pages(), Some(pages(2, 6)));
    assert!(life.suspect(pages(1, 2)));
    assert!(life.revoke(generation));
    assert_eq!(life.take_replaced_pages(), None);
    assert!(!life.suspect(pages(1, 2)));
}

/// Compares the transitions with the table of all permitted transitions.
#[test]
fn phases_have_these_successors_and_no_others() {
    let all: Vec<String> = Phase::STATES
        .iter()
        .flat_map(|s| Phase::EVENTS.iter().map(move |e| (s, e)))
        .filter_map(|(s, e): (&Phase, &Event)| Some(format!("{s}+{e}={}", s.next(*e)?)))
        .collect();
    assert_eq!(
        all.join(" "),
        "Live+Revoke=Zeroing Zeroing+Zeroed=Flushed Flushed+Answered=Forgotten \
         Flushed+TimedOut=Quarantined Flushed+CutOff=Forgotten Quarantined+Answered=Forgotten \
         Quarantined+CutOff=Forgotten Forgotten+Release=Releasing Releasing+Released=Gone \
         Gone+Again=Live"
    );
}
