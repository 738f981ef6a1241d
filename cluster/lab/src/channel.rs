//! A port of a node, held exclusively: the byte stream between a command's client and the agent.

use anyhow::{bail, ensure, Context, Result};
use lab_proto::{Decoder, GuestMsg, HostMsg, PORTS, VERSION};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Socket of port `index` in a node's directory.
pub fn port_socket(node: &Path, index: usize) -> PathBuf {
    node.join(format!("p{index}.sock"))
}

/// A greeted port.
pub struct Channel {
    socket: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    /// Released when the channel goes.
    _lock: File,
}

/// What a read brought.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(GuestMsg),
    /// Nothing more at the moment.
    Nothing,
    /// QEMU closed the port: the node is gone.
    Closed,
}

/// Poll time-out until a point in time; `None` waits for ever.
pub fn until(deadline: Option<Instant>) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    Some(Timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

/// How long a refused connection may still mean that QEMU is starting.
const REFUSAL_GRACE: Duration = Duration::from_secs(3);

impl Channel {
    /// Takes a free port of the node and greets the agent.
    ///
    /// # Errors
    /// When no port is free or the agent does not answer until `deadline`, or the node is off.
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
        // A random start, so that parallel commands don't all try the same ones.
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
        // A socket that QEMU has bound but does not listen on yet refuses like one whose QEMU is gone.
        let dead = deadline.min(Instant::now() + REFUSAL_GRACE);
        loop {
            match UnixStream::connect(path) {
                Ok(socket) => return Ok(socket),
                // QEMU makes its sockets within moments after its start; nobody listens once it is gone.
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
                    // What the port's former user left behind.
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
            // An interrupted or timed-out wait is seen above.
            let _ = poll(&mut fds, until(Some(deadline)).as_ref());
        }
    }

    /// Queues a message; [`Channel::flush`] sends it.
    pub fn queue(&mut self, message: &HostMsg) {
        message.put(&mut self.out);
    }

    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// The socket, for waiting.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends as much as QEMU takes at the moment. An end of the stream is left to [`Channel::receive`].
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

    /// The next message that has arrived.
    ///
    /// # Errors
    /// On an unexpected socket error or a message that can't be read.
    pub fn receive(&mut self) -> Result<Received> {
        let mut buffer = [0; 64 * 1024];
        loop {
            match self.decoder.next_frame() {
                Some(Ok(frame)) => return Ok(Received::Message(GuestMsg::get(frame)?)),
                // Remains of a former session; a frame of ours can't be cut, the stream is reliable.
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
