//! Runs scenarios in clusters of virtual machines and reports them one by one.
//!
//! Scenarios with the same cluster specification run one after the other in one cluster. Each ends with a look at the
//! kernel logs; after a failure the cluster is thrown away and the next scenario gets a fresh one.
#![forbid(unsafe_code)]

mod probe_order;
mod scenarios;

use labctl as cluster;

use anyhow::{Context, Result};
use clap::Parser;
use cluster::{Lab, Spec};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Instant;

/// One test.
pub struct Scenario {
    /// Name, `group::what`.
    pub name: &'static str,
    /// The cluster it wants.
    pub spec: Spec,
    /// The test itself.
    pub run: fn(&Lab) -> Result<()>,
}

#[derive(Parser)]
#[command(about = "Scenarios in virtual machines")]
struct Args {
    /// Run only scenarios whose names contain this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Print the names and stop.
    #[arg(long)]
    list: bool,
    /// Name of the lab to use.
    #[arg(long, default_value = "check")]
    lab: String,
    /// Boot the debug kernel; leaves out what would take it hours.
    #[arg(long)]
    debug_kernel: bool,
    /// Give all nodes an IOMMU, not only those of the scenarios that are about it.
    #[arg(long)]
    iommu: bool,
}

/// Scenarios whose volume is out of reach for the debug kernel, on which a second moves a megabyte, or which want pages of
/// 1 GiB, for which it is not configured.
const TOO_MUCH_FOR_DEBUG: &[&str] = &["sha256_both_ways", "traffic::ssh", "atu_gigantic"];
/// Scenarios about what only the debug kernel has.
const ONLY_DEBUG: &[&str] = &["driver::unit_tests"];
/// Most nodes with the debug kernel: each takes 2.5 GiB of memory and a minute to boot.
const MAX_DEBUG_NODES: usize = 2;

fn one(scenario: &Scenario, lab: &Lab) -> Result<()> {
    let result = catch_unwind(AssertUnwindSafe(|| (scenario.run)(lab)))
        .unwrap_or_else(|_| Err(anyhow::anyhow!("the test panicked")));
    // The kernel log often says why a scenario failed, so look at it in both cases.
    match (result, lab.assert_clean_log()) {
        (Ok(()), log) => log,
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(log)) => Err(error.context(format!("{log:#}"))),
    }
}

fn main() {
    let args = Args::parse();
    if args.debug_kernel {
        cluster::use_kernel(cluster::Kernel::Debug);
    }
    if args.iommu {
        cluster::use_iommu();
    }
    let unsuited = |s: &Scenario| match args.debug_kernel {
        true => {
            s.spec.nodes > MAX_DEBUG_NODES || TOO_MUCH_FOR_DEBUG.iter().any(|n| s.name.contains(n))
        }
        false => ONLY_DEBUG.contains(&s.name),
    };
    let (left_out, chosen): (Vec<Scenario>, Vec<Scenario>) = scenarios::all()
        .into_iter()
        .filter(|s| s.name.contains(&args.filter))
        .partition(unsuited);
    for s in &left_out {
        let kernel = if args.debug_kernel {
            "the"
        } else {
            "another than the"
        };
        println!("not on {kernel} debug kernel: vm::{}", s.name);
    }
    if args.list {
        for s in &chosen {
            println!("{}", s.name);
        }
        return;
    }
    let (mut passed, mut failed) = (0, 0);
    let mut current: Option<Lab> = None;
    for (i, scenario) in chosen.iter().enumerate() {
        let start = Instant::now();
        if current.as_ref().map(Lab::spec) != Some(&scenario.spec) {
            current = None;
        }
        let lab = match current.take() {
            Some(lab) => Ok(lab),
            None => Lab::up(&args.lab, &scenario.spec),
        };
        let result = match lab {
            Ok(lab) => {
                let mut result = one(scenario, &lab);
                let goes_on = chosen.get(i + 1).map(|next| &next.spec) == Some(&scenario.spec);
                if result.is_ok() && !goes_on {
                    result = lab
                        .assert_no_leaks()
                        .context("the scenario was the last in this cluster");
                }
                if result.is_ok() {
                    current = Some(lab);
                }
                result
            }
            Err(error) => Err(error.context("the cluster did not come up")),
        };
        let seconds = start.elapsed().as_secs();
        match result {
            Ok(()) => {
                passed += 1;
                println!("ok      vm::{} ({seconds} s)", scenario.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAILED  vm::{} ({seconds} s): {error:#}", scenario.name);
            }
        }
    }
    drop(current);
    println!(
        "test result: {}. {passed} passed; {failed} failed",
        if failed == 0 { "ok" } else { "FAILED" }
    );
    std::process::exit(i32::from(failed > 0));
}
