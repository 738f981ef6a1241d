// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! `pcie_rf`, `ht3_perf_rf`: PCIe core, bridge and backdoor (HW §14).

regs! {
    /// HyperTransport receive counter 5, which trigger event 0 records.
    const HT3_RX_PKTS_5 = 0x850, "ht_rf_ht3_rf_ht3_perf_rf_rx_pkts_5";
    /// PHY error counters. Read-only.
    const ERR_CNT_PHY = 0x4440, "pcie_rf_nwl_pcie_status_rf_err_cnt_phy";
    /// Link status, see [`NwlGeneral0`]. Read-only.
    const NWL_GENERAL0 = 0x4780, "pcie_rf_nwl_pcie_status_rf_general0";
    /// Options of the bridge towards PCIe.
    const HTOC_TO_PCIE = 0x5400, "pcie_rf_bridge_rf_htoc_to_pcie";
    /// Selection of received TLPs that the bridge stores in the register FIFO.
    const PCIE_TO_HTOC_CFG = 0x5408, "pcie_rf_bridge_rf_pcie_to_htoc_cfg";
    /// Address by which the bridge recognises an interrupt write.
    const PCIE_TO_HTOC_INTERRUPT_0 = 0x5410, "pcie_rf_bridge_rf_pcie_to_htoc_interrupt_0";
    /// Mask for the address in `interrupt_0`.
    const PCIE_TO_HTOC_INTERRUPT_1 = 0x5418, "pcie_rf_bridge_rf_pcie_to_htoc_interrupt_1";
    /// Options for tags.
    const TAG_MAPS = 0x5420, "pcie_rf_bridge_rf_tag_maps";
    /// Number of posted packets to PCIe.
    const HTOC_TO_PCIE_P_COUNTER = 0x5428, "pcie_rf_bridge_rf_htoc_to_pcie_p_counter";
    /// Number of non-posted packets to PCIe.
    const HTOC_TO_PCIE_NP_COUNTER = 0x5430, "pcie_rf_bridge_rf_htoc_to_pcie_np_counter";
    /// Number of responses to PCIe.
    const HTOC_TO_PCIE_R_COUNTER = 0x5438, "pcie_rf_bridge_rf_htoc_to_pcie_r_counter";
    /// Number of memory writes from PCIe.
    const PCIE_TO_HTOC_COUNTER_MEMWR = 0x5440, "pcie_rf_bridge_rf_pcie_to_htoc_counter_memwr";
    /// Number of messages from PCIe.
    const PCIE_TO_HTOC_COUNTER_MSG = 0x5448, "pcie_rf_bridge_rf_pcie_to_htoc_counter_msg";
    /// Number of memory reads from PCIe.
    const PCIE_TO_HTOC_COUNTER_MEMRD = 0x5450, "pcie_rf_bridge_rf_pcie_to_htoc_counter_memrd";
    /// Number of I/O writes from PCIe.
    const PCIE_TO_HTOC_COUNTER_IOWR = 0x5458, "pcie_rf_bridge_rf_pcie_to_htoc_counter_iowr";
    /// Number of I/O reads from PCIe.
    const PCIE_TO_HTOC_COUNTER_IORD = 0x5460, "pcie_rf_bridge_rf_pcie_to_htoc_counter_iord";
    /// Number of configuration writes from PCIe.
    const PCIE_TO_HTOC_COUNTER_CFGWR = 0x5468, "pcie_rf_bridge_rf_pcie_to_htoc_counter_cfgwr";
    /// Number of configuration reads from PCIe.
    const PCIE_TO_HTOC_COUNTER_CFGRD = 0x5470, "pcie_rf_bridge_rf_pcie_to_htoc_counter_cfgrd";
    /// Number of atomics from PCIe.
    const PCIE_TO_HTOC_COUNTER_ATOMIC = 0x5478, "pcie_rf_bridge_rf_pcie_to_htoc_counter_atomic";
    /// Number of read responses from PCIe.
    const PCIE_TO_HTOC_COUNTER_RDRSP = 0x5480, "pcie_rf_bridge_rf_pcie_to_htoc_counter_rdrsp";
    /// Number of target-done responses from PCIe.
    const PCIE_TO_HTOC_COUNTER_TGTDONE = 0x5488, "pcie_rf_bridge_rf_pcie_to_htoc_counter_tgtdone";
    /// Number of TLPs dropped because the register FIFO was full.
    const PCIE_TO_HTOC_REGFWD_DROP = 0x5490, "pcie_rf_bridge_rf_pcie_to_htoc_regfwd_drop";
    /// Backdoor control, see [`BackdoorControl`].
    const HTOC_TO_PCIE_BACKDOOR_CONTROL = 0x5498, "pcie_rf_bridge_rf_htoc_to_pcie_backdoor_control";
    /// Backdoor data: TLP to send.
    fn htoc_to_pcie_backdoor_data(k < 32) = 0x5500 + 8, "pcie_rf_bridge_rf_htoc_to_pcie_backdoor_data";
    /// State of the backdoor's receive FIFO. On hardware, reading is destructive.
    const PCIE_TO_HTOC_BACKDOOR_INFO = 0x5600, "pcie_rf_bridge_rf_pcie_to_htoc_backdoor_info";
    /// Data of the backdoor's receive FIFO. Reading is destructive.
    const PCIE_TO_HTOC_BACKDOOR_DATA = 0x5608, "pcie_rf_bridge_rf_pcie_to_htoc_backdoor_data";
    /// ECC flags of the bridge.
    const BRIDGE_ERROR_RAM_ECC = 0x5610, "pcie_rf_bridge_rf_error_ram_ecc";
    /// PIPE control register. The vendor's notification program reads it for trigger event 12 by
    /// mistake (HW §6.5).
    const PIPE_CTRL = 0x5810, "pcie_rf_pipe_rf_ctrl";
    /// Configuration of the PCIe core.
    const CONFIGURATION = 0x5A00, "pcie_rf_configuration";
    /// Information about the PCIe core. Read-only.
    const INFO = 0x5A08, "pcie_rf_info";
    /// Status of the PCIe core, which trigger event 6 records. Read-only.
    const STATUS = 0x5A10, "pcie_rf_status";
    /// ECC flags of the vendor's core.
    const VENDOR_ECC = 0x5A18, "pcie_rf_vendor_ecc";
    /// Storage of the MSI-X table, two words per vector.
    fn int_msix_table(k < 64) = 0x6000 + 8, "pcie_rf_int_msix_table";
    /// Storage of the MSI-X pending bits.
    fn int_msix_pba_table(k < 32) = 0x6200 + 8, "pcie_rf_int_msix_pba_table";
}

