// SPDX-License-Identifier: GPL-2.0-only

//! What happened on a NIC, and the files that show it.

use super::Nic;
use kernel::{fmt, sync::atomic::Relaxed};

/// What happened on a NIC.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    /// Messages of streams.
    Messages,
    /// Messages of the negotiation.
    Setup,
    /// Messages that make no sense, or are for no connection.
    Strays,
    /// GETs that were done and had not brought everything.
    Holes,
    /// Clients that asked.
    Asked,
    /// Clients that were declined.
    Declined,
    /// Runs of the work item.
    Runs,
    /// Connections that ended because the peer broke the rules.
    Violations,
    /// Waits that began with a look at the mailbox again and again.
    BusyPolls,
    /// Memory of programs that was pinned and registered.
    Registered,
    /// Bytes sent from there.
    Lent,
    /// Bytes fetched to there.
    Sunk,
    /// Memory that could not be pinned, so that data were copied.
    NotPinned,
    /// That could not be registered.
    NotRegistered,
    /// That was not lent, as late GETs had too much of the connection already.
    Crowded,
    /// That was taken back while GETs could write to it.
    Torn,
    /// That was not lent at once, as there was too much of the connection already, or its peer takes
    /// nothing of the kind.
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

    /// The same, so often.
    pub(super) fn count_by(&self, what: Count, by: u64) {
        if let Some(n) = self.counts.get(what as usize) {
            n.fetch_add(by, Relaxed);
        }
    }

    /// A GET was done and had not brought everything.
    pub(super) fn count_hole(&self) {
        self.count(Count::Holes);
    }

    /// A peer has broken the rules.
    pub(super) fn count_violation(&self) {
        self.count(Count::Violations);
    }

    /// Lines of the file that shows it.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, places) = {
            let table = self.table.lock();
            (table.used(), table.capacity())
        };
        let rings = self.rings.lock();
        let (free, all) = Option::as_ref(&*rings).map_or((0, 0), |(_, pool)| pool.count());
        drop(rings);
        let waiting = self.waiting.lock().len();
        writeln!(f, "nic {:x}", self.id)?;
        writeln!(f, "places {used} of {places}")?;
        writeln!(f, "rings {} of {all}", all - free)?;
        writeln!(f, "waiting {waiting}")?;
        for (name, n) in Count::NAMES.iter().zip(&self.counts) {
            writeln!(f, "{name} {}", n.load(Relaxed))?;
        }
        Ok(())
    }

    /// Lines of the file that shows its connections.
    pub(crate) fn show_connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.table.lock().capacity();
        let mut all = (0..capacity).filter_map(|i| self.at(i));
        all.try_for_each(|conn| conn.show(f))
    }
}
