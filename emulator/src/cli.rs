//! Command line of `extoll-emu`.

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use extoll_emulator::accelerator::{DeviceChoice, DeviceKind};
use extoll_emulator::config::{nic_options, ConfigFile, Fabric, Overrides};
use extoll_emulator::control::{Client, LinkSelect, Request};
use extoll_emulator::network::routes::{Request as RouteRequest, Routes};
use extoll_emulator::network::topology::Topology;
use extoll_emulator::network::DownPolicy;
use extoll_emulator::reactor::Reactor;
use extoll_emulator::timing::TimingModel;
use extoll_emulator::trace::{print, Tracer};
use extoll_emulator::variant::{Choice, Variant, SWITCHES};
use extoll_emulator::world::{Clock, World};
use std::collections::BTreeMap;
use std::io::{BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Emulated Extoll Tourmalet NICs and their fabric.
#[derive(Parser)]
#[command(name = "extoll-emu", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a fabric until SIGTERM arrives.
    Run(RunArgs),
    /// Send a request to a running fabric and print the answer as JSON.
    Ctl {
        /// Directory of the fabric's sockets.
        #[arg(long)]
        dir: PathBuf,
        #[command(subcommand)]
        request: Ctl,
    },
    /// Print trace files.
    Trace {
        #[command(subcommand)]
        command: TraceCommand,
    },
    /// List the switches that a variant sets.
    Variants {
        /// Print variants that together contain every value of every switch. Each line is an
        /// argument of `run --variant`.
        #[arg(long)]
        covering: bool,
    },
    /// Show topologies.
    Topology {
        #[command(subcommand)]
        command: TopologyCommand,
    },
}

#[derive(Args)]
struct RunArgs {
    /// Number of hosts.
    #[arg(long)]
    nodes: Option<usize>,
    /// single, pair, ring:N, mesh:AxB…, torus:AxB…, full:N or star:N. The number of NICs must be
    /// nodes × NICs per node + accelerators.
    #[arg(long)]
    topology: Option<String>,
    /// Number of NICs per host.
    #[arg(long)]
    nics_per_node: Option<usize>,
    /// Number of NICs without a host. They have the highest indices in the topology. Each is the
    /// root port of a built-in device (default: the number of --accelerator options).
    #[arg(long)]
    accelerators: Option<usize>,
    /// Device behind the next NIC without a host. nvme (64 MiB) or nvme:SIZE is a drive, plain a
    /// test device. astray, storm, garbage, huge and gap are test devices that misbehave. The
    /// option may be repeated.
    #[arg(long, value_name = "KIND[:SIZE]")]
    accelerator: Vec<DeviceChoice>,
    /// Devices behind the NICs without a host, as a comma-separated list of kinds.
    #[arg(long, value_delimiter = ',', conflicts_with = "accelerator")]
    accelerator_kinds: Vec<DeviceKind>,
    /// Directory for the sockets nic<N>.sock and control.sock.
    #[arg(long)]
    dir: PathBuf,
    /// Configuration file (TOML or JSON); the command line overrides it.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Option of all NICs as KEY=VALUE, with a key of section `[nic]` of the file, for example
    /// atu-tlb=off. The option may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    nic_option: Vec<String>,
    /// Write a trace to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Seed of all random numbers of the run.
    #[arg(long)]
    seed: Option<u64>,
    /// ideal: no delays, and everything in order. unkind: random delays and reordering, as far as
    /// the hardware reference allows (default: as in the file, otherwise ideal).
    #[arg(long, value_enum)]
    timing: Option<TimingModel>,
    /// Behaviour where the hardware reference leaves a choice: default, auto (drawn from the seed
    /// of the run), a number (drawn from this seed), or KEY=VALUE,… with switches that `extoll-emu
    /// variants` lists.
    #[arg(long, default_value = "default")]
    variant: Choice,
}

#[derive(Subcommand)]
enum TraceCommand {
    /// Print a trace as text.
    Print {
        /// Trace file.
        file: PathBuf,
        /// Print only records of this NIC (may be repeated).
        #[arg(long)]
        nic: Vec<usize>,
        /// Print only records of this kind (may be repeated).
        #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(print::KINDS))]
        kind: Vec<String>,
        /// Print only the path of the packet with this number.
        #[arg(long)]
        packet: Option<u64>,
        /// Print only register accesses of hosts.
        #[arg(long)]
        host_only: bool,
    },
}

