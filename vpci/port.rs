// SPDX-License-Identifier: GPL-2.0-only

//! Receive and transmit path of a NIC, and the actions that follow in any context.
//!
//! The mailbox is read in a softirq, or by a configuration access that waits for an answer, perhaps
//! with interrupts off. Lock order: `mailbox`, then `machines`. `sender` and `alarm` are acquired
//! without other locks held.

use crate::{
    counts::Reject,
    nic::{Alarm, Nic, Step},
};
use extoll_core::velo::{self, Header, Target};
use kernel::{
    sync::{atomic::Relaxed, Arc},
    time::Delta,
};
use kernel_ext::work;
use protocol::{pci::Config, Time};
use wire::{
    ids::NodeId,
    pci::{Kind, Message, ParseError, Role, TRAFFIC_CLASS, VPID},
};

/// Maximum number of messages processed with `mailbox` locked once.
const BATCH: usize = 32;
/// Maximum number of actions performed by one call of [`Nic::pump`].
const STEPS: usize = 256;

impl Nic {
    /// Processes messages, and arms the mailbox if it is empty. Returns whether more may be
    /// pending. Any context.
    pub(crate) fn read(self: &Arc<Self>) -> bool {
        let mut mailbox = self.mailbox.lock();
        let Some(mailbox) = mailbox.as_mut().get_mut().as_mut() else {
            return false;
        };
        let mut wake = false;
        let n = mailbox.poll(BATCH, |message| wake |= self.receive(message));
        if wake {
            self.wake();
        }
        n == BATCH || mailbox.rearm()
    }

    /// Processes messages for a caller that waits for one, and the actions that follow, because no
    /// other context may be able to run. Does not arm the mailbox. Returns false if the port is
    /// closed. Any context.
    pub(crate) fn poll(self: &Arc<Self>) -> bool {
        let mut mailbox = self.mailbox.lock();
        let mut wake = false;
        let Some(open) = mailbox.as_mut().get_mut().as_mut() else {
            return false;
        };
        let some = open.poll(BATCH, |message| wake |= self.receive(message)) > 0;
        drop(mailbox);
        if wake {
            self.wake();
        }
        if some {
            self.pump();
        }
        true
    }

    /// Processes a message. Returns whether work items may have to run.
    fn receive(&self, message: &velo::Message<'_>) -> bool {
        self.counts.received.fetch_add(1, Relaxed);
        let status = &message.status;
        let (from, tag) = (status.source.node, status.tag);
        // Only this VPID sends messages of this protocol; programs use other VPIDs.
        if status.source.vpid != VPID {
            self.counts.reject(Reject::Source, status);
            return false;
        }
        let parsed = Message::parse(tag, status.len, |i| message.word(i));
        let mut machines = self.machines.lock();
        let now = self.now();
        match parsed {
            Ok(message) => {
                match message.role() {
                    Role::Lender => machines.lender.receive(now, from, &message),
                    Role::Borrower => machines.borrower.receive(now, from, &message),
                }
                !matches!(message.kind(), Kind::Read | Kind::Write | Kind::Done)
            }
            Err(ParseError::Version {
                kind: kind @ (Kind::List | Kind::Borrow),
                number,
                ..
            }) => {
                machines.lender.receive_other_version(from, kind, number);
                false
            }
            Err(ParseError::Version {
                kind: Kind::Refuse,
                number,
                ..
            }) => {
                machines.borrower.receive_other_version(now, from, number);
                true
            }
            Err(_) => {
                drop(machines);
                self.counts.reject(Reject::Form, status);
                false
            }
        }
    }

    /// Sends a message. A message that cannot be sent is dropped; the state machines repeat it. Any
    /// context.
    pub(crate) fn send(&self, node: NodeId, message: &Message) {
        let words = message.words();
        let mut bytes = [0; 120];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words.as_slice()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let header = Header {
            tag: message.kind().tag(),
            irq: true,
            class: TRAFFIC_CLASS,
            ..Header::new(Target::Node(node), VPID)
        };
        let sender = self.sender.lock();
        let payload = bytes.get(..words.bytes().into()).unwrap_or_default();
        let sent = sender
            .as_ref()
            .is_some_and(|sender| sender.send(header, payload).is_ok());
        let count = if sent {
            &self.counts.sent
        } else {
            &self.counts.not_sent
        };
        count.fetch_add(1, Relaxed);
    }

    /// Sends the pending messages and executes the configuration accesses of the state machines.
    /// Then sets the timer. Any context.
    pub(crate) fn pump(self: &Arc<Self>) {
        for _ in 0..STEPS {
            let step = {
                let mut machines = self.machines.lock();
                let now = self.now();
                machines.step(now)
            };
            match step {
                Some(Step::Send(node, message)) => self.send(node, &message),
                Some(Step::Config(config)) => self.configure(&config),
                None => break,
            }
        }
        let next = self.machines.lock().next();
        if let Some(next) = next {
            self.run_at(next);
        }
    }

    /// Queues all work items. Any context.
    pub(crate) fn wake(self: &Arc<Self>) {
        // A failure means that a work item is already queued. Uses the queue for items that may
        // wait for memory, because drivers are bound in these items. Unloading the module waits for
        // the queue.
        let _ = work::enqueue_waiting::<_, 0>(self.clone(), 0);
        let _ = work::enqueue_waiting::<_, 1>(self.clone(), 0);
        let _ = work::enqueue_waiting::<_, 2>(self.clone(), 0);
        let _ = work::enqueue_waiting::<_, 3>(self.clone(), 0);
        let _ = work::enqueue_waiting::<_, 4>(self.clone(), 0);
    }

    /// Ensures that the timer expires at `at` or earlier. Any context.
    pub(crate) fn run_at(&self, at: Time) {
        let mut alarm = self.alarm.lock();
        let Alarm { due, timer } = &mut *alarm;
        if let Some(timer) = timer.as_ref().filter(|_| due.is_none_or(|due| at < due)) {
            *due = Some(at);
            let ns = at.0.saturating_sub(self.now().0);
            timer.arm(Delta::from_nanos(ns.clamp(1_000_000, 1 << 40) as i64));
        }
    }

    /// Executes a configuration access on a lent device.
    fn configure(self: &Arc<Self>, config: &Config) {
        let device = {
            let offered = self.offered.lock();
            let found = offered.iter().find(|(name, _)| *name == config.handle);
            found.map(|(_, device)| device.clone())
        };
        let value = device
            .ok_or(())
            .and_then(|d| crate::lend::access(&d, config));
        self.machines.lock().lender.configured(config, value);
        // A work item may have to end a lease that waited for this access.
        self.wake();
    }
}
