//! A run: boots clusters one after the other, runs scenarios in them, stops scenarios that hang,
//! repeats failed ones.

use crate::cluster::{self, Defect, Lab};
use crate::evidence;
use crate::report::{Cost, Report, Verdict};
use crate::scenario::Scenario;
use anyhow::{anyhow, Context, Result};
use std::collections::BTreeMap;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum duration of a boot; longer than the lab's own limit.
const BOOT_DEADLINE: Duration = Duration::from_secs(400);
/// Time that a scenario has to finish after its lab was killed.
const GRACE: Duration = Duration::from_secs(30);
/// Time between two checks of the used CPU time and of the end of the run.
const TICK: Duration = Duration::from_secs(1);
/// Number of consecutive failed boots that end the run, because then the scenarios are not the
/// cause.
const FAILED_BOOTS: usize = 2;

/// Limits of the repetition of failed scenarios, each alone in a fresh cluster.
#[derive(Debug, Clone, Copy)]
pub struct Repeat {
    /// Number of repetitions of each failed scenario.
    pub times: usize,
    /// Maximum number of failed scenarios. If more have failed, none is repeated, because the
    /// change or the computer is broken.
    pub most: usize,
}

/// State shared by the thread that runs scenarios and the thread that waits for signals.
pub struct Run {
    scenarios: Vec<Scenario>,
    /// Prefix of the labs' names.
    prefix: String,
    repeat: Repeat,
    /// Report that receives the results.
    pub report: Report,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Reason for an early end of the run.
    stop: Option<String>,
    failed_boots: usize,
    /// Number of clusters booted; part of the next lab's name.
    clusters: usize,
}

/// Reason why a wait ended early.
enum Late {
    Deadline,
    Stopped,
}

/// Outcome of one attempt at a scenario.
enum Outcome {
    Passed,
    /// The attempt failed; `hard` marks a defect that no repetition excuses.
    Failed {
        why: String,
        hard: bool,
    },
    Cut,
}

impl Run {
    /// Creates a run that has not started.
    pub fn new(scenarios: Vec<Scenario>, prefix: &str, repeat: Repeat, report: Report) -> Self {
        Self {
            scenarios,
            prefix: prefix.into(),
            repeat,
            report,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the run. Only the first reason is kept.
    pub fn stop(&self, why: &str) {
        self.state().stop.get_or_insert_with(|| why.to_owned());
    }

    /// Returns the reason for an early end of the run.
    pub fn stopped(&self) -> Option<String> {
        self.state().stop.clone()
    }

    /// Runs all scenarios, then repeats those that failed.
    pub fn work(&self) {
        let mut held = None;
        let mut failed = Vec::new();
        for scenario in &self.scenarios {
            if self.stopped().is_some() {
                break;
            }
            let (outcome, kept) = self.attempt(scenario, 1, held.take());
            held = kept;
            if let Outcome::Failed { why, hard: false } = outcome {
                failed.push((scenario, why));
            }
        }
        self.release(held);
        let too_many = failed.len() > self.repeat.most;
        for (scenario, why) in failed {
            if self.repeat.times == 0 {
                // The failure is reported already.
            } else if too_many || self.stopped().is_some() {
                self.report.verdict(
                    scenario.name,
                    &Verdict::Failed(format!("{why}\nnot repeated")),
                );
            } else {
                self.repeat(scenario, &why);
            }
        }
    }

    /// Repeats a failed scenario and reports the verdict.
    fn repeat(&self, scenario: &Scenario, first: &str) {
        let mut outcomes = Vec::new();
        for n in 1..=self.repeat.times {
            let (outcome, held) = self.attempt(scenario, 1 + n, None);
            self.release(held);
            let is_last = matches!(outcome, Outcome::Cut | Outcome::Failed { hard: true, .. });
            outcomes.push(outcome);
            if is_last {
                break;
            }
        }
        self.report.verdict(scenario.name, &judge(first, &outcomes));
    }

    fn booted(&self, ok: bool) {
        let failed = {
            let mut state = self.state();
            state.failed_boots = if ok { 0 } else { state.failed_boots + 1 };
            state.failed_boots
        };
        if failed >= FAILED_BOOTS {
            self.stop(&format!("{failed} clusters in a row did not come up"));
        }
    }

    fn next_name(&self) -> String {
        let mut state = self.state();
        state.clusters += 1;
        format!("{}-{}", self.prefix, state.clusters - 1)
    }

    /// Runs `work` in a separate thread and measures the CPU time of the lab's processes. Kills the
    /// lab at the deadline or when the run is ended, which should end `work` with an error. A
    /// thread that still does not end is abandoned.
    fn watch<T: Send + 'static>(
        &self,
        lab: &str,
        deadline: Duration,
        used: &mut Meter,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Late> {
        let start = Instant::now();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Sending fails if the receiver has given up.
            let _ = sender.send(work());
        });
        let late = loop {
            match receiver.recv_timeout(TICK) {
                Ok(result) => {
                    used.look(lab);
                    return Ok(result);
                }
                // Panics are caught within `work`.
                Err(RecvTimeoutError::Disconnected) => break Late::Deadline,
                Err(RecvTimeoutError::Timeout) => {}
            }
            used.look(lab);
            if self.stopped().is_some() {
                break Late::Stopped;
            }
            if start.elapsed() > deadline {
                break Late::Deadline;
            }
        };
        kill(lab);
        let _ = receiver.recv_timeout(GRACE);
        Err(late)
    }

