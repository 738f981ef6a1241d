//! The transfer engine of `extoll.ko`, driven by `extoll_bench`: fragment lists, completions, early
//! ends of transfers, notifications of peers.

use super::expected::REFUSED;
use super::memory::{begin, end, expect, offer, Lines, Offer};
use super::on_pair;
use crate::cluster::{Lab, PATIENCE};
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("raw::engine_lists", lists).gate().finds(REFUSED),
        on_pair("raw::engine_completions", completions).finds(REFUSED),
        on_pair("raw::engine_cancels", cancels).finds(REFUSED),
        on_pair("raw::engine_gives_peers_up", gives_up).finds(REFUSED),
        on_pair("raw::engine_listener", listener).finds(REFUSED),
    ]
}

fn number(r: &Lines, key: &str) -> Result<u64> {
    let text = r.get(key).with_context(|| format!("no {key} in {r:?}"))?;
    text.parse().with_context(|| format!("{key} is {text}"))
}

/// Checks that a result has these numbers.
fn numbers(r: &Lines, want: &[(&str, u64)]) -> Result<()> {
    for (key, want) in want {
        ensure!(number(r, key)? == *want, "{key} is not {want}: {r:?}");
    }
    Ok(())
}

/// Transfers of lists with random boundaries write exactly the right bytes. The memory around them
/// is compared too.
fn lists(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let run = |node, there: &Offer, words: &str| -> Result<()> {
        let command = format!("lists {} {words} timeout_ms=60000", there.words);
        let r = lab.raw(node, &command)?;
        expect(&r, "result", "ok").with_context(|| command.clone())?;
        let (commands, transfers) = (number(&r, "commands")?, number(&r, "transfers")?);
        ensure!(
            commands > transfers && number(&r, "bytes")? > 0,
            "{command}: {r:?}"
        );
        Ok(())
    };
    let pages = offer(lab, "pages", 128 << 10, "rw", 21)?;
    run(0, &pages, "bytes=131072 count=16 frags=8 seed=21")?;
    lab.raw(1, "withdraw")?;
    // The next runs use more fragments than a Lustre message has pages. They start at both nodes,
    // send to the own node too, and use several traffic classes.
    let pages = offer(lab, "pages", 64 << 10, "rw", 22)?;
    run(0, &pages, "bytes=65536 count=6 frags=512 seed=22 tc=1")?;
    lab.raw(1, "withdraw")?;
    let pages = offer(lab, "pages", 64 << 10, "rw", 23)?;
    run(
        1,
        &pages,
        "bytes=65536 count=12 frags=64 kind=buffer seed=23 tc=2",
    )?;
    lab.raw(1, "withdraw")?;
    let bus = offer(lab, "bus", 32 << 10, "rw", 24)?;
    run(
        0,
        &bus,
        "bytes=32768 count=12 frags=40 kind=bus seed=24 tc=3",
    )?;
    lab.raw(1, "withdraw")?;
    // Each fragment has one byte or a few bytes.
    let tiny = offer(lab, "pages", 4096, "rw", 25)?;
    run(0, &tiny, "bytes=4096 count=3 frags=512 seed=25")?;
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// The owner of a transfer is called once with the outcome and once when no command can access the
/// memory any more. Both calls may come from interrupt or process context. A full engine returns an
/// error.
fn completions(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let there = offer(lab, "pages", 256 << 10, "rw", 31)?;
    for words in [
        "inflight=8 count=300 len=4096",
        "inflight=64 count=300 len=800",
        "inflight=16 count=200 len=4096 mode=poll",
    ] {
        let r = lab.raw(
            0,
            &format!(
                "calls {} bytes=262144 {words} seed=31 timeout_ms=60000",
                there.words
            ),
        )?;
        let count = number(&r, "taken")?;
        ensure!(count >= 200, "{r:?}");
        let want = [("ok", count), ("settled", count), ("wrong", 0), ("all", 1)];
        numbers(&r, &want)?;
        // Submissions from process context wait for a free slot. Submissions from callbacks may
        // fail because no slot is free.
        ensure!(number(&r, "nested")? >= count / 8, "{r:?}");
        let busy = number(&r, "busy")?;
        ensure!(words.starts_with("inflight=64") || busy > 0, "{r:?}");
        let refused = number(&r, "refused_transfers")? + number(&r, "refused_peer")?;
        ensure!(refused >= busy, "{r:?}");
    }
    lab.raw(1, "withdraw")?;
    end(lab)
}

/// Runs the command `give_up` of `extoll_bench` on node 0 while the NIC of node 1 is frozen.
fn while_frozen(lab: &Lab, words: &str) -> Result<Lines> {
    lab.fault(&["freeze", "1"])?;
    let script = format!(
        "exec 3<>/dev/extoll_bench || exit; printf %s 'give_up {words}' >&3; rc=$?; cat <&3; exit $rc"
    );
    let run = lab.spawn(0, &script);
    std::thread::sleep(Duration::from_secs(4));
    lab.fault(&["thaw", "1"])?;
    let out = run?.wait(PATIENCE)?;
    ensure!(out.status == 0, "{words}: {out:?}");
    Ok(crate::cluster::pairs(&out.stdout))
}

/// Ends transfers early by the method `by`. Then repeats a transfer with the same memory.
fn ends_at_once(lab: &Lab, by: &str, outcome: &str) -> Result<()> {
    let there = offer(lab, "pages", 256 << 10, "rw", 41)?;
    let words = format!("{} bytes=262144 len=4096 count=24 seed=41", there.words);
    let words = format!("{words} by={by} timeout_ms=60000");
    let r = while_frozen(lab, &words)?;
    // All transfers end before the peer answers, though most are in flight.
    numbers(&r, &[(outcome, 24), ("ended", 24), ("wrong", 0)])?;
    ensure!(
        number(&r, "end_ms")? < 2_500,
        "the end took its time: {r:?}"
    );
    // Each posted command was answered in the end, and the memory was not reused before that.
    numbers(&r, &[("settled", 24)])?;
    expect(&r, "retry", "ok")?;
    expect(&r, "mismatch", "none")?;
    ensure!(number(&r, "fences")? > 0, "no fence was posted: {r:?}");
    lab.raw(1, "withdraw").map(drop)
}

/// A cancelled transfer ends at once, and its memory is reused only after the NIC has finished with
/// it.
fn cancels(lab: &Lab) -> Result<()> {
    begin(lab)?;
    ends_at_once(lab, "cancel", "cancelled")?;
    end(lab)
}

/// When a peer is given up, all its transfers end at once, and transfers with other peers continue.
fn gives_up(lab: &Lab) -> Result<()> {
    begin(lab)?;
    ends_at_once(lab, "abort", "peer_lost")?;
    end(lab)
}

/// The listener gets each notification of its peers. A peer that floods it loses only its own
/// notifications, and transfers continue.
fn listener(lab: &Lab) -> Result<()> {
    begin(lab)?;
    let serve = |more: &str| -> Result<String> {
        let r = lab.raw(1, &format!("offer bytes=65536 seed=61 listen=1 {more}"))?;
        Ok(format!("node=1 vpid={} nla={}", r["vpid"], r["nla"]))
    };
    let mut there = serve("")?;
    let count = 12;
    for tell in ["last", "each", "value"] {
        let before = lab.raw(1, "heard")?;
        let words = format!("bytes=65536 count={count} frags=4 tell={tell} seed=61");
        let r = lab.raw(0, &format!("lists {there} {words} timeout_ms=60000"))?;
        expect(&r, "result", "ok")?;
        let (commands, mut heard) = (number(&r, "commands")?, 0);
        // The last notifications may be in flight.
        let grown = lab.until("the peer has all notifications", PATIENCE, |lab| {
            let now = lab.raw(1, "heard")?;
            let grown =
                |key: &str| Ok::<_, anyhow::Error>(number(&now, key)? - number(&before, key)?);
            heard = match tell {
                "value" => grown("values")?,
                _ => grown("puts")? + grown("gets")?,
            };
            Ok(heard >= count)
        });
        grown.with_context(|| format!("{tell}: {heard} of {count}"))?;
        ensure!(
            tell == "each" || heard == count,
            "{tell}: {heard} of {count}"
        );
        ensure!(
            tell != "each" || heard > count && heard < commands,
            "{heard}, {commands}"
        );
        // Each offer has different contents.
        lab.raw(1, "withdraw")?;
        there = serve("")?;
    }
    lab.raw(1, "withdraw")?;
    let there = serve("slow_us=3000")?;
    let own = lab.raw(0, "offer bytes=65536 seed=62")?;
    let flood = lab.spawn(
        0,
        &format!(
            "exec 3<>/dev/extoll_bench || exit; printf %s 'flood {there} count=20000 timeout_ms=60000' >&3; rc=$?; cat <&3; exit $rc"
        ),
    )?;
    lab.until("notifications arrive at node 1", PATIENCE, |lab| {
        Ok(number(&lab.raw(1, "heard")?, "values")? > 10)
    })?;
    // The same engine transfers data from its own port to its own port.
    let other = format!("node=0 vpid={} nla={}", own["vpid"], own["nla"]);
    let words = "bytes=65536 frags=4 shared=1 timeout_ms=60000";
    let r = lab.raw(1, &format!("lists {other} {words} count=6 seed=62"))?;
    expect(&r, "result", "ok")?;
    let r = lab.raw(
        1,
        &format!("lists {there} {words} count=8 seed=61 tell=value"),
    )?;
    expect(&r, "result", "ok")?;
    let out = flood.wait(PATIENCE)?;
    ensure!(out.status == 0, "flood: {out:?}");
    let mut heard = Lines::new();
    let all = lab.until("the listener has all notifications", PATIENCE, |lab| {
        heard = lab.raw(1, "heard")?;
        Ok(number(&heard, "unclaimed")? >= 20_000 + 8 && number(&heard, "own")? == 8)
    });
    all.with_context(|| format!("{heard:?}"))?;
    // Each notification was counted once, and the flood was limited.
    numbers(&heard, &[("unclaimed", 20_000 + 8)])?;
    ensure!(number(&heard, "values")? < 20_000 - 1_000, "{heard:?}");
    for node in 0..2 {
        lab.raw(node, "withdraw")?;
    }
    end(lab)
}
