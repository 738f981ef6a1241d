//! Instructions that the nodes execute per operation, separately for kernel and user space. Unlike
//! times, they depend neither on the host nor on its load.
//!
//! Every workload is a fixed number of operations. Each pass runs the workload twice, with few and
//! with many operations. The difference is the cost of the additional operations; starting
//! programs, connecting and closing cancel out. The instructions of idle nodes in that time are
//! subtracted.

use crate::drives::Drives;
use crate::exlnd::{self, Ask, Nets, Over, ASKS};
use crate::measure::{self, Device, Pairs, Test, EXTL, RAW_SIZE, RAW_TIMEOUT_MS};
use crate::parse::{self, number};
use crate::stats::{short, Spread};
use crate::table::render;
use crate::units::{Api, Bench, Case, What};
use anyhow::{ensure, Context, Result};
use labctl::{Instructions, Lab, Spec};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Lab for the measurement. Idle nodes use HLT, which executes no instructions, regardless of how
/// long the kernel expects to be idle.
pub const SPEC: Spec = Spec::pair()
    .bench_nics()
    .no_sshd()
    .ideal()
    .cpus(1)
    .count_instructions()
    .append(&["idle=halt"]);

/// Maximum time of a run.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time to wait after a run, so that processes end and timers of the last packets expire.
const SETTLE: Duration = Duration::from_millis(100);
/// Duration of the measurement of idle nodes.
const QUIET: Duration = Duration::from_secs(5);

/// Unit of work that the figures are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// 1024 bytes of payload.
    Kib,
    /// A message or packet in each direction.
    RoundTrip,
    /// A message in one direction.
    Message,
    /// Registration and revocation of 2 MiB of memory.
    Registration,
    /// A read from a drive.
    Read,
    /// RPC of the module in place of LNet: a request, its answer and bulk data.
    Rpc,
}

impl Unit {
    fn text(self) -> &'static str {
        match self {
            Self::Kib => "KiB",
            Self::RoundTrip => "round trip",
            Self::Message => "message",
            Self::Registration => "registration",
            Self::Read => "read",
            Self::Rpc => "RPC",
        }
    }

    /// Returns the last word of the key in the summary.
    fn key(self) -> &'static str {
        match self {
            Self::Kib => "instructions_per_kib",
            _ => "instructions",
        }
    }
}

/// Program or module that does the work.
#[derive(Debug, Clone, Copy)]
enum Worker {
    /// A stream of `netperf` over a device, in KiB.
    Stream(Device),
    /// A stream of `netperf` that bypasses TCP. Each call sends this number of KiB from whole
    /// pages. True: data is sent from the program's memory; false: data is copied.
    Large(u64, bool),
    /// TCP or UDP requests of `netperf` over a device.
    Request(Device, Test),
    /// A command of `extoll_bench` and its message size. The command drives the unit as exn does.
    Raw(&'static str, u64),
    /// A stream of VELO messages of this number of bytes.
    Rate(u64),
    /// An operation of a unit on registered memory of this size, through one of the APIs.
    Unit(What, u64, Api),
    /// Requests of the module in place of LNet.
    Rpc(Over, Ask),
}

/// A workload, with the names that it has in tables.
#[derive(Debug, Clone, Copy)]
struct Work {
    subject: &'static str,
    name: &'static str,
    title: &'static str,
    unit: Unit,
    worker: Worker,
    /// Number of operations in the shorter of the two runs that are compared.
    few: u64,
    many: u64,
}

impl Work {
    /// Returns the name of the workload in the summary.
    fn key(&self) -> String {
        format!("{}.{}", self.subject, self.name)
    }

