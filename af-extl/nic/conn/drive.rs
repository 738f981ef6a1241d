// SPDX-License-Identifier: GPL-2.0-only

//! Actions of a connection for its negotiation, its streams and their end, with the connection's
//! lock held. Softirq or process context; nothing here sleeps.

use super::{
    super::{link::Wire, Nic},
    Conn, Decision, Inner, Setup, Tcp, Todo,
};
use kernel::{prelude::*, sync::Arc};
use protocol::{
    ds::{Accepted, ClientMessage, End, Fallback, Opening, RingFree, Stream},
    Time, TransportError,
};
use wire::{
    ds::{ConnId, Ended, Kind},
    ids::NodeId,
};

/// Maximum number of messages and GETs of a connection per run.
const BUDGET: usize = 64;

/// Time in ns between checks whether the port has committed its commands. The port normally commits
/// commands at once, but delays them while it repairs a lost command.
const COMMITTING: u64 = 20_000_000;

/// Returns the error that the program gets for the end of a stream.
fn error_of(end: End) -> Option<Error> {
    Some(match end {
        End::Finished => return None,
        End::TimedOut | End::OrphanTimeout => ETIMEDOUT,
        End::Down => ENETDOWN,
        End::Aborted | End::Orphaned => ECONNABORTED,
        End::Peer(Ended::Down) => ENETDOWN,
        End::Peer(_) | End::Broken(_) | End::FetchFailed | End::Unwanted => ECONNRESET,
    })
}

impl Inner {
    fn negotiate(&mut self, nic: &Nic, peer: NodeId, now: Time) {
        let limits = &nic.opening;
        let Self { link, setup, .. } = self;
        let Some(link) = link else {
            return;
        };
        match setup {
            Setup::Client(client) => {
                while let Some(says) = client.next(limits, now) {
                    // A message that the port cannot accept is dropped and repeated later.
                    match says {
                        ClientMessage::Connect(connect) => {
                            if link.ask(peer, Kind::Connect, &connect).is_err() {
                                client.not_sent();
                            }
                        }
                        ClientMessage::Cancel(connect) => {
                            let _ = link.ask(peer, Kind::Cancel, &connect);
                        }
                        ClientMessage::Answer(answer) => link.answer(peer, &answer),
                    }
                }
            }
            Setup::Server(server) => {
                if let Some(answer) = server.next(limits, now) {
                    link.answer(peer, &answer);
                }
            }
        }
    }

    /// Applies the decision of the negotiation.
    pub(super) fn decide(&mut self, name: ConnId, now: Time) {
        if self.decision != Decision::Waiting {
            return;
        }
        self.decision = match &self.setup {
            Setup::Client(client) => match client.state() {
                Opening::Direct => Decision::Direct,
                Opening::Tcp => Decision::Tcp(client.fallback().unwrap_or(Fallback::NotAccepted)),
                _ => return,
            },
            Setup::Server(server) => match server.state() {
                Accepted::Waiting => return,
                Accepted::Direct => Decision::Direct,
                Accepted::Tcp(why) => Decision::Tcp(why),
                Accepted::Dead => Decision::Lost(ETIMEDOUT),
            },
        };
        self.since = now;
        if let (Setup::Client(client), Decision::Direct) = (&self.setup, self.decision) {
            if let Some(far) = client.server() {
                self.far = Some(far);
                self.geometry.receive_isn = far.isn;
                self.geometry.peer_ring = 1 << far.receive_log2;
                self.geometry.peer_send = far.ring.bytes();
                self.geometry.sources = far.sources;
                *self.stream = Some(Stream::new(name, far.id, &self.geometry, now));
            }
        }
        self.decided_now = true;
    }

