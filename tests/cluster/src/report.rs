//! Output of a run: one line per scenario, a record of its times, and the saved logs of failures.

use crate::cluster::{self, Lab};
use crate::scenario::Scenario;
use anyhow::Context;
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of journal lines printed for a scenario that did not finish.
const LAST_ACTIONS: usize = 5;

/// Verdict on a scenario.
#[derive(Debug)]
pub enum Verdict {
    /// Passed.
    Passed,
    /// Failed for this reason.
    Failed(String),
    /// Failed for this reason. The scenario will be repeated.
    Again(String),
    /// Failed at first, but passed when it was repeated alone.
    Flaky(String),
    /// Interrupted by the end of the run.
    Cut,
}

impl Verdict {
    /// Returns the word that records use.
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed(_) => "failed",
            Self::Again(_) => "again",
            Self::Flaky(_) => "flaky",
            Self::Cut => "cut",
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            Self::Failed(why) | Self::Again(why) | Self::Flaky(why) => Some(why),
            Self::Passed | Self::Cut => None,
        }
    }
}

/// Cost and circumstances of one attempt.
#[derive(Debug, Default, Clone)]
pub struct Cost {
    /// Duration in seconds, including the boot of the cluster.
    pub seconds: f64,
    /// Seconds of `seconds` spent on the boot.
    pub boot_seconds: f64,
    /// CPU time of QEMU and the emulator in seconds.
    pub cpu_seconds: f64,
    /// Number of kernels booted.
    pub boots: usize,
    /// Findings of the emulator, expected or not.
    pub findings: BTreeMap<&'static str, u64>,
    /// Percentage of CPU time that the hypervisor below this computer took away.
    pub steal_pct: f64,
    /// Load average of the last minute.
    pub load1: f64,
}

/// Settings that all results of one run share. Runs with equal keys test the same thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Key {
    /// Commit under test; empty if the work tree has uncommitted changes.
    pub commit: String,
    /// Kernel of the nodes: `stock` or `debug`.
    pub kernel: &'static str,
    /// Environment variables of [`VARIABLES`] that are set.
    pub variables: BTreeMap<&'static str, String>,
}

/// Environment variables that influence the results of scenarios (docs/testing.md).
pub const VARIABLES: &[&str] = &[
    "SEED",
    "LAB_VARIANT",
    "LAB_SLOW",
    "LAB_CPUS",
    "LAB_NIC_OPTIONS",
    "LAB_TIMING",
    "FULL",
    "MATRIX",
    "FUZZ_SEED",
    "FUZZ_SECONDS",
];

impl Key {
    fn of(&self) -> Value {
        json!({ "commit": self.commit, "kernel": self.kernel, "variables": self.variables })
    }

    /// Returns the command that repeats a scenario.
    fn command(&self, name: &str) -> String {
        let target = match self.kernel {
            "debug" => "check-debug",
            _ => "check",
        };
        let mut words = vec![format!("make {target} T=vm::{name}")];
        words.extend(
            self.variables
                .iter()
                .map(|(v, value)| format!("{v}={value}")),
        );
        words.join(" ")
    }

    /// Returns the names of the scenarios whose last record with this key in `history` is a pass.
    pub fn passed(&self, history: &str) -> BTreeSet<String> {
        let mut passed = BTreeSet::new();
        if self.commit.is_empty() {
            return passed;
        }
        let key = self.of();
        let Some(key) = key.as_object() else {
            return passed;
        };
        for line in history.lines() {
            let Ok(record) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            let is_same = key.iter().all(|(k, v)| record.get(k) == Some(v));
            let Some(name) = record["name"].as_str().filter(|_| is_same) else {
                continue;
            };
            match record["result"].as_str() {
                Some("ok") if record["attempt"] == 1 => {
                    passed.insert(name.to_owned());
                }
                Some("again" | "failed" | "flaky") => {
                    passed.remove(name);
                }
                _ => {}
            }
        }
        passed
    }
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    /// Names of flaky scenarios; they are counted in `passed` too.
    flaky: Vec<String>,
    /// Failures after the last scenario of a cluster, which belong to no scenario.
    afterwards: usize,
}

/// Report of a run.
pub struct Report {
    files: Vec<Mutex<std::fs::File>>,
    key: Key,
    keep: PathBuf,
    counts: Mutex<Counts>,
}

impl Report {
    /// Creates a report that appends a record of each attempt to `files` and saves logs of failures
    /// in the directory `keep`.
    pub fn new(files: &[&Path], key: Key, keep: &Path) -> anyhow::Result<Self> {
        let open = |p: &&Path| {
            let file = std::fs::File::options().create(true).append(true).open(p);
            file.with_context(|| p.display().to_string())
                .map(Mutex::new)
        };
        Ok(Self {
            files: files.iter().map(open).collect::<anyhow::Result<_>>()?,
            key,
            keep: keep.to_owned(),
            counts: Mutex::default(),
        })
    }