    /// Returns the number of units of work in this number of operations.
    fn units(&self, operations: u64) -> u64 {
        match (self.unit, self.worker) {
            (Unit::Kib, Worker::Raw(_, size) | Worker::Unit(_, size, _)) => {
                operations * size / 1024
            }
            _ => operations,
        }
    }

    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for device in Test::Tcp1.devices() {
            all.push(Self {
                subject: device.name,
                name: "tcp1",
                title: "TCP stream",
                unit: Unit::Kib,
                worker: Worker::Stream(device),
                few: 8 << 10,
                many: 104 << 10,
            });
        }
        // Calls of at least 1 MiB send data without a copy by default.
        for (name, title, size, lent) in [
            ("large1m", "stream by calls of 1 MiB, lent", 1024, true),
            ("large1m_copied", "the same, copied", 1024, false),
            ("large128k", "stream by calls of 128 KiB, lent", 128, true),
            ("large128k_copied", "the same, copied", 128, false),
        ] {
            all.push(Self {
                subject: EXTL.name,
                name,
                title,
                unit: Unit::Kib,
                worker: Worker::Large(size, lent),
                few: 8 << 10,
                many: 104 << 10,
            });
        }
        for test in [Test::TcpRr, Test::UdpRr] {
            all.extend(test.devices().map(|device| Self {
                subject: device.name,
                name: test.key(),
                title: test.title(),
                unit: Unit::RoundTrip,
                worker: Worker::Request(device, test),
                few: 100,
                many: 4100,
            }));
        }
        for ask in ASKS {
            if let Some([few, many]) = ask.counted {
                all.extend([Over::Ex, Over::Tcp].map(|over| Self {
                    subject: over.subject(),
                    name: ask.name,
                    title: ask.title,
                    unit: Unit::Rpc,
                    worker: Worker::Rpc(over, ask),
                    few,
                    many,
                }));
            }
        }
        let trips = |subject, title, worker| Self {
            subject,
            name: "pingpong64",
            title,
            unit: Unit::RoundTrip,
            worker,
            few: 100,
            many: 4100,
        };
        let transfers = |subject, name, title, worker| Self {
            subject,
            name,
            title,
            unit: Unit::Kib,
            worker,
            few: 16,
            many: 4112,
        };
        all.push(trips(
            "velo",
            "VELO ping-pong, 64 bytes",
            Worker::Raw("pingpong", 64),
        ));
        all.push(Self {
            subject: "velo",
            name: "rate64",
            title: "VELO messages of 64 bytes",
            unit: Unit::Message,
            worker: Worker::Rate(64),
            few: 1 << 10,
            many: 33 << 10,
        });
        all.push(transfers(
            "rma",
            "get64k",
            "RMA GET, 64 KiB",
            Worker::Raw("get", RAW_SIZE),
        ));
        all.push(transfers(
            "rma",
            "put64k",
            "RMA PUT, 64 KiB",
            Worker::Raw("put", RAW_SIZE),
        ));
        for (subject, api) in [("kernel_api", Api::Kernel), ("user", Api::User)] {
            let unit = |what, size| Worker::Unit(what, size, api);
            if api == Api::User {
                // With the kernel API, this workload is that of the raw unit.
                all.push(trips(
                    subject,
                    "VELO ping-pong, 64 bytes",
                    unit(What::HalfRoundTrip, 64),
                ));
            }
            for (name, title, what) in [
                ("get64k", "RMA GET, 64 KiB", What::Get),
                ("put64k", "RMA PUT, 64 KiB", What::Put),
            ] {
                all.push(transfers(subject, name, title, unit(what, RAW_SIZE)));
            }
            all.push(Self {
                subject,
                name: "register2m",
                title: "registering 2 MiB in pages",
                unit: Unit::Registration,
                worker: unit(What::Page, 4096),
                few: 10,
                many: 110,
            });
        }
        all
    }

