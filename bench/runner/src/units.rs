//! Comparison of the units through the kernel API and from user space, and the bus accesses of each
//! operation.

use crate::counts::{buses, Bus, Rates};
use crate::measure::{Effort, RAW_TIMEOUT_MS};
use crate::parse::number;
use crate::stats::{ratios, short, Spread};
use crate::table::render;
use anyhow::{bail, ensure, Context, Result};
use extoll_emulator_api::control::Client;
use labctl::{Lab, Running, PATIENCE};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

/// Size in bytes of the memory of node 1 that transfers access; the maximum length of a command.
const MEMORY: u64 = 8 << 20;
/// Maximum number of transfers in flight.
const INFLIGHT: u32 = 8;
/// Transfer size in bytes whose throughput is the reference for other sizes.
const REFERENCE: u64 = 65536;
/// Size in bytes of the memory that a registration covers.
const REGISTERED: u64 = 2 << 20;
/// Timeout of the programs in seconds.
const TIMEOUT: u64 = 60;

/// Kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Half of the median round-trip time of VELO messages.
    HalfRoundTrip,
    /// Rate of VELO messages in one direction.
    MessageRate,
    /// Stream of RMA GETs.
    Get,
    /// Stream of RMA PUTs.
    Put,
    /// Registration and deregistration of memory in pages of 4 KiB.
    Page,
    /// Registration and deregistration of a huge page of 2 MiB. Only user space can do this.
    HugePage,
}

/// A measurement of one operation at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Kind of measurement.
    pub what: What,
    /// Bytes per message, transfer or page.
    pub size: u64,
    /// True to poll, false to use interrupts.
    pub polling: bool,
}

/// API through which a measurement uses the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// Kernel API, used by `extoll_bench.ko`.
    Kernel,
    /// Device files, used by the program `extoll-perf`.
    User,
}

impl Api {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::User => "user",
        }
    }
}

impl Case {
    fn all(effort: &Effort) -> Vec<Self> {
        let quick = effort.repetitions < 5;
        let case = |what, size, polling| Self {
            what,
            size,
            polling,
        };
        let (messages, sizes): (&[u64], &[u64]) = if quick {
            (&[8], &[8, 4096, REFERENCE, MEMORY])
        } else {
            (
                &[8, 120],
                &[8, 64, 512, 4096, REFERENCE, 512 << 10, 2 << 20, MEMORY],
            )
        };
        let mut all = Vec::new();
        for what in [What::HalfRoundTrip, What::MessageRate] {
            for polling in [true, false] {
                all.extend(messages.iter().map(|s| case(what, *s, polling)));
            }
        }
        for what in [What::Get, What::Put] {
            all.push(case(what, REFERENCE, true));
            all.extend(sizes.iter().map(|s| case(what, *s, false)));
        }
        all.push(case(What::Page, 4096, false));
        all.push(case(What::HugePage, 2 << 20, false));
        all
    }

    fn title(self) -> String {
        let mode = if self.polling { "poll" } else { "irq" };
        match self.what {
            What::HalfRoundTrip => format!("VELO half round trip, {mode}"),
            What::MessageRate => format!("VELO message rate, {mode}"),
            What::Get => format!("RMA GET, {mode}"),
            What::Put => format!("RMA PUT, {mode}"),
            What::Page => "registering pages".into(),
            What::HugePage => "registering huge pages".into(),
        }
    }

    /// Returns the APIs that the case is measured through.
    fn apis(self) -> &'static [Api] {
        match self.what {
            What::HugePage => &[Api::User],
            _ => &[Api::Kernel, Api::User],
        }
    }

    /// Returns the number of repetitions in one run.
    fn count(self, effort: &Effort) -> u64 {
        match self.what {
            What::HalfRoundTrip => effort.round_trips.into(),
            What::MessageRate => u64::from(effort.round_trips) * 10,
            What::Get | What::Put => (effort.raw_bytes / self.size).clamp(16, 2000),
            What::Page | What::HugePage => u64::from(effort.round_trips) / 4,
        }
    }

    /// Returns the number of operations in `count` repetitions.
    fn operations(self, count: u64) -> u64 {
        match self.what {
            What::Page | What::HugePage => count * (REGISTERED / self.size),
            _ => count,
        }
    }
}

