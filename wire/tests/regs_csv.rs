// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Compares register offsets, strides and field positions with the register map in `data/`.

#![allow(clippy::precedence)] // bit patterns as the reference writes them

use std::collections::{HashMap, HashSet};
use wire::ids::{RegOffset, Vpid};
use wire::regs::{self, TABLES};

struct Row {
    offset: u32,
    entries: u32,
    stride: u32,
    fields: HashSet<(u32, u32)>,
}

fn map() -> HashMap<String, Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/tourmalet-registers.csv");
    let mut out: HashMap<String, Row> = HashMap::new();
    for record in csv::Reader::from_path(path).unwrap().deserialize() {
        let r: HashMap<String, String> = record.unwrap();
        let name = r["name"].strip_prefix("extoll_rf_").unwrap().to_string();
        let row = out.entry(name).or_insert_with(|| Row {
            offset: u32::from_str_radix(r["offset_hex"].trim_start_matches("0x"), 16).unwrap(),
            entries: r["entries"].parse().unwrap(),
            stride: r["stride"].parse().unwrap(),
            fields: HashSet::new(),
        });
        if !r["field"].is_empty() {
            row.fields
                .insert((r["msb"].parse().unwrap(), r["lsb"].parse().unwrap()));
        }
    }
    assert_eq!(out.len(), 2525);
    out
}

#[test]
fn offsets_and_strides() {
    let map = map();
    let mut checked = 0;
    for info in TABLES.iter().flat_map(|t| t.iter()) {
        for i in 0..info.outer.0 {
            let name = info.name.replace('#', &i.to_string());
            let row = map
                .get(&name)
                .unwrap_or_else(|| panic!("{name} is not in the register map"));
            assert_eq!(info.offset + i * info.outer.1, row.offset, "{name}");
            assert_eq!(info.inner.0, row.entries, "{name}: entries");
            if row.entries > 1 {
                assert_eq!(info.inner.1, row.stride, "{name}: stride");
            }
            checked += 1;
        }
        if info.outer.0 > 1 {
            let next = info.name.replace('#', &info.outer.0.to_string());
            assert!(!map.contains_key(&next), "{next} exists but is not covered");
        }
    }
    assert!(checked > 450, "only {checked} registers checked");
}

