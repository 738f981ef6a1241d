//! Host side of one NIC: guest memory, interrupts and configuration space. It implements [`Host`]
//! for the NIC model.

use crate::env::{DmaFault, Host};
use crate::pci::{ConfigSpace, PciConfig};
use crate::peer::{Due, Lost, Peers};
use crate::vfio_user::GuestMemory;
pub use extoll_emulator_api::host::HostStats;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Rate limit of log messages: four per second after an initial burst.
#[derive(Debug, Default)]
pub struct LogLimit {
    spent: u32,
    since_ns: u64,
    suppressed: u64,
}

impl LogLimit {
    const BURST: u32 = 16;
    const REFILL_NS: u64 = 250_000_000;

    /// Returns `Some(n)` if the message may be logged now. `n` is the number of messages that were
    /// suppressed before it. Returns `None` if the message must be suppressed.
    pub fn allow(&mut self, now_ns: u64) -> Option<u64> {
        let refill = now_ns.saturating_sub(self.since_ns) / Self::REFILL_NS;
        if refill > 0 {
            self.spent = self
                .spent
                .saturating_sub(refill.min(u64::from(Self::BURST)) as u32);
            self.since_ns = now_ns;
        }
        if self.spent < Self::BURST {
            self.spent += 1;
            Some(std::mem::take(&mut self.suppressed))
        } else {
            self.suppressed += 1;
            None
        }
    }
}

/// Host side of one NIC.
pub struct Machine {
    nic: usize,
    /// PCI configuration space of the NIC.
    pub config: ConfigSpace,
    /// Guest memory that the client has mapped.
    pub memory: GuestMemory,
    /// Accesses to other devices of the host.
    pub peers: Peers,
    msi: Vec<Option<OwnedFd>>,
    /// Time of the current event in ns since the start.
    pub now_ns: u64,
    /// Statistics of the interface between NIC and host.
    pub stats: HostStats,
    log: LogLimit,
}

impl Machine {
    /// Returns a host to which no client is connected.
    pub fn new(nic: usize, pci: PciConfig) -> Self {
        Self {
            nic,
            config: ConfigSpace::new(pci),
            memory: GuestMemory::default(),
            peers: Peers::default(),
            msi: Vec::new(),
            now_ns: 0,
            stats: HostStats::default(),
            log: LogLimit::default(),
        }
    }

    /// Drops all state that belongs to the client. Returns the loads that the client has not
    /// answered.
    pub fn disconnect(&mut self) -> Vec<u64> {
        let (lost, due) = self.peers.close();
        let loads = self.lose(lost, due);
        self.memory.clear();
        self.msi.clear();
        self.config.reset();
        loads
    }

    /// Stops waiting for a client that does not answer. Returns the loads that waited for the
    /// client.
    pub fn give_up(&mut self) -> Vec<u64> {
        let (lost, due) = self.peers.give_up();
        let n = lost.count();
        let loads = self.lose(lost, due);
        self.warn(format_args!(
            "the client has not answered {n} accesses to other devices; further accesses fail until it answers"
        ));
        loads
    }

    fn lose(&mut self, lost: Lost, due: Vec<Due>) -> Vec<u64> {
        self.stats.peer_unanswered += lost.count();
        for due in due {
            self.commit(due);
        }
        lost.loads
    }

    /// Performs memory writes and interrupts that waited for stores to other devices.
    pub fn run_due(&mut self) {
        while let Some(due) = self.peers.due() {
            self.commit(due);
        }
    }

    /// Makes all pending writes to memory visible, even if earlier stores to devices have not
    /// ended. A read of the NIC by its host pushes these writes. It must not wait for the stores,
    /// because only the host can end them.
    pub fn push(&mut self) {
        for due in self.peers.push_out() {
            self.commit(due);
        }
    }

    fn commit(&mut self, due: Due) {
        match due {
            Due::Write(addr, data) => {
                // Failure means that the client has unmapped the address since the chip wrote.
                if !self.memory.write(addr, &data) {
                    self.refuse(addr, data.len(), "write");
                }
            }
            Due::Interrupt(vector) => self.interrupt(vector),
        }
    }

    fn interrupt(&mut self, vector: u16) {
        // An MSI is a memory write, so it needs bus mastering, too.
        if vector < self.config.msi_enabled() && self.config.bus_master() && self.signal(vector) {
            self.stats.msi_sent += 1;
        } else {
            self.stats.msi_lost += 1;
        }
    }

    /// Routes MSI vectors from `start` on to eventfds.
    pub fn set_msi(&mut self, start: u32, fds: Vec<Option<OwnedFd>>) {
        let end = start as usize + fds.len();
        if self.msi.len() < end {
            self.msi.resize_with(end, || None);
        }
        for (slot, fd) in self.msi[start as usize..].iter_mut().zip(fds) {
            *slot = fd;
        }
    }

