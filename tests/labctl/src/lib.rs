//! A running lab, driven through the crate `lab`; what only its command line can do, through that. Used by the scenarios and
//! the benchmark.
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

/// How long a command in a guest may take unless the caller says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// As [`PATIENCE`] for a command of `extoll_bench`, whose runs end by themselves after at most a minute.
const RAW_PATIENCE: Duration = Duration::from_secs(90);

/// How long a search for leaked memory may take, before the factor of the debug kernel.
const LEAK_PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks of [`Lab::until`].
const LOOK: Duration = Duration::from_millis(300);
/// It grows up to this with what a look takes.
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);

/// Lines of the journal that are kept, and characters of each.
const JOURNAL: usize = 1000;
const JOURNAL_LINE: usize = 240;

/// What a kernel says that took the wrong one of two measurements of its clock.
const WRONG_CLOCK: &str = "tsc: PIT calibration deviates from HPET";
/// How often a cluster is booted again because of that.
const MISMEASURED: usize = 2;
/// Frequency of the clock that emulated processors share with the machine, in kHz, once it is known; 0: kernels measure it.
static TSC_KHZ: AtomicU64 = AtomicU64::new(0);

/// The frequency that the steadier clock gave, from a line with [`WRONG_CLOCK`]: the last number.
fn true_khz(line: &str) -> Option<u64> {
    let word = line.split_whitespace().next_back()?;
    word.trim_end_matches('.').parse().ok()
}

/// A running cluster; dropped = taken down.
pub struct Lab {
    paths: Paths,
    cluster: Cluster,
    spec: Spec,
    start: Instant,
    /// Up to where the console log of each node has been checked.
    checked: Mutex<Vec<u64>>,
    /// What the emulator found that nobody has asked for yet.
    account: Mutex<findings::Account>,
    journal: Mutex<VecDeque<String>>,
}

/// Ends all processes of a lab at once, whatever somebody else is doing with it. Commands in its nodes end with an error.
pub fn kill(name: &str) {
    let record = lab::state::LabDir::new(&Paths::default(), name).and_then(|d| d.record());
    if let Ok(Some(record)) = record {
        if let Err(e) = lab::proc::end(&record.token, true, |_| true) {
            eprintln!("lab {name}: {e:#}");
        }
    }
}

/// Takes a lab down, if it is there, and removes its directory.
pub fn remove(name: &str) {
    if let Err(e) = Cluster::down(&Paths::default(), name) {
        eprintln!("lab {name} could not be taken down: {e:#}");
    }
}

/// Directory of a lab, with consoles, the emulator's log and a trace, if one was taken.
pub fn directory(name: &str) -> PathBuf {
    Paths::default().state.join(name)
}

/// Names of all labs of this work tree that have left something on disk.
pub fn all_labs() -> Vec<String> {
    let dirs = lab::state::LabDir::all(&Paths::default());
    dirs.into_iter().map(|d| d.name).collect()
}

/// Processor time that the processes of a lab have used until now, by process.
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

/// What a kernel died of, if it was a breakpoint that it had put into its own code itself, before its first program ran. It replaces code
/// behind such breakpoints; QEMU's translation of another processor may still have one when the kernel has forgotten it.
fn own_breakpoint(console: &str) -> Option<&str> {
    if !console.contains("Kernel panic") || console.contains("Run /init as init process") {
        return None;
    }
    let line = console.lines().find(|line| line.contains("Oops: int3:"))?;
    Some(line.trim())
}

