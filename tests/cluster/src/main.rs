//! Runs scenarios in clusters of virtual machines and reports them one by one.
//!
//! Scenarios with the same cluster specification run one after the other in one cluster
//! (docs/testing.md). Each scenario ends with a check of the kernel logs and of the emulator's
//! findings. A failure discards the cluster, and the next scenario gets a fresh one. Failed
//! scenarios are repeated at the end, each alone in a fresh cluster.
#![forbid(unsafe_code)]

mod evidence;
mod probe_order;
mod report;
mod run;
mod scenario;
mod scenarios;

use labctl as cluster;
pub use scenario::Scenario;

use anyhow::{Context, Result};
use clap::Parser;
use report::{Key, Report};
use run::{Repeat, Run};
use rustix::fs::{flock, FlockOperation};
use scenario::Kernels;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Scenarios in virtual machines")]
struct Args {
    /// Run only scenarios whose printed names contain this text. May be given several times.
    #[arg(long)]
    filter: Vec<String>,
    /// Print the names and exit.
    #[arg(long)]
    list: bool,
    /// Prefix of the labs' names. Default: the first of check, check2, … that no other run uses.
    #[arg(long)]
    lab: Option<String>,
    /// Boot the debug kernel. Scenarios that would take hours on it are left out.
    #[arg(long)]
    debug_kernel: bool,
    /// Give an IOMMU to all nodes, not only to those of the scenarios that test it.
    #[arg(long)]
    iommu: bool,
    /// Run only the scenarios of the gate.
    #[arg(long)]
    gate: bool,
    /// Run only the K-th of N parts of the cluster specifications, given as K/N with K from 1.
    #[arg(long, value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// Number of times that a failed scenario is repeated.
    #[arg(long, default_value_t = 0)]
    again: usize,
    /// Maximum number of failed scenarios. If more have failed, none is repeated.
    #[arg(long, default_value_t = 3)]
    most_again: usize,
    /// Commit under test, recorded with the results. Empty if the work tree has uncommitted
    /// changes.
    #[arg(long, default_value = "")]
    commit: String,
    /// File that collects results over several runs: one record for each attempt, with the settings
    /// that it depends on.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Leave out scenarios that passed with the same commit, seed, variant, kernel and volume
    /// according to the history.
    #[arg(long, requires = "history")]
    resume: bool,
    /// Maximum duration of the run in seconds.
    #[arg(long)]
    budget: Option<u64>,
    /// File to which the results of this run are appended, one record for each attempt.
    #[arg(long)]
    times: Option<PathBuf>,
    /// Directory for the logs of failed scenarios.
    #[arg(long, default_value = "/out/check")]
    keep: PathBuf,
}

/// Maximum number of nodes with the debug kernel. Each node takes 2.5 GiB of memory and a minute to
/// boot.
const MAX_DEBUG_NODES: usize = 2;
/// Maximum number of simultaneous runs in one work tree.
const MOST_RUNS: usize = 20;
/// Time between two checks for signals and for the end of the budget.
const TICK: Duration = Duration::from_millis(200);

fn matches(scenario: &Scenario, filters: &[String]) -> bool {
    let name = format!("vm::{}", scenario.name);
    filters.is_empty() || filters.iter().any(|f| name.contains(f))
}

/// Returns a prefix of lab names and its lock file. No other run uses the prefix until the file is
/// closed.
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

/// Returns true for a lab of the run with this prefix, and for a lab that one of its scenarios
/// started.
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

/// Reads `K/N`.
fn shard(text: &str) -> Result<(usize, usize)> {
    let (k, n) = text.split_once('/').context("not K/N")?;
    let (k, n) = (k.parse()?, n.parse()?);
    anyhow::ensure!((1..=n).contains(&k), "not within 1 to {n}");
    Ok((k, n))
}

/// Returns the scenarios of this run, and one line for each matching scenario that is left out. The
/// line gives the reason.
fn chosen(args: &Args) -> Result<(Vec<Scenario>, Vec<String>)> {
    let all = scenarios::all();
    let numbers = spec_numbers(&all);
    let passed = match &args.history {
        Some(path) if args.resume && path.exists() => {
            key(args).passed(&std::fs::read_to_string(path)?)
        }
        _ => Default::default(),
    };
    let mut left_out = Vec::new();
    let mut chosen = Vec::new();
    for (s, number) in all.into_iter().zip(numbers) {
        let in_shard = args.shard.is_none_or(|(k, n)| number % n == k - 1);
        if !in_shard || (args.gate && !s.gate) || !matches(&s, &args.filter) {
            continue;
        }
        let too_large = args.debug_kernel && s.spec.nodes > MAX_DEBUG_NODES;
        let why = match s.kernels {
            Kernels::Stock if args.debug_kernel => "not on the debug kernel",
            Kernels::All if too_large => "too large for the debug kernel",
            Kernels::Debug if !args.debug_kernel => "only on the debug kernel",
            _ if passed.contains(&format!("vm::{}", s.name)) => "passed already",
            _ => {
                chosen.push(s);
                continue;
            }
        };
        left_out.push(format!("{why}: vm::{}", s.name));
    }
    Ok((chosen, left_out))
}

