// SPDX-License-Identifier: GPL-2.0-only

//! PCIe backdoor of other nodes' NICs. Registers of a NIC in root-port mode send packets, mainly
//! configuration cycles, to the device behind that NIC (HW §14, [`crate::rra`]).
//!
//! A backdoor is a set of registers without protection: two concurrent users would receive each
//! other's answers. A [`Transaction`] therefore excludes all other users of this NIC. It has a
//! deadline. Unless it is [finished](Transaction::finish), its drop undoes it: registers that were
//! [set](Transaction::set) get their old values back, and late packets are discarded before the
//! next transaction begins. A packet that was sent cannot be recalled.
//!
//! Users on other NICs and hosts are not excluded. The lender of a device leases the device to only
//! one borrower.
//!
//! The table of backdoors is under a spinlock that disables interrupts. The [`Wait`] of a call
//! determines whether it sleeps or spins.

use crate::{
    context::Context,
    rra::{Deadline, Request, Rra, RraError, Wait},
    stats::Reason,
};
use kernel::{
    prelude::*,
    sync::{new_spinlock_irq, Arc, SpinLockIrq},
    time::{Instant, Monotonic},
};
use protocol::{
    nic::backdoor_slots::{BackdoorSlots, Claim},
    Time,
};
use wire::{
    ids::{NodeId, RegOffset},
    regs::pcie::{self, PcieToHtocCfg},
    tlp::{
        backdoor::{self, Completion, Config, Info},
        words, CfgType, Status, Tlp,
    },
};

pub use wire::tlp::Bdf;

/// Maximum number of backdoors that are in use or must be emptied before use.
const NODES: usize = 64;
/// Maximum number of registers that a transaction can restore.
const MAX_UNDO: usize = 8;
/// Time limit for undoing a transaction, in microseconds.
const UNDO_US: u32 = 1000;
/// Maximum number of packets that undone transactions can leave in the FIFO.
const MAX_LEFT: usize = 4;
/// Time limit in milliseconds for a device to complete a request, by default the maximum of PCIe. A
/// late completion cannot be distinguished from that of the next request.
const LATE_MS: u64 = 60;

/// Reason why a transaction failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackdoorError {
    /// Before the deadline, the backdoor was in use, or its device could still answer an abandoned
    /// request (for 60 ms), or 64 other backdoors were in one of these states.
    Busy,
    /// A register of the node could not be accessed.
    Register(RraError),
    /// The device did not complete the request before the deadline.
    TimedOut,
    /// The received data are not a valid packet, or not the completion of the request.
    Garbled,
    /// The device rejected the request: `Unsupported`, `Retry` or `Abort`.
    Refused(Status),
    /// Invalid request: a register or size that does not exist, or too many registers to restore.
    Invalid,
}

impl From<RraError> for BackdoorError {
    fn from(e: RraError) -> Self {
        match e {
            RraError::TimedOut => BackdoorError::TimedOut,
            other => BackdoorError::Register(other),
        }
    }
}

impl From<BackdoorError> for Error {
    fn from(e: BackdoorError) -> Error {
        match e {
            BackdoorError::Busy => EBUSY,
            BackdoorError::Register(e) => e.into(),
            BackdoorError::TimedOut => ETIMEDOUT,
            BackdoorError::Garbled | BackdoorError::Refused(_) => EIO,
            BackdoorError::Invalid => EINVAL,
        }
    }
}

/// Backdoors of other nodes, accessed through this NIC.
#[pin_data]
pub struct Backdoors {
    ctx: Arc<Context>,
    rra: Arc<Rra>,
    /// Origin of the times in `slots`, which are in milliseconds.
    epoch: Instant<Monotonic>,
    #[pin]
    slots: SpinLockIrq<BackdoorSlots<NODES>>,
}

