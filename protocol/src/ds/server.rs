// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Negotiation as a server sees it: clients that have asked and whose TCP connections were not
//! taken yet, and connections that were taken and that the client has not confirmed.

use super::client::OpenLimits;
use super::Fallback;
use crate::{Memory, Slots, Time};
use wire::ds::{Answer, Answered, ConnId, Connect, Decline, Endpoint, Tuple};
use wire::ids::NodeId;

/// A client that has asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its node.
    pub node: NodeId,
    /// What it said.
    pub connect: Connect,
    heard: Time,
    /// Its connection is being taken.
    taken: bool,
}

impl Asked {
    fn is_of(&self, node: NodeId, connect: &Connect) -> bool {
        self.node == node
            && self.connect.cookie == connect.cookie
            && self.connect.client.id == connect.client.id
    }
}

/// Clients whose TCP connections were not taken yet. A node has one for a TCP connection at most, and
/// a bounded number of them; what it says of connections of other nodes is of no use to it.
pub struct Pending<M: Memory> {
    asked: Slots<M, Asked>,
    nodes: Slots<M, u16>,
    per_node: u16,
    secret: u64,
}

/// A number for a TCP connection of a node; those that share one can't wait at the same time. Which do
/// depends on a secret, so that nobody takes those of others.
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
    /// For `capacity` clients, `per_node` of each node; `secret` is a random number. May sleep where
    /// getting memory does.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(capacity: u16, per_node: u16, secret: u64) -> Result<Self, M::Error> {
        Ok(Self {
            asked: Slots::new(capacity)?,
            nodes: Slots::new(capacity)?,
            per_node,
            secret,
        })
    }

    /// Clients that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    fn remove(&mut self, key: u64) -> Option<Asked> {
        let asked = self.asked.remove(key)?;
        let node = u64::from(asked.node.0);
        if let Some(n) = self.nodes.get_mut(node) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.nodes.remove(node);
            }
        }
        Some(asked)
    }

    /// A client asks, or says once more that it waits; false if its connection is being taken.
    ///
    /// # Errors
    ///
    /// Too many wait, of this node or altogether.
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
            .asked
            .get(key)
            .is_some_and(|other| other.taken && other.is_of(node, connect))
        {
            return Ok(false);
        }
        // An older one of the same TCP connection is over, or it is this one.
        let same = |other: &Asked| other.node == node && other.connect.tuple == connect.tuple;
        if self.asked.get(key).is_some_and(same) {
            self.remove(key);
        }
        let count = self.nodes.get(u64::from(node.0)).copied().unwrap_or(0);
        if count >= self.per_node {
            return Err(Decline::Busy);
        }
        let asked = Asked {
            node,
            connect: *connect,
            heard: now,
            taken: false,
        };
        self.asked.insert(key, asked).map_err(|_| Decline::Busy)?;
        match self.nodes.get_mut(u64::from(node.0)) {
            Some(n) => *n = n.saturating_add(1),
            // There is room: no more nodes than clients.
            None => {
                let _ = self.nodes.insert(u64::from(node.0), 1);
            }
        }
        Ok(true)
    }

    /// A client does not wait any longer.
    pub fn cancel(&mut self, node: NodeId, connect: &Connect) {
        let key = key(self.secret, node, &connect.tuple);
        let same = |a: &Asked| !a.taken && a.is_of(node, connect);
        if self.asked.get(key).is_some_and(same) {
            self.remove(key);
        }
    }

    /// As [`Pending::take`], but the client is known until [`Pending::taken`]: what it says once more
    /// while its connection is being made is nothing that waits for another one.
    pub fn begin_take(
        &mut self,
        node: NodeId,
        tuple: &Tuple,
        limits: &OpenLimits,
        now: Time,
    ) -> Option<Asked> {
        self.expire(limits, now);
        let key = key(self.secret, node, tuple);
        let asked = self.asked.get_mut(key)?;
        let waits = asked.node == node && asked.connect.tuple == *tuple && !asked.taken;
        waits.then(|| {
            asked.taken = true;
            *asked
        })
    }

    /// A connection was made of a client that [`Pending::begin_take`] gave, or could not be.
    pub fn taken(&mut self, asked: &Asked) {
        let key = key(self.secret, asked.node, &asked.connect.tuple);
        let same = |a: &Asked| a.taken && a.is_of(asked.node, &asked.connect);
        if self.asked.get(key).is_some_and(same) {
            self.remove(key);
        }
    }

    /// The client on `node` of a TCP connection that was taken, which waits no longer. `None`: it has
    /// not asked, or not lately.
    pub fn take(
        &mut self,
        node: NodeId,
        tuple: &Tuple,
        limits: &OpenLimits,
        now: Time,
    ) -> Option<Asked> {
        let asked = self.begin_take(node, tuple, limits, now)?;
        self.taken(&asked);
        Some(asked)
    }

    /// Clients of any node that have asked for a TCP connection, and are forgotten: for one that turns out to
    /// come from somewhere else than they said, one by one. Looks at all of them.
    pub fn take_any(&mut self, tuple: &Tuple) -> Option<Asked> {
        let mut found = None;
        self.asked.for_each_mut(|key, asked| {
            if !asked.taken && asked.connect.tuple == *tuple {
                found = Some(key);
            }
            found.is_none()
        });
        self.remove(found?)
    }

    /// Forgets those that have said nothing for some time: they use TCP by now. Those whose connection
    /// is being made are told to whoever makes it.
    pub fn expire(&mut self, limits: &OpenLimits, now: Time) {
        while let Some((key, oldest)) = self.asked.oldest() {
            if now.since(oldest.heard) < limits.keep {
                return;
            }
            if oldest.taken {
                // As the youngest, for which there is the place that it had.
                if let Some(asked) = self.asked.remove(key) {
                    let asked = Asked {
                        heard: now,
                        ..asked
                    };
                    let _ = self.asked.insert(key, asked);
                }
                continue;
            }
            self.remove(key);
        }
    }
}

