//! Evidence of a scenario besides its own result: kernel logs, findings of the emulator, error
//! counters of the drivers.

use crate::cluster::findings::Growth;
use crate::cluster::{Defect, Lab, WrongData, PATIENCE};
use crate::scenario::Scenario;
use anyhow::{anyhow, bail, ensure, Context, Error, Result};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Numbers of the base driver's reasons whose counters also grow in a healthy cluster
/// (docs/driver.md). Examples: full budgets, interrupts for a client that is closing, repairs
/// without loss, links that came up, throttled programs, ports of a peer that are not open yet.
const USUAL: &[u32] = &[1, 3, 6, 10, 17, 18, 29, 33, 36];
/// Reasons of exn whose counters also grow in a healthy cluster (docs/exn.md), for example frames
/// while the interface goes down or comes up.
const USUAL_OF_EXN: &[&str] = &[
    "tx_no_carrier",
    "tx_flushed",
    "rx_own_multicast",
    "rx_rdv_discarded",
    "rx_port_error",
    "notify_late",
    "rx_flushed",
];

/// Outcome of one scenario with its evidence.
pub struct Shown {
    /// Result of the scenario and of all checks of the evidence.
    pub result: Result<()>,
    /// True after a failure that no repetition excuses: a defect in a kernel log, an unexpected
    /// finding, wrong data.
    pub hard: bool,
    /// Findings of the emulator during the scenario, expected or not.
    pub findings: Growth,
}

/// Runs a scenario, then checks the kernel logs, the emulator's findings and the drivers' counters.
/// `before` names the findings that are allowed between the previous check and the start of this
/// scenario.
pub fn run(scenario: &Scenario, lab: &Lab, before: &[&str]) -> Shown {
    let mut findings = Growth::default();
    let mut evidence: Vec<Error> = Vec::new();
    let mut hard = false;
    let mut look = |expected: &[&str], when: &str, evidence: &mut Vec<Error>| {
        match found(lab, expected) {
            Ok((more, verdict)) => {
                findings.add(&more);
                hard |= verdict.is_err();
                evidence.extend(verdict.err().map(|e| e.context(when.to_owned())));
            }
            // The emulator always answers, unless it has died.
            Err(e) => {
                hard = true;
                evidence.push(e);
            }
        };
    };
    look(before, "before the scenario began", &mut evidence);
    evidence.extend(sweep(lab).err());
    let counted = scenario.healthy.then(|| Counted::of(lab));
    let result = catch_unwind(AssertUnwindSafe(|| (scenario.run)(lab)))
        .unwrap_or_else(|_| Err(anyhow!("the test panicked")));
    // Logs and findings often explain a failure, so they are checked after a failure too.
    evidence.extend(lab.assert_clean_log().err());
    look(scenario.expects, "during the scenario", &mut evidence);
    if let Some(before) = counted {
        let all_well = before.and_then(|before| before.no_errors_until(&Counted::of(lab)?));
        evidence.extend(all_well.err());
    }
    let is_hard = |e: &Error| {
        let defect = e.downcast_ref::<Defect>();
        defect.is_some_and(|d| !d.is_stall) || e.is::<WrongData>()
    };
    hard |= evidence.iter().chain(result.as_ref().err()).any(is_hard);
    let more = |error: Error, e: Error| error.context(format!("{e:#}"));
    let result = match result {
        Err(error) => Err(evidence.into_iter().fold(error, more)),
        Ok(()) => match evidence.into_iter().reduce(more) {
            Some(error) => Err(error),
            None => Ok(()),
        },
    };
    Shown {
        result,
        hard,
        findings,
    }
}

/// Removes the files that earlier scenarios of the same cluster left in the nodes' `/tmp`, so that
/// no scenario mistakes them for its own files. Directories that scenarios share stay.
fn sweep(lab: &Lab) -> Result<()> {
    let script = "find /tmp -mindepth 1 -maxdepth 1 ! -name guest ! -name block -exec rm -rf {} +";
    for node in 0..lab.spec().nodes {
        lab.ok_for(node, script, PATIENCE)?;
    }
    Ok(())
}

