//! `kexlnd.ko` with several NICs and networks: two interfaces in one network, and nodes that route
//! between two networks.

use crate::cluster::{pairs, Lab, Spec};
use crate::scenarios::lnd::stand_in::{
    all_right, counter, done_with, end, load, number, right, start, tell, LONG,
};
use crate::scenarios::node::volume;
use crate::Scenario;
use anyhow::{ensure, Result};

/// Two nodes with two NICs each. NIC k of node n has number 2n + k, so its address is 2n + k + 1.
const TWO_NICS: Spec = Spec::new(2).topology("ring:4").nics(2);
/// Four nodes with two NICs each.
const FOUR: Spec = Spec::new(4).topology("ring:8").nics(2).cpus(1);

/// Returns the scenarios of this file.
pub fn all() -> Vec<Scenario> {
    vec![
        Scenario::new("exlnd::two_nics", TWO_NICS, two_nics),
        Scenario::new("exlnd::sent_again", TWO_NICS, sent_again),
        Scenario::new("exlnd::routed", FOUR, routed),
    ]
}

/// Adds both NICs of both nodes to one network.
fn all_nics(lab: &Lab) -> Result<()> {
    for n in 0..2 {
        load(lab, n, "timeout=10")?;
        for k in 0..2 {
            let said = tell(lab, n, &format!("net add ex ex{k}"))?;
            ensure!(said.trim() == format!("nid {}@ex", 2 * n + k + 1), "{said}");
        }
        tell(lab, n, "serve")?;
    }
    Ok(())
}

/// Returns the number of messages sent by an interface.
fn sent_by(lab: &Lab, n: usize, interface: &str) -> Result<u64> {
    let said = tell(lab, n, "nets")?;
    let line = said
        .lines()
        .find(|l| l.starts_with("ni ") && l.split(' ').nth(2) == Some(interface));
    let mut words = line.unwrap_or("").split(' ').skip_while(|w| *w != "sent");
    let sent = words.nth(1).and_then(|w| w.parse().ok());
    sent.ok_or_else(|| anyhow::anyhow!("no {interface} in {said}"))
}

/// Both interfaces of a node carry messages, to both interfaces of the other node and to each
/// other.
fn two_nics(lab: &Lab) -> Result<()> {
    all_nics(lab)?;
    let mut all = Vec::new();
    for (from, to) in [(0, 3), (0, 4), (1, 1), (1, 2), (0, 2), (1, 3)] {
        for kind in ["read", "write"] {
            let count = volume(30, 500);
            let options = format!("kind={kind} threads=4 random=1 min=0 max=300000 count={count}");
            all.push((start(lab, from, &format!("{to}@ex"), &options)?, options));
        }
    }
    for (running, options) in all {
        all_right(&end(running, LONG)?, &options)?;
    }
    for n in 0..2 {
        for interface in ["ex0", "ex1"] {
            let sent = sent_by(lab, n, interface)?;
            ensure!(sent > 50, "{interface} of node{n} has sent {sent}");
        }
    }
    done_with(lab, &[&["ex"], &["ex"]])
}

/// A message that an interface did not deliver for certain is sent again by another interface.
fn sent_again(lab: &Lab) -> Result<()> {
    all_nics(lab)?;
    right(lab, 0, "3@ex", "kind=ping count=4")?;
    // The driver fails every fifth message with the error of a local drop.
    tell(lab, 0, "fault 5 2")?;
    right(lab, 0, "3@ex", "kind=ping threads=4 count=100")?;
    tell(lab, 0, "fault 0")?;
    let (faults, resent) = (counter(lab, 0, "faults")?, counter(lab, 0, "resent")?);
    ensure!(
        faults >= 20 && resent == faults,
        "{faults} failed, {resent} were sent again"
    );
    // A message that may have been delivered is not sent again.
    tell(lab, 0, "fault 1 10")?;
    let said = pairs(&tell(lab, 0, "test to=3@ex kind=ping count=3")?);
    ensure!(number(&said, "failed")? == 3, "{said:?}");
    tell(lab, 0, "fault 0")?;
    ensure!(counter(lab, 0, "resent")? == resent, "sent again");
    done_with(lab, &[&["ex"], &["ex"]])
}

/// Node 1 routes messages between the networks ex, with node 0, and ex1, with nodes 2 and 3.
fn routed(lab: &Lab) -> Result<()> {
    for n in 0..4 {
        load(lab, n, "")?;
    }
    tell(lab, 0, "net add ex ex0")?;
    tell(lab, 1, "net add ex ex0")?;
    tell(lab, 1, "net add ex1 ex1 peer_buffer_credits=4")?;
    tell(lab, 2, "net add ex1 ex0")?;
    tell(lab, 3, "net add ex1 ex0")?;
    tell(lab, 0, "route add ex1 3@ex")?;
    for n in [2, 3] {
        tell(lab, n, "route add ex 4@ex1")?;
    }
    tell(lab, 1, "routing 1")?;
    for n in 0..4 {
        tell(lab, n, "serve")?;
    }
    for (from, to) in [
        (0, "5@ex1"),
        (2, "1@ex"),
        (3, "1@ex"),
        (0, "7@ex1"),
        (2, "7@ex1"),
    ] {
        let said = pairs(&tell(lab, from, &format!("ping {to} count=3"))?);
        ensure!(
            number(&said, "status")? == 0,
            "node{from} to {to}: {said:?}"
        );
        for size in [0, 1, 4096, 4097, 7065, 1_048_576] {
            right(lab, from, to, &format!("kind=read size={size}"))?;
            right(lab, from, to, &format!("kind=write size={size}"))?;
        }
    }
    // Sends more messages than the router has buffers.
    let mut all = Vec::new();
    for (from, to) in [
        (0, "5@ex1"),
        (0, "7@ex1"),
        (2, "1@ex"),
        (3, "1@ex"),
        (3, "5@ex1"),
    ] {
        for kind in ["ping", "read", "write"] {
            let count = volume(20, 400);
            let options = format!("kind={kind} threads=6 random=1 min=0 max=1048576 count={count}");
            all.push((start(lab, from, to, &options)?, options));
        }
    }
    for (running, options) in all {
        all_right(&end(running, LONG)?, &options)?;
    }
    ensure!(counter(lab, 1, "routed")? > 200, "nothing was routed");
    ensure!(
        counter(lab, 1, "route_waits")? > 0,
        "nothing waited for a buffer"
    );
    ensure!(
        counter(lab, 1, "route_drops")? == 0,
        "messages were dropped"
    );
    done_with(lab, &[&["ex"], &["ex", "ex1"], &["ex1"], &["ex1"]])
}
