//! A lender with one device, and borrowers. The test delivers messages and executes work.

#[path = "../heap/mod.rs"]
mod heap;

use heap::Heap;
use protocol::pci::config::Layout;
use protocol::pci::lender::{Open, Step, Work as LenderWork};
use protocol::pci::{
    borrower::Work, Borrower, Config, Handle, LeaseState, Lender, Limits, OfferState, Opened,
};
use protocol::Time;
use wire::ids::NodeId;
use wire::pci::{Bar, Body, Borrow, Device, Message, Numbers, Register, Role};

pub const LIMITS: Limits = Limits {
    ms: 1,
    timeout_ms: 1000,
    longest_ms: 10_000,
    retry: 100,
    retry_max: 800,
    in_flight_max: 50,
    quarantine: 0,
    access: 200,
    access_retry: 20,
    give_up: 5000,
    per_node: 2,
    dma_max: 64 << 20,
    reset_pause: 300,
};
pub const LENDER: NodeId = NodeId(0);
/// Set of the interval numbers 1…8.
pub const SOME: u64 = 0x1fe;

pub fn lender(limits: &Limits, random: u64) -> Lender<Heap> {
    let Ok(lender) = Lender::new(Time(0), 4, limits, random);
    lender
}

pub fn borrower(limits: &Limits, random: u64) -> Borrower<Heap> {
    let Ok(borrower) = Borrower::new(Time(0), 4, limits, random);
    borrower
}

pub fn device() -> Device {
    let bar = Bar {
        log2: 14,
        is_64bit: true,
        prefetchable: false,
    };
    Device {
        bars: [Some(bar), None, None, None, None, None],
        ..Device::default()
    }
}

/// Returns registers of a function with MSI at 0x40, which has 64-bit addresses and mask bits.
pub fn registers(at: u16) -> u32 {
    match at {
        0x00 => 0x0010_1b36,
        0x04 => 0x0010_0000,
        0x34 => 0x40,
        0x40 => 0x0180_0005,
        _ => 0,
    }
}

pub fn layout() -> Layout {
    Layout::read(registers).expect("a layout")
}

/// A lender with one device, and borrowers at nodes 1, 2, …
pub struct World {
    pub now: u64,
    pub lender: Lender<Heap>,
    pub borrowers: Vec<Borrower<Heap>>,
    pub device: u32,
    /// Pending work of the lender, and of borrowers by index.
    pub lender_work: Vec<LenderWork>,
    pub work: Vec<(usize, Work)>,
    /// Accesses that the lender requested, and accesses that were executed.
    pub configs: Vec<Config>,
    pub executed: Vec<Config>,
    /// Node whose messages are lost.
    pub unreachable: Option<u16>,
    pub sent: Vec<(u16, u16, Message)>,
}

impl World {
    pub fn new(count: usize) -> Self {
        let mut lender = lender(&LIMITS, 7);
        let device = lender.offer(&device(), &layout()).expect("room");
        Self {
            now: 0,
            lender,
            borrowers: (0..count)
                .map(|i| borrower(&LIMITS, 100 + i as u64))
                .collect(),
            device,
            lender_work: Vec::new(),
            work: Vec::new(),
            configs: Vec::new(),
            executed: Vec::new(),
            unreachable: None,
            sent: Vec::new(),
        }
    }

    pub fn time(&self) -> Time {
        Time(self.now)
    }

    pub fn terms(&self) -> Borrow {
        let (device, _) = self.lender.devices().next().expect("a device");
        Borrow {
            handle: device.handle,
            generation: device.generation,
            lender: self.lender.incarnation(),
            windows: SOME,
            targets: SOME,
            dma: 1 << 20,
        }
    }

    pub fn borrow(&mut self, i: usize) -> Handle {
        let (now, terms) = (self.time(), self.terms());
        let until = Time(self.now + 3000);
        let handle = self.borrowers[i].borrow(now, LENDER, &terms, until);
        handle.expect("room")
    }

