// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! TCP connection between the two sides, which carries messages and detects a failed side.

use anyhow::{anyhow, bail, Context, Result};
use extoll::{Error, Wait};
use rustix::net::{recv, sockopt, RecvFlags};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Maximum length of a line in bytes.
const LINE: usize = 4096;
/// Maximum time for connecting and for sending a line.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between keep-alive probes, which detect a machine that does not answer.
const PROBE: Duration = Duration::from_secs(6);
const PROBES: u32 = 4;
/// Interval at which a waiting side checks the connection.
const SLICE: Duration = Duration::from_millis(100);
/// Maximum interval between keep-alive lines of a side that makes progress.
const SIGN: Duration = Duration::from_secs(1);
/// Additional time limit of a side that knows the progress of the other side only from keep-alive
/// lines. It exceeds the timeout of the test by this time, because these lines take time.
const GRACE: Duration = Duration::from_secs(2);

/// Connection that exchanges lines of JSON over TCP. An empty line is a keep-alive line, which
/// means that its sender makes progress.
pub struct Link {
    stream: TcpStream,
    /// Received bytes that are not processed yet.
    buffer: RefCell<Vec<u8>>,
}

impl Link {
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        let gone = PROBE * (PROBES + 1);
        sockopt::set_tcp_user_timeout(&stream, gone.as_millis() as u32)?;
        Ok(Self {
            stream,
            buffer: RefCell::default(),
        })
    }

    pub fn connect(host: &str, port: u16) -> Result<Self> {
        let mut last = anyhow!("no such host");
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Self::new(stream),
                Err(e) => last = e.into(),
            }
        }
        Err(last).with_context(|| {
            format!("cannot reach {host} on TCP port {port} (is extoll-perf serve running there?)")
        })
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        // The error must not be an I/O error, because callers treat I/O errors as errors of the
        // standard output.
        (&self.stream)
            .write_all(bytes)
            .map_err(|e| anyhow!("the connection to the other side is gone: {e}"))
    }

    pub fn send<T: Serialize>(&self, what: &T) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Appends received bytes to the buffer. Returns true if they contained a keep-alive line.
    fn keep(&self, bytes: &[u8]) -> Result<bool> {
        let mut buffer = self.buffer.borrow_mut();
        buffer.extend_from_slice(bytes);
        let signs = buffer.iter().take_while(|b| **b == b'\n').count();
        buffer.drain(..signs);
        if buffer.len() > LINE {
            bail!("the other side sent a line that is too long");
        }
        Ok(signs > 0)
    }

    /// Receives available bytes without waiting. Returns true if they contained a keep-alive line.
    /// Fails if the other side has closed the connection.
    fn look(&self) -> Result<bool> {
        let (mut signs, mut bytes) = (false, [0; 256]);
        loop {
            match recv(&self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => bail!("the connection to the other side is gone"),
                Ok((n, _)) => signs |= self.keep(&bytes[..n])?,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(signs),
                Err(e) => bail!("the connection to the other side is gone: {e}"),
            }
        }
    }

    /// Receives the next line. Returns `None` if the other side has closed the connection. Each
    /// keep-alive line restarts the time limit.
    pub fn receive_or_end<T: DeserializeOwned>(&self, limit: Duration) -> Result<Option<T>> {
        let mut start = Instant::now();
        let mut bytes = [0; 256];
        loop {
            let mut buffer = self.buffer.borrow_mut();
            if let Some(end) = buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return serde_json::from_str(&line)
                    .with_context(|| format!("invalid message from the other side: {line:?}"))
                    .map(Some);
            }
            drop(buffer);
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout).context("the other side does not answer");
            }
            self.stream.set_read_timeout(Some(left))?;
            match (&self.stream).read(&mut bytes) {
                Ok(0) if self.buffer.borrow().is_empty() => return Ok(None),
                Ok(0) => bail!("the connection to the other side is gone within a message"),
                Ok(n) if self.keep(&bytes[..n])? => start = Instant::now(),
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(e) => bail!("the connection to the other side is gone: {e}"),
            }
        }
    }

    pub fn receive<T: DeserializeOwned>(&self, limit: Duration) -> Result<T> {
        self.receive_or_end(limit)?
            .context("the connection to the other side is gone")
    }
}

