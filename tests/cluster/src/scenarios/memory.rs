//! Registered memory, long transfers and locks, tested with `extoll_bench` without a network stack.

use super::expected::{NOTHING_THERE, REFUSED, REVOKED};
use super::faults::sum;
use super::guest;
use super::node::{extoll, node, Options};
use super::on_pair;
use crate::cluster::{Lab, Spec, WrongData, PATIENCE};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("raw::atu_memory", kinds).finds(REVOKED),
        on_pair("raw::atu_protection", protection).finds(NOTHING_THERE),
        on_pair("raw::atu_revoke", revoke).finds(REVOKED),
        on_pair("raw::atu_quarantine", quarantine).finds(REVOKED),
        on_pair("raw::atu_tables", tables).finds(REVOKED),
        on_pair("security::memory_of_processes", user).finds(REVOKED),
        on_pair("raw::locks", locks).finds(REFUSED),
        on_pair("raw::lost_answers", lost_answers).finds(REFUSED),
        on_pair("raw::large", large).finds(REFUSED),
        on_pair("driver::load_cost", load_cost).stock_only(),
        Scenario::new("raw::atu_gigantic", ROOMY, gigantic)
            .finds(REVOKED)
            .stock_only(),
    ]
}

/// A node with enough memory for a page of 1 GiB, which must be free and aligned.
const ROOMY: Spec = Spec::new(1).memory(4608);

/// Output of a command of `extoll_bench`.
pub type Lines = BTreeMap<String, String>;

pub fn begin(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        lab.ok(node, "modprobe extoll_bench")?;
    }
    Ok(())
}

/// Unloads the module and checks that nothing is left in the ATU.
pub fn end(lab: &Lab) -> Result<()> {
    for node in 0..2 {
        lab.ok(node, "rmmod extoll_bench")?;
        let node = super::node::node(lab, node);
        for gauge in ["regions", "pages", "quarantined"] {
            let left = node.atu(gauge)?;
            ensure!(left == 0, "node{}: {gauge} {left}", node.number);
        }
        let tables = node.atu("tables")?;
        ensure!(
            tables <= 1,
            "{tables} tables were not freed on node{}",
            node.number
        );
    }
    Ok(())
}

/// An offer on node 1, as words for the commands that use it.
pub struct Offer {
    /// Words for node, VPID and NLA.
    pub words: String,
    bytes: u64,
}

pub fn offer(lab: &Lab, kind: &str, bytes: u64, access: &str, seed: u64) -> Result<Offer> {
    offer_with(lab, kind, bytes, access, seed, "")
}

/// Offers memory on node 1 like [`offer`], with more words for the command.
pub fn offer_with(
    lab: &Lab,
    kind: &str,
    bytes: u64,
    access: &str,
    seed: u64,
    more: &str,
) -> Result<Offer> {
    let words = format!("kind={kind} bytes={bytes} access={access} seed={seed} {more}");
    let r = lab.raw(1, &format!("offer {words}"))?;
    // Bus addresses are not registered, so the driver reports no size.
    let reported = r.get("bytes").and_then(|n| n.parse().ok());
    parse(&r, 1, reported.unwrap_or(bytes))
}

impl Offer {
    /// Returns the NLA of the first byte.
    pub fn nla(&self) -> Result<u64> {
        let nla = self.words.split("nla=").nth(1).context("no NLA")?;
        Ok(nla.parse()?)
    }

    /// Returns the size in bytes as the driver of node 1 reported it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns another NLA of the same port.
    pub fn at(&self, nla: u64) -> Offer {
        let port = self.words.split(" nla=").next().unwrap_or("");
        Offer {
            words: format!("{port} nla={nla}"),
            bytes: self.bytes,
        }
    }
}

fn parse(r: &Lines, node: usize, bytes: u64) -> Result<Offer> {
    let get = |key: &str| r.get(key).with_context(|| format!("no {key} in {r:?}"));
    let words = format!("node={node} vpid={} nla={}", get("vpid")?, get("nla")?);
    Ok(Offer { words, bytes })
}

pub fn expect(r: &Lines, key: &str, want: &str) -> Result<()> {
    match r.get(key) {
        Some(v) if v == want => Ok(()),
        Some(_) if key == "mismatch" => Err(WrongData::error(format!("{r:?}"))),
        _ => bail!("{key} is not '{want}': {r:?}"),
    }
}

