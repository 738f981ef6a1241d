// SPDX-License-Identifier: GPL-2.0-only

//! Processing of the mailbox and of due connections, by the NIC's work items and the softirq.
//!
//! Functions acquire the mutex `reading` and the lock `ports`. Stream messages are delivered to
//! connections with `ports` held; all other functions of connections are called without `ports`.

use super::{
    conn::{Conn, GetsPosted},
    serve::SetupMessage,
    waiters::Waiters,
    Count, Nic, Ports,
};
use core::ops::ControlFlow;
use extoll_core::velo::{self, Stop};
use kernel::sync::{atomic::Relaxed, Arc};
use kernel_ext::sched::cond_resched;
use protocol::{
    ds::{unknown, Round},
    Time,
};
use wire::ds::{Kind, Message, SERVICE};

/// Maximum number of messages processed with the lock `ports` held once.
const BATCH: usize = 64;
/// Maximum number of messages processed in a run before the run does other work.
const MOST: usize = 32 * BATCH;
/// Maximum number of connections that are tried for GET slots in one run.
const SLOT_TRIES: usize = 64;

/// Result of processing messages in process context.
enum Found {
    /// The mailbox is empty and armed, or the port is closed.
    All,
    /// Stream messages were processed; more may be pending.
    Some,
    /// A negotiation message was processed, perhaps after stream messages; more may be pending.
    Setup,
}

/// State of the mailbox after a softirq has processed messages.
pub(super) enum MailboxState {
    /// The mailbox is empty and armed, or another context reads it.
    Nothing,
    /// More messages may be pending.
    More,
    /// A negotiation message is pending, which requires process context.
    Setup,
}

impl Nic {
    /// Processes messages and all requested runs of connections. Process context, may sleep.
    pub(super) fn run(self: &Arc<Self>) {
        self.count(Count::Runs);
        let again = self.read_some();
        for _ in 0..self.again.len() {
            if let Some(conn) = self.next_of(&self.again) {
                conn.run(true);
            }
            cond_resched();
        }
        if self.send_room.xchg(false, Relaxed) {
            self.send_again();
        }
        if self.slots_free.xchg(false, Relaxed) {
            self.give_slots();
        }
        if self.dead.xchg(false, Relaxed) {
            let capacity = self.table.lock().capacity();
            for conn in (0..capacity).filter_map(|i| self.at(i)) {
                conn.nic_lost();
            }
        }
        if again {
            self.wake();
        }
    }

    /// Removes the first waiter and returns its connection if the connection still exists.
    fn next_of(&self, waiters: &Waiters) -> Option<Arc<Conn>> {
        let index = waiters.next()?;
        self.at(index as usize)
    }

    /// Runs connections that wait until the ports can send messages, until no more can be sent. A
    /// connection that is blocked again is last in the next round.
    fn send_again(self: &Arc<Self>) {
        for _ in 0..self.blocked.len() {
            if let Some(conn) = self.next_of(&self.blocked) {
                conn.run(true);
                // The ports send a notification when they can accept messages again.
                if conn.is_blocked() {
                    return;
                }
            }
            cond_resched();
        }
    }

    /// Assigns GET slots to waiting connections. The engine has separate slots for each node, so a
    /// later connection may get a slot even if an earlier connection does not.
    fn give_slots(self: &Arc<Self>) {
        let (seen, mut tried) = (self.get_waiters.seen(), 0);
        let mut round = Round::new(self.get_waiters.len());
        while let Some(at) = round.next_position() {
            let conn = self
                .get_waiters
                .get(at)
                .and_then(|index| self.at(index as usize));
            cond_resched();
            let Some(conn) = conn else {
                // Entries behind a removed waiter move forward by one position.
                if tried >= SLOT_TRIES {
                    return self.slots_again();
                }
                tried += 1;
                self.get_waiters.remove(at);
                continue;
            };
            if round.is_full(conn.peer) {
                round.keep();
                continue;
            }
            if tried >= SLOT_TRIES {
                // Other messages are processed before more GETs are posted.
                return self.slots_again();
            }
            tried += 1;
            if conn.post_gets() == GetsPosted::None {
                round.set_full(conn.peer);
                round.keep();
            } else {
                self.get_waiters.remove(at);
                // The connection is also queued again if another context failed to get a slot while
                // the connection was still queued.
                if conn.waits_for_slot() && self.get_waiters.wait(conn.name.index(), seen) {
                    self.slots_again();
                }
            }
        }
    }

    /// Processes messages until the mailbox is empty and armed, or the limit is reached. Returns
    /// true if more may be pending. If false, all earlier messages have been delivered to the
    /// connections.
    fn read_some(self: &Arc<Self>) -> bool {
        // Only one work item reads at a time. A second work item would consider a message in
        // progress as delivered.
        let _reading = self.reading.lock();
        let mut left = MOST;
        while left > 0 {
            left = left.saturating_sub(match self.read() {
                Found::All => return false,
                Found::Some => BATCH,
                Found::Setup => 1,
            });
            cond_resched();
        }
        true
    }

