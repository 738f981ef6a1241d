//! Server side of a control connection. Each line is a JSON request or response. No call blocks.

use super::{exec, LoopStats, Request, Response};
use crate::world::World;
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Maximum length of a request in bytes.
const MAX_LINE: usize = 1 << 20;
/// Number of unsent response bytes above which no request is executed until the client has read
/// some.
const TX_HIGH_WATER: usize = 1 << 20;
/// Maximum number of requests that are executed per iteration of the event loop.
const PER_TURN: usize = 16;

/// Result of a call to [`Session::service`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The connection stays open and its socket must be watched.
    Open {
        /// True if requests are pending. The caller must call again without waiting.
        more: bool,
        /// True if responses are pending. The caller must wait until the socket is writable.
        want_write: bool,
    },
    /// The client has closed the connection or sent an overlong line.
    Closed,
    /// The client requested the end of the emulator.
    Shutdown,
}

/// One control connection.
pub struct Session {
    stream: UnixStream,
    rx: Vec<u8>,
    tx: VecDeque<u8>,
}

impl Session {
    /// Returns a session for an accepted socket and makes it non-blocking.
    pub fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            rx: Vec::new(),
            tx: VecDeque::new(),
        })
    }

    /// Returns the socket, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Executes pending requests.
    pub fn service(&mut self, world: &mut World, stats: &LoopStats) -> Outcome {
        let mut left = PER_TURN;
        let mut shutdown = false;
        let mut eof = false;
        while left > 0 && !shutdown && self.tx.len() < TX_HIGH_WATER {
            if let Some(end) = self.rx.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.rx.drain(..=end).collect();
                left -= 1;
                shutdown = self.request(&line, world, stats);
                continue;
            }
            if self.rx.len() > MAX_LINE {
                return Outcome::Closed;
            }
            let mut buf = [0u8; 16384];
            match recv(&self.stream, &mut buf, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    eof = true;
                    break;
                }
                Ok((_, n)) => self.rx.extend_from_slice(&buf[..n]),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return Outcome::Closed,
            }
        }
        let want_write = match self.flush() {
            Ok(w) => w,
            Err(_) => return Outcome::Closed,
        };
        match (shutdown, eof) {
            (true, _) => Outcome::Shutdown,
            (_, true) => Outcome::Closed,
            _ => Outcome::Open {
                more: !want_write && self.rx.contains(&b'\n'),
                want_write,
            },
        }
    }

    /// Executes one line. Returns `true` for a shutdown request.
    fn request(&mut self, line: &[u8], world: &mut World, stats: &LoopStats) -> bool {
        if line.trim_ascii().is_empty() {
            return false;
        }
        let mut shutdown = false;
        let response = match Request::parse(line) {
            Err(e) => Response::Error(format!("request is not understood: {e}")),
            Ok(request) => {
                shutdown = request == Request::Shutdown;
                match exec::execute(world, stats, request) {
                    Ok(value) => Response::Ok(value),
                    Err(e) => Response::Error(format!("{e:#}")),
                }
            }
        };
        self.tx.extend(response.line());
        self.tx.push_back(b'\n');
        shutdown
    }

    fn flush(&mut self) -> Result<bool, Errno> {
        while !self.tx.is_empty() {
            let (a, _) = self.tx.as_slices();
            match send(&self.stream, a, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => drop(self.tx.drain(..n)),
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }
}
