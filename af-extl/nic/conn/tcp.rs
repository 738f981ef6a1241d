// SPDX-License-Identifier: GPL-2.0-only

//! TCP's connection below: it may end while data go past it, and has to do what was asked for
//! before it was decided that it carries them. Options of the sock that streams heed.

use super::{Conn, Decision, Inner, Tcp};
use kernel::{prelude::*, sync::Arc, time::msecs_to_jiffies, workqueue::WorkItem};
use kernel_ext::{net::socket::Ended, work};
use protocol::ds::{Stream, StreamState};

/// Whoever has the lock of a sock is asked again after this time, in ms.
const AGAIN_MS: u32 = 10;

// The work items of a NIC are for all: none of them waits for the lock of a sock, whose holder may be
// copying from memory that never comes, or waiting for some.
impl WorkItem<0> for Conn {
    type Pointer = Arc<Conn>;

    fn run(this: Arc<Conn>) {
        let shut = this.peek(|inner| inner.shut);
        if !shut.any() {
            return;
        }
        if this.sock.try_shutdown(shut) {
            this.with(|inner, _| inner.shut = Ended::default());
        } else {
            // With the lock: who closes it takes it out of the queue afterwards.
            this.peek(|inner| {
                if inner.shut.any() {
                    this.tell_tcp(AGAIN_MS);
                }
            });
        }
    }
}

impl Inner {
    /// It was decided what carries the data: what was asked for before.
    pub(super) fn catch_up(&mut self, conn: &Conn) {
        let shut = self.shut;
        if let Some(stream) = self.direct() {
            if shut.sending {
                stream.shut();
            }
            if shut.receiving {
                stream.deafen();
            }
            heed(stream, conn);
        }
    }
}

/// Has a stream heed the options of the sock.
fn heed(stream: &mut Stream, conn: &Conn) {
    let ms = conn.sock.user_timeout();
    stream.set_give_up(ms.map(|ms| u64::from(ms) * 1_000_000));
}

impl Conn {
    /// Has TCP end what the program has ended before it was decided that TCP carries the data, in a
    /// work item of its own. Any context.
    pub(super) fn tell_tcp(self: &Arc<Self>, ms: u32) {
        // Queued already is fine.
        let _ = work::enqueue_waiting::<_, 0>(self.clone(), msecs_to_jiffies(ms));
    }

    /// Nobody is to be told any more. Any context.
    pub(super) fn tell_nobody(self: &Arc<Self>) {
        work::cancel_delayed::<_, 0>(self);
    }

    /// An option was set.
    pub(crate) fn heed_options(self: &Arc<Self>) {
        self.with(|inner, _| {
            if let Some(stream) = inner.direct() {
                heed(stream, self);
            }
        });
    }

    /// Ends directions when it is decided what carries the data; unless that is decided already,
    /// and nothing is done.
    pub(crate) fn shut_when_decided(self: &Arc<Self>, ended: Ended) -> Decision {
        self.with(|inner, _| {
            if inner.decision == Decision::Waiting {
                inner.shut.receiving |= ended.receiving;
                inner.shut.sending |= ended.sending;
            }
            inner.decision
        })
    }

    /// Drops a pending error of TCP's own connection, which ends after the streams. To be called before
    /// the sock's error is read, because the program must get the error of the streams, and only once.
    /// Process context.
    pub(crate) fn forget_second_error(&self) {
        let (told, heard, own) = self.peek(|inner| (inner.told, inner.heard, inner.error));
        if told && heard {
            let _ = self.sock.take_error();
        } else if let (true, Some(own)) = (told, own) {
            // TCP has replaced the error that the program has not read yet.
            if self.sock.error().is_some_and(|error| error != own) {
                let _ = self.sock.take_error();
                self.sock.fail(own);
            }
        }
    }

    /// The program has got an error of the sock.
    pub(crate) fn error_heard(&self) {
        self.peek(|inner| inner.heard |= inner.told);
    }

    /// TCP's connection is over, while data go past it. The work item looks at that, as what the
    /// peer said before may still be in the mailbox. Process context.
    pub(crate) fn tcp_is_over(self: &Arc<Self>) {
        let error = self.sock.error();
        let news = self.peek(|inner| {
            let alive = inner.direct().is_some_and(|stream| stream.end().is_none());
            let news = alive && matches!(inner.tcp, Tcp::Fine);
            if news {
                inner.tcp = Tcp::Over(error);
            }
            news
        });
        if news {
            self.nic.look_again(self);
        }
    }

    /// Has this connection do what TCP's did. Process context.
    pub(super) fn follow_tcp(self: &Arc<Self>) {
        if self.peek(|inner| matches!(inner.tcp, Tcp::Over(_))) {
            let finished = self.sock.queued().finished;
            self.with(|inner, now| {
                let Tcp::Over(error) = inner.tcp else {
                    return;
                };
                inner.tcp = Tcp::Ignored;
                let Some(stream) = &mut *inner.stream else {
                    return;
                };
                if stream.end().is_some() || !inner.open {
                    return;
                }
                // Whoever closes his socket leaves to the stream what it still has; TCP's part of
                // it is gone earlier, and answers so when it is asked for (SO_KEEPALIVE).
                let closed = finished && matches!(error, None | Some(EPIPE));
                // A peer that has received everything may reset TCP's connection, because its program
                // reuses the socket. The stream asks for the last acknowledgement itself.
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
