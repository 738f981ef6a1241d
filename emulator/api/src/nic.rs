//! Options of a NIC instance: identity, the switches of G marked (S), and faults to inject.

use crate::seed::{self, Purpose};
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// When a buffer queue counts as full (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullRule {
    /// Full when the next slot is the one at the read pointer: one slot stays free.
    #[default]
    KeepOneFree,
    /// Full once a write makes both pointers equal, until software writes `rp`.
    FlagOnEqual,
}

/// What a full buffer queue blocks (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldScope {
    /// Only its own VPID.
    #[default]
    Vpid,
    /// Every VPID of the unit: head-of-line blocking.
    Unit,
}

/// What becomes of messages on hold for a full queue when their VPID is disabled, or the queue is taken away (G10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldClosed {
    /// They are dropped, so that a closed queue blocks nobody.
    #[default]
    Drop,
    /// They stay, whatever software writes to the queue's registers, until the time-out, or until the VPID gets its next queue.
    Keep,
}

/// What starting the SNQ does to its write pointer (G6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnqRestart {
    /// Write pointer 0, first lap.
    #[default]
    ResetPointer,
    /// Write pointer kept, first lap.
    KeepPointer,
}

/// How RMA quadword commands treat unaligned addresses and lengths (G12).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnalignedQw {
    /// Executed like the byte command.
    #[default]
    AsBytes,
    /// Error of the requester.
    Error,
}

/// What the ATU caches (G17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtuTlb {
    /// Translations of 4 KiB each, also of larger pages.
    #[default]
    On,
    /// Whole pages: an entry answers for the 4 KiB units around it, whose GATes are not read any more. A flush of any of
    /// them drops it.
    WholePages,
    /// Nothing: every translation reads its GATe.
    Off,
}

/// What the answer to the ATU's notification command waits for (G17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtuNotify {
    /// Everything that the NIC has written before, as the answer to a fence does.
    #[default]
    BehindAll,
    /// Earlier answers, and what was written before the last fence.
    OwnWay,
}

/// Which VPIDs take requests for registers (G19).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RraVpid {
    /// All, whether they are enabled or not, with any protection descriptor.
    #[default]
    Any,
    /// Those that take other requests.
    Open,
}

/// What becomes of an interrupt that a VPID wants while it is masked (G7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IrqMissed {
    /// It comes when software arms the VPID again.
    #[default]
    Remember,
    /// It does not come.
    Forget,
}

/// Where SMFU accesses go that match no interval while `addr_mask` is 0 (HW §12, G18).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroMask {
    /// Nowhere: stores are dropped, loads give all ones, TE 12.
    #[default]
    Refuse,
    /// To node 0.
    NodeZero,
}

/// What a target base of 0 means (HW §12, G18).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZeroBase {
    /// The default base.
    #[default]
    Default,
    /// Address 0.
    Address,
}

/// What a read of the backdoor's `info` does (HW §14, G20).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackdoorInfoRead {
    /// Takes the entry out; the data stay.
    #[default]
    Pop,
    /// Nothing; the entry goes with the last quadword of its data.
    Peek,
}

/// What a function-level reset clears (G2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlrScope {
    /// Every register.
    #[default]
    Everything,
    /// Everything except the node identity, scratchpads and network registers, which belong to management.
    KeepNetwork,
}

/// What becomes of stores to requester pages on their way (HW §8, §17).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCombining {
    /// Each store arrives at once and in order, as with programs that can't be made to mark their fences.
    #[default]
    Stores,
    /// Lines of 64 bytes are held until a marked fence, see docs/emulator.md.
    Lines,
}

/// A buffer queue unit.
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

/// Faults to inject. All off by default; may change while the NIC runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Faults {
    /// The requester of a VPID reports `retry` on every n-th descriptor (G11); 0 and 1: on all, so that nothing gets
    /// through.
    pub wcbuf_retry_every: Option<u32>,
    /// A requester reports `retry` while more than this many messages wait for the queue it sends to, or for the network.
    pub wcbuf_retry_waiting: Option<u32>,
    /// Write-combining buffers keep complete descriptors: nothing is committed, nothing refused. Executed in order when this
    /// ends, forgotten when software writes the state register of their VPID.
    pub wcbuf_stuck: bool,
    /// These queues behave as full; `vpid` absent: all of the unit.
    pub queue_full: Vec<QueueFull>,
    /// The host's loads from BAR 0 and 2 give all ones and its stores are dropped, while everything else goes on.
    pub deaf: bool,
    /// Every n-th DMA access of the NIC fails.
    pub dma_fault_every: Option<u32>,
    /// Every n-th packet of a put or get response that is not the last one of its transfer gets lost on its way to this NIC,
    /// counted from when this was set; 0 and 1: all of them. As with a link that was down for a moment (HW §10.3).
    pub lose_inner_every: Option<u32>,
    /// Every n-th address translation fails, counted from when this was set.
    pub atu_fault_every: Option<u32>,
    /// ATU commands wait so many ns before anything comes of them; until then what they flush stays in use.
    pub atu_delay_ns: Option<u64>,
    /// Every n-th fence or notification command is never answered, counted from when this was set.
    pub atu_lose_every: Option<u32>,
    /// Writes into queues and the notification ring that the bus loses. Entries are counted down and vanish at 0.
    pub lose_writes: Vec<LoseWrite>,
}

