// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `info_rf`: identity, scratchpads, time stamp counter (HW §4.1).

use crate::ids::NodeId;

regs! {
    /// Driver version word. Read-only.
    const DRIVER = 0x8000, "info_rf_driver";
    /// Node ID, GUID and number of VPIDs.
    const NODE = 0x8008, "info_rf_node";
    /// Management software identification.
    const MANAGEMENT_SW = 0x8010, "info_rf_management_sw";
    /// IP addresses of the host.
    const IP_ADDRESSES = 0x8018, "info_rf_ip_addresses";
    /// IP addresses of the management.
    const MGT_IP_ADDRESSES = 0x8020, "info_rf_mgt_ip_addresses";
    /// Time stamp counter with 48 bits.
    const TSC = 0x8028, "info_rf_tsc";
    /// Value that a global interrupt loads into the counter.
    const TSC_GLOBAL_LOAD_VALUE = 0x8030, "info_rf_tsc_global_load_value";
    /// Scratchpad words, whose meaning is a convention of software (HW §4.3).
    fn scratchpad(index < 8) = 0x8038 + 8, "info_rf_scratchpad_scratchpad";
    /// Selection of the global interrupts that load the counter.
    const TSC_GLOBAL_LOAD_ENABLE = 0x8078, "info_rf_tsc_global_load_enable";
    /// Periodic timer that raises trigger event 7.
    const TIMER_INTERRUPT = 0x8080, "info_rf_timer_interrupt";
}

/// Scratchpad 0: chip revision.
pub const CHIP_REV: crate::ids::RegOffset = scratchpad(0);
/// Scratchpad 1: firmware revision, first word.
pub const FW_REV1: crate::ids::RegOffset = scratchpad(1);
/// Scratchpad 2: firmware revision, second word.
pub const FW_REV2: crate::ids::RegOffset = scratchpad(2);
/// Scratchpad 3: network state, see [`NetworkState`].
pub const NW_STATE: crate::ids::RegOffset = scratchpad(3);

bits! {
    /// `driver` (0x8000).
    pub struct Driver {
        /// Version number.
        ver / with_ver: u32 [31:0];
    }
}

/// Value of the upper half of `driver` with which an emulator requests marks
/// ([`crate::wcbuf::MARK`]). MODEL: these bits are 0 on the chip.
pub const MARKS_WANTED: u32 = 0x4D41_524B;

impl Driver {
    /// Returns whether the NIC is an emulator that combines stores and requests a mark for every
    /// fence. The caller must know that the device is present, because an absent device reads as
    /// all ones.
    pub const fn wants_marks(self) -> bool {
        self.0 >> 32 == MARKS_WANTED as u64
    }

    /// Returns a copy that requests marks.
    #[must_use]
    pub const fn with_marks_wanted(self) -> Self {
        Self((self.0 & 0xFFFF_FFFF) | ((MARKS_WANTED as u64) << 32))
    }
}

bits! {
    /// `node` (0x8008).
    pub struct Node {
        /// Globally unique ID of the board.
        guid / with_guid: u32 [23:0];
        /// Node ID. [`Node::node_id`] returns it as a [`NodeId`].
        id / with_id: u16 [39:24];
        /// Number of VPIDs.
        vpids / with_vpids: u16 [55:40];
    }
}

impl Node {
    /// Returns the node ID as a [`NodeId`].
    pub const fn node_id(self) -> NodeId {
        NodeId(self.id())
    }
}

bits! {
    /// `management_sw` (0x8010).
    pub struct ManagementSw {
        /// IPv4 address of the configuring host.
        cfg_ip / with_cfg_ip: u32 [31:0];
        /// Enumeration count.
        enum_cnt / with_enum_cnt: u8 [39:32];
        /// Configuration count.
        cfg_count / with_cfg_count: u8 [47:40];
        /// Back-end flag.
        backend / with_backend: bool [63:63];
    }
}

bits! {
    /// `tsc_global_load_enable` (0x8078).
    pub struct TscGlobalLoadEnable {
        /// Bit i is set if global interrupt i loads the counter.
        tsc_load_en_irq / with_tsc_load_en_irq: u8 [3:0];
        /// Bit i is set if global interrupt i re-initialises the counter.
        global_irq_reinit_en / with_global_irq_reinit_en: u8 [11:8];
    }
}

bits! {
    /// `timer_interrupt` (0x8080).
    pub struct TimerInterrupt {
        /// Period of the timer. The unit is unknown (G25).
        period / with_period: u64 [47:0];
        /// True while the timer runs.
        enable / with_enable: bool [48:48];
        /// True if the timer expires once instead of periodically.
        one_shot / with_one_shot: bool [49:49];
        /// Bit that toggles with every expiry.
        toggle / with_toggle: bool [56:56];
    }
}

/// Network state in scratchpad 3 (HW §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NetworkState {
    /// 0: the network is not configured.
    Unconfigured,
    /// 1: the network is configured and runs.
    Running,
    /// 2: the management has stopped the network.
    Stopped,
    /// Any other value. Software treats it as a network that does not run.
    Unknown(u64),
}

impl NetworkState {
    /// Decodes the scratchpad value.
    pub const fn from_raw(raw: u64) -> Self {
        match raw {
            0 => Self::Unconfigured,
            1 => Self::Running,
            2 => Self::Stopped,
            other => Self::Unknown(other),
        }
    }

    /// Returns the scratchpad value.
    pub const fn raw(self) -> u64 {
        match self {
            Self::Unconfigured => 0,
            Self::Running => 1,
            Self::Stopped => 2,
            Self::Unknown(raw) => raw,
        }
    }
}

impl core::fmt::Display for NetworkState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unconfigured => f.write_str("unconfigured"),
            Self::Running => f.write_str("running"),
            Self::Stopped => f.write_str("stopped"),
            Self::Unknown(raw) => write!(f, "unknown ({raw:#x})"),
        }
    }
}
