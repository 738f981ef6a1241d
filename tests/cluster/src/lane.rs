//! A lane: boots clusters, runs scenarios in them, and ends what does not end by itself.

use crate::cluster::{self, Lab, Spec};
use crate::evidence;
use crate::plan::{Next, Plan};
use crate::report::{Cost, Report, Verdict};
use crate::scenario::Scenario;
use anyhow::{anyhow, Context, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// More time than the labs' own limit for a boot.
const BOOT_DEADLINE: Duration = Duration::from_secs(400);
/// How long a scenario may take to notice that its lab is gone.
const GRACE: Duration = Duration::from_secs(30);
/// Time between two looks at what a scenario has used and whether the run goes on.
const TICK: Duration = Duration::from_secs(1);
/// So many boots in a row that fail end the run: what is broken then is not a scenario.
const FAILED_BOOTS: usize = 2;

/// What all lanes share.
pub struct Run {
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
    /// For each scenario the number of its specification.
    pub specs: Vec<usize>,
    /// Beginning of the labs' names.
    pub prefix: String,
    /// Where results go.
    pub report: Report,
    state: Mutex<State>,
    changed: Condvar,
    names: AtomicUsize,
}

struct State {
    plan: Plan,
    /// Why the run ends before its time.
    stop: Option<String>,
    failed_boots: usize,
    /// Boots per specification.
    boots: BTreeMap<usize, usize>,
}

/// Why something was not waited for any longer.
enum Late {
    Deadline,
    Stopped,
}

impl Run {
    /// A run that nobody has begun.
    pub fn new(
        scenarios: Vec<Scenario>,
        specs: Vec<usize>,
        lanes: usize,
        prefix: &str,
        report: Report,
    ) -> Self {
        let tests = scenarios.iter().zip(&specs).map(|(s, n)| (*n, s.load));
        let plan = Plan::new(tests.collect(), lanes);
        Self {
            scenarios,
            specs,
            prefix: prefix.into(),
            report,
            state: Mutex::new(State {
                plan,
                stop: None,
                failed_boots: 0,
                boots: BTreeMap::new(),
            }),
            changed: Condvar::new(),
            names: AtomicUsize::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the run; the first reason counts.
    pub fn stop(&self, why: &str) {
        self.state().stop.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    /// Why the run was ended, if it was.
    pub fn stopped(&self) -> Option<String> {
        self.state().stop.clone()
    }

    /// Number of scenarios that nobody has begun.
    pub fn left(&self) -> usize {
        self.state().plan.left().count()
    }

    /// Blocks until there is something for the lane to do.
    fn next(&self, lane: usize) -> Option<usize> {
        let mut state = self.state();
        loop {
            if state.stop.is_some() {
                return None;
            }
            match state.plan.next(lane) {
                Next::Run(i) => return Some(i),
                Next::Done => return None,
                Next::Wait => {}
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finished(&self, lane: usize, kept: bool) {
        self.state().plan.finished(lane, kept);
        self.changed.notify_all();
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

    /// Processors of the nodes of a new cluster.
    fn cpus(&self, number: usize, spec: &Spec) -> u32 {
        let mut state = self.state();
        let boot = state.boots.entry(number).or_default();
        *boot += 1;
        spec.fixed_cpus().unwrap_or_else(|| match spec.nodes {
            // More processors than this machine can run at a time at all: some would not come up.
            3.. => 1,
            _ => cluster::turn(number, *boot - 1),
        })
    }

    /// Runs something in a thread of its own, counting what the lab's processes use meanwhile. When it is late, or the run is
    /// ended, the lab is killed, with which it should end; if it does not, it is left to itself.
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
            // Nobody waits any more if this fails.
            let _ = sender.send(work());
        });
        let late = loop {
            match receiver.recv_timeout(TICK) {
                Ok(result) => {
                    used.look(lab);
                    return Ok(result);
                }
                // Its panics are caught in it.
                Err(RecvTimeoutError::Disconnected) => break Late::Deadline,
                Err(RecvTimeoutError::Timeout) => {}
            }
            used.look(lab);
            if self.state().stop.is_some() {
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
}

/// Adds up the processor time of processes that come and go.
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

/// Names among `all` of a lab and of those that its scenarios have beside it, which begin with its name.
pub fn below(all: Vec<String>, lab: &str) -> Vec<String> {
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

/// The lane's cluster.
struct Held {
    lab: Arc<Lab>,
    spec: usize,
    cpus: u32,
    /// Findings that the last scenario announced, some of which may come after its end.
    expects: &'static [&'static str],
}

/// Works until nothing is left for this lane.
pub fn work(run: &Run, lane: usize) {
    let mut held: Option<Held> = None;
    while let Some(i) = run.next(lane) {
        held = scenario(run, i, held);
        run.finished(lane, held.is_some());
    }
    release(run, held);
}

/// Takes a cluster down after a last look: at its logs, at what the emulator found after the last scenario, and, on the debug kernel, for
/// what leaked.
fn release(run: &Run, held: Option<Held>) {
    let Some(held) = held else {
        return;
    };
    if run.stopped().is_some() {
        return;
    }
    let lab = &held.lab;
    let start = Instant::now();
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
        let kept = run.report.preserve(name, lab.name(), Some(lab));
        let cost = Cost {
            seconds: start.elapsed().as_secs_f64(),
            ..Cost::default()
        };
        let why = format!("after the last scenario in a cluster: {error:#}\n{kept}");
        run.report
            .afterwards(name, &lab.spec().describe(), why, &cost);
    }
}

/// Runs one scenario in the cluster that is there or in a new one; returns the cluster if it is still good.
fn scenario(run: &Run, i: usize, mut held: Option<Held>) -> Option<Held> {
    let (scenario, number) = (run.scenarios[i].clone(), run.specs[i]);
    let start = Instant::now();
    let mut cost = Cost::default();
    if held.as_ref().is_some_and(|h| h.spec != number) {
        release(run, held.take());
    }
    let (name, boots_before) = match &held {
        Some(h) => (h.lab.name().to_owned(), h.lab.boots()),
        None => {
            let n = run.names.fetch_add(1, Ordering::Relaxed);
            (format!("{}-{n}", run.prefix), 0)
        }
    };
    let mut used = Meter::new(held.as_ref().map(|h| h.lab.name()));
    let cpus = match &held {
        Some(h) => h.cpus,
        None => run.cpus(number, &scenario.spec),
    };
    let what = format!("{}, cpus {cpus}", scenario.spec.describe());
    let end = |verdict: Verdict, mut cost: Cost, used: &Meter| {
        cost.seconds = start.elapsed().as_secs_f64();
        cost.cpu_seconds = used.seconds();
        run.report.end(scenario.name, &what, &verdict, &cost);
    };
    let before = held.as_ref().map_or(&[][..], |h| h.expects);
    let lab = match held {
        Some(h) => h.lab,
        None => {
            let (name_, spec) = (name.clone(), scenario.spec.clone());
            let deadline = cluster::as_slow(BOOT_DEADLINE);
            let up = run.watch(&name, deadline, &mut used, move || {
                Lab::up_with(&name_, &spec, cpus)
            });
            cost.boot_seconds = start.elapsed().as_secs_f64();
            let result = match up {
                Ok(result) => result,
                Err(Late::Stopped) => {
                    remove(&name);
                    end(Verdict::Cut, cost, &used);
                    return None;
                }
                Err(Late::Deadline) => Err(anyhow!("not up after {} s", deadline.as_secs())),
            };
            run.booted(result.is_ok());
            match result.context("the cluster did not come up") {
                Ok(lab) => {
                    println!(
                        "booted  {name}: {what}; {} ({:.0} s)",
                        lab.model(),
                        cost.boot_seconds
                    );
                    Arc::new(lab)
                }
                Err(error) => {
                    let kept = run.report.preserve(scenario.name, &name, None);
                    remove(&name);
                    end(Verdict::Failed(format!("{error:#}\n{kept}")), cost, &used);
                    return None;
                }
            }
        }
    };
    let deadline = cluster::as_slow(scenario.deadline);
    let (theirs, it) = (Arc::clone(&lab), scenario.clone());
    let result = run.watch(&name, deadline, &mut used, move || {
        evidence::run(&it, &theirs, before)
    });
    cost.boots = lab.boots().saturating_sub(boots_before);
    let result = result.map(|shown| {
        cost.findings = shown.findings.sums();
        shown.result
    });
    let verdict = match result {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(error)) => {
            let kept = run.report.preserve(scenario.name, &name, Some(&lab));
            Verdict::Failed(format!("{error:#}\n{kept}"))
        }
        Err(Late::Stopped) => {
            let kept = run.report.preserve(scenario.name, &name, Some(&lab));
            println!("{kept}");
            Verdict::Cut
        }
        Err(Late::Deadline) => {
            let kept = run.report.preserve(scenario.name, &name, Some(&lab));
            Verdict::Failed(format!(
                "not finished after {} s\n{kept}",
                deadline.as_secs()
            ))
        }
    };
    let good = matches!(verdict, Verdict::Passed);
    end(verdict, cost, &used);
    if good {
        return Some(Held {
            lab,
            spec: number,
            cpus,
            expects: scenario.expects,
        });
    }
    // Not by dropping it: a scenario that does not end still has it.
    remove(&name);
    None
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
}