    fn pump(&mut self, conn: &Arc<Conn>, now: Time, todo: &mut Todo) {
        let (Some(stream), Some(far)) = (&mut *self.stream, self.far) else {
            return;
        };
        (self.blocked, self.again, self.refused) = (false, false, false);
        let Some(link) = &self.link else {
            return;
        };
        let blocked = &conn.nic.blocked;
        let seen = blocked.seen();
        let mut wire = Wire {
            conn,
            link,
            rings: self.rings.as_ref(),
            sink: self.sink.as_ref(),
            far,
            get_budget: &mut self.get_budget,
            refused: &mut self.refused,
        };
        match stream.pump(&mut wire, &conn.nic.limits, now, BUDGET) {
            Ok(more) => {
                todo.again = more;
                self.again = more;
            }
            Err(TransportError::Later) => {
                self.blocked = true;
                // Space may have become free since the attempt, and no later notification reports
                // that space.
                todo.again = blocked.wait(conn.name.index(), seen);
            }
            Err(TransportError::Never) => {}
        }
    }

    /// Returns whether the send ring of an ended connection can be reused; if not, also the time of
    /// the next check.
    fn send_ring(&mut self, nic: &Nic, now: Time) -> (bool, Option<Time>) {
        let Some(stream) = &mut *self.stream else {
            return (true, None);
        };
        let mut free = stream.send_ring_free(&nic.limits);
        let Some(link) = &self.link else {
            return (free != RingFree::No, None);
        };
        if free == RingFree::Uncommitted {
            let (posted, committed) = link.sender.progress();
            if committed < *self.posted.get_or_insert(posted) {
                return (false, Some(now.after(COMMITTING)));
            }
            // Uses the current time, not the time at which the lock was acquired, because a message
            // may have been sent since.
            stream.committed(nic.now());
            free = stream.send_ring_free(&nic.limits);
        }
        match free {
            RingFree::At(at) if at > now => (false, Some(at)),
            RingFree::At(_) | RingFree::Now => (true, None),
            RingFree::No | RingFree::Uncommitted => (false, None),
        }
    }

    /// Like [`Inner::drive`], for messages and reads of the program, which usually require nothing
    /// but waking threads.
    pub(super) fn drive_some(&mut self, conn: &Arc<Conn>, now: Time) -> Todo {
        let idle = |stream: &Stream| stream.is_idle(&conn.nic.limits, now);
        let direct = self.decision == Decision::Direct && !self.decided_now;
        if !direct || !self.stream.as_ref().is_some_and(idle) {
            return self.drive(conn, now);
        }
        let mut todo = Todo::default();
        self.find_wakeups(conn, &mut todo);
        todo
    }

    /// Performs all pending actions. Called after each change of state.
    pub(super) fn drive(&mut self, conn: &Arc<Conn>, now: Time) -> Todo {
        let nic = &conn.nic;
        let mut todo = Todo::default();
        self.negotiate(nic, conn.peer, now);
        self.decide(conn.name, now);
        if core::mem::take(&mut self.decided_now) {
            todo.state = true;
            match (&self.setup, self.decision) {
                (_, Decision::Lost(error)) => self.fail(conn, error),
                (Setup::Client(client), _) => {
                    nic.asked(conn.peer, &client.connect().tuple, client.fallback());
                }
                _ => {}
            }
            self.catch_up(conn);
        }
        if self.decision == Decision::Direct {
            self.pump(conn, now, &mut todo);
            self.find_wakeups(conn, &mut todo);
        }
        self.release(nic, now, &mut todo);
        self.due = todo.at;
        todo.at = self.schedule(conn);
        todo
    }

    /// Records the due time and returns it, unless an earlier run is scheduled.
    pub(super) fn schedule(&mut self, conn: &Conn) -> Option<Time> {
        let at = self.due?;
        if self.scheduled.is_some_and(|scheduled| scheduled <= at) {
            return None;
        }
        self.scheduled = Some(at);
        conn.nic.due.lock().set(conn.name.index(), at);
        Some(at)
    }

    /// Fails the connection. The sock gets the error only while it uses this connection.
    pub(super) fn fail(&mut self, conn: &Conn, error: Error) {
        self.end_reported = true;
        if self.open {
            self.stream_error = Some(error);
            conn.sock.fail(error);
        }
    }

