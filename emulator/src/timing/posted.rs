//! Delays of posted writes and interrupts from a NIC to its host. They become visible later than
//! the chip issues them.
//!
//! A write belongs to the [`Stream`]s that the NIC had entered, and follows earlier writes of these
//! streams. A read by the NIC, and a completion to its host, push earlier writes, as PCIe requires
//! ([`Push`]).

use super::{Draw, Lanes, Push, TimingConfig, TimingStats};
use crate::env::{DmaFault, Host, Stream};
use crate::machine::Machine;
use crate::seed::Purpose;
use std::collections::BTreeMap;

/// Maximum number of waiting bytes, which limits the emulator's memory. If there are more, the
/// oldest writes are performed at once.
const MAX_QUEUED_BYTES: usize = 4 << 20;

struct Write {
    addr: u64,
    data: Vec<u8>,
    /// True if the address belongs to a device, false if it belongs to memory.
    to_device: bool,
}

/// Writes and interrupts of a NIC that are not visible to its host.
pub(crate) struct Posted {
    draw: Draw,
    most: u64,
    msi_most: u64,
    push: Push,
    bridge_ns: u64,
    spurious_every: u32,
    lanes: Lanes<Stream>,
    /// Due time in ns of the last write to a receive queue.
    last_queue: u64,
    /// Due time in ns of the last write.
    last: u64,
    /// Value of [`Posted::last`] at the time of the last fence.
    fenced: u64,
    /// Pending writes by due time and order of issue.
    writes: BTreeMap<(u64, u64), Write>,
    bytes: usize,
    /// Number of pending writes to devices.
    to_devices: u64,
    made: u64,
    /// Pending interrupts by due time and order: the vector, and false if the interrupt is
    /// spurious.
    interrupts: BTreeMap<(u64, u64), (u16, bool)>,
    streams: Vec<Stream>,
}

impl Posted {
    pub(super) fn new(cfg: &TimingConfig, seed: u64, nic: usize) -> Self {
        Self {
            draw: Draw::new(cfg, seed, nic, Purpose::Posted),
            most: cfg.dma_delay_ns,
            msi_most: cfg.msi_delay_ns,
            push: cfg.push,
            bridge_ns: cfg.bridge_ns,
            spurious_every: cfg.spurious_every,
            lanes: Lanes::default(),
            last_queue: 0,
            last: 0,
            fenced: 0,
            writes: BTreeMap::new(),
            bytes: 0,
            to_devices: 0,
            made: 0,
            interrupts: BTreeMap::new(),
            streams: Vec::new(),
        }
    }

    /// Returns the earliest time at which a new write or interrupt may become visible.
    fn after(&self) -> u64 {
        let of = |s: &Stream| match *s {
            Stream::Everything => self.last,
            Stream::Answers => self.fenced,
            Stream::Snq => self.last_queue,
            _ => 0,
        };
        self.streams.iter().map(of).max().unwrap_or(0)
    }

    fn write(
        &mut self,
        now: u64,
        addr: u64,
        data: &[u8],
        to_device: bool,
        stats: &mut TimingStats,
    ) {
        let after = self.after();
        let lanes = self.streams.iter().copied();
        let at = self
            .lanes
            .place(now, self.most, after, lanes, &mut self.draw);
        self.last = self.last.max(at);
        if self.streams.iter().any(|s| matches!(s, Stream::Queue(..))) {
            self.last_queue = self.last_queue.max(at);
        }
        self.made += 1;
        self.bytes += data.len();
        let last = self.writes.last_key_value();
        stats.writes_overtook += u64::from(last.is_some_and(|(last, _)| last.0 > at));
        self.to_devices += u64::from(to_device);
        let write = Write {
            addr,
            data: data.to_vec(),
            to_device,
        };
        self.writes.insert((at, self.made), write);
    }

    fn interrupt(&mut self, now: u64, vector: u16, stats: &mut TimingStats) {
        let lanes = self.streams.iter().map(|&s| self.lanes.last(s));
        let ready = lanes.fold(self.after().max(now), std::cmp::max);
        // A pending interrupt that follows all of these writes announces them, too.
        let same = |(&(at, _), &(v, real)): (&(u64, u64), &(u16, bool))| {
            at >= ready && v == vector && real
        };
        if self.interrupts.iter().any(same) {
            stats.msi_merged += 1;
            return;
        }
        let at = ready.saturating_add(self.draw.delay(self.msi_most));
        self.made += 1;
        self.interrupts.insert((at, self.made), (vector, true));
        if self.draw.one_in(self.spurious_every) {
            self.made += 1;
            self.interrupts.insert((now, self.made), (vector, false));
        }
    }

    /// Makes the first write visible.
    fn commit(&mut self, machine: &mut Machine, stats: &mut TimingStats) {
        let Some((_, write)) = self.writes.pop_first() else {
            return;
        };
        self.bytes -= write.data.len();
        self.to_devices -= u64::from(write.to_device);
        stats.writes_delayed += 1;
        // The address range existed when the chip wrote. If the range has been unmapped since,
        // `dma_write` counts and reports the failure.
        let _ = machine.dma_write(write.addr, &write.data);
    }

