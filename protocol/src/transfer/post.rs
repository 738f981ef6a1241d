// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Selection and posting of commands.

use super::{
    describe::{self, Piece},
    fragments::Fragment,
    tables::{Action, Confirmed, Flight, Job, Kind, Place, Role, FLIGHT},
    Lock, Port, Posted, State, Step, Tell, Transfers,
};
use crate::{base::arena::Index, Memory, Time, TransportError};
use wire::rma::{Descriptor, Direction, LockTarget, PageOptions};

/// Next command of a transfer.
#[derive(Clone, Copy)]
enum Next {
    /// No command, or none before an answer arrives.
    Nothing,
    Part(Piece),
    /// Notification PUT behind the data.
    Tell {
        class: u8,
        value: u64,
    },
    Operation(Lock),
    Confirm,
}

/// Condition that delays a command.
enum Obstacle {
    None,
    /// Its notification could be confused with that of a command in flight.
    Wait,
    /// Its notification could be confused with that of a late command. A fence at this unit, in
    /// this class, resolves that.
    Ask {
        at: LockTarget,
        class: u8,
    },
}

/// Result of a peer's turn.
enum Turn {
    /// A command was posted, or a transfer ended because of the port or its time.
    Used,
    /// The peer can post no command now.
    Idle,
    /// No peer can post a command now.
    Stop,
}

/// Command and its role; a command without notification has none.
struct Command {
    role: Option<Role>,
    page: PageOptions,
    descriptor: Descriptor,
}

/// Result of an attempt to post a transfer's next command.
enum Tried {
    Posted,
    /// The transfer must wait on this list.
    Moved(Place),
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

/// Returns the unit of the peer that answers a command, or that answers behind it.
fn debtor(action: Action) -> LockTarget {
    match action {
        Action::Get => LockTarget::Responder,
        // The local requester notifies of PUTs, in order with all commands.
        Action::Put => LockTarget::Completer,
        Action::Lock(at) => at,
    }
}

impl<M: Memory, T: Clone> Transfers<M, T> {
    /// Posts up to `most` commands. The driver calls it after new transfers, notifications and
    /// time-outs, and when the port has room again.
    pub fn post(&mut self, port: &mut impl Port, now: Time, most: usize) -> Posted {
        let mut posted = Posted::default();
        let mut turns = 0;
        while turns < most {
            let Some(peer) = self.turns.first() else {
                return posted;
            };
            let before = self.counters.commands;
            match self.turn_of(peer, port, now) {
                Turn::Used => {
                    turns += 1;
                    // Moves the peer to the end of the list.
                    self.leave_turn(peer);
                    self.take_turn(peer);
                }
                Turn::Idle => self.leave_turn(peer),
                Turn::Stop => return posted,
            }
            posted.commands += (self.counters.commands - before) as usize;
        }
        posted.more = !self.turns.is_empty();
        posted
    }

    fn turn_of(&mut self, peer: Index, port: &mut impl Port, now: Time) -> Turn {
        loop {
            let ready = self
                .peers
                .get(peer)
                .and_then(|p| p.lists[Place::Ready as usize].first());
            let Some(job) = ready else {
                return Turn::Idle;
            };
            if self.is_too_late(job, now) {
                self.give_up(job, super::Failure::TimedOut, now);
                return Turn::Used;
            }
            match self.attempt(peer, job, port) {
                Tried::Posted => {
                    if self.is_finished(job) {
                        self.finish(job);
                    } else {
                        // Moves the transfer behind the other ones of the peer.
                        self.move_to(job, Some(Place::Ready));
                    }
                    return Turn::Used;
                }
                Tried::Moved(place) => self.move_to(job, Some(place)),
                Tried::Window => return Turn::Idle,
                Tried::Stop => return Turn::Stop,
                Tried::Dead => {
                    self.give_up(job, super::Failure::Down, now);
                    return Turn::Used;
                }
            }
        }
    }

    fn next(&self, job: &Job<T>) -> Next {
        if job.fenced || !matches!(job.state, State::Queued | State::Moving) {
            return Next::Nothing;
        }
        match &job.kind {
            Kind::Lock { posted: true, .. } => Next::Nothing,
            Kind::Lock { lock, .. } => Next::Operation(*lock),
            Kind::Move {
                what,
                left: 0,
                told,
                confirmed,
                ..
            } => match what.tell {
                Tell::Value { class, value } if !told => match job.flights {
                    0 => Next::Tell { class, value },
                    _ => Next::Nothing,
                },
                _ if what.confirm
                    && what.direction == Direction::Put
                    && *confirmed == Confirmed::Unasked =>
                {
                    Next::Confirm
                }
                _ => Next::Nothing,
            },
            Kind::Move {
                what,
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
                if what.tell == Tell::Last && last && job.flights > 0 {
                    return Next::Nothing;
                }
                Next::Part(Piece {
                    direction: what.direction,
                    local: local.address,
                    remote: remote.address,
                    len,
                    tell: what.tell == Tell::Each || what.tell == Tell::Last && last,
                })
            }
        }
    }

    /// Returns whether the transfer has a command to post, regardless of others.
    pub(super) fn has_next(&self, job: Index) -> bool {
        let job = self.jobs.get(job);
        job.is_some_and(|job| !matches!(self.next(job), Next::Nothing))
    }

    /// Returns whether all commands of a transfer were posted and answered.
    pub(super) fn is_finished(&self, job: Index) -> bool {
        let Some(job) = self.jobs.get(job) else {
            return false;
        };
        job.state == State::Moving
            && job.flights == 0
            && match &job.kind {
                Kind::Lock { posted, .. } => *posted,
                Kind::Move { .. } => matches!(self.next(job), Next::Nothing) && !job.fenced,
            }
    }

