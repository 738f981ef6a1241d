//! The event loop of the emulator. A single thread runs it and blocks in `epoll_wait` while there
//! is no work.
//!
//! Each iteration does a bounded amount of work for every ready connection. A NIC has one client at
//! a time. Other clients wait in the queue of the listening socket until this client disconnects.

use crate::config::Fabric;
use crate::control::server::{Outcome, Session};
use crate::control::{LoopStats, SOCKET};
use crate::device::NicDevice;
use crate::vfio_user::{Closed, Connection};
use crate::world::World;
use anyhow::{bail, Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// Maximum number of messages that are processed per connection and iteration.
const BUDGET: usize = 256;
/// Maximum number of control connections.
const MAX_CONTROL: usize = 64;
/// Time in ns for which a listener is not watched after a failed accept (for example, out of file
/// descriptors).
const ACCEPT_PAUSE_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    NicListener(usize),
    Nic(usize),
    ControlListener,
    Control(usize),
    Signal,
}

impl Token {
    fn pack(self) -> u64 {
        match self {
            Token::NicListener(i) => (i as u64) << 3,
            Token::Nic(i) => ((i as u64) << 3) | 1,
            Token::ControlListener => 2,
            Token::Control(i) => ((i as u64) << 3) | 3,
            Token::Signal => 4,
        }
    }

    fn unpack(v: u64) -> Option<Self> {
        let i = (v >> 3) as usize;
        Some(match v & 7 {
            0 => Token::NicListener(i),
            1 => Token::Nic(i),
            2 => Token::ControlListener,
            3 => Token::Control(i),
            4 => Token::Signal,
            _ => return None,
        })
    }
}

/// Event for which the socket of a connection is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    Read,
    Write,
    /// No event, because the device must become ready first.
    Nothing,
}

struct Client<T> {
    inner: T,
    watch: Watch,
}

/// The event loop, and the state that it serves.
pub struct Reactor {
    epoll: OwnedFd,
    world: World,
    /// Listeners of the NICs that have a host.
    nic_listeners: BTreeMap<usize, UnixListener>,
    control_listener: UnixListener,
    signals: UnixStream,
    nics: BTreeMap<usize, Client<Connection>>,
    controls: BTreeMap<usize, Client<Session>>,
    next_control: usize,
    /// Connections for which the last iteration left work.
    ready: BTreeSet<Token>,
    /// NICs whose connection must wait until the device is ready for the next message.
    waiting: BTreeSet<usize>,
    /// Listeners that are not watched, with the time in ns until which this applies.
    paused: BTreeMap<Token, u64>,
    stats: LoopStats,
    sockets: Vec<PathBuf>,
    stop: bool,
}

/// Binds a listening socket. Replaces a socket file that no process listens on. Fails if another
/// emulator listens on it.
fn listen(path: &Path) -> Result<UnixListener> {
    if path.as_os_str().len() > 107 {
        bail!("{}: too long for a socket path (107 bytes)", path.display());
    }
    if path.exists() {
        if UnixStream::connect(path).is_ok() {
            bail!("{}: another emulator is running there", path.display());
        }
        std::fs::remove_file(path).with_context(|| format!("{}: can't remove", path.display()))?;
    }
    let l =
        UnixListener::bind(path).with_context(|| format!("{}: can't listen", path.display()))?;
    l.set_nonblocking(true)?;
    Ok(l)
}

