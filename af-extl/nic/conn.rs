// SPDX-License-Identifier: GPL-2.0-only

//! A connection: first its negotiation, then its streams.
//!
//! Each event is passed to the state machines of `protocol::ds` with the connection's lock held.
//! Then [`Inner::drive`] performs the resulting actions, and waiting threads are woken after the
//! lock was released ([`Conn::with`]). Softirqs also acquire the lock, because they process
//! messages and completed GETs. User memory is never copied with the lock held.

mod drive;
mod end;
mod make;
mod run;
mod show;
mod tcp;

pub(super) use make::Components;
pub(super) use run::GetsPosted;

use super::{
    lend::{Lending, Sink},
    link::Link,
    rings::{self, Rings},
    share::Charge,
    Nic,
};
use kernel::{
    impl_has_delayed_work,
    prelude::*,
    sync::{atomic::Atomic, Arc, Mutex},
    workqueue::DelayedWork,
};
use kernel_ext::{
    net::socket::{Endpoint, Queued, ShutdownDirections, State, Wake},
    BhLock,
};
use protocol::{
    ds::{Client, Fallback, Geometry, Received, Server, Stream},
    transfer::{Failure, Quiet},
    Time,
};
use wire::{
    ds::{Answered, ConnId, Endpoint as Far, Message},
    ids::{NodeId, Vpid},
};

/// Carrier of a connection's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// The carrier is not decided yet.
    Waiting,
    /// The data bypass TCP.
    Direct,
    /// TCP carries the data.
    Tcp(Fallback),
    /// The state of the peer is unknown: the connection has failed.
    Lost(Error),
}

/// Actions to perform after the connection's lock was released.
#[derive(Clone, Copy, Default)]
pub(super) struct Todo {
    /// Set if readers must be woken.
    readable: bool,
    /// Set if writers must be woken.
    writable: bool,
    /// Set if all threads must be woken, because the connection ended or its carrier was decided.
    state: bool,
    /// Set if the connection must be removed from the table.
    forget: bool,
    /// Set if the connection must run again, because it has more to send.
    again: bool,
    /// Set if directions of TCP's connection must be shut down.
    shut_tcp: bool,
    /// Set if threads that wait for the peer's end must be woken.
    finished: bool,
    /// Set if memory must be released that was lent by calls that have returned.
    release: bool,
    /// Time at which to run the connection, unless it is scheduled earlier.
    at: Option<Time>,
}

/// Role in the negotiation.
enum Setup {
    Client(Client),
    Server(Server),
}

/// State protected by the connection's lock.
pub(crate) struct Inner {
    setup: Setup,
    /// Streams of the connection, allocated separately because of their size.
    pub(super) stream: KBox<Option<Stream>>,
    decision: Decision,
    /// Set from the decision about the carrier until [`Inner::drive`] has applied the decision.
    decided_now: bool,
    /// Sending side of the ports; `None` after the NIC was lost.
    pub(super) link: Option<Arc<Link>>,
    rings: Option<Arc<Rings>>,
    /// Memory of a reader that GETs write to.
    sink: Option<Arc<Sink>>,
    /// Last state reported to readers: a source can be received directly, or the sink is full.
    sinks: bool,
    /// Memory that the peer reads, lent by calls that have returned.
    pub(super) lendings: KVec<Lending>,
    /// Last state reported to writers: the maximum of lent memory was in use.
    sources_full: bool,
    /// Peer's end of the connection, once known.
    far: Option<Far>,
    geometry: Geometry,
    /// Set while a socket uses the connection.
    open: bool,
    /// Set after TCP's SYN was sent.
    syn: bool,
    /// Set if data arrived over TCP, or TCP's connection has ended.
    tcp_decides: bool,
    /// Set after the end of the streams was reported to waiting threads.
    end_reported: bool,
    /// Error of the streams that was set in the sock.
    stream_error: Option<Error>,
    /// Set after the program has received that error.
    error_seen: bool,
    /// State of TCP's own connection while the streams carry the data.
    tcp: Tcp,
    /// Directions that were shut down before the carrier was decided.
    shut: ShutdownDirections,
    /// Last state reported to writers: the send ring had free space.
    writable: bool,
    /// Number of readable bytes last reported to readers.
    readable: u32,
    /// Last state reported to readers: the peer had pushed its data, as with TCP's flag PSH.
    pushed: bool,
    /// Last state reported to readers: the peer had finished.
    peer_finished_seen: bool,
    /// Set if the port could not accept a message.
    blocked: bool,
    /// Set if the connection used up its budget.
    again: bool,
    /// Number of GETs that may be posted although other connections wait for slots.
    get_budget: u8,
    /// Set if no GET slot was free for the last GET.
    refused: bool,
    /// Number of commands given to the port when the end of the connection was found.
    posted: Option<u64>,
    /// Time at which the carrier was decided.
    since: Time,
    /// Time at which the connection must run next.
    due: Option<Time>,
    /// Time for which a run is scheduled; not later than `due`.
    scheduled: Option<Time>,
}

