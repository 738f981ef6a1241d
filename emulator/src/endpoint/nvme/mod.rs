//! A small NVMe drive: a controller of NVM Express 1.4 with one namespace. The emulator's memory
//! contains the blocks.
//!
//! BAR0 has 16 KiB, with registers (module [`regs`]), doorbells, MSI-X table and pending bits.
//!
//! The controller accesses the host's memory only by PCIe packets. The host's answers to reads
//! arrive later; dependent work continues then. The controller sends data, then completions, then
//! interrupts. If it can't read data of a command, the command ends with an error. If it can't read
//! a submission queue, it enters the fatal state, and its driver must reset it.

mod admin;
pub mod command;
mod disk;
mod features;
mod identify;
mod posts;
mod prp;
mod queues;
mod reads;
pub mod regs;

pub use disk::Disk;

use self::command::{io, Command, Completion, Status, COMMAND};
use self::disk::BLOCK_LOG2;
use self::features::Features;
use self::posts::Posts;
use self::prp::Pages;
use self::queues::{Completions, Submission};
use self::reads::{Outcome, Reads};
use super::config::Shape;
use super::function::Function;
use super::{Endpoint, Link, PciePacket};
use extoll_emulator_api::accelerator::DeviceConfig;
use std::collections::BTreeMap;
use wire::tlp::{Kind, Span};

const VENDOR: u16 = 0x1CAD;
const DEVICE: u16 = 0x7E58;
/// Base-2 logarithm of the maximum number of data bytes of a command.
const MOST_DATA_LOG2: u8 = 17;
/// Maximum number of commands that transfer data at a time. Further commands stay in their queues.
const COMMANDS: usize = 64;
/// Unsupported bits of a command's flags: fused operations, and data that PRPs do not describe.
const UNKNOWN_FLAGS: u8 = 0xC3;

/// Purpose of a read of the host's memory.
enum Read {
    /// Reads commands of this submission queue.
    Commands(u16),
    /// Reads the PRP list of this transfer.
    List(u64),
    /// Reads the data of this transfer.
    Data(u64),
}

/// Data of a command, with its direction.
enum Data {
    ToHost(Vec<u8>),
    /// Data from the host for the disk, to be stored at this offset in bytes.
    FromHost(u64),
}

/// Outcome of the first step of a command.
enum Action {
    /// The command is complete with this result.
    Done(u32),
    /// The command must transfer this data, with this length in bytes.
    Move(Data, u32),
    /// The command never completes.
    Never,
}

/// A command whose data is being transferred.
struct Transfer {
    queue: u16,
    id: u16,
    pages: Pages,
    data: Data,
}

/// Values of the registers that only store their value.
#[derive(Default)]
struct Registers {
    config: u32,
    status: u32,
    /// Sizes of the two admin queues (register AQA).
    sizes: u32,
    /// Addresses of the admin submission queue and the admin completion queue.
    bases: [u64; 2],
}

/// State of the drive.
pub struct Nvme {
    function: Function,
    vectors: u8,
    serial: u32,
    disk: Disk,
    regs: Registers,
    /// Submission queues by number; queue 0 is the admin queue.
    submissions: Vec<Option<Submission>>,
    completions: Vec<Option<Completions>>,
    /// Index of the submission queue from which commands are fetched next.
    turn: usize,
    transfers: BTreeMap<u64, Transfer>,
    last_transfer: u64,
    /// Number of pending asynchronous event requests.
    events: usize,
    features: Features,
    reads: Reads<Read>,
    posts: Posts,
    starved: bool,
    /// Number of reads and of writes that were executed.
    commands: [u64; 2],
}

