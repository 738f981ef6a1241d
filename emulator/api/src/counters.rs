//! Counters that the emulator keeps for each NIC, for statistics and cost tables. The chip's own
//! counters are registers.

use serde::Serialize;

/// Counters of one NIC since power-on. They wrap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Loads by the host.
    pub mmio_reads: u64,
    /// Stores by the host.
    pub mmio_writes: u64,
    /// Stores by the host to the VELO requester.
    pub velo_stores: u64,
    /// Stores by the host to the RMA requester.
    pub rma_stores: u64,
    /// Accesses outside the requesters other than aligned accesses of 64 bits (G32).
    pub odd_accesses: u64,
    /// Stores by the host to requester pages behind the range that holds descriptors. The requester
    /// executes them nevertheless (G8).
    pub wc_misplaced: u64,
    /// Stores by the host to requester pages that are not whole aligned quadwords (HW §17).
    pub wc_not_aligned: u64,
    /// Descriptors with reserved bits set. They are executed as if these bits were 0.
    pub reserved_bits: u64,
    /// Descriptors that reached the requester or were overwritten although no fence followed them.
    pub wc_unfenced: u64,
    /// Writes of forbidden values to set-up registers. Such values are the SNQ's interrupt packet,
    /// queue segments inconsistent with their page, RMA units or packet sizes of a VPID, and
    /// traffic classes of the SMFU.
    pub bad_setup: u64,
    /// Errors of software in the kernel's queues (HW §7, §9.5): slots that were returned without
    /// being cleared, and read pointers outside their queue.
    pub bad_slots: u64,
    /// Accesses to addresses without a register, or to registers that do not allow the access
    /// (G32).
    pub bad_accesses: u64,
    /// MSI messages that the NIC sent.
    pub interrupts: u64,
    /// Entries that the SNQ has written.
    pub snq_entries: u64,
    /// SNQ trigger events raised, by number.
    pub events: [u64; 32],
    /// Read accesses by DMA.
    pub dma_reads: u64,
    /// Write accesses by DMA.
    pub dma_writes: u64,
    /// Bytes that DMA read.
    pub dma_bytes_read: u64,
    /// Bytes that DMA wrote.
    pub dma_bytes_written: u64,
    /// DMA accesses that failed.
    pub dma_faults: u64,
    /// Packets that the NIC sent into the network.
    pub packets_sent: u64,
    /// Packets that the NIC received from the network.
    pub packets_received: u64,
    /// Counters of the VELO unit.
    pub velo: VeloCounters,
    /// Counters of the RMA unit.
    pub rma: RmaCounters,
    /// Counters of the address translation.
    pub atu: AtuCounters,
    /// Counters of the SMFU.
    pub smfu: SmfuCounters,
    /// Counters of the PCIe bridge of a root port.
    pub bridge: BridgeCounters,
    /// Discarded items, by reason.
    pub drops: Drops,
    /// Diagnostics that report errors of software.
    pub diagnostics: u64,
}

/// Counters of the VELO unit.
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
    /// Messages that had to wait for a slot.
    pub held: u64,
    /// Messages that are on hold now.
    pub holding: u64,
    /// Times that a requester reported `retry`.
    pub retries: u64,
    /// Messages dropped while `retry` was set. Software sends them again.
    pub retry_drops: u64,
}

/// Counters of the RMA unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RmaCounters {
    /// Commands that the requester executed, by command code.
    pub commands: [u64; 16],
    /// Bytes that this node wrote to other nodes by PUT.
    pub put_bytes: u64,
    /// Bytes that this node fetched from other nodes by GET.
    pub get_bytes: u64,
    /// Bytes that other nodes fetched from this node by GET.
    pub served_bytes: u64,
    /// Notifications written.
    pub notifications: u64,
    /// Notifications with an error bit.
    pub error_notifications: u64,
    /// Notifications that had to wait for a slot.
    pub held: u64,
    /// Notifications that are on hold now.
    pub holding: u64,
    /// Times that a requester reported `retry`.
    pub retries: u64,
    /// Commands dropped while `retry` was set. Software sends them again.
    pub retry_drops: u64,
}

