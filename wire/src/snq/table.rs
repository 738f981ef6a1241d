// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Registers that the driver's program records for each event (HW §6.5).

use super::program::{assemble, EventProgram, Program, Style};
use super::TriggerEvent as Te;
use crate::ids::RegOffset;
use crate::regs::{
    barrier, gpio, htax, info, lp, pcie, phy, rma, rma_bq, smfu, velo, velo_bq, wcbuf, xbar,
};

const fn burst(event: Te, registers: &'static [RegOffset]) -> EventProgram {
    EventProgram {
        event,
        registers,
        style: Style::Burst,
    }
}

const fn single(event: Te, registers: &'static [RegOffset]) -> EventProgram {
    EventProgram {
        event,
        registers,
        style: Style::Single,
    }
}

/// Register that HW §6.5 lists for the ECC events. On Tourmalet, this offset is the time stamp
/// counter.
const ECC_WORD: RegOffset = info::TSC;

/// Registers to record for each event. They are those of the vendor's program, except for event 12.
/// That event records the SMFU timeout register (0xA010) instead of a stale address. The rows are
/// in numeric order, so that program addresses equal the vendor's.
pub static TABLE: [EventProgram; 26] = [
    burst(Te::Ht3CoreError, &[pcie::HT3_RX_PKTS_5]),
    burst(Te::EccError, &[ECC_WORD]),
    burst(Te::EccFatal, &[ECC_WORD]),
    burst(Te::PcieCoreLinkStatus, &[pcie::NWL_GENERAL0]),
    burst(Te::PcieBridgeRegfileInfo, &[pcie::PCIE_TO_HTOC_CFG]),
    burst(
        Te::PcieBridgeError,
        &[
            pcie::HTOC_TO_PCIE_P_COUNTER,
            pcie::HTOC_TO_PCIE_NP_COUNTER,
            pcie::PCIE_TO_HTOC_COUNTER_MEMWR,
            pcie::PCIE_TO_HTOC_COUNTER_MSG,
            pcie::PCIE_TO_HTOC_COUNTER_MEMRD,
            pcie::PCIE_TO_HTOC_COUNTER_IOWR,
            pcie::PCIE_TO_HTOC_COUNTER_IORD,
            pcie::PCIE_TO_HTOC_COUNTER_CFGWR,
            pcie::PCIE_TO_HTOC_COUNTER_CFGRD,
            pcie::PCIE_TO_HTOC_COUNTER_ATOMIC,
            pcie::PCIE_TO_HTOC_COUNTER_RDRSP,
            pcie::PCIE_TO_HTOC_REGFWD_DROP,
            pcie::HTOC_TO_PCIE_BACKDOOR_CONTROL,
        ],
    ),
    burst(Te::PcieCoreError, &[pcie::STATUS]),
    burst(Te::TimerInterrupt, &[info::TIMER_INTERRUPT]),
    burst(Te::GpioIrq, &[gpio::IN]),
    burst(Te::HtaxBridgeDiscarded, &[htax::DISCARDED_COUNTER]),
    burst(
        Te::HtaxAssertion,
        &[htax::DEBUG_0, htax::DEBUG_1, htax::DEBUG_2],
    ),
    burst(Te::SmfuMatchingStoreEmpty, &[smfu::STATUS_CONTROL]),
    single(Te::SmfuTimeout, &[smfu::TIMEOUT_CONTROL]),
    burst(Te::XbarInport, &INPORTS),
    burst(Te::XbarOutport, &OUTPORTS),
    burst(Te::BarrierReleased, &BARRIERS),
    burst(
        Te::BarrierGlobalInterrupt,
        &[
            info::NW_STATE,
            barrier::interrupts_work_set(0),
            barrier::interrupts_work_set(1),
            barrier::interrupts_work_set(2),
            barrier::interrupts_work_set(3),
        ],
    ),
    burst(Te::LinkPort, &LINKS),
    burst(Te::LinkMacStatus, &PHYS),
    burst(Te::BqError, &[velo_bq::GENERAL, rma_bq::GENERAL]),
    burst(
        Te::WcbufError,
        &[
            wcbuf::velo::ERRORS0,
            wcbuf::velo::ERRORS1,
            wcbuf::rma::ERRORS0,
            wcbuf::rma::ERRORS1,
        ],
    ),
    single(
        Te::VeloNotification,
        &[
            velo::int_vec(0),
            velo::int_vec(1),
            velo::int_vec(2),
            velo::int_vec(3),
        ],
    ),
    burst(
        Te::VeloError,
        &[
            velo::COUNTER_0,
            velo::COUNTER_1,
            velo::COUNTER_2,
            velo::DEBUG_0,
            velo::DEBUG_1,
        ],
    ),
    single(
        Te::RmaNotification,
        &[
            rma::int_vec(0),
            rma::int_vec(1),
            rma::int_vec(2),
            rma::int_vec(3),
        ],
    ),
    burst(
        Te::RmaError,
        &[
            rma::REQUESTER_ERROR_CNT_0,
            rma::REQUESTER_ERROR_CNT_1,
            rma::RESPONDER_ERROR_CNT_0,
            rma::RESPONDER_ERROR_CNT_1,
            rma::RESPONDER_ERROR_CNT_2,
            rma::COMPLETER_ERROR_CNT_0,
            rma::COMPLETER_ERROR_CNT_1,
            rma::COMPLETER_ERROR_CNT_2,
            rma::COMPLETER_ERROR_CNT_3,
        ],
    ),
    burst(Te::NwState, &[info::NW_STATE]),
];

macro_rules! array {
    ($(#[$m:meta])* $name:ident, $n:literal, $f:path) => {
        $(#[$m])*
        static $name: [RegOffset; $n] = {
            let mut out = [RegOffset::INVALID; $n];
            let mut i = 0;
            while i < $n {
                out[i] = $f(i as u32);
                i += 1;
            }
            out
        };
    };
}

array!(INPORTS, 11, xbar::inp::routing);
array!(OUTPORTS, 11, xbar::outp::general);
array!(BARRIERS, 16, barrier::units_work_set);
array!(LINKS, 7, lp::status);
array!(PHYS, 7, phy::status_training);

/// Program of the driver.
pub static TOURMALET: Program = match assemble(&TABLE) {
    Ok(program) => program,
    Err(_) => panic!("the driver's notification table does not assemble"),
};