impl Backdoors {
    /// Makes the table of backdoors. May sleep.
    #[inline(never)] // Keeps its stack frame out of later calls.
    pub(crate) fn new(ctx: Arc<Context>, rra: Arc<Rra>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ctx,
                rra,
                epoch: Instant::now(),
                // One millisecond is added, because fractions of a millisecond are not counted.
                slots <- new_spinlock_irq!(BackdoorSlots::new(LATE_MS + 1), "extoll_backdoors"),
            }),
            GFP_KERNEL,
        )
    }

    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_millis().max(0) as u64)
    }

    /// Begins a transaction with the backdoor of `node`. The transaction must end within the time
    /// of `wait`. Undoing it may take another millisecond. Context: that of `wait`.
    ///
    /// # Errors
    ///
    /// `Busy`, and the errors of emptying the FIFO after an earlier transaction.
    pub fn begin(&self, node: NodeId, wait: Wait) -> Result<Transaction<'_>, BackdoorError> {
        let mut until = Deadline::new(wait);
        let dirty = loop {
            let now = self.now();
            match self.slots.lock().claim(node, now) {
                Claim::No => {}
                claim => break claim == Claim::Dirty,
            }
            if until.passed() {
                return Err(BackdoorError::Busy);
            }
            until.pause();
        };
        let mut transaction = Transaction {
            all: self,
            node,
            until,
            undo: [None; MAX_UNDO],
            dirty,
            finished: false,
        };
        if dirty {
            transaction.empty()?;
        }
        Ok(transaction)
    }

    /// Routes completions of the node's device to the FIFO of the backdoor. After a reset they are
    /// routed elsewhere. Context: that of `wait`.
    ///
    /// # Errors
    ///
    /// See [`BackdoorError`].
    pub fn enable(&self, node: NodeId, wait: Wait) -> Result<(), BackdoorError> {
        let mut transaction = self.begin(node, wait)?;
        let at = pcie::PCIE_TO_HTOC_CFG;
        let old = PcieToHtocCfg(transaction.read(at)?);
        transaction.set(at, old.with_regfwd_srctag0(true).raw())?;
        transaction.finish();
        Ok(())
    }

    /// Reads 1, 2 or 4 bytes of configuration space of a function at `node`. Context: that of
    /// `wait`. Takes about six round trips over the fabric, four of them in parallel, plus the
    /// device's own time.
    ///
    /// # Errors
    ///
    /// See [`BackdoorError`]; errors are counted.
    pub fn try_config_read(
        &self,
        node: NodeId,
        target: Bdf,
        register: u16,
        bytes: u8,
        wait: Wait,
    ) -> Result<u32, BackdoorError> {
        self.counted(node, || {
            let config = Self::config(target, register, bytes)?;
            let completion = self.exchange(node, &config.read(), &[], wait)?;
            Ok(config.value(completion.value))
        })
    }

    /// Writes 1, 2 or 4 bytes of configuration space of a function at `node`, and waits until the
    /// device has completed the write. Context and duration as for [`Backdoors::try_config_read`].
    ///
    /// # Errors
    ///
    /// See [`BackdoorError`]; errors are counted. After `TimedOut` the write may still be executed.
    pub fn config_write(
        &self,
        node: NodeId,
        target: Bdf,
        register: u16,
        bytes: u8,
        value: u32,
        wait: Wait,
    ) -> Result<(), BackdoorError> {
        self.counted(node, || {
            let (tlp, payload) = Self::config(target, register, bytes)?.write(value);
            self.exchange(node, &tlp, &payload, wait).map(drop)
        })
    }

    fn config(target: Bdf, register: u16, bytes: u8) -> Result<Config, BackdoorError> {
        Config::new(target, CfgType::Type0, register, bytes).ok_or(BackdoorError::Invalid)
    }

    fn exchange(
        &self,
        node: NodeId,
        tlp: &Tlp,
        payload: &[u8],
        wait: Wait,
    ) -> Result<Completion, BackdoorError> {
        let mut transaction = self.begin(node, wait)?;
        let completion = transaction.exchange(tlp, payload)?;
        transaction.finish();
        match completion.status {
            Status::Success => Ok(completion),
            refused => Err(BackdoorError::Refused(refused)),
        }
    }

    fn counted<T>(
        &self,
        node: NodeId,
        f: impl FnOnce() -> Result<T, BackdoorError>,
    ) -> Result<T, BackdoorError> {
        let done = f();
        match &done {
            // Absent functions are normal during enumeration.
            Ok(_) | Err(BackdoorError::Refused(Status::Unsupported) | BackdoorError::Invalid) => {}
            Err(e) => {
                let why: u64 = match e {
                    BackdoorError::Busy => 1,
                    BackdoorError::Register(_) => 2,
                    BackdoorError::TimedOut => 3,
                    BackdoorError::Garbled => 4,
                    _ => 5,
                };
                self.ctx
                    .error(Reason::Backdoor, u64::from(node.0) << 32 | why);
            }
        }
        done
    }
}

/// Exclusive use of a backdoor. Drop undoes the transaction unless it was
/// [finished](Transaction::finish). Each method, and the drop, runs in the context of the
/// transaction's [`Wait`].
pub struct Transaction<'a> {
    all: &'a Backdoors,
    node: NodeId,
    until: Deadline,
    /// Registers that were set, and their old values.
    undo: [Option<(RegOffset, u64)>; MAX_UNDO],
    /// Set if the FIFO may contain packets or an answer is outstanding.
    dirty: bool,
    finished: bool,
}

