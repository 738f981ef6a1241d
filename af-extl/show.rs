// SPDX-License-Identifier: GPL-2.0-only

//! The last columns of a line of /proc/net/extl: what went which way, and what waits.

use crate::nic::Conn;
use kernel::{fmt, sync::atomic::Relaxed};
use kernel_ext::net::socket::Endpoint;

/// Their names.
pub(crate) const COLUMNS: &str = "direct_sent direct_received message_sent announced \
     message_received fetched unread unacknowledged lent sunk";

/// The columns of a socket.
pub(crate) struct Paths {
    /// Bytes past TCP, in all connections of the socket: sent, received.
    direct: [u64; 2],
    /// Of these in the present connection: sent by messages, announced to be fetched (both with what
    /// was repeated), received by messages, fetched.
    ways: [u64; 4],
    /// Bytes that wait: not read, not acknowledged; of a socket that listens connections, and how
    /// many may wait.
    queues: [u32; 2],
    /// Bytes of the present connection that were copied nowhere here: sent, received.
    uncopied: [u64; 2],
}

impl Paths {
    /// Of a socket with these bytes past TCP, and its connection past TCP if there is one.
    pub(crate) fn new(direct: [u64; 2], conn: Option<&Conn>, sock: &Endpoint) -> Self {
        let streams = conn.and_then(|conn| {
            conn.peek(|inner| {
                let stream = inner.direct()?;
                let n = stream.counters();
                let ways = [
                    n.velo_bytes,
                    n.announced_bytes,
                    n.velo_received,
                    n.rma_received,
                ];
                let unread = stream.receiving().available();
                Some((ways, [unread, stream.sending().unacknowledged()]))
            })
        });
        let (ways, queues) = streams.unwrap_or_else(|| {
            let queues = sock.queues();
            ([0; 4], [queues.receive, queues.send])
        });
        let uncopied = conn.map(|conn| [conn.lent.load(Relaxed), conn.sunk.load(Relaxed)]);
        Self {
            direct,
            ways,
            queues,
            uncopied: uncopied.unwrap_or_default(),
        }
    }

    /// Writes them, and the end of the line.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [sent, received] = self.direct;
        let [messages, announced, came, fetched] = self.ways;
        let [unread, unacknowledged] = self.queues;
        let [lent, sunk] = self.uncopied;
        write!(
            f,
            "{sent} {received} {messages} {announced} {came} {fetched} "
        )?;
        writeln!(f, "{unread} {unacknowledged} {lent} {sunk}")
    }
}
