//! What is left of the traffic of two nodes while another one attacks one of them: a run with the
//! attack is compared with the same run without it, in simulated time.

use super::fault::Fault;
use super::{Event, Rig, Violation, MS, US};
use crate::eth::setup::{Mutation, LARGE, LIMITS};
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What node 0, or who speaks in its name or that of nobody, does to node 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Attack {
    /// It announces far more than there is room for, and is off: nothing can be fetched.
    AnnounceAndDie,
    /// 64 nodes announce something each now and then, and none of them is there.
    DyingPeers,
    /// It announces frames that are shorter than a header.
    Runts,
    /// It lets each fetch wait until it times out, or nearly so.
    Unfinished,
    /// It sends messages that are no frames as fast as they can be read.
    Flood,
    /// It fetches what it gets just before that counts as stalled.
    LateFetches,
}

impl Attack {
    /// All of them, in groups with the same streams: what arrives without an attack is the same for a group.
    pub const GROUPS: [&'static [Self]; 2] = [
        &[
            Self::AnnounceAndDie,
            Self::DyingPeers,
            Self::Runts,
            Self::Unfinished,
            Self::Flood,
        ],
        &[Self::LateFetches],
    ];
}

/// First node ID of those that are not there.
pub(super) const DYING: u16 = 100;
/// Number of them.
const PEERS: usize = 64;
/// When the attack begins, and when it is over.
const TIME: [u64; 2] = [500 * MS, 3_500 * MS];
/// When the streams end.
const STOP: u64 = 4_000 * MS;
/// Frames of a stream that are under way at a time.
const WINDOW: usize = 4;
/// The same of the stream to the node that fetches late: more than what it gets at a time and what
/// it may have fetched, but not delivered, when it falls asleep.
const WIDE: usize = 480;
/// After this time a frame is sent that was dropped, or that there was no room for.
const AGAIN: u64 = 2 * MS;

/// Traffic of which a new frame follows each that has arrived.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    pairs: Vec<(usize, usize)>,
    /// Frames of the streams between nodes 1 and 2 that arrived during the attack, by direction.
    arrived: [u64; 2],
}

impl Rig {
    /// A run with this attack. `calm`: the same run without it.
    ///
    /// # Errors
    ///
    /// The emulator refuses something.
    pub fn survival(
        seed: u64,
        attack: Attack,
        calm: bool,
        mutation: Option<Mutation>,
        trace: bool,
    ) -> Result<Self> {
        let rng = SmallRng::seed_from_u64(seed);
        let mut rig = Self::bare(seed, rng, (3, LARGE), mutation, trace)?;
        let latency_ns = rig.rng.random_range(20 * US..200 * US);
        for cable in 0..rig.fabric.cables() {
            let knobs = LinkKnobs {
                latency_ns,
                ..LinkKnobs::default()
            };
            rig.fabric.knobs(cable, knobs);
        }
        for node in 0..3 {
            rig.start(node, 50 * US)?;
        }
        let mut streams = vec![(1, 2, WINDOW), (2, 1, WINDOW)];
        if attack == Attack::LateFetches {
            streams.push((1, 0, WIDE));
        }
        rig.streams = Some(Streams {
            pairs: streams.iter().map(|(from, to, _)| (*from, *to)).collect(),
            arrived: [0; 2],
        });
        for (from, to, window) in streams {
            for _ in 0..window {
                rig.at(MS, Event::Next(from, to));
            }
        }
        rig.healthy[0] = false;
        // What it announces is none of the frames, but it is a late one that takes them.
        rig.hostile[0] = attack != Attack::LateFetches;
        if !calm {
            rig.attack(attack);
        }
        Ok(rig)
    }

