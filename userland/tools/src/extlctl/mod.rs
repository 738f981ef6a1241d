// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extlctl`: makes unchanged programs use AF_EXTL, and shows counters.

mod counters;
mod pins;

use crate::say;
use anyhow::{bail, ensure, Context, Result};
use clap::{Parser, Subcommand};
use extl_bpf::switch::{Owner, Switch, ABSENT, COMM, MAX_NAMES, NOTES, SWITCHED};
use extl_bpf::{btf::Btf, symbols, sys};
use pins::{Pinned, Scope};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Kernel function to which the BPF program is attached.
const HOOK: &str = "update_socket_protocol";
/// Default protocol number (`IPPROTO_EXTL`). The module may have been loaded with another number.
const PROTOCOL: u16 = 259;
/// Byte offset of the entry SOCK_STREAM in the kernel's lists. Each entry has two pointers.
const STREAM: u64 = 16;
/// Size of a switch's state in bytes: counters and notes.
const NOTE_BYTES: u32 = 8192;
/// Magic number of a cgroup2 file system.
const CGROUP2: i64 = 0x6367_7270;

/// Makes unchanged programs use AF_EXTL, and shows the results.
///
/// "enable" makes the kernel run a small BPF program whenever a program creates a socket. For
/// stream sockets of IPv4 and IPv6 whose protocol is TCP or 0, the BPF program replaces the
/// protocol by IPPROTO_EXTL. This applies to new sockets of all programs, including statically
/// linked programs and programs in containers. Existing sockets are not changed. While the module
/// af_extl is not loaded, programs get TCP sockets. The setting is stored in /sys/fs/bpf/extl. It
/// lasts until "disable" or until the machine is rebooted.
///
/// "enable", "disable" and "status" need root. The required capabilities are CAP_BPF and
/// CAP_PERFMON, CAP_SYSLOG to find the kernel's list of protocols, and CAP_SYS_ADMIN if /sys/fs/bpf
/// must be mounted. The kernel needs BTF and MPTCP, which Debian's kernel has.
///
/// These sockets are not affected: sockets created by io_uring or by the kernel itself, and sockets
/// that a program inherits or receives. Sockets cannot be selected by port, because a socket has no
/// port when it is created.
///
/// Example: extlctl enable --only redis-server,curl
///
/// Example: extlctl status
///
/// Example: extlctl stats --interval 1
#[derive(Parser, Debug)]
#[command(name = "extlctl", version)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// Prints JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// Directory that replaces / in tests.
    #[arg(long, global = true, hide = true, default_value = "/")]
    root: PathBuf,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Replaces TCP by AF_EXTL for sockets that programs create from now on. Overrides an earlier
    /// "enable" for the same programs.
    ///
    /// Example: extlctl enable
    ///
    /// Example: extlctl enable --cgroup /sys/fs/cgroup/system.slice --not sshd
    Enable(Enable),
    /// Ends the replacement of TCP for sockets that programs create from now on.
    ///
    /// Example: extlctl disable
    ///
    /// Example: extlctl disable --all
    Disable {
        /// Disables the replacement for the programs of this control group, as given to "enable".
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "all")]
        cgroup: Option<PathBuf>,
        /// Removes all settings of "enable".
        #[arg(long)]
        all: bool,
    },
    /// Shows the enabled settings, the number of replaced sockets, and the state of the module.
    ///
    /// Example: extlctl status
    Status,
    /// Shows counters of the module: sockets, connections by path of their data, and reasons for
    /// TCP. If debugfs is readable (root), also shows counters of the NICs.
    ///
    /// Example: extlctl stats --all
    ///
    /// Example: extlctl stats --interval 1 --count 10
    Stats {
        /// Shows all counters, including those that are 0.
        #[arg(short, long)]
        all: bool,
        /// Shows the changes of the counters at intervals of this number of seconds.
        #[arg(short, long, value_name = "SECONDS", value_parser = crate::seconds)]
        interval: Option<Duration>,
        /// Stops after this number of intervals.
        #[arg(short, long, requires = "interval")]
        count: Option<u64>,
    },
}

#[derive(clap::Args, Debug)]
struct Enable {
    /// Applies only to programs in this control group and in groups below it. The value is a
    /// directory of cgroup2. Each group may have its own selection of names.
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: Option<PathBuf>,
    /// Applies only to programs with these names, separated by commas. The kernel compares the name
    /// of the thread (/proc/PID/comm), which has at most 15 characters.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Does not apply to programs with these names, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    not: Vec<String>,
    /// Protocol number. Required only if the module is not loaded yet and will be loaded with
    /// another number than the default.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    protocol: Option<u16>,
}