    /// Removes all eventfds.
    pub fn clear_msi(&mut self) {
        self.msi.clear();
    }

    /// Signals the eventfd of a vector. Returns `false` if the vector has no eventfd.
    pub fn signal(&mut self, vector: u16) -> bool {
        let Some(Some(fd)) = self.msi.get(usize::from(vector)) else {
            return false;
        };
        // EAGAIN counts as success, because a full counter still wakes the client.
        matches!(
            rustix::io::write(fd, &1u64.to_ne_bytes()),
            Ok(_) | Err(Errno::AGAIN)
        )
    }

    /// Logs an error of the guest or client, at a limited rate.
    pub fn warn(&mut self, what: std::fmt::Arguments<'_>) {
        match self.log.allow(self.now_ns) {
            Some(0) => tracing::warn!(nic = self.nic, "{what}"),
            Some(n) => tracing::warn!(nic = self.nic, "{what} ({n} earlier messages suppressed)"),
            None => {}
        }
    }

    /// Returns true if the host would accept a write of `len` bytes at `addr` now.
    pub fn takes(&self, addr: u64, len: usize) -> bool {
        self.config.bus_master() && (self.memory.writable(addr, len) || self.peers.accepts(len))
    }

    /// Counts an access that the client rejected.
    pub fn refused(&mut self, addr: u64, len: usize, what: &str, error: u32) {
        if self.config.bus_master() {
            self.stats.dma_outside_memory += 1;
            self.warn(format_args!(
                "DMA {what} of {len} bytes at {addr:#x} refused: outside guest memory, and no device has this address (error {error})"
            ));
        } else {
            // Bus mastering was on when the message was created, but is off now.
            self.stats.dma_no_bus_master += 1;
        }
    }

    fn refuse(&mut self, addr: u64, len: usize, what: &str) -> DmaFault {
        if self.config.bus_master() {
            self.stats.dma_outside_memory += 1;
            self.warn(format_args!(
                "DMA {what} of {len} bytes at {addr:#x} refused: outside guest memory"
            ));
        } else {
            self.stats.dma_no_bus_master += 1;
            self.warn(format_args!(
                "DMA {what} of {len} bytes at {addr:#x} refused: bus mastering is off"
            ));
        }
        DmaFault { addr, len }
    }

    /// Rejects an access that can't be passed to the client.
    fn refuse_peer(&mut self, addr: u64, len: usize, what: &str) -> DmaFault {
        if !self.config.bus_master() || !self.peers.is_open() {
            return self.refuse(addr, len, what);
        }
        if self.peers.is_mute() {
            self.stats.peer_unanswered += 1;
        } else {
            self.stats.peer_refused += 1;
            self.warn(format_args!(
                "DMA {what} of {len} bytes at {addr:#x} refused: too long for a device, or too many accesses are pending"
            ));
        }
        DmaFault { addr, len }
    }
}

impl Host for Machine {
    fn dma_read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        if self.config.bus_master() && self.memory.read(addr, buf) {
            self.peers.overlay(addr, buf);
            Ok(())
        } else {
            Err(self.refuse(addr, buf.len(), "read"))
        }
    }

    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        if !self.config.bus_master() {
            return Err(self.refuse(addr, data.len(), "write"));
        }
        if self.memory.writable(addr, data.len()) {
            if !self.peers.holds() {
                self.memory.write(addr, data);
            } else if let Some(due) = self
                .peers
                .behind(self.now_ns, Due::Write(addr, data.to_vec()))
            {
                self.commit(due);
            }
            Ok(())
        } else if self.peers.store(self.now_ns, addr, data) {
            Ok(())
        } else {
            Err(self.refuse_peer(addr, data.len(), "write"))
        }
    }

    fn begin_load(&mut self, addr: u64, len: usize) -> Result<Option<u64>, DmaFault> {
        if !self.config.bus_master() || self.memory.readable(addr, len) {
            return Ok(None);
        }
        match self.peers.load(self.now_ns, addr, len) {
            None => Err(self.refuse_peer(addr, len, "read")),
            number => Ok(number),
        }
    }

    fn device_writes(&self) -> (u64, u64) {
        self.peers.stores()
    }

    fn peek(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.memory.read(addr, buf)
    }

    fn msi(&mut self, vector: u16) {
        if !self.peers.holds() {
            self.interrupt(vector);
        } else if let Some(due) = self.peers.behind(self.now_ns, Due::Interrupt(vector)) {
            self.commit(due);
        }
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}