/// What became of a connection that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// The client has not answered.
    Waiting,
    /// It uses it.
    Direct,
    /// It uses TCP.
    Tcp(Fallback),
    /// It does not answer: nobody knows what it does.
    Dead,
}

/// A connection that was taken. What the server sends waits in its send ring until the client has
/// confirmed.
#[derive(Debug)]
pub struct Server {
    said: Answered,
    next: Time,
    until: Time,
    state: Accepted,
}

impl Server {
    /// `own` is the end here.
    #[must_use]
    pub fn new(asked: &Asked, own: Endpoint, limits: &OpenLimits, now: Time) -> Self {
        Self {
            said: Answered {
                cookie: asked.connect.cookie,
                to: asked.connect.client.id,
                from: own.id,
                answer: Answer::Accept(own),
            },
            next: now,
            until: now.after(limits.confirm),
            state: Accepted::Waiting,
        }
    }

    /// What became of it.
    #[must_use]
    pub fn state(&self) -> Accepted {
        self.state
    }

    /// Takes what the client says; true if the state is another one.
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

    /// A message of the stream came: the client uses it, though it was not heard to say so.
    pub fn stream_came(&mut self) -> bool {
        let news = self.state == Accepted::Waiting;
        if news {
            self.state = Accepted::Direct;
        }
        news
    }

    /// Data came by TCP: the client uses that. One that uses the streams sends nothing by TCP. TCP's end
    /// alone shows nothing: it may have overtaken what the client said. A connection of TCP that is
    /// closed, or reset, counts as data.
    pub fn tcp_came(&mut self) -> bool {
        let news = self.state == Accepted::Waiting;
        if news {
            self.state = Accepted::Tcp(Fallback::TcpData);
        }
        news
    }

    /// When [`Server::next`] has something, if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        (self.state == Accepted::Waiting).then(|| self.next.min(self.until))
    }

    /// What is to be sent now.
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

/// What a client is told that asks for another version, or is declined for another reason.
#[must_use]
pub fn decline(cookie: u32, to: ConnId, why: Decline) -> Answered {
    Answered {
        cookie,
        to,
        from: ConnId::default(),
        answer: Answer::Decline(why),
    }
}