    fn run(&self, place: &Place<'_>, count: u64) -> Result<()> {
        let lab = place.lab;
        let raw = |verb: &str, size: u64, more: &str| -> Result<Pairs> {
            lab.raw(0, &format!("{verb} node={} size={size} count={count} mode=irq timeout_ms={RAW_TIMEOUT_MS}{more}", place.peer))
        };
        let netperf = |device: Device, what: String, sizes: &str| -> Result<()> {
            let script = format!(
                "netperf -H {}.2 -p {} {what} -P 0 -- {sizes} -k THROUGHPUT",
                device.network, device.netserver
            );
            parse::netperf(&measure::by(lab, device, 2, &script, PATIENCE)?).map(drop)
        };
        match self.worker {
            // A negative length is a number of bytes or transactions.
            Worker::Stream(device) => {
                let bytes = count * 1024;
                netperf(device, format!("-t TCP_STREAM -l -{bytes}"), "-m 128K")?;
            }
            Worker::Large(size, lent) => {
                let before = not_copied(lab)?;
                let threshold = if lent { size } else { 0 };
                for node in 0..2 {
                    let knob = "net.extl.zero_copy_kib";
                    lab.ok(node, &format!("sysctl -q {knob}={threshold}"))?;
                }
                let what = format!(
                    "-t TCP_STREAM -l -{} -a 4096,4096 -A 4096,4096",
                    count * 1024
                );
                netperf(EXTL, what, &format!("-m {size}K -M {size}K"))?;
                let after = not_copied(lab)?;
                let share = [0, 1].map(|i| (after[i] - before[i]) as f64 / (count * 1024) as f64);
                // Data that arrives before the reader calls is copied.
                let right = |share: f64| if lent { share > 0.9 } else { share == 0.0 };
                ensure!(
                    share.iter().all(|share| right(*share)),
                    "shares of the data that were not copied: {share:?}"
                );
            }
            Worker::Request(device, test) => {
                let what = if test == Test::TcpRr { "TCP" } else { "UDP" };
                netperf(device, format!("-t {what}_RR -l -{count}"), "-r 64,64")?;
            }
            Worker::Raw("pingpong", size) => {
                // `verified` is larger than `count`, because it includes the warm-up.
                let done = number(&raw("pingpong", size, "")?, "count")?;
                ensure!(done == count as f64, "{done} of {count} round trips");
            }
            Worker::Rate(size) => {
                let done = number(&raw("rate", size, "")?, "count")?;
                ensure!(done == count as f64, "{done} of {count} messages");
            }
            Worker::Raw(verb, size) => {
                let done = number(&raw(verb, size, " inflight=8")?, "count")?;
                ensure!(done == count as f64, "{done} of {count} transfers");
            }
            Worker::Unit(what, size, api) => {
                let units = place.units.as_ref().context("the units are not prepared")?;
                let polling = false;
                let case = Case {
                    what,
                    size,
                    polling,
                };
                units.run(case, api, count)?;
            }
            Worker::Rpc(over, ask) => {
                let nets = place
                    .nets
                    .as_ref()
                    .context("the networks are not prepared")?;
                nets.count(over, &ask, count)?;
            }
        }
        Ok(())
    }
}

/// The lab with everything that the workloads need.
struct Place<'a> {
    lab: &'a Lab,
    peer: u64,
    units: Option<Bench<'a>>,
    nets: Option<Nets<'a>>,
}

/// Returns the number of bytes that node 0 sent from a program's memory without a copy, and the
/// number that node 1 fetched into a program's memory.
fn not_copied(lab: &Lab) -> Result<[u64; 2]> {
    let one = |node, name: &str| -> Result<u64> {
        let script = format!("sed -n 's/^{name} //p' /sys/kernel/debug/af_extl/nics");
        let said = lab.ok(node, &script)?;
        said.split_whitespace().map(|n| Ok(n.parse::<u64>()?)).sum()
    };
    Ok([one(0, "lent")?, one(1, "sunk")?])
}

/// Instruction counts of both nodes.
type Nodes = [Instructions; 2];

fn read(lab: &Lab) -> Result<Nodes> {
    std::thread::sleep(SETTLE);
    Ok([lab.instructions(0)?, lab.instructions(1)?])
}

fn since(now: Nodes, before: Nodes) -> Nodes {
    [now[0] - before[0], now[1] - before[1]]
}

/// Instructions of nodes 0 and 1 in the two runs of one pass: `[kernel, user]` of each node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Pass {
    /// Counts with few operations.
    pub few: [[u64; 2]; 2],
    /// Counts with many operations.
    pub many: [[u64; 2]; 2],
    /// Time in seconds by which the run with many operations was longer.
    pub seconds: f64,
}

fn plain(nodes: Nodes) -> [[u64; 2]; 2] {
    nodes.map(|n| [n.kernel, n.user])
}

/// Figures of one workload.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Device, unit or API that was measured.
    pub subject: &'static str,
    /// Name of the workload.
    pub work: &'static str,
    /// Title in tables.
    pub title: &'static str,
    /// Unit of the figures.
    pub unit: Unit,
    /// Number of units by which the run with many operations exceeds the run with few.
    pub units: u64,
    /// Instructions per second of the idle nodes 0 and 1, `[kernel, user]` of each. They are
    /// subtracted from the counts.
    pub quiet: [[f64; 2]; 2],
    /// Counts of each pass.
    pub passes: Vec<Pass>,
}

impl Row {
    /// Returns the instructions per unit, one value per pass. Counts only instructions for which
    /// `chosen` returns true; its arguments are the node and the space (0: kernel, 1: user).
    fn of(&self, chosen: impl Fn(usize, usize) -> bool) -> Vec<f64> {
        let cells = (0..2).flat_map(|node| (0..2).map(move |half| (node, half)));
        let cells: Vec<_> = cells.filter(|(node, half)| chosen(*node, *half)).collect();
        let per = |pass: &Pass| -> f64 {
            let added = cells.iter().map(|&(node, half)| {
                let [few, many] = [pass.few, pass.many].map(|run| run[node][half] as f64);
                many - few - self.quiet[node][half] * pass.seconds
            });
            added.sum::<f64>() / self.units as f64
        };
        self.passes.iter().map(per).collect()
    }

