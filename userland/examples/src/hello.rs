// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Sends a message from one node to another. The protocol is that of hello_velo.c, so that the two
//! programs can run on different nodes.
//!
//! ```text
//! node1$ extoll-hello                prints "NODE VPID", then the message
//! node0$ extoll-hello NODE VPID
//! ```
#![forbid(unsafe_code)]

use anyhow::{bail, Context, Result};
use extoll::velo::{NodeId, Port, To, Vpid};
use extoll::{Device, Wait};
use std::time::Duration;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = Port::open(&Device::default())?;
    match &arguments[..] {
        [node, vpid] => {
            let vpid = Vpid::new(vpid.parse()?).context("VPIDs are 0 to 255")?;
            let wait = Wait::for_at_most(Duration::from_secs(1));
            port.send(&To::new(NodeId(node.parse()?), vpid), b"hello", wait)?;
            // The NIC has accepted the message, but it does not confirm its arrival.
            port.drain(wait)?;
        }
        [] => {
            println!("{} {}", port.node().0, port.vpid().get());
            let message = port.recv(Wait::forever())?;
            let text = String::from_utf8_lossy(message.data());
            println!("{text} from node {}", message.source.node.0);
        }
        _ => bail!("usage: extoll-hello [NODE VPID]"),
    }
    Ok(())
}
