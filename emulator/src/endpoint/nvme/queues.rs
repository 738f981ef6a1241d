//! Submission and completion queues.

use super::command::{Completion, COMMAND, COMPLETION};
use super::posts::Posts;
use std::collections::VecDeque;

/// Maximum number of entries of a queue.
pub(super) const MOST: u32 = 256;
/// Maximum number of commands that one read fetches.
const BATCH: u32 = 8;

/// A submission queue in the host's memory.
#[derive(Debug)]
pub(super) struct Submission {
    base: u64,
    size: u32,
    head: u32,
    tail: u32,
    /// Number of the completion queue for commands of this queue.
    pub to: u16,
    /// Number of commands that are being fetched.
    pub fetching: u32,
}

impl Submission {
    pub fn new(base: u64, size: u32, to: u16) -> Self {
        Self {
            base,
            size,
            head: 0,
            tail: 0,
            to,
            fetching: 0,
        }
    }

    pub fn head(&self) -> u16 {
        self.head as u16
    }

    /// Processes a doorbell write. Values beyond the queue are ignored.
    pub fn ring(&mut self, tail: u32) {
        if tail < self.size {
            self.tail = tail;
        }
    }

    /// Begins to fetch up to `most` commands. Returns the address and the length in bytes of their
    /// entries.
    pub fn fetch(&mut self, most: u32) -> Option<(u64, u32)> {
        let end = if self.tail >= self.head {
            self.tail
        } else {
            self.size
        };
        let n = (end - self.head).min(most).min(BATCH);
        if self.fetching > 0 || n == 0 {
            return None;
        }
        self.fetching = n;
        let at = self.base.wrapping_add(u64::from(self.head * COMMAND));
        Some((at, n * COMMAND))
    }

    /// Advances the head after the commands have been fetched.
    pub fn fetched(&mut self) {
        self.head = (self.head + self.fetching) % self.size;
        self.fetching = 0;
    }
}

/// A completion queue in the host's memory.
#[derive(Debug)]
pub(super) struct Completions {
    base: u64,
    size: u32,
    head: u32,
    tail: u32,
    phase: bool,
    vector: Option<u8>,
    waiting: VecDeque<Completion>,
}

impl Completions {
    pub fn new(base: u64, size: u32, vector: Option<u8>) -> Self {
        Self {
            base,
            size,
            head: 0,
            tail: 0,
            phase: true,
            vector,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the number of entries that the host has not consumed.
    fn used(&self) -> u32 {
        (self.tail + self.size - self.head) % self.size
    }

    /// Processes a doorbell write. Values beyond the queue or beyond the written entries are
    /// ignored.
    pub fn ring(&mut self, head: u32) {
        if head < self.size && (head + self.size - self.head) % self.size <= self.used() {
            self.head = head;
        }
    }

    /// Returns true while completions wait for a free entry.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn push(&mut self, completion: Completion) {
        self.waiting.push_back(completion);
    }

    /// Writes pending completions while entries are free.
    pub fn post(&mut self, posts: &mut Posts) {
        while self.used() + 1 < self.size {
            let Some(completion) = self.waiting.pop_front() else {
                return;
            };
            let at = self.base.wrapping_add(u64::from(self.tail * COMPLETION));
            posts.write(at, completion.bytes(self.phase).to_vec());
            self.tail += 1;
            if self.tail == self.size {
                self.tail = 0;
                self.phase = !self.phase;
            }
            if let Some(vector) = self.vector {
                posts.interrupt(vector);
            }
        }
    }
}