/// State of TCP's own connection while the streams carry the data.
#[derive(Clone, Copy)]
enum Tcp {
    /// TCP's connection has not ended, as far as is known.
    Fine,
    /// TCP's connection ended with this error, which the work item must evaluate.
    Ended(Option<Error>),
    /// TCP's connection ended without an effect on the streams.
    Ignored,
    /// TCP's connection ended and made the streams end. The sock has the error.
    Followed,
}

/// Connection between a socket and a peer over the ports of one NIC.
#[pin_data]
pub(crate) struct Conn {
    pub(super) nic: Arc<Nic>,
    pub(crate) peer: NodeId,
    pub(super) name: ConnId,
    sock: Endpoint,
    /// Cookie and connection ID with which the client requested the connection; `None` at the
    /// client.
    asked: Option<(u32, ConnId)>,
    /// One slot of the connection table, charged to a user.
    _slot: Charge,
    #[pin]
    inner: BhLock<Inner>,
    /// Held by the thread that copies to the send ring.
    #[pin]
    pub(crate) writer: Mutex<()>,
    /// Held by the thread that copies from the receive ring.
    #[pin]
    pub(crate) reader: Mutex<()>,
    /// Bytes sent by the program.
    pub(crate) sent: Atomic<u64>,
    /// Bytes read by the program.
    pub(crate) received: Atomic<u64>,
    /// Bytes sent without copying, contained in `sent`.
    pub(crate) lent: Atomic<u64>,
    /// Bytes received without copying, contained in `received`.
    pub(crate) sunk: Atomic<u64>,
    /// Number of readers' memory registrations that are not released.
    pub(super) sinks: Atomic<u32>,
    /// Work item that shuts down directions of TCP's connection.
    #[pin]
    shutdown_work: DelayedWork<Conn, 0>,
    /// Work item that releases lent memory.
    #[pin]
    release_work: DelayedWork<Conn, 1>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Conn, 0> for Conn { self.shutdown_work }
    impl HasDelayedWork<Conn, 1> for Conn { self.release_work }
}

impl Inner {
    /// Returns the streams if they carry the data.
    pub(crate) fn direct(&mut self) -> Option<&mut Stream> {
        match self.decision {
            Decision::Direct => self.stream.as_mut(),
            _ => None,
        }
    }

    /// Returns the streams independently of the carrier.
    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        self.stream.as_mut()
    }

    /// Sets or removes the reader's memory that GETs write to. Returns the previous memory.
    pub(crate) fn lend(&mut self, sink: Option<Arc<Sink>>) -> Option<Arc<Sink>> {
        core::mem::replace(&mut self.sink, sink)
    }

    /// Returns the rings, unless they were released.
    pub(crate) fn rings(&self) -> Option<Arc<Rings>> {
        self.rings.clone()
    }
}

