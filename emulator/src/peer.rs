//! What a NIC asks of its host beside memory: stores to and loads from other devices on the same bus ("peer to peer").
//!
//! The model does not know where devices are. What is not memory becomes a DMA message to the client, which answers for the
//! device, or with an error if nothing is there. Stores are posted: the answer only tells that they are done, or failed. A load
//! waits for its answer, and nothing else does.
//!
//! *Order.* The client executes messages in the order in which it gets them. What the NIC writes to memory, and its interrupts,
//! go behind the stores to devices before them: PCIe keeps the order of posted writes, so who sees a flag in memory must find
//! what was stored to the device before. Such a write waits here until the stores are answered; loads hold nothing up (PCIe:
//! posted requests pass others).

use std::collections::{BTreeMap, VecDeque};

/// Longest access of one message, bytes.
pub const LONGEST: usize = 64 << 10;
/// Messages that a client has before the next one waits here for an answer, and bytes in them.
const WINDOW: usize = 256;
const WINDOW_BYTES: usize = 1 << 20;
/// Bytes that may wait here; a bound for what local mistakes cause. Other nodes are stopped earlier (`nic/held.rs`).
const MOST_BYTES: usize = 64 << 20;
/// What an entry costs beside its data.
const COST: usize = 128;
/// Time until a client that answers nothing is given up, ns. Longer than any guest waits for anything.
pub const PATIENCE_NS: u64 = 10_000_000_000;

/// A DMA message for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Number of the message.
    pub id: u16,
    /// Bus address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// What to store; `None`: a load.
    pub data: Option<Vec<u8>>,
}

/// What a client answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// Number of the message.
    pub id: u16,
    /// It says that it answers a store.
    pub store: bool,
    /// Address and length that it repeats, if it does.
    pub about: Option<(u64, u64)>,
    /// The data of a load (nothing for a store), or an error number.
    pub result: Result<Vec<u8>, u32>,
}

/// What an answer, or its absence, means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// A store is done.
    Stored,
    /// A load is done.
    Loaded(u64, Vec<u8>),
    /// Nothing is at this address. With the number of a load.
    Nobody {
        /// The load, if it was one.
        load: Option<u64>,
        /// Bus address.
        addr: u64,
        /// Bytes.
        len: usize,
        /// Error number of the client.
        error: u32,
    },
    /// The answer makes no sense; the load that it was for, if there is one.
    Garbage(Option<u64>),
    /// An answer to something that is given up already.
    Late,
}

/// What becomes due in memory when stores to devices are done.
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
    /// `None`: a store.
    load: Option<u64>,
    at_ns: u64,
    given_up: bool,
}

/// What was lost when a client went or was given up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Stores without an answer, or not sent.
    pub stores: u64,
    /// Loads: nobody answers them any more.
    pub loads: Vec<u64>,
}

impl Lost {
    /// How many.
    pub fn count(&self) -> u64 {
        self.stores + self.loads.len() as u64
    }
}

/// Accesses of a NIC to other devices.
#[derive(Default)]
pub struct Peers {
    /// There is a client that can be asked.
    open: bool,
    /// It has not answered for too long; until it does, nothing is asked.
    mute: bool,
    queue: VecDeque<Entry>,
    bytes: usize,
    /// When something was taken out of the queue, or put into an empty one.
    since_ns: u64,
    sent: BTreeMap<u16, Sent>,
    sent_bytes: usize,
    /// Stores that are sent and not answered.
    stores: usize,
    last_id: u16,
    last_load: u64,
    /// Stores ever accepted, and of them those that have ended.
    made: u64,
    done: u64,
    /// Loads since the last [`Peers::take_new`].
    new: Vec<u64>,
}

