//! `kexlnd.ko` under faults: numbered fault points in the driver, loss of peers and NICs, removal
//! of networks under load, bad links.

use crate::cluster::{as_slow, pairs, Lab, Running, PATIENCE};
use crate::scenarios::expected::{REFUSED, REVOKED, TORN};
use crate::scenarios::lnd::stand_in::{
    all_right, begin, counter, done, end, load, nid, nothing_left, number, of_driver, right,
    script, start, tell, LONG,
};
use crate::scenarios::node::{node, volume};
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// Maximum time until all messages of a driver that was loaded with [`SHORT`] have ended.
const OVER: Duration = Duration::from_secs(40);
/// Module option with the shortest time-out for messages, in seconds.
const SHORT: &str = "timeout=10";

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("exlnd::fault_points", fault_points),
        on_pair("exlnd::silent_peer", silent_peer).finds(REVOKED),
        on_pair("exlnd::peer_power_cycle", power_cycle).finds(TORN),
        on_pair("exlnd::nic_unbind_bind", unbind_bind).finds(REFUSED),
        on_pair("exlnd::net_del_under_load", net_del).finds(REVOKED),
        on_pair("exlnd::rmmod_under_load", rmmod).finds(REVOKED),
        on_pair("exlnd::unbind_in_net_add", unbind_in_net_add).finds(REFUSED),
        on_pair("exlnd::failed_start", failed_start),
        on_pair("exlnd::bad_links", bad_links),
        on_pair("exlnd::bad_nic", bad_nic),
        on_pair("exlnd::packets_lost_in_gets", lost_in_gets),
    ]
}

fn arm(lab: &Lab, n: usize, point: u32) -> Result<()> {
    lab.ok(n, &format!("echo {point} >/sys/kernel/debug/kexlnd/fault"))
        .map(drop)
}

/// Each numbered fault point of the driver is hit once and has the documented effect
/// (docs/exlnd.md).
fn fault_points(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    // Establishes a session.
    right(lab, 1, &nid(0), "kind=ping count=5")?;
    // Fault points of node 0: number, node that sends, test, error that the sender gets, counter of
    // the driver that grows.
    let points: [(u32, usize, &str, i64, &str); 12] = [
        (1, 1, "kind=read size=100000", -11, "no_place"),
        (1, 1, "kind=read size=6000", 0, "no_place"),
        (2, 1, "kind=read size=100000", 0, "exposed_copies"),
        (2, 0, "kind=write size=50000", 0, "exposed_copies"),
        (3, 0, "kind=ping", -11, "not_taken"),
        (4, 0, "kind=read size=100000", 0, ""),
        (5, 0, "kind=read size=100000", 0, "sink_copies"),
        (6, 0, "kind=read size=100000", 0, "not_posted"),
        (6, 1, "kind=write size=1000000", 0, "not_posted"),
        (7, 0, "kind=read size=100000", 0, "holes"),
        (8, 1, "kind=ping", -71, "not_parsed"),
        (9, 0, "kind=read size=100000", 0, "late_revocations"),
    ];
    for (point, from, what, error, counted) in points {
        let about = format!("point {point}, node{from}, {what}");
        let before = match counted {
            "" => 0,
            name => of_driver(lab, 0, name)?,
        };
        arm(lab, 0, point)?;
        let said = pairs(&tell(
            lab,
            from,
            &format!("test to={} {what} timeout=5000", nid(1 - from)),
        )?);
        let failed = i64::from(error != 0);
        ensure!(
            number(&said, "error")? == error && number(&said, "failed")? == failed,
            "{about}: {said:?}"
        );
        ensure!(number(&said, "wrong")? == 0, "{about}: {said:?}");
        let armed = lab.ok(0, "cat /sys/kernel/debug/kexlnd/fault")?;
        ensure!(armed.trim() == "0", "{about}: was not hit");
        if !counted.is_empty() {
            let counts = of_driver(lab, 0, counted)? - before;
            ensure!(counts == 1, "{about}: {counts} {counted}");
        }
        right(lab, from, &nid(1 - from), "kind=read size=100000 count=2")?;
        right(lab, from, &nid(1 - from), "kind=write size=100000 count=2")?;
    }
    done(lab)
}

/// Waits for the end of a test in which each message must fail with one of these errors.
fn fails(running: Running, errors: &[i64]) -> Result<()> {
    let said = end(running, LONG)?;
    ensure!(
        number(&said, "done")? == 0 && number(&said, "wrong")? == 0,
        "{said:?}"
    );
    ensure!(errors.contains(&number(&said, "error")?), "{said:?}");
    Ok(())
}

