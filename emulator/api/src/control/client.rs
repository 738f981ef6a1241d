//! Typed client of the control socket.

use super::{Counters, LinkSelect, Request, Response, Status, SOCKET};
use anyhow::{bail, Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Blocking client of the control socket. Every call has a time limit.
pub struct Client {
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the fabric whose sockets are in `dir`.
    pub fn connect(dir: &Path) -> Result<Self> {
        let path = dir.join(SOCKET);
        let stream = UnixStream::connect(&path)
            .with_context(|| format!("no emulator answers at {}", path.display()))?;
        let client = Self {
            reader: BufReader::new(stream),
        };
        client.set_timeout(Duration::from_secs(30))?;
        Ok(client)
    }

    /// Sets the maximum time to wait for an answer.
    pub fn set_timeout(&self, limit: Duration) -> Result<()> {
        self.reader.get_ref().set_read_timeout(Some(limit))?;
        self.reader.get_ref().set_write_timeout(Some(limit))?;
        Ok(())
    }

    /// Sends a request and returns the answer.
    ///
    /// Fails with the emulator's reason if the emulator refuses the request. Fails also if the
    /// emulator has ended or does not answer in time. After a timeout, the connection cannot be
    /// used again.
    pub fn call(&mut self, request: &Request) -> Result<serde_json::Value> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        self.reader
            .get_mut()
            .write_all(line.as_bytes())
            .context("cannot send a request to the emulator")?;
        let mut answer = String::new();
        if self
            .reader
            .read_line(&mut answer)
            .context("no answer from the emulator")?
            == 0
        {
            bail!("the emulator closed the connection");
        }
        match serde_json::from_str(&answer).context("cannot parse the emulator's answer")? {
            Response::Ok(value) => Ok(value),
            Response::Error(e) => bail!(e),
        }
    }

    /// Returns the state of the fabric.
    pub fn status(&mut self) -> Result<Status> {
        Ok(serde_json::from_value(self.call(&Request::Status)?)?)
    }

    /// Returns the counters of all NICs and cables.
    pub fn counters(&mut self) -> Result<Counters> {
        Ok(serde_json::from_value(
            self.call(&Request::Counters { nic: None })?,
        )?)
    }

    /// Reads a register.
    pub fn peek(&mut self, nic: usize, offset: u32) -> Result<u64> {
        Ok(serde_json::from_value(
            self.call(&Request::Peek { nic, offset })?,
        )?)
    }

    /// Writes a register.
    pub fn poke(&mut self, nic: usize, offset: u32, value: u64) -> Result<()> {
        self.call(&Request::Poke { nic, offset, value }).map(drop)
    }

    /// Plugs cables in or unplugs them.
    pub fn set_link(&mut self, link: LinkSelect, up: bool) -> Result<()> {
        self.call(&Request::Link {
            link,
            up,
            policy: None,
        })
        .map(drop)
    }

    /// Switches a NIC on or off.
    pub fn set_power(&mut self, nic: usize, on: bool) -> Result<()> {
        self.call(&Request::Power { nic, on }).map(drop)
    }

    /// Freezes or thaws a NIC.
    pub fn set_frozen(&mut self, nic: usize, on: bool) -> Result<()> {
        self.call(&Request::Freeze { nic, on }).map(drop)
    }

    /// Ends the emulator.
    pub fn shutdown(&mut self) -> Result<()> {
        self.call(&Request::Shutdown).map(drop)
    }
}