/// Reads an offer by GET into local memory of `kind` and checks the contents.
fn read_all(lab: &Lab, from: &Offer, kind: &str, seed: u64) -> Result<()> {
    let r = lab.raw(
        0,
        &format!(
            "copy dir=get kind={kind} {} bytes={} seed={seed} timeout_ms=60000",
            from.words, from.bytes
        ),
    )?;
    expect(&r, "result", "ok")?;
    expect(&r, "mismatch", "none")
}

/// Copies one page in direction `dir`, which must end with `result`.
pub fn try_page(lab: &Lab, dir: &str, to: &Offer, more: &str, result: &str) -> Result<()> {
    let r = lab.raw(
        0,
        &format!("copy dir={dir} {} bytes=4096 seed=99 {more}", to.words),
    )?;
    expect(&r, "result", result)
}

pub const NO_TRANSLATION: &str = "Responder Translation";

/// Loads the driver on a node with all sizes of hardware pages.
fn with_large_pages(lab: &Lab, number: usize) -> Result<()> {
    let node = node(lab, number);
    node.unload()?;
    node.load(extoll("extoll.atu_page_kib=1048576"))
}

/// Data can be copied from every kind of memory to every other kind. Hardware pages are large if
/// the memory permits it.
fn kinds(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        with_large_pages(lab, number)?;
    }
    let result = every_kind(lab);
    for number in 0..2 {
        node(lab, number).unload()?;
        node(lab, number).load(Options::default())?;
    }
    for number in [0, 1] {
        node(lab, number).address_back()?;
    }
    node(lab, 1).back()?;
    node(lab, 0).back()?;
    result
}

fn every_kind(lab: &Lab) -> Result<()> {
    for number in 0..2 {
        node(lab, number).runs()?;
    }
    begin(lab)?;
    let mut seed = 10;
    for (kind, bytes) in [("pages", 300 << 10), ("buffer", 1 << 20)] {
        seed += 1;
        let there = offer(lab, kind, bytes, "rw", seed)?;
        for local in ["pages", "buffer"] {
            read_all(lab, &there, local, seed)?;
        }
        // Copies a part that is not aligned to fragments or pages, on every traffic class.
        for tc in 0..4 {
            let r = lab.raw(
                0,
                &format!(
                    "copy dir=get {} bytes=65536 len=54320 offset=12328 seed={seed} tc={tc}",
                    there.words
                ),
            )?;
            expect(&r, "result", "ok")?;
            expect(&r, "mismatch", "none")?;
        }
        for local in ["pages", "buffer"] {
            seed += 1;
            let r = lab.raw(
                0,
                &format!(
                    "copy dir=put kind={local} {} bytes={bytes} seed={seed}",
                    there.words
                ),
            )?;
            expect(&r, "result", "ok")?;
            let r = lab.raw(1, &format!("offered seed={seed}"))?;
            expect(&r, "mismatch", "none")?;
        }
        // Node 1 reads its own memory.
        let r = lab.raw(
            1,
            &format!("copy dir=get {} bytes=65536 seed={seed}", there.words),
        )?;
        expect(&r, "mismatch", "none")?;
        lab.raw(1, "withdraw")?;
    }
    end(lab)
}

/// Checks that the registered memory of a node consists of exactly these hardware pages, given as
/// size in KiB and number.
pub fn nlps(lab: &Lab, node: usize, want: &[(u32, u64)]) -> Result<()> {
    let atu = lab.ok(node, "cat /sys/kernel/debug/extoll-*/atu")?;
    for size in [4, 8, 64, 2048, 1 << 20] {
        let n = want.iter().find(|(s, _)| *s == size).map_or(0, |(_, n)| *n);
        let line = format!("nlps_{size}KiB {n}");
        ensure!(atu.lines().any(|l| l == line), "no '{line}' in:\n{atu}");
    }
    Ok(())
}