/// Waits until a node has no messages.
fn ends(lab: &Lab, n: usize) -> Result<()> {
    lab.until("messages have ended", OVER, |lab| {
        Ok(number(&pairs(&tell(lab, n, "memory")?), "messages")? == 0)
    })
}

const FAILED: i64 = -5;
const UNREACHABLE: i64 = -113;
const TIMED_OUT: i64 = -110;
const NO_EVENT: i64 = -62;

/// The peer's NIC freezes while a message is in each of its states: before a session exists, while
/// the peer's LNet holds the message, and during the GET of payload at either end. The message ends
/// within the driver's time-out, and communication resumes when the NIC does.
fn silent_peer(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    let errors = [UNREACHABLE, TIMED_OUT, NO_EVENT];
    // Without a session, the sender knows that the message was not delivered.
    lab.fault(&["freeze", "1"])?;
    let start_time = Instant::now();
    let greeting = start(lab, 0, &nid(1), "kind=ping timeout=30000")?;
    fails(greeting, &[UNREACHABLE])?;
    ensure!(start_time.elapsed() < as_slow(OVER), "not over in time");
    ends(lab, 0)?;
    lab.fault(&["thaw", "1"])?;
    works_again(lab)?;
    // The remaining cases have a session. The peer holds long requests, receives short ones, and
    // payload moves in both directions.
    for options in [
        "kind=ping",
        "kind=ping ask=16000",
        "kind=read size=1000000",
        "kind=write size=1000000",
    ] {
        let options =
            format!("{options} threads=4 count=100000 seconds=15 timeout=12000 patience=12000");
        let before = counter(lab, 1, "received")?;
        let running = start(lab, 0, &nid(1), &options)?;
        lab.until("the message is in flight", PATIENCE, |lab| {
            Ok(counter(lab, 1, "received")? > before + 8)
        })?;
        lab.fault(&["freeze", "1"])?;
        std::thread::sleep(as_slow(Duration::from_secs(13)));
        lab.fault(&["thaw", "1"])?;
        let said = end(running, LONG)?;
        ensure!(
            number(&said, "failed")? > 0 && number(&said, "wrong")? == 0,
            "{options}: {said:?}"
        );
        ensure!(
            errors.contains(&number(&said, "error")?),
            "{options}: {said:?}"
        );
        for n in 0..2 {
            ends(lab, n)?;
        }
        works_again(lab)?;
    }
    done(lab)
}

/// Waits until the nodes reach each other. From then on all tests must succeed.
fn works_again(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        let ping = format!("ping {} timeout=2000", nid(1 - n));
        lab.until("the peer answers", Duration::from_secs(90), |lab| {
            Ok(number(&pairs(&tell(lab, n, &ping)?), "status")? == 0)
        })?;
    }
    for kind in ["ping", "read", "write"] {
        for n in 0..2 {
            right(
                lab,
                n,
                &nid(1 - n),
                &format!("kind={kind} size=100000 count=5"),
            )?;
        }
    }
    Ok(())
}

/// A node loses its power with messages in all states. The messages of the other node end, and
/// their memory is released. After the reboot both nodes communicate again.
fn power_cycle(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    // The service of the peer has one slow buffer, so the peer holds messages.
    tell(lab, 1, "serve stop")?;
    tell(lab, 1, "serve buffers=1 slow=2000")?;
    let mut all = Vec::new();
    for options in [
        "kind=ping ask=16000",
        "kind=read size=1000000",
        "kind=write size=1000000",
        "kind=ping",
    ] {
        let options = format!("{options} threads=3 seconds=15 timeout=12000 patience=12000");
        all.push(start(lab, 0, &nid(1), &options)?);
    }
    let back = start(
        lab,
        1,
        &nid(0),
        "kind=write size=1000000 threads=4 seconds=600",
    )?;
    lab.until("messages are in all states", PATIENCE, |lab| {
        Ok(counter(lab, 1, "kept")? > 5 && counter(lab, 0, "received")? > 20)
    })?;
    lab.fault(&["power-off", "1"])?;
    drop(back);
    for running in all {
        let said = end(running, LONG)?;
        ensure!(
            number(&said, "failed")? > 0 && number(&said, "wrong")? == 0,
            "{said:?}"
        );
    }
    tell(lab, 0, "serve stop")?;
    nothing_left(lab, 0)?;
    tell(lab, 0, "serve")?;
    lab.fault(&["power-on", "1"])?;
    load(lab, 1, SHORT)?;
    tell(lab, 1, "net add ex ex0")?;
    tell(lab, 1, "serve")?;
    works_again(lab)?;
    done(lab)
}

