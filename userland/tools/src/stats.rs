// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Statistics of measurements.

use serde::Serialize;
use std::time::Duration;

/// Summary of times in microseconds, with the values that the perftest programs report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Minimum of the times.
    pub min: f64,
    /// Median of the times. Half of the times are smaller.
    pub median: f64,
    /// Mean of the times.
    pub mean: f64,
    /// Standard deviation of the times.
    pub deviation: f64,
    /// 99th percentile of the times.
    pub p99: f64,
    /// 99.9th percentile of the times.
    pub p999: f64,
    /// Maximum of the times.
    pub max: f64,
}

impl Summary {
    /// Sorts times in nanoseconds and returns their summary. All fields are zero if the slice is
    /// empty.
    pub fn of(ns: &mut [u64]) -> Self {
        ns.sort_unstable();
        let (Some(min), Some(max)) = (ns.first(), ns.last()) else {
            return Self::default();
        };
        let n = ns.len() as f64;
        let us = |x: f64| x / 1000.0;
        let mean = ns.iter().map(|x| *x as f64).sum::<f64>() / n;
        let variance = ns.iter().map(|x| (*x as f64 - mean).powi(2)).sum::<f64>() / n;
        // Nearest rank: smallest time that is not exceeded by this share of all times.
        let rank = |share: f64| ns[((share * n).ceil() as usize).clamp(1, ns.len()) - 1] as f64;
        Self {
            min: us(*min as f64),
            median: us(rank(0.5)),
            mean: us(mean),
            deviation: us(variance.sqrt()),
            p99: us(rank(0.99)),
            p999: us(rank(0.999)),
            max: us(*max as f64),
        }
    }
}

/// Returns a time in nanoseconds, limited to the maximum of u64.
pub fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the number of the driver's interrupts since boot, summed over all CPUs and NICs. Returns
/// `None` if /proc/interrupts is not readable.
pub fn interrupts() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/interrupts").ok()?;
    Some(count_interrupts(&text))
}

fn count_interrupts(text: &str) -> u64 {
    text.lines()
        .filter(|line| line.contains("extoll"))
        .flat_map(|line| {
            line.split_whitespace()
                .skip(1)
                .map_while(|word| word.parse::<u64>().ok())
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut times: Vec<u64> = (1..=1000).rev().map(|us| us * 1000).collect();
        let s = Summary::of(&mut times);
        assert_eq!(
            (s.min, s.median, s.p99, s.p999, s.max),
            (1.0, 500.0, 990.0, 999.0, 1000.0)
        );
        assert_eq!(s.mean, 500.5);
        assert!((s.deviation - 288.67).abs() < 0.01);
        let one = Summary::of(&mut [5000]);
        assert_eq!(
            (one.min, one.median, one.p999, one.deviation),
            (5.0, 5.0, 5.0, 0.0)
        );
        assert_eq!(Summary::of(&mut []), Summary::default());
    }

    #[test]
    fn interrupts_of_all_processors_are_added() {
        let text = "           CPU0       CPU1\n  1:    9    9  IO-APIC  i8042\n 30:   12   30  PCI-MSI-0000:00:02.0 0-edge  extoll 2\n";
        assert_eq!(count_interrupts(text), 42);
    }
}
