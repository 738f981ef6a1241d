//! The measurements.

use crate::parse::{iperf3, netperf, number};
use anyhow::{Context, Result};
use labctl::Lab;
use serde::Serialize;
use serde_json::{json, Value};
use std::time::Duration;

/// One of the things compared: name in the results and network of its pair of interfaces (`raw` has none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Name in results.
    pub name: &'static str,
    /// First three bytes of its addresses; node N has N + 1 as the last.
    pub network: &'static str,
    /// Port of its iperf3 server on node 1.
    pub port: u16,
}

/// The interfaces of `lab up --bench-nics`, and exn.
pub const DEVICES: [Device; 3] = [
    Device {
        name: "exn",
        network: "10.2.0",
        port: 5201,
    },
    Device {
        name: "virtio",
        network: "10.3.0",
        port: 5203,
    },
    Device {
        name: "e1000e",
        network: "10.4.0",
        port: 5204,
    },
];

/// What is measured on every device; higher is better for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// One TCP stream from node 0 to node 1, bit/s. Raw: GETs of 64 KiB, eight in flight.
    Tcp1,
    /// Four of them, the sum.
    Tcp4,
    /// UDP request and response of 64 bytes each, transactions/s. Raw: VELO ping-pong with interrupts.
    UdpRr,
}

impl Test {
    /// All of them.
    pub const ALL: [Test; 3] = [Test::Tcp1, Test::Tcp4, Test::UdpRr];

    /// For the table.
    pub fn title(self) -> &'static str {
        match self {
            Test::Tcp1 => "TCP stream",
            Test::Tcp4 => "TCP, 4 streams",
            Test::UdpRr => "UDP request/response, 64 bytes",
        }
    }

    /// In names of the summary.
    pub fn key(self) -> &'static str {
        match self {
            Test::Tcp1 => "tcp1",
            Test::Tcp4 => "tcp4",
            Test::UdpRr => "udp_rr",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Test::Tcp1 | Test::Tcp4 => "bit/s",
            Test::UdpRr => "transactions/s",
        }
    }
}

/// One measured figure.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Number of the repetition.
    pub repetition: usize,
    /// Name of the device, or `raw`.
    pub device: &'static str,
    /// What was measured.
    pub test: Test,
    /// Unit of the value.
    pub unit: &'static str,
    /// The figure.
    pub value: f64,
    /// What else the program said.
    pub details: Value,
}

/// How long and how often.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Effort {
    /// Repetitions of everything that is compared.
    pub repetitions: usize,
    /// Seconds of each measurement.
    pub seconds: u32,
    /// Round trips of each raw ping-pong.
    pub round_trips: u32,
    /// Bytes of each raw transfer run; at least 64 and at most 4096 transfers.
    pub raw_bytes: u64,
    /// Runs of the raw units at each size.
    pub raw_passes: usize,
    /// Runs of everything that kernel API and user space are compared by.
    pub unit_passes: usize,
    /// Runs of everything that instructions are counted of.
    pub counted_passes: usize,
}

/// Patience beyond the length of a measurement.
const SLACK: Duration = Duration::from_secs(60);
/// Size of raw transfers that are compared with TCP: the largest frame of exn is about as long.
pub const RAW_SIZE: u64 = 65536;
/// A command of `extoll_bench` may take this long.
pub const RAW_TIMEOUT_MS: u32 = 60_000;

/// Starts the servers on node 1 and loads the raw module on both.
///
/// # Errors
/// When something does not start.
pub fn prepare(lab: &Lab) -> Result<()> {
    // One server per device: the one that has just been used may still be busy with its last client.
    for device in DEVICES {
        lab.ok(1, &format!("iperf3 -s -D -p {} >/dev/null", device.port))?;
    }
    lab.ok(1, "netserver >/dev/null")?;
    for node in 0..2 {
        lab.ok(node, "modprobe extoll_bench")?;
        lab.raw(node, "serve")?;
    }
    // Neighbours are known before anything is measured.
    for device in DEVICES {
        lab.ok(
            0,
            &format!("ping -q -c 3 -i 0.1 -w 30 {}.2", device.network),
        )
        .with_context(|| format!("{} does not work", device.name))?;
    }
    Ok(())
}

/// Measures one thing once.
///
/// # Errors
/// When the program fails or says something unexpected.
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
            let out = lab.sh_for(
                0,
                &format!(
                    "iperf3 -J -c {server} -p {} -t {seconds} -P {streams}",
                    device.port
                ),
                patience,
            )?;
            let s = iperf3(&out.stdout)?;
            (
                s.bits_per_s,
                json!({"retransmits": s.retransmits, "streams": streams}),
            )
        }
        Test::UdpRr => {
            let text = lab.ok_for(0, &format!("netperf -H {server} -t UDP_RR -l {seconds} -P 0 -- -r 64,64 -k THROUGHPUT,MEAN_LATENCY,P50_LATENCY,P99_LATENCY"), patience)?;
            let all = netperf(&text)?;
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

/// Measures the raw units once: what TCP and UDP are compared with.
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
        sample(Test::UdpRr, rate, &ping),
    ])
}

/// `key value` lines of a raw run.
pub type Pairs = std::collections::BTreeMap<String, String>;

/// GETs or PUTs.
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

/// Round trips.
///
/// # Errors
/// When the command fails.
pub fn ping_pong(lab: &Lab, peer: u64, size: u64, mode: &str, effort: &Effort) -> Result<Pairs> {
    let count = effort.round_trips;
    lab.raw(0, &format!("pingpong node={peer} size={size} count={count} mode={mode} timeout_ms={RAW_TIMEOUT_MS}"))
}
