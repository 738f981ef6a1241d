//! VELO messages to a multicast group (HW §9.2).

use anyhow::{ensure, Context, Result};
use clap::Subcommand;
use extoll::velo::{Mtt, Port, SourceId, Target, To, Vpid};
use extoll::{Device, Error, Wait};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// Time to wait for a message that must not arrive.
const SILENCE: Duration = Duration::from_millis(300);
/// Sizes of the messages, in this order.
const SIZES: std::ops::RangeInclusive<u8> = 1..=120;

#[derive(Subcommand)]
pub enum Verb {
    /// Receive one sender's messages and compare them.
    Listen,
    /// Send a message of every size to a group.
    Send {
        /// Number of the group; group 63 contains all nodes.
        group: u16,
        /// VPID of the port that listens on all nodes.
        vpid: u16,
    },
}

fn message(size: u8) -> Vec<u8> {
    (0..size).map(|i| i.wrapping_mul(37) ^ size).collect()
}

pub fn run(verb: Verb) -> Result<()> {
    let port = Port::open(&Device::default())?;
    match verb {
        Verb::Listen => listen(&port),
        Verb::Send { group, vpid } => send(&port, group, vpid),
    }
}

fn listen(port: &Port) -> Result<()> {
    crate::say(&format!("ready {}", port.vpid()))?;
    let mut from: Option<SourceId> = None;
    for size in SIZES {
        let m = port.recv(Wait::for_at_most(PATIENCE))?;
        ensure!(m.data() == message(size), "{size} bytes: {m:?}");
        ensure!(m.tag == size && m.mtt == mtt(size), "{size} bytes: {m:?}");
        let source = *from.get_or_insert(m.source);
        ensure!(m.source == source, "from {:?} and {source:?}", m.source);
    }
    let more = port.recv(Wait::for_at_most(SILENCE));
    ensure!(
        matches!(more, Err(Error::Timeout)),
        "one too many: {more:?}"
    );
    let from = from.context("no sender")?;
    crate::say(&format!("ok {} {}", from.node, from.vpid))
}

fn mtt(size: u8) -> Mtt {
    Mtt::from_low_bits(size)
}

fn send(port: &Port, group: u16, vpid: u16) -> Result<()> {
    let vpid = Vpid::new(vpid).context("no such port")?;
    for size in SIZES {
        let to = To {
            target: Target::Group(group),
            vpid,
            tag: size,
            mtt: mtt(size),
            interrupt: size % 2 == 0,
        };
        port.send(&to, &message(size), Wait::for_at_most(PATIENCE))?;
    }
    port.drain(Wait::for_at_most(PATIENCE))?;
    // The sender gets no copy or all copies (G21).
    match port.recv(Wait::for_at_most(SILENCE)) {
        Err(Error::Timeout) => {}
        first => {
            let mut next = first;
            for size in SIZES {
                let m = next?;
                let own = m.source.node == port.node() && m.source.vpid == port.vpid();
                ensure!(
                    own && m.data() == message(size) && m.tag == size,
                    "an echo of {size} bytes: {m:?}"
                );
                next = port.recv(Wait::for_at_most(SILENCE));
            }
            ensure!(
                matches!(next, Err(Error::Timeout)),
                "one too many: {next:?}"
            );
        }
    }
    crate::say(&format!("ok {} {}", port.node(), port.vpid()))
}
