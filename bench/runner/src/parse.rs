//! Parsers for the output of measuring programs.

use anyhow::{bail, Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;

/// Result of a TCP stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    /// Bits per second at the receiver.
    pub bits_per_s: f64,
    /// Segments that the sender retransmitted.
    pub retransmits: u64,
}

/// Parses the report of `iperf3 -J`.
///
/// # Errors
/// When the text is not a report, or the run has failed. If the run has failed, the error contains
/// iperf3's message.
pub fn iperf3(text: &str) -> Result<Stream> {
    let report: Value =
        serde_json::from_str(text).with_context(|| format!("iperf3 printed no JSON: {text}"))?;
    if let Some(error) = report["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let bits_per_s = report["end"]["sum_received"]["bits_per_second"].as_f64();
    let bits_per_s =
        bits_per_s.context("iperf3's report has no end.sum_received.bits_per_second")?;
    let retransmits = report["end"]["sum_sent"]["retransmits"]
        .as_u64()
        .unwrap_or(0);
    Ok(Stream {
        bits_per_s,
        retransmits,
    })
}

/// Parses `KEY=number` lines of `netperf -k`.
///
/// # Errors
/// When THROUGHPUT is missing.
pub fn netperf(text: &str) -> Result<BTreeMap<String, f64>> {
    let all: BTreeMap<String, f64> = text
        .lines()
        .filter_map(|l| l.trim().split_once('='))
        .filter_map(|(k, v)| Some((k.to_string(), v.trim().parse().ok()?)))
        .collect();
    if !all.contains_key("THROUGHPUT") {
        bail!("netperf printed no THROUGHPUT: {text}");
    }
    Ok(all)
}

/// Returns a number from `key value` lines.
///
/// # Errors
/// When the key is missing or its value is not a number.
pub fn number(pairs: &BTreeMap<String, String>, key: &str) -> Result<f64> {
    let text = pairs
        .get(key)
        .with_context(|| format!("no '{key}' in {pairs:?}"))?;
    text.parse().with_context(|| format!("'{key}' is '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iperf3_reports() {
        let text = r#"{"start":{},"end":{"streams":[],"sum_sent":{"bits_per_second":2.5e9,"retransmits":3},
            "sum_received":{"bits_per_second":2.25e9,"sender":true}}}"#;
        assert_eq!(
            iperf3(text).unwrap(),
            Stream {
                bits_per_s: 2.25e9,
                retransmits: 3
            }
        );
        let failed = r#"{"start":{},"intervals":[],"end":{},"error":"unable to connect to server: Connection refused"}"#;
        assert!(iperf3(failed)
            .unwrap_err()
            .to_string()
            .contains("Connection refused"));
        assert!(iperf3(r#"{"end":{}}"#)
            .unwrap_err()
            .to_string()
            .contains("sum_received"));
        assert!(iperf3("iperf3: error")
            .unwrap_err()
            .to_string()
            .contains("no JSON"));
    }

    #[test]
    fn netperf_reports() {
        let all = netperf("THROUGHPUT=62.08\nTHROUGHPUT_UNITS=Trans/s\nMEAN_LATENCY=14421.39\nP99_LATENCY=110000\n").unwrap();
        assert_eq!(
            (all["THROUGHPUT"], all["P99_LATENCY"], all.len()),
            (62.08, 110_000.0, 3)
        );
        assert!(netperf("establish control: are you sure there is a netserver?").is_err());
    }

    #[test]
    fn raw_results() {
        let pairs = [
            ("a".to_string(), "12".to_string()),
            ("b".to_string(), "x".to_string()),
        ]
        .into();
        assert_eq!(number(&pairs, "a").unwrap(), 12.0);
        assert!(number(&pairs, "b").is_err());
        assert!(number(&pairs, "c").is_err());
    }
}
