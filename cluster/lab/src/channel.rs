//! Exclusive access to a port of a node: the byte stream between a command's client and the agent.

use anyhow::{bail, ensure, Context, Result};
use lab_proto::{Decoder, GuestMsg, HostMsg, PORTS, VERSION};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns the path of the socket of port `index` in a node's directory.
pub fn port_socket(node: &Path, index: usize) -> PathBuf {
    node.join(format!("p{index}.sock"))
}

/// A port whose agent has answered the greeting.
pub struct Channel {
    socket: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    /// Lock on the port, released when the channel is dropped.
    _lock: File,
}

/// Result of [`Channel::receive`].
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(GuestMsg),
    /// No complete message has arrived yet.
    Nothing,
    /// QEMU closed the port, because the node went off.
    Closed,
}

/// Returns the poll timeout that ends at `deadline`. Without a deadline poll waits for ever.
pub fn until(deadline: Option<Instant>) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    Some(Timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

/// Time during which a refused connection may mean that QEMU is still starting.
const REFUSAL_GRACE: Duration = Duration::from_secs(3);

impl Channel {
    /// Claims a free port of the node and greets the agent.
    ///
    /// # Errors
    /// When the node is off, or no port is free or the agent does not answer before `deadline`.
    pub fn open(node: &Path, deadline: Instant) -> Result<Self> {
        let lock = Self::take_port(node, deadline)?;
        let socket = Self::connect(&port_socket(node, lock.0), deadline)?;
        socket.set_nonblocking(true)?;
        let mut channel = Self {
            socket,
            decoder: Decoder::new(),
            out: Vec::new(),
            sent: 0,
            _lock: lock.1,
        };
        channel.greet(deadline)?;
        Ok(channel)
    }

    fn take_port(node: &Path, deadline: Instant) -> Result<(usize, File)> {
        ensure!(
            node.exists(),
            "there is no such node ({} is missing)",
            node.display()
        );
        // The search begins at a random port, so that parallel commands rarely compete for the same
        // port.
        let start = crate::state::random() as usize % PORTS;
        loop {
            for i in 0..PORTS {
                let index = (start + i) % PORTS;
                let path = node.join(format!("p{index}.lock"));
                let file = File::options()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(&path)
                    .with_context(|| format!("cannot open {}", path.display()))?;
                if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    return Ok((index, file));
                }
            }
            ensure!(
                Instant::now() < deadline,
                "all {PORTS} command channels are in use"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn connect(path: &Path, deadline: Instant) -> Result<UnixStream> {
        // QEMU may have bound the socket without listening on it yet. The connection is then
        // refused, as it is after QEMU has ended.
        let dead = deadline.min(Instant::now() + REFUSAL_GRACE);
        loop {
            match UnixStream::connect(path) {
                Ok(socket) => return Ok(socket),
                // QEMU creates its sockets shortly after its start.
                Err(e) if e.kind() == ErrorKind::NotFound && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    ensure!(Instant::now() < dead, "the node is off");
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) => {
                    return Err(e).with_context(|| format!("cannot connect to {}", path.display()))
                }
            }
        }
    }

    fn greet(&mut self, deadline: Instant) -> Result<()> {
        let nonce = crate::state::random();
        self.queue(&HostMsg::Hello(nonce));
        loop {
            self.flush()?;
            loop {
                match self.receive()? {
                    Received::Message(GuestMsg::HelloAck { nonce: n, version }) if n == nonce => {
                        ensure!(version == VERSION, "the node's agent speaks version {version} of the protocol, this lab {VERSION}; take the lab down and up again");
                        return Ok(());
                    }
                    // A message left over from the port's previous user.
                    Received::Message(_) => {}
                    Received::Nothing => break,
                    Received::Closed => bail!("the node went off"),
                }
            }
            ensure!(
                Instant::now() < deadline,
                "the node's agent does not answer"
            );
            let flags = if self.pending() > 0 {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            let mut fds = [PollFd::new(&self.socket, flags)];
            // Errors of poll are ignored, because the outer loop checks the deadline and polls
            // again.
            let _ = poll(&mut fds, until(Some(deadline)).as_ref());
        }
    }

    /// Queues a message; [`Channel::flush`] sends it.
    pub fn queue(&mut self, message: &HostMsg) {
        message.put(&mut self.out);
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Returns the socket, for polling.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends pending bytes until QEMU's socket is full. [`Channel::receive`] reports the end of the
    /// stream.
    ///
    /// # Errors
    /// On an unexpected socket error.
    pub fn flush(&mut self) -> Result<()> {
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e)
                    if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
                {
                    break
                }
                Err(e) => return Err(e).context("cannot write to the node"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Returns the next message that has arrived.
    ///
    /// # Errors
    /// On an unexpected socket error or a message that cannot be decoded.
    pub fn receive(&mut self) -> Result<Received> {
        let mut buffer = [0; 64 * 1024];
        loop {
            match self.decoder.next_frame() {
                Some(Ok(frame)) => return Ok(Received::Message(GuestMsg::get(frame)?)),
                // The frame is left over from a previous session. Frames of this session are never
                // cut, because the stream is reliable.
                Some(Err(_)) => continue,
                None => {}
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(Received::Closed),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(Received::Closed),
                Err(e) => return Err(e).context("cannot read from the node"),
            }
        }
    }
}
