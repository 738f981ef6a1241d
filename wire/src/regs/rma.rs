// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `rma_rf` without its write-combining buffers (HW §10.7). [`crate::rma`] has the formats.

/// `vpid_table` entry of a closed VPID (HW §10.7).
pub const VPID_DISABLED: u64 = 0xF522;
/// `vpid_table` entry of an open VPID (HW §10.7).
pub const VPID_ENABLED: u64 = 0xF523;
/// Value of `lock_cfg` that the initialisation sequence writes: 16 locks, 256 VPIDs (HW §3.5).
pub const LOCK_CFG_INIT: u64 = 0x80_0000_0010;
/// Value of `bq_timeout` that the initialisation sequence writes: enabled (HW §3.5).
pub const BQ_TIMEOUT_INIT: u64 = 0x1_0000_000A;
/// Mask that the initialisation sequence applies to the three `error_ctrl` registers (HW §3.5).
pub const ERROR_CTRL_INIT_MASK: u64 = 0xFF_FFFE;
/// Size of the lock memory in the host in bytes: 16 locks × 256 VPIDs × 4 bytes.
pub const LOCK_MEMORY: u32 = 16 * 1024;

regs! {
    /// Pending interrupts. Bit j of word i belongs to VPID 64 i + j. Read-only (HW §6.5).
    fn int_vec(i < 4) = 0x1600020 + 8, "rma_rf_noti_interrupt_handler_int_vec";
    /// Interrupt retrigger bits, with the layout of `int_vec`.
    fn int_retrig_vec(i < 4) = 0x1600040 + 8, "rma_rf_noti_interrupt_handler_int_retrig_vec";
    /// Packet sizes and options, see [`Config`].
    const CONFIG = 0x1600080, "rma_rf_config";
    /// Bits `[63:12]` of the bus address of the lock memory.
    const LOCK_BASE = 0x1600088, "rma_rf_lock_base";
    /// Numbers of locks and VPIDs, see [`LockCfg`].
    const LOCK_CFG = 0x1600090, "rma_rf_lock_cfg";
    /// Timeout of full queues, see [`crate::regs::velo::Timeout`].
    const BQ_TIMEOUT = 0x1600098, "rma_rf_bq_timeout";
    /// Settings of a VPID, see [`VpidTable`].
    fn vpid_table(vpid) = 0x1600800 + 8, "rma_rf_vpid_table";
    /// Error control of the requester, see [`ErrorCtrl`].
    const REQUESTER_ERROR_CTRL = 0x1601000, "rma_rf_requester_error_ctrl";
    /// History window of the requester. Read-only.
    const REQUESTER_HISTORY = 0x1601008, "rma_rf_requester_history";
    /// Trigger of the requester's error counters.
    const REQUESTER_ERROR_CNT_ST = 0x1601010, "rma_rf_requester_error_cnt_st";
    /// Requester error counters exlreg, cmdt, exldis, trans, see [`ErrorCounters`].
    const REQUESTER_ERROR_CNT_0 = 0x1601018, "rma_rf_requester_error_cnt_0";
    /// Requester error counter bqt.
    const REQUESTER_ERROR_CNT_1 = 0x1601020, "rma_rf_requester_error_cnt_1";
    /// Error control of the responder.
    const RESPONDER_ERROR_CTRL = 0x1601028, "rma_rf_responder_error_ctrl";
    /// History window of the responder. Read-only.
    const RESPONDER_HISTORY = 0x1601030, "rma_rf_responder_history";
    /// Trigger of the responder's error counters.
    const RESPONDER_ERROR_CNT_ST = 0x1601038, "rma_rf_responder_error_cnt_st";
    /// Responder error counters exlreg, cmdt, errcmd, vpid.
    const RESPONDER_ERROR_CNT_0 = 0x1601040, "rma_rf_responder_error_cnt_0";
    /// Responder error counters pdid, exldis, lock, trans.
    const RESPONDER_ERROR_CNT_1 = 0x1601048, "rma_rf_responder_error_cnt_1";
    /// Responder error counter bqt.
    const RESPONDER_ERROR_CNT_2 = 0x1601050, "rma_rf_responder_error_cnt_2";
    /// Error control of the completer.
    const COMPLETER_ERROR_CTRL = 0x1601058, "rma_rf_completer_error_ctrl";
    /// History window of the completer. Read-only.
    const COMPLETER_HISTORY = 0x1601060, "rma_rf_completer_history";
    /// Trigger of the completer's error counters.
    const COMPLETER_ERROR_CNT_ST = 0x1601068, "rma_rf_completer_error_cnt_st";
    /// Completer error counters exlreg, cmdt, nosop, hdrshrt.
    const COMPLETER_ERROR_CNT_0 = 0x1601070, "rma_rf_completer_error_cnt_0";
    /// Completer error counters nodat, fewdat, moredat, errcmd.
    const COMPLETER_ERROR_CNT_1 = 0x1601078, "rma_rf_completer_error_cnt_1";
    /// Completer error counters vpid, pdid, exldis, trans.
    const COMPLETER_ERROR_CNT_2 = 0x1601080, "rma_rf_completer_error_cnt_2";
    /// Completer error counter bqt.
    const COMPLETER_ERROR_CNT_3 = 0x1601088, "rma_rf_completer_error_cnt_3";
    /// ECC flags.
    const ERROR_RAM_ECC = 0x1601090, "rma_rf_error_ram_ecc";
    /// Control of the performance counters. Write-only.
    const PERF_COUNTER_CONTROL = 0x1601200, "rma_rf_perf_counter_control";
    /// Requester: puts accepted (high half byte puts, low half QW puts).
    const PERF_REQUESTER_IN_0 = 0x1601208, "rma_rf_perf_requester_perf_in_0";
    /// Requester: notification puts accepted (high half), immediate puts accepted (low half).
    const PERF_REQUESTER_IN_1 = 0x1601210, "rma_rf_perf_requester_perf_in_1";
    /// Requester: GETs accepted (high half byte GETs, low half QW GETs).
    const PERF_REQUESTER_IN_2 = 0x1601218, "rma_rf_perf_requester_perf_in_2";
    /// Requester: locks accepted (high half for completers, low half for responders).
    const PERF_REQUESTER_IN_3 = 0x1601220, "rma_rf_perf_requester_perf_in_3";
    /// Requester: translations answered (high half), translations requested (low half).
    const PERF_REQUESTER_ATU_0 = 0x1601228, "rma_rf_perf_requester_perf_atu_0";
    /// Requester: translations rejected (low half).
    const PERF_REQUESTER_ATU_1 = 0x1601230, "rma_rf_perf_requester_perf_atu_1";
    /// Requester: fences answered (high half), fences received (low half).
    const PERF_REQUESTER_ATU_2 = 0x1601238, "rma_rf_perf_requester_perf_atu_2";
    /// Requester: reads of host memory (low half).
    const PERF_REQUESTER_RE_0 = 0x1601240, "rma_rf_perf_requester_perf_re_0";
    /// Requester: bytes requested from host memory.
    const PERF_REQUESTER_RE_1 = 0x1601248, "rma_rf_perf_requester_perf_re_1";
    /// Requester: failed reads (high half), answered reads (low half).
    const PERF_REQUESTER_RE_2 = 0x1601250, "rma_rf_perf_requester_perf_re_2";
    /// Requester: bytes read from host memory.
    const PERF_REQUESTER_RE_3 = 0x1601258, "rma_rf_perf_requester_perf_re_3";
    /// Requester: put packets sent (high half byte puts, low half QW puts).
    const PERF_REQUESTER_OUT_0 = 0x1601260, "rma_rf_perf_requester_perf_out_0";
    /// Requester: notification puts sent (high half), immediate puts sent (low half).
    const PERF_REQUESTER_OUT_1 = 0x1601268, "rma_rf_perf_requester_perf_out_1";
    /// Requester: GETs sent (high half byte GETs, low half QW GETs).
    const PERF_REQUESTER_OUT_2 = 0x1601270, "rma_rf_perf_requester_perf_out_2";
    /// Requester: locks sent (high half to completers, low half to responders).
    const PERF_REQUESTER_OUT_3 = 0x1601278, "rma_rf_perf_requester_perf_out_3";
    /// Requester: bytes sent.
    const PERF_REQUESTER_OUT_6 = 0x1601290, "rma_rf_perf_requester_perf_out_6";
    /// Requester: notifications with interrupt (high half), notifications sent (low half).
    const PERF_REQUESTER_NOTI = 0x1601298, "rma_rf_perf_requester_perf_noti";
    /// Responder: GETs received (high half byte GETs, low half QW GETs).
    const PERF_RESPONDER_IN_0 = 0x16012A0, "rma_rf_perf_responder_perf_in_0";
    /// Responder: locks received (high half for the completer, low half others).
    const PERF_RESPONDER_IN_1 = 0x16012A8, "rma_rf_perf_responder_perf_in_1";
    /// Responder: translations answered (high half), translations requested (low half).
    const PERF_RESPONDER_ATU_0 = 0x16012B0, "rma_rf_perf_responder_perf_atu_0";
    /// Responder: translations rejected (low half).
    const PERF_RESPONDER_ATU_1 = 0x16012B8, "rma_rf_perf_responder_perf_atu_1";
    /// Responder: fences answered (high half), fences received (low half).
    const PERF_RESPONDER_ATU_2 = 0x16012C0, "rma_rf_perf_responder_perf_atu_2";
    /// Responder: reads of host memory (low half).
    const PERF_RESPONDER_RE_0 = 0x16012C8, "rma_rf_perf_responder_perf_re_0";
    /// Responder: bytes requested from host memory.
    const PERF_RESPONDER_RE_1 = 0x16012D0, "rma_rf_perf_responder_perf_re_1";
    /// Responder: failed reads (high half), answered reads (low half).
    const PERF_RESPONDER_RE_2 = 0x16012D8, "rma_rf_perf_responder_perf_re_2";
    /// Responder: bytes read from host memory.
    const PERF_RESPONDER_RE_3 = 0x16012E0, "rma_rf_perf_responder_perf_re_3";
    /// Responder: get response packets sent (high half byte GETs, low half QW GETs).
    const PERF_RESPONDER_OUT_0 = 0x16012E8, "rma_rf_perf_responder_perf_out_0";
    /// Responder: lock responses sent (high half for the completer, low half others).
    const PERF_RESPONDER_OUT_1 = 0x16012F0, "rma_rf_perf_responder_perf_out_1";
    /// Responder: bytes sent.
    const PERF_RESPONDER_OUT_4 = 0x1601308, "rma_rf_perf_responder_perf_out_4";
    /// Responder: notifications.
    const PERF_RESPONDER_NOTI = 0x1601310, "rma_rf_perf_responder_perf_noti";
    /// Completer: puts received (high half byte puts, low half QW puts).
    const PERF_COMPLETER_IN_0 = 0x1601318, "rma_rf_perf_completer_perf_in_0";
    /// Completer: notification puts received (high half), immediate puts received (low half).
    const PERF_COMPLETER_IN_1 = 0x1601320, "rma_rf_perf_completer_perf_in_1";
    /// Completer: get responses received (high half byte GETs, low half QW GETs).
    const PERF_COMPLETER_IN_2 = 0x1601328, "rma_rf_perf_completer_perf_in_2";
    /// Completer: lock responses received (high half), lock requests received (low half).
    const PERF_COMPLETER_IN_3 = 0x1601330, "rma_rf_perf_completer_perf_in_3";
    /// Completer: bytes received.
    const PERF_COMPLETER_IN_4 = 0x1601338, "rma_rf_perf_completer_perf_in_4";
    /// Completer: translations answered (high half), translations requested (low half).
    const PERF_COMPLETER_ATU_0 = 0x1601340, "rma_rf_perf_completer_perf_atu_0";
    /// Completer: translations rejected (low half).
    const PERF_COMPLETER_ATU_1 = 0x1601348, "rma_rf_perf_completer_perf_atu_1";
    /// Completer: fences answered (high half), fences received (low half).
    const PERF_COMPLETER_ATU_2 = 0x1601350, "rma_rf_perf_completer_perf_atu_2";
    /// Completer: writes to host memory (low half).
    const PERF_COMPLETER_OUT_0 = 0x1601358, "rma_rf_perf_completer_perf_out_0";
    /// Completer: bytes written to host memory.
    const PERF_COMPLETER_OUT_1 = 0x1601360, "rma_rf_perf_completer_perf_out_1";
    /// Completer: notifications.
    const PERF_COMPLETER_NOTI = 0x1601368, "rma_rf_perf_completer_perf_noti";
}

