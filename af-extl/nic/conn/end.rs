// SPDX-License-Identifier: GPL-2.0-only

//! End of a connection: its socket is closed, or its NIC is unbound or lost. Process context.

use super::{Conn, Decision, Setup};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::net::socket::ShutdownDirections;
use protocol::ds::Fallback;

impl Conn {
    /// Closes the connection when its socket is closed. With `abort`, unsent data are dropped.
    pub(crate) fn close(self: &Arc<Self>, abort: bool) {
        self.with(|inner, now| {
            inner.open = false;
            // The sock may be used for another connection next.
            inner.shut = ShutdownDirections::default();
            if let Setup::Client(client) = &mut inner.setup {
                if inner.decision == Decision::Waiting {
                    client.give_up(Fallback::TcpOnly);
                }
            }
            if let Some(stream) = &mut *inner.stream {
                if abort {
                    stream.abort(now);
                } else {
                    stream.close(now);
                }
            }
        });
        self.cancel_shutdown();
    }

    /// Abandons a connection that could not begin. Its socket uses TCP and is not woken.
    pub(in crate::nic) fn abandon(self: &Arc<Self>) {
        self.peek(|inner| {
            inner.link = None;
            inner.end_reported = true;
            inner.open = false;
            inner.decision = Decision::Tcp(Fallback::NoRoute);
        });
        self.nic.forget(self);
    }

    /// Ends the connection because its NIC is lost or unbound.
    pub(in crate::nic) fn nic_lost(self: &Arc<Self>) {
        self.with(|inner, now| {
            inner.link = None;
            match &mut inner.setup {
                Setup::Client(client) => {
                    client.give_up(Fallback::NoRoute);
                }
                Setup::Server(_) if inner.decision == Decision::Waiting => {
                    inner.decision = Decision::Lost(ENETDOWN);
                    inner.fail(self, ENETDOWN);
                    // The client may fall back to TCP, and must not wait there for answers.
                    if inner.open {
                        inner.shut = ShutdownDirections {
                            receiving: true,
                            sending: true,
                        };
                        self.queue_shutdown(0);
                    }
                }
                Setup::Server(_) => {}
            }
            if let Some(stream) = &mut *inner.stream {
                stream.down(now);
            }
        });
        self.follow_tcp();
        // Waiting threads evaluate the new state.
        self.wake_all();
    }

    /// Aborts the connection before the module or the NIC is removed, while the peer can still be
    /// notified.
    pub(in crate::nic) fn abort_for_unbind(self: &Arc<Self>) {
        self.with(|inner, now| {
            if let Setup::Client(client) = &mut inner.setup {
                client.give_up(Fallback::NoRoute);
            }
            if let Some(stream) = &mut *inner.stream {
                stream.abort(now);
            }
        });
    }
}
