//! DMA engine of the test device. It performs one transfer at a time.

use super::{chunks, Gather, Gathered, Link, PciePacket};
use std::collections::BTreeMap;
use wire::tlp::{Bdf, Kind, Span};

/// Maximum number of read requests in flight.
const WINDOW: usize = 8;
/// Tag that requests of other parts of the device use. The engine uses all lower tags.
pub(super) const FOREIGN_TAG: u8 = u8::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Idle,
    Busy,
    Done,
    Failed,
}

/// Parameters of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub bus: u64,
    /// Offset in the device memory.
    pub at: u32,
    pub len: u32,
    pub to_bus: bool,
    /// True if the request is invalid.
    pub refused: bool,
}

/// State of the engine.
#[derive(Default)]
pub(super) struct Dma {
    state: State,
    bus: u64,
    at: u32,
    len: u32,
    to_bus: bool,
    /// Number of bytes that have been requested or sent.
    issued: u32,
    /// Time in ns after which a transfer without progress fails.
    timeout_ns: u64,
    deadline: u64,
    refused: bool,
    starved: bool,
    next_tag: u8,
    reads: BTreeMap<u8, (u32, Gather)>,
}

impl Dma {
    pub fn status(&self) -> u32 {
        match self.state {
            State::Idle => 0,
            State::Busy => 1,
            State::Done => 2,
            State::Failed => 3,
        }
    }

    pub fn deadline(&self) -> Option<u64> {
        (self.state == State::Busy).then_some(self.deadline)
    }

    pub fn wants_credit(&self) -> bool {
        self.state == State::Busy && self.starved
    }

    /// Starts a transfer. Returns `false` while another transfer runs. An invalid transfer fails at
    /// its first step.
    pub fn start(&mut self, t: Transfer, timeout_ns: u64) -> bool {
        if self.state == State::Busy {
            return false;
        }
        // Tags continue, so that a late completion of the previous transfer does not match a
        // request of this transfer.
        let next_tag = self.next_tag;
        *self = Self {
            state: State::Busy,
            bus: t.bus,
            at: t.at,
            len: t.len,
            to_bus: t.to_bus,
            refused: t.refused,
            timeout_ns,
            deadline: u64::MAX,
            next_tag,
            ..Self::default()
        };
        true
    }

    fn end(&mut self, good: bool) -> Option<bool> {
        self.state = if good { State::Done } else { State::Failed };
        self.reads.clear();
        Some(good)
    }

    /// Fails the running transfer. Returns the result if there was one.
    pub fn fail(&mut self) -> Option<bool> {
        if self.state == State::Busy {
            self.end(false)
        } else {
            None
        }
    }

    /// Fails the running transfer if its deadline has passed.
    pub fn expire(&mut self, now_ns: u64) -> Option<bool> {
        if now_ns >= self.deadline {
            self.fail()
        } else {
            None
        }
    }

    /// Sends requests while credit and window allow. Returns the result if the transfer has ended.
    pub fn run(
        &mut self,
        id: Bdf,
        payload: u32,
        read: u32,
        memory: &[u8],
        link: &mut Link<'_>,
    ) -> Option<bool> {
        if self.state != State::Busy {
            return None;
        }
        if self.refused {
            return self.end(false);
        }
        self.starved = false;
        self.deadline = link.now_ns.saturating_add(self.timeout_ns);
        let max = if self.to_bus { payload } else { read };
        while self.issued < self.len {
            if link.credits == 0 {
                self.starved = true;
                return None;
            }
            if !self.to_bus && self.reads.len() >= WINDOW {
                return None;
            }
            let bus = self.bus.wrapping_add(self.issued.into());
            let Some((_, n)) = chunks(bus, self.len - self.issued, max).next() else {
                break;
            };
            let at = self.at + self.issued;
            if self.to_bus {
                let Some(data) = memory.get(at as usize..(at + n) as usize) else {
                    return self.end(false);
                };
                PciePacket::writes(id, bus, data).for_each(|p| link.send(p));
            } else {
                let Some(span) = Span::bytes(bus, n) else {
                    return self.end(false);
                };
                let tag = self.next_tag;
                self.next_tag = (self.next_tag + 1) % FOREIGN_TAG;
                self.reads.insert(tag, (at, Gather::new(span)));
                let kind = Kind::MemRead {
                    requester: id,
                    tag,
                    span,
                };
                link.send(PciePacket::bare(kind));
            }
            self.issued += n;
        }
        if self.reads.is_empty() {
            return self.end(true);
        }
        None
    }

    /// Processes a completion. Returns the result if the transfer has ended.
    pub fn complete(&mut self, tag: u8, packet: &PciePacket, memory: &mut [u8]) -> Option<bool> {
        let (at, gather) = self.reads.get_mut(&tag)?;
        let to = *at as usize;
        match gather.add(packet) {
            Gathered::More => None,
            Gathered::Failed => self.end(false),
            Gathered::Done(data) => {
                self.reads.remove(&tag);
                if let Some(to) = memory.get_mut(to..to + data.len()) {
                    to.copy_from_slice(&data);
                }
                None
            }
        }
    }
}