bits! {
    /// `config` (0x1600080).
    pub struct Config {
        /// Packet size in bytes, including the network descriptor of 16 bytes; 512 on Tourmalet.
        mtu / with_mtu: u16 [9:0];
        /// Size class of PCIe writes, see [`pcie_size_class`].
        pcie_mode / with_pcie_mode: u8 [19:16];
        /// Size class of PCIe reads.
        pcie_mode_reads / with_pcie_mode_reads: u8 [23:20];
        /// True if the unit forces error notifications.
        fen / with_fen: bool [32:32];
        /// True if the read engine does not set PassPW.
        repd / with_repd: bool [33:33];
    }
}

impl Config {
    /// Returns the value that the initialisation sequence writes (HW §3.5). `mps` is the PCIe
    /// maximum payload size, `readrq` the maximum read request size, both in bytes.
    pub const fn for_pcie(mps: u32, readrq: u32) -> Self {
        Self(0)
            .with_mtu(512)
            .with_pcie_mode(pcie_size_class(mps))
            .with_pcie_mode_reads(pcie_size_class(readrq))
    }
}

/// Returns the size class for a PCIe payload or read request size in bytes (HW §3.5): 128→2, 256→4,
/// 512→8, others→1.
pub const fn pcie_size_class(bytes: u32) -> u8 {
    match bytes {
        128 => 2,
        256 => 4,
        512 => 8,
        _ => 1,
    }
}