    /// Takes a cluster down after a final check of its logs, of late findings of the emulator and,
    /// on the debug kernel, of memory leaks.
    fn release(&self, held: Option<Held>) {
        let Some(held) = held else {
            return;
        };
        if self.stopped().is_some() {
            return;
        }
        let lab = &held.lab;
        let found = || -> Result<()> { evidence::found(lab, held.expects)?.1 };
        for (name, looked) in [
            ("no_leaks", lab.assert_no_leaks()),
            (
                "nothing_afterwards",
                found().and_then(|()| lab.assert_clean_log()),
            ),
        ] {
            let Err(error) = looked else {
                continue;
            };
            let kept = self.report.preserve(name, lab.name(), Some(lab));
            let why = format!(
                "after the last scenario in a cluster ({}): {error:#}\n{kept}",
                lab.spec().describe()
            );
            self.report.afterwards(name, held.last, why);
        }
    }

    /// Boots the cluster that a scenario requires.
    fn boot(
        &self,
        scenario: &Scenario,
        cost: &mut Cost,
        used: &mut Meter,
    ) -> Result<Lab, Option<Outcome>> {
        let start = Instant::now();
        let name = self.next_name();
        let (name_, spec) = (name.clone(), scenario.spec.clone());
        let deadline = cluster::as_slow(BOOT_DEADLINE);
        let up = self.watch(&name, deadline, used, move || Lab::up(&name_, &spec));
        cost.boot_seconds = start.elapsed().as_secs_f64();
        let result = match up {
            Ok(result) => result,
            Err(Late::Stopped) => {
                remove(&name);
                return Err(None);
            }
            Err(Late::Deadline) => Err(anyhow!("not up after {} s", deadline.as_secs())),
        };
        self.booted(result.is_ok());
        match result.context("the cluster did not come up") {
            Ok(lab) => {
                println!(
                    "booted  {name}: {}; {} ({:.0} s)",
                    scenario.spec.describe(),
                    lab.model(),
                    cost.boot_seconds
                );
                Ok(lab)
            }
            Err(error) => {
                let (defect, hard) = defect(&name);
                let kept = self.report.preserve(scenario.name, &name, None);
                remove(&name);
                let why = format!("{error:#}{defect}\n{kept}");
                Err(Some(Outcome::Failed { why, hard }))
            }
        }
    }

