// SPDX-License-Identifier: GPL-2.0-only

//! A connection: first its negotiation, then its streams.
//!
//! All that happens to it is told to the machines of `protocol::ds` with its lock held, then
//! [`Inner::drive`] has them do what is to be done, and whoever waits is woken when the lock was
//! given back ([`Conn::with`]). The lock is one that softirqs take: what the NIC tells is handled there.
//! Nobody copies from or to user memory with it held.

mod drive;
mod end;
mod make;
mod show;
mod tcp;
mod turn;

pub(super) use make::Parts;
pub(super) use turn::Placed;

use super::{
    lend::{Lending, Sink},
    link::Link,
    rings::{self, Rings},
    share::Share,
    Nic,
};
use kernel::{
    impl_has_delayed_work,
    prelude::*,
    sync::{atomic::Atomic, Arc, Mutex},
    workqueue::DelayedWork,
};
use kernel_ext::{
    net::socket::{Ended, Endpoint, Queued, State, Wake},
    BhLock,
};
use protocol::{
    ds::{Client, Fallback, Geometry, Heard, Server, Stream},
    transfer::{Failure, Quiet},
    Time,
};
use wire::{
    ds::{Answered, ConnId, Endpoint as Far, Message},
    ids::{NodeId, Vpid},
};

/// What a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// It is not decided yet.
    Waiting,
    /// Its data bypass TCP.
    Direct,
    /// TCP carries its data.
    Tcp(Fallback),
    /// Nobody knows what the peer does: it is over.
    Lost(Error),
}

/// What to do with the connection when its lock was given back.
#[derive(Clone, Copy, Default)]
pub(super) struct Todo {
    readable: bool,
    writable: bool,
    /// It is over, or what carries its data was decided.
    state: bool,
    /// Nothing is left of it.
    forget: bool,
    /// There is more to send.
    again: bool,
    /// TCP has to be told what it has to end.
    tell: bool,
    /// The peer has finished.
    finished: bool,
    /// Something is over that was lent by calls that have returned.
    settle: bool,
    /// When it has to be looked at again, if that is not known yet.
    at: Option<Time>,
}

/// Who has asked whom.
enum Setup {
    Client(Client),
    Server(Server),
}

/// What the lock protects.
pub(crate) struct Inner {
    setup: Setup,
    /// In memory of its own, as it is large.
    pub(super) stream: KBox<Option<Stream>>,
    decision: Decision,
    /// It was decided just now.
    news: bool,
    /// The ports, until the NIC goes.
    pub(super) link: Option<Arc<Link>>,
    rings: Option<Arc<Rings>>,
    /// Memory of a reader that is fetched to.
    sink: Option<Arc<Sink>>,
    /// There was something for a reader to take to its memory, or it had all.
    sinks: bool,
    /// Memory that the peer reads from, of calls that have returned.
    pub(super) lendings: KVec<Lending>,
    /// Nothing more could be lent when it was last looked at.
    lent_out: bool,
    far: Option<Far>,
    geometry: Geometry,
    /// A socket has it.
    open: bool,
    /// TCP's SYN was sent.
    syn: bool,
    /// Data came by TCP, or it is over.
    tcp_came: bool,
    /// Those who wait were told that the streams are over.
    told: bool,
    /// The error of the streams that was set in the sock.
    error: Option<Error>,
    /// The program has had that error.
    heard: bool,
    /// Whether TCP's own connection is over, while data go past it.
    tcp: Tcp,
    /// Directions that were ended before it was decided what carries the data.
    shut: Ended,
    /// There was room to write when it was last looked at, and so much to read.
    writable: bool,
    readable: u32,
    /// It was to be read at once.
    pushed: bool,
    finished: bool,
    /// The port had no room.
    blocked: bool,
    /// It has more to do than it may at a time.
    more: bool,
    /// GETs that it may have posted although others wait for a place.
    turn: u8,
    /// There was no place for a GET.
    refused: bool,
    /// So much had been given to the port when it was seen that it is over.
    posted: Option<u64>,
    /// When it was decided that TCP carries the data.
    since: Time,
    /// When it has to be looked at.
    due: Option<Time>,
    /// When it will be: not later.
    scheduled: Option<Time>,
}

