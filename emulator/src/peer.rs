//! Accesses of a NIC to other devices on its host's bus ("peer to peer"): stores and loads.
//!
//! The model does not know the addresses of devices. An access outside memory becomes a DMA message
//! to the client. The client answers for the device, or answers with an error if no device has the
//! address. Stores are posted: their answer only reports success or failure. Only a load waits for
//! its answer.
//!
//! *Order.* The client executes messages in order of arrival. A guest that sees a flag in memory
//! must find the data that was stored to the device earlier, because PCIe keeps the order of posted
//! writes. A write of the NIC to memory, or an interrupt, therefore waits here until the earlier
//! stores to devices are answered. Loads delay no writes, because in PCIe posted requests may pass
//! other requests.

use std::collections::{BTreeMap, VecDeque};

/// Maximum length in bytes of the access in one message.
pub const LONGEST: usize = 64 << 10;
/// Maximum number of messages that wait for the client's answers.
const WINDOW: usize = 256;
/// Maximum number of bytes in these messages.
const WINDOW_BYTES: usize = 1 << 20;
/// Maximum number of bytes in the queue. Only errors of this host reach it, because other nodes are
/// stopped earlier (`nic/held.rs`).
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Number of bytes that an entry of the queue counts in addition to its data.
const COST: usize = 128;
/// Time in ns after which the emulator stops waiting for a client that sends no answers. It exceeds
/// every timeout of a guest.
pub const TIMEOUT_NS: u64 = 10_000_000_000;

/// A DMA message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Number of the message.
    pub id: u16,
    /// Bus address of the access.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// Data to store; `None` for a load.
    pub data: Option<Vec<u8>>,
}

/// An answer of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Number of the message that is answered.
    pub id: u16,
    /// True if the answer claims to answer a store.
    pub store: bool,
    /// Address and length that the answer repeats; `None` if it repeats none.
    pub about: Option<(u64, u64)>,
    /// Data of a load (empty for a store), or an error number.
    pub result: Result<Vec<u8>, u32>,
}

/// Meaning of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// A store succeeded.
    Stored,
    /// A load succeeded. Contains the number and the data of the load.
    Loaded(u64, Vec<u8>),
    /// No device has the address.
    NoDevice {
        /// Number of the load; `None` for a store.
        load: Option<u64>,
        /// Bus address of the access.
        addr: u64,
        /// Length in bytes.
        len: usize,
        /// Error number that the client sent.
        error: u32,
    },
    /// The answer does not match its message. Contains the number of the affected load, if any.
    Garbage(Option<u64>),
    /// The emulator has already stopped waiting for the answer.
    Late,
}

/// Action that must wait until stores to devices have ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// A write to memory.
    Write(u64, Vec<u8>),
    /// An interrupt.
    Interrupt(u16),
}

enum Entry {
    Store { addr: u64, data: Vec<u8> },
    Load { addr: u64, len: usize, number: u64 },
    Behind(Due),
}

impl Entry {
    fn cost(&self) -> usize {
        COST + match self {
            Entry::Store { data, .. } | Entry::Behind(Due::Write(_, data)) => data.len(),
            _ => 0,
        }
    }
}

struct Sent {
    addr: u64,
    len: usize,
    /// Number of the load; `None` for a store.
    load: Option<u64>,
    at_ns: u64,
    given_up: bool,
}

/// Accesses that were lost, because the client disconnected or did not answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Number of lost stores, which were unsent or unanswered.
    pub stores: u64,
    /// Numbers of the loads that will not be answered.
    pub loads: Vec<u64>,
}

impl Lost {
    /// Returns the number of lost accesses.
    pub fn count(&self) -> u64 {
        self.stores + self.loads.len() as u64
    }
}

/// Accesses of a NIC to other devices.
#[derive(Default)]
pub struct Peers {
    /// True while a client is connected that accepts DMA messages.
    open: bool,
    /// True while the client has not answered for too long. All accesses fail until the client
    /// answers.
    mute: bool,
    queue: VecDeque<Entry>,
    bytes: usize,
    /// Time in ns at which an entry last left the queue or entered an empty queue.
    since_ns: u64,
    sent: BTreeMap<u16, Sent>,
    sent_bytes: usize,
    /// Number of stores that are sent, but not answered.
    stores: usize,
    last_id: u16,
    last_load: u64,
    /// Total number of accepted stores.
    made: u64,
    /// Number of accepted stores that have ended.
    done: u64,
    /// Numbers of the loads accepted since the last call of [`Peers::take_new`].
    new: Vec<u64>,
}

