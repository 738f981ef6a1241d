//! The stand-in for LNet (tests/lnet): helpers for scenarios, and a test that it detects mistakes
//! of a driver.

use crate::cluster::{modules, pairs, Lab, Running, WrongData, PATIENCE};
use crate::scenarios::node::{node, value};
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum duration of a command with its own time limits.
pub(super) const LONG: Duration = Duration::from_secs(240);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![on_pair("exlnd::stand_in_sees_mistakes", mistakes)]
}

/// Output of a command of the stand-in as pairs of name and value.
pub(super) type Said = BTreeMap<String, String>;

/// Returns the script that sends a command to the stand-in. Its exit status is not 0 if the command
/// failed.
pub(super) fn script(command: &str) -> String {
    format!("exec 3<>/dev/lnet_stand || exit; printf %s '{command}' >&3; rc=$?; cat <&3; exit $rc")
}

/// Runs a command, which must succeed.
pub(super) fn tell(lab: &Lab, n: usize, command: &str) -> Result<String> {
    lab.ok_for(n, &script(command), LONG)
}

/// Returns a number from the output of a command.
pub(super) fn number(said: &Said, name: &str) -> Result<i64> {
    let text = said.get(name);
    let text = text.with_context(|| format!("no {name} in {said:?}"))?;
    text.parse().with_context(|| format!("{name} {text}"))
}

/// Returns a counter of the LNet stand-in on node `n`.
pub(super) fn counter(lab: &Lab, n: usize, name: &str) -> Result<u64> {
    let text = tell(lab, n, "counters")?;
    value(&text, name).with_context(|| format!("no {name} in {text}"))
}

/// Returns the sum of a counter over the driver's interfaces.
pub(super) fn of_driver(lab: &Lab, n: usize, name: &str) -> Result<u64> {
    let text = lab.ok(n, "cat /sys/kernel/debug/kexlnd/interfaces")?;
    Ok(text.lines().filter_map(|l| value(l, name)).sum())
}

/// Loads the stand-in and the driver in a node.
pub(super) fn load(lab: &Lab, n: usize, options: &str) -> Result<()> {
    lab.ok(n, &modules::modprobe("kexlnd", options)).map(drop)
}

/// Returns the LNet address of a node with one NIC.
pub(super) fn nid(n: usize) -> String {
    format!("{}@ex", n + 1)
}

/// Adds the network `ex` and a service to all nodes.
pub(super) fn begin(lab: &Lab, options: &str) -> Result<()> {
    for n in 0..lab.spec().nodes {
        load(lab, n, options)?;
        let said = tell(lab, n, "net add ex ex0")?;
        ensure!(said.trim() == format!("nid {}", nid(n)), "{said}");
        tell(lab, n, "serve")?;
    }
    Ok(())
}

/// Waits until all messages are released in the stand-in, and checks for leaked memory.
pub(super) fn nothing_left(lab: &Lab, n: usize) -> Result<()> {
    lab.until("no message is left", PATIENCE, |lab| {
        Ok(number(&pairs(&tell(lab, n, "memory")?), "messages")? == 0)
    })?;
    let memory = pairs(&tell(lab, n, "memory")?);
    ensure!(number(&memory, "defects")? == 0, "node{n}: {memory:?}");
    // The memory that answers pings remains.
    ensure!(
        number(&memory, "mds")? == 2 && number(&memory, "pages")? == 3,
        "node{n}: memory is left: {memory:?}"
    );
    ensure!(number(&memory, "heap")? == 0, "node{n}: {memory:?}");
    Ok(())
}

/// Ends services and networks, unloads both modules, and checks that all memory is released.
pub(super) fn done(lab: &Lab) -> Result<()> {
    let nets = vec![["ex"].as_slice(); lab.spec().nodes];
    done_with(lab, &nets)
}

/// Does the work of [`done`] for nodes with these networks.
pub(super) fn done_with(lab: &Lab, nets: &[&[&str]]) -> Result<()> {
    done_by(lab, "kexlnd", nets)
}

/// Does the work of [`done_with`] for another driver.
pub(super) fn done_by(lab: &Lab, driver: &str, nets: &[&[&str]]) -> Result<()> {
    for n in 0..nets.len() {
        tell(lab, n, "serve stop")?;
    }
    for (n, nets) in nets.iter().enumerate() {
        nothing_left(lab, n)?;
        for net in *nets {
            tell(lab, n, &format!("net del {net}"))?;
        }
        lab.ok(n, &format!("rmmod {driver} && rmmod lnet_stand"))?;
        lab.until("nothing is registered", PATIENCE, |lab| {
            Ok(node(lab, n).atu("regions")? == 0)
        })?;
    }
    Ok(())
}

