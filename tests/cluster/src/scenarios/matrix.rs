//! The conformance matrix of RMA, from a user program and through the kernel's transfers; windows
//! and multicast of user programs.
//!
//! Only a part of the cross product is tested, unless `MATRIX=full` or `FULL=1` is set.

use super::expected::REFUSED;
use super::fabric::FOUR;
use super::memory::{begin, end, expect, offer, Offer};
use super::node::full;
use super::userland::{built, finish, nothing_left, server};
use super::PAIR;
use crate::cluster::{Lab, Spec, WrongData, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Only every third of the small transfers is tested. Every combination of command, specification,
/// kind of address and size remains, with varying offsets, traffic classes and modifiers.
const EVERY: u32 = 3;
/// Path of the program in the nodes.
pub const PROGRAM: &str = "/tmp/extoll-conformance";
/// Number of huge pages of 2 MiB for both sides on one node.
const HUGE_PAGES: u32 = 16;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    let s = Scenario::new;
    vec![
        s("raw::rma_matrix", PAIR, kernel)
            .gate()
            .finds(REFUSED)
            .seconds(1200),
        s("userland::smfu_window", PAIR, window).finds(REFUSED),
        s("userland::velo_multicast", FOUR, multicast).finds(REFUSED),
        s("userland::rma_matrix", CONTIGUOUS, user)
            .finds(&["drops_rma_bad_command"])
            .seconds(2400),
    ]
}

/// Two nodes whose kernels reserve memory for large contiguous buffers.
const CONTIGUOUS: Spec = Spec::pair().append(&["cma=96M"]).memory(2560);

fn is_quick() -> bool {
    match std::env::var("MATRIX") {
        Ok(which) => which != "full",
        Err(_) => !full(),
    }
}

/// Copies the conformance program to a node.
pub fn install(lab: &Lab, node: usize) -> Result<()> {
    let program = built("extoll-conformance");
    let from = program.to_str().context("path")?;
    lab.run("cp", &[from, &format!("node{node}:{PROGRAM}")], PATIENCE)?;
    Ok(())
}

/// A user program gets the specified result for every combination of RMA command and operands.
fn user(lab: &Lab) -> Result<()> {
    let (options, patience) = match is_quick() {
        true => (format!("--every {EVERY}"), 900),
        false => ("--every 1 --full".to_string(), 1100),
    };
    for node in 0..2 {
        install(lab, node)?;
        lab.ok(
            node,
            &format!("echo {HUGE_PAGES} >/proc/sys/vm/nr_hugepages"),
        )?;
    }
    let (running, _) = server(lab, 1, &format!("{PROGRAM} matrix serve"), "ready")?;
    let mut total = 0;
    for place in ["--host node1", ""] {
        let command = format!("{PROGRAM} matrix run {place} {options}");
        let out = lab.sh_for(0, &command, Duration::from_secs(patience))?;
        for line in out.stdout.lines() {
            println!("        {line}");
        }
        ensure!(out.status == 0, "{command}: {}{}", out.stdout, out.stderr);
        ensure!(
            !out.stdout.contains("left out"),
            "not all combinations were tried"
        );
        let last = out.stdout.lines().last().unwrap_or("");
        let count = last.strip_prefix("ok ").context("no count")?;
        total += count.parse::<u64>()?;
    }
    finish(lab, 1, running)?;
    ensure!(total > 5000, "{total} combinations only");
    for node in 0..2 {
        lab.ok(node, "echo 0 >/proc/sys/vm/nr_hugepages")?;
    }
    nothing_left(lab)
}

/// Sizes in bytes of transfers by kernel modules: less than one command, exactly one command, and
/// several commands. Each transfer has one completion.
const KERNEL_SIZES: [u64; 4] = [4096, 1 << 20, 8 << 20, (8 << 20) + 4096];
/// Lengths and offsets of parts of a region.
const PARTS: [u64; 11] = [1, 8, 119, 120, 121, 495, 496, 497, 4095, 4096, 4097];
const PLACES: [u64; 4] = [0, 8, 4088, 4096 - 496];

