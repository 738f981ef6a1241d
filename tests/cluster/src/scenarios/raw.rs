//! VELO and RMA without a network stack: `extoll_bench`, which compares all transferred data.

use super::expected::{OF_INPUT, REFUSED};
use super::node::node;
use super::on_pair;
use crate::cluster::{Lab, WrongData, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("raw::velo_and_rma", velo_and_rma)
            .gate()
            .finds(REFUSED),
        on_pair("raw::streams_and_registration", streams).finds(REFUSED),
        on_pair("raw::bad_commands", bad_commands).finds(OF_INPUT),
        on_pair("raw::unbind_during_a_run", unbind).finds(REFUSED),
    ]
}

fn load(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        lab.ok(node, "modprobe extoll_bench")?;
        lab.raw(node, "serve")?;
    }
    Ok(())
}

fn unload(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        lab.ok(n, "rmmod extoll_bench")?;
        // Only the ports of the network driver, of sockets and of remote register access may
        // remain. Other ports disappear when their unit has executed their last commands.
        let what = format!("no other ports are left open on node{n}");
        lab.until(&what, PATIENCE, |lab| {
            let mut ports = node(lab, n).ports()?;
            ports.retain(|p| ![252, 253, 254].contains(&p.vpid));
            Ok(ports.is_empty())
        })?;
    }
    Ok(())
}

pub(super) fn number(result: &BTreeMap<String, String>, key: &str) -> Result<u64> {
    let text = result
        .get(key)
        .with_context(|| format!("no {key} in {result:?}"))?;
    text.parse().with_context(|| format!("{key} is {text}"))
}

/// Messages, GETs and PUTs of all sizes arrive unchanged in both directions.
fn velo_and_rma(lab: &Lab) -> Result<()> {
    load(lab)?;
    for size in [8, 64, 120] {
        let mode = if size == 64 { "poll" } else { "irq" };
        let r = lab.raw(
            0,
            &format!("pingpong node=1 size={size} count=200 mode={mode} timeout_ms=60000"),
        )?;
        ensure!(number(&r, "verified")? >= 200, "{r:?}");
    }
    for verb in ["get", "put"] {
        for size in [8, 64, 496, 504, 4096, 65536, 1 << 20] {
            // One case runs from node 1, to test both directions.
            let (here, there) = if size == 4096 { (1, 0) } else { (0, 1) };
            let r = lab.raw(
                here,
                &format!("{verb} node={there} size={size} count=24 timeout_ms=60000"),
            )?;
            let inflight = number(&r, "inflight")?;
            ensure!(number(&r, "count")? == 24, "{r:?}");
            ensure!(number(&r, "verified_bytes")? == inflight * size, "{r:?}");
        }
    }
    let status = lab.raw(1, "status")?;
    if number(&status, "bad")? != 0 {
        return Err(WrongData::error(format!(
            "the server saw bad messages: {status:?}"
        )));
    }
    ensure!(
        number(&status, "puts")? == 6 * 24,
        "PUTs were lost: {status:?}"
    );
    unload(lab)
}

fn refused(lab: &Lab, command: &str, why: &str) -> Result<()> {
    match lab.raw(0, command) {
        Ok(r) => anyhow::bail!("'{command}' was accepted: {r:?}"),
        Err(e) => {
            let text = format!("{e:#}");
            ensure!(
                text.contains(why),
                "'{command}' was refused, but not for '{why}': {text}"
            );
            Ok(())
        }
    }
}