#[derive(Subcommand)]
enum TopologyCommand {
    /// Print nodes, links and routes.
    Show {
        /// Shorthand of a topology, or a configuration file.
        topology: String,
    },
}

fn policy(text: &str) -> Result<DownPolicy, String> {
    match text {
        "drop" => Ok(DownPolicy::Drop),
        "hold" => Ok(DownPolicy::Hold),
        _ => Err("expected drop or hold".into()),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| e.to_string())
}

fn offset(text: &str) -> Result<u32, String> {
    u32::try_from(number(text)?).map_err(|_| "too large".into())
}

/// Links are given as `all`, `NIC:PORT` (the link at this port), `nicN` (all links of a NIC) or
/// `N-M` (all links between two NICs).
#[derive(Subcommand)]
enum Ctl {
    /// Show the state of NICs, links and guests.
    Status,
    /// Show all counters.
    Counters {
        /// Show only this NIC.
        #[arg(long)]
        nic: Option<usize>,
    },
    /// Read a register.
    Peek {
        /// Index of the NIC.
        nic: usize,
        /// Byte offset of the register.
        #[arg(value_parser = offset)]
        offset: u32,
    },
    /// Write a register.
    Poke {
        /// Index of the NIC.
        nic: usize,
        /// Byte offset of the register.
        #[arg(value_parser = offset)]
        offset: u32,
        /// Value to write.
        #[arg(value_parser = number)]
        value: u64,
    },
    /// Plug cables in.
    LinkUp {
        /// Links to change.
        link: LinkSelect,
    },
    /// Unplug cables.
    LinkDown {
        /// Links to change.
        link: LinkSelect,
        /// Handling of packets while the cable is unplugged: drop or hold.
        #[arg(long, value_parser = policy)]
        policy: Option<DownPolicy>,
    },
    /// Make links go down and up repeatedly.
    Flap {
        /// Links to change.
        link: LinkSelect,
        /// Duration of each down phase in ms.
        #[arg(long, default_value_t = 100)]
        down_ms: u64,
        /// Duration of each up phase in ms.
        #[arg(long, default_value_t = 100)]
        up_ms: u64,
        /// Number of down phases.
        #[arg(long, default_value_t = 1)]
        count: u32,
        /// Handling of packets while a link is down: drop or hold (default: hold).
        #[arg(long, value_parser = policy)]
        policy: Option<DownPolicy>,
    },
    /// Set latency, bandwidth and damage rates of links.
    Knobs {
        /// Links to change.
        link: LinkSelect,
        /// Delay in ns.
        #[arg(long)]
        latency_ns: Option<u64>,
        /// Maximum payload bytes per second; 0 for no limit.
        #[arg(long)]
        bytes_per_second: Option<u64>,
        /// Probability that a transmission is damaged.
        #[arg(long)]
        corrupt_rate: Option<f64>,
        /// Probability that a transmission is lost.
        #[arg(long)]
        loss_rate: Option<f64>,
    },
    /// Freeze a NIC: it accepts no packets from the network and sends none.
    Freeze {
        /// Index of the NIC.
        nic: usize,
    },
    /// Thaw a frozen NIC.
    Thaw {
        /// Index of the NIC.
        nic: usize,
    },
    /// Switch a NIC off.
    PowerOff {
        /// Index of the NIC.
        nic: usize,
    },
    /// Switch a NIC on.
    PowerOn {
        /// Index of the NIC.
        nic: usize,
    },
    /// Reset a NIC as its host does.
    Reset {
        /// Index of the NIC.
        nic: usize,
    },
    /// Replace the faults that a NIC injects.
    Faults {
        /// Index of the NIC.
        nic: usize,
        /// Faults as JSON, for example '{"queue-full":[{"unit":"velo","vpid":254}]}'; '{}' removes
        /// all faults, including configured faults.
        faults: String,
    },
    /// End all faults. Links, link knobs and the NICs' faults return to the values in the
    /// configuration. Frozen NICs run again. Power is unchanged.
    EndFaults,
    /// Change the PCI configuration space of a NIC. The change takes effect at the next start of
    /// QEMU.
    Pci {
        /// Index of the NIC.
        nic: usize,
        /// Fields and values as JSON, for example '{"revision":66}'.
        fields: String,
    },
    /// Make the model of a NIC panic at its next access.
    Panic {
        /// Index of the NIC.
        nic: usize,
    },
    /// Restart all random number generators, as after a start with this seed.
    Seed {
        /// New seed.
        seed: u64,
    },
    /// Program all NICs as management software does.
    Setup {
        /// Route around cables that carry no packets now.
        #[arg(long)]
        avoid_dead: bool,
    },
    /// Set the network state of NICs.
    NetworkState {
        /// Network state: 0 unconfigured, 1 running, 2 stopped.
        state: u64,
        /// Set the state only of this NIC.
        #[arg(long)]
        nic: Option<usize>,
    },
    /// Change the node ID of a NIC.
    NodeId {
        /// Index of the NIC.
        nic: usize,
        /// New node ID.
        id: u16,
    },
    /// Start a trace.
    TraceStart {
        /// Path of the trace file.
        path: PathBuf,
    },
    /// Write buffered trace records to the file.
    TraceFlush,
    /// End the trace.
    TraceStop,
    /// End the emulator.
    Shutdown,
    /// Send a request that is given as JSON.
    Raw {
        /// The request.
        json: String,
    },
}