/// Results of a measurement through one API.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The measurement.
    #[serde(flatten)]
    pub case: Case,
    /// API that was used.
    pub api: Api,
    /// Number of operations in each pass.
    pub operations: u64,
    /// Time per operation of each pass in nanoseconds.
    pub ns: Vec<f64>,
    /// Bus accesses per operation on nodes 0 and 1, median of the passes. The accesses of a pass
    /// with a single operation are subtracted, so that opening and closing do not count.
    pub bus: [Rates; 2],
}

/// The lab with everything that the measurements need.
pub struct Bench<'a> {
    lab: &'a Lab,
    peer: u64,
    /// VPID and NLA of the memory of node 1, as words of a command.
    memory: String,
    /// The program `extoll-perf serve` on node 1.
    server: Option<Running>,
}

impl<'a> Bench<'a> {
    pub fn start(lab: &'a Lab, peer: u64) -> Result<Self> {
        for node in 0..2 {
            // Takes exn0 down, so that only the measurement uses the NICs.
            lab.ok(node, "ip link set exn0 down")?;
        }
        let offer = lab.raw(1, &format!("offer kind=pages access=rw bytes={MEMORY}"))?;
        let word = |key: &str| number(&offer, key).map(|n| n as u64);
        let memory = format!("vpid={} nla={}", word("vpid")?, word("nla")?);
        lab.ok(0, "sysctl -qw vm.nr_hugepages=4")?;
        let server = lab.spawn(1, "exec extoll-perf serve")?;
        lab.until("extoll-perf serves", PATIENCE, |lab| {
            let out = lab.sh_for(
                0,
                "extoll-perf run velo-lat 10.3.0.2 -n 1 -w 0 --timeout 20",
                PATIENCE,
            )?;
            Ok(out.status == 0)
        })?;
        Ok(Self {
            lab,
            peer,
            memory,
            server: Some(server),
        })
    }

    pub fn end(mut self) -> Result<()> {
        self.lab.ok(1, "pkill -x extoll-perf")?;
        if let Some(server) = self.server.take() {
            server.wait(PATIENCE)?;
        }
        self.lab.ok(0, "sysctl -qw vm.nr_hugepages=0")?;
        self.lab.raw(1, "withdraw").map(|_| ())
    }

    /// Runs a measurement with `count` repetitions. Returns the time per operation in nanoseconds.
    pub fn run(&self, case: Case, api: Api, count: u64) -> Result<f64> {
        match api {
            Api::Kernel => self.kernel(case, count),
            Api::User => self.user(case, count),
        }
    }

    fn kernel(&self, case: Case, count: u64) -> Result<f64> {
        let Case {
            what,
            size,
            polling,
        } = case;
        let mode = if polling { "poll" } else { "irq" };
        let peer = self.peer;
        let transfer = |dir: &str| {
            let memory = &self.memory;
            format!("stream dir={dir} node={peer} {memory} bytes={MEMORY} len={size} count={count} inflight={INFLIGHT} mode={mode} seed=1")
        };
        let command = match what {
            What::HalfRoundTrip => {
                format!("pingpong node={peer} size={size} count={count} mode={mode}")
            }
            What::MessageRate => format!("rate node={peer} size={size} count={count} mode={mode}"),
            What::Get => transfer("get"),
            What::Put => transfer("put"),
            What::Page => format!("register kind=pages bytes={REGISTERED} count={count}"),
            What::HugePage => bail!("the kernel API has no huge pages"),
        };
        let r = self
            .lab
            .raw(0, &format!("{command} timeout_ms={RAW_TIMEOUT_MS}"))?;
        if what == What::Get {
            ensure!(r["mismatch"] == "none", "wrong data: {r:?}");
        }
        let operations = case.operations(count) as f64;
        Ok(match what {
            What::HalfRoundTrip => number(&r, "rtt_ns_median")? / 2.0,
            What::Page | What::HugePage => {
                (number(&r, "register_ns")? + number(&r, "revoke_ns")?) / operations
            }
            _ => number(&r, "elapsed_ns")? / operations,
        })
    }

