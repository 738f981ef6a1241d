//! Options of a NIC: identity, switches for gaps of the hardware reference that are marked (S), and
//! faults to inject.

use crate::seed::{self, Purpose};
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Rule for when a buffer queue counts as full (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullRule {
    /// The queue is full when the next slot is the slot at the read pointer. One slot stays free.
    #[default]
    KeepOneFree,
    /// The queue is full when a write has made both pointers equal. It stays full until software
    /// writes `rp`.
    FlagOnEqual,
}

/// Set of VPIDs that a full buffer queue blocks (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldScope {
    /// Only the VPID of the full queue.
    #[default]
    Vpid,
    /// Every VPID of the unit (head-of-line blocking).
    Unit,
}

/// Handling of messages that are on hold for a full queue when their VPID is disabled or the queue
/// is removed (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldClosed {
    /// They are dropped, so that a closed queue does not block other queues.
    #[default]
    Drop,
    /// They stay until the timeout or until the VPID gets its next queue. Writes to the queue's
    /// registers do not affect them.
    Keep,
}

/// Effect of an SNQ start on the SNQ's write pointer (G6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnqRestart {
    /// The write pointer becomes 0, and the first lap begins.
    #[default]
    ResetPointer,
    /// The write pointer is kept, and the first lap begins.
    KeepPointer,
}

/// Handling of unaligned addresses and lengths in RMA quadword commands (G12).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnalignedQw {
    /// They are executed as in the byte command.
    #[default]
    AsBytes,
    /// The requester reports an error.
    Error,
}

/// Unit of translation that the ATU caches (G17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtuTlb {
    /// Translations of 4 KiB each, also in larger pages.
    #[default]
    On,
    /// Whole pages. An entry translates all 4 KiB units of its page, and the ATU does not read the
    /// GATes of these units. A flush of any of these units drops the entry.
    WholePages,
    /// No caching: every translation reads its GATe.
    Off,
}

/// Writes that become visible before the answer to the ATU's notification command (G17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtuNotify {
    /// All earlier writes of the NIC, as before the answer to a fence.
    #[default]
    BehindAll,
    /// Earlier answers, and the writes that preceded the last fence.
    OwnWay,
}

/// VPIDs that accept requests for remote register access (G19).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RraVpid {
    /// All VPIDs, enabled or disabled, with any protection descriptor.
    #[default]
    Any,
    /// Only enabled VPIDs that have the protection descriptor of the request.
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
    /// No target: stores are dropped, loads return all ones, and trigger event 12 is raised.
    #[default]
    Refuse,
    /// The target is node 0.
    NodeZero,
}

/// Meaning of a target base of 0 (HW §12, G18).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroBase {
    /// The default base is used.
    #[default]
    Default,
    /// Accesses go to address 0.
    Address,
}

/// Effect of reading the backdoor's `info` (HW §14, G20).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackdoorInfoRead {
    /// The read removes the entry. The data of the entry stay.
    #[default]
    Pop,
    /// The read has no effect. Reading the last quadword of the data removes the entry.
    Peek,
}

/// Registers that a function-level reset clears (G2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlrScope {
    /// The reset clears every register.
    #[default]
    Everything,
    /// All registers except node identity, scratchpads and network registers, which management
    /// software programs.
    KeepNetwork,
}

/// Model of the path from the CPU to requester pages (HW §8, §17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCombining {
    /// Each store arrives immediately and in order. This is for programs that cannot mark their
    /// fences.
    #[default]
    Stores,
    /// Lines of 64 bytes are combined, and held until a marked fence (docs/emulator.md).
    Lines,
}