impl Ctl {
    fn request(self) -> Result<Request> {
        Ok(match self {
            Ctl::Status => Request::Status,
            Ctl::Counters { nic } => Request::Counters { nic },
            Ctl::Peek { nic, offset } => Request::Peek { nic, offset },
            Ctl::Poke { nic, offset, value } => Request::Poke { nic, offset, value },
            Ctl::LinkUp { link } => Request::Link {
                link,
                up: true,
                policy: None,
            },
            Ctl::LinkDown { link, policy } => Request::Link {
                link,
                up: false,
                policy,
            },
            Ctl::Flap {
                link,
                down_ms,
                up_ms,
                count,
                policy,
            } => Request::Flap {
                link,
                down_ms,
                up_ms,
                count,
                policy,
            },
            Ctl::Knobs {
                link,
                latency_ns,
                bytes_per_second,
                corrupt_rate,
                loss_rate,
            } => Request::Knobs {
                link,
                latency_ns,
                bytes_per_second,
                corrupt_rate,
                loss_rate,
            },
            Ctl::Freeze { nic } => Request::Freeze { nic, on: true },
            Ctl::Thaw { nic } => Request::Freeze { nic, on: false },
            Ctl::PowerOff { nic } => Request::Power { nic, on: false },
            Ctl::PowerOn { nic } => Request::Power { nic, on: true },
            Ctl::Reset { nic } => Request::Reset { nic },
            Ctl::Faults { nic, faults } => Request::Faults {
                nic,
                faults: serde_json::from_str(&faults).context("faults")?,
            },
            Ctl::EndFaults => Request::EndFaults,
            Ctl::Pci { nic, fields } => Request::Pci {
                nic,
                fields: serde_json::from_str(&fields).context("fields")?,
            },
            Ctl::Panic { nic } => Request::Panic { nic },
            Ctl::Seed { seed } => Request::Seed { seed },
            Ctl::Setup { avoid_dead } => Request::Setup { avoid_dead },
            Ctl::NetworkState { state, nic } => Request::NetworkState { nic, state },
            Ctl::NodeId { nic, id } => Request::NodeId { nic, id },
            Ctl::TraceStart { path } => {
                let path = std::path::absolute(path)?;
                Request::TraceStart {
                    path: path.to_str().context("path is not UTF-8")?.to_owned(),
                }
            }
            Ctl::TraceFlush => Request::TraceFlush,
            Ctl::TraceStop => Request::TraceStop,
            Ctl::Shutdown => Request::Shutdown,
            Ctl::Raw { json } => serde_json::from_str(&json).context("request")?,
        })
    }
}

