//! Runs seeds of the simulation: `sim --seeds 1000`, `sim --seed 42 --trace`.
#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser;
use sim::eth::survival::{self, Attack};
use sim::eth::{run, Rig};
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Simulation of exn's rendezvous over the emulator's NIC models")]
struct Args {
    /// Seed, or the first of several.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Print the events of a single seed.
    #[arg(long)]
    trace: bool,
    /// Print the fraction of its rate that a third node keeps during this attack.
    #[arg(long)]
    attack: Option<Attack>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let (Some(attack), false) = (args.attack, args.trace) {
        for seed in args.seed..args.seed + args.seeds {
            match survival::run(seed, &[attack], None) {
                Ok(all) => all
                    .iter()
                    .for_each(|s| println!("seed {seed}: {:.2} of the rate, {s:?}", s.part())),
                Err(v) => println!("{v}"),
            }
        }
        return Ok(());
    }
    if args.trace {
        let mut rig = match args.attack {
            Some(attack) => Rig::survival(args.seed, attack, false, None, true)?,
            None => Rig::new(args.seed, None, true)?,
        };
        let result = rig.run();
        for line in rig.trace() {
            println!("{line}");
        }
        print!("{}", rig.transitions());
        match result {
            Ok(summary) => println!("{summary:?}"),
            Err(v) => anyhow::bail!("{v}"),
        }
        return Ok(());
    }
    let start = Instant::now();
    let (mut frames, mut delivered, mut healthy, mut steps, mut failed) = (0, 0, 0, 0, 0);
    for seed in args.seed..args.seed + args.seeds {
        match run(seed, None) {
            Ok(s) => {
                frames += s.frames;
                delivered += s.delivered;
                healthy += s.healthy;
                steps += s.steps;
            }
            Err(v) => {
                println!("{v}");
                failed += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} seeds in {seconds:.1} s: {frames} frames, {healthy} of them between healthy nodes, {delivered} delivered, {steps} steps; {failed} failed",
        args.seeds
    );
    anyhow::ensure!(failed == 0, "{failed} seeds failed");
    Ok(())
}
