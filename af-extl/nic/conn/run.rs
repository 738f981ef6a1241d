// SPDX-License-Identifier: GPL-2.0-only

//! Runs of a connection by the NIC's work items. Process context.

use super::{Conn, Decision, Inner};
use kernel::sync::Arc;

/// Number of GETs that a connection posts per run while others wait for slots.
const GET_BUDGET: u8 = 8;

/// Result of [`Conn::post_gets`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::nic) enum GetsPosted {
    /// The connection posted GETs, or wanted none.
    Some,
    /// No slot was free for the connection's GETs.
    None,
}

impl Conn {
    /// Returns whether the connection waits until the ports can send more messages.
    pub(in crate::nic) fn is_blocked(&self) -> bool {
        self.peek(|inner| inner.blocked)
    }

    /// Posts up to [`GET_BUDGET`] GETs, ahead of other waiting connections.
    pub(in crate::nic) fn post_gets(self: &Arc<Self>) -> GetsPosted {
        let gets = |inner: &Inner| inner.stream.as_ref().map_or(0, |s| s.counters().gets);
        let before = self.with(|inner, _| {
            inner.get_budget = GET_BUDGET;
            if let Some(stream) = &mut *inner.stream {
                stream.retry_gets();
            }
            gets(inner)
        });
        self.peek(|inner| {
            // Unused GETs are not saved for a later run in which other connections wait.
            inner.get_budget = 0;
            if inner.refused && gets(inner) == before {
                GetsPosted::None
            } else {
                GetsPosted::Some
            }
        })
    }

    /// Returns whether no slot was free for the last GET.
    pub(in crate::nic) fn waits_for_slot(&self) -> bool {
        self.peek(|inner| inner.refused)
    }

    /// Runs the connection if it is due. A blocked connection also runs if the port can accept
    /// messages (`room`). The caller has read the mailbox before.
    pub(in crate::nic) fn run(self: &Arc<Self>, room: bool) {
        self.follow_tcp();
        let now = self.nic.now();
        let (due, blocked, waits, tcp) = self.peek(|inner| {
            let waits = inner.decision == Decision::Waiting;
            (
                inner.due,
                inner.blocked || inner.again,
                waits,
                inner.tcp_decides,
            )
        });
        let due = due.is_some_and(|at| at <= now);
        // TCP's queue is checked a second time, because an arriving FIN counts as an unread byte
        // for a moment. If the sock is locked, the check is repeated when TCP wakes the socket or
        // at the next step of the negotiation.
        let settled = if waits && tcp {
            self.sock.queued_settled()
        } else {
            None
        };
        if let Some(queued) = settled {
            if self.evaluate_tcp(queued) {
                self.use_tcp();
            }
        } else if waits && due {
            // The check records TCP's state, by which the next run decides.
            self.check_tcp();
        } else if due || room && blocked {
            self.with(|_, _| {});
        }
    }

    /// Runs the connection at its scheduled time. The due time may have been postponed since.
    pub(in crate::nic) fn run_if_due(self: &Arc<Self>) {
        self.peek(|inner| inner.scheduled = None);
        self.run(false);
        // The result is ignored, because the caller reads the earliest due time of all connections.
        self.peek(|inner| inner.schedule(self));
    }
}