impl Nvme {
    /// Returns the drive after power-on. Drives need different serial numbers, because software
    /// takes drives with equal serial numbers for one drive.
    pub fn new(cfg: &DeviceConfig, serial: u32, disk: Disk) -> Self {
        let vectors = cfg.vectors;
        let shape = Shape {
            vendor: VENDOR,
            device: DEVICE,
            // Class: mass storage, non-volatile memory, NVM Express.
            class: 0x01_0802,
            vectors,
            bar: !(regs::BAR_SIZE - 1),
            table: regs::TABLE as u32,
            pending: regs::PENDING as u32,
            garbage: false,
        };
        // One vector is for the admin queue, and one for each pair of I/O queues.
        let pairs = u16::from(vectors.saturating_sub(1).max(1));
        Self {
            function: Function::new(shape),
            vectors,
            serial,
            disk,
            regs: Registers::default(),
            submissions: (0..=pairs).map(|_| None).collect(),
            completions: (0..=pairs).map(|_| None).collect(),
            turn: 0,
            transfers: BTreeMap::new(),
            last_transfer: 0,
            events: 0,
            features: Features::new(pairs, vectors),
            reads: Reads::new(cfg.dma_timeout_ns),
            posts: Posts::default(),
            starved: false,
            commands: [0; 2],
        }
    }

    /// Performs the reset that clearing the enable bit requests: drops queues and commands, and
    /// keeps the registers of the admin queues.
    fn controller_reset(&mut self) {
        self.regs.status = 0;
        self.submissions.iter_mut().for_each(|q| *q = None);
        self.completions.iter_mut().for_each(|q| *q = None);
        self.transfers.clear();
        self.events = 0;
        let pairs = self.submissions.len() as u16 - 1;
        self.features = Features::new(pairs, self.vectors);
        self.reads.cancel(|_| true);
        self.posts = Posts::default();
        self.starved = false;
    }

    /// Resets all state except the disk and the function's bus, device and function number.
    fn function_reset(&mut self) {
        self.controller_reset();
        self.regs = Registers::default();
        self.function.reset();
    }

    fn enable(&mut self) {
        let sizes = [self.regs.sizes, self.regs.sizes >> 16].map(|n| (n & 0xFFF) + 1);
        let good = self.regs.config & regs::CC_CHOICES == 0 && sizes.iter().all(|n| *n >= 2);
        if !good {
            self.regs.status = regs::CSTS_FATAL;
            return;
        }
        self.regs.status = regs::CSTS_READY;
        let [commands, completions] = self.regs.bases;
        self.submissions[0] = Some(Submission::new(commands, sizes[0], 0));
        self.completions[0] = Some(Completions::new(completions, sizes[1], Some(0)));
    }

    /// Stops the controller until the host resets it.
    fn fatal(&mut self) {
        self.regs.status |= regs::CSTS_FATAL;
    }

    fn is_up(&self) -> bool {
        let bits = regs::CSTS_READY | regs::CSTS_FATAL | regs::CSTS_SHUT_DOWN;
        self.regs.status & bits == regs::CSTS_READY
    }

    /// Returns true if the host has chosen entries of `bytes` bytes for I/O queues.
    fn has_entries(&self, bytes: u32) -> bool {
        let at = match bytes {
            COMMAND => 16,
            _ => 20,
        };
        (self.regs.config >> at) & 0xF == bytes.trailing_zeros()
    }

    fn submission(&mut self, number: u16) -> Option<&mut Submission> {
        self.submissions.get_mut(usize::from(number))?.as_mut()
    }

    fn completions(&mut self, number: u16) -> Option<&mut Completions> {
        self.completions.get_mut(usize::from(number))?.as_mut()
    }

    fn read_reg(&self, offset: u64) -> u32 {
        let half = |value: u64| (value >> (8 * (offset & 4))) as u32;
        match offset & !7 {
            regs::CAP => half(regs::CAP_VALUE),
            regs::ASQ => half(self.regs.bases[0]),
            regs::ACQ => half(self.regs.bases[1]),
            _ => match offset {
                regs::VS => regs::VERSION,
                regs::INTMS | regs::INTMC => self.posts.masked,
                regs::CC => self.regs.config,
                regs::CSTS => self.regs.status,
                regs::AQA => self.regs.sizes,
                _ => 0,
            },
        }
    }

