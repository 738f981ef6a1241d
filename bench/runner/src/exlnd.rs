//! Compares kexlnd.ko with a driver over TCP (tests/lnet/sock.c) and with raw RMA.
//!
//! A module in place of LNet (tests/lnet) sends the same requests over both drivers. TCP runs over
//! exn0. Data is not checked, because the check would take longer than the transfers.

use crate::insns::Row;
use crate::measure::{Effort, Pairs, RAW_TIMEOUT_MS};
use crate::parse::number;
use crate::stats::{ratios, short, Spread};
use crate::table::render;
use anyhow::{ensure, Context, Result};
use labctl::{pairs, Lab};
use serde::Serialize;
use std::time::Duration;

/// Time that a command may take in addition to its specified duration.
const PATIENCE: Duration = Duration::from_secs(60);
/// VPID of `extoll_bench` during this measurement, because kexlnd uses the default VPID.
const RAW_VPID: u32 = 250;

/// LNet driver that carries the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// The driver kexlnd.ko.
    Ex,
    /// The driver over TCP, which uses exn.
    Tcp,
}

impl Over {
    /// Returns the name of the driver in the summary.
    pub fn subject(self) -> &'static str {
        match self {
            Self::Ex => "exlnd",
            Self::Tcp => "exlnd.tcp",
        }
    }
}

/// A kind of request from node 0 to node 1.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Name in the summary.
    pub name: &'static str,
    /// Title of the request in tables.
    pub title: &'static str,
    kind: &'static str,
    /// Size of the bulk data in bytes.
    size: u64,
    in_flight: u32,
    /// Numbers of requests in the two runs that count instructions; `None` if instructions are not
    /// counted.
    pub counted: Option<[u64; 2]>,
}

const fn ask(
    name: &'static str,
    title: &'static str,
    (kind, size): (&'static str, u64),
    in_flight: u32,
    counted: Option<[u64; 2]>,
) -> Ask {
    Ask {
        name,
        title,
        kind,
        size,
        in_flight,
        counted,
    }
}

const MIB: u64 = 1 << 20;

/// All kinds of requests.
pub const ASKS: [Ask; 14] = [
    ask("ping", "ping", ("ping", 0), 1, Some([100, 2100])),
    ask("ping_x16", "ping, 16 in flight", ("ping", 0), 16, None),
    ask(
        "read4k",
        "read of 4 KiB",
        ("read", 4096),
        1,
        Some([50, 1050]),
    ),
    ask(
        "read4k_x16",
        "read of 4 KiB, 16 in flight",
        ("read", 4096),
        16,
        None,
    ),
    ask(
        "read64k_x8",
        "read of 64 KiB, 8 in flight",
        ("read", 65536),
        8,
        Some([16, 216]),
    ),
    ask("read1m", "read of 1 MiB", ("read", MIB), 1, None),
    ask(
        "read1m_x8",
        "read of 1 MiB, 8 in flight",
        ("read", MIB),
        8,
        Some([8, 88]),
    ),
    ask(
        "read1m_x16",
        "read of 1 MiB, 16 in flight",
        ("read", MIB),
        16,
        None,
    ),
    ask(
        "write4k",
        "write of 4 KiB",
        ("write", 4096),
        1,
        Some([50, 1050]),
    ),
    ask(
        "write4k_x16",
        "write of 4 KiB, 16 in flight",
        ("write", 4096),
        16,
        None,
    ),
    ask(
        "write64k_x8",
        "write of 64 KiB, 8 in flight",
        ("write", 65536),
        8,
        Some([16, 216]),
    ),
    ask("write1m", "write of 1 MiB", ("write", MIB), 1, None),
    ask(
        "write1m_x8",
        "write of 1 MiB, 8 in flight",
        ("write", MIB),
        8,
        Some([8, 88]),
    ),
    ask(
        "write1m_x16",
        "write of 1 MiB, 16 in flight",
        ("write", MIB),
        16,
        None,
    ),
];

/// Both networks, and a service on both nodes.
pub struct Nets<'a> {
    lab: &'a Lab,
    /// NID of node 1 in the kexlnd network.
    ex: String,
    tcp: String,
}

fn request(lab: &Lab, node: usize, command: &str, patience: Duration) -> Result<String> {
    let script = format!(
        "exec 3<>/dev/lnet_stand || exit; printf %s '{command}' >&3; rc=$?; cat <&3; exit $rc"
    );
    lab.ok_for(node, &script, patience)
}

/// Restarts the service of `extoll_bench` with other options.
fn serve_raw(lab: &Lab, options: &str) -> Result<()> {
    for node in 0..2 {
        lab.raw(node, "stop")?;
    }
    for node in 0..2 {
        // The command fails while the module waits for late writes to its previous memory.
        lab.until("extoll_bench serves", PATIENCE, |lab| {
            Ok(lab.raw(node, &format!("serve {options}")).is_ok())
        })?;
    }
    Ok(())
}

