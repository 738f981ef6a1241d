//! Simulation of RMA transfers with many seeds, and with injected bugs that must be found.
//! `SIM_SEED`, `SIM_SEEDS` and `FULL` work as described in `tests/eth.rs`.

mod sim {
    use ::sim::seeds::{count, first, many, number};
    use ::sim::transfers::{run, Mutation, Rig, Summary, Violation};

    /// Number of seeds of a full run.
    const SEEDS: u64 = 30_000;
    /// Number of seeds in which an injected bug must show.
    const MUTANT_SEEDS: u64 = 200;
    /// Seeds that reveal rare bugs, tried first.
    const RARE: &[(Mutation, u64)] = &[(Mutation::NoWindow, 61)];

    fn replay(v: &Violation) -> String {
        let seed = v.seed;
        format!(
            "{v}\n    SIM_SEED={seed} cargo test --release -p sim --test transfers transfers -- --nocapture"
        )
    }

    #[test]
    fn transfers() {
        if let Some(seed) = number("SIM_SEED") {
            let mut rig = Rig::new(seed, None, true).unwrap();
            let result = rig.run();
            for line in rig.trace() {
                println!("{line}");
            }
            result.unwrap_or_else(|v| panic!("{v}"));
            return;
        }
        let seeds = count(SEEDS);
        let (mut failed, sum) = many(seeds, |seed| run(seed, None), Summary::and);
        failed.sort_by_key(|v| v.seed);
        let lines: Vec<String> = failed.iter().take(10).map(replay).collect();
        assert!(
            failed.is_empty(),
            "{} of {seeds} seeds failed:\n{}",
            failed.len(),
            lines.join("\n")
        );
        println!("{sum:?}");
        // Runs without these events would prove nothing.
        assert!(
            sum.demanded > 5 * seeds && sum.faults > seeds / 2,
            "{sum:?}"
        );
        assert!(
            sum.settled_late > seeds / 4 && sum.unanswered > seeds / 10,
            "{sum:?}"
        );
        assert!(
            sum.passed > seeds / 50 && sum.refused > seeds / 10,
            "{sum:?}"
        );
        assert!(sum.done > sum.taken / 2, "{sum:?}");
    }

    #[test]
    fn transfers_of_a_seed_repeat_exactly() {
        for seed in 1..6 {
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

    #[test]
    fn errors_with_transfers_are_found() {
        let found = |m| first(m, RARE, MUTANT_SEEDS, |seed| run(seed, Some(m)).err());
        let missed: Vec<_> = Mutation::ALL
            .iter()
            .filter(|m| found(**m).map(|v| println!("{m:?}: {v}")).is_none())
            .collect();
        assert!(missed.is_empty(), "{missed:?} were not found");
    }
}