/// Registered memory permits only the access for which it was registered, and only to its own
/// bytes. The origin of a rejected read gets an error. The port of the target is notified of a
/// rejected write.
fn protection(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let there = offer(lab, "pages", 64 << 10, "r", 5)?;
    read_all(lab, &there, "pages", 5)?;
    // The completer rejects the write and notifies the target's port. The memory does not change.
    let before = node(lab, 1).reason(9)?;
    try_page(lab, "put", &there, "", "ok")?;
    lab.until(
        "the target is notified of the rejected write",
        PATIENCE,
        |l| Ok(node(l, 1).reason(9)? == before + 1),
    )?;
    let r = lab.raw(1, "offered seed=5")?;
    expect(&r, "mismatch", "none")?;
    // Addresses behind the end of the region, in an absent table, and NLA 0.
    try_page(lab, "get", &there, "offset=65536", NO_TRANSLATION)?;
    try_page(lab, "get", &there, "offset=1000000000000", NO_TRANSLATION)?;
    try_page(lab, "get", &there.at(0), "", NO_TRANSLATION)?;
    // Accesses the memory through another open VPID of node 1.
    lab.raw(1, "serve")?;
    let status = lab.raw(1, "status")?;
    let vpid = status.get("rma_vpid").context("no rma_vpid")?;
    try_page(lab, "get", &there, &format!("vpid={vpid}"), NO_TRANSLATION)?;
    lab.raw(1, "stop")?;
    lab.raw(1, "withdraw")?;
    // Write-only memory cannot be read.
    let there = offer(lab, "pages", 4096, "w", 6)?;
    try_page(lab, "get", &there, "", NO_TRANSLATION)?;
    try_page(lab, "put", &there, "", "ok")?;
    let r = lab.raw(1, "offered seed=99")?;
    expect(&r, "mismatch", "none")?;
    // The driver checks the permission of local memory before it posts a command.
    let refused = lab.raw(
        0,
        &format!("copy dir=put access=w {} bytes=4096", there.words),
    )?;
    expect(&refused, "result", "Invalid")?;
    let refused = lab.raw(
        0,
        &format!("copy dir=get access=r {} bytes=4096", there.words),
    )?;
    expect(&refused, "result", "Invalid")?;
    lab.raw(1, "withdraw")?;
    // Bus addresses without memory cause another error.
    let there = offer(lab, "bus", 4096, "rw", 7)?;
    read_all(lab, &there, "bus", 7)?;
    try_page(
        lab,
        "get",
        &there,
        "kind=bus offset=70368744177664",
        "Responder Memory",
    )?;
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// Revoked memory can't be accessed any more, also during a transfer and when the NIC is unbound.
fn revoke(lab: &Lab) -> Result<()> {
    begin(lab)?;
    for round in 0..3 {
        let there = offer(lab, "buffer", 2 << 20, "rw", 20 + round)?;
        read_all(lab, &there, "buffer", 20 + round)?;
        expect(&lab.raw(1, "revoke")?, "result", "ok")?;
        try_page(lab, "get", &there, "", NO_TRANSLATION)?;
        try_page(lab, "put", &there, "", "ok")?;
        let r = lab.raw(1, &format!("offered seed={}", 20 + round))?;
        expect(&r, "mismatch", "none")?;
        lab.raw(1, "withdraw")?;
    }
    revoke_in_transfer(lab)?;
    // Unbinds the NIC while a region is in use.
    let there = offer(lab, "pages", 1 << 20, "rw", 40)?;
    read_all(lab, &there, "pages", 40)?;
    node(lab, 1).unbind()?;
    node(lab, 1).bind()?;
    lab.until_it_works("the NIC is up again", PATIENCE, |lab| {
        Ok(lab.raw(1, "status")?.get("up").is_some_and(|v| v == "1"))
    })?;
    end(lab)?;
    node(lab, 1).back()?;
    node(lab, 0).back()?;
    node(lab, 0).pings(3, "-i 0.2")
}

/// Revokes memory during a transfer. The bytes that were transferred before are right, and the next
/// command is rejected. The transfer of 48 MiB has commands of 8 MiB, of which four are outstanding
/// (docs/driver.md). At least two commands therefore follow the revocation.
fn revoke_in_transfer(lab: &Lab) -> Result<()> {
    let served = |lab: &Lab| -> Result<u64> { Ok(sum(&lab.status()?, "rma_served_bytes")) };
    for round in 0..2 {
        let there = offer(lab, "pages", 48 << 20, "rw", 30)?;
        let before = served(lab)?;
        lab.fault(&["slow", "--bytes-per-second", "8000000"])?;
        let run = lab.spawn(
            0,
            &format!(
                "exec 3<>/dev/extoll_bench; printf %s 'copy dir=get {} bytes={} seed=30 timeout_ms=50000' >&3; cat <&3",
                there.words, there.bytes
            ),
        )?;
        let started = lab.until("the transfer is in flight", PATIENCE, |lab| {
            Ok(served(lab)? > before)
        });
        let revoked = started.and_then(|()| lab.raw(1, "revoke"));
        lab.fault(&["slow", "--bytes-per-second", "0"])?;
        expect(&revoked?, "result", "ok")?;
        let out = run.wait(PATIENCE)?;
        let r = crate::cluster::pairs(&out.stdout);
        expect(&r, "result", NO_TRANSLATION).with_context(|| format!("round {round}"))?;
        ensure!(
            served(lab)? - before < there.bytes,
            "all was served, revoked or not"
        );
        lab.raw(1, "withdraw")?;
    }
    // A transfer that ended before the revocation is not affected.
    let there = offer(lab, "pages", 8 << 20, "rw", 31)?;
    read_all(lab, &there, "pages", 31)?;
    expect(&lab.raw(1, "revoke")?, "result", "ok")?;
    expect(&lab.raw(1, "offered seed=31")?, "mismatch", "none")?;
    lab.raw(1, "withdraw").map(drop)
}

/// Frequent registration needs a new address table only when the slots of the previous table are
/// used up.
fn tables(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let made = |lab| node(lab, 0).atu("tables_made");
    // Uses the slots of 2.5 tables, each of which is held off for 10 s.
    let (before, start) = (made(lab)?, Instant::now());
    lab.raw(
        0,
        "register kind=pages bytes=33554432 count=80 timeout_ms=60000",
    )?;
    let (new, took) = (made(lab)? - before, start.elapsed());
    // On a slow host, slots become free again during the test.
    if took >= Duration::from_secs(9) {
        println!("        {new} tables were made in {took:?}, too slow to say anything");
    } else {
        ensure!((1..=3).contains(&new), "{new} tables were made for 2.5");
    }
    end(lab)
}

fn quarantined(lab: &Lab) -> Result<u64> {
    node(lab, 1).atu("quarantined")
}

/// When the NIC confirms the end of a region too late or not at all, the region's memory, VPID and
/// NLA stay in quarantine until the confirmation.
fn quarantine(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let reported = node(lab, 1).reason(22)?;
    for (fault, on, off) in [
        ("atu-lose", ["--every", "1"], ["--every", "0"]),
        ("atu-delay", ["--ms", "8000"], ["--ms", "0"]),
    ] {
        let old = offer(lab, "pages", 64 << 10, "rw", 60)?;
        read_all(lab, &old, "pages", 60)?;
        lab.fault(&[fault, "node1", on[0], on[1]])?;
        expect(&lab.raw(1, "revoke")?, "result", "ETIMEDOUT")?;
        ensure!(quarantined(lab)? == 1, "{fault}: not in quarantine");
        lab.raw(1, "withdraw")?;
        // The VPID and the NLA of the region in quarantine are not assigned again.
        let new = offer(lab, "pages", 64 << 10, "rw", 61)?;
        let field = |o: &Offer, n| o.words.split(' ').nth(n).map(str::to_owned);
        for n in [1, 2] {
            ensure!(
                field(&old, n) != field(&new, n),
                "{fault}: given out again: {}",
                new.words
            );
        }
        // Late packets for the old region do not change the new region.
        lab.raw(
            0,
            &format!(
                "copy dir=put {} bytes=65536 seed=62 timeout_ms=500",
                old.words
            ),
        )?;
        expect(&lab.raw(1, "offered seed=61")?, "mismatch", "none")?;
        read_all(lab, &new, "pages", 61)?;
        lab.fault(&[fault, "node1", off[0], off[1]])?;
        lab.until("the region left the quarantine", PATIENCE, |l| {
            Ok(quarantined(l)? == 0)
        })?;
        expect(&lab.raw(1, "revoke")?, "result", "ok")?;
        lab.raw(1, "withdraw")?;
    }
    let reported = node(lab, 1).reason(22)? - reported;
    ensure!(reported == 2, "counted {reported} instead of 2");
    end(lab)
}

/// A page of 1 GiB is covered by a single entry.
fn gigantic(lab: &Lab) -> Result<()> {
    let starts: [u64; 4] = [0, (2 << 20) - 4096, (517 << 20) + 64, (1 << 30) - 65536];
    with_large_pages(lab, 0)?;
    node(lab, 0).runs()?;
    lab.ok(0, "cd /sys/kernel/mm/hugepages/hugepages-1048576kB && echo 1 >nr_hugepages && grep -qx 1 nr_hugepages")?;
    let places = starts.map(|s| s.to_string()).join(" ");
    program(lab, 0, &format!("gigantic {places}"))
}

/// Runs a command of `guest/memory.py` on a node.
fn program(lab: &Lab, number: usize, command: &str) -> Result<()> {
    guest::install(lab, number)?;
    let line = format!("exec {} {command}", guest::program("memory"));
    lab.ok_for(number, &line, PATIENCE).map(drop)
}

fn user(lab: &Lab) -> Result<()> {
    with_large_pages(lab, 1)?;
    let result = node(lab, 1).runs().and_then(|()| changed_memory(lab));
    node(lab, 1).reload(Options::default())?;
    result
}

/// The NIC reaches registered memory of a process only while the memory belongs to the process.
fn changed_memory(lab: &Lab) -> Result<()> {
    // Enables huge pages, because the kernel disables them on machines as small as the nodes.
    lab.ok(
        1,
        "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
    )?;
    let all = "munmap mremap dontneed exit fork huge protect pageout none punch shrink";
    for what in all.split(' ') {
        program(lab, 1, &format!("changed {what}")).with_context(|| format!("memory of {what}"))?;
    }
    program(lab, 1, "refused")?;
    node(lab, 1).is_vacant()
}

/// Locks are atomic between both nodes.
fn locks(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let there = offer(lab, "pages", 4096, "rw", 1)?;
    let count = 400;
    let command = |more: &str| format!("lock {} {more}", there.words);
    let script = format!(
        "exec 3<>/dev/extoll_bench; printf %s '{}' >&3; cat <&3",
        command(&format!("number=3 count={count} timeout_ms=30000"))
    );
    // Both nodes use the locks of node 1 at the same time.
    let runs = [lab.spawn(0, &script)?, lab.spawn(1, &script)?];
    for run in runs {
        let out = run.wait(PATIENCE)?;
        let r = crate::cluster::pairs(&out.stdout);
        expect(&r, "result", "ok")?;
        expect(&r, "successes", &count.to_string())?;
    }
    let r = lab.raw(0, &command("number=3 count=1 add=0"))?;
    expect(&r, "value", &(2 * count).to_string())?;
    // The comparison decides, and locks are independent of each other.
    let r = lab.raw(0, &command("number=4 count=10 compare=4"))?;
    expect(&r, "successes", "5")?;
    expect(&r, "value", "5")?;
    let r = lab.raw(0, &command("number=16 count=1"))?;
    ensure!(
        r.get("result").is_some_and(|v| v.ends_with(" Lock")),
        "lock 16 exists: {r:?}"
    );
    // Closing the port resets its locks to zero.
    lab.raw(1, "withdraw")?;
    let again = offer(lab, "pages", 4096, "rw", 1)?;
    let r = lab.raw(0, &format!("lock {} number=3 count=1 add=0", again.words))?;
    expect(&r, "value", "0")?;
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// A lost answer lets only its own operation time out. Later operations succeed, although their
/// answers look the same.
fn lost_answers(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let there = offer(lab, "pages", 4096, "rw", 1)?;
    let mut rounds = 0;
    for lost in [1, 3] {
        let count = lost.to_string();
        // The fault may hit a message of the driver to itself, sent when the port of the previous
        // round is closed. Then no answer is lost, and all operations succeed.
        for tries in 0.. {
            lab.fault(&["dma-fault", "0", "--ring", "rma", "--count", &count])?;
            rounds += 1;
            // The time-out is longer than a busy host may stall, because a stall would add a
            // time-out.
            let command = "number=2 count=12 timeout_ms=5000 patience=12";
            let r = lab.raw(0, &format!("lock {} {command}", there.words))?;
            expect(&r, "result", "ok")?;
            let timeouts: u32 = r.get("timeouts").context("no timeouts")?.parse()?;
            let done: u32 = r.get("value").context("no value")?.parse()?;
            let successes: u32 = r.get("successes").context("no successes")?.parse()?;
            ensure!(timeouts + successes == 12, "{lost} lost: {r:?}");
            // The lost answer belongs either to an operation or to the query for a late answer.
            let all = 12 * rounds;
            ensure!(done > all - 4 && done <= all, "{lost} lost: {r:?}");
            if timeouts == 0 && tries < 2 {
                continue;
            }
            ensure!((1..=lost).contains(&timeouts), "{lost} lost: {r:?}");
            break;
        }
    }
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// Transfers larger than one command move the right data, and time out once if the peer is missing.
fn large(lab: &Lab) -> Result<()> {
    begin(lab)?;
    // The transfer needs three commands. The last command is short.
    let bytes = (17 << 20) + 3 * 4096;
    let there = offer(lab, "pages", bytes, "rw", 50)?;
    read_all(lab, &there, "buffer", 50)?;
    let r = lab.raw(
        0,
        &format!(
            "copy dir=put kind=pages {} bytes={bytes} seed=51 timeout_ms=60000",
            there.words
        ),
    )?;
    expect(&r, "result", "ok")?;
    expect(&lab.raw(1, "offered seed=51")?, "mismatch", "none")?;
    lab.raw(1, "withdraw")?;
    // The port does not exist, so the transfer ends with one error at the deadline.
    for dir in ["get", "put"] {
        let start = Instant::now();
        let r = lab.raw(
            0,
            &format!("copy dir={dir} node=1 vpid=200 nla=4096 bytes={bytes} timeout_ms=1500"),
        )?;
        expect(&r, "result", "TimedOut")?;
        ensure!(
            start.elapsed() < PATIENCE,
            "{dir}: the deadline was not kept"
        );
    }
    // The local port still works.
    let there = offer(lab, "pages", 64 << 10, "rw", 52)?;
    read_all(lab, &there, "pages", 52)?;
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// Releases the kernel's caches before memory in use is measured: page cache, free objects in
/// per-CPU lists, free pages. KASAN of a debug kernel keeps freed objects too, until their cache is
/// shrunk.
pub(super) const SETTLE: &str = "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; \
     for c in /sys/kernel/slab/*/shrink; do echo 1 >$c; done 2>/dev/null; echo 1 >/proc/sys/vm/compact_memory";

/// `extoll.ko` uses little memory with one NIC and no client: 7 MiB when this test was written.
///
/// The kernel does not count the pages in per-CPU lists as free. These lists hold up to an eighth
/// of the memory. The test adds their pages; otherwise the result would vary between 0 and 17 MiB.
fn load_cost(lab: &Lab) -> Result<()> {
    const LIMIT_KIB: i64 = 10 << 10;
    let script = format!(
        "{SETTLE}; echo 3 >/proc/sys/vm/drop_caches; \
         lists=$(awk '$1 == \"count:\" {{ n += $2 }} END {{ print n * 4 }}' /proc/zoneinfo); \
         awk -v lists=$lists '/^(MemFree|MemAvailable):/ {{ print $1, $2 + lists }} \
            /^(CmaFree|VmallocUsed):/ {{ print $1, $2 }}' /proc/meminfo; \
         awk '!/ioremap/ {{ n += $2 }} END {{ print \"vmalloc\", n / 1024 }}' /proc/vmallocinfo"
    );
    let measure = || -> Result<BTreeMap<String, i64>> {
        let text = lab.ok(0, &script)?;
        crate::cluster::pairs(&text)
            .into_iter()
            .map(|(k, v)| Ok((k, v.parse::<f64>()? as i64)))
            .collect()
    };
    node(lab, 0).unload()?;
    // The second load is measured, so that the caches that the first load fills do not count.
    lab.ok(0, "modprobe extoll && rmmod extoll")?;
    let before = measure()?;
    lab.ok(0, "modprobe extoll")?;
    let after = measure()?;
    lab.ok(0, "modprobe exn && modprobe af_extl")?;
    node(lab, 0).back()?;
    for (key, sign) in [
        ("MemFree:", -1),
        ("MemAvailable:", -1),
        ("CmaFree:", -1),
        ("VmallocUsed:", 1),
        ("vmalloc", 1),
    ] {
        let cost = match (before.get(key), after.get(key)) {
            (Some(before), Some(after)) => sign * (after - before),
            // The kernel has no CMA.
            (None, None) if key == "CmaFree:" => continue,
            _ => bail!("no {key} in {before:?} {after:?}"),
        };
        ensure!(
            cost < LIMIT_KIB,
            "loading costs {cost} KiB by {key} {before:?} {after:?}"
        );
    }
    let cost = before.get("MemFree:").unwrap_or(&0) - after.get("MemFree:").unwrap_or(&0);
    ensure!(cost > 0, "the measurement does not see the module");
    Ok(())
}
