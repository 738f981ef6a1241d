// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Ports of the two sides of a test, their first messages and their roles.

use super::tcp::{Link, Watch};
use super::{Measured, Plan, Test};
use crate::peer::Identity;
use anyhow::{bail, Result};
use extoll::rma::Region;
use extoll::{velo, Buffer, Counters, Device};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Version of the messages between the two sides.
const PROTOCOL: u32 = 3;

/// First message of each side.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Hello {
    pub protocol: u32,
    pub node: u16,
    pub velo: u16,
    pub rma: u16,
    pub nla: u64,
    pub buffer: u64,
    pub identity: Identity,
}

/// State of one side during a test.
pub struct Session<'a> {
    pub end: &'a Endpoint,
    pub plan: &'a Plan,
    pub peer: &'a Hello,
    /// All waits go through this value, so that they end when the connection to the other side is
    /// closed.
    pub watch: Watch<'a>,
}

/// Ports and buffer of one side of a test.
pub struct Endpoint {
    pub velo: velo::Port,
    pub rma: extoll::rma::Port,
    pub region: Region,
}

impl Endpoint {
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_buffer(device, 4096)
    }

    pub fn with_buffer(device: &Device, bytes: u64) -> Result<Self> {
        let rma = extoll::rma::Port::open(device)?;
        let region = rma.register(Buffer::new(usize::try_from(bytes)?)?)?;
        Ok(Self {
            velo: velo::Port::open(device)?,
            rma,
            region,
        })
    }

    pub fn hello(&self) -> Result<Hello> {
        Ok(Hello {
            protocol: PROTOCOL,
            node: self.rma.node().0,
            velo: self.velo.vpid().get(),
            rma: self.rma.vpid().get(),
            nla: self.region.nla().0,
            buffer: self.region.len(),
            identity: Identity::of(&self.velo)?,
        })
    }

    pub fn counters(&self) -> Counters {
        let (v, r) = (self.velo.counters(), self.rma.counters());
        Counters {
            posted: v.posted + r.posted,
            state_reads: v.state_reads + r.state_reads,
            replays: v.replays + r.replays,
            resent: v.resent + r.resent,
            lost: v.lost + r.lost,
            received: v.received + r.received,
            skipped: v.skipped + r.skipped,
            commits: v.commits + r.commits,
            sleeps: v.sleeps + r.sleeps,
            woken: v.woken + r.woken,
        }
    }

    /// Fails if the ports of the other side cannot reach those of this side.
    pub fn admit(&self, peer: &Hello) -> Result<()> {
        if peer.protocol != PROTOCOL {
            bail!("the other side runs another version of this program");
        }
        Identity::of(&self.velo)?.admit(&peer.identity)
    }

    fn check(&self, plan: &Plan, peer: &Hello) -> Result<()> {
        self.admit(peer)?;
        let limit = if plan.test.is_velo() {
            120
        } else {
            self.region.len().min(peer.buffer)
        };
        if plan.size == 0 || plan.size > limit {
            bail!("{} bytes exceed the agreed maximum of {limit}", plan.size);
        }
        Ok(())
    }

    fn session<'a>(
        &'a self,
        plan: &'a Plan,
        peer: &'a Hello,
        link: &'a Link,
    ) -> Result<Session<'a>> {
        self.check(plan, peer)?;
        Ok(Session {
            end: self,
            plan,
            peer,
            watch: Watch::new(link, Duration::from_millis(plan.timeout_ms), plan.events),
        })
    }

    /// Runs a test on the client.
    pub fn run(&self, plan: &Plan, peer: &Hello, link: &Link) -> Result<Measured> {
        let s = self.session(plan, peer, link)?;
        match plan.test {
            Test::VeloLat => super::velo::ping(&s),
            Test::VeloBw | Test::VeloRate => super::velo::stream(&s, true),
            Test::PutLat => super::rma::put_latency(&s),
            Test::GetLat => super::rma::get_latency(&s),
            Test::PutBw | Test::GetBw => super::rma::stream(&s, true),
        }
    }

    /// Runs a test on the server.
    pub fn serve(&self, plan: &Plan, peer: &Hello, link: &Link) -> Result<Measured> {
        let s = self.session(plan, peer, link)?;
        match plan.test {
            Test::VeloLat => super::velo::pong(&s),
            Test::VeloBw | Test::VeloRate => super::velo::stream(&s, plan.bidirectional),
            Test::PutLat => super::rma::put_pong(&s),
            Test::GetLat => super::rma::idle(&s),
            Test::PutBw | Test::GetBw => super::rma::stream(&s, plan.bidirectional),
        }
    }
}
