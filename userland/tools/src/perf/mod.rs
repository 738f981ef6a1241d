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

/// Where the two sides meet, that of the perftest programs.
const TCP_PORT: u16 = 18515;
/// How long the server waits for what a client has to say before and between tests.
const HELLO: Duration = Duration::from_secs(10);
/// How long a client waits for its turn.
const TURN: Duration = Duration::from_secs(3600);
/// Longest transfer.
const LARGEST: u64 = 1 << 30;

/// Measures VELO and RMA between two nodes, in the manner of ib_send_lat and ib_write_bw.
///
/// Start "extoll-perf serve" on one node and "extoll-perf run TEST HOST" on another one. The two sides agree on ports and
/// addresses over TCP, any network will do; what is measured goes over Extoll only. "extoll-perf reg" measures the registration
/// of memory and needs no other side.
#[derive(Parser, Debug)]
#[command(name = "extoll-perf", version)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    choice: Choice,
    /// TCP port to listen on or to connect to.
    #[arg(short, long, global = true, default_value_t = TCP_PORT)]
    port: u16,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Serves tests, one client at a time, until it is killed.
    Serve {
        /// Ends after one client.
        #[arg(long)]
        once: bool,
    },
    /// Runs a test with the server on HOST.
    Run(RunArgs),
    /// Measures what it costs to register memory.
    Reg(reg::RegArgs),
}

#[derive(clap::Args, Debug)]
struct RunArgs {
    /// What to measure.
    #[arg(value_enum)]
    test: Test,
    /// Name or address of the node that serves.
    host: String,
    /// Bytes per message or transfer (8 for latency, else 120 or 65536); k, M, G for powers of 1,024.
    #[arg(short, long, value_parser = crate::size)]
    size: Option<u64>,
    /// Messages or transfers (1000; bandwidth 5000).
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// All powers of two up to 120 (VELO) or 8 MiB.
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Largest size of --all.
    #[arg(long, value_parser = crate::size, requires = "all")]
    max_size: Option<u64>,
    /// Both sides send at once; their sum is reported (bandwidth and rate tests).
    #[arg(short, long)]
    bidirectional: bool,
    /// Seconds per size instead of a number of iterations.
    #[arg(short = 'D', long, value_parser = crate::seconds, conflicts_with = "iters")]
    duration: Option<Duration>,
    /// Transfers on their way at once (bandwidth tests).
    #[arg(short = 't', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=250))]
    tx_depth: u32,
    /// Iterations before the measurement.
    #[arg(short, long, default_value_t = 10)]
    warmup: u64,
    /// Sleep until the interrupt instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Seconds without progress after which a test fails, on both sides (the server hears of the client's progress over TCP,
    /// and allows two seconds more).
    #[arg(long, default_value = "10", value_parser = crate::seconds)]
    timeout: Duration,
    /// One JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// The tests.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// VELO: half round trip.
    VeloLat,
    /// VELO: one direction, bytes and messages per second.
    VeloBw,
    /// VELO: the same as velo-bw with 8 bytes unless -s says otherwise.
    VeloRate,
    /// RMA PUT: half round trip, each side notified when the data is in memory.
    PutLat,
    /// RMA PUT: stream of transfers.
    PutBw,
    /// RMA GET: time of one transfer.
    GetLat,
    /// RMA GET: stream of transfers.
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

/// One measurement, as the client tells it to the server.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
struct Plan {
    test: Test,
    size: u64,
    iters: u64,
    /// Milliseconds instead of iterations.
    duration_ms: Option<u64>,
    warmup: u64,
    bidirectional: bool,
    events: bool,
    tx_depth: u32,
    timeout_ms: u64,
}

impl Plan {
    /// When to stop sending.
    fn goal(&self) -> Goal {
        match self.duration_ms {
            Some(ms) => Goal::Until(Instant::now() + Duration::from_millis(ms)),
            None => Goal::Count(self.iters),
        }
    }
}

/// When a side has sent enough.
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

/// What one side measured.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
struct Measured {
    /// Messages or transfers that this side sent.
    iterations: u64,
    /// Nanoseconds for all of them.
    ns: u64,
    /// Nanoseconds of each (latency tests).
    #[serde(skip)]
    times: Vec<u64>,
}

/// A line of the result.
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

/// What the client spent on each message.
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
    // Fails early when the NIC cannot be used.
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
        bail!("a client asks for {} bytes", theirs.buffer);
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
        Some(bad) => bail!("{bad} bytes: this test takes 1 to {limit}"),
        None if all.is_empty() => bail!("--max-size leaves nothing to do"),
        None => Ok(all),
    }
}

/// The server's hello, which comes when it is our turn.
fn hello(link: &Link, host: &str) -> Result<Hello> {
    match link.receive(Duration::from_secs(2)) {
        Err(e) if matches!(e.downcast_ref(), Some(Error::Timeout)) => {}
        other => return other,
    }
    let busy = anyhow!("{host} does not answer yet (it serves one client at a time); waiting");
    crate::complain("extoll-perf", &busy);
    link.receive(TURN)
}

fn client(device: &Device, port: u16, args: &RunArgs) -> Result<()> {
    let sizes = sizes(args)?;
    if args.bidirectional && args.test.is_latency() {
        bail!("latency tests go both ways anyway: --bidirectional is for bandwidth");
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
            .context("the server gave up; see its output")?;
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