impl Peers {
    /// Starts to accept accesses, because the client understands DMA messages.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Stops accepting accesses because the client has disconnected. Returns all pending accesses
    /// and actions. The numbering of messages continues.
    pub fn close(&mut self) -> (Lost, Vec<Due>) {
        let (lost, due) = self.give_up();
        let numbers = (self.last_id, self.last_load, self.made, self.done);
        *self = Self::default();
        (self.last_id, self.last_load, self.made, self.done) = numbers;
        (lost, due)
    }

    /// Returns true if an access of `len` bytes would be accepted now.
    pub fn accepts(&self, len: usize) -> bool {
        let cost = len.saturating_add(COST);
        self.open && !self.mute && len > 0 && self.bytes.saturating_add(cost) <= MAX_QUEUED_BYTES
    }

    /// Returns true while accesses fail because the client does not answer.
    pub fn is_mute(&self) -> bool {
        self.mute
    }

    /// Returns true while a client is connected that accepts DMA messages.
    pub fn is_open(&self) -> bool {
        self.open
    }

    fn push(&mut self, now_ns: u64, entry: Entry) {
        if self.queue.is_empty() {
            self.since_ns = now_ns;
        }
        self.bytes += entry.cost();
        self.queue.push_back(entry);
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front()?;
        self.bytes -= entry.cost();
        Some(entry)
    }

    /// Queues a store. Returns `false` if the store is not accepted.
    pub fn store(&mut self, now_ns: u64, addr: u64, data: &[u8]) -> bool {
        if !self.accepts(data.len()) {
            return false;
        }
        for (i, part) in data.chunks(LONGEST).enumerate() {
            self.made += 1;
            let addr = addr.wrapping_add((i * LONGEST) as u64);
            let data = part.to_vec();
            self.push(now_ns, Entry::Store { addr, data });
        }
        true
    }

    /// Queues a load. Returns the number of the load, or `None` if the load is not accepted.
    pub fn load(&mut self, now_ns: u64, addr: u64, len: usize) -> Option<u64> {
        if len > LONGEST || !self.accepts(len) {
            return None;
        }
        self.last_load += 1;
        let number = self.last_load;
        self.push(now_ns, Entry::Load { addr, len, number });
        self.new.push(number);
        Some(number)
    }