/// What is known of TCP's connection while data go past it.
#[derive(Clone, Copy)]
enum Tcp {
    /// Nothing.
    Fine,
    /// It is over, with this error, and the work item has to look at that.
    Over(Option<Error>),
    /// It has, and it is of no consequence.
    Ignored,
    /// So are the streams, and the sock has the error.
    Followed,
}

/// A connection. It belongs to a NIC, and to the socket that has it open.
#[pin_data]
pub(crate) struct Conn {
    pub(super) nic: Arc<Nic>,
    pub(crate) peer: NodeId,
    pub(super) name: ConnId,
    sock: Endpoint,
    /// Cookie and name of the client that has asked for it.
    asked: Option<(u32, ConnId)>,
    /// Whose it is.
    _place: Share,
    #[pin]
    inner: BhLock<Inner>,
    /// Whoever copies to the send ring.
    #[pin]
    pub(crate) writer: Mutex<()>,
    /// Whoever copies from the receive ring.
    #[pin]
    pub(crate) reader: Mutex<()>,
    /// Bytes that were sent and received.
    pub(crate) sent: Atomic<u64>,
    pub(crate) received: Atomic<u64>,
    /// Of these, bytes that were copied nowhere here.
    pub(crate) lent: Atomic<u64>,
    /// See `lent`.
    pub(crate) sunk: Atomic<u64>,
    /// Memory of readers that is not given back.
    pub(super) sinks: Atomic<u32>,
    /// Tells TCP what it has to end.
    #[pin]
    telling: DelayedWork<Conn, 0>,
    /// Gives back what is over of what was lent.
    #[pin]
    settling: DelayedWork<Conn, 1>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Conn, 0> for Conn { self.telling }
    impl HasDelayedWork<Conn, 1> for Conn { self.settling }
}

impl Inner {
    /// The streams, if data go by them.
    pub(crate) fn direct(&mut self) -> Option<&mut Stream> {
        match self.decision {
            Decision::Direct => self.stream.as_mut(),
            _ => None,
        }
    }

    /// The streams, whatever carries the data.
    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        self.stream.as_mut()
    }

    /// Memory of a reader is fetched to from now on, as the streams say; or not any more.
    pub(crate) fn lend(&mut self, sink: Option<Arc<Sink>>) -> Option<Arc<Sink>> {
        core::mem::replace(&mut self.sink, sink)
    }

    /// The rings, if they are there.
    pub(crate) fn rings(&self) -> Option<Arc<Rings>> {
        self.rings.clone()
    }
}

impl Conn {
    /// Calls `f` with the lock held, then does what there is to do. May sleep nowhere.
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

    /// As [`Conn::with`], for what mostly leaves the streams with nothing to do and does not want to know
    /// the time by the nanosecond.
    fn with_some<R>(self: &Arc<Self>, now: Time, f: impl FnOnce(&mut Inner) -> R) -> R {
        let (result, todo) = {
            let mut inner = self.inner.lock();
            let result = f(&mut inner);
            (result, inner.drive_some(self, now))
        };
        self.act(todo);
        result
    }

    /// Calls `f` with the lock held, which changes nothing that there is something to do about.
    pub(crate) fn peek<R>(&self, f: impl FnOnce(&mut Inner) -> R) -> R {
        f(&mut self.inner.lock())
    }

