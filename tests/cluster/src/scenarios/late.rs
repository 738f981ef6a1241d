//! What comes late for a port, a VPID or memory that has another owner by then. The work inside the nodes is done by
//! `guest/late.py`.

use super::expected::{OF_INPUT, REFUSED};
use super::node::{extoll, node, Options};
use super::on_pair;
use super::uapi::{install, nothing_left, USER};
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("security::commands_left_behind", commands).finds(OF_INPUT),
        on_pair("security::users_without_descriptor", users).finds(OF_INPUT),
        on_pair("raw::many_regions_silent_nic", many_regions).finds(REFUSED),
        on_pair("raw::no_table_silent_nic", no_table).finds(REFUSED),
        on_pair("raw::addresses_rest", addresses_rest).finds(REFUSED),
    ]
}

pub(super) fn late(lab: &Lab, user: u32, command: &str) -> Result<String> {
    let script = format!("exec python3 /tmp/guest/late.py --user {user} {command}");
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
    install(lab)?;
    let other = USER - 1;
    lab.ok(1, "rm -f /tmp/offer")?;
    let serve = format!("exec python3 /tmp/guest/uapi.py --user {other} serve /tmp/offer");
    let server = lab.spawn(1, &serve)?;
    let mut offer = String::new();
    lab.until("the server offers", PATIENCE, |lab| {
        offer = lab.sh_for(1, "cat /tmp/offer", PATIENCE)?.stdout;
        Ok(!offer.is_empty())
    })?;
    let before = node(lab, 0).reason(34)?;
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
    let kept = node(lab, 0).reason(34)?;
    ensure!(kept > before, "nobody says that it is kept");
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
    install(lab)?;
    for uid in [65_535, 65_536 + USER, 132_073] {
        late(lab, 0, &format!("stranger {uid}"))?;
    }
    node(lab, 0).reload(extoll("first_user=100000"))?;
    install(lab)?;
    let result = late(lab, 0, &format!("stranger {USER}"))
        .and_then(|_| lab.ok(0, "exec python3 /tmp/guest/uapi.py --user 132073 loop_back"));
    node(lab, 0).reload(Options::default())?;
    result?;
    nothing_left(lab, 0)
}

/// Regions of the process that ends.
const REGIONS: u64 = 500;

/// The end of a process with many regions waits for a NIC that does not answer once, not for each. All of them are kept from others until it
/// does.
fn many_regions(lab: &Lab) -> Result<()> {
    install(lab)?;
    // How long one wait is, here and now.
    let one = silent_end(lab, 1)?;
    ensure!(
        one >= 1.0,
        "the end of one region took {one} s, no wait for the NIC"
    );
    let many = silent_end(lab, REGIONS)?;
    ensure!(
        (1.0..3.0 * one).contains(&many),
        "the end took {many} s, that of one region {one} s"
    );
    nothing_left(lab, 0)
}

/// Seconds that the end of a process with so many regions takes while the NIC loses the driver's questions.
fn silent_end(lab: &Lab, regions: u64) -> Result<f64> {
    let node = node(lab, 0);
    lab.ok(0, "rm -f /tmp/registered /tmp/go")?;
    let (before, reported) = (node.atu("quarantined")?, node.reason(22)?);
    let process = lab.spawn(
        0,
        &format!("exec python3 /tmp/guest/late.py --user {USER} regions {regions}"),
    )?;
    node.until_file("/tmp/registered")?;
    ensure!(node.atu("regions")? == regions, "not all is registered");
    lab.fault(&["atu-lose", "0", "--every", "1"])?;
    lab.ok(0, "touch /tmp/go")?;
    let out = process.wait(PATIENCE);
    let kept = node.atu("quarantined");
    lab.fault(&["atu-lose", "0", "--every", "0"])?;
    let (out, kept) = (out?, kept? - before);
    ensure!(out.status == 0, "{out:?}");
    ensure!(kept == regions, "{kept} of {regions} regions are kept");
    ensure!(
        node.reason(22)? > reported,
        "nobody says that they are kept"
    );
    lab.until("nothing is in quarantine", PATIENCE, |_| {
        Ok(node.atu("quarantined")? == 0 && node.atu("regions")? == 0)
    })?;
    out.stdout.trim().parse().context("no time")
}

/// Registrations at a NIC that takes no table: more than there are words for its answers (256).
const REGISTRATIONS: usize = 300;

/// When the NIC does not take the first table, each registration fails, only the first one waits, and none costs memory.
fn no_table(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    node.reload(Options::default())?;
    install(lab)?;
    lab.fault(&["atu-lose", "0", "--every", "1"])?;
    let result = late(lab, USER, &format!("refused {REGISTRATIONS}"));
    let tables = node.atu("tables");
    lab.fault(&["atu-lose", "0", "--every", "0"])?;
    let told = result?;
    let seconds: Vec<f64> = told
        .split_whitespace()
        .map(|s| s.parse().with_context(|| told.clone()))
        .collect::<Result<_>>()?;
    ensure!(seconds.len() == REGISTRATIONS, "{} times", seconds.len());
    let waited = seconds.iter().filter(|s| **s >= 1.0).count();
    ensure!(
        seconds[0] >= 1.0 && waited < REGISTRATIONS / 4,
        "{waited} of {REGISTRATIONS} registrations waited: {told}"
    );
    ensure!(tables? == 1, "not just one table");
    // The next one asks again, without waiting; the one behind it finds the answer.
    late(lab, USER, "refused 1")?;
    lab.ok(
        0,
        &format!("exec python3 /tmp/guest/uapi.py --user {USER} loop_back"),
    )?;
    nothing_left(lab, 0)
}

/// How long NLAs rest (docs/driver.md).
const REST: Duration = Duration::from_secs(10);

/// NLAs that were given back are not given out again at once.
fn addresses_rest(lab: &Lab) -> Result<()> {
    const TIMES: usize = 4;
    lab.ok(1, "modprobe extoll_bench")?;
    let used = || -> Result<String> {
        let offer = lab.raw(1, "offer bytes=65536 seed=7")?;
        lab.raw(1, "withdraw")?;
        offer.get("nla").cloned().context("no nla")
    };
    // With the next region all earlier ones get up.
    std::thread::sleep(REST + Duration::from_secs(1));
    let start = Instant::now();
    let mut seen = BTreeSet::from([used()?]);
    let resting = node(lab, 1).atu("ranges_resting")?;
    ensure!(resting > 0, "no range rests");
    for _ in 0..TIMES {
        seen.insert(used()?);
    }
    let (now, took) = (node(lab, 1).atu("ranges_resting")?, start.elapsed());
    // Unless the first ones have got up meanwhile, which takes a slow kernel: all are different, and as many of each rest.
    ensure!(
        took >= REST || seen.len() == 1 + TIMES,
        "given out again: {seen:?}"
    );
    ensure!(
        took >= REST || now == (1 + TIMES as u64) * resting,
        "{now} ranges rest, {resting} of them of the first region"
    );
    lab.ok(1, "rmmod extoll_bench").map(drop)
}