/// One entry of [`Faults::queue_full`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueFull {
    /// Unit.
    pub unit: QueueUnit,
    /// VPID, or all.
    #[serde(default)]
    pub vpid: Option<u8>,
    /// Full with this many slots that software has not given back; absent: always.
    #[serde(default)]
    pub slots: Option<u32>,
}

/// What [`LoseWrite`] can hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossyRing {
    /// VELO mailboxes.
    Velo,
    /// RMA notification queues.
    Rma,
    /// System notification queue.
    Snq,
    /// No ring: the interrupts.
    Msi,
}

/// One entry of [`Faults::lose_writes`]. DMA writes are posted: the chip does not learn of a loss, moves its pointer on and
/// interrupts, and memory keeps what it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoseWrite {
    /// Ring.
    pub ring: LossyRing,
    /// VPID, or any; without meaning for the system notification queue and interrupts.
    #[serde(default)]
    pub vpid: Option<u8>,
    /// Only this slot (0…2) of VELO messages that have it; absent: the whole message.
    #[serde(default)]
    pub slot: Option<u8>,
    /// How many messages, notifications or entries.
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
    /// Shortest timer period that is honoured, in ns; keeps a wrong guest from loading the host.
    pub timer_min_ns: u64,
    /// Full rule of buffer queues.
    pub full_rule: FullRule,
    /// What a full buffer queue blocks.
    pub hold_scope: HoldScope,
    /// What becomes of messages on hold for a queue that is closed.
    pub hold_closed: HoldClosed,
    /// Bytes of messages that a unit holds for full queues before it takes no more from the network.
    pub hold_buffer_bytes: u64,
    /// Bytes of messages that a unit holds for full queues before it drops (G10); reached only by what does not come from the
    /// network.
    pub hold_limit_bytes: u64,
    /// Unit in ns of the time-outs of full queues (`velo_rf_timeout`, `rma_rf_bq_timeout`; the chip's is unknown, G10).
    pub hold_timeout_unit_ns: u64,
    /// Time in ns after which a held message is dropped; none: as the time-out registers say.
    pub hold_time_ns: Option<u64>,
    /// SNQ restart.
    pub snq_restart: SnqRestart,
    /// Payload words that an SNQ program did not write keep data of earlier entries (G5).
    pub snq_stale_words: bool,
    /// Unaligned RMA quadword commands.
    pub unaligned_qw: UnalignedQw,
    /// What the ATU caches.
    pub atu_tlb: AtuTlb,
    /// Entries of that cache; the least recently used one makes room.
    pub atu_tlb_entries: NonZeroU32,
    /// What the answer to an ATU notification waits for.
    pub atu_notify: AtuNotify,
    /// Which VPIDs take requests for registers.
    pub rra_vpid: RraVpid,
    /// Interrupts of VPIDs that are masked.
    pub irq_missed: IrqMissed,
    /// Scope of a function-level reset.
    pub flr_scope: FlrScope,
    /// Messages, commands and requests that wait for the network in one lane before the requester reports `retry`; twice as many
    /// of the SMFU before the host is kept from storing to its window.
    pub tx_queue_limit: usize,
    /// Time in ns after which an SMFU request without response fails, if `timeout_control.timeout` is 0.
    pub smfu_timeout_ns: u64,
    /// Unit of `timeout_control.timeout` in ns.
    pub smfu_timeout_unit_ns: u64,
    /// SMFU accesses outside all intervals with mask 0.
    pub smfu_zero_mask: ZeroMask,
    /// Target bases of 0.
    pub smfu_zero_base: ZeroBase,
    /// Time in ns that stores to the window need to the SMFU, where intervals are looked up. Loads wait behind them, register
    /// accesses do not.
    pub smfu_store_ns: u64,
    /// Time in ns after which a device behind a root port must have answered a read.
    pub completion_timeout_ns: u64,
    /// Reads of the backdoor's `info`.
    pub backdoor_info_read: BackdoorInfoRead,
    /// Seed of all draws of this NIC. In a fabric 0 stands for that of the run; every NIC gets another one from it either way.
    pub seed: u64,
    /// Stores to requester pages.
    pub wc: WriteCombining,
    /// Longest time in ns that a combined line stays without a fence.
    pub wc_hold_ns: u64,
    /// Longest time in ns from the last store of a descriptor to its execution, and from when it has left the requester to the
    /// committed count; 0: none.
    pub wc_commit_ns: u64,
    /// Longest time in ns until a transfer begins whose turn it is, and between its packets; 0: none.
    pub rma_begin_ns: u64,
    /// Longest time in ns that an ATU command takes; 0: none.
    pub atu_command_ns: u64,
    /// Longest time in ns from an event to the SNQ program that tells of it; 0: none.
    pub snq_program_ns: u64,
    /// Descriptors of a VPID on this way before the requester reports `retry`; none: 256, which is no limit for good software (G11).
    pub wc_depth: Option<NonZeroU32>,
    /// Unit of the requesters' time-out for incomplete descriptors in ns; 0: they stay.
    pub wc_timeout_unit_ns: u64,
    /// Faults to inject.
    pub faults: Faults,
}

/// Enough that nothing a test does not want is evicted, little enough for the host's memory (some 5 MiB).
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
    /// Generator of this NIC for a purpose.
    pub fn draws(&self, purpose: Purpose) -> SmallRng {
        seed::rng(self.seed, 0, purpose)
    }

    /// GUID in effect, 24 bits.
    pub fn guid(&self) -> u32 {
        self.guid.unwrap_or(0xE0_0000 + u32::from(self.node_id)) & 0xFF_FFFF
    }
}