    /// The program has read so much. Mostly that is no news for the peer, and there is nothing to do.
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
        if todo.tell {
            self.tell_tcp(0);
        }
        if todo.settle {
            self.settle_soon();
        }
        if todo.forget {
            return self.nic.forget(self);
        }
        if todo.again {
            self.nic.look_again(self);
        }
        if let Some(at) = todo.at {
            self.nic.want(at);
        }
    }

    /// Its sock.
    pub(crate) fn sock(&self) -> &Endpoint {
        &self.sock
    }

    /// What carries its data.
    pub(crate) fn decision(&self) -> Decision {
        self.inner.lock().decision
    }

    /// A message of the negotiation came.
    pub(super) fn answered(self: &Arc<Self>, said: &Answered) {
        // What is said of a connection counts when there is one.
        self.look_at_tcp();
        let news = self.with(|inner, now| match &mut inner.setup {
            Setup::Client(client) => client.receive(said, &self.nic.opening, now),
            Setup::Server(server) => server.receive(said),
        });
        // An offer is nothing that was decided, but is waited for.
        if news {
            self.sock.wake(Wake::Writable);
        }
    }

    /// A message of a stream came from somebody, sent after the first of two times and found after the
    /// second; `copy` copies its data from a byte on. Whether it is for this connection.
    pub(super) fn heard(
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
                server.stream_came();
            }
            inner.decide(self.name, now);
            let Some(stream) = inner.direct() else {
                return true;
            };
            let heard = stream.receive(message, sent, &self.nic.limits, now);
            if let (Heard::Data { skip, to }, Some(rings)) = (heard, &inner.rings) {
                let mut data = [0; MESSAGE];
                if let Some(data) = data.get_mut(..to.len as usize) {
                    copy(usize::from(message.data_offset() + skip), data);
                    rings::store(&rings.receive, to, data);
                }
            }
            true
        })
    }

    /// Something became of a GET.
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

    /// Looks at TCP's connection while it is not decided what carries the data: whether it is there.
    /// If data came by it, or it is over, the work item decides: what the peer said before may still be
    /// in the mailbox.
    pub(crate) fn look_at_tcp(self: &Arc<Self>) {
        if self.see_tcp(self.sock.queued()) {
            self.nic.look_again(self);
        }
    }

    /// Whether TCP's connection may say what carries the data.
    fn see_tcp(self: &Arc<Self>, queued: Queued) -> bool {
        let state = self.sock.ends().state;
        // An end alone says nothing: who uses the streams may have closed the socket, and TCP's FIN has
        // overtaken what was said before.
        let came = queued.unread > 0;
        self.with(|inner, now| {
            if inner.decision != Decision::Waiting || !inner.open {
                return false;
            }
            inner.tcp_came = match &mut inner.setup {
                Setup::Client(client) => {
                    // The peer may have finished since.
                    if !matches!(state, State::SynSent | State::SynRecv | State::Close) {
                        client.tcp_up(&self.nic.opening, now);
                    }
                    came || inner.syn && state == State::Close
                }
                Setup::Server(_) => came || state == State::Close,
            };
            inner.tcp_came
        })
    }

    /// Data came by TCP, which nobody sends who uses the streams, or it is over.
    fn use_tcp(self: &Arc<Self>) {
        self.with(|inner, _| match &mut inner.setup {
            Setup::Client(client) => {
                client.give_up(Fallback::TcpData);
            }
            Setup::Server(server) => {
                server.tcp_came();
            }
        });
    }

    /// Whether TCP's SYN may go.
    pub(crate) fn may_connect(&self) -> bool {
        match &self.inner.lock().setup {
            Setup::Client(client) => client.may_connect(),
            Setup::Server(_) => true,
        }
    }

    /// A client uses TCP.
    pub(crate) fn give_up(self: &Arc<Self>, why: Fallback) {
        self.with(|inner, _| {
            if let Setup::Client(client) = &mut inner.setup {
                client.give_up(why);
            }
        });
    }

    /// TCP's SYN was sent, or could not be.
    pub(crate) fn syn_went(&self) {
        self.inner.lock().syn = true;
    }

    /// Everybody who waits for anything looks again; those, too, who wait for an end only.
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

    /// The client that has asked for it: node, cookie and name.
    pub(super) fn asked(&self) -> Option<(NodeId, u32, ConnId)> {
        let (cookie, name) = self.asked?;
        Some((self.peer, cookie, name))
    }
}

/// Bytes of a message.
pub(super) const MESSAGE: usize = 120;
