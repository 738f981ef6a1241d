//! Scenarios of the base driver alone.

use super::node::{node, Options};
use super::{on_pair, uapi};
use crate::cluster::{modules, Lab, PATIENCE};
use crate::{probe_order, Scenario};
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("driver::probe_in_reference_order", probe).gate(),
        on_pair("driver::unit_tests", unit_tests).debug_only(),
    ]
}

/// Collects the suites of unit tests in the kernel code under `dir`, with their numbers of tests.
fn suites(dir: &Path, found: &mut BTreeMap<String, usize>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            suites(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path)?;
            for part in text.split("#[kunit_tests(").skip(1) {
                let (name, tests) = part.split_once(")]").context("no end of the name")?;
                found.insert(name.into(), tests.matches("#[test]").count());
            }
        }
    }
    Ok(())
}

/// Every unit test of the kernel code ran when the modules were loaded, and passed.
fn unit_tests(lab: &Lab) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut written = BTreeMap::new();
    for entry in modules::entries() {
        suites(&root.join(entry.dir), &mut written)?;
    }
    ensure!(!written.is_empty(), "no unit tests");
    lab.ok(0, "modprobe extoll_bench")?;
    for (suite, tests) in written {
        let results = lab.ok(0, &format!("cat /sys/kernel/debug/kunit/{suite}/results"))?;
        let ok = |l: &&str| l.starts_with("    ok ") && !l.contains("# SKIP");
        let passed = results.lines().filter(ok).count();
        ensure!(
            passed == tests && !results.contains("not ok"),
            "{passed} of {tests} passed: {results}"
        );
    }
    lab.ok(0, "rmmod extoll_bench").map(drop)
}

/// A probe follows the reference order. The modules of node 0 are loaded again and every register
/// access is compared with HW §3.
fn probe(lab: &Lab) -> Result<()> {
    // The peer is silenced, because its frames would arrive at closed ports and cause an event. The
    // event's interrupt handler would add register accesses.
    lab.ok(1, "ip link set exn0 down")?;
    node(lab, 0).unload()?;
    let traced = |what: &dyn Fn() -> Result<()>| -> Result<_> {
        lab.run("trace", &["on"], PATIENCE)?;
        let result = what();
        lab.run("trace", &["off"], PATIENCE)?;
        let options = "print --host-only --nic 0 --kind reg-write --kind reg-read";
        let options: Vec<&str> = options.split(' ').collect();
        result?;
        let text = lab.run("trace", &options, PATIENCE)?;
        Ok(probe_order::parse(&text))
    };
    let accesses = traced(&|| node(lab, 0).load(Options::default()));
    lab.ok(1, "ip link set exn0 up")?;
    let accesses = accesses?;
    let n = probe_order::check(&accesses)?;
    let want = probe_order::REFERENCE + probe_order::ADDED;
    ensure!(n == want, "the probe has {n} accesses instead of {want}");
    // Setting the interface up makes the network driver open its ports.
    let accesses = traced(&|| lab.ok(0, "ip link set exn0 up").map(drop))?;
    let enabled = probe_order::enabled(&accesses, false)?;
    ensure!(enabled == [1, 1], "{enabled:?} VPIDs were enabled");
    // A process opens VPIDs too, creates a queue twice, and closes the VPIDs.
    const PROCESS: &str = "import sys; sys.path.insert(0, '/tmp/guest')
from device import *
r, v = Rma(), Velo()
r.ioctl(K(1, get=False), 64 << 10)
r.queue_map(64 << 10)
r.notify(r.node, r.vpid, 7)
check('notification', r.wait_type(4)[0], 7)
r.close()
v.close()";
    uapi::install(lab)?;
    let accesses = traced(&|| {
        lab.ok(0, &format!("exec python3 -c \"{PROCESS}\""))
            .map(drop)
    })?;
    let enabled = probe_order::enabled(&accesses, true)?;
    // RMA enables its VPID with each queue. On a slow host it enables the VPID once more, for
    // commands that prove that all earlier commands were executed.
    ensure!(
        matches!(enabled, [1, 2 | 3]),
        "{enabled:?} VPIDs were enabled"
    );
    node(lab, 0).back()
}