/// Starts requests from both nodes, some of which may fail. Returns as soon as messages arrive.
fn traffic(lab: &Lab, seconds: u64) -> Result<Vec<(usize, Running)>> {
    let mut all = Vec::new();
    let seconds = as_slow(Duration::from_secs(seconds)).as_secs();
    let before = counter(lab, 0, "received")?;
    for n in 0..2 {
        for kind in ["ping", "read", "write"] {
            let options = format!(
                "kind={kind} threads=3 random=1 min=0 max=500000 seconds={seconds} timeout=12000 patience=12000"
            );
            all.push((n, start(lab, n, &nid(1 - n), &options)?));
        }
    }
    lab.until("traffic flows", PATIENCE, |lab| {
        Ok(counter(lab, 0, "received")? > before + 100)
    })?;
    Ok(all)
}

/// Starts pings from node 1. They last longer on a slow kernel.
fn pings(lab: &Lab, seconds: u64) -> Result<Vec<(usize, Running)>> {
    let seconds = as_slow(Duration::from_secs(seconds)).as_secs();
    let options = format!("kind=ping threads=4 seconds={seconds} timeout=3000");
    Ok(vec![(1, start(lab, 1, &nid(0), &options)?)])
}

/// Waits for the end of the requests: no byte may be wrong, and some requests must have succeeded.
fn calm(all: Vec<(usize, Running)>) -> Result<()> {
    let mut went = 0;
    for (n, running) in all {
        let said = end(running, LONG)?;
        ensure!(number(&said, "wrong")? == 0, "node{n}: {said:?}");
        went += number(&said, "done")?;
    }
    ensure!(went > 0, "no request succeeded");
    Ok(())
}

/// The NIC is unbound and bound under load, several times. The interface continues each time.
fn unbind_bind(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    for round in 0..volume(2, 8) {
        let all = traffic(lab, 8)?;
        node(lab, 0).unbind()?;
        let nets = tell(lab, 0, "nets")?;
        ensure!(nets.contains("fatal 1"), "LNet was not notified: {nets}");
        node(lab, 0).bind()?;
        calm(all).with_context(|| format!("round {round}"))?;
        for n in 0..2 {
            ends(lab, n)?;
        }
        works_again(lab).with_context(|| format!("round {round}"))?;
        let nets = tell(lab, 0, "nets")?;
        ensure!(nets.contains("fatal 0"), "LNet was not notified: {nets}");
    }
    node(lab, 0).back()?;
    done(lab)
}

/// The network of a node is removed and added under load, several times. LNet is slow, so that it
/// still gets messages while the interface shuts down.
fn net_del(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    for round in 0..volume(2, 8) {
        let all = traffic(lab, 8)?;
        tell(lab, 0, "odd slow=1000")?;
        tell(lab, 0, "net del ex")?;
        tell(lab, 0, "odd")?;
        tell(lab, 0, "net add ex ex0")?;
        calm(all).with_context(|| format!("round {round}"))?;
        for n in 0..2 {
            ends(lab, n)?;
        }
        works_again(lab).with_context(|| format!("round {round}"))?;
    }
    done(lab)
}

/// The driver can be unloaded and loaded while the peer keeps sending.
fn rmmod(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    for round in 0..volume(2, 8) {
        let all = traffic(lab, 8)?;
        let in_use = lab.sh_for(0, "rmmod kexlnd", PATIENCE)?;
        ensure!(in_use.status != 0, "rmmod with a network: {in_use:?}");
        tell(lab, 0, "net del ex")?;
        lab.ok(0, "rmmod kexlnd")?;
        load(lab, 0, SHORT)?;
        tell(lab, 0, "net add ex ex0")?;
        calm(all).with_context(|| format!("round {round}"))?;
        for n in 0..2 {
            ends(lab, n)?;
        }
        works_again(lab).with_context(|| format!("round {round}"))?;
    }
    done(lab)
}

/// The NIC is unbound during `net add` while a peer keeps sending. No command hangs, whether the
/// network then exists or not.
fn unbind_in_net_add(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    tell(lab, 0, "net del ex")?;
    let load = pings(lab, 60)?;
    for round in 0..volume(4, 20) {
        let about = || format!("round {round}");
        let adds = lab.spawn(0, &script("net add ex ex0"))?;
        std::thread::sleep(Duration::from_millis(20 * round));
        node(lab, 0).unbind()?;
        let added = adds.wait(LONG).with_context(about)?;
        node(lab, 0).bind()?;
        if added.status == 0 {
            works_again(lab).with_context(about)?;
            tell(lab, 0, "net del ex")?;
        }
    }
    tell(lab, 0, "net add ex ex0")?;
    works_again(lab)?;
    calm(load)?;
    node(lab, 0).back()?;
    done(lab)
}

