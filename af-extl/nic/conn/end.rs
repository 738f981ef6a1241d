// SPDX-License-Identifier: GPL-2.0-only

//! How a connection ends: its socket is closed, or its NIC goes.

use super::{Conn, Decision, Setup};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::net::socket::Ended;
use protocol::ds::Fallback;

impl Conn {
    /// The socket is closed; with `abort` nothing of its data is sent any more.
    pub(crate) fn close(self: &Arc<Self>, abort: bool) {
        self.with(|inner, now| {
            inner.open = false;
            // The sock may have another connection next.
            inner.shut = Ended::default();
            if let Setup::Client(client) = &mut inner.setup {
                if inner.decision == Decision::Waiting {
                    client.give_up(Fallback::TcpOnly);
                }
            }
            if let Some(stream) = &mut *inner.stream {
                match abort {
                    true => stream.abort(now),
                    false => stream.close(now),
                }
            }
        });
        self.tell_nobody();
    }

    /// It could not begin: its socket uses TCP, and hears of nothing.
    pub(in crate::nic) fn unmade(self: &Arc<Self>) {
        self.peek(|inner| {
            inner.link = None;
            inner.told = true;
            inner.open = false;
            inner.decision = Decision::Tcp(Fallback::NoRoute);
        });
        self.nic.forget(self);
    }

    /// The NIC goes.
    pub(in crate::nic) fn down(self: &Arc<Self>) {
        self.with(|inner, now| {
            inner.link = None;
            match &mut inner.setup {
                Setup::Client(client) => {
                    client.give_up(Fallback::NoRoute);
                }
                Setup::Server(_) if inner.decision == Decision::Waiting => {
                    inner.decision = Decision::Lost(ENETDOWN);
                    inner.fail(self, ENETDOWN);
                    // The client may come to use TCP, and is not to wait for answers by it.
                    if inner.open {
                        inner.shut = Ended {
                            receiving: true,
                            sending: true,
                        };
                        self.tell_tcp(0);
                    }
                }
                Setup::Server(_) => {}
            }
            if let Some(stream) = &mut *inner.stream {
                stream.down(now);
            }
        });
        self.follow_tcp();
        // Whoever waits sees it.
        self.wake_all();
    }

    /// The module or the NIC goes, and peers can still be told.
    pub(in crate::nic) fn part(self: &Arc<Self>) {
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
