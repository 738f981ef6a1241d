//! Tests of the lease word of a device behind a NIC without a host: acquisition by one node, and
//! detection of its loss.

use protocol::pci::accel::{
    CheckResult, Claim, ClaimStep, Goal, LossReason, Times, Unclaimed, Watch,
};
use protocol::Time;
use std::collections::BTreeSet;
use wire::accel::{LeaseRecord, LeaseWord, State, INTERVALS, LEASE, MAGIC};
use wire::ids::NodeId;

const TIMES: Times = Times {
    window: 50,
    claim_wait: 170,
    take_wait: 300,
    late_wait: 1000,
};
const TIMEOUT: u64 = 800;

fn record(state: State, node: u16, nonce: u32) -> LeaseRecord {
    LeaseRecord {
        state,
        node: NodeId(node),
        nonce,
    }
}

#[test]
fn the_word_has_its_form() {
    assert_eq!((LEASE.get(), INTERVALS.get()), (0x8058, 0x8060));
    let word = record(State::Lent, 0x1234, 0x89AB_CDEF).raw();
    assert_eq!(word, 0xACC3_1234_89AB_CDEF);
    assert_eq!(
        LeaseRecord::parse(word),
        Some(record(State::Lent, 0x1234, 0x89AB_CDEF))
    );
    // These are register values after a reset, and values of a NIC that does not answer.
    for none in [
        0,
        u64::MAX,
        0xACC0_0000_0000_0000,
        0xACC5_0000_0000_0000,
        0x1CC1_0000_0000_0000,
    ] {
        assert_eq!(LeaseRecord::parse(none), None, "{none:#x}");
    }
    assert_eq!(LeaseWord(word).magic(), MAGIC);
}

/// Node that borrows the device for some time.
struct Node {
    me: u16,
    claim: Option<Claim>,
    watch: Option<Watch>,
    /// Access in flight: time of the request, time of arrival at the NIC, time of arrival of the
    /// answer, and kind.
    on_way: Option<(u64, u64, u64, ClaimStep)>,
    /// Time before which the node is idle.
    idle: u64,
    until: u64,
    draws: u32,
}

