// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Negotiation of a connection at the client.
//!
//! The client sends [`Connect`] before TCP's SYN, so that the server has the request when the TCP
//! connection arrives. TCP's handshake starts after the server's answer, or after the last
//! unanswered question. The client then waits a short time until the server's program accepts the
//! connection. Until it sends [`Answer::Confirm`], the client may change to TCP. Both ends send
//! data only after this decision. The driver blocks programs that write, or stores their data.

use super::Fallback;
use crate::{base::flow::Flow, Time};
use wire::ds::{Answer, Answered, ConnId, Connect, Endpoint};

crate::flow! {
    /// States of a client's connection before it transfers data.
    states Opening {
        /// The client sends requests, and the server has not answered yet.
        Asking,
        /// The server offered direct data, and TCP's handshake is in progress.
        Offered,
        /// TCP's handshake is complete, and the server's program has not accepted the connection
        /// yet.
        Waiting,
        /// Final state: the server accepted the connection with direct data.
        Direct,
        /// Final state: the connection uses TCP.
        Tcp,
    }
    /// Events of a client's connection.
    events OpeningEvent {
        /// The server's offer arrived.
        Offer,
        /// TCP's handshake is complete.
        TcpUp,
        /// The server accepted the connection with direct data.
        Accept,
        /// The server declined, a time-out expired, or the driver decided to use TCP.
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

/// Limits of the negotiation. Times are in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenLimits {
    /// Time between unanswered questions of a client, and between two [`Answer::Accept`] of a
    /// server.
    pub ask: u64,
    /// Maximum number of unanswered questions.
    pub asks: u32,
    /// Maximum time from TCP's handshake to [`Answer::Accept`].
    pub accept: u64,
    /// Time between two [`Connect`] messages of a waiting client.
    pub refresh: u64,
    /// Time after which a server removes the entry of a client that sends no message. The time must
    /// be several times `refresh`.
    pub keep: u64,
    /// Time after which a server aborts an accepted connection that the client does not confirm.
    pub confirm: u64,
    /// Time for which a silent node is not asked again.
    pub silent: u64,
    /// Time for which a server that accepted too late is not asked. The time is doubled with each
    /// late acceptance.
    pub late: u64,
}

/// Message that a client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientMessage {
    /// [`Kind::Connect`](wire::ds::Kind::Connect).
    Connect(Connect),
    /// [`Kind::Cancel`](wire::ds::Kind::Cancel).
    Cancel(Connect),
    /// [`Answer::Confirm`] or [`Answer::Fallback`].
    Answer(Answered),
}

/// Negotiation of one connection at the client.
#[derive(Debug)]
pub struct Client {
    state: Opening,
    connect: Connect,
    /// Number of questions (`asked`), and number of questions that could not be sent (`unsent`).
    asked: u32,
    unsent: u32,
    next: Time,
    /// Time at which the client stops waiting for the server's `Accept`. Only valid in state
    /// `Waiting`.
    until: Time,
    why: Option<Fallback>,
    server: Option<Endpoint>,
    /// ID of the server's connection that awaits `Confirm` or `Fallback`. The server may have
    /// accepted it for another TCP connection with the same addresses.
    answer_to: Option<ConnId>,
    cancel: bool,
    /// True if only one question was sent, and the server declined it.
    alone: bool,
}