/// Parses the command line and executes the command. If that fails, prints the reason on stderr and
/// returns exit status 1.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(args),
        Command::Ctl { dir, request } => ctl(&dir, request),
        Command::Trace {
            command:
                TraceCommand::Print {
                    file,
                    nic,
                    kind,
                    packet,
                    host_only,
                },
        } => trace_print(
            &file,
            &print::Filter {
                nics: nic,
                kinds: kind,
                packet,
                host_only,
            },
        ),
        Command::Variants { covering } => variants(covering),
        Command::Topology {
            command: TopologyCommand::Show { topology },
        } => topology_show(&topology),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The program that reads the output has closed the pipe.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("extoll-emu: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(args: RunArgs) -> Result<()> {
    let filter: Targets = std::env::var("RUST_LOG")
        .ok()
        .and_then(|f| f.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(tracing::Level::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
    let file = args
        .config
        .as_deref()
        .map(ConfigFile::read)
        .transpose()?
        .unwrap_or_default();
    let kinds = args.accelerator_kinds.iter().copied();
    let devices = args.accelerator.iter().copied();
    let devices = devices.chain(kinds.map(DeviceChoice::from)).collect();
    let overrides = Overrides {
        nodes: args.nodes,
        nics_per_node: args.nics_per_node,
        accelerators: args.accelerators,
        devices,
        topology: args.topology,
        seed: args.seed,
        timing: args.timing,
        variant: args.variant,
        nic: nic_options(&args.nic_option)?,
    };
    let fabric = Fabric::build(file, &overrides, &args.dir)?;
    raise_file_limit();
    let mut tracer = Tracer::off();
    if let Some(path) = &args.trace {
        tracer
            .start(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    tracing::info!(
        "timing {}, seed {}, variant {}",
        fabric.timing.model,
        fabric.network.seed,
        fabric.variant
    );
    let world = World::new(&fabric, Clock::real(), tracer)?;
    let mut reactor = Reactor::new(&fabric, world)?;
    let (nics, links) = (fabric.nics.len(), fabric.topology.cables.len());
    println!(
        "extoll-emu ready: {nics} NICs, {links} links, topology {}, {}",
        fabric.topology.name,
        args.dir.display()
    );
    std::io::stdout().flush()?;
    reactor.run()
}

/// Raises the soft limit of open files, because hundreds of NICs need more than the usual limit.
fn raise_file_limit() {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(
            "cannot raise the limit of open files, it stays {:?}: {e}",
            limit.current
        );
    }
}

fn ctl(dir: &Path, request: Ctl) -> Result<()> {
    let answer = Client::connect(dir)?.call(&request.request()?)?;
    if !answer.is_null() {
        writeln!(
            std::io::stdout(),
            "{}",
            serde_json::to_string_pretty(&answer)?
        )?;
    }
    Ok(())
}

fn trace_print(file: &Path, filter: &print::Filter) -> Result<()> {
    let input =
        std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    print::print(BufReader::new(input), &mut out, filter)?;
    Ok(out.flush()?)
}

fn variants(covering: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if covering {
        for variant in Variant::covering() {
            writeln!(out, "{variant}")?;
        }
        return Ok(());
    }
    for s in SWITCHES {
        writeln!(out, "{:4} {}={}", s.gap, s.key, s.values.join("|"))?;
    }
    Ok(())
}

fn topology_show(text: &str) -> Result<()> {
    let (topology, ids) = if Path::new(text).is_file() {
        let fabric = Fabric::build(
            ConfigFile::read(Path::new(text))?,
            &Overrides::default(),
            Path::new("."),
        )?;
        (fabric.topology, fabric.setup.node_ids)
    } else {
        (Topology::parse(text)?, None)
    };
    let ids = ids.unwrap_or_else(|| (0..topology.nodes as u16).collect());
    let groups = BTreeMap::new();
    let routes = Routes::compute(
        &topology,
        &RouteRequest {
            ids: &ids,
            dead: &[],
            groups: &groups,
            to_sender: false,
        },
    )?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    writeln!(
        out,
        "{}: {} NICs, {} links",
        topology.name,
        topology.nodes,
        topology.cables.len()
    )?;
    writeln!(out, "\nlinks (NIC:port)")?;
    for (a, b) in &topology.cables {
        writeln!(out, "  {a} - {b}")?;
    }
    writeln!(out, "\nroutes (links taken)")?;
    let neighbours = topology.neighbours();
    for from in 0..topology.nodes {
        for to in (0..topology.nodes).filter(|&t| t != from) {
            let mut way = format!("{from}");
            let mut at = from;
            for _ in 0..topology.nodes {
                let Some(link) = routes.first_link(at, to) else {
                    break;
                };
                let Some(end) = neighbours[at][usize::from(link)] else {
                    break;
                };
                at = end.nic;
                way.push_str(&format!(" -{link}-> {at}"));
                if at == to {
                    break;
                }
            }
            if at != to {
                way.push_str(" (no route)");
            }
            writeln!(out, "  {from} to {to}: {way}")?;
        }
    }
    Ok(out.flush()?)
}