/// Nodes and the lease word. Accesses are delayed, usually by a short time, sometimes by the
/// maximum time.
struct World {
    word: u64,
    now: u64,
    nodes: Vec<Node>,
    rng: u64,
    most: u64,
    /// Nodes that believe to have the device.
    had: BTreeSet<u16>,
    leases: u32,
    rewritten: u32,
    /// Leases that ended because of a late node.
    lost: u32,
    /// Maximum time for which a node is suspended between an answer and its next access.
    stall: u64,
    times: Times,
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng % below.max(1)
    }

    fn delay(&mut self) -> u64 {
        match self.draw(6) {
            0 => 1 + self.draw(self.most),
            _ => 1 + self.draw(8),
        }
    }

    fn send(&mut self, n: usize, step: ClaimStep) {
        let there = self.now + self.delay();
        let back = there + self.delay();
        self.nodes[n].on_way = Some((self.now, there, back, step));
    }

    /// Executes the next step of one node.
    fn turn(&mut self, n: usize) {
        let now = self.now;
        if let Some((sent, there, back, step)) = self.nodes[n].on_way {
            if there == now {
                if let ClaimStep::Write(word) = step {
                    self.word = word;
                }
            }
            // A read returns the word at the time of its arrival at the NIC. The answer arrives
            // later.
            if there == now && step == ClaimStep::Read {
                let word = self.word;
                self.nodes[n].on_way = Some((sent, u64::MAX, back, ClaimStep::Write(word)));
            }
            if back > now {
                return;
            }
            self.nodes[n].on_way = None;
            self.came(n, sent, there, step);
        }
        if self.nodes[n].idle > now {
            return;
        }
        self.begin(n);
    }

    fn came(&mut self, n: usize, sent: u64, there: u64, step: ClaimStep) {
        let (now, me) = (Time(self.now), self.nodes[n].me);
        let read = there == u64::MAX;
        let stall = match self.draw(8) {
            0 if self.nodes[n].claim.is_some() => self.draw(self.stall),
            _ => 0,
        };
        self.nodes[n].idle = self.now + stall;
        let ClaimStep::Write(word) = step else {
            return;
        };
        let node = &mut self.nodes[n];
        match (&mut node.claim, &mut node.watch) {
            (Some(claim), _) if read => claim.read(Time(sent), now, word),
            (Some(claim), _) => claim.written(),
            (None, Some(watch)) if read => {
                match watch.checked(Time(sent), now, Some((word, true))) {
                    CheckResult::Fine => node.idle = watch.next().0,
                    CheckResult::Rewrite(word) => {
                        self.rewritten += 1;
                        self.send(n, ClaimStep::Write(word));
                    }
                    // A late node is about to acquire the device. It waits until the owner has
                    // noticed the loss.
                    CheckResult::Lost(LossReason::Taken(State::Lent, _)) => {
                        assert!(self.had.remove(&me));
                        self.lost += 1;
                        node.watch = None;
                    }
                    CheckResult::Lost(why) => panic!("{me} lost it: {why:?}"),
                }
            }
            // The word is written again, or the device was returned.
            _ => {}
        }
    }

    fn begin(&mut self, n: usize) {
        let (now, me) = (self.now, self.nodes[n].me);
        if self.nodes[n].on_way.is_some() {
            return;
        }
        let next = self.nodes[n].claim.as_ref().map(Claim::next);
        match next {
            Some(ClaimStep::Wait(until)) => {
                self.nodes[n].idle = until.0;
                if now >= until.0 {
                    self.nodes[n].claim.as_mut().unwrap().waited(Time(now));
                    self.begin(n);
                }
            }
            Some(ClaimStep::Finished(Ok(record))) => {
                assert_eq!((record.state, record.node), (State::Lent, NodeId(me)));
                assert!(
                    self.had.insert(me) && self.had.len() == 1,
                    "two have it: {:?}",
                    self.had
                );
                self.leases += 1;
                let stays = 1 + self.draw(3000);
                let node = &mut self.nodes[n];
                node.claim = None;
                node.watch = Some(Watch::new(record, Time(now), TIMEOUT));
                node.until = now + stays;
            }
            Some(ClaimStep::Finished(Err(_))) => {
                let pause = 1 + self.draw(60);
                let node = &mut self.nodes[n];
                node.claim = None;
                node.idle = now + pause;
            }
            Some(step) => self.send(n, step),
            None if self.nodes[n].watch.is_some() => {
                let watch = self.nodes[n].watch.unwrap();
                if now < self.nodes[n].until {
                    return self.send(n, ClaimStep::Read);
                }
                // The node stops using the device before it writes the word.
                assert!(self.had.remove(&me));
                let free = watch.record().with(State::Free).raw();
                self.nodes[n].watch = None;
                self.nodes[n].idle = now + 2 * self.most + 1;
                self.send(n, ClaimStep::Write(free));
            }
            None => {
                let node = &mut self.nodes[n];
                node.draws += 1;
                let nonce = (u32::from(me) << 16) | node.draws;
                node.claim = Some(Claim::new(Goal::Borrow, NodeId(me), nonce, self.times));
                self.begin(n);
            }
        }
    }

    fn run(seed: u64, nodes: u16, most: u64, stall: u64, times: Times) -> Self {
        let free = record(State::Free, 0, 0).raw();
        let mut world = Self {
            word: free,
            now: 0,
            nodes: (1..=nodes)
                .map(|me| Node {
                    me,
                    claim: None,
                    watch: None,
                    on_way: None,
                    idle: 0,
                    until: 0,
                    draws: 0,
                })
                .collect(),
            rng: seed | 1,
            most,
            had: BTreeSet::new(),
            leases: 0,
            rewritten: 0,
            lost: 0,
            stall,
            times,
        };
        while world.now < 60_000 {
            world.now += 1;
            (0..world.nodes.len()).for_each(|n| world.turn(n));
        }
        world
    }
}

/// Two nodes never have the device at the same time, even if nodes are suspended. The condition is
/// that no access is in flight for longer than a claim must remain unchanged.
#[test]
fn one_has_it_at_a_time() {
    let (mut leases, mut rewritten, mut lost) = (0, 0, 0);
    for seed in 1..120u64 {
        let nodes = 2 + (seed % 4) as u16;
        // With half of the seeds, nodes may be suspended for longer than all waiting times.
        let stall = [0, 2500][(seed % 2) as usize];
        let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let world = World::run(seed, nodes, 110, stall, TIMES);
        leases += world.leases;
        rewritten += world.rewritten;
        lost += world.lost;
        assert!(world.leases > 3, "{} leases with seed {seed}", world.leases);
    }
    assert!(leases > 500, "{leases} leases");
    assert!(
        rewritten > 0 && lost > 0,
        "nobody was late: {rewritten}, {lost}"
    );
}

