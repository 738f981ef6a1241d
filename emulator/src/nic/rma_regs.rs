//! RMA registers: VPID table, error counters and performance counters (HW §10.7).

use super::{Nic, Te};
use crate::env::{Accessor, Env};
use wire::ids::{RegOffset, Unit, Vpid};
use wire::regs::np;
use wire::regs::rma::{self as regs, Config, ErrorCtrl, VpidTable};
use wire::rma::NotificationType;

/// Errors that the sub-units count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RmaError {
    /// The requester rejected a command that is not allowed.
    RequesterCommand,
    /// The requester rejected a command because accelerator modes are off.
    RequesterAccelerator,
    /// The requester could not translate or access an address.
    RequesterTranslation,
    /// The responder rejected a command that is not allowed.
    ResponderCommand,
    /// The responder rejected a request to a VPID that is not enabled.
    ResponderVpid,
    /// The responder rejected a request because the protection descriptors differ.
    ResponderProtection,
    /// The responder rejected a request for a lock that does not exist.
    ResponderLock,
    /// The responder could not translate or access an address.
    ResponderTranslation,
    /// The completer rejected a command that is not allowed.
    CompleterCommand,
    /// The completer rejected a packet to a VPID that is not enabled.
    CompleterVpid,
    /// The completer rejected a packet because the protection descriptors differ.
    CompleterProtection,
    /// The completer could not translate or access an address.
    CompleterTranslation,
    /// A notification waited too long for a slot in its queue.
    QueueTimeout,
}

impl RmaError {
    /// Returns the register that contains the counter, and the index of the 15-bit counter in the
    /// register.
    fn counter(self) -> (RegOffset, u32) {
        match self {
            Self::RequesterCommand => (regs::REQUESTER_ERROR_CNT_0, 1),
            Self::RequesterAccelerator => (regs::REQUESTER_ERROR_CNT_0, 2),
            Self::RequesterTranslation => (regs::REQUESTER_ERROR_CNT_0, 3),
            Self::ResponderCommand => (regs::RESPONDER_ERROR_CNT_0, 2),
            Self::ResponderVpid => (regs::RESPONDER_ERROR_CNT_0, 3),
            Self::ResponderProtection => (regs::RESPONDER_ERROR_CNT_1, 0),
            Self::ResponderLock => (regs::RESPONDER_ERROR_CNT_1, 2),
            Self::ResponderTranslation => (regs::RESPONDER_ERROR_CNT_1, 3),
            Self::CompleterCommand => (regs::COMPLETER_ERROR_CNT_1, 3),
            Self::CompleterVpid => (regs::COMPLETER_ERROR_CNT_2, 0),
            Self::CompleterProtection => (regs::COMPLETER_ERROR_CNT_2, 1),
            Self::CompleterTranslation => (regs::COMPLETER_ERROR_CNT_2, 3),
            Self::QueueTimeout => (regs::COMPLETER_ERROR_CNT_3, 0),
        }
    }
}

/// Half of a performance counter register.
#[derive(Debug, Clone, Copy)]
pub(super) enum Half {
    Low,
    High,
}

/// Performance counter registers that every sub-unit has.
pub(super) struct Perf {
    /// Registers that count translations, failed translations, and fences.
    pub(super) atu: [RegOffset; 3],
    /// Register that counts notifications.
    pub(super) noti: RegOffset,
}

/// Returns the performance counter registers of a sub-unit.
pub(super) fn perf(unit: NotificationType) -> Perf {
    match unit {
        NotificationType::Requester => Perf {
            atu: [
                regs::PERF_REQUESTER_ATU_0,
                regs::PERF_REQUESTER_ATU_1,
                regs::PERF_REQUESTER_ATU_2,
            ],
            noti: regs::PERF_REQUESTER_NOTI,
        },
        NotificationType::Responder => Perf {
            atu: [
                regs::PERF_RESPONDER_ATU_0,
                regs::PERF_RESPONDER_ATU_1,
                regs::PERF_RESPONDER_ATU_2,
            ],
            noti: regs::PERF_RESPONDER_NOTI,
        },
        NotificationType::Completer => Perf {
            atu: [
                regs::PERF_COMPLETER_ATU_0,
                regs::PERF_COMPLETER_ATU_1,
                regs::PERF_COMPLETER_ATU_2,
            ],
            noti: regs::PERF_COMPLETER_NOTI,
        },
    }
}

