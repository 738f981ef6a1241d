// SPDX-License-Identifier: GPL-2.0-only

//! The interface's thread. It processes messages, timeouts, and events of registrations and GETs.
//! It never calls LNet.

use super::{
    bind::Search, count::Count, memory::Side, tasks::Task, Core, Machine, Ni, Outs, Ports, BUFFER,
};
use crate::{
    conf,
    ffi::thread::{Current, Run},
};
use extoll_core::{
    child::Handle,
    velo::{self, Header, SendError, Sender, Target},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Full, Relaxed},
        Arc, Mutex,
    },
};
use protocol::{
    lnd::{GetFailure, PayloadTarget, Port},
    Time, TransportError,
};
use wire::{
    ids::NodeId,
    lnd::{Message, TRAFFIC_CLASS, VPID},
};

/// Maximum number of messages, and of state machine actions, that are processed before the lock is
/// released.
pub(super) const BATCH: usize = 64;
/// Maximum length of a message in bytes.
const LONGEST: usize = 120;
/// Time in ns after the last message during which the thread wakes up to bound the age of pending
/// messages.
const BUSY: u64 = 1_000_000_000;
/// Interval in ns between checks whether late revocations have been confirmed.
const LATE: u64 = 50_000_000;

/// The interface's thread.
pub(super) struct Driver(pub(super) Arc<Ni>);

impl Run for Driver {
    fn run(&self, current: &Current) {
        let mut search = Search::default();
        loop {
            let wait = self.0.work_pass();
            let search = self.0.search_nic(&mut search);
            let wait = [wait, search].into_iter().flatten().min();
            if !self.0.signals.doorbell.wait(current, wait) {
                return;
            }
        }
    }
}

/// Transmit path that the state machine uses.
pub(super) struct Transmit<'a> {
    pub(super) sender: Option<&'a Sender>,
    pub(super) outs: &'a Mutex<Outs>,
}

impl Port<u32> for Transmit<'_> {
    fn send(
        &mut self,
        to: NodeId,
        message: &Message,
        payload: Option<(&u32, u16)>,
        quiet: bool,
    ) -> Result<(), TransportError> {
        let sender = self.sender.ok_or(TransportError::Never)?;
        let mut bytes = [0; LONGEST];
        let words = message.words();
        for (to, word) in bytes.chunks_mut(8).zip(words.as_slice()) {
            for (to, from) in to.iter_mut().zip(word.to_le_bytes()) {
                *to = from;
            }
        }
        let (from, len) = (message.data_offset().into(), message.len().into());
        if let Some((token, at)) = payload {
            let part = bytes.get_mut(from..len).ok_or(TransportError::Never)?;
            self.outs.lock().read(*token, at, part);
        }
        let header = Header {
            tag: message.kind().tag(),
            irq: !quiet,
            class: TRAFFIC_CLASS,
            ..Header::new(Target::Node(to), VPID)
        };
        let bytes = bytes.get(..len).ok_or(TransportError::Never)?;
        sender.send(header, bytes).map_err(|e| match e {
            SendError::Full | SendError::Retry => TransportError::Later,
            SendError::Down | SendError::Invalid => TransportError::Never,
        })
    }
}

impl Ni {
    /// Changes the state machine and performs the resulting actions.
    pub(super) fn change(&self, f: impl FnOnce(&mut Machine, Time)) {
        let mut core = self.core.lock();
        let now = self.now();
        if let Some(machine) = core.machine_mut() {
            f(machine, now);
        }
        self.drive(&mut core, now);
    }

    /// Performs one work pass. Returns the jiffies until the next pass; `None`: the next pass
    /// begins when the doorbell is notified.
    fn work_pass(&self) -> Option<u32> {
        self.counters.count(Count::Turns);
        let mut again = self.read();
        self.check_network();
        let mut core = self.core.lock();
        let now = self.now();
        if self.lost.xchg(false, Relaxed) {
            if let Some(machine) = core.machine_mut() {
                machine.down_all(now);
            }
            self.queue_fatal(true);
        }
        self.handle_events(&mut core, now);
        if let Some(machine) = core.machine_mut() {
            again |= machine.expire(now, BATCH);
        }
        self.drive(&mut core, now);
        let next = core.machine().and_then(Machine::next_deadline);
        let late = (core.late.len() > 0).then(|| now.after(LATE));
        let busy = self.next_count(now);
        let next = [next, late, busy].into_iter().flatten().min();
        core.armed = next.unwrap_or(Time(u64::MAX));
        drop(core);
        if again {
            return Some(0);
        }
        let ms = |at: Time| (at.since(now) / 1_000_000 + 1).min(60_000) as u32;
        next.map(|at| kernel::time::msecs_to_jiffies(ms(at)) as u32)
    }

    /// Queues a report for LNet if the interface has become usable or unusable.
    pub(super) fn queue_fatal(&self, fatal: bool) {
        if self.fatal.xchg(fatal, Full) != fatal && !self.fatal_due.xchg(true, Full) {
            self.post(None, Task::Fatal);
        }
    }

