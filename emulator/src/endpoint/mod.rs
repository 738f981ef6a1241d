//! PCIe devices behind a NIC in root-port mode ("accelerator nodes", HW §14).
//!
//! The NIC's PCIe bridge and the device exchange only transaction layer packets. Any source of such
//! packets can be attached: the built-in [`TestDevice`] and [`Nvme`], or a process that serves a
//! device over a socket. No call blocks: a device may answer a request during the call that passes
//! it, or during a later call.

mod config;
mod dma;
mod function;
pub mod nvme;
mod test_device;

pub use extoll_emulator_api::accelerator::{DeviceConfig, DeviceKind};
pub use nvme::{Disk, Nvme};
pub use test_device::{regs, TestDevice, MEMORY_OFFSET, PBA_OFFSET, TABLE_OFFSET};

use std::collections::VecDeque;
use wire::tlp::{completions, Bdf, Kind, ReadCompletion, Span, Status, Tlp};

/// Maximum payload size on the link in bytes.
pub const MAX_PAYLOAD: u32 = 256;
/// Maximum read request size on the link in bytes.
pub const MAX_READ: u32 = 512;

/// A PCIe packet with its payload. The creator of a packet ensures that the payload has the length
/// in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciePacket {
    /// Header of the packet.
    pub tlp: Tlp,
    /// Payload in address order, in whole dwords.
    pub data: Vec<u8>,
}

impl PciePacket {
    /// Returns a packet without payload.
    pub fn bare(kind: Kind) -> Self {
        Self {
            tlp: kind.into(),
            data: Vec::new(),
        }
    }

    /// Returns write requests for contiguous bytes. No request crosses a 4 KiB boundary or exceeds
    /// [`MAX_PAYLOAD`].
    pub fn writes(requester: Bdf, addr: u64, data: &[u8]) -> impl Iterator<Item = PciePacket> + '_ {
        chunks(addr, data.len() as u32, MAX_PAYLOAD).filter_map(move |(offset, len)| {
            let at = addr.wrapping_add(offset.into());
            let span = Span::bytes(at, len)?;
            let bytes = &data[offset as usize..(offset + len) as usize];
            let mut payload = vec![0; usize::from(span.dwords) * 4];
            let skip = (at % 4) as usize;
            payload[skip..skip + bytes.len()].copy_from_slice(bytes);
            let tag = 0;
            let kind = Kind::MemWrite {
                requester,
                tag,
                span,
            };
            Some(PciePacket {
                tlp: kind.into(),
                data: payload,
            })
        })
    }

    /// Returns the runs of enabled bytes of a memory write, each with its address.
    pub fn runs(span: Span, data: &[u8]) -> Vec<(u64, &[u8])> {
        let mut runs: Vec<(u64, &[u8])> = Vec::new();
        let on = |i: usize| span.enables((i / 4) as u16) & (1 << (i % 4)) != 0;
        let mut i = 0;
        while i < data.len() {
            let start = i;
            while i < data.len() && on(i) {
                i += 1;
            }
            if i > start {
                runs.push((span.addr + start as u64, &data[start..i]));
            }
            i += 1;
        }
        runs
    }

    /// Returns the completions of a memory read: one completion per chunk, or a single completion
    /// with an error if `data` is `None`. `data` contains the bytes from the first to the last
    /// enabled byte.
    pub fn read_answers(
        completer: Bdf,
        to: (Bdf, u8),
        span: Span,
        data: Option<&[u8]>,
    ) -> Vec<PciePacket> {
        let completion = |status, part: ReadCompletion, dwords| Kind::Completion {
            completer,
            status,
            modified: false,
            byte_count: part.byte_count,
            requester: to.0,
            tag: to.1,
            lower_addr: part.lower_addr,
            dwords,
        };
        let (skip, len) = span.extent();
        let at = span.addr + u64::from(skip);
        let whole = ReadCompletion {
            offset: 0,
            len,
            byte_count: span.byte_count(),
            lower_addr: (at & 0x7F) as u8,
        };
        let Some(data) = data else {
            return vec![Self::bare(completion(Status::Unsupported, whole, 0))];
        };
        if len == 0 {
            let kind = completion(Status::Success, whole, 1);
            return vec![PciePacket {
                tlp: kind.into(),
                data: vec![0; 4],
            }];
        }
        let answer = |part: ReadCompletion| {
            let mut payload = vec![0; usize::from(part.dwords()) * 4];
            let skip = usize::from(part.lower_addr % 4);
            let from = part.offset as usize..(part.offset + part.len) as usize;
            payload[skip..skip + part.len as usize]
                .copy_from_slice(data.get(from).unwrap_or(&vec![0xFF; part.len as usize]));
            let kind = completion(Status::Success, part, part.dwords());
            PciePacket {
                tlp: kind.into(),
                data: payload,
            }
        };
        completions(at, len, MAX_PAYLOAD).map(answer).collect()
    }
}