/// A node whose kernel died so in a cluster that did not come up.
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
    /// Boots a cluster; returns when every node is usable.
    ///
    /// A kernel that stands still while it measures the frequency of its clock may take it for a thirtieth of what it is, and time goes as
    /// much too fast for it: then the cluster is booted again, and from then on kernels are told the frequency. So it is, once, if a
    /// kernel was killed by its own breakpoint before its first program ran ([`own_breakpoint`]).
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

    /// A node whose kernel did not measure its clock well, and what it said.
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

    /// What the cluster was booted with.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.cluster.dir().name
    }

    /// What repeats what its fabric does: timing, seed, and the choice of switches in full. Empty without NICs.
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

    /// What was done with the lab, with seconds since it was up.
    pub fn journal(&self) -> Vec<String> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.iter().cloned().collect()
    }

    fn client(&self, verb: &str, args: &[&str]) -> Result<Client> {
        self.note(&format!("lab {verb} {}", args.join(" ")));
        Client::start(&self.paths.bin, self.name(), verb, args)
    }

    /// Runs a `lab` verb by the command line; returns what it left, whatever its exit status.
    pub fn command(&self, verb: &str, args: &[&str], patience: Duration) -> Result<Output> {
        self.client(verb, args)?.wait(patience)
    }

    /// Runs a `lab` verb; fails unless it exits with 0.
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

    /// Instructions that a node has executed since it was switched on; its spec has to say that they are counted.
    ///
    /// # Errors
    /// When they are not.
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

    /// Runs a shell script on a node that has to succeed; returns its standard output.
    pub fn ok_for(&self, node: usize, script: &str, patience: Duration) -> Result<String> {
        self.sh_for(node, script, patience)?.succeeded(node, script)
    }

    /// [`Lab::ok_for`] with the usual patience.
    pub fn ok(&self, node: usize, script: &str) -> Result<String> {
        self.ok_for(node, script, PATIENCE)
    }

    /// [`Lab::ok`] that is not in the journal.
    fn quietly(&self, node: usize, script: &str) -> Result<String> {
        let out = Running::start(&self.node(node)?, script)?.wait(PATIENCE)?;
        out.succeeded(node, script)
    }

    /// `lab fault …`.
    pub fn fault(&self, args: &[&str]) -> Result<String> {
        if let ["power-on" | "nic-on", ..] = args {
            self.findings_before_power_on()?;
        }
        self.run("fault", args, Duration::from_secs(120))
    }

    /// State and counters of the fabric, below `fabric` as in `lab status --json`.
    pub fn status(&self) -> Result<Value> {
        let fabric = lab::emu::document(self.cluster.dir()).context("the emulator")?;
        let spec = self.cluster.spec();
        let nic = |k: usize| spec.nodes * spec.nics + k;
        let accelerators: Vec<Value> = (0..spec.accelerators)
            .map(|k| json!({ "name": format!("acc{k}"), "nic": nic(k) }))
            .collect();
        Ok(json!({ "name": self.name(), "accelerators": accelerators, "fabric": fabric }))
    }

    /// A counter of `ethtool -S exn0`.
    pub fn ethtool(&self, node: usize, counter: &str) -> Result<u64> {
        let text = self.ok(node, "ethtool -S exn0")?;
        field(&text, counter).with_context(|| format!("ethtool -S exn0 has no {counter}:\n{text}"))
    }

    /// Runs a command of `extoll_bench` (docs/bench.md) on a node that has the module loaded; returns its lines as pairs.
    pub fn raw(&self, node: usize, command: &str) -> Result<BTreeMap<String, String>> {
        Ok(pairs(&self.ok_for(
            node,
            &raw_script(command),
            RAW_PATIENCE,
        )?))
    }

    /// [`Lab::raw`] in the background.
    pub fn spawn_raw(&self, node: usize, command: &str) -> Result<Running> {
        self.spawn(node, &raw_script(command))
    }

    /// Polls `probe` until it is true; fails after `patience`, and at once when the probe fails.
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

    /// [`Lab::until`] with a probe that may fail for a while: what it asks is not there yet, or away.
    pub fn until_it_works(
        &self,
        what: &str,
        patience: Duration,
        mut probe: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        self.wait_until(what, patience, |lab| Ok(probe(lab)))
    }

    /// The outer error of the probe ends the wait, the inner one is "not yet".
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
            // Looking costs the nodes something, too: half of the time at most, while that is short.
            std::thread::sleep(begin.elapsed().clamp(LOOK, LONGEST_PAUSE));
        }
        match last {
            Some(error) => Err(error.context(format!("still not so after {patience:?}: {what}"))),
            None => bail!("still not so after {patience:?}: {what}"),
        }
    }

    /// Fails if the leak checker of a debug kernel finds memory that nobody refers to. Other kernels have none. Takes the
    /// debug kernel about a minute, so not after every scenario.
    pub fn assert_no_leaks(&self) -> Result<()> {
        if !settings::finds_leaks() {
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
}

impl Drop for Lab {
    fn drop(&mut self) {
        remove(self.name());
    }
}

/// Copies what people want to see of a lab that failed: consoles, logs, the last lines of a trace. Works for labs that are
/// gone, too, as long as their directory is there.
pub fn keep(name: &str, to: &Path) -> Result<()> {
    process::keep(&Paths::default(), &directory(name), to)
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
