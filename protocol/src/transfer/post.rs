// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Selection and posting of commands.

use super::{
    describe::{self, DataCommand},
    fragments::Fragment,
    tables::{Action, CommandInFlight, Confirmed, Job, Kind, PeerList, Role, FLIGHT},
    Lock, Notify, Port, Posted, TransferEvent, TransferState, Transfers,
};
use crate::{base::arena::Index, Memory, Time, TransportError};
use wire::rma::{Descriptor, Direction, LockTarget, PageOptions};

/// Next command of a transfer.
#[derive(Clone, Copy)]
enum Next {
    /// No command can be posted, at least until an answer arrives.
    Nothing,
    Data(DataCommand),
    /// Notification PUT that follows the data.
    Notify {
        class: u8,
        value: u64,
    },
    Operation(Lock),
    Confirm,
}

/// Condition that delays a command.
enum Conflict {
    None,
    /// The command's notification could be confused with the notification of a command in flight.
    Wait,
    /// The command's notification could be confused with the notification of a late command. A
    /// fence at this unit and in this class resolves the conflict.
    Ask {
        at: LockTarget,
        class: u8,
    },
}

/// Result of an attempt to post one command of a peer.
enum TurnResult {
    /// A command was posted, or a transfer ended because of the port or its time.
    Used,
    /// The peer can post no command now.
    Idle,
    /// No peer can post a command now.
    Stop,
}

/// Command and its role. A command without notification has no role.
struct Command {
    role: Option<Role>,
    page: PageOptions,
    descriptor: Descriptor,
}

/// Result of an attempt to post a transfer's next command.
enum Attempt {
    Posted,
    /// The transfer must wait on this list.
    Moved(PeerList),
    /// The peer has reached the limit of data or commands in flight.
    Window,
    Stop,
    Dead,
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    match b.0.checked_sub(a.0) {
        Some(distance) => distance < a.1,
        None => a.0 - b.0 < b.1,
    }
}

/// Returns the unit whose answer to a fence shows that all earlier answers to this kind of command
/// have arrived.
fn answering_unit(action: Action) -> LockTarget {
    match action {
        Action::Get => LockTarget::Responder,
        // The local requester sends the notifications of PUTs, in the order of all commands.
        Action::Put => LockTarget::Completer,
        Action::Lock(at) => at,
    }
}

impl<M: Memory, T: Clone> Transfers<M, T> {
    /// Posts up to `most` commands. The driver calls this function after new transfers,
    /// notifications and time-outs, and when the port can accept commands again.
    pub fn post(&mut self, port: &mut impl Port, now: Time, most: usize) -> Posted {
        let mut posted = Posted::default();
        let mut turns = 0;
        while turns < most {
            let Some(peer) = self.turns.first() else {
                return posted;
            };
            let before = self.counters.commands;
            match self.turn_of(peer, port, now) {
                TurnResult::Used => {
                    turns += 1;
                    // Move the peer to the end of the list.
                    self.leave_turn(peer);
                    self.take_turn(peer);
                }
                TurnResult::Idle => self.leave_turn(peer),
                TurnResult::Stop => return posted,
            }
            posted.commands += (self.counters.commands - before) as usize;
        }
        posted.more = !self.turns.is_empty();
        posted
    }

    fn turn_of(&mut self, peer: Index, port: &mut impl Port, now: Time) -> TurnResult {
        loop {
            let ready = self
                .peers
                .get(peer)
                .and_then(|p| p.lists[PeerList::Ready as usize].first());
            let Some(job) = ready else {
                return TurnResult::Idle;
            };
            if self.is_too_late(job, now) {
                self.give_up(job, super::Failure::TimedOut, now);
                return TurnResult::Used;
            }
            match self.attempt(peer, job, port) {
                Attempt::Posted => {
                    if self.is_finished(job) {
                        self.finish(job);
                    } else {
                        // Move the transfer behind the other transfers of the peer.
                        self.move_to(job, Some(PeerList::Ready));
                    }
                    return TurnResult::Used;
                }
                Attempt::Moved(list) => self.move_to(job, Some(list)),
                Attempt::Window => return TurnResult::Idle,
                Attempt::Stop => return TurnResult::Stop,
                Attempt::Dead => {
                    self.give_up(job, super::Failure::Down, now);
                    return TurnResult::Used;
                }
            }
        }
    }