impl Reactor {
    /// Binds all sockets. Clients can connect when this returns. Errors name the socket.
    pub fn new(fabric: &Fabric, world: World) -> Result<Self> {
        std::fs::create_dir_all(&fabric.dir)
            .with_context(|| format!("{}: can't create", fabric.dir.display()))?;
        let control_path = fabric.dir.join(SOCKET);
        let control_listener = listen(&control_path)?;
        let mut sockets = vec![control_path];
        let mut nic_listeners = BTreeMap::new();
        for (i, spec) in fabric.nics.iter().enumerate() {
            if spec.accelerator.is_none() {
                nic_listeners.insert(i, listen(&spec.socket)?);
                sockets.push(spec.socket.clone());
            }
        }
        let (signals, write_end) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in [
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGHUP,
        ] {
            signal_hook::low_level::pipe::register(signal, write_end.try_clone()?)?;
        }
        let r = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            world,
            nic_listeners,
            control_listener,
            signals,
            nics: BTreeMap::new(),
            controls: BTreeMap::new(),
            next_control: 0,
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            paused: BTreeMap::new(),
            stats: LoopStats::default(),
            sockets,
            stop: false,
        };
        r.watch(&r.signals, Token::Signal, EventFlags::IN)?;
        r.watch(&r.control_listener, Token::ControlListener, EventFlags::IN)?;
        for (&i, l) in &r.nic_listeners {
            r.watch(l, Token::NicListener(i), EventFlags::IN)?;
        }
        Ok(r)
    }

    fn watch(&self, fd: impl AsFd, token: Token, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token.pack()), flags)
    }

    /// Serves until a signal or a control request ends the loop.
    pub fn run(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        while !self.stop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            self.stats.wakeups += 1;
            let mut work = std::mem::take(&mut self.ready);
            work.extend(events.iter().filter_map(|e| Token::unpack(e.data.u64())));
            if !work.is_empty() {
                self.stats.turns += 1;
            }
            for token in work {
                // A panic outside the NIC models closes only the affected connection. The NIC
                // models contain their panics.
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.dispatch(token))) {
                    tracing::error!("closing {token:?} after a panic while serving it");
                    self.drop_after_panic(token, &*payload);
                }
            }
            if catch_unwind(AssertUnwindSafe(|| self.world.tick())).is_err() {
                tracing::error!("panic in a timer");
            }
            self.wake_waiting();
            self.wake_requests();
            self.unpause();
        }
        self.finish()
    }

    /// Flushes the trace and removes the sockets.
    fn finish(&mut self) -> Result<()> {
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
        self.world.tracer.stop().context("trace file")
    }

    fn timeout(&self) -> Option<Timespec> {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if !self.ready.is_empty() || self.world.busy() {
            return Some(zero);
        }
        let at = self
            .world
            .next_deadline()
            .into_iter()
            .chain(self.paused.values().copied())
            .min()?;
        let ns = at.saturating_sub(self.world.now());
        // The wait is limited to an hour. A wake-up without work does no harm.
        let ns = ns.min(3_600_000_000_000);
        Some(Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        })
    }

    fn dispatch(&mut self, token: Token) {
        match token {
            Token::NicListener(i) => self.accept_nic(i),
            Token::ControlListener => self.accept_control(),
            Token::Nic(i) => self.serve_nic(i),
            Token::Control(i) => self.serve_control(i),
            Token::Signal => {
                let _ = self.signals.read(&mut [0; 64]);
                tracing::info!("ended by a signal");
                self.stop = true;
            }
        }
    }

    fn drop_after_panic(&mut self, token: Token, payload: &(dyn std::any::Any + Send)) {
        match token {
            Token::Nic(i) => {
                self.world.crashed(i, payload);
                self.close_nic(i, "a panic");
            }
            Token::Control(i) => self.close_control(i),
            _ => {}
        }
    }

    fn pause(&mut self, token: Token, e: &std::io::Error) {
        tracing::error!("can't accept connections ({e}); retrying in one second");
        let at = self.world.now() + ACCEPT_PAUSE_NS;
        let _ = match token {
            Token::NicListener(i) => epoll::delete(&self.epoll, &self.nic_listeners[&i]),
            _ => epoll::delete(&self.epoll, &self.control_listener),
        };
        self.paused.insert(token, at);
    }

    /// Schedules connections whose device has become ready.
    fn wake_waiting(&mut self) {
        let (still, over) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|&i| self.world.host_waits(i));
        self.waiting = still;
        let over: BTreeSet<usize> = over;
        self.ready.extend(over.into_iter().map(Token::Nic));
    }

    /// Schedules connections whose client must receive a DMA message. For connections that can't
    /// send now, epoll reports when they can.
    fn wake_requests(&mut self) {
        for (&i, client) in &self.nics {
            if client.watch != Watch::Write && self.world.has_request(i) {
                self.ready.insert(Token::Nic(i));
            }
        }
    }

    fn unpause(&mut self) {
        let now = self.world.now();
        let due: Vec<Token> = self
            .paused
            .iter()
            .filter(|(_, &at)| at <= now)
            .map(|(&t, _)| t)
            .collect();
        for token in due {
            self.paused.remove(&token);
            let result = match token {
                Token::NicListener(i) => self.watch(&self.nic_listeners[&i], token, EventFlags::IN),
                _ => self.watch(&self.control_listener, token, EventFlags::IN),
            };
            if let Err(e) = result {
                self.pause(token, &e.into());
            }
        }
    }

    fn accept_nic(&mut self, i: usize) {
        let token = Token::NicListener(i);
        let accepted = match self.nic_listeners[&i].accept() {
            Ok((stream, _)) => Connection::new(stream),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(e) => return self.pause(token, &e),
        };
        let watched = accepted.and_then(|conn| {
            self.watch(conn.as_fd(), Token::Nic(i), EventFlags::IN)?;
            Ok(conn)
        });
        match watched {
            Ok(conn) => {
                let _ = epoll::delete(&self.epoll, &self.nic_listeners[&i]);
                self.nics.insert(
                    i,
                    Client {
                        inner: conn,
                        watch: Watch::Read,
                    },
                );
                tracing::info!(nic = i, "client connected");
                self.world.connected(i);
            }
            Err(e) => self.pause(token, &e),
        }
    }

    fn serve_nic(&mut self, i: usize) {
        let Some(mut client) = self.nics.remove(&i) else {
            return;
        };
        let before = client.inner.stats();
        let mut device = NicDevice {
            world: &mut self.world,
            nic: i,
        };
        // A panic drops the connection, which closes it.
        let result = client.inner.service(&mut device, BUDGET);
        let after = client.inner.stats();
        self.stats.socket_reads += after.0 - before.0;
        self.stats.messages += after.1 - before.1;
        match result {
            Ok(progress) => {
                if progress.more {
                    self.ready.insert(Token::Nic(i));
                }
                let want = match progress {
                    p if p.want_write => Watch::Write,
                    p if p.waiting && !p.listen => Watch::Nothing,
                    _ => Watch::Read,
                };
                if progress.waiting {
                    self.waiting.insert(i);
                }
                rewatch(
                    &self.epoll,
                    client.inner.as_fd(),
                    Token::Nic(i),
                    &mut client.watch,
                    want,
                );
                self.nics.insert(i, client);
            }
            Err(Closed::Eof) => {
                drop(client);
                self.close_nic(i, "its client");
            }
            Err(e) => {
                tracing::warn!(nic = i, "connection dropped: {e}");
                drop(client);
                self.close_nic(i, "an error");
            }
        }
    }

    fn close_nic(&mut self, i: usize, by: &str) {
        self.nics.remove(&i);
        self.ready.remove(&Token::Nic(i));
        self.waiting.remove(&i);
        tracing::info!(nic = i, "connection closed by {by}");
        self.world.disconnected(i);
        // The listener is watched again, so that the next client can connect.
        if let Err(e) = self.watch(
            &self.nic_listeners[&i],
            Token::NicListener(i),
            EventFlags::IN,
        ) {
            if e != Errno::EXIST {
                self.pause(Token::NicListener(i), &e.into());
            }
        }
    }

    fn accept_control(&mut self) {
        let session = match self.control_listener.accept() {
            Ok((stream, _)) => Session::new(stream),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(e) => return self.pause(Token::ControlListener, &e),
        };
        if self.controls.len() >= MAX_CONTROL {
            tracing::warn!("closing a new control connection: {MAX_CONTROL} are open already");
            return;
        }
        let i = self.next_control;
        let watched = session.and_then(|s| {
            self.watch(s.as_fd(), Token::Control(i), EventFlags::IN)?;
            Ok(s)
        });
        match watched {
            Ok(s) => {
                self.next_control += 1;
                self.controls.insert(
                    i,
                    Client {
                        inner: s,
                        watch: Watch::Read,
                    },
                );
            }
            Err(e) => tracing::error!("control connection: {e}"),
        }
    }

    fn serve_control(&mut self, i: usize) {
        let Some(mut client) = self.controls.remove(&i) else {
            return;
        };
        match client.inner.service(&mut self.world, &self.stats) {
            Outcome::Open { more, want_write } => {
                if more {
                    self.ready.insert(Token::Control(i));
                }
                rewatch(
                    &self.epoll,
                    client.inner.as_fd(),
                    Token::Control(i),
                    &mut client.watch,
                    if want_write {
                        Watch::Write
                    } else {
                        Watch::Read
                    },
                );
                self.controls.insert(i, client);
            }
            Outcome::Closed => {}
            Outcome::Shutdown => {
                tracing::info!("ended by a control request");
                self.stop = true;
            }
        }
    }

    fn close_control(&mut self, i: usize) {
        self.controls.remove(&i);
        self.ready.remove(&Token::Control(i));
    }
}

/// Changes the event for which a socket is watched.
fn rewatch(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: Token, now: &mut Watch, want: Watch) {
    if *now == want {
        return;
    }
    let data = EventData::new_u64(token.pack());
    let flags = match want {
        Watch::Write => EventFlags::OUT,
        _ => EventFlags::IN,
    };
    let changed = match (*now, want) {
        // The socket is removed, because epoll would repeatedly report that the peer has closed it.
        (_, Watch::Nothing) => epoll::delete(epoll, fd),
        (Watch::Nothing, _) => epoll::add(epoll, fd, data, flags),
        _ => epoll::modify(epoll, fd, data, flags),
    };
    if changed.is_ok() {
        *now = want;
    }
}