    /// Makes the writes visible that a read pushes: the first writes in due order, up to a limit.
    pub(super) fn push(&mut self, now: u64, machine: &mut Machine, stats: &mut TimingStats) {
        let most = match self.push {
            Push::All => u64::MAX,
            Push::Bridge if self.streams.contains(&Stream::Everything) => u64::MAX,
            Push::Bridge => {
                let own = self.streams.iter().map(|&s| self.lanes.last(s));
                own.fold(now.saturating_add(self.bridge_ns), std::cmp::max)
            }
        };
        let first = |writes: &BTreeMap<(u64, u64), Write>| {
            writes
                .first_key_value()
                .is_some_and(|((at, _), _)| *at <= most)
        };
        stats.pushes += u64::from(first(&self.writes));
        while first(&self.writes) {
            self.commit(machine, stats);
        }
    }

    /// Performs the writes and interrupts that are due.
    pub(super) fn run(&mut self, now: u64, machine: &mut Machine, stats: &mut TimingStats) {
        let due = |first: Option<(&(u64, u64), _)>| first.is_some_and(|((at, _), _)| *at <= now);
        while due(self.writes.first_key_value().map(|(k, _)| (k, ()))) {
            self.commit(machine, stats);
        }
        while due(self.interrupts.first_key_value().map(|(k, _)| (k, ()))) {
            if let Some((_, (vector, real))) = self.interrupts.pop_first() {
                stats.msi_spurious += u64::from(!real);
                machine.msi(vector);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        let writes = self.writes.first_key_value().map(|((at, _), _)| *at);
        let interrupts = self.interrupts.first_key_value().map(|((at, _), _)| *at);
        writes.into_iter().chain(interrupts).min()
    }

    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.interrupts.clear();
        self.lanes = Lanes::default();
        (self.last, self.last_queue, self.fenced) = (0, 0, 0);
        self.bytes = 0;
        self.to_devices = 0;
    }

    pub(super) fn reseed(&mut self, seed: u64, nic: usize) {
        self.draw.reseed(seed, nic, Purpose::Posted);
    }
}

/// The host of a NIC during one event, with the writes in flight to the host if the model has
/// delays.
pub(crate) struct TimedHost<'a> {
    machine: &'a mut Machine,
    posted: Option<(&'a mut Posted, &'a mut TimingStats)>,
}

impl<'a> TimedHost<'a> {
    pub(crate) fn new(machine: &'a mut Machine, timing: Option<&'a mut super::NicTiming>) -> Self {
        let posted = timing.map(|t| {
            t.posted.streams.clear();
            (&mut t.posted, &mut t.stats)
        });
        Self { machine, posted }
    }
}

impl Host for TimedHost<'_> {
    fn dma_read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        if let Some((posted, stats)) = &mut self.posted {
            posted.push(self.machine.now_ns, self.machine, stats);
        }
        self.machine.dma_read(addr, buf)
    }

    fn begin_load(&mut self, addr: u64, len: usize) -> Result<Option<u64>, DmaFault> {
        if let Some((posted, stats)) = &mut self.posted {
            posted.push(self.machine.now_ns, self.machine, stats);
        }
        self.machine.begin_load(addr, len)
    }

    fn device_writes(&self) -> (u64, u64) {
        let (made, done) = self.machine.device_writes();
        let waiting = self.posted.as_ref().map_or(0, |(p, _)| p.to_devices);
        (made + waiting, done)
    }

    fn peek(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.machine.peek(addr, buf)
    }

    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        match &mut self.posted {
            Some((posted, stats)) if self.machine.takes(addr, data.len()) => {
                let to_device = !self.machine.memory.writable(addr, data.len());
                posted.write(self.machine.now_ns, addr, data, to_device, stats);
                while posted.bytes > MAX_QUEUED_BYTES {
                    posted.commit(self.machine, stats);
                }
                Ok(())
            }
            _ => self.machine.dma_write(addr, data),
        }
    }

    fn msi(&mut self, vector: u16) {
        match &mut self.posted {
            Some((posted, stats)) => posted.interrupt(self.machine.now_ns, vector, stats),
            None => self.machine.msi(vector),
        }
    }

    fn now_ns(&self) -> u64 {
        self.machine.now_ns
    }

    fn enter(&mut self, stream: Stream) {
        if let Some((posted, _)) = &mut self.posted {
            posted.streams.push(stream);
        }
    }

    fn leave(&mut self) {
        if let Some((posted, _)) = &mut self.posted {
            posted.streams.pop();
        }
    }

    fn fence(&mut self) {
        if let Some((posted, _)) = &mut self.posted {
            posted.fenced = posted.last;
        }
    }
}
