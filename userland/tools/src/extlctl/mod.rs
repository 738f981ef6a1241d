// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `extlctl`: the switch for programs that know nothing of AF_EXTL, and counters.

mod counters;
mod pins;

use crate::say;
use anyhow::{bail, ensure, Context, Result};
use clap::{Parser, Subcommand};
use extl_bpf::switch::{Owner, Switch, ABSENT, COMM, MOST_NAMES, NOTES, SWITCHED};
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

/// The function of the kernel that the program is attached to.
const HOOK: &str = "update_socket_protocol";
/// Number of the protocol, unless the module says otherwise (`IPPROTO_EXTL`).
const PROTOCOL: u16 = 259;
/// Index of SOCK_STREAM in the kernel's lists, which are two pointers each.
const STREAM: u64 = 16;
/// Bytes of what is noted of a switch.
const NOTE_BYTES: u32 = 8192;
/// Type of a file system of control groups.
const CGROUP2: i64 = 0x6367_7270;

/// Makes programs that know nothing of AF_EXTL use it, and shows what became of their sockets.
///
/// "enable" has the kernel run a small BPF program whenever somebody makes a socket: for stream sockets of IPv4 and IPv6 whose
/// protocol is TCP, or none, it is IPPROTO_EXTL instead. It reaches every program, statically linked ones and those in containers
/// included, from the next socket on; sockets that are there stay what they are. While the module af_extl is not loaded programs
/// get sockets of TCP. What is enabled stays so until "disable", or until the machine is booted again, whatever becomes of this
/// program; it is in /sys/fs/bpf/extl.
///
/// "enable", "disable" and "status" need root (the capabilities CAP_BPF, CAP_PERFMON, and CAP_SYSLOG to find the kernel's list of
/// protocols), a kernel with BTF and MPTCP, as Debian's is, and may need CAP_SYS_ADMIN to mount /sys/fs/bpf.
///
/// Not reached are sockets made by io_uring, by the kernel itself, and those that a program got from elsewhere. Ports can't be chosen: a
/// socket has none when it is made.
#[derive(Parser, Debug)]
#[command(name = "extlctl", version)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// JSON instead of text.
    #[arg(long, global = true)]
    json: bool,
    /// Directory that stands for / in tests.
    #[arg(long, global = true, hide = true, default_value = "/")]
    root: PathBuf,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Sockets of TCP that programs make from now on are sockets of AF_EXTL; replaces what was enabled for the same programs.
    Enable(Enable),
    /// They are sockets of TCP again.
    Disable {
        /// For the programs of this control group, as it was enabled for them.
        #[arg(long, value_name = "DIRECTORY", conflicts_with = "all")]
        cgroup: Option<PathBuf>,
        /// Everything that is enabled.
        #[arg(long)]
        all: bool,
    },
    /// What is enabled, how many sockets were switched, and whether the module is there.
    Status,
    /// Counters of the module: sockets, connections by what carries their data, reasons for TCP; with debugfs (root) those of NICs.
    Stats {
        /// Those that are 0 too.
        #[arg(short, long)]
        all: bool,
        /// Every so many seconds, what has changed.
        #[arg(short, long, value_name = "SECONDS", value_parser = crate::seconds)]
        interval: Option<Duration>,
        /// Stops after so many intervals.
        #[arg(short, long, requires = "interval")]
        count: Option<u64>,
    },
}

#[derive(clap::Args, Debug)]
struct Enable {
    /// Only for programs in this control group and those below it: a directory of cgroup2. Each may have its own choice of names.
    #[arg(long, value_name = "DIRECTORY")]
    cgroup: Option<PathBuf>,
    /// Only for programs of these names, with commas between them: the name of the thread (/proc/PID/comm), of which the kernel
    /// has 15 letters.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Not for programs of these names, with commas between them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    not: Vec<String>,
    /// Protocol number, if the module is not loaded yet and will be with another one.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    protocol: Option<u16>,
}

/// What is noted of a switch, for `status`.
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

/// A parameter of the module that is loaded.
fn parameter(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("sys/kernel/debug/af_extl/parameters")).ok()?;
    let mut lines = text.lines().filter_map(|l| l.split_once(' '));
    lines.find(|(n, _)| *n == name)?.1.parse().ok()
}

/// A name that the kernel may compare with.
fn check(names: &[String]) -> Result<()> {
    for name in names {
        ensure!(!name.is_empty(), "a program has a name");
        if name.len() >= COMM {
            let cut: String = name.chars().take(COMM - 1).collect();
            say(&format!(
                "extlctl: of {name} the kernel knows {} letters: {cut}",
                COMM - 1
            ));
        }
    }
    Ok(())
}

/// What the running kernel has, for the program.
fn look(root: &Path, protocol: u16) -> Result<(Switch, u32)> {
    let path = root.join("sys/kernel/btf/vmlinux");
    let bytes = fs::read(&path)
        .with_context(|| format!("the kernel tells nothing of its types: {}", path.display()))?;
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
        "{} does not tell where inetsw is: it wants CAP_SYSLOG, and kernel.kptr_restrict below 2",
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
        wish.only.len() + wish.not.len() <= MOST_NAMES,
        "more than {MOST_NAMES} names"
    );
    if !is_loaded(root) {
        // It comes with the first socket only for those who ask for its protocol, which the program does not while it is away.
        let loaded = std::process::Command::new("modprobe")
            .args(["-q", "af_extl"])
            .status();
        if !loaded.is_ok_and(|s| s.success()) {
            say("extlctl: af_extl can't be loaded: programs have sockets of TCP until it is");
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
    let state = sys::Array::new(NOTE_BYTES).map_err(|e| refused(e, "cannot make a BPF map"))?;
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
    ensure!(value.len() < NOTE_BYTES as usize, "names are too long");
    state.write(&value).context("cannot write to a BPF map")?;
    let program = sys::load(&switch.program()?, hook)
        .map_err(|e| refused(e, "the kernel refuses the program"))?;
    let pins = pins::directory(root)?;
    let link = sys::attach(program.as_fd())
        .map_err(|e| refused(e, &format!("cannot attach the program to {HOOK}()")))?;
    pins::replace(&pins, &scope, link.as_fd(), state.as_fd())
}

/// A failed call of bpf(2).
fn refused(e: std::io::Error, what: &str) -> anyhow::Error {
    let why = match Errno::from_io_error(&e) {
        Some(Errno::PERM) => {
            " (CAP_BPF and CAP_PERFMON are needed; kernel lockdown refuses it to all)"
        }
        _ => "",
    };
    anyhow::Error::new(e).context(format!("{what}{why}"))
}

/// A control group: its path, and a map with it.
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
    let map = sys::cgroup(file.as_fd()).map_err(|e| refused(e, "cannot make a BPF map"))?;
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
    // One that can't be removed does not keep the others.
    let failed: Vec<_> = chosen.iter().filter_map(|p| p.remove().err()).collect();
    let Some((last, others)) = failed.split_last() else {
        return Ok(());
    };
    others.iter().for_each(|e| say(&format!("extlctl: {e:#}")));
    bail!("{last:#}")
}

/// What one switch has done.
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
        let notes: Notes =
            serde_json::from_slice(&text[..end]).with_context(|| format!("notes of {name}"))?;
        // The same path may be another group by now.
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
        (false, _) => writeln!(out, "af_extl: not loaded, all programs have sockets of TCP")?,
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
                "  with protocol {used}, which is not the module's: enable it again"
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
        says("tells nothing of its types");
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
