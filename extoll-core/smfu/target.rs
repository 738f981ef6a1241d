// SPDX-License-Identifier: GPL-2.0-only

//! What other nodes reach here: exported memory, and targets of their intervals.
//!
//! The unit knows the base of a target and not its length: what a peer's interval is longer than
//! the target leads to what is behind it, which only an IOMMU keeps peers from.

use super::Smfu;
use crate::{dma::DmaWords, hw::Hw, pool_pages::PoolPages};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{Delta, Instant, Monotonic},
};
use kernel_ext::{lent::LentDevice, pci::is_translated};
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
    /// Numbers that lead nowhere until then.
    resting: KVec<Option<Instant<Monotonic>>>,
}

impl Opened {
    pub(super) fn new() -> Result<Self> {
        let targets = KBox::new(Targets::new(), GFP_KERNEL)?;
        Ok(Self {
            targets,
            held: false,
            resting: KVec::from_elem(None, smfu::INTERVALS as usize, GFP_KERNEL)?,
        })
    }

    /// Gives numbers free that have rested long enough.
    fn wake(&mut self, now: Instant<Monotonic>) {
        for (number, until) in self.resting.iter_mut().enumerate() {
            if until.is_some_and(|until| (now - until).as_nanos() >= 0) {
                *until = None;
                self.targets.close(number as u32);
            }
        }
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
pub enum TargetMemory {
    /// Coherent memory of this NIC, all of it; of whole pages. It is kept as long as it is open.
    Memory(Arc<DmaWords>),
    /// Memory behind an IOMMU, and the addresses that follow; kept as long as it is open.
    Pages(Arc<PoolPages>),
    /// Registers or memory of a device that another host drives. Whoever has it withdrawn closes
    /// what is open first.
    Bar {
        /// The device.
        device: Arc<LentDevice>,
        /// Number of the BAR; what is opened is all of it, in whole pages.
        bar: usize,
    },
}

enum Proof {
    #[allow(dead_code)] // Held for its drop, never read.
    Memory(Arc<DmaWords>),
    #[allow(dead_code)] // Held for its drop, never read.
    Pages(Arc<PoolPages>),
    #[allow(dead_code)] // Held for its drop, never read.
    Bar(Arc<LentDevice>),
    Nothing,
}

/// What interval `number` of other nodes leads to here, instead of the exported memory; closed by
/// drop, after which it is out of reach. The drop may sleep.
pub struct Target {
    smfu: Arc<Smfu>,
    number: u32,
    base: BusAddr,
    bytes: u64,
    shut: bool,
    _proof: Proof,
}

impl Smfu {
    /// Opens memory to all nodes that have an interval `number` (1…62) lead here. May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the number, memory of another NIC, or what is not whole pages; `EBUSY` if the number is taken, or part
    /// of the memory is open already; `ERANGE` above 2^48; `EIO` for addresses that mean
    /// interrupts; `EOPNOTSUPP` for a BAR if an IOMMU translates the NIC's addresses; `ENODEV`.
    pub fn target(self: &Arc<Self>, number: u32, memory: TargetMemory) -> Result<Target> {
        let (base, bytes, proof) = match memory {
            TargetMemory::Memory(memory) => {
                if !memory.is_of(self.ctx.device()) {
                    return Err(EINVAL);
                }
                let bytes = memory.words() as u64 * 8;
                (memory.address(), bytes, Proof::Memory(memory))
            }
            TargetMemory::Pages(pages) => {
                if !pages.is_of(self.ctx.device()) {
                    return Err(EINVAL);
                }
                let bytes = pages.all_bytes() as u64;
                (pages.address(), bytes, Proof::Pages(pages))
            }
            TargetMemory::Bar { device, bar } => {
                let place = device.bars().get(bar).copied().flatten();
                let place = place.filter(|_| device.is_usable()).ok_or(EINVAL)?;
                if self.ctx.with_bound(|dev| is_translated(dev))? {
                    return Err(EOPNOTSUPP);
                }
                if place.bytes < PAGE && place.bus % PAGE != 0 {
                    // What shares its page is not the caller's.
                    return Err(EINVAL);
                }
                let bytes = place.bytes.max(PAGE);
                (BusAddr(place.bus), bytes, Proof::Bar(device))
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
    pub fn interrupt_target(self: &Arc<Self>, number: u32) -> Result<Target> {
        let base = BusAddr(BusAddr::INTERRUPTS.start);
        self.open(number, base, PAGE, Proof::Nothing, |t| {
            t.open_interrupts(number)
        })
    }

    /// Memory for devices of other nodes, and addresses behind it for pages that are mapped one by one, each in bytes of whole
    /// pages; `None` if no IOMMU is in front of the NIC. Sleeps.
    ///
    /// # Errors
    ///
    /// As [`PoolPages`] says.
    pub fn pool_pages(&self, bytes: usize, pages: usize) -> Result<Option<Arc<PoolPages>>> {
        PoolPages::new(&self.ctx, bytes, pages)
    }

    /// Numbers (1…62) that nothing is opened for, as a set: bit *n* stands for number *n*. Any
    /// context.
    pub fn free_targets(&self) -> u64 {
        let mut opened = self.opened.lock();
        opened.wake(Instant::now());
        opened.targets.free_numbers()
    }

    /// Keeps all numbers from others that nothing is opened for: peers may still have intervals of
    /// what an earlier owner of them had opened. They lead nowhere. May sleep.
    ///
    /// # Errors
    ///
    /// `ENODEV`, `ENOMEM`.
    pub fn hold_free_targets(self: &Arc<Self>) -> Result<KVec<ShutTarget>> {
        let mut held = KVec::with_capacity(smfu::INTERVALS as usize, GFP_KERNEL)?;
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let mut opened = self.opened.lock();
        opened.wake(Instant::now());
        for number in 1..smfu::INTERVALS {
            if !opened.targets.hold(number) {
                continue;
            }
            opened.write(&hw, number);
            let target = ShutTarget {
                smfu: self.clone(),
                number,
            };
            if held.push_within_capacity(target).is_err() {
                // There is a place for each.
                break;
            }
        }
        Ok(held)
    }

    fn open(
        self: &Arc<Self>,
        number: u32,
        base: BusAddr,
        bytes: u64,
        proof: Proof,
        open: impl FnOnce(&mut Targets) -> Result<(), TargetRefused>,
    ) -> Result<Target> {
        let hw = self.ctx.alive_access().ok_or(ENODEV)?;
        let mut opened = self.opened.lock();
        opened.wake(Instant::now());
        open(&mut opened.targets).map_err(refused)?;
        opened.write(&hw, number);
        drop(opened);
        drop(hw);
        Ok(Target {
            smfu: self.clone(),
            number,
            base,
            bytes,
            shut: false,
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

impl Target {
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

impl Target {
    /// Has it lead nowhere, so that its memory is out of reach when this returns, but keeps others
    /// from the number, which peers may still have intervals for. May sleep.
    pub fn shut(mut self) -> ShutTarget {
        self.leave(|targets, number| targets.shut(number));
        let number = ShutTarget {
            smfu: self.smfu.clone(),
            number: self.number,
        };
        self.shut = true;
        number
    }

    fn leave(&self, change: impl Fn(&mut Targets, u32)) {
        let (smfu, number) = (&self.smfu, self.number);
        let base = smfu::vpid_t_start_addr(number);
        let mut told = false;
        // What arrived before is in memory when this returns.
        smfu.ctx.withdraw(base, |hw| {
            let mut opened = smfu.opened.lock();
            change(&mut opened.targets, number);
            opened.write(hw, number);
            told = true;
        });
        if !told {
            // The device is gone.
            change(&mut smfu.opened.lock().targets, number);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.shut {
            self.leave(|targets, number| targets.close(number));
        }
    }
}

/// The number of a target that leads nowhere any more: nobody else gets it before the drop.
pub struct ShutTarget {
    smfu: Arc<Smfu>,
    number: u32,
}

impl ShutTarget {
    /// Nobody else gets the number for so long from now on, though its owner goes. Any context.
    pub fn rest(self, time: Delta) {
        let until = Instant::<Monotonic>::now() + time;
        let mut opened = self.smfu.opened.lock();
        if let Some(place) = opened.resting.get_mut(self.number as usize) {
            *place = Some(until);
        }
    }
}

impl ShutTarget {
    /// Number of the interval.
    pub fn interval(&self) -> u32 {
        self.number
    }
}

impl Drop for ShutTarget {
    fn drop(&mut self) {
        let smfu = &self.smfu;
        let hw = smfu.ctx.alive_access();
        let mut opened = smfu.opened.lock();
        let resting = opened.resting.get(self.number as usize);
        if resting.copied().flatten().is_some() {
            return;
        }
        opened.targets.close(self.number);
        if let Some(hw) = &hw {
            opened.write(hw, self.number);
        }
    }
}
