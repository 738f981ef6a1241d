// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Negotiation of connections at the server.
//!
//! A [`Pending`] table contains clients that sent a request and whose TCP connections the program
//! has not accepted. A [`Server`] is one accepted connection until its client confirms it.

use super::client::OpenLimits;
use super::Fallback;
use crate::{Memory, Slots, Time};
use wire::ds::{Answer, Answered, ConnId, Connect, Decline, Endpoint, Tuple};
use wire::ids::NodeId;

/// Request of a client that waits for the program to accept its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// Node of the client.
    pub node: NodeId,
    /// Contents of the client's request.
    pub connect: Connect,
    refreshed: Time,
    /// True while the driver creates the connection ([`Pending::begin_accept`]).
    accepting: bool,
}

impl ConnectRequest {
    fn is_of(&self, node: NodeId, connect: &Connect) -> bool {
        self.node == node
            && self.connect.cookie == connect.cookie
            && self.connect.client.id == connect.client.id
    }
}

/// Requests of clients whose TCP connections were not accepted yet. A node has one entry per TCP
/// connection, and at most `per_node` entries. A request never matches a TCP connection of another
/// node.
pub struct Pending<M: Memory> {
    requests: Slots<M, ConnectRequest>,
    nodes: Slots<M, u16>,
    per_node: u16,
    secret: u64,
}

/// Returns a hash of a node's TCP connection. Connections with equal hashes cannot wait at the same
/// time. Collisions depend on the secret, so a node cannot displace entries of other nodes.
fn key(secret: u64, node: NodeId, tuple: &Tuple) -> u64 {
    let ports = (u64::from(tuple.client_port) << 16) | u64::from(tuple.server_port);
    let mut key = secret ^ ((u64::from(node.0) << 32) | ports);
    for chunk in tuple.client.chunks(8).chain(tuple.server.chunks(8)) {
        let mut raw = [0; 8];
        for (to, from) in raw.iter_mut().zip(chunk) {
            *to = *from;
        }
        key = (key ^ u64::from_le_bytes(raw))
            .wrapping_mul(secret | 1)
            .rotate_left(29);
    }
    key
}

impl<M: Memory> Pending<M> {
    /// Returns a table for `capacity` clients, up to `per_node` of each node. `secret` is a random
    /// number. May sleep if the allocation does.
    ///
    /// # Errors
    ///
    /// Returns an error if a memory allocation fails.
    pub fn new(capacity: u16, per_node: u16, secret: u64) -> Result<Self, M::Error> {
        Ok(Self {
            requests: Slots::new(capacity)?,
            nodes: Slots::new(capacity)?,
            per_node,
            secret,
        })
    }

    /// Returns the number of waiting clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if no client waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn remove(&mut self, key: u64) -> Option<ConnectRequest> {
        let request = self.requests.remove(key)?;
        let node = u64::from(request.node.0);
        if let Some(n) = self.nodes.get_mut(node) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.nodes.remove(node);
            }
        }
        Some(request)
    }

    /// Adds or refreshes a client's request. Returns false if its connection is being created.
    ///
    /// # Errors
    ///
    /// Returns an error if the table is full, or if the node has the maximum number of entries.
    pub fn ask(
        &mut self,
        node: NodeId,
        connect: &Connect,
        limits: &OpenLimits,
        now: Time,
    ) -> Result<bool, Decline> {
        self.expire(limits, now);
        let key = key(self.secret, node, &connect.tuple);
        if self
            .requests
            .get(key)
            .is_some_and(|other| other.accepting && other.is_of(node, connect))
        {
            return Ok(false);
        }
        // Replaces this request, or an obsolete one for the same TCP connection.
        let same =
            |other: &ConnectRequest| other.node == node && other.connect.tuple == connect.tuple;
        if self.requests.get(key).is_some_and(same) {
            self.remove(key);
        }
        let count = self.nodes.get(u64::from(node.0)).copied().unwrap_or(0);
        if count >= self.per_node {
            return Err(Decline::Busy);
        }
        let request = ConnectRequest {
            node,
            connect: *connect,
            refreshed: now,
            accepting: false,
        };
        self.requests
            .insert(key, request)
            .map_err(|_| Decline::Busy)?;
        match self.nodes.get_mut(u64::from(node.0)) {
            Some(n) => *n = n.saturating_add(1),
            // Cannot fail, because the table has as many slots as there can be clients.
            None => {
                let _ = self.nodes.insert(u64::from(node.0), 1);
            }
        }
        Ok(true)
    }

    /// Removes a request that the client cancelled.
    pub fn cancel(&mut self, node: NodeId, connect: &Connect) {
        let key = key(self.secret, node, &connect.tuple);
        let same = |a: &ConnectRequest| !a.accepting && a.is_of(node, connect);
        if self.requests.get(key).is_some_and(same) {
            self.remove(key);
        }
    }

    /// Returns the client's request for an accepted TCP connection, and keeps the entry until
    /// [`Pending::end_accept`]. A repeated request during this time creates no new entry.
    pub fn begin_accept(
        &mut self,
        node: NodeId,
        tuple: &Tuple,
        limits: &OpenLimits,
        now: Time,
    ) -> Option<ConnectRequest> {
        self.expire(limits, now);
        let key = key(self.secret, node, tuple);
        let request = self.requests.get_mut(key)?;
        let waits = request.node == node && request.connect.tuple == *tuple && !request.accepting;
        waits.then(|| {
            request.accepting = true;
            *request
        })
    }

    /// Removes the entry of [`Pending::begin_accept`], because the connection was created or
    /// failed.
    pub fn end_accept(&mut self, request: &ConnectRequest) {
        let key = key(self.secret, request.node, &request.connect.tuple);
        let same = |a: &ConnectRequest| a.accepting && a.is_of(request.node, &request.connect);
        if self.requests.get(key).is_some_and(same) {
            self.remove(key);
        }
    }

    /// Removes and returns the client's request for an accepted TCP connection. Returns `None`
    /// without a recent request.
    pub fn accept(
        &mut self,
        node: NodeId,
        tuple: &Tuple,
        limits: &OpenLimits,
        now: Time,
    ) -> Option<ConnectRequest> {
        let request = self.begin_accept(node, tuple, limits, now)?;
        self.end_accept(&request);
        Some(request)
    }

    /// Removes and returns a request of any node for a TCP connection. The driver calls this
    /// function if the TCP connection arrives by another route than its client announced. The
    /// function searches the whole table.
    pub fn remove_any(&mut self, tuple: &Tuple) -> Option<ConnectRequest> {
        let mut found = None;
        self.requests.for_each_mut(|key, request| {
            if !request.accepting && request.connect.tuple == *tuple {
                found = Some(key);
            }
            found.is_none()
        });
        self.remove(found?)
    }

    /// Removes clients that have sent no message for [`OpenLimits::keep`], because they use TCP by
    /// now. Entries whose connection is being created stay.
    pub fn expire(&mut self, limits: &OpenLimits, now: Time) {
        while let Some((key, oldest)) = self.requests.oldest() {
            if now.since(oldest.refreshed) < limits.keep {
                return;
            }
            if oldest.accepting {
                // Insert the request again as the newest entry. The removal has freed a slot.
                if let Some(request) = self.requests.remove(key) {
                    let request = ConnectRequest {
                        refreshed: now,
                        ..request
                    };
                    let _ = self.requests.insert(key, request);
                }
                continue;
            }
            self.remove(key);
        }
    }
}