    fn user(&self, case: Case, count: u64) -> Result<f64> {
        let Case {
            what,
            size,
            polling,
        } = case;
        let events = if polling { "" } else { " -e" };
        let run = |test: &str| {
            format!("run {test} 10.3.0.2 -s {size} -n {count} -t {INFLIGHT} --timeout {TIMEOUT}{events}")
        };
        let huge = if what == What::HugePage {
            " --huge"
        } else {
            ""
        };
        let arguments = match what {
            What::HalfRoundTrip => run("velo-lat"),
            What::MessageRate => run("velo-rate"),
            What::Get => run("get-bw"),
            What::Put => run("put-bw"),
            What::Page | What::HugePage => format!("reg -s {REGISTERED} -n {count}{huge}"),
        };
        let text = self.lab.ok_for(
            0,
            &format!("extoll-perf {arguments} --json"),
            Duration::from_secs(2 * TIMEOUT),
        )?;
        let all: Value = serde_json::from_str(&text)
            .with_context(|| format!("unexpected output of extoll-perf: {text}"))?;
        let line = &all["results"][0];
        let value = match what {
            What::HalfRoundTrip => line["latency_us"]["median"].as_f64().map(|us| us * 1e3),
            What::Page | What::HugePage => all["ns_per_page"].as_f64(),
            _ => line["messages_per_second"].as_f64().map(|rate| 1e9 / rate),
        };
        value
            .filter(|ns| ns.is_finite())
            .with_context(|| format!("unexpected output of extoll-perf: {text}"))
    }
}

/// Measures each case through both APIs, directly after each other, in several passes. Takes exn0
/// down.
///
/// # Errors
/// When a program fails or counters cannot be read.
pub fn measure(lab: &Lab, emulator: &mut Client, peer: u64, effort: &Effort) -> Result<Vec<Row>> {
    let bench = Bench::start(lab, peer)?;
    let mut rows = Vec::new();
    let mut passes: Vec<Vec<[Bus; 2]>> = Vec::new();
    for pass in 0..=effort.unit_passes {
        let mut places = rows.iter_mut().zip(&mut passes);
        let mut new = Vec::new();
        for case in Case::all(effort) {
            for &api in case.apis() {
                // The first pass is the reference that the later passes are compared with.
                let count = if pass == 0 { 1 } else { case.count(effort) };
                let before = buses(emulator)?;
                let ns = bench
                    .run(case, api, count)
                    .with_context(|| format!("{} of {} bytes", case.title(), case.size))?;
                let after = buses(emulator)?;
                let used = [0, 1].map(|n| after[n].since(before[n]));
                match places.next() {
                    Some((row, buses)) => {
                        let row: &mut Row = row;
                        row.operations = case.operations(count);
                        row.ns.push(ns);
                        buses.push(used);
                    }
                    None => new.push((case, api, used)),
                }
            }
        }
        for (case, api, used) in new {
            rows.push(Row {
                case,
                api,
                operations: 0,
                ns: Vec::new(),
                bus: Default::default(),
            });
            passes.push(vec![used]);
        }
    }
    bench.end()?;
    for (row, buses) in rows.iter_mut().zip(&passes) {
        let more = row.operations - row.case.operations(1);
        row.bus = [0, 1].map(|node| {
            let list: Vec<Bus> = buses.iter().map(|b| b[node]).collect();
            Rates::marginal(&list, more)
        });
    }
    Ok(rows)
}

