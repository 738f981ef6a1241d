// SPDX-License-Identifier: GPL-2.0-only

//! What the work items have a connection do when it is its turn.

use super::{Conn, Decision, Inner};
use kernel::sync::Arc;

/// GETs that a connection posts when others wait for a place, too.
const TURN: u8 = 8;

/// What a connection got in its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::nic) enum Placed {
    /// A place, or it wanted none.
    Some,
    /// None.
    None,
}

impl Conn {
    /// Whether the ports have no room for it.
    pub(in crate::nic) fn is_blocked(&self) -> bool {
        self.peek(|inner| inner.blocked)
    }

    /// It may post some GETs, before others that wait for that.
    pub(in crate::nic) fn place(self: &Arc<Self>) -> Placed {
        let gets = |inner: &Inner| inner.stream.as_ref().map_or(0, |s| s.counters().gets);
        let before = self.with(|inner, _| {
            inner.turn = TURN;
            if let Some(stream) = &mut *inner.stream {
                stream.retry_gets();
            }
            gets(inner)
        });
        self.peek(|inner| {
            // What it did not use now is not for later, when others wait.
            inner.turn = 0;
            match inner.refused {
                true if gets(inner) == before => Placed::None,
                _ => Placed::Some,
            }
        })
    }

    /// Whether there was no place for a GET when it last wanted one.
    pub(in crate::nic) fn waits_for_place(&self) -> bool {
        self.peek(|inner| inner.refused)
    }

    /// Looks whether something is due, or can go on since the port has room. The mailbox was read
    /// before.
    pub(in crate::nic) fn look(self: &Arc<Self>, room: bool) {
        self.follow_tcp();
        let now = self.nic.now();
        let (due, blocked, waits, tcp) = self.peek(|inner| {
            let waits = inner.decision == Decision::Waiting;
            (
                inner.due,
                inner.blocked || inner.more,
                waits,
                inner.tcp_came,
            )
        });
        let due = due.is_some_and(|at| at <= now);
        // Once more: an end that is just coming counts as a byte for a moment. Who can't tell now looks
        // again when TCP wakes it, or when the next step of the negotiation is due, which is not put off.
        let settled = match waits && tcp {
            true => self.sock.queued_settled(),
            false => None,
        };
        if let Some(queued) = settled {
            if self.see_tcp(queued) {
                self.use_tcp();
            }
        } else if waits && due {
            // The next run decides.
            self.look_at_tcp();
        } else if due || room && blocked {
            self.with(|_, _| {});
        }
    }

    /// The time has come that was noted for it, which may have been put off since.
    pub(in crate::nic) fn look_if_due(self: &Arc<Self>) {
        self.peek(|inner| inner.scheduled = None);
        self.look(false);
        // Whoever noted it looks when the next one is due.
        self.peek(|inner| inner.schedule(self));
    }
}
