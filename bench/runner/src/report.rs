//! Results of all measurements, as JSON and as text.

use crate::counts::Side;
use crate::exlnd;
use crate::insns;
use crate::measure::{Effort, Pairs, Sample, Test, DEVICES};
use crate::parse::number;
use crate::stats::{median, ratios, Spread};
use crate::table::render;
use crate::units;
use anyhow::Result;
use labctl::Lab;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the JSON file's layout.
const SCHEMA: u32 = 1;

/// Raw runs, with size in bytes, to which other raw runs are compared.
const REFERENCES: [(&str, u64); 2] = [("VELO ping-pong irq", 64), ("RMA GET", 65536)];

/// Runs of one raw unit at one size.
#[derive(Debug, Clone, Serialize)]
pub struct RawRow {
    /// Name of the run.
    pub run: String,
    /// Bytes per message or transfer.
    pub size: u64,
    /// Bytes per second. For round trips, the sum of both directions.
    pub bytes_per_s: f64,
    /// Operations per second, median of the passes. For round trips, computed from their median
    /// time.
    pub operations_per_s: f64,
    /// Output of the module in each pass.
    pub passes: Vec<Pairs>,
}

impl RawRow {
    /// Builds a row from the module's output in each pass.
    pub fn new(run: &str, size: u64, passes: Vec<Pairs>) -> Self {
        let trips = passes.iter().any(|p| p.contains_key("rtt_ns_median"));
        let rate = |p: &Pairs| {
            let get = |key| number(p, key).unwrap_or(f64::NAN);
            match trips {
                true => 1e9 / get("rtt_ns_median"),
                false => get("count") * 1e9 / get("elapsed_ns"),
            }
        };
        let rates: Vec<f64> = passes.iter().map(rate).collect();
        let operations_per_s = median(&rates).unwrap_or(f64::NAN);
        let ways = if trips { 2.0 } else { 1.0 };
        Self {
            run: run.into(),
            size,
            bytes_per_s: operations_per_s * size as f64 * ways,
            operations_per_s,
            passes,
        }
    }
}

/// A ratio in the table.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// Test whose values are divided.
    pub test: Test,
    /// Numerator: exn or AF_EXTL.
    pub of: &'static str,
    /// Denominator: another device or the raw units.
    pub to: &'static str,
    /// Median, minimum and maximum of the ratio over the repetitions.
    pub ratio: Spread,
}

/// All results of a run of the benchmark.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Version of the file's layout, [`SCHEMA`].
    pub schema: u32,
    /// Revision of the sources.
    pub revision: String,
    /// True if the run used `--quick`.
    pub quick: bool,
    /// Durations and numbers of the measurements.
    pub effort: Effort,
    /// Duration of the run in seconds.
    pub seconds: u64,
    /// Versions and properties of guests and host.
    pub setup: BTreeMap<String, String>,
    /// Ratios that are computed from `samples`.
    pub ratios: Vec<Ratio>,
    /// Single values in the order of measurement.
    pub samples: Vec<Sample>,
    /// Bus accesses of both nodes.
    pub counts: Vec<Side>,
    /// Figures of the raw units at each size.
    pub raw: Vec<RawRow>,
    /// Figures of the units, used through the kernel API and from user space.
    pub units: Vec<units::Row>,
    /// Ratios that are computed from `units`.
    pub unit_ratios: Vec<units::Compared>,
    /// Speeds of RPCs over kexlnd.ko and over TCP, and of raw RMA.
    pub exlnd: Vec<exlnd::Sample>,
    /// Ratios that are computed from `exlnd`.
    pub exlnd_ratios: Vec<exlnd::Compared>,
    /// Instructions per operation; `None` if they were not counted.
    pub instructions: Option<insns::Figures>,
}

impl Results {
    /// Creates empty results.
    pub fn new(effort: Effort, quick: bool, revision: &str) -> Self {
        Self {
            schema: SCHEMA,
            revision: revision.into(),
            quick,
            effort,
            seconds: 0,
            setup: BTreeMap::new(),
            ratios: Vec::new(),
            samples: Vec::new(),
            counts: Vec::new(),
            raw: Vec::new(),
            units: Vec::new(),
            unit_ratios: Vec::new(),
            exlnd: Vec::new(),
            exlnd_ratios: Vec::new(),
            instructions: None,
        }
    }

    fn values(&self, device: &str, test: Test) -> Vec<(usize, f64)> {
        self.samples
            .iter()
            .filter(|s| s.device == device && s.test == test)
            .map(|s| (s.repetition, s.value))
            .collect()
    }