    /// Runs one scenario in the given cluster, if it fits, or in a new one. Returns the cluster if
    /// it is still usable.
    fn attempt(
        &self,
        scenario: &Scenario,
        attempt: usize,
        mut held: Option<Held>,
    ) -> (Outcome, Option<Held>) {
        let start = Instant::now();
        let machine = Machine::now();
        let mut cost = Cost::default();
        if held
            .as_ref()
            .is_some_and(|h| *h.lab.spec() != scenario.spec)
        {
            self.release(held.take());
        }
        let mut used = Meter::new(held.as_ref().map(|h| h.lab.name()));
        let boots_before = held.as_ref().map_or(0, |h| h.lab.boots());
        let before = held.as_ref().map_or(&[][..], |h| h.expects);
        let end = |outcome: &Outcome, cost: &mut Cost, used: &Meter| {
            cost.seconds = start.elapsed().as_secs_f64();
            cost.cpu_seconds = used.seconds();
            (cost.steal_pct, cost.load1) = machine.since();
            let verdict = match outcome {
                Outcome::Passed => Verdict::Passed,
                Outcome::Failed { why, hard } if *hard || self.repeat.times == 0 => {
                    Verdict::Failed(why.clone())
                }
                Outcome::Failed { why, .. } => Verdict::Again(why.clone()),
                Outcome::Cut => Verdict::Cut,
            };
            self.report.end(scenario, attempt, &verdict, cost);
        };
        let lab = match held {
            Some(h) => h.lab,
            None => match self.boot(scenario, &mut cost, &mut used) {
                Ok(lab) => Arc::new(lab),
                Err(error) => {
                    let outcome = error.unwrap_or(Outcome::Cut);
                    end(&outcome, &mut cost, &used);
                    return (outcome, None);
                }
            },
        };
        let deadline = cluster::as_slow(scenario.deadline);
        let (theirs, it) = (Arc::clone(&lab), scenario.clone());
        let result = self.watch(lab.name(), deadline, &mut used, move || {
            evidence::run(&it, &theirs, before)
        });
        cost.boots = lab.boots().saturating_sub(boots_before);
        let kept = || self.report.preserve(scenario.name, lab.name(), Some(&lab));
        let outcome = match result {
            Ok(shown) => {
                cost.findings = shown.findings.sums();
                match shown.result {
                    Ok(()) => Outcome::Passed,
                    Err(error) => Outcome::Failed {
                        why: format!("{error:#}\n{}", kept()),
                        hard: shown.hard,
                    },
                }
            }
            Err(Late::Stopped) => {
                println!("{}", kept());
                Outcome::Cut
            }
            Err(Late::Deadline) => {
                let (defect, hard) = defect(lab.name());
                let seconds = deadline.as_secs();
                Outcome::Failed {
                    why: format!("not finished after {seconds} s{defect}\n{}", kept()),
                    hard,
                }
            }
        };
        end(&outcome, &mut cost, &used);
        if matches!(outcome, Outcome::Passed) {
            let held = Held {
                lab,
                expects: scenario.expects,
                last: scenario.name,
            };
            return (outcome, Some(held));
        }
        // Dropping `lab` is not enough, because the thread of a hanging scenario still holds it.
        remove(lab.name());
        (outcome, None)
    }
}

/// Returns the verdict on a scenario whose first attempt failed. The scenario has failed if each
/// repetition failed, or if a repetition showed a defect that no repetition excuses.
fn judge(first: &str, outcomes: &[Outcome]) -> Verdict {
    let mut passed = 0;
    let mut last = "not run";
    for outcome in outcomes {
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed { why, hard: true } => {
                return Verdict::Failed(format!("{first}\nand when repeated alone: {why}"))
            }
            Outcome::Failed { why, .. } => last = why,
            Outcome::Cut => last = "the run was ended",
        }
    }
    match passed {
        0 => Verdict::Failed(format!("{first}\nand when repeated alone: {last}")),
        n => Verdict::Flaky(format!(
            "failed, then passed {n} of {} times alone: {first}",
            outcomes.len()
        )),
    }
}

/// Cluster that the next scenario may reuse.
struct Held {
    lab: Arc<Lab>,
    /// Findings that the last scenario expects; some may occur after its end.
    expects: &'static [&'static str],
    /// Name of the last scenario.
    last: &'static str,
}