    /// Returns the numbers of the loads accepted since the last call.
    pub fn take_new(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.new)
    }

    /// Cancels a load that has not been sent. Returns `false` if the load has been sent.
    pub fn cancel(&mut self, load: u64) -> bool {
        let at = |e: &Entry| matches!(e, Entry::Load { number, .. } if *number == load);
        let Some(entry) = self.queue.iter().position(at) else {
            return false;
        };
        if let Some(entry) = self.queue.remove(entry) {
            self.bytes -= entry.cost();
        }
        true
    }

    /// Returns true if a write to memory must wait for stores to devices.
    pub fn holds(&self) -> bool {
        self.stores > 0 || !self.queue.is_empty()
    }

    /// Queues a write to memory, or an interrupt, behind the pending entries. Returns `due` if the
    /// queue is full. The caller must then perform `due` at once, out of order.
    pub fn behind(&mut self, now_ns: u64, due: Due) -> Option<Due> {
        let more = match &due {
            Due::Write(_, data) => data.len(),
            Due::Interrupt(_) => 0,
        };
        if self.bytes + more + COST > MAX_QUEUED_BYTES {
            return Some(due);
        }
        self.push(now_ns, Entry::Behind(due));
        None
    }

    /// Pops the next write to memory or interrupt that may be performed now.
    pub fn due(&mut self) -> Option<Due> {
        if self.stores > 0 || !matches!(self.queue.front(), Some(Entry::Behind(_))) {
            return None;
        }
        match self.pop() {
            Some(Entry::Behind(due)) => Some(due),
            _ => None,
        }
    }

    /// Removes all pending writes to memory from the queue and returns them in order, even if they
    /// wait for other entries. Interrupts stay queued.
    pub fn push_out(&mut self) -> Vec<Due> {
        let (mut out, mut left) = (Vec::new(), VecDeque::new());
        while let Some(entry) = self.pop() {
            match entry {
                Entry::Behind(due @ Due::Write(..)) => out.push(due),
                entry => left.push_back(entry),
            }
        }
        self.bytes = left.iter().map(Entry::cost).sum();
        self.queue = left;
        out
    }

    /// Replaces bytes of `buf` for which newer writes are pending. `buf` was read from memory at
    /// `addr`.
    pub fn overlay(&self, addr: u64, buf: &mut [u8]) {
        for entry in &self.queue {
            let Entry::Behind(Due::Write(at, data)) = entry else {
                continue;
            };
            let (end, other) = (
                addr.saturating_add(buf.len() as u64),
                at.saturating_add(data.len() as u64),
            );
            let (from, to) = (addr.max(*at), end.min(other));
            if from < to {
                let n = (to - from) as usize;
                let (a, b) = ((from - addr) as usize, (from - at) as usize);
                buf[a..a + n].copy_from_slice(&data[b..b + n]);
            }
        }
    }

    /// Returns true if a message can be sent to the client now.
    pub fn has_request(&self) -> bool {
        let next = match self.queue.front() {
            Some(Entry::Store { data, .. }) => data.len(),
            Some(Entry::Load { .. }) => 0,
            _ => return false,
        };
        let room = self.sent_bytes == 0 || self.sent_bytes + next <= WINDOW_BYTES;
        self.open && self.sent.len() < WINDOW && room
    }

    /// Removes the next message from the queue and returns it. Returns `None` if no message may be
    /// sent to the client now.
    pub fn request(&mut self, now_ns: u64) -> Option<Request> {
        if !self.has_request() {
            return None;
        }
        let (addr, len, load, data) = match self.pop()? {
            Entry::Store { addr, data } => (addr, data.len(), None, Some(data)),
            Entry::Load { addr, len, number } => (addr, len, Some(number), None),
            Entry::Behind(_) => return None,
        };
        let mut id = self.last_id;
        // The loop ends, because there are far more numbers than messages.
        loop {
            id = id.wrapping_add(1);
            if !self.sent.contains_key(&id) {
                break;
            }
        }
        self.last_id = id;
        self.since_ns = now_ns;
        if load.is_none() {
            self.stores += 1;
            self.sent_bytes += len;
        }
        let sent = Sent {
            addr,
            len,
            load,
            at_ns: now_ns,
            given_up: false,
        };
        self.sent.insert(id, sent);
        Some(Request {
            id,
            addr,
            len,
            data,
        })
    }

    /// Processes an answer of the client. The caller should then call [`Peers::due`].
    pub fn answer(&mut self, answer: Answered) -> Settled {
        let Some(sent) = self.sent.get(&answer.id) else {
            return Settled::Garbage(None);
        };
        let kind = answer.store == sent.load.is_none();
        if !kind {
            // The answer is for a store, but the message was a load, or vice versa.
            return Settled::Garbage(None);
        }
        let Some(sent) = self.sent.remove(&answer.id) else {
            return Settled::Garbage(None);
        };
        self.mute = false;
        if sent.load.is_none() {
            self.sent_bytes -= sent.len;
        }
        if sent.given_up {
            return Settled::Late;
        }
        if sent.load.is_none() {
            self.stores -= 1;
            self.done += 1;
        }
        let same = answer
            .about
            .is_none_or(|about| about == (sent.addr, sent.len as u64));
        match (answer.result, sent.load) {
            (Err(error), load) => Settled::NoDevice {
                load,
                addr: sent.addr,
                len: sent.len,
                error,
            },
            (Ok(_), None) if same => Settled::Stored,
            (Ok(data), Some(load)) if same && data.len() == sent.len => Settled::Loaded(load, data),
            (_, load) => Settled::Garbage(load),
        }
    }

    /// Returns true while answers of the client are pending.
    pub fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Returns the time at which the emulator stops waiting for the client if the client sends no
    /// answer.
    pub fn deadline(&self) -> Option<u64> {
        let sent = self.sent.values().filter(|s| !s.given_up);
        // The deadline also applies to a client that reads no messages.
        let unsent = (!self.queue.is_empty()).then_some(self.since_ns);
        let first = sent.map(|s| s.at_ns).chain(unsent).min()?;
        Some(first.saturating_add(TIMEOUT_NS))
    }

    /// Drops all unsent entries, because the chip is reset. Answers to sent messages will be
    /// ignored.
    pub fn reset(&mut self) {
        while let Some(entry) = self.pop() {
            self.done += u64::from(matches!(entry, Entry::Store { .. }));
        }
        self.new.clear();
    }

    /// Abandons all sent and queued accesses, because the client does not answer. Late answers will
    /// be recognised.
    pub fn give_up(&mut self) -> (Lost, Vec<Due>) {
        self.mute = true;
        let (mut lost, mut due) = (Lost::default(), Vec::new());
        for sent in self.sent.values_mut().filter(|s| !s.given_up) {
            sent.given_up = true;
            match sent.load {
                Some(load) => lost.loads.push(load),
                None => lost.stores += 1,
            }
        }
        self.stores = 0;
        while let Some(entry) = self.pop() {
            match entry {
                Entry::Store { .. } => lost.stores += 1,
                Entry::Load { number, .. } => lost.loads.push(number),
                Entry::Behind(d) => due.push(d),
            }
        }
        self.new.clear();
        self.done += lost.stores;
        (lost, due)
    }

    /// Returns the total number of accepted stores, and the number of these stores that have ended.
    pub fn stores(&self) -> (u64, u64) {
        (self.made, self.done)
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
