//! Many regions, regions with unaligned ends, regions that are prepared in advance, and limits on
//! the driver's resources that a user's regions may occupy. `extoll_bench` and `guest/bounds.py` do
//! the work.

use super::expected::{OF_INPUT, REFUSED, REVOKED};
use super::memory::{begin, end, expect, nlps, offer_with, try_page, NO_TRANSLATION};
use super::node::{extoll, node, Options};
use super::on_pair;
use super::raw::number;
use super::uapi::{install, nothing_left, USER};
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("raw::atu_bytes", bytes).finds(REVOKED),
        on_pair("raw::atu_many", many).finds(REVOKED),
        on_pair("raw::atu_reserve", reserve).finds(REVOKED),
        on_pair("raw::atu_buffers", buffers).finds(REVOKED),
        on_pair("raw::atu_pages_4k", small_pages).finds(REVOKED),
        on_pair("raw::addresses_rest", addresses_rest).finds(REFUSED),
        on_pair("security::tables_of_users", tables_of_users).finds(OF_INPUT),
    ]
}

/// A region may begin and end within pages. Peers reach the region by the NLA of its first byte.
/// They also reach the remainder of its pages, but nothing beyond these pages.
fn bytes(lab: &Lab) -> Result<()> {
    const FIRST: u64 = 1000;
    const LEN: u64 = 9000;
    begin(lab)?;
    for (seed, kind) in [(5, "pages"), (6, "buffer")] {
        let range = format!("first={FIRST} len={LEN}");
        let there = offer_with(lab, kind, 12288, "rw", seed, &range)?;
        let nla = there.nla()?;
        ensure!(
            nla % 4096 == FIRST,
            "NLA {nla} does not begin at byte {FIRST}"
        );
        ensure!(
            there.bytes() == LEN,
            "{} bytes instead of {LEN}",
            there.bytes()
        );
        // The pattern starts at byte 1000 of the first page.
        let page = there.at(nla - FIRST);
        let get = |offset: u64, len: u64| {
            let words = page.words.as_str();
            let copy = format!("copy dir=get {words} bytes=12288 len={len} offset={offset}");
            lab.raw(0, &format!("{copy} seed={seed}"))
        };
        for (offset, len) in [(FIRST, LEN), (FIRST + 4096, 504), (FIRST + LEN - 8, 8)] {
            let r = get(offset, len)?;
            expect(&r, "result", "ok")?;
            expect(&r, "mismatch", "none")?;
        }
        // Whole pages are exposed, because the NIC translates whole pages only.
        for (offset, len) in [(0, FIRST), (FIRST + LEN, 12288 - FIRST - LEN)] {
            expect(&get(offset, len)?, "result", "ok")?;
        }
        try_page(lab, "get", &page, "offset=12288", NO_TRANSLATION)?;
        // Sends local memory that starts at the same offset within a page.
        let put = |len: u64| {
            let local = format!("kind={kind} bytes=12288 first={FIRST} len={len}");
            lab.raw(0, &format!("copy dir=put {local} {} seed=77", there.words))
        };
        expect(&put(LEN)?, "result", "ok")?;
        expect(&lab.raw(1, "offered seed=77")?, "mismatch", "none")?;
        lab.raw(1, "withdraw")?;
    }
    end(lab)
}

/// Returns the number of notifications that `end` with `words` requests from the NIC on node 0, and
/// its duration in microseconds.
fn questions(lab: &Lab, words: &str) -> Result<(u64, u64)> {
    let asked = || node(lab, 0).atu("notifications_asked");
    let before = asked()?;
    let r = lab.raw(0, &format!("end kind=pages bytes=8192 {words}"))?;
    expect(&r, "result", "ok")?;
    let micros = number(&r, "micros")?;
    gone(lab)?;
    Ok((asked()? - before, micros))
}

/// Waits until no region is left on node 0.
fn gone(lab: &Lab) -> Result<()> {
    let node = node(lab, 0);
    lab.until("all regions have ended", PATIENCE, |_| {
        Ok(node.atu("regions")? + node.atu("ending")? + node.atu("pages")? == 0)
    })
}

/// Regions can be ended one by one, all at once, and by dropping them in atomic context. Ending all
/// regions at once needs one request to the NIC. Memory is released after a pause of 2 ms, in which
/// writes arrive that a unit has begun. Ending all regions at once has only one such pause.
fn many(lab: &Lab) -> Result<()> {
    const COUNT: u64 = 400;
    begin(lab)?;
    const PAUSE_US: u64 = 2000;
    let (each, micros) = questions(lab, &format!("count={COUNT} how=each"))?;
    ensure!(
        micros >= COUNT * PAUSE_US,
        "{COUNT} regions in {micros} µs, one by one"
    );
    ensure!(each >= COUNT, "{each} requests for {COUNT} regions");
    let (all, micros) = questions(lab, &format!("count={COUNT} how=all"))?;
    ensure!(
        micros >= PAUSE_US,
        "{COUNT} regions in {micros} µs, all at once"
    );
    // The end of all regions needs one request, and one request for each table that is added or
    // removed.
    ensure!((1..=4).contains(&all), "{all} requests for all regions");
    let (some, _) = questions(lab, &format!("count={COUNT} how=drop"))?;
    // The worker ends all regions that have been dropped when it starts.
    ensure!((1..each).contains(&some), "drop: {some} requests");
    end(lab)
}

