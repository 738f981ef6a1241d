// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Calls that post commands and wait for their completion.

use super::jobs::Work;
use super::{
    LockResult, LockTarget, Modifiers, Nla, NotifySpec, Operation, Peer, Port, Region, MAX_LEN,
};
use crate::error::{check_range, Error, Result};
use crate::pages::Posted;
use crate::wait::{GUARD, SLICE};
use crate::Wait;
use protocol::nic::chunks::Chunk;
use std::cell::Cell;
use wire::rma::{DescriptorError, Direction};

/// Entry of a call in the list of jobs. If the ticket is dropped before the job is complete, the
/// job is given up.
struct Ticket<'a> {
    port: &'a Port,
    id: Cell<Option<u64>>,
    /// Last posted command.
    posted: Cell<Option<Posted>>,
    /// Number of skipped queue slots when the first command was posted.
    skipped: Cell<u64>,
}

impl Ticket<'_> {
    /// Ends the wait for the job. Returns the units that have reported an error.
    fn give_up(&self) -> u8 {
        self.id
            .take()
            .map_or(0, |id| self.port.queue().jobs.give_up(id))
    }

    /// Fails if another call has detected that the awaited notification is lost or may be lost.
    fn check(&self) -> Result<()> {
        let Some(posted) = self.posted.get() else {
            return Ok(());
        };
        self.port.sender().check_posted(posted)?;
        match self.port.queue().skipped() - self.skipped.get() {
            0 => Ok(()),
            lost => Err(Error::Skipped(u32::try_from(lost).unwrap_or(u32::MAX))),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Calls that wait for completion. A call that timed out or failed may leave commands outstanding.
/// The port absorbs their late notifications for ten seconds. During this time, calls with equal
/// notifications post nothing and wait. Notifications are equal if they have the same peer and
/// overlapping local memory, or the same lock. Concurrent calls with equal notifications also wait
/// for each other.
///
/// A GET that timed out may still write to the region. The program must not post other commands
/// with notifications on the same memory at the same time, because their notifications could be
/// assigned to these calls.
impl Port {
    /// Writes `len` bytes of a region to `remote` and waits until the data was read from the
    /// region. The region may then be changed. The data may arrive at the peer later.
    pub fn put_wait(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        wait: Wait,
    ) -> Result<()> {
        let notify = NotifySpec {
            requester: true,
            ..NotifySpec::NONE
        };
        self.move_wait(peer, region, (offset, len), remote, notify, wait)
    }

    /// Reads `len` bytes at `remote` and waits until the data is in the region.
    pub fn get_wait(
        &self,
        peer: &Peer,
        region: &Region,
        offset: u64,
        len: u64,
        remote: Nla,
        wait: Wait,
    ) -> Result<()> {
        let notify = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        self.move_wait(peer, region, (offset, len), remote, notify, wait)
    }

    /// Posts the commands of a transfer, at most four at a time, each with a notification. Returns
    /// the first error.
    fn move_wait(
        &self,
        peer: &Peer,
        region: &Region,
        (offset, len): (u64, u64),
        remote: Nla,
        notify: NotifySpec,
        wait: Wait,
    ) -> Result<()> {
        check_range(offset, len, region.len())?;
        let local = region.nla_at(offset)?.0;
        let direction = match notify.requester {
            true => Direction::Put,
            false => Direction::Get,
        };
        let work = Work::transfer(direction, (peer.node, peer.vpid), local, len)
            .ok_or(Error::Descriptor(DescriptorError::Count(0)))?;
        let words = |chunk: Chunk| {
            let (local, remote) = (
                local.wrapping_add(chunk.offset),
                remote.0.wrapping_add(chunk.offset),
            );
            let op = match direction {
                Direction::Put => put_of(chunk.len, local, remote),
                Direction::Get => get_of(chunk.len, local, remote),
            };
            self.encode(peer, notify, Modifiers::NONE, op)
        };
        self.finish(peer, work, words, wait).map(drop)
    }

    /// Performs a fetch-compare-and-add at the peer: adds `add` to the lock if the lock is less
    /// than or equal to `compare`. Waits for the result.
    pub fn lock_wait(
        &self,
        peer: &Peer,
        at: LockTarget,
        number: u32,
        compare: i32,
        add: i32,
        wait: Wait,
    ) -> Result<LockResult> {
        let notify = NotifySpec {
            completer: true,
            ..NotifySpec::NONE
        };
        let op = Operation::Lock {
            at,
            number,
            compare,
            add,
        };
        let words = self.encode(peer, notify, Modifiers::NONE, op)?;
        self.finish(peer, Work::lock(number), |_| Ok(words), wait)
            .map(LockResult)
    }

    fn finish(
        &self,
        peer: &Peer,
        work: Work,
        words: impl Fn(Chunk) -> Result<[u64; 3]>,
        wait: Wait,
    ) -> Result<u64> {
        self.check_page(peer.options)?;
        let ticket = Ticket {
            port: self,
            id: Cell::new(None),
            posted: Cell::new(None),
            skipped: Cell::new(0),
        };
        // The call posts the commands itself and therefore knows whether their notifications raise
        // interrupts.
        let sleep = match peer.options.irq {
            true => GUARD,
            false => SLICE,
        };
        let result = self.look_until(
            wait,
            sleep,
            || self.step(peer, &work, &words, &ticket),
            || ticket.check(),
            // Another call may assign this call's notifications to its job. The call may also have
            // to wait for a credit, or for a job with equal notifications.
            |jobs| ticket.id.get().is_some_and(|id| jobs.is_waiting(id)),
        );
        match (result, ticket.give_up()) {
            (Err(Error::Timeout), bits) if bits != 0 => Err(Error::Transfer(bits)),
            (result, _) => result,
        }
    }

    /// Checks for the result, and posts commands while credits are available.
    fn step(
        &self,
        peer: &Peer,
        work: &Work,
        words: &impl Fn(Chunk) -> Result<[u64; 3]>,
        ticket: &Ticket<'_>,
    ) -> Result<Option<u64>> {
        loop {
            let (id, chunk) = {
                let mut queue = self.queue();
                queue.dispatch()?;
                if ticket.posted.get().is_none() {
                    ticket.skipped.set(queue.skipped());
                }
                let jobs = &mut queue.jobs;
                let admitted = ticket
                    .id
                    .get()
                    .or_else(|| jobs.admit((peer.node, peer.vpid), work));
                let Some(id) = admitted else {
                    return Ok(None);
                };
                ticket.id.set(Some(id));
                if let Some(result) = jobs.end(id) {
                    ticket.id.set(None);
                    return result.map(Some);
                }
                match jobs.begin(id) {
                    Some(chunk) => (id, chunk),
                    None => return Ok(None),
                }
            };
            let (page, before) = (peer.options.index(), ticket.posted.get());
            let posted =
                words(chunk).and_then(|words| self.sender().post_behind(page, &words, before));
            if posted.is_err() {
                self.queue().jobs.retract(id);
            }
            match posted {
                Ok(posted) => ticket.posted.set(Some(posted)),
                Err(Error::Full) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}

pub(super) fn put_of(len: u32, local: u64, remote: u64) -> Operation {
    Operation::Put {
        qw: false,
        len,
        local,
        remote,
    }
}

pub(super) fn get_of(len: u32, local: u64, remote: u64) -> Operation {
    Operation::Get {
        qw: false,
        len,
        remote,
        local,
    }
}

/// Returns the number of commands that [`Port::put`] and [`Port::get`] post for `len` bytes. Each
/// command has its own notifications.
pub fn commands(len: u64) -> u64 {
    len.div_ceil(u64::from(MAX_LEN)).max(1)
}
