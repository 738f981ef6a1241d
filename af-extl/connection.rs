// SPDX-License-Identifier: GPL-2.0-only

//! Private data of a socket: phase, connection, byte counters.
//!
//! Process context. The spin lock `now` of [`SocketInfo`] protects the socket's phase and its
//! connection. Threads that hold `now` must not acquire the lock of a [`Conn`].

use crate::{
    all,
    nic::{Conn, Decision},
    show::Paths,
    space::Space,
    state::{self, Event, Phase},
};
use kernel::{
    fmt, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag, Relaxed},
        Arc, SpinLock,
    },
};
use kernel_ext::net::{
    namespace::PerNet,
    socket::{Endpoint, ShutdownDirections, SockId, State, Tcp},
};
use protocol::ds::Fallback;

/// Size of `struct extl_info` of extoll/af_extl.h in bytes.
pub(crate) const INFO_SIZE: usize = 24;

/// Phase of a socket and its connection.
struct Now {
    phase: Phase,
    /// Reason for the fallback, if TCP carries the data.
    why: Option<Fallback>,
    /// Direct connection, while it is undecided or in use.
    conn: Option<Arc<Conn>>,
    /// Set while a thread requests the connection or connects TCP.
    opening: bool,
}

impl Now {
    /// Returns whether `conn` is the current connection. `None` stands for no connection.
    fn has(&self, conn: Option<&Arc<Conn>>) -> bool {
        match (&self.conn, conn) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

/// Part of a socket's data that files show. A reader of the files may hold this object longer than
/// the socket exists.
#[pin_data]
pub(crate) struct SocketInfo {
    endpoint: Endpoint,
    space: Arc<Space>,
    #[pin]
    now: SpinLock<Now>,
    /// Bytes sent over both carriers, and bytes sent past TCP.
    sent: Bytes,
    /// Bytes received over both carriers, and bytes received past TCP.
    received: Bytes,
    /// Set if the program requires a feature that only TCP has.
    tcp_only: AtomicFlag,
}

/// Number of bytes sent or received.
struct Bytes {
    all: Atomic<u64>,
    direct: Atomic<u64>,
}

/// Private data of a socket. The namespace lists the data while they exist.
pub(crate) struct Connection {
    info: Arc<SocketInfo>,
    number: u64,
    /// Set if the program has shut down the receiving direction.
    rcv_shut: AtomicFlag,
    /// Set if the socket is in the list of listening sockets.
    listed: AtomicFlag,
    /// Set if the program shut down the sending direction before the carrier of the data was
    /// decided.
    snd_shut: AtomicFlag,
}

/// Carrier of a socket's data.
pub(crate) enum Mode {
    /// TCP carries the data, or the socket has no connection.
    Tcp,
    /// The carrier is not decided yet.
    Waiting,
    /// The streams of this connection carry the data.
    Direct(Arc<Conn>),
}

impl Connection {
    /// Creates the data of a socket without a connection. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `ENODEV` while the module is being unloaded.
    pub(crate) fn new(tcp: &Tcp) -> Result<Self> {
        let space = Space::of(tcp).ok_or(ENODEV)?;
        let endpoint = Endpoint::new(tcp).ok_or(ENODEV)?;
        let now = Now {
            phase: Phase::Idle,
            why: None,
            conn: None,
            opening: false,
        };
        let info = Arc::pin_init(
            pin_init!(SocketInfo {
                endpoint,
                space,
                now <- new_spinlock!(now, "extl_phase"),
                sent: Bytes::new(),
                received: Bytes::new(),
                tcp_only: AtomicFlag::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let number = info.space.add(info.clone())?;
        let new = Self {
            info,
            number,
            rcv_shut: AtomicFlag::new(false),
            listed: AtomicFlag::new(false),
            snd_shut: AtomicFlag::new(false),
        };
        match tcp.state() {
            State::Close => (),
            State::Listen => {
                new.info.step(Event::Listen);
            }
            // The socket was accepted. Its private data may be created late if memory was short at
            // first.
            _ => {
                new.info.step(Event::Accept);
            }
        }
        Ok(new)
    }

    /// Applies an event to the phase. Returns false, without a change, if the event is impossible.
    pub(crate) fn step(&self, event: Event) -> bool {
        self.info.step(event)
    }

    /// Closes the direct connection if TCP's connection does not exist any more. Called after
    /// operations that can end a connection or a connection attempt.
    pub(crate) fn check_closed(&self, tcp: &Tcp) {
        if tcp.state() != State::Close {
            return;
        }
        // The streams have ended, but received data may be unread, so the program still uses the
        // connection.
        if matches!(self.mode(), Mode::Direct(_)) && !tcp.is_unconnected() {
            return;
        }
        let conn = {
            let mut now = self.info.now.lock();
            self.info.space.step(&mut now.phase, Event::Close);
            now.why = None;
            now.conn.take()
        };
        self.rcv_shut.store(false, Relaxed);
        self.snd_shut.store(false, Relaxed);
        if let Some(conn) = conn {
            conn.close(true);
        }
    }

    /// Makes all further connections of the socket use TCP, because the program requires it.
    pub(crate) fn want_tcp(&self) {
        self.info.tcp_only.store(true, Relaxed);
    }

    /// Returns whether the program requires a feature that only TCP has.
    pub(crate) fn wants_tcp(&self) -> bool {
        self.info.wants_tcp()
    }

    /// Starts the connection of an unconnected socket. Returns false if another thread is
    /// connecting the socket already.
    pub(crate) fn begin(&self) -> bool {
        let mut now = self.info.now.lock();
        let begins = !now.opening && self.info.space.step(&mut now.phase, Event::Connect);
        now.opening |= begins;
        begins
    }

    /// Ends the phase that [`Connection::begin`] started. Called after TCP's connect.
    pub(crate) fn began(&self) {
        let conn = self.info.now.lock().conn.clone();
        if let Some(conn) = conn {
            conn.syn_sent();
        }
        self.info.now.lock().opening = false;
    }

    /// Records that the program shut down the receiving direction.
    pub(crate) fn set_rcv_shut(&self) {
        self.rcv_shut.store(true, Relaxed);
    }

    /// Returns whether the program shut down the receiving direction.
    pub(crate) fn is_rcv_shut(&self) -> bool {
        self.rcv_shut.load(Relaxed)
    }

    /// Adds the socket to the list of listening sockets. From then on clients' requests are
    /// accepted.
    pub(crate) fn listen(&self) {
        if let Some(all) = all() {
            self.listed.store(true, Relaxed);
            all.add_listener(&self.info);
        }
    }

    /// Removes the socket from the listening sockets.
    pub(crate) fn unlisten(&self) {
        if let (true, Some(all)) = (self.listed.load(Relaxed), all()) {
            all.remove_listener(&self.info);
        }
    }

    /// Records the directions that the program shut down before the carrier of the data was
    /// decided.
    pub(crate) fn end(&self, ended: ShutdownDirections) {
        if ended.receiving {
            self.set_rcv_shut();
        }
        if ended.sending {
            self.snd_shut.store(true, Relaxed);
        }
    }

    /// Returns whether the program shut down the sending direction before the carrier was decided.
    pub(crate) fn is_snd_shut(&self) -> bool {
        self.snd_shut.load(Relaxed)
    }

    /// Returns the direct or undecided connection, if there is one.
    pub(crate) fn conn(&self) -> Option<Arc<Conn>> {
        self.info.now.lock().conn.clone()
    }

    /// Counts a direct connection that also received data over TCP, which is never delivered.
    pub(crate) fn got_tcp_data(&self) {
        self.info.space.count_astray();
    }

    /// Stores the connection that the socket requested, or the reason for the fallback to TCP.
    /// Closes the connection if the socket does not wait for it any more.
    pub(crate) fn set_candidate(&self, conn: Result<Arc<Conn>, Fallback>) -> Option<Arc<Conn>> {
        match conn {
            Ok(conn) => {
                let waits = {
                    let mut now = self.info.now.lock();
                    let waits = now.phase == Phase::Waiting;
                    if waits {
                        now.conn = Some(conn.clone());
                    }
                    waits
                };
                if !waits {
                    conn.close(true);
                }
                waits.then_some(conn)
            }
            Err(why) => {
                self.info.fall_back(why, None, true);
                None
            }
        }
    }

    /// Updates the phase and returns the carrier of the data. Does not sleep.
    pub(crate) fn mode(&self) -> Mode {
        let (phase, conn, opening) = self.info.apply_decision(true);
        let (phase, conn, _) = match (phase, &conn) {
            // With `opening`, another thread is about to set the connection or to fall back to TCP.
            (Phase::Waiting, Some(waits)) if !opening => {
                waits.check_tcp();
                self.info.apply_decision(true)
            }
            _ => (phase, conn, opening),
        };
        match (phase, conn) {
            (Phase::Waiting, _) => Mode::Waiting,
            (Phase::Direct, Some(conn)) => Mode::Direct(conn),
            _ => Mode::Tcp,
        }
    }

    /// Removes and returns the connection when the socket is closed.
    pub(crate) fn detach(&self) -> Option<Arc<Conn>> {
        self.info.apply_decision(true);
        self.info.now.lock().conn.take()
    }

    /// Counts bytes that were given to TCP.
    #[inline]
    pub(crate) fn sent(&self, bytes: usize) {
        self.info.count_sent(bytes as u64, false);
    }

    /// Counts bytes that were received from TCP.
    #[inline]
    pub(crate) fn received(&self, bytes: usize) {
        self.info.count_received(bytes as u64, false);
    }

    /// Returns the minimum size in bytes of blocking calls that use zero copy; 0: never.
    pub(crate) fn zero_copy(&self) -> usize {
        self.info.space.zero_copy()
    }

    /// Counts bytes that were sent past TCP.
    #[inline]
    pub(crate) fn sent_direct(&self, bytes: usize) {
        self.info.count_sent(bytes as u64, true);
    }

    /// Counts bytes that were received past TCP.
    #[inline]
    pub(crate) fn received_direct(&self, bytes: usize) {
        self.info.count_received(bytes as u64, true);
    }

    /// Traces a `shutdown` with the argument `how` of `shutdown(2)`.
    pub(crate) fn trace_shutdown(&self, how: i32, direct: bool) {
        self.info.endpoint.trace_shutdown(how, direct);
    }

    /// Counts an accepted connection whose socket has no private data yet.
    pub(crate) fn accepted_without_data(&self) {
        self.info.space.count_unmade();
    }

    /// Encodes `struct extl_info`: `__u16 mode, reason; __u32 reserved; __u64 sent, received`.
    pub(crate) fn info(&self) -> [u8; INFO_SIZE] {
        let (phase, why) = self.info.current();
        let mut info = [0; INFO_SIZE];
        let why = why.map_or(0, |why| u16::from(why.code()));
        let fields = [
            (0, &state::mode(phase).to_ne_bytes()[..]),
            (2, &why.to_ne_bytes()[..]),
            (8, &self.info.sent.all().to_ne_bytes()[..]),
            (16, &self.info.received.all().to_ne_bytes()[..]),
        ];
        for (at, bytes) in fields {
            for (to, from) in info.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        }
        info
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.info.space.remove(self.number);
    }
}

impl Bytes {
    const fn new() -> Self {
        Self {
            all: Atomic::new(0),
            direct: Atomic::new(0),
        }
    }

    fn all(&self) -> u64 {
        self.all.load(Relaxed)
    }

    fn add(&self, bytes: u64, direct: bool) {
        self.all.fetch_add(bytes, Relaxed);
        if direct {
            self.direct.fetch_add(bytes, Relaxed);
        }
    }
}

impl SocketInfo {
    fn count_sent(&self, bytes: u64, direct: bool) {
        if bytes > 0 {
            self.sent.add(bytes, direct);
            self.endpoint.trace_sent(bytes, direct);
        }
    }

    fn count_received(&self, bytes: u64, direct: bool) {
        if bytes > 0 {
            self.received.add(bytes, direct);
            self.endpoint.trace_received(bytes, direct);
        }
    }

    /// Returns whether data of new connections may bypass TCP.
    pub(crate) fn may_bypass(&self) -> bool {
        self.space.data_path()
    }

    /// Returns whether the program requires a feature that only TCP has.
    pub(crate) fn wants_tcp(&self) -> bool {
        self.tcp_only.load(Relaxed)
    }

    fn step(&self, event: Event) -> bool {
        self.space.step(&mut self.now.lock().phase, event)
    }

    /// Makes TCP the carrier of connection `of`. Does nothing if the socket has another connection,
    /// or if a thread other than the caller (`opener`) is about to set a connection.
    fn fall_back(&self, why: Fallback, of: Option<&Arc<Conn>>, opener: bool) {
        let conn = {
            let mut now = self.now.lock();
            let given = of.is_none() && now.opening && !opener;
            if given || !now.has(of) || !self.space.step(&mut now.phase, Event::FallBack) {
                return;
            }
            now.why = Some(why);
            now.conn.take()
        };
        self.space.fell_back(why);
        self.endpoint.trace_fallback(why.code(), state::name(why));
        drop(conn);
    }

    /// Applies the decision about the connection to the phase. Returns phase, connection and
    /// whether a thread is about to set a connection. `program` marks a call of the program, in
    /// which an undecided socket without a connection falls back to TCP. Other calls leave an
    /// undecided socket without a connection unchanged, because it may be about to be accepted.
    fn apply_decision(&self, program: bool) -> (Phase, Option<Arc<Conn>>, bool) {
        let read = || {
            let now = self.now.lock();
            (now.phase, now.conn.clone(), now.opening)
        };
        let (phase, conn, opening) = read();
        if phase != Phase::Waiting {
            return (phase, conn, opening);
        }
        match (&conn, conn.as_ref().map(|conn| conn.decision())) {
            (_, Some(Decision::Waiting)) => return (phase, conn, opening),
            (of, Some(Decision::Tcp(why))) => self.fall_back(why, of.as_ref(), false),
            (of, Some(Decision::Direct | Decision::Lost(_))) => {
                let mut now = self.now.lock();
                if now.has(of.as_ref()) {
                    self.space.step(&mut now.phase, Event::UseStreams);
                }
            }
            (_, None) if opening || !program => return (phase, conn, opening),
            (_, None) => self.fall_back(Fallback::NotAsked, None, false),
        }
        read()
    }

    /// Returns the phase and the reason for the fallback to TCP.
    fn current(&self) -> (Phase, Option<Fallback>) {
        self.apply_decision(false);
        let now = self.now.lock();
        (now.phase, now.why)
    }

    /// Returns the identity of the sock.
    pub(crate) fn id(&self) -> SockId {
        self.endpoint.id()
    }

    /// Writes the socket's line of /proc/net/extl.
    pub(crate) fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.endpoint.ends();
        let (local, remote) = (ends.local, ends.remote);
        let (phase, why) = self.current();
        let why = why.map_or("-", state::name);
        let (sent, received) = (self.sent.all(), self.received.all());
        write!(
            f,
            "{local} {remote} {:?} {phase} {why} {sent} {received} {} {} ",
            ends.state, ends.uid, ends.inode
        )?;
        let direct = [&self.sent, &self.received].map(|n| n.direct.load(Relaxed));
        let conn = match phase {
            Phase::Direct => self.now.lock().conn.clone(),
            _ => None,
        };
        Paths::new(direct, conn.as_deref(), &self.endpoint).write(f)
    }
}
