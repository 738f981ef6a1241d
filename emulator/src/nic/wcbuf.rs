//! Write-combining buffers of the requesters: credit and retry state per VPID (HW §8, G11).

use super::rma::RmaCommand;
use super::{Nic, Te, VeloMessage};
use crate::env::Env;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use wire::ids::{RegOffset, Unit, Vpid};
use wire::regs::wcbuf::{self as regs, Errors};
use wire::velo::DescriptorWord;
use wire::wcbuf::State;

/// Maximum number of descriptors that a stuck buffer keeps per VPID. Correct software has fewer
/// descriptors outstanding.
const KEPT: usize = 256;

/// A complete descriptor that a stuck buffer keeps.
pub(super) enum Kept {
    /// A VELO message with its traffic class and descriptor.
    Message(u8, Box<VeloMessage>, DescriptorWord),
    /// An RMA command.
    Command(RmaCommand),
}

/// Error in the assembly of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WcError {
    /// The descriptor was overwritten before it was complete, or has a wrong length in quadwords.
    QwLength,
    /// The message is empty or longer than the unit allows.
    MsgTooLong,
    /// A store did not consist of whole aligned quadwords.
    NotAligned,
    /// More words were stored than the descriptor announces.
    PktTooLong,
}

/// State of the write-combining buffers of one unit.
pub(super) struct WcBuf {
    state: Box<[u64; 256]>,
    /// Number of descriptors of each VPID, for [`super::Faults::wcbuf_retry_every`].
    seen: Box<[u32; 256]>,
    errors: [u64; 2],
    /// Descriptors that [`super::Faults::wcbuf_stuck`] keeps, with their VPIDs.
    kept: VecDeque<(u8, Kept)>,
}

impl Default for WcBuf {
    fn default() -> Self {
        Self {
            state: Box::new([0; 256]),
            seen: Box::new([0; 256]),
            errors: [0; 2],
            kept: VecDeque::new(),
        }
    }
}

fn first_state(unit: Unit) -> u32 {
    regs::state(unit, Vpid::from_low_bits(0)).0
}

fn errors_index(unit: Unit, offset: RegOffset) -> Option<usize> {
    let (e0, e1) = match unit {
        Unit::Velo => (regs::velo::ERRORS0, regs::velo::ERRORS1),
        Unit::Rma => (regs::rma::ERRORS0, regs::rma::ERRORS1),
    };
    [e0, e1].iter().position(|e| *e == offset)
}

fn state_index(unit: Unit, offset: RegOffset) -> Option<usize> {
    let rest = offset.0.checked_sub(first_state(unit))?;
    (rest < 0x10_0000).then_some((rest >> 12) as usize)
}

impl Nic {
    /// Accepts a complete descriptor into the buffer, or rejects it and requests a replay. Returns
    /// true if the descriptor was accepted.
    #[inline]
    pub(super) fn wcbuf_admit(&mut self, unit: Unit, vpid: u8, congested: bool) -> bool {
        let buf = &mut self.wcbuf[unit as usize];
        let word = &mut buf.state[usize::from(vpid)];
        let state = State(*word);
        let was_retry = state.retry();
        let mut refuse = was_retry || congested;
        if !refuse {
            if let Some(every) = self.cfg.faults.wcbuf_retry_every {
                let seen = &mut buf.seen[usize::from(vpid)];
                *seen = seen.wrapping_add(1);
                refuse = *seen % every.max(1) == 0;
            }
        }
        if !refuse {
            return true;
        }
        *word = state
            .with_retry(true)
            .with_retry_count(state.retry_count().wrapping_add(1))
            .raw();
        let (retries, drops) = match unit {
            Unit::Velo => (
                &mut self.counters.velo.retries,
                &mut self.counters.velo.retry_drops,
            ),
            Unit::Rma => (
                &mut self.counters.rma.retries,
                &mut self.counters.rma.retry_drops,
            ),
        };
        *retries = retries.wrapping_add((!was_retry).into());
        *drops = drops.wrapping_add(1);
        false
    }

    /// Increments the number of committed descriptors of the VPID.
    #[inline]
    pub(super) fn wcbuf_commit(&mut self, unit: Unit, vpid: u8) {
        let word = &mut self.wcbuf[unit as usize].state[usize::from(vpid)];
        let state = State(*word);
        *word = state
            .with_committed_count(state.committed_count().wrapping_add(1))
            .raw();
    }

