// SPDX-License-Identifier: GPL-2.0-only

//! One transfer or lock operation of an engine: what it posts, and which notifications are its own.

use super::{Destination, Outcome, RmaError};
use crate::rma::{
    Ends, Fault, LockResult, LockTarget, Notification, NotificationType, NotifySpec, Requester,
    SendError,
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{Instant, Monotonic},
};
use wire::{
    ids::{NodeId, Vpid},
    rma::Command,
    transfer::{Direction, Transfer, Verdict},
};

#[derive(Clone, Copy)]
pub(super) struct LockJob {
    pub(super) at: LockTarget,
    pub(super) traffic_class: u8,
    /// `None`: one that no other operation is outstanding with, chosen when it is posted.
    pub(super) number: Option<u32>,
    pub(super) any_number: bool,
    pub(super) compare: i32,
    pub(super) add: i32,
    pub(super) posted: bool,
}

impl LockJob {
    /// Changes nothing, but is answered by a unit of the peer after all it was asked before: commands of a port in one class are
    /// processed in order (HW §10.8). The completer writes what PUTs bring, the responder answers GETs.
    pub(super) const fn nothing(at: LockTarget, traffic_class: u8) -> Self {
        Self {
            at,
            traffic_class,
            number: None,
            any_number: true,
            compare: i32::MIN,
            add: 0,
            posted: false,
        }
    }
}

pub(super) enum Kind {
    Move {
        transfer: Transfer,
        direction: Direction,
        ends: Ends,
    },
    Lock(LockJob),
}

pub(super) struct Job {
    pub(super) outcome: Arc<Outcome>,
    pub(super) to: Destination,
    pub(super) kind: Kind,
    /// What is to be done when the present operation, which changes nothing, was answered.
    pub(super) then: Option<Kind>,
    /// The command posted last, 0 for none: commands of an engine are numbered in the order of posting.
    pub(super) last: u64,
    /// A PUT that ends when the peer has processed it.
    pub(super) confirm: bool,
    /// When it times out; later, when it stops absorbing.
    pub(super) until: Instant<Monotonic>,
    pub(super) timed_out: bool,
}

pub(super) enum Step {
    Waiting,
    Ended(Result<u64, RmaError>),
}

/// What a job that was not begun has to do first.
pub(super) enum Obstacle {
    /// Its notification could not be told from that of another one under way.
    Wait,
    /// The same for one that timed out: this tells whether something still comes for that.
    Ask(LockJob),
}

/// The answer to a lock operation, behind which none to earlier commands to that unit comes any more.
#[derive(Clone, Copy)]
pub(super) struct Passed {
    pub(super) node: NodeId,
    pub(super) vpid: Vpid,
    pub(super) at: LockTarget,
    pub(super) traffic_class: u8,
    pub(super) order: u64,
}

impl Job {
    /// Posts what can be posted; false for lack of credit. `order` is the number of the last command posted.
    pub(super) fn post(
        &mut self,
        requester: &Requester,
        order: &mut u64,
    ) -> Result<bool, RmaError> {
        loop {
            let sent = match &mut self.kind {
                _ if self.timed_out => return Ok(true),
                Kind::Lock(lock) if lock.posted => return Ok(true),
                Kind::Lock(lock) => {
                    let LockJob {
                        at,
                        traffic_class,
                        number: Some(number),
                        compare,
                        add,
                        ..
                    } = *lock
                    else {
                        return Ok(true);
                    };
                    let to = Destination {
                        traffic_class,
                        ..self.to
                    };
                    let peer = to.peer(NotifySpec::from_bits(4));
                    let sent = requester.lock(peer, at, number, compare, add);
                    lock.posted = sent.is_ok();
                    sent
                }
                Kind::Move {
                    transfer,
                    direction,
                    ends,
                } => {
                    let Some(chunk) = transfer.next() else {
                        return Ok(true);
                    };
                    let ends = Ends {
                        local: ends.local + chunk.offset,
                        remote: ends.remote + chunk.offset,
                        ..*ends
                    };
                    let sent = match direction {
                        Direction::Get => {
                            let peer = self.to.peer(NotifySpec::from_bits(4));
                            requester.get_ends(&peer, ends, chunk.len)
                        }
                        Direction::Put => {
                            let peer = self.to.peer(NotifySpec {
                                requester: true,
                                responder: false,
                                completer: self.to.notify_peer,
                            });
                            requester.put_ends(&peer, ends, chunk.len)
                        }
                    };
                    if sent.is_ok() {
                        transfer.posted();
                    }
                    sent
                }
            };
            match sent {
                Ok(()) => {
                    *order += 1;
                    self.last = *order;
                }
                Err(SendError::Full | SendError::Retry) => return Ok(false),
                Err(SendError::Down) => return Err(RmaError::Down),
                Err(SendError::Invalid) => return Err(RmaError::Invalid),
            }
        }
    }