impl Conn {
    /// Calls `f` with the lock held, then performs the resulting actions. Does not sleep; process
    /// context or softirq.
    pub(crate) fn with<R>(self: &Arc<Self>, f: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let (result, todo) = {
            let mut inner = self.inner.lock();
            let now = self.nic.now();
            let result = f(&mut inner, now);
            (result, inner.drive(self, now))
        };
        self.act(todo);
        result
    }

    /// Like [`Conn::with`], for events that rarely change the stream's state. `now` need not be
    /// exact.
    fn with_some<R>(self: &Arc<Self>, now: Time, f: impl FnOnce(&mut Inner) -> R) -> R {
        let (result, todo) = {
            let mut inner = self.inner.lock();
            let result = f(&mut inner);
            (result, inner.drive_some(self, now))
        };
        self.act(todo);
        result
    }

    /// Calls `f` with the lock held. `f` must not change any state that requires an action.
    pub(crate) fn peek<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// Records that the program has read `len` bytes. In most cases the peer needs no update, so no
    /// further action is needed.
    pub(crate) fn consume(self: &Arc<Self>, len: u32) {
        let news = self.peek(|inner| {
            let Some(stream) = inner.direct() else {
                return false;
            };
            let news = stream.consume(len, &self.nic.limits);
            inner.readable = stream.receiving().available();
            news
        });
        if news {
            self.with(|_, _| {});
        }
    }

    fn act(self: &Arc<Self>, todo: Todo) {
        if todo.state {
            self.wake_all();
        } else {
            if todo.readable {
                self.sock.wake(Wake::Readable);
            }
            if todo.finished {
                self.sock.wake(Wake::Finished);
            }
            if todo.writable {
                self.sock.wake(Wake::Writable);
            }
        }
        if todo.shut_tcp {
            self.queue_shutdown(0);
        }
        if todo.release {
            self.schedule_release();
        }
        if todo.forget {
            return self.nic.forget(self);
        }
        if todo.again {
            self.nic.run_again(self);
        }
        if let Some(at) = todo.at {
            self.nic.want(at);
        }
    }

    /// Returns the sock.
    pub(crate) fn sock(&self) -> &Endpoint {
        &self.sock
    }

    /// Returns the carrier of the data.
    pub(crate) fn decision(&self) -> Decision {
        self.inner.lock().decision
    }

    /// Processes an answer of the negotiation.
    pub(super) fn answered(self: &Arc<Self>, answered: &Answered) {
        // Answers about the connection are valid only if TCP's connection exists.
        self.check_tcp();
        let news = self.with(|inner, now| match &mut inner.setup {
            Setup::Client(client) => client.receive(answered, &self.nic.opening, now),
            Setup::Server(server) => server.receive(answered),
        });
        // An offer does not decide the carrier, but `connect` waits for an offer.
        if news {
            self.sock.wake(Wake::Writable);
        }
    }

    /// Processes a stream message that a port of the peer sent after the time `sent` and that was
    /// read at the time `now`. `copy` copies the message's data from the given offset. Returns
    /// false if the message is not for this connection.
    pub(super) fn stream_message(
        self: &Arc<Self>,
        (node, vpid): (NodeId, Vpid),
        message: &Message,
        (sent, now): (Time, Time),
        copy: impl FnOnce(usize, &mut [u8]),
    ) -> bool {
        self.with_some(now, |inner| {
            if self.peer != node || inner.far.map(|far| far.velo) != Some(vpid) {
                return false;
            }
            if let Setup::Server(server) = &mut inner.setup {
                server.stream_received();
            }
            inner.decide(self.name, now);
            let Some(stream) = inner.direct() else {
                return true;
            };
            let received = stream.receive(message, sent, &self.nic.limits, now);
            if let (Received::Data { skip, to }, Some(rings)) = (received, &inner.rings) {
                let mut data = [0; MESSAGE];
                if let Some(data) = data.get_mut(..to.len as usize) {
                    copy(usize::from(message.data_offset() + skip), data);
                    rings::store(&rings.receive, to, data);
                }
            }
            true
        })
    }

