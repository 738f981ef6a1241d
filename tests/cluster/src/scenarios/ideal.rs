//! Other scenarios once more, over a fabric in which everything happens at once and in order (docs/emulator.md, Time and order): what
//! people see who look at a lab with `--timing ideal`, and an order that random delays hardly ever produce.

use crate::cluster::Spec;
use crate::Scenario;

const SPEC: Spec = Spec::pair().ideal();

/// Scenarios to run again; their new names begin with `ideal::`.
const AGAIN: &[(&str, &str)] = &[
    ("ideal::iperf3_tcp", "traffic::iperf3_tcp"),
    ("ideal::user_between_nodes", "uapi::between_nodes"),
];

/// The scenarios of this file, made from some of `others`.
pub fn all(others: &[Scenario]) -> Vec<Scenario> {
    super::again(others, &SPEC, AGAIN)
}
