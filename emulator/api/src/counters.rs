//! What a NIC counts for statistics and per-frame cost tables. The hardware's own counters are registers.

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
    /// Accesses that are not 64 bit wide and aligned, outside the requesters (G32).
    pub odd_accesses: u64,
    /// Host stores to requester pages beyond the part that a descriptor is written to: executed all the same (G8).
    pub wc_misplaced: u64,
    /// Host stores to requester pages that are not whole aligned quadwords (HW §17).
    pub wc_not_aligned: u64,
    /// Descriptors with reserved bits set, executed without them.
    pub reserved_bits: u64,
    /// Descriptors that reached the requester, or were overwritten before they did, without a fence behind them.
    pub wc_unfenced: u64,
    /// Registers that were set to what the reference does not allow: interrupt packet of the SNQ, queue segments against their page,
    /// units of the RMA, classes of the SMFU.
    pub bad_setup: u64,
    /// Slots of queues of the kernel that were given back without being cleared, so that what was in them is written over, and read
    /// pointers outside their queue (HW §7, §9.5).
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
    /// Discarded work, by reason.
    pub drops: Drops,
    /// Things that software did wrong and a diagnostic was given for.
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
    /// Messages on hold now.
    pub holding: u64,
    /// Times that a requester reported `retry`.
    pub retries: u64,
    /// Messages dropped while `retry` was set; software replays them.
    pub retry_drops: u64,
}

/// RMA unit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RmaCounters {
    /// Commands executed by the requester, by command code.
    pub commands: [u64; 16],
    /// Bytes put by this node.
    pub put_bytes: u64,
    /// Bytes that this node got from others.
    pub get_bytes: u64,
    /// Bytes that others got from this node.
    pub served_bytes: u64,
    /// Notifications written.
    pub notifications: u64,
    /// Notifications with an error bit.
    pub error_notifications: u64,
    /// Times that a notification had to wait for a slot.
    pub held: u64,
    /// Notifications on hold now.
    pub holding: u64,
    /// Times that a requester reported `retry`.
    pub retries: u64,
    /// Commands dropped while `retry` was set; software replays them.
    pub retry_drops: u64,
}

/// Address translation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AtuCounters {
    /// Translations asked for.
    pub requests: u64,
    /// Of those, refused.
    pub refused: u64,
    /// Of those, found in the cache.
    pub tlb_hits: u64,
    /// Of those, outdated: the GATe in memory is another one. Beside a flush in progress, software forgot to flush.
    pub stale_hits: u64,
    /// Cached translations now.
    pub cached: u64,
    /// Cached translations that flush commands dropped.
    pub flushed: u64,
    /// Answers to fence and notification commands.
    pub answers: u64,
    /// Answers lost by injected faults.
    pub lost_answers: u64,
    /// Commands held back by injected faults now.
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
    /// Loads that the target could not do.
    pub refused: u64,
    /// Responses that nobody waits for (any more).
    pub late: u64,
    /// Requests waiting for a response now.
    pub outstanding: u64,
    /// Times that the host had to wait with its stores for the network.
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

/// Discarded work, by reason.
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
    /// Destination VPID is not enabled or does not exist.
    pub vpid_disabled: u64,
    /// Destination queue is not valid or its engine is off.
    pub queue_invalid: u64,
    /// Destination queue is described inconsistently.
    pub queue_bad: u64,
    /// More on hold than allowed, or for too long.
    pub hold_limit: u64,
    /// On hold when the queue or VPID was closed.
    pub hold_closed: u64,
    /// RMA command that is not allowed or not known.
    pub rma_bad_command: u64,
    /// Transfer without a valid translation for all of it.
    pub translation: u64,
    /// Transfer with a failed DMA access.
    pub dma: u64,
    /// Write into a queue or the notification ring that the bus lost by order.
    pub lost_write: u64,
    /// Packet of a transfer, not its last one, that got lost on its way here by order.
    pub lost_inner: u64,
    /// Access to the SMFU window that leads to no known node.
    pub smfu_no_interval: u64,
    /// SMFU access or request while the unit is off.
    pub smfu_disabled: u64,
    /// SMFU load without a free entry in the matching store.
    pub smfu_store_full: u64,
    /// SMFU store or response while too much waited for the network.
    pub smfu_congested: u64,
    /// Malformed or unexpected PCIe packet, or one that does not fit the FIFO.
    pub pcie_packet: u64,
    /// Interrupt or DMA while bus mastering is off.
    pub bus_master_off: u64,
    /// Packet of a kind that the receiving unit does not take.
    pub wrong_unit: u64,
    /// Packets or commands waiting when the NIC was reset.
    pub reset: u64,
}