/// The operations that the benchmark compares with user space work.
fn streams(lab: &Lab) -> Result<()> {
    load(lab)?;
    // The benchmark sends 1,500 messages. Three of them request a reply.
    for mode in ["irq", "poll"] {
        let r = lab.raw(
            0,
            &format!("rate node=1 size=24 count=1500 mode={mode} timeout_ms=60000"),
        )?;
        ensure!(number(&r, "count")? == 1500, "{r:?}");
    }
    let status = lab.raw(1, "status")?;
    ensure!(
        number(&status, "data")? == 2 * 1497 && number(&status, "bad")? == 0,
        "messages were lost: {status:?}"
    );
    let bytes = 8 << 20;
    let offer = lab.raw(
        1,
        &format!("offer kind=pages bytes={bytes} access=rw seed=5"),
    )?;
    let memory = format!("vpid={} nla={}", offer["vpid"], offer["nla"]);
    let stream = |words: &str| {
        lab.raw(
            0,
            &format!("stream node=1 {memory} {words} timeout_ms=60000"),
        )
    };
    for (words, count) in [
        ("dir=put bytes=8388608 count=3 inflight=2 seed=6", 3),
        ("dir=get bytes=8388608 count=2 inflight=2 seed=6", 2),
        (
            "dir=get bytes=65536 len=4096 offset=8192 count=600 inflight=64 seed=6 mode=poll",
            600,
        ),
        ("dir=put bytes=4096 len=8 count=600 seed=6", 600),
    ] {
        let r = stream(words)?;
        ensure!(number(&r, "count")? == count, "{words}: {r:?}");
        ensure!(
            words.contains("put") || r["mismatch"] == "none",
            "{words}: {r:?}"
        );
    }
    let there = lab.raw(1, "offered seed=6")?;
    ensure!(there["mismatch"] == "none", "{there:?}");
    let command = |words: &str| format!("stream node=1 {memory} {words}");
    refused(lab, &command(""), "bytes is a multiple of")?;
    refused(lab, &command("bytes=4096 len=4097"), "at most bytes")?;
    refused(lab, &command("bytes=16777216"), "len is 1 to 8388608")?;
    refused(lab, &command("bytes=4096 kind=bus"), "has no NLA")?;
    refused(lab, &command("bytes=4096 inflight=0"), "at least 1")?;
    lab.raw(1, "revoke")?;
    refused(lab, &command("bytes=4096 count=4"), "notification")?;
    lab.raw(1, "withdraw")?;
    for kind in ["pages", "buffer"] {
        let r = lab.raw(0, &format!("register kind={kind} bytes=2097152 count=5"))?;
        ensure!(
            number(&r, "count")? == 5 && number(&r, "register_ns")? > 0,
            "{r:?}"
        );
    }
    refused(lab, "register kind=bus bytes=4096", "cannot register")?;
    unload(lab)
}

/// Invalid commands fail with a reason and leave the port usable.
fn bad_commands(lab: &Lab) -> Result<()> {
    load(lab)?;
    let refused = |command: &str, why: &str| refused(lab, command, why);
    refused("nonsense", "unknown command")?;
    refused("pingpong", "node= is missing")?;
    refused("pingpong node=1 size=121", "size is 8 to 120")?;
    refused("get node=1 size=12", "multiple of 8")?;
    refused("get node=1 size=2097152", "size is a number of 0 to")?;
    refused("get node=1 node", "not of the form")?;
    refused("status nic=1", "no NIC number 1")?;
    refused("serve", "cannot serve")?;
    // VPID 7 is closed, so the commands end at their deadline.
    refused("pingpong node=1 vpid=7 timeout_ms=500", "ended early")?;
    refused("get node=1 vpid=7 timeout_ms=500", "no answer from node 1")?;
    // The failed commands left no resource in use.
    lab.raw(0, "get node=1 size=4096 count=8")?;
    lab.raw(0, "stop")?;
    refused("stop", "no server to stop")?;
    unload(lab)
}

/// Commands in progress end with an error when a NIC is unbound. The NIC works after it is bound
/// again.
fn unbind(lab: &Lab) -> Result<()> {
    load(lab)?;
    // Both ends are busy when first node 1 and then node 0 loses its NIC.
    let run = lab.spawn(
        0,
        "exec 3<>/dev/extoll_bench; printf %s 'pingpong node=1 count=1000000 timeout_ms=40000' >&3; echo rc $?; cat <&3",
    )?;
    lab.until("the server of node 1 answers", PATIENCE, |lab| {
        Ok(number(&lab.raw(1, "status")?, "served")? > 50)
    })?;
    node(lab, 0).unbind()?;
    node(lab, 0).bind()?;
    let out = run.wait(PATIENCE)?;
    ensure!(
        out.stdout.contains("rc 1") && out.stdout.contains("ENODEV"),
        "the run did not end by the unbinding: {out:?}"
    );
    node(lab, 1).unbind()?;
    node(lab, 1).bind()?;
    for node in 0..2 {
        lab.until_it_works("the NIC is up again", PATIENCE, |lab| {
            Ok(number(&lab.raw(node, "status")?, "up")? == 1)
        })?;
        lab.raw(node, "serve")?;
    }
    lab.raw(1, "get node=0 size=65536 count=8")?;
    unload(lab)?;
    // The interfaces were removed with the NIC.
    for n in 0..2 {
        node(lab, n).address_back()?;
    }
    node(lab, 0).back()?;
    node(lab, 0).pings(3, "-i 0.2")
}
