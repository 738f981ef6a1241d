// SPDX-License-Identifier: GPL-2.0-only

//! The data of a socket: what carries its data, and how much went where.

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
    socket::{Ended, Endpoint, SockId, State, Tcp},
};
use protocol::ds::Fallback;

/// `struct extl_info` of extoll/af_extl.h.
pub(crate) const INFO_SIZE: usize = 24;

/// What a socket is now.
struct Now {
    phase: Phase,
    /// Why TCP carries its data.
    why: Option<Fallback>,
    /// Its connection, while that is waited for or used.
    conn: Option<Arc<Conn>>,
    /// A thread is about to ask the peer, or to make TCP's connection.
    opening: bool,
}

impl Now {
    /// Whether its connection is this one, or it has none.
    fn has(&self, conn: Option<&Arc<Conn>>) -> bool {
        match (&self.conn, conn) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

/// A socket as files show it. Readers may have it a little longer than the socket exists.
#[pin_data]
pub(crate) struct Shown {
    endpoint: Endpoint,
    space: Arc<Space>,
    #[pin]
    now: SpinLock<Now>,
    /// Bytes, and of these the ones past TCP.
    sent: Bytes,
    received: Bytes,
    /// The program wants what only TCP has.
    tcp_only: AtomicFlag,
}

/// Bytes that a program sent, or received.
struct Bytes {
    all: Atomic<u64>,
    direct: Atomic<u64>,
}

/// The data of a socket. Listed from its creation to its drop.
pub(crate) struct Connection {
    shown: Arc<Shown>,
    number: u64,
    /// The program receives no more.
    deaf: AtomicFlag,
    /// It has accepted connections.
    listed: AtomicFlag,
    /// It sends no more, by what it said before it was decided what carries the data.
    mute: AtomicFlag,
}

/// What carries the data of a socket, for those who send and receive.
pub(crate) enum Mode {
    /// TCP, or there is no connection.
    Tcp,
    /// It is not decided.
    Waiting,
    /// Streams.
    Direct(Arc<Conn>),
}

impl Connection {
    /// For a socket that has none. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` while the module is being unloaded.
    pub(crate) fn new(tcp: &Tcp) -> Result<Self> {
        let space = Space::of(tcp).ok_or(ENODEV)?;
        let endpoint = Endpoint::new(tcp).ok_or(ENODEV)?;
        let now = Now {
            phase: Phase::Idle,
            why: None,
            conn: None,
            opening: false,
        };
        let shown = Arc::pin_init(
            pin_init!(Shown {
                endpoint,
                space,
                now <- new_spinlock!(now, "extl_phase"),
                sent: Bytes::new(),
                received: Bytes::new(),
                tcp_only: AtomicFlag::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let number = shown.space.add(shown.clone())?;
        let new = Self {
            shown,
            number,
            deaf: AtomicFlag::new(false),
            listed: AtomicFlag::new(false),
            mute: AtomicFlag::new(false),
        };
        match tcp.state() {
            State::Close => (),
            State::Listen => {
                new.shown.step(Event::Listen);
            }
            // An accepted socket, be it that there was no memory for its data at first.
            _ => {
                new.shown.step(Event::Accept);
            }
        }
        Ok(new)
    }

    /// Something happened to the socket: whether that is possible. Otherwise nothing changes.
    pub(crate) fn step(&self, event: Event) -> bool {
        self.shown.step(event)
    }

    /// An operation that can end a connection, or an attempt to make one, is over.
    pub(crate) fn look(&self, tcp: &Tcp) {
        if tcp.state() != State::Close {
            return;
        }
        // The streams are over, but the program still uses their connection: received data may be
        // unread.
        if matches!(self.mode(), Mode::Direct(_)) && !tcp.is_unconnected() {
            return;
        }
        let conn = {
            let mut now = self.shown.now.lock();
            self.shown.space.step(&mut now.phase, Event::Close);
            now.why = None;
            now.conn.take()
        };
        self.deaf.store(false, Relaxed);
        self.mute.store(false, Relaxed);
        if let Some(conn) = conn {
            conn.close(true);
        }
    }

    /// Only TCP will do from now on.
    pub(crate) fn want_tcp(&self) {
        self.shown.tcp_only.store(true, Relaxed);
    }

    /// Whether only TCP will do.
    pub(crate) fn wants_tcp(&self) -> bool {
        self.shown.wants_tcp()
    }

    /// A thread begins to connect a socket that has no connection: whether it is the only one.
    pub(crate) fn begin(&self) -> bool {
        let mut now = self.shown.now.lock();
        let begins = !now.opening && self.shown.space.step(&mut now.phase, Event::Connect);
        now.opening |= begins;
        begins
    }

    /// The thread has done so.
    pub(crate) fn began(&self) {
        let conn = self.shown.now.lock().conn.clone();
        if let Some(conn) = conn {
            conn.syn_went();
        }
        self.shown.now.lock().opening = false;
    }

    /// The program receives no more.
    pub(crate) fn deafen(&self) {
        self.deaf.store(true, Relaxed);
    }

    /// Whether the program receives no more.
    pub(crate) fn is_deaf(&self) -> bool {
        self.deaf.load(Relaxed)
    }

    /// It begins to accept connections: clients may ask from now on.
    pub(crate) fn hear(&self) {
        if let Some(all) = all() {
            self.listed.store(true, Relaxed);
            all.hear(&self.shown);
        }
    }

    /// The socket is closed.
    pub(crate) fn hear_no_more(&self) {
        if let (true, Some(all)) = (self.listed.load(Relaxed), all()) {
            all.deafen(&self.shown);
        }
    }

    /// The program ends directions before it is decided what carries the data.
    pub(crate) fn end(&self, ended: Ended) {
        if ended.receiving {
            self.deafen();
        }
        if ended.sending {
            self.mute.store(true, Relaxed);
        }
    }

    /// Whether the program sends no more, and has said so before that was decided.
    pub(crate) fn is_mute(&self) -> bool {
        self.mute.load(Relaxed)
    }

    /// Its connection, if there is one that may bypass TCP.
    pub(crate) fn conn(&self) -> Option<Arc<Conn>> {
        self.shown.now.lock().conn.clone()
    }

    /// Counts a direct connection that has also got data by TCP, which nobody reads.
    pub(crate) fn got_tcp_data(&self) {
        self.shown.space.count_astray();
    }

    /// A connection that begins has a chance of bypassing TCP, or has none.
    pub(crate) fn chance(&self, conn: Result<Arc<Conn>, Fallback>) -> Option<Arc<Conn>> {
        match conn {
            Ok(conn) => {
                let waits = {
                    let mut now = self.shown.now.lock();
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
                self.shown.fall_back(why, None, true);
                None
            }
        }
    }

    /// What carries the data now. Doesn't sleep.
    pub(crate) fn mode(&self) -> Mode {
        let (phase, conn, opening) = self.shown.settle(true);
        let (phase, conn, _) = match (phase, &conn) {
            // Else somebody is about to give it a connection, or to tell TCP.
            (Phase::Waiting, Some(waits)) if !opening => {
                waits.look_at_tcp();
                self.shown.settle(true)
            }
            _ => (phase, conn, opening),
        };
        match (phase, conn) {
            (Phase::Waiting, _) => Mode::Waiting,
            (Phase::Direct, Some(conn)) => Mode::Direct(conn),
            _ => Mode::Tcp,
        }
    }

    /// Its connection, if there is one that may bypass TCP, when the socket is closed.
    pub(crate) fn take(&self) -> Option<Arc<Conn>> {
        self.shown.settle(true);
        self.shown.now.lock().conn.take()
    }

    /// Counts bytes that TCP took.
    #[inline]
    pub(crate) fn sent(&self, bytes: usize) {
        self.shown.count_sent(bytes as u64, false);
    }

    /// Counts bytes that TCP gave.
    #[inline]
    pub(crate) fn received(&self, bytes: usize) {
        self.shown.count_received(bytes as u64, false);
    }

    /// Bytes from which on calls that wait lend their memory; 0: none do.
    pub(crate) fn zero_copy(&self) -> usize {
        self.shown.space.zero_copy()
    }

    /// Counts bytes sent past TCP.
    #[inline]
    pub(crate) fn sent_direct(&self, bytes: usize) {
        self.shown.count_sent(bytes as u64, true);
    }

    /// Counts bytes received past TCP.
    #[inline]
    pub(crate) fn received_direct(&self, bytes: usize) {
        self.shown.count_received(bytes as u64, true);
    }

    /// A program ends directions, by the numbers of `shutdown(2)`.
    pub(crate) fn trace_shutdown(&self, how: i32, direct: bool) {
        self.shown.endpoint.trace_shutdown(how, direct);
    }

    /// Counts a connection whose socket could not get its data yet.
    pub(crate) fn accepted_without_data(&self) {
        self.shown.space.count_unmade();
    }

    /// `struct extl_info`: `__u16 mode, reason; __u32 reserved; __u64 sent, received`.
    pub(crate) fn info(&self) -> [u8; INFO_SIZE] {
        let (phase, why) = self.shown.current();
        let mut info = [0; INFO_SIZE];
        let why = why.map_or(0, |why| u16::from(why.code()));
        let fields = [
            (0, &state::mode(phase).to_ne_bytes()[..]),
            (2, &why.to_ne_bytes()[..]),
            (8, &self.shown.sent.all().to_ne_bytes()[..]),
            (16, &self.shown.received.all().to_ne_bytes()[..]),
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
        self.shown.space.remove(self.number);
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

impl Shown {
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

    /// Whether data of connections that begin may bypass TCP.
    pub(crate) fn may_bypass(&self) -> bool {
        self.space.data_path()
    }

    /// Whether only TCP will do.
    pub(crate) fn wants_tcp(&self) -> bool {
        self.tcp_only.load(Relaxed)
    }

    fn step(&self, event: Event) -> bool {
        self.space.step(&mut self.now.lock().phase, event)
    }

    /// TCP carries the data of connection `of`, unless it has another one by now, or somebody else than
    /// the caller, `opener`, is about to give it one.
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

    /// Takes over what was decided of its connection; what it is then, and whether somebody is about
    /// to give it one. A socket without one uses TCP otherwise, if the caller is the program: a socket
    /// that is just being accepted has none yet.
    fn settle(&self, program: bool) -> (Phase, Option<Arc<Conn>>, bool) {
        let look = || {
            let now = self.now.lock();
            (now.phase, now.conn.clone(), now.opening)
        };
        let (phase, conn, opening) = look();
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
        look()
    }

    /// What it is, and why TCP carries its data.
    fn current(&self) -> (Phase, Option<Fallback>) {
        self.settle(false);
        let now = self.now.lock();
        (now.phase, now.why)
    }

    /// Which sock it has.
    pub(crate) fn id(&self) -> SockId {
        self.endpoint.id()
    }

    /// Writes its line of /proc/net/extl.
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
