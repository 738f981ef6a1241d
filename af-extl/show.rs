// SPDX-License-Identifier: GPL-2.0-only

//! Last columns of a line of /proc/net/extl: bytes by data path, and queued bytes. Process context;
//! takes the connection's lock.

use crate::nic::Conn;
use kernel::{fmt, sync::atomic::Relaxed};
use kernel_ext::net::socket::Endpoint;

/// Names of the columns.
pub(crate) const COLUMNS: &str = "direct_sent direct_received message_sent announced \
     message_received fetched unread unacknowledged lent sunk";

/// Values of the columns of a socket.
pub(crate) struct Paths {
    /// Bytes of all direct connections of the socket: sent, received.
    direct: [u64; 2],
    /// Bytes of the current direct connection: sent by messages, announced for GETs, received by
    /// messages, received by GETs. The first two include repetitions.
    ways: [u64; 4],
    /// Unread and unacknowledged bytes. For a listening socket: number of connections in its accept
    /// queue, and the maximum of that number.
    queues: [u32; 2],
    /// Bytes of the current connection sent and received without copying.
    uncopied: [u64; 2],
}

impl Paths {
    /// Collects the values. `direct` contains bytes of the socket; `conn` is its current direct
    /// connection.
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

    /// Writes the columns and the end of the line.
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