    /// Reports to LNet whether the interface is usable. Only one thread calls this function, so the
    /// last report is the current state.
    pub(super) fn report_fatal(&self) {
        self.fatal_due.xchg(false, Full);
        self.raw.set_fatal(self.fatal.load(Acquire));
    }

    /// Checks whether other nodes are reachable, if the network state may have changed.
    fn check_network(&self) {
        if self.changed.xchg(false, Full) {
            let ports = self.ports.lock();
            // Peers know the interface by its node ID.
            let works = |nic: &Handle| nic.is_connected() && nic.node() == self.node;
            let connected = ports.as_ref().map(|ports| works(&ports.handle));
            // The loss of a NIC is queued with this lock held. The report below must not overwrite
            // it.
            let core = self.core.lock();
            if let (Some(connected), Some(_)) = (connected, &core.link) {
                self.queue_fatal(!connected);
            }
        }
    }

    /// Returns the time at which the bound of the messages' age must be updated; `None` if no
    /// message arrived recently.
    fn next_count(&self, now: Time) -> Option<Time> {
        let busy = Time(self.busy.load(Relaxed));
        (now.since(busy) < BUSY).then(|| now.after(conf::limits().fresh / 3))
    }

    /// Processes incoming messages. Returns whether more may be pending.
    fn read(&self) -> bool {
        let mut guard = self.ports.lock();
        let Some(ports) = Option::as_mut(&mut *guard) else {
            return false;
        };
        let mut core = self.core.lock();
        if core.link.is_none() || !self.reading.load(Relaxed) {
            return false;
        }
        let began = self.now();
        let since = ports.age_bound.since();
        let taken = ports
            .mailbox
            .poll(BATCH, |m| self.on_message(&mut core, m, since, began));
        ports.age_bound.read(taken);
        if taken > 0 {
            self.busy.store(began.0, Relaxed);
        }
        self.count_backlog(ports, began);
        taken == BATCH || ports.mailbox.rearm()
    }

    /// Updates the upper bound of the messages' age if the last update is too old.
    fn count_backlog(&self, ports: &mut Ports, began: Time) {
        if began.since(ports.counted) >= conf::limits().fresh / 4 {
            ports.counted = began;
            ports.age_bound.count(began, ports.mailbox.unread_slots());
        }
    }

    fn on_message(&self, core: &mut Core, m: &velo::Message<'_>, since: Time, now: Time) {
        let source = m.status.source;
        let message = Message::parse(m.status.tag, m.len() as u16, |i| m.word(i)).ok();
        let (Some(message), true) = (message, source.vpid == VPID) else {
            return self.counters.count(Count::Strays);
        };
        let Some(machine) = core.machine_mut() else {
            return;
        };
        let Some(PayloadTarget { of, at, len }) =
            machine.receive_message(source.node, &message, since, now)
        else {
            return;
        };
        let mut bytes = [0; LONGEST];
        if let Some(part) = bytes.get_mut(..len.into()) {
            m.copy_from(message.data_offset().into(), part);
            let offset = of.index() as usize * BUFFER + usize::from(at);
            // Cannot fail: the range is inside the buffer of one message.
            let _ = self.buffers.copy_from(offset, part);
        }
    }

    /// Handles events of registration slots.
    fn handle_events(&self, core: &mut Core, now: Time) {
        let Some(slots) = core.slots.clone() else {
            // Events of slots of a previous NIC are irrelevant.
            while self.signals.next().is_some() {}
            return;
        };
        while let Some(number) = self.signals.next() {
            let Some(slot) = slots.get(number) else {
                continue;
            };
            slot.events.clear_queued();
            if let Some(result) = slot.events.take_get_result() {
                if let (Some((ticket, result)), Some(machine)) =
                    (self.check(number, result), core.machine_mut())
                {
                    if result == Err(GetFailure::NotPosted) {
                        self.counters.count(Count::NotPosted);
                    }
                    machine.fetched(ticket, result, now);
                }
            }
            if slot.events.take_revoked() {
                self.ended(core, slots.side(number), number);
            }
            if slot.events.take_late() {
                self.counters.count(Count::Late);
                // Cannot fail: each slot is queued at most once.
                let _ = core.late.push(number);
            }
            if slots.side(number) == Side::Sink {
                self.reap_sink(&slots, number);
            }
        }
        for _ in 0..core.late.len() {
            let Some(number) = core.late.pop() else {
                break;
            };
            let ended = slots.get(number).is_none_or(|p| p.has_ended());
            // Registrations of a lost NIC end as well, when the NIC loses its access to memory.
            if ended {
                self.ended(core, slots.side(number), number);
            } else {
                let _ = core.late.push(number);
            }
        }
    }

    /// Notifies the state machine that no device can access the memory in a slot any more.
    fn ended(&self, core: &mut Core, side: Side, number: u32) {
        let Some(machine) = core.machine_mut() else {
            return;
        };
        let ticket = match side {
            Side::Source => self.outs.lock().ticket_at(number),
            Side::Sink => self.sinks.lock().ticket_at(number),
        };
        match (side, ticket) {
            (Side::Source, Some(ticket)) => machine.revoked(ticket),
            (Side::Sink, Some(ticket)) => machine.get_target_revoked(ticket),
            (_, None) => {}
        }
    }
}
