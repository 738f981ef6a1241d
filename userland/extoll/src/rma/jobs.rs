// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Assignment of notifications to the transfers and locks that calls of this port wait for.
//!
//! A notification contains unit, peer, command and local address (HW §10.4), but does not identify
//! its command. Therefore only one of several jobs with equal notifications is outstanding at a
//! time, and the other jobs wait. A job that timed out or failed stays in the list for [`ABSORB`],
//! to which its late notifications are assigned. The list has at most [`MOST`] entries.

use crate::error::{Error, Result};
use protocol::nic::chunks::{Chunk, ChunkedTransfer, Verdict};
use std::time::{Duration, Instant};
use wire::ids::{NodeId, Vpid};
use wire::rma::{Command, Direction, Notification, NotificationType};

/// Time for which a job absorbs late notifications. The kernel's transfer engine uses the same
/// time. No packet stays in the network for that time.
const ABSORB: Duration = Duration::from_secs(10);
/// Maximum number of jobs of a port, including jobs that only absorb late notifications.
const MOST: usize = 1024;

/// Operation that a call waits for.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// A transfer of any length, with its direction and range of local addresses.
    Move(ChunkedTransfer, Direction, std::ops::Range<u64>),
    /// A lock operation.
    Lock { number: u32, state: Outcome },
}

/// State of a lock operation. `Known` contains word 0 of the notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    New,
    Posted,
    Known(u64),
}

impl Work {
    /// Describes a transfer. Returns `None` for 0 bytes and for ranges that wrap around.
    pub fn transfer(
        direction: Direction,
        peer: (NodeId, Vpid),
        local: u64,
        len: u64,
    ) -> Option<Self> {
        let transfer = ChunkedTransfer::new(direction, peer.0, peer.1, local, len)?;
        Some(Work::Move(transfer, direction, local..local + len))
    }

    pub fn lock(number: u32) -> Self {
        Work::Lock {
            number,
            state: Outcome::New,
        }
    }

    /// Returns whether a notification could belong to both operations.
    fn resembles(&self, other: &Self) -> bool {
        match (self, other) {
            (Work::Move(_, d, r), Work::Move(_, e, s)) => {
                d == e && r.start < s.end && s.start < r.end
            }
            (Work::Lock { number, .. }, Work::Lock { number: other, .. }) => number == other,
            _ => false,
        }
    }

    fn is_outstanding(&self) -> bool {
        match self {
            Work::Move(transfer, ..) => transfer.is_outstanding(),
            Work::Lock { state, .. } => *state == Outcome::Posted,
        }
    }
}

struct Job {
    id: u64,
    peer: (NodeId, Vpid),
    work: Work,
    /// Units that reported the first error; 0 if no error occurred.
    error: u8,
    /// Time until which a job without a waiting call absorbs notifications. `None` while a call
    /// waits.
    late: Option<Instant>,
}

impl Job {
    /// If the notification belongs to this job, records it and returns true.
    fn take(&mut self, n: &Notification) -> bool {
        let taken = match &mut self.work {
            Work::Move(transfer, ..) => transfer.on_notification(n) != Verdict::Foreign,
            Work::Lock { number, state } => {
                let ours = *state == Outcome::Posted
                    && n.kind == NotificationType::Completer
                    && n.command == Command::LockResponse
                    && (n.node, n.vpid) == self.peer
                    && wire::rma::LockResult(n.word0).number() == *number;
                if ours {
                    *state = Outcome::Known(n.word0);
                }
                ours
            }
        };
        if taken && self.error == 0 {
            self.error = n.error;
        }
        taken
    }

    /// Returns the result if the job is complete. The result is word 0 of a lock's notification,
    /// and 0 for a transfer.
    fn result(&self) -> Option<Result<u64>> {
        if self.work.is_outstanding() {
            return None;
        }
        match (&self.work, self.error) {
            (_, bits) if bits != 0 => Some(Err(Error::Transfer(bits))),
            (Work::Move(transfer, ..), _) => transfer.is_complete().then_some(Ok(0)),
            (Work::Lock { state, .. }, _) => match state {
                Outcome::Known(word) => Some(Ok(*word)),
                _ => None,
            },
        }
    }
}

/// Jobs of a port in the order in which they were admitted.
#[derive(Default)]
pub(super) struct Jobs {
    all: Vec<Job>,
    last: u64,
}

