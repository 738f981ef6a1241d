//! Trigger events of all kinds under traffic (HW §6.5, docs/driver.md *Events*).

use super::expected::REFUSED;
use super::node::{extoll, node, value, Node, Options};
use super::{on_pair, uapi};
use crate::cluster::{as_slow, Lab, LogMark, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![on_pair("units::error_events", error_events).finds(REFUSED)]
}

/// Numbers of the base driver's reasons for error events and normal events.
const ERROR: u32 = 5;
const NORMAL: u32 = 17;
/// Maximum number of error lines within one interval, shared by all events. The driver gets the
/// interval when it is loaded.
const LINES: u64 = 4;
const INTERVAL_MS: u64 = 1000;
/// Event of the timer. The driver never starts the timer.
const TIMER: u8 = 7;
/// Number of pings in one series.
const SERIES: u32 = 50;
/// Number of events in a burst.
const BURST: usize = 40;

/// An event: number, name, register that reports the event with its value if the emulator allows
/// setting it, and text that the log line must contain.
type Report = (u8, &'static str, Option<(u32, u64)>, &'static str);

/// Events that report errors. Each is counted as reason 5 and logged.
const ERRORS: &[Report] = &[
    (
        0,
        "HT3_CORE_ERRRSP_STOMP_OR_DROP_INT",
        Some((0x850, 3)),
        "0x0 -> 0x3",
    ),
    // For ECC events the driver reads the flags of all units. Here the bridge has a corrected and
    // an uncorrected error.
    (
        1,
        "ECC_ERROR",
        Some((0x5610, 1 << 3)),
        "tag_htoc2pcie_sec 0x0 -> 0x1",
    ),
    (
        2,
        "ECC_FATAL",
        Some((0x5610, (1 << 3) | (1 << 9))),
        "tag_htoc2pcie_ded 0x0 -> 0x1",
    ),
    (5, "PCIE_BRIDGE_ERROR", Some((0x5428, 7)), "pcie_rf_bridge"),
    (6, "PCIE_CORE_ERROR", Some((0x5A10, 1)), "0x0 -> 0x1"),
    (9, "HTAX_BRIDGE_DISCARDED_INT", None, ""),
    (10, "HTAX_ASSERTION", Some((0x9300, 1)), "0x0 -> 0x1"),
    (11, "SMFU_MATCHING_STORE_EMPTY", None, ""),
    (21, "BQ_ERROR", None, ""),
    (22, "WCBUF_ERROR", None, ""),
    (
        24,
        "VELO_ERROR",
        Some((0x0120_1818, (1 << 40) | 1)),
        "velo_rf_counter_1",
    ),
    (
        27,
        "RMA_ERROR",
        Some((0x0160_1018, 1)),
        "rma_rf_requester_error_cnt_0",
    ),
];

/// Events that do not report errors.
const NORMALS: [(u8, &str); 5] = [
    (3, "PCIE_CORE_LINK_STATUS_INT"),
    (4, "PCIE_BRIDGE_PCIE_TO_HTOC_REGFILE_INFO"),
    (7, "TIMER_INTERRUPT"),
    (8, "GPIO_IRQ"),
    (17, "LINK_PORT"),
];

/// Raises an event, after setting the register that reports it.
fn raise(lab: &Lab, event: u8, set: Option<(u32, u64)>) -> Result<()> {
    let (event, set) = (
        event.to_string(),
        set.map(|(offset, value)| format!("{offset:#x}={value:#x}")),
    );
    let mut args = vec!["event", "0", &event];
    if let Some(set) = &set {
        args.extend(["--set", set]);
    }
    lab.fault(&args).map(drop)
}

/// Returns the log lines about an event since the mark.
fn lines(lab: &Lab, mark: &LogMark, name: &str) -> Result<Vec<String>> {
    let log = lab.log_since(mark)?;
    let head = format!("event {name}, part ");
    let about = log.lines().filter(|l| l.contains(&head));
    Ok(about.map(Into::into).collect())
}

/// Waits for the next interval, in which the driver may log again.
fn next_line() {
    std::thread::sleep(Duration::from_millis(INTERVAL_MS));
}

/// Waits until the driver has handled all earlier events. A timer event that is raised after them
/// must be counted.
fn handled(lab: &Lab, node: Node<'_>) -> Result<()> {
    let before = node.event(TIMER)?;
    raise(lab, TIMER, None)?;
    lab.until("the events before are handled", PATIENCE, |_| {
        Ok(node.event(TIMER)? > before)
    })
}

/// Returns the counters of an event and of its reason.
fn counts(node: Node<'_>, event: u8, reason: u32) -> Result<(u64, u64)> {
    Ok((node.event(event)?, node.reason(reason)?))
}

/// Waits until both counters have grown by at least `n`.
fn counted(lab: &Lab, event: u8, reason: u32, before: (u64, u64), n: u64) -> Result<()> {
    let mut now = before;
    lab.until(
        &format!("event {event} and reason {reason} are counted"),
        PATIENCE,
        |_| {
            now = counts(node(lab, 0), event, reason)?;
            Ok(now.0 >= before.0 + n && now.1 >= before.1 + n)
        },
    )
    .with_context(|| format!("{before:?} -> {now:?}"))
}