    pub fn send(&mut self, from: u16, to: NodeId, message: Message) {
        self.sent.push((from, to.0, message));
        if self.unreachable == Some(to.0) || self.unreachable == Some(from) {
            return;
        }
        let words = message.words();
        let read = Message::parse(message.kind().tag(), words.bytes(), |i| words.as_slice()[i]);
        assert_eq!(read, Ok(message));
        let now = self.time();
        match (message.role(), to) {
            (Role::Lender, LENDER) => self.lender.receive(now, NodeId(from), &message),
            (Role::Borrower, NodeId(n)) if n > 0 => {
                self.borrowers[usize::from(n) - 1].receive(now, NodeId(from), &message);
            }
            // The node is no receiver for this kind of message.
            _ => {}
        }
    }

    /// Delivers messages and executes accesses until none are pending. Work remains pending.
    pub fn deliver_all(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "never settles");
            let now = self.time();
            let mut idle = true;
            if let Some(step) = self.lender.step(now) {
                idle = false;
                match step {
                    Step::Send(to, message) => self.send(0, to, message),
                    Step::Config(config) => self.configs.push(config),
                }
            }
            while let Some(work) = self.lender.work() {
                self.lender_work.push(work);
            }
            for i in 0..self.borrowers.len() {
                if let Some((to, message)) = self.borrowers[i].step(now) {
                    idle = false;
                    self.send(i as u16 + 1, to, message);
                }
                while let Some(work) = self.borrowers[i].work() {
                    self.work.push((i, work));
                }
            }
            if idle {
                return;
            }
        }
    }

    pub fn opened(&self, open: &Open) -> Opened {
        let n = open.bars.trailing_zeros() as u8;
        let dma = open.links.trailing_zeros() as u8;
        let interrupts = (open.links & (open.links - 1)).trailing_zeros() as u8;
        Opened {
            numbers: Numbers {
                bars: [n, 0, 0, 0, 0, 0],
                dma,
                interrupts,
            },
            dma: 0x10_0000,
            interrupts: 0xfe00_0000,
        }
    }

    /// Executes all work, including the work that follows.
    pub fn all(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "never ends");
            self.deliver_all();
            let now = self.time();
            let lender_work = std::mem::take(&mut self.lender_work);
            let work = std::mem::take(&mut self.work);
            let configs = std::mem::take(&mut self.configs);
            if lender_work.is_empty() && work.is_empty() && configs.is_empty() {
                return;
            }
            for config in configs {
                self.lender.configured(&config, Ok(0x5a5a_5a5a));
                self.executed.push(config);
            }
            for work in lender_work {
                match work {
                    LenderWork::Open(open) => {
                        let opened = self.opened(&open);
                        self.lender.opened(now, open.handle, Ok(opened));
                    }
                    LenderWork::Close(handle, _) => self.lender.closed(now, handle),
                    LenderWork::Reset(handle) => self.lender.reset(now, handle, true),
                    LenderWork::Release(_) | LenderWork::Gone(_) => {}
                }
            }
            for (i, work) in work {
                match work {
                    Work::Open(handle, _) => self.borrowers[i].opened(now, handle, true),
                    Work::Close(handle, _) => self.borrowers[i].closed(now, handle),
                    Work::Recall(handle, _) => self.borrowers[i].give_back(now, handle),
                    Work::Closed(..) | Work::Release(_) => {}
                }
            }
        }
    }

    /// Advances the time to `until` and processes time-outs on the way. Executes no work.
    pub fn pass(&mut self, until: u64) {
        loop {
            let mut next = until;
            let wanted = self.borrowers.iter().filter_map(|b| b.next());
            for at in wanted.chain(self.lender.next()) {
                next = next.min(at.0.max(self.now + 1));
            }
            self.now = next;
            let now = self.time();
            self.lender.time(now);
            self.borrowers.iter_mut().for_each(|b| b.time(now));
            self.deliver_all();
            if next >= until {
                return;
            }
        }
    }

    pub fn up(&mut self, i: usize) -> Handle {
        let handle = self.borrow(i);
        self.all();
        assert_eq!(self.borrowers[i].state(handle), Some(LeaseState::Up));
        handle
    }

    pub fn state(&self) -> OfferState {
        self.lender.state(self.device).expect("a device")
    }

    pub fn count(&self, is: impl Fn(&Body) -> bool) -> usize {
        self.sent.iter().filter(|s| is(&s.2.body)).count()
    }
}

pub fn register(offset: u16, size: u8) -> Register {
    Register::new(offset, size).expect("a register")
}