impl Client {
    /// Returns a negotiation whose first question is due at once.
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
            answer_to: None,
            cancel: false,
            alone: false,
        }
    }

    /// Returns the state of the negotiation.
    #[must_use]
    pub fn state(&self) -> Opening {
        self.state
    }

    /// Returns true if TCP's SYN may be sent, because the server has answered or the wait for its
    /// answer has ended.
    #[must_use]
    pub fn may_connect(&self) -> bool {
        self.state != Opening::Asking
    }

    /// Returns the connection that the client asks for.
    #[must_use]
    pub fn connect(&self) -> &Connect {
        &self.connect
    }

    /// Returns the reason for using TCP.
    #[must_use]
    pub fn fallback(&self) -> Option<Fallback> {
        self.why
    }

    /// Returns true if only one question was sent and the server declined it. Then no server can
    /// accept the connection with direct data.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Returns the server's end of a connection in state `Direct`.
    #[must_use]
    pub fn server(&self) -> Option<Endpoint> {
        self.server.filter(|_| self.state == Opening::Direct)
    }

    fn step(&mut self, event: OpeningEvent) -> bool {
        match self.state.next(event) {
            Some(next) => {
                self.state = next;
                true
            }
            None => false,
        }
    }

    /// Records that the question returned last by [`Client::next`] could not be sent.
    pub fn not_sent(&mut self) {
        self.unsent = self.unsent.saturating_add(1);
    }

    /// Changes to TCP for the given reason, and notifies a server that may wait. Returns true if
    /// the connection uses TCP, and false if its state is [`Opening::Direct`]. If questions could
    /// not be sent, [`Fallback::NoSlot`] replaces [`Fallback::Silent`].
    pub fn give_up(&mut self, why: Fallback) -> bool {
        let asked = self.asked > self.unsent;
        let why = match why {
            Fallback::Silent if self.unsent > 0 => Fallback::NoSlot,
            why => why,
        };
        if !self.step(OpeningEvent::GiveUp) {
            return self.state == Opening::Tcp;
        }
        self.why = Some(why);
        self.cancel = asked;
        true
    }

    /// Records that TCP's handshake is complete.
    pub fn tcp_up(&mut self, limits: &OpenLimits, now: Time) {
        if self.step(OpeningEvent::TcpUp) {
            self.until = now.after(limits.accept);
        }
    }

    /// Processes an answer of the server. Returns true if the state changed.
    pub fn receive(&mut self, said: &Answered, limits: &OpenLimits, now: Time) -> bool {
        if said.cookie != self.connect.cookie || said.to != self.connect.client.id {
            return false;
        }
        match said.answer {
            Answer::Offer => {
                let news = self.step(OpeningEvent::Offer);
                if news {
                    self.next = now.after(limits.refresh);
                }
                news
            }
            Answer::Decline(why) => {
                let before = self.state;
                if self.state != Opening::Tcp && self.step(OpeningEvent::GiveUp) {
                    self.why = Some(Fallback::declined(why));
                    self.alone =
                        before == Opening::Asking && self.asked - self.unsent.min(self.asked) <= 1;
                }
                before != self.state
            }
            Answer::Accept(server) => {
                let news = self.step(OpeningEvent::Accept);
                if news {
                    self.server = Some(server);
                }
                // A repeated `Accept` is answered again, because the first answer may be lost. An
                // `Accept` in an earlier state is ignored, because the server repeats it.
                if matches!(self.state, Opening::Direct | Opening::Tcp) {
                    self.answer_to = Some(server.id);
                }
                news
            }
            Answer::Confirm | Answer::Fallback => false,
        }
    }

    /// Returns the time of the next call of [`Client::next`], if no other event occurs.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        match self.state {
            Opening::Asking | Opening::Offered => Some(self.next),
            Opening::Waiting => Some(self.next.min(self.until)),
            Opening::Direct | Opening::Tcp => None,
        }
    }

    /// Returns the next message to send. The caller repeats the call until it returns `None`.
    pub fn next(&mut self, limits: &OpenLimits, now: Time) -> Option<ClientMessage> {
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
                return Some(ClientMessage::Connect(self.connect));
            }
            _ => {}
        }
        if core::mem::take(&mut self.cancel) {
            return Some(ClientMessage::Cancel(self.connect));
        }
        let to = self.answer_to.take()?;
        // Send `Fallback` to a server that accepted another connection with the same addresses.
        let answer = match self.server() {
            Some(server) if server.id == to => Answer::Confirm,
            _ => Answer::Fallback,
        };
        Some(ClientMessage::Answer(Answered {
            cookie: self.connect.cookie,
            to,
            from: self.connect.client.id,
            answer,
        }))
    }
}
