//! Access to a running lab through the crate `lab`, or through its command line where the crate has
//! no function. The scenarios and the benchmark use this crate.
#![forbid(unsafe_code)]

pub mod findings;
mod log;
mod process;
mod settings;
mod spec;

pub use lab::{modules, Device, Instructions, Model};
pub use log::{Defect, LogMark, WrongData};
pub use process::{Output, Running};
pub use settings::{as_slow, cpus, full, rounds, seed, use_iommu, use_kernel, use_seed, Kernel};
pub use spec::Spec;

use anyhow::{bail, Context, Result};
use lab::{Cluster, Paths};
use process::Client;
use serde_json::{json, Value};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Default maximum duration of a command in a guest.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum duration of a command of `extoll_bench`, which ends by itself within a minute.
const RAW_PATIENCE: Duration = Duration::from_secs(90);

/// Maximum duration of a search for leaked memory, before the factor of the debug kernel.
const LEAK_PATIENCE: Duration = Duration::from_secs(60);

/// Minimum time between two polls of [`Lab::until`].
const LOOK: Duration = Duration::from_millis(300);
/// Maximum time between two polls of [`Lab::until`]. The pause is as long as the poll took.
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);

/// Maximum number of journal lines, and of characters per line.
const JOURNAL: usize = 1000;
const JOURNAL_LINE: usize = 240;

/// Log line of a kernel that measured its clock twice and chose the wrong result.
const WRONG_CLOCK: &str = "tsc: PIT calibration deviates from HPET";
/// Number of times that a cluster is booted again because of [`WRONG_CLOCK`].
const MISMEASURED: usize = 2;
/// Known frequency in kHz of the clock that emulated CPUs share with the host; 0 lets kernels
/// measure it.
static TSC_KHZ: AtomicU64 = AtomicU64::new(0);

/// Returns the frequency measured with the steadier clock, the last number of a line with
/// [`WRONG_CLOCK`].
fn true_khz(line: &str) -> Option<u64> {
    let word = line.split_whitespace().next_back()?;
    word.trim_end_matches('.').parse().ok()
}

/// A running cluster. Dropping it takes the cluster down.
pub struct Lab {
    paths: Paths,
    cluster: Cluster,
    spec: Spec,
    start: Instant,
    /// For each node, the length of the console log that has been checked.
    checked: Mutex<Vec<u64>>,
    /// Findings of the emulator that have not been reported yet.
    account: Mutex<findings::Account>,
    journal: Mutex<VecDeque<String>>,
}

/// Kills all processes of a lab, even while other threads use the lab. Commands in its nodes end
/// with an error.
pub fn kill(name: &str) {
    let record = lab::state::LabDir::new(&Paths::default(), name).and_then(|d| d.record());
    if let Ok(Some(record)) = record {
        if let Err(e) = lab::proc::end(&record.token, true, |_| true) {
            eprintln!("lab {name}: {e:#}");
        }
    }
}

/// Takes a lab down, if it runs, and removes its directory.
pub fn remove(name: &str) {
    if let Err(e) = Cluster::down(&Paths::default(), name) {
        eprintln!("lab {name} could not be taken down: {e:#}");
    }
}

/// Returns the directory of a lab, with consoles, the emulator's log and the trace, if any.
pub fn directory(name: &str) -> PathBuf {
    Paths::default().state.join(name)
}

/// Returns the names of all labs of this work tree that have a directory.
pub fn all_labs() -> Vec<String> {
    let dirs = lab::state::LabDir::all(&Paths::default());
    dirs.into_iter().map(|d| d.name).collect()
}

/// Returns the CPU time used so far by each process of a lab.
pub fn cpu_times(name: &str) -> BTreeMap<i32, Duration> {
    let record = lab::state::LabDir::new(&Paths::default(), name).and_then(|d| d.record());
    let Ok(Some(record)) = record else {
        return BTreeMap::new();
    };
    lab::proc::find(&record.token)
        .into_iter()
        .filter_map(|p| Some((p.pid, process::cpu_time(p.pid)?)))
        .collect()
}