#[test]
fn every_field_sits_where_the_map_says() {
    use wire::{atu, bq, snq, wcbuf};
    let map = map();
    // Fields that this crate splits or merges intentionally: (register, msb, lsb).
    let ours = [
        ("info_rf_tsc_global_load_enable", 3, 0),
        ("info_rf_tsc_global_load_enable", 11, 8),
        ("velo_rf_debug_1", 63, 56),
        ("nw_xbar_rf_outp0_general", 7, 0),
    ];
    let mut checked = 0;
    let mut check = |name: &str, fields: &[(&str, u32, u32)]| {
        let row = map
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the register map"));
        for &(field, msb, lsb) in fields {
            let known = row.fields.contains(&(msb, lsb)) || ours.contains(&(name, msb, lsb));
            assert!(
                known,
                "{name}.{field} [{msb}:{lsb}] is not in the register map"
            );
            checked += 1;
        }
    };
    macro_rules! check {
        ($($name:literal: $ty:ty,)*) => { $(check($name, <$ty>::FIELDS);)* };
    }
    check! {
        "info_rf_driver": regs::info::Driver,
        "info_rf_node": regs::info::Node,
        "info_rf_management_sw": regs::info::ManagementSw,
        "info_rf_tsc_global_load_enable": regs::info::TscGlobalLoadEnable,
        "info_rf_timer_interrupt": regs::info::TimerInterrupt,
        "htax_bridge_rf_intvl_upper": regs::htax::Bound,
        "htax_bridge_rf_intvl_lower": regs::htax::Bound,
        "htax_bridge_rf_intvl_control": regs::htax::IntvlControl,
        "htax_bridge_rf_general": regs::htax::General,
        "htax_bridge_rf_posted_counter": regs::PacketCounter,
        "htax_bridge_rf_discarded_counter": regs::htax::DiscardedCounter,
        "htax_bridge_rf_error_ecc": regs::htax::ErrorEcc,
        "np_top_rf_n0_general": regs::np::General,
        "np_top_rf_n3_hp2np_counter": regs::PacketCounter,
        "smfu_rf_status_control": regs::smfu::StatusControl,
        "smfu_rf_traffic_class": regs::smfu::TrafficClass,
        "smfu_rf_timeout_control": regs::smfu::TimeoutControl,
        "smfu_rf_misc_count": regs::smfu::MiscCount,
        "smfu_rf_interval_control": regs::smfu::IntervalControl,
        "smfu_rf_interval_counter": regs::smfu::IntervalCounter,
        "atu_rf_control": regs::atu::Control,
        "atu_rf_cnt_0": regs::atu::Cnt0,
        "atu_rf_cnt_2": regs::atu::Cnt2,
        "atu_rf_cnt_3": regs::atu::Cnt3,
        "atu_rf_cnt_4": regs::atu::Cnt4,
        "atu_rf_gat": atu::GatBase,
        "atu_rf_cmd_interface": atu::CommandWord,
        "snq_rf_trigger_enable": snq::TriggerMask,
        "snq_rf_queue_balt": regs::snq::QueueBalt,
        "snq_rf_queue_mslt": regs::snq::QueueIndex,
        "snq_rf_queue_wplt": regs::snq::QueueIndex,
        "snq_rf_queue_rplt": regs::snq::QueueIndex,
        "snq_rf_irq_watermark": regs::snq::IrqWatermark,
        "snq_rf_execute": regs::snq::Execute,
        "snq_rf_dbg_0": regs::snq::Dbg0,
        "snq_rf_htax": regs::snq::Htax,
        "snq_rf_program_ram": snq::InstructionWord,
        "nw_xbar_rf_inp0_routing": regs::xbar::inp::Routing,
        "nw_xbar_rf_outp0_general": regs::xbar::outp::General,
        "nw_xbar_rf_outp0_credits_0": regs::xbar::outp::Credits0,
        "nw_xbar_rf_outp0_credits_1": regs::xbar::outp::Credits1,
        "nw_barrier_rf_units_work_set": regs::barrier::UnitsWorkSet,
        "nw_barrier_rf_interrupts_work_set": regs::barrier::InterruptsWorkSet,
        "nw_barrier_rf_units_config_config": regs::barrier::UnitsConfig,
        "pcie_rf_bridge_rf_htoc_to_pcie": regs::pcie::HtocToPcie,
        "pcie_rf_bridge_rf_pcie_to_htoc_cfg": regs::pcie::PcieToHtocCfg,
        "pcie_rf_bridge_rf_htoc_to_pcie_p_counter": regs::pcie::ForwardCounter,
        "pcie_rf_bridge_rf_htoc_to_pcie_np_counter": regs::pcie::ForwardCounter,
        "pcie_rf_bridge_rf_pcie_to_htoc_counter_memwr": regs::pcie::RequestCounter,
        "pcie_rf_bridge_rf_pcie_to_htoc_counter_cfgrd": regs::pcie::RequestCounter,
        "pcie_rf_bridge_rf_pcie_to_htoc_counter_rdrsp": regs::pcie::ResponseCounter,
        "pcie_rf_bridge_rf_pcie_to_htoc_counter_tgtdone": regs::pcie::ResponseCounter,
        "pcie_rf_bridge_rf_pcie_to_htoc_regfwd_drop": regs::pcie::RegfwdDrop,
        "nw_lp_top_rf_lp0_status": regs::lp::Status,
        "nw_lp_top_rf_lp0_retransmission_counters": regs::lp::RetransmissionCounters,
        "nw_lp_top_rf_lp0_ids": regs::lp::Ids,
        "nw_lp_top_rf_lp0_lp_in": regs::lp::LpIn,
        "nw_lp_top_rf_lp0_counter": regs::PacketCounter,
        "buffer_queue_rf_velo_general": bq::General,
        "buffer_queue_rf_velo_debug": bq::Debug,
        "buffer_queue_rf_velo_ub": bq::Ub,
        "buffer_queue_rf_velo_dcq_base_dcq_ub": bq::DcqBaseWord,
        "buffer_queue_rf_velo_c_base_size_valid": bq::SegmentWord,
        "buffer_queue_rf_rma_n_base_size_valid": bq::SegmentWord,
        "buffer_queue_rf_velo_wp_lwp_dcq_rp": bq::WritePointers,
        "buffer_queue_rf_rma_rp": bq::Rp,
        "velo_rf_wcbuf_rf_state": wcbuf::State,
        "rma_rf_wcbuf_rf_state": wcbuf::State,
        "velo_rf_wcbuf_rf_timeout": regs::wcbuf::Timeout,
        "velo_rf_wcbuf_rf_errors0": regs::wcbuf::Errors,
        "rma_rf_wcbuf_rf_errors1": regs::wcbuf::Errors,
        "velo_rf_node_vpid_prot_desc": regs::velo::NodeVpidProtDesc,
        "velo_rf_comp_prot_desc": regs::velo::CompProtDesc,
        "velo_rf_timeout": regs::velo::Timeout,
        "velo_rf_completer": regs::velo::Completer,
        "velo_rf_counter_0": regs::PacketCounter,
        "velo_rf_counter_1": regs::velo::Counter1,
        "velo_rf_counter_2": regs::velo::Counter2,
        "velo_rf_debug_1": regs::velo::Debug1,
        "rma_rf_config": regs::rma::Config,
        "rma_rf_lock_cfg": regs::rma::LockCfg,
        "rma_rf_bq_timeout": regs::velo::Timeout,
        "rma_rf_vpid_table": regs::rma::VpidTable,
        "rma_rf_requester_error_ctrl": regs::rma::ErrorCtrl,
        "rma_rf_requester_error_cnt_0": regs::rma::ErrorCounters,
        "rma_rf_responder_error_cnt_1": regs::rma::ErrorCounters,
        "rma_rf_completer_error_cnt_2": regs::rma::ErrorCounters,
        "pcie_rf_nwl_pcie_status_rf_general0": regs::pcie::NwlGeneral0,
        "pcie_rf_bridge_rf_htoc_to_pcie_backdoor_control": regs::pcie::BackdoorControl,
    }
    assert!(checked > 250, "only {checked} fields checked");
}

