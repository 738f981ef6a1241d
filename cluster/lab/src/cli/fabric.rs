//! `lab fault`, `lab trace` and `lab top`.

use anyhow::{ensure, Context, Result};
use clap::{Args, Subcommand};
use extoll_emulator_api::control::{Counters, LinkSelect, Request};
use extoll_emulator_api::link::DownPolicy;
use extoll_emulator_api::nic::{LoseWrite, LossyRing, QueueUnit};
use lab::emu::{self, Fault};
use lab::spec::parse_node;
use lab::ui::{table, Paint};
use lab::{Cluster, Paths};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

// Node, NIC and rate of a fault. This is not a doc comment, because clap would show a doc comment
// as the help of each command.
#[derive(Args)]
pub struct EveryNth {
    /// Node
    node: String,
    /// Inject the fault into every n-th translation, command or packet; 0 ends the fault
    #[arg(long)]
    every: u32,
    /// Number of the NIC in the node
    #[arg(long, default_value_t = 0)]
    nic: usize,
}

/// Fault to inject. Users write links as `NODE PORT` or as one word: `all`, `NIC:PORT`, `nicN` (all
/// links of a NIC) or `N-M` (links between two NICs). NICs are counted over all nodes.
#[derive(Subcommand)]
pub enum FaultVerb {
    /// Pull cables
    LinkDown {
        /// Link: NODE PORT, NIC:PORT, nicN (all links of NIC N), N-M (between NICs) or all
        #[arg(required = true, num_args = 1..=2)]
        link: Vec<String>,
        /// Hold packets while the link is down instead of dropping them
        #[arg(long)]
        hold: bool,
    },
    /// Plug cables in
    LinkUp {
        /// Link: NODE PORT, NIC:PORT, nicN (all links of NIC N), N-M (between NICs) or all
        #[arg(required = true, num_args = 1..=2)]
        link: Vec<String>,
    },
    /// Pull cables and plug them in again, repeatedly
    Flap {
        /// Link: NODE PORT, NIC:PORT, nicN (all links of NIC N), N-M (between NICs) or all
        #[arg(default_value = "all", num_args = 1..=2)]
        link: Vec<String>,
        /// Time for which the link stays down, in ms
        #[arg(long, default_value_t = 100)]
        down_ms: u64,
        /// Time for which the link stays up, in ms
        #[arg(long, default_value_t = 100)]
        up_ms: u64,
        /// Number of times that the link goes down
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// Drop packets while the link is down instead of holding them
        #[arg(long)]
        drop: bool,
    },
    /// Damage transmissions, which the link layer repairs
    Corrupt {
        /// Link: NODE PORT, NIC:PORT, nicN (all links of NIC N), N-M (between NICs) or all
        #[arg(default_value = "all", num_args = 1..=2)]
        link: Vec<String>,
        /// Probability per transmission; 0 ends the fault
        #[arg(long)]
        rate: f64,
    },
    /// Lose transmissions, which the link layer repairs
    Lose {
        /// Link: NODE PORT, NIC:PORT, nicN (all links of NIC N), N-M (between NICs) or all
        #[arg(default_value = "all", num_args = 1..=2)]
        link: Vec<String>,
        /// Probability per transmission; 0 ends the fault
        #[arg(long)]
        rate: f64,
    },
    /// Slow links down
    Slow {
        /// Link: NODE PORT, NIC:PORT, nicN (all links of NIC N), N-M (between NICs) or all
        #[arg(default_value = "all", num_args = 1..=2)]
        link: Vec<String>,
        /// Latency of the link in µs
        #[arg(long)]
        latency_us: Option<u64>,
        /// Bandwidth of the link in payload bytes per second; 0: no limit
        #[arg(long)]
        bytes_per_second: Option<u64>,
    },
    /// Make a receive queue behave as if it were full
    QueueFull {
        /// Node
        node: String,
        /// VPID of the queue (default: all queues of the unit)
        #[arg(long)]
        vpid: Option<u8>,
        /// Affect RMA notification queues instead of VELO mailboxes
        #[arg(long)]
        rma: bool,
        /// Number of used slots at which the queue is full (default: always full)
        #[arg(long)]
        slots: Option<u32>,
        /// End the fault
        #[arg(long)]
        off: bool,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Make requesters report `retry`
    #[command(group(clap::ArgGroup::new("when").required(true).multiple(true)))]
    Retry {
        /// Node
        node: String,
        /// Report `retry` on every n-th descriptor; 1 blocks all descriptors, 0 ends the fault
        #[arg(long, group = "when")]
        every: Option<u32>,
        /// Report `retry` while more than this number of messages wait for the target queue; `off`
        /// ends the fault
        #[arg(long, group = "when")]
        waiting: Option<String>,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Make write-combining buffers keep descriptors instead of sending them
    Stuck {
        /// Node
        node: String,
        /// End the fault and send the kept descriptors
        #[arg(long)]
        off: bool,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Make a NIC's registers hang: reads return all ones, writes are dropped, everything else
    /// continues
    Deaf {
        /// Node
        node: String,
        /// End the fault
        #[arg(long)]
        off: bool,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Make DMA accesses fail, or lose writes into a queue
    #[command(group(clap::ArgGroup::new("what").required(true)))]
    DmaFault {
        /// Node
        node: String,
        /// Every n-th access fails; 0 ends the fault
        #[arg(long, group = "what")]
        every: Option<u32>,
        /// Lose the next writes into this ring: velo (mailboxes), rma (notification queues), snq
        /// (system notification queue), or msi (interrupts)
        #[arg(long, group = "what", value_parser = lossy_ring)]
        ring: Option<LossyRing>,
        /// Lose only writes into the queue of this VPID
        #[arg(long, requires = "ring")]
        vpid: Option<u8>,
        /// Lose only this slot (0 to 2) of VELO messages that use several slots
        #[arg(long, requires = "ring")]
        slot: Option<u8>,
        /// Number of messages, notifications or entries to lose; 0 ends the fault
        #[arg(long, requires = "ring", default_value_t = 1)]
        count: u32,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Make address translations fail
    AtuFault(EveryNth),
    /// Delay the ATU's commands: flushes take effect and are answered late
    AtuDelay {
        /// Node
        node: String,
        /// Delay in ms; 0 ends the fault and executes the delayed commands
        #[arg(long)]
        ms: u64,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Lose answers to the ATU's fence and notification commands
    AtuLose(EveryNth),
    /// Lose packets of RMA transfers on their way to a NIC, but never the last one of a transfer
    LoseInner(EveryNth),
    /// Stop a NIC from receiving and sending packets
    Freeze {
        /// Node
        node: String,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// End a freeze
    Thaw {
        /// Node
        node: String,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Switch a node off
    PowerOff {
        /// Node
        node: String,
    },
    /// Switch a node on and wait until it is ready
    PowerOn {
        /// Node
        node: String,
    },
    /// Remove a NIC from its running node (reads return all ones)
    NicOff {
        /// Node
        node: String,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Put a removed NIC back
    NicOn {
        /// Node
        node: String,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Change the configuration space of a NIC; takes effect at the node's next start
    Pci {
        /// Node
        node: String,
        /// Fields as JSON, for instance '{"revision":66}'
        fields: String,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Restart the random number generator of the fabric with a new seed
    Seed {
        /// Seed
        seed: u64,
    },
    /// Deliver packets that no NIC sent (docs/emulator.md, request `forge`)
    Forge {
        /// Node that receives them
        node: String,
        /// Packets as JSON, in the order of their delivery
        #[arg(required = true)]
        packets: Vec<String>,
        /// Number of times that all packets are delivered
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        count: u32,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// Raise a trigger event, as a unit of the chip would
    Event {
        /// Node
        node: String,
        /// Number of the event
        #[arg(value_parser = clap::value_parser!(u8).range(0..=31))]
        event: u8,
        /// Register to set before the event, as OFFSET=VALUE (repeatable)
        #[arg(long = "set", value_parser = assignment)]
        set: Vec<(u32, u64)>,
        /// Number of the NIC in the node
        #[arg(long, default_value_t = 0)]
        nic: usize,
    },
    /// End all faults except power and configuration space; links, their speeds and NICs are then
    /// as at the lab's start
    Clear,
}

fn nic_of(cluster: &Cluster, node: &str, nic: usize) -> Result<usize> {
    let spec = cluster.spec();
    if let Some(index) = spec.accelerator(node)? {
        ensure!(nic == 0, "{node} has only NIC 0, no NIC {nic}");
        return Ok(index);
    }
    let node = parse_node(node)?;
    cluster.node(node)?;
    ensure!(
        nic < spec.nics,
        "a node of lab '{}' has {} NICs, no NIC {nic}",
        spec.name,
        spec.nics
    );
    Ok(node * spec.nics + nic)
}

/// Fails if the fault needs a node behind the NIC (its memory, queues, driver or boot) and the NIC
/// has none.
fn needs_node(cluster: &Cluster, verb: &FaultVerb) -> Result<()> {
    let (node, what) = match verb {
        FaultVerb::QueueFull { node, .. } => (node, "queue-full"),
        FaultVerb::Retry { node, .. } => (node, "retry"),
        FaultVerb::Stuck { node, .. } => (node, "stuck"),
        FaultVerb::Deaf { node, .. } => (node, "deaf"),
        FaultVerb::DmaFault { node, .. } => (node, "dma-fault"),
        FaultVerb::AtuFault(EveryNth { node, .. }) => (node, "atu-fault"),
        FaultVerb::AtuDelay { node, .. } => (node, "atu-delay"),
        FaultVerb::AtuLose(EveryNth { node, .. }) => (node, "atu-lose"),
        FaultVerb::LoseInner(EveryNth { node, .. }) => (node, "lose-inner"),
        FaultVerb::Event { node, .. } => (node, "event"),
        FaultVerb::Pci { node, .. } => (node, "pci"),
        _ => return Ok(()),
    };
    ensure!(
        cluster.spec().accelerator(node)?.is_none(),
        "{what} makes no sense for {node}, a NIC without a node; use faults of links, freeze, power-off, nic-off or forge"
    );
    Ok(())
}

fn link_of(cluster: &Cluster, words: &[String]) -> Result<LinkSelect> {
    match words {
        [node, port] => {
            let port: u8 = port
                .parse()
                .with_context(|| format!("'{port}' is not a port number"))?;
            Ok(LinkSelect::End(format!(
                "{}:{port}",
                nic_of(cluster, node, 0)?
            )))
        }
        [word] => word.parse().map_err(anyhow::Error::msg),
        _ => Ok(LinkSelect::All),
    }
}

fn lossy_ring(word: &str) -> Result<LossyRing, String> {
    match word {
        "velo" => Ok(LossyRing::Velo),
        "rma" => Ok(LossyRing::Rma),
        "snq" => Ok(LossyRing::Snq),
        "msi" => Ok(LossyRing::Msi),
        _ => Err("expected velo, rma, snq or msi".into()),
    }
}

/// Parses a number, decimal or hexadecimal with prefix 0x.
fn any_number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|e| format!("{text}: {e}"))
}

fn assignment(text: &str) -> Result<(u32, u64), String> {
    let (offset, value) = text.split_once('=').ok_or("expected OFFSET=VALUE")?;
    let offset = any_number(offset)?;
    let offset = u32::try_from(offset).map_err(|e| e.to_string())?;
    Ok((offset, any_number(value)?))
}

fn some_unless_zero(n: u32) -> Option<u32> {
    (n > 0).then_some(n)
}

/// Runs `lab fault`.
pub fn fault(paths: &Paths, name: &str, verb: FaultVerb) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let dir = cluster.dir();
    needs_node(&cluster, &verb)?;
    let nic = |node: &str, nic: usize| nic_of(&cluster, node, nic);
    let call = |request: Request| -> Result<()> { emu::connect(dir)?.call(&request).map(drop) };
    let power = |nic: usize, on: bool| call(Request::Power { nic, on });
    let inject = |nic: usize, fault: Fault| emu::inject(dir, nic, &fault);
    let knobs = |link: &[String], corrupt_rate, loss_rate, latency_ns, bytes_per_second| {
        let link = link_of(&cluster, link)?;
        call(Request::Knobs {
            link,
            latency_ns,
            bytes_per_second,
            corrupt_rate,
            loss_rate,
        })
    };
    match verb {
        FaultVerb::LinkDown { link, hold } => {
            let policy = Some(if hold {
                DownPolicy::Hold
            } else {
                DownPolicy::Drop
            });
            call(Request::Link {
                link: link_of(&cluster, &link)?,
                up: false,
                policy,
            })
        }
        FaultVerb::LinkUp { link } => call(Request::Link {
            link: link_of(&cluster, &link)?,
            up: true,
            policy: None,
        }),
        FaultVerb::Flap {
            link,
            down_ms,
            up_ms,
            count,
            drop,
        } => {
            let policy = Some(if drop {
                DownPolicy::Drop
            } else {
                DownPolicy::Hold
            });
            call(Request::Flap {
                link: link_of(&cluster, &link)?,
                down_ms,
                up_ms,
                count,
                policy,
            })
        }
        FaultVerb::Corrupt { link, rate } => knobs(&link, Some(rate), None, None, None),
        FaultVerb::Lose { link, rate } => knobs(&link, None, Some(rate), None, None),
        FaultVerb::Slow {
            link,
            latency_us,
            bytes_per_second,
        } => {
            ensure!(
                latency_us.is_some() || bytes_per_second.is_some(),
                "slow needs --latency-us or --bytes-per-second"
            );
            knobs(
                &link,
                None,
                None,
                latency_us.map(|us| us.saturating_mul(1000)),
                bytes_per_second,
            )
        }
        FaultVerb::QueueFull {
            node,
            vpid,
            rma,
            slots,
            off,
            nic: k,
        } => {
            let unit = if rma { QueueUnit::Rma } else { QueueUnit::Velo };
            inject(
                nic(&node, k)?,
                Fault::QueueFull {
                    unit,
                    vpid,
                    slots,
                    on: !off,
                },
            )
        }
        FaultVerb::Retry {
            node,
            every,
            waiting,
            nic: k,
        } => {
            let nic = nic(&node, k)?;
            if let Some(n) = every {
                inject(nic, Fault::RetryEvery(some_unless_zero(n)))?;
            }
            match waiting.as_deref() {
                None => Ok(()),
                Some("off") => inject(nic, Fault::RetryWaiting(None)),
                Some(n) => {
                    let n = n.parse().context("--waiting: expected a number or 'off'")?;
                    inject(nic, Fault::RetryWaiting(Some(n)))
                }
            }
        }
        FaultVerb::Stuck { node, off, nic: k } => inject(nic(&node, k)?, Fault::Stuck(!off)),
        FaultVerb::Deaf { node, off, nic: k } => inject(nic(&node, k)?, Fault::Deaf(!off)),
        FaultVerb::DmaFault {
            node,
            every,
            ring,
            vpid,
            slot,
            count,
            nic: k,
        } => {
            let fault = match ring {
                Some(ring) => Fault::LoseWrite(LoseWrite {
                    ring,
                    vpid,
                    slot,
                    count,
                }),
                None => Fault::DmaEvery(every.and_then(some_unless_zero)),
            };
            inject(nic(&node, k)?, fault)
        }
        FaultVerb::AtuFault(e) => inject(
            nic(&e.node, e.nic)?,
            Fault::AtuEvery(some_unless_zero(e.every)),
        ),
        FaultVerb::AtuDelay { node, ms, nic: k } => {
            let ns = ms.checked_mul(1_000_000).context("--ms is too large")?;
            inject(nic(&node, k)?, Fault::AtuDelay((ns > 0).then_some(ns)))
        }
        FaultVerb::AtuLose(e) => inject(
            nic(&e.node, e.nic)?,
            Fault::AtuLoseEvery(some_unless_zero(e.every)),
        ),
        FaultVerb::LoseInner(e) => inject(
            nic(&e.node, e.nic)?,
            Fault::LoseInner(some_unless_zero(e.every)),
        ),
        FaultVerb::Freeze { node, nic: k } => call(Request::Freeze {
            nic: nic(&node, k)?,
            on: true,
        }),
        FaultVerb::Thaw { node, nic: k } => call(Request::Freeze {
            nic: nic(&node, k)?,
            on: false,
        }),
        FaultVerb::PowerOff { node } => match cluster.spec().accelerator(&node)? {
            Some(nic) => power(nic, false),
            None => cluster.power_off(parse_node(&node)?),
        },
        FaultVerb::PowerOn { node } => match cluster.spec().accelerator(&node)? {
            Some(nic) => power(nic, true),
            None => cluster.power_on(parse_node(&node)?, &mut lab::ui::Shown::default()),
        },
        FaultVerb::NicOff { node, nic: k } => power(nic(&node, k)?, false),
        FaultVerb::NicOn { node, nic: k } => power(nic(&node, k)?, true),
        FaultVerb::Pci {
            node,
            fields,
            nic: k,
        } => {
            let fields =
                serde_json::from_str(&fields).context("the fields are not a JSON object")?;
            call(Request::Pci {
                nic: nic(&node, k)?,
                fields,
            })
        }
        FaultVerb::Forge {
            node,
            packets,
            count,
            nic: k,
        } => {
            let nic = nic(&node, k)?;
            let requests = packets
                .iter()
                .map(|text| {
                    let packet = serde_json::from_str(text)
                        .with_context(|| format!("not a packet for `forge`: {text}"))?;
                    Ok(Request::Forge { nic, packet })
                })
                .collect::<Result<Vec<_>>>()?;
            let mut client = emu::connect(dir)?;
            for _ in 0..count {
                for request in &requests {
                    client.call(request)?;
                }
            }
            Ok(())
        }
        FaultVerb::Event {
            node,
            event,
            set,
            nic: k,
        } => call(Request::Event {
            nic: nic(&node, k)?,
            event,
            registers: set,
        }),
        FaultVerb::Seed { seed } => call(Request::Seed { seed }),
        FaultVerb::Clear => call(Request::EndFaults),
    }?;
    Ok(0)
}

/// Action that `lab trace` performs on the trace.
#[derive(Subcommand)]
pub enum TraceVerb {
    /// Record register accesses, packets, DMA and faults from now on
    On,
    /// Stop recording
    Off,
    /// Print the recorded trace
    Print {
        /// Options of `extoll-emu trace print`, for instance --kind hop --nic 0
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
}

/// Runs `lab trace`.
pub fn trace(paths: &Paths, name: &str, verb: TraceVerb) -> Result<u8> {
    let cluster = Cluster::attach(paths, name)?;
    let path = emu::trace_file(cluster.dir());
    let mut client = emu::connect(cluster.dir())?;
    match verb {
        TraceVerb::On => {
            let path = path
                .to_str()
                .context("the lab's path is not UTF-8")?
                .to_owned();
            client.call(&Request::TraceStart { path })?;
        }
        TraceVerb::Off => drop(client.call(&Request::TraceStop)?),
        TraceVerb::Print { options } => {
            if client.status()?.tracing {
                client.call(&Request::TraceFlush)?;
            }
            ensure!(
                path.exists(),
                "there is no trace; ./lab trace --name {name} on starts one"
            );
            let status = std::process::Command::new(paths.bin.join("extoll-emu"))
                .args(["trace", "print"])
                .args(options)
                .arg(&path)
                .status()?;
            return Ok(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1));
        }
    }
    Ok(0)
}

/// Counters of a NIC that `top` shows as rates: heading, path, divisor.
const RATES: &[(&str, &str, f64)] = &[
    ("VELO tx/s", "velo.sent", 1.0),
    ("VELO rx/s", "velo.received", 1.0),
    ("RMA put MB/s", "rma.put_bytes", 1e6),
    ("RMA get MB/s", "rma.get_bytes", 1e6),
    ("packets tx/s", "packets_sent", 1.0),
    ("packets rx/s", "packets_received", 1.0),
    ("MMIO wr/s", "mmio_writes", 1.0),
    ("MMIO rd/s", "mmio_reads", 1.0),
    ("irq/s", "interrupts", 1.0),
];

fn number(rate: f64) -> String {
    match rate {
        0.0 => "-".into(),
        r if r < 10.0 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// Returns the text that `top` shows: rates of NICs and links between two readings of the counters.
fn screen(cluster: &Cluster, before: &Counters, now: &Counters, paint: Paint) -> String {
    let seconds = (now.uptime_ns.saturating_sub(before.uptime_ns) as f64 / 1e9).max(1e-3);
    let rate = |a: u64, b: u64, unit: f64| number(b.saturating_sub(a) as f64 / seconds / unit);
    let mut rows = vec![std::iter::once("NIC")
        .chain(RATES.iter().map(|r| r.0))
        .map(|h| paint.dim(h))
        .collect::<Vec<_>>()];
    for (a, b) in before.nics.iter().zip(&now.nics) {
        let mut row = vec![paint.cyan(&cluster.spec().nic_name(b.nic))];
        row.extend(
            RATES
                .iter()
                .map(|(_, path, unit)| match (a.chip(path), b.chip(path)) {
                    (Some(a), Some(b)) => rate(a, b, *unit),
                    _ => "?".into(),
                }),
        );
        rows.push(row);
    }
    let mut out = table(&rows);
    let heads = [
        "LINK",
        "STATE",
        "packets/s",
        "MB/s",
        "repaired/s",
        "dropped",
        "queued bytes",
    ];
    let mut rows = vec![heads.iter().map(|h| paint.dim(h)).collect::<Vec<_>>()];
    for (a, b) in before.links.iter().zip(&now.links) {
        let state = match (b.up, b.live) {
            (_, true) => paint.green("up"),
            (true, false) => paint.yellow("not enabled"),
            (false, _) => paint.red("cut"),
        };
        let both = |l: &extoll_emulator_api::network::LinkInfo,
                    f: fn(&extoll_emulator_api::link::LinkStats) -> u64| {
            f(&l.forward) + f(&l.backward)
        };
        rows.push(vec![
            paint.cyan(&format!("{} - {}", b.ends.0, b.ends.1)),
            state,
            rate(both(a, |s| s.packets), both(b, |s| s.packets), 1.0),
            rate(both(a, |s| s.bytes), both(b, |s| s.bytes), 1e6),
            rate(
                both(a, |s| s.corrupted + s.lost),
                both(b, |s| s.corrupted + s.lost),
                1.0,
            ),
            both(b, |s| s.dropped_down + s.dropped_full).to_string(),
            both(b, |s| s.queued_bytes).to_string(),
        ]);
    }
    out.push('\n');
    out + &table(&rows)
}

/// Runs `lab top`.
pub fn top(paths: &Paths, name: &str, interval: f64, count: Option<u64>) -> Result<u8> {
    let interval = Duration::try_from_secs_f64(interval)
        .context("--interval: not a number of seconds")?
        .max(Duration::from_millis(100));
    let cluster = Cluster::attach(paths, name)?;
    let mut client = emu::connect(cluster.dir())?;
    let live = std::io::stdout().is_terminal();
    let paint = Paint::stdout();
    let mut before = client.counters()?;
    let mut shown = 0;
    while count.is_none_or(|c| shown < c) {
        let next = Instant::now() + interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = client.counters()?;
        let text = screen(&cluster, &before, &now, paint);
        let mut out = std::io::stdout().lock();
        if live {
            // Moves the cursor home, erases the remainder of each line behind its text, then all
            // lines below.
            let lines = text.replace('\n', "\x1b[K\n");
            write!(
                out,
                "\x1b[H\x1b[2J{}  {}\n\n{lines}\x1b[J",
                paint.bold(&format!("lab '{name}'")),
                paint.dim("(Ctrl-C ends)")
            )?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()?;
        before = now;
        shown += 1;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extoll_emulator_api::control::NicCounters;

    #[test]
    fn registers_are_set_by_offset() {
        assert_eq!(assignment("0x8028=3"), Ok((0x8028, 3)));
        assert_eq!(assignment("8=0xff"), Ok((8, 255)));
        for bad in ["8", "8=x", "=1", "0x100000000=1"] {
            assert!(assignment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_counter_that_is_shown_exists() {
        let counters = NicCounters {
            nic: 0,
            chip: serde_json::to_value(extoll_emulator_api::counters::Counters::default()).unwrap(),
            host: Default::default(),
            timing: Default::default(),
            network: Default::default(),
            in_flight_bytes: 0,
            waiting_bytes: 0,
        };
        for (_, path, _) in RATES {
            assert_eq!(counters.chip(path), Some(0), "{path}");
        }
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(number(0.0), "-");
        assert_eq!(number(3.26), "3.3");
        assert_eq!(number(12345.6), "12346");
    }
}