    /// Returns the sum of both nodes' instructions per unit; `None` if there are no passes.
    pub fn total(&self) -> Option<Spread> {
        Spread::of(&self.of(|_, _| true))
    }

    /// Returns the instructions of one node per unit; `None` if there are no passes.
    pub fn of_node(&self, node: usize) -> Option<Spread> {
        Spread::of(&self.of(|n, _| n == node))
    }

    /// Returns keys and values for the summary.
    pub fn summary(&self) -> Vec<(String, f64)> {
        let key = format!("{}.{}.{}", self.subject, self.work, self.unit.key());
        let mut all = Vec::new();
        let halves = [("", None), (".kernel", Some(0)), (".user", Some(1))];
        for (suffix, wanted) in halves {
            let values = self.of(|_, half| wanted.is_none_or(|w| w == half));
            if let Some(spread) = Spread::of(&values) {
                all.push((format!("{key}{suffix}"), spread.median));
            }
        }
        all
    }

    fn cells(&self) -> Vec<String> {
        let cell = |node, half| {
            let spread = Spread::of(&self.of(|n, h| n == node && h == half));
            spread.map_or("-".into(), |s| short(s.median))
        };
        let total = self.total();
        vec![
            format!("{}, {}", self.subject, self.title),
            self.unit.text().into(),
            cell(0, 0),
            cell(0, 1),
            cell(1, 0),
            cell(1, 1),
            total.map_or("-".into(), |t| short(t.median)),
            total.map_or("-".into(), |t| {
                format!("{:.1} %", 100.0 * (t.max - t.min) / t.median)
            }),
        ]
    }
}

/// All figures of the measurement.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// Instructions per second of the idle nodes 0 and 1 with exn0 up, `[kernel, user]` of each.
    pub quiet: [[f64; 2]; 2],
    /// Figures of each workload.
    pub rows: Vec<Row>,
    /// Figures of a borrowed drive, which are measured in another lab.
    pub drives: Option<Drives>,
}

/// Measures the workloads for whose names, such as `extl.tcp_rr`, `wanted` returns true. Reports
/// each step by `progress`. [`crate::measure::prepare`] must have prepared the nodes. Takes exn0
/// down.
///
/// # Errors
/// When a program fails, instructions are not counted, or no workload is wanted.
pub fn measure(
    lab: &Lab,
    peer: u64,
    passes: usize,
    wanted: impl Fn(&str) -> bool,
    progress: impl Fn(&str),
) -> Result<Figures> {
    let all: Vec<Work> = Work::all()
        .into_iter()
        .filter(|work| wanted(&work.key()))
        .collect();
    let quiet = at_rest(lab)?;
    let mut now = quiet;
    let mut place = Place {
        lab,
        peer,
        units: None,
        nets: None,
    };
    let mut rows = Vec::new();
    for work in all {
        let by_nets = matches!(work.worker, Worker::Rpc(..));
        if by_nets && place.nets.is_none() {
            place.nets = Some(Nets::start(lab)?);
            now = at_rest(lab)?;
        }
        if let Some(nets) = place.nets.take_if(|_| !by_nets) {
            nets.end()?;
            now = quiet;
        }
        if matches!(work.worker, Worker::Unit(..)) && place.units.is_none() {
            place.units = Some(Bench::start(lab, peer)?);
            // Measures the idle nodes again, because they do less work with exn0 down.
            now = at_rest(lab)?;
        }
        progress(&format!("instructions of {}, {}", work.subject, work.title));
        let row = one(&place, &work, passes, now)
            .with_context(|| format!("{}, {}", work.subject, work.title))?;
        rows.push(row);
    }
    if let Some(nets) = place.nets {
        nets.end()?;
    }
    if let Some(units) = place.units {
        units.end()?;
    }
    Ok(Figures {
        quiet,
        rows,
        drives: None,
    })
}

/// Returns the number of instructions that each idle node executes per second.
pub fn at_rest(lab: &Lab) -> Result<[[f64; 2]; 2]> {
    let before = read(lab)?;
    let start = Instant::now();
    std::thread::sleep(QUIET);
    let added = plain(since(read(lab)?, before));
    let seconds = start.elapsed().as_secs_f64();
    Ok(added.map(|node| node.map(|n| n as f64 / seconds)))
}