#[test]
fn lookup_names_registers() {
    let name = |o: RegOffset| regs::lookup(o).unwrap().to_string();
    assert_eq!(name(regs::info::NODE), "info_rf_node");
    assert_eq!(
        name(regs::xbar::inp::lrt(10, 77)),
        "nw_xbar_rf_inp10_lrt[77]"
    );
    assert_eq!(
        name(regs::velo_bq::rp(Vpid::NET)),
        "buffer_queue_rf_velo_rp[254]"
    );
    assert_eq!(name(regs::lp::status(6)), "nw_lp_top_rf_lp6_status");
    assert_eq!(regs::lookup(RegOffset(0x9204)), None);
    assert_eq!(regs::lookup(RegOffset(0)), None);
    assert_eq!(regs::lookup(RegOffset::INVALID), None);
    // The lookup finds every element of every array.
    for info in TABLES.iter().flat_map(|t| t.iter()) {
        for i in 0..info.outer.0 {
            for j in 0..info.inner.0 {
                let offset = RegOffset(info.offset + i * info.outer.1 + j * info.inner.1);
                assert!(offset.is_valid());
                let found = regs::lookup(offset).unwrap();
                assert_eq!(
                    (found.info.name, found.outer, found.inner),
                    (info.name, i, j)
                );
            }
        }
    }
}