    /// Returns the directory for the logs of a failed scenario.
    pub fn place(&self, name: &str) -> PathBuf {
        self.keep.join(name.replace("::", "."))
    }

    /// Saves the lab's directory and the journal of a failed scenario. Returns lines that name the
    /// directory.
    pub fn preserve(&self, name: &str, lab_name: &str, lab: Option<&Lab>) -> String {
        let mut place = self.place(name);
        // A repetition must not replace the files of the first failure.
        for n in 2.. {
            if !place.exists() {
                break;
            }
            place = self.place(&format!("{name}.{n}"));
        }
        if let Some(lab) = lab {
            // Stops a running recording, so that its file is complete.
            let _ = lab.run("trace", &["off"], cluster::PATIENCE);
        }
        let mut text = match cluster::keep(lab_name, &place) {
            Ok(()) => format!("its lab's logs: {}", shown(&place)),
            Err(e) => format!("its lab's logs could not be kept: {e:#}"),
        };
        let journal = lab.map(Lab::journal).unwrap_or_default();
        if !journal.is_empty() {
            text += "\nwhat it did last:";
            for line in &journal[journal.len().saturating_sub(LAST_ACTIONS)..] {
                text += &format!("\n    {line}");
            }
            if let Err(e) = std::fs::write(place.join("journal.txt"), journal.join("\n") + "\n") {
                text += &format!("\n(the journal could not be written: {e})");
            }
        }
        text
    }

    /// Prints and records the end of an attempt. Counts it unless the scenario will be repeated.
    pub fn end(&self, scenario: &Scenario, attempt: usize, verdict: &Verdict, cost: &Cost) {
        let name = scenario.name;
        let took = format!("{:.0} s, cpu {:.0} s", cost.seconds, cost.cpu_seconds);
        match verdict {
            Verdict::Passed => println!("ok      vm::{name} ({took})"),
            Verdict::Cut => println!("cut     vm::{name} ({took})"),
            Verdict::Again(why) => println!("again   vm::{name} ({took}): {why}"),
            // The final verdict contains the failures of repetitions.
            Verdict::Failed(why) if attempt == 1 => {
                println!("FAILED  vm::{name} ({took}): {why}");
                println!("to repeat it: {}", self.key.command(name));
            }
            Verdict::Failed(_) | Verdict::Flaky(_) => {}
        }
        if attempt == 1 {
            self.count(name, verdict);
        }
        let mut line = json!({
            "name": format!("vm::{name}"), "seconds": tenths(cost.seconds), "cpu_seconds": tenths(cost.cpu_seconds),
            "boots": cost.boots, "boot_seconds": tenths(cost.boot_seconds), "result": verdict.word(), "attempt": attempt,
            "cluster": scenario.spec.describe(), "findings": cost.findings, "steal_pct": tenths(cost.steal_pct),
            "load1": tenths(cost.load1), "end": now(),
        });
        if let Some(why) = verdict.why().and_then(|w| w.lines().next()) {
            line["why"] = why.into();
        }
        self.record(line);
    }

    /// Prints, records and counts the verdict after the repetitions of a scenario.
    pub fn verdict(&self, name: &str, verdict: &Verdict) {
        self.tell(name, verdict);
        println!("to repeat it: {}", self.key.command(name));
        self.record(json!({ "name": format!("vm::{name}"), "result": verdict.word(), "attempt": 0, "end": now() }));
    }

    fn tell(&self, name: &str, verdict: &Verdict) {
        let why = verdict.why().unwrap_or_default();
        let word = match verdict {
            Verdict::Flaky(_) => "FLAKY",
            _ => "FAILED",
        };
        println!("{word:<7} vm::{name}: {why}");
        self.count(name, verdict);
    }

    fn count(&self, name: &str, verdict: &Verdict) {
        let mut counts = self.counts();
        match verdict {
            Verdict::Passed => counts.passed += 1,
            Verdict::Failed(_) => counts.failed += 1,
            Verdict::Flaky(_) => {
                counts.passed += 1;
                counts.flaky.push(name.to_owned());
            }
            Verdict::Again(_) | Verdict::Cut => {}
        }
    }

    fn record(&self, mut line: Value) {
        if let (Some(line), Value::Object(key)) = (line.as_object_mut(), self.key.of()) {
            line.extend(key);
        }
        for file in &self.files {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            // The record is written by a single call, because other runs append to the file too.
            if let Err(e) = file.write_all(format!("{line}\n").as_bytes()) {
                eprintln!("results are not recorded: {e}");
            }
        }
    }

