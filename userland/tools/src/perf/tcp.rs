// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! The TCP connection of the two sides: what they say to each other, and whether the other one is still there.

use anyhow::{anyhow, bail, Context, Result};
use extoll::{Error, Wait};
use rustix::net::{recv, sockopt, RecvFlags};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest line.
const LINE: usize = 4096;
/// How long connecting and sending a line may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// A machine that does not answer is found to be gone after this time: pauses and number of the keep-alives.
const PROBE: Duration = Duration::from_secs(6);
const PROBES: u32 = 4;
/// How often a side that waits looks at the connection.
const SLICE: Duration = Duration::from_millis(100);
/// Longest time between signs of life of a side that makes progress.
const SIGN: Duration = Duration::from_secs(1);
/// How much later than the other side itself this one gives up: its signs of life need time.
const GRACE: Duration = Duration::from_secs(2);

/// JSON lines over TCP. An empty line is a sign of life: its sender makes progress.
pub struct Link {
    stream: TcpStream,
    /// Received and not taken yet.
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
        // Not as an I/O error: that would be taken for one of our standard output.
        (&self.stream)
            .write_all(bytes)
            .map_err(|e| anyhow!("the other side is gone: {e}"))
    }

    pub fn send<T: Serialize>(&self, what: &T) -> Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Appends what came; true if there were signs of life.
    fn keep(&self, bytes: &[u8]) -> Result<bool> {
        let mut buffer = self.buffer.borrow_mut();
        buffer.extend_from_slice(bytes);
        let signs = buffer.iter().take_while(|b| **b == b'\n').count();
        buffer.drain(..signs);
        if buffer.len() > LINE {
            bail!("the other side says too much");
        }
        Ok(signs > 0)
    }

    /// Takes what has arrived, without waiting; true if there were signs of life. Fails when the other side is gone.
    fn look(&self) -> Result<bool> {
        let (mut signs, mut bytes) = (false, [0; 256]);
        loop {
            match recv(&self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => bail!("the other side is gone"),
                Ok((n, _)) => signs |= self.keep(&bytes[..n])?,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(signs),
                Err(e) => bail!("the other side is gone: {e}"),
            }
        }
    }

    /// The next line; `None` when the other side closed the connection. Each sign of life lets the time begin again.
    pub fn receive_or_end<T: DeserializeOwned>(&self, limit: Duration) -> Result<Option<T>> {
        let mut start = Instant::now();
        let mut bytes = [0; 256];
        loop {
            let mut buffer = self.buffer.borrow_mut();
            if let Some(end) = buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                return serde_json::from_str(&line)
                    .with_context(|| format!("not understood: {line:?}"))
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
                Ok(0) => bail!("the other side is gone in mid-sentence"),
                Ok(n) if self.keep(&bytes[..n])? => start = Instant::now(),
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(e) => bail!("the other side is gone: {e}"),
            }
        }
    }

    pub fn receive<T: DeserializeOwned>(&self, limit: Duration) -> Result<T> {
        self.receive_or_end(limit)?
            .context("the other side is gone")
    }
}

/// Waiting during a test, with an eye on the connection: a side that is gone ends it at once.
pub struct Watch<'a> {
    link: &'a Link,
    /// Time without progress after which the test fails.
    timeout: Duration,
    events: bool,
    /// Steps of this side, and what of them the other side was told.
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

    /// Time after which a side that only hears of the other one's progress gives up.
    pub fn limit(&self) -> Duration {
        self.timeout.saturating_add(GRACE)
    }

    /// To be called at each step forward. Cheap: asks for the time at every 16th one only.
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

    /// For loops that do not wait here: looks at the connection from time to time.
    pub fn glance(&self) -> Result<()> {
        let asked = self.asked.get().wrapping_add(1);
        self.asked.set(asked);
        if asked % 64 == 0 && self.looked.get().elapsed() >= SLICE {
            self.look()?;
        }
        Ok(())
    }

    /// Repeats what may end with a time-out, a slice at a time. `heeds_signs`: the other side's signs of life are progress, too.
    fn attempt<T>(
        &self,
        limit: Duration,
        heeds_signs: bool,
        mut attempt: impl FnMut(Wait) -> extoll::Result<T>,
    ) -> Result<T> {
        let slice = SLICE.min(limit);
        // Asked for when the first attempt failed: most don't.
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

    /// Waits for something that has to happen within the time-out of the test.
    pub fn wait<T>(&self, attempt: impl FnMut(Wait) -> extoll::Result<T>) -> Result<T> {
        self.attempt(self.timeout, false, attempt)
    }

    /// Waits for something that happens when the other side is through; as long as that one makes progress.
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
            // And loops that look only now and then.
            std::thread::sleep(SLICE);
            assert!((0..64).any(|_| watch.glance().is_err()));
        }
    }

    #[test]
    fn signs_of_life_prolong_what_depends_on_the_other_side_only() {
        // More attempts than fit into the limit without signs.
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
