//! The scenarios, grouped by what they show.

mod checksums;
mod churn;
mod driver;
mod fabric;
mod faults;
mod hostile;
mod matrix;
mod memory;
mod raw;
mod recovery;
mod refused;
mod torus;
mod traffic;
mod uapi;
mod units;
mod userland;

use crate::cluster::Spec;
use crate::Scenario;

/// Two nodes, one cable.
pub const PAIR: Spec = Spec {
    nodes: 2,
    args: &["--topology", "pair"],
};

/// Every scenario, those of one cluster specification side by side.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(traffic::all());
    all.extend(driver::all());
    all.extend(churn::all());
    all.extend(faults::all());
    all.extend(recovery::all());
    all.extend(hostile::all());
    all.extend(checksums::all());
    all.extend(refused::all());
    all.extend(raw::all());
    all.extend(memory::all());
    all.extend(fabric::all());
    all.extend(uapi::all());
    all.extend(userland::all());
    all.extend(units::all());
    all.extend(matrix::all());
    // The first use of a specification decides when its cluster is booted.
    let specs: Vec<Spec> = all.iter().map(|s| s.spec.clone()).collect();
    all.sort_by_key(|s| specs.iter().position(|spec| *spec == s.spec));
    all
}