bits! {
    /// `lock_cfg` (0x1600090).
    pub struct LockCfg {
        /// Number of locks.
        number_allowed / with_number_allowed: u32 [24:0];
        /// Number of VPIDs.
        vpids_allowed / with_vpids_allowed: u16 [40:31];
        /// Steering tag.
        steertag / with_steertag: u8 [54:47];
        /// TLP processing hint.
        tph / with_tph: u8 [56:55];
        /// True if the processing hint is enabled.
        th / with_th: bool [57:57];
    }
}

bits! {
    /// `vpid_table` (0x1600800 + 8 v).
    pub struct VpidTable {
        /// True if the VPID is enabled.
        vpid_enable / with_vpid_enable: bool [0:0];
        /// Number of the target unit for packets to a peer's completer: 1 = n1.
        tu_completer / with_tu_completer: u8 [3:1];
        /// Number of the target unit for packets to a peer's responder: 2 = n2.
        tu_responder / with_tu_responder: u8 [6:4];
        /// True if accelerator accesses are allowed.
        excell_enable / with_excell_enable: bool [7:7];
        /// Traffic class of responses to TC 0 requests.
        tc0 / with_tc0: u8 [9:8];
        /// Traffic class of responses to TC 1 requests.
        tc1 / with_tc1: u8 [11:10];
        /// Traffic class of responses to TC 2 requests.
        tc2 / with_tc2: u8 [13:12];
        /// Traffic class of responses to TC 3 requests.
        tc3 / with_tc3: u8 [15:14];
        /// Protection descriptor.
        prot_desc / with_prot_desc: u16 [31:16];
        /// Steering tag.
        steering_tag / with_steering_tag: u8 [39:32];
        /// TLP processing hint.
        tph / with_tph: u8 [41:40];
        /// True if the processing hint is enabled.
        th_enable / with_th_enable: bool [42:42];
    }
}

