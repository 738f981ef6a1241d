//! Repeats scenarios over a fabric without delays and with strict order (docs/emulator.md, Time and
//! order). Users of `--timing ideal` see this order, which random delays hardly ever produce.

use crate::cluster::Spec;
use crate::Scenario;

const SPEC: Spec = Spec::pair().ideal();

/// Scenarios to repeat; the new names begin with `ideal::`.
const AGAIN: &[(&str, &str)] = &[
    ("ideal::iperf3_tcp", "traffic::iperf3_tcp"),
    ("ideal::user_between_nodes", "uapi::between_nodes"),
];

/// Returns the scenarios of this file, made from some of `others`.
pub fn all(others: &[Scenario]) -> Vec<Scenario> {
    super::again(others, &SPEC, AGAIN)
}