impl Jobs {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a job and returns its number. Returns `None` if the list is full, or if the job's
    /// notifications could belong to another job.
    pub fn admit(&mut self, peer: (NodeId, Vpid), work: &Work) -> Option<u64> {
        let taken = |job: &Job| job.peer == peer && job.work.resembles(work);
        if self.all.len() >= MOST || self.all.iter().any(taken) {
            return None;
        }
        self.last += 1;
        self.all.push(Job {
            id: self.last,
            peer,
            work: work.clone(),
            error: 0,
            late: None,
        });
        Some(self.last)
    }

    fn get(&mut self, id: u64) -> Option<&mut Job> {
        self.all.iter_mut().find(|job| job.id == id)
    }

    /// Returns the next command to post, and records it as posted. It is recorded before the call
    /// posts it, because its notification may arrive before posting returns.
    pub fn begin(&mut self, id: u64) -> Option<Chunk> {
        match &mut self.get(id)?.work {
            Work::Move(transfer, ..) => {
                let next = transfer.next()?;
                transfer.posted();
                Some(next)
            }
            Work::Lock { state, .. } if *state == Outcome::New => {
                *state = Outcome::Posted;
                Some(Chunk { offset: 0, len: 0 })
            }
            Work::Lock { .. } => None,
        }
    }

    /// Returns whether the call needs a notification to continue. That is the case if the job has
    /// neither a result nor a command to post.
    pub fn is_waiting(&self, id: u64) -> bool {
        let Some(job) = self.all.iter().find(|job| job.id == id) else {
            return false;
        };
        job.result().is_none()
            && match &job.work {
                Work::Move(transfer, ..) => transfer.next().is_none(),
                Work::Lock { state, .. } => *state == Outcome::Posted,
            }
    }

    /// Reverts [`Jobs::begin`], because the command was not posted.
    pub fn retract(&mut self, id: u64) {
        match self.get(id).map(|job| &mut job.work) {
            Some(Work::Move(transfer, ..)) => transfer.unpost(),
            Some(Work::Lock { state, .. }) => *state = Outcome::New,
            None => {}
        }
    }

    /// Returns the result of a complete job and removes it.
    pub fn end(&mut self, id: u64) -> Option<Result<u64>> {
        let at = self.all.iter().position(|job| job.id == id)?;
        let result = self.all[at].result()?;
        self.all.remove(at);
        Some(result)
    }

    /// Ends the wait for a job. Returns the units that have reported an error. Notifications of
    /// posted commands may still arrive.
    pub fn give_up(&mut self, id: u64) -> u8 {
        let Some(at) = self.all.iter().position(|job| job.id == id) else {
            return 0;
        };
        let job = &mut self.all[at];
        let error = job.error;
        if let Work::Move(transfer, ..) = &mut job.work {
            transfer.stop();
        }
        if job.work.is_outstanding() {
            job.late = Some(Instant::now() + ABSORB);
        } else {
            self.all.remove(at);
        }
        error
    }

    /// Records a notification in the job that it belongs to. Returns false if it belongs to no job.
    pub fn take(&mut self, n: &Notification) -> bool {
        let Some(at) = self.all.iter_mut().position(|job| job.take(n)) else {
            return false;
        };
        let job = &self.all[at];
        if job.late.is_some() && !job.work.is_outstanding() {
            self.all.remove(at);
        }
        true
    }

    /// Removes jobs whose time for late notifications has expired. The queue must not contain
    /// notifications for jobs.
    pub fn expire(&mut self) {
        if self.all.iter().any(|job| job.late.is_some()) {
            let now = Instant::now();
            self.all.retain(|job| job.late.is_none_or(|end| end > now));
        }
    }

