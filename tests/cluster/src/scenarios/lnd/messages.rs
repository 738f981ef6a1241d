//! `kexlnd.ko`, the driver for Lustre's network layer (docs/exlnd.md), with a stand-in for LNet
//! (tests/lnet). The stand-in is a kernel module that exports LNet's symbols, sends messages in
//! both directions, checks every byte and checks the calls of the driver.
//!
//! Each scenario ends with [`done`]: all messages are released, in the stand-in and in the base
//! driver, and both modules can be unloaded.

use crate::cluster::{pairs, Lab, PATIENCE};
use crate::scenarios::lnd::stand_in::{
    all_right, begin, counter, done, done_by, end, load, nid, number, of_driver, right, script,
    start, tell, LONG,
};
use crate::scenarios::node::volume;
use crate::scenarios::on_pair;
use crate::Scenario;
use anyhow::{ensure, Context, Result};
use std::time::Duration;

/// Maximum number of payload bytes sent in messages (docs/exlnd.md).
const IN_MESSAGES: usize = 7064;

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        on_pair("exlnd::ping", ping).gate(),
        on_pair("exlnd::sizes", sizes).gate(),
        on_pair("exlnd::tcp_transport", tcp_transport),
        on_pair("exlnd::pieces", fragments),
        on_pair("exlnd::partly_wanted", partly_wanted),
        on_pair("exlnd::credits", credits),
        on_pair("exlnd::kept_messages", kept),
        on_pair("exlnd::odd_orders", odd_orders),
        on_pair("exlnd::drops_and_refusals", drops),
        on_pair("exlnd::tunables", tunables),
        on_pair("exlnd::soak", soak).seconds(4500),
    ]
}

/// Runs the same test from both nodes at the same time; both must succeed.
fn both_ways(lab: &Lab, options: &str, patience: Duration) -> Result<()> {
    both_ways_at([nid(0), nid(1)], lab, options, patience)
}

/// Runs the same test from both nodes at the same time, with these addresses of nodes 0 and 1. Both
/// tests must succeed.
fn both_ways_at(nids: [String; 2], lab: &Lab, options: &str, patience: Duration) -> Result<()> {
    let running = [
        start(lab, 0, &nids[1], options)?,
        start(lab, 1, &nids[0], options)?,
    ];
    for running in running {
        all_right(&end(running, patience)?, options).with_context(|| options.to_owned())?;
    }
    Ok(())
}

/// A node pings another node and itself. Short answers, answers that are fetched by GET, partial
/// answers and empty answers are right.
fn ping(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    for (from, to) in [(0, 1), (1, 0), (0, 0)] {
        for options in [
            "count=20",
            "size=0",
            "size=1",
            "size=4096",
            "size=4097 count=5",
            "size=8192 from=5000",
            "size=20000 count=5",
        ] {
            let said = pairs(&tell(lab, from, &format!("ping {} {options}", nid(to)))?);
            ensure!(
                number(&said, "status")? == 0 && number(&said, "wrong")? == 0,
                "node{from} to {to}, {options}: {said:?}"
            );
        }
    }
    ensure!(counter(lab, 0, "sent_get")? > 50, "no GETs");
    ensure!(of_driver(lab, 0, "holes")? == 0, "GETs with holes");
    done(lab)
}

/// Bulk data of all sizes up to 1 MiB arrive unchanged, read and written.
fn sizes(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    let sizes = [
        0,
        1,
        7,
        8,
        63,
        64,
        100,
        1023,
        4095,
        4096,
        4097,
        IN_MESSAGES - 1,
        IN_MESSAGES,
        IN_MESSAGES + 1,
        8192,
        10_000,
        65_535,
        65_536,
        262_145,
        1_048_575,
        1_048_576,
    ];
    for (i, size) in sizes.into_iter().enumerate() {
        for kind in ["read", "write"] {
            let (from, to) = (i % 2, 1 - i % 2);
            right(
                lab,
                from,
                &nid(to),
                &format!("kind={kind} size={size} count=2 seed={i}"),
            )?;
        }
    }
    right(lab, 0, &nid(0), "kind=read size=300000 count=2")?;
    right(lab, 0, &nid(0), "kind=write size=300000 count=2")?;
    // Long requests and answers arrive too.
    for options in [
        "ask=4000",
        "ask=16384",
        "answer=5000",
        "answer=200000",
        "ask=7000 answer=7064",
    ] {
        right(lab, 1, &nid(0), &format!("kind=ping count=3 {options}"))?;
    }
    for kind in ["ping", "read", "write"] {
        let count = volume(100, 2000);
        let options =
            format!("kind={kind} threads=8 random=1 min=0 max=1048576 seed=5 count={count}");
        both_ways(lab, &options, LONG)?;
    }
    for n in 0..2 {
        for name in ["lies", "not_parsed", "not_taken", "holes"] {
            ensure!(of_driver(lab, n, name)? == 0, "node{n}: {name}");
        }
        ensure!(
            counter(lab, n, "dropped")? == 0,
            "node{n}: messages were dropped"
        );
        ensure!(
            of_driver(lab, n, "exposed")? > 10 && of_driver(lab, n, "sinks")? > 10,
            "node{n}"
        );
    }
    done(lab)
}