impl Peers {
    /// A client has come that understands DMA messages.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// The client is gone. Gives back what it had or was to get; numbers go on.
    pub fn close(&mut self) -> (Lost, Vec<Due>) {
        let (lost, due) = self.give_up();
        let numbers = (self.last_id, self.last_load, self.made, self.done);
        *self = Self::default();
        (self.last_id, self.last_load, self.made, self.done) = numbers;
        (lost, due)
    }

    /// True if an access of this length could be asked for now.
    pub fn accepts(&self, len: usize) -> bool {
        let cost = len.saturating_add(COST);
        self.open && !self.mute && len > 0 && self.bytes.saturating_add(cost) <= MOST_BYTES
    }

    /// True if there is a client that could be asked, and nothing is asked because it does not answer.
    pub fn is_mute(&self) -> bool {
        self.mute
    }

    /// True if there is a client that can be asked.
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

    /// A store; `false`: not accepted.
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

    /// A load; its number. `None`: not accepted.
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

    /// Loads since the last call.
    pub fn take_new(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.new)
    }

    /// Takes back a load that was not sent yet.
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

    /// True if a write to memory has to wait behind stores to devices.
    pub fn holds(&self) -> bool {
        self.stores > 0 || !self.queue.is_empty()
    }

    /// Puts a write to memory or an interrupt behind what waits. If there is no room it comes at once, out of order.
    pub fn behind(&mut self, now_ns: u64, due: Due) -> Option<Due> {
        let more = match &due {
            Due::Write(_, data) => data.len(),
            Due::Interrupt(_) => 0,
        };
        if self.bytes + more + COST > MOST_BYTES {
            return Some(due);
        }
        self.push(now_ns, Entry::Behind(due));
        None
    }

    /// What of memory has to be written and signalled now.
    pub fn due(&mut self) -> Option<Due> {
        if self.stores > 0 || !matches!(self.queue.front(), Some(Entry::Behind(_))) {
            return None;
        }
        match self.pop() {
            Some(Entry::Behind(due)) => Some(due),
            _ => None,
        }
    }

    /// All writes to memory that wait, whatever they wait for, in order. Interrupts go on waiting.
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

    /// Brings what was read from memory up to date with what waits to be written there.
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

    /// True if there is a message for the client, and it may have one more.
    pub fn has_request(&self) -> bool {
        let next = match self.queue.front() {
            Some(Entry::Store { data, .. }) => data.len(),
            Some(Entry::Load { .. }) => 0,
            _ => return false,
        };
        let room = self.sent_bytes == 0 || self.sent_bytes + next <= WINDOW_BYTES;
        self.open && self.sent.len() < WINDOW && room
    }

    /// The next message for the client.
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
        // There are many more numbers than messages.
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

    /// The client answered. Look for what is [`Peers::due`] after this.
    pub fn answer(&mut self, answer: Answered) -> Settled {
        let Some(sent) = self.sent.get(&answer.id) else {
            return Settled::Garbage(None);
        };
        let kind = answer.store == sent.load.is_none();
        if !kind {
            // It answers something else than this message.
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
            (Err(error), load) => Settled::Nobody {
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

    /// True while the client owes answers.
    pub fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }

    /// When the client is given up if it answers nothing until then.
    pub fn deadline(&self) -> Option<u64> {
        let sent = self.sent.values().filter(|s| !s.given_up);
        // A client that reads nothing gets nothing.
        let unsent = (!self.queue.is_empty()).then_some(self.since_ns);
        let first = sent.map(|s| s.at_ns).chain(unsent).min()?;
        Some(first.saturating_add(PATIENCE_NS))
    }

    /// The chip is reset: what was not sent is lost, and nobody waits for what was.
    pub fn reset(&mut self) {
        while let Some(entry) = self.pop() {
            self.done += u64::from(matches!(entry, Entry::Store { .. }));
        }
        self.new.clear();
    }

    /// Gives up what the client has or was to get. Late answers are recognised.
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

    /// Stores ever accepted, and how many of them have ended.
    pub fn stores(&self) -> (u64, u64) {
        (self.made, self.done)
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
