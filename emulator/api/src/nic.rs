//! Options of a NIC: identity, switches for gaps of the reference marked (S), and faults to inject.

use crate::seed::{self, Purpose};
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Rule for when a buffer queue counts as full (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullRule {
    /// Full when the next slot is the one at the read pointer, so that one slot stays free.
    #[default]
    KeepOneFree,
    /// Full after a write makes both pointers equal, until software writes `rp`.
    FlagOnEqual,
}

/// Scope of the blocking by a full buffer queue (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldScope {
    /// Only the queue's own VPID.
    #[default]
    Vpid,
    /// Every VPID of the unit: head-of-line blocking.
    Unit,
}

/// Handling of messages on hold for a full queue when their VPID is disabled or the queue is
/// removed (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldClosed {
    /// They are dropped, so that a closed queue blocks no other one.
    #[default]
    Drop,
    /// They stay until the timeout or until the VPID gets its next queue. Writes to the queue's
    /// registers have no effect on them.
    Keep,
}

/// Effect of starting the SNQ on its write pointer (G6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnqRestart {
    /// Write pointer 0, first lap.
    #[default]
    ResetPointer,
    /// Write pointer kept, first lap.
    KeepPointer,
}

/// Handling of unaligned addresses and lengths in RMA quadword commands (G12).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnalignedQw {
    /// Executed like the byte command.
    #[default]
    AsBytes,
    /// Error of the requester.
    Error,
}

/// Units that the ATU caches (G17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtuTlb {
    /// Translations of 4 KiB each, also for larger pages.
    #[default]
    On,
    /// Whole pages. An entry translates all 4 KiB units of its page without reading their GATes. A
    /// flush of any of these units drops the entry.
    WholePages,
    /// No caching: every translation reads its GATe.
    Off,
}

/// Writes that precede the answer to the ATU's notification command (G17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtuNotify {
    /// All earlier writes of the NIC, as for the answer to a fence.
    #[default]
    BehindAll,
    /// Earlier answers, and the writes before the last fence.
    OwnWay,
}

/// VPIDs that accept requests for registers (G19).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RraVpid {
    /// All VPIDs, enabled or not, with any protection descriptor.
    #[default]
    Any,
    /// Only enabled VPIDs with the protection descriptor of the request.
    Open,
}

/// Handling of an interrupt that a VPID requests while it is masked (G7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IrqMissed {
    /// The interrupt is sent when software arms the VPID again.
    #[default]
    Remember,
    /// The interrupt is lost.
    Forget,
}

/// Target of SMFU accesses that match no interval while `addr_mask` is 0 (HW §12, G18).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroMask {
    /// No target: stores are dropped, loads give all ones, TE 12.
    #[default]
    Refuse,
    /// Node 0.
    NodeZero,
}

/// Meaning of a target base of 0 (HW §12, G18).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroBase {
    /// The default base.
    #[default]
    Default,
    /// Address 0.
    Address,
}

/// Effect of reading the backdoor's `info` (HW §14, G20).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackdoorInfoRead {
    /// Removes the entry; its data stay.
    #[default]
    Pop,
    /// No effect; the entry is removed with the last quadword of its data.
    Peek,
}

/// Registers that a function-level reset clears (G2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlrScope {
    /// Every register.
    #[default]
    Everything,
    /// All registers except node identity, scratchpads and network registers, which belong to
    /// management software.
    KeepNetwork,
}

/// Path of stores to requester pages (HW §8, §17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCombining {
    /// Each store arrives immediately and in order. For programs that cannot mark their fences.
    #[default]
    Stores,
    /// Lines of 64 bytes are held until a marked fence (docs/emulator.md).
    Lines,
}

/// Unit with buffer queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueUnit {
    /// VELO mailboxes.
    Velo,
    /// RMA notification queues.
    Rma,
}

impl From<QueueUnit> for wire::ids::Unit {
    fn from(unit: QueueUnit) -> Self {
        match unit {
            QueueUnit::Velo => Self::Velo,
            QueueUnit::Rma => Self::Rma,
        }
    }
}

