//! Measurements of devices and raw units over time.

use crate::parse::{iperf3, netperf, number};
use anyhow::{ensure, Context, Result};
use labctl::{modules, Lab};
use serde::Serialize;
use serde_json::{json, Value};
use std::time::Duration;

/// A network device to measure. Both nodes have such a device in the same network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Name in results.
    pub name: &'static str,
    /// First three bytes of the IP addresses. Node N has N + 1 as the last byte.
    pub network: &'static str,
    /// Port of the iperf3 server for this device on node 1.
    pub port: u16,
    /// Port of the netperf server for this device on node 1.
    pub netserver: u16,
    /// Command that runs programs on this device; prefix of their command lines.
    pub by: &'static str,
}

/// Interfaces that `lab up --bench-nics` adds, and exn0.
pub const DEVICES: [Device; 3] = [
    Device {
        name: "exn",
        network: "10.2.0",
        port: 5201,
        netserver: 12865,
        by: "",
    },
    Device {
        name: "virtio",
        network: "10.3.0",
        port: 5203,
        netserver: 12865,
        by: "",
    },
    Device {
        name: "e1000e",
        network: "10.4.0",
        port: 5204,
        netserver: 12865,
        by: "",
    },
];

/// Sockets of AF_EXTL in exn's network, for the same programs. Only the tests of TCP run on them.
pub const EXTL: Device = Device {
    name: "extl",
    network: "10.2.0",
    port: 5202,
    netserver: 12866,
    by: "extl-run ",
};

/// Tests of the devices; higher values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// One TCP stream from node 0 to node 1, in bit/s. For the raw units: GETs of 64 KiB, eight in
    /// flight.
    Tcp1,
    /// Four TCP streams; the sum of their rates in bit/s.
    Tcp4,
    /// TCP request and response of 64 bytes each, in transactions/s. For the raw units: like
    /// `UdpRr`.
    TcpRr,
    /// UDP request and response of 64 bytes each, in transactions/s. For the raw units: VELO
    /// ping-pong with interrupts.
    UdpRr,
}

impl Test {
    /// All tests.
    pub const ALL: [Test; 4] = [Test::Tcp1, Test::Tcp4, Test::TcpRr, Test::UdpRr];

    /// Returns the devices that run the test.
    pub fn devices(self) -> impl Iterator<Item = Device> {
        let extl = (self != Test::UdpRr).then_some(EXTL);
        DEVICES.into_iter().chain(extl)
    }

    /// Returns the title in the table.
    pub fn title(self) -> &'static str {
        match self {
            Test::Tcp1 => "TCP stream",
            Test::Tcp4 => "TCP, 4 streams",
            Test::TcpRr => "TCP request/response, 64 bytes",
            Test::UdpRr => "UDP request/response, 64 bytes",
        }
    }

    /// Returns the name in the summary.
    pub fn key(self) -> &'static str {
        match self {
            Test::Tcp1 => "tcp1",
            Test::Tcp4 => "tcp4",
            Test::TcpRr => "tcp_rr",
            Test::UdpRr => "udp_rr",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Test::Tcp1 | Test::Tcp4 => "bit/s",
            Test::TcpRr | Test::UdpRr => "transactions/s",
        }
    }
}

/// One measured value.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Number of the repetition.
    pub repetition: usize,
    /// Name of the device, or `raw`.
    pub device: &'static str,
    /// Test that measured the value.
    pub test: Test,
    /// Unit of the value.
    pub unit: &'static str,
    /// Measured value.
    pub value: f64,
    /// Other values from the output of the program.
    pub details: Value,
}

/// Durations and numbers of measurements.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Effort {
    /// Number of repetitions of every comparison.
    pub repetitions: usize,
    /// Duration of each measurement in seconds.
    pub seconds: u32,
    /// Number of round trips of each raw ping-pong.
    pub round_trips: u32,
    /// Number of bytes that each raw run transfers, in 64 to 4096 transfers.
    pub raw_bytes: u64,
    /// Number of runs of the raw units at each size.
    pub raw_passes: usize,
    /// Number of runs of each comparison of kernel API and user space.
    pub unit_passes: usize,
    /// Number of runs of each workload that counts instructions.
    pub counted_passes: usize,
}

/// Time that a command may take in addition to the duration of its measurement.
const SLACK: Duration = Duration::from_secs(60);
/// Size in bytes of the raw transfers that are compared with TCP; similar to exn's largest frame.
pub const RAW_SIZE: u64 = 65536;
/// Time-out of a command of `extoll_bench` in ms.
pub const RAW_TIMEOUT_MS: u32 = 60_000;

/// Starts the servers on node 1 and loads the raw module on both nodes.
///
/// # Errors
/// When a server or the module does not start.
pub fn prepare(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        let tunables = "af_extl.ask_ms=20 af_extl.asks=50 af_extl.accept_ms=2000";
        lab.ok(node, &modules::modprobe("af_extl", tunables))?;
    }
    // Each device has its own server, because a server may still be busy with the client of another
    // device.
    for Device { port, by, .. } in DEVICES.into_iter().chain([EXTL]) {
        lab.ok(1, &format!("{by}iperf3 -s -D -p {port} >/dev/null"))?;
    }
    for Device { netserver, by, .. } in [DEVICES[0], EXTL] {
        lab.ok(1, &format!("{by}netserver -p {netserver} >/dev/null"))?;
    }
    for node in 0..2 {
        lab.ok(node, "modprobe extoll_bench")?;
        lab.raw(node, "serve")?;
    }
    // Resolves neighbours before the first measurement.
    for device in DEVICES {
        lab.ok(
            0,
            &format!("ping -q -c 3 -i 0.1 -w 30 {}.2", device.network),
        )
        .with_context(|| format!("{} does not work", device.name))?;
    }
    Ok(())
}

