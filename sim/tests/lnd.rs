//! Simulation of Lustre networking with many seeds, and with injected bugs that must be found.
//! `SIM_SEED`, `SIM_SEEDS` and `FULL` work as described in `tests/eth.rs`.

mod sim {
    use ::sim::lnd::{run, Mutation, Rig, Summary, Violation};
    use ::sim::seeds::{count, first, many, number};

    /// Number of seeds of a full run.
    const SEEDS: u64 = 100_000;
    /// Number of seeds in which an injected bug must show.
    const MUTANT_SEEDS: u64 = 2_000;
    /// Seeds that reveal rare bugs, tried first.
    const RARE: &[(Mutation, u64)] = &[
        (Mutation::Stale, 1187),
        (Mutation::NeverAsk, 157),
        (Mutation::SameKeys, 80),
    ];

    fn replay(v: &Violation) -> String {
        let seed = v.seed;
        format!(
            "{v}\n    SIM_SEED={seed} cargo test --release -p sim --test lnd letters -- --nocapture"
        )
    }

    #[test]
    fn letters() {
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
        assert!(sum.demanded > seeds && sum.faults > seeds / 2, "{sum:?}");
        assert!(
            sum.delivered > sum.letters / 2 && sum.fetched > 5 * seeds,
            "{sum:?}"
        );
        assert!(
            sum.not_delivered > seeds && sum.unknown > seeds / 2 && sum.failed > seeds / 4,
            "{sum:?}"
        );
        assert!(
            sum.gets_again > seeds && sum.holes > seeds / 8 && sum.again > seeds / 16,
            "{sum:?}"
        );
        assert!(sum.busy > seeds / 2 && sum.odd > seeds, "{sum:?}");
        assert!(sum.sessions > 3 * seeds, "{sum:?}");
    }

    #[test]
    fn letters_of_a_seed_repeat_exactly() {
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
    fn errors_with_letters_are_found() {
        // Only a violation that this bug can cause counts.
        let found = |m: Mutation| {
            first(m, RARE, MUTANT_SEEDS, |seed| {
                let v = run(seed, Some(m)).err()?;
                let right = m.shows().iter().any(|text| v.what.contains(text));
                right.then_some(v)
            })
        };
        let wanted = std::env::var("MUTATION").unwrap_or_default();
        let missed: Vec<_> = Mutation::ALL
            .iter()
            .filter(|m| format!("{m:?}").contains(&wanted))
            .filter(|m| found(**m).map(|v| println!("{m:?}: {v}")).is_none())
            .collect();
        assert!(missed.is_empty(), "{missed:?} were not found");
    }
}
