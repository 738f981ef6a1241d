// SPDX-License-Identifier: GPL-2.0-only

//! A connection's line in the debugfs file `connections`. Process context.

use super::Conn;
use kernel::fmt;
use protocol::Time;

impl Conn {
    /// Writes the connection's line. Takes the connection's lock.
    pub(in crate::nic) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.nic.now();
        let inner = self.inner.lock();
        let of = |at: Option<Time>| at.map(|at| at.since(now) / 1_000_000);
        write!(
            f,
            "{:06x} node {} {:?} open {} blocked {} due {:?} rings {} KiB ",
            self.name.raw(),
            self.peer.0,
            inner.decision,
            inner.open,
            inner.blocked,
            of(inner.due),
            inner
                .rings
                .as_ref()
                .map_or(0, |rings| rings.send.bytes() >> 10),
        )?;
        match &*inner.stream {
            Some(stream) => writeln!(
                f,
                "{:?} {:?} sent_to {} received_to {} unsent {} unacknowledged {} unread {} {:?}",
                stream.state(),
                stream.end(),
                stream.sent_to().0,
                stream.received_to().0,
                stream.sending().unsent(),
                stream.sending().unacknowledged(),
                stream.receiving().readable().len,
                stream.counters(),
            ),
            None => writeln!(f, "-"),
        }
    }
}
