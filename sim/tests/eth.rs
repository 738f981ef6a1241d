//! Simulation of Ethernet over Extoll with many seeds, and with injected bugs that must be found.
//!
//! `SIM_SEED=N` runs one seed and prints its trace. `SIM_SEEDS=N` runs N seeds. `FULL=1` runs as
//! many seeds as `make check-full`.

mod sim {
    use ::sim::eth::setup::{Full, Mutation};
    use ::sim::eth::survival::{self, Attack, Survival};
    use ::sim::eth::{run, Rig, Summary, Violation};
    use ::sim::seeds::{count, full, many, number};

    /// Number of seeds of a full run.
    const SEEDS: u64 = 100_000;
    /// Number of seeds in which an injected bug must show.
    const MUTANT_SEEDS: u64 = 400;

    fn replay(v: &Violation) -> String {
        let seed = v.seed;
        format!("{v}\n    SIM_SEED={seed} cargo test --release -p sim sim::seeds -- --nocapture")
    }

    /// Returns the sum of the statistics of two runs.
    fn and(mut sum: Summary, s: Summary) -> Summary {
        sum.frames += s.frames;
        sum.delivered += s.delivered;
        sum.healthy += s.healthy;
        sum.recovered += s.recovered;
        sum.faults += s.faults;
        sum.holes += s.holes;
        sum.full = sum.full.or(s.full);
        sum
    }

    #[test]
    fn seeds() {
        if let Some(seed) = number("SIM_SEED") {
            let mut rig = Rig::new(seed, None, true).unwrap();
            let result = rig.run();
            for line in rig.trace() {
                println!("{line}");
            }
            println!("{}", rig.transitions());
            result.unwrap_or_else(|v| panic!("{v}"));
            return;
        }
        let seeds = count(SEEDS);
        let (mut failed, sum) = many(seeds, |seed| run(seed, None), and);
        failed.sort_by_key(|v| v.seed);
        let lines: Vec<String> = failed.iter().take(10).map(replay).collect();
        assert!(
            failed.is_empty(),
            "{} of {seeds} seeds failed:\n{}",
            failed.len(),
            lines.join("\n")
        );
        // Runs without these events would prove nothing.
        assert!(sum.healthy > seeds && sum.faults > seeds / 2, "{sum:?}");
        assert!(sum.recovered > seeds / 4, "{sum:?}");
        assert!(sum.delivered > sum.frames / 2, "{sum:?}");
        assert!(sum.holes > seeds / 20, "{sum:?}");
        let all = Full {
            flight: true,
            quarantine: true,
            fetches: true,
            lost: true,
            waiting: true,
        };
        assert_eq!(sum.full, all);
    }

    #[test]
    fn a_seed_repeats_exactly() {
        for seed in 1..20 {
            let trace = |_| {
                let mut rig = Rig::new(seed, None, true).unwrap();
                let _ = rig.run();
                rig.trace().to_vec()
            };
            let [a, b] = [0, 1].map(trace);
            assert!(!a.is_empty());
            assert_eq!(a, b, "seed {seed}");
        }
    }

    /// Returns the first violation that reveals an injected bug.
    fn found(mutation: Mutation) -> Option<Violation> {
        (1..=MUTANT_SEEDS).find_map(|seed| run(seed, Some(mutation)).err())
    }

    #[test]
    fn errors_are_found() {
        let missed: Vec<_> = Mutation::ALL
            .iter()
            .filter(|m| found(**m).is_none())
            .collect();
        assert!(missed.is_empty(), "{missed:?} were not found");
    }

    /// Number of seeds of each attack in a normal run and in a full one.
    const ATTACK_SEEDS: [u64; 2] = [1, 200];
    /// Minimum fraction of its rate that a third node keeps.
    const PART: f64 = 0.8;

    #[test]
    fn a_third_node_keeps_its_rate() {
        let seeds = number("SIM_SEEDS").map_or(ATTACK_SEEDS[usize::from(full())], |n| n / 300 + 1);
        let groups = Attack::GROUPS.len() as u64;
        let one = |n: u64| {
            let attacks = Attack::GROUPS[(n % groups) as usize];
            let all = survival::run(1 + (n - 1) / groups, attacks, None)
                .map_err(|v| format!("{attacks:?}: {v}"))?;
            let kept = |rates: &Survival| rates.part() >= PART && rates.calm[0] > 1_000;
            match attacks.iter().zip(all).find(|(_, rates)| !kept(rates)) {
                Some(lost) => Err(format!("{lost:?}")),
                None => Ok(()),
            }
        };
        let (failed, ()) = many(seeds * groups, one, |(), ()| ());
        assert!(failed.is_empty(), "{failed:#?}");
    }

    /// Without limits for peers that fetch late, they stop the queue for all peers.
    #[test]
    fn late_fetches_show() {
        let all = survival::run(1, &[Attack::LateFetches], Some(Mutation::NoLag)).unwrap();
        assert!(all[0].part() < PART / 2.0, "{all:?}");
    }

    #[test]
    fn memory_that_is_used_too_early_shows() {
        let what = found(Mutation::NoQuarantine).map_or(String::new(), |v| v.what);
        let shows = ["is used again", "are no frame", "was altered"];
        assert!(shows.iter().any(|s| what.contains(s)), "{what}");
    }
}
