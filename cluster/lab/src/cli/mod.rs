//! The command line: verbs and their options.

mod fabric;
mod interactive;
mod nodes;
mod verbs;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use extoll_emulator_api::accelerator::DeviceChoice;
use extoll_emulator_api::timing::TimingModel;
use extoll_emulator_api::topology::Topology;
use lab::{BringUp, Paths, Spec};
use std::ffi::OsString;
use std::path::PathBuf;

/// Exit status for failures of `lab` itself; commands in nodes rarely return it.
pub const FAILURE: u8 = 125;

/// Exit status after Ctrl-C, like that of a shell.
pub const INTERRUPTED: u8 = 130;

#[derive(Parser)]
#[command(
    name = "lab",
    about = "A cluster of emulated nodes on one machine",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Options that select a lab.
#[derive(Args)]
struct Which {
    /// Name of the lab
    #[arg(long, default_value = "default", value_name = "X")]
    name: String,
}

#[derive(Subcommand)]
enum Verb {
    /// Boot a cluster and wait until every node is usable
    Up(Box<Up>),
    /// End a cluster and boot it again with the same options, for instance after its emulator has
    /// died
    Restart {
        #[command(flatten)]
        which: Which,
    },
    /// End a cluster and remove its files
    Down {
        #[command(flatten)]
        which: Which,
        /// End all labs of this work tree
        #[arg(long)]
        all: bool,
    },
    /// Run a command in a node; streams, signals and exit status pass through
    Exec(Exec),
    /// Open a shell in a node
    Sh {
        #[command(flatten)]
        which: Which,
        /// Node, as 0 or node0
        node: String,
    },
    /// Copy files and directories; node paths are written node0:/path
    Cp {
        #[command(flatten)]
        which: Which,
        /// Sources, then the target
        #[arg(required = true, num_args = 2.., value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Show a node's kernel log (its console)
    Log {
        #[command(flatten)]
        which: Which,
        /// Node, as 0 or node0; "emu" for the emulator's log
        node: String,
        /// Print new lines as the log grows
        #[arg(short, long)]
        follow: bool,
        /// Print only the last N lines
        #[arg(short = 'n', long, value_name = "N")]
        lines: Option<usize>,
        /// Print only the first sign of a defect, with some lines around it; exit status 1 if there
        /// is one
        #[arg(long, conflicts_with_all = ["follow", "lines"])]
        defects: bool,
    },
    /// Show the state of a cluster
    Status {
        #[command(flatten)]
        which: Which,
        /// Print JSON for programs
        #[arg(long)]
        json: bool,
    },
    /// Inject faults into links, queues, NICs and power
    Fault {
        #[command(flatten)]
        which: Which,
        #[command(subcommand)]
        verb: fabric::FaultVerb,
    },
    /// Record and print events of the fabric
    Trace {
        #[command(flatten)]
        which: Which,
        #[command(subcommand)]
        verb: fabric::TraceVerb,
    },
    /// Show the fabric's counters live
    Top {
        #[command(flatten)]
        which: Which,
        /// Seconds between two readings
        #[arg(short, long, value_name = "S", default_value_t = 1.0)]
        interval: f64,
        /// Stop after N readings
        #[arg(short = 'n', long, value_name = "N")]
        count: Option<u64>,
    },
    /// List all labs of this work tree
    List,
    /// Restart a node's kernel
    Reboot {
        #[command(flatten)]
        which: Which,
        /// Node, as 0 or node0
        node: String,
        /// Use the reset line instead of an orderly restart
        #[arg(long)]
        hard: bool,
    },
}

/// Arguments of `lab up`.
#[derive(Args)]
struct Up {
    #[command(flatten)]
    which: Which,
    /// Number of nodes (default: number in the topology, else 2)
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// Topology of the fabric: single, pair, ring:N, mesh:AxB…, torus:AxB…, full:N, star:N, or a
    /// topology file
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// NICs per node
    #[arg(long, value_name = "K", default_value_t = 1)]
    nics: usize,
    /// NIC without a node, with this device behind it (repeatable): nvme, nvme:64M, or a test
    /// device: plain, or the name of its misbehaviour (docs/emulator.md). The NICs are named acc0,
    /// acc1, …
    #[arg(long, value_name = "KIND[:SIZE]", conflicts_with_all = ["accelerators", "accelerator_kinds"])]
    accelerator: Vec<DeviceChoice>,
    /// Number of NICs without a node that have test devices behind them
    #[arg(long, value_name = "N", default_value_t = 0)]
    accelerators: usize,
    /// Kinds of these test devices in order, separated by commas: plain, or the name of a
    /// misbehaviour (docs/emulator.md)
    #[arg(long, value_name = "KIND,…", requires = "accelerators")]
    accelerator_kinds: Option<String>,
    /// Additional PCI device of a node, emulated by QEMU (repeatable): NODE:nvme,size=64M,
    /// NODE:e1000e, NODE:edu
    #[arg(long, value_name = "NODE:MODEL")]
    device: Vec<lab::Device>,
    /// Memory per node in MiB
    #[arg(long, value_name = "MB", default_value_t = 512)]
    memory: u32,
    /// CPUs per node
    #[arg(long, value_name = "C", default_value_t = 1)]
    cpus: u32,
    /// Kernel to boot: name of a directory below the guest images
    #[arg(long, default_value = "stock")]
    kernel: String,
    /// Don't load modules
    #[arg(long)]
    no_modules: bool,
    /// Load modules, but do not set interfaces up
    #[arg(long)]
    no_net: bool,
    /// Boot nodes without NICs and start no emulator
    #[arg(long, conflicts_with_all = ["topology", "nics", "accelerators", "accelerator"])]
    no_nic: bool,
    /// Don't start sshd
    #[arg(long)]
    no_sshd: bool,
    /// Add a virtio-net pair (vio0) and an e1000e pair (e1k0) between node0 and node1
    #[arg(long)]
    bench_nics: bool,
    /// Give every node an IOMMU in strict mode: devices reach only memory that drivers have mapped
    #[arg(long)]
    iommu: bool,
    /// Give only these nodes an IOMMU (0,2)
    #[arg(long, value_delimiter = ',', requires = "iommu")]
    iommu_nodes: Vec<usize>,
    /// Give every node two NUMA nodes, with the NICs at the second one (needs an even number of
    /// CPUs)
    #[arg(long)]
    numa: bool,
    /// Timing of the fabric: at once and in order (ideal), or as late and out of order as the
    /// hardware may be (unkind) (default: LAB_TIMING, else unkind)
    #[arg(long, value_enum)]
    timing: Option<TimingModel>,
    /// Seed of the fabric's random numbers (default: LAB_SEED, else random)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Behaviour of the NIC model where the reference leaves a choice: default, auto, a number or
    /// KEY=VALUE,… (see `extoll-emu variants`; default: LAB_VARIANT, else default)
    #[arg(long, value_name = "V")]
    variant: Option<String>,
    /// Factor of the timeouts after which drivers consider a peer or NIC stalled, 1 to 100
    /// (default: LAB_SLOW, else 10)
    #[arg(long, value_name = "N")]
    slow: Option<u32>,
    /// Word for the kernel command line (repeatable)
    #[arg(long, value_name = "WORD")]
    append: Vec<String>,
    /// Argument for every QEMU (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu_arg: Vec<String>,
    /// Argument for the emulator (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    emu_arg: Vec<String>,
    /// Maximum boot time in seconds
    #[arg(long, value_name = "S")]
    timeout: Option<u64>,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

impl Up {
    fn spec(self) -> Spec {
        // The path of a topology file is relative to the user's directory. This process has another
        // working directory.
        let topology = self.topology.map(|t| {
            if !Topology::is_shorthand(&t) {
                nodes::host_path(t.as_ref()).display().to_string()
            } else {
                t
            }
        });
        let nics = if self.no_nic { 0 } else { self.nics };
        let kinds = self.accelerator_kinds;
        let kinds = kinds.map(|list| format!("--accelerator-kinds={list}"));
        let devices = self.accelerator.iter();
        let devices = devices.map(|device| format!("--accelerator={device}"));
        let emu_args = self.emu_arg.into_iter();
        let emu_args = emu_args.chain(kinds).chain(devices).collect();
        let accelerators = self.accelerators.max(self.accelerator.len());
        // `Spec::settle` reports a malformed topology.
        let size = topology
            .as_deref()
            .and_then(|t| lab::spec::topology_size(t).ok()?);
        let of_nodes = size.and_then(|s| s.checked_sub(accelerators));
        let from_topology = of_nodes
            .filter(|s| nics > 0 && s % nics == 0)
            .map(|s| s / nics);
        Spec {
            name: self.which.name,
            nodes: self.nodes.or(from_topology).unwrap_or(2),
            topology,
            nics,
            accelerators,
            devices: self.device,
            memory_mib: self.memory,
            cpus: self.cpus,
            kernel: self.kernel,
            bring_up: match (self.no_modules || self.no_nic, self.no_net) {
                (true, _) => BringUp::None,
                (false, true) => BringUp::Modules,
                (false, false) => BringUp::Net,
            },
            sshd: !self.no_sshd,
            bench_nics: self.bench_nics,
            iommu: self.iommu,
            iommu_nodes: self.iommu_nodes,
            numa: self.numa,
            timing: self.timing,
            seed: self.seed,
            variant: self.variant,
            slow: self.slow,
            append: self.append,
            qemu_args: self.qemu_arg,
            emu_args,
            boot_timeout_s: self.timeout,
            ..Spec::default()
        }
    }
}

/// Arguments of `lab exec`.
#[derive(Args)]
struct Exec {
    #[command(flatten)]
    which: Which,
    /// Give the command no standard input
    #[arg(short = 'n', long)]
    no_stdin: bool,
    /// Run the command on a terminal of its own
    #[arg(short, long)]
    tty: bool,
    /// Environment variable, as NAME=VALUE (repeatable)
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Working directory (default: /root)
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Seconds after which the command is ended and the exit status is 124
    #[arg(long, value_name = "S")]
    timeout: Option<f64>,
    /// Node, as 0 or node0, or "all"
    node: String,
    /// Program and arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Returns true if the error only means that the reader of standard output has closed the pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Rewrites the paths in a message to those that the user knows. This process runs in the build
/// root, where `/out` is `out/` of the work tree and a descriptor leads to the user's root
/// directory.
pub fn shown(message: &str) -> String {
    let mut text = message.to_owned();
    if let Ok(root) = std::env::var("LAB_HOST_ROOT") {
        text = text.replace(&(root + "/"), "/");
    }
    if std::env::var_os("LAB_STATE").is_some() {
        return text;
    }
    let mut out = String::new();
    for part in text.split_inclusive("/out/lab") {
        match part.strip_suffix("/out/lab") {
            // Replaces only whole paths, not the end of a longer path.
            Some(before)
                if !before.ends_with(|c: char| c.is_alphanumeric() || "._-".contains(c)) =>
            {
                out += before;
                out += "out/lab";
            }
            _ => out += part,
        }
    }
    out
}

/// Parses the command line and executes it. Returns the exit status.
pub fn run() -> Result<u8> {
    let paths = Paths::default();
    match Cli::parse().verb {
        Verb::Up(up) => verbs::up(&paths, *up),
        Verb::Restart { which } => verbs::restart(&paths, &which.name),
        Verb::Down { which, all } => verbs::down(&paths, &which.name, all),
        Verb::Exec(exec) => nodes::exec(&paths, exec),
        Verb::Sh { which, node } => interactive::shell(&paths, &which.name, &node),
        Verb::Cp { which, paths: list } => nodes::cp(&paths, &which.name, &list),
        Verb::Log {
            which,
            node,
            follow,
            lines,
            defects,
        } => match defects {
            true => nodes::defects(&paths, &which.name, &node),
            false => nodes::log(&paths, &which.name, &node, follow, lines),
        },
        Verb::Status { which, json } => verbs::status(&paths, &which.name, json),
        Verb::Fault { which, verb } => fabric::fault(&paths, &which.name, verb),
        Verb::Trace { which, verb } => fabric::trace(&paths, &which.name, verb),
        Verb::Top {
            which,
            interval,
            count,
        } => fabric::top(&paths, &which.name, interval, count),
        Verb::List => verbs::list(&paths),
        Verb::Reboot { which, node, hard } => verbs::reboot(&paths, &which.name, &node, hard),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Verb, clap::Error> {
        Cli::try_parse_from(std::iter::once("lab").chain(words.iter().copied())).map(|c| c.verb)
    }

    fn up(words: &[&str]) -> Spec {
        match parse(words) {
            Ok(Verb::Up(up)) => up.spec(),
            _ => panic!("{words:?} is no up"),
        }
    }

    #[test]
    fn the_command_is_passed_on_untouched() {
        let Ok(Verb::Exec(e)) = parse(&[
            "exec", "--name", "x", "node1", "--", "ls", "-n", "--name", "--",
        ]) else {
            panic!()
        };
        assert_eq!(
            (e.which.name.as_str(), e.node.as_str(), e.no_stdin),
            ("x", "node1", false)
        );
        assert_eq!(e.command, ["ls", "-n", "--name", "--"]);
        let Ok(Verb::Exec(e)) = parse(&["exec", "0", "uname", "-r"]) else {
            panic!()
        };
        assert_eq!(
            (e.which.name.as_str(), e.command),
            ("default", vec!["uname".into(), "-r".into()])
        );
        assert!(parse(&["exec", "0"]).is_err());
        assert!(parse(&["exec", "0", "--"]).is_err());
    }

    #[test]
    fn the_number_of_nodes_follows_from_the_topology() {
        assert_eq!(up(&["up", "--topology", "torus:2x2x2"]).nodes, 8);
        assert_eq!(up(&["up", "--topology", "ring:4", "--nics", "2"]).nodes, 2);
        assert_eq!(up(&["up"]).nodes, 2);
        let borrowed = up(&["up", "--topology", "ring:4", "--accelerators", "1"]);
        assert_eq!((borrowed.nodes, borrowed.accelerators), (3, 1));
        let named = [
            "up",
            "--accelerator",
            "nvme:8M",
            "--accelerator",
            "plain",
            "--emu-arg=-v",
        ];
        let named = up(&named);
        assert_eq!((named.nodes, named.accelerators), (2, 2));
        assert_eq!(
            named.emu_args,
            ["-v", "--accelerator=nvme:8M", "--accelerator=plain"]
        );
        assert_eq!(
            up(&["up", "--nodes", "3"])
                .settle()
                .unwrap()
                .topology
                .as_deref(),
            Some("ring:3")
        );
        let bare = up(&["up", "--no-nic"]);
        assert_eq!((bare.nics, bare.bring_up), (0, BringUp::None));
        assert_eq!(up(&["up", "--no-net"]).bring_up, BringUp::Modules);
        assert!(parse(&["up", "--no-nic", "--topology", "pair"]).is_err());
        for wrong in ["floppy", "nvme:", "nvme:9999G", "plain:1M"] {
            assert!(parse(&["up", "--accelerator", wrong]).is_err(), "{wrong}");
        }
        let both = ["up", "--accelerator", "nvme", "--accelerators", "2"];
        assert!(parse(&both).is_err());
    }

    #[test]
    fn faults_take_links_in_two_forms() {
        for words in [
            &["fault", "--name", "x", "link-down", "0", "0"][..],
            &["fault", "link-up", "0-1"],
            &["fault", "corrupt", "--rate", "0.02"],
            &["fault", "queue-full", "1", "--vpid", "254", "--off"],
            &["fault", "retry", "0", "--every", "50"],
            &["fault", "atu-fault", "1", "--every", "3"],
            &["fault", "atu-delay", "node0", "--ms", "250"],
            &["fault", "atu-lose", "0", "--every", "1"],
            &["fault", "lose-inner", "0", "--every", "3"],
            &["fault", "power-off", "node1"],
            &["trace", "print", "--kind", "hop"],
        ] {
            assert!(parse(words).is_ok(), "{words:?}");
        }
        assert!(parse(&["fault", "link-down"]).is_err());
        assert!(parse(&["fault", "explode"]).is_err());
    }

    #[test]
    fn messages_name_the_paths_of_the_user() {
        // Tests run without the wrapper, so `LAB_HOST_ROOT` is not set.
        assert_eq!(
            shown("logs are in /out/lab/x/emu.log"),
            "logs are in out/lab/x/emu.log"
        );
        assert_eq!(shown("(/out/lab)"), "(out/lab)");
        assert_eq!(shown("/home/me/out/lab/x"), "/home/me/out/lab/x");
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
