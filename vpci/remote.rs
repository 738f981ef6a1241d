// SPDX-License-Identifier: GPL-2.0-only

//! Remote access to the NIC of an accelerator node: its registers, and configuration cycles of the
//! device behind it. Functions run in process context and may sleep, except [`Remote::cycle_now`].

use crate::conf;
use extoll_core::{
    backdoor::{BackdoorError, Bdf},
    child::Handle,
    rra::{Request, RraError, Wait, MAX_SPIN_US},
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta, Instant, Monotonic},
};
use protocol::pci::accel::{describe, Cycles, Found, FunctionError, ResetBy, Setting};
use wire::{
    ids::{NodeId, RegOffset},
    pci::Register,
};

/// Maximum time of an access to registers of another node in microseconds.
const REGISTER_US: u32 = 200_000;
/// Maximum number of attempts of an access.
const TRIES: u32 = 3;
/// Maximum number of register requests in flight.
const BATCH: usize = 16;
/// Time in ms between the reset of a function and its first access, as PCI Express requires.
pub(crate) const RESET_MS: i64 = 100;
/// Maximum time in ms from the end of [`RESET_MS`] until a function answers.
const READY_MS: i64 = 1_000;
/// Maximum time in ms for reading the hundreds of registers that describe a device. During that
/// time a slow device blocks other borrowers, and its lease word is not checked.
const DESCRIBE_MS: i64 = 5_000;
/// Maximum time in ms for pending transactions of a device that has lost bus mastering.
const PENDING_MS: i64 = 100;
/// Value of the command register of an idle function: INTx disabled, no decoding, no bus mastering.
const QUIET: u32 = 1 << 10;
/// Offset of the command register.
const COMMAND: u16 = 4;
/// Offset of the device status register from the device control register (PCI Express).
const STATUS_BEHIND_CONTROL: u16 = 2;
/// Bit of the device status register: transactions pending.
const PENDING: u32 = 1 << 5;

/// Bus and function number of the device: function 0 of device 0, the only one on the bus behind
/// the root port (TH §4.5.2.2).
pub(crate) const DEVICE: (u8, u8) = (1, 0);

fn target() -> Bdf {
    Bdf::new(DEVICE.0, DEVICE.1 >> 3, DEVICE.1 & 7)
}

/// Access to the NIC of an accelerator node. All functions may sleep, except [`Remote::cycle_now`].
#[derive(Clone)]
pub(crate) struct Remote {
    handle: Handle,
    pub(crate) node: NodeId,
    /// Time after which no configuration cycle is started; `None`: unlimited.
    until: Option<Instant<Monotonic>>,
}

impl Remote {
    pub(crate) fn new(handle: &Handle, node: NodeId) -> Self {
        Self {
            handle: handle.clone(),
            node,
            until: None,
        }
    }

    /// Reads registers. Makes up to [`TRIES`] attempts.
    pub(crate) fn read_all<const N: usize>(&self, offsets: [RegOffset; N]) -> Result<[u64; N]> {
        let mut left = TRIES;
        loop {
            left -= 1;
            let mut requests = offsets.map(|offset| Request::read(self.node, offset));
            self.handle
                .rra()
                .batch(&mut requests, Wait::Sleep(REGISTER_US));
            let failed = requests.iter().find_map(|r| r.result.err());
            match failed {
                None => return Ok(requests.map(|r| r.result.unwrap_or_default())),
                Some(e) if left == 0 => return Err(e.into()),
                Some(_) => {}
            }
        }
    }

    /// Reads a register. Makes up to [`TRIES`] attempts.
    pub(crate) fn read(&self, offset: RegOffset) -> Result<u64> {
        self.read_all([offset]).map(|[value]| value)
    }