/// Transfers of kernel modules move the right data for all kinds of memory, sizes and offsets.
fn kernel(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let mut total = 0;
    let mut seed = 200;
    for bytes in KERNEL_SIZES {
        let locals = ["pages", "buffer"];
        seed += 10;
        let there = offer(lab, "pages", bytes, "rw", seed)?;
        let all = locals
            .iter()
            .flat_map(|kind| (0..4).map(move |tc| (kind, tc)));
        let gets = all.map(|(kind, tc)| {
            format!(
                "copy dir=get kind={kind} {} bytes={bytes} seed={seed} tc={tc}",
                there.words
            )
        });
        total += copies(lab, 0, &gets.collect::<Vec<_>>())?;
        for (tc, kind) in locals.iter().enumerate() {
            seed += 1;
            let tc = (tc as u64 + bytes / 4096) % 4;
            let put = format!(
                "copy dir=put kind={kind} {} bytes={bytes} seed={seed} tc={tc}",
                there.words
            );
            total += copies(lab, 0, &[put])?;
            expect(
                &lab.raw(1, &format!("offered seed={seed}"))?,
                "mismatch",
                "none",
            )?;
        }
        // Node 1 reads its own memory.
        let own = format!("copy dir=get {} bytes={bytes} seed={seed}", there.words);
        total += copies(lab, 1, &[own])?;
        lab.raw(1, "withdraw")?;
    }
    // Bus addresses and registered pages, and parts of them at various offsets.
    for kind in ["pages", "bus"] {
        let there: Offer = offer(lab, kind, 16 << 10, "rw", 300)?;
        let pairs = PARTS
            .iter()
            .flat_map(|len| PLACES.iter().map(move |at| (len, at)));
        let gets = pairs.enumerate().map(|(n, (len, at))| {
            format!(
                "copy dir=get kind={kind} {} bytes=16384 len={len} offset={at} seed=300 tc={}",
                there.words,
                n % 4
            )
        });
        total += copies(lab, 0, &gets.collect::<Vec<_>>())?;
        let put = format!(
            "copy dir=put kind={kind} {} bytes=16384 seed=301",
            there.words
        );
        total += copies(lab, 0, &[put])?;
        expect(&lab.raw(1, "offered seed=301")?, "mismatch", "none")?;
        lab.raw(1, "withdraw")?;
    }
    println!("        {total} combinations");
    end(lab)
}

/// Runs commands of `extoll_bench` one after the other. Each must move the right data.
fn copies(lab: &Lab, node: usize, commands: &[String]) -> Result<usize> {
    let lines: Vec<String> = commands
        .iter()
        .map(|c| format!("{c} timeout_ms=30000"))
        .collect();
    let script = format!(
        "while read -r c; do exec 3<>/dev/extoll_bench; printf %s \"$c\" >&3; echo \"for $c\"; cat <&3; exec 3<&-; done <<'END'\n{}\nEND",
        lines.join("\n")
    );
    let text = lab.ok_for(node, &script, Duration::from_secs(180))?;
    let results: Vec<&str> = text.split("for copy ").skip(1).collect();
    ensure!(
        results.len() == commands.len(),
        "{} results of {}: {text}",
        results.len(),
        commands.len()
    );
    for r in &results {
        ensure!(r.contains("result ok"), "copy {r}");
        if !r.contains("dir=put") && !r.contains("mismatch none") {
            return Err(WrongData::error(format!("copy {r}")));
        }
    }
    Ok(results.len())
}

/// A window of one node reaches the exported memory of the other. Only privileged processes may
/// export memory.
fn window(lab: &Lab) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)] {
        for node in 0..2 {
            install(lab, node)?;
        }
        let (running, _) = server(lab, to, &format!("{PROGRAM} window export"), "ready")?;
        let said = lab
            .ok(from, &format!("{PROGRAM} window use {to}"))
            .with_context(|| format!("the server: {:?}", lab.ok(to, "cat /tmp/server.log")))?;
        ensure!(said == "ok\n", "{said}");
        finish(lab, to, running)?;
    }
    // Unprivileged processes are rejected.
    let user = "setpriv --reuid=1000 --regid=1000 --clear-groups --";
    let out = lab.sh_for(0, &format!("{user} {PROGRAM} window export"), PATIENCE)?;
    ensure!(
        out.status == 1 && out.stderr.contains("not permitted"),
        "{out:?}"
    );
    Ok(())
}

/// A message to group 63 reaches all nodes. The sender gets no copy or one copy of each message (HW
/// §9.2, G21).
fn multicast(lab: &Lab) -> Result<()> {
    let nodes = lab.spec().nodes;
    let mut listeners = vec![];
    let mut vpid = None;
    for node in 0..nodes {
        install(lab, node)?;
    }
    for node in 1..nodes {
        let (running, words) = server(lab, node, &format!("{PROGRAM} multicast listen"), "ready")?;
        let port = words.last().context("no port")?.clone();
        let same = vpid.get_or_insert(port.clone());
        ensure!(
            *same == port,
            "node{node} listens on port {port}, others on {same}"
        );
        listeners.push((node, running));
    }
    let vpid = vpid.context("no listener")?;
    let said = lab.ok(0, &format!("{PROGRAM} multicast send 63 {vpid}"))?;
    for (node, running) in listeners {
        finish(lab, node, running)?;
        let heard = lab.ok(node, "tail -n 1 /tmp/server.log")?;
        ensure!(heard == said, "node{node} heard {heard}, sent was {said}");
    }
    Ok(())
}
