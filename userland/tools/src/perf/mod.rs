// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extoll-perf`: latency, bandwidth and message rate between two nodes.

mod link;
mod reg;
mod report;
mod rma;
mod tcp;
mod velo;

use crate::choice::Choice;
use crate::rendezvous::tcp_listener;
use crate::stats::{interrupts, Summary};
use anyhow::{anyhow, bail, Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use extoll::{Counters, Device, Error};
use link::{Endpoint, Hello};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tcp::Link;

/// Default TCP port, which is also that of the perftest programs.
const TCP_PORT: u16 = 18515;
/// Maximum time that a side waits for a line of the other side before and between tests.
const HELLO: Duration = Duration::from_secs(10);
/// Maximum time for which a client waits until the server has finished with other clients.
const TURN: Duration = Duration::from_secs(3600);
/// Maximum size of a transfer in bytes.
const LARGEST: u64 = 1 << 30;

/// Measures VELO and RMA between two nodes, like ib_send_lat and ib_write_bw.
///
/// Start "extoll-perf serve" on one node and "extoll-perf run TEST HOST" on another node. The two
/// sides exchange ports and addresses over TCP on any network. The measured data uses only Extoll.
/// "extoll-perf reg" measures the registration of memory and needs no second node.
///
/// Example: extoll-perf serve
///
/// Example: extoll-perf run velo-lat node1
///
/// Example: extoll-perf run put-bw node1 --all
#[derive(Parser, Debug)]
#[command(name = "extoll-perf", version)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    choice: Choice,
    /// TCP port on which the server listens.
    #[arg(short, long, global = true, default_value_t = TCP_PORT)]
    port: u16,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Serves tests, one client at a time, until it is killed.
    ///
    /// Example: extoll-perf serve --once
    Serve {
        /// Ends after one client.
        #[arg(long)]
        once: bool,
    },
    /// Runs a test with the server on HOST.
    ///
    /// Example: extoll-perf run put-lat node1 --size 4k
    ///
    /// Example: extoll-perf run velo-bw node1 --bidirectional --duration 10
    Run(RunArgs),
    /// Measures the time for registering and unregistering memory.
    ///
    /// Example: extoll-perf reg --size 64M --huge
    Reg(reg::RegArgs),
}

#[derive(clap::Args, Debug)]
struct RunArgs {
    /// Test to run.
    #[arg(value_enum)]
    test: Test,
    /// Name or address of the machine that runs the server.
    host: String,
    /// Size of a message or transfer in bytes. The suffixes k, M and G mean powers of 1,024.
    /// Default: 8 for latency and velo-rate, 120 for velo-bw, 65536 for put-bw and get-bw.
    #[arg(short, long, value_parser = crate::size)]
    size: Option<u64>,
    /// Number of messages or transfers. Default: 1000 for latency, otherwise 5000.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// Measures all powers of two up to 120 bytes (VELO) or 8 MiB (RMA).
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Maximum size for --all in bytes.
    #[arg(long, value_parser = crate::size, requires = "all")]
    max_size: Option<u64>,
    /// Makes both sides send at the same time. The result is the sum of both directions. Only for
    /// bandwidth and rate tests.
    #[arg(short, long)]
    bidirectional: bool,
    /// Time in seconds for each size, instead of a number of iterations.
    #[arg(short = 'D', long, value_parser = crate::seconds, conflicts_with = "iters")]
    duration: Option<Duration>,
    /// Maximum number of outstanding transfers (bandwidth tests).
    #[arg(short = 't', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=250))]
    tx_depth: u32,
    /// Number of iterations before the measurement.
    #[arg(short, long, default_value_t = 10)]
    warmup: u64,
    /// Sleeps until an interrupt instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Time in seconds without progress after which a test fails on both sides. The server learns
    /// the client's progress over TCP and waits two seconds longer.
    #[arg(long, default_value = "10", value_parser = crate::seconds)]
    timeout: Duration,
    /// Prints one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Test to run.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Half of the round trip time of VELO messages.
    VeloLat,
    /// Bytes and messages per second over VELO.
    VeloBw,
    /// Bytes and messages per second over VELO, with 8 bytes by default.
    VeloRate,
    /// Half of the round trip time of RMA PUTs. Each side is notified when the data is in memory.
    PutLat,
    /// Bytes and transfers per second of RMA PUTs.
    PutBw,
    /// Time of one RMA GET.
    GetLat,
    /// Bytes and transfers per second of RMA GETs.
    GetBw,
}

impl Test {
    fn is_velo(self) -> bool {
        matches!(self, Test::VeloLat | Test::VeloBw | Test::VeloRate)
    }

    fn is_latency(self) -> bool {
        matches!(self, Test::VeloLat | Test::PutLat | Test::GetLat)
    }
}

/// Parameters of a measurement, which the client sends to the server.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
struct Plan {
    test: Test,
    size: u64,
    iters: u64,
    /// Duration in milliseconds, which replaces the number of iterations.
    duration_ms: Option<u64>,
    warmup: u64,
    bidirectional: bool,
    events: bool,
    tx_depth: u32,
    timeout_ms: u64,
}