    /// Reads registers once, in up to `us` microseconds. Returns `None` if one was not answered.
    pub(crate) fn read_once<const N: usize>(
        &self,
        offsets: [RegOffset; N],
        us: u32,
    ) -> Option<[u64; N]> {
        let mut requests = offsets.map(|offset| Request::read(self.node, offset));
        self.handle.rra().batch(&mut requests, Wait::Sleep(us));
        let good = requests.iter().all(|r| r.result.is_ok());
        good.then(|| requests.map(|r| r.result.unwrap_or_default()))
    }

    /// Writes a register. If this fails, the write may still have been executed.
    pub(crate) fn write(&self, offset: RegOffset, value: u64) -> Result {
        let mut request = [Request::write(self.node, offset, value)];
        self.handle
            .rra()
            .batch(&mut request, Wait::Sleep(REGISTER_US));
        let [request] = request;
        Ok(request.result.map(drop)?)
    }

    /// Writes a register and reads it back.
    pub(crate) fn set(&self, offset: RegOffset, value: u64) -> Result {
        self.write(offset, value)?;
        match self.read(offset)? {
            seen if seen == value => Ok(()),
            _ => Err(EIO),
        }
    }

    /// Writes registers in order, then reads them back.
    pub(crate) fn apply(&self, settings: impl Iterator<Item = Setting> + Clone) -> Result {
        let rra = self.handle.rra();
        let none = Request::read(self.node, RegOffset(0));
        for write in [true, false] {
            let mut rest = settings.clone();
            loop {
                let mut requests = [none; BATCH];
                let before = rest.clone();
                let mut n = 0;
                for (request, s) in requests.iter_mut().zip(rest.by_ref().take(BATCH)) {
                    *request = if write {
                        Request::write(self.node, s.offset, s.value)
                    } else {
                        Request::read(self.node, s.offset)
                    };
                    n += 1;
                }
                if n == 0 {
                    break;
                }
                let requests = requests.get_mut(..n).unwrap_or_default();
                rra.batch(requests, Wait::Sleep(REGISTER_US));
                for (request, s) in requests.iter().zip(before) {
                    let value = request.result?;
                    if !write && !s.is_seen(value) {
                        pr_warn!(
                            "node {}: register {:#x} reads {:#x} instead of {:#x}\n",
                            self.node.0,
                            s.offset.get(),
                            value,
                            s.value
                        );
                        return Err(EIO);
                    }
                }
            }
        }
        Ok(())
    }

    fn cycle(
        &self,
        register: Register,
        write: Option<u32>,
        wait: Wait,
    ) -> Result<u32, BackdoorError> {
        let (all, at, bytes) = (self.handle.backdoors(), register.offset(), register.size());
        match write {
            None => all.try_config_read(self.node, target(), at, bytes, wait),
            Some(value) => all
                .config_write(self.node, target(), at, bytes, value, wait)
                .map(|()| 0),
        }
    }

