//! Kernel and user traffic on a torus with failing cables, NICs and nodes. Every operation succeeds
//! or fails in time, traffic elsewhere continues, and everything works after the repair.

use super::matrix::{install, PROGRAM};
use crate::cluster::{pairs, Lab, Running, PATIENCE};
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum time in which a flow must make progress or fail, with eight nodes on few CPUs.
const SOON: Duration = Duration::from_secs(90);
/// Deadline of operations in ms, and excess in ms that is permitted on a busy host.
pub(super) const DEADLINE: u64 = 3000;
pub(super) const SLACK: u64 = 20_000;

/// Kind of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// VELO messages, RMA transfers and locks of a user program.
    User,
    /// VELO messages, RMA transfers and locks of a kernel module.
    Kernel,
    /// TCP connections over the network driver, with a few kilobytes in each direction.
    Tcp,
}

/// Traffic between neighbours, so that each flow depends on one cable only.
pub(super) struct Flow {
    pub(super) kind: Kind,
    from: usize,
    to: usize,
    pub(super) running: Option<Running>,
}

const FLOWS: [(Kind, usize, usize); 10] = [
    (Kind::User, 0, 1),
    (Kind::Kernel, 0, 1),
    (Kind::Tcp, 0, 1),
    (Kind::User, 4, 5),
    (Kind::Kernel, 3, 2),
    (Kind::Tcp, 2, 3),
    (Kind::User, 6, 7),
    (Kind::Kernel, 5, 4),
    (Kind::Kernel, 6, 7),
    (Kind::Tcp, 5, 7),
];
/// Numbers of the node that loses its power and of the node whose NIC freezes.
const VICTIM: usize = 7;
const FROZEN: usize = 2;

impl Flow {
    pub(super) fn log(&self) -> String {
        format!("/tmp/flow-{:?}-{}-{}", self.kind, self.from, self.to)
    }

    fn touches(&self, node: usize) -> bool {
        self.from == node || self.to == node
    }

    /// Starts the peer's server and the flow.
    fn start(lab: &Lab, what: (Kind, usize, usize)) -> Result<Self> {
        Self::start_as(lab, what, "")
    }

    /// Starts the flow with `user` in front of the commands of both sides.
    pub(super) fn start_as(
        lab: &Lab,
        (kind, from, to): (Kind, usize, usize),
        user: &str,
    ) -> Result<Self> {
        let mut flow = Self {
            kind,
            from,
            to,
            running: None,
        };
        let log = flow.log();
        lab.ok(from, &format!("rm -f {log}"))?;
        let end = format!("--stop /tmp/stop-flows --log {log} --deadline {DEADLINE}");
        let words = match kind {
            Kind::User | Kind::Tcp => {
                let words = serve(lab, to, user)?;
                match kind {
                    Kind::User => format!("user {words}"),
                    _ => format!("tcp node{to}"),
                }
            }
            Kind::Kernel => {
                let offer = lab.raw(to, "offer bytes=65536 seed=7")?;
                lab.raw(to, "serve")?;
                let word = |key: &str| offer.get(key).with_context(|| format!("no {key}"));
                let there = format!("node={to} vpid={} nla={}", word("vpid")?, word("nla")?);
                format!(
                    "kernel 'pingpong node={to} count=10' 'copy dir=get {there} bytes=65536 seed=7' \
                     'copy dir=put {there} bytes=65536 seed=7' 'lock {there} count=4' 'get node={to} size=4096 count=8'"
                )
            }
        };
        // The device of extoll_bench belongs to root.
        let user = if kind == Kind::Kernel { "" } else { user };
        let script = format!("exec {user}{PROGRAM} traffic {words} {end}");
        flow.running = Some(lab.spawn(from, &script)?);
        Ok(flow)
    }

    pub(super) fn counts(&self, lab: &Lab) -> Result<BTreeMap<String, u64>> {
        let text = lab.ok(
            self.from,
            &format!("cat {} 2>/dev/null || true", self.log()),
        )?;
        let number = |(k, v): (String, String)| Ok((k, v.parse::<u64>()?));
        pairs(&text).into_iter().map(number).collect()
    }

    fn count(&self, lab: &Lab, what: &str) -> Result<u64> {
        Ok(self.counts(lab)?.get(what).copied().unwrap_or(0))
    }
}

/// Starts a server on a node. Returns the words that address it.
fn serve(lab: &Lab, node: usize, user: &str) -> Result<String> {
    let log = "/tmp/flow-server";
    lab.ok(
        node,
        &format!("pgrep extoll-conform >/dev/null && [ -e {log} ] || {user}{PROGRAM} traffic serve >{log} 2>&1 </dev/null &"),
    )?;
    let mut words = String::new();
    lab.until_it_works("the server is ready", PATIENCE, |l| {
        words = l.ok(node, &format!("cat {log}"))?;
        Ok(words.starts_with("ready ") && words.ends_with('\n'))
    })?;
    let words = words.lines().next().unwrap_or("");
    Ok(words.trim_start_matches("ready ").to_owned())
}

