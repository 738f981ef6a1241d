// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Age of messages that are read in the order in which they were sent.

use crate::Time;

/// What is known of the age of messages, or of anything else that is worked off in order: when
/// those that are read next were sent at the earliest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// All that was sent before this has been read.
    since: Time,
    /// All that was sent before this will have been read, after so many further messages.
    mark: Option<(Time, usize)>,
    /// When the backlog was counted last.
    pub(crate) counted: Time,
}

impl Horizon {
    /// Messages that are read now were sent after this.
    #[must_use]
    pub const fn since(&self) -> Time {
        self.since
    }

    /// There were no further messages at this time, or later.
    pub fn emptied(&mut self, at: Time) {
        self.since = self.since.max(at);
        self.mark = None;
    }

    /// Whether messages have to be counted to know more.
    #[must_use]
    pub const fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    /// At this time, or later, no more than so many messages were to be read.
    pub fn mark(&mut self, at: Time, backlog: usize) {
        self.mark = Some((at, backlog));
        self.took(0);
    }

    /// At this time, or later, `backlog` messages were unread by the writer's count. Finding none
    /// to read proves nothing: one whose write got lost hides those behind it.
    pub fn count(&mut self, at: Time, backlog: usize) {
        self.counted = at;
        match self.mark {
            _ if backlog == 0 => self.emptied(at),
            Some((at, left)) => self.mark = Some((at, left.min(backlog))),
            None => self.mark(at, backlog),
        }
    }

    /// So many messages were read.
    pub fn took(&mut self, messages: usize) {
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