    fn cycle_retry(&self, register: Register, write: Option<u32>) -> Option<u32> {
        for _ in 0..TRIES {
            if self
                .until
                .is_some_and(|until| !until.elapsed().is_negative())
            {
                return None;
            }
            match self.cycle(register, write, Wait::Sleep(REGISTER_US)) {
                Ok(value) => return Some(value),
                Err(BackdoorError::Refused(_) | BackdoorError::Invalid) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Makes a configuration cycle for the kernel, which may have interrupts disabled. Returns
    /// `None` if the cycle was not answered. Any context; busy-waits for up to `access_ms`.
    ///
    /// # Errors
    ///
    /// `EIO`: the cycle was refused, or this node's NIC is lost.
    pub(crate) fn cycle_now(&self, register: Register, write: Option<u32>) -> Result<Option<u32>> {
        let begun: Instant<Monotonic> = Instant::now();
        loop {
            let passed = begun.elapsed().as_micros_ceil().max(0) as u64;
            let left = conf::access_us().checked_sub(passed);
            let Some(left) = left.and_then(|us| u32::try_from(us).ok()) else {
                return Ok(None);
            };
            let wait = Wait::Spin(left.clamp(1, MAX_SPIN_US));
            match self.cycle(register, write, wait) {
                Ok(value) => return Ok(Some(value)),
                Err(BackdoorError::Refused(_) | BackdoorError::Invalid) => return Err(EIO),
                // The NIC of this node is lost.
                Err(BackdoorError::Register(RraError::Down | RraError::Open(_))) => {
                    return Err(EIO);
                }
                // The device may have been slow or busy.
                Err(_) => {}
            }
        }
    }

    /// Examines the device, with memory decoding and bus mastering off. Takes up to
    /// [`DESCRIBE_MS`].
    ///
    /// # Errors
    ///
    /// `EIO`: the device cannot be used; the log contains the reason.
    pub(crate) fn describe(&self) -> Result<Found> {
        let mut hurried = self.clone();
        hurried.until = Some(Instant::now() + Delta::from_millis(DESCRIBE_MS));
        describe(&mut hurried).map_err(|e| self.not_borrowed(&e))
    }

    fn not_borrowed(&self, e: &FunctionError) -> Error {
        pr_warn!(
            "node {}: unusable device (reason {}): {:?}\n",
            self.node.0,
            e.code(),
            e
        );
        EIO
    }

    /// Disables bus mastering of the device and waits for its pending transactions. Returns `None`
    /// if the device does not answer.
    pub(crate) fn quiet(&self, reset: Option<&ResetBy>) -> Option<()> {
        self.cycle_retry(Register::new(COMMAND, 2)?, Some(QUIET))?;
        // Only PCI Express functions report pending transactions. Other functions get the maximum
        // time.
        let status = reset
            .filter(|by| by.bit == 1 << 15)
            .and_then(|by| Register::new(by.register.offset() + STATUS_BEHIND_CONTROL, 2));
        let begun: Instant<Monotonic> = Instant::now();
        while begun.elapsed().as_millis() < PENDING_MS {
            match status.map(|s| self.cycle_retry(s, None)) {
                Some(Some(status)) if status & PENDING == 0 => break,
                Some(None) => return None,
                _ => fsleep(Delta::from_millis(5)),
            }
        }
        Some(())
    }

    /// Resets the device and waits until it answers again.
    ///
    /// # Errors
    ///
    /// `EIO`: the device does not answer.
    pub(crate) fn reset(&self, by: &ResetBy) -> Result {
        let old = self.cycle_retry(by.register, None).ok_or(EIO)?;
        self.cycle_retry(by.register, Some(old | by.bit))
            .ok_or(EIO)?;
        fsleep(Delta::from_millis(RESET_MS));
        let id = Register::new(0, 4).ok_or(EIO)?;
        let begun: Instant<Monotonic> = Instant::now();
        while begun.elapsed().as_millis() < READY_MS {
            if self.cycle_retry(id, None).is_some_and(|id| id != u32::MAX) {
                return Ok(());
            }
            fsleep(Delta::from_millis(10));
        }
        Err(EIO)
    }

    /// Writes BAR registers and reads them back.
    ///
    /// # Errors
    ///
    /// `EIO`: the device does not keep the values.
    pub(crate) fn set_bars(&self, bars: impl Iterator<Item = (usize, u32)>) -> Result {
        for (i, value) in bars {
            let register = Register::new(0x10 + 4 * i as u16, 4).ok_or(EIO)?;
            self.cycle_retry(register, Some(value)).ok_or(EIO)?;
            let seen = self.cycle_retry(register, None).ok_or(EIO)?;
            if (seen ^ value) & !0xf != 0 {
                return Err(EIO);
            }
        }
        Ok(())
    }
}

impl Cycles for Remote {
    fn read(&mut self, register: Register) -> Option<u32> {
        self.cycle_retry(register, None)
    }

    fn write(&mut self, register: Register, value: u32) -> Option<()> {
        self.cycle_retry(register, Some(value)).map(drop)
    }
}
