//! The host side of one NIC: guest memory, interrupts, configuration space. Implements [`Host`] for the NIC model.

use crate::env::{DmaFault, Host};
use crate::pci::{ConfigSpace, PciConfig};
use crate::vfio_user::GuestMemory;
pub use extoll_emulator_api::host::HostStats;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Lets a burst of log messages through and then a few per second.
#[derive(Debug, Default)]
pub struct LogLimit {
    spent: u32,
    since_ns: u64,
    suppressed: u64,
}

impl LogLimit {
    const BURST: u32 = 16;
    const REFILL_NS: u64 = 250_000_000;

    /// `Some(n)`: log now; `n` messages were left out before. `None`: leave this one out.
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
    /// Configuration space.
    pub config: ConfigSpace,
    /// Memory of the client.
    pub memory: GuestMemory,
    msi: Vec<Option<OwnedFd>>,
    /// Time of the current event, ns since the start.
    pub now_ns: u64,
    /// Statistics.
    pub stats: HostStats,
    log: LogLimit,
}

impl Machine {
    /// No client yet.
    pub fn new(nic: usize, pci: PciConfig) -> Self {
        Self {
            nic,
            config: ConfigSpace::new(pci),
            memory: GuestMemory::default(),
            msi: Vec::new(),
            now_ns: 0,
            stats: HostStats::default(),
            log: LogLimit::default(),
        }
    }

    /// Forgets the client.
    pub fn disconnect(&mut self) {
        self.memory.clear();
        self.msi.clear();
        self.config.reset();
    }

    /// Routes MSI vectors to eventfds.
    pub fn set_msi(&mut self, start: u32, fds: Vec<Option<OwnedFd>>) {
        let end = start as usize + fds.len();
        if self.msi.len() < end {
            self.msi.resize_with(end, || None);
        }
        for (slot, fd) in self.msi[start as usize..].iter_mut().zip(fds) {
            *slot = fd;
        }
    }

    /// No eventfds any more.
    pub fn clear_msi(&mut self) {
        self.msi.clear();
    }

    /// Signals the eventfd of a vector; `false` if there is none.
    pub fn signal(&mut self, vector: u16) -> bool {
        let Some(Some(fd)) = self.msi.get(usize::from(vector)) else {
            return false;
        };
        // A full counter (EAGAIN) still means that the client will be woken.
        matches!(
            rustix::io::write(fd, &1u64.to_ne_bytes()),
            Ok(_) | Err(Errno::AGAIN)
        )
    }

    /// Logs something that the guest or client did wrong, at a limited rate.
    pub fn warn(&mut self, what: std::fmt::Arguments<'_>) {
        match self.log.allow(self.now_ns) {
            Some(0) => tracing::warn!(nic = self.nic, "{what}"),
            Some(n) => tracing::warn!(nic = self.nic, "{what} ({n} earlier messages left out)"),
            None => {}
        }
    }

    /// True if a write of these bytes would succeed now.
    pub fn takes(&self, addr: u64, len: usize) -> bool {
        self.config.bus_master() && self.memory.writable(addr, len)
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
}

impl Host for Machine {
    fn dma_read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        if self.config.bus_master() && self.memory.read(addr, buf) {
            Ok(())
        } else {
            Err(self.refuse(addr, buf.len(), "read"))
        }
    }

    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        if self.config.bus_master() && self.memory.write(addr, data) {
            Ok(())
        } else {
            Err(self.refuse(addr, data.len(), "write"))
        }
    }

    fn peek(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.memory.read(addr, buf)
    }

    fn msi(&mut self, vector: u16) {
        // An MSI is a memory write, so it needs bus mastering as well.
        if vector < self.config.msi_enabled() && self.config.bus_master() && self.signal(vector) {
            self.stats.msi_sent += 1;
        } else {
            self.stats.msi_lost += 1;
        }
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }
}
