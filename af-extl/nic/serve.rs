// SPDX-License-Identifier: GPL-2.0-only

//! Negotiation messages: requests of clients, and answers. Process context, may sleep.

use super::{conn::MESSAGE, Count, KernelMemory, Nic};
use crate::{all, open::of_tcp};
use extoll_core::velo;
use kernel::{prelude::*, sync::Arc};
use kernel_ext::{net::socket::Listener, security};
use protocol::ds::{self, decline, ConnectRequest};
use wire::{
    ds::{Answer, Answered, ConnId, Connect, Decline, Kind, SetupError, Tuple},
    ids::NodeId,
};

/// Requests that wait for a program to accept the connection.
pub(super) type Pending = ds::Pending<KernelMemory>;

/// Maximum number of pending requests of all nodes, and of one node.
const WAITING: [u16; 2] = [1024, 256];

/// Copy of a negotiation message.
pub(super) struct SetupMessage {
    kind: Kind,
    source: velo::SourceId,
    len: u16,
    words: [u64; MESSAGE / 8],
}

impl SetupMessage {
    pub(super) fn new(kind: Kind, m: &velo::Message<'_>) -> Self {
        let mut words = [0; MESSAGE / 8];
        for (i, word) in words.iter_mut().enumerate() {
            *word = m.word(i);
        }
        Self {
            kind,
            source: m.status.source,
            len: m.len() as u16,
            words,
        }
    }
}

/// Creates an empty table of requests. May sleep.
pub(super) fn pending() -> Result<Pending> {
    let [all, node] = WAITING;
    Pending::new(all, node, security::random())
}

/// Declines a request that could not be accepted for lack of resources.
pub(super) fn decline_for_resources(nic: &Nic, request: &ConnectRequest) {
    nic.waiting.lock().end_accept(request);
    let Connect { cookie, client, .. } = request.connect;
    nic.decline(request.node, cookie, client.id, Decline::Resources);
}

impl Nic {
    fn answer(&self, to: NodeId, answered: &Answered) {
        let link = self.link.lock().clone();
        if let Some(link) = link {
            link.answer(to, answered);
        }
    }

    fn decline(&self, node: NodeId, cookie: u32, to: ConnId, why: Decline) {
        self.count(Count::Declined);
        self.answer(node, &decline(cookie, to, why));
    }

    /// Processes a negotiation message. May sleep.
    pub(super) fn setup(self: &Arc<Self>, message: &SetupMessage) {
        self.count(Count::Setup);
        let SetupMessage {
            kind, source, len, ..
        } = *message;
        self.silent.lock().remove(source.node);
        let word = |i: usize| message.words.get(i).copied().unwrap_or(0);
        match kind {
            Kind::Connect | Kind::Cancel => match Connect::parse(len, word) {
                Ok(connect) if kind == Kind::Cancel => {
                    self.waiting.lock().cancel(source.node, &connect);
                }
                Ok(connect) => self.ask(source.node, &connect),
                Err(SetupError::Version { cookie, from }) if kind == Kind::Connect => {
                    self.decline(source.node, cookie, from, Decline::Version);
                }
                Err(_) => self.count(Count::Strays),
            },
            _ => match Answered::parse(kind, len, word) {
                Ok(answered) => {
                    let conn = self.table.lock().get(answered.to).cloned();
                    match conn.filter(|conn| conn.peer == source.node) {
                        Some(conn) => conn.answered(&answered),
                        None => self.count(Count::Strays),
                    }
                }
                Err(_) => self.count(Count::Strays),
            },
        }
    }

    /// Processes a request, or its repetition.
    fn ask(self: &Arc<Self>, node: NodeId, connect: &Connect) {
        self.count(Count::Asked);
        // An accepted request needs no offer; the client gets ACCEPT. While it is being accepted,
        // its entry stays until the connection is in the table.
        if self.is_accepted(node, connect) {
            return;
        }
        let (now, tuple) = (self.now(), &connect.tuple);
        let noted = match self.listens(node, tuple) {
            None => Err(Decline::NoListener),
            Some(false) => Err(Decline::Off),
            Some(true) => self.waiting.lock().ask(node, connect, &self.opening, now),
        };
        let Connect { cookie, client, .. } = *connect;
        match noted {
            // The request is being accepted; the client gets ACCEPT.
            Ok(false) => {}
            Ok(true) => self.answer(
                node,
                &Answered {
                    cookie,
                    to: client.id,
                    from: ConnId::default(),
                    answer: Answer::Offer,
                },
            ),
            Err(why) => self.decline(node, cookie, client.id, why),
        }
    }

    /// Returns `None` unless a program can accept the connection. The socket that TCP would choose
    /// must belong to this module. That socket must not wait for data (`TCP_DEFER_ACCEPT`), because
    /// no data would arrive over TCP. If a program can accept, returns whether the data of the
    /// socket's connections may bypass TCP.
    fn listens(&self, node: NodeId, tuple: &Tuple) -> Option<bool> {
        let found = Listener::find(self.device(), node.0, &of_tcp(tuple));
        let listener = found.filter(|listener| !listener.deferred)?;
        all()?.listener_may_bypass(listener.id)
    }

    /// Returns whether requests are pending.
    pub(crate) fn has_requests(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Declines all requests for a connection that TCP carries.
    pub(crate) fn decline_all(&self, tuple: &Tuple) {
        loop {
            let request = self.waiting.lock().remove_any(tuple);
            match request {
                Some(request) => decline_for_resources(self, &request),
                None => return,
            }
        }
    }

    fn is_accepted(&self, node: NodeId, connect: &Connect) -> bool {
        let table = self.table.lock();
        table.is_accepted((node, connect.cookie, connect.client.id))
    }
}