/// Runs a test of the stand-in in which each message must succeed.
pub(super) fn right(lab: &Lab, from: usize, to: &str, options: &str) -> Result<Said> {
    let said = pairs(&tell(lab, from, &format!("test to={to} {options}"))?);
    all_right(&said, options).with_context(|| format!("node{from} to {to}, {options}"))?;
    Ok(said)
}

/// Checks the output of a test: all messages succeeded, and no byte was wrong.
pub(super) fn all_right(said: &Said, options: &str) -> Result<()> {
    if number(said, "wrong")? != 0 {
        return Err(WrongData::error(format!("{said:?}")));
    }
    ensure!(number(said, "failed")? == 0, "{said:?}");
    let option = |name| options.split(' ').find_map(|o| o.strip_prefix(name));
    if option("seconds=").is_none() {
        let count = option("count=").unwrap_or("1");
        ensure!(count.parse() == Ok(number(said, "done")?), "{said:?}");
    } else {
        ensure!(number(said, "done")? > 0, "{said:?}");
    }
    Ok(())
}

/// Starts a test in the background.
pub(super) fn start(lab: &Lab, from: usize, to: &str, options: &str) -> Result<Running> {
    lab.spawn(from, &script(&format!("test to={to} {options}")))
}

/// Waits for a test. Returns its output.
pub(super) fn end(running: Running, patience: Duration) -> Result<Said> {
    let out = running.wait(patience)?;
    ensure!(out.status == 0, "{out:?}");
    Ok(pairs(&out.stdout))
}

/// Mistakes of `tests/lnet/misuse.c` by number, with the stand-in's warning. Number 0 is a correct
/// driver, without a warning.
const MISTAKES: [(u32, &str); 15] = [
    (0, ""),
    (1, "that has ended"),
    (2, "lnet_finalize in an interrupt"),
    (3, "lnet_finalize in a context that must not sleep"),
    (4, "lnet_finalize with status -5 and health 0"),
    (5, "refuses"),
    (6, "lnet_parse in an interrupt"),
    (7, "lnet_notify with a time in the future"),
    (8, "a message was written to after its end"),
    (9, "lnd_startup says EEXIST"),
    (10, "an interface without credits"),
    (11, "an interface without address"),
    (12, "is sent for more than 6 s"),
    (13, "are wrong"),
    (14, "are wrong"),
];

/// The stand-in detects each mistake of a small driver, and accepts the driver without mistakes.
fn mistakes(lab: &Lab) -> Result<()> {
    for (number_of, says) in MISTAKES {
        let about = format!("mistake {number_of}");
        lab.ok(
            0,
            &format!("dmesg -C; modprobe lnet_misuse mistake={number_of}"),
        )?;
        let added = lab.sh_for(0, &script("net add ex ex0"), PATIENCE)?;
        let starts = !(9..=11).contains(&number_of);
        ensure!((added.status == 0) == starts, "{about}: {added:?}");
        if starts {
            tell(lab, 0, "serve")?;
            for options in [
                "kind=ping ask=200 answer=200",
                "kind=read size=3000",
                "kind=write size=3000",
            ] {
                let options = format!("test to=1@ex {options} timeout=9000");
                let said = pairs(&tell(lab, 0, &options)?);
                ensure!(
                    number_of != 0 || number(&said, "done")? == 1,
                    "{about}: {said:?}"
                );
            }
            tell(lab, 0, "serve stop")?;
        }
        let memory = pairs(&tell(lab, 0, "memory")?);
        let seen = number(&memory, "defects")?;
        let log = lab.ok(0, "dmesg")?;
        ensure!(log.contains(says), "{about}: does not say '{says}': {log}");
        ensure!(
            (seen > 0) == (1..=12).contains(&number_of),
            "{about}: {seen} defects"
        );
        if starts {
            tell(lab, 0, "net del ex")?;
        }
        lab.ok(0, "rmmod lnet_misuse && rmmod lnet_stand")?;
    }
    // The stand-in reports by warnings that begin with its name and end with a call trace.
    lab.assert_clean_log_but(&["lnet_stand", "Call Trace"])
}