/// Returns the settings on which the results of this run depend.
fn key(args: &Args) -> Key {
    let value = |name: &&'static str| {
        let value = std::env::var(name).ok().filter(|v| !v.is_empty())?;
        Some((*name, value))
    };
    Key {
        commit: args.commit.clone(),
        kernel: if args.debug_kernel { "debug" } else { "stock" },
        variables: report::VARIABLES.iter().filter_map(value).collect(),
    }
}

/// Returns the number of each scenario's specification, in order of first use.
fn spec_numbers(all: &[Scenario]) -> Vec<usize> {
    let mut specs: Vec<&cluster::Spec> = Vec::new();
    for s in all {
        if !specs.contains(&&s.spec) {
            specs.push(&s.spec);
        }
    }
    let number = |s: &Scenario| specs.iter().position(|spec| **spec == s.spec);
    all.iter().filter_map(number).collect()
}

fn run(args: &Args) -> Result<bool> {
    let (chosen, left_out) = chosen(args)?;
    if args.list {
        for s in &chosen {
            println!("vm::{}", s.name);
        }
        return Ok(true);
    }
    for line in &left_out {
        println!("{line}");
    }
    let signals = signals()?;
    let (prefix, _claim) = claim(args.lab.as_deref())?;
    sweep(&prefix);
    let files: Vec<&Path> = [&args.times, &args.history]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let report = Report::new(&files, key(args), &args.keep)?;
    let repeat = Repeat {
        times: args.again,
        most: args.most_again,
    };
    let count = chosen.len();
    let run = Arc::new(Run::new(chosen, &prefix, repeat, report));
    let start = Instant::now();
    let worker = {
        let run = Arc::clone(&run);
        std::thread::spawn(move || run.work())
    };
    while !worker.is_finished() {
        std::thread::sleep(TICK);
        if let Some(name) = signals.received() {
            run.stop(&format!("signal {name}"));
        }
        if let Some(budget) = args.budget {
            if start.elapsed() > Duration::from_secs(budget) {
                run.stop(&format!("the budget of {budget} s is used up"));
            }
        }
    }
    if let Some(why) = run.stopped() {
        println!("ended early: {why}");
        sweep(&prefix);
    }
    if !left_out.is_empty() {
        println!("left out: {} scenarios", left_out.len());
    }
    let is_good = run.report.summary(count);
    Ok(is_good && run.stopped().is_none())
}

/// Signals that end a run after cleaning up.
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
    fn shards_are_the_whole() {
        let all = scenarios::all();
        let names = |shard: &str| -> Vec<&str> {
            let args = Args::parse_from(["x", "--shard", shard]);
            chosen(&args).unwrap().0.iter().map(|s| s.name).collect()
        };
        let stock = all.iter().filter(|s| s.kernels != Kernels::Debug).count();
        assert_eq!(names("1/1").len(), stock);
        let parts = ["1/3", "2/3", "3/3"].map(names);
        assert!(parts.iter().all(|p| !p.is_empty()));
        assert_eq!(parts.concat().len(), stock);
        for wrong in ["0/2", "3/2", "2", "a/b"] {
            assert!(Args::try_parse_from(["x", "--shard", wrong]).is_err());
        }
    }

    #[test]
    fn names_are_unique() {
        let all = scenarios::all();
        let mut names: Vec<_> = all.iter().map(|s| s.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    /// The gate has few scenarios and boots few clusters, because each commit must pass it.
    #[test]
    fn the_gate_stays_small() {
        let gate: Vec<_> = scenarios::all().into_iter().filter(|s| s.gate).collect();
        assert!((30..=45).contains(&gate.len()), "{}", gate.len());
        let clusters = spec_numbers(&gate).into_iter().max().unwrap_or(0) + 1;
        assert!(clusters <= 8, "{clusters}");
        assert!(gate.iter().all(|s| s.kernels != Kernels::Debug));
    }
}
