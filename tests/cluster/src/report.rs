//! What a run tells: a line per scenario, a record of its times, what is kept of a failure.

use crate::cluster::{self, Lab};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines of the journal that are printed when a scenario did not come to its end.
const LAST_ACTIONS: usize = 5;

/// How a scenario ended.
#[derive(Debug)]
pub enum Verdict {
    /// All is well.
    Passed,
    /// It failed, for this reason.
    Failed(String),
    /// The run was ended meanwhile.
    Cut,
}

/// What a scenario took.
#[derive(Debug, Default, Clone)]
pub struct Cost {
    /// Time, with that of its cluster's boot.
    pub seconds: f64,
    /// Of that, for the boot.
    pub boot_seconds: f64,
    /// Processor time of QEMU and emulator.
    pub cpu_seconds: f64,
    /// Kernels booted.
    pub boots: usize,
    /// What the emulator found, announced or not.
    pub findings: BTreeMap<&'static str, u64>,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    cut: usize,
    /// Failures that are no scenario's.
    afterwards: usize,
}

/// Where a run reports.
pub struct Report {
    times: Option<Mutex<std::fs::File>>,
    keep: PathBuf,
    counts: Mutex<Counts>,
}

impl Report {
    /// Appends times to a file (none: nowhere) and keeps failures below a directory.
    pub fn new(times: Option<&Path>, keep: &Path) -> anyhow::Result<Self> {
        let open = |p: &Path| std::fs::File::options().create(true).append(true).open(p);
        Ok(Self {
            times: times.map(open).transpose()?.map(Mutex::new),
            keep: keep.to_owned(),
            counts: Mutex::default(),
        })
    }

    /// Directory for what is left of a failed scenario.
    pub fn place(&self, name: &str) -> PathBuf {
        self.keep.join(name.replace("::", "."))
    }

    /// Keeps the lab's directory and the journal of a scenario that failed; returns the lines that tell where.
    pub fn preserve(&self, name: &str, lab_name: &str, lab: Option<&Lab>) -> String {
        let place = self.place(name);
        // What an earlier run left there would be taken for this one's.
        let _ = std::fs::remove_dir_all(&place);
        if let Some(lab) = lab {
            // So that the recording is complete; there may be none.
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

    /// Prints how a scenario ended, and counts it.
    pub fn end(&self, name: &str, what: &str, verdict: &Verdict, cost: &Cost) {
        let mut counts = self.counts();
        let took = format!("{:.0} s, cpu {:.0} s", cost.seconds, cost.cpu_seconds);
        let result = match verdict {
            Verdict::Passed => {
                counts.passed += 1;
                println!("ok      vm::{name} ({took})");
                "ok"
            }
            Verdict::Failed(why) => {
                counts.failed += 1;
                println!("FAILED  vm::{name} ({took}): {why}");
                "failed"
            }
            Verdict::Cut => {
                counts.cut += 1;
                println!("cut     vm::{name} ({took})");
                "cut"
            }
        };
        let line = json!({
            "name": format!("vm::{name}"), "seconds": tenths(cost.seconds), "cpu_seconds": tenths(cost.cpu_seconds),
            "boots": cost.boots, "boot_seconds": tenths(cost.boot_seconds), "result": result, "cluster": what,
            "findings": cost.findings,
        });
        if let Some(file) = &self.times {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            // In one piece: others append to the file, too.
            if let Err(e) = file.write_all(format!("{line}\n").as_bytes()) {
                eprintln!("times are not recorded: {e}");
            }
        }
    }

    /// Counts and prints a failure that shows after the last scenario in a cluster.
    pub fn afterwards(&self, name: &str, what: &str, why: String, cost: &Cost) {
        self.counts().afterwards += 1;
        self.end(name, what, &Verdict::Failed(why), cost);
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last line; true if all is well: all of the chosen scenarios were run, each has a result, and all of these are good.
    pub fn summary(&self, chosen: usize, not_run: usize) -> bool {
        let counts = self.counts();
        let missing = counts.cut + not_run;
        let ended = counts.passed + counts.failed - counts.afterwards;
        let lost = chosen.abs_diff(ended + missing);
        if lost > 0 {
            println!("{chosen} scenarios were chosen, but {ended} ended and {missing} did not");
        }
        let good = counts.failed == 0 && missing == 0 && lost == 0;
        let word = if good { "ok" } else { "FAILED" };
        let rest = match missing {
            0 => String::new(),
            n => format!("; {n} not run"),
        };
        println!(
            "test result: {word}. {} passed; {} failed{rest}",
            counts.passed, counts.failed
        );
        good
    }
}

/// A path as people outside of the build root know it.
fn shown(path: &Path) -> String {
    let path = path.display().to_string();
    path.strip_prefix("/out/")
        .map_or(path.clone(), |p| format!("out/{p}"))
}

fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_good_only_if_every_scenario_has_a_result() -> anyhow::Result<()> {
        let summary = |passed: usize, chosen, not_run, more: &[Verdict]| -> anyhow::Result<bool> {
            let report = Report::new(None, Path::new("/nowhere"))?;
            let end = |verdict: &Verdict| report.end("x", "", verdict, &Cost::default());
            (0..passed).for_each(|_| end(&Verdict::Passed));
            more.iter().for_each(end);
            Ok(report.summary(chosen, not_run))
        };
        assert!(summary(3, 3, 0, &[])?);
        assert!(!summary(3, 4, 0, &[])?, "one got lost");
        assert!(!summary(3, 2, 0, &[])?, "one ended twice");
        assert!(!summary(3, 4, 1, &[])?);
        assert!(!summary(3, 4, 0, &[Verdict::Cut])?);
        assert!(!summary(3, 4, 0, &[Verdict::Failed("why".into())])?);
        let report = Report::new(None, Path::new("/nowhere"))?;
        report.end("x", "", &Verdict::Passed, &Cost::default());
        report.afterwards("no_leaks", "", "why".into(), &Cost::default());
        assert!(!report.summary(1, 0));
        Ok(())
    }
}