/// Returns the number of connections of node 0 that bypassed TCP.
fn direct(lab: &Lab) -> Result<u64> {
    let count = "sed -n 's/^Waiting+UseStreams //p' /proc/net/extl_stat";
    // The line is missing if the number is zero.
    Ok(lab.ok(0, count)?.trim().parse().unwrap_or(0))
}

/// Runs a program that opens `connections` connections over a device. All connections of AF_EXTL
/// must bypass TCP.
///
/// # Errors
/// When the program fails, or a connection of AF_EXTL used TCP.
pub fn by(
    lab: &Lab,
    device: Device,
    connections: u64,
    script: &str,
    patience: Duration,
) -> Result<String> {
    let before = direct(lab)?;
    let said = lab.ok_for(0, &format!("{}{script}", device.by), patience)?;
    let direct = direct(lab)? - before;
    let wanted = if device == EXTL { connections } else { 0 };
    ensure!(
        direct == wanted,
        "{direct} of {connections} connections of {} bypassed TCP; {}",
        device.name,
        reasons(lab)
    );
    Ok(said)
}

/// Returns the reasons for which connections of both nodes used TCP since the modules were loaded.
fn reasons(lab: &Lab) -> String {
    let of = |node| {
        let lines = "grep '^fallback-' /proc/net/extl_stat | grep -v ' 0$' | tr '\\n' ' '";
        let said = lab.ok(node, lines).unwrap_or_default();
        format!("node {node}: {}", said.trim())
    };
    format!("{}, {}", of(0), of(1))
}

/// Runs one test once on one device.
///
/// # Errors
/// When the program fails or prints unexpected output.
pub fn once(
    lab: &Lab,
    device: Device,
    test: Test,
    repetition: usize,
    effort: &Effort,
) -> Result<Sample> {
    let seconds = effort.seconds;
    let patience = SLACK + Duration::from_secs(u64::from(seconds));
    let server = format!("{}.2", device.network);
    let (value, details) = match test {
        Test::Tcp1 | Test::Tcp4 => {
            let streams = if test == Test::Tcp1 { 1 } else { 4 };
            let script = format!(
                "iperf3 -J -c {server} -p {} -t {seconds} -P {streams}",
                device.port
            );
            let s = iperf3(&by(lab, device, 1 + streams, &script, patience)?)?;
            (
                s.bits_per_s,
                json!({"retransmits": s.retransmits, "streams": streams}),
            )
        }
        Test::TcpRr | Test::UdpRr => {
            let what = if test == Test::TcpRr { "TCP" } else { "UDP" };
            let script = format!("netperf -H {server} -p {} -t {what}_RR -l {seconds} -P 0 -- -r 64,64 -k THROUGHPUT,MEAN_LATENCY,P50_LATENCY,P99_LATENCY", device.netserver);
            let all = netperf(&by(lab, device, 2, &script, patience)?)?;
            (all["THROUGHPUT"], json!(all))
        }
    };
    Ok(Sample {
        repetition,
        device: device.name,
        test,
        unit: test.unit(),
        value,
        details,
    })
}

/// Measures the raw units once, as the reference for TCP and UDP.
///
/// # Errors
/// When a command of `extoll_bench` fails.
pub fn raw_once(lab: &Lab, peer: u64, repetition: usize, effort: &Effort) -> Result<Vec<Sample>> {
    let get = transfer(lab, "get", peer, RAW_SIZE, effort)?;
    let bits = number(&get, "bytes")? * 8e9 / number(&get, "elapsed_ns")?;
    let ping = ping_pong(lab, peer, 64, "irq", effort)?;
    let rate = 1e9 / number(&ping, "rtt_ns_mean")?;
    let sample = |test: Test, value, details: &Pairs| Sample {
        repetition,
        device: "raw",
        test,
        unit: test.unit(),
        value,
        details: json!(details),
    };
    Ok(vec![
        sample(Test::Tcp1, bits, &get),
        sample(Test::Tcp4, bits, &get),
        sample(Test::TcpRr, rate, &ping),
        sample(Test::UdpRr, rate, &ping),
    ])
}

/// `key value` lines of the output of a raw run.
pub type Pairs = std::collections::BTreeMap<String, String>;

/// Runs GETs or PUTs, as `verb` says.
///
/// # Errors
/// When the command fails.
pub fn transfer(lab: &Lab, verb: &str, peer: u64, size: u64, effort: &Effort) -> Result<Pairs> {
    let count = (effort.raw_bytes / size).clamp(64, 4096);
    lab.raw(
        0,
        &format!(
            "{verb} node={peer} size={size} count={count} inflight=8 timeout_ms={RAW_TIMEOUT_MS}"
        ),
    )
}

/// Runs round trips of VELO messages.
///
/// # Errors
/// When the command fails.
pub fn ping_pong(lab: &Lab, peer: u64, size: u64, mode: &str, effort: &Effort) -> Result<Pairs> {
    let count = effort.round_trips;
    lab.raw(0, &format!("pingpong node={peer} size={size} count={count} mode={mode} timeout_ms={RAW_TIMEOUT_MS}"))
}