    fn attack(&mut self, attack: Attack) {
        let [begin, end] = TIME;
        let many = |rig: &mut Self, count: usize, event: &dyn Fn(usize) -> Event| {
            for i in 0..count {
                let at = rig.rng.random_range(begin..end);
                rig.at(at, event(i));
            }
        };
        match attack {
            Attack::AnnounceAndDie => {
                self.at(begin, Event::Fault(self.faults.len()));
                self.faults.push((Fault::PowerOff(0), end));
                many(self, 3_000, &|_| Event::Crowd(0, 1));
            }
            Attack::DyingPeers => many(self, 2_000, &|i| Event::Die(i % PEERS)),
            Attack::Runts => many(self, 3_000, &|_| Event::Runt(0, 1)),
            Attack::Unfinished => {
                self.withhold(0, begin, 90..=115);
                many(self, 3_000, &|_| Event::Crowd(0, 1));
            }
            Attack::Flood => many(self, 30_000, &|_| Event::Chatter(0, 1)),
            Attack::LateFetches => {
                // Awake for long enough to fetch all, before the first one is stalled.
                let (period, awake) = (LIMITS.stall - 5 * MS, 10 * MS);
                for at in (begin..end).step_by(period as usize) {
                    self.at(at, Event::Drowse(0, true));
                    self.at(at + period - awake, Event::Drowse(0, false));
                }
            }
        }
    }

    /// Sends the next frame of a stream.
    pub(super) fn next_of_stream(&mut self, from: usize, to: usize) -> Result<()> {
        let now = self.fabric.now();
        if now < STOP && !self.submit(from, to)? {
            self.at(now + AGAIN, Event::Next(from, to));
        }
        Ok(())
    }

    /// A frame of a node has arrived.
    pub(super) fn arrived(&mut self, from: usize, to: usize) -> Result<()> {
        let now = self.fabric.now();
        let Some(streams) = self.streams.as_mut() else {
            return Ok(());
        };
        if (TIME[0]..TIME[1]).contains(&now) {
            match (from, to) {
                (1, 2) => streams.arrived[0] += 1,
                (2, 1) => streams.arrived[1] += 1,
                _ => {}
            }
        }
        if streams.pairs.contains(&(from, to)) {
            self.at(now + US, Event::Next(from, to));
        }
        Ok(())
    }

    /// A frame was dropped.
    pub(super) fn not_taken(&mut self, from: usize, to: usize) {
        let streams = self.streams.as_ref();
        if streams.is_some_and(|s| s.pairs.contains(&(from, to))) {
            self.at(self.fabric.now() + AGAIN, Event::Next(from, to));
        }
    }
}

/// What arrived during an attack, and during the same time without it, by direction.
#[derive(Debug, Clone, Copy)]
pub struct Survival {
    /// With the attack.
    pub attacked: [u64; 2],
    /// Without.
    pub calm: [u64; 2],
}

impl Survival {
    /// The smaller part of its rate that a direction keeps.
    #[must_use]
    pub fn part(&self) -> f64 {
        let parts = self.attacked.iter().zip(self.calm);
        parts
            .map(|(attacked, calm)| *attacked as f64 / calm.max(1) as f64)
            .fold(f64::INFINITY, f64::min)
    }
}

/// Runs one seed with each of these attacks, and without. They have to be of the same group.
///
/// # Errors
///
/// What did not hold in one of the runs.
pub fn run(
    seed: u64,
    attacks: &[Attack],
    mutation: Option<Mutation>,
) -> Result<Vec<Survival>, Violation> {
    let arrived = |attack, calm| {
        let failed = |e: anyhow::Error| Violation {
            seed,
            at: 0,
            what: format!("can't be set up: {e:#}"),
        };
        let mut rig = Rig::survival(seed, attack, calm, mutation, false).map_err(failed)?;
        rig.run()?;
        Ok(rig.streams.map_or([0; 2], |s| s.arrived))
    };
    let Some(any) = attacks.first() else {
        return Ok(Vec::new());
    };
    let calm = arrived(*any, true)?;
    let all = attacks.iter().map(|attack| {
        Ok(Survival {
            attacked: arrived(*attack, false)?,
            calm,
        })
    });
    all.collect()
}
