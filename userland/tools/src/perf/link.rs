// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The agreement between the two sides over TCP, and what each side has open.

use super::{Measured, Plan, Test};
use anyhow::{bail, Context, Result};
use extoll::rma::Region;
use extoll::{velo, Buffer, Counters, Device};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Changes whenever the two sides would not understand each other.
const PROTOCOL: u32 = 1;
/// Longest line.
const LINE: u64 = 4096;

/// What each side tells of itself.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub struct Hello {
    pub protocol: u32,
    pub node: u16,
    pub velo: u16,
    pub rma: u16,
    pub nla: u64,
    pub buffer: u64,
}

/// JSON lines over TCP.
pub struct Link {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Link {
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        // A run may last; a peer that vanished is found by keep-alives of the system, a stuck one by its own deadlines.
        stream.set_read_timeout(Some(Duration::from_secs(3600)))?;
        Ok(Self {
            writer: stream.try_clone()?,
            reader: BufReader::new(stream),
        })
    }

    pub fn connect(host: &str, port: u16) -> Result<Self> {
        let stream = TcpStream::connect((host, port)).with_context(|| {
            format!("cannot reach {host} on TCP port {port} (is extoll-perf serve running there?)")
        })?;
        Self::new(stream)
    }

    pub fn send<T: Serialize>(&mut self, what: &T) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.writer
            .write_all(&line)
            .context("the other side is gone")
    }

    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.receive_or_end()?.context("the other side is gone")
    }

    /// `None` when the other side closed the connection.
    pub fn receive_or_end<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        let n = (&mut self.reader).take(LINE).read_line(&mut line);
        if n.context("the other side does not answer")? == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line)
            .with_context(|| format!("not understood: {line:?}"))
            .map(Some)
    }
}

/// The ports and the buffer of one side.
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

    pub fn hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL,
            node: self.rma.node().0,
            velo: self.velo.vpid().get(),
            rma: self.rma.vpid().get(),
            nla: self.region.nla().0,
            buffer: self.region.len(),
        }
    }

    pub fn counters(&self) -> Counters {
        let (v, r) = (self.velo.counters(), self.rma.counters());
        Counters {
            posted: v.posted + r.posted,
            state_reads: v.state_reads + r.state_reads,
            replays: v.replays + r.replays,
            resent: v.resent + r.resent,
            received: v.received + r.received,
            commits: v.commits + r.commits,
            sleeps: v.sleeps + r.sleeps,
        }
    }

    fn check(&self, plan: &Plan, peer: &Hello) -> Result<()> {
        if peer.protocol != PROTOCOL {
            bail!("the other side is another version of this program");
        }
        let limit = if plan.test.is_velo() {
            120
        } else {
            self.region.len().min(peer.buffer)
        };
        if plan.size == 0 || plan.size > limit {
            bail!("{} bytes: at most {limit} were agreed", plan.size);
        }
        Ok(())
    }

    /// The client's part of a test.
    pub fn run(&self, plan: &Plan, peer: &Hello) -> Result<Measured> {
        self.check(plan, peer)?;
        match plan.test {
            Test::VeloLat => super::velo::ping(self, plan, peer),
            Test::VeloBw | Test::VeloRate => super::velo::stream(self, plan, peer, true),
            Test::PutLat => super::rma::put_latency(self, plan, peer),
            Test::GetLat => super::rma::get_latency(self, plan, peer),
            Test::PutBw | Test::GetBw => super::rma::stream(self, plan, peer, true),
        }
    }

    /// The server's part.
    pub fn serve(&self, plan: &Plan, peer: &Hello) -> Result<Measured> {
        self.check(plan, peer)?;
        match plan.test {
            Test::VeloLat => super::velo::pong(self, plan, peer),
            Test::VeloBw | Test::VeloRate => {
                super::velo::stream(self, plan, peer, plan.bidirectional)
            }
            Test::PutLat => super::rma::put_pong(self, plan, peer),
            Test::GetLat => super::rma::idle(self, plan, peer),
            Test::PutBw | Test::GetBw => super::rma::stream(self, plan, peer, plan.bidirectional),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn lines_travel_and_garbage_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut a = Link::connect("127.0.0.1", port).unwrap();
        let mut b = Link::new(listener.accept().unwrap().0).unwrap();
        let hello = Hello {
            protocol: PROTOCOL,
            node: 1,
            velo: 2,
            rma: 3,
            nla: u64::MAX,
            buffer: 5,
        };
        a.send(&hello).unwrap();
        let got: Hello = b.receive().unwrap();
        assert_eq!((got.nla, got.rma), (u64::MAX, 3));
        a.writer.write_all(b"{\"protocol\":\n").unwrap();
        assert!(b.receive::<Hello>().is_err());
        a.writer.write_all(&[b'x'; 9000]).unwrap();
        assert!(b.receive::<Hello>().is_err());
        drop(a);
        while b.receive_or_end::<Hello>().is_err() {}
        assert!(b.receive_or_end::<Hello>().unwrap().is_none());
    }
}
