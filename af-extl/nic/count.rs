// SPDX-License-Identifier: GPL-2.0-only

//! Counters of a NIC, and the debugfs files `nics` and `connections`. Counting is possible in any
//! context.

use super::Nic;
use kernel::{fmt, sync::atomic::Relaxed};

/// Counters of a NIC.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Stream messages received.
    Messages,
    /// Negotiation messages received.
    Setup,
    /// Messages that are invalid or belong to no connection.
    Strays,
    /// Completed GETs with missing data.
    Holes,
    /// Requests of clients.
    Asked,
    /// Requests declined.
    Declined,
    /// Runs of the work item and of the softirq.
    Runs,
    /// Connections that ended because the peer violated the protocol.
    Violations,
    /// Waits in which the thread first polled the mailbox busily.
    BusyPolls,
    /// Registrations of programs' memory.
    Registered,
    /// Bytes sent without copying.
    Lent,
    /// Bytes received without copying.
    Sunk,
    /// Failures to pin memory; the data were copied.
    NotPinned,
    /// Failures to register memory; the data were copied.
    NotRegistered,
    /// Memory of readers that was not registered because late GETs hold too many registrations.
    Crowded,
    /// Memory of readers that was revoked while GETs could write to it.
    Torn,
    /// Memory that was not lent because too much memory of the connection was lent already, or
    /// because the peer does not support lent memory.
    NotLent,
}

impl Count {
    pub(super) const NAMES: [&'static str; 17] = [
        "messages",
        "setup",
        "strays",
        "holes",
        "asked",
        "declined",
        "runs",
        "violations",
        "busy-polls",
        "registered",
        "lent",
        "sunk",
        "not-pinned",
        "not-registered",
        "crowded",
        "torn",
        "not-lent",
    ];
}

impl Nic {
    pub(super) fn count(&self, what: Count) {
        self.count_by(what, 1);
    }

    /// Adds `by` to a counter.
    pub(super) fn count_by(&self, what: Count, by: u64) {
        if let Some(n) = self.counts.get(what as usize) {
            n.fetch_add(by, Relaxed);
        }
    }

    /// Counts a completed GET with missing data.
    pub(super) fn count_hole(&self) {
        self.count(Count::Holes);
    }

    /// Counts a connection whose peer violated the protocol.
    pub(super) fn count_violation(&self) {
        self.count(Count::Violations);
    }

    /// Writes the NIC's statistics. May sleep.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, slots) = {
            let table = self.table.lock();
            (table.used(), table.capacity())
        };
        let rings = self.rings.lock();
        let (free, all) = Option::as_ref(&*rings).map_or((0, 0), |(_, pool)| pool.count());
        drop(rings);
        let waiting = self.waiting.lock().len();
        writeln!(f, "nic {:x}", self.id)?;
        writeln!(f, "places {used} of {slots}")?;
        writeln!(f, "rings {} of {all}", all - free)?;
        writeln!(f, "waiting {waiting}")?;
        for (name, n) in Count::NAMES.iter().zip(&self.counts) {
            writeln!(f, "{name} {}", n.load(Relaxed))?;
        }
        Ok(())
    }

    /// Writes a line for each connection.
    pub(crate) fn show_connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.table.lock().capacity();
        let mut all = (0..capacity).filter_map(|i| self.at(i));
        all.try_for_each(|conn| conn.show(f))
    }
}
