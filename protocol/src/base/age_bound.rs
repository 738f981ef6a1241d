// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Age bound of messages that are read in the order in which they were sent.

use crate::Time;

/// Lower bound for the time at which unread messages were sent, or other items that are processed
/// in order were queued.
///
/// Messages contain no timestamp. The reader therefore records the number of unread messages at
/// some time. After it has read this number of messages, all remaining messages were sent later
/// than that time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct AgeBound {
    /// All messages sent before this time have been read.
    since: Time,
    /// A time, and the number of messages after which all messages sent before this time have been
    /// read.
    mark: Option<(Time, usize)>,
    /// Time of the last call of [`AgeBound::count`].
    pub(crate) counted: Time,
}

impl AgeBound {
    /// Returns a time before which no unread message was sent.
    #[must_use]
    pub const fn since(&self) -> Time {
        self.since
    }

    /// Reports that there were no unread messages at time `at`.
    pub fn emptied(&mut self, at: Time) {
        self.since = self.since.max(at);
        self.mark = None;
    }

    /// Returns true while a mark is pending. The caller need not call [`AgeBound::mark`] then.
    #[must_use]
    pub const fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    /// Reports that there were up to `backlog` unread messages at time `at`.
    pub fn mark(&mut self, at: Time, backlog: usize) {
        self.mark = Some((at, backlog));
        self.read(0);
    }

    /// Reports that there were `backlog` unread messages at time `at`, according to the writer's
    /// counter. The caller must use this counter, because an empty mailbox does not prove that no
    /// message was sent. If a write of the NIC is lost, the reader does not find the messages after
    /// it.
    pub fn count(&mut self, at: Time, backlog: usize) {
        self.counted = at;
        match self.mark {
            _ if backlog == 0 => self.emptied(at),
            Some((at, left)) => self.mark = Some((at, left.min(backlog))),
            None => self.mark(at, backlog),
        }
    }

    /// Reports that `messages` messages were read.
    pub fn read(&mut self, messages: usize) {
        self.mark = match self.mark {
            Some((at, left)) if left <= messages => {
                self.since = self.since.max(at);
                None
            }
            Some((at, left)) => Some((at, left - messages)),
            None => None,
        };
    }
}
