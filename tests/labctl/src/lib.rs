//! A running lab, driven through the `lab` command as a user would. Used by the scenarios and the benchmark.
#![forbid(unsafe_code)]

use anyhow::{bail, Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a command in a guest may take unless the caller says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// As [`PATIENCE`] for a command of `extoll_bench`, whose runs end by themselves after at most a minute.
const RAW_PATIENCE: Duration = Duration::from_secs(90);

/// Memory of a node with the debug kernel in MiB.
const DEBUG_MEMORY: &str = "2560";

/// How long a search for leaked memory may take, before the factor of the debug kernel.
const LEAK_PATIENCE: Duration = Duration::from_secs(60);

/// What a cluster looks like. Scenarios with equal specs share one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Number of nodes.
    pub nodes: usize,
    /// Further arguments of `lab up`.
    pub args: &'static [&'static str],
}

/// The kernel that the nodes boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernel {
    /// Debian's.
    #[default]
    Stock,
    /// The debug kernel: about a hundred times slower on the network, and its leak checker is asked at the end.
    Debug,
}

impl Kernel {
    /// Factor by which all patience grows.
    fn slowness(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::Debug => 6,
        }
    }

    /// Further arguments of `lab up` for a cluster that has some already.
    fn arguments(self, given: &[&str]) -> Vec<&'static str> {
        match self {
            Self::Stock => Vec::new(),
            Self::Debug => {
                let mut args = vec!["--kernel", "debug", "--timeout", "900"];
                if !given.contains(&"--memory") {
                    args.extend(["--memory", DEBUG_MEMORY]);
                }
                args
            }
        }
    }
}

static KERNEL: OnceLock<Kernel> = OnceLock::new();

/// Chooses the kernel for all clusters of this process; only the first call counts.
pub fn use_kernel(kernel: Kernel) {
    let _ = KERNEL.set(kernel);
}

fn kernel() -> Kernel {
    KERNEL.get().copied().unwrap_or_default()
}

/// What a node is given as a time for something to happen in: as much longer on a slow kernel as everything takes there.
pub fn as_slow(time: Duration) -> Duration {
    time * kernel().slowness()
}

/// How often to repeat what is done `full` times: a fifth of it on the debug kernel, where loading the modules under load takes half a
/// minute, and which sees what goes wrong the first time.
pub fn rounds(full: u32) -> u32 {
    match kernel() {
        Kernel::Stock => full,
        Kernel::Debug => full.div_ceil(5),
    }
}

/// Whether leaks are found by the kernel, so that nothing has to be repeated to see memory shrink.
pub fn finds_leaks() -> bool {
    kernel() == Kernel::Debug
}

static IOMMU: OnceLock<()> = OnceLock::new();

/// Gives all clusters of this process IOMMUs.
pub fn use_iommu() {
    let _ = IOMMU.set(());
}

/// What a finished command left.
#[derive(Debug)]
pub struct Output {
    /// Exit status; −1 if a signal ended the client.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A command that runs in the background.
pub struct Running {
    child: Child,
    what: String,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        // A read error means that the command is gone: what came so far is the output.
        let _ = from.read_to_end(&mut all);
        all
    })
}