/// The stand-in's own driver over TCP, the reference of `make bench`, works. Pings and checked bulk
/// data succeed in both directions and within a node, with late decisions of LNet. A network that
/// ends and starts again becomes reachable again. A missing node is reported as unreachable.
fn tcp_transport(lab: &Lab) -> Result<()> {
    let nids = [0, 1].map(|n| format!("10.2.0.{}@tcp", n + 1));
    let add = |n: usize| -> Result<()> {
        let said = tell(lab, n, "net add tcp exn0")?;
        ensure!(said.trim() == format!("nid {}", nids[n]), "{said}");
        tell(lab, n, "serve").map(drop)
    };
    for n in 0..2 {
        lab.ok(n, "modprobe lnet_sock")?;
        let out = lab.sh_for(n, &script("net add tcp none0"), PATIENCE)?;
        ensure!(out.status != 0, "a network on no device: {out:?}");
        add(n)?;
    }
    for (from, to) in [(0, 1), (1, 0), (0, 0)] {
        for options in ["count=20", "size=0", "size=8192 from=5000"] {
            let said = pairs(&tell(lab, from, &format!("ping {} {options}", nids[to]))?);
            ensure!(
                number(&said, "status")? == 0 && number(&said, "wrong")? == 0,
                "node{from} to {to}, {options}: {said:?}"
            );
        }
        for kind in ["read", "write"] {
            for size in ["size=1", "size=4096", "size=1048576 frags=256 ack=1"] {
                right(lab, from, &nids[to], &format!("kind={kind} count=2 {size}"))?;
            }
        }
    }
    for odd in ["odd", "odd late=300 slow=100 big=300"] {
        for n in 0..2 {
            tell(lab, n, odd)?;
        }
        for kind in ["ping", "read", "write"] {
            let count = volume(50, 1000);
            let options =
                format!("kind={kind} threads=8 random=1 min=0 max=1048576 count={count} seed=9");
            both_ways_at(nids.clone(), lab, &options, LONG)?;
        }
    }
    ensure!(counter(lab, 0, "late_recvs")? > 0, "nothing was late");
    for n in 0..2 {
        tell(lab, n, "odd")?;
    }
    // LNet accepts less than was sent, or no byte. The driver then finds the next message behind
    // the remainder.
    for options in ["want=5000 ack=1", "nomatch=1", "check=0"] {
        let options = format!("kind=read size=100000 count=4 {options}");
        right(lab, 0, &nids[1], &options)?;
    }
    tell(lab, 1, "serve stop")?;
    tell(lab, 1, "net del tcp")?;
    for to in [&nids[1], "10.2.0.77@tcp"] {
        lab.until("the node is unreachable", LONG, |lab| {
            let said = pairs(&tell(lab, 0, &format!("ping {to} timeout=20000"))?);
            Ok(number(&said, "status")? == -113)
        })?;
    }
    add(1)?;
    for kind in ["read", "write"] {
        let options = format!("kind={kind} threads=4 count=8 size=300000");
        both_ways_at(nids.clone(), lab, &options, LONG)?;
    }
    done_by(lab, "lnet_sock", &[&["tcp"], &["tcp"]])
}