/// Links that corrupt and lose packets and go down for a moment lose no message and no byte.
fn bad_links(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    lab.fault(&["corrupt", "--rate", "0.02"])?;
    lab.fault(&["lose", "--rate", "0.01"])?;
    let mut all = Vec::new();
    for n in 0..2 {
        for kind in ["ping", "read", "write"] {
            let count = volume(40, 1000);
            let options =
                format!("kind={kind} threads=4 random=1 min=0 max=300000 count={count} seed={n}");
            all.push((start(lab, n, &nid(1 - n), &options)?, options));
        }
    }
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(1));
        lab.fault(&["link-down", "0", "0"])?;
        std::thread::sleep(Duration::from_secs(1));
        lab.fault(&["link-up", "0", "0"])?;
    }
    for (running, options) in all {
        all_right(&end(running, LONG)?, &options).with_context(|| options.clone())?;
    }
    lab.fault(&["clear"])?;
    done(lab)
}

/// An interface fails to start while a peer keeps sending. `net add` reports the error, everything
/// is released, and the next attempt succeeds.
fn failed_start(lab: &Lab) -> Result<()> {
    begin(lab, SHORT)?;
    tell(lab, 0, "net del ex")?;
    let load = pings(lab, 20)?;
    for _ in 0..volume(3, 20) {
        arm(lab, 0, 10)?;
        let out = lab.sh_for(0, &script("net add ex ex0"), PATIENCE)?;
        ensure!(out.status != 0, "net add: {out:?}");
    }
    tell(lab, 0, "net add ex ex0")?;
    works_again(lab)?;
    calm(load)?;
    done(lab)
}

/// All messages arrive despite faults of a NIC: lost writes, full queues, "retry" answers,
/// unconfirmed ends of registrations.
fn bad_nic(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    let faults: [(&[&str], &[&str]); 6] = [
        (&["dma-fault", "1", "--ring", "velo"], &[]),
        (&["dma-fault", "1", "--ring", "rma"], &[]),
        (&["dma-fault", "1", "--ring", "snq"], &[]),
        (
            &["queue-full", "1", "--vpid", "251"],
            &["queue-full", "1", "--vpid", "251", "--off"],
        ),
        (
            &["retry", "1", "--every", "3"],
            &["retry", "1", "--every", "0"],
        ),
        (
            &["atu-lose", "0", "--every", "30"],
            &["atu-lose", "0", "--every", "0"],
        ),
    ];
    for (fault, off) in faults {
        let mut all = Vec::new();
        for n in 0..2 {
            for kind in ["ping", "read", "write"] {
                let options = format!("kind={kind} threads=2 random=1 min=0 max=200000 seconds=4");
                all.push((start(lab, n, &nid(1 - n), &options)?, options));
            }
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(700));
            lab.fault(fault)?;
        }
        if !off.is_empty() {
            lab.fault(off)?;
        }
        for (running, options) in all {
            all_right(&end(running, LONG)?, &options)
                .with_context(|| format!("{fault:?}, {options}"))?;
        }
    }
    done(lab)
}

/// Lost packets within GETs are detected, and the data are fetched again. The message fails if
/// packets of each repetition are lost too.
fn lost_in_gets(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    let lose = |every: &str| -> Result<()> {
        for n in ["0", "1"] {
            lab.fault(&["lose-inner", n, "--every", every])?;
        }
        Ok(())
    };
    // A GET of this size consists of about 600 packets.
    lose("2003")?;
    for kind in ["read", "write"] {
        let count = volume(30, 300);
        let options = format!("kind={kind} threads=4 size=300000 count={count}");
        right(lab, 0, &nid(1), &options)?;
    }
    for n in 0..2 {
        ensure!(of_driver(lab, n, "holes")? > 0, "node{n}: nothing was lost");
    }
    lose("100")?;
    let read = start(lab, 0, &nid(1), "kind=read threads=4 size=300000 count=8")?;
    let other = start(lab, 1, &nid(0), "kind=read threads=4 size=300000 count=8")?;
    fails(read, &[FAILED])?;
    fails(other, &[FAILED])?;
    lose("0")?;
    works_again(lab)?;
    done(lab)
}
