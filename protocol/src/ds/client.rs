// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Negotiation as a client sees it.
//!
//! It asks before it sends TCP's SYN, so that a server knows of it when its TCP connection comes,
//! and goes on when it has an answer, or knows that it gets none. TCP's connection is made in any
//! case. Then it waits for a short time for the server's program to take the connection, and may
//! change its mind until it says [`Answer::Confirm`]. What is written before that is not sent by either:
//! who drives this has the program wait, or keeps the data until it is decided.

use super::Fallback;
use crate::{base::flow::Flow, Time};
use wire::ds::{Answer, Answered, ConnId, Connect, Endpoint};

crate::flow! {
    /// States of a connection of a client before it carries data.
    states Opening {
        /// It has asked.
        Asking,
        /// The server would take it; TCP's connection is being made.
        Offered,
        /// TCP's connection is there.
        Waiting,
        /// The server has taken it.
        Direct,
        /// It uses TCP.
        Tcp,
    }
    /// What happens to it.
    events Opened {
        /// The server would take it.
        Offer,
        /// TCP's connection is there.
        TcpUp,
        /// The server has taken it.
        Accept,
        /// It is declined, or takes too long.
        GiveUp,
    }
    transitions {
        Asking + Offer => Offered;
        Asking + GiveUp => Tcp;
        Offered + TcpUp => Waiting;
        Offered + GiveUp => Tcp;
        Waiting + Accept => Direct;
        Waiting + GiveUp => Tcp;
    }
}

/// Times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenLimits {
    /// Between questions of a client that got no answer, and between [`Answer::Accept`]s.
    pub ask: u64,
    /// So many questions without an answer are enough.
    pub asks: u32,
    /// A client waits for so long after TCP's connection is there.
    pub accept: u64,
    /// While it waits it says so again after this time.
    pub refresh: u64,
    /// A server forgets a client that says nothing for so long; some times `refresh`.
    pub keep: u64,
    /// A server that hears nothing from its client for so long gives the connection up.
    pub confirm: u64,
    /// Nodes that did not answer are not asked for so long.
    pub silent: u64,
    /// Servers that take their connections too late are not asked for so long, and longer each time.
    pub late: u64,
}

/// What a client has to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientSays {
    /// [`Kind::Connect`](wire::ds::Kind::Connect).
    Connect(Connect),
    /// [`Kind::Cancel`](wire::ds::Kind::Cancel).
    Cancel(Connect),
    /// [`Answer::Confirm`] or [`Answer::Fallback`].
    Answer(Answered),
}

/// A connection that a client makes.
#[derive(Debug)]
pub struct Client {
    state: Opening,
    connect: Connect,
    /// Questions asked, and of these the ones that could not be sent.
    asked: u32,
    unsent: u32,
    next: Time,
    /// Until then the server is waited for.
    until: Time,
    why: Option<Fallback>,
    server: Option<Endpoint>,
    /// Who has to be told of the outcome: the server, or one that has taken it for another connection.
    tell: Option<ConnId>,
    cancel: bool,
    /// Its only question was declined.
    alone: bool,
}