bits! {
    /// Register `error_ctrl` of the requester, responder and completer.
    pub struct ErrorCtrl {
        /// History mode.
        history_mode / with_history_mode: bool [0:0];
        /// Writing 1 clears the history.
        history_clear / with_history_clear: bool [1:1];
        /// Writing 1 clears the counters.
        counts_clear / with_counts_clear: bool [2:2];
        /// Number of entries in the history.
        history_cnt / with_history_cnt: u16 [17:8];
        /// True if the history was triggered.
        history_trigger / with_history_trigger: bool [24:24];
    }
}

bits! {
    /// Register `error_cnt_n`: four 15-bit counters with overflow bits, from the lowest bits on.
    pub struct ErrorCounters {
        /// First counter.
        count_0 / with_count_0: u16 [14:0];
        /// Overflow bit of the first counter.
        ovflw_0 / with_ovflw_0: bool [15:15];
        /// Second counter.
        count_1 / with_count_1: u16 [30:16];
        /// Overflow bit of the second counter.
        ovflw_1 / with_ovflw_1: bool [31:31];
        /// Third counter.
        count_2 / with_count_2: u16 [46:32];
        /// Overflow bit of the third counter.
        ovflw_2 / with_ovflw_2: bool [47:47];
        /// Fourth counter.
        count_3 / with_count_3: u16 [62:48];
        /// Overflow bit of the fourth counter.
        ovflw_3 / with_ovflw_3: bool [63:63];
    }
}