    /// Keeps a descriptor if the buffer is stuck; otherwise, returns it. If the buffer is stuck and
    /// full, rejects the descriptor.
    pub(super) fn wcbuf_keep(&mut self, unit: Unit, vpid: u8, work: Kept) -> Option<Kept> {
        if !self.cfg.faults.wcbuf_stuck {
            return Some(work);
        }
        let buf = &mut self.wcbuf[unit as usize];
        let retry = State(buf.state[usize::from(vpid)]).retry();
        if retry || buf.kept.iter().filter(|(v, _)| *v == vpid).count() >= KEPT {
            self.wcbuf_admit(unit, vpid, true);
        } else {
            buf.kept.push_back((vpid, work));
        }
        None
    }

    /// Executes the descriptors that stuck buffers kept.
    pub(super) fn wcbuf_unstick(&mut self, env: &mut Env<'_>) {
        for unit in [Unit::Velo, Unit::Rma] {
            for (vpid, work) in std::mem::take(&mut self.wcbuf[unit as usize].kept) {
                self.wcbuf_submit(unit, vpid, work, env);
            }
        }
    }

    /// Counts an assembly error and raises the event for it (G33).
    pub(super) fn wcbuf_error(&mut self, unit: Unit, vpid: u8, error: WcError) {
        let (i, second) = match error {
            WcError::QwLength => (0, false),
            WcError::MsgTooLong => (0, true),
            WcError::NotAligned => (1, false),
            WcError::PktTooLong => (1, true),
        };
        let word = &mut self.wcbuf[unit as usize].errors[i];
        let e = Errors(*word);
        let e = if second {
            e.with_second(e.second().wrapping_add(1))
                .with_second_vpid(vpid)
        } else {
            e.with_first(e.first().wrapping_add(1))
                .with_first_vpid(vpid)
        };
        *word = e.raw();
        self.raise(Te::WcbufError);
    }

    pub(super) fn wcbuf_reg_read(&self, unit: Unit, offset: RegOffset) -> Option<u64> {
        let buf = &self.wcbuf[unit as usize];
        if let Some(vpid) = state_index(unit, offset) {
            let state = State(buf.state[vpid]);
            let kept = buf.kept.iter().any(|(v, _)| usize::from(*v) == vpid);
            let busy = kept || self.flight.is_busy(unit, vpid);
            let assembly = state.assembly() ^ busy;
            return Some(state.with_assembly(assembly).raw());
        }
        errors_index(unit, offset).map(|i| buf.errors[i])
    }

    pub(super) fn wcbuf_reg_write(
        &mut self,
        unit: Unit,
        offset: RegOffset,
        value: u64,
        env: &mut Env<'_>,
    ) -> bool {
        if let Some(vpid) = state_index(unit, offset) {
            self.lines_flush(unit, vpid as u8, env);
        }
        let buf = &mut self.wcbuf[unit as usize];
        if let Some(vpid) = state_index(unit, offset) {
            buf.state[vpid] = value;
            buf.kept.retain(|(v, _)| usize::from(*v) != vpid);
        } else if let Some(i) = errors_index(unit, offset) {
            buf.errors[i] = value;
        } else {
            return false;
        }
        true
    }
}

/// Node ID, unit and VPID that identify a queue.
type QueueName = (u16, Unit, u8);

/// Number of messages that wait for each queue. The NICs of a fabric share it.
#[derive(Clone, Default)]
pub struct Pressure(Arc<Mutex<HashMap<QueueName, u32>>>);

impl Pressure {
    /// Returns the number of messages on hold for the queue of `vpid` at `node`.
    pub fn waiting(&self, node: u16, unit: Unit, vpid: u8) -> u32 {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.get(&(node, unit, vpid)).copied().unwrap_or(0)
    }

    pub(super) fn set(&self, node: u16, unit: Unit, vpid: u8, waiting: u32) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting == 0 {
            map.remove(&(node, unit, vpid));
        } else {
            map.insert((node, unit, vpid), waiting);
        }
    }

    pub(super) fn withdraw(&self, node: u16) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|(n, _, _), _| *n != node);
    }
}

impl Nic {
    /// Returns true if more messages wait for a destination than
    /// [`super::Faults::wcbuf_retry_waiting`] allows.
    pub(super) fn pressed(&self, node: u16, unit: Unit, vpid: u8) -> bool {
        self.cfg.faults.wcbuf_retry_waiting.is_some_and(|limit| {
            self.tx.len() > limit as usize || self.tx.pressure.waiting(node, unit, vpid) > limit
        })
    }

    /// Removes the numbers of waiting messages that this NIC has published.
    pub(crate) fn withdraw_pressure(&self) {
        self.tx.pressure.withdraw(self.info.node_id());
    }
}
