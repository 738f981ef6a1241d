//! Who runs what next.
//!
//! Lanes work side by side, each with a cluster of its own. A lane goes on with the scenarios of its cluster's specification; when
//! none is left, or none may run beside what the other lanes do, it takes the next specification.

use crate::scenario::Load;

/// A second cluster of a specification is booted only for so many scenarios: a boot costs more than waiting for fewer.
const WORTH_A_BOOT: usize = 4;

/// What a lane does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This scenario.
    Run(usize),
    /// Nothing before another lane has finished.
    Wait,
    /// Nothing any more.
    Done,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    running: Option<Load>,
    spec: Option<usize>,
}

/// All scenarios of a run and who works on which.
pub struct Plan {
    tests: Vec<(usize, Load)>,
    left: Vec<bool>,
    lanes: Vec<Lane>,
}

impl Plan {
    /// Scenarios as (number of the specification, load).
    pub fn new(tests: Vec<(usize, Load)>, lanes: usize) -> Self {
        Self {
            left: vec![true; tests.len()],
            lanes: vec![Lane::default(); lanes],
            tests,
        }
    }

    /// Scenarios that nobody has begun.
    pub fn left(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.tests.len()).filter(|i| self.left[*i])
    }

    fn others(&self, lane: usize) -> impl Iterator<Item = &Lane> {
        let others = move |(i, _): &(usize, &Lane)| *i != lane;
        self.lanes.iter().enumerate().filter(others).map(|(_, l)| l)
    }

    /// Chooses for a lane that is idle.
    pub fn next(&mut self, lane: usize) -> Next {
        let next = self.choose(lane);
        if let Next::Run(i) = next {
            self.left[i] = false;
            self.lanes[lane] = Lane {
                running: Some(self.tests[i].1),
                spec: Some(self.tests[i].0),
            };
        }
        next
    }

    fn choose(&self, lane: usize) -> Next {
        let own = self.lanes[lane].spec;
        let beside: Vec<Load> = self.others(lane).filter_map(|l| l.running).collect();
        let shared: Vec<usize> = self
            .left()
            .filter(|i| self.tests[*i].1 != Load::Exclusive)
            .collect();
        if shared.is_empty() {
            // Those which want the machine for themselves come last, by one lane, when the others have gone.
            let best = self.left().min_by_key(|i| Some(self.tests[*i].0) != own);
            return match best {
                Some(i) if lane == 0 && beside.is_empty() => Next::Run(i),
                Some(_) if lane == 0 => Next::Wait,
                _ => Next::Done,
            };
        }
        let held = |spec| self.others(lane).any(|l| l.spec == Some(spec));
        let rank = |i: usize| {
            let (spec, load) = self.tests[i];
            if beside.contains(&Load::Exclusive)
                || (load == Load::Cpu && beside.contains(&Load::Cpu))
            {
                return None;
            }
            let place = match () {
                () if Some(spec) == own => 0,
                () if !held(spec) => 1,
                () if shared.iter().filter(|j| self.tests[**j].0 == spec).count()
                    >= WORTH_A_BOOT =>
                {
                    2
                }
                () => return None,
            };
            Some((place, load != Load::Cpu, spec, i))
        };
        match shared.iter().filter_map(|i| rank(*i)).min() {
            Some((.., i)) => Next::Run(i),
            // Whoever is busy has these scenarios' cluster, or lets one of them start when it has finished.
            None if !beside.is_empty() => Next::Wait,
            None => Next::Run(shared[0]),
        }
    }

    /// The lane's scenario has ended; `kept`: its cluster is still there.
    pub fn finished(&mut self, lane: usize, kept: bool) {
        self.lanes[lane].running = None;
        if !kept {
            self.lanes[lane].spec = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Load::{Cpu, Exclusive, Wait};

    /// Runs everything with lanes that take turns; returns the order of each.
    fn play(tests: &[(usize, Load)], lanes: usize) -> Vec<Vec<usize>> {
        let mut plan = Plan::new(tests.to_vec(), lanes);
        let mut order = vec![Vec::new(); lanes];
        let mut busy: Vec<Option<usize>> = vec![None; lanes];
        let mut done = vec![false; lanes];
        for step in 0..10_000 {
            let lane = step % lanes;
            if busy[lane].take().is_some() {
                plan.finished(lane, true);
            }
            match plan.next(lane) {
                Next::Run(i) => {
                    order[lane].push(i);
                    busy[lane] = Some(i);
                    let loads: Vec<Load> = busy.iter().flatten().map(|i| tests[*i].1).collect();
                    assert!(
                        loads.iter().filter(|l| **l == Cpu).count() <= 1,
                        "{loads:?}"
                    );
                    assert!(loads.len() == 1 || !loads.contains(&Exclusive), "{loads:?}");
                }
                Next::Wait => {}
                Next::Done => done[lane] = true,
            }
            if done.iter().all(|d| *d) {
                break;
            }
        }
        let mut all: Vec<usize> = order.concat();
        all.sort_unstable();
        assert_eq!(all, (0..tests.len()).collect::<Vec<_>>(), "{order:?}");
        order
    }

    #[test]
    fn everything_runs_once_under_the_rules() {
        let mut state = 1u32;
        let mut random = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % n
        };
        for _ in 0..300 {
            let load = |n| [Cpu, Wait, Wait, Exclusive][n as usize];
            let tests: Vec<_> = (0..random(40))
                .map(|_| (random(5) as usize, load(random(4))))
                .collect();
            play(&tests, 1);
            play(&tests, 2);
            play(&tests, 3);
        }
    }

    #[test]
    fn a_lane_stays_with_its_cluster() {
        let tests = [(0, Wait), (1, Wait), (0, Wait), (1, Wait)];
        assert_eq!(play(&tests, 1), [[0, 2, 1, 3]]);
        assert_eq!(play(&tests, 2), [[0, 2], [1, 3]]);
        // Another boot is not worth it for three.
        let few = [(0, Wait); 3];
        assert_eq!(play(&few, 2), [vec![0, 1, 2], vec![]]);
        assert!(play(&[(0, Wait); 8], 2)[1].len() > 1);
    }

    #[test]
    fn what_waits_runs_beside_what_computes() {
        let order = play(&[(0, Cpu), (0, Cpu), (1, Wait), (1, Cpu)], 2);
        assert_eq!(order[1][0], 2);
    }
}