/// Performance counter registers of a read engine. They count reads, requested bytes, answers, and
/// received bytes.
pub(super) struct PerfRead {
    pub(super) requests: RegOffset,
    pub(super) bytes_asked: RegOffset,
    pub(super) answers: RegOffset,
    pub(super) bytes: RegOffset,
}

/// Sub-unit that contains a read engine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reader {
    Requester,
    Responder,
}

impl Reader {
    pub(super) fn unit(self) -> NotificationType {
        match self {
            Self::Requester => NotificationType::Requester,
            Self::Responder => NotificationType::Responder,
        }
    }

    pub(super) fn perf(self) -> PerfRead {
        match self {
            Self::Requester => PerfRead {
                requests: regs::PERF_REQUESTER_RE_0,
                bytes_asked: regs::PERF_REQUESTER_RE_1,
                answers: regs::PERF_REQUESTER_RE_2,
                bytes: regs::PERF_REQUESTER_RE_3,
            },
            Self::Responder => PerfRead {
                requests: regs::PERF_RESPONDER_RE_0,
                bytes_asked: regs::PERF_RESPONDER_RE_1,
                answers: regs::PERF_RESPONDER_RE_2,
                bytes: regs::PERF_RESPONDER_RE_3,
            },
        }
    }
}

/// Control register, first counter and last counter of each of the three groups of error counters.
const ERROR_GROUPS: [(RegOffset, RegOffset, RegOffset); 3] = [
    (
        regs::REQUESTER_ERROR_CTRL,
        regs::REQUESTER_ERROR_CNT_0,
        regs::REQUESTER_ERROR_CNT_1,
    ),
    (
        regs::RESPONDER_ERROR_CTRL,
        regs::RESPONDER_ERROR_CNT_0,
        regs::RESPONDER_ERROR_CNT_2,
    ),
    (
        regs::COMPLETER_ERROR_CTRL,
        regs::COMPLETER_ERROR_CNT_0,
        regs::COMPLETER_ERROR_CNT_3,
    ),
];

fn table_index(offset: RegOffset) -> Option<usize> {
    let first = regs::vpid_table(Vpid::from_low_bits(0));
    let i = (offset.0.checked_sub(first.0)? / 8) as usize;
    (i < 256).then_some(i)
}

/// Value of the register field `config.mtu` (HW §3.5).
const MTU: u16 = 512;

impl Nic {
    pub(super) fn rma_vpid(&self, vpid: u8) -> VpidTable {
        VpidTable(self.rma.vpid_table[usize::from(vpid)])
    }

    /// Returns true if error notifications are written even if the descriptor does not request
    /// them.
    pub(super) fn rma_force_errors(&self) -> bool {
        Config(self.storage.at(regs::CONFIG.0)).fen()
    }

    /// Counts an error and raises the event for it (G33).
    pub(super) fn rma_error(&mut self, error: RmaError) {
        let (at, n) = error.counter();
        let word = self.storage.at(at.0);
        let shift = 16 * n;
        let field = (word >> shift) as u16;
        let count = (field + 1) & 0x7FFF;
        let overflow = if count == 0 { 0x8000 } else { field & 0x8000 };
        let word = word & !(0xFFFF << shift) | (u64::from(count | overflow) << shift);
        self.storage.set_at(at.0, word);
        self.raise(Te::RmaError);
    }

    /// Counts an item that was dropped because its queue stayed full.
    pub(super) fn bq_timeout_error(&mut self, unit: Unit) {
        match unit {
            Unit::Rma => self.rma_error(RmaError::QueueTimeout),
            Unit::Velo => self.raise(Te::VeloError),
        }
    }

