//! Counters of a NIC for statistics and cost tables. The hardware's own counters are registers.

use serde::Serialize;

/// Counters of one NIC since power-on. They wrap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Host loads.
    pub mmio_reads: u64,
    /// Host stores.
    pub mmio_writes: u64,
    /// Host stores to the VELO requester.
    pub velo_stores: u64,
    /// Host stores to the RMA requester.
    pub rma_stores: u64,
    /// Accesses outside the requesters that are not 64 bits wide and aligned (G32).
    pub odd_accesses: u64,
    /// Host stores to requester pages beyond the part that holds descriptors; they are executed all
    /// the same (G8).
    pub wc_misplaced: u64,
    /// Host stores to requester pages that are not whole aligned quadwords (HW §17).
    pub wc_not_aligned: u64,
    /// Descriptors with reserved bits set. They are executed as if the bits were 0.
    pub reserved_bits: u64,
    /// Descriptors without a fence behind them that reached the requester or were overwritten.
    pub wc_unfenced: u64,
    /// Set-up registers that software set to forbidden values: the SNQ's interrupt packet, queue
    /// segments inconsistent with their page, RMA units or packet sizes of a VPID, traffic classes
    /// of the SMFU.
    pub bad_setup: u64,
    /// Errors in the kernel's queues (HW §7, §9.5): slots that were returned without being cleared,
    /// and read pointers outside their queue.
    pub bad_slots: u64,
    /// Accesses to addresses without a register, or against its access rights (G32).
    pub bad_accesses: u64,
    /// MSI messages sent.
    pub interrupts: u64,
    /// SNQ entries written.
    pub snq_entries: u64,
    /// SNQ trigger events raised, by number.
    pub events: [u64; 32],
    /// DMA reads.
    pub dma_reads: u64,
    /// DMA writes.
    pub dma_writes: u64,
    /// Bytes read by DMA.
    pub dma_bytes_read: u64,
    /// Bytes written by DMA.
    pub dma_bytes_written: u64,
    /// Failed DMA accesses.
    pub dma_faults: u64,
    /// Packets injected.
    pub packets_sent: u64,
    /// Packets received.
    pub packets_received: u64,
    /// VELO unit.
    pub velo: VeloCounters,
    /// RMA unit.
    pub rma: RmaCounters,
    /// Address translation.
    pub atu: AtuCounters,
    /// SMFU.
    pub smfu: SmfuCounters,
    /// PCIe bridge of a root port.
    pub bridge: BridgeCounters,
    /// Discarded work by reason.
    pub drops: Drops,
    /// Diagnostics about errors of software.
    pub diagnostics: u64,
}

/// VELO unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VeloCounters {
    /// Messages sent.
    pub sent: u64,
    /// Payload bytes sent.
    pub bytes_sent: u64,
    /// Messages stored in mailboxes.
    pub received: u64,
    /// Payload bytes stored in mailboxes.
    pub bytes_received: u64,
    /// Times that a message had to wait for a slot.
    pub held: u64,
    /// Number of messages on hold now.
    pub holding: u64,
    /// Times that a requester reported `retry`.
    pub retries: u64,
    /// Messages dropped while `retry` was set; software sends them again.
    pub retry_drops: u64,
}

/// RMA unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RmaCounters {
    /// Commands executed by the requester, by command code.
    pub commands: [u64; 16],
    /// Bytes put by this node.
    pub put_bytes: u64,
    /// Bytes that this node fetched from others.
    pub get_bytes: u64,
    /// Bytes that others fetched from this node.
    pub served_bytes: u64,
    /// Notifications written.
    pub notifications: u64,
    /// Notifications with an error bit.
    pub error_notifications: u64,
    /// Times that a notification had to wait for a slot.
    pub held: u64,
    /// Number of notifications on hold now.
    pub holding: u64,
    /// Times that a requester reported `retry`.
    pub retries: u64,
    /// Commands dropped while `retry` was set; software sends them again.
    pub retry_drops: u64,
}

/// Address translation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AtuCounters {
    /// Requested translations.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that were found in the cache.
    pub tlb_hits: u64,
    /// Cache hits whose GATe in memory has changed. Unless a flush is in progress, software forgot
    /// to flush.
    pub stale_hits: u64,
    /// Number of cached translations now.
    pub cached: u64,
    /// Cached translations that flush commands dropped.
    pub flushed: u64,
    /// Answers to fence and notification commands.
    pub answers: u64,
    /// Answers lost by injected faults.
    pub lost_answers: u64,
    /// Commands delayed now by injected faults.
    pub waiting: u64,
}

/// SMFU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SmfuCounters {
    /// Loads that went to another node.
    pub loads: u64,
    /// Stores that went to another node.
    pub stores: u64,
    /// Loads of other nodes that this one answered.
    pub served: u64,
    /// Bytes that other nodes stored here.
    pub bytes_stored: u64,
    /// Loads that were not answered in time.
    pub timeouts: u64,
    /// Loads that the target could not execute.
    pub refused: u64,
    /// Responses to requests that no longer wait.
    pub late: u64,
    /// Requests waiting for a response now.
    pub outstanding: u64,
    /// Times that the host's stores had to wait for the network.
    pub stalls: u64,
}

/// PCIe bridge of a root port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BridgeCounters {
    /// Packets injected through the backdoor.
    pub injected: u64,
    /// Packets stored in the receive FIFO.
    pub stored: u64,
    /// Packets sent to the device.
    pub to_device: u64,
    /// Packets from the device.
    pub from_device: u64,
    /// Requests that the device did not answer in time.
    pub timeouts: u64,
}

/// Discarded work by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// VELO descriptor with length 0 or above 120, or a bad multicast group.
    pub velo_bad_descriptor: u64,
    /// VELO or RMA descriptor overwritten before it was complete.
    pub incomplete_descriptor: u64,
    /// VELO or RMA descriptor that did not become complete in time (HW §8).
    pub wc_timeout: u64,
    /// Protection descriptor of sender and receiver differ.
    pub wrong_protection: u64,
    /// Destination VPID is disabled or out of range.
    pub vpid_disabled: u64,
    /// Destination queue is not valid or its engine is off.
    pub queue_invalid: u64,
    /// Description of the destination queue is inconsistent.
    pub queue_bad: u64,
    /// Too many bytes on hold, or on hold for too long.
    pub hold_limit: u64,
    /// Item on hold when its queue or VPID was closed.
    pub hold_closed: u64,
    /// RMA command that is forbidden or unknown.
    pub rma_bad_command: u64,
    /// Transfer whose addresses are not all validly translated.
    pub translation: u64,
    /// Transfer with a failed DMA access.
    pub dma: u64,
    /// Write into a queue or the notification ring that an injected fault lost.
    pub lost_write: u64,
    /// Packet of a transfer, except its last one, that an injected fault lost on its way here.
    pub lost_inner: u64,
    /// Access to the SMFU window that matches no known node.
    pub smfu_no_interval: u64,
    /// SMFU access or request while the unit is off.
    pub smfu_disabled: u64,
    /// SMFU load without a free entry in the matching store.
    pub smfu_store_full: u64,
    /// SMFU store or response while too many bytes waited for the network.
    pub smfu_congested: u64,
    /// PCIe packet that is malformed, unexpected or too large for the FIFO.
    pub pcie_packet: u64,
    /// Interrupt or DMA while bus mastering is off.
    pub bus_master_off: u64,
    /// Packet of a kind that the receiving unit does not accept.
    pub wrong_unit: u64,
    /// Packet or command that waited when the NIC was reset.
    pub reset: u64,
}
