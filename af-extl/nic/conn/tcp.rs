// SPDX-License-Identifier: GPL-2.0-only

//! TCP's own connection below the streams: its end, directions that the program shut down before
//! the carrier was decided, and the socket options that streams honour. Process context or softirq;
//! functions take the connection's lock unless they get [`Inner`].

use super::{Conn, Decision, Inner, Tcp};
use kernel::{prelude::*, sync::Arc, time::msecs_to_jiffies, workqueue::WorkItem};
use kernel_ext::{net::socket::ShutdownDirections, work};
use protocol::ds::{Stream, StreamState};

/// Time in ms between attempts to shut down a sock that is locked.
const AGAIN_MS: u32 = 10;

// The connection has its own work item. The NIC's work items serve all connections and must not
// wait for a sock's lock, because its holder may be in a long page fault or waiting for memory.
impl WorkItem<0> for Conn {
    type Pointer = Arc<Conn>;

    fn run(this: Arc<Conn>) {
        let shut = this.peek(|inner| inner.shut);
        if !shut.any() {
            return;
        }
        if this.sock.try_shutdown(shut) {
            this.with(|inner, _| inner.shut = ShutdownDirections::default());
        } else {
            // The work item is queued with the lock held, because `close` cancels the work item
            // after it has changed `shut` under the lock.
            this.peek(|inner| {
                if inner.shut.any() {
                    this.queue_shutdown(AGAIN_MS);
                }
            });
        }
    }
}

impl Inner {
    /// Applies shutdowns and options that preceded the decision.
    pub(super) fn catch_up(&mut self, conn: &Conn) {
        let shut = self.shut;
        if let Some(stream) = self.direct() {
            if shut.sending {
                stream.shut();
            }
            if shut.receiving {
                stream.shut_receive();
            }
            apply_options(stream, conn);
        }
    }
}

/// Applies the socket options to a stream.
fn apply_options(stream: &mut Stream, conn: &Conn) {
    let ms = conn.sock.user_timeout();
    stream.set_give_up(ms.map(|ms| u64::from(ms) * 1_000_000));
}

impl Conn {
    /// Queues the work item that shuts down TCP's directions, after `ms` milliseconds. Any context.
    pub(super) fn queue_shutdown(self: &Arc<Self>, ms: u32) {
        // A failure means that the work item is already queued.
        let _ = work::enqueue_waiting::<_, 0>(self.clone(), msecs_to_jiffies(ms));
    }

    /// Cancels the work item that shuts down TCP's directions. Any context.
    pub(super) fn cancel_shutdown(self: &Arc<Self>) {
        work::cancel_delayed::<_, 0>(self);
    }

    /// Applies the socket options to the streams after an option was set.
    pub(crate) fn apply_options(self: &Arc<Self>) {
        self.with(|inner, _| {
            if let Some(stream) = inner.direct() {
                apply_options(stream, self);
            }
        });
    }

    /// Records directions to shut down when the carrier is decided. Does nothing if the carrier is
    /// already decided. Returns the decision.
    pub(crate) fn shut_when_decided(self: &Arc<Self>, ended: ShutdownDirections) -> Decision {
        self.with(|inner, _| {
            if inner.decision == Decision::Waiting {
                inner.shut.receiving |= ended.receiving;
                inner.shut.sending |= ended.sending;
            }
            inner.decision
        })
    }

    /// Drops a pending error of TCP's own connection, which ends after the streams. Called before
    /// the sock's error is read, so that the program gets only the streams' error. Process context.
    pub(crate) fn forget_second_error(&self) {
        let (reported, seen, own) =
            self.peek(|inner| (inner.end_reported, inner.error_seen, inner.stream_error));
        if reported && seen {
            let _ = self.sock.take_error();
        } else if let (true, Some(own)) = (reported, own) {
            // TCP has replaced an error that the program has not read yet.
            if self.sock.error().is_some_and(|error| error != own) {
                let _ = self.sock.take_error();
                self.sock.fail(own);
            }
        }
    }

    /// Records that the program received an error of the sock.
    pub(crate) fn error_seen(&self) {
        self.peek(|inner| inner.error_seen |= inner.end_reported);
    }

    /// Records the end of TCP's connection while the streams carry the data. The work item
    /// evaluates the end, because earlier messages of the peer may still be in the mailbox. Process
    /// context.
    pub(crate) fn tcp_ended(self: &Arc<Self>) {
        let error = self.sock.error();
        let news = self.peek(|inner| {
            let alive = inner.direct().is_some_and(|stream| stream.end().is_none());
            let news = alive && matches!(inner.tcp, Tcp::Fine);
            if news {
                inner.tcp = Tcp::Ended(error);
            }
            news
        });
        if news {
            self.nic.run_again(self);
        }
    }

    /// Aborts the stream after the end of TCP's own connection, unless the peer has only closed its
    /// socket or has received everything. Process context.
    pub(super) fn follow_tcp(self: &Arc<Self>) {
        if self.peek(|inner| matches!(inner.tcp, Tcp::Ended(_))) {
            let finished = self.sock.queued().finished;
            self.with(|inner, now| {
                let Tcp::Ended(error) = inner.tcp else {
                    return;
                };
                inner.tcp = Tcp::Ignored;
                let Some(stream) = &mut *inner.stream else {
                    return;
                };
                if stream.end().is_some() || !inner.open {
                    return;
                }
                // A peer that closed its socket leaves unsent data to the stream. Its TCP
                // connection ends earlier, and the peer's host reports that end when probed
                // (SO_KEEPALIVE).
                let closed = finished && matches!(error, None | Some(EPIPE));
                // A peer that has received everything may reset TCP's connection, because its
                // program reuses the socket. The stream itself requests the last acknowledgement.
                let ends = matches!(stream.state(), StreamState::Closing | StreamState::LastAck);
                let last = ends && stream.sending().all_acknowledged();
                if closed || last {
                    if matches!(self.sock.error(), Some(EPIPE | ECONNRESET)) {
                        let _ = self.sock.take_error();
                    }
                    return;
                }
                inner.tcp = Tcp::Followed;
                stream.abort(now);
            });
        }
    }
}