/// Without the waiting times two nodes have the device, and the test above would fail.
#[test]
fn without_a_wait_two_have_it() {
    let short = [
        (
            "claim_wait",
            Times {
                claim_wait: 0,
                ..TIMES
            },
        ),
        (
            "late_wait",
            Times {
                late_wait: 0,
                ..TIMES
            },
        ),
    ];
    for (name, times) in short {
        let seen = (1..120u64).any(|seed| {
            let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let run = || World::run(seed, 4, 110, 2500, times);
            let failed = std::panic::catch_unwind(run).err();
            failed.is_some_and(|e| {
                let text = e.downcast_ref::<String>().map_or("", |s| s.as_str());
                text.contains("two have it")
            })
        });
        assert!(seen, "nothing shows that {name} is too short");
    }
}

fn outcome(goal: Goal, word: u64) -> Result<State, Unclaimed> {
    let mut word = word;
    let mut claim = Claim::new(goal, NodeId(5), 77, TIMES);
    for now in (0..).step_by(10) {
        match claim.next() {
            ClaimStep::Read => claim.read(Time(now), Time(now + 1), word),
            ClaimStep::Write(value) => {
                word = value;
                claim.written();
            }
            ClaimStep::Wait(_) => claim.waited(Time(now)),
            ClaimStep::Finished(how) => {
                return how.map(|record| {
                    assert_eq!(word, record.raw());
                    record.state
                })
            }
        }
    }
    unreachable!()
}

#[test]
fn goals_have_their_conditions() {
    let of = |state| record(state, 9, 1).raw();
    use Unclaimed::{Free, Known, Taken, Unknown};
    assert_eq!(outcome(Goal::Borrow, of(State::Free)), Ok(State::Lent));
    assert_eq!(
        outcome(Goal::Reclaim { free: false }, of(State::Free)),
        Err(Free)
    );
    let down = Goal::Reclaim { free: true };
    assert_eq!(outcome(down, of(State::Free)), Ok(State::Taken));
    assert_eq!(outcome(down, of(State::Lent)), Ok(State::Taken));
    assert_eq!(outcome(down, 0), Err(Unknown));
    assert_eq!(outcome(Goal::Enrol, 0), Ok(State::Taken));
    for state in [State::Claimed, State::Lent, State::Taken] {
        assert_eq!(
            outcome(Goal::Borrow, of(state)),
            Err(Taken(state, NodeId(9)))
        );
        assert_eq!(
            outcome(Goal::Reclaim { free: false }, of(state)),
            Ok(State::Taken)
        );
        assert_eq!(outcome(Goal::Enrol, of(state)), Err(Known));
    }
    assert_eq!(outcome(Goal::Borrow, 0), Err(Unknown));
    assert_eq!(
        outcome(Goal::Reclaim { free: false }, u64::MAX),
        Err(Unknown)
    );
}

#[test]
fn a_borrower_sees_that_it_has_lost_it() {
    let own = record(State::Lent, 5, 7);
    let watch = || Watch::new(own, Time(0), TIMEOUT);
    let sees = |word, open| watch().checked(Time(10), Time(12), Some((word, open)));
    assert_eq!(sees(own.raw(), true), CheckResult::Fine);
    assert_eq!(
        sees(own.raw(), false),
        CheckResult::Lost(LossReason::Closed)
    );
    assert_eq!(sees(0, true), CheckResult::Lost(LossReason::Reset));
    let late = record(State::Claimed, 6, 1).raw();
    assert_eq!(sees(late, true), CheckResult::Rewrite(own.raw()));
    for (state, open) in [
        (State::Claimed, false),
        (State::Lent, true),
        (State::Taken, true),
        (State::Free, true),
    ] {
        let seen = sees(record(state, 6, 1).raw(), open);
        assert_eq!(seen, CheckResult::Lost(LossReason::Taken(state, NodeId(6))));
    }
    // The word names the same node with another lease.
    let other = record(State::Lent, 5, 8).raw();
    assert!(matches!(sees(other, true), CheckResult::Lost(_)));

    let mut watch = watch();
    let mut now = 0;
    while watch.checked(Time(now), Time(now + 20), None) == CheckResult::Fine {
        now = watch.next().0;
        assert!(now < 2 * TIMEOUT);
    }
    assert!((TIMEOUT - 20..=TIMEOUT + 120).contains(&now), "{now}");
}
