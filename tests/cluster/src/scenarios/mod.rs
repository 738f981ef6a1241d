//! All scenarios, grouped by subject.

mod churn;
mod combining;
mod commands;
mod driver;
mod ds;
mod engine;
mod eth;
mod events;
pub mod expected;
mod fabric;
mod faults;
mod fuzz;
mod guest;
mod ideal;
mod iommu;
mod lab_cli;
mod late_answers;
mod leaks;
mod libraries;
mod lnd;
mod loops;
mod matrix;
mod memory;
mod node;
mod numa;
mod pci;
mod pieces;
mod ports;
mod raw;
mod recovery;
mod refused;
mod regions;
mod remote;
mod removal;
mod torus;
mod uapi;
mod units;
mod userland;

use crate::cluster::{Lab, Spec};
use crate::Scenario;
use anyhow::Result;

/// Cluster of two nodes and one cable.
pub const PAIR: Spec = Spec::pair();

/// Returns a scenario in [`PAIR`].
const fn on_pair(name: &'static str, run: fn(&Lab) -> Result<()>) -> Scenario {
    Scenario::new(name, PAIR, run)
}

/// Returns copies of scenarios for another cluster. `list` holds pairs of the new name and the name
/// of the original.
fn again(others: &[Scenario], spec: &Spec, list: &[(&'static str, &str)]) -> Vec<Scenario> {
    let of_name = |name: &str| match others.iter().find(|s| s.name == name) {
        Some(scenario) => scenario,
        None => panic!("no scenario {name} to run again"),
    };
    list.iter()
        .map(|(new, name)| of_name(name).again(new, spec.clone()))
        .collect()
}

/// Returns all scenarios. Scenarios with the same cluster specification are adjacent.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(eth::traffic::all());
    all.extend(driver::all());
    all.extend(commands::all());
    all.extend(churn::all());
    all.extend(removal::all());
    all.extend(faults::all());
    all.extend(late_answers::all());
    all.extend(recovery::all());
    all.extend(eth::hostile::all());
    all.extend(eth::checksums::all());
    all.extend(eth::options::all());
    all.extend(eth::stack::all());
    all.extend(eth::survival::all());
    all.extend(refused::all());
    all.extend(loops::all());
    all.extend(pci::host_bridge::all());
    all.extend(raw::all());
    all.extend(ports::all());
    all.extend(memory::all());
    all.extend(regions::all());
    all.extend(engine::all());
    all.extend(pieces::all());
    all.extend(fabric::all());
    all.extend(uapi::all());
    all.extend(fuzz::all());
    all.extend(userland::all());
    all.extend(libraries::all());
    all.extend(units::all());
    all.extend(remote::all());
    all.extend(events::all());
    all.extend(matrix::all());
    all.extend(numa::all());
    all.extend(combining::all());
    all.extend(pci::accel_node::all());
    all.extend(pci::fabric::all());
    all.extend(pci::accel::all());
    all.extend(pci::accel_drive::all());
    all.extend(pci::borrow::all());
    all.extend(pci::devices::all());
    all.extend(pci::ends::all());
    all.extend(pci::hostile::all());
    all.extend(ds::sockets::all());
    all.extend(ds::connect::all());
    all.extend(ds::direct::all());
    all.extend(ds::kselftest::all());
    all.extend(ds::tools::all());
    all.extend(ds::users::all());
    all.extend(lnd::stand_in::all());
    all.extend(lnd::messages::all());
    all.extend(lnd::faults::all());
    all.extend(lnd::nets::all());
    all.extend(ds::zero_copy::all());
    all.extend(lab_cli::all());
    let again = [iommu::all(&all), ideal::all(&all)].concat();
    all.extend(again);
    // The first use of a specification determines when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