    fn next(&self, job: &Job<T>) -> Next {
        if job.fenced || !matches!(job.state, TransferState::Queued | TransferState::InFlight) {
            return Next::Nothing;
        }
        match &job.kind {
            Kind::Lock { posted: true, .. } => Next::Nothing,
            Kind::Lock { lock, .. } => Next::Operation(*lock),
            Kind::Data {
                kind,
                left: 0,
                notification_posted,
                confirmed,
                ..
            } => match kind.notify {
                Notify::Value { class, value } if !notification_posted => match job.flights {
                    0 => Next::Notify { class, value },
                    _ => Next::Nothing,
                },
                _ if kind.confirm
                    && kind.direction == Direction::Put
                    && *confirmed == Confirmed::Unasked =>
                {
                    Next::Confirm
                }
                _ => Next::Nothing,
            },
            Kind::Data {
                kind,
                local,
                remote,
                left,
                ..
            } => {
                let (Some(local), Some(remote)) = (self.pool.next(local), self.pool.next(remote))
                else {
                    return Next::Nothing;
                };
                let most = u64::from(self.limits.command);
                let len = local.len.min(remote.len).min(most) as u32;
                let last = u64::from(len) == *left;
                if kind.notify == Notify::Last && last && job.flights > 0 {
                    return Next::Nothing;
                }
                Next::Data(DataCommand {
                    direction: kind.direction,
                    local: local.address,
                    remote: remote.address,
                    len,
                    notify_peer: kind.notify == Notify::Each || kind.notify == Notify::Last && last,
                })
            }
        }
    }

    /// Returns true if the transfer has a command to post, regardless of other transfers.
    pub(super) fn has_next(&self, job: Index) -> bool {
        let job = self.jobs.get(job);
        job.is_some_and(|job| !matches!(self.next(job), Next::Nothing))
    }

    /// Returns true if all commands of a transfer were posted and answered.
    pub(super) fn is_finished(&self, job: Index) -> bool {
        let Some(job) = self.jobs.get(job) else {
            return false;
        };
        job.state == TransferState::InFlight
            && job.flights == 0
            && match &job.kind {
                Kind::Lock { posted, .. } => *posted,
                Kind::Data { .. } => matches!(self.next(job), Next::Nothing) && !job.fenced,
            }
    }

    /// Returns true if [`Terms::post_by`](super::Terms::post_by) of a transfer has passed.
    fn is_too_late(&self, job: Index, now: Time) -> bool {
        let job = self.jobs.get(job);
        job.is_some_and(|job| job.post_by.is_some_and(|at| at <= now))
    }

    /// Tries to post the next command of a transfer.
    fn attempt(&mut self, peer: Index, at: Index, port: &mut impl Port) -> Attempt {
        let command = match self.prepare(peer, at) {
            Ok(command) => command,
            Err(attempt) => return attempt,
        };
        match port.post(command.page, &command.descriptor) {
            Ok(()) => {}
            Err(TransportError::Later) => return Attempt::Stop,
            Err(TransportError::Never) => return Attempt::Dead,
        }
        self.order += 1;
        self.counters.commands += 1;
        self.record_posted(at, command.role);
        if let Some(role) = command.role {
            let (action, start, len) = describe::subject(&command.descriptor.op);
            self.add_flight(CommandInFlight {
                job: at,
                peer,
                action,
                role,
                start,
                len,
                class: command.page.traffic_class,
                order: self.order,
                late: false,
            });
        }
        Attempt::Posted
    }

    /// Returns the next command of a transfer, or a fence that the transfer needs first. The error
    /// is the reason for which no command can be posted.
    fn prepare(&mut self, peer: Index, at: Index) -> Result<Command, Attempt> {
        let (Some(job), Some(p)) = (self.jobs.get(at), self.peers.get(peer)) else {
            return Err(Attempt::Moved(PeerList::Waiting));
        };
        let to = (p.node, p.vpid);
        let (class, translate) = (job.class, job.translate);
        let next = self.next(job);
        let bytes = match next {
            Next::Nothing => return Err(Attempt::Moved(PeerList::Waiting)),
            Next::Data(command) => u64::from(command.len),
            _ => 0,
        };
        if self.flights.room() == 0 {
            return Err(Attempt::Stop);
        }
        let full = p.flights.len() >= self.limits.window
            || p.bytes != 0 && p.bytes + bytes > self.limits.window_bytes;
        let fenced = p.fences > 0;
        let conflict = if !full {
            self.conflict(peer, &next)
        } else if p.late > 0 && !fenced {
            // The window is full. A fence may show that late commands in the window are finished.
            self.oldest_late(peer)
        } else {
            return Err(Attempt::Window);
        };
        match conflict {
            Conflict::None => {}
            Conflict::Wait => return Err(Attempt::Moved(PeerList::Blocked)),
            // A transfer waits for one fence at a time, because the fence's answer may also resolve
            // this conflict.
            Conflict::Ask { .. } if fenced => return Err(Attempt::Moved(PeerList::Blocked)),
            Conflict::Ask { at, class } => {
                let lock = self.no_op_lock(peer, at)?;
                return Ok(Command {
                    role: Some(Role::Fence),
                    page: describe::page(class, false),
                    descriptor: describe::lock(to, &lock),
                });
            }
        }
        let (role, descriptor) = match next {
            Next::Data(command) => (Some(Role::Data), describe::data(to, &command)),
            Next::Notify { class, value } => (None, describe::value(to, class, value)),
            Next::Operation(lock) => (Some(Role::Operation), describe::lock(to, &lock)),
            Next::Confirm | Next::Nothing => {
                let lock = self.no_op_lock(peer, LockTarget::Completer)?;
                (Some(Role::Confirm), describe::lock(to, &lock))
            }
        };
        let translate = translate && matches!(next, Next::Data(_));
        Ok(Command {
            role,
            page: describe::page(class, translate),
            descriptor,
        })
    }

