// SPDX-License-Identifier: GPL-2.0-only

//! RMA port of remote register access. It posts requests and matches answers with them.
//!
//! Opening and closing may sleep. All other functions run under the spinlock of [`super::Rra`],
//! which disables interrupts.

use super::{Operation, Request, RraError};
use crate::{
    context::Context,
    dma::DmaWords,
    quarantine::Quarantine,
    rma::{Notifications, PageOptions, Requester, Rma, SendError},
    stats::Reason,
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{Instant, Monotonic},
};
use protocol::nic::rra::{Answer, Reads, Slot, Writes, EXPIRY_S};
use wire::{
    ids::{NodeId, Vpid},
    rma::{
        Command, Descriptor, Modifiers, Notification, NotificationType, NotifySpec,
        Operation as RmaOperation,
    },
};

/// Maximum number of unanswered reads, including overdue reads.
const SLOTS: usize = 4096;
/// Size of the notification queue in bytes, which is the minimum size.
const QUEUE_BYTES: u32 = 512 * 1024;
/// Number of notifications in the queue.
const QUEUE_SLOTS: usize = QUEUE_BYTES as usize / 16;
/// Maximum number of notifications per poll. The limit bounds the time for which the lock is held,
/// so that a peer that sends continuously delays neither deadlines nor closing.
const AT_ONCE: usize = 256;
/// Requester page of the requests: access to the register file, physical local addresses, traffic
/// class 2 (HW §13).
const PAGE: PageOptions = PageOptions {
    traffic_class: 2,
    rra: true,
    irq: false,
    translate: false,
};

/// Request that was posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ticket {
    Read(usize),
    Write(u32, u64),
}

/// Result of posting a request.
pub(super) enum Posted {
    Yes(Ticket),
    /// The request was not posted yet. Contains the error to report if it cannot be posted in time.
    Later(RraError),
    Never(RraError),
}

/// Outstanding requests, with which notifications are matched.
struct Answers {
    memory: DmaWords,
    slots: KVec<Slot>,
    next: usize,
    writes: Writes,
    epoch: Instant<Monotonic>,
}

impl Answers {
    fn now_s(&self) -> u32 {
        (self.epoch.elapsed().as_millis() / 1000) as u32
    }

    fn address(&self, slot: usize) -> u64 {
        self.memory.address().0 + slot as u64 * 8
    }

    /// Matches a notification with an outstanding request.
    fn match_answer(&mut self, ctx: &Context, n: &Notification) {
        let answer = match (n.kind, n.command) {
            (NotificationType::Completer, Command::ByteGetResponse) => {
                let offset = n.word0.wrapping_sub(self.memory.address().0);
                let index = (offset / 8) as usize;
                Reads(&mut self.slots).complete(index, n.node, n.error)
            }
            (NotificationType::Requester, Command::ImmediatePut) => {
                self.writes.complete(n.node, n.word0, n.error)
            }
            // The origin reports a failed GET (G17). The completer's notification also reports the
            // error.
            (NotificationType::Requester, Command::ByteGet) if n.error != 0 => Answer::Unknown,
            _ => Answer::Unknown,
        };
        match answer {
            Answer::Awaited => {}
            Answer::Late => ctx.note(Reason::LateAnswer, n.word0),
            Answer::Unknown => ctx.error(Reason::UnexpectedAnswer, n.word0),
        }
    }
}

/// Open port of remote register access.
pub(super) struct Port {
    requester: Requester,
    notifications: Notifications,
    answers: Answers,
}

impl Port {
    /// Opens the port. May sleep.
    pub(super) fn open(ctx: &Context, rma: &Arc<Rma>) -> Result<Self> {
        let memory = ctx.with_bound(|dev| DmaWords::new(dev, SLOTS))??;
        let mut slots = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        for _ in 0..SLOTS {
            slots.push(Slot::FREE, GFP_KERNEL)?;
        }
        let (requester, notifications) = rma.open(Some(Vpid::RRA), QUEUE_BYTES)?;
        Ok(Self {
            requester,
            notifications,
            answers: Answers {
                memory,
                slots,
                next: 0,
                writes: Writes::default(),
                epoch: Instant::now(),
            },
        })
    }