impl<'a> Nets<'a> {
    /// Loads the drivers and adds the networks. exn0 must be up.
    ///
    /// # Errors
    /// When a module or a network does not start.
    pub fn start(lab: &'a Lab) -> Result<Self> {
        let add = |node, net: &str| -> Result<String> {
            let said = request(lab, node, &format!("net add {net}"), PATIENCE)?;
            let nid = said.trim().strip_prefix("nid ");
            Ok(nid.with_context(|| format!("{net}: {said}"))?.to_string())
        };
        serve_raw(lab, &format!("vpid={RAW_VPID}"))?;
        let mut nids = None;
        for node in 0..2 {
            lab.ok(node, "modprobe kexlnd && modprobe lnet_sock")?;
            nids = Some((add(node, "ex ex0")?, add(node, "tcp exn0")?));
            request(lab, node, "serve", PATIENCE)?;
        }
        let (ex, tcp) = nids.context("no nodes")?;
        Ok(Self { lab, ex, tcp })
    }

    /// Ends services, networks and drivers.
    ///
    /// When a service, a network or a driver does not end.
    /// When one of these does not end.
    pub fn end(self) -> Result<()> {
        for node in 0..2 {
            request(self.lab, node, "serve stop", PATIENCE)?;
        }
        for node in 0..2 {
            for net in ["ex", "tcp"] {
                request(self.lab, node, &format!("net del {net}"), PATIENCE)?;
            }
            self.lab.ok(node, "rmmod kexlnd lnet_sock lnet_stand")?;
        }
        serve_raw(self.lab, "")
    }

    /// Sends requests until the limit `length` is reached: `count=N` or `seconds=N`.
    ///
    /// # Errors
    /// When an RPC fails.
    pub fn run(&self, over: Over, ask: &Ask, length: &str) -> Result<Pairs> {
        let nid = match over {
            Over::Ex => &self.ex,
            Over::Tcp => &self.tcp,
        };
        let Ask {
            kind,
            size,
            in_flight,
            ..
        } = ask;
        let command =
            format!("test kind={kind} to={nid} size={size} threads={in_flight} check=0 {length}");
        let said = pairs(&request(self.lab, 0, &command, PATIENCE)?);
        let failed = number(&said, "failed")?;
        ensure!(failed == 0.0, "{command}: {said:?}");
        Ok(said)
    }

    /// Sends `count` requests.
    ///
    /// # Errors
    /// When an RPC fails.
    pub fn count(&self, over: Over, ask: &Ask, count: u64) -> Result<()> {
        let said = self.run(over, ask, &format!("count={count}"))?;
        let done = number(&said, "done")?;
        ensure!(done == count as f64, "{done} of {count} RPCs");
        Ok(())
    }
}

/// Speed of one kind of request in one repetition.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Number of the repetition.
    pub repetition: usize,
    /// Source of the figure: `exlnd`, `exlnd.tcp`, or `raw` for RMA GETs of the same size, 8 in
    /// flight.
    pub of: &'static str,
    /// Name of the request.
    pub ask: &'static str,
    /// RPCs or transfers per second.
    pub per_s: f64,
    /// Other values in the output of the command.
    pub details: Pairs,
}

/// Runs RMA GETs of node 0 from node 1.
fn raw(lab: &Lab, peer: u64, size: u64, effort: &Effort) -> Result<Pairs> {
    let count = (effort.raw_bytes / size).clamp(64, 4096);
    lab.raw(0, &format!("get node={peer} vpid={RAW_VPID} size={size} count={count} inflight=8 timeout_ms={RAW_TIMEOUT_MS}"))
}

/// Measures all kinds of requests and raw RMA in each repetition. Reports each step by `progress`.
///
/// # Errors
/// When an RPC or a transfer fails.
pub fn measure(
    lab: &Lab,
    peer: u64,
    effort: &Effort,
    progress: impl Fn(&str),
) -> Result<Vec<Sample>> {
    let nets = Nets::start(lab)?;
    let mut all = Vec::new();
    for repetition in 0..effort.repetitions {
        progress(&format!(
            "repetition {} of {}: RPCs of exlnd and TCP, raw RMA",
            repetition + 1,
            effort.repetitions
        ));
        for ask in &ASKS {
            let mut add = |of, per_s, details| {
                all.push(Sample {
                    repetition,
                    of,
                    ask: ask.name,
                    per_s,
                    details,
                });
            };
            for over in [Over::Ex, Over::Tcp] {
                let length = format!("seconds={}", effort.seconds.min(2));
                let said = nets.run(over, ask, &length)?;
                let rate = number(&said, "done")? * 1e6 / number(&said, "us")?;
                add(over.subject(), rate, said);
            }
            if ask.size > 0 {
                let said = raw(lab, peer, ask.size, effort)?;
                let rate = number(&said, "count")? * 1e9 / number(&said, "elapsed_ns")?;
                add("raw", rate, said);
            }
        }
    }
    nets.end()?;
    Ok(all)
}