/// Settings of a switch, stored for `status`.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
struct Notes {
    protocol: u16,
    cgroup: Option<PathBuf>,
    only: Vec<String>,
    not: Vec<String>,
}

/// Runs the program.
pub fn run(args: Args) -> Result<ExitCode> {
    let root = &args.root;
    match args.verb {
        Verb::Enable(wish) => enable(root, wish)?,
        Verb::Disable { cgroup, all } => {
            let scope = match &cgroup {
                Some(directory) => Scope::cgroup(directory)?,
                None => Scope::system(),
            };
            disable(root, (!all).then_some(&scope))?;
        }
        Verb::Status => status(root, args.json)?,
        Verb::Stats {
            all,
            interval,
            count,
        } => counters::run(root, all, interval, count, args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn is_loaded(root: &Path) -> bool {
    root.join("sys/module/af_extl").exists()
}

/// Returns a parameter of the loaded module.
fn parameter(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("sys/kernel/debug/af_extl/parameters")).ok()?;
    let mut lines = text.lines().filter_map(|l| l.split_once(' '));
    lines.find(|(n, _)| *n == name)?.1.parse().ok()
}

/// Checks names of programs. Prints a warning for names that the kernel truncates.
fn check(names: &[String]) -> Result<()> {
    for name in names {
        ensure!(!name.is_empty(), "a name of a program is empty");
        if name.len() >= COMM {
            let cut: String = name.chars().take(COMM - 1).collect();
            say(&format!(
                "extlctl: the kernel compares only {} characters of {name}: {cut}",
                COMM - 1
            ));
        }
    }
    Ok(())
}

/// Reads the properties of the running kernel on which the BPF program depends.
fn look(root: &Path, protocol: u16) -> Result<(Switch, u32)> {
    let path = root.join("sys/kernel/btf/vmlinux");
    let bytes = fs::read(&path).with_context(|| {
        format!(
            "the kernel provides no type information: {}",
            path.display()
        )
    })?;
    let btf = Btf::parse(&bytes).with_context(|| path.display().to_string())?;
    let hook = btf.function(HOOK)?;
    let hook = hook.with_context(|| format!("this kernel has no {HOOK}()"))?;
    let offset = |structure, member| -> Result<u32> {
        let found = btf.offset(structure, member)?;
        found.with_context(|| format!("this kernel has no {member} in struct {structure}"))
    };
    let path = root.join("proc/kallsyms");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let list = |name| symbols::variable(&text, name).map(|at| at + STREAM);
    let lists = ["inetsw", "inetsw6"].map(list);
    ensure!(
        lists[0].is_some(),
        "{} does not contain the address of inetsw: this requires CAP_SYSLOG, and kernel.kptr_restrict below 2",
        path.display()
    );
    let switch = Switch {
        protocol,
        lists,
        protocol_offset: offset("inet_protosw", "protocol")?,
        list_offset: offset("inet_protosw", "list")?,
        owner: Owner {
            ops: offset("inet_protosw", "ops")?,
            module: offset("proto_ops", "owner")?,
            state: offset("module", "state")?,
        },
        ..Switch::default()
    };
    Ok((switch, hook))
}

fn enable(root: &Path, wish: Enable) -> Result<()> {
    check(&wish.only)?;
    check(&wish.not)?;
    ensure!(
        wish.only.len() + wish.not.len() <= MAX_NAMES,
        "more than {MAX_NAMES} names of programs"
    );
    if !is_loaded(root) {
        // The kernel loads the module on demand only when a program requests its protocol. The BPF
        // program does not request the protocol while the module is not loaded.
        let loaded = std::process::Command::new("modprobe")
            .args(["-q", "af_extl"])
            .status();
        if !loaded.is_ok_and(|s| s.success()) {
            say("extlctl: af_extl can't be loaded: programs get TCP sockets until it is loaded");
        }
    }
    let loaded = parameter(root, "protocol").and_then(|n| u16::try_from(n).ok());
    let protocol = wish.protocol.or(loaded).unwrap_or(PROTOCOL);
    let (mut switch, hook) = look(root, protocol)?;
    let (scope, map, cgroup) = match &wish.cgroup {
        None => (Scope::system(), None, None),
        Some(directory) => {
            let (path, map) = group(directory)?;
            (Scope::cgroup(&path)?, Some(map), Some(path))
        }
    };
    let state = sys::Array::new(NOTE_BYTES).map_err(|e| refused(e, "cannot create a BPF map"))?;
    switch.only = wish.only;
    switch.not = wish.not;
    switch.cgroup_map = map.as_ref().map(AsRawFd::as_raw_fd);
    switch.state_map = state.as_fd().as_raw_fd();
    let notes = Notes {
        protocol,
        cgroup,
        only: switch.only.clone(),
        not: switch.not.clone(),
    };
    let mut value = vec![0; NOTES];
    value.extend(serde_json::to_vec(&notes)?);
    ensure!(
        value.len() < NOTE_BYTES as usize,
        "the names of programs are too long"
    );
    state.write(&value).context("cannot write to a BPF map")?;
    let program = sys::load(&switch.program()?, hook)
        .map_err(|e| refused(e, "the kernel rejects the BPF program"))?;
    let pins = pins::directory(root)?;
    let link = sys::attach(program.as_fd())
        .map_err(|e| refused(e, &format!("cannot attach the program to {HOOK}()")))?;
    pins::replace(&pins, &scope, link.as_fd(), state.as_fd())
}

/// Converts the error of a bpf(2) call, with a hint for missing capabilities.
fn refused(e: std::io::Error, what: &str) -> anyhow::Error {
    let why = match Errno::from_io_error(&e) {
        Some(Errno::PERM) => {
            " (requires CAP_BPF and CAP_PERFMON; kernel lockdown forbids it to all programs)"
        }
        _ => "",
    };
    anyhow::Error::new(e).context(format!("{what}{why}"))
}

/// Returns the path of a control group and a BPF map that contains it.
fn group(directory: &Path) -> Result<(PathBuf, std::os::fd::OwnedFd)> {
    let path = fs::canonicalize(directory)
        .with_context(|| format!("no control group {}", directory.display()))?;
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let kind = rustix::fs::fstatfs(&file)?.f_type;
    ensure!(
        kind as i64 == CGROUP2 && path.is_dir(),
        "{} is no directory of cgroup2",
        path.display()
    );
    let map = sys::cgroup(file.as_fd()).map_err(|e| refused(e, "cannot create a BPF map"))?;
    Ok((path, map))
}

fn disable(root: &Path, scope: Option<&Scope>) -> Result<()> {
    let pins = root.join(pins::DIRECTORY);
    let all = pins::all(&pins)?;
    let chosen: Vec<&Pinned> = all
        .iter()
        .filter(|pinned| scope.is_none_or(|scope| pinned.scope == *scope))
        .collect();
    if let (Some(scope), []) = (scope, &chosen[..]) {
        bail!("nothing is enabled for {}", scope.words());
    }
    // If one setting cannot be removed, all other settings are removed nevertheless.
    let failed: Vec<_> = chosen.iter().filter_map(|p| p.remove().err()).collect();
    let Some((last, others)) = failed.split_last() else {
        return Ok(());
    };
    others.iter().for_each(|e| say(&format!("extlctl: {e:#}")));
    bail!("{last:#}")
}

/// State of a switch, for `status`.
struct Report {
    name: String,
    notes: Notes,
    switched: u64,
    absent: u64,
    gone: bool,
}

impl Report {
    fn of(pinned: &Pinned) -> Result<Self> {
        let name = pinned.scope.words();
        let value = pinned.state().with_context(|| name.clone())?;
        let number = |at: u32| {
            let bytes = value.get(at as usize..at as usize + 8);
            let bytes: Option<[u8; 8]> = bytes.and_then(|b| b.try_into().ok());
            bytes.map(u64::from_ne_bytes)
        };
        let text = value.get(NOTES..).unwrap_or(&[]);
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        let notes: Notes = serde_json::from_slice(&text[..end])
            .with_context(|| format!("cannot parse the notes of {name}"))?;
        // The path may lead to another control group than at the time of "enable".
        let gone = match &notes.cgroup {
            Some(path) => Scope::cgroup(path).ok().as_ref() != Some(&pinned.scope),
            None => false,
        };
        Ok(Self {
            name,
            switched: number(SWITCHED).context("no counters")?,
            absent: number(ABSENT).context("no counters")?,
            notes,
            gone,
        })
    }

    fn words(&self) -> String {
        let mut all = match &self.notes.cgroup {
            Some(path) => format!("cgroup {}", path.display()),
            None => self.name.clone(),
        };
        if self.gone {
            all += " (removed)";
        }
        all += &format!(": {} sockets switched", self.switched);
        if self.absent > 0 {
            all += &format!(", {} left to TCP without the module", self.absent);
        }
        for (what, names) in [("only", &self.notes.only), ("not", &self.notes.not)] {
            if !names.is_empty() {
                all += &format!("; {what} {}", names.join(","));
            }
        }
        all
    }
}

fn status(root: &Path, as_json: bool) -> Result<()> {
    let all = pins::all(&root.join(pins::DIRECTORY))?;
    let (all, failed): (Vec<_>, Vec<_>) = all.iter().map(Report::of).partition(Result::is_ok);
    let all: Vec<Report> = all.into_iter().flatten().collect();
    for e in failed.iter().filter_map(|f| f.as_ref().err()) {
        say(&format!("extlctl: {e:#}"));
    }
    let path = fs::read_to_string(root.join("proc/sys/net/extl/data_path")).ok();
    let path = path.as_deref().map(str::trim);
    let protocol = parameter(root, "protocol");
    let mut out = std::io::stdout().lock();
    if as_json {
        let switches: Vec<_> = all
            .iter()
            .map(|r| {
                json!({
                    "cgroup": r.notes.cgroup, "removed": r.gone, "protocol": r.notes.protocol, "only": r.notes.only,
                    "not": r.notes.not, "switched": r.switched, "absent": r.absent,
                })
            })
            .collect();
        let object = json!({
            "loaded": is_loaded(root), "protocol": protocol,
            "data_path": path.map(|p| p == "1"), "switches": switches,
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    match (is_loaded(root), path) {
        (true, Some("1")) => writeln!(out, "af_extl: loaded, data may bypass TCP")?,
        (true, Some(_)) => writeln!(
            out,
            "af_extl: loaded, TCP carries all data (net.extl.data_path = 0)"
        )?,
        (true, None) => writeln!(out, "af_extl: loaded")?,
        (false, _) => writeln!(out, "af_extl: not loaded, all programs get TCP sockets")?,
    }
    if all.is_empty() {
        writeln!(out, "nothing is enabled")?;
    }
    for report in &all {
        writeln!(out, "{}", report.words())?;
        let used = u64::from(report.notes.protocol);
        if protocol.is_some_and(|p| p != used) {
            writeln!(
                out,
                "  uses protocol {used}, but the module has another number: enable it again"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_in_words() {
        let report = |cgroup: Option<&str>, absent, gone| {
            Report {
                name: "the system".into(),
                notes: Notes {
                    protocol: 259,
                    cgroup: cgroup.map(PathBuf::from),
                    only: vec![],
                    not: vec!["a".into(), "b".into()],
                },
                switched: 3,
                absent,
                gone,
            }
            .words()
        };
        assert_eq!(
            report(None, 0, false),
            "the system: 3 sockets switched; not a,b"
        );
        assert_eq!(
            report(Some("/x"), 2, true),
            "cgroup /x (removed): 3 sockets switched, 2 left to TCP without the module; not a,b"
        );
    }

    #[test]
    fn what_the_kernel_lacks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let says = |what: &str| {
            let error = format!("{:#}", look(root, 259).unwrap_err());
            assert!(error.contains(what), "{error}, not {what}");
        };
        says("provides no type information");
        fs::create_dir_all(root.join("sys/kernel/btf")).unwrap();
        fs::write(root.join("sys/kernel/btf/vmlinux"), "nothing").unwrap();
        says("not in the format of BTF");
    }

    #[test]
    fn the_module_tells_its_protocol() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(parameter(dir.path(), "protocol"), None);
        let files = dir.path().join("sys/kernel/debug/af_extl");
        fs::create_dir_all(&files).unwrap();
        fs::write(files.join("parameters"), "family 19\nprotocol 260\n").unwrap();
        assert_eq!(parameter(dir.path(), "protocol"), Some(260));
    }

    #[test]
    fn groups_are_those_of_cgroup2() {
        let dir = tempfile::tempdir().unwrap();
        let error = format!("{:#}", group(dir.path()).unwrap_err());
        assert!(error.contains("no directory of cgroup2"), "{error}");
        assert!(group(&dir.path().join("x")).is_err());
    }
}