/// State of an accepted connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// The client has not answered.
    Waiting,
    /// The client has confirmed, and both ends use streams.
    Direct,
    /// The connection uses TCP, for the given reason.
    Tcp(Fallback),
    /// The client did not answer in time. Its choice is unknown, so the connection is aborted.
    Dead,
}

/// Accepted connection that its client has not confirmed. Data of the server stay in the send ring
/// until the confirmation.
#[derive(Debug)]
pub struct Server {
    said: Answered,
    next: Time,
    until: Time,
    state: Accepted,
}

impl Server {
    /// Returns the state machine for a client's request. `own` describes the server's end of the
    /// connection.
    #[must_use]
    pub fn new(request: &ConnectRequest, own: Endpoint, limits: &OpenLimits, now: Time) -> Self {
        Self {
            said: Answered {
                cookie: request.connect.cookie,
                to: request.connect.client.id,
                from: own.id,
                answer: Answer::Accept(own),
            },
            next: now,
            until: now.after(limits.confirm),
            state: Accepted::Waiting,
        }
    }

    /// Returns the state of the connection.
    #[must_use]
    pub fn state(&self) -> Accepted {
        self.state
    }

    /// Processes an answer of the client. Returns true if the state changed.
    pub fn receive(&mut self, said: &Answered) -> bool {
        let mine = said.cookie == self.said.cookie
            && said.to == self.said.from
            && said.from == self.said.to;
        if !mine || self.state != Accepted::Waiting {
            return false;
        }
        self.state = match said.answer {
            Answer::Confirm => Accepted::Direct,
            Answer::Fallback => Accepted::Tcp(Fallback::ClientFellBack),
            _ => return false,
        };
        true
    }

    /// Records a message of the stream, which implies the confirmation. Returns true if the state
    /// changed.
    pub fn stream_received(&mut self) -> bool {
        let news = self.state == Accepted::Waiting;
        if news {
            self.state = Accepted::Direct;
        }
        news
    }

    /// Records data on the TCP connection, which imply that the client uses TCP. Returns true if
    /// the state changed. A closed or reset TCP connection counts as data. TCP's FIN alone does
    /// not, because it may have overtaken the client's answer.
    pub fn tcp_received(&mut self) -> bool {
        let news = self.state == Accepted::Waiting;
        if news {
            self.state = Accepted::Tcp(Fallback::TcpData);
        }
        news
    }

    /// Returns the time of the next call of [`Server::next`], if no other event occurs.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        (self.state == Accepted::Waiting).then(|| self.next.min(self.until))
    }

    /// Returns the message to send now.
    pub fn next(&mut self, limits: &OpenLimits, now: Time) -> Option<Answered> {
        if self.state != Accepted::Waiting {
            return None;
        }
        if self.until <= now {
            self.state = Accepted::Dead;
            return None;
        }
        if now < self.next {
            return None;
        }
        self.next = now.after(limits.ask);
        Some(self.said)
    }
}

/// Returns the message that declines a client's request.
#[must_use]
pub fn decline(cookie: u32, to: ConnId, why: Decline) -> Answered {
    Answered {
        cookie,
        to,
        from: ConnId::default(),
        answer: Answer::Decline(why),
    }
}