/// Memory of many fragments, with gaps, at any offset and on the heap is transferred. No byte
/// around the memory changes.
fn fragments(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    for kind in ["read", "write"] {
        for shape in [
            "size=1048576 frags=256 server_frags=256",
            "size=900000 frags=256 server_offset=1",
            "size=900000 offset=4095 server_frags=256",
            "size=256 frags=256 server_frags=100",
            "size=7000 frags=7 server_frags=5",
            "size=7065 frags=200 server_frags=256",
            "size=1048576 offset=1 server_offset=4095",
            "size=1048576 offset=4095 server_offset=1",
            "size=65536 offset=100 server_offset=100",
            "size=3000 heap=1 offset=77",
            "size=20000 heap=1 server_heap=1 server_offset=13",
            "size=100000 heap=1 frags=0 server_frags=60",
        ] {
            right(lab, 0, &nid(1), &format!("kind={kind} count=2 {shape}"))?;
        }
    }
    for (n, name) in [
        (0, "sink_pieces"),
        (0, "exposed_copies"),
        (1, "sink_pieces"),
        (1, "exposed_copies"),
    ] {
        ensure!(of_driver(lab, n, name)? > 0, "node{n}: no {name}");
    }
    done(lab)
}

/// LNet accepts only a part of a message, accepts no byte, or drops the message.
fn partly_wanted(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    for size in [100, 5000, 100_000, 1_000_000] {
        for want in [0, 1, 99, 4096, 70_001] {
            let options = format!("kind=read count=2 size={size} want={want} ack=1");
            right(lab, 0, &nid(1), &options)?;
        }
        right(
            lab,
            0,
            &nid(1),
            &format!("kind=read count=2 size={size} nomatch=1"),
        )?;
        right(
            lab,
            0,
            &nid(1),
            &format!("kind=write count=2 size={size} from=33"),
        )?;
        right(
            lab,
            0,
            &nid(1),
            &format!("kind=write count=2 size={size} from={size}"),
        )?;
    }
    ensure!(counter(lab, 0, "dropped")? == 8, "dropped");
    ensure!(
        counter(lab, 0, "short")? > 0 && counter(lab, 0, "zero")? > 0,
        "nothing was short"
    );
    // A GET without an answer times out, and the driver releases it.
    let said = pairs(&tell(
        lab,
        0,
        &format!(
            "test to={} kind=write size=5000 nomatch=1 timeout=1000",
            nid(1)
        ),
    )?);
    ensure!(
        number(&said, "failed")? == 1 && number(&said, "error")? == -62,
        "{said:?}"
    );
    done(lab)
}

/// Messages beyond the credits of a peer or of the interface wait, and none is lost.
fn credits(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        lab.ok(n, "modprobe lnet_stand cpts=1")?;
        load(lab, n, "")?;
        tell(lab, n, "net add ex ex0 credits=3 peer_credits=2")?;
        tell(lab, n, "serve buffers=4")?;
    }
    for (kind, count) in [("ping", 200), ("read", 60), ("write", 60)] {
        let options = format!("kind={kind} threads=16 size=100000 count={count}");
        let itself = start(lab, 0, &nid(0), &options)?;
        both_ways(lab, &options, LONG)?;
        all_right(&end(itself, LONG)?, &options)?;
    }
    for n in 0..2 {
        ensure!(
            counter(lab, n, "peer_waits")? > 0,
            "node{n}: nothing waited for a peer"
        );
        ensure!(
            counter(lab, n, "nested_sends")? > 0,
            "node{n}: the end of a message did not release a waiting one"
        );
    }
    ensure!(
        counter(lab, 0, "ni_waits")? > 0,
        "nothing waited for the interface"
    );
    done(lab)
}

/// LNet holds many short and long messages until it has memory for them, and passes the memory to
/// the driver later.
fn kept(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        load(lab, n, "")?;
        tell(lab, n, "net add ex ex0")?;
        tell(lab, n, "serve buffers=1 slow=20")?;
    }
    for options in [
        "kind=ping",
        "kind=ping ask=16000",
        "kind=read size=50000",
        "kind=write size=3000 ask=5000",
    ] {
        both_ways(lab, &format!("{options} threads=8 count=60"), LONG)?;
    }
    for n in 0..2 {
        ensure!(counter(lab, n, "kept")? > 20, "node{n}: nothing was kept");
    }
    done(lab)
}

/// The driver tolerates every order that LNet permits, from several threads: late decisions, slow
/// calls, messages sent while others arrive, REPLYs before the GET is released, headers in the long
/// format.
fn odd_orders(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        lab.ok(n, "modprobe lnet_stand cpts=4")?;
        load(lab, n, "")?;
        tell(lab, n, "net add ex ex0 peer_credits=16")?;
        tell(lab, n, "serve buffers=8")?;
        tell(lab, n, "odd late=300 slow=200 send=100 first=500 big=300")?;
    }
    for kind in ["ping", "read", "write"] {
        let count = volume(100, 2000);
        let options = format!("kind={kind} threads=16 random=1 min=0 max=200000 count={count}");
        both_ways(lab, &options, LONG)?;
    }
    for n in 0..2 {
        tell(lab, n, "odd")?;
        ensure!(
            counter(lab, n, "late_recvs")? > 20 && counter(lab, n, "odd_sends")? > 20,
            "node{n}"
        );
    }
    done(lab)
}

