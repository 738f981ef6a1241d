//! Other scenarios once more, over a fabric in which everything that may be late is late and everything that may overtake overtakes
//! (docs/emulator.md, Time and order).

use crate::cluster::Spec;
use crate::Scenario;

const SPEC: Spec = Spec::pair().unkind();

/// Scenarios to run again; their new names begin with `unkind::`.
const AGAIN: &[(&str, &str)] = &[
    ("unkind::ping_1000", "traffic::ping_1000"),
    ("unkind::ping_sizes", "traffic::ping_sizes"),
    ("unkind::iperf3_tcp", "traffic::iperf3_tcp"),
    ("unkind::velo_and_rma", "raw::velo_and_rma"),
    ("unkind::user_between_nodes", "uapi::between_nodes"),
];

/// The scenarios of this file, made from some of `others`.
pub fn all(others: &[Scenario]) -> Vec<Scenario> {
    let again = AGAIN.iter().filter_map(|(name, other)| {
        let other = others.iter().find(|s| s.name == *other)?;
        Some(Scenario::new(name, SPEC, other.run))
    });
    again.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_to_run_again_exists() {
        let found = crate::scenarios::all();
        for (name, _) in AGAIN {
            assert!(found.iter().any(|s| s.name == *name), "{name}");
        }
    }
}