    /// Prints and counts a failure found after the last scenario of a cluster. That scenario no
    /// longer counts as passed when a later run resumes.
    pub fn afterwards(&self, name: &str, last: &str, why: String) {
        self.counts().afterwards += 1;
        self.tell(name, &Verdict::Failed(why));
        self.record(
            json!({ "name": format!("vm::{last}"), "result": "failed", "attempt": 0, "end": now() }),
        );
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints the last line. Returns true if all chosen scenarios ran and every verdict is good.
    pub fn summary(&self, chosen: usize) -> bool {
        let counts = self.counts();
        let ended = counts.passed + counts.failed - counts.afterwards;
        let missing = chosen.saturating_sub(ended);
        if ended > chosen {
            println!("{chosen} scenarios were chosen, but {ended} ended");
        }
        for name in &counts.flaky {
            println!("flaky: vm::{name}");
        }
        let good = counts.failed == 0 && ended == chosen;
        let word = if good { "ok" } else { "FAILED" };
        let rest = match missing {
            0 => String::new(),
            n => format!("; {n} not run"),
        };
        println!(
            "test result: {word}. {} passed; {} failed; {} flaky{rest}",
            counts.passed,
            counts.failed,
            counts.flaky.len()
        );
        good
    }
}

/// Returns a path as users outside of the build root know it.
fn shown(path: &Path) -> String {
    let path = path.display().to_string();
    path.strip_prefix("/out/")
        .map_or(path.clone(), |p| format!("out/{p}"))
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time.map_or(0, |t| t.as_secs())
}

fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Spec;

    const X: Scenario = Scenario::new("x", Spec::pair(), |_| Ok(()));

    fn report() -> anyhow::Result<Report> {
        Report::new(&[], Key::default(), Path::new("/nowhere"))
    }

    #[test]
    fn a_run_is_good_only_if_every_scenario_has_a_result() -> anyhow::Result<()> {
        let summary = |passed: usize, chosen, more: &[Verdict]| -> anyhow::Result<bool> {
            let report = report()?;
            let end = |verdict: &Verdict| report.end(&X, 1, verdict, &Cost::default());
            (0..passed).for_each(|_| end(&Verdict::Passed));
            more.iter().for_each(end);
            Ok(report.summary(chosen))
        };
        assert!(summary(3, 3, &[])?);
        assert!(!summary(3, 4, &[])?, "one was not run");
        assert!(!summary(3, 2, &[])?, "one ended twice");
        assert!(!summary(3, 4, &[Verdict::Cut])?);
        assert!(!summary(3, 4, &[Verdict::Failed("why".into())])?);
        assert!(!summary(3, 4, &[Verdict::Again("why".into())])?);
        let report = report()?;
        report.end(&X, 1, &Verdict::Passed, &Cost::default());
        report.afterwards("no_leaks", "x", "why".into());
        assert!(!report.summary(1));
        Ok(())
    }

    #[test]
    fn repetitions_decide() -> anyhow::Result<()> {
        for (verdict, good) in [
            (Verdict::Flaky("why".into()), true),
            (Verdict::Failed("why".into()), false),
        ] {
            let report = report()?;
            report.end(&X, 1, &Verdict::Again("why".into()), &Cost::default());
            report.end(&X, 2, &Verdict::Passed, &Cost::default());
            report.verdict("x", &verdict);
            assert_eq!(report.summary(1), good);
        }
        Ok(())
    }

    #[test]
    fn commands_name_what_is_set() {
        let key = Key {
            variables: BTreeMap::from([("SEED", "7".into())]),
            ..Key::default()
        };
        assert_eq!(key.command("a::b"), "make check T=vm::a::b SEED=7");
    }

    #[test]
    fn only_what_passed_with_the_same_key_has_passed() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("journal");
        let key = Key {
            commit: "abc".into(),
            ..Key::default()
        };
        let report = Report::new(&[&file], key.clone(), Path::new("/nowhere"))?;
        report.end(&X, 1, &Verdict::Passed, &Cost::default());
        let other = Scenario { name: "y", ..X };
        report.end(&other, 1, &Verdict::Cut, &Cost::default());
        report.end(&other, 2, &Verdict::Passed, &Cost::default());
        let journal = std::fs::read_to_string(&file)?;
        assert_eq!(key.passed(&journal), BTreeSet::from(["vm::x".to_owned()]));
        let full = Key {
            variables: BTreeMap::from([("FULL", "1".into())]),
            ..key.clone()
        };
        assert!(full.passed(&journal).is_empty());
        report.afterwards("nothing_afterwards", "x", "why".into());
        let journal = std::fs::read_to_string(&file)?;
        assert!(key.passed(&journal).is_empty(), "the last result counts");
        assert!(Key::default().passed(&journal).is_empty(), "no commit");
        Ok(())
    }
}