/// Formats a number like [`short`], with one more digit for small values.
fn fine(x: f64) -> String {
    if x > 0.0 && x < 0.0995 {
        format!("{x:.3}")
    } else {
        short(x)
    }
}

fn find(rows: &[Row], what: What, size: u64, polling: bool, api: Api) -> Option<&Row> {
    let case = Case {
        what,
        size,
        polling,
    };
    rows.iter().find(|r| r.case == case && r.api == api)
}

/// Returns the speed of `of` relative to the speed of `to`, pass by pass.
fn faster(of: Option<&Row>, to: Option<&Row>) -> Option<Spread> {
    let list = |row: &Row| row.ns.iter().copied().enumerate().collect::<Vec<_>>();
    Spread::of(&ratios(&list(to?), &list(of?)))
}

/// Ratio of the results of two rows.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// The measurement.
    #[serde(flatten)]
    pub case: Case,
    /// Name of the ratio: `user/kernel`, `PUT/GET` or `huge page/page`.
    pub ratio: &'static str,
    /// API of both rows, for `PUT/GET` and `huge page/page`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    /// Speed of the first row relative to the second row. For `huge page/page`, the ratio of the
    /// times.
    pub spread: Spread,
}

/// Returns the ratios that can be computed from the rows.
pub fn compare(rows: &[Row]) -> Vec<Compared> {
    let mut all = Vec::new();
    for row in rows {
        let case = row.case;
        let same = |what, api| find(rows, what, case.size, case.polling, api);
        let mut push = |ratio, api, spread: Option<Spread>| {
            all.extend(spread.map(|spread| Compared {
                case,
                ratio,
                api,
                spread,
            }));
        };
        if row.api == Api::User {
            push(
                "user/kernel",
                None,
                faster(Some(row), same(case.what, Api::Kernel)),
            );
        }
        match case.what {
            What::Put => push(
                "PUT/GET",
                Some(row.api),
                faster(Some(row), same(What::Get, row.api)),
            ),
            What::HugePage => push(
                "huge page/page",
                Some(row.api),
                faster(find(rows, What::Page, 4096, false, row.api), Some(row)),
            ),
            _ => {}
        }
    }
    all
}

