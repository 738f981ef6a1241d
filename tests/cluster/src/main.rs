//! Runs scenarios in clusters of virtual machines and reports them one by one.
//!
//! Scenarios with the same cluster specification run one after the other in one cluster; two lanes work side by side (docs/testing.md). Each
//! scenario ends with a look at the kernel logs and at what the emulator found; after a failure the cluster is thrown away and
//! the next scenario gets a fresh one.
#![forbid(unsafe_code)]

mod evidence;
mod lane;
mod plan;
mod probe_order;
mod report;
mod scenario;
mod scenarios;
mod turns;

use labctl as cluster;
pub use scenario::Scenario;

use anyhow::{Context, Result};
use clap::Parser;
use lane::Run;
use report::Report;
use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Scenarios in virtual machines")]
struct Args {
    /// Run only scenarios whose names, as they are printed, contain this, or one of several.
    #[arg(long)]
    filter: Vec<String>,
    /// Print the names and stop.
    #[arg(long)]
    list: bool,
    /// Beginning of the labs' names; the first that no other run uses of check, check2, … if not given.
    #[arg(long)]
    lab: Option<String>,
    /// Boot the debug kernel; leaves out what would take it hours.
    #[arg(long)]
    debug_kernel: bool,
    /// Give all nodes an IOMMU, not only those of the scenarios that are about it.
    #[arg(long)]
    iommu: bool,
    /// Scenarios that run side by side; one with the debug kernel.
    #[arg(long)]
    lanes: Option<usize>,
    /// Leave out the scenarios that take turns with others and whose turn it is not with this seed.
    #[arg(long)]
    turns: bool,
    /// Seconds after which the run is ended.
    #[arg(long)]
    budget: Option<u64>,
    /// File to which the times of each scenario are appended.
    #[arg(long)]
    times: Option<PathBuf>,
    /// Directory for the logs of failed scenarios.
    #[arg(long, default_value = "/out/check")]
    keep: PathBuf,
}

/// Scenarios whose volume is out of reach for the debug kernel, on which a second moves a megabyte, which want pages of
/// 1 GiB, for which it is not configured, or which measure memory, of which its checkers take a multiple.
const TOO_MUCH_FOR_DEBUG: &[&str] = &[
    "sha256_both_ways",
    "traffic::ssh",
    "atu_gigantic",
    "driver::load_cost",
    // No BPF, and no BTF, which it would take minutes to make.
    "af_extl::switch_",
    "af_extl::user_",
    "af_extl::kselftest_",
];
/// Scenarios about what only the debug kernel has.
const ONLY_DEBUG: &[&str] = &["driver::unit_tests"];
/// Most nodes with the debug kernel: each takes 2.5 GiB of memory and a minute to boot.
const MAX_DEBUG_NODES: usize = 2;
/// Lanes unless told otherwise.
const LANES: usize = 2;
/// Runs side by side in one work tree.
const MOST_RUNS: usize = 20;
/// Time between two looks for signals and at the clock.
const TICK: Duration = Duration::from_millis(200);

fn matches(scenario: &Scenario, filters: &[String]) -> bool {
    let name = format!("vm::{}", scenario.name);
    filters.is_empty() || filters.iter().any(|f| name.contains(f))
}

/// A beginning of lab names that no other run has while the result lives.
fn claim(given: Option<&str>) -> Result<(String, File)> {
    let directory = cluster::directory("");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let names: Vec<String> = match given {
        Some(name) => vec![name.into()],
        None => (1..=MOST_RUNS)
            .map(|n| match n {
                1 => "check".into(),
                n => format!("check{n}"),
            })
            .collect(),
    };
    for name in names {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join(format!(".{name}.run")))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok((name, file));
        }
    }
    anyhow::bail!("another run uses this name")
}

/// Whether a lab is one of the run with this beginning of names, or one that a scenario has beside it.
fn is_of_run(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix).and_then(|n| n.strip_prefix('-'));
    let number = rest.and_then(|n| n.split('-').next());
    number.is_some_and(|n| n.parse::<u32>().is_ok())
}

/// Removes labs of an earlier run that was killed.
fn sweep(prefix: &str) {
    for name in cluster::all_labs().iter().filter(|n| is_of_run(n, prefix)) {
        cluster::kill(name);
        cluster::remove(name);
    }
}

/// The scenarios of this run, how many are left out because they do not suit its kernel, and how many because it is not their turn.
fn chosen(args: &Args) -> (Vec<Scenario>, usize, usize) {
    let unsuited = |s: &Scenario| match args.debug_kernel {
        true => {
            s.spec.nodes > MAX_DEBUG_NODES || TOO_MUCH_FOR_DEBUG.iter().any(|n| s.name.contains(n))
        }
        false => ONLY_DEBUG.contains(&s.name),
    };
    let seed = cluster::seed().unwrap_or(0);
    let (now, later) = match args.turns {
        true => turns::split(scenarios::all(), seed),
        false => (scenarios::all(), Vec::new()),
    };
    for s in &later {
        println!("not with seed {seed}: vm::{}", s.name);
    }
    let (left_out, chosen): (Vec<Scenario>, Vec<Scenario>) = now
        .into_iter()
        .filter(|s| matches(s, &args.filter))
        .partition(unsuited);
    for s in &left_out {
        let kernel = if args.debug_kernel {
            "the"
        } else {
            "another than the"
        };
        println!("not on {kernel} debug kernel: vm::{}", s.name);
    }
    (chosen, left_out.len(), later.len())
}

