//! The scenarios, grouped by what they show.

mod accelerator;
mod checksums;
mod churn;
mod combining;
mod commands;
mod driver;
mod events;
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
mod raw;
mod recovery;
mod refused;
mod removal;
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

const fn group(
    prefix: &'static str,
    load: Load,
    seconds: u64,
    expects: &'static [&'static str],
) -> Group {
    Group {
        prefix,
        load,
        seconds,
        expects,
    }
}

/// Input that is wrong on purpose: whatever the emulator finds in it is what was sent.
const ANYTHING: &[&str] = &["*"];

/// Accesses that the scenarios of a group make on purpose, or that a reset, a cut link or the end of a process leaves behind: refused and
/// counted by the NIC.
const REFUSED: &[&str] = &[
    // Between the end of an entry and the flush, which the driver waits for.
    "atu_stale_hits",
    "odd_accesses",
    "bad_accesses",
    "drops_incomplete_descriptor",
    "host_dma_outside_memory",
    "drops_translation",
    "drops_rma_bad_command",
    "drops_wrong_protection",
    "drops_dma",
    "dma_faults",
    "drops_smfu_no_interval",
    "drops_smfu_disabled",
    "drops_pcie_packet",
    "host_msi_lost",
];

/// What runs beside what, how long it may take, and what it makes the emulator find on purpose. Without an entry: waits most of the time,
/// 300 s, nothing. The longest text that fits counts.
pub const GROUPS: &[Group] = &[
    group("traffic::", Load::Cpu, 600, &[]),
    group("traffic::deferred_interrupts", Load::Exclusive, 300, &[]),
    group("churn::", Load::Cpu, 600, REFUSED),
    group("faults::corrupted_links", Load::Cpu, 600, REFUSED),
    group("faults::receive_queue_full", Load::Cpu, 600, REFUSED),
    group("faults::retry_and_replay", Load::Cpu, 600, REFUSED),
    group("faults::slow_receiver", Load::Cpu, 600, REFUSED),
    group("hostile::", Load::Wait, 600, ANYTHING),
    group("hostile::pci_identity", Load::Cpu, 600, ANYTHING),
    group("security::", Load::Wait, 600, ANYTHING),
    group("fuzz::", Load::Cpu, 900, ANYTHING),
    group("uapi::", Load::Wait, 600, REFUSED),
    group("iommu::", Load::Cpu, 600, REFUSED),
    group("numa::", Load::Cpu, 600, REFUSED),
    group("raw::", Load::Wait, 600, REFUSED),
    group("raw::bad_commands", Load::Wait, 300, ANYTHING),
    group("raw::rma_matrix", Load::Cpu, 1200, REFUSED),
    group("raw::atu_gigantic", Load::Exclusive, 600, REFUSED),
    group("userland::rma_matrix", Load::Cpu, 2400, REFUSED),
    group("userland::perf", Load::Cpu, 600, REFUSED),
    group("units::rra_everywhere", Load::Exclusive, 900, REFUSED),
    group(
        "combining::heir",
        Load::Wait,
        300,
        &["drops_incomplete_descriptor", "wc_unfenced"],
    ),
    group("combining::late_heir", Load::Wait, 600, &[]),
    group(
        "combining::missing_fence",
        Load::Wait,
        300,
        &["wc_unfenced"],
    ),
    group("fabric::torus", Load::Exclusive, 1200, REFUSED),
    group("faults::", Load::Wait, 300, REFUSED),
    group("userland::", Load::Wait, 300, REFUSED),
    group("libraries::", Load::Wait, 300, REFUSED),
    group("units::", Load::Wait, 300, REFUSED),
    group("accelerator::", Load::Wait, 300, REFUSED),
];

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
    all.extend(refused::all());
    all.extend(raw::all());
    all.extend(memory::all());
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
    }
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
