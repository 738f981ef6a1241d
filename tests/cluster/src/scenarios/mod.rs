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
mod late;
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
mod vpci_borrow;
mod vpci_devices;
mod vpci_ends;
mod vpci_host;
mod vpci_hostile;
mod vpci_lease;

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
    group("af_extl::", Load::Wait, 300),
    group("af_extl::same_as_tcp", Load::Cpu, 600),
    group("af_extl::options", Load::Cpu, 600),
    group("af_extl::random_calls", Load::Cpu, 600),
    // Most of their time they wait for deadlines.
    group("exlnd::", Load::Wait, 600),
    group("exlnd::routed", Load::Cpu, 600),
    group("exlnd::sizes", Load::Cpu, 600),
    group("exlnd::soak", Load::Cpu, 4500),
    group("exlnd::two_nics", Load::Cpu, 600),
    group("vpci::host_bridge", Load::Cpu, 600),
    // A lease ends without a word.
    group("vpci::accelerator", Load::Exclusive, 600),
    // A device's read of eight bytes is a message, and a lease ends without a word.
    group("vpci::", Load::Exclusive, 600),
    group("vpci::device_registers", Load::Wait, 300),
    group("vpci::crossing_loads", Load::Wait, 300),
    group("vpci::cycles", Load::Exclusive, 3600),
    // Rates are compared.
    group("survival::", Load::Exclusive, 600),
    group("survival::frozen_peer", Load::Wait, 300),
    group("survival::down_under_flood", Load::Wait, 300),
];

/// Which scenarios a whole run takes turns with, as (beginning of the name, in one of how many seeds): docs/testing.md, *Turns*.
pub const TURNS: &[(&str, u64)] = &[
    ("accelerator::", 3),
    ("af_extl::direct_", 3),
    ("af_extl::direct_cases", 1),
    ("af_extl::direct_echo", 1),
    ("af_extl::kselftest_", 3),
    ("af_extl::options", 3),
    ("af_extl::switch_", 3),
    ("af_extl::user_", 3),
    ("af_extl::zero_", 3),
    ("af_extl::zero_files", 1),
    ("churn::", 3),
    ("combining::", 3),
    ("exlnd::", 3),
    ("exlnd::ping", 1),
    ("exlnd::sizes", 1),
    ("exn::", 3),
    ("fabric::", 3),
    ("faults::", 3),
    ("faults::link_flap", 1),
    ("hostile::", 3),
    ("hostile::messages", 1),
    ("ideal::", 3),
    ("iommu::", 3),
    ("lab::", 3),
    ("libraries::", 3),
    ("numa::", 3),
    ("raw::", 3),
    ("raw::velo_and_rma", 1),
    ("security::full_", 3),
    ("stack::", 3),
    ("survival::", 3),
    ("units::", 3),
    ("userland::", 3),
    ("userland::c_calls", 1),
    ("userland::ping", 1),
    ("vpci::", 3),
    ("vpci::drive", 1),
    ("vpci::host_bridge", 1),
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
    all.extend(late::all());
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
    for scenario in &mut all {
        apply(GROUPS, scenario);
        expected::apply(scenario);
    }
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