/// Counters of the address translation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AtuCounters {
    /// Requested translations.
    pub requests: u64,
    /// Translations that failed.
    pub refused: u64,
    /// Translations that the cache contained.
    pub tlb_hits: u64,
    /// Cache hits whose GATe in memory has changed. Software forgot a flush, unless a flush is in
    /// progress.
    pub stale_hits: u64,
    /// Translations that the cache contains now.
    pub cached: u64,
    /// Cached translations that flush commands dropped.
    pub flushed: u64,
    /// Answers to fence and notification commands.
    pub answers: u64,
    /// Answers that injected faults lost.
    pub lost_answers: u64,
    /// Commands that injected faults delay now.
    pub waiting: u64,
}

/// Counters of the SMFU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SmfuCounters {
    /// Loads that went to another node.
    pub loads: u64,
    /// Stores that went to another node.
    pub stores: u64,
    /// Loads of other nodes that this node answered.
    pub served: u64,
    /// Bytes that other nodes stored to this node.
    pub bytes_stored: u64,
    /// Loads that were not answered in time.
    pub timeouts: u64,
    /// Loads that the target could not execute.
    pub refused: u64,
    /// Responses that arrived after their request had timed out.
    pub late: u64,
    /// Requests that wait for a response now.
    pub outstanding: u64,
    /// Times that the host's stores had to wait for the network.
    pub stalls: u64,
}

/// Counters of the PCIe bridge of a root port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct BridgeCounters {
    /// PCIe packets that were injected through the backdoor.
    pub injected: u64,
    /// PCIe packets that were stored in the receive FIFO.
    pub stored: u64,
    /// PCIe packets that were sent to the device.
    pub to_device: u64,
    /// PCIe packets that came from the device.
    pub from_device: u64,
    /// Requests that the device did not answer in time.
    pub timeouts: u64,
}

/// Discarded items, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// VELO descriptors with a length of 0 or above 120, or with an invalid multicast group.
    pub velo_bad_descriptor: u64,
    /// VELO or RMA descriptors that were overwritten before they were complete.
    pub incomplete_descriptor: u64,
    /// VELO or RMA descriptors that did not become complete in time (HW §8).
    pub wc_timeout: u64,
    /// Packets whose protection descriptor differs from that of the receiver.
    pub wrong_protection: u64,
    /// Packets whose destination VPID is disabled or out of range.
    pub vpid_disabled: u64,
    /// Packets whose destination queue is invalid or whose engine is off.
    pub queue_invalid: u64,
    /// Packets whose destination queue has an inconsistent description.
    pub queue_bad: u64,
    /// Items for which too many bytes were on hold, or which were on hold for too long.
    pub hold_limit: u64,
    /// Items that were on hold when their queue or VPID was closed.
    pub hold_closed: u64,
    /// RMA commands that are forbidden or unknown.
    pub rma_bad_command: u64,
    /// Transfers with an address that has no valid translation.
    pub translation: u64,
    /// Transfers in which a DMA access failed.
    pub dma: u64,
    /// Writes into a queue or the notification ring that an injected fault lost.
    pub lost_write: u64,
    /// Packets of a transfer, except its last packet, that an injected fault lost on the way to
    /// this NIC.
    pub lost_inner: u64,
    /// Accesses to the SMFU window that match no known node.
    pub smfu_no_interval: u64,
    /// SMFU accesses and requests while the unit was off.
    pub smfu_disabled: u64,
    /// SMFU loads for which the matching store had no free entry.
    pub smfu_store_full: u64,
    /// SMFU stores and responses that came while too many bytes waited for the network.
    pub smfu_congested: u64,
    /// PCIe packets that were malformed, unexpected or too large for the FIFO.
    pub pcie_packet: u64,
    /// Interrupts and DMA accesses while bus mastering was off.
    pub bus_master_off: u64,
    /// Packets of a kind that the receiving unit does not accept.
    pub wrong_unit: u64,
    /// Packets and commands that waited when the NIC was reset.
    pub reset: u64,
}