    fn write_reg(&mut self, offset: u64, value: u32) {
        let off = self.regs.config & regs::CC_ENABLE == 0;
        match offset {
            regs::INTMS => self.posts.masked |= value,
            regs::INTMC => self.posts.unmask(value),
            regs::CC => self.write_config(value & regs::CC_BITS),
            regs::AQA if off => self.regs.sizes = value & 0x0FFF_0FFF,
            _ if off && matches!(offset & !7, regs::ASQ | regs::ACQ) => {
                let base = &mut self.regs.bases[usize::from(offset & !7 == regs::ACQ)];
                let shift = 8 * (offset & 4);
                let kept = *base & !(u64::from(u32::MAX) << shift);
                *base = (kept | (u64::from(value) << shift)) & !(prp::PAGE - 1);
            }
            regs::DOORBELLS..regs::TABLE => {
                let index = (offset - regs::DOORBELLS) / 4;
                self.ring((index / 2) as u16, index % 2 == 1, value);
            }
            _ => {}
        }
    }

    fn write_config(&mut self, value: u32) {
        let old = std::mem::replace(&mut self.regs.config, value);
        match (old & regs::CC_ENABLE != 0, value & regs::CC_ENABLE != 0) {
            (false, true) => self.enable(),
            (true, false) => self.controller_reset(),
            _ => {}
        }
        // Shutdown completes at once, because the disk contains all written data already.
        if value & regs::CC_SHUT_DOWN != 0 && old & regs::CC_SHUT_DOWN == 0 {
            self.regs.status |= regs::CSTS_SHUT_DOWN;
        }
    }

    fn ring(&mut self, number: u16, completion: bool, value: u32) {
        if !self.is_up() {
            return;
        }
        if !completion {
            if let Some(queue) = self.submission(number) {
                queue.ring(value);
            }
        } else if let Some(Some(queue)) = self.completions.get_mut(usize::from(number)) {
            queue.ring(value);
            queue.post(&mut self.posts);
        }
    }

    /// Begins to fetch commands from all submission queues, round robin.
    fn fetch(&mut self) {
        let n = self.submissions.len();
        for number in (self.turn..n).chain(0..self.turn) {
            if !self.is_up() {
                return;
            }
            let under_way = |q: &Submission| q.fetching as usize;
            let fetching: usize = self.submissions.iter().flatten().map(under_way).sum();
            let room = COMMANDS.saturating_sub(self.transfers.len() + fetching);
            let Some(Some(queue)) = self.submissions.get_mut(number) else {
                continue;
            };
            let to = self.completions.get(usize::from(queue.to));
            if to.is_none_or(|to| to.as_ref().is_none_or(Completions::is_full)) {
                continue;
            }
            if let Some(place) = queue.fetch(room as u32) {
                self.reads.start(Read::Commands(number as u16), vec![place]);
                self.turn = (number + 1) % n;
            }
        }
    }

    /// Sends packets while credit allows.
    fn run(&mut self, link: &mut Link<'_>) {
        self.starved = false;
        if !self.function.config().bus_master() {
            return;
        }
        self.fetch();
        let (_, most) = self.function.config().payload_and_read_request();
        let reads = self.reads.run(self.function.bdf(), most, link);
        let posts = self.posts.run(&mut self.function, link);
        self.starved = reads || posts;
    }

