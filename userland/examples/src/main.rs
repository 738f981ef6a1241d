// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transfers a megabyte in both directions between two nodes. The protocol is that of
//! rma_exchange.c, so that the two programs can run on different sides.
//!
//! ```text
//! node1$ extoll-exchange serve            prints "ready NODE VPID"
//! node0$ extoll-exchange NODE VPID        prints "ok"
//! ```
//!
//! 1. The client sends its NLA in a notification put of class 1. The server answers with its own
//!    NLA in class 2.
//! 2. The client PUTs a pattern into the server's buffer and sends class 3. The server checks and
//!    inverts the data and sends class 4.
//! 3. The client GETs the data back, checks it and sends class 5. The server PUTs another pattern
//!    into the client's buffer and sends class 6.
#![forbid(unsafe_code)]

use anyhow::{bail, ensure, Context, Result};
use extoll::rma::{Command, Nla, NodeId, Notification, NotifySpec, Peer, Port, Region, Vpid};
use extoll::{Buffer, Device, Wait};
use std::io::Write;
use std::time::Duration;

const SIZE: usize = 1 << 20;

const ADDRESS: u8 = 1;
const ANSWER: u8 = 2;
const WRITTEN: u8 = 3;
const INVERTED: u8 = 4;
const CHECKED: u8 = 5;
const DONE: u8 = 6;

fn patience() -> Wait {
    Wait::for_at_most(Duration::from_secs(30))
}

fn pattern(seed: u32) -> Vec<u8> {
    (0..SIZE as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

fn inverted(seed: u32) -> Vec<u8> {
    pattern(seed).iter().map(|b| !b).collect()
}

fn check(region: &Region, expected: &[u8]) -> Result<()> {
    let mut data = vec![0; SIZE];
    region.read(0, &mut data)?;
    match data.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => bail!(
            "byte {at} is {:#x} instead of {:#x}",
            data[at],
            expected[at]
        ),
    }
}

/// Waits for a notification put of this class.
fn expect(port: &Port, class: u8) -> Result<Notification> {
    let n = port
        .wait_for(patience(), |n| {
            n.error != 0 || (n.command == Command::NotificationPut && n.class() == class)
        })
        .with_context(|| format!("waiting for class {class}"))?;
    ensure!(n.error == 0, "a command failed: {n:?}");
    Ok(n)
}

fn say(port: &Port, peer: &Peer, class: u8, value: u64) -> Result<()> {
    Ok(port.retry(patience(), || port.notify(peer, class, value))?)
}

fn put(port: &Port, peer: &Peer, region: &Region, to: Nla) -> Result<()> {
    // No wait is necessary, because the next notification put of the connection arrives after the
    // data.
    let put = || port.put(peer, region, 0, SIZE as u64, to, NotifySpec::NONE);
    Ok(port.retry(patience(), put)?)
}

fn serve(port: &Port, region: &Region) -> Result<()> {
    println!("ready {} {}", port.node(), port.vpid());
    std::io::stdout().flush()?;
    let hello = expect(port, ADDRESS)?;
    let peer = Peer::new(hello.node, hello.vpid).interrupting();
    say(port, &peer, ANSWER, region.nla().0)?;
    expect(port, WRITTEN)?;
    check(region, &pattern(1)).context("what the client PUT")?;
    region.write(0, &inverted(1))?;
    say(port, &peer, INVERTED, 0)?;
    expect(port, CHECKED)?;
    region.write(0, &pattern(2))?;
    put(port, &peer, region, Nla(hello.word0))?;
    say(port, &peer, DONE, 0)?;
    Ok(port.drain(patience())?)
}

fn client(port: &Port, region: &Region, node: NodeId, vpid: Vpid) -> Result<()> {
    let peer = Peer::new(node, vpid).interrupting();
    say(port, &peer, ADDRESS, region.nla().0)?;
    let remote = Nla(expect(port, ANSWER)?.word0);
    region.write(0, &pattern(1))?;
    put(port, &peer, region, remote)?;
    say(port, &peer, WRITTEN, 0)?;
    expect(port, INVERTED)?;
    port.get_wait(&peer, region, 0, SIZE as u64, remote, patience())?;
    check(region, &inverted(1)).context("what came back by GET")?;
    say(port, &peer, CHECKED, 0)?;
    expect(port, DONE)?;
    check(region, &pattern(2)).context("what the server PUT")?;
    println!("ok");
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let port = Port::open(&Device::default())?;
    let region = port.register(Buffer::new(SIZE)?)?;
    match &args[..] {
        [verb] if verb == "serve" => serve(&port, &region),
        [node, vpid] => {
            let vpid = Vpid::new(vpid.parse()?).context("VPIDs end at 255")?;
            client(&port, &region, NodeId(node.parse()?), vpid)
        }
        _ => bail!("usage: extoll-exchange serve | NODE VPID"),
    }
}
