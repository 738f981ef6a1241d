//! Simulation of Device Lending with many seeds, and with injected bugs that must be found.
//! `SIM_SEED`, `SIM_SEEDS` and `FULL` work as described in `tests/eth.rs`.

mod sim {
    use ::sim::pci::{run, Mutation, Rig, Summary, Violation};
    use ::sim::seeds::{count, first, many, number};

    /// Number of seeds of a full run.
    const SEEDS: u64 = 100_000;
    /// Number of seeds in which an injected bug must show.
    const MUTANT_SEEDS: u64 = 12_000;
    /// Seeds that reveal rare bugs, tried first.
    const RARE: &[(Mutation, u64)] = &[
        (Mutation::LenderNumbersAtOnce, 1292),
        (Mutation::NoHold, 1897),
        (Mutation::NoMasterOff, 55),
        (Mutation::SilentIsDown, 362),
        (Mutation::SlowClose, 91),
        (Mutation::SlowReset, 577),
        (Mutation::OwnTimeout, 1383),
    ];

    fn replay(v: &Violation) -> String {
        let seed = v.seed;
        format!(
            "{v}\n    SIM_SEED={seed} cargo test --release -p sim --test pci leases -- --nocapture"
        )
    }

    #[test]
    fn leases() {
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
        assert!(sum.up > 2 * seeds && sum.faults > seeds, "{sum:?}");
        assert!(sum.demanded > seeds / 2 && sum.fenced > 0, "{sum:?}");
        assert!(
            sum.lost > seeds / 8 && sum.expired > seeds / 16 && sum.reclaimed > seeds / 16,
            "{sum:?}"
        );
        assert!(
            sum.writes > 20 * seeds && sum.resets > seeds && sum.timed_out > seeds / 4,
            "{sum:?}"
        );
        assert!(
            sum.arrived > sum.packets / 2 && sum.packets > 100 * seeds,
            "{sum:?}"
        );
        assert!(sum.again > 10 * seeds && sum.odd > seeds, "{sum:?}");
        assert!(sum.lies > 10 * seeds && sum.enabled > seeds, "{sum:?}");
    }

    #[test]
    fn leases_of_a_seed_repeat_exactly() {
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
    fn errors_with_leases_are_found() {
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