bits! {
    /// `nwl general0` (0x4780): link status.
    pub struct NwlGeneral0 {
        /// True if the physical layer is up.
        phy_layer_up / with_phy_layer_up: bool [0:0];
        /// True if the data link layer is up.
        dl_layer_up / with_dl_layer_up: bool [1:1];
        /// State of the LTSSM.
        ltssm_state / with_ltssm_state: u8 [6:2];
        /// Bit i is set after a loss of sync on lane i.
        phy_loss_of_sync / with_phy_loss_of_sync: u16 [22:7];
        /// True after a loss of sync on any lane.
        phy_loss_of_sync_any / with_phy_loss_of_sync_any: bool [23:23];
        /// Link speed: 1…3 = Gen1…Gen3.
        current_link_speed / with_current_link_speed: u8 [25:24];
        /// Number of lanes.
        link_width / with_link_width: u8 [31:26];
    }
}

bits! {
    /// `htoc_to_pcie_backdoor_control` (0x5498).
    pub struct BackdoorControl {
        /// Number of payload quadwords.
        payload_qw_length / with_payload_qw_length: u8 [4:0];
        /// Interrupt bit.
        int / with_int: bool [8:8];
        /// Number of data credits.
        cpl_credit_data / with_cpl_credit_data: u16 [24:16];
        /// Number of header credits.
        cpl_credit_header / with_cpl_credit_header: u8 [31:25];
        /// Writing 1 sends the TLP.
        send / with_send: bool [40:40];
        /// Number of TLPs sent.
        sent_tlp_count / with_sent_tlp_count: u16 [63:48];
    }
}

bits! {
    /// `htoc_to_pcie` (0x5400).
    pub struct HtocToPcie {
        /// True if the bridge sets the no-snoop attribute.
        no_snoop_enable / with_no_snoop_enable: bool [0:0];
        /// True if the bridge sends configuration requests of type 1 as type 0.
        map_config_to_0 / with_map_config_to_0: bool [1:1];
        /// Number of pipeline stages.
        cmd_delay_stages / with_cmd_delay_stages: u8 [7:2];
    }
}