/// LNet rejects messages, and drops messages that it held. Their senders get an error or time out,
/// no byte is wrong, and all memory is released.
fn drops(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    for n in 0..2 {
        tell(lab, n, "odd drop=20 refuse=20 late=100")?;
    }
    for kind in ["ping", "read", "write"] {
        let count = volume(60, 1000);
        let options =
            format!("kind={kind} threads=8 random=1 min=0 max=100000 count={count} timeout=1500");
        let running = [
            start(lab, 0, &nid(1), &options)?,
            start(lab, 1, &nid(0), &options)?,
        ];
        for running in running {
            let said = end(running, LONG)?;
            let (did, failed) = (number(&said, "done")?, number(&said, "failed")?);
            ensure!(did + failed == count && did > failed, "{options}: {said:?}");
            ensure!(number(&said, "wrong")? == 0, "{options}: {said:?}");
        }
    }
    for n in 0..2 {
        tell(lab, n, "odd")?;
        ensure!(
            counter(lab, n, "odd_drops")? > 0 && counter(lab, n, "odd_refusals")? > 0,
            "node{n}"
        );
        right(lab, n, &nid(1 - n), "kind=read size=100000 count=10")?;
    }
    done(lab)
}

/// Tunables of a network apply to that network. Networks without tunables use the values of the
/// module.
fn tunables(lab: &Lab) -> Result<()> {
    load(
        lab,
        0,
        "credits=100 peer_credits=7 timeout=20 kexlnd.immediate=2000",
    )?;
    let shows = |add: &str, want: &[&str]| -> Result<()> {
        tell(lab, 0, add)?;
        let said = tell(lab, 0, "nets")?;
        tell(lab, 0, "net del ex")?;
        let words: Vec<&str> = want.iter().copied().filter(|w| !said.contains(w)).collect();
        ensure!(words.is_empty(), "{add}: no {words:?} in {said}");
        Ok(())
    };
    shows(
        "net add ex ex0",
        &[
            "credits 100",
            "peer_credits 7",
            "immediate=2000",
            "timeout=20",
        ],
    )?;
    shows(
        "net add ex ex0 credits=50 lnd.immediate=1024",
        &["credits 50", "peer_credits 7", "immediate=1024"],
    )?;
    shows(
        "net add ex ex0 peer_credits=200 peer_timeout=11",
        &["peer_credits 200", "timeout 11"],
    )?;
    for refused in [
        "net add ex ex1",
        "net add ex exn0",
        "net add ex ex0 lnd.immediate=10",
        "net add ex ex0 lnd.immediate=100000",
        "net add ex ex0 lnd.timeout=30",
    ] {
        let out = lab.sh_for(0, &script(refused), PATIENCE)?;
        ensure!(out.status != 0, "{refused}: {out:?}");
    }
    shows("net add ex ex0", &["credits 100"])?;
    lab.ok(0, "rmmod kexlnd lnet_stand").map(drop)
}

/// Messages of all kinds are sent at the same time for the whole duration. The full run adds links
/// that corrupt and lose packets.
fn soak(lab: &Lab) -> Result<()> {
    begin(lab, "")?;
    let seconds = volume(10, 3600);
    let faulty = volume(false, true);
    if faulty {
        lab.fault(&["corrupt", "--rate", "0.002"])?;
        lab.fault(&["lose", "--rate", "0.002"])?;
    }
    let mut all = Vec::new();
    for n in 0..2 {
        for kind in ["ping", "read", "write"] {
            let options = format!(
                "kind={kind} threads=3 random=1 min=0 max=1048576 seconds={seconds} seed={n}"
            );
            all.push((start(lab, n, &nid(1 - n), &options)?, options));
        }
    }
    for (running, options) in all {
        let said = end(running, Duration::from_secs(seconds + 180))?;
        all_right(&said, &options).with_context(|| options.clone())?;
    }
    if faulty {
        lab.fault(&["clear"])?;
    }
    done(lab)
}