/// Waits until the counter `what` of every flow selected by `which` has grown by `n`.
fn get_on(
    lab: &Lab,
    flows: &[Flow],
    what: &str,
    n: u64,
    which: impl Fn(&Flow) -> bool,
) -> Result<()> {
    let chosen: Vec<&Flow> = flows.iter().filter(|f| which(f)).collect();
    ensure!(!chosen.is_empty(), "no flow is concerned");
    let mut waiting = chosen
        .into_iter()
        .map(|f| Ok((f, f.count(lab, what)? + n)))
        .collect::<Result<Vec<_>>>()?;
    let waited = lab.until(&format!("more of {what}"), SOON, |lab| {
        let mut left = vec![];
        for (flow, goal) in waiting.drain(..) {
            if flow.count(lab, what)? < goal {
                left.push((flow, goal));
            }
        }
        waiting = left;
        Ok(waiting.is_empty())
    });
    let names: Vec<String> = waiting.iter().map(|(f, _)| f.log()).collect();
    waited.with_context(|| format!("{names:?}"))
}

/// Period in which a flow must complete operations without a failure.
struct Stretch {
    from: BTreeMap<String, u64>,
}

impl Stretch {
    /// Returns true if every kind of operation succeeded `n` times since the start. A failure
    /// starts a new period, because operations in flight at the end of a fault may still fail.
    fn is_over(&mut self, now: BTreeMap<String, u64>, n: u64) -> bool {
        if now.get("failed") != self.from.get("failed") {
            self.from = now;
            return false;
        }
        let mut kinds = now
            .iter()
            .filter(|(k, _)| k.starts_with("done_"))
            .peekable();
        let more = |(k, v): (&String, &u64)| v - self.from.get(k).copied().unwrap_or(0).min(*v);
        kinds.peek().is_some() && kinds.all(|kind| more(kind) >= n)
    }
}