impl Running {
    fn start(mut command: Command, what: String) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start: {what}"))?;
        let stdout = child.stdout.take().map(drain);
        let stderr = child.stderr.take().map(drain);
        Ok(Self {
            child,
            what,
            stdout,
            stderr,
        })
    }

    /// Waits for the end, at most `patience` (longer on a slow kernel); then the command is killed and an error returned.
    pub fn wait(mut self, patience: Duration) -> Result<Output> {
        let patience = patience * kernel().slowness();
        let deadline = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                bail!("not finished after {} s: {}", patience.as_secs(), self.what);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = |t: Option<JoinHandle<Vec<u8>>>| -> String {
            t.and_then(|t| t.join().ok())
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .unwrap_or_default()
        };
        Ok(Output {
            status: status.code().unwrap_or(-1),
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        })
    }

    /// Ends the command if it still runs.
    pub fn stop(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// True while the command runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// A place in the kernel log of a node.
pub struct LogMark {
    node: usize,
    text: String,
}

/// A running cluster; dropped = taken down.
pub struct Lab {
    name: String,
    spec: Spec,
}

fn lab_binary() -> std::path::PathBuf {
    let mut path = std::env::current_exe().unwrap_or_default();
    path.set_file_name("lab");
    path
}

impl Lab {
    /// Boots a cluster; returns when every node is usable.
    pub fn up(name: &str, spec: &Spec) -> Result<Self> {
        let lab = Self {
            name: name.to_string(),
            spec: spec.clone(),
        };
        let nodes = spec.nodes.to_string();
        let mut args = vec!["--nodes", nodes.as_str()];
        args.extend(spec.args);
        args.extend(kernel().arguments(spec.args));
        if IOMMU.get().is_some() && !spec.args.contains(&"--iommu") {
            args.push("--iommu");
        }
        lab.run("up", &args, Duration::from_secs(300))?;
        Ok(lab)
    }

    /// Name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the cluster was booted with.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn command(&self, verb: &str, args: &[&str]) -> (Command, String) {
        let mut command = Command::new(lab_binary());
        command.arg(verb).args(["--name", &self.name]).args(args);
        (command, format!("lab {verb} {}", args.join(" ")))
    }

    /// Runs a `lab` verb; fails unless it exits with 0.
    pub fn run(&self, verb: &str, args: &[&str], patience: Duration) -> Result<String> {
        let (command, what) = self.command(verb, args);
        let out = Running::start(command, what.clone())?.wait(patience)?;
        if out.status != 0 {
            bail!(
                "{what}: exit status {}\n{}{}",
                out.status,
                out.stdout,
                out.stderr
            );
        }
        Ok(out.stdout)
    }

    /// Starts a shell script on a node in the background.
    pub fn spawn(&self, node: usize, script: &str) -> Result<Running> {
        let node = node.to_string();
        let (command, _) = self.command("exec", &[&node, "--", "sh", "-c", script]);
        Running::start(command, format!("node{node}# {script}"))
    }

    /// Runs a shell script on a node.
    pub fn sh_for(&self, node: usize, script: &str, patience: Duration) -> Result<Output> {
        self.spawn(node, script)?.wait(patience)
    }

    /// Runs a shell script on a node that has to succeed; returns its standard output.
    pub fn ok_for(&self, node: usize, script: &str, patience: Duration) -> Result<String> {
        let out = self.sh_for(node, script, patience)?;
        if out.status != 0 {
            bail!(
                "node{node}# {script}: exit status {}\n{}{}",
                out.status,
                out.stdout,
                out.stderr
            );
        }
        Ok(out.stdout)
    }

    /// [`Lab::ok_for`] with the usual patience.
    pub fn ok(&self, node: usize, script: &str) -> Result<String> {
        self.ok_for(node, script, PATIENCE)
    }

    /// `lab fault …`.
    pub fn fault(&self, args: &[&str]) -> Result<String> {
        self.run("fault", args, Duration::from_secs(120))
    }

    /// `lab status --json`.
    pub fn status(&self) -> Result<Value> {
        let text = self.run("status", &["--json"], PATIENCE)?;
        serde_json::from_str(&text).context("lab status --json is not JSON")
    }

    /// A counter of `ethtool -S exn0`; 0 if the driver does not have it.
    pub fn ethtool(&self, node: usize, counter: &str) -> Result<u64> {
        let text = self.ok(node, "ethtool -S exn0")?;
        Ok(field(&text, counter).unwrap_or(0))
    }

    /// Runs a command of `extoll_bench` (docs/bench.md) on a node that has the module loaded; returns its lines as pairs.
    pub fn raw(&self, node: usize, command: &str) -> Result<BTreeMap<String, String>> {
        let script = format!(
            "exec 3<>/dev/extoll_bench || exit; printf %s '{command}' >&3; rc=$?; cat <&3; exit $rc"
        );
        Ok(pairs(&self.ok_for(node, &script, RAW_PATIENCE)?))
    }

    /// Polls `probe` until it is true; fails after `patience`.
    pub fn until(
        &self,
        what: &str,
        patience: Duration,
        mut probe: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let patience = patience * kernel().slowness();
        let deadline = Instant::now() + patience;
        let mut last = None;
        while Instant::now() < deadline {
            match probe(self) {
                Ok(true) => return Ok(()),
                Ok(false) => last = None,
                Err(error) => last = Some(error),
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        match last {
            Some(error) => Err(error.context(format!("still not so after {patience:?}: {what}"))),
            None => bail!("still not so after {patience:?}: {what}"),
        }
    }

    /// Marks the present end of a node's kernel log.
    pub fn log_mark(&self, node: usize) -> Result<LogMark> {
        let script =
            "m=\"mark $(cat /proc/sys/kernel/random/uuid)\"; echo \"$m\" >/dev/kmsg && echo \"$m\"";
        let text = self.ok(node, script)?.trim().to_string();
        Ok(LogMark { node, text })
    }

    /// What the kernel has logged since the mark.
    pub fn log_since(&self, mark: &LogMark) -> Result<String> {
        let log = self.ok(mark.node, "dmesg")?;
        let (_, since) = log
            .split_once(&mark.text)
            .context("the mark has left the kernel's log buffer")?;
        Ok(since.to_string())
    }

    /// Fails if the kernel of any node reported a defect since it booted.
    pub fn assert_clean_log(&self) -> Result<()> {
        self.assert_clean_log_but(&[])
    }

    /// Fails if the leak checker of a debug kernel finds memory that nobody refers to. Other kernels have none. Takes the
    /// debug kernel about a minute, so not after every scenario.
    pub fn assert_no_leaks(&self) -> Result<()> {
        if kernel() != Kernel::Debug {
            return Ok(());
        }
        // What is in use may hide in a register during one scan; what is leaked shows in every one.
        // A checker that is not there, or gave up, fails the writes.
        let script = "set -e; cd /sys/kernel/debug; for i in 1 2; do echo scan >kmemleak; sleep 3; done; cat kmemleak";
        let scans: Vec<Running> = (0..self.spec.nodes)
            .map(|node| self.spawn(node, script))
            .collect::<Result<_>>()?;
        for (node, scan) in scans.into_iter().enumerate() {
            let out = scan.wait(LEAK_PATIENCE)?;
            if out.status != 0 || !out.stdout.is_empty() {
                bail!("memory leaked on node{node}: {out:?}");
            }
        }
        Ok(())
    }

    /// [`Lab::assert_clean_log`] that spares lines which contain one of these texts.
    pub fn assert_clean_log_but(&self, expected: &[&str]) -> Result<()> {
        for node in 0..self.spec.nodes {
            let log = self.ok(node, "dmesg")?;
            if let Some(defect) = lab::logscan::first_defect(&log, expected) {
                bail!("kernel log of node{node} is not clean:\n{defect}");
            }
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.run("down", &[], Duration::from_secs(60)) {
            eprintln!("lab {} could not be taken down: {error:#}", self.name);
        }
    }
}

/// Value of the line `name: value`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(n, _)| n.trim() == name)
        .and_then(|(_, v)| v.trim().parse().ok())
}

/// Lines of the form `key value`.
pub fn pairs(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|l| l.trim().split_once(' '))
        .map(|(k, v)| (k.to_string(), v.trim().to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_pairs() {
        let all = pairs("mode irq\nrtt_ns_median 2484802\n\nerror no answer from node 1\nlonely\n");
        assert_eq!(all.len(), 3);
        assert_eq!(all["rtt_ns_median"], "2484802");
        assert_eq!(all["error"], "no answer from node 1");
    }

    #[test]
    fn fields_of_ethtool_are_read() {
        let text = "NIC statistics:\n     rx_frames: 12\n     rx_frames_eager: 7\n";
        assert_eq!(field(text, "rx_frames"), Some(12));
        assert_eq!(field(text, "rx_frames_eager"), Some(7));
        assert_eq!(field(text, "nothing"), None);
    }
}