/// Ratio of the speeds of two sources.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// Name of the request.
    pub ask: &'static str,
    /// Source that is the numerator.
    pub of: &'static str,
    /// Source that is the denominator.
    pub to: &'static str,
    /// Median, minimum and maximum of the ratio over the repetitions.
    pub ratio: Spread,
}

/// Compares the speeds of the samples, request by request.
pub fn compare(samples: &[Sample]) -> Vec<Compared> {
    let mut all = Vec::new();
    for ask in &ASKS {
        let values = |of: &str| -> Vec<_> {
            let of = samples.iter().filter(|s| s.of == of && s.ask == ask.name);
            of.map(|s| (s.repetition, s.per_s)).collect()
        };
        for (of, to) in [
            ("exlnd", "exlnd.tcp"),
            ("exlnd", "raw"),
            ("exlnd.tcp", "raw"),
        ] {
            if let Some(ratio) = Spread::of(&ratios(&values(of), &values(to))) {
                all.push(Compared {
                    ask: ask.name,
                    of,
                    to,
                    ratio,
                });
            }
        }
    }
    all
}

/// Returns keys and values for the summary.
pub fn summary(compared: &[Compared]) -> impl Iterator<Item = (String, f64)> + use<'_> {
    compared.iter().map(|c| {
        let to = c.to.trim_start_matches("exlnd.");
        (format!("{}.{}.vs_{to}", c.of, c.ask), c.ratio.median)
    })
}

/// Returns the instructions over kexlnd.ko divided by those over TCP, as keys and values for the
/// summary.
pub fn instructions(rows: &[Row]) -> Vec<(String, f64)> {
    let total = |over: Over, ask: &Ask| {
        let mut rows = rows.iter();
        let row = rows.find(|r| r.subject == over.subject() && r.work == ask.name)?;
        Some(row.total()?.median)
    };
    let ratio = |ask: &Ask| {
        let ratio = total(Over::Ex, ask)? / total(Over::Tcp, ask)?;
        Some((format!("exlnd.{}.instructions_vs_tcp", ask.name), ratio))
    };
    ASKS.iter().filter_map(ratio).collect()
}

/// Returns the table of speeds.
pub fn text(compared: &[Compared]) -> String {
    let cell = |ask: &Ask, of, to| {
        let mut all = compared.iter();
        let found = all.find(|c| (c.ask, c.of, c.to) == (ask.name, of, to));
        found.map_or("-".into(), |c| c.ratio.to_string())
    };
    let rows: Vec<Vec<String>> = ASKS
        .iter()
        .map(|ask| {
            vec![
                ask.title.to_string(),
                cell(ask, "exlnd", "exlnd.tcp"),
                cell(ask, "exlnd", "raw"),
                cell(ask, "exlnd.tcp", "raw"),
            ]
        })
        .collect();
    format!(
        "\nRPCs of LNet's stand-in by kexlnd, by TCP over exn, and raw RMA GETs of the same size, 8 in flight; above 1: the first is faster\n\n{}",
        render(&["", "exlnd/TCP", "exlnd/raw", "TCP/raw"], &rows)
    )
}

/// Returns the lines below the table of instructions.
pub fn instructions_text(rows: &[Row]) -> String {
    let all = instructions(rows);
    let lines = all
        .iter()
        .map(|(key, value)| format!("  {key}: {}\n", short(*value)));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(repetition: usize, of: &'static str, per_s: f64) -> Sample {
        Sample {
            repetition,
            of,
            ask: "read1m_x8",
            per_s,
            details: Pairs::new(),
        }
    }

    #[test]
    fn speeds_are_compared_by_repetition() {
        let samples = [
            sample(0, "exlnd", 90.0),
            sample(0, "exlnd.tcp", 30.0),
            sample(0, "raw", 100.0),
            sample(1, "exlnd", 40.0),
            sample(1, "raw", 50.0),
        ];
        let compared = compare(&samples);
        let all: Vec<_> = summary(&compared).collect();
        let want = [
            ("exlnd.read1m_x8.vs_tcp", 3.0),
            ("exlnd.read1m_x8.vs_raw", 0.85),
            ("exlnd.tcp.read1m_x8.vs_raw", 0.3),
        ];
        assert_eq!(all.len(), want.len());
        for ((key, value), (want_key, want_value)) in all.iter().zip(want) {
            assert_eq!(key, want_key);
            assert!((value - want_value).abs() < 1e-9, "{key} {value}");
        }
        let text = text(&compared);
        let line = text.lines().find(|l| l.starts_with("read of 1 MiB, 8"));
        assert!(
            line.is_some_and(|l| l.contains("3.00 (3.00–3.00)")),
            "{text}"
        );
    }

    #[test]
    fn what_is_asked_has_names_of_its_own() {
        let mut names: Vec<_> = ASKS.iter().map(|a| a.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ASKS.len());
    }
}
