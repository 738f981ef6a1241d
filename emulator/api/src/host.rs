//! The host side of a NIC: power and statistics.

use serde::{Deserialize, Serialize};

/// Statistics of the interface between NIC and host, since the start of the emulator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStats {
    /// Clients that connected.
    pub connects: u64,
    /// Device resets that the client requested (system resets).
    pub device_resets: u64,
    /// Function-level resets, and returns from power state D3.
    pub function_resets: u64,
    /// Reads of the configuration space.
    pub config_reads: u64,
    /// Writes to the configuration space.
    pub config_writes: u64,
    /// MSI messages that reached the client.
    pub msi_sent: u64,
    /// MSI messages that were lost because MSI or bus mastering was off, or because the client had
    /// set no eventfd.
    pub msi_lost: u64,
    /// DMA accesses refused because bus mastering was off.
    pub dma_no_bus_master: u64,
    /// DMA accesses refused because their address is neither in guest memory nor in another device
    /// of the host.
    pub dma_outside_memory: u64,
    /// Loads from other devices of the host that were answered.
    pub peer_loads: u64,
    /// Stores to other devices of the host that were executed.
    pub peer_stores: u64,
    /// Accesses to other devices that were abandoned because the client disconnected or did not
    /// answer in time.
    pub peer_unanswered: u64,
    /// Accesses to other devices that were refused because too many accesses waited, or because
    /// they were too long.
    pub peer_refused: u64,
    /// Loads from other devices that could never be answered, because the hosts waited for each
    /// other.
    pub peer_deadlocks: u64,
    /// Violations of the protocol by the client.
    pub protocol_errors: u64,
    /// Panics of the model that were contained.
    pub panics: u64,
}

/// Power state of a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    /// The NIC has power and works.
    On,
    /// The NIC is switched off or removed. Reads return all ones.
    Off,
    /// The model has panicked. Reads return all ones until a reset revives the NIC.
    Dead,
}