/// Runs few operations and many operations, `passes` times each. An additional run of few
/// operations before the passes does not count.
///
/// # Errors
/// When `run` fails or instructions are not counted.
pub fn passes_of(
    lab: &Lab,
    passes: usize,
    [few, many]: [u64; 2],
    run: impl Fn(u64) -> Result<()>,
) -> Result<Vec<Pass>> {
    // The first run takes longer, because programs are read from disk and neighbours are resolved.
    run(few)?;
    let mut all = Vec::new();
    for _ in 0..passes {
        let timed = |count| -> Result<_> {
            let (before, start) = (read(lab)?, Instant::now());
            run(count)?;
            let added = plain(since(read(lab)?, before));
            Ok((added, start.elapsed().as_secs_f64()))
        };
        let (few, short) = timed(few)?;
        let (many, long) = timed(many)?;
        all.push(Pass {
            few,
            many,
            seconds: long - short,
        });
    }
    Ok(all)
}

fn one(place: &Place<'_>, work: &Work, passes: usize, quiet: [[f64; 2]; 2]) -> Result<Row> {
    let counts = [work.few, work.many];
    let all = passes_of(place.lab, passes, counts, |count| work.run(place, count))?;
    Ok(Row {
        subject: work.subject,
        work: work.name,
        title: work.title,
        unit: work.unit,
        units: work.units(work.many) - work.units(work.few),
        quiet,
        passes: all,
    })
}

/// Returns the table of instructions per operation.
pub fn text(figures: &Figures) -> String {
    let drives = figures.drives.iter().flat_map(|d| &d.rows);
    let rows: Vec<Vec<String>> = figures.rows.iter().chain(drives).map(Row::cells).collect();
    let mut out = String::from(
        "\nInstructions per operation in the guests, median of the passes (node 0 sends or asks, node 1 answers)\n\n",
    );
    out.push_str(&render(
        &[
            "", "per", "kernel 0", "user 0", "kernel 1", "user 1", "together", "spread",
        ],
        &rows,
    ));
    let [a, b] = figures.quiet.map(|node| short(node.iter().sum()));
    out.push_str(&format!(
        "\nThe idle nodes execute {a} and {b} instructions per second, which are not in the figures.\n"
    ));
    out.push_str(&exlnd::instructions_text(&figures.rows));
    if let Some(drives) = &figures.drives {
        out.push_str(&drives.text());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let pass = |more: u64| Pass {
            few: [[100, 10], [50, 5]],
            many: [[1160 + more, 110], [590, 25]],
            seconds: 2.0,
        };
        Row {
            subject: "exn",
            work: "tcp1",
            title: "TCP stream",
            unit: Unit::Kib,
            units: 10,
            quiet: [[30.0, 0.0], [20.0, 0.0]],
            passes: [0, 40, 20].map(pass).into(),
        }
    }

    #[test]
    fn figures_are_the_difference_of_two_runs() {
        let row = row();
        let total = row.total().unwrap();
        assert_eq!((total.median, total.min, total.max), (164.0, 162.0, 166.0));
        let key = "exn.tcp1.instructions_per_kib";
        let want = [("", 164.0), (".kernel", 152.0), (".user", 12.0)];
        assert_eq!(
            row.summary(),
            want.map(|(suffix, value)| (format!("{key}{suffix}"), value))
        );
        assert_eq!(
            row.cells(),
            [
                "exn, TCP stream",
                "KiB",
                "102",
                "10.0",
                "50.0",
                "2.00",
                "164",
                "2.4 %"
            ]
        );
    }

    #[test]
    fn workloads_have_names_of_their_own_and_fixed_sizes() {
        let all = Work::all();
        let mut keys: Vec<_> = all.iter().map(|w| (w.subject, w.name)).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all.len());
        for work in &all {
            // The short run must fill all slots for transfers, too.
            assert!(work.few >= 8 && work.many >= 5 * work.few, "{work:?}");
        }
        let units = |subject, name| {
            let work = all.iter().find(|w| (w.subject, w.name) == (subject, name));
            work.map(|w| w.units(w.many) - w.units(w.few)).unwrap()
        };
        assert_eq!(units("rma", "get64k"), 256 << 10);
        assert_eq!(units("exn", "tcp1"), 96 << 10);
        assert_eq!(units("velo", "pingpong64"), 4000);
        assert_eq!(units("user", "register2m"), 100);
    }
}