impl Plan {
    /// Returns the condition on which sending ends.
    fn goal(&self) -> Goal {
        match self.duration_ms {
            Some(ms) => Goal::Until(Instant::now() + Duration::from_millis(ms)),
            None => Goal::Count(self.iters),
        }
    }
}

/// Condition on which sending ends.
#[derive(Clone, Copy, Debug)]
enum Goal {
    Count(u64),
    Until(Instant),
}

impl Goal {
    fn reached(self, done: u64) -> bool {
        match self {
            Goal::Count(n) => done >= n,
            Goal::Until(end) => Instant::now() >= end,
        }
    }
}

/// Result of a test on one side.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
struct Measured {
    /// Number of messages or transfers that this side sent.
    iterations: u64,
    /// Duration of all iterations in nanoseconds.
    ns: u64,
    /// Duration of each iteration in nanoseconds (latency tests only).
    #[serde(skip)]
    times: Vec<u64>,
}

/// Result of a test for one size.
#[derive(Serialize, Clone, Debug)]
struct Line {
    bytes: u64,
    iterations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<Summary>,
    bytes_per_second: f64,
    messages_per_second: f64,
    per_message: PerMessage,
}

/// Number of operations of the client per message.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
struct PerMessage {
    packets: f64,
    device_reads: f64,
    device_writes: f64,
    sleeps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupts: Option<f64>,
}

