//! A host with a drive for tests: memory, and the first steps of a driver.

use extoll_emulator::endpoint::nvme::{command as c, regs};
use extoll_emulator::endpoint::{DeviceConfig, Disk, Endpoint, Link, Nvme, PciePacket};
use std::collections::VecDeque;
use wire::tlp::{Bdf, CfgType, Kind, Span};

pub const DEVICE: Bdf = Bdf::new(1, 0, 0);
pub const BAR: u64 = 0xE000_0000;
/// Address of the host's memory on the drive's bus.
pub const RAM: u64 = 0x1000_0000;
pub const RAM_BYTES: usize = 1 << 20;
/// Address to which the drive writes its MSI messages.
pub const MSI: u64 = 0x2000_0000;
/// An unmapped address.
pub const NOWHERE: u64 = 0x7000_0000;
pub const DISK_MIB: u64 = 1;

/// Address of the test's queues. Each queue occupies `QUEUE_BYTES` bytes.
const QUEUES: u64 = RAM;
const QUEUE_BYTES: u64 = 0x4000;
pub const LIST: u64 = RAM + 0x3_0000;
pub const DATA: u64 = RAM + 0x4_0000;

/// Number of entries of each of the test's queues.
pub const ENTRIES: u32 = 8;

/// A submission queue and its completion queue, as the driver sees them.
#[derive(Clone, Copy)]
pub struct Pair {
    pub number: u16,
    size: u32,
    tail: u32,
    head: u32,
    phase: bool,
}

impl Pair {
    pub fn commands(&self) -> u64 {
        QUEUES + u64::from(self.number) * 2 * QUEUE_BYTES
    }

    pub fn completions(&self) -> u64 {
        self.commands() + QUEUE_BYTES
    }
}

/// Content of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    pub id: u16,
    pub result: u32,
    pub status: c::Status,
    pub head: u16,
}

/// A command: opcode, namespace, pointers, and dwords 10 to 12.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ask {
    pub opcode: u8,
    pub flags: u8,
    pub id: u16,
    pub namespace: u32,
    pub prp: [u64; 2],
    pub dwords: [u32; 4],
}

pub struct Host {
    pub drive: Nvme,
    pub disk: Disk,
    pub ram: Vec<u8>,
    pub now: u64,
    /// Number of packets that the link accepts in each call.
    pub credits: usize,
    /// True to keep answers to reads until [`Host::release`] is called.
    pub hold: bool,
    answers: VecDeque<PciePacket>,
    out: VecDeque<PciePacket>,
    loads: VecDeque<PciePacket>,
    /// Data words of the interrupts that the drive sent.
    pub interrupts: Vec<u32>,
    /// Number of stores of the drive to unmapped addresses.
    pub lost: u32,
    pub pairs: Vec<Pair>,
}

impl Host {
    /// Creates a host with a drive in the state in which a driver finds it: the BAR is set, and
    /// memory decoding and bus mastering are enabled.
    pub fn new() -> Self {
        let disk = Disk::new(DISK_MIB);
        let mut h = Self {
            drive: Nvme::new(&DeviceConfig::default(), 0x00E0_0002, disk.clone()),
            disk,
            ram: vec![0; RAM_BYTES],
            now: 1000,
            credits: 64,
            hold: false,
            answers: VecDeque::new(),
            out: VecDeque::new(),
            loads: VecDeque::new(),
            interrupts: Vec::new(),
            lost: 0,
            pairs: Vec::new(),
        };
        h.place();
        h
    }

    pub fn place(&mut self) {
        self.cfg_write(0x10, BAR as u32);
        self.cfg_write(0x14, 0);
        self.cfg_write(0x04, 6);
        // MSI-X vector k stores the value k.
        for k in 0..4 {
            let entry = regs::TABLE + 16 * k;
            self.write(entry, MSI as u32);
            self.write(entry + 4, 0);
            self.write(entry + 8, k as u32);
            self.write(entry + 12, 0);
        }
        let msix = self.capability(0x11);
        self.cfg_write(msix, 0x8000 << 16);
    }

