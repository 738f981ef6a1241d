// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Transfers of any length. A transfer is split into commands of at most 8 MiB, and has one
//! completion for all of them (HW §10.3, §10.4).

use wire::{
    ids::{NodeId, Vpid},
    rma::{
        last_fragment_len, last_fragment_start, Command, Direction, Fault, Notification,
        NotificationType, MAX_LEN,
    },
};

/// Maximum number of outstanding commands per transfer.
pub const WINDOW: usize = 4;

/// One command of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Byte offset in the transfer.
    pub offset: u64,
    /// Number of bytes, 1…[`MAX_LEN`].
    pub len: u32,
}

/// Effect of a notification on a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The notification belongs to another transfer.
    Foreign,
    /// A command has finished. Other commands are outstanding or not posted yet.
    Progress,
    /// All bytes are transferred, or all posted commands have finished after a failure.
    Ended,
}

/// Transfer of any length between local memory and a port of a peer.
#[derive(Clone, Debug)]
pub struct ChunkedTransfer {
    direction: Direction,
    node: NodeId,
    vpid: Vpid,
    /// Local address of byte 0, in the form that notifications report.
    local: u64,
    len: u64,
    posted: u64,
    done: u64,
    outstanding: [Option<Chunk>; WINDOW],
    fault: Option<Fault>,
    stopped: bool,
}

impl ChunkedTransfer {
    /// Returns a transfer of `len` bytes between local address `local` and a port of a peer.
    /// Returns `None` if `len` is 0 or the local range exceeds 64-bit addresses.
    pub const fn new(
        direction: Direction,
        node: NodeId,
        vpid: Vpid,
        local: u64,
        len: u64,
    ) -> Option<Self> {
        if len == 0 || local.checked_add(len).is_none() {
            return None;
        }
        Some(Self {
            direction,
            node,
            vpid,
            local,
            len,
            posted: 0,
            done: 0,
            outstanding: [None; WINDOW],
            fault: None,
            stopped: false,
        })
    }

    /// Returns the command to post next. Returns `None` if all commands are posted, the maximum
    /// number is outstanding, or an error occurred.
    pub fn next(&self) -> Option<Chunk> {
        if self.stopped || self.posted == self.len || self.outstanding.iter().all(Option::is_some) {
            return None;
        }
        let rest = self.len - self.posted;
        let len = if rest > MAX_LEN as u64 {
            MAX_LEN
        } else {
            rest as u32
        };
        Some(Chunk {
            offset: self.posted,
            len,
        })
    }

    /// Records that the command returned by [`ChunkedTransfer::next`] was posted.
    pub fn posted(&mut self) {
        let Some(chunk) = self.next() else { return };
        if let Some(slot) = self.outstanding.iter_mut().find(|c| c.is_none()) {
            *slot = Some(chunk);
            self.posted += chunk.len as u64;
        }
    }

    /// Undoes the last call of [`ChunkedTransfer::posted`], because the command could not be
    /// posted, for example because a queue was full. [`ChunkedTransfer::next`] then returns the
    /// command again.
    pub fn unpost(&mut self) {
        let last = self
            .outstanding
            .iter_mut()
            .max_by_key(|c| c.map(|c| c.offset));
        if let Some(chunk) = last.and_then(Option::take) {
            self.posted = chunk.offset;
        }
    }

    /// Stops the transfer, for example after a timeout. No further commands are posted.
    /// Notifications of outstanding commands may still arrive.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Processes a notification of the port. A notification without an error must match a command
    /// in peer, type and address of the last fragment (HW §10.4). A notification with an error may
    /// have any address within a command.
    pub fn on_notification(&mut self, n: &Notification) -> Verdict {
        let expected = match self.direction {
            Direction::Get => {
                n.kind == NotificationType::Completer
                    && matches!(
                        n.command,
                        Command::ByteGet
                            | Command::QwGet
                            | Command::ByteGetResponse
                            | Command::QwGetResponse
                    )
            }
            Direction::Put => {
                n.kind == NotificationType::Requester
                    && matches!(n.command, Command::BytePut | Command::QwPut)
            }
        };
        if !expected || n.node != self.node || n.vpid != self.vpid {
            return Verdict::Foreign;
        }
        let fault = Fault::of(n);
        let local = self.local;
        let ours = |chunk: &Chunk| {
            let start = local + chunk.offset;
            match fault {
                None => {
                    n.word0 == last_fragment_start(start, chunk.len)
                        && n.last_size() == last_fragment_len(chunk.len)
                }
                Some(_) => n.word0 >= start && n.word0 - start < chunk.len as u64,
            }
        };
        // Prefer the oldest of equal commands, because the commands of a port are processed in
        // order.
        let oldest = self
            .outstanding
            .iter_mut()
            .filter(|c| c.as_ref().is_some_and(ours))
            .min_by_key(|c| c.map_or(u64::MAX, |c| c.offset));
        let Some(slot) = oldest else {
            return Verdict::Foreign;
        };
        let len = slot.take().map_or(0, |c| c.len);
        match fault {
            None => self.done += len as u64,
            Some(fault) => {
                self.stopped = true;
                self.fault.get_or_insert(fault);
            }
        }
        if self.done == self.len || (self.stopped && !self.is_outstanding()) {
            Verdict::Ended
        } else {
            Verdict::Progress
        }
    }

    /// Returns true if commands are outstanding.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding.iter().any(Option::is_some)
    }

    /// Returns the direction of the data.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the number of bytes that are known to be transferred.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns true if all bytes are transferred.
    pub fn is_complete(&self) -> bool {
        self.done == self.len
    }

    /// Returns the first error.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }
}