/// Returns the log line of a kernel that panicked on one of its own breakpoints before it started
/// `init`. Kernels use such breakpoints while they patch their code. QEMU's translation for another
/// CPU may still contain a breakpoint after the kernel has removed it.
fn own_breakpoint(console: &str) -> Option<&str> {
    if !console.contains("Kernel panic") || console.contains("Run /init as init process") {
        return None;
    }
    let line = console.lines().find(|line| line.contains("Oops: int3:"))?;
    Some(line.trim())
}

/// Returns the first node whose log has the line of [`own_breakpoint`], and that line. It is used
/// for clusters that did not come up.
fn broken_boot(name: &str, spec: &Spec) -> Option<(usize, String)> {
    (0..spec.nodes).find_map(|n| {
        let console = directory(name).join(format!("node{n}/console.log"));
        let console = std::fs::read(console).ok()?;
        let line = own_breakpoint(&String::from_utf8_lossy(&console))?.to_owned();
        Some((n, line))
    })
}

fn raw_script(command: &str) -> String {
    format!(
        "exec 3<>/dev/extoll_bench || exit; printf %s '{command}' >&3; rc=$?; cat <&3; exit $rc"
    )
}

impl Lab {
    /// Boots a cluster and waits until every node is usable.
    ///
    /// A kernel that stalls while it measures its clock may compute a frequency 30 times too low,
    /// so that its time runs too fast. The cluster is then booted again, and kernels are given the
    /// frequency from then on. The cluster is also booted again, once, if a kernel was killed by
    /// its own breakpoint before its first program ran ([`own_breakpoint`]).
    pub fn up(name: &str, spec: &Spec) -> Result<Self> {
        for n in 0..MISMEASURED {
            let lab = match Self::up_once(name, spec) {
                Ok(lab) => lab,
                Err(e) => {
                    let Some((node, line)) = broken_boot(name, spec).filter(|_| n == 0) else {
                        return Err(e);
                    };
                    println!("        booted again: node{node}: {line}");
                    remove(name);
                    continue;
                }
            };
            let Some((node, line)) = lab.wrong_clock() else {
                return Ok(lab);
            };
            println!("        booted again: node{node}: {line}");
            if let Some(khz) = true_khz(&line) {
                TSC_KHZ.store(khz, Relaxed);
            }
        }
        let lab = Self::up_once(name, spec)?;
        if let Some((node, line)) = lab.wrong_clock() {
            bail!("the clock of node{node} is wrong: {line}");
        }
        Ok(lab)
    }

    /// Returns a node whose kernel did not measure its clock well, with the log line.
    fn wrong_clock(&self) -> Option<(usize, String)> {
        (0..self.spec.nodes).find_map(|n| {
            let log = self.node(n).ok()?.log_since(0);
            let line = log.lines().find(|line| line.contains(WRONG_CLOCK))?;
            Some((n, line.trim().to_owned()))
        })
    }

    fn up_once(name: &str, spec: &Spec) -> Result<Self> {
        let paths = Paths::default();
        let mut composed = spec.compose(name);
        match TSC_KHZ.load(Relaxed) {
            0 => {}
            khz => composed.append.push(format!("tsc_early_khz={khz}")),
        }
        let cluster = Cluster::up(&paths, composed, &mut lab::ui::Silent)?;
        Ok(Self {
            paths,
            cluster,
            spec: spec.clone(),
            start: Instant::now(),
            checked: Mutex::new(vec![0; spec.nodes]),
            account: Mutex::default(),
            journal: Mutex::default(),
        })
    }

    /// Returns the specification of the cluster.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the name of the lab.
    pub fn name(&self) -> &str {
        &self.cluster.dir().name
    }

    /// Returns the settings that reproduce the behaviour of the fabric: timing, seed and variant.
    /// Empty without NICs.
    pub fn model(&self) -> String {
        let spec = self.cluster.spec();
        match lab::emu::document(self.cluster.dir()) {
            Ok(fabric) => {
                let word = |key: &str| match &fabric[key] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                format!(
                    "timing {}, seed {}, variant {}",
                    word("timing"),
                    word("seed"),
                    word("variant")
                )
            }
            Err(_) => spec.model(),
        }
    }