    /// Records a posted command of a transfer.
    fn record_posted(&mut self, at: Index, role: Option<Role>) {
        let room = self.pool.room();
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        let peer = job.peer;
        if job.state == TransferState::Queued {
            self.flow.step(&mut job.state, TransferEvent::Begin);
        }
        if role == Some(Role::Fence) {
            job.fenced = true;
            self.counters.fences += 1;
            return;
        }
        let all = match &mut job.kind {
            Kind::Lock { posted, .. } => {
                *posted = true;
                true
            }
            Kind::Data {
                local,
                remote,
                left,
                notification_posted,
                confirmed,
                ..
            } => match role {
                Some(Role::Confirm) => {
                    *confirmed = Confirmed::Asked;
                    false
                }
                None => {
                    *notification_posted = true;
                    false
                }
                Some(_) => {
                    let next = self.pool.next(local).zip(self.pool.next(remote));
                    let Some((Fragment { len: a, .. }, Fragment { len: b, .. })) = next else {
                        return;
                    };
                    let len = a.min(b).min(u64::from(self.limits.command));
                    self.pool.advance(local, len);
                    self.pool.advance(remote, len);
                    *left -= len;
                    let all = *left == 0;
                    self.charge(peer, room);
                    all
                }
            },
        };
        if !all {
            return;
        }
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        if job.post_by.take().is_some() {
            self.deadlines.set(at.index(), job.deadline);
        }
    }

    /// Returns a lock operation without effect. An answer contains only the lock number, so a
    /// number is not reused while its answer is outstanding. If all numbers are in use, the
    /// transfer must wait.
    fn no_op_lock(&mut self, peer: Index, at: LockTarget) -> Result<Lock, Attempt> {
        let peer = self.peers.get_mut(peer);
        let number = peer.and_then(|p| p.numbers.take(p.used));
        Ok(Lock {
            at,
            number: number.ok_or(Attempt::Moved(PeerList::Blocked))?,
            compare: i32::MIN,
            add: 0,
        })
    }

    fn oldest_late(&self, peer: Index) -> Conflict {
        let mut next = self.peers.get(peer).and_then(|p| p.flights.first());
        while let Some(at) = next {
            match self.flights.get(at) {
                Some(f) if f.late => {
                    return Conflict::Ask {
                        at: answering_unit(f.action),
                        class: f.class,
                    }
                }
                _ => next = self.flights.after::<FLIGHT>(at),
            }
        }
        Conflict::Wait
    }

    /// Returns the conflict that delays a command, if its notification could be confused with the
    /// notification of a command in flight. Lock operations differ in the lock number, and GETs and
    /// PUTs in their local addresses.
    fn conflict(&self, peer: Index, next: &Next) -> Conflict {
        let (action, start, len) = match *next {
            Next::Data(p) => (Action::of(p.direction), p.local, p.len),
            Next::Operation(lock) => (Action::Lock(lock.at), lock.number.into(), 1),
            Next::Notify { .. } | Next::Confirm | Next::Nothing => return Conflict::None,
        };
        let mut wait = false;
        let mut next = self.peers.get(peer).and_then(|p| p.flights.first());
        while let Some(at) = next {
            next = self.flights.after::<FLIGHT>(at);
            let Some(f) = self.flights.get(at) else {
                break;
            };
            let same = match (action, f.action) {
                (Action::Lock(_), Action::Lock(_)) => f.start == start,
                (Action::Get, Action::Get) | (Action::Put, Action::Put) => {
                    overlap((start, len.into()), (f.start, f.len.into()))
                }
                _ => false,
            };
            if !same {
                continue;
            }
            if f.late {
                return Conflict::Ask {
                    at: answering_unit(f.action),
                    class: f.class,
                };
            }
            wait = true;
        }
        if wait {
            Conflict::Wait
        } else {
            Conflict::None
        }
    }
}