/// Returns the emulator's findings since the previous call, and an error if any of them is
/// unexpected.
pub fn found(lab: &Lab, expected: &[&str]) -> Result<(Growth, Result<()>)> {
    let growth = lab.new_findings()?;
    let rest = growth.unannounced(expected);
    let verdict = match rest.is_empty() {
        true => Ok(()),
        false => Err(anyhow!(
            "the emulator has findings that the scenario does not expect: {}",
            rest.join(", ")
        )),
    };
    Ok((growth, verdict))
}

/// Errors that the drivers of each node have counted.
struct Counted(Vec<BTreeMap<String, u64>>);

impl Counted {
    fn of(lab: &Lab) -> Result<Self> {
        let script =
            "cat /sys/kernel/debug/extoll-*/counters; echo; cat /sys/kernel/debug/exn-*/reasons";
        let nodes = (0..lab.spec().nodes).map(|node| {
            let text = lab.ok_for(node, script, PATIENCE)?;
            errors(&text).with_context(|| format!("counters of node{node}: {text}"))
        });
        nodes.collect::<Result<_>>().map(Self)
    }

    /// Fails if a counter has grown between `self` and `after`. A counter that has shrunk restarted
    /// from 0, because its driver was loaded again.
    fn no_errors_until(&self, after: &Self) -> Result<()> {
        let mut grown = vec![];
        for (node, (before, after)) in self.0.iter().zip(&after.0).enumerate() {
            for (name, now) in after {
                let old = before.get(name).copied().unwrap_or(0);
                let more = now.checked_sub(old).unwrap_or(*now);
                if more > 0 {
                    grown.push(format!("node{node}: {name} +{more}"));
                }
            }
        }
        if !grown.is_empty() {
            bail!(
                "nothing was broken, but the drivers counted errors: {}",
                grown.join(", ")
            );
        }
        Ok(())
    }
}

/// Parses `counters` of the base driver and, after an empty line, `reasons` of exn. Returns the
/// counters that must not grow in a healthy cluster. Values of several NICs are added.
fn errors(text: &str) -> Result<BTreeMap<String, u64>> {
    let (base, exn) = text.split_once("\n\n").context("no empty line")?;
    let mut errors = BTreeMap::new();
    let mut add = |name: String, count: &str| -> Result<()> {
        *errors.entry(name).or_insert(0) += count.parse::<u64>()?;
        Ok(())
    };
    for line in base.lines().filter_map(|l| l.strip_prefix("reason ")) {
        let (number, rest) = line.split_once(' ').context("no count")?;
        if !USUAL.contains(&number.parse()?) {
            add(
                format!("reason {number}"),
                rest.split(' ').next().unwrap_or(""),
            )?;
        }
    }
    for line in exn.lines() {
        let mut words = line.split_whitespace();
        let (count, name) = words.nth(1).zip(words.next()).context("no reason")?;
        let name = name.trim_end_matches(':');
        if !USUAL_OF_EXN.contains(&name) {
            add(name.to_owned(), count)?;
        }
    }
    ensure!(
        errors.contains_key("reason 19") && errors.contains_key("port_restart"),
        "counters are missing"
    );
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lost: u64, restarts: u64, repairs: u64) -> Counted {
        let text = format!(
            "interrupts 7\nreason 10 {repairs} (replay)\nreason 19 {lost} (lost)\nevent 5 1 (x)\n\n 0 {repairs} tx_no_carrier: x\n38 {restarts} port_restart: y\n"
        );
        Counted(vec![errors(&text).unwrap()])
    }

    #[test]
    fn errors_of_drivers_are_seen() {
        let before = counted(2, 0, 0);
        assert!(before.no_errors_until(&counted(2, 0, 9)).is_ok());
        assert!(before.no_errors_until(&counted(3, 0, 0)).is_err());
        assert!(before.no_errors_until(&counted(2, 1, 0)).is_err());
        // The driver was loaded again.
        assert!(before.no_errors_until(&counted(0, 0, 0)).is_ok());
        assert!(before.no_errors_until(&counted(1, 0, 0)).is_err());
    }

    #[test]
    fn counters_that_are_not_there_are_an_error() {
        assert!(errors("reason 19 0 (x)\n\n").is_err());
        assert!(errors("").is_err());
    }
}