/// Faults to inject. All are off by default and may change while the NIC runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Faults {
    /// The requester of a VPID reports `retry` on every n-th descriptor (G11); 0 and 1: on all, so
    /// that none gets through.
    pub wcbuf_retry_every: Option<u32>,
    /// A requester reports `retry` while more than this number of messages wait for its target
    /// queue, or for the network.
    pub wcbuf_retry_waiting: Option<u32>,
    /// Write-combining buffers keep complete descriptors: none is committed or refused. They are
    /// executed in order when the fault ends, or dropped when software writes the state register of
    /// their VPID.
    pub wcbuf_stuck: bool,
    /// Queues that behave as full.
    pub queue_full: Vec<QueueFull>,
    /// Loads of the host from BAR 0 and 2 give all ones and its stores are dropped; everything else
    /// continues.
    pub deaf: bool,
    /// Every n-th DMA access of the NIC fails.
    pub dma_fault_every: Option<u32>,
    /// Every n-th packet of a put or get response, except the last one of its transfer, is lost on
    /// its way to this NIC. Counting starts when this is set; 0 and 1: all of these packets. A link
    /// that is down for a moment loses packets in the same way (HW §10.3).
    pub lose_inner_every: Option<u32>,
    /// Every n-th address translation fails, counted from when this was set.
    pub atu_fault_every: Option<u32>,
    /// Delay of ATU commands in ns. Until then, translations that they flush stay in use.
    pub atu_delay_ns: Option<u64>,
    /// Every n-th fence or notification command is never answered, counted from when this was set.
    pub atu_lose_every: Option<u32>,
    /// Writes into queues and the notification ring that the bus loses. Entries are counted down
    /// and removed at 0.
    pub lose_writes: Vec<LoseWrite>,
}

/// One entry of [`Faults::queue_full`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueFull {
    /// Unit of the queue.
    pub unit: QueueUnit,
    /// VPID of the queue; `None`: all VPIDs of the unit.
    #[serde(default)]
    pub vpid: Option<u8>,
    /// Number of slots not returned by software at which the queue is full; `None`: always full.
    #[serde(default)]
    pub slots: Option<u32>,
}

/// Target of [`LoseWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossyRing {
    /// VELO mailboxes.
    Velo,
    /// RMA notification queues.
    Rma,
    /// System notification queue.
    Snq,
    /// Interrupts, which are in no ring.
    Msi,
}

/// One entry of [`Faults::lose_writes`]. DMA writes are posted, so the chip does not notice the
/// loss: it advances its pointer and interrupts, and memory keeps its old content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoseWrite {
    /// Ring that loses writes.
    pub ring: LossyRing,
    /// VPID; `None`: any. Has no meaning for the system notification queue and interrupts.
    #[serde(default)]
    pub vpid: Option<u8>,
    /// Slot (0…2) of VELO messages that have this slot; `None`: the whole message.
    #[serde(default)]
    pub slot: Option<u8>,
    /// Number of messages, notifications or entries to lose.
    pub count: u32,
}

/// Options of a NIC instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NicConfig {
    /// Node ID after reset (G27). Software may change it.
    pub node_id: u16,
    /// GUID, 24 bits; default 0xE00000 + node ID (G27).
    pub guid: Option<u32>,
    /// `info_rf driver.ver` (G2).
    pub driver_version: u32,
    /// Chip revision, reset value of scratchpad 0 (HW §4.3).
    pub chip_revision: u64,
    /// Time stamp counter frequency in Hz (G25).
    pub tsc_hz: u64,
    /// Minimum timer period that is honoured, in ns. It keeps a faulty guest from loading the host.
    pub timer_min_ns: u64,
    /// Full rule of buffer queues.
    pub full_rule: FullRule,
    /// Scope of the blocking by a full buffer queue.
    pub hold_scope: HoldScope,
    /// Handling of messages on hold for a queue that is closed.
    pub hold_closed: HoldClosed,
    /// Bytes of messages that a unit holds for full queues before it accepts no more from the
    /// network.
    pub hold_buffer_bytes: u64,
    /// Bytes of messages that a unit holds for full queues before it drops messages (G10). Only
    /// messages from other sources than the network reach it.
    pub hold_limit_bytes: u64,
    /// Unit in ns of the timeouts of full queues (`velo_rf_timeout`, `rma_rf_bq_timeout`). The
    /// chip's unit is unknown (G10).
    pub hold_timeout_unit_ns: u64,
    /// Time in ns after which a held message is dropped; `None`: from the timeout registers.
    pub hold_time_ns: Option<u64>,
    /// SNQ restart.
    pub snq_restart: SnqRestart,
    /// True if payload words that an SNQ program did not write keep data of earlier entries (G5).
    pub snq_stale_words: bool,
    /// Unaligned RMA quadword commands.
    pub unaligned_qw: UnalignedQw,
    /// Units that the ATU caches.
    pub atu_tlb: AtuTlb,
    /// Entries of the ATU's cache. A new entry replaces the least recently used one.
    pub atu_tlb_entries: NonZeroU32,
    /// Writes that precede the answer to an ATU notification command.
    pub atu_notify: AtuNotify,
    /// VPIDs that accept requests for registers.
    pub rra_vpid: RraVpid,
    /// Handling of interrupts of masked VPIDs.
    pub irq_missed: IrqMissed,
    /// Scope of a function-level reset.
    pub flr_scope: FlrScope,
    /// Maximum messages, commands and requests that wait for the network in one lane; at this
    /// number the requester reports `retry`. At twice this number of SMFU requests the host's
    /// stores to the SMFU window stop.
    pub tx_queue_limit: usize,
    /// Time in ns after which an SMFU request without response fails, if `timeout_control.timeout`
    /// is 0.
    pub smfu_timeout_ns: u64,
    /// Unit of `timeout_control.timeout` in ns.
    pub smfu_timeout_unit_ns: u64,
    /// SMFU accesses outside all intervals with mask 0.
    pub smfu_zero_mask: ZeroMask,
    /// Target bases of 0.
    pub smfu_zero_base: ZeroBase,
    /// Time in ns that stores to the window take to the SMFU, where intervals are looked up. Loads
    /// wait behind them, register accesses do not.
    pub smfu_store_ns: u64,
    /// Maximum time in ns for a device behind a root port to answer a read.
    pub completion_timeout_ns: u64,
    /// Effect of reading the backdoor's `info`.
    pub backdoor_info_read: BackdoorInfoRead,
    /// Seed of all random numbers of this NIC. In a fabric 0 means the seed of the run. Each NIC
    /// derives its own seed from this one.
    pub seed: u64,
    /// Path of stores to requester pages.
    pub wc: WriteCombining,
    /// Maximum time in ns that a combined line stays without a fence.
    pub wc_hold_ns: u64,
    /// Maximum time in ns from the last store of a descriptor to its execution, and from its
    /// departure from the requester to the committed count; 0: none.
    pub wc_commit_ns: u64,
    /// Maximum time in ns before a transfer begins, and between its packets; 0: none.
    pub rma_begin_ns: u64,
    /// Maximum time in ns of an ATU command; 0: none.
    pub atu_command_ns: u64,
    /// Maximum time in ns from an event to its SNQ program; 0: none.
    pub snq_program_ns: u64,
    /// Number of descriptors of a VPID between store and committed count at which the requester
    /// reports `retry`. `None`: 256, which correct software never reaches (G11).
    pub wc_depth: Option<NonZeroU32>,
    /// Unit of the requesters' timeout for incomplete descriptors in ns; 0: no timeout.
    pub wc_timeout_unit_ns: u64,
    /// Faults to inject.
    pub faults: Faults,
}