    /// Returns whether [`Terms::post_by`](super::Terms::post_by) of a transfer has expired.
    fn is_too_late(&self, job: Index, now: Time) -> bool {
        let job = self.jobs.get(job);
        job.is_some_and(|job| job.post_by.is_some_and(|at| at <= now))
    }

    /// Tries to post the next command of a transfer.
    fn attempt(&mut self, peer: Index, at: Index, port: &mut impl Port) -> Tried {
        let command = match self.prepare(peer, at) {
            Ok(command) => command,
            Err(tried) => return tried,
        };
        match port.post(command.page, &command.descriptor) {
            Ok(()) => {}
            Err(TransportError::Later) => return Tried::Stop,
            Err(TransportError::Never) => return Tried::Dead,
        }
        self.order += 1;
        self.counters.commands += 1;
        self.note(at, command.role);
        if let Some(role) = command.role {
            let (action, start, len) = describe::subject(&command.descriptor.op);
            self.take_off(Flight {
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
        Tried::Posted
    }

    /// Returns the next command of a transfer, or a fence that it needs first. The error is the
    /// reason why there is none.
    fn prepare(&mut self, peer: Index, at: Index) -> Result<Command, Tried> {
        let (Some(job), Some(p)) = (self.jobs.get(at), self.peers.get(peer)) else {
            return Err(Tried::Moved(Place::Waiting));
        };
        let to = (p.node, p.vpid);
        let (class, translate) = (job.class, job.translate);
        let next = self.next(job);
        let bytes = match next {
            Next::Nothing => return Err(Tried::Moved(Place::Waiting)),
            Next::Part(piece) => u64::from(piece.len),
            _ => 0,
        };
        if self.flights.room() == 0 {
            return Err(Tried::Stop);
        }
        let full = p.flights.len() >= self.limits.window
            || p.bytes != 0 && p.bytes + bytes > self.limits.window_bytes;
        let fenced = p.fences > 0;
        let obstacle = match full {
            // A fence may show that late commands are finished.
            true if p.late > 0 && !fenced => self.oldest_late(peer),
            true => return Err(Tried::Window),
            false => self.obstacle(peer, &next),
        };
        match obstacle {
            Obstacle::None => {}
            Obstacle::Wait => return Err(Tried::Moved(Place::Blocked)),
            // One fence at a time, because its answer may also resolve this condition.
            Obstacle::Ask { .. } if fenced => return Err(Tried::Moved(Place::Blocked)),
            Obstacle::Ask { at, class } => {
                let lock = self.nothing(peer, at)?;
                return Ok(Command {
                    role: Some(Role::Fence),
                    page: describe::page(class, false),
                    descriptor: describe::lock(to, &lock),
                });
            }
        }
        let (role, descriptor) = match next {
            Next::Part(piece) => (Some(Role::Part), describe::piece(to, &piece)),
            Next::Tell { class, value } => (None, describe::value(to, class, value)),
            Next::Operation(lock) => (Some(Role::Operation), describe::lock(to, &lock)),
            Next::Confirm | Next::Nothing => {
                let lock = self.nothing(peer, LockTarget::Completer)?;
                (Some(Role::Confirm), describe::lock(to, &lock))
            }
        };
        let translate = translate && matches!(next, Next::Part(_));
        Ok(Command {
            role,
            page: describe::page(class, translate),
            descriptor,
        })
    }

    /// Records a posted command of a transfer.
    fn note(&mut self, at: Index, role: Option<Role>) {
        let room = self.pool.room();
        let Some(job) = self.jobs.get_mut(at) else {
            return;
        };
        let peer = job.peer;
        if job.state == State::Queued {
            self.flow.step(&mut job.state, Step::Begin);
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
            Kind::Move {
                local,
                remote,
                left,
                told,
                confirmed,
                ..
            } => match role {
                Some(Role::Confirm) => {
                    *confirmed = Confirmed::Asked;
                    false
                }
                None => {
                    *told = true;
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

    /// Returns a lock operation without effect. An answer contains only its number, so a number is
    /// not reused while its answer is outstanding. If all numbers are in use, the transfer waits.
    fn nothing(&mut self, peer: Index, at: LockTarget) -> Result<Lock, Tried> {
        let peer = self.peers.get_mut(peer);
        let number = peer.and_then(|p| p.numbers.take(p.used));
        Ok(Lock {
            at,
            number: number.ok_or(Tried::Moved(Place::Blocked))?,
            compare: i32::MIN,
            add: 0,
        })
    }

    fn oldest_late(&self, peer: Index) -> Obstacle {
        let mut next = self.peers.get(peer).and_then(|p| p.flights.first());
        while let Some(at) = next {
            match self.flights.get(at) {
                Some(f) if f.late => {
                    return Obstacle::Ask {
                        at: debtor(f.action),
                        class: f.class,
                    }
                }
                _ => next = self.flights.after::<FLIGHT>(at),
            }
        }
        Obstacle::Wait
    }

    /// Returns the condition that delays a command: commands in flight with confusable
    /// notifications. Locks differ in their number, GETs and PUTs in their local addresses.
    fn obstacle(&self, peer: Index, next: &Next) -> Obstacle {
        let (action, start, len) = match *next {
            Next::Part(p) => (Action::of(p.direction), p.local, p.len),
            Next::Operation(lock) => (Action::Lock(lock.at), lock.number.into(), 1),
            Next::Tell { .. } | Next::Confirm | Next::Nothing => return Obstacle::None,
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
                return Obstacle::Ask {
                    at: debtor(f.action),
                    class: f.class,
                };
            }
            wait = true;
        }
        match wait {
            true => Obstacle::Wait,
            false => Obstacle::None,
        }
    }
}