impl Transaction<'_> {
    fn batch(&self, requests: &mut [Request]) -> Result<(), BackdoorError> {
        let left = self.until.left().ok_or(BackdoorError::TimedOut)?;
        self.all.rra.batch(requests, left);
        for request in requests.iter() {
            request.result?;
        }
        Ok(())
    }

    /// Reads a register of the node.
    ///
    /// # Errors
    ///
    /// `Register`, `TimedOut`.
    pub fn read(&mut self, offset: RegOffset) -> Result<u64, BackdoorError> {
        let mut request = [Request::read(self.node, offset)];
        self.batch(&mut request)?;
        let [request] = request;
        Ok(request.result?)
    }

    /// Writes a register of the node. Undoing the transaction does not restore the old value.
    ///
    /// # Errors
    ///
    /// `Register`, `TimedOut`.
    pub fn write(&mut self, offset: RegOffset, value: u64) -> Result<(), BackdoorError> {
        self.batch(&mut [Request::write(self.node, offset, value)])
    }

    /// Writes a register of the node. Undoing the transaction restores the old values of up to
    /// eight registers. Must not be used for registers with read side effects.
    ///
    /// # Errors
    ///
    /// `Invalid` for the ninth register; `Register`; `TimedOut`.
    pub fn set(&mut self, offset: RegOffset, value: u64) -> Result<(), BackdoorError> {
        let slot = self.undo.iter().position(Option::is_none);
        let slot = slot.ok_or(BackdoorError::Invalid)?;
        let old = self.read(offset)?;
        if let Some(slot) = self.undo.get_mut(slot) {
            *slot = Some((offset, old));
        }
        self.write(offset, value)
    }

    fn send(&mut self, tlp: &Tlp, payload: &[u8]) -> Result<(), BackdoorError> {
        let sequence = backdoor::send(tlp, payload).map_err(|_| BackdoorError::Invalid)?;
        let unused = Request::read(self.node, RegOffset(0));
        let mut requests = [unused; backdoor::WRITES];
        let mut count = 0;
        for (request, (offset, value)) in requests.iter_mut().zip(sequence) {
            *request = Request::write(self.node, offset, value);
            count += 1;
        }
        self.dirty = true;
        self.batch(requests.get_mut(..count).unwrap_or_default())
    }

    /// Sends a packet with requester 0 and tag 0 ([`backdoor::REQUESTER`], [`backdoor::TAG`]).
    /// Returns its completion, which contains up to one dword.
    ///
    /// # Errors
    ///
    /// `Invalid` for an invalid packet. After `Register`, `TimedOut` or `Garbled` the caller must
    /// not finish the transaction.
    pub fn exchange(&mut self, tlp: &Tlp, payload: &[u8]) -> Result<Completion, BackdoorError> {
        self.send(tlp, payload)?;
        let mut came = [0; words::MAX];
        let n = self.fetch(&mut came)?;
        let answer = backdoor::completion(came.get(..n).unwrap_or_default());
        let answer = answer.map_err(|_| BackdoorError::Garbled)?;
        self.dirty = false;
        Ok(answer)
    }

    /// Waits for a packet and reads it. Returns the number of its quadwords.
    fn fetch(&mut self, to: &mut [u64; words::MAX]) -> Result<usize, BackdoorError> {
        loop {
            match backdoor::info(self.read(pcie::PCIE_TO_HTOC_BACKDOOR_INFO)?) {
                Info::Empty => self.until.pause(),
                Info::Impossible(_) => return Err(BackdoorError::Garbled),
                Info::Packet(n) => {
                    self.take_data(to.get_mut(..n).unwrap_or_default())?;
                    return Ok(n);
                }
            }
        }
    }

    /// Reads quadwords from the FIFO.
    fn take_data(&mut self, to: &mut [u64]) -> Result<(), BackdoorError> {
        let next = Request::read(self.node, pcie::PCIE_TO_HTOC_BACKDOOR_DATA);
        let mut requests = [next; words::MAX];
        let requests = requests.get_mut(..to.len()).unwrap_or_default();
        self.batch(requests)?;
        for (to, request) in to.iter_mut().zip(requests) {
            *to = request.result?;
        }
        Ok(())
    }

    /// Empties the FIFO. If the reading of a packet was interrupted, also discards the remainder of
    /// that packet, for which the FIFO reports no length.
    fn empty(&mut self) -> Result<(), BackdoorError> {
        let mut rest = [0; words::MAX];
        for _ in 0..MAX_LEFT {
            self.take_data(&mut rest)?;
            let info = self.read(pcie::PCIE_TO_HTOC_BACKDOOR_INFO)?;
            if backdoor::info(info) == Info::Empty {
                self.dirty = false;
                return Ok(());
            }
        }
        Err(BackdoorError::Garbled)
    }

    /// Ends the transaction without undoing it.
    pub fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.until.extend(UNDO_US);
            let undo = core::mem::take(&mut self.undo);
            for (offset, value) in undo.into_iter().rev().flatten() {
                // The error is only counted, as a failed access.
                let _ = self.write(offset, value);
            }
        }
        let now = self.all.now();
        self.all.slots.lock().release(self.node, self.dirty, now);
    }
}