impl Client {
    /// One that asks at once.
    #[must_use]
    pub fn new(connect: Connect, now: Time) -> Self {
        Self {
            state: Opening::Asking,
            connect,
            asked: 0,
            unsent: 0,
            next: now,
            until: now,
            why: None,
            server: None,
            tell: None,
            cancel: false,
            alone: false,
        }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> Opening {
        self.state
    }

    /// Whether TCP's SYN may go: the server knows of the connection, or will not.
    #[must_use]
    pub fn may_connect(&self) -> bool {
        self.state != Opening::Asking
    }

    /// What it has asked for.
    #[must_use]
    pub fn connect(&self) -> &Connect {
        &self.connect
    }

    /// Why it uses TCP.
    #[must_use]
    pub fn fallback(&self) -> Option<Fallback> {
        self.why
    }

    /// Returns whether the only question was declined. No server can accept the connection then.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The server's end, when it has taken the connection.
    #[must_use]
    pub fn server(&self) -> Option<Endpoint> {
        self.server.filter(|_| self.state == Opening::Direct)
    }

    fn step(&mut self, event: Opened) -> bool {
        match self.state.next(event) {
            Some(next) => {
                self.state = next;
                true
            }
            None => false,
        }
    }

    /// The question that [`Client::next`] gave last could not be sent.
    pub fn not_sent(&mut self) {
        self.unsent = self.unsent.saturating_add(1);
    }

    /// It uses TCP, for this reason, unless it is too late for that: false then. A server that may
    /// wait for it is told. A peer is not [`Silent`](Fallback::Silent) if questions could not be sent.
    pub fn give_up(&mut self, why: Fallback) -> bool {
        let asked = self.asked > self.unsent;
        let why = match why {
            Fallback::Silent if self.unsent > 0 => Fallback::NoPlace,
            why => why,
        };
        if !self.step(Opened::GiveUp) {
            return self.state == Opening::Tcp;
        }
        self.why = Some(why);
        self.cancel = asked;
        true
    }

    /// TCP's connection is there.
    pub fn tcp_up(&mut self, limits: &OpenLimits, now: Time) {
        if self.step(Opened::TcpUp) {
            self.until = now.after(limits.accept);
        }
    }

    /// Takes what the server says; true if the state is another one.
    pub fn receive(&mut self, said: &Answered, limits: &OpenLimits, now: Time) -> bool {
        if said.cookie != self.connect.cookie || said.to != self.connect.client.id {
            return false;
        }
        match said.answer {
            Answer::Offer => {
                let news = self.step(Opened::Offer);
                if news {
                    self.next = now.after(limits.refresh);
                }
                news
            }
            Answer::Decline(why) => {
                let before = self.state;
                if self.state != Opening::Tcp && self.step(Opened::GiveUp) {
                    self.why = Some(Fallback::declined(why));
                    self.alone =
                        before == Opening::Asking && self.asked - self.unsent.min(self.asked) <= 1;
                }
                before != self.state
            }
            Answer::Accept(server) => {
                let news = self.step(Opened::Accept);
                if news {
                    self.server = Some(server);
                }
                // Also if it is said again: the answer got lost. What comes before it can be meant is
                // forgotten: it is said again by who means it.
                if matches!(self.state, Opening::Direct | Opening::Tcp) {
                    self.tell = Some(server.id);
                }
                news
            }
            Answer::Confirm | Answer::Fallback => false,
        }
    }

    /// When [`Client::next`] has something, if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        match self.state {
            Opening::Asking | Opening::Offered => Some(self.next),
            Opening::Waiting => Some(self.next.min(self.until)),
            Opening::Direct | Opening::Tcp => None,
        }
    }

    /// What is to be sent now; to be called until there is nothing.
    pub fn next(&mut self, limits: &OpenLimits, now: Time) -> Option<ClientSays> {
        match self.state {
            Opening::Asking if self.next <= now && self.asked >= limits.asks => {
                self.give_up(Fallback::Silent);
            }
            Opening::Waiting if self.until <= now => {
                self.give_up(Fallback::NotAccepted);
            }
            Opening::Asking | Opening::Offered | Opening::Waiting if self.next <= now => {
                let pause = match self.state {
                    Opening::Asking => limits.ask,
                    _ => limits.refresh,
                };
                self.asked = self.asked.saturating_add(1);
                self.next = now.after(pause);
                return Some(ClientSays::Connect(self.connect));
            }
            _ => {}
        }
        if core::mem::take(&mut self.cancel) {
            return Some(ClientSays::Cancel(self.connect));
        }
        let to = self.tell.take()?;
        // Who has taken it for another connection of the same addresses is not used.
        let answer = match self.server() {
            Some(server) if server.id == to => Answer::Confirm,
            _ => Answer::Fallback,
        };
        Some(ClientSays::Answer(Answered {
            cookie: self.connect.cookie,
            to,
            from: self.connect.client.id,
            answer,
        }))
    }
}