    pub(super) fn peer(&self) -> (NodeId, Vpid) {
        (self.to.node, self.to.vpid)
    }

    /// What is in the way of the first command of `self`, as far as `other` is concerned.
    pub(super) fn obstacle(&self, other: &Self) -> Option<Obstacle> {
        if self.peer() != other.peer() || other.last == 0 {
            return None;
        }
        let at = match (&self.kind, &other.kind) {
            (Kind::Lock(new), Kind::Lock(old)) if old.posted && new.number == old.number => old.at,
            (Kind::Move { transfer: new, .. }, Kind::Move { transfer: old, .. })
                if other.timed_out && old.meets(new) =>
            {
                match old.direction() {
                    Direction::Get => LockTarget::Responder,
                    Direction::Put => LockTarget::Completer,
                }
            }
            _ => return None,
        };
        let class = match &other.kind {
            Kind::Lock(lock) => lock.traffic_class,
            Kind::Move { .. } => other.to.traffic_class,
        };
        Some(if other.timed_out {
            Obstacle::Ask(LockJob::nothing(at, class))
        } else {
            Obstacle::Wait
        })
    }

    /// A lock operation without number that is to be posted.
    pub(super) fn wants_number(&self) -> bool {
        !self.timed_out && matches!(&self.kind, Kind::Lock(l) if l.number.is_none())
    }

    /// The operation was not posted: its number may go to another one.
    pub(super) fn give_number_back(&mut self) {
        if let Kind::Lock(lock) = &mut self.kind {
            if lock.any_number && !lock.posted {
                lock.number = None;
            }
        }
    }

    /// Whether a notification answers the lock operation of this job.
    pub(super) fn is_answer(&self, n: &Notification) -> bool {
        let Kind::Lock(lock) = &self.kind else {
            return false;
        };
        lock.posted
            && n.kind == NotificationType::Completer
            && matches!(n.command, Command::Lock | Command::LockResponse)
            && (n.node, n.vpid) == self.peer()
            && (n.error != 0 || Some(LockResult(n.word0).number()) == lock.number)
    }

    /// The lock operation was answered.
    pub(super) fn answered(&mut self, n: &Notification) -> (Step, Option<Passed>) {
        if let Some(fault) = Fault::of(n) {
            return (Step::Ended(Err(RmaError::Fault(fault))), None);
        }
        let passed = match &self.kind {
            Kind::Lock(lock) => Some(Passed {
                node: self.to.node,
                vpid: self.to.vpid,
                at: lock.at,
                traffic_class: lock.traffic_class,
                order: self.last,
            }),
            Kind::Move { .. } => None,
        };
        let step = match self.then.take() {
            Some(kind) if !self.timed_out => {
                self.kind = kind;
                self.last = 0;
                Step::Waiting
            }
            _ => Step::Ended(Ok(n.word0)),
        };
        (step, passed)
    }

    /// Timed out, and nothing comes for it any more.
    pub(super) fn is_over(&self, passed: &Passed) -> bool {
        let class = match &self.kind {
            Kind::Lock(lock) => lock.traffic_class,
            Kind::Move { .. } => self.to.traffic_class,
        };
        let reached = match &self.kind {
            Kind::Lock(lock) => lock.at == passed.at,
            Kind::Move { direction, .. } => {
                // A PUT is reported by the requester here, which all commands pass.
                *direction == Direction::Put || passed.at == LockTarget::Responder
            }
        };
        self.timed_out
            && reached
            && self.peer() == (passed.node, passed.vpid)
            && class == passed.traffic_class
            && self.last < passed.order
    }

    /// Takes a notification of a transfer; `None` if it is not for this job.
    pub(super) fn take(&mut self, n: &Notification) -> Option<Step> {
        let Kind::Move { transfer, .. } = &mut self.kind else {
            return None;
        };
        match transfer.take(n) {
            Verdict::Foreign => None,
            Verdict::Progress => Some(Step::Waiting),
            Verdict::Ended => Some(match transfer.fault() {
                Some(fault) => Step::Ended(Err(RmaError::Fault(fault))),
                None if self.confirm && !self.timed_out => {
                    let class = self.to.traffic_class;
                    self.kind = Kind::Lock(LockJob::nothing(LockTarget::Completer, class));
                    Step::Waiting
                }
                None => Step::Ended(Ok(0)),
            }),
        }
    }

    pub(super) fn is_outstanding(&self) -> bool {
        match &self.kind {
            Kind::Move { transfer, .. } => transfer.is_outstanding(),
            Kind::Lock(lock) => lock.posted,
        }
    }
}