/// Sum of the CPU times of the lab's processes, including those that have ended.
#[derive(Default)]
struct Meter {
    before: BTreeMap<i32, Duration>,
    last: BTreeMap<i32, Duration>,
}

impl Meter {
    fn new(lab: Option<&str>) -> Self {
        let before = lab.map(cluster::cpu_times).unwrap_or_default();
        Self {
            last: before.clone(),
            before,
        }
    }

    fn look(&mut self, lab: &str) {
        self.last.extend(cluster::cpu_times(lab));
    }

    fn seconds(&self) -> f64 {
        let old = |pid| self.before.get(pid).copied().unwrap_or_default();
        let more = self.last.iter().map(|(p, t)| t.saturating_sub(old(p)));
        more.sum::<Duration>().as_secs_f64()
    }
}

/// CPU time that the hypervisor below this computer took away.
struct Machine {
    stolen: u64,
    all: u64,
}

impl Machine {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let (stolen, all) = ticks(&stat);
        Self { stolen, all }
    }

    /// Returns the stolen time since `self` in percent and the load average of the last minute.
    fn since(&self) -> (f64, f64) {
        let now = Self::now();
        let all = now.all.saturating_sub(self.all).max(1);
        let stolen = now.stolen.saturating_sub(self.stolen);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split_whitespace().next().and_then(|l| l.parse().ok());
        (100.0 * stolen as f64 / all as f64, load.unwrap_or(0.0))
    }
}

/// Returns stolen and all ticks of the first line of `/proc/stat` (proc(5): the eighth number is
/// steal).
fn ticks(stat: &str) -> (u64, u64) {
    let words = stat.lines().next().unwrap_or("").split_whitespace();
    let numbers: Vec<u64> = words
        .skip(1)
        .take(8)
        .filter_map(|w| w.parse().ok())
        .collect();
    (numbers.get(7).copied().unwrap_or(0), numbers.iter().sum())
}

/// Returns the defect that the kernel logs of an unresponsive lab report, and true if it is more
/// than a stall.
fn defect(lab: &str) -> (String, bool) {
    match Defect::of_lab(lab) {
        Some(defect) => (format!("\n{defect}"), !defect.is_stall),
        None => (String::new(), false),
    }
}

/// Returns the names in `all` that belong to the lab or to labs that its scenarios started. The
/// names of such labs begin with the name of the lab.
fn below(all: Vec<String>, lab: &str) -> Vec<String> {
    let beside = format!("{lab}-");
    let is_one = |n: &String| n == lab || n.starts_with(&beside);
    all.into_iter().filter(is_one).collect()
}

fn kill(lab: &str) {
    for name in below(cluster::all_labs(), lab) {
        cluster::kill(&name);
    }
}

fn remove(lab: &str) {
    for name in below(cluster::all_labs(), lab) {
        cluster::remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_beside_a_lab_are_found() {
        let all = ["check-1", "check-1-emu", "check-10", "check", "check-2-int"];
        let all = all.map(String::from).to_vec();
        assert_eq!(below(all, "check-1"), ["check-1", "check-1-emu"]);
    }

    #[test]
    fn repetitions_excuse_what_is_no_defect() {
        let failed = |hard| Outcome::Failed {
            why: "why".into(),
            hard,
        };
        let is_flaky = |outcomes: &[Outcome]| matches!(judge("first", outcomes), Verdict::Flaky(_));
        assert!(is_flaky(&[Outcome::Passed]));
        assert!(is_flaky(&[failed(false), Outcome::Passed, failed(false)]));
        assert!(!is_flaky(&[failed(false)]));
        assert!(!is_flaky(&[]));
        assert!(!is_flaky(&[Outcome::Cut]));
        assert!(!is_flaky(&[Outcome::Passed, failed(true)]));
    }

    #[test]
    fn steal_is_the_eighth_number() {
        assert_eq!(ticks("cpu  1 2 3 4 5 6 7 8 100 100\ncpu0 1 1 1"), (8, 36));
        assert_eq!(ticks(""), (0, 0));
    }
}
