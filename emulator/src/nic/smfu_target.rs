//! Target side of the SMFU: executes requests of other nodes as accesses to memory, to registers or
//! to the device behind the root port, or as interrupts (HW §12, G18, G26).

use super::{Nic, SmfuMessage, SmfuSpace, ZeroBase, RF_SIZE};
use crate::env::{Accessor, Env};
use crate::lane::Lane;
use wire::regs::smfu as regs;

/// Mask of the valid bits of target addresses.
const ADDR_MASK: u64 = (1 << 48) - 1;
/// Maximum length of a read in bytes. Requests from the network are never longer.
const MAX_READ: u32 = 1 << 20;

/// Destination of the response to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requester {
    pub(super) node: u16,
    pub(super) tag: u64,
}

impl Nic {
    /// Processes an SMFU request or response from another node.
    pub(super) fn smfu_receive(&mut self, from: u16, message: SmfuMessage, env: &mut Env<'_>) {
        if !self.smfu_status().enable() {
            let n = &mut self.counters.drops.smfu_disabled;
            *n = n.wrapping_add(1);
            self.diagnose(env, || {
                format!("SMFU packet from node {from}, but the unit is off")
            });
            return;
        }
        match message {
            SmfuMessage::Write { space, addr, data } => {
                self.smfu_count(regs::RCVD_COUNT_P);
                self.smfu_write(from, space, addr, &data, env);
            }
            SmfuMessage::Read {
                space,
                addr,
                len,
                tag,
            } => {
                self.smfu_count(regs::RCVD_COUNT_NP);
                self.smfu_read(Requester { node: from, tag }, space, addr, len, env);
            }
            SmfuMessage::Response { tag, data } => self.smfu_response(from, tag, data, env),
        }
    }

    /// Returns the local address for a global address (HW §12).
    fn smfu_local(&self, interval: Option<u8>, addr: u64) -> u64 {
        let means_default = self.cfg.smfu_zero_base == ZeroBase::Default;
        let base = interval
            .map(|i| self.storage.at(regs::vpid_t_start_addr(i.into()).0))
            .filter(|&base| base != 0 || !means_default)
            .unwrap_or_else(|| self.storage.at(regs::T_START_ADDR_DEFAULT.0));
        base.wrapping_add(addr) & ADDR_MASK
    }

    fn smfu_registers(addr: u64, len: u64) -> Option<u32> {
        let end = addr.checked_add(len)?;
        (end <= u64::from(RF_SIZE)).then_some(addr as u32)
    }

    fn smfu_write(
        &mut self,
        from: u16,
        space: SmfuSpace,
        addr: u64,
        data: &[u8],
        env: &mut Env<'_>,
    ) {
        let n = &mut self.counters.smfu.bytes_stored;
        *n = n.wrapping_add(data.len() as u64);
        match space {
            SmfuSpace::Registers => match Self::smfu_registers(addr, data.len() as u64) {
                Some(offset) => self.rf_store(offset, data, Accessor::Remote, env),
                None => self.smfu_outside(from, addr, env),
            },
            SmfuSpace::Memory(interval) => {
                let at = self.smfu_local(interval, addr);
                if self.is_root_port() {
                    self.bridge_write(at, data);
                } else if self.posted_write(at, data, env).is_err() {
                    // `posted_write` counts and reports the failure. A posted write has no answer.
                    self.counters.drops.dma = self.counters.drops.dma.wrapping_add(1);
                }
            }
        }
    }

    fn smfu_read(
        &mut self,
        to: Requester,
        space: SmfuSpace,
        addr: u64,
        len: u32,
        env: &mut Env<'_>,
    ) {
        let mut data = vec![0; len.min(MAX_READ) as usize];
        let done = match space {
            _ if len > MAX_READ => None,
            SmfuSpace::Registers => match Self::smfu_registers(addr, len.into()) {
                Some(offset) => {
                    self.rf_load(offset, &mut data, Accessor::Remote, env);
                    Some(())
                }
                None => {
                    self.smfu_outside(to.node, addr, env);
                    None
                }
            },
            SmfuSpace::Memory(interval) => {
                let at = self.smfu_local(interval, addr);
                if self.is_root_port() {
                    // The answer of the device completes the read.
                    return self.bridge_read(to, at, len, env);
                }
                // A read of 0 bytes needs no access, because all earlier writes have been
                // performed.
                match len {
                    0 => Some(()),
                    // The answer of the other device completes the read.
                    _ if self.load_for_smfu(to, at, len, env) => return,
                    _ => self.dma_read(at, &mut data, env).ok(),
                }
            }
        };
        self.smfu_answer(to, done.map(|()| data), env);
    }

    fn smfu_outside(&mut self, from: u16, addr: u64, env: &mut Env<'_>) {
        let n = &mut self.counters.bad_accesses;
        *n = n.wrapping_add(1);
        self.diagnose(env, || {
            format!("SMFU access of node {from} to register {addr:#x}, which does not exist")
        });
    }

    /// Answers a read.
    pub(super) fn smfu_answer(&mut self, to: Requester, data: Option<Vec<u8>>, env: &mut Env<'_>) {
        if self.tx_len(Lane::SMFU) >= self.cfg.tx_queue_limit.saturating_mul(2) {
            // The timeout at the origin reports the lost response.
            let n = &mut self.counters.drops.smfu_congested;
            *n = n.wrapping_add(1);
            return;
        }
        self.counters.smfu.served = self.counters.smfu.served.wrapping_add(1);
        self.smfu_count(regs::SENT_COUNT_RSP);
        let bytes = data.as_ref().map_or(0, |d| d.len() as u32);
        let tc = self.smfu_traffic_class().tc_rsp();
        let message = SmfuMessage::Response { tag: to.tag, data };
        self.smfu_send(to.node, tc, bytes, message, env);
    }
}