    /// Processes the outcome of a GET, or the notice that the GET cannot write any more (`quiet`).
    pub(super) fn get_ended(
        self: &Arc<Self>,
        id: u16,
        outcome: Option<Result<(), Failure>>,
        quiet: Option<Quiet>,
    ) {
        self.with(|inner, now| {
            if let Some(stream) = &mut *inner.stream {
                stream.get_ended(id, outcome, quiet, &self.nic.limits, now);
            }
        });
    }

    /// Checks TCP's connection while the carrier is undecided. If data arrived over TCP or the
    /// connection ended, the work item decides, because earlier messages of the peer may still be
    /// in the mailbox.
    pub(crate) fn check_tcp(self: &Arc<Self>) {
        if self.evaluate_tcp(self.sock.queued()) {
            self.nic.run_again(self);
        }
    }

    /// Evaluates the state of TCP's connection. Returns whether that state decides that TCP is the
    /// carrier.
    fn evaluate_tcp(self: &Arc<Self>, queued: Queued) -> bool {
        let state = self.sock.ends().state;
        // A FIN alone decides nothing: a peer that uses the streams may have closed its socket, and
        // TCP's FIN may overtake earlier messages.
        let received = queued.unread > 0;
        self.with(|inner, now| {
            if inner.decision != Decision::Waiting || !inner.open {
                return false;
            }
            inner.tcp_decides = match &mut inner.setup {
                Setup::Client(client) => {
                    // The peer may already have sent its FIN, so states after `Established` also
                    // count.
                    if !matches!(state, State::SynSent | State::SynRecv | State::Close) {
                        client.tcp_up(&self.nic.opening, now);
                    }
                    received || inner.syn && state == State::Close
                }
                Setup::Server(_) => received || state == State::Close,
            };
            inner.tcp_decides
        })
    }

    /// Makes TCP the carrier, because data arrived over TCP, which a peer with streams never sends,
    /// or because TCP's connection ended.
    fn use_tcp(self: &Arc<Self>) {
        self.with(|inner, _| match &mut inner.setup {
            Setup::Client(client) => {
                client.give_up(Fallback::TcpData);
            }
            Setup::Server(server) => {
                server.tcp_received();
            }
        });
    }

    /// Returns whether TCP's SYN may be sent.
    pub(crate) fn may_connect(&self) -> bool {
        match &self.inner.lock().setup {
            Setup::Client(client) => client.may_connect(),
            Setup::Server(_) => true,
        }
    }

    /// Makes a client use TCP.
    pub(crate) fn give_up(self: &Arc<Self>, why: Fallback) {
        self.with(|inner, _| {
            if let Setup::Client(client) = &mut inner.setup {
                client.give_up(why);
            }
        });
    }

    /// Records that TCP's SYN was sent, or could not be sent.
    pub(crate) fn syn_sent(&self) {
        self.inner.lock().syn = true;
    }

    /// Wakes all threads that wait for the socket, after its end also those that wait for hang-up.
    pub(crate) fn wake_all(&self) {
        self.sock.wake(Wake::Readable);
        self.sock.wake(Wake::Writable);
        self.sock.wake(Wake::Finished);
        if self
            .inner
            .lock()
            .stream
            .as_ref()
            .is_some_and(|s| s.end().is_some())
        {
            self.sock.wake(Wake::HungUp);
        }
    }

    /// Returns the client's node, and cookie and connection ID of its request. Returns `None` at
    /// the client.
    pub(super) fn asked(&self) -> Option<(NodeId, u32, ConnId)> {
        let (cookie, name) = self.asked?;
        Some((self.peer, cookie, name))
    }
}

/// Maximum number of bytes of a message.
pub(super) const MESSAGE: usize = 120;