/// Waits until every flow selected by `which` completes `n` rounds of all kinds of operations
/// without a failure.
pub(super) fn work(lab: &Lab, flows: &[Flow], n: u64, which: impl Fn(&Flow) -> bool) -> Result<()> {
    let mut waiting = flows
        .iter()
        .filter(|f| which(f))
        .map(|f| {
            Ok((
                f,
                Stretch {
                    from: f.counts(lab)?,
                },
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    ensure!(!waiting.is_empty(), "no flow is concerned");
    let waited = lab.until("all flows work", SOON, |lab| {
        let mut left = vec![];
        for (flow, mut stretch) in waiting.drain(..) {
            if !stretch.is_over(flow.counts(lab)?, n) {
                left.push((flow, stretch));
            }
        }
        waiting = left;
        Ok(waiting.is_empty())
    });
    let names: Vec<String> = waiting
        .iter()
        .map(|(f, s)| format!("{}: {:?} -> {:?}", f.log(), s.from, f.counts(lab).ok()))
        .collect();
    waited.with_context(|| format!("{names:#?}"))
}

/// Cuts a cable, freezes a NIC and switches a node off, one after the other, under traffic. Flows
/// that need the broken part fail in time, all other flows continue, and all flows work after the
/// repair.
pub fn under_faults(lab: &Lab) -> Result<()> {
    let nodes = lab.spec().nodes;
    for node in 0..nodes {
        prepare(lab, node)?;
    }
    let mut flows = FLOWS
        .into_iter()
        .map(|f| Flow::start(lab, f))
        .collect::<Result<Vec<_>>>()?;
    work(lab, &flows, 2, |_| true).context("before any fault")?;

    lab.fault(&["link-down", "0-1"])?;
    let cut = |f: &Flow| f.from == 0 && f.to == 1;
    get_on(lab, &flows, "failed", 1, cut).context("over the cut cable")?;
    work(lab, &flows, 1, |f| !cut(f)).context("beside the cut cable")?;
    lab.fault(&["link-up", "0-1"])?;
    work(lab, &flows, 1, |_| true).context("after the repair")?;

    lab.fault(&["freeze", &FROZEN.to_string()])?;
    let frozen = |f: &Flow| f.touches(FROZEN);
    get_on(lab, &flows, "failed", 1, frozen).context("with a frozen NIC")?;
    work(lab, &flows, 1, |f| !frozen(f)).context("beside the frozen NIC")?;
    lab.fault(&["thaw", &FROZEN.to_string()])?;
    work(lab, &flows, 1, |_| true).context("after the thaw")?;

    lab.fault(&["power-off", &VICTIM.to_string()])?;
    let dead = |f: &Flow| f.touches(VICTIM);
    get_on(lab, &flows, "failed", 2, dead).context("to the node without power")?;
    work(lab, &flows, 1, |f| !dead(f)).context("beside the node without power")?;
    finish(lab, &mut flows)?;
    survivors(lab, |n| n != VICTIM)?;

    // Starts the same flows again after the node has returned.
    lab.fault(&["power-on", &VICTIM.to_string()])?;
    prepare(lab, VICTIM)?;
    for node in (0..nodes).filter(|n| *n != VICTIM) {
        prepare(lab, node)?;
    }
    let mut flows = FLOWS
        .into_iter()
        .map(|f| Flow::start(lab, f))
        .collect::<Result<Vec<_>>>()?;
    work(lab, &flows, 2, |_| true).context("after the power came back")?;
    finish(lab, &mut flows)?;
    survivors(lab, |_| true)?;
    for node in 0..nodes {
        lab.ok(node, "rmmod extoll_bench")?;
    }
    Ok(())
}

/// Installs the programs and modules that flows need, and removes files of earlier flows.
pub(super) fn prepare(lab: &Lab, node: usize) -> Result<()> {
    if lab
        .sh_for(node, &format!("[ -x {PROGRAM} ]"), PATIENCE)?
        .status
        != 0
    {
        install(lab, node)?;
    }
    lab.ok(
        node,
        "rm -f /tmp/stop-flows /tmp/flow-server; modprobe extoll_bench",
    )?;
    Ok(())
}

/// Ends all flows. Each must end within the deadline of its last operation, without wrong or late
/// results.
pub(super) fn finish(lab: &Lab, flows: &mut [Flow]) -> Result<()> {
    let mut from: Vec<usize> = flows.iter().map(|f| f.from).collect();
    from.sort_unstable();
    from.dedup();
    for node in from {
        lab.ok(node, "touch /tmp/stop-flows")?;
    }
    for flow in flows.iter_mut() {
        let running = flow.running.take().context("ended before")?;
        let out = running.wait(Duration::from_millis(2 * (DEADLINE + SLACK)))?;
        ensure!(out.status == 0, "{}: {out:?}", flow.log());
        let counts = flow.counts(lab)?;
        println!("        {} {counts:?}", flow.log());
        let worst = counts.get("worst_ms").copied().unwrap_or(u64::MAX);
        ensure!(worst < DEADLINE + SLACK, "{}: {counts:?}", flow.log());
    }
    Ok(())
}

/// Checks the selected nodes for leftovers of the flows: stuck processes, ports, registered memory.
pub(super) fn survivors(lab: &Lab, which: impl Fn(usize) -> bool) -> Result<()> {
    for node in (0..lab.spec().nodes).filter(|n| which(*n)) {
        lab.ok(node, "pkill extoll-conform; true")?;
        lab.sh_for(node, "exec 3<>/dev/extoll_bench; printf withdraw >&3; exec 4<>/dev/extoll_bench; printf stop >&4", PATIENCE)?;
    }
    for node in (0..lab.spec().nodes).filter(|n| which(*n)) {
        lab.until("no process is stuck", PATIENCE, |l| {
            Ok(l.ok(node, "ps -eo state,comm | grep ^D || true")?
                .is_empty())
        })?;
        super::node::node(lab, node).is_vacant()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_works_when_all_kinds_succeed_and_nothing_fails() {
        let counts = |a: u64, b: u64, failed: u64| {
            let pairs = [
                ("done", a + b),
                ("done_0", a),
                ("done_1", b),
                ("failed", failed),
            ];
            BTreeMap::from(pairs.map(|(k, v)| (k.to_owned(), v)))
        };
        let mut stretch = Stretch {
            from: counts(5, 5, 1),
        };
        assert!(!stretch.is_over(counts(9, 6, 1), 2), "one kind is too few");
        assert!(stretch.is_over(counts(7, 7, 1), 2));
        assert!(!stretch.is_over(counts(9, 9, 2), 2), "one failed");
        assert!(!stretch.is_over(counts(10, 10, 2), 2), "a new stretch");
        assert!(stretch.is_over(counts(11, 11, 2), 2));
        // The log is still empty.
        let mut stretch = Stretch {
            from: BTreeMap::new(),
        };
        assert!(!stretch.is_over(BTreeMap::new(), 1));
        assert!(!stretch.is_over(counts(1, 1, 0), 1), "the first look");
        assert!(stretch.is_over(counts(2, 2, 0), 1));
    }
}
