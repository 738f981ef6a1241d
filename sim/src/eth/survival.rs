//! Traffic of two nodes while a third one attacks one of them. A run with the attack is compared
//! with the same run without it, in simulated time.

use super::fault::Fault;
use super::{Event, Rig, Violation, MS, US};
use crate::eth::setup::{Mutation, LARGE, LIMITS};
use anyhow::Result;
use extoll_emulator::network::LinkKnobs;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Attack of node 0 on node 1, in the name of node 0, a forged name, or that of an absent node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Attack {
    /// Node 0 announces far more frames than there are slots and is then switched off, so that GETs
    /// fail.
    AnnounceAndDie,
    /// 64 absent nodes each announce a frame from time to time.
    DyingPeers,
    /// Node 0 announces frames that are shorter than a header.
    Runts,
    /// Node 0 delays the answers to GETs until, or nearly until, the time-out.
    Unfinished,
    /// Node 0 sends messages that are no frames as fast as they are read.
    Flood,
    /// Node 0 fetches frames just before they count as stalled.
    LateFetches,
}

impl Attack {
    /// All attacks, in groups with the same streams, so that a run without an attack serves a whole
    /// group.
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

/// First node ID of absent nodes.
pub(super) const DYING: u16 = 100;
/// Number of absent nodes.
const PEERS: usize = 64;
/// Simulated times in ns at which the attack starts and ends.
const TIME: [u64; 2] = [500 * MS, 3_500 * MS];
/// Simulated time in ns at which the streams end.
const STOP: u64 = 4_000 * MS;
/// Number of frames of a stream in flight.
const WINDOW: usize = 4;
/// Number of frames in flight to the node that fetches late. The number exceeds the frames that
/// this node receives at a time plus the frames that it may have fetched but not delivered.
const WIDE: usize = 480;
/// Time in ns after which a frame that was dropped or found no slot is sent again.
const AGAIN: u64 = 2 * MS;

/// Streams that send a new frame after each arrival.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    pairs: Vec<(usize, usize)>,
    /// Frames that arrived between nodes 1 and 2 during the attack, by direction.
    arrived: [u64; 2],
}

impl Rig {
    /// Creates a run with this attack. `calm`: the same run without it.
    ///
    /// # Errors
    ///
    /// Fails if the emulator rejects an operation.
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
        // The announcements of the attacker belong to no frame of the simulation. A node that
        // fetches late receives real frames.
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
                // The node is awake long enough to fetch all frames before the first one stalls.
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

    /// Counts a frame that arrived during the attack, and schedules the next one of its stream.
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

    /// Schedules the next frame of a stream after one was dropped.
    pub(super) fn not_taken(&mut self, from: usize, to: usize) {
        let streams = self.streams.as_ref();
        if streams.is_some_and(|s| s.pairs.contains(&(from, to))) {
            self.at(self.fabric.now() + AGAIN, Event::Next(from, to));
        }
    }
}

/// Frames that arrived during an attack, and in the same time without it, by direction.
#[derive(Debug, Clone, Copy)]
pub struct Survival {
    /// With the attack.
    pub attacked: [u64; 2],
    /// Without the attack.
    pub calm: [u64; 2],
}

impl Survival {
    /// Returns the fraction of its rate that a direction keeps under attack. Of the two directions,
    /// the smaller fraction counts.
    #[must_use]
    pub fn part(&self) -> f64 {
        let parts = self.attacked.iter().zip(self.calm);
        parts
            .map(|(attacked, calm)| *attacked as f64 / calm.max(1) as f64)
            .fold(f64::INFINITY, f64::min)
    }
}

/// Runs one seed with each of these attacks, which must be of one group, and without.
///
/// # Errors
///
/// Returns the violated invariant of a run.
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
