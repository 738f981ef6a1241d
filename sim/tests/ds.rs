//! Simulation of direct sockets with many seeds, and with injected bugs that must be found.
//! `SIM_SEED`, `SIM_SEEDS` and `FULL` work as described in `tests/eth.rs`.

mod sim {
    use ::sim::ds::{run, Mutation, Rig, Summary, Violation};
    use ::sim::seeds::{count, first, many, number};
    use protocol::ds::Fallback;

    /// Number of seeds of a full run.
    const SEEDS: u64 = 10_000;
    /// Number of seeds in which an injected bug must show; most show in the first ten.
    const MUTANT_SEEDS: u64 = 2_000;
    /// Seeds that reveal rare bugs, tried first.
    const RARE: &[(Mutation, u64)] = &[
        (Mutation::Stale, 28),
        (Mutation::FinDecides, 108),
        (Mutation::NoAnswer, 75),
        (Mutation::HeldIsSent, 310),
        (Mutation::StaysFirst, 49),
    ];

    fn replay(v: &Violation) -> String {
        let seed = v.seed;
        format!(
            "{v}\n    SIM_SEED={seed} cargo test --release -p sim --test ds streams -- --nocapture"
        )
    }

    #[test]
    fn streams() {
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
        println!("{sum:?}");
        assert!(
            failed.is_empty(),
            "{} of {seeds} seeds failed:\n{}",
            failed.len(),
            lines.join("\n")
        );
        // Runs without these events would prove nothing.
        assert!(
            sum.demanded > 3 * seeds && sum.faults > seeds / 2,
            "{sum:?}"
        );
        assert!(
            sum.gets > 10 * seeds && sum.gets_again > seeds / 20,
            "{sum:?}"
        );
        // A stream sends data again after a gap: a lost message, or a message without a slot at the
        // receiver.
        assert!(sum.rewinds > seeds / 40 && sum.asked > seeds / 2, "{sum:?}");
        assert!(sum.odd > seeds && sum.failed > seeds / 5, "{sum:?}");
        assert!(sum.holes > seeds / 20, "{sum:?}");
        assert!(sum.lent > 1_000 * seeds && sum.cuts > seeds / 5, "{sum:?}");
        assert!(sum.sunk > 100 * seeds, "{sum:?}");
        assert!(sum.waited > seeds, "{sum:?}");
        // Most connections bypass TCP, but each kind of fallback occurs.
        assert!(sum.direct > 6 * seeds && sum.tcp > seeds / 2, "{sum:?}");
        assert!(sum.reused > seeds / 50, "{sum:?}");
        let seen = |why: Fallback| sum.reasons & (1 << why.code()) != 0;
        let expected = [
            Fallback::Off,
            Fallback::NoListener,
            Fallback::PeerOff,
            Fallback::NotAccepted,
            Fallback::TcpData,
            Fallback::NotAsked,
            Fallback::TcpOnly,
        ];
        let missed: Vec<_> = expected.into_iter().filter(|why| !seen(*why)).collect();
        assert!(missed.is_empty(), "no run used TCP for {missed:?}: {sum:?}");
    }

    #[test]
    fn streams_of_a_seed_repeat_exactly() {
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
    fn errors_with_streams_are_found() {
        // Selects one mutation by its name.
        let name = std::env::var("SIM_MUTATION").ok().filter(|t| !t.is_empty());
        let asked = |m: &&Mutation| name.as_ref().is_none_or(|n| format!("{m:?}") == *n);
        assert!(Mutation::ALL.iter().any(|m| asked(&m)), "{name:?}");
        let found = |m| first(m, RARE, MUTANT_SEEDS, |seed| run(seed, Some(m)).err());
        let missed: Vec<_> = Mutation::ALL
            .iter()
            .filter(asked)
            .filter(|m| found(**m).map(|v| println!("{m:?}: {v}")).is_none())
            .collect();
        assert!(missed.is_empty(), "{missed:?} were not found");
    }
}