/// Waits during a test and checks the TCP connection. A wait ends when the other side closes the
/// connection.
pub struct Watch<'a> {
    link: &'a Link,
    /// Time without progress after which the test fails.
    timeout: Duration,
    events: bool,
    /// Number of steps of this side, and the number at the last keep-alive line.
    steps: Cell<u64>,
    told: Cell<u64>,
    said: Cell<Instant>,
    heard: Cell<Instant>,
    looked: Cell<Instant>,
    asked: Cell<u32>,
}

impl<'a> Watch<'a> {
    pub fn new(link: &'a Link, timeout: Duration, events: bool) -> Self {
        let now = Instant::now();
        Self {
            link,
            timeout,
            events,
            steps: Cell::new(0),
            told: Cell::new(0),
            said: Cell::new(now),
            heard: Cell::new(now),
            looked: Cell::new(now),
            asked: Cell::new(0),
        }
    }

    /// Returns the time without progress after which a side gives up. It applies to a side that
    /// knows the progress of the other side only from keep-alive lines.
    pub fn limit(&self) -> Duration {
        self.timeout.saturating_add(GRACE)
    }

    /// Counts a step of progress. Reads the clock only in each 16th call.
    pub fn progress(&self) -> Result<()> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        if steps % 16 == 0 {
            self.tell()?;
        }
        Ok(())
    }

    fn tell(&self) -> Result<()> {
        let steps = self.steps.get();
        if steps == self.told.get() || self.said.get().elapsed() < SIGN.min(self.timeout / 4) {
            return Ok(());
        }
        self.told.set(steps);
        self.said.set(Instant::now());
        self.link.write(b"\n")
    }

    fn look(&self) -> Result<()> {
        let now = Instant::now();
        self.looked.set(now);
        if self.link.look()? {
            self.heard.set(now);
        }
        self.tell()
    }

    /// Checks the TCP connection in each 64th call, but at most once per 100 ms. Loops that poll
    /// the NIC without [`Watch::wait`] call this function.
    pub fn glance(&self) -> Result<()> {
        let asked = self.asked.get().wrapping_add(1);
        self.asked.set(asked);
        if asked % 64 == 0 && self.looked.get().elapsed() >= SLICE {
            self.look()?;
        }
        Ok(())
    }

    /// Repeats `attempt`, which may time out, with short time limits. If `heeds_signs` is true,
    /// keep-alive lines of the other side count as progress.
    fn attempt<T>(
        &self,
        limit: Duration,
        heeds_signs: bool,
        mut attempt: impl FnMut(Wait) -> extoll::Result<T>,
    ) -> Result<T> {
        let slice = SLICE.min(limit);
        // The start is set when the first attempt fails, because most attempts succeed.
        let mut start = None;
        loop {
            let wait = Wait::for_at_most(slice);
            match attempt(if self.events { wait } else { wait.polling() }) {
                Err(Error::Timeout) => {}
                other => return Ok(other?),
            }
            self.look()?;
            let now = Instant::now();
            let mut since = *start.get_or_insert_with(|| now.checked_sub(slice).unwrap_or(now));
            if heeds_signs {
                since = since.max(self.heard.get());
            }
            if now.duration_since(since) >= limit {
                return Err(Error::Timeout.into());
            }
        }
    }

    /// Waits for an event that must occur within the timeout of the test.
    pub fn wait<T>(&self, attempt: impl FnMut(Wait) -> extoll::Result<T>) -> Result<T> {
        self.attempt(self.timeout, false, attempt)
    }

    /// Waits for an event that occurs when the other side has finished its work. Each keep-alive
    /// line of that side restarts the time limit.
    pub fn wait_for_the_other<T>(
        &self,
        attempt: impl FnMut(Wait) -> extoll::Result<T>,
    ) -> Result<T> {
        self.attempt(self.limit(), true, attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LONG: Duration = Duration::from_secs(3600);

    fn pair() -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let a = Link::connect("127.0.0.1", port).unwrap();
        (a, Link::new(listener.accept().unwrap().0).unwrap())
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn lines_travel_and_garbage_is_refused() {
        let (a, b) = pair();
        a.write(b"\n\n").unwrap();
        a.send(&(1, u64::MAX)).unwrap();
        assert_eq!(b.receive::<(u8, u64)>(LONG).unwrap(), (1, u64::MAX));
        a.write(b"{\"protocol\":\n").unwrap();
        assert!(b.receive::<(u8, u64)>(LONG).is_err());
        a.send(&7).unwrap();
        assert_eq!(b.receive::<u8>(LONG).unwrap(), 7);
        a.write(&[b'x'; 9000]).unwrap();
        assert!(b.receive::<u8>(LONG).is_err());
        let (a, b) = pair();
        drop(a);
        assert!(b.receive_or_end::<u8>(LONG).unwrap().is_none());
    }

    #[test]
    fn who_says_nothing_or_says_it_slowly_is_not_waited_for() {
        let (a, b) = pair();
        let start = Instant::now();
        let error = b.receive::<u8>(ms(200)).unwrap_err();
        assert!(error.to_string().contains("does not answer"), "{error:#}");
        let slow = std::thread::spawn(move || {
            while a.write(b" ").is_ok() {
                std::thread::sleep(ms(50));
            }
        });
        assert!(b.receive::<u8>(ms(300)).is_err());
        assert!(start.elapsed() < Duration::from_secs(20));
        drop(b);
        slow.join().unwrap();
    }

    #[test]
    fn a_side_that_is_gone_ends_every_wait() {
        for of_the_other in [false, true] {
            let (a, b) = pair();
            let gone = std::thread::spawn(move || {
                std::thread::sleep(ms(300));
                drop(a);
            });
            let watch = Watch::new(&b, LONG, true);
            let never = |wait: Wait| {
                std::thread::sleep(wait.left().unwrap_or_default());
                Err::<(), _>(Error::Timeout)
            };
            let start = Instant::now();
            let error = match of_the_other {
                true => watch.wait_for_the_other(never),
                false => watch.wait(never),
            }
            .unwrap_err();
            assert!(error.to_string().contains("gone"), "{error:#}");
            assert!(start.elapsed() < Duration::from_secs(20));
            gone.join().unwrap();
            // Loops that check the connection at intervals detect the failure, too.
            std::thread::sleep(SLICE);
            assert!((0..64).any(|_| watch.glance().is_err()));
        }
    }

    #[test]
    fn signs_of_life_prolong_what_depends_on_the_other_side_only() {
        // Number of attempts. Without keep-alive lines, they would exceed the time limit.
        const SIGNS: usize = 30;
        let (a, b) = pair();
        let (alive, watch) = (
            Watch::new(&a, ms(200), false),
            Watch::new(&b, ms(200), false),
        );
        assert!(watch.limit() < SLICE * SIGNS as u32);
        let attempts = Cell::new(0);
        // The other side makes progress during each of the first attempts.
        let never = |wait: Wait| {
            attempts.set(attempts.get() + 1);
            std::thread::sleep(wait.left().unwrap_or_default());
            if attempts.get() <= SIGNS {
                (0..16).for_each(|_| alive.progress().unwrap());
            }
            Err::<(), _>(Error::Timeout)
        };
        let timed_out = |error: anyhow::Error| {
            assert!(
                matches!(error.downcast_ref(), Some(Error::Timeout)),
                "{error:#}"
            );
            attempts.take()
        };
        let n = timed_out(watch.wait(never).unwrap_err());
        assert!(n < SIGNS, "{n} attempts");
        let n = timed_out(watch.wait_for_the_other(never).unwrap_err());
        assert!(n > SIGNS, "{n} attempts");
    }
}
