//! The scenarios, grouped by what they show.

mod accelerator;
mod af_extl;
mod af_extl_connect;
mod af_extl_direct;
mod af_extl_kselftest;
mod af_extl_tools;
mod af_extl_users;
mod af_extl_zero;
mod checksums;
mod churn;
mod combining;
mod commands;
mod driver;
mod engine;
mod events;
mod exlnd;
mod exlnd_faults;
mod exlnd_nets;
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
mod late_answers;
mod leaks;
mod libraries;
mod lnet;
mod loops;
mod matrix;
mod memory;
mod node;
mod numa;
mod pieces;
mod ports;
mod raw;
mod recovery;
mod refused;
mod regions;
mod remote;
mod removal;
mod stack;
mod survival;
mod torus;
mod traffic;
mod uapi;
mod units;
mod userland;
mod vpci;
mod vpci_accel;
mod vpci_accel_drive;
mod vpci_borrow;
mod vpci_devices;
mod vpci_ends;
mod vpci_host;
mod vpci_hostile;
mod vpci_lease;

use crate::cluster::{Lab, Spec};
use crate::Scenario;
use anyhow::Result;

/// Two nodes, one cable.
pub const PAIR: Spec = Spec::pair();

/// A scenario in [`PAIR`].
const fn on_pair(name: &'static str, run: fn(&Lab) -> Result<()>) -> Scenario {
    Scenario::new(name, PAIR, run)
}

/// Scenarios to run once more in another cluster, as (new name, name).
fn again(others: &[Scenario], spec: &Spec, list: &[(&'static str, &str)]) -> Vec<Scenario> {
    let of_name = |name: &str| match others.iter().find(|s| s.name == name) {
        Some(scenario) => scenario,
        None => panic!("no scenario {name} to run again"),
    };
    list.iter()
        .map(|(new, name)| of_name(name).again(new, spec.clone()))
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
    all.extend(survival::all());
    all.extend(refused::all());
    all.extend(loops::all());
    all.extend(vpci_host::all());
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
    all.extend(accelerator::all());
    all.extend(vpci::all());
    all.extend(vpci_accel::all());
    all.extend(vpci_accel_drive::all());
    all.extend(vpci_borrow::all());
    all.extend(vpci_devices::all());
    all.extend(vpci_ends::all());
    all.extend(vpci_hostile::all());
    all.extend(af_extl::all());
    all.extend(af_extl_connect::all());
    all.extend(af_extl_direct::all());
    all.extend(af_extl_kselftest::all());
    all.extend(af_extl_tools::all());
    all.extend(af_extl_users::all());
    all.extend(lnet::all());
    all.extend(exlnd::all());
    all.extend(exlnd_faults::all());
    all.extend(exlnd_nets::all());
    all.extend(af_extl_zero::all());
    all.extend(lab_cli::all());
    let again = [iommu::all(&all), ideal::all(&all)].concat();
    all.extend(again);
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