/// Each error event is counted and logged at a limited rate, each normal event only counted, and
/// traffic continues.
fn error_events(lab: &Lab) -> Result<()> {
    uapi::install(lab)?;
    node(lab, 0).reload(extoll(&format!("extoll.log_interval_ms={INTERVAL_MS}")))?;
    let result = under_traffic(lab);
    // Restores the defaults before the result is checked, because other scenarios need them.
    node(lab, 0).reload(Options::default())?;
    result
}

fn under_traffic(lab: &Lab) -> Result<()> {
    let patience = as_slow(PATIENCE).as_secs();
    // Sends pings in series. Without -w, ping counts an answer as lost if it takes more than twice
    // the longest time so far. With -w, ping sends a few more packets, so the answers are checked
    // one by one (like `Node::pings_to`). The loop ends at the first lost answer.
    let more = SERIES + 7;
    let series = format!("ping -i 0.02 -s 3000 -c {more} -w {patience} node1");
    let whole = format!(
        "awk 'match($0, /icmp_seq=[0-9]+/) {{n[substr($0, RSTART + 9, RLENGTH - 9) + 0]++}} \
         END {{for (i = 1; i <= {SERIES}; i++) if (n[i] != 1) {{print \"answer\", i, \"came\", n[i] + 0, \"times\"; exit 1}}}}'"
    );
    let load = lab.spawn(
        0,
        &format!("rm -f /tmp/walked; n=0; while [ ! -e /tmp/walked ]; do said=$({series}); wrong=$(echo \"$said\" | {whole}) || break; n=$((n + 1)); done; echo \"$wrong\"; echo \"series $n\"; [ -z \"$wrong\" ] && [ -e /tmp/walked ]"),
    )?;
    let walked = walk(lab);
    let told = lab.ok(0, "touch /tmp/walked");
    let out = load.wait(PATIENCE)?;
    walked?;
    told?;
    let series = value(&out.stdout, "series").unwrap_or(0);
    ensure!(out.status == 0 && series > 1, "the traffic: {out:?}");
    Ok(())
}

/// Sends packets of a process to nodes that do not exist. The packets end at an inport of the
/// crossbar, which raises an event, or in an outport, which the driver drains (HW §15.3). The
/// reference does not say which of the two happens (G21).
fn misroute(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    let status = lab.status()?;
    let variant = status["fabric"]["variant"].as_str().context("variant")?;
    let at_outport = variant.contains("network.illegal-routing=outport");
    let (mark, before) = (lab.log_mark(0)?, counts(node, 13, ERROR)?);
    let drains = node.event(14)?;
    lab.ok(0, &uapi::line("misroute"))?;
    if at_outport {
        return lab.until("what was misrouted is drained", PATIENCE, |_| {
            let status = node.debugfs("status")?;
            Ok(node.event(14)? > drains && status.contains("outport_drain false"))
        });
    }
    counted(lab, 13, ERROR, before, 1).context("illegal routing")?;
    lab.until("the log reports illegal routing", PATIENCE, |l| {
        Ok(!lines(l, &mark, "XBAR_INPORT")?.is_empty())
    })
}

fn walk(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    for (event, name, set, told) in ERRORS {
        next_line();
        let (mark, before) = (lab.log_mark(0)?, counts(node, *event, ERROR)?);
        raise(lab, *event, *set)?;
        counted(lab, *event, ERROR, before, 1).with_context(|| name.to_string())?;
        // The driver reads the flags of ECC events a moment later and logs them as the fatal event.
        let logged = if *event == 1 { "ECC_FATAL" } else { name };
        lab.until(&format!("the log reports {name}"), PATIENCE, |l| {
            Ok(lines(l, &mark, logged)?.iter().any(|l| l.contains(told)))
        })
        .with_context(|| lab.log_since(&mark).unwrap_or_default())?;
    }
    next_line();
    let mark = lab.log_mark(0)?;
    for (event, _) in NORMALS {
        let before = counts(node, event, NORMAL)?;
        raise(lab, event, None)?;
        counted(lab, event, NORMAL, before, 1)?;
    }
    handled(lab, node)?;
    for (_, name) in NORMALS {
        let said = lines(lab, &mark, name)?;
        ensure!(said.is_empty(), "normal, but logged: {said:?}");
    }
    // Status and drain events are only counted. The debugfs file shows when the driver has finished
    // its work on them.
    for event in [14, 16, 28] {
        let before = node.event(event)?;
        raise(lab, event, None)?;
        lab.until(&format!("event {event}"), PATIENCE, |_| {
            let status = node.debugfs("status")?;
            Ok(node.event(event)? > before && status.contains("outport_drain false"))
        })?;
    }
    // Raises the event by misrouted packets of a process.
    next_line();
    misroute(lab)?;
    // Raises a burst of events. All events are counted, though several may merge into one report.
    // At least one line is logged, and the rate limit holds.
    next_line();
    let (mark, start) = (lab.log_mark(0)?, Instant::now());
    let before = counts(node, 6, ERROR)?;
    for value in 2..BURST as u64 {
        raise(lab, 6, Some((0x5A10, value)))?;
    }
    counted(lab, 6, ERROR, before, 10).context("a burst")?;
    handled(lab, node)?;
    let most = LINES * (start.elapsed().as_millis() as u64 / INTERVAL_MS + 2);
    let said = lines(lab, &mark, "PCIE_CORE_ERROR")?;
    ensure!(
        !said.is_empty() && said.len() as u64 <= most,
        "{} lines, 1 to {most} expected",
        said.len()
    );
    Ok(())
}
