//! What comes late for a port, a VPID or memory that has another owner by then. The work inside the nodes is done by
//! `guest/late.py`.

use super::uapi::{install, nothing_left, USER};
use super::{on_pair, reload};
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("../../guest/late.py");

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("security::commands_left_behind", commands),
        on_pair("security::users_without_descriptor", users),
        on_pair("raw::many_regions_silent_nic", many_regions),
        on_pair("raw::no_table_silent_nic", no_table),
        on_pair("raw::addresses_rest", addresses_rest),
    ]
}

fn prepare(lab: &Lab) -> Result<()> {
    install(lab)?;
    lab.ok(
        0,
        &format!("cat >/tmp/late.py <<'END_OF_PROGRAM'\n{PROGRAM}\nEND_OF_PROGRAM\n"),
    )
    .map(drop)
}

fn late(lab: &Lab, user: u32, command: &str) -> Result<String> {
    let script = format!("exec python3 /tmp/late.py --user {user} {command}");
    lab.ok_for(0, &script, Duration::from_secs(120))
}

/// VPIDs that the superuser gets.
fn free(lab: &Lab) -> Result<Vec<String>> {
    let list = late(lab, 0, "free")?;
    Ok(list.split_whitespace().map(String::from).collect())
}

/// A process ends while the NIC cannot execute what it posted: nobody gets its VPID before that is done, so the commands neither go out in
/// the name of somebody else nor reach a port of the one to whom they would then be allowed.
fn commands(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    let other = USER - 1;
    lab.ok(1, "rm -f /tmp/offer")?;
    let serve = format!("exec python3 /tmp/uapi.py --user {other} serve /tmp/offer");
    let server = lab.spawn(1, &serve)?;
    let mut offer = String::new();
    lab.until("the server offers", PATIENCE, |lab| {
        offer = lab.sh_for(1, "cat /tmp/offer", PATIENCE)?.stdout;
        Ok(!offer.is_empty())
    })?;
    lab.fault(&["freeze", "0"])?;
    let frozen = (|| -> Result<String> {
        let vpid = late(lab, USER, &format!("leave '{offer}'"))?
            .trim()
            .to_string();
        let had = free(lab)?;
        ensure!(had.len() > 200, "only {} VPIDs are free", had.len());
        ensure!(!had.contains(&vpid), "VPID {vpid} is given to others");
        Ok(vpid)
    })();
    lab.fault(&["thaw", "0"])?;
    let vpid = frozen?;
    let counters = lab.ok(0, "cat /sys/kernel/debug/extoll-*/counters")?;
    let line = counters.lines().find(|l| l.starts_with("reason 34 "));
    ensure!(
        line.is_some_and(|l| !l.starts_with("reason 34 0 ")),
        "nobody says that it is kept: {line:?}"
    );
    lab.until("the VPID is there again", PATIENCE, |lab| {
        Ok(free(lab)?.contains(&vpid))
    })?;
    // The server answers what reaches it; the answer would be for this one.
    late(lab, other, &format!("heir {vpid}"))?;
    lab.ok(1, "pkill -KILL -f '[u]api.py.* serve'")?;
    server.stop();
    nothing_left(lab, 0)?;
    nothing_left(lab, 1)
}

/// Users whose number is beyond the descriptors are refused, unless the range begins elsewhere.
fn users(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    for uid in [65_535, 65_536 + USER, 132_073] {
        late(lab, 0, &format!("stranger {uid}"))?;
    }
    reload(lab, 0, "first_user=100000")?;
    prepare(lab)?;
    let result = late(lab, 0, &format!("stranger {USER}"))
        .and_then(|_| lab.ok(0, "exec python3 /tmp/uapi.py --user 132073 loop_back"));
    reload(lab, 0, "")?;
    result?;
    nothing_left(lab, 0)
}

/// The end of a process with many regions waits for a NIC that does not answer once, not for each.
fn many_regions(lab: &Lab) -> Result<()> {
    prepare(lab)?;
    lab.ok(0, "rm -f /tmp/registered /tmp/go")?;
    let process = lab.spawn(
        0,
        &format!("exec python3 /tmp/late.py --user {USER} regions 500"),
    )?;
    lab.until("all is registered", PATIENCE, |lab| {
        Ok(lab.sh_for(0, "test -e /tmp/registered", PATIENCE)?.status == 0)
    })?;
    lab.fault(&["atu-lose", "0", "--every", "1"])?;
    lab.ok(0, "touch /tmp/go")?;
    let out = process.wait(PATIENCE);
    lab.fault(&["atu-lose", "0", "--every", "0"])?;
    let out = out?;
    ensure!(out.status == 0, "{out:?}");
    let seconds: f64 = out.stdout.trim().parse().context("no time")?;
    // One second of waiting, not 500; the rest is the machine.
    ensure!((1.0..250.0).contains(&seconds), "the end took {seconds} s");
    lab.until("nothing is in quarantine", PATIENCE, |lab| {
        let atu = lab.ok(0, "cat /sys/kernel/debug/extoll-*/atu")?;
        Ok(atu.contains("quarantined 0\n") && atu.contains("regions 0\n"))
    })?;
    nothing_left(lab, 0)
}

/// When the NIC does not take the first table, each registration fails, only the first one waits, and none costs memory.
fn no_table(lab: &Lab) -> Result<()> {
    reload(lab, 0, "")?;
    prepare(lab)?;
    lab.fault(&["atu-lose", "0", "--every", "1"])?;
    let start = Instant::now();
    let result = late(lab, USER, "refused 300");
    let seconds = start.elapsed().as_secs();
    lab.fault(&["atu-lose", "0", "--every", "0"])?;
    result?;
    // A second each if every one waited.
    ensure!(seconds < 150, "{seconds} s for 300 registrations");
    let atu = lab.ok(0, "cat /sys/kernel/debug/extoll-*/atu")?;
    ensure!(atu.contains("tables 1\n"), "{atu}");
    lab.until("the NIC takes the table", PATIENCE, |lab| {
        let command = format!("exec python3 /tmp/uapi.py --user {USER} loop_back");
        Ok(lab.sh_for(0, &command, PATIENCE)?.status == 0)
    })?;
    nothing_left(lab, 0)
}

/// NLAs that were given back are not given out again at once.
fn addresses_rest(lab: &Lab) -> Result<()> {
    lab.ok(1, "modprobe extoll_bench")?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let offer = lab.raw(1, "offer bytes=65536 seed=7")?;
        seen.push(offer.get("nla").context("no nla")?.clone());
        lab.raw(1, "withdraw")?;
    }
    seen.dedup();
    ensure!(seen.len() == 3, "given out again: {seen:?}");
    let atu = lab.ok(1, "cat /sys/kernel/debug/extoll-*/atu")?;
    ensure!(!atu.contains("ranges_resting 0\n"), "nothing rests: {atu}");
    lab.ok(1, "rmmod extoll_bench").map(drop)
}