    /// Computes the ratios from the measured values.
    pub fn summarise(&mut self) {
        let names = DEVICES.iter().map(|d| d.name);
        let of_exn = names.clone().filter(|n| *n != "exn").map(|to| ("exn", to));
        let of_extl = names.map(|to| ("extl", to));
        let raw = ["exn", "extl"].map(|of| (of, "raw"));
        let pairs = of_exn.chain(of_extl).chain(raw);
        let mut all = Vec::new();
        for (of, to) in pairs {
            for test in Test::ALL {
                let values = [of, to].map(|device| self.values(device, test));
                if let Some(ratio) = Spread::of(&ratios(&values[0], &values[1])) {
                    all.push(Ratio {
                        test,
                        of,
                        to,
                        ratio,
                    });
                }
            }
        }
        self.ratios = all;
        self.unit_ratios = units::compare(&self.units);
        self.exlnd_ratios = exlnd::compare(&self.exlnd);
    }

    /// Returns the conditions of the measurement: revision, guests, host.
    fn conditions(&self) -> String {
        let of = |key: &str| self.setup.get(key).map_or("unknown", String::as_str);
        format!(
            "\nRevision {}{}; {}; guests: {}, {} of memory; host: {} CPUs, load at the start {}\n\
             Times and rates are ratios of figures of this run; counts are accesses, DMA is in bytes, each per operation\n",
            self.revision,
            if self.quick { ", --quick" } else { "" },
            of("qemu"),
            of("guest_kernel"),
            of("guest_memory"),
            of("host_processors"),
            of("host_load"),
        )
    }

    /// Returns the tables of all parts that were measured.
    pub fn text(&self) -> String {
        let mut out = self.conditions();
        if !self.ratios.is_empty() {
            out.push_str(&self.compared());
        }
        if !self.exlnd_ratios.is_empty() {
            out.push_str(&exlnd::text(&self.exlnd_ratios));
        }
        if let Some(figures) = &self.instructions {
            out.push_str(&insns::text(figures));
        }
        out.push('\n');
        out
    }

    fn compared(&self) -> String {
        let cell = |test, of, to| {
            self.ratios
                .iter()
                .find(|r| (r.test, r.of, r.to) == (test, of, to))
                .map_or("-".into(), |r| r.ratio.to_string())
        };
        let rows: Vec<Vec<String>> = Test::ALL
            .iter()
            .map(|t| {
                vec![
                    t.title().to_string(),
                    cell(*t, "exn", "virtio"),
                    cell(*t, "exn", "e1000e"),
                    cell(*t, "exn", "raw"),
                    cell(*t, "extl", "exn"),
                    cell(*t, "extl", "virtio"),
                    cell(*t, "extl", "raw"),
                ]
            })
            .collect();
        let mut out = format!(
            "\nRatios, median (smallest–largest) of {} repetitions; above 1: the first is faster; extl: TCP's programs with sockets of AF_EXTL\n\n",
            self.effort.repetitions
        );
        let head = [
            "",
            "exn/virtio",
            "exn/e1000e",
            "exn/raw",
            "extl/exn",
            "extl/virtio",
            "extl/raw",
        ];
        out.push_str(&render(&head, &rows));
        out.push_str(
            "\nAccesses on the bus between host and NIC (node 0 sends or asks, node 1 answers)\n\n",
        );
        out.push_str(&render(
            Side::HEAD,
            &self.counts.iter().map(Side::row).collect::<Vec<_>>(),
        ));
        out.push_str("\nRaw units by size: round trips relative to 64 bytes with interrupts, transfers relative to GETs of 64 KiB\n\n");
        let rows: Vec<Vec<String>> = self
            .raw
            .iter()
            .map(|r| {
                let unit = self.raw.iter().find(|u| {
                    REFERENCES.contains(&(&*u.run, u.size))
                        && u.run.split(" ").next() == r.run.split(" ").next()
                });
                let ratio = |of: fn(&RawRow) -> f64| {
                    unit.map_or("-".into(), |u| format!("{:.3}", of(r) / of(u)))
                };
                vec![
                    r.run.clone(),
                    r.size.to_string(),
                    ratio(|r| r.operations_per_s),
                    ratio(|r| r.bytes_per_s),
                ]
            })
            .collect();
        out.push_str(&render(&["", "bytes", "operations", "throughput"], &rows));
        out.push_str(&units::text(&self.units));
        out
    }
}