    /// Lets the time for late notifications expire at once.
    #[cfg(test)]
    fn age(&mut self) {
        for job in &mut self.all {
            job.late = job.late.map(|_| Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::rma::{Mode, MAX_LEN};

    const PEER: (NodeId, Vpid) = (NodeId(1), Vpid::from_low_bits(9));

    fn get(local: u64, len: u64) -> Work {
        Work::transfer(Direction::Get, PEER, local, len).unwrap()
    }

    fn note(command: Command, word0: u64, error: u8) -> Notification {
        Notification {
            word0,
            size_field: 7,
            vpid: PEER.1,
            node: PEER.0,
            kind: NotificationType::Completer,
            command,
            mode: Mode::default(),
            error,
        }
    }

    fn response(word0: u64) -> Notification {
        note(Command::ByteGetResponse, word0, 0)
    }

    #[test]
    fn what_would_look_the_same_waits() {
        let mut jobs = Jobs::default();
        let first = jobs.admit(PEER, &get(0x1000, 64)).unwrap();
        for same in [get(0x1000, 64), get(0x103F, 1), get(0xFFF, 2)] {
            assert_eq!(jobs.admit(PEER, &same), None);
        }
        let put = Work::transfer(Direction::Put, PEER, 0x1000, 64).unwrap();
        for other in [get(0x1040, 64), get(0xFF0, 16), put, Work::lock(3)] {
            jobs.admit(PEER, &other).unwrap();
        }
        jobs.admit((NodeId(2), PEER.1), &get(0x1000, 64)).unwrap();
        assert_eq!(jobs.admit(PEER, &Work::lock(3)), None);
        jobs.admit(PEER, &Work::lock(4)).unwrap();
        // The job absorbs no notification, because none of its commands was posted.
        assert_eq!(jobs.give_up(first), 0);
        jobs.admit(PEER, &get(0x1000, 64)).unwrap();
    }

    #[test]
    fn late_ones_are_absorbed_once_and_not_for_ever() {
        let mut jobs = Jobs::default();
        let id = jobs.admit(PEER, &get(0x1000, 8)).unwrap();
        assert!(!jobs.take(&response(0x1000)), "not posted yet");
        jobs.begin(id).unwrap();
        jobs.give_up(id);
        jobs.expire();
        assert_eq!(jobs.admit(PEER, &get(0x1000, 8)), None);
        assert!(jobs.take(&response(0x1000)) && jobs.is_empty());
        assert!(!jobs.take(&response(0x1000)));
        // The notification of this job never arrives.
        let id = jobs.admit(PEER, &Work::lock(5)).unwrap();
        jobs.begin(id).unwrap();
        jobs.give_up(id);
        assert_eq!(jobs.admit(PEER, &Work::lock(5)), None);
        jobs.age();
        jobs.expire();
        jobs.admit(PEER, &Work::lock(5)).unwrap();
    }

    #[test]
    fn the_list_has_an_end() {
        let mut jobs = Jobs::default();
        for n in 0..MOST as u32 {
            let id = jobs.admit(PEER, &Work::lock(n)).unwrap();
            jobs.begin(id).unwrap();
            jobs.give_up(id);
        }
        assert_eq!(jobs.admit(PEER, &get(0, 8)), None);
    }

    #[test]
    fn the_first_error_counts_and_the_rest_is_waited_for() {
        let mut jobs = Jobs::default();
        let long = get(0, 3 * u64::from(MAX_LEN));
        let id = jobs.admit(PEER, &long).unwrap();
        let chunks: Vec<Chunk> = (0..3)
            .map(|_| {
                assert!(!jobs.is_waiting(id), "there is something to post");
                jobs.begin(id).unwrap()
            })
            .collect();
        assert_eq!(jobs.begin(id), None);
        assert!(jobs.is_waiting(id));
        assert!(jobs.take(&note(Command::ByteGetResponse, chunks[1].offset + 5000, 2)));
        assert!(jobs.end(id).is_none());
        assert!(jobs.take(&note(Command::ByteGetResponse, chunks[2].offset, 4)));
        let last = |c: &Chunk| wire::rma::last_fragment_start(c.offset, c.len);
        let mut done = response(last(&chunks[0]));
        done.size_field = wire::rma::last_fragment_len(MAX_LEN) - 1;
        assert!(jobs.take(&done));
        assert!(!jobs.is_waiting(id), "there is a result");
        assert!(matches!(jobs.end(id), Some(Err(Error::Transfer(2)))));
        assert!(jobs.is_empty());
    }

    #[test]
    fn errors_of_others_are_foreign() {
        let mut jobs = Jobs::default();
        let id = jobs.admit(PEER, &get(0x1000, 64)).unwrap();
        jobs.begin(id).unwrap();
        let lock = jobs.admit(PEER, &Work::lock(2)).unwrap();
        jobs.begin(lock).unwrap();
        for foreign in [
            note(Command::BytePut, 0x1000, 4),
            note(Command::ByteGetResponse, 0x1040, 2),
            note(Command::ByteGetResponse, 0xFFF, 2),
            note(Command::LockResponse, 3, 2),
        ] {
            assert!(!jobs.take(&foreign), "{foreign:?}");
        }
        assert!(jobs.take(&note(Command::LockResponse, 2, 2)));
        assert!(matches!(jobs.end(lock), Some(Err(Error::Transfer(2)))));
        assert!(jobs.end(id).is_none());
    }
}