/// Default capacity of the translation cache in entries. Tests see no unwanted eviction, and a full
/// cache takes about 5 MiB of the host's memory.
const DEFAULT_TLB_ENTRIES: NonZeroU32 = NonZeroU32::new(65_536).unwrap();

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            node_id: 0,
            guid: None,
            driver_version: 0x0001_0000,
            chip_revision: 0,
            tsc_hz: 100_000_000,
            timer_min_ns: 10_000,
            full_rule: FullRule::default(),
            hold_scope: HoldScope::default(),
            hold_closed: HoldClosed::default(),
            hold_buffer_bytes: 16 << 10,
            hold_limit_bytes: 64 << 20,
            hold_timeout_unit_ns: 100_000_000,
            hold_time_ns: None,
            snq_restart: SnqRestart::default(),
            snq_stale_words: false,
            unaligned_qw: UnalignedQw::default(),
            atu_tlb: AtuTlb::default(),
            atu_tlb_entries: DEFAULT_TLB_ENTRIES,
            atu_notify: AtuNotify::default(),
            rra_vpid: RraVpid::default(),
            irq_missed: IrqMissed::default(),
            flr_scope: FlrScope::default(),
            tx_queue_limit: 4096,
            smfu_timeout_ns: 500_000_000,
            smfu_timeout_unit_ns: 1_000,
            smfu_zero_mask: ZeroMask::default(),
            smfu_zero_base: ZeroBase::default(),
            smfu_store_ns: 0,
            completion_timeout_ns: 50_000_000,
            backdoor_info_read: BackdoorInfoRead::default(),
            seed: 0,
            wc: WriteCombining::default(),
            wc_hold_ns: 100_000_000,
            wc_commit_ns: 0,
            rma_begin_ns: 0,
            atu_command_ns: 0,
            snq_program_ns: 0,
            wc_depth: None,
            wc_timeout_unit_ns: 32_000_000,
            faults: Faults::default(),
        }
    }
}

impl NicConfig {
    /// Returns the random number generator of this NIC for a purpose.
    pub fn draws(&self, purpose: Purpose) -> SmallRng {
        seed::rng(self.seed, 0, purpose)
    }

    /// Returns the GUID in effect, 24 bits.
    pub fn guid(&self) -> u32 {
        self.guid.unwrap_or(0xE0_0000 + u32::from(self.node_id)) & 0xFF_FFFF
    }
}