/// Splits an access into requests of up to `max` bytes that stay inside 4 KiB pages. Yields the
/// offset and the length of each request.
pub fn chunks(addr: u64, len: u32, max: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let left = len.checked_sub(offset).filter(|&left| left > 0)?;
        let at = addr.wrapping_add(offset.into());
        let page = (wire::tlp::PAGE - at % wire::tlp::PAGE) as u32;
        let n = left.min(page).min(max);
        let piece = (offset, n);
        offset += n;
        Some(piece)
    })
}

/// Collects the bytes of the completions of a read in flight.
#[derive(Debug, Clone)]
pub struct Gather {
    span: Span,
    data: Vec<u8>,
    got: u32,
}

/// State of a read after a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gathered {
    /// More completions are expected.
    More,
    /// The read is complete. Contains the bytes from the first to the last enabled byte.
    Done(Vec<u8>),
    /// The read failed.
    Failed,
}

impl Gather {
    /// Starts to collect the bytes of a read of `span`.
    pub fn new(span: Span) -> Self {
        Self {
            span,
            data: Vec::new(),
            got: 0,
        }
    }

    /// Processes a completion that carries the tag of this read.
    pub fn add(&mut self, packet: &PciePacket) -> Gathered {
        let Kind::Completion {
            status,
            byte_count,
            lower_addr,
            dwords,
            ..
        } = packet.tlp.kind
        else {
            return Gathered::Failed;
        };
        let (_, len) = self.span.extent();
        if status != Status::Success || dwords == 0 || packet.tlp.poisoned {
            return Gathered::Failed;
        }
        if len == 0 {
            return Gathered::Done(Vec::new());
        }
        let skip = usize::from(lower_addr % 4);
        let left = len - self.got;
        let n = (packet.data.len().saturating_sub(skip) as u32).min(left);
        if n == 0 || u32::from(byte_count) != left {
            return Gathered::Failed;
        }
        self.data
            .extend_from_slice(&packet.data[skip..skip + n as usize]);
        self.got += n;
        if self.got == len {
            Gathered::Done(std::mem::take(&mut self.data))
        } else {
            Gathered::More
        }
    }
}

/// The link from a device to the root port, for the duration of one call.
pub struct Link<'a> {
    /// Monotonic time in ns.
    pub now_ns: u64,
    /// Number of packets that the root port accepts without queueing them. A device holds back
    /// further requests and then returns true from [`Endpoint::wants_credit`]. Completions need no
    /// credit.
    pub credits: usize,
    out: &'a mut VecDeque<PciePacket>,
}

impl<'a> Link<'a> {
    /// Returns a link that appends packets to `out`.
    pub fn new(now_ns: u64, credits: usize, out: &'a mut VecDeque<PciePacket>) -> Self {
        Self {
            now_ns,
            credits,
            out,
        }
    }

    /// Sends a packet to the root port.
    pub fn send(&mut self, packet: PciePacket) {
        self.credits = self.credits.saturating_sub(1);
        self.out.push_back(packet);
    }
}

/// A PCIe device. [`receive`](Self::receive) passes requests of the root port, and completions of
/// requests of the device, to the device. The device sends its packets through the [`Link`], in
/// order.
pub trait Endpoint {
    /// Processes a packet from the root port.
    fn receive(&mut self, packet: PciePacket, link: &mut Link<'_>);
    /// Runs timers that are due, and resumes requests that waited for credit.
    fn tick(&mut self, link: &mut Link<'_>);
    /// Returns the time at which the device needs the next [`tick`](Self::tick).
    fn next_deadline(&self) -> Option<u64>;
    /// Returns true while requests of the device wait for credit.
    fn wants_credit(&self) -> bool;
    /// Performs a fundamental reset.
    fn reset(&mut self);
}