    fn node(&self, node: usize) -> Result<lab::Node> {
        self.cluster.node(node)
    }

    fn note(&self, what: &str) {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if journal.len() == JOURNAL {
            journal.pop_front();
        }
        let line = what.trim().replace('\n', "; ");
        let line: String = line.chars().take(JOURNAL_LINE).collect();
        journal.push_back(format!("{:9.3} {line}", self.start.elapsed().as_secs_f64()));
    }

    /// Returns the actions so far, with seconds since the cluster was up.
    pub fn journal(&self) -> Vec<String> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.iter().cloned().collect()
    }

    fn client(&self, verb: &str, args: &[&str]) -> Result<Client> {
        self.note(&format!("lab {verb} {}", args.join(" ")));
        Client::start(&self.paths.bin, self.name(), verb, args)
    }

    /// Runs a `lab` subcommand by the command line. Returns its output, whatever its exit status.
    pub fn command(&self, verb: &str, args: &[&str], patience: Duration) -> Result<Output> {
        self.client(verb, args)?.wait(patience)
    }

    /// Runs a `lab` subcommand. Fails unless it exits with 0.
    pub fn run(&self, verb: &str, args: &[&str], patience: Duration) -> Result<String> {
        let out = self.command(verb, args, patience)?;
        if out.status != 0 {
            bail!(
                "lab {verb} {}: exit status {}\n{}{}",
                args.join(" "),
                out.status,
                out.stdout,
                out.stderr
            );
        }
        Ok(out.stdout)
    }

    /// Returns the number of instructions that a node has executed since it was switched on.
    ///
    /// # Errors
    /// If the specification does not request the count.
    pub fn instructions(&self, node: usize) -> Result<Instructions> {
        self.node(node)?.instructions()
    }

    /// Starts a shell script on a node in the background.
    pub fn spawn(&self, node: usize, script: &str) -> Result<Running> {
        self.note(&format!("node{node}# {script}"));
        Running::start(&self.node(node)?, script)
    }

    /// Runs a shell script on a node.
    pub fn sh_for(&self, node: usize, script: &str, patience: Duration) -> Result<Output> {
        self.spawn(node, script)?.wait(patience)
    }

    /// Runs a shell script on a node, which must succeed. Returns its standard output.
    pub fn ok_for(&self, node: usize, script: &str, patience: Duration) -> Result<String> {
        self.sh_for(node, script, patience)?.succeeded(node, script)
    }

    /// Runs [`Lab::ok_for`] with the default time limit.
    pub fn ok(&self, node: usize, script: &str) -> Result<String> {
        self.ok_for(node, script, PATIENCE)
    }

    /// Runs [`Lab::ok`] without an entry in the journal.
    fn quietly(&self, node: usize, script: &str) -> Result<String> {
        let out = Running::start(&self.node(node)?, script)?.wait(PATIENCE)?;
        out.succeeded(node, script)
    }

    /// Runs `lab fault …`.
    pub fn fault(&self, args: &[&str]) -> Result<String> {
        if let ["power-on" | "nic-on", ..] = args {
            self.findings_before_power_on()?;
        }
        self.run("fault", args, Duration::from_secs(120))
    }

    /// Returns the state and counters of the fabric, below `fabric` as in `lab status --json`.
    pub fn status(&self) -> Result<Value> {
        let fabric = lab::emu::document(self.cluster.dir()).context("the emulator")?;
        let spec = self.cluster.spec();
        let nic = |k: usize| spec.nodes * spec.nics + k;
        let accelerators: Vec<Value> = (0..spec.accelerators)
            .map(|k| json!({ "name": format!("acc{k}"), "nic": nic(k) }))
            .collect();
        Ok(json!({ "name": self.name(), "accelerators": accelerators, "fabric": fabric }))
    }

    /// Returns a counter of `ethtool -S exn0`.
    pub fn ethtool(&self, node: usize, counter: &str) -> Result<u64> {
        let text = self.ok(node, "ethtool -S exn0")?;
        field(&text, counter).with_context(|| format!("ethtool -S exn0 has no {counter}:\n{text}"))
    }

    /// Runs a command of `extoll_bench` (docs/bench.md) on a node with the module loaded. Returns
    /// its lines as pairs.
    pub fn raw(&self, node: usize, command: &str) -> Result<BTreeMap<String, String>> {
        Ok(pairs(&self.ok_for(
            node,
            &raw_script(command),
            RAW_PATIENCE,
        )?))
    }

    /// Starts [`Lab::raw`] in the background.
    pub fn spawn_raw(&self, node: usize, command: &str) -> Result<Running> {
        self.spawn(node, &raw_script(command))
    }

    /// Polls `probe` until it returns true. Fails after `patience`, and at once if the probe fails.
    pub fn until(
        &self,
        what: &str,
        patience: Duration,
        mut probe: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        self.wait_until(what, patience, |lab| {
            probe(lab)
                .map(Ok)
                .with_context(|| format!("waiting for this failed: {what}"))
        })
    }

    /// Polls `probe` like [`Lab::until`]. The probe may fail for a while, because its object does
    /// not exist yet or is unreachable.
    pub fn until_it_works(
        &self,
        what: &str,
        patience: Duration,
        mut probe: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        self.wait_until(what, patience, |lab| Ok(probe(lab)))
    }

    /// Polls `probe`. Its outer error ends the wait, its inner error means "not yet".
    fn wait_until(
        &self,
        what: &str,
        patience: Duration,
        mut probe: impl FnMut(&Self) -> Result<Result<bool>>,
    ) -> Result<()> {
        self.note(&format!("until {what}"));
        let patience = as_slow(patience);
        let deadline = Instant::now() + patience;
        let mut last = None;
        while Instant::now() < deadline {
            let begin = Instant::now();
            match probe(self)? {
                Ok(true) => return Ok(()),
                Ok(false) => last = None,
                Err(error) => last = Some(error),
            }
            // Polling costs the nodes CPU time. With short polls it takes at most half of the time.
            std::thread::sleep(begin.elapsed().clamp(LOOK, LONGEST_PAUSE));
        }
        match last {
            Some(error) => Err(error.context(format!(
                "timed out after {patience:?}, still waiting until: {what}"
            ))),
            None => bail!("timed out after {patience:?}, still waiting until: {what}"),
        }
    }

    /// Fails if the leak checker of a debug kernel finds unreferenced memory. Does nothing on other
    /// kernels, which have no leak checker. The check takes about a minute, so it does not follow
    /// every scenario.
    pub fn assert_no_leaks(&self) -> Result<()> {
        if !settings::finds_leaks() {
            return Ok(());
        }
        // A pointer may be in a register during one scan, so memory counts as leaked if both scans
        // report it. The writes fail if the checker is missing or has disabled itself.
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
}

impl Drop for Lab {
    fn drop(&mut self) {
        remove(self.name());
    }
}

/// Copies the logs of a failed lab: consoles, other logs, the last lines of a trace. Works while
/// the directory of the lab exists.
pub fn keep(name: &str, to: &Path) -> Result<()> {
    process::keep(&Paths::default(), &directory(name), to)
}

/// Returns the value of the line `name: value`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(n, _)| n.trim() == name)
        .and_then(|(_, v)| v.trim().parse().ok())
}

/// Returns the lines of the form `key value` as a map.
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
    fn a_kernel_that_died_of_its_own_breakpoint_is_told_from_others() {
        let died = "[    2.8] Oops: int3: 0000 [#1] SMP NOPTI\n[    2.9] Kernel panic - not syncing: Fatal exception\n";
        assert_eq!(
            own_breakpoint(died),
            Some("[    2.8] Oops: int3: 0000 [#1] SMP NOPTI")
        );
        let ran = format!("[    2.7] Run /init as init process\n{died}");
        assert_eq!(own_breakpoint(&ran), None);
        assert_eq!(own_breakpoint(&died.replace("int3", "0000")), None);
        assert_eq!(own_breakpoint("Oops: int3: 0000\n"), None);
    }

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
