//! The scenarios, grouped by what they show.

mod accelerator;
mod checksums;
mod churn;
mod combining;
mod commands;
mod driver;
mod events;
mod exn_options;
pub mod expected;
mod fabric;
mod faults;
mod fuzz;
mod guest;
mod hostile;
mod ideal;
mod iommu;
mod lab_cli;
mod late;
mod late_answers;
mod leaks;
mod libraries;
mod matrix;
mod memory;
mod node;
mod numa;
mod pieces;
mod ports;
mod raw;
mod recovery;
mod refused;
mod removal;
mod stack;
mod torus;
mod traffic;
mod uapi;
mod units;
mod userland;

use crate::cluster::{Lab, Spec};
use crate::scenario::{apply, Group, Load};
use crate::Scenario;
use anyhow::Result;

/// Two nodes, one cable.
pub const PAIR: Spec = Spec::pair();

/// A scenario in [`PAIR`].
const fn on_pair(name: &'static str, run: fn(&Lab) -> Result<()>) -> Scenario {
    Scenario::new(name, PAIR, run)
}

const fn group(prefix: &'static str, load: Load, seconds: u64) -> Group {
    Group {
        prefix,
        load,
        seconds,
    }
}

/// What runs beside what, and how long it may take. Without an entry: waits most of the time, 300 s. The longest text that fits counts.
pub const GROUPS: &[Group] = &[
    group("traffic::", Load::Cpu, 600),
    group("traffic::deferred_interrupts", Load::Exclusive, 300),
    group("churn::", Load::Cpu, 600),
    group("faults::corrupted_links", Load::Cpu, 600),
    group("faults::receive_queue_full", Load::Cpu, 600),
    group("faults::retry_and_replay", Load::Cpu, 600),
    group("faults::slow_receiver", Load::Cpu, 600),
    group("hostile::", Load::Wait, 600),
    group("hostile::pci_identity", Load::Cpu, 600),
    group("security::", Load::Wait, 600),
    group("fuzz::", Load::Cpu, 900),
    group("uapi::", Load::Wait, 600),
    group("iommu::", Load::Cpu, 600),
    group("numa::", Load::Cpu, 600),
    group("raw::", Load::Wait, 600),
    group("raw::bad_commands", Load::Wait, 300),
    group("raw::rma_matrix", Load::Cpu, 1200),
    group("raw::atu_gigantic", Load::Exclusive, 600),
    group("userland::rma_matrix", Load::Cpu, 2400),
    group("userland::perf", Load::Cpu, 600),
    group("units::rra_everywhere", Load::Exclusive, 900),
    group("combining::late_heir", Load::Wait, 600),
    group("fabric::torus", Load::Exclusive, 1200),
];

/// Scenarios to run once more in another cluster, as (new name, name).
fn again(others: &[Scenario], spec: &Spec, list: &[(&'static str, &str)]) -> Vec<Scenario> {
    let run = |name: &str| match others.iter().find(|s| s.name == name) {
        Some(scenario) => scenario.run,
        None => panic!("no scenario {name} to run again"),
    };
    list.iter()
        .map(|(new, name)| Scenario::new(new, spec.clone(), run(name)))
        .collect()
}

/// Every scenario, those of one cluster specification side by side.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(traffic::all());
    all.extend(driver::all());
    all.extend(commands::all());
    all.extend(churn::all());
    all.extend(removal::all());
    all.extend(faults::all());
    all.extend(late_answers::all());
    all.extend(recovery::all());
    all.extend(hostile::all());
    all.extend(checksums::all());
    all.extend(exn_options::all());
    all.extend(stack::all());
    all.extend(refused::all());
    all.extend(raw::all());
    all.extend(ports::all());
    all.extend(memory::all());
    all.extend(pieces::all());
    all.extend(fabric::all());
    all.extend(uapi::all());
    all.extend(late::all());
    all.extend(fuzz::all());
    all.extend(userland::all());
    all.extend(libraries::all());
    all.extend(units::all());
    all.extend(events::all());
    all.extend(matrix::all());
    all.extend(numa::all());
    all.extend(combining::all());
    all.extend(accelerator::all());
    all.extend(lab_cli::all());
    let again = [iommu::all(&all), ideal::all(&all)].concat();
    all.extend(again);
    for scenario in &mut all {
        apply(GROUPS, scenario);
        expected::apply(scenario);
    }
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
