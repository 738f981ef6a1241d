//! Summary of a run: a flat map from names to numbers, for comparison with other runs.

use crate::exlnd;
use crate::report::Results;
use std::collections::BTreeMap;

/// Number of decimal places in the summary. The figures are less accurate than this.
const DIGITS: i32 = 4;

fn rounded(x: f64) -> f64 {
    let scale = 10f64.powi(DIGITS);
    (x * scale).round() / scale
}

/// Returns the medians of ratios, named `OF.TEST.vs_TO`, and of instructions, named by
/// [`crate::insns::Row::summary`]. Parts that were not measured have no names in the map.
pub fn of(results: &Results) -> BTreeMap<String, f64> {
    let ratios = results.ratios.iter().map(|r| {
        let key = format!("{}.{}.vs_{}", r.of, r.test.key(), r.to);
        (key, r.ratio.median)
    });
    let rows = results.instructions.iter().flat_map(|i| &i.rows);
    let drives = results
        .instructions
        .iter()
        .filter_map(|i| i.drives.as_ref());
    let of_rows = results.instructions.iter();
    let exlnd = of_rows.flat_map(|i| exlnd::instructions(&i.rows));
    ratios
        .chain(exlnd::summary(&results.exlnd_ratios))
        .chain(exlnd)
        .chain(drives.flat_map(|d| d.summary()))
        .chain(rows.flat_map(|row| row.summary()))
        .filter(|(_, value)| value.is_finite())
        .map(|(key, value)| (key, rounded(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insns::{Figures, Pass, Row, Unit};
    use crate::measure::Test;
    use crate::report::{tests::results, Ratio};
    use crate::stats::Spread;

    #[test]
    fn names_are_flat_and_values_are_numbers() {
        let mut results = results();
        let ratio = |test, median| Ratio {
            test,
            of: "exn",
            to: "e1000e",
            ratio: Spread {
                median,
                min: 0.0,
                max: 9.0,
            },
        };
        results.ratios.push(ratio(Test::UdpRr, 1.23456));
        results.ratios.push(ratio(Test::Tcp4, f64::NAN));
        results.instructions = Some(Figures {
            quiet: [[0.0; 2]; 2],
            drives: None,
            rows: vec![Row {
                subject: "velo",
                work: "pingpong64",
                title: "",
                unit: Unit::RoundTrip,
                units: 3,
                quiet: [[0.0; 2]; 2],
                passes: vec![Pass {
                    few: [[0, 0]; 2],
                    many: [[100, 0], [200, 1]],
                    seconds: 1.0,
                }],
            }],
        });
        let want = [
            ("exn.tcp1.vs_virtio", 2.0),
            ("exn.udp_rr.vs_e1000e", 1.2346),
            ("velo.pingpong64.instructions", 100.3333),
            ("velo.pingpong64.instructions.kernel", 100.0),
            ("velo.pingpong64.instructions.user", 0.3333),
        ];
        let all = of(&results);
        assert_eq!(
            all.iter()
                .map(|(k, v)| (k.as_str(), *v))
                .collect::<Vec<_>>(),
            want
        );
    }
}