    /// Processes the result of a read of the host's memory.
    fn arrived(&mut self, (what, data): Outcome<Read>) {
        match (what, data) {
            (Read::Commands(_), None) => self.fatal(),
            (Read::Commands(number), Some(data)) => {
                if let Some(queue) = self.submission(number) {
                    queue.fetched();
                }
                for entry in data.chunks(COMMAND as usize) {
                    self.execute(number, &Command::parse(entry));
                }
            }
            (Read::List(key) | Read::Data(key), None) => self.end(key, Err(Status::TRANSFER)),
            (Read::List(key), Some(part)) => {
                let Some(transfer) = self.transfers.get_mut(&key) else {
                    return;
                };
                match transfer.pages.add_part(&part) {
                    Ok(()) => self.go_on(key),
                    Err(status) => self.end(key, Err(status)),
                }
            }
            (Read::Data(key), Some(data)) => {
                if let Some(Data::FromHost(at)) = self.transfers.get(&key).map(|t| &t.data) {
                    self.disk.write(*at, &data);
                }
                self.end(key, Ok(0));
            }
        }
    }

    fn execute(&mut self, queue: u16, c: &Command) {
        let action = match queue {
            _ if c.flags & UNKNOWN_FLAGS != 0 => Err(Status::FIELD),
            0 => self.admin(c),
            _ => self.io(c),
        };
        let moving = match action {
            Ok(Action::Never) => return,
            Ok(Action::Done(result)) => return self.complete(queue, c.id, Ok(result)),
            Ok(Action::Move(data, len)) => Pages::new(c.prp, len).map(|pages| (data, pages)),
            Err(status) => Err(status),
        };
        match moving {
            Err(status) => self.complete(queue, c.id, Err(status)),
            Ok((data, pages)) => {
                self.last_transfer += 1;
                let id = c.id;
                let transfer = Transfer {
                    queue,
                    id,
                    pages,
                    data,
                };
                self.transfers.insert(self.last_transfer, transfer);
                self.go_on(self.last_transfer);
            }
        }
    }

    fn io(&mut self, c: &Command) -> Result<Action, Status> {
        let known = matches!(
            c.opcode,
            io::FLUSH | io::WRITE | io::READ | io::WRITE_ZEROES
        );
        if !known {
            return Err(Status::OPCODE);
        }
        if c.namespace != 1 && !(c.opcode == io::FLUSH && c.namespace == admin::ALL) {
            return Err(Status::NAMESPACE);
        }
        if c.opcode == io::FLUSH {
            return Ok(Action::Done(0));
        }
        let [low, high, third, ..] = c.dwords;
        let first = u64::from(low) | (u64::from(high) << 32);
        let blocks = u64::from(third & 0xFFFF) + 1;
        let len = blocks << BLOCK_LOG2;
        if c.opcode != io::WRITE_ZEROES && len > 1 << MOST_DATA_LOG2 {
            return Err(Status::FIELD);
        }
        if first
            .checked_add(blocks)
            .is_none_or(|end| end > self.disk.blocks())
        {
            return Err(Status::RANGE);
        }
        let at = first << BLOCK_LOG2;
        let [reads, writes] = &mut self.commands;
        match c.opcode {
            io::READ => {
                *reads += 1;
                let data = self.disk.read(at, len as u32);
                Ok(Action::Move(Data::ToHost(data), len as u32))
            }
            io::WRITE => {
                *writes += 1;
                Ok(Action::Move(Data::FromHost(at), len as u32))
            }
            _ => {
                self.disk.zero(at, len);
                Ok(Action::Done(0))
            }
        }
    }

    /// Performs the next step of a data transfer.
    fn go_on(&mut self, key: u64) {
        let Some(transfer) = self.transfers.get(&key) else {
            return;
        };
        if let Some(part) = transfer.pages.wanted() {
            return self.reads.start(Read::List(key), vec![part]);
        }
        let pieces = transfer.pages.pieces();
        match &transfer.data {
            Data::FromHost(_) => self.reads.start(Read::Data(key), pieces.to_vec()),
            Data::ToHost(data) => {
                let mut rest = &data[..];
                for &(addr, len) in pieces {
                    let (piece, behind) = rest.split_at(rest.len().min(len as usize));
                    self.posts.write(addr, piece.to_vec());
                    rest = behind;
                }
                self.end(key, Ok(0));
            }
        }
    }