/// Returns the properties of the guests, such as versions and memory.
///
/// # Errors
/// When a node does not answer.
pub fn guest_setup(lab: &Lab) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let mut ask = |key: &str, script: &str| -> Result<()> {
        let value = lab.ok(0, script)?.trim().to_string();
        all.insert(key.to_string(), value);
        Ok(())
    };
    ask("guest_kernel", "uname -r")?;
    ask(
        "guest_processor",
        "sed -n 's/^model name.*: //p' /proc/cpuinfo | sort | uniq -c",
    )?;
    ask("guest_memory", "sed -n 's/^MemTotal: *//p' /proc/meminfo")?;
    ask("iperf3", "iperf3 --version | head -n 1")?;
    ask("netperf", "netperf -V 2>&1 | head -n 1")?;
    for device in ["exn0", "vio0", "e1k0"] {
        ask(
            &format!("mtu_{device}"),
            &format!("cat /sys/class/net/{device}/mtu"),
        )?;
    }
    Ok(all)
}

/// Returns the properties of the host, such as CPUs and load.
pub fn host_setup() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut note = |key: &str, value: String| all.insert(key.to_string(), value.trim().to_string());
    let host = |program: &str, arg: &str| {
        let out = std::process::Command::new(program).arg(arg).output();
        out.ok()
            .and_then(|o| {
                String::from_utf8_lossy(&o.stdout)
                    .lines()
                    .next()
                    .map(String::from)
            })
            .unwrap_or_else(|| "unknown".into())
    };
    note("qemu", host("qemu-system-x86_64", "--version"));
    note("host_kernel", host("uname", "-r"));
    note(
        "host_processors",
        std::thread::available_parallelism()
            .map_or(0, std::num::NonZero::get)
            .to_string(),
    );
    note(
        "host_load",
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default(),
    );
    all
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn sample(repetition: usize, device: &'static str, value: f64) -> Sample {
        Sample {
            repetition,
            device,
            test: Test::Tcp1,
            unit: "bit/s",
            value,
            details: Value::Null,
        }
    }

    pub fn results() -> Results {
        let mut r = Results::new(
            Effort {
                repetitions: 3,
                seconds: 1,
                round_trips: 1,
                raw_bytes: 1,
                raw_passes: 1,
                unit_passes: 3,
                counted_passes: 3,
            },
            true,
            "abc",
        );
        for (i, (exn, virtio)) in [(2e9, 1e9), (3e9, 1e9), (1e9, 2e9)].into_iter().enumerate() {
            r.samples
                .extend([sample(i, "exn", exn), sample(i, "virtio", virtio)]);
        }
        let lines = |n: &str| labctl::pairs(&format!("count 10\nelapsed_ns {n}\n"));
        r.raw = vec![
            RawRow::new(
                "RMA GET",
                64,
                vec![lines("900"), lines("9000"), lines("1000")],
            ),
            RawRow::new("RMA GET", 65536, vec![lines("2000")]),
        ];
        r.summarise();
        r
    }

    #[test]
    fn text_shows_ratios_not_times() {
        let text = results().text();
        assert!(text.contains("Revision abc, --quick;"), "{text}");
        let line = text.lines().find(|l| l.starts_with("TCP stream")).unwrap();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            [
                "TCP",
                "stream",
                "2.00",
                "(0.50–3.00)",
                "-",
                "-",
                "-",
                "-",
                "-"
            ]
        );
        let raw: Vec<_> = text
            .lines()
            .filter(|l| l.starts_with("RMA GET"))
            .map(|l| l.split_whitespace().collect::<Vec<_>>())
            .collect();
        assert_eq!(
            raw,
            [
                ["RMA", "GET", "64", "2.000", "0.002"],
                ["RMA", "GET", "65536", "1.000", "1.000"]
            ]
        );
    }

    #[test]
    fn json_has_everything() {
        let value: Value =
            serde_json::from_slice(&serde_json::to_vec(&results()).unwrap()).unwrap();
        assert_eq!(value["schema"], json!(SCHEMA));
        assert_eq!(
            value["ratios"][0],
            json!({"test": "tcp1", "of": "exn", "to": "virtio", "ratio": {"median": 2.0, "min": 0.5, "max": 3.0}})
        );
        assert_eq!(value["samples"].as_array().unwrap().len(), 6);
        assert_eq!(value["raw"][1]["passes"][0]["elapsed_ns"], json!("2000"));
    }
}
