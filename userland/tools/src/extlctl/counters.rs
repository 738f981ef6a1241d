// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extlctl stats`: counters of the module af_extl, and their changes.

use crate::table::table;
use anyhow::{Context, Result};
use serde_json::{Map, Value};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Values of the counters with their names, in the order of the files.
type Sample = Vec<(String, u64)>;

/// Parses lines of the form `name number` or `name number of number`. The first number is the
/// value. After a line `nic ID`, names get the NIC as a prefix.
fn parse(text: &str) -> Sample {
    let mut nic = String::new();
    let mut all = Sample::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("nic"), Some(id)) => nic = format!("nic-{id}."),
            (Some(name), Some(number)) => {
                if let Ok(number) = number.parse() {
                    all.push((format!("{nic}{name}"), number));
                }
            }
            _ => {}
        }
    }
    all
}

fn sample(root: &Path) -> Result<Sample> {
    let path = root.join("proc/net/extl_stat");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: is af_extl loaded?", path.display()))?;
    let mut all = parse(&text);
    // Only root can read this file.
    if let Ok(text) = fs::read_to_string(root.join("sys/kernel/debug/af_extl/nics")) {
        all.extend(parse(&text));
    }
    Ok(all)
}

/// Returns the counters that have changed, with both values. NICs may have been added or removed
/// between the samples.
fn changes<'a>(before: &Sample, now: &'a Sample) -> Vec<(&'a str, u64, u64)> {
    let old = |name: &str| {
        before
            .iter()
            .find(|(n, _)| n == name)
            .map_or(0, |(_, n)| *n)
    };
    now.iter()
        .map(|(name, n)| (name.as_str(), old(name), *n))
        .filter(|(_, old, n)| old != n)
        .collect()
}

fn object<'a>(all: impl Iterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(all.map(|(n, v)| (n.to_owned(), v)).collect::<Map<_, _>>())
}

/// Prints the counters once, or their changes at intervals.
pub fn run(
    root: &Path,
    zeroes: bool,
    interval: Option<Duration>,
    count: Option<u64>,
    as_json: bool,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut before = sample(root)?;
    let Some(interval) = interval else {
        let shown = before.iter().filter(|(_, n)| zeroes || *n > 0);
        if as_json {
            let all = object(shown.map(|(name, n)| (name.as_str(), (*n).into())));
            writeln!(out, "{all}")?;
        } else {
            let rows: Vec<_> = shown.map(|(n, v)| vec![n.clone(), v.to_string()]).collect();
            write!(out, "{}", table(&rows))?;
        }
        return Ok(());
    };
    let mut left = count;
    let mut since = Instant::now();
    while left != Some(0) {
        std::thread::sleep(interval);
        let now = sample(root)?;
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        let changed = changes(&before, &now);
        let by = |old: u64, n: u64| n as i64 - old as i64;
        if as_json {
            let all = changed
                .iter()
                .map(|(name, old, n)| (*name, by(*old, *n).into()));
            writeln!(out, "{}", object(all))?;
        } else {
            let rows: Vec<_> = changed
                .iter()
                .map(|(name, old, n)| {
                    let by = by(*old, *n);
                    let rate = by as f64 / seconds.max(1e-9);
                    vec![
                        (*name).into(),
                        format!("{by:+}"),
                        format!("{rate:+.1}/s"),
                        n.to_string(),
                    ]
                })
                .collect();
            writeln!(out, "{}", table(&rows))?;
        }
        out.flush()?;
        before = now;
        left = left.map(|n| n - 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read() {
        let all =
            parse("sockets 3\nIdle+Connect 7\nunknown line\n\nnic 300\nplaces 2 of 1024\nruns 9\n");
        let expected = [
            ("sockets", 3),
            ("Idle+Connect", 7),
            ("nic-300.places", 2),
            ("nic-300.runs", 9),
        ];
        assert_eq!(all, expected.map(|(n, v)| (n.to_owned(), v)));
    }

    #[test]
    fn what_has_changed_is_found() {
        let before = parse("a 1\nb 2\n");
        let now = parse("a 1\nb 1\nc 4\n");
        assert_eq!(changes(&before, &now), [("b", 2, 1), ("c", 0, 4)]);
    }

    #[test]
    fn without_the_module_there_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", sample(dir.path()).unwrap_err());
        assert!(error.contains("is af_extl loaded?"), "{error}");
    }
}