    /// Posts a request.
    pub(super) fn post(&mut self, request: &Request) -> Posted {
        let (node, now) = (request.node, self.answers.now_s());
        let remote = request.offset.get().into();
        let (ticket, notify, op) = match request.operation {
            Operation::Read => {
                let from = self.answers.next;
                let claimed = Reads(&mut self.answers.slots).claim(from, node, now);
                let Some(slot) = claimed else {
                    return Posted::Never(RraError::Busy);
                };
                self.answers.next = (slot + 1) % SLOTS;
                let notify = NotifySpec {
                    completer: true,
                    ..NotifySpec::NONE
                };
                let op = RmaOperation::Get {
                    qw: false,
                    len: 8,
                    remote,
                    local: self.answers.address(slot),
                };
                (Ticket::Read(slot), notify, op)
            }
            Operation::Write(value) => {
                let Some(id) = self.answers.writes.push(node, value, now) else {
                    return Posted::Later(RraError::Busy);
                };
                let notify = NotifySpec {
                    requester: true,
                    ..NotifySpec::NONE
                };
                let op = RmaOperation::ImmediatePut {
                    len: 8,
                    remote,
                    value,
                };
                (Ticket::Write(id, value), notify, op)
            }
        };
        let posted = self.send(node, notify, op);
        if !matches!(posted, Ok(())) {
            match ticket {
                Ticket::Read(slot) => Reads(&mut self.answers.slots).cancel(slot),
                Ticket::Write(id, _) => self.answers.writes.cancel(id),
            }
        }
        match posted {
            Ok(()) => Posted::Yes(ticket),
            Err(SendError::Full | SendError::Retry) => {
                // The VPID stays disabled until late answers to an earlier binding can no longer
                // arrive.
                Posted::Later(if self.requester.is_enabled() {
                    RraError::TimedOut
                } else {
                    RraError::Busy
                })
            }
            Err(SendError::Down) => Posted::Never(RraError::Down),
            Err(SendError::Invalid) => Posted::Never(RraError::BadOffset),
        }
    }

    fn send(&self, node: NodeId, notify: NotifySpec, op: RmaOperation) -> Result<(), SendError> {
        let descriptor = Descriptor {
            node,
            vpid: Vpid::RRA,
            notify,
            modifiers: Modifiers::NONE,
            op,
        };
        self.requester.post(PAGE, &descriptor)
    }

    /// Processes up to [`AT_ONCE`] notifications and returns their number.
    pub(super) fn poll(&mut self, ctx: &Context) -> usize {
        let answers = &mut self.answers;
        self.notifications
            .poll(AT_ONCE, |n| answers.match_answer(ctx, n))
    }

    /// Returns the answer to a request; `None` before it arrives. The answer is returned only once.
    pub(super) fn result(&mut self, ticket: Ticket) -> Option<Result<u64, RraError>> {
        let answers = &mut self.answers;
        let (value, error) = match ticket {
            Ticket::Read(slot) => {
                // The value is read before the slot can be reused.
                let value = answers.memory.read(slot);
                (value, Reads(&mut answers.slots).take_result(slot)?)
            }
            Ticket::Write(id, value) => (value, answers.writes.take_result(id)?),
        };
        Some(match error {
            0 => Ok(value),
            error => Err(RraError::Failed(error)),
        })
    }

    /// Records that the caller does not wait for the answer any more.
    pub(super) fn give_up(&mut self, ticket: Ticket) {
        let now = self.answers.now_s();
        match ticket {
            Ticket::Read(slot) => Reads(&mut self.answers.slots).give_up(slot, now),
            Ticket::Write(id, _) => self.answers.writes.give_up(id, now),
        }
    }

    /// Closes the port. Returns the memory to which late answers may still be written. May sleep.
    pub(super) fn close(mut self, ctx: &Context, quarantine: &Quarantine) -> DmaWords {
        // Late answers are normally processed together with the next request. No request follows
        // here.
        for _ in 0..QUEUE_SLOTS / AT_ONCE {
            if self.poll(ctx) < AT_ONCE {
                break;
            }
        }
        let now = self.answers.now_s();
        if Reads(&mut self.answers.slots).is_expected(now) {
            quarantine.note_late_answers(Vpid::RRA, EXPIRY_S * 1000);
        }
        self.requester.close();
        self.notifications.close();
        self.answers.memory
    }
}