/// Returns the tables of ratios and of bus accesses.
pub fn text(rows: &[Row]) -> String {
    let passes = rows.first().map_or(0, |r| r.ns.len());
    let compared = compare(rows);
    let cell = |case: Case, ratio: &str, api: Option<Api>| {
        compared
            .iter()
            .find(|c| c.case == case && c.ratio == ratio && c.api == api)
            .map_or("-".into(), |c| c.spread.to_string())
    };
    let mut lines = Vec::new();
    for row in rows
        .iter()
        .filter(|r| r.case.apis().first() == Some(&r.api))
    {
        let case = row.case;
        // Time per byte, relative to GETs with the same API and the same notification mode.
        let throughput = |api| {
            let row = find(rows, case.what, case.size, case.polling, api);
            let unit = find(rows, What::Get, REFERENCE, case.polling, api);
            match case.what {
                What::Get | What::Put => faster(row, unit).map_or("-".into(), |s| {
                    short(s.median * case.size as f64 / REFERENCE as f64)
                }),
                _ => "-".into(),
            }
        };
        let other = if case.what == What::HugePage {
            "huge page/page"
        } else {
            "PUT/GET"
        };
        lines.push(vec![
            case.title(),
            case.size.to_string(),
            cell(case, "user/kernel", None),
            cell(case, other, Some(Api::Kernel)),
            cell(case, other, Some(Api::User)),
            throughput(Api::Kernel),
            throughput(Api::User),
        ]);
    }
    let mut out = format!(
        "\nThe units by the kernel API and from user space: median (smallest–largest) of {passes} passes; user/kernel above 1: user\n\
         space is faster. PUT/GET above 1: PUT is faster; in the line of huge pages: time per huge page / time per page. Throughput is\n\
         relative to GETs of 64 KiB by the same API\n\n"
    );
    out.push_str(&render(
        &[
            "",
            "bytes",
            "user/kernel",
            "PUT/GET kernel",
            "PUT/GET user",
            "throughput kernel",
            "throughput user",
        ],
        &lines,
    ));
    out.push_str(
        "\nAccesses on the bus per operation (node 0 sends or asks, node 1 answers; for a half round trip: one message sent and one received)\n\n",
    );
    let lines: Vec<Vec<String>> = rows
        .iter()
        .flat_map(|row| {
            [0, 1].map(|node| {
                let mut line = vec![
                    row.case.title(),
                    row.case.size.to_string(),
                    row.api.name().to_string(),
                    node.to_string(),
                ];
                line.extend(row.bus[node].list().into_iter().map(fine));
                line
            })
        })
        .collect();
    let mut head = vec!["per operation", "bytes", "API", "node"];
    head.extend(Rates::HEAD);
    out.push_str(&render(&head, &lines));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: What, size: u64, api: Api, ns: [f64; 3]) -> Row {
        Row {
            case: Case {
                what,
                size,
                polling: false,
            },
            api,
            operations: 10,
            ns: ns.into(),
            bus: Default::default(),
        }
    }

    fn rows() -> Vec<Row> {
        vec![
            row(What::Get, REFERENCE, Api::Kernel, [100.0; 3]),
            row(What::Get, REFERENCE, Api::User, [50.0, 100.0, 200.0]),
            row(What::Put, REFERENCE, Api::Kernel, [25.0; 3]),
            row(What::Put, REFERENCE, Api::User, [50.0; 3]),
            row(What::Get, 4096, Api::Kernel, [50.0; 3]),
            row(What::Page, 4096, Api::User, [2.0; 3]),
            row(What::HugePage, 2 << 20, Api::User, [30.0; 3]),
        ]
    }

    #[test]
    fn speeds_are_compared_by_pass() {
        let all = compare(&rows());
        let of = |ratio: &str, what, api| {
            let found = all
                .iter()
                .find(|c| c.ratio == ratio && c.case.what == what && c.api == api);
            found.map(|c| (c.spread.median, c.spread.min, c.spread.max))
        };
        assert_eq!(of("user/kernel", What::Get, None), Some((1.0, 0.5, 2.0)));
        assert_eq!(of("user/kernel", What::Put, None), Some((0.5, 0.5, 0.5)));
        assert_eq!(
            of("PUT/GET", What::Put, Some(Api::Kernel)),
            Some((4.0, 4.0, 4.0))
        );
        assert_eq!(
            of("huge page/page", What::HugePage, Some(Api::User)),
            Some((15.0, 15.0, 15.0))
        );
        assert_eq!(of("user/kernel", What::Page, None), None);
    }

    #[test]
    fn text_shows_ratios_and_relative_throughput() {
        let text = text(&rows());
        let line = |start: &str, bytes: &str| -> Vec<String> {
            text.lines()
                .filter(|l| l.starts_with(start))
                .map(|l| l.split_whitespace().map(String::from).collect::<Vec<_>>())
                .find(|w| w.iter().any(|x| x == bytes))
                .unwrap()
        };
        assert_eq!(
            line("RMA GET", "4096")[3..],
            ["4096", "-", "-", "-", "0.12", "-"]
        );
        assert_eq!(line("RMA PUT", "65536").last().unwrap(), "2.00");
    }

    #[test]
    fn cases_differ() {
        for repetitions in [3, 5] {
            let effort = Effort {
                repetitions,
                seconds: 1,
                round_trips: 200,
                raw_bytes: 1 << 20,
                raw_passes: 1,
                unit_passes: 3,
                counted_passes: 3,
            };
            let all = Case::all(&effort);
            for (i, a) in all.iter().enumerate() {
                assert!(all[i + 1..].iter().all(|b| a != b), "{a:?} twice");
                assert!(a.operations(a.count(&effort)) > a.operations(1), "{a:?}");
            }
        }
    }
}