bits! {
    /// Register `pcie_to_htoc_cfg` (0x5408). It selects the received packets that the bridge stores
    /// in the register FIFO.
    pub struct PcieToHtocCfg {
        /// Stores writes that `interrupt_0` and `interrupt_1` identify.
        regfwd_interrupt / with_regfwd_interrupt: bool [0:0];
        /// Stores completions with tag 0.
        regfwd_srctag0 / with_regfwd_srctag0: bool [1:1];
        /// Stores error responses.
        regfwd_option_error_resp / with_regfwd_option_error_resp: bool [2:2];
        /// Drops posted packets when the FIFO is full.
        regfwd_option_drop_full_p / with_regfwd_option_drop_full_p: bool [3:3];
        /// Drops non-posted packets when the FIFO is full.
        regfwd_option_drop_full_np / with_regfwd_option_drop_full_np: bool [4:4];
        /// Drops completions when the FIFO is full.
        regfwd_option_drop_full_r / with_regfwd_option_drop_full_r: bool [5:5];
        /// Stores all memory writes.
        regfwd_memwr_all / with_regfwd_memwr_all: bool [8:8];
        /// Stores all messages.
        regfwd_msg_all / with_regfwd_msg_all: bool [9:9];
        /// Stores all memory reads.
        regfwd_memrd_all / with_regfwd_memrd_all: bool [10:10];
        /// Stores all I/O writes.
        regfwd_iowr_all / with_regfwd_iowr_all: bool [11:11];
        /// Stores all I/O reads.
        regfwd_iord_all / with_regfwd_iord_all: bool [12:12];
        /// Stores all configuration writes.
        regfwd_cfgwr_all / with_regfwd_cfgwr_all: bool [13:13];
        /// Stores all configuration reads.
        regfwd_cfgrd_all / with_regfwd_cfgrd_all: bool [14:14];
        /// Stores all atomics.
        regfwd_atomic_all / with_regfwd_atomic_all: bool [15:15];
        /// Stores all completions with data.
        regfwd_rdrsp_all / with_regfwd_rdrsp_all: bool [16:16];
        /// Stores all completions without data.
        regfwd_tgtdone_all / with_regfwd_tgtdone_all: bool [17:17];
        /// Stores memory writes to addresses that no interval maps.
        regfwd_memwr_cantmap / with_regfwd_memwr_cantmap: bool [24:24];
        /// Stores memory reads of addresses that no interval maps.
        regfwd_memrd_cantmap / with_regfwd_memrd_cantmap: bool [25:25];
        /// Stores I/O writes that cannot be mapped.
        regfwd_iowr_cantmap / with_regfwd_iowr_cantmap: bool [26:26];
        /// Stores I/O reads that cannot be mapped.
        regfwd_iord_cantmap / with_regfwd_iord_cantmap: bool [27:27];
        /// Stores configuration writes that cannot be mapped.
        regfwd_cfgwr_cantmap / with_regfwd_cfgwr_cantmap: bool [28:28];
        /// Stores configuration reads that cannot be mapped.
        regfwd_cfgrd_cantmap / with_regfwd_cfgrd_cantmap: bool [29:29];
        /// Rejects byte reads.
        byte_rd_disable_all / with_byte_rd_disable_all: bool [32:32];
        /// Rejects byte reads that cannot be mapped.
        byte_rd_disable_cantmap / with_byte_rd_disable_cantmap: bool [33:33];
        /// Raises trigger event 4 after the bridge has stored a packet.
        info_trigger / with_info_trigger: bool [40:40];
    }
}

bits! {
    /// `htoc_to_pcie_p_counter`, `…_np_counter`, `…_r_counter`.
    pub struct ForwardCounter {
        /// Number of packets forwarded.
        forw_pkts / with_forw_pkts: u32 [31:0];
        /// Number of packets discarded.
        disc_pkts / with_disc_pkts: u32 [63:32];
    }
}

bits! {
    /// Request counter `pcie_to_htoc_counter_…`.
    pub struct RequestCounter {
        /// Number of requests forwarded.
        fwd / with_fwd: u32 [31:0];
        /// Number of errors.
        error / with_error: u16 [47:32];
        /// Number of requests stored in the register FIFO.
        regfile / with_regfile: u16 [63:48];
    }
}

bits! {
    /// `pcie_to_htoc_counter_rdrsp`, `…_tgtdone`.
    pub struct ResponseCounter {
        /// Number of responses forwarded.
        fwd / with_fwd: u32 [31:0];
        /// Number of responses stored in the register FIFO.
        regfile / with_regfile: u16 [47:32];
    }
}

bits! {
    /// Register `pcie_to_htoc_regfwd_drop` (0x5490), which counts dropped packets.
    pub struct RegfwdDrop {
        /// Number of posted requests.
        posted / with_posted: u32 [19:0];
        /// Number of non-posted requests.
        nonposted / with_nonposted: u32 [39:20];
        /// Number of completions.
        response / with_response: u32 [59:40];
    }
}

bits! {
    /// Register `pcie_to_htoc_backdoor_info` (0x5600). **MODEL decision, not a hardware fact**: the
    /// register has a valid bit and a count, but their bit positions are unknown (G20).
    pub struct BackdoorInfo {
        /// The FIFO contains a packet.
        valid / with_valid: bool [0:0];
        /// Number of reads of the data register that return the packet.
        qw_count / with_qw_count: u8 [8:1];
    }
}