    /// Processes stream messages up to the first negotiation message, and then that message.
    fn read(self: &Arc<Self>) -> Found {
        let mut setup_message = None;
        let more = {
            let mut guard = self.ports.lock();
            let Some(ports) = Option::as_mut(&mut *guard) else {
                return Found::All;
            };
            let more = self.process_some(ports, |kind, m| {
                setup_message = Some(SetupMessage::new(kind, m));
                Stop::Consumed
            });
            ports.busy = setup_message.is_some();
            more
        };
        let Some(setup_message) = setup_message else {
            return if more { Found::Some } else { Found::All };
        };
        self.setup(&setup_message);
        if let Some(ports) = Option::as_mut(&mut *self.ports.lock()) {
            ports.busy = false;
        }
        Found::Setup
    }

    /// Processes stream messages in a softirq. Leaves a negotiation message and all messages behind
    /// it to the work item.
    pub(super) fn read_soft(self: &Arc<Self>) -> MailboxState {
        self.count(Count::Runs);
        let mut guard = self.ports.lock();
        let Some(ports) = Option::as_mut(&mut *guard).filter(|ports| !ports.busy) else {
            return MailboxState::Nothing;
        };
        let mut setup = false;
        let more = self.process_some(ports, |_, _| {
            setup = true;
            Stop::Kept
        });
        match (setup, more) {
            (true, _) => MailboxState::Setup,
            (false, true) => MailboxState::More,
            (false, false) => MailboxState::Nothing,
        }
    }

    /// Processes stream messages. `setup` decides about a negotiation message, which ends the
    /// batch. Returns whether more may be pending. If false, the mailbox is armed, or a thread
    /// polls it busily.
    fn process_some(
        self: &Arc<Self>,
        ports: &mut Ports,
        mut setup: impl FnMut(Kind, &velo::Message<'_>) -> Stop,
    ) -> bool {
        let began = self.now();
        let since = ports.age_bound.since();
        let mut stopped = false;
        let processed = ports.mailbox.poll(BATCH, |m| {
            match Kind::from_tag(m.status.tag) {
                Some(kind) if kind.is_stream() => self.stream(m, (since, began)),
                // Only the peer's service port may send negotiation messages; other ports must not
                // be able to stop the batch.
                Some(kind) if m.status.source.vpid == SERVICE => {
                    stopped = true;
                    return ControlFlow::Break(setup(kind, m));
                }
                _ => self.count(Count::Strays),
            }
            ControlFlow::Continue(())
        });
        ports.age_bound.read(processed);
        self.count_backlog(ports, began);
        if stopped || processed == BATCH {
            return true;
        }
        // A thread that polls busily arms the mailbox afterwards.
        self.pollers.load(Relaxed) == 0 && ports.mailbox.rearm()
    }

    /// Updates the upper bound of the messages' age if the last update is too old.
    fn count_backlog(&self, ports: &mut Ports, began: Time) {
        if began.since(ports.counted) >= self.limits.fresh / 3 {
            ports.counted = began;
            ports.age_bound.count(began, ports.mailbox.unread_slots());
        }
    }

    /// Delivers a stream message. `times` contains a time before the message was sent, and the time
    /// at which it was read.
    fn stream(self: &Arc<Self>, m: &velo::Message<'_>, times: (Time, Time)) {
        self.count(Count::Messages);
        let source = m.status.source;
        let message = Message::parse(m.status.tag, m.len() as u16, |i| m.word(i)).ok();
        let Some(message) = message else {
            return self.count(Count::Strays);
        };
        let conn = self.table.lock().get(message.head().conn).cloned();
        let received = conn.is_some_and(|conn| {
            conn.stream_message((source.node, source.vpid), &message, times, |at, to| {
                m.copy_from(at, to);
            })
        });
        if received {
            return;
        }
        self.count(Count::Strays);
        let link = self.link.lock().clone();
        if let (Some(answer), Some(link)) = (unknown(&message), link) {
            link.send_any((source.node, source.vpid), &answer);
        }
    }

    /// Removes and returns a slot whose connection is due at `now`.
    fn next_due(&self, now: Time) -> Option<u32> {
        let mut due = self.due.lock();
        let (_, slot) = due.first().filter(|(at, _)| *at <= now)?;
        due.clear(slot);
        Some(slot)
    }

    /// Runs the connections that are due. Returns the time at which the next one is due.
    fn run_due(self: &Arc<Self>) -> Option<Time> {
        let now = self.now();
        let most = self.table.lock().capacity();
        for _ in 0..most {
            let Some(slot) = self.next_due(now) else {
                break;
            };
            if let Some(conn) = self.at(slot as usize) {
                conn.run_if_due();
            }
            cond_resched();
        }
        self.due.lock().first().map(|(at, _)| at)
    }

    /// Handles the expiry of the timer. Messages are processed first, because they may contain what
    /// connections wait for.
    pub(super) fn tick(self: &Arc<Self>) {
        *self.timer.lock() = None;
        if self.read_some() {
            self.wake();
        }
        let next = self.run_due();
        if self.table.lock().used() > 0 {
            // The mailbox is counted often enough that the age of each arriving message is known.
            let count = self.now().after(self.limits.fresh / 3);
            self.want(next.map_or(count, |at| at.min(count)));
        } else {
            self.free_rings();
        }
    }
}