/// A reserve of regions can be used in atomic context, up to its size. A request beyond its size
/// fails and is counted.
fn reserve(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let node = node(lab, 0);
    let before = node.atu("reserve_exhausted")?;
    for (inflight, bytes, count) in [(1, 4096, 5), (16, 65536, 20), (3, 8 << 20, 3)] {
        let words = format!("inflight={inflight} bytes={bytes} count={count} seed=9");
        let r = lab.raw(0, &format!("reserve {words} timeout_ms=60000"))?;
        expect(&r, "registered", &(inflight * count).to_string())?;
        expect(&r, "refused", &count.to_string())?;
        gone(lab)?;
        ensure!(node.atu("reserves")? == 0, "a reserve is left");
    }
    let exhausted = node.atu("reserve_exhausted")? - before;
    ensure!(exhausted == 5 + 20 + 3, "{exhausted} were counted");
    end(lab)
}

/// Buffers that are registered in advance can be claimed and returned in atomic context. They are
/// released when the last handle is dropped.
fn buffers(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let node = node(lab, 0);
    let before = node.atu("pool_exhausted")?;
    for (inflight, size, count) in [(1, 64, 3), (64, 512, 20), (7, 12296, 5)] {
        let words = format!("inflight={inflight} size={size} count={count} seed=3");
        let r = lab.raw(0, &format!("buffers {words}"))?;
        expect(&r, "taken", &(inflight * count).to_string())?;
        gone(lab)?;
    }
    // Each round claims all buffers. Claiming one more buffer fails.
    let exhausted = node.atu("pool_exhausted")? - before;
    ensure!(exhausted == 3 + 20 + 5, "{exhausted} were counted");
    end(lab)
}

/// By default the NIC gets pages of 4 KiB only, even for memory that could use larger pages. The
/// vendor's driver does the same.
fn small_pages(lab: &Lab) -> Result<()> {
    begin(lab)?;
    for node in 0..2 {
        let limit = super::node::node(lab, node).atu("page_limit_KiB")?;
        ensure!(limit == 4, "pages of up to {limit} KiB");
    }
    for (kind, bytes) in [("buffer", 1 << 20), ("pages", 64 << 10)] {
        let there = offer_with(lab, kind, bytes, "rw", 8, "")?;
        nlps(lab, 1, &[(4, bytes / 4096)])?;
        let copy = format!("copy dir=get {} bytes=65536 seed=8", there.words);
        expect(&lab.raw(0, &copy)?, "mismatch", "none")?;
        lab.raw(1, "withdraw")?;
    }
    end(lab)
}

/// Hold-off time of NLAs (docs/driver.md).
const REST: Duration = Duration::from_secs(10);

/// NLAs that were released are not assigned again at once.
fn addresses_rest(lab: &Lab) -> Result<()> {
    const TIMES: usize = 4;
    lab.ok(1, "modprobe extoll_bench")?;
    let used = || -> Result<String> {
        let offer = lab.raw(1, "offer bytes=65536 seed=7")?;
        lab.raw(1, "withdraw")?;
        offer.get("nla").cloned().context("no nla")
    };
    // The next region releases all earlier NLAs.
    std::thread::sleep(REST + Duration::from_secs(1));
    let start = Instant::now();
    let mut seen = BTreeSet::from([used()?]);
    let resting = node(lab, 1).atu("ranges_resting")?;
    ensure!(resting > 0, "no range rests");
    for _ in 0..TIMES {
        seen.insert(used()?);
    }
    let (now, took) = (node(lab, 1).atu("ranges_resting")?, start.elapsed());
    // All NLAs differ, and each region holds off the same number of ranges, unless a slow kernel
    // took longer than the hold-off time.
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

/// A user who registers much memory but keeps only one page of each GiB reaches a limit. The user's
/// existing tables stay usable. The limit affects neither other users nor privileged users.
fn tables_of_users(lab: &Lab) -> Result<()> {
    install(lab)?;
    let result = sparse(lab, USER, 2).and_then(|()| sparse(lab, 0, 3));
    node(lab, 0).reload(Options::default())?;
    result?;
    nothing_left(lab, 0)
}

/// Repeats the test until an attempt was fast enough. Each attempt starts with an NLA space without
/// holes, because kept pages would fill holes first.
fn sparse(lab: &Lab, user: u32, tables: u64) -> Result<()> {
    for _ in 0..3 {
        node(lab, 0).reload(extoll("tables_per_user=2"))?;
        if sparse_user(lab, user, tables)? {
            return Ok(());
        }
    }
    bail!("three times too slow to say anything about user {user}")
}

/// Checks that a user, or root, can keep exactly `tables` tables with one page each. Returns false
/// if the test took longer than the hold-off time of NLAs.
fn sparse_user(lab: &Lab, user: u32, tables: u64) -> Result<bool> {
    let node = node(lab, 0);
    let limited = user != 0;
    let before = node.atu("table_limit")?;
    lab.ok(0, "rm -f /tmp/registered /tmp/go")?;
    let as_user = |user: u32, command: &str| {
        format!("ulimit -l unlimited && exec python3 /tmp/guest/bounds.py --user {user} {command}")
    };
    let most = if limited { tables + 2 } else { tables };
    let process = lab.spawn(0, &as_user(user, &format!("sparse {most}")))?;
    node.until_file("/tmp/registered")?;
    let (made, refused) = (node.atu("tables")?, node.atu("table_limit")? - before);
    let other = lab.ok(0, &as_user(USER - 1, "block"));
    lab.ok(0, "touch /tmp/go")?;
    let out = process.wait(PATIENCE)?;
    other?;
    ensure!(out.status == 0, "{out:?}");
    if out.stdout.starts_with("-1 ") {
        println!("        user {user}: {}", out.stdout.trim());
        return Ok(false);
    }
    let want = format!("{tables} {}", u8::from(limited));
    ensure!(
        out.stdout.trim() == want,
        "'{}' is not '{want}'",
        out.stdout.trim()
    );
    ensure!(made >= tables, "{made} tables are in use");
    ensure!((refused > 0) == limited, "{refused} were refused");
    Ok(true)
}