/// The number of each chosen scenario's specification, among those of all: a part of a run has the same clusters as the whole.
fn spec_numbers(all: &[Scenario], chosen: &[Scenario]) -> Vec<usize> {
    let mut specs: Vec<&cluster::Spec> = Vec::new();
    for s in all {
        if !specs.contains(&&s.spec) {
            specs.push(&s.spec);
        }
    }
    let number = |s: &Scenario| specs.iter().position(|spec| **spec == s.spec);
    chosen.iter().filter_map(number).collect()
}

fn run(args: &Args) -> Result<bool> {
    let (chosen, left_out, later) = chosen(args);
    if args.list {
        for s in &chosen {
            println!("vm::{}", s.name);
        }
        return Ok(true);
    }
    let signals = signals()?;
    let (prefix, _claim) = claim(args.lab.as_deref())?;
    sweep(&prefix);
    let lanes = args
        .lanes
        .unwrap_or(if args.debug_kernel { 1 } else { LANES });
    let numbers = spec_numbers(&scenarios::all(), &chosen);
    let report = Report::new(args.times.as_deref(), &args.keep)?;
    let count = chosen.len();
    let run = Arc::new(Run::new(chosen, numbers, lanes, &prefix, report));
    let start = Instant::now();
    let threads: Vec<_> = (0..lanes)
        .map(|lane| {
            let run = Arc::clone(&run);
            std::thread::spawn(move || lane::work(&run, lane))
        })
        .collect();
    while threads.iter().any(|t| !t.is_finished()) {
        std::thread::sleep(TICK);
        if let Some(name) = signals.received() {
            run.stop(&format!("signal {name}"));
        }
        if let Some(budget) = args.budget {
            if start.elapsed() > Duration::from_secs(budget) {
                run.stop(&format!("the {budget} s that it may take are over"));
            }
        }
    }
    if let Some(why) = run.stopped() {
        println!("ended early: {why}");
        sweep(&prefix);
    }
    if left_out > 0 {
        println!("left out: {left_out} scenarios");
    }
    if later > 0 {
        println!("with other seeds: {later} scenarios");
    }
    Ok(run.report.summary(count, run.left()))
}

/// Signals that end a run in order.
struct Signals(Vec<(&'static str, Arc<std::sync::atomic::AtomicBool>)>);

impl Signals {
    fn received(&self) -> Option<&'static str> {
        let set = |s: &&(_, Arc<std::sync::atomic::AtomicBool>)| {
            s.1.load(std::sync::atomic::Ordering::Relaxed)
        };
        self.0.iter().find(set).map(|s| s.0)
    }
}

fn signals() -> Result<Signals> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let all = [("INT", SIGINT), ("TERM", SIGTERM), ("HUP", SIGHUP)];
    let registered = all.into_iter().map(|(name, number)| {
        let flag = Arc::default();
        signal_hook::flag::register(number, Arc::clone(&flag))?;
        Ok((name, flag))
    });
    registered.collect::<Result<_>>().map(Signals)
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.debug_kernel {
        cluster::use_kernel(cluster::Kernel::Debug);
    }
    if args.iommu {
        cluster::use_iommu();
    }
    cluster::use_seed();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("cluster-tests: {e:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenarios::expected;

    #[test]
    fn names_match_as_they_are_printed() {
        let all = scenarios::all();
        let found_by = |filters: &[&str]| {
            let filters: Vec<String> = filters.iter().map(|f| f.to_string()).collect();
            all.iter().filter(|s| matches(s, &filters)).count()
        };
        let found = |filter: &str| found_by(&[filter]);
        assert_eq!(found_by(&[]), all.len());
        assert_eq!(found_by(&["traffic::ping_sizes", "traffic::ssh"]), 2);
        assert_eq!(found("vm::traffic::ping_sizes"), 1);
        assert_eq!(found("traffic::ping_sizes"), 1);
        assert_eq!(found(""), all.len());
        assert_eq!(found("vm::"), all.len());
    }

    #[test]
    fn labs_of_a_run_are_told_from_others() {
        for name in ["check-0", "check-12", "check-3-emu"] {
            assert!(is_of_run(name, "check"), "{name}");
        }
        for name in ["check", "check2-0", "check-x", "check-x-1", "lab", "0"] {
            assert!(!is_of_run(name, "check"), "{name}");
        }
    }

    #[test]
    fn a_part_of_a_run_has_the_same_clusters() {
        let all = scenarios::all();
        let numbers = spec_numbers(&all, &all);
        assert_eq!((numbers[0], numbers.len()), (0, all.len()));
        let last = spec_numbers(&all, &all[all.len() - 1..]);
        assert_eq!(last, numbers[all.len() - 1..]);
        assert!(last[0] > 0);
    }

    #[test]
    fn names_are_unique_and_groups_are_used() {
        let all = scenarios::all();
        let mut names: Vec<_> = all.iter().map(|s| s.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        let groups = scenarios::GROUPS.iter().map(|g| g.prefix);
        for prefix in groups.chain(expected::prefixes()) {
            let used = all.iter().any(|s| s.name.starts_with(prefix));
            assert!(used, "no scenario begins with {prefix}");
        }
    }
}