/// Unit that has buffer queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueUnit {
    /// The VELO unit, whose queues are mailboxes.
    Velo,
    /// The RMA unit, whose queues are notification queues.
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
    /// Number n: the requester of a VPID reports `retry` for every n-th descriptor (G11). With 0
    /// and 1, it reports `retry` for all descriptors.
    pub wcbuf_retry_every: Option<u32>,
    /// Number of messages: a requester reports `retry` while more messages wait for its target
    /// queue or for the network.
    pub wcbuf_retry_waiting: Option<u32>,
    /// True to keep complete descriptors in the write-combining buffers, neither committed nor
    /// refused. The descriptors are executed in order when the fault ends, or dropped when software
    /// writes the state register of their VPID.
    pub wcbuf_stuck: bool,
    /// Queues that behave as full.
    pub queue_full: Vec<QueueFull>,
    /// True to drop stores of the host to BAR 0 and BAR 2 and to return all ones for its loads.
    /// Everything else continues.
    pub deaf: bool,
    /// Number n: every n-th DMA access of the NIC fails.
    pub dma_fault_every: Option<u32>,
    /// Number n: every n-th packet of a PUT or GET response is lost on its way to this NIC. The
    /// last packet of a transfer is never lost. Counting starts when this is set. With 0 and 1, all
    /// of these packets are lost. A link that is down for a moment loses packets in the same way
    /// (HW §10.3).
    pub lose_inner_every: Option<u32>,
    /// Number n: every n-th address translation fails. Counting starts when this is set.
    pub atu_fault_every: Option<u32>,
    /// Delay of ATU commands in ns. Until a command is executed, the translations that it flushes
    /// stay in use.
    pub atu_delay_ns: Option<u64>,
    /// Number n: every n-th fence or notification command is never answered. Counting starts when
    /// this is set.
    pub atu_lose_every: Option<u32>,
    /// Writes into queues and the notification ring that the bus loses. The count of an entry
    /// decreases with each lost write; an entry is removed when its count is 0.
    pub lose_writes: Vec<LoseWrite>,
}

/// One entry of [`Faults::queue_full`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueFull {
    /// Unit that the queue belongs to.
    pub unit: QueueUnit,
    /// VPID of the queue; `None` for all VPIDs of the unit.
    #[serde(default)]
    pub vpid: Option<u8>,
    /// Number of slots not yet returned by software with which the queue counts as full; `None` if
    /// it is always full.
    #[serde(default)]
    pub slots: Option<u32>,
}

/// Kind of write that [`LoseWrite`] loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossyRing {
    /// VELO mailboxes.
    Velo,
    /// RMA notification queues.
    Rma,
    /// System notification queue.
    Snq,
    /// Interrupts, which are not stored in a ring.
    Msi,
}