    fn call(&mut self, f: impl FnOnce(&mut Nvme, &mut Link<'_>)) {
        let mut link = Link::new(self.now, self.credits, &mut self.out);
        f(&mut self.drive, &mut link);
        self.pump();
    }

    pub fn send(&mut self, packet: PciePacket) {
        self.call(|drive, link| drive.receive(packet, link));
    }

    pub fn tick(&mut self) {
        self.call(|drive, link| drive.tick(link));
    }

    fn in_ram(&self, at: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let at = usize::try_from(at.checked_sub(RAM)?).ok()?;
        (at + len <= self.ram.len()).then_some(at..at + len)
    }

    /// Processes all packets that the drive sends, and lets the drive continue.
    fn pump(&mut self) {
        for _ in 0..1_000_000 {
            if let Some(packet) = self.out.pop_front() {
                self.take(packet);
            } else if !self.hold && !self.answers.is_empty() {
                let answer = self.answers.pop_front().expect("one");
                let mut link = Link::new(self.now, self.credits, &mut self.out);
                self.drive.receive(answer, &mut link);
            } else if self.drive.wants_credit() {
                let mut link = Link::new(self.now, self.credits, &mut self.out);
                self.drive.tick(&mut link);
            } else {
                return;
            }
        }
        panic!("the drive does not stop sending");
    }

    fn take(&mut self, packet: PciePacket) {
        match packet.tlp.kind {
            Kind::MemWrite { span, .. } => {
                for (at, bytes) in PciePacket::runs(span, &packet.data) {
                    if let Some(to) = self.in_ram(at, bytes.len()) {
                        self.ram[to].copy_from_slice(bytes);
                    } else if at == MSI {
                        let data = bytes.try_into().map_or(u32::MAX, u32::from_le_bytes);
                        self.interrupts.push(data);
                    } else {
                        self.lost += 1;
                    }
                }
            }
            Kind::MemRead {
                requester,
                tag,
                span,
            } => {
                let (skip, len) = span.extent();
                let place = self.in_ram(span.addr + u64::from(skip), len as usize);
                let data = place.map(|place| self.ram[place].to_vec());
                let all = PciePacket::read_answers(Bdf(0), (requester, tag), span, data.as_deref());
                self.answers.extend(all);
            }
            Kind::Completion { .. } => self.loads.push_back(packet),
            Kind::CfgRead { .. } | Kind::CfgWrite { .. } => panic!("{packet:?}"),
        }
    }

    /// Delivers all kept answers to the drive.
    pub fn release(&mut self) {
        self.hold = false;
        self.pump();
    }

    /// Drops all kept answers.
    pub fn lose(&mut self) {
        self.answers.clear();
    }

    /// Delivers one kept answer to the drive. Returns false if there was none.
    pub fn release_one(&mut self) -> bool {
        let answer = self.answers.pop_front();
        answer.map(|answer| self.send(answer)).is_some()
    }

    pub fn config(&mut self, register: u16, write: Option<u32>) -> u32 {
        let kind = Kind::config(
            write.is_some(),
            CfgType::Type0,
            (Bdf(0), 0),
            DEVICE,
            register,
            0xF,
        );
        let data = write.map_or_else(Vec::new, |v| v.to_le_bytes().to_vec());
        self.send(PciePacket {
            tlp: kind.into(),
            data,
        });
        let answer = self.loads.pop_front().expect("an answer");
        answer.data.try_into().map_or(0, u32::from_le_bytes)
    }

    pub fn cfg_read(&mut self, register: u16) -> u32 {
        self.config(register, None)
    }

    pub fn cfg_write(&mut self, register: u16, value: u32) {
        self.config(register, Some(value));
    }

    pub fn capability(&mut self, id: u8) -> u16 {
        let mut at = self.cfg_read(0x34) as u16 & 0xFC;
        while at != 0 {
            let word = self.cfg_read(at);
            if word as u8 == id {
                return at;
            }
            at = (word >> 8) as u16 & 0xFC;
        }
        panic!("no capability {id:#x}");
    }

    /// Stores bytes to the BAR of the drive.
    pub fn store(&mut self, offset: u64, data: &[u8]) {
        let packets: Vec<_> = PciePacket::writes(Bdf(0), BAR + offset, data).collect();
        packets.into_iter().for_each(|p| self.send(p));
    }

    pub fn write(&mut self, offset: u64, value: u32) {
        self.store(offset, &value.to_le_bytes());
    }

    pub fn write64(&mut self, offset: u64, value: u64) {
        self.store(offset, &value.to_le_bytes());
    }

    pub fn read(&mut self, offset: u64) -> u32 {
        self.load(offset, 4)
            .map_or(u32::MAX, |v| u32::from_le_bytes(v.try_into().unwrap()))
    }

    pub fn load(&mut self, offset: u64, len: u32) -> Option<Vec<u8>> {
        let span = Span::bytes(BAR + offset, len).unwrap();
        self.send(PciePacket::bare(Kind::MemRead {
            requester: Bdf(0),
            tag: 1,
            span,
        }));
        let answer = self.loads.pop_front().expect("an answer");
        (!answer.data.is_empty()).then_some(answer.data)
    }

    pub fn ready(&mut self) -> u32 {
        self.read(regs::CSTS)
    }

    /// Sets up the admin queues, and enables the controller.
    pub fn enable(&mut self) {
        self.pairs = vec![Self::pair(0)];
        let pair = self.pairs[0];
        self.clear(&pair);
        self.write(regs::AQA, (ENTRIES - 1) | ((ENTRIES - 1) << 16));
        self.write64(regs::ASQ, pair.commands());
        self.write64(regs::ACQ, pair.completions());
        self.write(regs::CC, regs::CC_ENTRIES | regs::CC_ENABLE);
    }

    fn clear(&mut self, pair: &Pair) {
        let from = (pair.commands() - RAM) as usize;
        self.ram[from..from + 2 * QUEUE_BYTES as usize].fill(0);
    }

    fn pair(number: u16) -> Pair {
        Pair {
            number,
            size: ENTRIES,
            tail: 0,
            head: 0,
            phase: true,
        }
    }

    /// Creates a pair of I/O queues with this number, which must be the next unused number.
    pub fn create(&mut self, number: u16) {
        assert_eq!(usize::from(number), self.pairs.len());
        let pair = Self::pair(number);
        self.clear(&pair);
        let size = u32::from(number) | ((ENTRIES - 1) << 16);
        for (opcode, at, flags) in [
            (
                c::admin::CREATE_CQ,
                pair.completions(),
                3 | (u32::from(number) << 16),
            ),
            (
                c::admin::CREATE_SQ,
                pair.commands(),
                1 | (u32::from(number) << 16),
            ),
        ] {
            let said = self.admin(Ask {
                opcode,
                prp: [at, 0],
                dwords: [size, flags, 0, 0],
                ..Ask::default()
            });
            assert_eq!(said.status, c::Status::SUCCESS, "{said:?}");
        }
        self.pairs.push(pair);
    }

    /// Writes a command to a submission queue, without a doorbell write.
    pub fn put(&mut self, queue: usize, ask: Ask) {
        let pair = &mut self.pairs[queue];
        let at = (pair.commands() - RAM) as usize + 64 * pair.tail as usize;
        pair.tail = (pair.tail + 1) % pair.size;
        let mut entry = [0; 64];
        entry[0] = ask.opcode;
        entry[1] = ask.flags;
        entry[2..4].copy_from_slice(&ask.id.to_le_bytes());
        entry[4..8].copy_from_slice(&ask.namespace.to_le_bytes());
        entry[24..32].copy_from_slice(&ask.prp[0].to_le_bytes());
        entry[32..40].copy_from_slice(&ask.prp[1].to_le_bytes());
        for (k, dword) in ask.dwords.iter().enumerate() {
            entry[40 + 4 * k..44 + 4 * k].copy_from_slice(&dword.to_le_bytes());
        }
        self.ram[at..at + 64].copy_from_slice(&entry);
    }

    /// Writes the doorbell of a submission queue.
    pub fn ring(&mut self, queue: usize) {
        let pair = self.pairs[queue];
        self.write(regs::tail(pair.number), pair.tail);
    }

    /// Returns the next completion if there is one, without a doorbell write.
    pub fn peek(&mut self, queue: usize) -> Option<Said> {
        let pair = &mut self.pairs[queue];
        let at = (pair.completions() - RAM) as usize + 16 * pair.head as usize;
        let dword = |k: usize| {
            let raw = &self.ram[at + 4 * k..at + 4 * k + 4];
            u32::from_le_bytes(raw.try_into().unwrap())
        };
        let last = dword(3);
        if ((last >> 16) & 1 == 1) != pair.phase {
            return None;
        }
        pair.head += 1;
        if pair.head == pair.size {
            pair.head = 0;
            pair.phase = !pair.phase;
        }
        assert_eq!(dword(2) >> 16, u32::from(pair.number));
        Some(Said {
            id: last as u16,
            result: dword(0),
            status: c::Status((last >> 17) as u16 & 0x7FF),
            head: dword(2) as u16,
        })
    }

    /// Writes the doorbell of a completion queue for the consumed completions.
    pub fn taken(&mut self, queue: usize) {
        let pair = self.pairs[queue];
        self.write(regs::head(pair.number), pair.head);
    }

    /// Executes a command. Returns its completion.
    pub fn ask(&mut self, queue: usize, ask: Ask) -> Said {
        self.put(queue, ask);
        self.ring(queue);
        let said = self.peek(queue).expect("a completion");
        self.taken(queue);
        assert_eq!(said.id, ask.id);
        said
    }

    pub fn admin(&mut self, ask: Ask) -> Said {
        self.ask(0, ask)
    }

    /// Creates a host with an enabled drive and a pair of I/O queues.
    pub fn up() -> Self {
        let mut h = Self::new();
        h.enable();
        h.create(1);
        h
    }

    pub fn put_ram(&mut self, at: u64, data: &[u8]) {
        let to = self.in_ram(at, data.len()).unwrap();
        self.ram[to].copy_from_slice(data);
    }

    pub fn get(&self, at: u64, len: usize) -> &[u8] {
        &self.ram[self.in_ram(at, len).unwrap()]
    }

    /// Writes a list of page addresses.
    pub fn put_list(&mut self, at: u64, entries: &[u64]) {
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_le_bytes()).collect();
        self.put_ram(at, &bytes);
    }
}

/// Returns a command that reads or writes blocks.
pub fn blocks(opcode: u8, first: u64, n: u32, prp: [u64; 2]) -> Ask {
    Ask {
        opcode,
        namespace: 1,
        id: 0x1234,
        prp,
        dwords: [first as u32, (first >> 32) as u32, n - 1, 0],
        ..Ask::default()
    }
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed ^ 0x9E37_79B9_7F4A_7C15);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Random number generator (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}
