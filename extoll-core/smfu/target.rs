// SPDX-License-Identifier: GPL-2.0-only

//! What other nodes reach here: exported memory, and targets of their intervals.
//!
//! The unit knows the base of a target and not its length: what a peer's interval is longer than
//! the target leads to what is behind it, which only an IOMMU keeps peers from.

use super::Smfu;
use crate::{dma::DmaWords, hw::Hw};
use kernel::{prelude::*, sync::Arc};
use kernel_ext::pci::{is_translated, Region};
use wire::{
    ids::BusAddr,
    regs::smfu,
    smfu::{TargetRefused, Targets, PAGE},
};

fn refused(e: TargetRefused) -> Error {
    match e {
        TargetRefused::Invalid => EINVAL,
        TargetRefused::Taken | TargetRefused::Overlaps => EBUSY,
        TargetRefused::TooHigh => ERANGE,
        TargetRefused::Interrupts => EIO,
    }
}

/// The targets of a NIC, and whether interrupts are held back.
pub(super) struct Opened {
    pub(super) targets: KBox<Targets>,
    held: bool,
}

impl Opened {
    pub(super) fn new() -> Result<Self> {
        let targets = KBox::new(Targets::new(), GFP_KERNEL)?;
        Ok(Self {
            targets,
            held: false,
        })
    }

    /// Writes the base of an interval.
    fn write(&self, hw: &Hw, number: u32) {
        let base = self.targets.base(number, self.held);
        hw.rf.write(smfu::vpid_t_start_addr(number), base.0);
    }

    /// Writes the bases of all intervals: none is left to mean whatever 0 means (G18).
    pub(super) fn write_all(&self, hw: &Hw) {
        for number in 0..smfu::INTERVALS {
            self.write(hw, number);
        }
    }

    fn hold(&mut self, hw: &Hw, held: bool) {
        self.held = held;
        self.targets.interrupts().for_each(|n| self.write(hw, n));
    }
}

/// Memory to be opened to other nodes, with the proof that it is the caller's.
pub enum TargetMemory<'a> {
    /// Coherent memory of this NIC, all of it; of whole pages. It is kept as long as it is open.
    Memory(Arc<DmaWords>),
    /// Registers or memory of a device whose BAR the caller has claimed.
    Bar {
        /// The BAR.
        region: &'a Region<'a>,
        /// First byte in it, a multiple of 4096.
        offset: u64,
        /// So many, a multiple of 4096.
        bytes: u64,
    },
}

enum Proof<'a> {
    #[allow(dead_code)] // Held, never read.
    Memory(Arc<DmaWords>),
    #[allow(dead_code)] // As above.
    Bar(&'a Region<'a>),
    Nothing,
}

/// What interval `number` of other nodes leads to here, instead of the exported memory; closed by
/// drop, after which it is out of reach. The drop may sleep.
pub struct Target<'a> {
    smfu: Arc<Smfu>,
    number: u32,
    base: BusAddr,
    bytes: u64,
    _proof: Proof<'a>,
}

impl Smfu {
    /// Opens memory to all nodes that have an interval `number` (1…62) lead here. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the number, memory of another NIC, or what is not whole pages; `EBUSY` if the number is taken, or part
    /// of the memory is open already; `ERANGE` above 2^48; `EIO` for addresses that mean
    /// interrupts; `EOPNOTSUPP` for a BAR if an IOMMU translates the NIC's addresses; `ENODEV`.
    pub fn target<'a>(
        self: &Arc<Self>,
        number: u32,
        memory: TargetMemory<'a>,
    ) -> Result<Target<'a>> {
        let (base, bytes, proof) = match memory {
            TargetMemory::Memory(memory) => {
                if !memory.is_of(self.ctx.device()) {
                    return Err(EINVAL);
                }
                let bytes = memory.words() as u64 * 8;
                (memory.address(), bytes, Proof::Memory(memory))
            }
            TargetMemory::Bar {
                region,
                offset,
                bytes,
            } => {
                if !region.contains(region.start().saturating_add(offset), bytes) {
                    return Err(EINVAL);
                }
                if self.ctx.with_bound(|dev| is_translated(dev))? {
                    return Err(EOPNOTSUPP);
                }
                (BusAddr(region.bus() + offset), bytes, Proof::Bar(region))
            }
        };
        self.open(number, base, bytes, proof, |t| t.open(number, base, bytes))
    }

    /// Has stores of all nodes that have an interval `number` (1…62) lead here cause interrupts, of
    /// which [`crate::nic::Nic::subscribe_messages`] tells. If there are too many, all such targets
    /// are closed for a second. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the number; `EBUSY` if it is taken; `ENODEV`.
    pub fn interrupt_target(self: &Arc<Self>, number: u32) -> Result<Target<'static>> {
        let base = BusAddr(BusAddr::INTERRUPTS.start);
        self.open(number, base, PAGE, Proof::Nothing, |t| {
            t.open_interrupts(number)
        })
    }

    fn open<'a>(
        self: &Arc<Self>,
        number: u32,
        base: BusAddr,
        bytes: u64,
        proof: Proof<'a>,
        open: impl FnOnce(&mut Targets) -> Result<(), TargetRefused>,
    ) -> Result<Target<'a>> {
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let mut opened = self.opened.lock();
        open(&mut opened.targets).map_err(refused)?;
        opened.write(&hw, number);
        drop(opened);
        drop(hw);
        Ok(Target {
            smfu: self.clone(),
            number,
            base,
            bytes,
            _proof: proof,
        })
    }

    /// Interrupts by other nodes lead nowhere for a while. Any context.
    pub(crate) fn close_interrupts(&self, hw: &Hw) {
        self.opened.lock().hold(hw, true);
    }

    /// They cause interrupts again. Any context.
    pub(crate) fn open_interrupts(&self, hw: &Hw) {
        self.opened.lock().hold(hw, false);
    }
}

impl Target<'_> {
    /// Number of the interval.
    pub fn interval(&self) -> u32 {
        self.number
    }

    /// Where it begins, as the NIC sees it.
    pub fn base(&self) -> BusAddr {
        self.base
    }

    /// Its size in bytes. Peers' intervals must not be longer: the hardware does not check.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        let (smfu, number) = (&self.smfu, self.number);
        let base = smfu::vpid_t_start_addr(number);
        let mut told = false;
        // What arrived before is in memory when this returns.
        smfu.ctx.withdraw(base, |hw| {
            let mut opened = smfu.opened.lock();
            opened.targets.close(number);
            opened.write(hw, number);
            told = true;
        });
        if !told {
            // The device is gone.
            smfu.opened.lock().targets.close(number);
        }
    }
}