    /// Adds `n` to one half of a performance counter register.
    pub(super) fn rma_count(&mut self, at: RegOffset, half: Half, n: u32) {
        let word = self.storage.at(at.0);
        let (low, high) = (word as u32, (word >> 32) as u32);
        let (low, high) = match half {
            Half::Low => (low.wrapping_add(n), high),
            Half::High => (low, high.wrapping_add(n)),
        };
        self.storage
            .set_at(at.0, (u64::from(high) << 32) | u64::from(low));
    }

    /// Adds `n` to a 48-bit counter of bytes.
    pub(super) fn rma_count_bytes(&mut self, at: RegOffset, n: u64) {
        let sum = self.storage.at(at.0).wrapping_add(n) & ((1 << 48) - 1);
        self.storage.set_at(at.0, sum);
    }

    /// Reports a VPID that software opens with units or packet sizes that the chip or the bus does
    /// not have (HW §3.5, §10.7). The peer's completer is at network port n1, its responder at n2,
    /// and packets have 512 bytes. PCIe packets must not exceed the size that the configuration
    /// space allows.
    fn rma_check_setup(&mut self, vpid: usize, entry: VpidTable, env: &mut Env<'_>) {
        let units = (entry.tu_completer(), entry.tu_responder());
        if units != (np::RMA_COMPLETER as u8, np::RMA_RESPONDER as u8) {
            self.bad_setup(env, || {
                format!("RMA VPID {vpid}: wrong network ports for the peer's units: {units:?}")
            });
        }
        let config = Config(self.storage.at(regs::CONFIG.0));
        let sizes = [config.pcie_mode(), config.pcie_mode_reads()];
        let classes = [128, 256, 512, 0].map(regs::pcie_size_class);
        let fits = |(size, most): (u8, u32)| {
            // Size class 1 represents all larger sizes.
            let bytes = if size == 1 {
                u32::MAX
            } else {
                64 * u32::from(size)
            };
            classes.contains(&size) && (bytes <= most || size == regs::pcie_size_class(most))
        };
        let limits = self.bus_limits.unwrap_or([u32::MAX; 2]);
        if config.mtu() != MTU || !sizes.into_iter().zip(limits).all(fits) {
            self.bad_setup(env, || {
                format!(
                    "RMA set-up {:#x} does not fit packets of up to {limits:?} bytes on the bus",
                    config.raw()
                )
            });
        }
    }

    /// Returns true if the VPID is enabled.
    pub(super) fn rma_accepts(&self, vpid: u8) -> bool {
        VpidTable(self.rma.vpid_table[usize::from(vpid)]).vpid_enable()
    }

    pub(super) fn rma_reg_read(&mut self, offset: RegOffset, by: Accessor) -> Option<u64> {
        match table_index(offset) {
            Some(i) => Some(self.rma.vpid_table[i]),
            None => self.vector_read(Unit::Rma, offset, by),
        }
    }

    pub(super) fn rma_reg_write(
        &mut self,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        if let Some(i) = table_index(offset) {
            self.rma.vpid_table[i] = value;
            if VpidTable(value).vpid_enable() {
                self.rma_check_setup(i, VpidTable(value), env);
            } else {
                self.close_held(Unit::Rma, i as u8, env);
                self.rma_close(i as u8, env);
            }
            return true;
        }
        if let Some((_, first, last)) = ERROR_GROUPS.iter().find(|(ctrl, ..)| *ctrl == offset) {
            let ctrl = ErrorCtrl(value);
            if ctrl.counts_clear() {
                for at in (first.0..=last.0).step_by(8) {
                    self.storage.set_at(at, 0);
                }
            }
            let stored = ctrl.with_counts_clear(false).with_history_clear(false);
            self.storage.set_at(offset.0, stored.raw());
            return true;
        }
        if offset == regs::PERF_COUNTER_CONTROL {
            // Writing any bit clears the counters, because the layout of the register is unknown
            // (G29).
            if value != 0 {
                for at in (regs::PERF_REQUESTER_IN_0.0..=regs::PERF_COMPLETER_NOTI.0).step_by(8) {
                    self.storage.set_at(at, 0);
                }
            }
            return true;
        }
        self.vector_write(Unit::Rma, offset, value)
    }
}