/// One entry of [`Faults::lose_writes`]. DMA writes are posted, so the chip does not notice the
/// loss: it advances its pointer and interrupts, and memory keeps its old content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoseWrite {
    /// Ring whose writes are lost.
    pub ring: LossyRing,
    /// VPID of the queue; `None` for any VPID. It has no meaning for the system notification queue
    /// and for interrupts.
    #[serde(default)]
    pub vpid: Option<u8>,
    /// Index (0…2) of the only slot of VELO messages that is lost; `None` if whole messages are
    /// lost.
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
    /// Value of the register field `info_rf driver.ver` (G2).
    pub driver_version: u32,
    /// Chip revision, reset value of scratchpad 0 (HW §4.3).
    pub chip_revision: u64,
    /// Time stamp counter frequency in Hz (G25).
    pub tsc_hz: u64,
    /// Minimum timer period in ns. Shorter periods are extended, so that a faulty guest cannot load
    /// the host.
    pub timer_min_ns: u64,
    /// Rule for when a buffer queue counts as full.
    pub full_rule: FullRule,
    /// Set of VPIDs that a full buffer queue blocks.
    pub hold_scope: HoldScope,
    /// Handling of messages on hold for a queue that is closed.
    pub hold_closed: HoldClosed,
    /// Maximum number of bytes of messages that a unit holds for full queues. A unit that holds
    /// more accepts no messages from the network.
    pub hold_buffer_bytes: u64,
    /// Number of bytes of messages on hold for full queues above which a unit drops messages (G10).
    /// Only messages that do not come from the network can exceed it.
    pub hold_limit_bytes: u64,
    /// Unit in ns of the timeouts of full queues (`velo_rf_timeout`, `rma_rf_bq_timeout`). The
    /// chip's unit is unknown (G10).
    pub hold_timeout_unit_ns: u64,
    /// Time in ns after which a message on hold is dropped; `None` if the timeout registers
    /// determine it.
    pub hold_time_ns: Option<u64>,
    /// Effect of an SNQ start on the SNQ's write pointer.
    pub snq_restart: SnqRestart,
    /// True if payload words that an SNQ program did not write keep data of earlier entries (G5).
    pub snq_stale_words: bool,
    /// Handling of unaligned addresses and lengths in RMA quadword commands.
    pub unaligned_qw: UnalignedQw,
    /// Unit of translation that the ATU caches.
    pub atu_tlb: AtuTlb,
    /// Number of entries of the ATU's cache. A new entry replaces the least recently used entry.
    pub atu_tlb_entries: NonZeroU32,
    /// Writes that become visible before the answer to an ATU notification command.
    pub atu_notify: AtuNotify,
    /// VPIDs that accept requests for remote register access.
    pub rra_vpid: RraVpid,
    /// Handling of an interrupt that a VPID requests while it is masked.
    pub irq_missed: IrqMissed,
    /// Registers that a function-level reset clears.
    pub flr_scope: FlrScope,
    /// Maximum number of messages, commands and requests that wait for the network in one lane. At
    /// the maximum, the requester reports `retry`. At twice this number of SMFU requests, the
    /// host's stores to the SMFU window wait.
    pub tx_queue_limit: usize,
    /// Time in ns after which an SMFU request without response fails, if `timeout_control.timeout`
    /// is 0.
    pub smfu_timeout_ns: u64,
    /// Unit of `timeout_control.timeout` in ns.
    pub smfu_timeout_unit_ns: u64,
    /// Target of SMFU accesses outside all intervals while `addr_mask` is 0.
    pub smfu_zero_mask: ZeroMask,
    /// Meaning of a target base of 0.
    pub smfu_zero_base: ZeroBase,
    /// Time in ns from a store to the SMFU window until the SMFU looks up its interval. Loads wait
    /// for earlier stores; register accesses do not.
    pub smfu_store_ns: u64,
    /// Maximum time in ns for a device behind a root port to answer a read.
    pub completion_timeout_ns: u64,
    /// Effect of reading the backdoor's `info`.
    pub backdoor_info_read: BackdoorInfoRead,
    /// Seed of all random numbers of this NIC. In a fabric, 0 means the seed of the run, from which
    /// each NIC derives a different seed.
    pub seed: u64,
    /// Path of stores to requester pages.
    pub wc: WriteCombining,
    /// Maximum time in ns that a combined line is held if no fence follows.
    pub wc_hold_ns: u64,
    /// Maximum time in ns from the last store of a descriptor to its execution, and from its
    /// departure from the requester to the increment of the committed count; 0 for no delay.
    pub wc_commit_ns: u64,
    /// Maximum time in ns before a transfer begins, and between its packets; 0 for no delay.
    pub rma_begin_ns: u64,
    /// Maximum duration of an ATU command in ns; 0 for no delay.
    pub atu_command_ns: u64,
    /// Maximum time in ns from an event to the start of its SNQ program; 0 for no delay.
    pub snq_program_ns: u64,
    /// Number of descriptors of a VPID that are stored but not yet committed with which the
    /// requester reports `retry`. `None` means 256, which correct software never reaches (G11).
    pub wc_depth: Option<NonZeroU32>,
    /// Unit in ns of the requesters' timeout for incomplete descriptors; 0 for no timeout.
    pub wc_timeout_unit_ns: u64,
    /// Faults that the NIC injects.
    pub faults: Faults,
}

/// Default number of entries of the translation cache. It is so large that tests see no unwanted
/// eviction. A full cache takes about 5 MiB of the host's memory.
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