    fn end(&mut self, key: u64, result: Result<u32, Status>) {
        if let Some(transfer) = self.transfers.remove(&key) {
            self.complete(transfer.queue, transfer.id, result);
        }
    }

    fn complete(&mut self, number: u16, id: u16, result: Result<u32, Status>) {
        let Some(queue) = self.submission(number) else {
            return;
        };
        let (head, to) = (queue.head(), queue.to);
        let completion = Completion {
            result: result.unwrap_or(0),
            queue: number,
            head,
            id,
            status: result.err().unwrap_or(Status::SUCCESS),
        };
        if let Some(Some(queue)) = self.completions.get_mut(usize::from(to)) {
            queue.push(completion);
            queue.post(&mut self.posts);
        }
    }

    fn mem_read(&mut self, span: Span) -> Option<Vec<[u8; 4]>> {
        let base = self.function.decode(span, regs::BAR_SIZE)?;
        let all = (base..base + u64::from(span.dwords) * 4).step_by(4);
        let dword = |at| match at {
            regs::TABLE..regs::PENDING => std::array::from_fn(|i| {
                let byte = self.function.table_byte(at - regs::TABLE + i as u64);
                byte.map_or(0, |b| *b)
            }),
            regs::PENDING => self.function.pending().to_le_bytes(),
            _ => self.read_reg(at).to_le_bytes(),
        };
        Some(all.map(dword).collect())
    }

    fn mem_write(&mut self, span: Span, data: &[u8], link: &mut Link<'_>) {
        let Some(base) = self.function.decode(span, regs::BAR_SIZE) else {
            return;
        };
        for (i, word) in data.chunks_exact(4).enumerate() {
            let at = base + 4 * i as u64;
            let enables = span.enables(i as u16);
            if at < regs::TABLE {
                // Registers accept only writes of whole dwords.
                if let (0xF, Ok(raw)) = (enables, word.try_into()) {
                    self.write_reg(at, u32::from_le_bytes(raw));
                }
                continue;
            }
            for k in (0..4).filter(|&k| enables & (1 << k) != 0) {
                if let Some(byte) = self.function.table_byte(at - regs::TABLE + k as u64) {
                    *byte = word[k];
                }
            }
        }
        self.function.deliver(1, link);
        self.run(link);
    }
}

impl Endpoint for Nvme {
    fn receive(&mut self, packet: PciePacket, link: &mut Link<'_>) {
        match packet.tlp.kind {
            Kind::MemRead {
                requester,
                tag,
                span,
            } => {
                let data = self.mem_read(span);
                self.function.answer((requester, tag), span, data, link);
            }
            Kind::MemWrite { span, .. } if !packet.tlp.poisoned => {
                self.mem_write(span, &packet.data, link);
            }
            Kind::MemWrite { .. } => {}
            Kind::CfgRead { .. } | Kind::CfgWrite { .. } => {
                let effects = self.function.configure(&packet, link);
                if effects.reset {
                    self.function_reset();
                } else if effects.interrupts {
                    self.function.deliver(1, link);
                    self.run(link);
                }
            }
            Kind::Completion { tag, .. } => {
                if let Some(outcome) = self.reads.complete(tag, &packet) {
                    self.arrived(outcome);
                }
                self.run(link);
            }
        }
    }

    fn tick(&mut self, link: &mut Link<'_>) {
        for outcome in self.reads.expire(link.now_ns) {
            self.arrived(outcome);
        }
        self.run(link);
    }

    fn next_deadline(&self) -> Option<u64> {
        self.reads.deadline()
    }

    fn wants_credit(&self) -> bool {
        self.starved
    }

    fn reset(&mut self) {
        self.function_reset();
        self.function.power_on();
        self.reads.forget();
    }
}
