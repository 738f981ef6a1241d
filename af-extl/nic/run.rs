// SPDX-License-Identifier: GPL-2.0-only

//! What the NIC's side does: messages first, then what is due.

use super::{
    conn::{Conn, Placed},
    serve::Said,
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

/// Messages in a row.
const BATCH: usize = 64;
/// Messages that a run takes at most; then others get their turn.
const MOST: usize = 32 * BATCH;
/// So many connections try to get a place for GETs in a row.
const PLACED: usize = 64;

/// What a look at the mailbox in process context has found.
enum Found {
    /// All that was there, and it is armed; or the port is gone.
    All,
    /// Messages of streams; there may be more.
    Some,
    /// Perhaps some of streams, then one of a negotiation; there may be more.
    Setup,
}

/// What a look at the mailbox in a softirq has left there.
pub(super) enum Left {
    /// Nothing: it is armed, or somebody else reads it.
    Nothing,
    /// Perhaps something.
    More,
    /// A message of a negotiation, which wants process context.
    Setup,
}

impl Nic {
    /// Something came, or the port has room.
    pub(super) fn run(self: &Arc<Self>) {
        self.count(Count::Runs);
        let again = self.read_some();
        for _ in 0..self.again.len() {
            if let Some(conn) = self.next_of(&self.again) {
                conn.look(true);
            }
            cond_resched();
        }
        if self.room.xchg(false, Relaxed) {
            self.send_again();
        }
        if self.place.xchg(false, Relaxed) {
            self.give_places();
        }
        if self.dead.xchg(false, Relaxed) {
            let capacity = self.table.lock().capacity();
            for conn in (0..capacity).filter_map(|i| self.at(i)) {
                conn.down();
            }
        }
        if again {
            self.wake();
        }
    }

    /// Who waits for longest, if it is still there.
    fn next_of(&self, waiters: &Waiters) -> Option<Arc<Conn>> {
        let index = waiters.next()?;
        self.at(index as usize)
    }

    /// The ports have room for messages: who waits for that sends, until there is none. A connection
    /// that has used up what there was is the last one of them next time.
    fn send_again(self: &Arc<Self>) {
        for _ in 0..self.blocked.len() {
            if let Some(conn) = self.next_of(&self.blocked) {
                conn.look(true);
                // The ports tell when there is room again.
                if conn.is_blocked() {
                    return;
                }
            }
            cond_resched();
        }
    }

    /// There are places for GETs: who waits for one gets some. The engine has some for each node, so
    /// that others may get one when the first does not.
    fn give_places(self: &Arc<Self>) {
        let (seen, mut tried) = (self.places.seen(), 0);
        let mut round = Round::new(self.places.len());
        while let Some(at) = round.next_place() {
            let conn = self
                .places
                .get(at)
                .and_then(|index| self.at(index as usize));
            cond_resched();
            let Some(conn) = conn else {
                // It moves those before it.
                if tried >= PLACED {
                    return self.place_again();
                }
                tried += 1;
                self.places.remove(at);
                continue;
            };
            if round.is_full(conn.peer) {
                round.keep();
                continue;
            }
            if tried >= PLACED {
                // Messages have to be read.
                return self.place_again();
            }
            tried += 1;
            if conn.place() == Placed::None {
                round.fill(conn.peer);
                round.keep();
            } else {
                self.places.remove(at);
                // Also if it was refused by now, as one that waited already.
                if conn.waits_for_place() && self.places.wait(conn.name.index(), seen) {
                    self.place_again();
                }
            }
        }
    }

    /// Reads the mailbox until it is empty and armed, or others have to get their turn: whether
    /// there may be more. If not, all that came before is known to the connections.
    fn read_some(self: &Arc<Self>) -> bool {
        // One of the work items at a time: the other would take for read what this one has in hand.
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

    /// Reads some messages.
    fn read(self: &Arc<Self>) -> Found {
        let mut said = None;
        let more = {
            let mut guard = self.ports.lock();
            let Some(ports) = Option::as_mut(&mut *guard) else {
                return Found::All;
            };
            let more = self.take_some(ports, |kind, m| {
                said = Some(Said::new(kind, m));
                Stop::Taken
            });
            ports.busy = said.is_some();
            more
        };
        let Some(said) = said else {
            return match more {
                true => Found::Some,
                false => Found::All,
            };
        };
        self.setup(&said);
        if let Some(ports) = Option::as_mut(&mut *self.ports.lock()) {
            ports.busy = false;
        }
        Found::Setup
    }

    /// The same in a softirq, which leaves messages of negotiations, and those behind them, to the work
    /// item.
    pub(super) fn read_soft(self: &Arc<Self>) -> Left {
        self.count(Count::Runs);
        let mut guard = self.ports.lock();
        let Some(ports) = Option::as_mut(&mut *guard).filter(|ports| !ports.busy) else {
            return Left::Nothing;
        };
        let mut setup = false;
        let more = self.take_some(ports, |_, _| {
            setup = true;
            Stop::Left
        });
        match (setup, more) {
            (true, _) => Left::Setup,
            (false, true) => Left::More,
            (false, false) => Left::Nothing,
        }
    }

    /// Takes messages of streams, until `setup` has decided about one of a negotiation: whether there
    /// may be more. If not, the mailbox is armed, or somebody polls it.
    fn take_some(
        self: &Arc<Self>,
        ports: &mut Ports,
        mut setup: impl FnMut(Kind, &velo::Message<'_>) -> Stop,
    ) -> bool {
        let began = self.now();
        let since = ports.horizon.since();
        let mut stopped = false;
        let taken = ports.mailbox.poll(BATCH, |m| {
            match Kind::from_tag(m.status.tag) {
                Some(kind) if kind.is_stream() => self.stream(m, (since, began)),
                // Of negotiations there are none but from the others' service: it is not for those to stop this.
                Some(kind) if m.status.source.vpid == SERVICE => {
                    stopped = true;
                    return ControlFlow::Break(setup(kind, m));
                }
                _ => self.count(Count::Strays),
            }
            ControlFlow::Continue(())
        });
        ports.horizon.took(taken);
        self.count_backlog(ports, began);
        if stopped || taken == BATCH {
            return true;
        }
        // Who polls it arms it afterwards.
        self.pollers.load(Relaxed) == 0 && ports.mailbox.rearm()
    }

    /// Learns how old messages are, when that was not done for some time.
    fn count_backlog(&self, ports: &mut Ports, began: Time) {
        if began.since(ports.counted) >= self.limits.fresh / 3 {
            ports.counted = began;
            ports.horizon.count(began, ports.mailbox.backlog());
        }
    }

    /// A message of a stream, sent after the first time and found after the second.
    fn stream(self: &Arc<Self>, m: &velo::Message<'_>, times: (Time, Time)) {
        self.count(Count::Messages);
        let source = m.status.source;
        let message = Message::parse(m.status.tag, m.len() as u16, |i| m.word(i)).ok();
        let Some(message) = message else {
            return self.count(Count::Strays);
        };
        let conn = self.table.lock().get(message.head().conn).cloned();
        let heard = conn.is_some_and(|conn| {
            conn.heard((source.node, source.vpid), &message, times, |at, to| {
                m.copy_from(at, to);
            })
        });
        if heard {
            return;
        }
        self.count(Count::Strays);
        let link = self.link.lock().clone();
        if let (Some(answer), Some(link)) = (unknown(&message), link) {
            link.tell((source.node, source.vpid), &answer);
        }
    }

    /// A place that has to be looked at by `now`; it is not noted any more.
    fn next_due(&self, now: Time) -> Option<u32> {
        let mut due = self.due.lock();
        let (_, place) = due.first().filter(|(at, _)| *at <= now)?;
        due.clear(place);
        Some(place)
    }

    /// Looks at connections of which something is due. Returns when there is next.
    fn look(self: &Arc<Self>) -> Option<Time> {
        let now = self.now();
        let most = self.table.lock().capacity();
        for _ in 0..most {
            let Some(place) = self.next_due(now) else {
                break;
            };
            if let Some(conn) = self.at(place as usize) {
                conn.look_if_due();
            }
            cond_resched();
        }
        self.due.lock().first().map(|(at, _)| at)
    }

    /// The timer has gone off. Messages come first: what is due may be in them.
    pub(super) fn tick(self: &Arc<Self>) {
        *self.timer.lock() = None;
        if self.read_some() {
            self.wake();
        }
        let next = self.look();
        if self.table.lock().used() > 0 {
            // The age of messages has to be known when one comes.
            let count = self.now().after(self.limits.fresh / 3);
            self.want(next.map_or(count, |at| at.min(count)));
        } else {
            self.rest();
        }
    }
}