/// Runs the program.
pub fn run(args: Args) -> Result<ExitCode> {
    let device = args.choice.device()?;
    match &args.verb {
        Verb::Serve { once } => serve(&device, args.port, *once)?,
        Verb::Run(run) => client(&device, args.port, run)?,
        Verb::Reg(reg) => reg::run(&device, reg)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(device: &Device, port: u16, once: bool) -> Result<()> {
    let listener = tcp_listener(port)?;
    // The NIC is opened before clients connect, so that errors are reported at the start.
    let endpoint = Endpoint::open(device)?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "serving on node {} (TCP port {port})",
        endpoint.velo.node()
    )?;
    out.flush()?;
    drop(endpoint);
    for stream in listener.incoming() {
        let result = Link::new(stream?).and_then(|link| serve_client(device, &link));
        match result {
            Ok(()) if once => return Ok(()),
            Ok(()) => {}
            Err(e) if once => return Err(e),
            Err(e) => crate::complain("extoll-perf", &e),
        }
    }
    Ok(())
}

fn serve_client(device: &Device, link: &Link) -> Result<()> {
    let theirs: Hello = link.receive(HELLO)?;
    if theirs.buffer > LARGEST {
        bail!("a client requested a buffer of {} bytes", theirs.buffer);
    }
    let endpoint = Endpoint::with_buffer(device, theirs.buffer)?;
    link.send(&endpoint.hello()?)?;
    while let Some(plan) = link.receive_or_end::<Plan>(HELLO)? {
        link.send(&true)?;
        let measured = endpoint.serve(&plan, &theirs, link)?;
        link.send(&measured)?;
    }
    Ok(())
}

fn sizes(args: &RunArgs) -> Result<Vec<u64>> {
    let limit = if args.test.is_velo() { 120 } else { LARGEST };
    let default = match args.test {
        Test::VeloLat | Test::VeloRate | Test::PutLat | Test::GetLat => 8,
        Test::VeloBw => 120,
        Test::PutBw | Test::GetBw => 65536,
    };
    let all = if args.all {
        let most = args.max_size.unwrap_or(8 << 20).min(limit);
        let mut all: Vec<u64> = (0..40).map(|i| 1 << i).take_while(|s| *s <= most).collect();
        if args.test.is_velo() && most == 120 {
            all.push(120);
        }
        all
    } else {
        vec![args.size.unwrap_or(default)]
    };
    match all.iter().find(|s| **s == 0 || **s > limit) {
        Some(bad) => bail!("invalid size of {bad} bytes: this test supports 1 to {limit} bytes"),
        None if all.is_empty() => bail!("no size is left to measure: increase --max-size"),
        None => Ok(all),
    }
}

/// Receives the server's first message. The server sends it when it has finished with other
/// clients.
fn hello(link: &Link, host: &str) -> Result<Hello> {
    match link.receive(Duration::from_secs(2)) {
        Err(e) if matches!(e.downcast_ref(), Some(Error::Timeout)) => {}
        other => return other,
    }
    let busy = anyhow!("waiting for {host}, which serves one client at a time");
    crate::complain("extoll-perf", &busy);
    link.receive(TURN)
}

fn client(device: &Device, port: u16, args: &RunArgs) -> Result<()> {
    let sizes = sizes(args)?;
    if args.bidirectional && args.test.is_latency() {
        bail!("--bidirectional is for bandwidth and rate tests only");
    }
    let largest = sizes.iter().copied().max().unwrap_or(1);
    let endpoint = Endpoint::with_buffer(device, largest)?;
    let link = Link::connect(&args.host, port)?;
    link.send(&endpoint.hello()?)?;
    let peer = hello(&link, &args.host)?;
    endpoint.admit(&peer)?;
    let mut lines = Vec::new();
    for size in sizes {
        let default = if args.test.is_latency() { 1000 } else { 5000 };
        let plan = Plan {
            test: args.test,
            size,
            iters: args.iters.unwrap_or(default),
            duration_ms: args.duration.map(|d| d.as_millis() as u64),
            warmup: args.warmup,
            bidirectional: args.bidirectional,
            events: args.events,
            tx_depth: args.tx_depth,
            timeout_ms: args.timeout.as_millis() as u64,
        };
        link.send(&plan)?;
        let _: bool = link.receive(HELLO)?;
        let before = (endpoint.counters(), interrupts());
        let mine = endpoint
            .run(&plan, &peer, &link)
            .with_context(|| format!("{size} bytes"))?;
        let after = (endpoint.counters(), interrupts());
        let theirs: Measured = link
            .receive(args.timeout.saturating_add(HELLO))
            .context("the server has failed; see its output")?;
        lines.push(line(&plan, mine, theirs, before, after));
        if !args.json {
            report::print(&mut std::io::stdout(), args.test, &lines)?;
        }
    }
    if args.json {
        report::json(args.test, &endpoint.hello()?, &peer, &lines)?;
    }
    Ok(())
}

fn line(
    plan: &Plan,
    mut mine: Measured,
    theirs: Measured,
    before: (Counters, Option<u64>),
    after: (Counters, Option<u64>),
) -> Line {
    let rate = |m: &Measured| match m.ns {
        0 => 0.0,
        ns => m.iterations as f64 * 1e9 / ns as f64,
    };
    let mut messages = rate(&mine);
    if plan.bidirectional {
        messages += rate(&theirs);
    }
    let n = (mine.iterations + plan.warmup).max(1) as f64;
    let per = |f: fn(&Counters) -> u64| (f(&after.0) - f(&before.0)) as f64 / n;
    Line {
        bytes: plan.size,
        iterations: mine.iterations,
        latency_us: plan.test.is_latency().then(|| Summary::of(&mut mine.times)),
        bytes_per_second: messages * plan.size as f64,
        messages_per_second: messages,
        per_message: PerMessage {
            packets: per(|c| c.posted + c.resent),
            device_reads: per(|c| c.state_reads),
            device_writes: per(|c| c.commits),
            sleeps: per(|c| c.sleeps),
            interrupts: before.1.zip(after.1).map(|(b, a)| (a - b) as f64 / n),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run_args(args: &[&str]) -> RunArgs {
        let all = [&["extoll-perf", "run"], args].concat();
        match Args::try_parse_from(all).unwrap().verb {
            Verb::Run(run) => run,
            Verb::Serve { .. } | Verb::Reg(_) => unreachable!(),
        }
    }

    #[test]
    fn sizes_follow_the_test() {
        Args::command().debug_assert();
        assert_eq!(sizes(&run_args(&["velo-lat", "x"])).unwrap(), [8]);
        assert_eq!(sizes(&run_args(&["put-bw", "x"])).unwrap(), [65536]);
        assert_eq!(
            sizes(&run_args(&["velo-bw", "x", "-a"])).unwrap(),
            [1, 2, 4, 8, 16, 32, 64, 120]
        );
        let all = sizes(&run_args(&["get-bw", "x", "-a", "--max-size", "64k"])).unwrap();
        assert_eq!((all.len(), all[16]), (17, 65536));
        assert_eq!(
            sizes(&run_args(&["get-bw", "x", "-a"])).unwrap().last(),
            Some(&(8 << 20))
        );
        assert!(sizes(&run_args(&["velo-lat", "x", "-s", "121"])).is_err());
        assert!(sizes(&run_args(&["put-lat", "x", "-s", "0"])).is_err());
        assert!(sizes(&run_args(&["put-lat", "x", "-a", "--max-size", "0"])).is_err());
        let none = ["extoll-perf", "run", "put-lat", "x", "-n", "0"];
        assert!(Args::try_parse_from(none).is_err());
    }

    #[test]
    fn rates_and_costs_are_per_message() {
        let plan = Plan {
            test: Test::PutBw,
            size: 1000,
            iters: 90,
            duration_ms: None,
            warmup: 10,
            bidirectional: true,
            events: false,
            tx_depth: 1,
            timeout_ms: 1,
        };
        let m = |iterations, ns| Measured {
            iterations,
            ns,
            times: Vec::new(),
        };
        let after = Counters {
            posted: 100,
            resent: 100,
            state_reads: 50,
            ..Counters::default()
        };
        let l = line(
            &plan,
            m(90, 1_000_000_000),
            m(10, 1_000_000_000),
            (Counters::default(), Some(5)),
            (after, Some(30)),
        );
        assert_eq!(
            (l.messages_per_second, l.bytes_per_second),
            (100.0, 100_000.0)
        );
        assert_eq!(l.latency_us, None);
        let per = l.per_message;
        assert_eq!(
            (per.packets, per.device_reads, per.interrupts),
            (2.0, 0.5, Some(0.25))
        );
        assert!(Goal::Count(3).reached(3) && !Goal::Count(3).reached(2));
        assert!(Goal::Until(Instant::now()).reached(0));
    }
}
