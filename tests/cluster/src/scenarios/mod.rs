//! The scenarios, grouped by what they show.

mod accelerator;
mod checksums;
mod churn;
mod driver;
mod events;
mod fabric;
mod faults;
mod fuzz;
mod guest;
mod hostile;
mod iommu;
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
use crate::Scenario;
use anyhow::Result;

/// Two nodes, one cable.
pub const PAIR: Spec = Spec {
    nodes: 2,
    args: &["--topology", "pair"],
};

/// A scenario in [`PAIR`].
fn on_pair(name: &'static str, run: fn(&Lab) -> Result<()>) -> Scenario {
    Scenario {
        name,
        spec: PAIR,
        run,
    }
}

/// Every scenario, those of one cluster specification side by side.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(traffic::all());
    all.extend(driver::all());
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
    all.extend(accelerator::all());
    let again = iommu::all(&all);
    all.extend(again);
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