    /// Determines which waiting threads must be woken, from the changes since the last call.
    fn find_wakeups(&mut self, conn: &Conn, todo: &mut Todo) {
        let Some(stream) = &*self.stream else {
            return;
        };
        let ready = stream.ready();
        let len = stream.receiving().available();
        let receiving = stream.receiving();
        // Sources and sinks wake readers that use zero copy.
        let sinks = match receiving.sunk() {
            Some((_, whole)) => whole,
            None => receiving.is_held() && receiving.can_sink(),
        };
        let could_sink = core::mem::replace(&mut self.sinks, sinks);
        let sinks = sinks && !could_sink;
        let pushed = len > 0 && receiving.is_pushed();
        let was_pushed = core::mem::replace(&mut self.pushed, pushed);
        let more = len > core::mem::replace(&mut self.readable, len);
        let knew = core::mem::replace(&mut self.peer_finished_seen, ready.peer_finished);
        let could = core::mem::replace(&mut self.writable, ready.writable);
        todo.finished = ready.peer_finished && !knew;
        todo.readable = pushed && (more || !was_pushed) || todo.finished || sinks;
        todo.writable = ready.writable && !could || stream.sending().any_source_finished();
        let sources_full = stream.sending().sources_full();
        todo.writable |= core::mem::replace(&mut self.sources_full, sources_full) && !sources_full;
        todo.release = self
            .lendings
            .iter()
            .any(|lending| lending.is_finished(stream));
        // A lingering close waits for the last acknowledgement.
        todo.writable |= !self.open && stream.sending().end_acknowledged();
        if let (Some(end), false) = (stream.end(), self.end_reported) {
            self.end_reported = true;
            // An orderly end has no error to report. A later error of TCP's connection is dropped.
            self.error_seen |= end == End::Finished;
            todo.state = true;
            if matches!(end, End::Broken(_)) {
                conn.nic.count_violation();
            }
            let error = match error_of(end) {
                // The sock already has the error.
                _ if matches!(self.tcp, Tcp::Followed) => None,
                Some(_) if end == End::Aborted && conn.nic.is_closing() => Some(ENETDOWN),
                // As in TCP: all data were read, so only senders are affected.
                Some(ECONNRESET) if stream.receiving().is_finished() => Some(EPIPE),
                other => other,
            };
            if let Some(error) = error {
                self.fail(conn, error);
            }
        }
    }

    /// Releases resources that are not needed any more and determines the time of the next run.
    fn release(&mut self, nic: &Nic, now: Time, todo: &mut Todo) {
        let setup = match &self.setup {
            Setup::Client(client) => client.deadline(),
            Setup::Server(server) => server.deadline(),
        };
        let (free, held_off) = match self.decision {
            Decision::Direct => self.send_ring(nic, now),
            _ => (true, None),
        };
        match (self.decision, &*self.stream) {
            (Decision::Waiting, _) => todo.at = setup,
            (Decision::Direct, Some(stream)) => {
                let ended = stream.end().is_some();
                if ended && !self.open && free && stream.is_quiet() {
                    // A thread that is copying has its own reference.
                    self.rings = None;
                }
                let at = stream.deadline(&nic.limits);
                let held_off = held_off.filter(|_| self.rings.is_some());
                todo.at = [at, held_off].into_iter().flatten().min();
                let used = self.rings.is_some() || !self.lendings.is_empty();
                todo.forget = !self.open && !used && stream.can_drop(now, &nic.limits);
            }
            (Decision::Tcp(_), _) if self.shut.any() => {
                self.rings = None;
                todo.shut_tcp = true;
            }
            // A client keeps answering servers that missed its fallback to TCP, for as many seconds
            // as servers may repeat ACCEPT.
            (Decision::Tcp(_), _) if self.link.is_some() => {
                self.rings = None;
                if let Setup::Client(client) = &self.setup {
                    if client.is_alone() {
                        todo.forget = true;
                        return;
                    }
                    let times = &nic.opening;
                    let until = self
                        .since
                        .after(times.keep + times.confirm + nic.limits.hold);
                    if until <= now {
                        todo.forget = true;
                    } else {
                        todo.at = Some(until);
                    }
                } else {
                    todo.forget = true;
                }
            }
            _ => {
                self.rings = None;
                todo.forget = true;
            }
        }
    }
}
