//! Interrupts of notifications. A command that requests interrupts raises one at each notified end.
//! Other commands raise none.

use super::case::{batches, Case, Extent, Plan};
use super::side::{Role, Side};
use super::told;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Fraction of the small transfers that contains all commands in all forms.
const SAMPLE: Extent = Extent {
    every: 131,
    full: false,
};
const PATIENCE: Duration = Duration::from_secs(5);

/// File with the driver's interrupt counts of ports.
struct Counts(PathBuf);

impl Counts {
    fn find() -> Result<Self> {
        let all = std::fs::read_dir("/sys/kernel/debug")?.flatten();
        let mut dirs = all.filter(|e| e.file_name().to_string_lossy().starts_with("extoll-"));
        Ok(Self(
            dirs.next()
                .context("no NIC in debugfs")?
                .path()
                .join("ports"),
        ))
    }

    fn of(&self, side: &Side) -> Result<u64> {
        let text = std::fs::read_to_string(&self.0)?;
        let start = format!("Rma vpid {} ", side.id().vpid);
        let line = text
            .lines()
            .find(|l| l.starts_with(&start))
            .context("the port is not listed")?;
        let mut words = line.split_whitespace().skip_while(|w| *w != "interrupts");
        Ok(words.nth(1).context("no count")?.parse()?)
    }
}

/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(2);
/// Time to wait for an interrupt that is late. The interrupt never arrives if the NIC forgets
/// interrupts that it could not raise at once (G7).
const FORGOTTEN: Duration = Duration::from_millis(50);

/// Waits for a deferred interrupt and arms the next one. Returns the number of interrupts so far.
///
/// The second notification of a command occurs while the interrupt is not armed. Its interrupt is
/// raised when the interrupt is armed again (HW §6.5). `missed` is true if there was such a
/// notification.
fn quiet(counts: &Counts, side: &Side, missed: bool) -> Result<u64> {
    let mut n = counts.of(side)?;
    let mut patience = if missed { FORGOTTEN } else { PAUSE };
    loop {
        side.port().arm()?;
        let start = Instant::now();
        let now = loop {
            std::thread::sleep(PAUSE);
            let now = counts.of(side)?;
            if now != n || start.elapsed() >= patience {
                break now;
            }
        };
        if now == n {
            return Ok(n);
        }
        (n, patience) = (now, PAUSE);
    }
}

/// Returns the number of combinations, and the failures.
pub fn run() -> Result<(usize, Vec<String>)> {
    let counts = Counts::find()?;
    let mut failures = vec![];
    let mut total = 0;
    for plan in [Plan::Transfers, Plan::Short, Plan::Locks] {
        let cases: Vec<Case> = batches(plan, SAMPLE).concat();
        let (origin, target) = (Side::open(plan)?, Side::open(plan)?);
        let address = target.address();
        let mut missed = [false; 2];
        for case in &cases {
            total += 1;
            let batch = std::slice::from_ref(case);
            origin.prepare(batch, Role::Origin)?;
            target.prepare(batch, Role::Target)?;
            let ends = |c: &Case| origin.ends(c, &address, 0);
            let due = [told(batch, ends, 0), told(batch, ends, 1)];
            let sides = [&origin, &target];
            let mut before = [0; 2];
            for (i, side) in sides.into_iter().enumerate() {
                before[i] = quiet(&counts, side, missed[i])?;
            }
            origin.post(case, &address, 0)?;
            origin.synchronise(&[case.page.traffic_class], &address)?;
            for (i, side) in sides.into_iter().enumerate() {
                let n = due[i].len() as u64;
                failures.extend(side.collect(batch, due[i].clone(), 1)?);
                let (least, most) = if case.page.irq { (n.min(1), n) } else { (0, 0) };
                let start = Instant::now();
                let mut seen = counts.of(side)? - before[i];
                while seen < least && start.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(1));
                    seen = counts.of(side)? - before[i];
                }
                missed[i] = seen < most;
                if !(least..=most).contains(&seen) {
                    let whom = ["origin", "target"][i];
                    failures.push(format!(
                        "{case:?}: {seen} interrupts for {n} notifications of the {whom}"
                    ));
                }
            }
        }
    }
    Ok((total, failures))
}
